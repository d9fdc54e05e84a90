//! [`Asker`]: asks the store about outputs whose rows may be outdated, follows the tip of the chain, and removes old
//! rows.
//!
//! One process at a time asks, under a lease in the database. A hand-out asks for itself and needs no asker.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Vault,
    database::{Abort, read, transact},
    error::VaultError,
    facts::next_pause,
    lease::WorkerLease,
    record::{DOUBTED_AT_A_TIME, doubt},
    rows::{self, Columns, int},
    scripts::script_hash,
    source::{OUTPUTS_AT_A_TIME, SourceTip},
    types::{Facts, Standing, WatchedOutput},
    vault::{Answer, end_expired, output_and_script_kinds, read_moment, read_output_and_script, record_answers},
};
use crate::{
    config::Config,
    engine::sql::plain::{Kind, PlainTransaction, Row, Statement},
    record::StoredOutput,
    store::{outputs::OutputState, spend_status::SpendStatus},
    tx::{Outpoint, Txid},
};

/// Name of the lease.
const WORKER: &str = "asker";
/// Pause without a due question.
const IDLE_PAUSE: Duration = Duration::from_millis(100);
/// Time between two looks at the lease, at locks and at old rows.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Rows that one look at old answers or old rows takes.
const ROWS_AT_A_TIME: i64 = 5_000;
/// Blocks on a spender after which the spent output is forgotten.
const DEEP_BLOCKS: u32 = 1_000;
/// Heights of which the vault remembers the blocks: the deepest reorg whose outputs are found by their heights.
const REMEMBERED_TIPS: u32 = 1_000;

/// Times of an asker.
#[derive(Debug, Clone, Copy)]
pub struct AskerSettings {
    /// Age of an answer after which the store is asked again without an event.
    pub oldest_answer: Duration,
    /// Time for which rows of spent outputs, of ended locks and of answered requests are kept.
    pub retention: Duration,
}

impl AskerSettings {
    /// Takes the settings of a configuration (`vault.*`).
    pub fn of(config: &Config) -> Self {
        AskerSettings {
            oldest_answer: Duration::from_millis(config.vault.oldest_answer_ms),
            retention: Duration::from_millis(config.vault.retention_ms),
        }
    }
}

impl Default for AskerSettings {
    fn default() -> Self {
        Self::of(&Config::default())
    }
}

/// Counts of an asker.
#[derive(Debug, Default)]
pub struct AskerCounts {
    /// Questions that the store has answered.
    pub answers: AtomicU64,
    /// Answers that differed from the row.
    pub changes: AtomicU64,
    /// Height of the last block that the asker has seen.
    pub tip: AtomicU64,
}

/// Keeps the rows of a vault near the store.
pub struct Asker {
    vault: Vault,
    settings: AskerSettings,
    lease: WorkerLease,
    /// Tip up to which the rows are doubted. An answer under another tip settles nothing.
    followed: Mutex<Option<SourceTip>>,
    /// Counts of this process.
    pub counts: Arc<AskerCounts>,
}

/// An output about which a question is due.
struct DueQuestion {
    output: WatchedOutput,
    stored: StoredOutput,
    asks: i64,
    has_claim: bool,
}

impl Asker {
    /// Makes the asker of a vault.
    pub fn new(vault: Vault, settings: AskerSettings) -> Self {
        Asker { vault, settings, lease: WorkerLease::of(WORKER), followed: Mutex::default(), counts: Arc::default() }
    }

    /// Asks until `shutdown`. While the store or the database does not answer, the asker tries again.
    ///
    /// # Errors
    /// The database has an error that no repeat mends.
    pub async fn run(&self, shutdown: &CancellationToken) -> Result<(), VaultError> {
        let mut next_look = Instant::now();
        let mut has_lease = false;
        loop {
            let step = async {
                if Instant::now() >= next_look {
                    has_lease = self.lease.take(&self.vault.database).await?;
                    next_look = Instant::now() + LOOK_EVERY;
                    if has_lease {
                        self.look().await?;
                    }
                }
                if has_lease {
                    return self.ask_due().await;
                }
                self.counts.tip.store(0, Relaxed);
                *self.followed.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Ok(0)
            };
            let asked = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                asked = step => asked,
            };
            let is_idle = match asked {
                Ok(asked) => asked == 0,
                Err(error @ VaultError::Fatal(_)) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "vault: questions wait");
                    next_look = Instant::now() + LOOK_EVERY;
                    true
                }
            };
            if is_idle {
                tokio::select! {
                    () = shutdown.cancelled() => return Ok(()),
                    () = tokio::time::sleep(IDLE_PAUSE) => {}
                }
            }
        }
    }

    /// Frees the outputs of locks whose leases are over; returns the number of locks.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn end_expired_locks(&self) -> Result<usize, VaultError> {
        transact!(self.vault.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            end_expired(&mut transaction, moment.now).await
        })
    }

    /// Looks at locks, at old answers and at old rows.
    async fn look(&self) -> Result<(), VaultError> {
        self.end_expired_locks().await?;
        self.doubt_old_answers().await?;
        self.remove_old_rows().await
    }

    /// Asks the due questions, some at a time; returns their number.
    ///
    /// # Errors
    /// The store or the database does not answer.
    pub async fn ask_due(&self) -> Result<usize, VaultError> {
        let tip = self.follow_tip().await?;
        let (asked_at, due) = self.due_questions().await?;
        if due.is_empty() {
            return Ok(0);
        }
        let outpoints: Vec<Outpoint> = due.iter().map(|question| question.output.outpoint).collect();
        let states = self.vault.source.ask(&outpoints, tip.height.saturating_add(1)).await;
        // A block that came meanwhile has changed some of the outputs, and not all answers know of it.
        let is_settled = self.vault.source.tip().await? == tip;
        let (mut answers, mut moved, mut deferred, mut changed) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (question, state) in due.iter().zip(states) {
            match state {
                Ok(state) => {
                    moved.extend(moved_row(&state, &question.stored));
                    let answer = question.answer(&state, is_settled);
                    changed += u64::from(answer.facts != question.output.facts);
                    answers.push(answer);
                }
                Err(error) => {
                    tracing::warn!(outpoint = %question.output.outpoint, %error, "vault: a question waits");
                    deferred.push(question.deferred_row(asked_at));
                }
            }
        }
        transact!(self.vault.database, |transaction| async {
            record_answers(&mut transaction, &answers, asked_at).await?;
            move_outputs(&mut transaction, &moved, asked_at).await?;
            defer(&mut transaction, &deferred).await
        })?;
        self.counts.answers.fetch_add(answers.len() as u64, Relaxed);
        self.counts.changes.fetch_add(changed, Relaxed);
        Ok(answers.len())
    }

    /// Reads outputs whose questions are due, with the time of the database.
    async fn due_questions(&self) -> Result<(i64, Vec<DueQuestion>), VaultError> {
        let sql = format!(
            "SELECT {}, s.script, t.asks, CAST(CASE WHEN EXISTS (SELECT 1 FROM claims c WHERE c.txid = t.txid \
             AND c.vout = t.vout AND NOT c.is_out) THEN 1 ELSE 0 END AS BIGINT) \
             FROM outputs t JOIN scripts s ON s.script_id = t.script_id \
             WHERE t.ask_at IS NOT NULL AND t.ask_at <= $1 ORDER BY t.ask_at LIMIT {OUTPUTS_AT_A_TIME}",
            rows::OUTPUT_COLUMNS
        );
        let kinds = [&output_and_script_kinds()[..], &[Kind::Int, Kind::Int]].concat();
        read!(self.vault.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let values = [int(moment.now)];
            let found = transaction.fetch_all(&Statement::new(&sql, &values), &kinds).await?;
            let question = |mut row: Row| -> Result<DueQuestion, Abort> {
                let mut last = Columns::of(row.split_off(row.len() - 2));
                let (output, stored) = read_output_and_script(row)?;
                Ok(DueQuestion { output, stored, asks: last.int()?, has_claim: last.int()? == 1 })
            };
            let due: Result<Vec<DueQuestion>, Abort> = found.into_iter().map(question).collect();
            Ok((moment.now, due?))
        })
    }

    /// Compares the tip with the last one, and doubts what the difference can have changed: outputs that no block
    /// lists, and outputs above the last block that both chains have. Returns the tip.
    async fn follow_tip(&self) -> Result<SourceTip, VaultError> {
        let source = &self.vault.source;
        let tip = source.tip().await?;
        let SourceTip { height, hash: Some(hash) } = tip else { return Ok(tip) };
        let followed = *self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if followed == Some(tip) {
            return Ok(tip);
        }
        self.counts.tip.store(height.into(), Relaxed);
        let known = self.read_tips().await?;
        if known.first() != Some(&(height, hash)) {
            let mut fork = 0;
            for (known_height, known_hash) in &known {
                // A block without a record in the store is older than the store.
                let is_same = *known_height <= height
                    && source.block_at(*known_height).await?.is_none_or(|found| found == *known_hash);
                if is_same {
                    fork = *known_height;
                    break;
                }
            }
            self.doubt_above(fork, height, hash).await?;
        }
        *self.followed.lock().unwrap_or_else(PoisonError::into_inner) = Some(tip);
        Ok(tip)
    }

    /// Notes a tip, and makes questions due about outputs that no block lists, and outputs above a height.
    async fn doubt_above(&self, fork: u32, height: u32, hash: [u8; 32]) -> Result<(), VaultError> {
        transact!(self.vault.database, |transaction| async {
            let bounds = [int(fork.into()), int(i64::from(height) - i64::from(REMEMBERED_TIPS))];
            let forget = Statement::new("DELETE FROM tips WHERE height > $1 OR height < $2", &bounds);
            transaction.execute(&forget).await?;
            let values = [int(height.into()), rows::bytes(&hash)];
            let insert = Statement::new(
                "INSERT INTO tips (height, hash) VALUES ($1, $2) \
                 ON CONFLICT (height) DO UPDATE SET hash = excluded.hash",
                &values,
            );
            transaction.execute(&insert).await?;
            Ok(())
        })?;
        // Outputs that were asked about since the last look can be of a block that has left already.
        let above = format!("t.height > {fork}");
        self.doubt_where("t.height IS NULL AND t.standing IN (0, 1, 3, 4)").await?;
        self.doubt_where(&above).await
    }

    /// Makes questions due about the outputs of a condition, some at a time: outputs with a due question are left out.
    async fn doubt_where(&self, condition: &str) -> Result<(), VaultError> {
        loop {
            let doubted = transact!(self.vault.database, |transaction| async {
                let sql = format!(
                    "SELECT t.txid, t.vout FROM outputs t WHERE {condition} \
                     AND (t.ask_at IS NULL OR t.ask_at > {{now}}) LIMIT {DOUBTED_AT_A_TIME}"
                );
                let part = transaction.fetch_all(&Statement::new(&sql, &[]), &rows::OUTPOINT_KINDS).await?;
                doubt(&mut transaction, &part).await?;
                Ok(part.len())
            })?;
            if (doubted as i64) < DOUBTED_AT_A_TIME {
                return Ok(());
            }
        }
    }

    /// Reads the remembered tips, the highest first.
    async fn read_tips(&self) -> Result<Vec<(u32, [u8; 32])>, VaultError> {
        read!(self.vault.database, |transaction| async {
            let statement = Statement::new("SELECT height, hash FROM tips ORDER BY height DESC", &[]);
            let tip = |row: Row| -> Result<(u32, [u8; 32]), Abort> {
                let mut columns = Columns::of(row);
                let (height, hash) = (columns.number()?, columns.bytes()?);
                let hash = (&hash[..]).try_into().map_err(|_| VaultError::damaged("a hash of no block"))?;
                Ok((height, hash))
            };
            transaction.fetch_all(&statement, &[Kind::Int, Kind::Bytes]).await?.into_iter().map(tip).collect()
        })
    }

    /// Makes questions due about outputs whose answers are old.
    async fn doubt_old_answers(&self) -> Result<(), VaultError> {
        transact!(self.vault.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let values = [int(before(moment.now, self.settings.oldest_answer)), int(ROWS_AT_A_TIME)];
            let old = Statement::new(
                "SELECT t.txid, t.vout FROM outputs t WHERE t.standing IN (1, 3) AND t.ask_at IS NULL \
                 AND t.asked_at < $1 ORDER BY t.asked_at LIMIT $2",
                &values,
            );
            let old = transaction.fetch_all(&old, &rows::OUTPOINT_KINDS).await?;
            doubt(&mut transaction, &old).await
        })
    }

    /// Removes some of the rows whose time is over: outputs that a deep block has spent, outputs that are absent,
    /// outputs that were never live, locks that have ended, and answered requests.
    async fn remove_old_rows(&self) -> Result<(), VaultError> {
        let spent = self.old_spent_outputs().await?;
        let spenders: Vec<Outpoint> = spent.iter().map(|(_, spender)| Outpoint { txid: *spender, vout: 0 }).collect();
        let tip = self.vault.source.tip().await?.height;
        let states = self.vault.source.ask(&spenders, tip.saturating_add(1)).await;
        let (mut over, mut kept) = (Vec::new(), Vec::new());
        for ((output, _), state) in spent.into_iter().zip(states) {
            // An unmined spender can still fall, and the output is free then.
            let is_deep = state.is_ok_and(|state| match state.status {
                SpendStatus::Pruned(_) => true,
                _ => state.mined_height.is_some_and(|height| height.saturating_add(DEEP_BLOCKS) <= tip),
            });
            if is_deep { over.push(output) } else { kept.push(output) }
        }
        transact!(self.vault.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let values = [int(before(moment.now, self.settings.retention)), int(ROWS_AT_A_TIME)];
            remove_outputs(&mut transaction, &over).await?;
            let now = [int(moment.now)];
            let keep = Statement::new(
                "UPDATE outputs AS t SET asked_at = $1 FROM {rows} WHERE t.txid = k.column1 AND t.vout = k.column2",
                &now,
            );
            transaction.execute(&keep.with_rows(&rows::OUTPOINT_KINDS, &kept)).await?;
            for condition in [
                "t.standing = 5 AND t.standing IN (2, 5) AND t.asked_at < $1 ORDER BY t.asked_at",
                "t.standing IN (0, 4) AND NOT t.was_live AND t.seen_at < $1 ORDER BY t.seen_at",
            ] {
                let sql = format!("SELECT t.txid, t.vout FROM outputs t WHERE {condition} LIMIT $2");
                let old = transaction.fetch_all(&Statement::new(&sql, &values), &rows::OUTPOINT_KINDS).await?;
                remove_outputs(&mut transaction, &old).await?;
            }
            for sql in [
                "DELETE FROM locks WHERE lock_id IN (SELECT lock_id FROM locks WHERE ended_at < $1 LIMIT $2)",
                "DELETE FROM requests WHERE (owner_id, request_id) IN \
                 (SELECT owner_id, request_id FROM requests WHERE requested_at < $1 LIMIT $2)",
            ] {
                transaction.execute(&Statement::new(sql, &values)).await?;
            }
            Ok(())
        })
    }

    /// Reads outputs that have been spent for long, with their spenders.
    async fn old_spent_outputs(&self) -> Result<Vec<(Row, Txid)>, VaultError> {
        read!(self.vault.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let values = [int(before(moment.now, self.settings.retention)), int(ROWS_AT_A_TIME)];
            let statement = Statement::new(
                "SELECT t.txid, t.vout, t.spender FROM outputs t WHERE t.standing = 2 AND t.standing IN (2, 5) \
                 AND t.asked_at < $1 AND t.spender IS NOT NULL ORDER BY t.asked_at LIMIT $2",
                &values,
            );
            let output = |mut row: Row| -> Result<(Row, Txid), Abort> {
                let spender = Columns::of(row.split_off(2)).bytes()?;
                let spender =
                    (&spender[..]).try_into().map_err(|_| VaultError::damaged("a spender that is no txid"))?;
                Ok((row, Txid(spender)))
            };
            let found = transaction.fetch_all(&statement, &[Kind::Bytes, Kind::Int, Kind::Bytes]).await?;
            found.into_iter().map(output).collect()
        })
    }
}

/// Removes outputs with their claims.
async fn remove_outputs(transaction: &mut PlainTransaction, outpoints: &[Row]) -> Result<(), Abort> {
    for table in ["claims", "outputs"] {
        let sql = format!("DELETE FROM {table} WHERE (txid, vout) IN (SELECT k.column1, k.column2 FROM {{rows}})");
        transaction.execute(&Statement::new(&sql, &[]).with_rows(&rows::OUTPOINT_KINDS, outpoints)).await?;
    }
    Ok(())
}

impl DueQuestion {
    fn answer(&self, state: &OutputState, is_settled: bool) -> Answer {
        let facts = Facts::of(state, &self.stored);
        Answer {
            outpoint: self.output.outpoint,
            facts,
            changes: is_settled.then_some(self.output.changes),
            lock: self.output.lock,
            asks: self.asks + 1,
            has_open_claim: self.has_claim && facts.standing == Standing::Unspent,
        }
    }

    fn deferred_row(&self, now: i64) -> Row {
        let pause = next_pause(Standing::Unknown, self.asks + 1).unwrap_or_default();
        vec![
            rows::bytes(&self.output.outpoint.txid.0),
            int(self.output.outpoint.vout.into()),
            int(self.output.changes),
            int(now.saturating_add(pause)),
        ]
    }
}

/// Returns the time so long before `now`.
fn before(now: i64, time: Duration) -> i64 {
    now.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

/// Returns the outpoint with the hash of its script and its amount, where these are not those of the row.
fn moved_row(state: &OutputState, stored: &StoredOutput) -> Option<Row> {
    let found = state.output.as_ref().filter(|found| *found != stored)?;
    Some(vec![
        rows::bytes(&state.outpoint.txid.0),
        int(state.outpoint.vout.into()),
        rows::bytes(&script_hash(&found.script)),
        rows::amount(found.satoshis),
    ])
}

/// Gives outputs that were reassigned to their new owners, where the new scripts are watched. The new row is asked
/// about again.
async fn move_outputs(transaction: &mut PlainTransaction, moved: &[Row], now: i64) -> Result<(), Abort> {
    let values = [int(now)];
    let statement = Statement::new(
        "UPDATE outputs AS t SET script_id = s.script_id, owner_id = s.owner_id, satoshis = k.column4, \
         own_change = (1 = 0), lock_id = CASE WHEN t.owner_id = s.owner_id THEN t.lock_id ELSE NULL END, \
         changes = t.changes + 1, asks = 0, ask_at = $1 \
         FROM {rows} CROSS JOIN scripts s WHERE s.script_hash = k.column3 \
         AND t.txid = k.column1 AND t.vout = k.column2",
        &values,
    );
    let kinds = [Kind::Bytes, Kind::Int, Kind::Bytes, Kind::Int];
    transaction.execute(&statement.with_rows(&kinds, moved)).await?;
    Ok(())
}

/// Puts off questions that the store could not answer.
async fn defer(transaction: &mut PlainTransaction, deferred: &[Row]) -> Result<(), Abort> {
    let statement = Statement::new(
        "UPDATE outputs AS t SET asks = t.asks + 1, ask_at = k.column4 FROM {rows} \
         WHERE t.txid = k.column1 AND t.vout = k.column2 AND t.changes = k.column3",
        &[],
    );
    let kinds = [Kind::Bytes, Kind::Int, Kind::Int, Kind::Int];
    transaction.execute(&statement.with_rows(&kinds, deferred)).await?;
    Ok(())
}
