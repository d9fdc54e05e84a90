//! Errors of a blob store.

use std::fmt;

use crate::telemetry::BlobFailure;

/// Failure of one request for one blob. `kind` says what the caller may do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation} {path}: {message} ({kind})")]
pub struct BlobError {
    /// Class of the error, by the caller's options.
    pub kind: BlobErrorKind,
    /// Failed operation: `write`, `read`, …
    pub operation: &'static str,
    /// Name of the blob in its store.
    pub path: String,
    /// Cause of the failure, in one line.
    pub message: String,
}

/// Classes of errors by what the caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlobErrorKind {
    /// The request changed nothing; send the same request again after a pause.
    Retryable,
    /// The request may have taken effect; send the same request again, because requests are idempotent.
    Unknown,
    /// The store forbids the request or is full, and a person has to change that. Retries are harmless and succeed
    /// after the change.
    Denied,
    /// The stored bytes do not match the blob's name. A retry does not help; nothing was written.
    Corrupt,
    /// The bytes to store do not match the blob's name. Nothing was sent.
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
    /// Returns whether the same request may be sent again, after a pause.
    pub fn may_be_retried(&self) -> bool {
        matches!(self.kind, BlobErrorKind::Retryable | BlobErrorKind::Unknown | BlobErrorKind::Denied)
    }
}
