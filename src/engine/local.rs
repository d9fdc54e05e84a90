//! Helpers of the engines that call the pure function in their own process.

use super::key::{self, KeyBytes};
use crate::{
    engine::{Cursor, EngineError, ErrorKind, Index, ScanPage, ScanPart},
    record::{Key, Record},
    tx::Txid,
};

/// Value of each index for one record, in the order of [`Index::ALL`].
pub(crate) type IndexValues = [Option<u64>; Index::ALL.len()];

/// Returns the indexed values of a record.
pub(crate) fn index_values(record: Option<&Record>) -> IndexValues {
    let Some(page) = record.and_then(Record::page) else { return [None; Index::ALL.len()] };
    let verdict = page.verdict().filter(|_| page.pruned.is_none()).map(|verdict| verdict.number().into());
    [page.delete_at_height.map(u64::from), page.unmined_since().map(u64::from), page.creating_at, verdict]
}

/// Bounds of a part of the transactions, for an engine that scans in the order of the keys.
pub(crate) struct KeyRange {
    /// Last key before the part; `None`: the part begins with the first key.
    after: Option<Key>,
    /// First byte of the txids behind the part, up to 256.
    end: u16,
}

impl KeyRange {
    pub(crate) fn of(part: ScanPart) -> Self {
        let count = part.count.clamp(1, 256);
        let first_byte = |number: u16| (256 * u32::from(number.min(count)) / u32::from(count)) as u16;
        let mut last = [0xFF; 32];
        let after = first_byte(part.number).checked_sub(1).map(|byte| {
            last[0] = byte as u8;
            // The lock record is the last key of a transaction.
            Key::LockRecord(Txid(last))
        });
        KeyRange { after, end: first_byte(part.number + 1) }
    }

    /// Returns the cursor at which the scan of the part begins.
    pub(crate) fn start(&self) -> Option<Cursor> {
        self.after.as_ref().map(|key| Cursor(KeyBytes::of(key).as_ref().to_vec()))
    }

    /// Leaves out the records behind the part.
    pub(crate) fn clip(&self, mut page: ScanPage) -> ScanPage {
        let is_behind = |key: &Key| key.txid().is_some_and(|txid| u16::from(txid.0[0]) >= self.end);
        if page.records.last().is_some_and(|(key, _)| is_behind(key)) {
            page.records.retain(|(key, _)| !is_behind(key));
            page.next = None;
        }
        page
    }
}

/// Returns the 16-byte key after which a scan of the commands continues.
pub(crate) fn command_after(cursor: Option<&Cursor>) -> Result<Option<[u8; 16]>, EngineError> {
    match cursor.map(|cursor| key::decode(&cursor.0)) {
        None => Ok(None),
        Some(Some(Key::Command(id))) => Ok(Some(id)),
        Some(_) => Err(bad_cursor_error()),
    }
}

/// Builds the error of every call after `close`.
pub(crate) fn closed_error(operation: &'static str, key: impl ToString) -> EngineError {
    EngineError { kind: ErrorKind::Fatal, operation, key: key.to_string(), message: "the store is closed".into() }
}

/// Builds the error of a cursor that this engine did not return.
pub(crate) fn bad_cursor_error() -> EngineError {
    let message = "the cursor is not one of this engine".into();
    EngineError { kind: ErrorKind::Fatal, operation: "scan", key: "cursor".into(), message }
}
