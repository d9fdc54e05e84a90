//! Reasons against a UTXO-set file.

use std::{io, path::PathBuf};

use crate::{
    engine::EngineError,
    instance::InstanceError,
    snapshot::SnapshotError,
    store::{digest::SurveyError, meta::MetaError, restart_detector::LagTooShort},
};

use super::{core_format, reference_format};

/// Faults of a UTXO-set file; each message is one line.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum SetFileError {
    #[error("cannot read byte {at}: {error}")]
    Read { at: u64, error: io::Error },
    #[error("it ends at byte {at}, before the end that its own counts demand: it is cut off; get the whole file")]
    Cut { at: u64 },
    #[error(
        "it begins with {found}: it is neither a UTXO-set file of the reference ({}) nor a dumptxoutset file of \
         Bitcoin Core ({})",
        hex::encode(reference_format::MAGIC),
        hex::encode(core_format::MAGIC)
    )]
    UnknownFormat { found: String },
    #[error(
        "it is a dumptxoutset file of version {found}, this program reads version {}: write it with Bitcoin Core 28 \
         or later",
        core_format::VERSION
    )]
    OtherVersion { found: u16 },
    #[error("its network has the magic {magic}, which no known network has")]
    UnknownNetwork { magic: String },
    #[error("it is damaged before byte {at}: {problem}; get the file again")]
    Damaged { at: u64, problem: String },
    #[error("it has {found}, and says that it has {said}: it is cut off or damaged; get the whole file")]
    OtherCounts { found: String, said: String },
}

/// Reasons why a UTXO-set file is not imported or written; each message is one line and names the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum UtxoSetError {
    #[error("cannot open {}: {error}", .path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("the UTXO-set file {}: {error}", .path.display())]
    File { path: PathBuf, error: SetFileError },
    #[error(
        "the UTXO-set file {} changed while it was imported; import a file that no program writes",
        .path.display()
    )]
    FileChanged { path: PathBuf },
    #[error("cannot import the UTXO-set file: {0}")]
    Refused(String),
    #[error(
        "transaction {txid} differs from a record of the store: the file has the transaction twice, or the store is \
         in use"
    )]
    OtherRecord { txid: String },
    #[error(
        "the store has {found} after the import, the file has {expected}: the file has a transaction twice, or the \
         store is in use; the store is not usable, import another file into an empty store"
    )]
    OtherTotals { found: String, expected: String },
    #[error("cannot write {}: {error}", .path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot export the UTXO set: {0}")]
    NotExported(String),
    #[error("stopped; the same command continues")]
    Stopped,
    #[error("stopped; nothing was written, begin again")]
    ExportStopped,
    #[error("a task of the import ended: {0}")]
    Task(String),
    #[error(transparent)]
    Meta(#[from] MetaError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Survey(#[from] SurveyError),
    #[error(transparent)]
    Instance(#[from] InstanceError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    LagTooShort(#[from] LagTooShort),
}
