//! Writers: each takes the waiting calls as one group, and makes one transaction of the database for the group.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Mutex, mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    database::{Database, DatabaseTransaction, RowFilter},
    errors::SqlError,
    rows::{self, SplitError},
    tables::{
        BLOCKS, Changes, MINED_IN, OTHER_RECORDS, OUTPUTS, Row, TABLES, TRANSACTIONS, TableRows, Value, bytes, int,
    },
};
use crate::{
    engine::{EngineError, ErrorKind, Row as EngineRow, RowResult, key::KeyBytes},
    record::{self, Key, Outcome, Record, Rejection, Rules},
};

/// Rows of operations after which a group takes no further call.
const GROUP_ROWS: usize = 4_096;
/// Attempts of a group that loses races with other writers, and the first pause between two. The pause doubles.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// A call of `apply` in the queue.
pub(super) struct QueuedRows {
    pub rows: Vec<EngineRow>,
    pub reply: oneshot::Sender<Vec<RowResult>>,
}

/// Database, rules and limits that reads and writers share.
#[derive(Clone)]
pub(super) struct SqlStore {
    pub database: Database,
    pub rules: Rules,
    pub utxo_batch_size: u32,
    /// Time of one transaction of the database.
    pub timeout: Duration,
}

/// Starts the writers of a database. They end once the queue is closed and empty.
pub(super) fn start(store: &SqlStore, queue: mpsc::Receiver<QueuedRows>) -> Vec<JoinHandle<()>> {
    let queue = Arc::new(Mutex::new(queue));
    let start = |_| {
        let (store, queue) = (store.clone(), queue.clone());
        tokio::spawn(async move {
            loop {
                let group = gather(&mut *queue.lock().await).await;
                if group.is_empty() {
                    return;
                }
                store.answer(group).await;
            }
        })
    };
    (0..store.database.writers()).map(start).collect()
}

/// Waits for a call, and takes the calls that wait with it. Empty: the queue is closed.
async fn gather(queue: &mut mpsc::Receiver<QueuedRows>) -> Vec<QueuedRows> {
    let (mut rows, mut group) = (0, Vec::new());
    let mut next = queue.recv().await;
    while let Some(call) = next {
        rows += call.rows.len();
        group.push(call);
        next = if rows < GROUP_ROWS { queue.try_recv().ok() } else { None };
    }
    group
}

/// A record that a group reads and changes.
struct RecordInGroup {
    before: TableRows,
    /// The record as the operations have left it; an error answers every operation on the record.
    record: Result<Option<Record>, EngineError>,
    has_changed: bool,
}

impl SqlStore {
    async fn answer(&self, group: Vec<QueuedRows>) {
        let (rows, replies): (Vec<_>, Vec<_>) = group.into_iter().map(|call| (call.rows, call.reply)).unzip();
        let answers = match self.apply_with_retries(&rows).await {
            Ok(answers) => answers,
            Err(error) => {
                let error = error.into_engine_error("apply");
                rows.iter().map(|rows| vec![Err(error.clone()); rows.len()]).collect()
            }
        };
        for (reply, answers) in replies.into_iter().zip(answers) {
            // A caller that stopped waiting does not need the answer.
            let _ = reply.send(answers);
        }
    }

    async fn apply_with_retries(&self, group: &[Vec<EngineRow>]) -> Result<Vec<Vec<RowResult>>, SqlError> {
        let mut attempt = 1;
        loop {
            match self.apply_group(group).await {
                Err(error) if error.is_lost_race && attempt < ATTEMPTS => {
                    tokio::time::sleep(PAUSE * (1 << attempt.min(6))).await;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    /// Runs a transaction, at most for the timeout; `kind` is the class of the error at the timeout.
    pub async fn within_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, SqlError>>,
        kind: ErrorKind,
    ) -> Result<T, SqlError> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| {
            let message = format!("the database did not answer within {:?}", self.timeout);
            Err(SqlError { kind, message, is_lost_race: false })
        })
    }

    /// Applies the rows of a group in one transaction.
    async fn apply_group(&self, group: &[Vec<EngineRow>]) -> Result<Vec<Vec<RowResult>>, SqlError> {
        let keys: BTreeSet<Key> = group.iter().flatten().map(|row| row.key).collect();
        let keys: Vec<Key> = keys.into_iter().collect();
        let mut transaction = match &self.database {
            // A request for the lock that was given up can still get the lock. SQLite ends the request itself.
            Database::Sqlite(_) => self.database.begin_write().await?,
            Database::Postgres(_) => self.within_timeout(self.database.begin_write(), ErrorKind::Retryable).await?,
        };
        let applied = self.apply_within(&mut transaction, keys, group);
        match self.within_timeout(applied, ErrorKind::Retryable).await {
            Ok(answers) => self.within_timeout(transaction.commit(), ErrorKind::Unknown).await.map(|()| answers),
            Err(error) => {
                // After the time limit the database can still be at a statement, whose end no caller waits for.
                tokio::spawn(transaction.give_up());
                Err(error)
            }
        }
    }

    async fn apply_within(
        &self,
        transaction: &mut DatabaseTransaction,
        keys: Vec<Key>,
        group: &[Vec<EngineRow>],
    ) -> Result<Vec<Vec<RowResult>>, SqlError> {
        let mut stored = self.read_rows(transaction, &keys, true).await?;
        let mut records: BTreeMap<Key, RecordInGroup> = BTreeMap::new();
        for key in keys {
            let before = stored.remove(&key).unwrap_or_default();
            let record = self.join(&key, &before);
            records.insert(key, RecordInGroup { before, record, has_changed: false });
        }
        let mut answers: Vec<Vec<RowResult>> = group
            .iter()
            .map(|rows| rows.iter().map(|row| apply_row(&self.rules, &mut records, row)).collect())
            .collect();

        let mut changes = Changes::default();
        for (key, touched) in records {
            let RecordInGroup { before, record: Ok(record), has_changed: true } = touched else { continue };
            let after = match &record {
                Some(record) => rows::split(&key, record, self.utxo_batch_size),
                None => Ok(TableRows::default()),
            };
            match after {
                Ok(after) => changes.add(&before, after),
                Err(error) => refuse_rows(group, &mut answers, &key, &error),
            }
        }
        if !changes.is_empty() {
            transaction.write(&changes).await?;
        }
        Ok(answers)
    }

    pub fn join(&self, key: &Key, rows: &TableRows) -> Result<Option<Record>, EngineError> {
        rows::join(key, rows, self.utxo_batch_size).map_err(|error| EngineError {
            kind: ErrorKind::Fatal,
            operation: "read",
            key: key.to_string(),
            message: error.to_string(),
        })
    }

    /// Reads records; `result[i]` belongs to `keys[i]`.
    pub async fn read(&self, keys: &[Key]) -> Result<Vec<Result<Option<Record>, EngineError>>, SqlError> {
        let mut transaction = self.database.begin_read().await?;
        let distinct: BTreeSet<Key> = keys.iter().copied().collect();
        let distinct: Vec<Key> = distinct.into_iter().collect();
        let stored = self.read_rows(&mut transaction, &distinct, false).await?;
        transaction.commit().await?;
        let none = TableRows::default();
        Ok(keys.iter().map(|key| self.join(key, stored.get(key).unwrap_or(&none))).collect())
    }

    /// Reads the rows of records, and locks the records for this transaction if `locks`.
    async fn read_rows(
        &self,
        transaction: &mut DatabaseTransaction,
        keys: &[Key],
        locks: bool,
    ) -> Result<BTreeMap<Key, TableRows>, SqlError> {
        let mut lists: [Vec<Row>; TABLES.len()] = Default::default();
        for key in keys {
            let (table, row) = table_key(key);
            lists[table].push(row);
        }
        let mut found = BTreeMap::new();
        for table in [OTHER_RECORDS, BLOCKS, TRANSACTIONS] {
            if lists[table].is_empty() {
                continue;
            }
            let filter = if locks { RowFilter::LockedKeys(&lists[table]) } else { RowFilter::Keys(&lists[table]) };
            let rows = transaction.select(&TABLES[table], filter).await?;
            self.add_rows(transaction, table, rows, &mut found).await?;
        }
        Ok(found)
    }

    /// Adds rows of a table by record; for pages with the rows of their outputs and blocks.
    pub async fn add_rows(
        &self,
        transaction: &mut DatabaseTransaction,
        table: usize,
        rows: Vec<Row>,
        found: &mut BTreeMap<Key, TableRows>,
    ) -> Result<(), SqlError> {
        let (mut ranges, mut masters) = (Vec::new(), Vec::new());
        for row in rows {
            let key = key_of(table, &row)?;
            if let Key::Page(txid, page) = key {
                let first = u64::from(page) * u64::from(self.utxo_batch_size);
                ranges.push(vec![bytes(&txid.0), int(first), int(first + u64::from(self.utxo_batch_size) - 1)]);
                if page == 0 {
                    masters.push(vec![bytes(&txid.0)]);
                }
            }
            found.entry(key).or_default().0[table].push(row);
        }
        if !ranges.is_empty() {
            for row in transaction.select(&TABLES[OUTPUTS], RowFilter::Ranges(&ranges)).await? {
                let page = u64_of(&row[1])? / u64::from(self.utxo_batch_size);
                let txid = bytes_of(&row[0])?;
                let page = u32::try_from(page).map_err(|_| SqlError::fatal("an output of no page"))?;
                let rows = found.entry(Key::Page(txid_of(txid)?, page)).or_default();
                rows.0[OUTPUTS].push(row);
            }
        }
        if !masters.is_empty() {
            for row in transaction.select(&TABLES[MINED_IN], RowFilter::Keys(&masters)).await? {
                let key = Key::master(txid_of(bytes_of(&row[0])?)?);
                found.entry(key).or_default().0[MINED_IN].push(row);
            }
        }
        let sort = |rows: &mut Vec<Row>, table: usize| rows.sort_by(|a, b| compare_keys(table, a, b));
        for rows in found.values_mut() {
            sort(&mut rows.0[OUTPUTS], OUTPUTS);
            sort(&mut rows.0[MINED_IN], MINED_IN);
        }
        Ok(())
    }
}

fn compare_keys(table: usize, a: &Row, b: &Row) -> std::cmp::Ordering {
    let columns = TABLES[table].key_columns;
    a[..columns].cmp(&b[..columns])
}

fn apply_row(rules: &Rules, records: &mut BTreeMap<Key, RecordInGroup>, row: &EngineRow) -> RowResult {
    // Every key of the group has an entry; the other arm exists only for the type.
    let Some(touched) = records.get_mut(&row.key) else { return Ok(Outcome::Rejected(Rejection::Unexpected)) };
    match &mut touched.record {
        Ok(record) => {
            let effect = record::apply(rules, &row.key, record, &row.operation);
            touched.has_changed |= effect.changed;
            Ok(effect.outcome)
        }
        Err(error) => Err(error.clone()),
    }
}

/// Answers every row on a record with the error: none of them is written.
fn refuse_rows(group: &[Vec<EngineRow>], answers: &mut [Vec<RowResult>], key: &Key, error: &SplitError) {
    let kind = match error {
        SplitError::TooBig(_) => ErrorKind::TooBig,
        SplitError::TooManySlots { .. } => ErrorKind::Fatal,
    };
    let error = EngineError { kind, operation: "apply", key: key.to_string(), message: error.to_string() };
    for (rows, answers) in group.iter().zip(answers) {
        for (row, answer) in rows.iter().zip(answers) {
            if row.key == *key {
                *answer = Err(error.clone());
            }
        }
    }
}

/// Returns the table of a record and the key of its row.
fn table_key(key: &Key) -> (usize, Row) {
    match key {
        Key::Page(txid, page) => (TRANSACTIONS, vec![bytes(&txid.0), int(*page)]),
        Key::Block(id) => (BLOCKS, vec![int(*id)]),
        Key::LockRecord(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => {
            (OTHER_RECORDS, vec![bytes(KeyBytes::of(key).as_ref())])
        }
    }
}

/// Returns the key of the record of a row.
pub(super) fn key_of(table: usize, row: &[Value]) -> Result<Key, SqlError> {
    match table {
        TRANSACTIONS => page_key(&row[0], &row[1]),
        BLOCKS => Ok(Key::Block(u32_of(&row[0])?)),
        _ => crate::engine::key::decode(bytes_of(&row[0])?).ok_or_else(|| SqlError::fatal("a key of no record")),
    }
}

pub(super) fn page_key(txid: &Value, page: &Value) -> Result<Key, SqlError> {
    Ok(Key::Page(txid_of(bytes_of(txid)?)?, u32_of(page)?))
}

fn txid_of(bytes: &[u8]) -> Result<crate::tx::Txid, SqlError> {
    bytes.try_into().map(crate::tx::Txid).map_err(|_| SqlError::fatal("a txid that has not 32 bytes"))
}

fn bytes_of(value: &Value) -> Result<&[u8], SqlError> {
    if let Value::Bytes(Some(bytes)) = value { Ok(bytes) } else { Err(SqlError::fatal("a key that is absent")) }
}

fn u64_of(value: &Value) -> Result<u64, SqlError> {
    if let Value::Int(Some(number)) = value { Ok(*number as u64) } else { Err(SqlError::fatal("a key that is absent")) }
}

fn u32_of(value: &Value) -> Result<u32, SqlError> {
    u32::try_from(u64_of(value)?).map_err(|_| SqlError::fatal("a key that is out of range"))
}
