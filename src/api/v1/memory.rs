//! Estimates of the memory that an answer needs, from the master of a transaction alone: a request reserves the memory
//! before bodies and slots are read.

use super::model::SelectedFields;
use crate::{
    api::{byte_budget::RequestBytes, problem::Problem},
    record::{Body, Page},
    store::{
        StateStore,
        read::{ReadFields, StoredTransaction, TxReader},
    },
    tx::Txid,
};

/// Memory of an answer without body and slots, bytes.
const MASTER_BYTES: u64 = 2 << 10;
/// Memory of one conflicting child in an answer: a hexadecimal text as a value and in the answer.
const CHILD_BYTES: u64 = 256;
/// Memory of one slot in an answer: the slot, its text as a value, and its text in the answer.
const SLOT_BYTES: u64 = 300;
/// Copies of a body in an answer with the body: the bytes, and the text of twice their length, as a value and in the
/// answer.
const BODY_COPIES: u64 = 5;
/// Copies of a body in an answer with its inpoints.
const INPOINT_COPIES: u64 = 3;
/// Estimated length of an output of a partial transaction, whose record has no size.
const PARTIAL_OUTPUT_BYTES: u64 = 64;
/// Memory of a stream of pieces of a body in the blob store.
pub const PIECES_BYTES: u64 = 4 << 20;

/// Returns the memory that the answer about a transaction needs.
pub fn estimate_answer(master: &Page, fields: &SelectedFields) -> u64 {
    let ReadFields { slots, body } = fields.parts();
    let bins = master.master.as_deref();
    let children = bins.map_or(0, |bins| bins.conflicting_children.len() as u64);
    let copies = if fields.has("tx") { BODY_COPIES } else { INPOINT_COPIES };
    let body = if body { estimate_body(master).saturating_mul(copies) } else { 0 };
    let slots = if slots { bins.map_or(0, |bins| u64::from(bins.total_utxos)) * SLOT_BYTES } else { 0 };
    (MASTER_BYTES + children * CHILD_BYTES + slots).saturating_add(body)
}

/// Returns the length of the body of a transaction, bytes.
pub fn estimate_body(master: &Page) -> u64 {
    let bins = master.master.as_deref();
    let outputs = bins.map_or(0, |bins| u64::from(bins.total_utxos));
    master.extended_size.max(master.size_in_bytes).max(outputs * PARTIAL_OUTPUT_BYTES)
}

/// Reads the master of a transaction, and reserves `copies` of the body. `None`: the transaction has no record.
///
/// # Errors
/// The store does not answer, or the request has no room.
pub async fn reserve_body(
    store: &StateStore,
    bytes: &RequestBytes,
    txid: Txid,
    copies: u64,
) -> Result<Option<StoredTransaction>, Problem> {
    let stored = TxReader::of(store).get(txid, ReadFields::default()).await?;
    if let Some(stored) = &stored {
        bytes.reserve(estimate_body(&stored.master).saturating_mul(copies))?;
    }
    Ok(stored)
}

/// Returns whether the body of a master is in the blob store.
pub fn is_external(master: &Page) -> bool {
    matches!(master.body(), Some(Body::External(_)))
}
