//! What an error of the client or of the server lets the caller do.
//!
//! The client's own in-doubt flags are not trusted: whatever did not come from the server leaves a write unknown, unless
//! it says that nothing was sent.

use aerospike::{Error, ErrorKind as ClientKind, ResultCode};

use crate::engine::{EngineError, ErrorKind};

/// What was being done when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// A read: it can always be repeated.
    Read,
    /// A change.
    Write,
}

/// The class of an error.
pub fn kind_of(error: &Error, sent: Sent) -> ErrorKind {
    if let Some(code) = error.server_result_code() {
        return kind_of_code(code, sent);
    }
    match (error.kind(), sent) {
        (ClientKind::InvalidArgument | ClientKind::InvalidNamespace, _) => ErrorKind::Fatal,
        (_, Sent::Read) => ErrorKind::Retryable,
        // Nothing was sent.
        (
            ClientKind::InvalidNode
            | ClientKind::ConnectionPoolEmpty
            | ClientKind::NoMoreConnections
            | ClientKind::MaxErrorRate,
            Sent::Write,
        ) => ErrorKind::Retryable,
        (_, Sent::Write) => ErrorKind::Unknown,
    }
}

fn kind_of_code(code: ResultCode, sent: Sent) -> ErrorKind {
    match code {
        ResultCode::RecordTooBig => ErrorKind::TooBig,
        // The server gave up waiting, perhaps for a replica that has the change already.
        ResultCode::Timeout if sent == Sent::Write => ErrorKind::Unknown,
        ResultCode::Timeout
        | ResultCode::KeyBusy
        | ResultCode::DeviceOverload
        | ResultCode::PartitionUnavailable
        | ResultCode::ClusterKeyMismatch
        // Stop-writes: a full namespace. Waiting heals it once somebody makes room.
        | ResultCode::ServerMemError
        | ResultCode::QuotaExceeded
        | ResultCode::BatchQueuesFull
        | ResultCode::ExpiredSession
        | ResultCode::IndexNotReadable
        | ResultCode::ScanAbort
        | ResultCode::GenerationError => ErrorKind::Retryable,
        ResultCode::ServerError if sent == Sent::Write => ErrorKind::Unknown,
        ResultCode::ServerError => ErrorKind::Retryable,
        _ => ErrorKind::Fatal,
    }
}

/// What to say where the server's word alone does not tell the remedy.
fn remedy(error: &Error) -> &'static str {
    match error.server_result_code() {
        Some(ResultCode::FailForbidden) => "; a record with a TTL needs `nsup-period` above 0 in the namespace",
        Some(ResultCode::RecordTooBig) => {
            "; raise `max-record-size` of the namespace (8M at most), which bounds a record"
        }
        Some(ResultCode::ServerMemError) => "; the namespace is full (stop-writes)",
        Some(ResultCode::InvalidNamespace) => "; add the namespace to aerospike.conf on every node",
        Some(ResultCode::NotAuthenticated | ResultCode::RoleViolation) => "; check the user and its role (read-write)",
        _ => "",
    }
}

/// An error of one row.
pub fn engine_error(operation: &'static str, key: impl ToString, error: &Error, sent: Sent) -> EngineError {
    let message = format!("{}{}", one_line(error), remedy(error));
    EngineError { kind: kind_of(error, sent), operation, key: key.to_string(), message }
}

/// The client's errors have chains of causes over several lines.
pub fn one_line(error: &Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A record that cannot be read.
pub fn damaged(operation: &'static str, key: impl ToString, why: impl ToString) -> EngineError {
    EngineError { kind: ErrorKind::Fatal, operation, key: key.to_string(), message: why.to_string() }
}
