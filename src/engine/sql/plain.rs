//! A database with tables of a program besides the store: transactions of whole statements.

use super::{
    database::{Database, DatabaseTransaction},
    open,
};
use crate::tx::Network;

pub(crate) use super::{
    errors::SqlError,
    schema::Schema,
    settings::{OpenSqlError, SqlAccess, SqlSettings},
    statement::Statement,
    tables::{Kind, Row, Value},
};

/// An open database. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PlainDatabase(Database);

/// A transaction of a database. A dropped one is taken back: on SQLite by the next transaction on its connection.
pub(crate) struct PlainTransaction(DatabaseTransaction);

impl PlainDatabase {
    /// Opens a database with the tables of a schema, or creates the tables in an empty database.
    ///
    /// # Errors
    /// The database cannot be opened, has other tables, or tables of another version or network.
    pub async fn open(
        settings: &SqlSettings,
        schema: &'static Schema,
        network: Network,
        access: &SqlAccess,
    ) -> Result<Self, OpenSqlError> {
        open::open_tables(settings, schema, network, access).await.map(PlainDatabase)
    }

    /// Returns whether a request for a transaction that writes must not be given up: a request for the lock of SQLite
    /// can still get the lock. SQLite ends the request itself.
    pub fn ends_requests_itself(&self) -> bool {
        matches!(self.0, Database::Sqlite(_))
    }

    /// Begins a transaction whose reads see one state of the database.
    pub async fn begin_read(&self) -> Result<PlainTransaction, SqlError> {
        self.0.begin_read().await.map(PlainTransaction)
    }

    /// Begins a transaction that writes. In PostgreSQL each statement sees the last commits.
    pub async fn begin_write(&self) -> Result<PlainTransaction, SqlError> {
        self.0.begin_write().await.map(PlainTransaction)
    }

    /// Closes the connections, for all clones.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

impl PlainTransaction {
    /// Runs a statement and returns its rows, whose columns have these kinds.
    pub async fn fetch_all(&mut self, statement: &Statement<'_>, kinds: &[Kind]) -> Result<Vec<Row>, SqlError> {
        match &mut self.0 {
            DatabaseTransaction::Sqlite(transaction) => transaction.fetch_all(statement, kinds).await,
            DatabaseTransaction::Postgres(transaction) => transaction.fetch_all(statement, kinds).await,
        }
    }

    /// Runs a statement and returns the number of rows that were changed.
    pub async fn execute(&mut self, statement: &Statement<'_>) -> Result<u64, SqlError> {
        match &mut self.0 {
            DatabaseTransaction::Sqlite(transaction) => transaction.execute(statement).await,
            DatabaseTransaction::Postgres(transaction) => transaction.execute_statement(statement).await,
        }
    }

    /// Makes the changes of the transaction durable.
    pub async fn commit(self) -> Result<(), SqlError> {
        self.0.commit().await
    }

    /// Takes the transaction back.
    pub async fn give_up(self) {
        self.0.give_up().await;
    }
}
