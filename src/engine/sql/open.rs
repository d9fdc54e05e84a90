//! Opens a database: its schema, its version, its network and its slots a page. Every refusal is one line.

use std::path::Path;

use sqlx::{AssertSqlSafe, Executor, Row as _};

use super::{
    database::Database,
    engine::SqlEngine,
    errors::describe,
    postgres::{self, PostgresDatabase},
    settings::{OpenSqlError, SqlAccess, SqlDatabase, SqlSettings},
    sqlite::{SELECT_TABLES, SqliteDatabase},
    tables::TABLES,
    writer::SqlStore,
};
use crate::record::Rules;

/// Version of the tables that this program reads and writes (`schemas/sql.md`).
const SCHEMA_VERSION: i64 = 2;
/// The statements that create the tables, separated by empty lines.
const SQLITE_SCHEMA: &str = include_str!("schema/sqlite.sql");
const POSTGRES_SCHEMA: &str = include_str!("schema/postgres.sql");
/// The statements that make tables of version 2 of those of version 1.
const SQLITE_MIGRATION: &str = include_str!("schema/sqlite_2.sql");
const POSTGRES_MIGRATION: &str = include_str!("schema/postgres_2.sql");
/// Reads the columns of [`StoreRow::from_columns`].
const SELECT_STORE: &str = "SELECT schema_version, network, utxo_batch_size FROM store";
/// Slots of a page where the opener names no number.
const DEFAULT_BATCH_SIZE: u32 = 20_000;
/// Key of the advisory lock under which one process at a time creates the tables: `utxo`.
const CREATION_LOCK: i64 = 0x7574_786F;

/// Properties that the opener of a database expects.
struct Expected<'a> {
    database: String,
    rules: Rules,
    access: &'a SqlAccess,
    /// The database must have a store; nothing is created.
    must_exist: bool,
}

/// Version of the tables of a store.
#[derive(Debug, PartialEq, Eq)]
enum TableVersion {
    Current,
    /// The version before, which an opener that may write migrates.
    Older,
}

/// The one row of the table `store`.
struct StoreRow {
    schema_version: i64,
    network: String,
    utxo_batch_size: i64,
}

impl StoreRow {
    fn from_columns((schema_version, network, utxo_batch_size): (i64, String, i64)) -> Self {
        StoreRow { schema_version, network, utxo_batch_size }
    }
}

impl SqlEngine {
    /// Opens the store in a database, or creates the store in an empty database.
    ///
    /// # Errors
    /// The database cannot be opened, is no store, or is a store of another version, network or number of slots a page.
    pub async fn open(settings: &SqlSettings, rules: Rules, access: &SqlAccess) -> Result<Self, OpenSqlError> {
        open(settings, rules, access, false).await
    }

    /// Opens the store in a database, and creates nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open); and there is no store.
    pub async fn open_existing(settings: &SqlSettings, rules: Rules, access: &SqlAccess) -> Result<Self, OpenSqlError> {
        open(settings, rules, access, true).await
    }
}

async fn open(
    settings: &SqlSettings,
    rules: Rules,
    access: &SqlAccess,
    must_exist: bool,
) -> Result<SqlEngine, OpenSqlError> {
    let expected = Expected { database: settings.describe(), rules, access, must_exist };
    let (database, row) = match &settings.database {
        SqlDatabase::SqliteFile(path) => open_file(path, settings.logging, &expected).await?,
        SqlDatabase::SqliteMemory(_) => {
            let opened = SqliteDatabase::open_memory(access.timeout, settings.logging).await;
            let database = opened.map_err(|error| expected.failed(&error))?;
            let row = prepare_sqlite(&database, &expected).await?;
            (Database::Sqlite(database), row)
        }
        SqlDatabase::Postgres(server) => {
            let opened = postgres::open_pool(server, access, settings.logging).await;
            let pool = opened.map_err(|error| expected.failed(&error))?;
            let prepared = async {
                let row = prepare_postgres(&pool, &expected).await?;
                let database = PostgresDatabase::of(pool.clone()).await.map_err(|error| expected.failed(&error))?;
                Ok((Database::Postgres(database), row))
            };
            match prepared.await {
                Ok(prepared) => prepared,
                Err(error) => {
                    pool.close().await;
                    return Err(error);
                }
            }
        }
    };
    // The row was checked: the number is between 1 and the largest u32.
    let utxo_batch_size = u32::try_from(row.utxo_batch_size).unwrap_or(DEFAULT_BATCH_SIZE);
    Ok(SqlEngine::start(SqlStore { database, rules, utxo_batch_size, timeout: access.timeout }))
}

async fn open_file(path: &Path, logging: bool, expected: &Expected<'_>) -> Result<(Database, StoreRow), OpenSqlError> {
    let io_error = |error: std::io::Error| expected.failed(&sqlx::Error::Io(error));
    let exists = path.try_exists().map_err(io_error)?;
    if expected.must_exist && !exists {
        return Err(OpenSqlError::Missing { database: expected.database.clone() });
    }
    if let Some(folder) = path.parent().filter(|_| !exists) {
        std::fs::create_dir_all(folder).map_err(io_error)?;
    }
    if exists {
        let tables = SqliteDatabase::read_tables(path, expected.access.timeout).await;
        expected.must_create(&tables.map_err(|error| expected.failed(&error))?)?;
    }
    let opened = SqliteDatabase::open_file(path, !expected.must_exist, expected.access.timeout, logging).await;
    let database = opened.map_err(|error| expected.failed(&error))?;
    match prepare_sqlite(&database, expected).await {
        Ok(row) => Ok((Database::Sqlite(database), row)),
        Err(error) => {
            database.close().await;
            Err(error)
        }
    }
}

/// Checks the tables of a database of SQLite, or creates them.
async fn prepare_sqlite(database: &SqliteDatabase, expected: &Expected<'_>) -> Result<StoreRow, OpenSqlError> {
    let failed = |error: sqlx::Error| expected.failed(&error);
    let mut transaction = match expected.must_exist {
        true => database.writer.begin().await.map_err(failed)?,
        false => database.writer.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?,
    };
    let tables = sqlx::query(SELECT_TABLES).fetch_all(&mut *transaction).await.map_err(failed)?;
    let tables: Vec<String> = tables.iter().filter_map(|row| row.try_get(0).ok()).collect();
    if expected.must_create(&tables)? {
        for statement in SQLITE_SCHEMA.split("\n\n") {
            transaction.execute(statement).await.map_err(failed)?;
        }
        let insert = sqlx::query("INSERT INTO store VALUES (1, ?, randomblob(16), ?, ?)").bind(SCHEMA_VERSION);
        let insert = insert.bind(expected.rules.network.to_string()).bind(i64::from(expected.batch_size()));
        insert.execute(&mut *transaction).await.map_err(failed)?;
    }
    let row = sqlx::query_as(SELECT_STORE).fetch_one(&mut *transaction).await;
    let row = StoreRow::from_columns(row.map_err(failed)?);
    if expected.check(&row)? == TableVersion::Older {
        for statement in SQLITE_MIGRATION.split("\n\n") {
            transaction.execute(statement).await.map_err(failed)?;
        }
    }
    if !expected.must_exist {
        // A file that cannot be written is opened all the same, and fails at the first write.
        let write = sqlx::query("UPDATE store SET schema_version = schema_version").execute(&mut *transaction).await;
        write.map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)?;
    Ok(row)
}

/// Checks the tables of a database of PostgreSQL, or creates them.
async fn prepare_postgres(pool: &sqlx::PgPool, expected: &Expected<'_>) -> Result<StoreRow, OpenSqlError> {
    let failed = |error: sqlx::Error| expected.failed(&error);
    let mut transaction = pool.begin().await.map_err(failed)?;
    for setting in ["fsync", "full_page_writes"] {
        let sql = AssertSqlSafe(format!("SHOW {setting}"));
        let value = sqlx::query(sql).fetch_one(&mut *transaction).await.map_err(failed)?;
        if value.try_get::<String, _>(0).map_err(failed)? == "off" {
            return Err(OpenSqlError::NotDurable { database: expected.database.clone(), setting });
        }
    }
    if !expected.must_exist {
        let standby = sqlx::query("SELECT pg_is_in_recovery()").fetch_one(&mut *transaction).await.map_err(failed)?;
        if standby.try_get(0).map_err(failed)? {
            return Err(OpenSqlError::ReadOnly { database: expected.database.clone() });
        }
        let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(CREATION_LOCK);
        lock.execute(&mut *transaction).await.map_err(failed)?;
    }
    let tables =
        sqlx::query("SELECT table_name::text FROM information_schema.tables WHERE table_schema = current_schema()");
    let tables = tables.fetch_all(&mut *transaction).await.map_err(failed)?;
    let tables: Vec<String> = tables.iter().filter_map(|row| row.try_get(0).ok()).collect();
    if expected.must_create(&tables)? {
        for statement in POSTGRES_SCHEMA.split("\n\n") {
            transaction.execute(statement).await.map_err(failed)?;
        }
        let insert =
            "INSERT INTO store VALUES (1, $1, decode(replace(gen_random_uuid()::text, '-', ''), 'hex'), $2, $3)";
        let insert = sqlx::query(insert).bind(SCHEMA_VERSION).bind(expected.rules.network.to_string());
        insert.bind(i64::from(expected.batch_size())).execute(&mut *transaction).await.map_err(failed)?;
    }
    let row = sqlx::query_as(SELECT_STORE).fetch_one(&mut *transaction).await;
    let row = StoreRow::from_columns(row.map_err(failed)?);
    if expected.check(&row)? == TableVersion::Older {
        for statement in POSTGRES_MIGRATION.split("\n\n") {
            transaction.execute(statement).await.map_err(failed)?;
        }
    }
    transaction.commit().await.map_err(failed)?;
    Ok(row)
}

impl Expected<'_> {
    fn batch_size(&self) -> u32 {
        self.access.utxo_batch_size.unwrap_or(DEFAULT_BATCH_SIZE)
    }

    fn failed(&self, error: &sqlx::Error) -> OpenSqlError {
        let database = self.database.clone();
        let code = error.as_database_error().and_then(|error| error.code());
        match code.as_deref() {
            // SQLITE_READONLY and its extended codes; a read-only transaction of PostgreSQL.
            Some("8" | "1032" | "1288" | "520" | "264" | "25006") => OpenSqlError::ReadOnly { database },
            // SQLITE_NOTADB.
            Some("26") => OpenSqlError::NotAStore { database },
            _ => OpenSqlError::Failed { database, message: describe(error) },
        }
    }

    /// Returns whether the tables are to be created: the database is empty.
    fn must_create(&self, tables: &[String]) -> Result<bool, OpenSqlError> {
        let database = || self.database.clone();
        let has = |name: &str| tables.iter().any(|table| table == name);
        match (has("store") && TABLES.iter().all(|table| has(table.name)), tables.is_empty()) {
            (true, _) => Ok(false),
            (false, true) if self.must_exist => Err(OpenSqlError::Missing { database: database() }),
            (false, true) => Ok(true),
            (false, false) => Err(OpenSqlError::NotAStore { database: database() }),
        }
    }

    fn check(&self, row: &StoreRow) -> Result<TableVersion, OpenSqlError> {
        let database = || self.database.clone();
        let (found, expected) = (row.schema_version, SCHEMA_VERSION);
        let tables = match expected - found {
            0 => TableVersion::Current,
            1 if self.must_exist => {
                return Err(OpenSqlError::OlderVersion { database: database(), found, expected });
            }
            1 => TableVersion::Older,
            _ => return Err(OpenSqlError::Version { database: database(), found, expected }),
        };
        // A reader that names no number of slots takes the network from the store, too.
        let Some(expected) = self.access.utxo_batch_size else { return Ok(tables) };
        if row.utxo_batch_size != i64::from(expected) {
            return Err(OpenSqlError::BatchSize { database: database(), found: row.utxo_batch_size, expected });
        }
        let network = self.rules.network.to_string();
        if row.network != network {
            return Err(OpenSqlError::Network { database: database(), found: row.network.clone(), expected: network });
        }
        if tables == TableVersion::Older {
            tracing::info!(database = self.database, "sql: migrating the tables to version {SCHEMA_VERSION}");
        }
        Ok(tables)
    }
}
