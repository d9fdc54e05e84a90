//! Programs written by hand: the tables, statements, batches and durability of the engine, without records and without
//! rules. Each row has the values that the engine wrote for a parent, with other ids.

pub mod postgres;
pub mod sqlite;

use sqlx::Column;
use utxo_store::tx::Txid;

/// A value of any column.
#[derive(Clone)]
pub enum Value {
    Bytes(Option<Vec<u8>>),
    Int(Option<i64>),
    Bool(bool),
}

pub type Row = Vec<Value>;

/// Columns of `outputs`.
const SPENDER: usize = 5;
const SPENDER_INPUT: usize = 6;

/// Rows of a parent.
pub struct Template {
    /// Names of the columns of `transactions` and of `outputs`.
    pub columns: [Vec<String>; 2],
    pub transaction: Row,
    pub outputs: Vec<Row>,
}

impl Template {
    pub fn transaction(&self, txid: Txid) -> Row {
        with_id(&self.transaction, txid)
    }

    pub fn outputs(&self, txid: Txid) -> impl Iterator<Item = Row> {
        self.outputs.iter().map(move |output| with_id(output, txid))
    }

    /// Returns the first output of a parent with its spender.
    pub fn spent(&self, parent: Txid, spender: Txid) -> Row {
        let mut row = with_id(&self.outputs[0], parent);
        row[SPENDER] = id(spender);
        row[SPENDER_INPUT] = Value::Int(Some(0));
        row
    }
}

fn with_id(row: &Row, txid: Txid) -> Row {
    let mut row = row.clone();
    row[0] = id(txid);
    row
}

fn id(txid: Txid) -> Value {
    Value::Bytes(Some(txid.0.to_vec()))
}

/// Returns the keys of the first pages.
fn keys(txids: impl Iterator<Item = Txid>) -> Vec<Row> {
    txids.map(|txid| vec![id(txid), Value::Int(Some(0))]).collect()
}

/// Returns the ranges of the outputs of these pages: transaction id, first and last number.
fn output_ranges(keys: &[Row]) -> Vec<Row> {
    let last = Value::Int(Some(19_999));
    keys.iter().map(|key| key.iter().cloned().chain([last.clone()]).collect()).collect()
}

/// Returns the transaction ids of these pages.
fn ids(keys: &[Row]) -> Vec<Row> {
    keys.iter().map(|key| key[..1].to_vec()).collect()
}

/// Returns the names of the columns of a row.
fn names<R: sqlx::Row>(row: &R) -> Vec<String> {
    row.columns().iter().map(|column| column.name().to_owned()).collect()
}

/// Returns `column = k.column` for each column.
fn assignments(columns: &[String], from: &str) -> String {
    columns.iter().map(|column| format!("{column} = {from}.{column}")).collect::<Vec<_>>().join(", ")
}
