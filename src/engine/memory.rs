//! [`MemoryEngine`]: all records in memory; for tests, simulation, benchmarks, and stores that end with their process.
//!
//! Records are spread over shards by the first byte of their transaction id. That byte is as uniform as a hash and
//! keeps the shards in key order: a scan visits one shard after the other and sorts only within a shard.

#[cfg(feature = "testkit")]
mod losses;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use foldhash::fast::FixedState;

use super::{
    Cursor, EngineError, Incarnation, Index, RecordEngine, Row, RowResult, ScanPage, ScanPart, Set,
    key::{self, KeyBytes},
    local::{IndexValues, KeyRange, bad_cursor_error, closed_error, command_after, index_values},
};
use crate::{
    record::{self, Effect, Key, Page, Record, Rules},
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
    closed: AtomicBool,
    #[cfg(feature = "testkit")]
    losses: losses::SimulatedLosses,
}

#[derive(Default)]
struct Shard {
    /// Pages as bare `Arc`s, because a map of whole [`Record`]s would be several times as large. `None` only while an
    /// operation works on the page.
    pages: HashMap<(Txid, u32), Option<Arc<Page>>, FixedState>,
    /// Records that are no pages.
    others: BTreeMap<Key, Record>,
    /// Pages by indexed value. The values are heights and therefore few, and a hash set is faster than an ordered set.
    indexes: [BTreeMap<u64, PageSet>; Index::ALL.len()],
    #[cfg(feature = "testkit")]
    undo_log: losses::UndoLog,
}

type PageSet = HashSet<(Txid, u32), FixedState>;

impl MemoryEngine {
    /// Creates an empty store that loses nothing.
    pub fn new(rules: Rules) -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(TRANSACTION_SHARDS + 1).collect();
        MemoryEngine {
            rules,
            shards,
            closed: AtomicBool::new(false),
            #[cfg(feature = "testkit")]
            losses: losses::SimulatedLosses::default(),
        }
    }

    #[cfg(not(feature = "testkit"))]
    fn apply_row(&self, row: &Row) -> record::Outcome {
        self.lock(shard_of(&row.key)).apply(&self.rules, row).outcome
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
        let decode = |cursor: &Cursor| key::decode(&cursor.0).ok_or_else(bad_cursor_error);
        let after = cursor.as_ref().map(decode).transpose()?;
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
            Set::Commands => Ok(self.scan_commands(command_after(cursor.as_ref())?, limit)),
        }
    }

    async fn scan_part(&self, part: ScanPart, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        let range = KeyRange::of(part);
        Ok(range.clip(self.scan(Set::Transactions, cursor.or_else(|| range.start()), limit).await?))
    }

    #[cfg(feature = "testkit")]
    fn loss_window(&self) -> std::time::Duration {
        self.losses.window()
    }

    #[cfg(feature = "testkit")]
    fn may_lose_parts(&self) -> bool {
        self.losses.may_lose_parts
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        self.check_open("incarnation")?;
        #[cfg(feature = "testkit")]
        return Ok(self.losses.incarnation());
        #[cfg(not(feature = "testkit"))]
        Ok(Incarnation::default())
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

    fn scan_commands(&self, after: Option<[u8; 16]>, limit: usize) -> ScanPage {
        let from = after.map_or(Bound::Included(Key::Command([0; 16])), |id| Bound::Excluded(Key::Command(id)));
        let shard = self.lock(OTHER_SHARD);
        let left = shard.others.range((from, Bound::Unbounded)).take_while(|(key, _)| matches!(key, Key::Command(_)));
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
