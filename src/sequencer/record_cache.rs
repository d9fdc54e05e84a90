//! Records that are read ahead for the listed transactions of a block that have lost.
//!
//! Each of them is decided on alone. A record that was read before is read from memory until this sequencer writes it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use foldhash::fast::FixedState;
use tokio::time::Instant;

use crate::{
    engine::{EngineDecorator, EngineError, RecordEngine, Row, RowResult},
    record::{Key, Record},
    sequencer::speculation::estimate_bytes,
};

/// Time for which records are read from memory. A loop that waits for another writer without a reported wait ends then.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Estimated bytes of the records in memory. One request more may exceed the limit.
const MAX_BYTES: usize = 32 << 20;

/// Records as this sequencer has read them last.
///
/// Only the sequencer changes the verdict, the flags and the body of a decided transaction, and gives away a slot.
/// Instances take free slots and create absent records, which a handler learns from the answers to its own operations:
/// it contests a holder, or flags a transaction, before it reads the record. Such an operation removes the record here.
#[derive(Debug)]
pub struct RecordCache(Mutex<CachedRecords>);

#[derive(Debug)]
struct CachedRecords {
    records: HashMap<Key, Option<Record>, FixedState>,
    /// Estimated bytes of all records that were added since the last clear.
    bytes: usize,
    /// Time of the oldest read.
    since: Instant,
}

impl CachedRecords {
    fn clear(&mut self) {
        (self.records, self.bytes) = (HashMap::default(), 0);
    }
}

impl Default for RecordCache {
    fn default() -> Self {
        RecordCache(Mutex::new(CachedRecords { records: HashMap::default(), bytes: 0, since: Instant::now() }))
    }
}

impl RecordCache {
    fn lock(&self) -> MutexGuard<'_, CachedRecords> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all records: a wait is about to begin, and ends by a change of the store.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Returns whether the records take as much memory as they may.
    pub fn is_full(&self) -> bool {
        self.lock().bytes >= MAX_BYTES
    }

    fn find(&self, keys: &[Key]) -> Vec<Option<Option<Record>>> {
        let mut cached = self.lock();
        if cached.since.elapsed() > MAX_AGE {
            cached.clear();
        }
        keys.iter().map(|key| cached.records.get(key).cloned()).collect()
    }

    fn add(&self, since: Instant, records: impl Iterator<Item = (Key, Option<Record>)>) {
        let mut cached = self.lock();
        if cached.bytes >= MAX_BYTES {
            cached.clear();
        }
        if cached.records.is_empty() {
            cached.since = since;
        }
        for (key, record) in records {
            cached.bytes += record.as_ref().map_or(0, estimate_bytes);
            cached.records.insert(key, record);
        }
    }

    fn remove(&self, rows: &[Row]) {
        let mut cached = self.lock();
        for row in rows {
            cached.records.remove(&row.key);
        }
    }
}

/// The store of a handler with a cache. Every read adds to the cache, and every write removes from it.
pub struct CachedEngine {
    pub inner: Arc<dyn RecordEngine>,
    pub cache: Arc<RecordCache>,
}

impl EngineDecorator for CachedEngine {
    fn inner(&self) -> &dyn RecordEngine {
        self.inner.as_ref()
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let mut found = self.cache.find(keys);
        let is_missing = |(_, found): &(&Key, &Option<Option<Record>>)| found.is_none();
        let missing: Vec<Key> = keys.iter().zip(&found).filter(is_missing).map(|(key, _)| *key).collect();
        if missing.is_empty() {
            return found.into_iter().flatten().map(Ok).collect();
        }
        let since = Instant::now();
        let read = self.inner.read(&missing).await;
        let good = missing.iter().zip(&read).filter_map(|(key, read)| Some((*key, read.as_ref().ok()?.clone())));
        self.cache.add(since, good);
        let mut read = read.into_iter();
        let answer = |found: &mut Option<Option<Record>>| match found.take() {
            Some(record) => Ok(record),
            None => read.next().unwrap_or_else(|| unreachable!("an answer a key")),
        };
        found.iter_mut().map(answer).collect()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        self.cache.remove(rows);
        let results = self.inner.apply(rows).await;
        // Another batch of the same call may have been read in between.
        self.cache.remove(rows);
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Operation, Phase, Sequenced, Stamp, TxState},
        store::{StateStore, testing},
        tx::Txid,
    };

    const TXID: Txid = Txid([1; 32]);

    fn cached(store: &StateStore) -> (StateStore, Arc<RecordCache>) {
        let cache = Arc::new(RecordCache::default());
        let engine = CachedEngine { inner: store.engine.clone(), cache: cache.clone() };
        (StateStore { engine: Arc::new(engine), ..store.clone() }, cache)
    }

    async fn contest(store: &StateStore) {
        let operation = Operation::Sequenced(Stamp::in_era(0, 1, Phase::Apply), Sequenced::MarkContested);
        store.apply(vec![Row { key: Key::master(TXID), operation }]).await.unwrap();
    }

    async fn is_stub(store: &StateStore) -> bool {
        let master = store.master(TXID).await.unwrap();
        master.is_some_and(|page| matches!(page.state(), TxState::Stub(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_read_again_after_a_write_a_wait_and_a_second() {
        let store = testing::store(4);
        let (own, cache) = cached(&store);
        assert!(!is_stub(&own).await);
        contest(&store).await;
        assert!(!is_stub(&own).await, "another writer");
        tokio::time::advance(MAX_AGE + Duration::from_millis(1)).await;
        assert!(is_stub(&own).await, "after a second");

        let store = testing::store(4);
        let (own, _) = cached(&store);
        assert!(!is_stub(&own).await);
        contest(&own).await;
        assert!(is_stub(&own).await, "its own write");

        let store = testing::store(4);
        let (own, cache_of_wait) = cached(&store);
        assert!(!is_stub(&own).await);
        contest(&store).await;
        cache_of_wait.clear();
        assert!(is_stub(&own).await, "after a wait");
        drop(cache);
    }

    #[tokio::test(start_paused = true)]
    async fn known_and_unknown_records_are_answered_in_the_order_of_the_keys() {
        let store = testing::store(4);
        let (own, _) = cached(&store);
        contest(&store).await;
        let key = |tag: u8| Key::master(Txid([tag; 32]));
        own.read(vec![key(1), key(3)]).await.unwrap();
        let read = own.read(vec![key(2), key(1), key(3), key(4)]).await.unwrap();
        assert_eq!(read.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false, false]);
    }
}
