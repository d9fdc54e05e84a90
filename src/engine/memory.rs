//! [`MemoryEngine`]: all records in memory; for tests, simulation and benchmarks.
//!
//! Records are spread over shards by the first byte of their transaction id. That byte is as uniform as a hash and
//! keeps the shards in key order: a scan visits one shard after the other and sorts only within a shard.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use foldhash::fast::FixedState;

use super::{
    Cursor, EngineError, Incarnation, Index, RecordEngine, Row, RowResult, ScanPage, Set,
    key::{self, KeyBytes},
    local::{IndexValues, bad_cursor_error, closed_error, index_values},
    undo_log::UndoLog,
};
use crate::{
    clock::Clock,
    record::{self, Effect, Key, Outcome, Page, Record, Rules},
    tx::Txid,
};

const TRANSACTION_SHARDS: usize = 256;
/// Block records and the meta record have a shard of their own, after the others.
const OTHER_SHARD: usize = TRANSACTION_SHARDS;

/// A store that lives as long as the process. Concurrent tasks wait for each other only within a shard, for the time of
/// one operation.
pub struct MemoryEngine {
    rules: Rules,
    shards: Vec<Mutex<Shard>>,
    undo_window: Option<UndoWindow>,
    may_lose_parts: bool,
    /// Number of simulated restarts.
    restarts: AtomicU64,
    closed: AtomicBool,
}

/// Time for which changes can be undone.
struct UndoWindow {
    clock: Clock,
    period: Duration,
}

#[derive(Default)]
struct Shard {
    /// Pages as bare `Arc`s, because a map of whole [`Record`]s would be several times as large. `None` only while an
    /// operation works on the page.
    pages: HashMap<(Txid, u32), Option<Arc<Page>>, FixedState>,
    /// Records that are no pages.
    others: BTreeMap<Key, Record>,
    /// Pages by indexed value. The values are heights and therefore few, and a hash set is faster than an ordered set.
    indexes: [BTreeMap<u64, PageSet>; 3],
    undo_log: UndoLog,
}

type PageSet = HashSet<(Txid, u32), FixedState>;

impl MemoryEngine {
    /// Creates an empty store that loses nothing.
    pub fn new(rules: Rules) -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(TRANSACTION_SHARDS + 1).collect();
        MemoryEngine {
            rules,
            shards,
            undo_window: None,
            may_lose_parts: false,
            restarts: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Creates an empty store that can [lose changes](Self::lose_changes_since) acknowledged within `period`. It stands
    /// in for a database that acknowledges before it syncs, and costs a copy of each changed page.
    pub fn with_loss_window(rules: Rules, clock: Clock, period: Duration) -> Self {
        MemoryEngine { undo_window: Some(UndoWindow { clock, period }), ..MemoryEngine::new(rules) }
    }

    /// Returns the store as one that [may lose parts](RecordEngine::may_lose_parts), in place of a cluster.
    #[must_use]
    pub fn with_losable_parts(self) -> Self {
        MemoryEngine { may_lose_parts: true, ..self }
    }

    /// Undoes the changes made at or after `since_ms` (milliseconds since the epoch, by the engine's clock) to the
    /// records that `lost` picks, within the loss window, and returns the number of undone changes. A `lost` by key
    /// simulates the restart of one node of a cluster. The incarnation changes even if no change is undone.
    pub fn lose_changes_since(&self, since_ms: u64, lost: impl Fn(&Key) -> bool) -> usize {
        let mut undone = 0;
        for number in 0..self.shards.len() {
            let shard = &mut *self.lock(number);
            for (key, before) in shard.undo_log.take_since(since_ms, &lost) {
                shard.put(key, before);
                undone += 1;
            }
        }
        // The incarnation changes last: a reader of the new incarnation sees every loss. A reader of the old one may.
        self.restarts.fetch_add(1, Ordering::AcqRel);
        undone
    }

    /// Replaces a record without any check, in place of a node that comes back with an older record.
    pub fn put(&self, key: Key, record: Option<Record>) {
        self.lock(shard_of(&key)).put(key, record);
    }

    /// Returns the number of simulated restarts.
    pub fn restart_count(&self) -> u64 {
        self.restarts.load(Ordering::Acquire)
    }

    fn apply_row(&self, row: &Row) -> Outcome {
        let mut shard = self.lock(shard_of(&row.key));
        let Some(UndoWindow { clock, period }) = &self.undo_window else {
            return shard.apply(&self.rules, row).outcome;
        };
        let before = shard.get(&row.key);
        let Effect { outcome, changed } = shard.apply(&self.rules, row);
        if changed {
            let now_ms = clock.now_ms();
            shard.undo_log.push(now_ms, row.key, before);
            shard.undo_log.drop_before(now_ms.saturating_sub(period.as_millis() as u64));
        }
        outcome
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // A shard is poisoned after a panic of another task; a second panic here would hide that one in a test.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_open(&self, operation: &'static str) -> Result<(), EngineError> {
        if self.closed.load(Ordering::Acquire) { Err(closed_error(operation, "any")) } else { Ok(()) }
    }
}

fn shard_of(key: &Key) -> usize {
    match key {
        Key::Page(txid, _) | Key::LockRecord(txid) => usize::from(txid.0[0]),
        Key::Block(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => OTHER_SHARD,
    }
}

impl Shard {
    fn get(&self, key: &Key) -> Option<Record> {
        match key {
            Key::Page(txid, page) => self.pages.get(&(*txid, *page))?.clone().map(Record::Page),
            other => self.others.get(other).cloned(),
        }
    }

    fn apply(&mut self, rules: &Rules, row: &Row) -> Effect {
        match row.key {
            Key::Page(txid, page) => self.apply_to_page(rules, row, (txid, page)),
            key => {
                let mut record = self.others.remove(&key);
                let effect = record::apply(rules, &row.key, &mut record, &row.operation);
                if let Some(record) = record {
                    self.others.insert(key, record);
                }
                effect
            }
        }
    }

    /// Applies a row to a page. The page is taken out of the map meanwhile, so that it is neither shared nor copied.
    fn apply_to_page(&mut self, rules: &Rules, row: &Row, position: (Txid, u32)) -> Effect {
        let entry = self.pages.entry(position).or_default();
        let mut record = entry.take().map(Record::Page);
        let before = index_values(record.as_ref());
        let effect = record::apply(rules, &row.key, &mut record, &row.operation);
        let after = index_values(record.as_ref());
        // The record of a page key is always a page; the other arm exists only for the type.
        *entry = record.and_then(|record| if let Record::Page(page) = record { Some(page) } else { None });
        if entry.is_none() {
            self.pages.remove(&position);
        }
        self.reindex(position, before, after);
        effect
    }

    /// Replaces the record at `key`; `None` removes the record.
    fn put(&mut self, key: Key, record: Option<Record>) {
        match (key, record) {
            (Key::Page(txid, number), record) => {
                let before = index_values(self.get(&key).as_ref());
                let after = index_values(record.as_ref());
                match record {
                    Some(Record::Page(page)) => drop(self.pages.insert((txid, number), Some(page))),
                    _ => drop(self.pages.remove(&(txid, number))),
                }
                self.reindex((txid, number), before, after);
            }
            (key, Some(record)) => drop(self.others.insert(key, record)),
            (key, None) => drop(self.others.remove(&key)),
        }
    }

    fn reindex(&mut self, (txid, page): (Txid, u32), before: IndexValues, after: IndexValues) {
        for ((index, before), after) in self.indexes.iter_mut().zip(before).zip(after) {
            if before == after {
                continue;
            }
            if let Some(value) = before
                && let Some(pages) = index.get_mut(&value)
            {
                pages.remove(&(txid, page));
                if pages.is_empty() {
                    index.remove(&value);
                }
            }
            if let Some(value) = after {
                index.entry(value).or_default().insert((txid, page));
            }
        }
    }

    /// Returns the first `limit` keys of this shard after `after`, in order.
    fn keys_after(&self, after: Option<MemoryPosition>, limit: usize) -> Vec<MemoryPosition> {
        let pages = self.pages.keys().map(|&(txid, page)| (txid, u64::from(page)));
        let mut keys: Vec<MemoryPosition> = pages
            .chain(self.others.keys().filter_map(scan_position))
            .filter(|key| after.is_none_or(|a| *key > a))
            .collect();
        if keys.len() > limit {
            keys.select_nth_unstable(limit);
            keys.truncate(limit);
        }
        keys.sort_unstable();
        keys
    }
}

/// A record's position in a scan: the pages of a transaction by number, then its lock record.
type MemoryPosition = (Txid, u64);

fn scan_position(key: &Key) -> Option<MemoryPosition> {
    match key {
        Key::Page(txid, page) => Some((*txid, u64::from(*page))),
        Key::LockRecord(txid) => Some((*txid, u64::MAX)),
        Key::Block(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => None,
    }
}

fn key_at_position((txid, rank): MemoryPosition) -> Key {
    u32::try_from(rank).map_or(Key::LockRecord(txid), |page| Key::Page(txid, page))
}

#[async_trait]
impl RecordEngine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        if let Err(error) = self.check_open("apply") {
            return vec![Err(error); rows.len()];
        }
        rows.iter().map(|row| Ok(self.apply_row(row))).collect()
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        if let Err(error) = self.check_open("read") {
            return vec![Err(error); keys.len()];
        }
        keys.iter().map(|key| Ok(self.lock(shard_of(key)).get(key))).collect()
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.check_open("query")?;
        let mut found = Vec::new();
        if from <= to {
            for number in 0..TRANSACTION_SHARDS {
                let shard = self.lock(number);
                let mut left = limit;
                for (value, pages) in shard.indexes[index as usize].range(from..=to) {
                    if left == 0 {
                        break;
                    }
                    found.extend(pages.iter().map(|(txid, page)| (*value, *txid, *page)));
                    left = left.saturating_sub(pages.len());
                }
            }
        }
        found.sort_unstable();
        Ok(found.into_iter().take(limit).map(|(_, txid, page)| Key::Page(txid, page)).collect())
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.check_open("scan")?;
        let after = cursor.map(|cursor| key::decode(&cursor.0).ok_or_else(bad_cursor_error)).transpose()?;
        let limit = limit.max(1);
        match set {
            Set::Transactions => {
                let after = after.map(|key| scan_position(&key).ok_or_else(bad_cursor_error)).transpose()?;
                Ok(self.scan_transactions(after, limit))
            }
            Set::Blocks => {
                let after = after
                    .map(|key| if let Key::Block(id) = key { Ok(id) } else { Err(bad_cursor_error()) })
                    .transpose()?;
                Ok(self.scan_blocks(after, limit))
            }
        }
    }

    fn loss_window(&self) -> Duration {
        self.undo_window.as_ref().map_or(Duration::ZERO, |window| window.period)
    }

    fn may_lose_parts(&self) -> bool {
        self.may_lose_parts
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        self.check_open("incarnation")?;
        let incarnation = || Incarnation(format!("memory-{}", self.restart_count()));
        Ok(self.undo_window.as_ref().map_or_else(Incarnation::default, |_| incarnation()))
    }

    async fn close(&self) -> Result<(), EngineError> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}

impl MemoryEngine {
    fn scan_transactions(&self, after: Option<MemoryPosition>, limit: usize) -> ScanPage {
        let mut records = Vec::new();
        let first = after.map_or(0, |(txid, _)| usize::from(txid.0[0]));
        for number in first..TRANSACTION_SHARDS {
            let shard = self.lock(number);
            for position in shard.keys_after(after, limit - records.len()) {
                let key = key_at_position(position);
                records.extend(shard.get(&key).map(|record| (key, record)));
            }
            if records.len() >= limit {
                break;
            }
        }
        page_of(records, limit)
    }

    fn scan_blocks(&self, after: Option<u32>, limit: usize) -> ScanPage {
        let from = after.map_or(Bound::Included(Key::Block(0)), |id| Bound::Excluded(Key::Block(id)));
        let shard = self.lock(OTHER_SHARD);
        let left = shard.others.range((from, Bound::Unbounded)).take_while(|(key, _)| matches!(key, Key::Block(_)));
        page_of(left.take(limit).map(|(key, record)| (*key, record.clone())).collect(), limit)
    }
}

/// Builds a page of a scan. A full page always has a next page, which may be empty.
fn page_of(records: Vec<(Key, Record)>, limit: usize) -> ScanPage {
    let full = records.len() >= limit;
    let next = records.last().filter(|_| full).map(|(key, _)| Cursor(KeyBytes::of(key).as_ref().to_vec()));
    ScanPage { records, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::conformance::{RULES, fixtures::*};

    async fn spent(engine: &MemoryEngine, n: u8) -> Option<u32> {
        let record = engine.read(&[Key::master(txid(n))]).await.remove(0).unwrap();
        record.as_ref().and_then(Record::page).map(|page| page.spent_utxos)
    }

    #[tokio::test(start_paused = true)]
    async fn lost_changes_are_undone_in_records_and_indexes() {
        let engine = MemoryEngine::with_loss_window(RULES, Clock::simulated(1_000), Duration::from_secs(10));
        engine.apply(&[create(page(1, 2)), create(page(2, 2))]).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        engine.apply(&[spend(txid(1), 9, &[0]), create(page(3, 2))]).await;
        engine.apply(&[spend(txid(1), 9, &[1]), spend(txid(3), 9, &[0])]).await;
        assert_eq!((spent(&engine, 1).await, spent(&engine, 3).await), (Some(2), Some(1)));
        assert_eq!(engine.lose_changes_since(2_000, |_| true), 4);
        assert_eq!((spent(&engine, 1).await, spent(&engine, 3).await), (Some(0), None));
        let unmined = engine.query(Index::UnminedSince, 0, u64::MAX, 10).await.unwrap();
        assert_eq!(unmined, [Key::master(txid(1)), Key::master(txid(2))]);
        assert_eq!(engine.lose_changes_since(0, |_| true), 2, "the creates");
        assert_eq!(engine.scan(Set::Transactions, None, 10).await.unwrap().records, []);
    }

    #[tokio::test(start_paused = true)]
    async fn one_node_loses_changes_only_within_the_loss_window() {
        let engine = MemoryEngine::with_loss_window(RULES, Clock::simulated(1_000), Duration::from_secs(10));
        engine.apply(&[create(page(1, 2)), create(page(2, 2))]).await;
        tokio::time::advance(Duration::from_secs(11)).await;
        engine.apply(&[spend(txid(1), 9, &[0]), spend(txid(2), 9, &[0])]).await;
        assert_eq!(engine.lose_changes_since(0, |key| *key == Key::master(txid(2))), 1, "the create is too old");
        assert_eq!((spent(&engine, 1).await, spent(&engine, 2).await), (Some(1), Some(0)));
    }

    #[tokio::test]
    async fn a_page_with_one_owner_is_changed_in_place() {
        let engine = MemoryEngine::new(RULES);
        engine.apply(&[create(page(1, 2))]).await;
        let address = |engine: &MemoryEngine| Arc::as_ptr(engine.lock(1).pages[&(txid(1), 0)].as_ref().unwrap());
        let before = address(&engine);
        engine.apply(&[spend(txid(1), 9, &[0])]).await;
        assert_eq!(before, address(&engine), "copied");
    }
}
