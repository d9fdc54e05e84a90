//! How a rebuild treats each event (`DESIGN.md` section 7, "Rebuild"). Pure.
//!
//! Below the frontier (what the live group had committed) the log has already been decided. A transaction's mode follows
//! its *first mention* in the decisions, because what it was then is what it had been from the start: contested, or live.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    event::{Decision, DecisionBody},
    ingest::plan::{Mode, TxidMap},
    record::Reason,
    tx::Txid,
};

/// How each event is treated.
#[derive(Debug, Clone, Default)]
pub enum Modes {
    /// The fast path, and contests.
    #[default]
    Live,
    /// Below a frontier.
    Rebuild(Arc<Rebuild>),
}

/// What a rebuild knows before it reads the first event.
#[derive(Debug, Default)]
pub struct Rebuild {
    /// By partition: the first offset that is treated normally.
    pub frontier: BTreeMap<i32, u64>,
    /// What the decisions say first of each transaction.
    pub mentions: FirstMentions,
    /// The run ends at the frontier (a shadow rebuild, for comparison).
    pub stop_at_frontier: bool,
    /// The frontier is above what the live group had committed.
    pub raised: Option<Raised>,
}

/// A frontier that was raised for some transactions.
#[derive(Debug, Default)]
pub struct Raised {
    /// Where the live group had committed, by partition.
    pub committed: BTreeMap<i32, u64>,
    /// The transactions whose events count from there up to the frontier.
    pub counts: TxidMap<()>,
}

impl Modes {
    /// How the event of `txid` at this place is treated.
    pub fn of(&self, partition: i32, offset: u64, txid: &Txid) -> Mode {
        match self {
            Modes::Rebuild(rebuild) if rebuild.is_below(partition, offset) => rebuild.mode_of(txid),
            _ => Mode::Normal,
        }
    }

    /// Whether the event of `txid` at this place does not count, though it lies below the frontier.
    pub fn passes_over(&self, partition: i32, offset: u64, txid: &Txid) -> bool {
        let Modes::Rebuild(rebuild) = self else { return false };
        let Some(raised) = &rebuild.raised else { return false };
        raised.committed.get(&partition).is_none_or(|end| offset >= *end) && !raised.counts.contains_key(txid)
    }

    /// Whether nothing may be published for the event at this place.
    pub fn is_below_frontier(&self, partition: i32, offset: u64) -> bool {
        matches!(self, Modes::Rebuild(rebuild) if rebuild.is_below(partition, offset))
    }

    /// Where each partition ends, for a run that ends.
    pub fn ends(&self) -> Option<&BTreeMap<i32, u64>> {
        match self {
            Modes::Rebuild(rebuild) if rebuild.stop_at_frontier => Some(&rebuild.frontier),
            _ => None,
        }
    }
}

impl Rebuild {
    /// How a transaction is treated below the frontier.
    pub fn mode_of(&self, txid: &Txid) -> Mode {
        match self.mentions.get(txid) {
            Some(Mention::Contested) => Mode::RebuildContested,
            Some(Mention::Live) | None => Mode::RebuildWon,
        }
    }

    fn is_below(&self, partition: i32, offset: u64) -> bool {
        self.frontier.get(&partition).is_some_and(|end| offset < *end)
    }
}

/// What a transaction was when a decision first named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mention {
    /// Contested, or a stub.
    Contested,
    /// Live.
    Live,
}

/// First mentions, by transaction.
///
/// A verdict against a transaction that was live, or had been, by its own contest: a node had forgotten that it, or its
/// rival, had taken the slot, and both were live for a while. It can only ever have been unmined, and what descends from
/// it fell with it, so a rebuild takes it, and them, for contested from the start: else two would wait for one slot.
#[derive(Debug, Clone, Default)]
pub struct FirstMentions {
    mentions: TxidMap<Mention>,
    /// The verdict that the decisions to come belong to is such a one.
    forgotten: bool,
}

impl FirstMentions {
    /// From the decisions that count, in their order, and then the contests that have none yet.
    pub fn new<'a>(
        decisions: impl IntoIterator<Item = &'a Decision>,
        undecided: impl IntoIterator<Item = Txid>,
    ) -> Self {
        let mut mentions = FirstMentions::default();
        for decision in decisions {
            mentions.read(&decision.body);
        }
        for txid in undecided {
            mentions.note(txid, Mention::Contested);
        }
        mentions
    }

    /// The first mention of `txid`.
    pub fn get(&self, txid: &Txid) -> Option<Mention> {
        self.mentions.get(txid).copied()
    }

    fn note(&mut self, txid: Txid, mention: Mention) {
        self.mentions.entry(txid).or_insert(mention);
    }

    fn note_member(&mut self, txid: Txid, live: bool) {
        if self.forgotten {
            self.mentions.insert(txid, Mention::Contested);
        } else {
            self.note(txid, if live { Mention::Live } else { Mention::Contested });
        }
    }

    fn read(&mut self, body: &DecisionBody) {
        match body {
            DecisionBody::Accepted { txid, inputs, losers, .. } => {
                self.forgotten = false;
                self.note(*txid, Mention::Contested);
                losers.iter().for_each(|loser| self.note(*loser, Mention::Live));
                // A holder that was live is among the losers; the others were contested, or made a stub.
                for holder in inputs.iter().filter_map(|input| input.holder) {
                    if holder.txid != *txid {
                        self.note(holder.txid, Mention::Contested);
                    }
                }
            }
            DecisionBody::Conflicting { txid, reason, live, .. } => {
                self.forgotten = *live || self.get(txid) == Some(Mention::Live);
                self.note_member(*txid, *live);
                if let Reason::DoubleSpend { winner, .. } = reason {
                    self.note(*winner, Mention::Live);
                }
            }
            DecisionBody::Cone { members, .. } => {
                members.iter().for_each(|member| self.note_member(member.txid, member.live));
            }
            // A contest that is passed over is no mention.
            DecisionBody::PassedOver { .. } | DecisionBody::CommandDone { .. } | DecisionBody::Closed => {
                self.forgotten = false;
            }
            // Parts are read as the whole that they make; one without the others decides nothing.
            DecisionBody::AcceptedPart { .. } => {}
        }
    }
}
