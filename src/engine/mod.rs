//! [`RecordEngine`]: makes the operations of [`crate::record`] atomic and durable, in batches.

pub mod aerospike;
pub mod conformance;
pub mod fault;
pub mod fjall;
mod history;
mod key;
mod local;
pub mod memory;
pub mod null;
mod url;

use std::time::Duration;

use async_trait::async_trait;

pub use url::{OpenError, OpenOptions, StoreUrl, open, open_existing};
pub(crate) use url::{decoded, decoded_path, encoded, encoded_path, parameters};

use crate::record::{Key, Operation, Outcome, Record};

/// One operation on one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Which record.
    pub key: Key,
    /// What to do to it.
    pub operation: Operation,
}

/// What the engine could not do. `kind` says what the caller may do about it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} on {key}: {message} ({kind})")]
pub struct EngineError {
    /// What the caller may do.
    pub kind: ErrorKind,
    /// What was being done: `create`, `spend`, `read`, …
    pub operation: &'static str,
    /// To which record, or to what else.
    pub key: String,
    /// What went wrong, in one line.
    pub message: String,
}

impl EngineError {
    /// Whether the same operation may be sent again, after a pause.
    pub fn may_be_retried(&self) -> bool {
        matches!(self.kind, ErrorKind::Retryable | ErrorKind::Unknown)
    }
}

/// Classes of engine errors by what the caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Nothing was done; the same operation may be sent again after a pause.
    Retryable,
    /// It may or may not have been done: send the same (idempotent) operation again.
    Unknown,
    /// The record would be larger than the engine stores; nothing was done. Keep the body elsewhere.
    TooBig,
    /// Sending it again cannot help: damaged data, a missing namespace, a closed engine.
    Fatal,
}

impl std::fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ErrorKind::Retryable => "may be retried",
            ErrorKind::Unknown => "outcome unknown, may be retried",
            ErrorKind::TooBig => "record too big",
            ErrorKind::Fatal => "fatal",
        })
    }
}

/// Integer fields that an engine can find records by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Index {
    /// `deleteAtHeight`
    DeleteAtHeight,
    /// `unminedSince`
    UnminedSince,
    /// `creatingAt`
    CreatingAt,
}

/// The sets that can be scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// Transaction pages and lock records.
    Transactions,
    /// Block records.
    Blocks,
}

/// Where a scan goes on; opaque to the caller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor(pub Vec<u8>);

/// One page of a scan.
#[derive(Debug, Clone, Default)]
pub struct ScanPage {
    /// Records, in no particular order; each record of the set that is there for the whole scan comes exactly once.
    pub records: Vec<(Key, Record)>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

/// Which life of the store's nodes this is; opaque. Equal values: no node has restarted in between, so nothing that was
/// acknowledged in between is lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Incarnation(pub String);

/// A place where records live.
///
/// # Contract
/// - Each row of [`apply`](Self::apply) is atomic: its operation sees the record as some other operation left it and is
///   seen whole or not at all. It does to the record exactly what [`crate::record::apply`] says.
/// - Rows of one batch on *different* keys are independent; rows on *one* key take effect in some order, not
///   necessarily that of the batch. Results are in the order of the rows, one each.
/// - When `apply` has answered `Ok` for a row, the change survives a kill of the process; and of the machine, after
///   [`may_forget`](Self::may_forget) has passed.
/// - Where `may_forget` is not zero, a node that dies takes with it only changes that were acknowledged within that time
///   before, on each record the latest ones. An [`incarnation`](Self::incarnation) asked for after that differs from every
///   one that was told before.
/// - [`ErrorKind::Unknown`] leaves open whether the row took effect; every operation is idempotent, so the caller
///   repeats it. A dropped future of `apply` leaves each row done or not done, never half.
/// - [`read`](Self::read) sees every change that was acknowledged before it was called.
/// - [`query`](Self::query) and [`scan`](Self::scan) may miss or repeat what changes while they run.
#[async_trait]
pub trait RecordEngine: Send + Sync + 'static {
    /// Short name for metrics and messages.
    fn name(&self) -> &'static str;

    /// Applies each row; `result[i]` belongs to `rows[i]`.
    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>>;

    /// Reads records; `result[i]` belongs to `keys[i]`; `None` = no such record.
    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>>;

    /// Keys of pages whose `index` lies in `from..=to`, ascending by that value, at most `limit`.
    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError>;

    /// The next records of a set, about `limit` of them, from `cursor` (`None`: from the start).
    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError>;

    /// For how long an acknowledged change may still be lost when the machine (not the process) dies.
    fn may_forget(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether its records lie in parts that can be lost one by one: nodes, devices, partitions. The store keeps sentinels
    /// there.
    fn may_lose_parts(&self) -> bool {
        false
    }

    /// The present incarnation of all nodes. What was acknowledged longer than [`may_forget`](Self::may_forget) before a
    /// call that answers with an unchanged value can never be lost. An error means that nobody knows. At most a few
    /// hundred bytes; an engine that forgets nothing need not tell one from another.
    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        Ok(Incarnation::default())
    }

    /// Finishes what is in flight and releases files and connections; later calls fail with [`ErrorKind::Fatal`].
    async fn close(&self) -> Result<(), EngineError>;
}
