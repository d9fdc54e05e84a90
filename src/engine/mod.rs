//! [`RecordEngine`]: makes the operations of [`crate::record`] atomic and durable, in batches.
//!
//! Engines: [`memory`], [`null`], [`fjall`], [`aerospike`], [`sql`]. [`fault`] injects faults into any engine,
//! [`conformance`] compares any engine with the pure function.

pub mod aerospike;
#[cfg(feature = "testkit")]
pub mod conformance;
mod decorator;
#[cfg(feature = "testkit")]
pub mod fault;
pub mod fjall;
pub(crate) mod key;
mod local;
pub mod memory;
pub mod null;
mod restored;
pub mod sql;
mod url;

use std::time::Duration;

use async_trait::async_trait;

pub use decorator::EngineDecorator;
pub use restored::RestoredEngine;
pub use url::{OpenError, OpenOptions, StoreUrl, open_existing_url, open_url};
#[cfg(feature = "testkit")]
pub use url::{open, open_existing};

use crate::record::{Key, Operation, Outcome, Record, SelectedPage, Selection};

/// Operation on a record, the unit of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Key of the record.
    pub key: Key,
    /// Operation on the record.
    pub operation: Operation,
}

/// Result of one row.
pub type RowResult = Result<Outcome, EngineError>;

/// Failure of one row or call of an engine. `kind` says what the caller may do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} on {key}: {message} ({kind})")]
pub struct EngineError {
    /// Class of the error, by the caller's options.
    pub kind: ErrorKind,
    /// Failed operation: `create`, `spend`, `read`, …
    pub operation: &'static str,
    /// Key of the record, or another object of the operation.
    pub key: String,
    /// Cause of the failure, in one line.
    pub message: String,
}

impl EngineError {
    /// Returns whether the same operation may be sent again, after a pause.
    pub fn may_be_retried(&self) -> bool {
        matches!(self.kind, ErrorKind::Retryable | ErrorKind::Unknown | ErrorKind::Storage)
    }
}

/// Classes of engine errors by what the caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum ErrorKind {
    /// The operation changed nothing; send the same operation again after a pause.
    Retryable,
    /// The operation may have taken effect; send the same operation again, because operations are idempotent.
    Unknown,
    /// The blob store did not take the body of the record, or did not give the body in time: the `StorageError` of the
    /// reference. Send the same operation again after a pause.
    Storage,
    /// The record would be larger than the engine stores. The operation changed nothing; store the body as a blob.
    TooBig,
    /// The query needs a secondary index that does not exist. An instance creates the indexes when it starts.
    NoIndex,
    /// A retry cannot help: damaged data, a missing namespace, a closed engine.
    Fatal,
}

impl std::fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ErrorKind::Retryable => "may be retried",
            ErrorKind::Unknown => "outcome unknown, may be retried",
            ErrorKind::Storage => "blob store failed, may be retried",
            ErrorKind::TooBig => "record too big",
            ErrorKind::NoIndex => "no index",
            ErrorKind::Fatal => "fatal",
        })
    }
}

/// Integer fields with a secondary index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Index {
    /// Height at which a record is pruned (`deleteAtHeight`).
    DeleteAtHeight,
    /// Height since which a transaction is unmined (`unminedSince`).
    UnminedSince,
    /// Time since which a page is creating, in ms since the epoch (`creatingAt`).
    CreatingAt,
    /// Number of the verdict of a contested master that is not pruned (`verdict`,
    /// [`Verdict::number`](crate::record::Verdict::number)).
    Verdict,
}

impl Index {
    /// All indexes, each of which every store has, in the order of the enum.
    pub const ALL: [Index; 4] = [Index::DeleteAtHeight, Index::UnminedSince, Index::CreatingAt, Index::Verdict];
}

/// Sets of records that can be scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// Transaction pages and lock records.
    Transactions,
    /// Block records, by block id.
    Blocks,
    /// Results of commands, by command id.
    Commands,
}

/// Part of a set: parts can be scanned at the same time, and together have each record of the set once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanPart {
    /// Number of the part, below `count`.
    pub number: u16,
    /// Number of parts, from 1 to 256.
    pub count: u16,
}

impl ScanPart {
    /// The set as one part.
    pub const WHOLE: ScanPart = ScanPart { number: 0, count: 1 };
}

/// Position at which a scan continues; opaque to the caller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor(pub Vec<u8>);

/// Page of a scan, with the position of the next page.
#[derive(Debug, Clone, Default)]
pub struct ScanPage {
    /// Records in no particular order. A scan returns each record that exists during the whole scan exactly once.
    pub records: Vec<(Key, Record)>,
    /// Position of the next page; `None` at the end.
    pub next: Option<Cursor>,
}

/// Part of the answer of an index query, with the position of the next part.
#[derive(Debug, Clone, Default)]
pub struct KeyPage {
    /// Keys in no particular order. A key that is in the index during the whole query is returned exactly once.
    pub keys: Vec<Key>,
    /// Position after each key, where the index has an order; empty otherwise. Parts of such an index end after a
    /// number of keys, so that a part has other keys once one of its keys has left the index.
    pub after: Vec<Cursor>,
    /// Position of the next part; `None` at the end.
    pub next: Option<Cursor>,
}

/// Identity of the running nodes of the store; opaque. Equal values mean that no node restarted in between, so that no
/// change acknowledged in between is lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Incarnation(pub String);

/// A lack of room on one server of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomShortage {
    /// Server and figures, in one line.
    pub message: String,
    /// The server refuses writes; otherwise the server will soon.
    pub refuses_writes: bool,
}

/// A store of records.
///
/// # Contract
/// - Each row of [`apply`](Self::apply) is atomic: its operation sees the record as another operation left it, and its
///   change is visible whole or not at all. The change is exactly that of [`crate::record::apply`].
/// - Rows of one batch on *different* keys are independent; rows on *one* key take effect in some order, not
///   necessarily that of the batch. Results are in the order of the rows, one each.
/// - A change for which `apply` returned `Ok` survives a kill of the process. After [`loss_window`](Self::loss_window)
///   the change also survives a kill of the machine.
/// - A node that dies loses only changes that were acknowledged within `loss_window` before, and on each record only
///   the latest ones. Every [`incarnation`](Self::incarnation) read afterwards differs from all values read before.
/// - [`ErrorKind::Unknown`] leaves open whether the row took effect; every operation is idempotent, so the caller
///   repeats it. A dropped future of `apply` leaves each row applied or not applied, never half.
/// - [`read`](Self::read) sees every change that was acknowledged before the call.
/// - [`query`](Self::query) and [`scan`](Self::scan) may miss or repeat records that change while they run.
#[async_trait]
pub trait RecordEngine: Send + Sync + 'static {
    /// Returns a short name for metrics and messages.
    fn name(&self) -> &'static str;

    /// Returns the name of the store's layout of records; `None`: the engine has one layout.
    fn layout_name(&self) -> Option<&'static str> {
        None
    }

    /// Applies each row; `result[i]` belongs to `rows[i]`.
    async fn apply(&self, rows: &[Row]) -> Vec<RowResult>;

    /// Reads records; `result[i]` belongs to `keys[i]`. `None`: the record does not exist.
    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>>;

    /// Reads parts of pages; `result[i]` belongs to `pages[i]`. `None`: the page does not exist. An engine that stores
    /// records as a whole reads the whole record.
    async fn read_selected(&self, pages: &[(Key, Selection)]) -> Vec<Result<Option<SelectedPage>, EngineError>> {
        select(self.read(&keys_of(pages)).await, pages)
    }

    /// Returns the keys of at most `limit` pages whose `index` value lies in `from..=to`, ascending by that value.
    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError>;

    /// Returns further keys of pages whose `index` value lies in `from..=to`, from `cursor` (`None`: from the start).
    /// The keys have no order, and memory is bounded; an engine in memory returns all keys at once.
    async fn query_part(
        &self,
        index: Index,
        (from, to): (u64, u64),
        _cursor: Option<Cursor>,
    ) -> Result<KeyPage, EngineError> {
        Ok(KeyPage { keys: self.query(index, from, to, usize::MAX).await?, ..KeyPage::default() })
    }

    /// Returns about `limit` further records of a set, from `cursor` (`None`: from the start).
    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError>;

    /// Returns whether the set has no record. A record that this program cannot decode counts as a record.
    async fn is_empty(&self, set: Set) -> Result<bool, EngineError> {
        let mut cursor = None;
        loop {
            let page = self.scan(set, cursor, 1).await?;
            match (page.records.is_empty(), page.next) {
                (false, _) => return Ok(false),
                (true, None) => return Ok(true),
                (true, next) => cursor = next,
            }
        }
    }

    /// Returns about `limit` further records of a part of [`Set::Transactions`], like [`scan`](Self::scan). An engine
    /// that cannot divide the set has all records in the first part.
    async fn scan_part(&self, part: ScanPart, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        if part.number == 0 { self.scan(Set::Transactions, cursor, limit).await } else { Ok(ScanPage::default()) }
    }

    /// Returns the time during which an acknowledged change may still be lost if the machine (not the process) dies.
    fn loss_window(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns whether parts of the records (nodes, devices, partitions) can be lost one by one. The store writes
    /// sentinels into such an engine.
    fn may_lose_parts(&self) -> bool {
        false
    }

    /// Returns whether no other process can write to the store while this process has it open.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Returns the present incarnation of all nodes, at most a few hundred bytes. An unchanged value means that no node
    /// has restarted in between. An error means that the incarnation is unknown. The call costs the nodes next to
    /// nothing: a caller may ask before each decision. An engine without a loss window may return one value for good.
    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        Ok(Incarnation::default())
    }

    /// Checks that the nodes write to their devices in time. Only then is a change that was acknowledged
    /// [`loss_window`](Self::loss_window) before the call durable, and only while the incarnation is unchanged. After
    /// an error the durability is unknown. The nodes walk their partitions for the answer: a caller asks a few times a
    /// second at most.
    async fn check_flushing(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Asks the servers of the store for lack of room. A store on a local disk has no shortages; neither has a store
    /// whose server does not report its room.
    async fn shortages(&self) -> Result<Vec<RoomShortage>, EngineError> {
        Ok(Vec::new())
    }

    /// Finishes the calls in flight and releases files and connections; later calls fail with [`ErrorKind::Fatal`].
    async fn close(&self) -> Result<(), EngineError>;
}

fn keys_of(pages: &[(Key, Selection)]) -> Vec<Key> {
    pages.iter().map(|(key, _)| *key).collect()
}

/// Selects parts of records that were read as a whole; `records[i]` belongs to `pages[i]`.
fn select(
    records: Vec<Result<Option<Record>, EngineError>>,
    pages: &[(Key, Selection)],
) -> Vec<Result<Option<SelectedPage>, EngineError>> {
    let select_one =
        |(record, (key, selection)): (Result<Option<Record>, EngineError>, &(Key, Selection))| match record? {
            None => Ok(None),
            Some(Record::Page(page)) => Ok(Some(SelectedPage::of(&page, *selection))),
            Some(_) => Err(EngineError {
                kind: ErrorKind::Fatal,
                operation: "read",
                key: key.to_string(),
                message: "the record is not a page".to_owned(),
            }),
        };
    records.into_iter().zip(pages).map(select_one).collect()
}
