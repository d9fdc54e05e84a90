//! Cache of recently read transactions, with one shared read for each transaction that is being read.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::OnceCell, time::Instant};

use super::{BlobError, frame::HashedContent};
use crate::tx::Txid;

/// Holds transactions for a fixed time after they were read. The oldest entry is dropped first when room is needed.
#[derive(Debug)]
pub(super) struct Cache {
    max_age: Duration,
    limit: usize,
    entries: Mutex<CacheEntries>,
}

#[derive(Debug, Default)]
struct CacheEntries {
    contents: HashMap<Txid, (HashedContent, Instant)>,
    /// Insertions, oldest first; a transaction that was inserted twice is in the queue twice.
    order: VecDeque<(Txid, Instant)>,
    size: usize,
    reads: HashMap<Txid, SharedRead>,
}

/// Result of a read; `None`: the blob does not exist.
type ReadResult = Result<Option<HashedContent>, BlobError>;
type SharedRead = Arc<OnceCell<ReadResult>>;

impl Cache {
    /// Creates a cache of at most `limit` bytes. A transaction of more than `limit` bytes is not cached.
    pub fn new(limit: usize, max_age: Duration) -> Self {
        Cache { max_age, limit, entries: Mutex::default() }
    }

    /// Returns whether a transaction of so many bytes fits into the cache.
    pub fn can_hold(&self, bytes: u64) -> bool {
        bytes <= self.limit as u64
    }

    pub fn get(&self, txid: &Txid) -> Option<HashedContent> {
        let mut entries = self.entries();
        entries.expire(self.max_age);
        entries.contents.get(txid).map(|(content, _)| content.clone())
    }

    /// Returns the cached content, or runs `read` and caches its content. Concurrent callers share one read and its
    /// failure; with a store that does not answer, they would otherwise time out one after the other.
    pub async fn get_or_read(&self, txid: Txid, read: impl Future<Output = ReadResult>) -> ReadResult {
        if let Some(content) = self.get(&txid) {
            return Ok(Some(content));
        }
        let shared = self.entries().reads.entry(txid).or_default().clone();
        let pending = PendingRead { cache: self, txid, read: shared };
        let answer = pending.read.get_or_init(|| read).await.clone();
        if let Ok(Some(content)) = &answer {
            pending.insert(content);
        }
        answer
    }

    /// Removes a transaction; a read that is under way is not cached either.
    pub fn remove(&self, txid: &Txid) {
        let mut entries = self.entries();
        entries.remove(txid);
        entries.reads.remove(txid);
    }

    fn entries(&self) -> MutexGuard<'_, CacheEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheEntries {
    fn is_reading(&self, txid: &Txid, read: &SharedRead) -> bool {
        self.reads.get(txid).is_some_and(|current| Arc::ptr_eq(current, read))
    }

    fn insert(&mut self, txid: Txid, content: HashedContent, limit: usize, max_age: Duration) {
        let len = content.bytes.len();
        if len > limit {
            return;
        }
        self.expire(max_age);
        self.remove(&txid);
        while self.size + len > limit && self.drop_oldest() {}
        let now = Instant::now();
        self.size += len;
        self.contents.insert(txid, (content, now));
        self.order.push_back((txid, now));
    }

    fn expire(&mut self, max_age: Duration) {
        while self.order.front().is_some_and(|(_, since)| since.elapsed() >= max_age) {
            self.drop_oldest();
        }
    }

    /// Drops the oldest insertion; returns `false` if the queue is empty.
    fn drop_oldest(&mut self) -> bool {
        let Some((txid, since)) = self.order.pop_front() else { return false };
        if self.contents.get(&txid).is_some_and(|(_, at)| *at == since) {
            self.remove(&txid);
        }
        true
    }

    fn remove(&mut self, txid: &Txid) {
        if let Some((content, _)) = self.contents.remove(txid) {
            self.size -= content.bytes.len();
        }
    }
}

/// A caller's share of a read. The read's entry is removed with its last caller.
struct PendingRead<'c> {
    cache: &'c Cache,
    txid: Txid,
    read: SharedRead,
}

impl PendingRead<'_> {
    /// Caches the content unless the transaction was removed while it was read.
    fn insert(&self, content: &HashedContent) {
        let mut entries = self.cache.entries();
        if entries.is_reading(&self.txid, &self.read) {
            entries.insert(self.txid, content.clone(), self.cache.limit, self.cache.max_age);
        }
    }
}

impl Drop for PendingRead<'_> {
    fn drop(&mut self) {
        let mut entries = self.cache.entries();
        // Two references are left: the entry's and this one.
        let is_over = self.read.initialized() || Arc::strong_count(&self.read) == 2;
        if is_over && entries.is_reading(&self.txid, &self.read) {
            entries.reads.remove(&self.txid);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MAX_AGE: Duration = Duration::from_secs(10);

    fn txid(number: u8) -> Txid {
        Txid([number; 32])
    }

    fn content(len: usize) -> HashedContent {
        HashedContent { bytes: vec![1; len].into(), hash: [1; 32] }
    }

    fn put(cache: &Cache, number: u8, len: usize) {
        cache.entries().insert(txid(number), content(len), cache.limit, cache.max_age);
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_expires_after_the_maximum_age() {
        let cache = Cache::new(100, MAX_AGE);
        put(&cache, 1, 10);
        tokio::time::advance(MAX_AGE / 2).await;
        put(&cache, 2, 20);
        assert_eq!(cache.get(&txid(1)), Some(content(10)));
        tokio::time::advance(MAX_AGE / 2).await;
        assert_eq!((cache.get(&txid(1)), cache.get(&txid(2))), (None, Some(content(20))));
        assert_eq!(cache.entries().size, 20);
        cache.remove(&txid(2));
        assert_eq!((cache.get(&txid(2)), cache.entries().size), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_entries_are_dropped_for_new_ones() {
        let cache = Cache::new(100, MAX_AGE);
        for number in 0..5 {
            put(&cache, number, 30);
        }
        let cached: Vec<u8> = (0..5).filter(|number| cache.get(&txid(*number)).is_some()).collect();
        assert_eq!((cached, cache.entries().size), (vec![2, 3, 4], 90));
        put(&cache, 9, 101);
        assert_eq!(cache.get(&txid(9)), None);
        assert!(cache.get(&txid(2)).is_some(), "an entry that does not fit drops no other entry");

        tokio::time::advance(MAX_AGE / 2).await;
        put(&cache, 2, 30);
        tokio::time::advance(MAX_AGE / 2).await;
        assert!(cache.get(&txid(2)).is_some(), "a second insertion restarts the age");
        assert_eq!(cache.entries().size, 30);
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_read() {
        let cache = Cache::new(100, MAX_AGE);
        let (send, wait) = tokio::sync::oneshot::channel::<()>();
        let first = cache.get_or_read(txid(1), async {
            wait.await.unwrap();
            Ok(Some(content(10)))
        });
        let second = cache.get_or_read(txid(1), async { panic!("read twice") });
        tokio::pin!(first, second);
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        send.send(()).unwrap();
        assert_eq!(tokio::join!(first, second), (Ok(Some(content(10))), Ok(Some(content(10)))));
        assert_eq!(cache.get(&txid(1)), Some(content(10)));
        assert!(cache.entries().reads.is_empty());
    }

    #[tokio::test]
    async fn a_cancelled_read_and_a_read_during_a_remove_are_not_cached() {
        let cache = Cache::new(100, MAX_AGE);
        {
            let cancelled = cache.get_or_read(txid(1), std::future::pending());
            tokio::pin!(cancelled);
            assert!(cancelled.as_mut().now_or_never().is_none());
        }
        assert!(cache.entries().reads.is_empty());
        let removed = cache.get_or_read(txid(1), async {
            cache.remove(&txid(1));
            Ok(Some(content(10)))
        });
        assert_eq!(removed.await, Ok(Some(content(10))));
        assert_eq!(cache.get(&txid(1)), None);
        assert_eq!(cache.get_or_read(txid(1), async { Ok(None) }).await, Ok(None));
        assert!(cache.entries().reads.is_empty());
    }
}
