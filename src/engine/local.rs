//! Helpers of the engines that call the pure function in their own process.

use crate::{
    engine::{EngineError, ErrorKind, Index},
    record::Record,
};

/// Value of each index for one record, in the order of [`Index::ALL`].
pub(crate) type IndexValues = [Option<u64>; Index::ALL.len()];

/// Returns the indexed values of a record.
pub(crate) fn index_values(record: Option<&Record>) -> IndexValues {
    let Some(page) = record.and_then(Record::page) else { return [None; Index::ALL.len()] };
    let verdict = page.verdict().filter(|_| page.pruned.is_none()).map(|verdict| verdict.number().into());
    [page.delete_at_height.map(u64::from), page.unmined_since().map(u64::from), page.creating_at, verdict]
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
