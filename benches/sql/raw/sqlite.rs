//! SQLite: lists of rows as `VALUES`, 256 a statement.

use sqlx::{
    AssertSqlSafe, Column, ConnectOptions, Connection, Executor, Row as _, SqliteConnection, TypeInfo,
    query::Query,
    sqlite::{SqliteArguments, SqliteColumn, SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous},
};
use tokio::sync::Mutex;
use utxo_store::tx::Txid;

use super::{Row, Template, Value, assignments, ids, keys, names, output_ranges};
use crate::transactions::Prepared;

/// Rows of one statement.
const ROWS: usize = 256;
/// Condition that a row of `transactions` has the key.
const SAME_PAGE: &str = "t.txid = k.column1 AND t.page = k.column2";

pub struct Database {
    connection: Mutex<SqliteConnection>,
    template: Template,
}

impl Database {
    pub async fn open(path: &str, parent: Txid) -> Self {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .pragma("wal_autocheckpoint", "16384")
            .pragma("cache_size", "-65536")
            .disable_statement_logging();
        let mut connection = SqliteConnection::connect_with(&options).await.expect("the engine has made the file");
        let txid = parent.0.to_vec();
        let transaction = sqlx::query("SELECT * FROM transactions WHERE txid = ?").bind(txid.clone());
        let transaction = transaction.fetch_one(&mut connection).await.expect("a parent");
        let outputs = sqlx::query("SELECT * FROM outputs WHERE txid = ? ORDER BY vout").bind(txid);
        let outputs = outputs.fetch_all(&mut connection).await.expect("its outputs");
        let template = Template {
            columns: [names(&transaction), names(&outputs[0])],
            transaction: values(&transaction),
            outputs: outputs.iter().map(values).collect(),
        };
        Database { connection: Mutex::new(connection), template }
    }

    /// Runs spends and creates in one transaction of the database.
    pub async fn run(&self, batch: &[Prepared]) {
        let mut connection = self.connection.lock().await;
        let connection = &mut *connection;
        connection.execute("BEGIN IMMEDIATE").await.expect("no other writer");
        for batch in batch.chunks(ROWS) {
            self.spend(connection, batch).await;
            self.create(connection, batch).await;
        }
        connection.execute("COMMIT").await.expect("committed");
    }

    async fn spend(&self, connection: &mut SqliteConnection, batch: &[Prepared]) {
        let parents: Vec<(Txid, Txid)> = batch.iter().map(|prepared| (prepared.parent, prepared.txid)).collect();
        let keys = keys(parents.iter().map(|(parent, _)| *parent));
        assert_eq!(select(connection, "transactions", SAME_PAGE, &keys).await, batch.len());
        let on = "t.txid = k.column1 AND t.vout BETWEEN k.column2 AND k.column3";
        assert_eq!(select(connection, "outputs", on, &output_ranges(&keys)).await, 2 * batch.len());
        assert_eq!(select(connection, "mined_in", "t.txid = k.column1", &ids(&keys)).await, 0);
        let rows: Vec<Row> = parents.iter().map(|(parent, spender)| self.template.spent(*parent, *spender)).collect();
        let columns = &self.template.columns[1];
        let set = assignments(&columns[2..], "excluded");
        put(connection, "outputs", columns, &rows, &format!("ON CONFLICT (txid, vout) DO UPDATE SET {set}")).await;
    }

    async fn create(&self, connection: &mut SqliteConnection, batch: &[Prepared]) {
        let txids: Vec<Txid> = batch.iter().map(|prepared| prepared.txid).collect();
        let keys = keys(txids.iter().copied());
        assert_eq!(select(connection, "transactions", SAME_PAGE, &keys).await, 0);
        let Template { columns: [transactions, outputs], .. } = &self.template;
        let rows: Vec<Row> = txids.iter().map(|txid| self.template.transaction(*txid)).collect();
        put(connection, "transactions", transactions, &rows, "").await;
        let rows: Vec<Row> = txids.iter().flat_map(|txid| self.template.outputs(*txid)).collect();
        put(connection, "outputs", outputs, &rows, "").await;
    }

    pub async fn close(self) {
        self.connection.into_inner().close().await.expect("no statement is left");
    }
}

async fn select(connection: &mut SqliteConnection, table: &str, on: &str, rows: &[Row]) -> usize {
    let lists = lists(rows[0].len(), rows.len());
    let sql = format!("SELECT t.* FROM (VALUES {lists}) k CROSS JOIN {table} t ON {on}");
    let found = bind(sqlx::query(AssertSqlSafe(sql)), rows).fetch_all(connection).await.expect("read");
    // A program reads what it asks for.
    found.iter().for_each(|row| drop(std::hint::black_box(values(row))));
    found.len()
}

async fn put(connection: &mut SqliteConnection, table: &str, columns: &[String], rows: &[Row], on_conflict: &str) {
    for rows in rows.chunks(ROWS) {
        let (names, lists) = (columns.join(", "), lists(columns.len(), rows.len()));
        let sql = format!(
            "INSERT INTO {table} ({names}) SELECT * FROM (VALUES {lists}) WHERE column1 IS NOT NULL {on_conflict}"
        );
        bind(sqlx::query(AssertSqlSafe(sql)), rows).execute(&mut *connection).await.expect("written");
    }
}

fn lists(columns: usize, rows: usize) -> String {
    vec![format!("({})", vec!["?"; columns].join(", ")); rows].join(", ")
}

fn bind<'q>(query: Query<'q, sqlx::Sqlite, SqliteArguments>, rows: &[Row]) -> Query<'q, sqlx::Sqlite, SqliteArguments> {
    rows.iter().flatten().fold(query, |query, value| match value {
        Value::Bytes(bytes) => query.bind(bytes.clone()),
        Value::Int(number) => query.bind(*number),
        Value::Bool(value) => query.bind(*value),
    })
}

fn values(row: &SqliteRow) -> Row {
    let value = |(at, column): (usize, &SqliteColumn)| match column.type_info().name() {
        "BLOB" => Value::Bytes(row.get(at)),
        "INTEGER" => Value::Int(row.get(at)),
        _ => Value::Bool(row.get(at)),
    };
    row.columns().iter().enumerate().map(value).collect()
}
