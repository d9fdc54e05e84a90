//! [`SqlEngine`]: the calls of an engine.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    database::RowFilter,
    errors::SqlError,
    tables::{BLOCKS, OTHER_RECORDS, Row as TableRow, TABLES, TRANSACTIONS, Value, bytes, int},
    writer::{self, QueuedRows, SqlStore, key_of, page_key},
};
use crate::{
    engine::{
        Cursor, EngineError, ErrorKind, Index, KeyPage, RecordEngine, Row, RowResult, ScanPage, ScanPart, Set,
        key::{self, KeyBytes},
        local::{KeyRange, bad_cursor_error, closed_error},
    },
    record::{Key, Record},
};

/// Calls that wait for a writer, at most. With a full queue `apply` waits.
const CALL_QUEUE: usize = 256;
/// Keys of one part of an index query, at most.
const QUERY_PART: u64 = 4_096;
/// Records of one page of a scan, at most.
const SCAN_PAGE: usize = 4_096;
/// Bytes of a cursor of an index query before its key: the value.
const CURSOR_VALUE: usize = 8;

/// A store in SQLite or PostgreSQL. Every acknowledged row is durable.
pub struct SqlEngine {
    name: &'static str,
    /// The open store; `None` once the engine is closed.
    open: Mutex<Option<OpenSqlStore>>,
}

struct OpenSqlStore {
    store: SqlStore,
    calls: mpsc::Sender<QueuedRows>,
    writers: Vec<JoinHandle<()>>,
}

impl SqlEngine {
    pub(super) fn start(store: SqlStore) -> Self {
        let (calls, queue) = mpsc::channel(CALL_QUEUE);
        let writers = writer::start(&store, queue);
        SqlEngine { name: store.database.name(), open: Mutex::new(Some(OpenSqlStore { store, calls, writers })) }
    }

    fn handles(&self, operation: &'static str) -> Result<(SqlStore, mpsc::Sender<QueuedRows>), EngineError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let handles = open.as_ref().map(|open| (open.store.clone(), open.calls.clone()));
        handles.ok_or_else(|| closed_error(operation, "any"))
    }

    async fn call(&self, rows: &[Row]) -> Result<Vec<RowResult>, EngineError> {
        let (_, calls) = self.handles("apply")?;
        let (reply, answers) = oneshot::channel();
        let call = QueuedRows { rows: rows.to_vec(), reply };
        calls.send(call).await.map_err(|_| closed_error("apply", "any"))?;
        drop(calls);
        answers.await.map_err(|_| EngineError {
            kind: ErrorKind::Unknown,
            operation: "apply",
            key: "any".to_owned(),
            message: "the writer of the database stopped".to_owned(),
        })
    }

    /// Returns the first keys of an index after a cursor, each with its value.
    async fn select_index(
        &self,
        index: Index,
        (from, to): (u64, u64),
        after: Option<&TableRow>,
        limit: u64,
    ) -> Result<Vec<(u64, Key)>, EngineError> {
        let (store, _) = self.handles("query")?;
        // Values above are stored as negative numbers; neither heights nor times are that large.
        let greatest = i64::MAX as u64;
        if from > to || from > greatest || limit == 0 {
            return Ok(Vec::new());
        }
        let (column, condition) = match index {
            Index::DeleteAtHeight => ("delete_at_height", ""),
            Index::UnminedSince => ("unmined_since", ""),
            Index::CreatingAt => ("creating_at", ""),
            Index::Verdict => ("verdict", "AND pruned IS NULL"),
        };
        let (from, to) = (from as i64, to.min(greatest) as i64);
        let filter = RowFilter::Indexed { column, condition, from, to, after, limit: limit.min(greatest) };
        let select = async {
            let mut transaction = store.database.begin_read().await?;
            let rows = transaction.select(&TABLES[TRANSACTIONS], filter).await?;
            transaction.commit().await?;
            rows.iter().map(|row| index_entry(row)).collect()
        };
        let selected: Result<Vec<(u64, Key)>, SqlError> = store.within_timeout(select, ErrorKind::Retryable).await;
        selected.map_err(|error| error.into_engine_error("query"))
    }
}

fn index_entry(row: &[Value]) -> Result<(u64, Key), SqlError> {
    match row {
        [Value::Int(Some(value)), txid, page] => Ok((*value as u64, page_key(txid, page)?)),
        _ => Err(SqlError::fatal("an index entry without a key")),
    }
}

#[async_trait]
impl RecordEngine for SqlEngine {
    fn name(&self) -> &'static str {
        self.name
    }

    /// A server can be replaced by one with other data, and a part of its tables can be restored or removed.
    fn may_lose_parts(&self) -> bool {
        self.name == "postgres"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        if rows.is_empty() {
            return Vec::new();
        }
        self.call(rows).await.unwrap_or_else(|error| vec![Err(error); rows.len()])
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        if keys.is_empty() {
            return Vec::new();
        }
        let read = async {
            let (store, _) = self.handles("read")?;
            let read = store.within_timeout(store.read(keys), ErrorKind::Retryable).await;
            read.map_err(|error| error.into_engine_error("read"))
        };
        read.await.unwrap_or_else(|error| vec![Err(error); keys.len()])
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        let found = self.select_index(index, (from, to), None, limit as u64).await?;
        Ok(found.into_iter().map(|(_, key)| key).collect())
    }

    async fn query_part(
        &self,
        index: Index,
        range: (u64, u64),
        cursor: Option<Cursor>,
    ) -> Result<KeyPage, EngineError> {
        let after = cursor.map(|cursor| decode_index_cursor(&cursor.0).ok_or_else(bad_cursor_error)).transpose()?;
        // A cursor of another query can lie before the range.
        let after = after.filter(|entry| matches!(entry[0], Value::Int(Some(value)) if value as u64 >= range.0));
        let found = self.select_index(index, range, after.as_ref(), QUERY_PART).await?;
        let cursor = |(value, key): &(u64, Key)| Cursor([&value.to_be_bytes(), KeyBytes::of(key).as_ref()].concat());
        let after: Vec<Cursor> = found.iter().map(cursor).collect();
        let next = after.last().filter(|_| found.len() as u64 == QUERY_PART).cloned();
        Ok(KeyPage { keys: found.into_iter().map(|(_, key)| key).collect(), after, next })
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        let (store, _) = self.handles("scan")?;
        let after = cursor.map(|cursor| key::decode(&cursor.0).ok_or_else(bad_cursor_error)).transpose()?;
        let limit = limit.clamp(1, SCAN_PAGE);
        let scan = async {
            match (set, after) {
                (Set::Blocks, None) => scan_table(&store, BLOCKS, None, limit).await,
                (Set::Blocks, Some(Key::Block(id))) => scan_table(&store, BLOCKS, Some(vec![int(id)]), limit).await,
                (Set::Transactions, None) => scan_pages(&store, None, limit).await,
                (Set::Transactions, Some(Key::Page(txid, page))) => {
                    scan_pages(&store, Some(vec![bytes(&txid.0), int(page)]), limit).await
                }
                (Set::Transactions, Some(key @ Key::LockRecord(_))) => {
                    scan_others(&store, is_lock_record, Some(key), limit).await
                }
                (Set::Commands, after @ (None | Some(Key::Command(_)))) => {
                    scan_others(&store, is_command, after, limit).await
                }
                _ => Err(SqlError::fatal(bad_cursor_error().message)),
            }
        };
        store.within_timeout(scan, ErrorKind::Retryable).await.map_err(|error| error.into_engine_error("scan"))
    }

    async fn scan_part(&self, part: ScanPart, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        let (range, is_last) = (KeyRange::of(part), part.number + 1 >= part.count);
        let after = match (cursor.or_else(|| range.start()), is_last) {
            (None, _) => None,
            (Some(cursor), is_last) => match (key::decode(&cursor.0), is_last) {
                (Some(Key::Page(txid, page)), _) => Some(vec![bytes(&txid.0), int(page)]),
                // A part begins behind the last key of the txids before.
                (Some(Key::LockRecord(txid)), false) => Some(vec![bytes(&txid.0), int(u32::MAX)]),
                (Some(Key::LockRecord(txid)), true) if Some(&cursor) == range.start().as_ref() => {
                    Some(vec![bytes(&txid.0), int(u32::MAX)])
                }
                // The lock records, which a scan reads after all pages, are in the last part.
                (Some(Key::LockRecord(_)), true) => return self.scan(Set::Transactions, Some(cursor), limit).await,
                _ => return Err(bad_cursor_error()),
            },
        };
        let (store, _) = self.handles("scan")?;
        let limit = limit.clamp(1, SCAN_PAGE);
        let scan = async {
            match is_last {
                true => scan_pages(&store, after, limit).await,
                false => scan_table(&store, TRANSACTIONS, after, limit).await,
            }
        };
        let page = store.within_timeout(scan, ErrorKind::Retryable).await;
        let page = page.map_err(|error| error.into_engine_error("scan"))?;
        Ok(if is_last { page } else { range.clip(page) })
    }

    async fn close(&self) -> Result<(), EngineError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(OpenSqlStore { store, calls, writers }) = open else { return Ok(()) };
        drop(calls);
        for writer in writers {
            let message = |error| format!("a writer of the database stopped: {error}");
            writer.await.map_err(|error| SqlError::fatal(message(error)).into_engine_error("close"))?;
        }
        store.database.close().await;
        Ok(())
    }
}

fn decode_index_cursor(cursor: &[u8]) -> Option<TableRow> {
    let (value, key) = cursor.split_at_checked(CURSOR_VALUE)?;
    let Key::Page(txid, page) = key::decode(key)? else { return None };
    Some(vec![int(u64::from_be_bytes(value.try_into().ok()?)), bytes(&txid.0), int(page)])
}

/// Scans pages, and after the last page the lock records.
async fn scan_pages(store: &SqlStore, after: Option<TableRow>, limit: usize) -> Result<ScanPage, SqlError> {
    let page = scan_table(store, TRANSACTIONS, after, limit).await?;
    if page.next.is_some() {
        return Ok(page);
    }
    let mut records = page.records;
    let rest = scan_others(store, is_lock_record, None, limit.saturating_sub(records.len()).max(1)).await?;
    records.extend(rest.records);
    Ok(ScanPage { records, next: rest.next })
}

fn is_lock_record(key: &Key) -> bool {
    matches!(key, Key::LockRecord(_))
}

fn is_command(key: &Key) -> bool {
    matches!(key, Key::Command(_))
}

/// Scans the records of one kind in `other_records`.
async fn scan_others(
    store: &SqlStore,
    is_wanted: fn(&Key) -> bool,
    after: Option<Key>,
    limit: usize,
) -> Result<ScanPage, SqlError> {
    let mut after = after.map(|key| vec![bytes(KeyBytes::of(&key).as_ref())]);
    let mut records = Vec::new();
    loop {
        let page = scan_table(store, OTHER_RECORDS, after, limit).await?;
        records.extend(page.records.into_iter().filter(|(key, _)| is_wanted(key)));
        let last = records.last().filter(|_| records.len() >= limit);
        if let Some((key, _)) = last {
            return Ok(ScanPage { next: Some(cursor_at(key)), records });
        }
        match page.next {
            Some(Cursor(key)) => after = Some(vec![bytes(&key)]),
            None => return Ok(ScanPage { records, next: None }),
        }
    }
}

async fn scan_table(
    store: &SqlStore,
    table: usize,
    after: Option<TableRow>,
    limit: usize,
) -> Result<ScanPage, SqlError> {
    let mut transaction = store.database.begin_read().await?;
    let rows = transaction.select(&TABLES[table], RowFilter::After(after.as_ref(), limit as u64)).await?;
    let last = rows.last().filter(|_| rows.len() == limit).map(|row| key_of(table, row)).transpose()?;
    let mut found = BTreeMap::new();
    store.add_rows(&mut transaction, table, rows, &mut found).await?;
    transaction.commit().await?;
    let mut records = Vec::with_capacity(found.len());
    for (key, rows) in found {
        let record = store.join(&key, &rows).map_err(|error| SqlError::fatal(error.to_string()))?;
        records.extend(record.map(|record| (key, record)));
    }
    Ok(ScanPage { records, next: last.as_ref().map(cursor_at) })
}

fn cursor_at(key: &Key) -> Cursor {
    Cursor(KeyBytes::of(key).as_ref().to_vec())
}
