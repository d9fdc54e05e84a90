//! [`Vault`]: the database of the vault, and the store that the vault asks.

use std::{sync::Arc, time::Duration};

use super::{
    database::{Abort, VaultDatabase, transact},
    error::VaultError,
    facts::next_pause,
    matching::Claim,
    record::record_claims,
    rows::{self, Columns, int},
    source::{OutputSource, SourceTip},
    types::{Facts, LockId, Owner, OwnerId, Standing, WatchedOutput},
};
use crate::{
    config::Config,
    engine::{
        StoreUrl,
        sql::plain::{Kind, OpenSqlError, PlainTransaction, Row, SqlAccess, Statement, Value},
    },
    record::StoredOutput,
    store::spend_status::SpendStatus,
    tx::{Network, Outpoint},
};

/// Locks that one transaction ends because their leases are over, at most.
const EXPIRED_AT_A_TIME: i64 = 100;

/// Limits and defaults of a vault.
#[derive(Debug, Clone, Copy)]
pub struct VaultSettings {
    /// Network of the store.
    pub network: Network,
    /// Lease of a session that names none.
    pub lease: Duration,
    /// Longest lease of a session, and longest TTL of a lock.
    pub longest_lease: Duration,
    /// TTL of the lock of a selection that names neither a lock nor a TTL.
    pub selection_ttl: Duration,
}

impl VaultSettings {
    /// Takes the settings of a configuration (`store.network` and `vault.*`).
    pub fn of(config: &Config) -> Self {
        VaultSettings {
            network: config.store.network,
            lease: Duration::from_millis(config.vault.lease_ms),
            longest_lease: Duration::from_millis(config.vault.longest_lease_ms),
            selection_ttl: Duration::from_millis(config.vault.selection_ttl_ms),
        }
    }
}

impl Default for VaultSettings {
    fn default() -> Self {
        Self::of(&Config::default())
    }
}

/// Outputs of watched scripts with their soft locks. Cheap to clone; any number of vaults share a PostgreSQL database.
///
/// The rows of outputs are what the store has answered last. An output is asked of the store again before the vault
/// hands it out.
#[derive(Clone)]
pub struct Vault {
    pub(super) database: VaultDatabase,
    pub(super) source: Arc<dyn OutputSource>,
    pub(crate) settings: VaultSettings,
}

/// Reason why a vault cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenVaultError {
    /// The URL names no database.
    #[error("a vault needs a database, `sqlite:///path` or `postgres://…`; `{0}` is none")]
    NotADatabase(String),
    /// The database cannot be opened, has other tables, or is a vault of another version or network.
    #[error(transparent)]
    Database(#[from] OpenSqlError),
}

/// Time and state of the vault at the begin of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VaultMoment {
    /// Milliseconds since the epoch, by the clock of the database.
    pub now: i64,
    /// Number of the last change of the watched scripts.
    pub watch_version: i64,
}

/// An answer of the store about an output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub outpoint: Outpoint,
    pub facts: Facts,
    /// Number of events that had named the output at the question; `None`: the question is not that of an event, and
    /// leaves the next question as it is.
    pub changes: Option<i64>,
    /// Soft lock that the row had at the question.
    pub lock: Option<LockId>,
    /// Questions since the last event, with this one.
    pub asks: i64,
    /// An event names a spender that the store does not show.
    pub has_open_claim: bool,
}

impl Vault {
    /// Opens the vault in a database, or creates the vault in an empty database.
    ///
    /// # Errors
    /// The database cannot be opened, has other tables, or is a vault of another version or network.
    pub async fn open(
        database: &StoreUrl,
        access: &SqlAccess,
        source: Arc<dyn OutputSource>,
        settings: VaultSettings,
    ) -> Result<Self, OpenVaultError> {
        let StoreUrl::Sql(database) = database else {
            return Err(OpenVaultError::NotADatabase(database.to_string()));
        };
        let database = VaultDatabase::open(database, settings.network, access).await?;
        Ok(Vault { database, source, settings })
    }

    /// Closes the connections to the database, for all clones.
    pub async fn close(&self) {
        self.database.close().await;
    }

    /// Asks the store whether outputs can be spent in the next block, whether the vault knows the outputs or not.
    /// `result[i]` belongs to `outpoints[i]`.
    pub async fn statuses(&self, outpoints: &[Outpoint]) -> Vec<Result<SpendStatus, VaultError>> {
        match self.source.tip().await {
            Ok(tip) => {
                let states = self.source.ask(outpoints, tip.height.saturating_add(1)).await;
                states.into_iter().map(|state| Ok(state?.status)).collect()
            }
            Err(error) => outpoints.iter().map(|_| Err(error.clone().into())).collect(),
        }
    }

    /// Returns the last block of the longest chain.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn tip(&self) -> Result<SourceTip, VaultError> {
        Ok(self.source.tip().await?)
    }

    /// Asks the store about outputs before they are handed out, and records the answers that differ from the rows.
    /// `asked_at`: time at which the rows were read. `result[i]` is `outputs[i]` with the new facts.
    pub(super) async fn ask(
        &self,
        outputs: Vec<(WatchedOutput, StoredOutput)>,
        tip: SourceTip,
        asked_at: i64,
    ) -> Result<Vec<(WatchedOutput, StoredOutput)>, VaultError> {
        let outpoints: Vec<Outpoint> = outputs.iter().map(|(output, _)| output.outpoint).collect();
        let states = self.source.ask(&outpoints, tip.height.saturating_add(1)).await;
        let (mut asked, mut changed) = (Vec::with_capacity(outputs.len()), Vec::new());
        for ((output, stored), state) in outputs.into_iter().zip(states) {
            let facts = Facts::of(&state?, &stored);
            if facts != output.facts {
                let (outpoint, lock) = (output.outpoint, output.lock);
                changed.push(Answer { outpoint, facts, changes: None, lock, asks: 1, has_open_claim: false });
            }
            asked.push((WatchedOutput { facts, ..output }, stored));
        }
        if !changed.is_empty() {
            transact!(self.database, |transaction| record_answers(&mut transaction, &changed, asked_at))?;
        }
        Ok(asked)
    }
}

/// Begins the work of a transaction: reads the clock of the database.
pub(super) async fn read_moment(transaction: &mut PlainTransaction) -> Result<VaultMoment, Abort> {
    let statement = Statement::new("SELECT {now}, watch_version FROM vault", &[]);
    let row = transaction.fetch_all(&statement, &[Kind::Int, Kind::Int]).await?.pop();
    let mut columns = Columns::of(row.ok_or_else(|| VaultError::damaged("gone: the vault has no row"))?);
    Ok(VaultMoment { now: columns.int()?, watch_version: columns.int()? })
}

/// Ends locks whose leases are over, and frees their outputs; returns the number of locks. A lock on which another
/// transaction works is left to the next call.
pub(super) async fn end_expired(transaction: &mut PlainTransaction, now: i64) -> Result<usize, Abort> {
    let values = [int(now), int(EXPIRED_AT_A_TIME)];
    let statement = Statement::new(
        "SELECT t.lock_id FROM locks t WHERE t.ended_at IS NULL AND t.expires_at <= $1 \
         ORDER BY t.expires_at LIMIT $2 {skip}",
        &values,
    );
    let ended = transaction.fetch_all(&statement, &[Kind::Bytes]).await?;
    end_locks(transaction, &ended, now).await?;
    Ok(ended.len())
}

/// Ends locks, and frees their outputs.
pub(super) async fn end_locks(transaction: &mut PlainTransaction, locks: &[Row], now: i64) -> Result<(), Abort> {
    if locks.is_empty() {
        return Ok(());
    }
    let free = Statement::new("UPDATE outputs AS t SET lock_id = NULL FROM {rows} WHERE t.lock_id = k.column1", &[]);
    transaction.execute(&free.with_rows(&[Kind::Bytes], locks)).await?;
    let values = [int(now)];
    let end = Statement::new("UPDATE locks AS t SET ended_at = $1 FROM {rows} WHERE t.lock_id = k.column1", &values);
    transaction.execute(&end.with_rows(&[Kind::Bytes], locks)).await?;
    Ok(())
}

/// Condition on a table `t` of outputs: an event names a spender that the store does not show yet.
pub(super) const IS_CLAIMED: &str = "EXISTS (SELECT 1 FROM claims c WHERE c.txid = t.txid AND c.vout = t.vout \
     AND NOT c.is_out AND c.bars_until > {now})";

/// Finds the number of an owner.
pub(super) async fn find_owner(transaction: &mut PlainTransaction, owner: &Owner) -> Result<OwnerId, Abort> {
    let values = [rows::text(owner.as_str())];
    let statement = Statement::new("SELECT owner_id FROM owners WHERE name = $1", &values);
    match transaction.fetch_all(&statement, &[Kind::Int]).await?.pop() {
        Some(row) => Ok(Columns::of(row).int()?),
        None => Err(VaultError::NoOwner(owner.to_string()).into()),
    }
}

/// Kinds of the rows of [`record_answers`].
const ANSWER_KINDS: [Kind; 11] = {
    use Kind::{Bytes, Int};
    [Bytes, Int, Int, Int, Int, Bytes, Int, Int, Int, Int, Bytes]
};

/// Records answers of the store. `asked_at`: time of the question; an answer to a later question stays, unless the
/// clock of the database has jumped back since. An output that is spent loses the soft lock that its row had at the
/// question. Where an event came after the question, or no event asked, the next question is due.
pub(super) async fn record_answers(
    transaction: &mut PlainTransaction,
    answers: &[Answer],
    asked_at: i64,
) -> Result<(), Abort> {
    let row = |answer: &Answer| -> Row {
        let Facts { standing, height, spendable_from, spender } = answer.facts;
        // A claim that the store does not show is open, whatever the output is.
        let pause = match answer.has_open_claim {
            true => next_pause(Standing::Unknown, answer.asks),
            false => next_pause(standing, answer.asks),
        };
        vec![
            rows::bytes(&answer.outpoint.txid.0),
            int(answer.outpoint.vout.into()),
            int(standing as i64),
            rows::optional_number(height),
            rows::optional_number(spendable_from),
            Value::Bytes(spender.map(|spender| bytes::Bytes::copy_from_slice(&spender.txid.0))),
            rows::optional_number(spender.map(|spender| spender.input)),
            int(answer.changes.unwrap_or(-1)),
            Value::Int(pause.map(|pause| asked_at.saturating_add(pause))),
            int(answer.asks),
            Value::Bytes(answer.lock.map(|id| bytes::Bytes::copy_from_slice(id.0.as_bytes()))),
        ]
    };
    let mut list: Vec<Row> = answers.iter().map(row).collect();
    list.sort_unstable();
    let values = [int(asked_at)];
    let statement = Statement::new(
        "UPDATE outputs AS t SET standing = k.column3, height = k.column4, spendable_from = k.column5, \
         spender = k.column6, spender_input = k.column7, asked_at = $1, \
         ask_at = CASE WHEN t.changes = k.column8 THEN k.column9 ELSE COALESCE(t.ask_at, $1) END, \
         asks = CASE WHEN t.changes = k.column8 THEN k.column10 ELSE t.asks END, \
         was_live = (t.was_live OR k.column3 IN (1, 2, 3)), \
         lock_id = CASE WHEN k.column3 = 2 AND t.lock_id = k.column11 THEN NULL ELSE t.lock_id END \
         FROM {rows} \
         WHERE t.txid = k.column1 AND t.vout = k.column2 \
         AND (t.asked_at IS NULL OR t.asked_at <= $1 OR t.asked_at > {now})",
        &values,
    );
    transaction.execute(&statement.with_rows(&ANSWER_KINDS, &list)).await?;
    // A verdict on the spender makes a question about the output due, also where no event has named the spender.
    let spends = answers.iter().filter(|answer| answer.facts.standing == Standing::Spent);
    let claims =
        spends.filter_map(|answer| Some(Claim { spender: answer.facts.spender?.txid, outpoint: answer.outpoint }));
    record_claims(transaction, &claims.collect::<Vec<_>>(), 0).await
}

/// Reads the outputs of a list with their scripts, and locks the rows until the end of the transaction.
pub(super) async fn lock_outputs(
    transaction: &mut PlainTransaction,
    outpoints: &[Row],
) -> Result<Vec<(WatchedOutput, StoredOutput)>, Abort> {
    read_outputs(transaction, outpoints, "{lock}").await
}

/// Reads the outputs of a list with their scripts. `lock`: place of a statement that locks the rows.
pub(super) async fn read_outputs(
    transaction: &mut PlainTransaction,
    outpoints: &[Row],
    lock: &str,
) -> Result<Vec<(WatchedOutput, StoredOutput)>, Abort> {
    let sql = format!(
        "SELECT {}, s.script FROM {{rows}} CROSS JOIN outputs t CROSS JOIN scripts s \
         WHERE t.txid = k.column1 AND t.vout = k.column2 AND s.script_id = t.script_id \
         ORDER BY t.txid, t.vout {lock}",
        rows::OUTPUT_COLUMNS
    );
    let statement = Statement::new(&sql, &[]).with_rows(&rows::OUTPOINT_KINDS, outpoints);
    let found = transaction.fetch_all(&statement, &output_and_script_kinds()).await?;
    found.into_iter().map(|row| Ok(read_output_and_script(row)?)).collect()
}

/// Kinds of the columns of [`read_output_and_script`].
pub(super) fn output_and_script_kinds() -> Vec<Kind> {
    [&rows::OUTPUT_KINDS[..], &[Kind::Bytes]].concat()
}

/// Reads the columns of an output, followed by its script.
pub(super) fn read_output_and_script(row: Row) -> Result<(WatchedOutput, StoredOutput), VaultError> {
    let mut columns = Columns::of(row);
    let output = rows::read_output(&mut columns)?;
    let stored = StoredOutput { satoshis: output.satoshis, script: columns.bytes()? };
    Ok((output, stored))
}

/// Returns the row of a lock's id.
pub(super) fn lock_row(id: LockId) -> Row {
    vec![rows::lock_value(id)]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_document_has_the_statements_of_the_code() {
        let document = include_str!("../../schemas/vault.md");
        let schemas = [include_str!("schema/sqlite.sql"), include_str!("schema/postgres.sql")];
        let blocks: Vec<&str> =
            document.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert_eq!(blocks, schemas);
    }
}
