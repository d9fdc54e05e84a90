//! Transactions of the vault's database, with retries of lost races and time limits.

use std::time::Duration;

use tokio::time::error::Elapsed;

use super::error::VaultError;
use crate::{
    engine::{
        ErrorKind,
        sql::plain::{OpenSqlError, PlainDatabase, PlainTransaction, Schema, SqlAccess, SqlError, SqlSettings},
    },
    tx::Network,
};

/// Tables of a vault (`schemas/vault.md`).
static VAULT: Schema = Schema {
    kind: "vault",
    head: "vault",
    number: "watch_version",
    tables: &["owners", "scripts", "outputs", "claims", "locks", "requests", "positions", "rescans", "tips", "workers"],
    version: 1,
    sqlite: include_str!("schema/sqlite.sql"),
    postgres: include_str!("schema/postgres.sql"),
    migration: None,
    remedy: "use the program that wrote the vault",
};

/// Connections of one process to a server, at most, unless the URL names a number. Requests beyond wait for one.
/// More transactions at the same time only wait for each other's rows.
const CONNECTIONS: u32 = 16;
/// Attempts of a transaction that loses races with others, and the first pause between two. The pause doubles.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// The database of a vault.
#[derive(Clone)]
pub(super) struct VaultDatabase {
    database: PlainDatabase,
    /// Time of one transaction.
    pub timeout: Duration,
}

/// Reason why a transaction ended without a commit.
pub(super) enum Abort {
    Sql(SqlError),
    Refused(VaultError),
}

impl From<SqlError> for Abort {
    fn from(error: SqlError) -> Self {
        Abort::Sql(error)
    }
}

impl From<VaultError> for Abort {
    fn from(error: VaultError) -> Self {
        Abort::Refused(error)
    }
}

impl From<SqlError> for VaultError {
    fn from(error: SqlError) -> Self {
        VaultError::from(error.into_engine_error("vault"))
    }
}

/// Runs `$work` in a transaction that `$begin` begins, and commits. A transaction that lost a race runs again.
macro_rules! in_transaction {
    ($database:expr, $begin:ident, |$transaction:ident| $work:expr) => {{
        let mut attempt = 1;
        loop {
            let mut $transaction = match $database.$begin().await {
                Ok(transaction) => transaction,
                Err(error) => break Err(error),
            };
            let worked = tokio::time::timeout($database.timeout, $work).await;
            if let Some(result) = $database.end($transaction, worked, &mut attempt).await {
                break result;
            }
        }
    }};
}
pub(super) use in_transaction;

/// Runs `$work` in a transaction that writes.
macro_rules! transact {
    ($database:expr, |$transaction:ident| $work:expr) => {
        $crate::vault::database::in_transaction!($database, begin_write, |$transaction| $work)
    };
}
pub(super) use transact;

/// Runs `$work` in a transaction that reads one state of the database.
macro_rules! read {
    ($database:expr, |$transaction:ident| $work:expr) => {
        $crate::vault::database::in_transaction!($database, begin_read, |$transaction| $work)
    };
}
pub(super) use read;

impl VaultDatabase {
    /// Opens the database, or creates the tables in an empty one.
    pub async fn open(settings: &SqlSettings, network: Network, access: &SqlAccess) -> Result<Self, OpenSqlError> {
        let access = SqlAccess { max_open: access.max_open.min(CONNECTIONS), ..access.clone() };
        let database = PlainDatabase::open(settings, &VAULT, network, &access).await?;
        Ok(VaultDatabase { database, timeout: access.timeout })
    }

    pub async fn close(&self) {
        self.database.close().await;
    }

    pub async fn begin_write(&self) -> Result<PlainTransaction, VaultError> {
        match self.database.ends_requests_itself() {
            true => Ok(self.database.begin_write().await?),
            false => self.begin(self.database.begin_write()).await,
        }
    }

    pub async fn begin_read(&self) -> Result<PlainTransaction, VaultError> {
        self.begin(self.database.begin_read()).await
    }

    async fn begin(
        &self,
        begin: impl Future<Output = Result<PlainTransaction, SqlError>>,
    ) -> Result<PlainTransaction, VaultError> {
        Ok(tokio::time::timeout(self.timeout, begin).await.map_err(|_| self.no_answer())??)
    }

    fn no_answer(&self) -> VaultError {
        VaultError::Database(format!("no answer within {:?}", self.timeout))
    }

    /// Ends a transaction; `None`: the transaction lost a race, and runs again.
    pub async fn end<T>(
        &self,
        transaction: PlainTransaction,
        worked: Result<Result<T, Abort>, Elapsed>,
        attempt: &mut u32,
    ) -> Option<Result<T, VaultError>> {
        let error = match worked {
            Ok(Ok(result)) => match tokio::time::timeout(self.timeout, transaction.commit()).await {
                Ok(Ok(())) => return Some(Ok(result)),
                Ok(Err(error)) => error,
                Err(_) => return Some(Err(VaultError::Unknown(format!("no answer within {:?}", self.timeout)))),
            },
            Ok(Err(Abort::Refused(error))) => {
                transaction.give_up().await;
                return Some(Err(error));
            }
            Ok(Err(Abort::Sql(error))) => {
                transaction.give_up().await;
                error
            }
            Err(_) => {
                // The database can still be at a statement, whose end no caller waits for.
                tokio::spawn(transaction.give_up());
                return Some(Err(self.no_answer()));
            }
        };
        if error.is_lost_race && error.kind == ErrorKind::Retryable && *attempt < ATTEMPTS {
            tokio::time::sleep(PAUSE * (1 << (*attempt).min(6))).await;
            *attempt += 1;
            return None;
        }
        Some(Err(error.into()))
    }
}
