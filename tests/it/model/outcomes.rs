//! Checks the topic of outcomes: exactly the outcomes that the history asks for, each at least once.

use std::collections::{BTreeMap, BTreeSet};

use utxo_store::{
    broker::{Message, partitioner::partition_of},
    event::{Block, DeadLetter, Event, OutcomeBatch, OutcomeChange, OutcomeEvent, OutcomeKind, OutcomeSource},
    tx::{Transaction, Txid},
};

use super::{Logged, facts::Origin, history::TxStatus, replay::Replay};

/// Outcomes that are published.
#[derive(Default)]
struct Published {
    /// Outcomes of the chain, by chain offset and transaction.
    of_chain: BTreeMap<(u64, Txid), Vec<OutcomeKind>>,
    /// Refused transactions, by partition and offset of their events.
    refused: BTreeSet<(i32, u64, Txid)>,
    live: BTreeSet<Txid>,
    changes: BTreeSet<(OutcomeChange, Txid)>,
}

impl Replay<'_> {
    /// Notes that a block of the longest chain lists these transactions.
    pub fn expect_mined(&mut self, block: &Block<'_>, txids: impl IntoIterator<Item = Txid>) {
        let (chain_offset, &Block { block_id, height, hash, .. }) = (self.offset, block);
        let change = OutcomeChange::Mined { chain_offset, block_id, height, hash };
        self.expected_changes.extend(txids.into_iter().map(|txid| (change, txid)));
    }

    /// Notes that the block of these transactions leaves the longest chain.
    pub fn expect_unmined(&mut self, block: &Block<'_>, txids: impl IntoIterator<Item = Txid>) {
        let (chain_offset, &Block { block_id, height, hash, .. }) = (self.offset, block);
        let change = OutcomeChange::Unmined { chain_offset, block_id, height, hash };
        self.expected_changes.extend(txids.into_iter().map(|txid| (change, txid)));
    }

    /// Checks that exactly the expected outcomes are published.
    pub fn check_outcomes(&mut self) {
        let mut published = Published::default();
        let refusals = self.expected_refusals();
        let logs = self.logs;
        for logged in &logs.outcomes {
            let about = format!("outcome {}/{}", logged.partition, logged.message.offset);
            match Event::decode(&logged.message.payload) {
                Ok(Event::Outcome(outcome)) => self.check_outcome(&about, outcome, &refusals, &mut published),
                Ok(Event::OutcomeBatch(batch)) => self.check_batch(&about, logged, &batch, &mut published),
                _ => self.complain_of(about, "is not an outcome"),
            }
        }
        for ((partition, offset, txid), kind) in refusals {
            if !published.refused.contains(&(partition, offset, txid)) {
                self.complain_of(txid, format!("has no outcome for its event {partition}/{offset}: {kind:?}"));
            }
        }
        for (subject @ (offset, txid), kinds) in std::mem::take(&mut self.expected_outcomes) {
            let of_chain = published.of_chain.get(&subject).map_or(&[][..], Vec::as_slice);
            for kind in kinds.into_iter().filter(|kind| !of_chain.contains(kind)) {
                self.complain_of(txid, format!("has no outcome for chain offset {offset}: {kind:?}"));
            }
        }
        if self.history.rules.mined_outcomes {
            let missing: Vec<_> = self.expected_changes.difference(&published.changes).copied().collect();
            missing.into_iter().for_each(|(change, txid)| self.complain_of(txid, format!("has no outcome {change:?}")));
        }
        if self.history.rules.live_outcomes {
            self.check_live_outcomes(&published);
        }
    }

    fn check_outcome(
        &mut self,
        about: &str,
        OutcomeEvent { txid, source, kind }: OutcomeEvent,
        refusals: &BTreeMap<(i32, u64, Txid), OutcomeKind>,
        published: &mut Published,
    ) {
        let is_expected = match source {
            OutcomeSource::Chain { offset } => {
                published.of_chain.entry((offset, txid)).or_default().push(kind.clone());
                (kind == OutcomeKind::Accepted && self.may_be_accepted_again(offset, txid))
                    || self.expected_outcomes.get(&(offset, txid)).is_some_and(|kinds| kinds.contains(&kind))
            }
            OutcomeSource::Validated { partition, offset } => {
                published.refused.insert((partition, offset, txid));
                refusals.get(&(partition, offset, txid)) == Some(&kind)
            }
        };
        if !is_expected {
            self.complain_of(about, format!("reports an unexpected outcome: {txid} by {source:?}: {kind:?}"));
        }
    }

    /// Returns whether a contest that was passed over may have the outcome `Accepted`. A sequencer that handles the
    /// contest again after its death finds the contestant live if a later event has accepted the contestant meanwhile.
    fn may_be_accepted_again(&self, offset: u64, txid: Txid) -> bool {
        let is_accepted_later = || {
            let later = self.expected_outcomes.range((offset + 1, Txid([0; 32]))..);
            later.into_iter().any(|((_, other), kinds)| *other == txid && kinds.contains(&OutcomeKind::Accepted))
        };
        self.passed_over.contains(&(offset, txid))
            || self.passed_over_conflicting.contains(&(offset, txid)) && is_accepted_later()
    }

    fn check_batch(&mut self, about: &str, logged: &Logged, batch: &OutcomeBatch<'_>, published: &mut Published) {
        let OutcomeBatch { change, txids } = *batch;
        for txid in txids.iter() {
            if partition_of(&txid.0, self.history.rules.partitions).is_some_and(|own| own != logged.partition) {
                self.complain_of(about, format!("is not in the partition of {txid}"));
            }
            let is_expected = match change {
                OutcomeChange::Live => {
                    published.live.insert(txid);
                    let tx = self.history.tx(&txid);
                    let has_event = tx.is_some_and(|tx| !matches!(tx.origin, Origin::Block { .. }));
                    has_event && self.history.rules.live_outcomes
                }
                OutcomeChange::Mined { .. } | OutcomeChange::Unmined { .. } => {
                    published.changes.insert((change, txid));
                    self.expected_changes.contains(&(change, txid)) && self.history.rules.mined_outcomes
                }
            };
            if !is_expected {
                self.complain_of(about, format!("reports an unexpected outcome: {txid}: {change:?}"));
            }
        }
    }

    /// Checks that each live transaction with an event has its outcome: live, or accepted by the sequencer.
    fn check_live_outcomes(&mut self, published: &Published) {
        let is_accepted = |((_, txid), kinds): (&(u64, Txid), &Vec<OutcomeKind>)| {
            kinds.contains(&OutcomeKind::Accepted).then_some(*txid)
        };
        let accepted: BTreeSet<Txid> = published.of_chain.iter().filter_map(is_accepted).collect();
        let facts = self.history.facts.clone();
        for (txid, tx) in &facts.txs {
            let is_live = matches!(self.history.status(txid), Some(TxStatus::Live | TxStatus::Uncontested));
            let has_event = !matches!(tx.origin, Origin::Block { .. });
            if is_live && has_event && !published.live.contains(txid) && !accepted.contains(txid) {
                self.complain_of(txid, "is live and has no outcome");
            }
        }
    }

    /// Returns the outcomes of the dead letters of validated events, by partition and offset of the event.
    fn expected_refusals(&self) -> BTreeMap<(i32, u64, Txid), OutcomeKind> {
        let logs = self.logs;
        let refusal = |logged: &Logged| {
            let letter = DeadLetter::from_headers(&logged.message.headers).ok()?;
            let is_source =
                |source: &&Logged| (source.partition, source.message.offset) == (letter.partition, letter.offset);
            let source = logs.validated.iter().find(is_source).filter(|_| letter.topic == logs.validated_topic)?;
            let kind = OutcomeKind::refused(letter.class, &letter.message)?;
            Some(((letter.partition, letter.offset, named_txid(&source.message)?), kind))
        };
        logs.dead_letters.iter().filter_map(refusal).collect()
    }
}

/// Returns the transaction that the body of a message names, or else its key.
fn named_txid(message: &Message) -> Option<Txid> {
    let by_body = match Event::decode(&message.payload) {
        Ok(Event::Validated(validated)) => Transaction::parse(validated.tx).ok().map(|tx| tx.txid()),
        Ok(Event::Seeded(seeded)) => Some(seeded.txid),
        _ => None,
    };
    by_body.or_else(|| message.key.as_ref().try_into().ok().map(Txid))
}
