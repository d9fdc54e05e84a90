//! Records and rows for the checks. Output `n` of every transaction holds `100 + n` satoshis with the locking script
//! `51`, and its slot has the UTXO hash [`hash`].

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    engine::Row,
    record::{
        Blob, BlockRecord, Body, ClaimedBody, HeldSlot, Key, LockRecord, Marks, MetaRecord, MinedIn, Operation, Page,
        Phase, Sequenced, Slot, Spend, SpendSlot, SpendingData, Stamp, StoredOutput, Verdict,
    },
    tx::{Txid, UtxoHash, amount_size},
};

/// Returns the id of transaction `number` of a family. Ids of different families differ, and ids are uniform as real
/// ones are.
pub(crate) fn txid_of(family: &str, number: u64) -> Txid {
    let mut hasher = blake3::Hasher::new();
    hasher.update(family.as_bytes());
    hasher.update(&number.to_le_bytes());
    Txid(hasher.finalize().into())
}

/// Returns the transaction id of 32 equal bytes.
#[cfg(test)]
pub(crate) fn txid(n: u8) -> Txid {
    Txid([n; 32])
}

/// Returns the UTXO hash of slot `n`.
pub(crate) fn hash(n: u32) -> UtxoHash {
    let mut hash = [0xAB; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    UtxoHash(hash)
}

fn script() -> Bytes {
    Bytes::from_static(&[0x51])
}

/// Returns output `n`: `100 + n` satoshis.
pub(crate) fn output(n: u32) -> StoredOutput {
    StoredOutput { satoshis: 100 + u64::from(n), script: script() }
}

/// Builds a transaction in extended format with this many outputs (at most 252).
fn transaction(outputs: u32) -> Bytes {
    let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0xEF, 1];
    bytes.extend([9; 32]);
    bytes.extend([0; 5]);
    bytes.extend([0xFF; 4]);
    bytes.extend(1_000_000_u64.to_le_bytes());
    bytes.push(0);
    bytes.push(outputs as u8);
    for n in 0..outputs {
        bytes.extend(output(n).satoshis.to_le_bytes());
        bytes.extend([1, 0x51]);
    }
    bytes.extend([0; 4]);
    bytes.into()
}

/// Builds a live master with this many free slots, unmined since height 100, with the body of a partial transaction.
pub(crate) fn page_of(txid: Txid, slots: u32) -> Page {
    let mut page = Page::stub(txid, Verdict::Pending);
    page.conflicting = false;
    page.utxos = Some((0..slots).map(|n| Slot::Unspent(hash(n))).collect());
    page.record_utxos = slots;
    if let Some(master) = &mut page.master {
        master.verdict = None;
        master.total_utxos = slots;
        master.unmined_since = Some(100);
        master.created_at = 1_700_000_000_000;
        master.body = Some(Body::Outputs((0..slots).map(|n| Some(output(n))).collect()));
    }
    page
}

/// Builds [`page_of`] the transaction [`txid`].
#[cfg(test)]
pub(crate) fn page(n: u8, slots: u32) -> Page {
    page_of(txid(n), slots)
}

/// Builds [`page_of`] with a whole transaction as its body.
pub(crate) fn page_with_transaction(txid: Txid, slots: u32) -> Page {
    let mut page = Page { version: 1, ..page_of(txid, slots) };
    if let Some(master) = &mut page.master {
        master.body = Some(Body::Transaction(transaction(slots)));
    }
    page
}

/// Builds [`page_of`] with its outputs in the blob store, and with the sizes of amounts, which the reference system
/// does not store.
pub(crate) fn page_with_external_body(txid: Txid, slots: u32) -> Page {
    let mut page = Page { size_in_bytes: 300, amount_sizes: amount_sizes(slots), ..page_of(txid, slots) };
    if let Some(master) = &mut page.master {
        master.body = Some(Body::External(Blob::First(None)));
    }
    page
}

fn amount_sizes(slots: u32) -> Bytes {
    (0..slots).map(|n| amount_size(output(n).satoshis)).collect()
}

/// Builds a master of two pages that is creating since `since_ms` (ms since the epoch).
pub(crate) fn creating_page(txid: Txid, slots: u32, since_ms: u64) -> Page {
    let mut page = Page { creating_at: Some(since_ms), ..page_of(txid, slots) };
    if let Some(master) = &mut page.master {
        master.body = Some(Body::External(Blob::First(None)));
        master.total_extra_recs = 1;
    }
    page
}

/// Builds page 1 of a transaction.
pub(crate) fn second_page(txid: Txid, slots: u32) -> Page {
    Page { number: 1, master: None, amount_sizes: amount_sizes(slots), ..page_of(txid, slots) }
}

/// Builds the master of a contested transaction with all its slots.
pub(crate) fn contested_page(txid: Txid, slots: u32, verdict: Verdict) -> Page {
    let mut page = Page { conflicting: true, ..page_of(txid, slots) };
    if let Some(master) = &mut page.master {
        master.verdict = Some(verdict);
    }
    page
}

/// Builds the row that creates `page`.
pub(crate) fn create(page: Page) -> Row {
    Row { key: Key::Page(page.txid, page.number), operation: Operation::Create(Arc::new(page)) }
}

/// Builds the truthful claim of a spender of output `n`, with input `n`.
pub(crate) fn claim(n: u32) -> SpendSlot {
    let StoredOutput { satoshis, script } = output(n);
    SpendSlot { offset: n, input: n, utxo_hash: hash(n), satoshis, script }
}

/// Builds the body of another event for a transaction with this many outputs.
pub(crate) fn claimed_body(outputs: u32) -> ClaimedBody {
    let body = transaction(outputs);
    ClaimedBody { fee: 77, extended_size: body.len() as u64, body: Body::Transaction(body) }
}

/// Builds the operation that spends `slots` for `spender` at height 200.
pub(crate) fn spend_operation(spender: Txid, slots: &[u32]) -> Operation {
    let slots: Vec<_> = slots.iter().map(|n| claim(*n)).collect();
    Operation::Spend(Spend { spender, height: 200, slots: slots.into(), marks: Marks::Respect, signals: true })
}

/// Builds the row that spends slots of `parent`'s master for the transaction [`txid`].
#[cfg(test)]
pub(crate) fn spend(parent: Txid, spender: u8, slots: &[u32]) -> Row {
    Row { key: Key::master(parent), operation: spend_operation(txid(spender), slots) }
}

/// Builds a slot that `by` holds with the input of the same number.
pub(crate) fn held_slot(offset: u32, by: Txid) -> HeldSlot {
    HeldSlot { offset, holder: SpendingData { txid: by, input: offset } }
}

/// Builds an operation of the sequencer for the event at chain offset `offset`.
pub(crate) fn sequenced_at(offset: u64, operation: Sequenced) -> Operation {
    Operation::Sequenced(Stamp { offset, phase: Phase::Apply }, operation)
}

/// Builds the mined entry of the block at this height; the block id equals the height.
pub(crate) fn mined_in(height: u32) -> MinedIn {
    MinedIn { block_id: height, height, subtree: 3 }
}

/// Builds a lock record of `owner` that expires at `expires_at` (ms since the epoch).
pub(crate) fn lock_record(owner: u64, expires_at: u64) -> LockRecord {
    LockRecord { created_at: 1_000, expires_at, process_id: 7, hostname: "host".into(), expected_recs: 2, owner }
}

/// Builds a block record of the longest chain; the height equals the block id.
pub(crate) fn block(block_id: u32, progress: u64) -> BlockRecord {
    BlockRecord {
        block_id,
        hash: [block_id as u8; 32],
        previous: [0; 32],
        height: block_id,
        time: 1_700_000_000,
        longest_chain: true,
        progress,
        chain_pos: None,
    }
}

/// Builds a meta record with this prune horizon.
pub(crate) fn meta(prune_horizon: u32) -> MetaRecord {
    MetaRecord {
        store_id: [7; 16],
        layout_version: 1,
        network: "regtest".into(),
        utxo_batch_size: 20_000,
        retention: super::RULES.retention,
        prune_horizon,
        ..MetaRecord::default()
    }
}
