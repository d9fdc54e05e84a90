//! Watched scripts: whose outputs the vault keeps.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    Vault,
    database::{Abort, read, transact},
    error::VaultError,
    rows::{self, Columns, int},
    types::{Owner, OwnerId, ScriptId},
    vault::{find_owner, read_moment},
};
use crate::engine::sql::plain::{Kind, PlainTransaction, Row, Statement, Value};

/// Most scripts of one request.
const MAX_SCRIPTS: usize = 10_000;
/// Longest watched script, bytes: the longest that consensus rules of the first release permitted.
const MAX_SCRIPT_BYTES: usize = 10_000;

/// A script to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewScript {
    /// Locking script of the outputs.
    pub script: Bytes,
    /// Address that the script was made of.
    pub address: Option<String>,
}

/// A watched script, as its owner reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedScript {
    /// Locking script of the outputs.
    pub script: Bytes,
    /// Address that the script was made of.
    pub address: Option<String>,
    /// Time since which the script is watched, milliseconds since the epoch.
    pub watched_at: i64,
}

/// Result of a request to watch scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchResult {
    /// Number of scripts that were not watched before.
    pub added: u64,
    /// Number of the change that has added the first of the scripts: a rescan from the version before it on finds the
    /// earlier outputs of all of them.
    pub version: i64,
}

/// All watched scripts, for the match of transactions.
#[derive(Debug, Clone, Default)]
pub(super) struct ScriptTable {
    pub version: i64,
    pub scripts: std::collections::HashMap<Bytes, (OwnerId, ScriptId), foldhash::fast::RandomState>,
}

/// Returns SHA-256 of a script, the key of its row.
pub(super) fn script_hash(script: &[u8]) -> [u8; 32] {
    Sha256::digest(script).into()
}

impl Vault {
    /// Watches scripts under the name of an owner. A script that the owner watches already stays as it is. Outputs of
    /// transactions that were published before need a rescan.
    ///
    /// # Errors
    /// A script is empty or too long, or watched for another owner; the database does not answer.
    pub async fn watch(&self, owner: &Owner, scripts: &[NewScript]) -> Result<WatchResult, VaultError> {
        check_scripts(scripts.iter().map(|script| &script.script))?;
        let mut list: Vec<Row> = scripts.iter().map(script_row).collect();
        list.sort_unstable();
        list.dedup_by(|a, b| a[0] == b[0]);
        transact!(self.database, |transaction| watch_within(&mut transaction, owner, &list))
    }

    /// Ends the watch of scripts, and forgets their outputs; returns the number of scripts.
    ///
    /// # Errors
    /// An output of the scripts has a soft lock, or the database does not answer.
    pub async fn unwatch(&self, owner: &Owner, scripts: &[Bytes]) -> Result<u64, VaultError> {
        check_scripts(scripts)?;
        let mut list: Vec<Row> = scripts.iter().map(|script| vec![rows::bytes(&script_hash(script))]).collect();
        list.sort_unstable();
        list.dedup();
        transact!(self.database, |transaction| unwatch_within(&mut transaction, owner, &list))
    }

    /// Reads the watched scripts of an owner, in the order in which they were added, after the first `skip`.
    ///
    /// # Errors
    /// The owner has no script, or the database does not answer.
    pub async fn scripts(&self, owner: &Owner, skip: u64, limit: u64) -> Result<Vec<WatchedScript>, VaultError> {
        read!(self.database, |transaction| async {
            let values = [int(find_owner(&mut transaction, owner).await?), rows::amount(limit), rows::amount(skip)];
            let statement = Statement::new(
                "SELECT script, address, watched_at FROM scripts WHERE owner_id = $1 \
                 ORDER BY owner_id, script_id LIMIT $2 OFFSET $3",
                &values,
            );
            let found = transaction.fetch_all(&statement, &[Kind::Bytes, Kind::Text, Kind::Int]).await?;
            let script = |row| -> Result<WatchedScript, Abort> {
                let mut columns = Columns::of(row);
                let (script, address) = (columns.bytes()?, columns.optional_text()?);
                Ok(WatchedScript { script, address, watched_at: columns.int()? })
            };
            found.into_iter().map(script).collect()
        })
    }

    /// Reads the watched scripts that were added after a version and up to another one, with the number of the last
    /// change.
    pub(super) async fn scripts_between(&self, (after, up_to): (i64, i64)) -> Result<ScriptTable, VaultError> {
        read!(self.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let values = [int(after), int(up_to)];
            let statement = Statement::new(
                "SELECT script, owner_id, script_id FROM scripts WHERE watch_version > $1 AND watch_version <= $2",
                &values,
            );
            Ok(script_table(transaction.fetch_all(&statement, &SCRIPT_KINDS).await?, moment.watch_version)?)
        })
    }

    /// Reads which of these scripts are watched, with the number of the last change.
    pub(super) async fn scripts_among(&self, scripts: &[&[u8]]) -> Result<ScriptTable, VaultError> {
        let hashes: Vec<Row> = scripts.iter().map(|script| vec![rows::bytes(&script_hash(script))]).collect();
        read!(self.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let statement = Statement::new(
                "SELECT s.script, s.owner_id, s.script_id FROM {rows} CROSS JOIN scripts s \
                 WHERE s.script_hash = k.column1",
                &[],
            );
            let statement = statement.with_rows(&[Kind::Bytes], &hashes);
            Ok(script_table(transaction.fetch_all(&statement, &SCRIPT_KINDS).await?, moment.watch_version)?)
        })
    }

    /// Reads all watched scripts, where they differ from those of a version; `None`: they are the same.
    pub(super) async fn scripts_since(&self, version: i64) -> Result<Option<ScriptTable>, VaultError> {
        read!(self.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            if moment.watch_version == version {
                return Ok(None);
            }
            let statement = Statement::new("SELECT script, owner_id, script_id FROM scripts", &[]);
            Ok(Some(script_table(transaction.fetch_all(&statement, &SCRIPT_KINDS).await?, moment.watch_version)?))
        })
    }
}

/// Kinds of the columns of [`script_table`]: script, owner and number.
const SCRIPT_KINDS: [Kind; 3] = [Kind::Bytes, Kind::Int, Kind::Int];

fn script_table(rows: Vec<Row>, version: i64) -> Result<ScriptTable, VaultError> {
    let mut table = ScriptTable { version, ..ScriptTable::default() };
    for row in rows {
        let mut columns = Columns::of(row);
        table.scripts.insert(columns.bytes()?, (columns.int()?, columns.int()?));
    }
    Ok(table)
}

fn check_scripts<'a>(scripts: impl IntoIterator<Item = &'a Bytes>) -> Result<(), VaultError> {
    let mut count = 0;
    for script in scripts {
        count += 1;
        match script.len() {
            0 => return Err(VaultError::invalid("a script is empty: anybody can spend its outputs")),
            1..=MAX_SCRIPT_BYTES => {}
            length => {
                let problem = format!("a script has {length} bytes, of at most {MAX_SCRIPT_BYTES}");
                return Err(VaultError::Invalid(problem));
            }
        }
    }
    match count {
        0 => Err(VaultError::invalid("the request names no script")),
        1..=MAX_SCRIPTS => Ok(()),
        _ => Err(VaultError::Invalid(format!("the request names {count} scripts, of at most {MAX_SCRIPTS}"))),
    }
}

fn script_row(script: &NewScript) -> Row {
    vec![
        rows::bytes(&script_hash(&script.script)),
        Value::Bytes(Some(script.script.clone())),
        Value::Text(script.address.clone()),
    ]
}

async fn watch_within(transaction: &mut PlainTransaction, owner: &Owner, list: &[Row]) -> Result<WatchResult, Abort> {
    // The row of the version is locked first: a transaction that records events keeps the version until its end.
    let bump = Statement::new("UPDATE vault SET watch_version = watch_version + 1", &[]);
    transaction.execute(&bump).await?;
    let moment = read_moment(transaction).await?;
    let name = [rows::text(owner.as_str())];
    let insert = Statement::new("INSERT INTO owners (name) VALUES ($1) ON CONFLICT (name) DO NOTHING", &name);
    transaction.execute(&insert).await?;
    let owner_id = find_owner(transaction, owner).await?;
    let values = [int(owner_id), int(moment.now), int(moment.watch_version)];
    let insert = Statement::new(
        "INSERT INTO scripts (owner_id, script_hash, script, address, watched_at, watch_version) \
         SELECT $1, k.column1, k.column2, k.column3, $2, $3 FROM {rows} WHERE k.column1 IS NOT NULL \
         ON CONFLICT (script_hash) DO NOTHING",
        &values,
    );
    let added = transaction.execute(&insert.with_rows(&[Kind::Bytes, Kind::Bytes, Kind::Text], list)).await?;
    let hashes: Vec<Row> = list.iter().map(|row| vec![row[0].clone()]).collect();
    let values = [int(owner_id)];
    let others = Statement::new(
        "SELECT s.script FROM {rows} CROSS JOIN scripts s WHERE s.script_hash = k.column1 AND s.owner_id <> $1",
        &values,
    );
    let others = transaction.fetch_all(&others.with_rows(&[Kind::Bytes], &hashes), &[Kind::Bytes]).await?;
    if let Some(row) = others.into_iter().next() {
        return Err(VaultError::OtherOwner(hex::encode(Columns::of(row).bytes()?)).into());
    }
    let first = Statement::new(
        "SELECT min(s.watch_version) FROM {rows} CROSS JOIN scripts s WHERE s.script_hash = k.column1",
        &[],
    );
    // A long list is sent in parts, each with its minimum.
    let firsts = transaction.fetch_all(&first.with_rows(&[Kind::Bytes], &hashes), &[Kind::Int]).await?;
    let firsts = firsts.into_iter().map(|row| Columns::of(row).optional_int()).collect::<Result<Vec<_>, _>>()?;
    if added == 0 {
        // A repeat changes nothing, so that no process reads the scripts again.
        let take_back = Statement::new("UPDATE vault SET watch_version = watch_version - 1", &[]);
        transaction.execute(&take_back).await?;
    }
    Ok(WatchResult { added, version: firsts.into_iter().flatten().min().unwrap_or(moment.watch_version) })
}

async fn unwatch_within(transaction: &mut PlainTransaction, owner: &Owner, list: &[Row]) -> Result<u64, Abort> {
    let bump = Statement::new("UPDATE vault SET watch_version = watch_version + 1", &[]);
    transaction.execute(&bump).await?;
    let moment = read_moment(transaction).await?;
    let values = [int(find_owner(transaction, owner).await?), int(moment.now)];
    let owned = "(SELECT s.script_id FROM {rows} CROSS JOIN scripts s \
                 WHERE s.script_hash = k.column1 AND s.owner_id = $1)";
    // A reservation locks the rows of its outputs first, so that it ends before this count, or finds no output.
    let lock = format!("SELECT t.vout FROM outputs t WHERE t.script_id IN {owned} {{lock}}");
    transaction.fetch_all(&Statement::new(&lock, &values[..1]).with_rows(&[Kind::Bytes], list), &[Kind::Int]).await?;
    let locked = format!(
        "SELECT t.vout FROM outputs t JOIN locks l ON l.lock_id = t.lock_id WHERE t.script_id IN {owned} \
         AND l.ended_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > $2)"
    );
    let statement = Statement::new(&locked, &values).with_rows(&[Kind::Bytes], list);
    let locked = transaction.fetch_all(&statement, &[Kind::Int]).await?;
    if !locked.is_empty() {
        return Err(VaultError::OutputsLocked(locked.len() as u64).into());
    }
    let claims = format!(
        "DELETE FROM claims WHERE (txid, vout) IN (SELECT t.txid, t.vout FROM outputs t WHERE t.script_id IN {owned})"
    );
    let outputs = format!("DELETE FROM outputs WHERE script_id IN {owned}");
    let scripts = format!("DELETE FROM scripts WHERE script_id IN {owned}");
    let mut deleted = 0;
    for sql in [claims, outputs, scripts] {
        let statement = Statement::new(&sql, &values[..1]).with_rows(&[Kind::Bytes], list);
        deleted = transaction.execute(&statement).await?;
    }
    Ok(deleted)
}
