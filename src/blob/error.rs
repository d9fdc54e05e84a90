//! What a blob store could not do.

use std::fmt;

use crate::telemetry::BlobFailure;

/// What went wrong with one blob. `kind` says what the caller may do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation} {path}: {message} ({kind})")]
pub struct BlobError {
    /// What the caller may do.
    pub kind: BlobErrorKind,
    /// What was being done: `write`, `read`, …
    pub operation: &'static str,
    /// The blob's name in its store.
    pub path: String,
    /// What went wrong, in one line.
    pub message: String,
}

/// Classes of errors by what the caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlobErrorKind {
    /// Nothing was done; the same may be asked again after a pause.
    Retryable,
    /// It may or may not have been done: ask the same again, it is idempotent.
    Unknown,
    /// The store does not allow it, or has no room: somebody has to change that. Until then asking again is harmless, and
    /// from then on it succeeds.
    Denied,
    /// What is stored under this name is not what the name says. Asking again does not help; nothing was written.
    Corrupt,
    /// What was to be stored is not what its name says. Nothing was sent.
    Invalid,
}

impl fmt::Display for BlobErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlobErrorKind::Retryable => "may be retried",
            BlobErrorKind::Unknown => "outcome unknown, may be retried",
            BlobErrorKind::Denied => "denied, may be retried once the store allows it",
            BlobErrorKind::Corrupt => "corrupt",
            BlobErrorKind::Invalid => "not stored",
        })
    }
}

impl From<BlobErrorKind> for BlobFailure {
    fn from(kind: BlobErrorKind) -> Self {
        match kind {
            BlobErrorKind::Retryable => BlobFailure::Retryable,
            BlobErrorKind::Unknown => BlobFailure::Unknown,
            BlobErrorKind::Denied => BlobFailure::Denied,
            BlobErrorKind::Corrupt => BlobFailure::Corrupt,
            BlobErrorKind::Invalid => BlobFailure::Invalid,
        }
    }
}

impl BlobError {
    /// Whether the same request can succeed later, without harm in the meantime.
    pub fn may_be_repeated(&self) -> bool {
        matches!(self.kind, BlobErrorKind::Retryable | BlobErrorKind::Unknown | BlobErrorKind::Denied)
    }
}
