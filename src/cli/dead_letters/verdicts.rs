//! How the transactions of dead letters stand by the log: their parents may have come, and brought them back, since. Pure.

use std::collections::BTreeMap;

use crate::{
    broker::Message,
    cli::inspect::decisions::{Standing, Steps},
    event::{Decision, DecisionBody, Event},
    tx::Txid,
};

/// Whether the last verdict on each transaction accepts it.
#[derive(Default)]
pub struct Verdicts {
    accepted: BTreeMap<Txid, bool>,
    steps: Steps,
}

impl Verdicts {
    /// On these transactions only.
    pub fn on(txids: impl IntoIterator<Item = Txid>) -> Self {
        Verdicts { accepted: txids.into_iter().map(|txid| (txid, false)).collect(), steps: Steps::default() }
    }

    /// The next message of the decisions.
    pub fn take(&mut self, message: &Message) {
        let Ok(Event::Decision(decision)) = Event::decode(&message.payload) else { return };
        if self.steps.standing(&decision, message.timestamp_ms) != Standing::Counts {
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
            DecisionBody::PassedOver { .. } | DecisionBody::CommandDone { .. } | DecisionBody::Closed => {}
        }
    }

    fn set(&mut self, txid: &Txid, accepted: bool) {
        if let Some(there) = self.accepted.get_mut(txid) {
            *there = accepted;
        }
    }

    /// Whether this transaction is accepted.
    pub fn accepts(&self, txid: &Txid) -> bool {
        self.accepted.get(txid).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Reason;

    #[test]
    fn the_last_verdict_that_counts_is_the_one() {
        let (me, other) = (Txid([1; 32]), Txid([2; 32]));
        let accepted =
            |txid, losers| DecisionBody::Accepted { txid, height: 1, inputs: vec![], losers, by_block: false };
        let fell = DecisionBody::Conflicting {
            txid: me,
            reason: Reason::MissingParent { parent: other },
            height: 1,
            live: false,
        };
        let mut verdicts = Verdicts::on([me]);
        let mut told = Vec::new();
        for (chain_offset, step, body) in [
            (1, 0, fell.clone()),
            (4, 0, accepted(me, vec![])),
            // A second record for that step, by who had lost the chain.
            (4, 0, fell),
            (5, 0, accepted(other, vec![])),
            (6, 0, accepted(other, vec![me])),
        ] {
            let payload = Event::Decision(Decision { chain_offset, step, body }).encode().into();
            verdicts.take(&Message { offset: 0, timestamp_ms: 0, key: Default::default(), payload, headers: vec![] });
            told.push(verdicts.accepts(&me));
        }
        assert_eq!(told, [false, true, true, true, false]);
        assert!(!verdicts.accepts(&other), "nobody asked");
    }
}
