//! The treatment of each event in a rebuild, and of a restored store that reads the log again
//! (`docs/protocols/rebuild.md`, `docs/protocols/snapshot.md`). Pure.
//!
//! Below the frontier (the committed offsets of the live group) the log is already decided, and a rebuild publishes and
//! decides nothing there. The mode of a transaction therefore follows from its *last verdict* in the decisions: only
//! the final state counts, not the way to it. A transaction that is live at the frontier has its slots for itself and
//! has live parents, so that no transaction waits for an effect of another decision.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    event::{Decision, DecisionBody},
    record::{ConsumedOffsets, Reason},
    tx::{FingerprintMap, Txid, TxidMap},
};

/// Ways to treat the event of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The event takes the fast path, and a conflict becomes a contest.
    Normal,
    /// The event is below the frontier, and its transaction ends conflicting: it is stored contested at once, takes no
    /// slot, and publishes no contest.
    EndsConflicting,
    /// The event was handled before a restore, and its transaction ends conflicting: it is stored contested at once and
    /// takes no slot. The event publishes a contest, which settles slots: the chain may have handled the earlier
    /// contest without the inputs, and the snapshot may have slots of the transaction.
    SettlesByContest,
    /// The event is below the frontier, and its transaction ends live: it ignores marks, and waits instead of
    /// contesting.
    EndsLive,
    /// The transaction ends live by a verdict. If it is barred for good, it is stored contested, and the verdict
    /// accepts it.
    EndsAccepted,
}

impl Mode {
    /// Returns whether the transaction is known to end conflicting: the event takes no slot.
    pub fn ends_conflicting(self) -> bool {
        matches!(self, Mode::EndsConflicting | Mode::SettlesByContest)
    }

    /// Returns whether the transaction is known to end live.
    pub fn ends_live(self) -> bool {
        matches!(self, Mode::EndsLive | Mode::EndsAccepted)
    }
}

/// Treatment of the events of one run.
#[derive(Debug, Clone, Default)]
pub enum Modes {
    /// Every event is treated normally.
    #[default]
    Live,
    /// Events below the frontier follow the plan of the rebuild.
    Rebuild(Arc<ReplayPlan>),
    /// A restored store reads the log again. Events that the earlier store has handled follow the plan.
    ReadAgain(Arc<ReplayPlan>),
}

/// Knowledge of the log, before a rebuild or a restored store reads the first event.
#[derive(Debug, Default)]
pub struct ReplayPlan {
    /// Frontier by partition: the first offset that is treated normally.
    pub frontier: BTreeMap<i32, u64>,
    /// Last verdict of each transaction in the decisions.
    pub verdicts: Arc<LastVerdicts>,
    /// Set where the frontier is above the committed offsets of the live group.
    pub raised: Option<RaisedFrontier>,
}

/// A frontier above the committed offsets, raised for some transactions.
#[derive(Debug, Default)]
pub struct RaisedFrontier {
    /// Committed offsets of the live group by partition.
    pub committed: BTreeMap<i32, u64>,
    /// Transactions whose events are handled between the committed offsets and the frontier.
    pub counted_txids: TxidMap<()>,
}

impl Modes {
    /// Returns whether the run rebuilds a store, publishes nothing and decides nothing.
    pub fn is_rebuild(&self) -> bool {
        matches!(self, Modes::Rebuild(_))
    }

    /// Returns whether a restored store reads the log again.
    pub fn reads_again(&self) -> bool {
        matches!(self, Modes::ReadAgain(_))
    }

    /// Returns the mode of the event of `txid` at an offset.
    pub fn of(&self, partition: i32, offset: u64, txid: &Txid) -> Mode {
        match self {
            Modes::Rebuild(plan) if plan.is_below(partition, offset) => plan.mode_of(txid),
            // The contest with a reopenable verdict is applied again with the inputs; another contest would reopen it.
            Modes::ReadAgain(plan) if plan.is_below(partition, offset) => match plan.mode_of(txid) {
                Mode::EndsConflicting if plan.verdicts.get(txid) != Some(FinalState::Reopenable) => {
                    Mode::SettlesByContest
                }
                mode => mode,
            },
            _ => Mode::Normal,
        }
    }

    /// Returns whether the event of `txid` is skipped, although its offset is below the frontier.
    pub fn is_skipped(&self, partition: i32, offset: u64, txid: &Txid) -> bool {
        let Modes::Rebuild(rebuild) = self else { return false };
        let Some(raised) = &rebuild.raised else { return false };
        raised.committed.get(&partition).is_none_or(|end| offset >= *end) && !raised.counted_txids.contains_key(txid)
    }

    /// Returns whether no message is published for the event at an offset, below the frontier of a rebuild.
    pub fn publishes_nothing_at(&self, partition: i32, offset: u64) -> bool {
        matches!(self, Modes::Rebuild(rebuild) if rebuild.is_below(partition, offset))
    }

    /// Returns the last verdicts of the plan; none in a live run.
    pub fn verdicts(&self) -> Arc<LastVerdicts> {
        match self {
            Modes::Live => Arc::default(),
            Modes::Rebuild(plan) | Modes::ReadAgain(plan) => plan.verdicts.clone(),
        }
    }

    /// Returns the offset at which each partition ends; `None` for a run that does not end.
    pub fn end_offsets(&self) -> Option<&BTreeMap<i32, u64>> {
        match self {
            Modes::Rebuild(rebuild) => Some(&rebuild.frontier),
            _ => None,
        }
    }
}

impl ReplayPlan {
    /// Returns the mode of a transaction below the frontier.
    pub fn mode_of(&self, txid: &Txid) -> Mode {
        match self.verdicts.get(txid) {
            Some(FinalState::Conflicting | FinalState::Reopenable | FinalState::Contested) => Mode::EndsConflicting,
            Some(FinalState::Accepted) => Mode::EndsAccepted,
            Some(FinalState::Live) | None => Mode::EndsLive,
        }
    }

    /// Returns the consumed offsets of a store that was rebuilt up to the frontier, and up to the chain offset `chain`.
    /// A raised frontier does not count, since only some events below it were handled.
    pub fn consumed(&self, chain: u64) -> ConsumedOffsets {
        let validated = self.raised.as_ref().map_or(&self.frontier, |raised| &raised.committed);
        let validated = validated.iter().map(|(number, offset)| (number.unsigned_abs(), *offset));
        ConsumedOffsets { chain, validated: validated.collect(), height: 0 }
    }

    fn is_below(&self, partition: i32, offset: u64) -> bool {
        self.frontier.get(&partition).is_some_and(|end| offset < *end)
    }
}

/// States of a transaction after the decisions below a frontier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalState {
    /// Conflicting by a verdict.
    Conflicting,
    /// Conflicting by a verdict on its own contest that a later event of the transaction opens again.
    Reopenable,
    /// Contested or a stub, without a verdict.
    Contested,
    /// Live without a verdict.
    Live,
    /// Live by the verdict accepted.
    Accepted,
}

/// The final state of each transaction that a decision below a frontier names. A transaction that is not listed was
/// never contested.
#[derive(Debug, Clone, Default)]
pub struct LastVerdicts {
    /// A log can name tens of millions of transactions.
    states: FingerprintMap<FinalState>,
}

impl LastVerdicts {
    /// Adds the next decision that counts, in the order of the chain.
    ///
    /// Decisions on chain offsets below `frontier` are applied. Decisions on later offsets only show the earlier state
    /// of the transactions that they name.
    pub fn add(&mut self, decision: &Decision, frontier: u64) {
        match decision.chain_offset < frontier {
            true => self.apply(&decision.body),
            false => self.observe(&decision.body),
        }
    }

    /// Adds the transactions of contests without a decision, after all decisions.
    pub fn add_undecided(&mut self, txids: impl IntoIterator<Item = Txid>) {
        txids.into_iter().for_each(|txid| self.insert_if_new(txid, FinalState::Contested));
    }

    /// Returns the final state of `txid`; `None`: no decision names the transaction, and it is live.
    pub fn get(&self, txid: &Txid) -> Option<FinalState> {
        self.states.get(txid)
    }

    /// Returns whether a transaction that a decision names ends live.
    pub fn ends_live(&self, txid: &Txid) -> bool {
        matches!(self.get(txid), Some(FinalState::Live | FinalState::Accepted))
    }

    /// Returns whether a transaction ends conflicting, or contested without a verdict.
    pub fn ends_conflicting(&self, txid: &Txid) -> bool {
        matches!(self.get(txid), Some(FinalState::Conflicting | FinalState::Reopenable | FinalState::Contested))
    }

    /// Records the state of a transaction on which no decision was seen before.
    fn insert_if_new(&mut self, txid: Txid, state: FinalState) {
        if self.states.get(&txid).is_none() {
            self.states.insert(txid, state);
        }
    }

    /// Records that a decision has found the transaction live. A transaction that was contested before was accepted,
    /// and a node has lost that it was contested.
    fn mark_live(&mut self, txid: Txid) {
        if matches!(self.states.get(&txid), None | Some(FinalState::Contested)) {
            self.states.insert(txid, FinalState::Live);
        }
    }

    fn apply(&mut self, body: &DecisionBody) {
        match body {
            DecisionBody::Accepted { txid, losers, .. } => {
                self.observe(body);
                self.states.insert(*txid, FinalState::Accepted);
                self.states.extend(losers.iter().map(|loser| (*loser, FinalState::Conflicting)));
            }
            DecisionBody::Conflicting { txid, reason, .. } => {
                if let Reason::DoubleSpend { winner, .. } = reason {
                    self.mark_live(*winner);
                }
                let is_reopenable = reason.is_reopened_by_own_event();
                let state = if is_reopenable { FinalState::Reopenable } else { FinalState::Conflicting };
                self.states.insert(*txid, state);
            }
            DecisionBody::Cone { members, .. } => {
                self.states.extend(members.iter().map(|member| (member.txid, FinalState::Conflicting)));
            }
            // A contest that is passed over changes no state. Parts of a decision are joined before they come here.
            DecisionBody::PassedOver { .. }
            | DecisionBody::CommandDone { .. }
            | DecisionBody::Closed
            | DecisionBody::AcceptedPart { .. }
            | DecisionBody::Lifted { .. } => {}
        }
    }

    /// Records the states that a decision shows of transactions on which no decision was seen before.
    fn observe(&mut self, body: &DecisionBody) {
        let state_of = |live: bool| if live { FinalState::Live } else { FinalState::Contested };
        match body {
            DecisionBody::Accepted { txid, inputs, losers, .. } => {
                losers.iter().for_each(|loser| self.insert_if_new(*loser, FinalState::Live));
                self.insert_if_new(*txid, FinalState::Contested);
                // A live holder is among the losers; every other holder was contested, or got a stub.
                let holders = inputs.iter().filter_map(|input| input.holder);
                holders.for_each(|holder| self.insert_if_new(holder.txid, FinalState::Contested));
            }
            DecisionBody::Conflicting { txid, live, .. } => self.insert_if_new(*txid, state_of(*live)),
            DecisionBody::Cone { members, .. } => {
                members.iter().for_each(|member| self.insert_if_new(member.txid, state_of(member.live)));
            }
            DecisionBody::PassedOver { .. }
            | DecisionBody::CommandDone { .. }
            | DecisionBody::Closed
            | DecisionBody::AcceptedPart { .. }
            | DecisionBody::Lifted { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{DecidedInput, Descendant},
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
        DecisionBody::Cone { members: vec![Descendant { txid, parent: id(1), live }], height: 0 }
    }

    /// Collects the final states of decisions on successive chain offsets.
    fn verdicts(bodies: Vec<DecisionBody>, undecided: &[Txid], frontier: u64) -> LastVerdicts {
        let mut verdicts = LastVerdicts::default();
        for (body, chain_offset) in bodies.into_iter().zip(0..) {
            verdicts.add(&Decision { chain_offset, step: 0, body }, frontier);
        }
        verdicts.add_undecided(undecided.iter().copied());
        verdicts
    }

    #[test]
    fn the_last_verdict_counts() {
        let (t, u, child) = (id(1), id(2), id(3));
        let mut log = vec![conflicting(t, u, false), accepted(t, &[u], &[u]), cone(child, true)];
        let states = |log: &[DecisionBody]| {
            let verdicts = verdicts(log.to_vec(), &[], 9);
            [t, u, child].map(|txid| verdicts.get(&txid))
        };
        assert_eq!(states(&log[..1]), [Some(FinalState::Conflicting), Some(FinalState::Live), None]);
        assert_eq!(
            states(&log),
            [Some(FinalState::Accepted), Some(FinalState::Conflicting), Some(FinalState::Conflicting)]
        );
        log.extend([DecisionBody::PassedOver { txid: child }, conflicting(t, u, true), accepted(u, &[t], &[])]);
        assert_eq!(
            states(&log),
            [Some(FinalState::Conflicting), Some(FinalState::Accepted), Some(FinalState::Conflicting)]
        );
    }

    #[test]
    fn a_transaction_without_a_verdict_has_the_state_that_was_seen() {
        let (t, holder, undecided) = (id(1), id(2), id(3));
        let last = verdicts(vec![accepted(t, &[holder], &[])], &[undecided, t], 9);
        assert_eq!(last.get(&holder), Some(FinalState::Contested));
        assert_eq!((last.get(&undecided), last.get(&t)), (Some(FinalState::Contested), Some(FinalState::Accepted)));
        // The holder was read again before its own contest, was live, and was accepted.
        let last = verdicts(vec![accepted(t, &[holder], &[]), conflicting(t, holder, true)], &[], 9);
        assert_eq!((last.get(&holder), last.get(&t)), (Some(FinalState::Live), Some(FinalState::Conflicting)));
    }

    #[test]
    fn a_decision_above_the_frontier_shows_the_earlier_state() {
        let (t, loser, member) = (id(1), id(2), id(3));
        let last = verdicts(vec![accepted(t, &[loser], &[loser]), cone(member, false)], &[], 0);
        let states = [t, loser, member].map(|txid| last.get(&txid));
        assert_eq!(states, [Some(FinalState::Contested), Some(FinalState::Live), Some(FinalState::Contested)]);
        assert!(last.ends_live(&loser) && !last.ends_live(&t) && !last.ends_live(&id(4)));
    }

    #[test]
    fn events_that_are_read_again_follow_their_verdicts() {
        let (lost, missing, won, live) = (id(1), id(2), id(3), id(4));
        let missing_parent = DecisionBody::Conflicting {
            txid: missing,
            reason: Reason::MissingParent { parent: id(9) },
            height: 0,
            live: false,
        };
        let verdicts = verdicts(vec![conflicting(lost, live, false), missing_parent, accepted(won, &[], &[])], &[], 9);
        let plan =
            ReplayPlan { frontier: BTreeMap::from([(0, 5)]), verdicts: Arc::new(verdicts), ..ReplayPlan::default() };
        let modes = Modes::ReadAgain(Arc::new(plan));
        let below = [lost, missing, won, live, id(5)].map(|txid| modes.of(0, 4, &txid));
        assert_eq!(
            below,
            [Mode::SettlesByContest, Mode::EndsConflicting, Mode::EndsAccepted, Mode::EndsLive, Mode::EndsLive]
        );
        assert_eq!((modes.of(0, 5, &lost), modes.of(1, 0, &lost)), (Mode::Normal, Mode::Normal));
        assert!(!modes.publishes_nothing_at(0, 4) && modes.end_offsets().is_none(), "outcomes are published");
    }
}
