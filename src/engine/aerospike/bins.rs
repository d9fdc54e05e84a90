//! Records as bins and back: `semantics.md`, "Bins".
//!
//! Whole bins are written: lists packed ([`super::packed`]), a boolean only when it is true. Readers take what the
//! reference system writes as well: booleans that are false, numbers that are absent.

mod body;
mod fields;
mod others;
mod page;

use aerospike::{IndexMap, Value};

pub use fields::BadRecord;
pub use page::{slot_bytes, spending_data, stamp_number};

use crate::record::{Key, Record};

/// Bins of one record, in the order in which they are written.
pub type Bins = Vec<(&'static str, Value)>;

/// The bins of a record.
pub fn encode(key: &Key, record: &Record) -> Bins {
    match record {
        Record::Page(page) => page::encode(page),
        Record::LockRecord(lock_record) => others::encode_lock_record(key, lock_record),
        Record::Block(block) => others::encode_block(block),
        Record::Meta(meta) => others::encode_meta(meta),
        Record::Command(command) => others::encode_command(command),
        Record::Sentinel(store_id) => others::encode_sentinel(store_id),
    }
}

/// The record that is stored under `key` as these bins.
///
/// # Errors
/// A bin that is missing, or of a type or value that it cannot have.
pub fn decode(key: &Key, bins: IndexMap<String, Value>) -> Result<Record, BadRecord> {
    let mut bins = fields::Fields(bins);
    Ok(match key {
        Key::Page(txid, number) => Record::Page(page::decode(*txid, *number, &mut bins)?.into()),
        Key::LockRecord(_) => Record::LockRecord(others::decode_lock_record(&mut bins)?),
        Key::Block(id) => Record::Block(others::decode_block(*id, &mut bins)?),
        Key::Meta => Record::Meta(others::decode_meta(&mut bins)?),
        Key::Command(id) => Record::Command(others::decode_command(*id, &mut bins)?),
        Key::Sentinel(_) => Record::Sentinel(others::decode_sentinel(&mut bins)?),
    })
}

/// The transaction that a record of a scan says it belongs to.
///
/// # Errors
/// The bin is missing, or no transaction id.
pub fn txid_of(bins: &mut IndexMap<String, Value>) -> Result<crate::tx::Txid, BadRecord> {
    let value = bins.get(super::names::TX_ID).cloned();
    fields::txid(super::names::TX_ID, value)
}

/// The number that a page of a scan says it has; masters, lock records and pages of the reference system say none.
pub fn page_number_of(bins: &IndexMap<String, Value>) -> Option<u32> {
    match bins.get(super::names::PAGE_NUMBER) {
        Some(Value::Int(number)) => u32::try_from(*number).ok(),
        _ => None,
    }
}

/// The id that a block record of a scan says it has.
///
/// # Errors
/// The bin is missing, or no such number.
pub fn block_id_of(bins: &IndexMap<String, Value>) -> Result<u32, BadRecord> {
    match bins.get(super::names::block::BLOCK_ID) {
        Some(Value::Int(id)) => u32::try_from(*id).map_err(|_| BadRecord(super::names::block::BLOCK_ID)),
        _ => Err(BadRecord(super::names::block::BLOCK_ID)),
    }
}

#[cfg(test)]
mod tests;
