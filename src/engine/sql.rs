//! [`SqlEngine`]: records as rows of SQLite or PostgreSQL, so that SQL answers questions about the store.
//!
//! - A record is rows of `transactions`, `outputs` and `mined_in`, of `blocks`, or of `other_records` (`rows.rs`,
//!   `outputs.rs`; `schemas/sql.md` has the tables).
//! - Calls of `apply` wait in a queue. A writer takes the waiting calls as one group, and makes one transaction of the
//!   database: read the records, call the pure function, write the rows that differ (`writer.rs`). SQLite has one
//!   writer, PostgreSQL has several, whose row locks keep two writers from one record.
//! - A statement has the rows of a whole group: no statement is for one slot (`sqlite.rs`, `postgres.rs`).
//!
//! Only this folder uses `sqlx`.

#[cfg(feature = "sql")]
mod database;
#[cfg(feature = "sql")]
mod engine;
#[cfg(feature = "sql")]
mod errors;
#[cfg(feature = "sql")]
mod open;
#[cfg(feature = "sql")]
mod outputs;
#[cfg(feature = "vault")]
pub(crate) mod plain;
#[cfg(feature = "sql")]
mod postgres;
#[cfg(feature = "sql")]
mod rows;
#[cfg(feature = "sql")]
mod schema;
mod settings;
#[cfg(feature = "sql")]
mod sqlite;
#[cfg(feature = "vault")]
mod statement;
#[cfg(feature = "sql")]
mod tables;
#[cfg(feature = "sql")]
mod writer;

#[cfg(feature = "sql")]
pub use engine::SqlEngine;
#[cfg(all(feature = "sql", feature = "testkit"))]
pub use postgres::SESSION as POSTGRES_SESSION;
pub use settings::{OpenSqlError, SqlAccess, SqlDatabase, SqlSettings};

#[cfg(test)]
mod tests;
