//! PostgreSQL: the pool, the session and the statements.
//!
//! A list of rows is one array for each column (`unnest`), so that a statement is the same for every number of rows.

use std::{
    panic::resume_unwind,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use bytes::Bytes;
use sqlx::{
    AssertSqlSafe, ConnectOptions, PgPool, Postgres, Row as _, SqlSafeStr, Transaction,
    postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow, PgSslMode},
    query::Query,
};
use tokio::task::JoinError;

#[cfg(feature = "vault")]
use super::statement::{Dialect, Statement};
use super::{
    database::RowFilter,
    errors::SqlError,
    schema::Schema,
    settings::{PostgresServer, SqlAccess},
    tables::{Changes, Column, Kind, Row, TABLES, Table, Value},
};
use crate::engine::ErrorKind;

/// Rows of one statement, and bytes of their values, at most. The server takes one gibibyte a message.
const STATEMENT_ROWS: usize = 4_096;
const STATEMENT_BYTES: usize = 64 << 20;
/// Transactions that write at the same time. More only wait for the server's log.
const WRITERS: u32 = 8;
/// Age from which a surplus connection is closed, and time after which an unused connection is closed.
const SURPLUS_AGE: Duration = Duration::from_secs(60);
/// Columns of an index query: the value, and the key of `transactions`.
const INDEXED_KINDS: [Kind; 3] = [Kind::Int, Kind::Bytes, Kind::Int];
/// Settings of a session of PostgreSQL. Plans are made once and use the indexes: the plan of an empty table would scan
/// the table when it is full.
pub const SESSION: [(&str, &str); 6] = [
    ("synchronous_commit", "on"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
];

/// An open database of PostgreSQL.
#[derive(Clone)]
pub(super) struct PostgresDatabase {
    pool: Arc<PgPool>,
    writers: u32,
    identity: Identity,
    select_identity: Arc<str>,
    kind: &'static str,
}

/// Identity of a database and of its server: an emptied database, a standby and a restored backup have another one.
/// Every transaction compares the identity with that of the start: the absence of a record on another server is no
/// answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    /// Id of the database from its table `store`.
    database_id: Vec<u8>,
    /// Id of the server's files, the timeline, which a promotion begins, and the table, which a restore creates.
    server: String,
}

impl From<(Vec<u8>, String)> for Identity {
    fn from((database_id, server): (Vec<u8>, String)) -> Self {
        Identity { database_id, server }
    }
}

#[cfg(feature = "vault")]
/// Texts of PostgreSQL for the places of a statement.
const DIALECT: Dialect = Dialect {
    parameter: '$',
    now: "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    lock: "FOR UPDATE OF t",
    skip: "FOR UPDATE OF t SKIP LOCKED",
    share: "FOR SHARE OF t",
};

/// Returns the statement that reads the columns of an [`Identity`].
fn select_identity(schema: &Schema) -> String {
    format!(
        "SELECT database_id, (SELECT system_identifier FROM pg_control_system())::text || '/' || \
         CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END || '/' \
         || '{head}'::regclass::oid::text AS server FROM {head}",
        head = schema.head
    )
}

pub(super) struct PostgresTransaction(Transaction<'static, Postgres>);

/// Opens the pool of a server. A connection above `max_idle` idle ones is closed when it is given back, once it is
/// [`SURPLUS_AGE`] old. Connections that come and go with each request would cost more than the requests.
pub(super) async fn open_pool(
    server: &PostgresServer,
    access: &SqlAccess,
    logging: bool,
) -> Result<Arc<PgPool>, sqlx::Error> {
    // The hook must not keep the pool alive.
    let own_pool = Arc::new(OnceLock::<Weak<PgPool>>::new());
    let hook = own_pool.clone();
    let (max_open, max_idle) = (server.max_open.unwrap_or(access.max_open), server.max_idle.unwrap_or(access.max_idle));
    let milliseconds = access.timeout.as_millis().to_string();
    let mut options = PgConnectOptions::new_without_pgpass()
        .port(server.port)
        .database(&server.database)
        .application_name("utxo-store")
        .statement_cache_capacity(256)
        .options(SESSION)
        .options([("statement_timeout", &*milliseconds), ("idle_in_transaction_session_timeout", &*milliseconds)])
        .ssl_mode(match server.ssl_mode.as_deref() {
            Some("disable") => PgSslMode::Disable,
            Some("require") => PgSslMode::Require,
            Some("verify-ca") => PgSslMode::VerifyCa,
            Some("verify-full") => PgSslMode::VerifyFull,
            _ => PgSslMode::Prefer,
        });
    options = match server.host.starts_with('/') {
        true => options.socket(&server.host),
        false => options.host(server.host.trim_start_matches('[').trim_end_matches(']')),
    };
    if let Some(path) = &server.ssl_root_cert {
        options = options.ssl_root_cert(path);
    }
    if let Some(user) = &server.user {
        options = options.username(user);
    }
    if let Some(password) = server.password.as_ref().or(access.password.as_ref()) {
        options = options.password(password);
    }
    if !logging {
        options = options.disable_statement_logging();
    }
    let pool = PgPoolOptions::new()
        .max_connections(max_open)
        .acquire_timeout(access.timeout)
        // A connection that the server has ended fails with an error that may be retried.
        .test_before_acquire(false)
        // The pool itself has no limit of idle connections.
        .idle_timeout(SURPLUS_AGE)
        .after_release(move |_, connection| {
            let idle = hook.get().and_then(Weak::upgrade).map_or(0, |pool| pool.num_idle());
            Box::pin(async move { Ok(idle < max_idle as usize || connection.age < SURPLUS_AGE) })
        })
        .connect_with(options)
        .await?;
    let pool = Arc::new(pool);
    own_pool.get_or_init(|| Arc::downgrade(&pool));
    Ok(pool)
}

impl PostgresDatabase {
    /// Takes the database that answers now for that of the opener.
    pub async fn of(pool: Arc<PgPool>, schema: &Schema) -> Result<Self, sqlx::Error> {
        let select: Arc<str> = select_identity(schema).into();
        let query = sqlx::query_as::<_, (Vec<u8>, String)>(AssertSqlSafe(select.clone()));
        let identity = query.fetch_one(&*pool).await?.into();
        let writers = WRITERS.min(pool.options().get_max_connections().div_ceil(2)).max(1);
        Ok(PostgresDatabase { pool, writers, identity, select_identity: select, kind: schema.kind })
    }

    pub fn writers(&self) -> usize {
        self.writers as usize
    }

    pub async fn begin_read(&self) -> Result<PostgresTransaction, SqlError> {
        self.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await
    }

    /// Begins a transaction in which each statement sees the last commits: rows that a lock waited for are read as the
    /// other writer left them.
    pub async fn begin_write(&self) -> Result<PostgresTransaction, SqlError> {
        self.begin("BEGIN ISOLATION LEVEL READ COMMITTED").await
    }

    async fn begin(&self, statement: &'static str) -> Result<PostgresTransaction, SqlError> {
        // A caller that is dropped while it waits for a connection leaves the queue of the pool.
        let connection = self.pool.acquire().await?;
        // The task waits for the answer, also after its caller is dropped. sqlx then rolls the transaction back. Of a
        // transaction that is dropped before the answer sqlx knows nothing: the next transaction on the connection
        // would run inside the first one, read-only after a read (decision 0295).
        let begun = tokio::spawn(Transaction::begin(connection, Some(statement.into_sql_str()))).await;
        match begun.map_err(JoinError::try_into_panic) {
            Ok(transaction) => self.check(PostgresTransaction(transaction?)).await,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime shuts down; the store has no fault.
            Err(Err(_)) => Err(SqlError {
                kind: ErrorKind::Retryable,
                message: "the process stops".to_owned(),
                is_lost_race: false,
            }),
        }
    }

    async fn check(&self, mut transaction: PostgresTransaction) -> Result<PostgresTransaction, SqlError> {
        let query = sqlx::query_as::<_, (Vec<u8>, String)>(AssertSqlSafe(self.select_identity.clone()));
        let found = query.fetch_optional(&mut *transaction.0).await?;
        match found.map(Identity::from) {
            Some(found) if found == self.identity => Ok(transaction),
            Some(found) if found.database_id == self.identity.database_id => Err(SqlError::fatal(
                "another server answers than at the start, or the database was restored: acknowledged writes may be \
                 missing; start again, and the start compares the database with the log",
            )),
            _ => Err(SqlError::fatal(format!(
                "the server has another database than at the start: it was emptied, restored, or another server took \
                 its place; stop, and rebuild the {}",
                self.kind
            ))),
        }
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl PostgresTransaction {
    pub async fn select(&mut self, table: &Table, filter: RowFilter<'_>) -> Result<Vec<Row>, SqlError> {
        match filter {
            RowFilter::Keys(keys) => self.select_joined(table, keys, "").await,
            RowFilter::LockedKeys(keys) => {
                // In the order of the keys, so that two writers do not wait for each other.
                let order = format!(" ORDER BY {} FOR UPDATE OF t", list(table.key(), "t."));
                self.select_joined(table, keys, &order).await
            }
            RowFilter::Ranges(ranges) => {
                let [first, second, ..] = table.columns else {
                    return Err(SqlError::fatal(format!("{} has no second column", table.name)));
                };
                let key = Column { name: "low", kind: Kind::Int };
                let columns = [*first, key, Column { name: "high", kind: Kind::Int }];
                let sql = format!(
                    "SELECT {} FROM {} JOIN {} t ON t.{first} = k.{first} AND t.{second} BETWEEN k.low AND k.high",
                    list(table.columns, "t."),
                    unnest(&columns),
                    table.name,
                    first = first.name,
                    second = second.name,
                );
                let mut found = Vec::new();
                for chunk in chunks(ranges) {
                    let query = bind_arrays(sqlx::query(AssertSqlSafe(sql.clone())), &columns, chunk);
                    found.extend(self.fetch(query, &kinds(table.columns)).await?);
                }
                Ok(found)
            }
            RowFilter::After(key, limit) => {
                let names = list(table.key(), "");
                let after = key.map_or(String::new(), |key| format!("WHERE ({names}) > ({})", marks(2, key.len())));
                let sql =
                    format!("SELECT {} FROM {} {after} ORDER BY {names} LIMIT $1", list(table.columns, ""), table.name);
                let query = sqlx::query(AssertSqlSafe(sql)).bind(limit as i64);
                self.fetch(bind_all(query, key.into_iter().flatten()), &kinds(table.columns)).await
            }
            RowFilter::Indexed { column, condition, from, to, after, limit } => {
                let (low, low_sql) = match after {
                    Some(entry) => (entry.clone(), format!("({column}, txid, page) > ($3, $4, $5)")),
                    None => (vec![Value::Int(Some(from))], format!("{column} >= $3")),
                };
                let sql = format!(
                    "SELECT {column}, txid, page FROM {} WHERE {low_sql} AND {column} <= $1 AND {column} IS NOT NULL \
                     {condition} ORDER BY {column}, txid, page LIMIT $2",
                    table.name
                );
                let query = sqlx::query(AssertSqlSafe(sql)).bind(to).bind(limit as i64);
                self.fetch(bind_all(query, &low), &INDEXED_KINDS).await
            }
        }
    }

    async fn select_joined(&mut self, table: &Table, keys: &[Row], end: &str) -> Result<Vec<Row>, SqlError> {
        let columns = &table.columns[..keys.first().map_or(0, Vec::len)];
        let sql = format!(
            "SELECT {} FROM {} JOIN {} t ON {}{end}",
            list(table.columns, "t."),
            unnest(columns),
            table.name,
            equal(columns)
        );
        let mut found = Vec::new();
        for chunk in chunks(keys) {
            let query = bind_arrays(sqlx::query(AssertSqlSafe(sql.clone())), columns, chunk);
            found.extend(self.fetch(query, &kinds(table.columns)).await?);
        }
        Ok(found)
    }

    async fn fetch(&mut self, query: Query<'_, Postgres, PgArguments>, kinds: &[Kind]) -> Result<Vec<Row>, SqlError> {
        let rows = query.fetch_all(&mut *self.0).await?;
        rows.iter().map(|row| read_row(row, kinds).map_err(SqlError::from)).collect()
    }

    /// Runs a statement, once for each part of its list, and returns the rows.
    #[cfg(feature = "vault")]
    pub async fn fetch_all(&mut self, statement: &Statement<'_>, kinds: &[Kind]) -> Result<Vec<Row>, SqlError> {
        let text: Arc<str> = text_of_statement(statement).into();
        let query = || bind_all(sqlx::query(AssertSqlSafe(text.clone())), statement.values);
        let Some((row_kinds, rows)) = statement.rows else { return self.fetch(query(), kinds).await };
        let mut found = Vec::new();
        for part in chunks(rows) {
            found.extend(self.fetch(bind_columns(query(), row_kinds, part), kinds).await?);
        }
        Ok(found)
    }

    /// Runs a statement, once for each part of its list, and returns the number of rows that were changed.
    #[cfg(feature = "vault")]
    pub async fn execute_statement(&mut self, statement: &Statement<'_>) -> Result<u64, SqlError> {
        let text: Arc<str> = text_of_statement(statement).into();
        let query = || bind_all(sqlx::query(AssertSqlSafe(text.clone())), statement.values);
        let Some((row_kinds, rows)) = statement.rows else {
            return Ok(query().execute(&mut *self.0).await?.rows_affected());
        };
        let mut changed = 0;
        for part in chunks(rows) {
            changed += bind_columns(query(), row_kinds, part).execute(&mut *self.0).await?.rows_affected();
        }
        Ok(changed)
    }

    pub async fn write(&mut self, changes: &Changes) -> Result<(), SqlError> {
        for (table, changes) in TABLES.iter().zip(&changes.0) {
            let (name, equal) = (table.name, equal(table.key()));
            let delete = format!("DELETE FROM {name} t USING {} WHERE {equal}", unnest(table.key()));
            self.execute(delete, table.key(), &changes.deleted).await?;
            let names = list(table.columns, "");
            let insert = format!("INSERT INTO {name} ({names}) SELECT * FROM {}", unnest(table.columns));
            self.execute(insert, table.columns, &changes.inserted).await?;
            let set: Vec<String> = table.data().iter().map(|column| format!("{0} = k.{0}", column.name)).collect();
            let update = format!("UPDATE {name} t SET {} FROM {} WHERE {equal}", set.join(", "), unnest(table.columns));
            self.execute(update, table.columns, &changes.updated).await?;
        }
        Ok(())
    }

    async fn execute(&mut self, sql: String, columns: &[Column], rows: &[Row]) -> Result<(), SqlError> {
        for chunk in chunks(rows) {
            let query = bind_arrays(sqlx::query(AssertSqlSafe(sql.clone())), columns, chunk);
            query.execute(&mut *self.0).await?;
        }
        Ok(())
    }

    pub async fn commit(self) -> Result<(), SqlError> {
        self.0.commit().await.map_err(|error| SqlError::of_commit(&error))
    }
}

/// Cuts a list of rows into parts for one statement each.
fn chunks(mut rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |row: &&Row| {
            let is_first = bytes == 0;
            bytes += row.iter().map(size).sum::<usize>();
            is_first || bytes <= STATEMENT_BYTES
        };
        let count = rows.iter().take(STATEMENT_ROWS).take_while(fits).count();
        let (chunk, rest) = rows.split_at(count);
        rows = rest;
        (!chunk.is_empty()).then_some(chunk)
    })
}

fn size(value: &Value) -> usize {
    match value {
        Value::Bytes(bytes) => 4 + bytes.as_ref().map_or(0, Bytes::len),
        Value::Int(_) => 12,
        Value::Bool(_) => 5,
        Value::Text(text) => 4 + text.as_ref().map_or(0, String::len),
    }
}

fn list(columns: &[Column], prefix: &str) -> String {
    columns.iter().map(|column| format!("{prefix}{}", column.name)).collect::<Vec<_>>().join(", ")
}

fn kinds(columns: &[Column]) -> Vec<Kind> {
    columns.iter().map(|column| column.kind).collect()
}

fn marks(first: usize, count: usize) -> String {
    (first..first + count).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

fn equal(columns: &[Column]) -> String {
    columns.iter().map(|column| format!("t.{0} = k.{0}", column.name)).collect::<Vec<_>>().join(" AND ")
}

/// Returns the list of rows as a table `k` with the names of the columns.
fn unnest(columns: &[Column]) -> String {
    format!("unnest({}) AS k({})", arrays(1, &kinds(columns)), list(columns, ""))
}

/// Returns one array for each column; the first is the parameter with number `first`.
fn arrays(first: usize, kinds: &[Kind]) -> String {
    let array = |(number, kind): (usize, &Kind)| {
        let kind = match kind {
            Kind::Bytes => "bytea",
            Kind::Int => "bigint",
            Kind::Bool => "boolean",
            Kind::Text => "text",
        };
        format!("${number}::{kind}[]")
    };
    (first..).zip(kinds).map(array).collect::<Vec<_>>().join(", ")
}

#[cfg(feature = "vault")]
fn text_of_statement(statement: &Statement<'_>) -> String {
    let table = statement.rows.map_or(String::new(), |(kinds, _)| {
        let names: Vec<String> = (1..=kinds.len()).map(|number| format!("column{number}")).collect();
        format!("unnest({}) AS k({})", arrays(statement.values.len() + 1, kinds), names.join(", "))
    });
    statement.text(&DIALECT, &table)
}

fn bind_arrays<'q>(
    query: Query<'q, Postgres, PgArguments>,
    columns: &[Column],
    rows: &[Row],
) -> Query<'q, Postgres, PgArguments> {
    bind_columns(query, &kinds(columns), rows)
}

fn bind_columns<'q>(
    query: Query<'q, Postgres, PgArguments>,
    kinds: &[Kind],
    rows: &[Row],
) -> Query<'q, Postgres, PgArguments> {
    kinds.iter().enumerate().fold(query, |query, (place, kind)| match kind {
        Kind::Bytes => query.bind(rows.iter().map(|row| bytes_of(&row[place])).collect::<Vec<_>>()),
        Kind::Int => query.bind(rows.iter().map(|row| int_of(&row[place])).collect::<Vec<_>>()),
        Kind::Bool => query.bind(rows.iter().map(|row| row[place] == Value::Bool(true)).collect::<Vec<_>>()),
        Kind::Text => query.bind(rows.iter().map(|row| text_of(&row[place])).collect::<Vec<_>>()),
    })
}

fn bytes_of(value: &Value) -> Option<&[u8]> {
    if let Value::Bytes(bytes) = value { bytes.as_deref() } else { None }
}

fn text_of(value: &Value) -> Option<&str> {
    if let Value::Text(text) = value { text.as_deref() } else { None }
}

fn int_of(value: &Value) -> Option<i64> {
    if let Value::Int(number) = value { *number } else { None }
}

fn bind_all<'q, 'v>(
    query: Query<'q, Postgres, PgArguments>,
    values: impl IntoIterator<Item = &'v Value>,
) -> Query<'q, Postgres, PgArguments> {
    values.into_iter().fold(query, |query, value| match value {
        Value::Bytes(bytes) => query.bind(bytes.as_deref()),
        Value::Int(number) => query.bind(*number),
        Value::Bool(value) => query.bind(*value),
        Value::Text(text) => query.bind(text.as_deref()),
    })
}

fn read_row(row: &PgRow, kinds: &[Kind]) -> Result<Row, sqlx::Error> {
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
