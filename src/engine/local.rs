//! What the engines that call the pure function themselves have in common.

use crate::{
    engine::{EngineError, ErrorKind, Index},
    record::Record,
};

/// The value of each index of one record, at its [`place`].
pub(crate) type IndexValues = [Option<u64>; 3];

/// What a record is found by.
pub(crate) fn index_values(record: Option<&Record>) -> IndexValues {
    let Some(page) = record.and_then(Record::page) else { return [None; 3] };
    let unmined_since = page.unmined_since();
    [page.delete_at_height.map(u64::from), unmined_since.map(u64::from), page.creating_at]
}

/// The place of an index in [`IndexValues`].
pub(crate) fn place(index: Index) -> usize {
    match index {
        Index::DeleteAtHeight => 0,
        Index::UnminedSince => 1,
        Index::CreatingAt => 2,
    }
}

/// What every call answers once the engine is closed.
pub(crate) fn closed(operation: &'static str, key: impl ToString) -> EngineError {
    EngineError { kind: ErrorKind::Fatal, operation, key: key.to_string(), message: "the engine is closed".into() }
}

/// A cursor that this engine never gave.
pub(crate) fn bad_cursor() -> EngineError {
    let message = "not a cursor of this engine".into();
    EngineError { kind: ErrorKind::Fatal, operation: "scan", key: "cursor".into(), message }
}
