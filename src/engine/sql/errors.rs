//! Classes of database errors, by what the caller may do.

use sqlx::{Error, sqlite::SqliteError};

use crate::{
    engine::{EngineError, ErrorKind},
    text::join_lines,
};

/// Error of a transaction of the database.
#[derive(Debug)]
pub(crate) struct SqlError {
    pub kind: ErrorKind,
    pub message: String,
    /// The transaction changed nothing, and a repeat may succeed at once: a lost race with another writer.
    pub is_lost_race: bool,
}

impl SqlError {
    /// Makes the error of a statement before the commit: the database takes back the whole transaction, also where the
    /// connection ended.
    pub fn of(error: &Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
        let (kind, is_lost_race) = match error {
            Error::Database(error) if error.try_downcast_ref::<SqliteError>().is_some() => {
                (sqlite_kind(code.as_deref()), false)
            }
            Error::Database(_) => postgres_kind(code.as_deref()),
            Error::PoolTimedOut | Error::Io(_) | Error::Tls(_) | Error::Protocol(_) | Error::WorkerCrashed => {
                (ErrorKind::Retryable, false)
            }
            Error::BeginFailed => (ErrorKind::Retryable, false),
            _ => (ErrorKind::Fatal, false),
        };
        SqlError { kind, message: describe(error), is_lost_race }
    }

    /// Makes the error of a commit, whose effect is not known unless the database itself refused.
    pub fn of_commit(error: &Error) -> Self {
        let of_statement = SqlError::of(error);
        let is_refusal = matches!(error, Error::Database(_)) && !is_end_of_session(error) && !is_io_error(error);
        match of_statement.kind {
            ErrorKind::Retryable if !is_refusal => SqlError { kind: ErrorKind::Unknown, ..of_statement },
            _ => of_statement,
        }
    }

    pub fn fatal(message: impl Into<String>) -> Self {
        SqlError { kind: ErrorKind::Fatal, message: message.into(), is_lost_race: false }
    }

    pub fn into_engine_error(self, operation: &'static str) -> EngineError {
        EngineError { kind: self.kind, operation, key: "the database".to_owned(), message: self.message }
    }
}

impl From<Error> for SqlError {
    fn from(error: Error) -> Self {
        SqlError::of(&error)
    }
}

/// Returns the message of an error as one line.
pub(super) fn describe(error: &Error) -> String {
    let code = error.as_database_error().and_then(|error| error.code());
    match (error, code) {
        (Error::Database(error), Some(code)) => format!("{} (code {code})", join_lines(error.message())),
        (error, _) => join_lines(&error.to_string()),
    }
}

/// Returns whether the server ended the session: by an operator, a shutdown, a crash, or because the process paused
/// within a transaction.
fn is_end_of_session(error: &Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| ["57P", "08", "25P"].iter().any(|class| code.starts_with(class)))
}

/// Returns whether SQLite could not write or sync its file. A commit that SQLite could not sync can be in the log, and
/// count after a crash.
fn is_io_error(error: &Error) -> bool {
    let Some(error) = error.as_database_error().filter(|error| error.try_downcast_ref::<SqliteError>().is_some())
    else {
        return false;
    };
    primary_code(error.code().as_deref()) == Some(SQLITE_IOERR)
}

const SQLITE_IOERR: i32 = 10;

/// Returns the primary result code of SQLite, the low byte.
fn primary_code(code: Option<&str>) -> Option<i32> {
    code.and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xFF)
}

/// The classes of the result codes of SQLite.
fn sqlite_kind(code: Option<&str>) -> ErrorKind {
    const SQLITE_BUSY: i32 = 5;
    const SQLITE_LOCKED: i32 = 6;
    const SQLITE_NOMEM: i32 = 7;
    const SQLITE_INTERRUPT: i32 = 9;
    const SQLITE_FULL: i32 = 13;
    const SQLITE_TOOBIG: i32 = 18;
    match primary_code(code) {
        Some(SQLITE_BUSY | SQLITE_LOCKED | SQLITE_NOMEM | SQLITE_INTERRUPT | SQLITE_IOERR | SQLITE_FULL) => {
            ErrorKind::Retryable
        }
        Some(SQLITE_TOOBIG) => ErrorKind::TooBig,
        _ => ErrorKind::Fatal,
    }
}

/// The codes (SQLSTATE) of PostgreSQL, by class.
fn postgres_kind(code: Option<&str>) -> (ErrorKind, bool) {
    match code.unwrap_or_default() {
        // A serialization failure, a deadlock, and a record that another writer has created meanwhile.
        "40001" | "40P01" | "23505" => (ErrorKind::Retryable, true),
        // A canceled statement, a session that was ended, a server that starts or stops.
        code if code.starts_with("57") => (ErrorKind::Retryable, false),
        // Connection lost; too few resources, a full disk among them; the lock is not available.
        code if code.starts_with("08") || code.starts_with("53") || code.starts_with("55") => {
            (ErrorKind::Retryable, false)
        }
        // A read-only transaction: the server has become a standby. A process that paused within a transaction.
        "25006" | "25P03" | "25P04" => (ErrorKind::Retryable, false),
        code if code.starts_with("58") => (ErrorKind::Retryable, false),
        "54000" => (ErrorKind::TooBig, false),
        _ => (ErrorKind::Fatal, false),
    }
}
