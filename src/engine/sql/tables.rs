//! Tables, columns and rows, without a database: every statement is built from these lists.

use bytes::Bytes;

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes: `BLOB` in SQLite, `BYTEA` in PostgreSQL.
    Bytes,
    /// 64 bits, signed. A number from 2^63 on is stored as the negative number with the same bits.
    Int,
    /// Truth value, which is never null.
    Bool,
    /// Text in UTF-8: `TEXT` in both.
    #[cfg_attr(not(feature = "vault"), allow(dead_code, reason = "only the vault has columns of text"))]
    Text,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub name: &'static str,
    pub kind: Kind,
}

/// A table: its key columns come first.
#[derive(Debug)]
pub(super) struct Table {
    pub name: &'static str,
    pub columns: &'static [Column],
    pub key_columns: usize,
}

impl Table {
    pub fn key(&self) -> &'static [Column] {
        &self.columns[..self.key_columns]
    }

    pub fn data(&self) -> &'static [Column] {
        &self.columns[self.key_columns..]
    }
}

/// Value of a column.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    Bytes(Option<Bytes>),
    Int(Option<i64>),
    Bool(bool),
    Text(Option<String>),
}

/// Row of a table, or the key of a row, in the order of the columns.
pub(crate) type Row = Vec<Value>;

pub(super) fn bytes(bytes: &[u8]) -> Value {
    Value::Bytes(Some(Bytes::copy_from_slice(bytes)))
}

/// Stores a number with its bits.
pub(super) fn int(number: impl Into<u64>) -> Value {
    Value::Int(Some(number.into() as i64))
}

pub(super) fn optional_int(number: Option<impl Into<u64>>) -> Value {
    Value::Int(number.map(|number| number.into() as i64))
}

const fn bytes_column(name: &'static str) -> Column {
    Column { name, kind: Kind::Bytes }
}

const fn int_column(name: &'static str) -> Column {
    Column { name, kind: Kind::Int }
}

const fn bool_column(name: &'static str) -> Column {
    Column { name, kind: Kind::Bool }
}

/// Numbers of the tables in [`TABLES`].
pub(super) const TRANSACTIONS: usize = 0;
pub(super) const OUTPUTS: usize = 1;
pub(super) const MINED_IN: usize = 2;
pub(super) const BLOCKS: usize = 3;
pub(super) const OTHER_RECORDS: usize = 4;

/// All tables with records, in the order in which a batch writes them.
pub(super) static TABLES: [Table; 5] = [
    Table {
        name: "transactions",
        key_columns: 2,
        columns: &[
            bytes_column("txid"),
            int_column("page"),
            int_column("version"),
            int_column("lock_time"),
            int_column("fee"),
            int_column("size_in_bytes"),
            int_column("extended_size"),
            bool_column("coinbase"),
            bool_column("locked"),
            bool_column("conflicting"),
            bool_column("frozen"),
            int_column("creating_at"),
            int_column("spending_height"),
            int_column("delete_at_height"),
            int_column("pruned"),
            int_column("slots"),
            int_column("output_rows"),
            int_column("created_at"),
            int_column("unmined_since"),
            int_column("preserve_until"),
            int_column("verdict"),
            bytes_column("reason"),
            bytes_column("inputs"),
            bytes_column("rest"),
        ],
    },
    Table {
        name: "outputs",
        key_columns: 2,
        columns: &[
            bytes_column("txid"),
            int_column("vout"),
            bytes_column("utxo_hash"),
            int_column("satoshis"),
            bytes_column("script"),
            bytes_column("spender"),
            int_column("spender_input"),
            bool_column("frozen"),
            int_column("spendable_in"),
            int_column("owner_satoshis"),
            bytes_column("owner_script"),
        ],
    },
    Table {
        name: "mined_in",
        key_columns: 2,
        columns: &[
            bytes_column("txid"),
            int_column("position"),
            int_column("block_id"),
            int_column("height"),
            int_column("subtree"),
        ],
    },
    Table {
        name: "blocks",
        key_columns: 1,
        columns: &[
            int_column("block_id"),
            bytes_column("hash"),
            bytes_column("previous"),
            int_column("height"),
            int_column("time"),
            bool_column("longest_chain"),
            int_column("progress"),
            int_column("chain_offset"),
            int_column("chain_phase"),
        ],
    },
    Table { name: "other_records", key_columns: 1, columns: &[bytes_column("key"), bytes_column("record")] },
];

/// Rows of one record, or of several, by table; the rows of a table ascend by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TableRows(pub [Vec<Row>; TABLES.len()]);

/// Changes of one table.
#[derive(Debug, Default)]
pub(super) struct TableChanges {
    /// Rows with new keys.
    pub inserted: Vec<Row>,
    /// Rows whose keys exist.
    pub updated: Vec<Row>,
    /// Keys of rows that are removed.
    pub deleted: Vec<Row>,
}

/// Changes of all tables that one transaction of the database makes.
#[derive(Debug, Default)]
pub(super) struct Changes(pub [TableChanges; TABLES.len()]);

impl Changes {
    /// Adds the difference between the rows of one record before and after its operations.
    pub fn add(&mut self, before: &TableRows, after: TableRows) {
        for (((table, before), after), changes) in TABLES.iter().zip(&before.0).zip(after.0).zip(&mut self.0) {
            changes.add(table.key_columns, before, after);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|table| table.inserted.is_empty() && table.updated.is_empty() && table.deleted.is_empty())
    }
}

impl TableChanges {
    fn add(&mut self, key_columns: usize, before: &[Row], after: Vec<Row>) {
        let mut before = before.iter().peekable();
        for row in after {
            while let Some(gone) = before.next_if(|old| old[..key_columns] < row[..key_columns]) {
                self.deleted.push(gone[..key_columns].to_vec());
            }
            match before.next_if(|old| old[..key_columns] == row[..key_columns]) {
                None => self.inserted.push(row),
                Some(old) if *old == row => {}
                Some(_) => self.updated.push(row),
            }
        }
        self.deleted.extend(before.map(|gone| gone[..key_columns].to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_inserts_updates_and_deletes_by_key() {
        let row = |key: u32, value: u32| vec![int(key), int(value)];
        let mut changes = TableChanges::default();
        changes.add(1, &[row(1, 1), row(2, 2), row(4, 4), row(9, 9)], vec![row(2, 2), row(3, 3), row(4, 5)]);
        assert_eq!(changes.inserted, [row(3, 3)]);
        assert_eq!(changes.updated, [row(4, 5)]);
        assert_eq!(changes.deleted, [vec![int(1_u32)], vec![int(9_u32)]]);
    }

    #[test]
    fn the_schema_names_the_tables() {
        assert_eq!(TABLES.each_ref().map(|table| table.name), *super::super::schema::STORE.tables);
    }

    #[test]
    fn tables_and_schemas_have_the_same_columns_in_the_same_order() {
        for schema in [include_str!("schema/sqlite.sql"), include_str!("schema/postgres.sql")] {
            for table in &TABLES {
                let (_, definition) = schema.split_once(&format!("CREATE TABLE {} (\n", table.name)).unwrap();
                let (definition, _) = definition.split_once(';').unwrap();
                let names = definition.lines().filter_map(|line| line.split_whitespace().next());
                let names: Vec<&str> = names.filter(|name| !matches!(*name, "PRIMARY" | ")" | "CHECK")).collect();
                let expected: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
                assert_eq!(names, expected, "{}", table.name);
            }
        }
    }
}
