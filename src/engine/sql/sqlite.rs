//! SQLite: pools, pragmas and statements.
//!
//! A list of rows is `VALUES (?, …), …`, rounded up to one of a few sizes, so that each statement is prepared once. The
//! rows above the list's end are NULL, and are left out by their key.

use std::{os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, Row as _, Sqlite, SqlitePool,
    pool::PoolConnection,
    query::Query,
    sqlite::{
        SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
    },
};

#[cfg(feature = "vault")]
use super::statement::{Dialect, Statement};
use super::{
    database::RowFilter,
    errors::SqlError,
    tables::{Changes, Column, Kind, Row, TABLES, Table, Value},
};

/// Numbers of rows of one statement, ascending.
const SIZES: [usize; 5] = [1, 4, 16, 64, 256];
/// Prepared statements of a connection: every table, kind of statement and size.
const STATEMENTS: usize = 256;
/// Connections that read a file. Readers see the last commit and wait for no writer.
const READERS: u32 = 4;
/// Kibibytes of the page cache of a connection.
const CACHE_KIB: &str = "-65536";
/// Pages in the write-ahead log after which a commit copies them into the file: 64 MiB. A page that many commits change
/// is copied once.
const CHECKPOINT_PAGES: &str = "16384";
/// Columns of an index query besides its value: the key of `transactions`.
const INDEXED_KINDS: [Kind; 3] = [Kind::Int, Kind::Bytes, Kind::Int];

/// Reads the names of all tables and views.
pub(super) const SELECT_TABLES: &str = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')";

#[cfg(feature = "vault")]
/// Texts of SQLite for the places of a statement. The lock of a transaction that writes is that of the file.
const DIALECT: Dialect =
    Dialect { parameter: '?', now: "CAST(unixepoch('subsec') * 1000 AS INTEGER)", lock: "", skip: "", share: "" };

/// Value of a row that only rounds a list up.
const NULL: Value = Value::Int(None);

/// An open database of SQLite.
#[derive(Clone)]
pub(super) struct SqliteDatabase {
    /// The one connection that writes.
    pub writer: SqlitePool,
    /// Connections that read; of a database in memory, the writer.
    pub readers: SqlitePool,
    /// Path of the file, with its identity at the start; `None`: a database in memory.
    file: Option<(Arc<Path>, FileIdentity)>,
}

/// Device and inode of a file. A file that is copied or moved to the same path has others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn read(path: &Path) -> std::io::Result<Self> {
        let found = std::fs::metadata(path)?;
        Ok(FileIdentity { device: found.dev(), inode: found.ino() })
    }
}

/// A transaction by plain statements: SQLite ends a transaction by itself at some errors, such as a full disk, after
/// which the transactions of `sqlx` would refuse every further one on the connection.
pub(super) struct SqliteTransaction(PoolConnection<Sqlite>);

impl SqliteDatabase {
    /// Opens a file, or creates the file if `create`.
    pub async fn open_file(path: &Path, create: bool, timeout: Duration, logging: bool) -> Result<Self, sqlx::Error> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(create)
            .journal_mode(SqliteJournalMode::Wal)
            // A commit is durable once its pages are synced in the write-ahead log.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(timeout)
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES);
        let options = shared_options(options, logging);
        let pool = |connections| SqlitePoolOptions::new().max_connections(connections).acquire_timeout(timeout);
        let before = path.try_exists()?.then(|| FileIdentity::read(path)).transpose()?;
        let writer = pool(1).idle_timeout(None).max_lifetime(None).connect_with(options.clone()).await?;
        let identity = FileIdentity::read(path)?;
        if before.is_some_and(|before| before != identity) {
            writer.close().await;
            let replaced = format!("{} was replaced while it was opened; start again", path.display());
            return Err(std::io::Error::other(replaced).into());
        }
        // A connection that is opened again must not create the file that an operator has moved away.
        let options = options.create_if_missing(false);
        writer.set_connect_options(options.clone());
        let file = Some((path.into(), identity));
        Ok(SqliteDatabase { writer, readers: pool(READERS).connect_lazy_with(options), file })
    }

    /// Returns the names of the tables and views in an existing file, and changes nothing in the file: a file of
    /// another program keeps its journal. The close of a connection that may write copies a write-ahead log into the
    /// file.
    pub async fn read_tables(path: &Path, timeout: Duration) -> Result<Vec<String>, sqlx::Error> {
        let options = SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(timeout);
        let mut connection = shared_options(options, false).connect().await?;
        let rows = connection.fetch_all(SELECT_TABLES).await;
        connection.close().await?;
        Ok(rows?.iter().filter_map(|row| row.try_get(0).ok()).collect())
    }

    /// Makes an empty database in memory, which lives as long as its one connection.
    pub async fn open_memory(timeout: Duration, logging: bool) -> Result<Self, sqlx::Error> {
        let options = shared_options(SqliteConnectOptions::new().in_memory(true), logging);
        let pool = SqlitePoolOptions::new().max_connections(1).min_connections(1).acquire_timeout(timeout);
        let pool = pool.idle_timeout(None).max_lifetime(None).test_before_acquire(false).connect_with(options).await?;
        Ok(SqliteDatabase { readers: pool.clone(), writer: pool, file: None })
    }

    pub async fn begin_read(&self) -> Result<SqliteTransaction, SqlError> {
        // The file can be replaced before the connection is opened, and while it is.
        self.check_file()?;
        let transaction = SqliteTransaction::begin(&self.readers, "BEGIN").await?;
        self.check_file()?;
        Ok(transaction)
    }

    pub async fn begin_write(&self) -> Result<SqliteTransaction, SqlError> {
        // The lock comes first: a transaction that begins as a reader cannot write after another process has written.
        let transaction = SqliteTransaction::begin(&self.writer, "BEGIN IMMEDIATE").await?;
        match self.check_file() {
            Ok(()) => Ok(transaction),
            Err(error) => {
                transaction.give_up().await;
                Err(error)
            }
        }
    }

    /// Compares the file with that of the start. A connection that was opened later would have another one.
    fn check_file(&self) -> Result<(), SqlError> {
        let Some((path, expected)) = &self.file else { return Ok(()) };
        let problem = match FileIdentity::read(path) {
            Ok(found) if found == *expected => return Ok(()),
            Ok(_) => "is another file than at the start".to_owned(),
            Err(error) => format!("cannot be found any more ({error})"),
        };
        let path = path.display();
        Err(SqlError::fatal(format!(
            "{path} {problem}: it was moved or replaced; stop the instance first, then replace"
        )))
    }

    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

fn shared_options(options: SqliteConnectOptions, logging: bool) -> SqliteConnectOptions {
    let options = options.statement_cache_capacity(STATEMENTS).pragma("cache_size", CACHE_KIB);
    if logging { options } else { options.disable_statement_logging() }
}

/// Returns whether a statement failed because the connection has a transaction already.
fn is_inside_transaction(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().contains("within a transaction"))
}

impl SqliteTransaction {
    async fn begin(pool: &SqlitePool, statement: &'static str) -> Result<Self, SqlError> {
        let mut connection = pool.acquire().await?;
        if let Err(error) = connection.execute(statement).await {
            // The last transaction of the connection was given up in its middle.
            if !is_inside_transaction(&error) {
                return Err(error.into());
            }
            connection.execute("ROLLBACK").await?;
            connection.execute(statement).await?;
        }
        Ok(SqliteTransaction(connection))
    }

    pub async fn select(&mut self, table: &Table, filter: RowFilter<'_>) -> Result<Vec<Row>, SqlError> {
        match filter {
            RowFilter::Keys(keys) | RowFilter::LockedKeys(keys) => {
                let columns = keys.first().map_or(0, Vec::len);
                let on = equal(&table.columns[..columns]);
                self.select_joined(table, keys, &on).await
            }
            RowFilter::Ranges(ranges) => {
                let [first, second, ..] = table.columns else {
                    return Err(SqlError::fatal(format!("{} has no second column", table.name)));
                };
                let (first, second) = (first.name, second.name);
                let on = format!("t.{first} = k.column1 AND t.{second} BETWEEN k.column2 AND k.column3");
                self.select_joined(table, ranges, &on).await
            }
            RowFilter::After(key, limit) => {
                let names = names(table.key());
                let after = key.map_or(String::new(), |key| format!("WHERE ({names}) > ({})", marks(key.len())));
                let sql = format!(
                    "SELECT {} FROM {} {after} ORDER BY {names} LIMIT ?",
                    self::names(table.columns),
                    table.name
                );
                let query = bind_all(sqlx::query(AssertSqlSafe(sql)), key.into_iter().flatten());
                self.fetch(query.bind(limit as i64), &kinds(table.columns)).await
            }
            RowFilter::Indexed { column, condition, from, to, after, limit } => {
                let (low, low_sql) = match after {
                    Some(entry) => (entry.clone(), format!("({column}, txid, page) > (?, ?, ?)")),
                    None => (vec![Value::Int(Some(from))], format!("{column} >= ?")),
                };
                let sql = format!(
                    "SELECT {column}, txid, page FROM {} WHERE {low_sql} AND {column} <= ? AND {column} IS NOT NULL \
                     {condition} ORDER BY {column}, txid, page LIMIT ?",
                    table.name
                );
                let query = bind_all(sqlx::query(AssertSqlSafe(sql)), &low).bind(to);
                self.fetch(query.bind(limit as i64), &INDEXED_KINDS).await
            }
        }
    }

    /// Selects the rows that a list of keys names. `CROSS JOIN` makes SQLite look each key of the list up.
    async fn select_joined(&mut self, table: &Table, keys: &[Row], on: &str) -> Result<Vec<Row>, SqlError> {
        let mut found = Vec::new();
        for (chunk, size) in chunks(keys) {
            let columns: Vec<String> = table.columns.iter().map(|column| format!("t.{}", column.name)).collect();
            let sql = format!(
                "SELECT {} FROM (VALUES {}) k CROSS JOIN {} t ON {on}",
                columns.join(", "),
                value_lists(chunk[0].len(), size),
                table.name
            );
            let query = bind_all(sqlx::query(AssertSqlSafe(sql)), chunk.iter().flatten());
            found.extend(self.fetch(query, &kinds(table.columns)).await?);
        }
        Ok(found)
    }

    async fn fetch(&mut self, query: Query<'_, Sqlite, SqliteArguments>, kinds: &[Kind]) -> Result<Vec<Row>, SqlError> {
        let rows = query.fetch_all(&mut *self.0).await?;
        rows.iter().map(|row| read_row(row, kinds).map_err(SqlError::from)).collect()
    }

    /// Runs a statement, once for each part of its list, and returns the rows.
    #[cfg(feature = "vault")]
    pub async fn fetch_all(&mut self, statement: &Statement<'_>, kinds: &[Kind]) -> Result<Vec<Row>, SqlError> {
        let mut found = Vec::new();
        for (text, part) in texts(statement) {
            let query = bind_all(sqlx::query(AssertSqlSafe(text)), statement.values.iter().chain(part));
            found.extend(self.fetch(query, kinds).await?);
        }
        Ok(found)
    }

    /// Runs a statement, once for each part of its list, and returns the number of rows that were changed.
    #[cfg(feature = "vault")]
    pub async fn execute(&mut self, statement: &Statement<'_>) -> Result<u64, SqlError> {
        let mut changed = 0;
        for (text, part) in texts(statement) {
            let query = bind_all(sqlx::query(AssertSqlSafe(text)), statement.values.iter().chain(part));
            changed += query.execute(&mut *self.0).await?.rows_affected();
        }
        Ok(changed)
    }

    pub async fn write(&mut self, changes: &Changes) -> Result<(), SqlError> {
        for (table, changes) in TABLES.iter().zip(&changes.0) {
            self.delete(table, &changes.deleted).await?;
            self.put(table, &changes.inserted, "").await?;
            let set: Vec<String> =
                table.data().iter().map(|column| format!("{0} = excluded.{0}", column.name)).collect();
            let update = format!("ON CONFLICT ({}) DO UPDATE SET {}", names(table.key()), set.join(", "));
            self.put(table, &changes.updated, &update).await?;
        }
        Ok(())
    }

    async fn put(&mut self, table: &Table, rows: &[Row], on_conflict: &str) -> Result<(), SqlError> {
        for (chunk, size) in chunks(rows) {
            let sql = format!(
                "INSERT INTO {} ({}) SELECT * FROM (VALUES {}) WHERE column1 IS NOT NULL {on_conflict}",
                table.name,
                names(table.columns),
                value_lists(table.columns.len(), size),
            );
            bind_all(sqlx::query(AssertSqlSafe(sql)), chunk.iter().flatten()).execute(&mut *self.0).await?;
        }
        Ok(())
    }

    async fn delete(&mut self, table: &Table, keys: &[Row]) -> Result<(), SqlError> {
        for (chunk, size) in chunks(keys) {
            // A list of pairs alone would scan the table: the first column is looked up, then the pairs are compared.
            let sql = format!(
                "DELETE FROM {} WHERE {} IN (VALUES {}) AND ({}) IN (VALUES {})",
                table.name,
                table.columns[0].name,
                value_lists(1, size),
                names(table.key()),
                value_lists(table.key_columns, size)
            );
            let padding = vec![NULL; size - chunk.len()];
            let firsts = chunk.iter().map(|key| &key[0]).chain(&padding);
            let query = bind_all(sqlx::query(AssertSqlSafe(sql)), firsts.chain(chunk.iter().flatten()));
            query.execute(&mut *self.0).await?;
        }
        Ok(())
    }

    pub async fn commit(mut self) -> Result<(), SqlError> {
        let committed = self.0.execute("COMMIT").await;
        match committed {
            Ok(_) => Ok(()),
            Err(error) => {
                self.give_up().await;
                Err(SqlError::of_commit(&error))
            }
        }
    }

    /// Takes the transaction back, so that its lock is free for other processes.
    pub async fn give_up(mut self) {
        // An error means that SQLite has taken the transaction back already.
        let _ = self.0.execute("ROLLBACK").await;
    }
}

/// Cuts a list into parts, each with the size of its statement.
fn chunks<T>(mut list: &[T]) -> impl Iterator<Item = (&[T], usize)> {
    std::iter::from_fn(move || {
        let size = SIZES.into_iter().find(|size| *size >= list.len()).unwrap_or(SIZES[SIZES.len() - 1]);
        let (chunk, rest) = list.split_at(size.min(list.len()));
        list = rest;
        (!chunk.is_empty()).then_some((chunk, size))
    })
}

#[cfg(feature = "vault")]
/// Returns the texts of a statement, each with the values of its part of the list.
fn texts<'a>(statement: &'a Statement<'_>) -> Vec<(String, Vec<&'a Value>)> {
    let Some((kinds, rows)) = statement.rows else { return vec![(statement.text(&DIALECT, ""), Vec::new())] };
    let part = |(rows, size): (&'a [Row], usize)| {
        let number = |place: usize| statement.values.len() + 1 + place;
        let list = |row: usize| {
            let marks = (row * kinds.len()..(row + 1) * kinds.len()).map(|place| format!("?{}", number(place)));
            format!("({})", marks.collect::<Vec<_>>().join(", "))
        };
        let table = format!("(VALUES {}) k", (0..size).map(list).collect::<Vec<_>>().join(", "));
        (statement.text(&DIALECT, &table), rows.iter().flatten().collect())
    };
    chunks(rows).map(part).collect()
}

fn marks(columns: usize) -> String {
    vec!["?"; columns].join(", ")
}

fn value_lists(columns: usize, rows: usize) -> String {
    vec![format!("({})", marks(columns)); rows].join(", ")
}

fn names(columns: &[Column]) -> String {
    columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

fn kinds(columns: &[Column]) -> Vec<Kind> {
    columns.iter().map(|column| column.kind).collect()
}

fn equal(columns: &[Column]) -> String {
    let equal = |(column, number): (&Column, u32)| format!("t.{} = k.column{number}", column.name);
    columns.iter().zip(1..).map(equal).collect::<Vec<_>>().join(" AND ")
}

fn bind_all<'q, 'v>(
    query: Query<'q, Sqlite, SqliteArguments>,
    values: impl IntoIterator<Item = &'v Value>,
) -> Query<'q, Sqlite, SqliteArguments> {
    values.into_iter().fold(query, |query, value| match value {
        Value::Bytes(bytes) => query.bind(bytes.as_ref().map(|bytes| Arc::<[u8]>::from(&bytes[..]))),
        Value::Int(number) => query.bind(*number),
        Value::Bool(value) => query.bind(*value),
        Value::Text(text) => query.bind(text.as_deref().map(Arc::<str>::from)),
    })
}

fn read_row(row: &SqliteRow, kinds: &[Kind]) -> Result<Row, sqlx::Error> {
    let value = |(place, kind): (usize, &Kind)| {
        Ok(match kind {
            Kind::Bytes => Value::Bytes(row.try_get::<Option<&[u8]>, _>(place)?.map(Bytes::copy_from_slice)),
            Kind::Int => Value::Int(row.try_get(place)?),
            Kind::Bool => Value::Bool(row.try_get(place)?),
            Kind::Text => Value::Text(row.try_get(place)?),
        })
    };
    kinds.iter().enumerate().map(value).collect()
}
