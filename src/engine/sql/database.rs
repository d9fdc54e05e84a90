//! The two databases behind one set of calls: read rows, write rows, commit.

use super::{
    errors::SqlError,
    postgres::{PostgresDatabase, PostgresTransaction},
    sqlite::{SqliteDatabase, SqliteTransaction},
    tables::{Changes, Row, Table},
};

/// An open database of either kind.
#[derive(Clone)]
pub(super) enum Database {
    Sqlite(SqliteDatabase),
    Postgres(PostgresDatabase),
}

/// A transaction of a database. A dropped one is taken back: on SQLite by the next transaction on its connection.
pub(super) enum DatabaseTransaction {
    Sqlite(SqliteTransaction),
    Postgres(PostgresTransaction),
}

/// Rows to read from a table.
#[derive(Debug, Clone, Copy)]
pub(super) enum RowFilter<'a> {
    /// Rows with these keys, or whose first key columns have these values.
    Keys(&'a [Row]),
    /// Rows with these keys, which no other writer may change before the end of the transaction.
    LockedKeys(&'a [Row]),
    /// Rows whose first key column has the first value, and whose second is between the other two.
    Ranges(&'a [Row]),
    /// The first rows with a greater key, ascending.
    After(Option<&'a Row>, u64),
    /// The first rows of `transactions` with a value of a column in a range, ascending, after a value and key.
    Indexed { column: &'static str, condition: &'static str, from: i64, to: i64, after: Option<&'a Row>, limit: u64 },
}

impl Database {
    pub fn name(&self) -> &'static str {
        match self {
            Database::Sqlite(_) => "sqlite",
            Database::Postgres(_) => "postgres",
        }
    }

    /// Returns the number of transactions that can write at the same time.
    pub fn writers(&self) -> usize {
        match self {
            Database::Sqlite(_) => 1,
            Database::Postgres(database) => database.writers(),
        }
    }

    /// Begins a transaction whose reads see one state of the database.
    pub async fn begin_read(&self) -> Result<DatabaseTransaction, SqlError> {
        match self {
            Database::Sqlite(database) => database.begin_read().await.map(DatabaseTransaction::Sqlite),
            Database::Postgres(database) => database.begin_read().await.map(DatabaseTransaction::Postgres),
        }
    }

    pub async fn begin_write(&self) -> Result<DatabaseTransaction, SqlError> {
        match self {
            Database::Sqlite(database) => database.begin_write().await.map(DatabaseTransaction::Sqlite),
            Database::Postgres(database) => database.begin_write().await.map(DatabaseTransaction::Postgres),
        }
    }

    pub async fn close(&self) {
        match self {
            Database::Sqlite(database) => database.close().await,
            Database::Postgres(database) => database.close().await,
        }
    }
}

impl DatabaseTransaction {
    /// Reads rows of a table; no order unless the filter has one.
    pub async fn select(&mut self, table: &Table, filter: RowFilter<'_>) -> Result<Vec<Row>, SqlError> {
        match self {
            DatabaseTransaction::Sqlite(transaction) => transaction.select(table, filter).await,
            DatabaseTransaction::Postgres(transaction) => transaction.select(table, filter).await,
        }
    }

    pub async fn write(&mut self, changes: &Changes) -> Result<(), SqlError> {
        match self {
            DatabaseTransaction::Sqlite(transaction) => transaction.write(changes).await,
            DatabaseTransaction::Postgres(transaction) => transaction.write(changes).await,
        }
    }

    pub async fn commit(self) -> Result<(), SqlError> {
        match self {
            DatabaseTransaction::Sqlite(transaction) => transaction.commit().await,
            DatabaseTransaction::Postgres(transaction) => transaction.commit().await,
        }
    }

    /// Takes the transaction back.
    pub async fn give_up(self) {
        match self {
            DatabaseTransaction::Sqlite(transaction) => transaction.give_up().await,
            // The pool takes the transaction back before the connection is used again.
            DatabaseTransaction::Postgres(transaction) => drop(transaction),
        }
    }
}
