//! PostgreSQL: lists of rows as one array for each column.

use sqlx::{
    AssertSqlSafe, Column, ConnectOptions, PgConnection, PgPool, Row as _, TypeInfo,
    postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow},
    query::Query,
};
use utxo_store::{engine::sql::POSTGRES_SESSION, tx::Txid};

use super::{Row, Template, Value, assignments, ids, keys, names, output_ranges};
use crate::transactions::Prepared;

/// Reads and locks first pages by their keys.
const LOCKED: &str = "SELECT t.* FROM unnest($1::bytea[], $2::bigint[]) AS k(txid, page) JOIN transactions t \
                      ON t.txid = k.txid AND t.page = k.page ORDER BY t.txid, t.page FOR UPDATE OF t";

pub struct Database {
    pool: PgPool,
    template: Template,
}

impl Database {
    pub async fn open(url: &str, connections: u32, parent: Txid) -> Self {
        // The URL has no host, which the parser of `sqlx` refuses.
        let (database, socket) = split_url(url).expect("a URL of the server of the bench");
        let options = PgConnectOptions::new_without_pgpass().socket(socket).username("utxo").database(database);
        let options = options.options(POSTGRES_SESSION).disable_statement_logging();
        let pool = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
        let pool = pool.connect_with(options).await.expect("the server runs");
        let txid = parent.0.to_vec();
        let rows = |sql: &'static str| sqlx::query(sql).bind(txid.clone()).fetch_all(&pool);
        let transaction = rows("SELECT * FROM transactions WHERE txid = $1").await.expect("a parent");
        let outputs = rows("SELECT * FROM outputs WHERE txid = $1 ORDER BY vout").await.expect("its outputs");
        let template = Template {
            columns: [names(&transaction[0]), names(&outputs[0])],
            transaction: values(&transaction[0]),
            outputs: outputs.iter().map(values).collect(),
        };
        Database { pool, template }
    }

    /// Runs a batch: one transaction of the database for the spends, and one for the creates.
    pub async fn run(&self, batch: &[Prepared]) {
        self.spend(batch).await;
        self.create(batch).await;
    }

    async fn spend(&self, batch: &[Prepared]) {
        let mut parents: Vec<(Txid, Txid)> = batch.iter().map(|prepared| (prepared.parent, prepared.txid)).collect();
        parents.sort_unstable_by_key(|(parent, _)| parent.0);
        let mut transaction = self.pool.begin().await.expect("a connection");
        let connection = &mut *transaction;
        let keys = keys(parents.iter().map(|(parent, _)| *parent));
        assert_eq!(fetch(connection, LOCKED, &keys).await, batch.len());
        let outputs = "SELECT t.* FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS k(txid, low, high) JOIN \
                       outputs t ON t.txid = k.txid AND t.vout BETWEEN k.low AND k.high";
        assert_eq!(fetch(connection, outputs, &output_ranges(&keys)).await, 2 * batch.len());
        let blocks = "SELECT t.* FROM unnest($1::bytea[]) AS k(txid) JOIN mined_in t ON t.txid = k.txid";
        assert_eq!(fetch(connection, blocks, &ids(&keys)).await, 0);
        let rows: Vec<Row> = parents.iter().map(|(parent, spender)| self.template.spent(*parent, *spender)).collect();
        let columns = &self.template.columns[1];
        let update = format!(
            "UPDATE outputs t SET {} FROM {} WHERE t.txid = k.txid AND t.vout = k.vout",
            assignments(&columns[2..], "k"),
            unnest(columns, &rows[0])
        );
        execute(connection, update, &rows).await;
        transaction.commit().await.expect("committed");
    }

    async fn create(&self, batch: &[Prepared]) {
        let txids: Vec<Txid> = batch.iter().map(|prepared| prepared.txid).collect();
        let mut transaction = self.pool.begin().await.expect("a connection");
        let connection = &mut *transaction;
        let keys = keys(txids.iter().copied());
        assert_eq!(fetch(connection, LOCKED, &keys).await, 0);
        let template = &self.template;
        let rows: [Vec<Row>; 2] = [
            txids.iter().map(|txid| template.transaction(*txid)).collect(),
            txids.iter().flat_map(|txid| template.outputs(*txid)).collect(),
        ];
        for ((table, columns), rows) in ["transactions", "outputs"].iter().zip(&template.columns).zip(&rows) {
            let names = columns.join(", ");
            let insert = format!("INSERT INTO {table} ({names}) SELECT * FROM {}", unnest(columns, &rows[0]));
            execute(connection, insert, rows).await;
        }
        transaction.commit().await.expect("committed");
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Returns the database and the folder of the socket.
fn split_url(url: &str) -> Option<(&str, &str)> {
    url.split_once("@/")?.1.split_once("?host=")
}

async fn fetch(connection: &mut PgConnection, sql: &'static str, rows: &[Row]) -> usize {
    let found = bind(sqlx::query(sql), rows).fetch_all(connection).await.expect("read");
    // A program reads what it asks for.
    found.iter().for_each(|row| drop(std::hint::black_box(values(row))));
    found.len()
}

async fn execute(connection: &mut PgConnection, sql: String, rows: &[Row]) {
    bind(sqlx::query(AssertSqlSafe(sql)), rows).execute(connection).await.expect("written");
}

fn unnest(columns: &[String], row: &Row) -> String {
    let array = |(number, value): (usize, &Value)| {
        let kind = match value {
            Value::Bytes(_) => "bytea",
            Value::Int(_) => "bigint",
            Value::Bool(_) => "boolean",
        };
        format!("${}::{kind}[]", number + 1)
    };
    let arrays: Vec<String> = row.iter().enumerate().map(array).collect();
    format!("unnest({}) AS k({})", arrays.join(", "), columns.join(", "))
}

fn bind<'q>(query: Query<'q, sqlx::Postgres, PgArguments>, rows: &[Row]) -> Query<'q, sqlx::Postgres, PgArguments> {
    (0..rows[0].len()).fold(query, |query, column| {
        let values = rows.iter().map(|row| &row[column]);
        match &rows[0][column] {
            Value::Bytes(_) => {
                let bytes = |value: &Value| if let Value::Bytes(bytes) = value { bytes.clone() } else { None };
                query.bind(values.map(bytes).collect::<Vec<_>>())
            }
            Value::Int(_) => {
                let int = |value: &Value| if let Value::Int(number) = value { *number } else { None };
                query.bind(values.map(int).collect::<Vec<_>>())
            }
            Value::Bool(_) => query.bind(values.map(|value| matches!(value, Value::Bool(true))).collect::<Vec<_>>()),
        }
    })
}

fn values(row: &PgRow) -> Row {
    let value = |(at, column): (usize, &sqlx::postgres::PgColumn)| match column.type_info().name() {
        "BYTEA" => Value::Bytes(row.get(at)),
        "INT8" => Value::Int(row.get(at)),
        _ => Value::Bool(row.get(at)),
    };
    row.columns().iter().enumerate().map(value).collect()
}
