//! Reasons against a snapshot.

use crate::{
    blob::{BlobError, OpenBlobError},
    broker::BrokerError,
    engine::EngineError,
    instance::InstanceError,
    store::{body::BodyError, meta::MetaError, restart_detector::LagTooShort},
};

/// Reasons why a snapshot is not created, read or restored; each message is one line and names the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum SnapshotError {
    #[error("no complete snapshot at this place; run `snapshot list` to see what is there")]
    NoSnapshot,
    #[error("no snapshot `{}` at this place; run `snapshot list` to see what is there", .0.escape_debug())]
    Unknown(String),
    #[error("snapshot {0} has no manifest: it is in progress, or its creation was stopped; create it to its end")]
    Unfinished(String),
    #[error(
        "snapshot {name} has format {found}, this program reads format {}; use the program that wrote it",
        super::FORMAT
    )]
    Format { name: String, found: u64 },
    #[error("snapshot {name}: `{object}` is damaged: {problem}; use another snapshot")]
    Damaged { name: String, object: String, problem: String },
    #[error("snapshot {name}: chunk `{object}` is missing; use another snapshot")]
    Missing { name: String, object: String },
    #[error("snapshot {name}: the chunks hold {found}, the manifest says {expected}; use another snapshot")]
    OtherTotals { name: String, found: String, expected: String },
    #[error(
        "cannot create a snapshot of a store that was restored and has not caught up with the log: run an instance \
         until `restored` is gone from the meta record"
    )]
    CatchingUp,
    #[error("cannot create a snapshot: {0}")]
    Group(String),
    #[error("the snapshot cannot be continued, and was discarded: {0}; begin a new one")]
    Discarded(String),
    #[error("cannot restore the snapshot: {}", .0.join("; "))]
    Refused(Vec<String>),
    #[error(
        "restored record {key} differs from a record of the store: the snapshot has the key twice, or the store is in \
         use"
    )]
    OtherRecord { key: String },
    #[error("stopped; the same command continues")]
    Stopped,
    #[error("a task of the snapshot ended: {0}")]
    Task(String),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    OpenBlobs(#[from] OpenBlobError),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Meta(#[from] MetaError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Instance(#[from] InstanceError),
    #[error(transparent)]
    LagTooShort(#[from] LagTooShort),
    #[error("the operating system gives no random numbers: {0}")]
    Random(#[from] std::io::Error),
}
