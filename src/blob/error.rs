//! Errors of a blob store.

use std::fmt;

use crate::telemetry::BlobErrorKind;

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

impl BlobError {
    /// Returns whether the same request may be sent again, after a pause.
    pub fn may_be_retried(&self) -> bool {
        matches!(self.kind, BlobErrorKind::Retryable | BlobErrorKind::Unknown | BlobErrorKind::Denied)
    }
}
