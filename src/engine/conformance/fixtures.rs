//! Records and rows of the checks. Output `n` of every transaction holds `100 + n` satoshis under the script `51`, and
//! its slot commits to [`hash`].

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

/// The transaction of this number in a family of them; families never meet, and ids are spread as real ones are.
pub(crate) fn txid_of(family: &str, number: u64) -> Txid {
    let mut hasher = blake3::Hasher::new();
    hasher.update(family.as_bytes());
    hasher.update(&number.to_le_bytes());
    Txid(hasher.finalize().into())
}

/// A transaction by one byte.
#[cfg(test)]
pub(crate) fn txid(n: u8) -> Txid {
    Txid([n; 32])
}

/// What slot `n` commits to.
pub(crate) fn hash(n: u32) -> UtxoHash {
    let mut hash = [0xAB; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    UtxoHash(hash)
}

fn script() -> Bytes {
    Bytes::from_static(&[0x51])
}

/// Output `n`.
pub(crate) fn output(n: u32) -> StoredOutput {
    StoredOutput { satoshis: 100 + u64::from(n), script: script() }
}

/// A transaction in extended format with this many outputs (at most 252).
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

/// A live master, unmined since height 100, with this many free slots and its outputs as a partial transaction's.
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

/// [`page_of`] a transaction by one byte.
#[cfg(test)]
pub(crate) fn page(n: u8, slots: u32) -> Page {
    page_of(txid(n), slots)
}

/// The same with a whole transaction as its body.
pub(crate) fn whole(txid: Txid, slots: u32) -> Page {
    let mut page = Page { version: 1, ..page_of(txid, slots) };
    if let Some(master) = &mut page.master {
        master.body = Some(Body::Transaction(transaction(slots)));
    }
    page
}

/// [`page_of`] whose outputs are in the blob store; not of the reference system, which does not note the sizes of amounts.
pub(crate) fn elsewhere(txid: Txid, slots: u32) -> Page {
    let mut page = Page { size_in_bytes: 300, amount_sizes: amount_sizes(slots), ..page_of(txid, slots) };
    if let Some(master) = &mut page.master {
        master.body = Some(Body::External(Blob::First));
    }
    page
}

fn amount_sizes(slots: u32) -> Bytes {
    (0..slots).map(|n| amount_size(output(n).satoshis)).collect()
}

/// A master not all of whose pages are known to be there, since this time.
pub(crate) fn creating(txid: Txid, slots: u32, since_ms: u64) -> Page {
    let mut page = Page { creating_at: Some(since_ms), ..page_of(txid, slots) };
    if let Some(master) = &mut page.master {
        master.body = Some(Body::External(Blob::First));
        master.total_extra_recs = 1;
    }
    page
}

/// Page 1 of a transaction.
pub(crate) fn second_page(txid: Txid, slots: u32) -> Page {
    Page { number: 1, master: None, amount_sizes: amount_sizes(slots), ..page_of(txid, slots) }
}

/// A contested transaction, whole.
pub(crate) fn contested(txid: Txid, slots: u32, verdict: Verdict) -> Page {
    let mut page = Page { conflicting: true, ..page_of(txid, slots) };
    if let Some(master) = &mut page.master {
        master.verdict = Some(verdict);
    }
    page
}

/// Creates that page.
pub(crate) fn create(page: Page) -> Row {
    Row { key: Key::Page(page.txid, page.number), operation: Operation::Create(Arc::new(page)) }
}

/// What a spender truthfully claims of output `n`, with input `n`.
pub(crate) fn claim(n: u32) -> SpendSlot {
    let StoredOutput { satoshis, script } = output(n);
    SpendSlot { offset: n, input: n, utxo_hash: hash(n), satoshis, script }
}

/// What another event says of a transaction with this many outputs.
pub(crate) fn claimed(outputs: u32) -> ClaimedBody {
    let body = transaction(outputs);
    ClaimedBody { fee: 77, extended_size: body.len() as u64, body: Body::Transaction(body) }
}

/// Takes slots for `spender`, at height 200.
pub(crate) fn spending(spender: Txid, slots: &[u32]) -> Operation {
    let slots: Vec<_> = slots.iter().map(|n| claim(*n)).collect();
    Operation::Spend(Spend { spender, height: 200, slots: slots.into(), marks: Marks::Respect, signals: true })
}

/// Takes slots of `parent`'s master for a transaction by one byte.
#[cfg(test)]
pub(crate) fn spend(parent: Txid, spender: u8, slots: &[u32]) -> Row {
    Row { key: Key::master(parent), operation: spending(txid(spender), slots) }
}

/// A slot that `by` is said to hold with the input of the same number.
pub(crate) fn held(offset: u32, by: Txid) -> HeldSlot {
    HeldSlot { offset, holder: SpendingData { txid: by, input: offset } }
}

/// An operation of the sequencer while it applies the event at this offset.
pub(crate) fn at(offset: u64, operation: Sequenced) -> Operation {
    Operation::Sequenced(Stamp { offset, phase: Phase::Apply }, operation)
}

/// A triple of the block at this height, whose id is the height.
pub(crate) fn mined_in(height: u32) -> MinedIn {
    MinedIn { block_id: height, height, subtree: 3 }
}

/// A lock record of that owner.
pub(crate) fn lock_record(owner: u64, expires_at: u64) -> LockRecord {
    LockRecord { created_at: 1_000, expires_at, process_id: 7, hostname: "host".into(), expected_recs: 2, owner }
}

/// A block record.
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

/// A meta record.
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
