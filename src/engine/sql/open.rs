//! Opens a database: its schema, its version, its network and its slots a page. Every refusal is one line.

use std::path::Path;

use sqlx::{AssertSqlSafe, Executor, Row as _};

use super::{
    database::Database,
    engine::SqlEngine,
    errors::describe,
    postgres::{self, PostgresDatabase},
    schema::{STORE, Schema},
    settings::{OpenSqlError, SqlAccess, SqlDatabase, SqlSettings},
    sqlite::{SELECT_TABLES, SqliteDatabase},
    writer::SqlStore,
};
use crate::{record::Rules, tx::Network};

/// Slots of a page where the opener names no number.
const DEFAULT_BATCH_SIZE: u32 = 1_000;
/// Key of the advisory lock under which one process at a time creates the tables: `utxo`.
const CREATION_LOCK: i64 = 0x7574_786F;

/// Properties that the opener of a database expects.
struct Expected<'a> {
    schema: &'static Schema,
    database: String,
    network: Network,
    access: &'a SqlAccess,
    /// Number in the row of the schema; `None`: the opener takes number and network of the database.
    number: Option<u32>,
    /// Number for an empty database.
    default_number: u32,
    /// The database must have the tables; nothing is created.
    must_exist: bool,
}

/// Version of the tables of a database.
#[derive(Debug, PartialEq, Eq)]
enum TableVersion {
    Current,
    /// The version before, which an opener that may write migrates.
    Older,
}

/// The row of the table [`Schema::head`].
struct HeadRow {
    schema_version: i64,
    network: String,
    number: i64,
}

impl HeadRow {
    fn from_columns((schema_version, network, number): (i64, String, i64)) -> Self {
        HeadRow { schema_version, network, number }
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
    let expected = Expected {
        schema: &STORE,
        database: settings.describe(),
        network: rules.network,
        access,
        number: access.utxo_batch_size,
        default_number: DEFAULT_BATCH_SIZE,
        must_exist,
    };
    let (database, row) = open_database(settings, &expected).await?;
    // The row was checked: the number is between 1 and the largest u32.
    let utxo_batch_size = u32::try_from(row.number).unwrap_or(DEFAULT_BATCH_SIZE);
    Ok(SqlEngine::start(SqlStore { database, rules, utxo_batch_size, timeout: access.timeout }))
}

/// Opens a database with the tables of a schema, or creates the tables in an empty database.
///
/// # Errors
/// The database cannot be opened, has other tables, or tables of another version or network.
#[cfg(feature = "vault")]
pub(super) async fn open_tables(
    settings: &SqlSettings,
    schema: &'static Schema,
    network: Network,
    access: &SqlAccess,
) -> Result<Database, OpenSqlError> {
    let database = settings.describe();
    let expected = Expected { schema, database, network, access, number: None, default_number: 0, must_exist: false };
    let (database, row) = open_database(settings, &expected).await?;
    match expected.check_network(&row) {
        Ok(()) => Ok(database),
        Err(error) => {
            database.close().await;
            Err(error)
        }
    }
}

async fn open_database(settings: &SqlSettings, expected: &Expected<'_>) -> Result<(Database, HeadRow), OpenSqlError> {
    let access = expected.access;
    match &settings.database {
        SqlDatabase::SqliteFile(path) => open_file(path, settings.logging, expected).await,
        SqlDatabase::SqliteMemory(_) => {
            let opened = SqliteDatabase::open_memory(access.timeout, settings.logging).await;
            let database = opened.map_err(|error| expected.failed(&error))?;
            let row = prepare_sqlite(&database, expected).await?;
            Ok((Database::Sqlite(database), row))
        }
        SqlDatabase::Postgres(server) => {
            let opened = postgres::open_pool(server, access, settings.logging).await;
            let pool = opened.map_err(|error| expected.failed(&error))?;
            let prepared = async {
                let row = prepare_postgres(&pool, expected).await?;
                let database = PostgresDatabase::of(pool.clone(), expected.schema).await;
                let database = database.map_err(|error| expected.failed(&error))?;
                Ok((Database::Postgres(database), row))
            };
            match prepared.await {
                Ok(prepared) => Ok(prepared),
                Err(error) => {
                    pool.close().await;
                    Err(error)
                }
            }
        }
    }
}

async fn open_file(path: &Path, logging: bool, expected: &Expected<'_>) -> Result<(Database, HeadRow), OpenSqlError> {
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
async fn prepare_sqlite(database: &SqliteDatabase, expected: &Expected<'_>) -> Result<HeadRow, OpenSqlError> {
    let schema = expected.schema;
    let failed = |error: sqlx::Error| expected.failed(&error);
    let mut transaction = match expected.must_exist {
        true => database.writer.begin().await.map_err(failed)?,
        false => database.writer.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?,
    };
    let tables = sqlx::query(SELECT_TABLES).fetch_all(&mut *transaction).await.map_err(failed)?;
    let tables: Vec<String> = tables.iter().filter_map(|row| row.try_get(0).ok()).collect();
    if expected.must_create(&tables)? {
        for statement in schema.sqlite.split("\n\n") {
            transaction.execute(statement).await.map_err(failed)?;
        }
        let sql = format!("{} VALUES (1, ?, randomblob(16), ?, ?)", schema.insert_head());
        let insert = sqlx::query(AssertSqlSafe(sql)).bind(schema.version);
        let insert = insert.bind(expected.network.to_string()).bind(expected.first_number());
        insert.execute(&mut *transaction).await.map_err(failed)?;
    }
    let row = sqlx::query_as(AssertSqlSafe(schema.select_head())).fetch_one(&mut *transaction).await;
    let row = HeadRow::from_columns(row.map_err(failed)?);
    if expected.check(&row)? == TableVersion::Older {
        for statement in schema.migration.iter().flat_map(|migration| migration.sqlite.split("\n\n")) {
            transaction.execute(statement).await.map_err(failed)?;
        }
    }
    if !expected.must_exist {
        // A file that cannot be written is opened all the same, and fails at the first write.
        let write = format!("UPDATE {} SET schema_version = schema_version", schema.head);
        sqlx::query(AssertSqlSafe(write)).execute(&mut *transaction).await.map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)?;
    Ok(row)
}

/// Checks the tables of a database of PostgreSQL, or creates them.
async fn prepare_postgres(pool: &sqlx::PgPool, expected: &Expected<'_>) -> Result<HeadRow, OpenSqlError> {
    let schema = expected.schema;
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
        for statement in schema.postgres.split("\n\n") {
            transaction.execute(statement).await.map_err(failed)?;
        }
        let values = "VALUES (1, $1, decode(replace(gen_random_uuid()::text, '-', ''), 'hex'), $2, $3)";
        let sql = format!("{} {values}", schema.insert_head());
        let insert = sqlx::query(AssertSqlSafe(sql)).bind(schema.version).bind(expected.network.to_string());
        insert.bind(expected.first_number()).execute(&mut *transaction).await.map_err(failed)?;
    }
    let row = sqlx::query_as(AssertSqlSafe(schema.select_head())).fetch_one(&mut *transaction).await;
    let row = HeadRow::from_columns(row.map_err(failed)?);
    if expected.check(&row)? == TableVersion::Older {
        for statement in schema.migration.iter().flat_map(|migration| migration.postgres.split("\n\n")) {
            transaction.execute(statement).await.map_err(failed)?;
        }
    }
    transaction.commit().await.map_err(failed)?;
    Ok(row)
}

impl Schema {
    fn insert_head(&self) -> String {
        format!("INSERT INTO {} (one_row, schema_version, database_id, network, {})", self.head, self.number)
    }

    /// Returns the statement that reads the columns of [`HeadRow::from_columns`].
    fn select_head(&self) -> String {
        format!("SELECT schema_version, network, {} FROM {}", self.number, self.head)
    }
}

impl Expected<'_> {
    fn first_number(&self) -> i64 {
        i64::from(self.number.unwrap_or(self.default_number))
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
        match (has(self.schema.head) && self.schema.tables.iter().all(|table| has(table)), tables.is_empty()) {
            (true, _) => Ok(false),
            (false, true) if self.must_exist => Err(OpenSqlError::Missing { database: database() }),
            (false, true) => Ok(true),
            (false, false) => Err(OpenSqlError::NotAStore { database: database() }),
        }
    }

    fn check(&self, row: &HeadRow) -> Result<TableVersion, OpenSqlError> {
        let database = || self.database.clone();
        let (found, expected) = (row.schema_version, self.schema.version);
        let tables = match expected - found {
            0 => TableVersion::Current,
            1 if self.must_exist => {
                return Err(OpenSqlError::OlderVersion { database: database(), found, expected });
            }
            1 if self.schema.migration.is_some() => TableVersion::Older,
            _ => {
                let remedy = self.schema.remedy;
                return Err(OpenSqlError::Version { database: database(), found, expected, remedy });
            }
        };
        // A reader that names no number of slots takes the network from the store, too.
        let Some(expected) = self.number else { return Ok(tables) };
        if row.number != i64::from(expected) {
            return Err(OpenSqlError::BatchSize { database: database(), found: row.number, expected });
        }
        self.check_network(row)?;
        if tables == TableVersion::Older {
            tracing::info!(database = self.database, "sql: migrating the tables to version {}", self.schema.version);
        }
        Ok(tables)
    }

    fn check_network(&self, row: &HeadRow) -> Result<(), OpenSqlError> {
        let expected = self.network.to_string();
        if row.network == expected {
            return Ok(());
        }
        Err(OpenSqlError::Network {
            database: self.database.clone(),
            kind: self.schema.kind,
            found: row.network.clone(),
            expected,
        })
    }
}
