//! [`Schema`]: the tables of a database, with their version.

/// Tables of one kind of database. The statements are separated by empty lines.
#[derive(Debug)]
pub(crate) struct Schema {
    /// Name of the contents for messages: `store` or `vault`.
    pub kind: &'static str,
    /// Table with one row: `one_row`, `schema_version`, `database_id`, `network`, and a number.
    pub head: &'static str,
    /// Column of `head` with a number that the opener of an empty database gives.
    pub number: &'static str,
    /// Names of all tables besides `head`.
    pub tables: &'static [&'static str],
    /// Version of the tables that this program reads and writes.
    pub version: i64,
    /// Statements that create the tables in SQLite.
    pub sqlite: &'static str,
    /// Statements that create the tables in PostgreSQL.
    pub postgres: &'static str,
    /// Statements that make these tables of those of the version before; `None`: there is no version before.
    pub migration: Option<Migration>,
    /// Remedy for tables of another version.
    pub remedy: &'static str,
}

/// Statements that make tables of a version of those of the version before.
#[derive(Debug)]
pub(crate) struct Migration {
    /// Statements of the migration in SQLite.
    pub sqlite: &'static str,
    /// Statements of the migration in PostgreSQL.
    pub postgres: &'static str,
}

/// Tables of a store (`schemas/sql.md`).
pub(super) static STORE: Schema = Schema {
    kind: "store",
    head: "store",
    number: "utxo_batch_size",
    tables: &["transactions", "outputs", "mined_in", "blocks", "other_records"],
    version: 2,
    sqlite: include_str!("schema/sqlite.sql"),
    postgres: include_str!("schema/postgres.sql"),
    migration: Some(Migration {
        sqlite: include_str!("schema/sqlite_2.sql"),
        postgres: include_str!("schema/postgres_2.sql"),
    }),
    remedy: "use the program that wrote the store, or rebuild the store into an empty database",
};
