//! Conflicting transactions that nothing bars: each has lost a second chance, and a `Reconsider` makes it live.
//!
//! A transaction is barred while one of its slots would refuse it, or names a transaction that may be live. The slots
//! are asked by the rule that the sequencer evaluates a contest by.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    engine::EngineError,
    record::{
        Key, Page, Reason, Record, Rejection, Respend, RespendChecks, RespendSlot, SpendSlot, TxState, Verdict,
        respend_refusal,
    },
    store::{Store, dump::InWords, into_page},
    tx::{Transaction, Txid},
};

use super::Violation;

/// Records read at once. A page can have a megabyte.
const KEYS: usize = 256;
/// Inputs gathered at most.
const INPUTS: usize = 10_000;

/// Conflicting transactions whose slots have yet to be asked, and those that nothing was found to bar.
#[derive(Default)]
pub(super) struct Losers {
    losers: Vec<Loser>,
    inputs: usize,
    unbarred: Vec<Loser>,
}

struct Loser {
    txid: Txid,
    reason: Reason,
    /// Height of the block that the transaction can first be in.
    height: u32,
    /// Height at which the transaction is due to be pruned.
    due: Option<u32>,
    /// One slot an input.
    slots: Vec<(Key, SpendSlot)>,
}

impl Losers {
    /// Adds a conflicting transaction, unless only an operator or a block takes its verdict back.
    pub(super) fn add(&mut self, store: &Store, master: &Page, transaction: &Transaction<'_>) {
        let TxState::Conflicting(Verdict::Conflicting(reason)) = master.state() else { return };
        if reason.is_for_good() || reason == Reason::Disconnected {
            return;
        }
        let slots = transaction.inputs().zip(0..).filter_map(|(input, number)| {
            let (outpoint, previous) = (input.outpoint, input.previous?);
            let (page, offset) = store.place(outpoint);
            // A copy: otherwise each transaction that has yet to be asked about would keep its whole body.
            let script = previous.script.to_vec().into();
            let slot = SpendSlot::claiming(&outpoint, offset, number, &previous, script);
            Some((Key::Page(outpoint.txid, page), slot))
        });
        let slots: Vec<_> = slots.collect();
        self.inputs += slots.len();
        let height = master.unmined_since().unwrap_or(u32::MAX);
        self.losers.push(Loser { txid: master.txid, reason, height, due: master.delete_at_height, slots });
    }

    pub(super) fn are_many(&self) -> bool {
        self.losers.len() >= KEYS || self.inputs >= INPUTS
    }

    /// Tells those that nothing bars. One that is due to be pruned at the greatest height of the store is not meant:
    /// what is pruned has no second chance, and a rebuild keeps what its live store may have pruned.
    pub(super) fn tell(&mut self, highest: u32, found: &mut impl FnMut(Violation)) {
        let lost = self.unbarred.drain(..).filter(|loser| loser.due.is_none_or(|due| due > highest));
        lost.for_each(|loser| {
            found(Violation::Unbarred { txid: loser.txid, reason: InWords(loser.reason).to_string() })
        });
    }

    /// Asks the slots of all that were added.
    pub(super) async fn ask(&mut self, store: &Store) -> Result<(), EngineError> {
        self.inputs = 0;
        let losers = std::mem::take(&mut self.losers);
        let mut barred = BTreeSet::new();
        let mut holders: BTreeMap<Txid, BTreeSet<usize>> = BTreeMap::new();
        for (number, rejection) in refusals(store, &losers).await? {
            match rejection {
                Rejection::SpentBy(_, holder) => drop(holders.entry(holder.txid).or_default().insert(number)),
                _ => drop(barred.insert(number)),
            }
        }
        let txids: Vec<Txid> = holders.keys().copied().collect();
        for txids in txids.chunks(KEYS) {
            for (txid, master) in txids.iter().zip(store.masters(txids).await?) {
                if !master.is_some_and(|master| has_fallen(&master)) {
                    barred.extend(&holders[txid]);
                }
            }
        }
        let unbarred = losers.into_iter().enumerate().filter(|(number, _)| !barred.contains(number));
        self.unbarred.extend(unbarred.map(|(_, loser)| Loser { slots: Vec::new(), ..loser }));
        Ok(())
    }
}

/// The answers of the slots that refuse, each with the number of the transaction that asks.
async fn refusals(store: &Store, losers: &[Loser]) -> Result<Vec<(usize, Rejection)>, EngineError> {
    let mut by_key: BTreeMap<Key, Vec<(usize, &SpendSlot)>> = BTreeMap::new();
    for (number, loser) in losers.iter().enumerate() {
        for (key, slot) in &loser.slots {
            by_key.entry(*key).or_default().push((number, slot));
        }
    }
    let keys: Vec<Key> = by_key.keys().copied().collect();
    let mut refusals = Vec::new();
    for keys in keys.chunks(KEYS) {
        for (key, record) in keys.iter().zip(store.read(keys.to_vec()).await?) {
            // A lock record may lie under the key of a page: only the page is meant.
            let record = into_page(record).map(Record::Page);
            for (number, slot) in &by_key[key] {
                let loser = &losers[*number];
                let respend = Respend {
                    to: loser.txid,
                    slots: vec![RespendSlot { slot: (*slot).clone(), from: None }],
                    checks: RespendChecks::Spend { height: loser.height },
                };
                refusals.extend(respend_refusal(record.as_ref(), &respend).map(|rejection| (*number, rejection)));
            }
        }
    }
    Ok(refusals)
}

/// Whether the holder of a slot has to give it back: it is conflicting by verdict.
fn has_fallen(holder: &Page) -> bool {
    matches!(holder.state(), TxState::Conflicting(Verdict::Conflicting(_)) | TxState::Stub(Verdict::Conflicting(_)))
}
