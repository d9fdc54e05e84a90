//! How a rebuild treats each event (`DESIGN.md` section 7, "Rebuild"). Pure.
//!
//! Below the frontier (what the live group had committed) the log has already been decided. A transaction's mode follows
//! its *last verdict* in the decisions: a rebuild publishes nothing and decides nothing there, so how a transaction came to
//! its end does not matter, only what the end is. Whoever is live at the frontier has its slots for itself and live parents, so
//! that nobody waits for what another decision has to bring first.

use std::{borrow::Borrow, collections::BTreeMap, sync::Arc};

use crate::{
    event::{Decision, DecisionBody},
    record::{Consumed, Reason},
    tx::{Txid, TxidMap},
};

/// How a transaction is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The fast path, and contests.
    Normal,
    /// Below the frontier of a rebuild, known to be conflicting in the end: stored contested at once, takes nothing, tells
    /// nobody.
    RebuildContested,
    /// Below the frontier of a rebuild, known to be live in the end: ignores marks, and waits where others would contest.
    RebuildWon,
    /// The same, by a verdict. What bars it for good did not bar that: it is stored contested, and the verdict lets it win.
    RebuildAccepted,
}

impl Mode {
    /// Whether it is known to be live in the end.
    pub fn ends_live(self) -> bool {
        matches!(self, Mode::RebuildWon | Mode::RebuildAccepted)
    }
}

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
    /// What the decisions say last of each transaction.
    pub verdicts: Arc<LastVerdicts>,
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
        match self.verdicts.get(txid) {
            Some(Fate::Conflicting | Fate::Contested) => Mode::RebuildContested,
            Some(Fate::Accepted) => Mode::RebuildAccepted,
            Some(Fate::Live) | None => Mode::RebuildWon,
        }
    }

    /// What a store holds that was rebuilt so far, with the chain below `chain`. Of what lies above the commits not everything
    /// counts.
    pub fn consumed(&self, chain: u64) -> Consumed {
        let validated = self.raised.as_ref().map_or(&self.frontier, |raised| &raised.committed);
        let validated = validated.iter().map(|(number, offset)| (number.unsigned_abs(), *offset));
        Consumed { chain, validated: validated.collect() }
    }

    fn is_below(&self, partition: i32, offset: u64) -> bool {
        self.frontier.get(&partition).is_some_and(|end| offset < *end)
    }
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Conflicting.
    Conflicting,
    /// Contested, or a stub, without a verdict.
    Contested,
    /// Live, as it had been from the start.
    Live,
    /// Live by a verdict.
    Accepted,
}

/// What became of each transaction that a decision names, by the decisions below a frontier. Whoever is not among them was never
/// contested.
#[derive(Debug, Clone, Default)]
pub struct LastVerdicts {
    fates: TxidMap<Fate>,
}

impl LastVerdicts {
    /// From the decisions that count, in their order, and then the contests that have none yet. Below the chain offset
    /// `frontier` decisions are applied; those on what stands above it only show what had been there before.
    pub fn new(
        decisions: impl IntoIterator<Item = impl Borrow<Decision>>,
        undecided: impl IntoIterator<Item = Txid>,
        frontier: u64,
    ) -> Self {
        let mut verdicts = LastVerdicts::default();
        for decision in decisions {
            let decision = decision.borrow();
            if decision.chain_offset < frontier {
                verdicts.apply(&decision.body);
            } else {
                verdicts.look(&decision.body);
            }
        }
        undecided.into_iter().for_each(|txid| verdicts.was(txid, Fate::Contested));
        verdicts
    }

    /// What became of `txid`; `None`: no decision names it, so it is live.
    pub fn get(&self, txid: &Txid) -> Option<Fate> {
        self.fates.get(txid).copied()
    }

    /// Whether a transaction that a decision below the frontier names is live in the end.
    pub fn ends_live(&self, txid: &Txid) -> bool {
        matches!(self.get(txid), Some(Fate::Live | Fate::Accepted))
    }

    /// Whether a transaction is conflicting, or undecided, in the end.
    pub fn ends_fallen(&self, txid: &Txid) -> bool {
        matches!(self.get(txid), Some(Fate::Conflicting | Fate::Contested))
    }

    /// What it was, as far as nothing has been decided on it.
    fn was(&mut self, txid: Txid, fate: Fate) {
        self.fates.entry(txid).or_insert(fate);
    }

    /// It was seen to be live, and so won what it was contested for before a node forgot that it was.
    fn is_live(&mut self, txid: Txid) {
        if let fate @ Fate::Contested = self.fates.entry(txid).or_insert(Fate::Live) {
            *fate = Fate::Live;
        }
    }

    fn apply(&mut self, body: &DecisionBody) {
        match body {
            DecisionBody::Accepted { txid, losers, .. } => {
                self.look(body);
                self.fates.insert(*txid, Fate::Accepted);
                self.fates.extend(losers.iter().map(|loser| (*loser, Fate::Conflicting)));
            }
            DecisionBody::Conflicting { txid, reason, .. } => {
                if let Reason::DoubleSpend { winner, .. } = reason {
                    self.is_live(*winner);
                }
                self.fates.insert(*txid, Fate::Conflicting);
            }
            DecisionBody::Cone { members, .. } => {
                self.fates.extend(members.iter().map(|member| (member.txid, Fate::Conflicting)));
            }
            // A contest that is passed over changes nothing; parts are read as the whole that they make.
            DecisionBody::PassedOver { .. }
            | DecisionBody::CommandDone { .. }
            | DecisionBody::Closed
            | DecisionBody::AcceptedPart { .. } => {}
        }
    }

    /// What a decision shows of those on whom nothing was decided before.
    fn look(&mut self, body: &DecisionBody) {
        let fate_of = |live: bool| if live { Fate::Live } else { Fate::Contested };
        match body {
            DecisionBody::Accepted { txid, inputs, losers, .. } => {
                losers.iter().for_each(|loser| self.was(*loser, Fate::Live));
                self.was(*txid, Fate::Contested);
                // A holder that was live is among the losers; the others were contested, or made a stub.
                let holders = inputs.iter().filter_map(|input| input.holder);
                holders.for_each(|holder| self.was(holder.txid, Fate::Contested));
            }
            DecisionBody::Conflicting { txid, live, .. } => self.was(*txid, fate_of(*live)),
            DecisionBody::Cone { members, .. } => {
                members.iter().for_each(|member| self.was(member.txid, fate_of(member.live)));
            }
            DecisionBody::PassedOver { .. }
            | DecisionBody::CommandDone { .. }
            | DecisionBody::Closed
            | DecisionBody::AcceptedPart { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{ConeMember, DecidedInput},
        record::SpendingData,
        tx::Outpoint,
    };

    const fn id(n: u8) -> Txid {
        Txid([n; 32])
    }

    fn accepted(txid: Txid, holders: &[Txid], losers: &[Txid]) -> DecisionBody {
        let holders = holders.iter().zip(0..);
        let inputs = holders.map(|(holder, input)| DecidedInput {
            input,
            outpoint: Outpoint { txid: id(99), vout: input },
            holder: Some(SpendingData { txid: *holder, input: 0 }),
        });
        DecisionBody::Accepted { txid, height: 0, inputs: inputs.collect(), losers: losers.to_vec(), by_block: false }
    }

    fn conflicting(txid: Txid, winner: Txid, live: bool) -> DecisionBody {
        DecisionBody::Conflicting { txid, reason: Reason::DoubleSpend { input: 0, winner }, height: 0, live }
    }

    fn cone(txid: Txid, live: bool) -> DecisionBody {
        DecisionBody::Cone { members: vec![ConeMember { txid, parent: id(1), live }], height: 0 }
    }

    /// Decisions on one chain event after the other.
    fn verdicts(bodies: Vec<DecisionBody>, undecided: &[Txid], frontier: u64) -> LastVerdicts {
        let decisions: Vec<_> =
            bodies.into_iter().zip(0..).map(|(body, chain_offset)| Decision { chain_offset, step: 0, body }).collect();
        LastVerdicts::new(&decisions, undecided.iter().copied(), frontier)
    }

    #[test]
    fn the_last_verdict_counts() {
        let (t, u, child) = (id(1), id(2), id(3));
        let mut log = vec![conflicting(t, u, false), accepted(t, &[u], &[u]), cone(child, true)];
        let told = |log: &[DecisionBody]| {
            let told = verdicts(log.to_vec(), &[], 9);
            [t, u, child].map(|txid| told.get(&txid))
        };
        assert_eq!(told(&log[..1]), [Some(Fate::Conflicting), Some(Fate::Live), None]);
        assert_eq!(told(&log), [Some(Fate::Accepted), Some(Fate::Conflicting), Some(Fate::Conflicting)]);
        log.extend([DecisionBody::PassedOver { txid: child }, conflicting(t, u, true), accepted(u, &[t], &[])]);
        assert_eq!(told(&log), [Some(Fate::Conflicting), Some(Fate::Accepted), Some(Fate::Conflicting)]);
    }

    #[test]
    fn without_a_verdict_it_is_what_was_seen() {
        let (t, holder, undecided) = (id(1), id(2), id(3));
        let told = verdicts(vec![accepted(t, &[holder], &[])], &[undecided, t], 9);
        assert_eq!(told.get(&holder), Some(Fate::Contested));
        assert_eq!((told.get(&undecided), told.get(&t)), (Some(Fate::Contested), Some(Fate::Accepted)));
        // It came again before its own contest, was live, and won in the end.
        let told = verdicts(vec![accepted(t, &[holder], &[]), conflicting(t, holder, true)], &[], 9);
        assert_eq!((told.get(&holder), told.get(&t)), (Some(Fate::Live), Some(Fate::Conflicting)));
    }

    #[test]
    fn what_is_not_applied_shows_what_had_been_there() {
        let (t, loser, member) = (id(1), id(2), id(3));
        let told = verdicts(vec![accepted(t, &[loser], &[loser]), cone(member, false)], &[], 0);
        let fates = [t, loser, member].map(|txid| told.get(&txid));
        assert_eq!(fates, [Some(Fate::Contested), Some(Fate::Live), Some(Fate::Contested)]);
        assert!(told.ends_live(&loser) && !told.ends_live(&t) && !told.ends_live(&id(4)));
    }
}
