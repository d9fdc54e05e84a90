//! What the engines that call the pure function themselves have in common.

use crate::{
    engine::{EngineError, ErrorKind, Index, Row},
    record::{self, Effect, Key, Operation, Outcome, Record, Rejection, Rules, Sequenced},
};

/// Does to the record at the row's key what the row says. An operation on a key of another kind is refused, so that
/// no record of one kind is ever stored where another belongs.
pub(crate) fn step(rules: &Rules, row: &Row, record: &mut Option<Record>) -> Effect {
    if fits(&row.key, &row.operation) {
        record::apply(rules, record, &row.operation)
    } else {
        Effect { outcome: Outcome::Rejected(Rejection::Unexpected), changed: false }
    }
}

fn fits(key: &Key, operation: &Operation) -> bool {
    match operation {
        Operation::Create(page) | Operation::CreateContested(page) => *key == Key::Page(page.txid, page.number),
        Operation::AcquireLockRecord { .. } | Operation::ReleaseLockRecord { .. } => matches!(key, Key::LockRecord(_)),
        Operation::CreateMeta(_) | Operation::ReplaceMeta { .. } => *key == Key::Meta,
        Operation::Sequenced(_, Sequenced::PutBlock(block)) => *key == Key::Block(block.block_id),
        _ => matches!(key, Key::Page(..)),
    }
}

/// All indexes, each at its place in [`IndexValues`].
pub(crate) const INDEXES: [Index; 3] = [Index::DeleteAtHeight, Index::UnminedSince, Index::CreatingAt];

/// The value of each index of one record, in the order of [`INDEXES`].
pub(crate) type IndexValues = [Option<u64>; 3];

/// What a record is found by.
pub(crate) fn index_values(record: Option<&Record>) -> IndexValues {
    let Some(page) = record.and_then(Record::page) else { return [None; 3] };
    let unmined_since = page.master.as_ref().and_then(|master| master.unmined_since);
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
