//! Search for conflicting transactions that nothing bars: each has lost a second chance, and a `Reconsider` makes it
//! live.
//!
//! A transaction is barred while one of its slots would refuse the transaction, or names a transaction that may be
//! live. The slots are checked by the rule by which the sequencer evaluates a contest.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    engine::EngineError,
    record::{
        Key, Page, Reason, Record, Rejection, Respend, RespendChecks, RespendSlot, SpendSlot, TxState, Verdict,
        respend_refusal,
    },
    store::{StateStore, into_page},
    tx::{Transaction, Txid},
};

use super::Violation;

/// Number of records read at once. A page can have a megabyte.
const MAX_RECORDS: usize = 256;
/// Greatest number of gathered inputs.
const MAX_INPUTS: usize = 10_000;

/// Conflicting transactions whose slots are not checked yet, and the transactions that nothing bars.
#[derive(Default)]
pub(super) struct UnbarredSearch {
    candidates: Vec<ConflictingTx>,
    inputs: usize,
    unbarred: Vec<ConflictingTx>,
}

struct ConflictingTx {
    txid: Txid,
    reason: Reason,
    /// Height of the first block that can list the transaction.
    height: u32,
    /// Height at which the transaction is due to be pruned.
    due: Option<u32>,
    /// The slot of each input.
    slots: Vec<(Key, SpendSlot)>,
}

impl UnbarredSearch {
    /// Adds a conflicting transaction, unless only an operator or a block can change the verdict.
    pub(super) fn add(&mut self, store: &StateStore, master: &Page, transaction: &Transaction<'_>) {
        let TxState::Conflicting(Verdict::Conflicting(reason)) = master.state() else { return };
        if reason.is_permanent() || reason == Reason::Disconnected {
            return;
        }
        let slots = transaction.inputs().zip(0..).filter_map(|(input, number)| {
            let (outpoint, previous) = (input.outpoint, input.previous?);
            let (page, offset) = store.locate_slot(outpoint);
            // The script is copied: a reference would keep the whole body of each gathered transaction in memory.
            let script = previous.script.to_vec().into();
            let slot = SpendSlot::claiming(&outpoint, offset, number, &previous, script);
            Some((Key::Page(outpoint.txid, page), slot))
        });
        let slots: Vec<_> = slots.collect();
        self.inputs += slots.len();
        let height = master.unmined_since().unwrap_or(u32::MAX);
        self.candidates.push(ConflictingTx { txid: master.txid, reason, height, due: master.delete_at_height, slots });
    }

    pub(super) fn is_full(&self) -> bool {
        self.candidates.len() >= MAX_RECORDS || self.inputs >= MAX_INPUTS
    }

    /// Reports the transactions that nothing bars, except transactions that are due to be pruned at the greatest height
    /// of the store: a pruned transaction has no second chance, and a rebuild keeps transactions that the live store
    /// may have pruned.
    pub(super) fn report(&mut self, greatest_height: u32, found: &mut impl FnMut(Violation)) {
        let is_kept = |candidate: &ConflictingTx| candidate.due.is_none_or(|due| due > greatest_height);
        self.unbarred.drain(..).filter(is_kept).for_each(|candidate| {
            found(Violation::Unbarred { txid: candidate.txid, reason: candidate.reason.to_string() })
        });
    }

    /// Checks the slots of all gathered transactions.
    pub(super) async fn run(&mut self, store: &StateStore) -> Result<(), EngineError> {
        self.inputs = 0;
        let candidates = std::mem::take(&mut self.candidates);
        let mut barred = BTreeSet::new();
        let mut holders: BTreeMap<Txid, BTreeSet<usize>> = BTreeMap::new();
        for (number, rejection) in read_refusals(store, &candidates).await? {
            match rejection {
                Rejection::SpentBy(_, holder) => drop(holders.entry(holder.txid).or_default().insert(number)),
                _ => drop(barred.insert(number)),
            }
        }
        let txids: Vec<Txid> = holders.keys().copied().collect();
        for txids in txids.chunks(MAX_RECORDS) {
            for (txid, master) in txids.iter().zip(store.masters(txids).await?) {
                if !master.is_some_and(|master| must_release_slots(&master)) {
                    barred.extend(&holders[txid]);
                }
            }
        }
        let unbarred = candidates.into_iter().enumerate().filter(|(number, _)| !barred.contains(number));
        self.unbarred.extend(unbarred.map(|(_, candidate)| ConflictingTx { slots: Vec::new(), ..candidate }));
        Ok(())
    }
}

/// Reads the slots and returns the refusals, each with the index of the transaction that claims the slot.
async fn read_refusals(
    store: &StateStore,
    candidates: &[ConflictingTx],
) -> Result<Vec<(usize, Rejection)>, EngineError> {
    let mut by_key: BTreeMap<Key, Vec<(usize, &SpendSlot)>> = BTreeMap::new();
    for (number, candidate) in candidates.iter().enumerate() {
        for (key, slot) in &candidate.slots {
            by_key.entry(*key).or_default().push((number, slot));
        }
    }
    let keys: Vec<Key> = by_key.keys().copied().collect();
    let mut refusals = Vec::new();
    for keys in keys.chunks(MAX_RECORDS) {
        for (key, record) in keys.iter().zip(store.read(keys.to_vec()).await?) {
            // A lock record may have the key of a page: only a page can refuse.
            let record = into_page(record).map(Record::Page);
            for (number, slot) in &by_key[key] {
                let candidate = &candidates[*number];
                let respend = Respend {
                    to: candidate.txid,
                    slots: vec![RespendSlot { slot: (*slot).clone(), from: None }],
                    checks: RespendChecks::Spend { height: candidate.height },
                };
                refusals.extend(respend_refusal(record.as_ref(), &respend).map(|rejection| (*number, rejection)));
            }
        }
    }
    Ok(refusals)
}

/// Returns whether the holder of a slot has to give the slot back, because the holder is conflicting by verdict.
fn must_release_slots(holder: &Page) -> bool {
    matches!(holder.state(), TxState::Conflicting(Verdict::Conflicting(_)) | TxState::Stub(Verdict::Conflicting(_)))
}
