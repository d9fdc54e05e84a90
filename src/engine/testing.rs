//! Records and rows that the tests of the engines share. Output `n` of every transaction holds `100 + n` satoshis under
//! the script `51`, and its slot commits to [`hash`].

use std::sync::Arc;

use bytes::Bytes;

use super::Row;
use crate::{
    record::{Body, Key, Marks, Operation, Page, Slot, Spend, SpendSlot, StoredOutput, Verdict},
    tx::{Txid, UtxoHash},
};

/// A transaction id; consecutive ones fall into different shards.
pub(crate) fn txid(n: u8) -> Txid {
    Txid([n; 32])
}

/// What slot `n` commits to.
pub(crate) fn hash(n: u32) -> UtxoHash {
    let mut hash = [0xAB; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    UtxoHash(hash)
}

/// A live master, unmined since height 100, with this many free slots.
pub(crate) fn page(n: u8, slots: u32) -> Page {
    let output = |n| Some(StoredOutput { satoshis: 100 + u64::from(n), script: Bytes::from_static(&[0x51]) });
    let mut page = Page::stub(txid(n), Verdict::Pending);
    page.conflicting = false;
    page.utxos = Some((0..slots).map(|n| Slot::Unspent(hash(n))).collect());
    page.record_utxos = slots;
    if let Some(master) = &mut page.master {
        master.verdict = None;
        master.total_utxos = slots;
        master.unmined_since = Some(100);
        master.created_at = 1_700_000_000_000;
        master.body = Some(Body::Outputs((0..slots).map(output).collect()));
    }
    page
}

/// Creates that page.
pub(crate) fn create(page: Page) -> Row {
    Row { key: Key::Page(page.txid, page.number), operation: Operation::Create(Arc::new(page)) }
}

/// Takes slots of `parent`'s master for transaction `spender`, with the inputs of the same numbers.
pub(crate) fn spend(parent: Txid, spender: u8, slots: &[u32]) -> Row {
    let slot = |n: &u32| SpendSlot {
        offset: *n,
        input: *n,
        utxo_hash: hash(*n),
        satoshis: 100 + u64::from(*n),
        script: Bytes::from_static(&[0x51]),
    };
    let slots = slots.iter().map(slot).collect();
    let spend = Spend { spender: txid(spender), height: 200, slots, marks: Marks::Respect };
    Row { key: Key::master(parent), operation: Operation::Spend(spend) }
}
