//! [`VaultError`]: why a request to the vault was refused.

use super::{locks::ReserveObstacle, source::SourceError, types::LockId};
use crate::{
    engine::{EngineError, ErrorKind},
    tx::Outpoint,
};

/// Reason why a request to the vault was refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VaultError {
    /// The database does not answer, and nothing was changed.
    #[error("the database of the vault does not answer: {0}")]
    Database(String),
    /// The database ended the connection during a commit. A repeat with the same request id has the same answer.
    #[error("the database of the vault did not tell whether the request was done: {0}; repeat the request")]
    Unknown(String),
    /// The database refuses the request, or has rows that no vault has written.
    #[error("the database of the vault has an error that no repeat mends: {0}")]
    Fatal(String),
    /// The store does not answer.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The request itself is malformed.
    #[error("{0}")]
    Invalid(String),
    /// No script is watched under the name of this owner.
    #[error("no script is watched for the owner `{0}`")]
    NoOwner(String),
    /// Some of the outputs cannot be reserved, and none was.
    #[error("{} of the outputs cannot be reserved", .0.len())]
    StatesNotAvailable(Vec<(Outpoint, ReserveObstacle)>),
    /// The outputs do not fund the amount and its fee.
    #[error(
        "the balance is insufficient: {asked} satoshis are asked for, {available} are available, and {locked} are \
         locked by others"
    )]
    InsufficientBalance {
        /// Amount, with a fixed fee.
        asked: u64,
        /// Sum of the free outputs that the request permits.
        available: u64,
        /// Sum of the outputs that the request permits, and that locks of other ids have.
        locked: u64,
    },
    /// The outputs would suffice with more inputs than the request permits.
    #[error("the amount needs more than {0} inputs: permit more, or ask for less")]
    TooManyInputs(u32),
    /// The id of the lock belongs to another owner, or to no lock.
    #[error("there is no lock {0} of this owner")]
    NoLock(LockId),
    /// The lock was released, or its lease has ended.
    #[error("the lock {0} has ended: its outputs are free for others")]
    LockEnded(LockId),
    /// The id is that of another request.
    #[error("the request id was used for another request")]
    RequestReused,
    /// Outputs of the script have soft locks.
    #[error("{0} outputs of the scripts have soft locks: release the locks first")]
    OutputsLocked(u64),
    /// The script is watched for another owner.
    #[error("script {0} is watched for another owner")]
    OtherOwner(String),
}

impl VaultError {
    /// Makes the error of a request that is malformed.
    pub(super) fn invalid(problem: impl Into<String>) -> Self {
        VaultError::Invalid(problem.into())
    }

    /// Makes the error of rows that no vault has written.
    pub(super) fn damaged(what: &str) -> Self {
        VaultError::Fatal(format!("a row of the vault has {what}"))
    }
}

impl From<EngineError> for VaultError {
    fn from(error: EngineError) -> Self {
        match error.kind {
            ErrorKind::Unknown => VaultError::Unknown(error.message),
            ErrorKind::Retryable => VaultError::Database(error.message),
            _ => VaultError::Fatal(error.message),
        }
    }
}
