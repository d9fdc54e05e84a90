//! Encodes records as bins and decodes them, in both layouts: `semantics.md`, "Bins".
//!
//! Bins are written whole: lists packed ([`super::packed`]), a boolean only where it is true. The decoder also accepts
//! the forms of the reference system: booleans that are false, numbers that are absent.

mod body;
mod compact;
mod page;
mod small_records;
mod values;

use aerospike::{IndexMap, Value};

pub use compact::{AmountSizes, decode_block, encode_block, encode_blocks};
pub use page::{slot_bytes, spending_data, stamp_number};
pub use values::BadRecord;

use super::layout::Layout;
use crate::record::{Key, Record, SelectedPage, Selection};

/// Bins of one record, in the order in which they are written.
pub type Bins = Vec<(&'static str, Value)>;

/// Encodes a record as bins.
pub fn encode(layout: Layout, key: &Key, record: &Record) -> Bins {
    match record {
        Record::Page(page) => match layout {
            Layout::Compact => compact::encode(page),
            Layout::Teranode => page::encode(page),
        },
        Record::LockRecord(lock_record) => small_records::encode_lock_record(key, lock_record),
        Record::Block(block) => small_records::encode_block(block),
        Record::Meta(meta) => small_records::encode_meta(layout, meta),
        Record::Command(command) => small_records::encode_command(command),
        Record::Sentinel(store_id) => small_records::encode_sentinel(store_id),
    }
}

/// Decodes the record that is stored under `key` as these bins.
///
/// # Errors
/// A bin is missing, or has a type or a value that the bin cannot have.
pub fn decode(layout: Layout, key: &Key, bins: IndexMap<String, Value>) -> Result<Record, BadRecord> {
    let mut bins = values::BinReader(bins);
    Ok(match key {
        Key::Page(txid, number) => Record::Page(
            match layout {
                Layout::Compact => compact::decode(*txid, *number, &mut bins)?,
                Layout::Teranode => page::decode(*txid, *number, &mut bins)?,
            }
            .into(),
        ),
        Key::LockRecord(_) => Record::LockRecord(small_records::decode_lock_record(&mut bins)?),
        Key::Block(id) => Record::Block(small_records::decode_block(*id, &mut bins)?),
        Key::Meta => Record::Meta(Box::new(small_records::decode_meta(layout, &mut bins)?)),
        Key::Command(id) => Record::Command(small_records::decode_command(*id, &mut bins)?),
        Key::Sentinel(_) => Record::Sentinel(small_records::decode_sentinel(&mut bins)?),
    })
}

/// Decodes the selected parts of the page that is stored under `key`.
///
/// # Errors
/// The record is not a page, or a bin has a type or a value that the bin cannot have.
pub fn decode_selected(
    layout: Layout,
    key: &Key,
    selection: Selection,
    bins: IndexMap<String, Value>,
) -> Result<SelectedPage, BadRecord> {
    let Key::Page(txid, number) = key else { return Err(BadRecord::Bin(super::names::UTXOS)) };
    let mut bins = values::BinReader(bins);
    match layout {
        Layout::Compact => compact::decode_selected(*txid, *number, selection, &mut bins),
        Layout::Teranode => page::decode_selected(*txid, *number, selection, &mut bins),
    }
}

/// Returns the transaction id that a scanned record contains.
///
/// # Errors
/// The bin is missing, or is no transaction id.
pub fn txid_of(bins: &mut IndexMap<String, Value>) -> Result<crate::tx::Txid, BadRecord> {
    if let Some(Value::Blob(tx)) = bins.get(super::names::TX) {
        return compact::split_tx(tx).map(|(txid, ..)| txid);
    }
    let value = bins.get(super::names::TX_ID).cloned();
    values::txid(super::names::TX_ID, value)
}

/// Returns whether a health check of the reference system wrote this record.
pub fn is_reference_health_check(bins: &IndexMap<String, Value>) -> bool {
    bins.keys().eq([super::names::HEALTH_CHECK])
}

/// Returns the page number that a scanned record contains. Masters, lock records and pages of the reference system
/// contain none.
pub fn page_number_of(bins: &IndexMap<String, Value>) -> Option<u32> {
    if let Some(Value::Blob(tx)) = bins.get(super::names::TX) {
        return compact::split_tx(tx).ok().map(|(_, number, _)| number);
    }
    match bins.get(super::names::PAGE_NUMBER) {
        Some(Value::Int(number)) => u32::try_from(*number).ok(),
        _ => None,
    }
}

/// Returns the block id that a scanned block record contains.
///
/// # Errors
/// The bin is missing, or is no 32-bit number.
pub fn block_id_of(bins: &IndexMap<String, Value>) -> Result<u32, BadRecord> {
    match bins.get(super::names::block::BLOCK_ID) {
        Some(Value::Int(id)) => u32::try_from(*id).map_err(|_| BadRecord::Bin(super::names::block::BLOCK_ID)),
        _ => Err(BadRecord::Bin(super::names::block::BLOCK_ID)),
    }
}

/// Returns the id of a command record; `None`: an earlier version wrote the record, without its id.
pub fn command_id_of(bins: &IndexMap<String, Value>) -> Option<[u8; 16]> {
    match bins.get(super::names::command::COMMAND_ID) {
        Some(Value::Blob(id)) => id.as_slice().try_into().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
