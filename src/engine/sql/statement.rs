//! [`Statement`]: one text for SQLite and PostgreSQL, for tables besides those of a store.

use super::tables::{Kind, Row, Value};

/// A statement of both databases. Its text has these places:
///
/// | place | text |
/// |---|---|
/// | `$1`, `$2`, … | the values |
/// | `{rows}` | the list of rows, as a table `k` with the columns `column1`, `column2`, …; empty rows are NULL |
/// | `{now}` | time of the clock of the database, milliseconds since the epoch |
/// | `{lock}` | locks the rows of table `t` until the end of the transaction |
/// | `{skip}` | as `{lock}`; rows that another transaction has locked are left out |
/// | `{share}` | keeps others from changing the rows of table `t` until the end of the transaction |
///
/// A long list is cut: the statement runs once for each part, so that a list fits neither a limit nor a sum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Statement<'a> {
    sql: &'a str,
    pub(super) values: &'a [Value],
    pub(super) rows: Option<(&'a [Kind], &'a [Row])>,
}

/// Texts of a database for the places of a statement.
pub(super) struct Dialect {
    pub parameter: char,
    pub now: &'static str,
    pub lock: &'static str,
    pub skip: &'static str,
    pub share: &'static str,
}

impl<'a> Statement<'a> {
    /// Makes a statement with these values.
    pub(crate) fn new(sql: &'a str, values: &'a [Value]) -> Self {
        Statement { sql, values, rows: None }
    }

    /// Adds the list of rows, whose columns have these kinds.
    #[must_use]
    pub(crate) fn with_rows(self, kinds: &'a [Kind], rows: &'a [Row]) -> Self {
        Statement { rows: Some((kinds, rows)), ..self }
    }

    /// Returns the text for a database. `rows`: the table with the list of rows.
    pub(super) fn text(&self, dialect: &Dialect, rows: &str) -> String {
        let text = self.sql.replace("{rows}", rows).replace("{now}", dialect.now);
        let text =
            text.replace("{lock}", dialect.lock).replace("{skip}", dialect.skip).replace("{share}", dialect.share);
        if dialect.parameter == '$' { text } else { text.replace('$', &dialect.parameter.to_string()) }
    }
}
