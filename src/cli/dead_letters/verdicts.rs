//! Last verdicts on the transactions of dead letters: a parent that arrived later can have made them live. Pure.

use std::collections::BTreeMap;

use crate::{
    broker::Message,
    client::steps::{DecisionStatus, StepTracker},
    event::{Decision, DecisionBody, Event},
    tx::Txid,
};

/// Last verdict on each of a set of transactions: accepted or not.
#[derive(Default)]
pub struct Verdicts {
    accepted: BTreeMap<Txid, bool>,
    steps: StepTracker,
}

impl Verdicts {
    /// Starts with these transactions, none of them accepted.
    pub fn for_txids(txids: impl IntoIterator<Item = Txid>) -> Self {
        Verdicts { accepted: txids.into_iter().map(|txid| (txid, false)).collect(), steps: StepTracker::default() }
    }

    /// Adds the next message of the decisions.
    pub fn take(&mut self, message: &Message) {
        let decisions = Event::decode_decisions(&message.payload, message.offset);
        decisions.into_iter().for_each(|decision| self.take_decision(decision, message.timestamp_ms));
    }

    fn take_decision(&mut self, decision: Decision, timestamp_ms: i64) {
        if self.steps.classify(&decision, timestamp_ms) != DecisionStatus::Counts {
            return;
        }
        let Decision { body, .. } = decision;
        match body {
            DecisionBody::Accepted { txid, losers, .. } | DecisionBody::AcceptedPart { txid, losers, .. } => {
                losers.iter().for_each(|loser| self.set(loser, false));
                self.set(&txid, true);
            }
            DecisionBody::Conflicting { txid, .. } => self.set(&txid, false),
            DecisionBody::Cone { members, .. } => members.iter().for_each(|member| self.set(&member.txid, false)),
            DecisionBody::PassedOver { .. }
            | DecisionBody::CommandDone { .. }
            | DecisionBody::Closed
            | DecisionBody::Lifted { .. } => {}
        }
    }

    fn set(&mut self, txid: &Txid, accepted: bool) {
        if let Some(is_accepted) = self.accepted.get_mut(txid) {
            *is_accepted = accepted;
        }
    }

    /// Returns whether the last verdict accepts the transaction; `false` for other transactions.
    pub fn accepts(&self, txid: &Txid) -> bool {
        self.accepted.get(txid).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Reason;

    #[test]
    fn the_last_verdict_that_counts_decides() {
        let (txid, other) = (Txid([1; 32]), Txid([2; 32]));
        let accepted =
            |txid, losers| DecisionBody::Accepted { txid, height: 1, inputs: vec![], losers, by_block: false };
        let refused =
            DecisionBody::Conflicting { txid, reason: Reason::MissingParent { parent: other }, height: 1, live: false };
        let mut verdicts = Verdicts::for_txids([txid]);
        let mut accepts = Vec::new();
        for (chain_offset, step, body) in [
            (1, 0, refused.clone()),
            (4, 0, accepted(txid, vec![])),
            // A second decision of the same step, by a sequencer that had lost the chain.
            (4, 0, refused),
            (5, 0, accepted(other, vec![])),
            (6, 0, accepted(other, vec![txid])),
        ] {
            let payload = Event::Decision(Decision { chain_offset, step, body }).encode().into();
            verdicts.take(&Message { offset: 0, timestamp_ms: 0, key: Default::default(), payload, headers: vec![] });
            accepts.push(verdicts.accepts(&txid));
        }
        assert_eq!(accepts, [false, true, true, true, false]);
        assert!(!verdicts.accepts(&other), "the transaction is not in the set");
    }
}
