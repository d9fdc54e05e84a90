//! Classes of the errors of client and server, by the action that they leave to the caller.
//!
//! The client's own in-doubt flags are not used: an error that did not come from the server leaves a write unknown,
//! unless the error says that no request was sent.

use aerospike::{Error, ErrorKind as ClientKind, ResultCode};

use crate::{
    engine::{EngineError, ErrorKind},
    text::join_lines,
};

/// The kind of request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// A read, which can always be repeated.
    Read,
    /// A write, which may have taken effect.
    Write,
}

/// Returns the class of an error.
pub fn classify(error: &Error, request: RequestKind) -> ErrorKind {
    if let Some(code) = error.server_result_code() {
        return classify_code(code, request);
    }
    match (error.kind(), request) {
        (ClientKind::InvalidArgument | ClientKind::InvalidNamespace, _) => ErrorKind::Fatal,
        (_, RequestKind::Read) => ErrorKind::Retryable,
        // With these errors no request was sent.
        (
            ClientKind::InvalidNode
            | ClientKind::ConnectionPoolEmpty
            | ClientKind::NoMoreConnections
            | ClientKind::MaxErrorRate,
            RequestKind::Write,
        ) => ErrorKind::Retryable,
        (_, RequestKind::Write) => ErrorKind::Unknown,
    }
}

fn classify_code(code: ResultCode, request: RequestKind) -> ErrorKind {
    match code {
        ResultCode::RecordTooBig => ErrorKind::TooBig,
        ResultCode::IndexNotFound => ErrorKind::NoIndex,
        // The server gave up waiting, perhaps for a replica that has the change already.
        ResultCode::Timeout if request == RequestKind::Write => ErrorKind::Unknown,
        ResultCode::Timeout
        | ResultCode::KeyBusy
        | ResultCode::DeviceOverload
        | ResultCode::PartitionUnavailable
        | ResultCode::ClusterKeyMismatch
        // Stop-writes: the namespace is full. Waiting helps once an operator makes room.
        | ResultCode::ServerMemError
        | ResultCode::QuotaExceeded
        | ResultCode::BatchQueuesFull
        | ResultCode::ExpiredSession
        | ResultCode::IndexNotReadable
        | ResultCode::ScanAbort
        // The nodes' clocks are too far apart, so that all writes stop; or the namespace does not take a TTL, which a
        // start refuses.
        | ResultCode::FailForbidden
        | ResultCode::GenerationError => ErrorKind::Retryable,
        ResultCode::ServerError if request == RequestKind::Write => ErrorKind::Unknown,
        ResultCode::ServerError => ErrorKind::Retryable,
        _ => ErrorKind::Fatal,
    }
}

/// Returns the remedy for an error where the server's text does not tell it.
fn remedy_for(error: &Error) -> &'static str {
    match error.server_result_code() {
        Some(ResultCode::FailForbidden) => {
            "; set the clocks of the nodes if they are far apart, and `nsup-period` above 0 in the namespace"
        }
        Some(ResultCode::RecordTooBig) => {
            "; raise `max-record-size` of the namespace (8M at most), which bounds a record"
        }
        Some(ResultCode::IndexNotFound) => "; `utxo-store run` creates missing indexes when it starts",
        Some(ResultCode::ServerMemError) => "; the namespace is full (stop-writes)",
        Some(ResultCode::InvalidNamespace) => "; add the namespace to aerospike.conf on every node",
        Some(ResultCode::NotAuthenticated | ResultCode::RoleViolation) => "; check the user and its role (read-write)",
        _ => "",
    }
}

/// Makes the error of one row.
pub fn engine_error(operation: &'static str, key: impl ToString, error: &Error, request: RequestKind) -> EngineError {
    let message = format!("{}{}", describe_error(error), remedy_for(error));
    EngineError { kind: classify(error, request), operation, key: key.to_string(), message }
}

/// Returns an error as one line: the client's errors list their causes over several lines.
pub fn describe_error(error: &Error) -> String {
    join_lines(&error.to_string())
}

/// Makes the error for a record that cannot be decoded.
pub fn damaged(operation: &'static str, key: impl ToString, problem: impl ToString) -> EngineError {
    EngineError { kind: ErrorKind::Fatal, operation, key: key.to_string(), message: problem.to_string() }
}
