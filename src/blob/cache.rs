//! Transactions that were read a moment ago, and those that are being read.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::OnceCell, time::Instant};

use super::BlobError;
use crate::tx::Txid;

/// Keeps what was read for a while; the oldest goes first when room is needed.
#[derive(Debug)]
pub(super) struct Cache {
    keep: Duration,
    limit: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: HashMap<Txid, (Bytes, Instant)>,
    /// As they were put in, which is as they go; of one that was put in again both.
    order: VecDeque<(Txid, Instant)>,
    size: usize,
    reads: HashMap<Txid, SharedRead>,
}

/// What a read answers.
type Read = Result<Option<Bytes>, BlobError>;
type SharedRead = Arc<OnceCell<Read>>;

impl Cache {
    /// Holds at most `limit` bytes, each transaction for `keep`. One of more than `limit` bytes is not held.
    pub fn new(limit: usize, keep: Duration) -> Self {
        Cache { keep, limit, held: Mutex::default() }
    }

    /// Whether a transaction of so many bytes can be held.
    pub fn takes(&self, bytes: u64) -> bool {
        bytes <= self.limit as u64
    }

    pub fn get(&self, txid: &Txid) -> Option<Bytes> {
        let mut held = self.held();
        held.expire(self.keep);
        held.bytes.get(txid).map(|(bytes, _)| bytes.clone())
    }

    /// What is kept, or else what `read` answers, which is kept. Those who ask at once share one read, and its failure: over a
    /// store that does not answer they would else wait one after the other.
    pub async fn get_or_read(&self, txid: Txid, read: impl Future<Output = Read>) -> Read {
        if let Some(bytes) = self.get(&txid) {
            return Ok(Some(bytes));
        }
        let shared = self.held().reads.entry(txid).or_default().clone();
        let waiting = Waiting { cache: self, txid, read: shared };
        let answer = waiting.read.get_or_init(|| read).await.clone();
        if let Ok(Some(bytes)) = &answer {
            waiting.keep(bytes);
        }
        answer
    }

    /// What was read before this, or is being read, is not kept.
    pub fn remove(&self, txid: &Txid) {
        let mut held = self.held();
        held.remove(txid);
        held.reads.remove(txid);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn is_reading(&self, txid: &Txid, read: &SharedRead) -> bool {
        self.reads.get(txid).is_some_and(|current| Arc::ptr_eq(current, read))
    }

    fn put(&mut self, txid: Txid, bytes: Bytes, limit: usize, keep: Duration) {
        if bytes.len() > limit {
            return;
        }
        self.expire(keep);
        self.remove(&txid);
        while self.size + bytes.len() > limit && self.drop_oldest() {}
        let now = Instant::now();
        self.size += bytes.len();
        self.bytes.insert(txid, (bytes, now));
        self.order.push_back((txid, now));
    }

    fn expire(&mut self, keep: Duration) {
        while self.order.front().is_some_and(|(_, since)| since.elapsed() >= keep) {
            self.drop_oldest();
        }
    }

    /// `false`: there is none.
    fn drop_oldest(&mut self) -> bool {
        let Some((txid, since)) = self.order.pop_front() else { return false };
        if self.bytes.get(&txid).is_some_and(|(_, at)| *at == since) {
            self.remove(&txid);
        }
        true
    }

    fn remove(&mut self, txid: &Txid) {
        if let Some((bytes, _)) = self.bytes.remove(txid) {
            self.size -= bytes.len();
        }
    }
}

/// A read under way. Its entry goes with the last who waits for it.
struct Waiting<'c> {
    cache: &'c Cache,
    txid: Txid,
    read: SharedRead,
}

impl Waiting<'_> {
    /// Keeps what was read, unless somebody has changed it meanwhile.
    fn keep(&self, bytes: &Bytes) {
        let mut held = self.cache.held();
        if held.is_reading(&self.txid, &self.read) {
            held.put(self.txid, bytes.clone(), self.cache.limit, self.cache.keep);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut held = self.cache.held();
        let is_over = self.read.initialized() || Arc::strong_count(&self.read) == 2;
        if is_over && held.is_reading(&self.txid, &self.read) {
            held.reads.remove(&self.txid);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const KEEP: Duration = Duration::from_secs(10);

    fn txid(number: u8) -> Txid {
        Txid([number; 32])
    }

    fn bytes(len: usize) -> Bytes {
        vec![1; len].into()
    }

    fn put(cache: &Cache, number: u8, len: usize) {
        cache.held().put(txid(number), bytes(len), cache.limit, cache.keep);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_is_kept_for_its_time_and_no_longer() {
        let cache = Cache::new(100, KEEP);
        put(&cache, 1, 10);
        tokio::time::advance(KEEP / 2).await;
        put(&cache, 2, 20);
        assert_eq!(cache.get(&txid(1)), Some(bytes(10)));
        tokio::time::advance(KEEP / 2).await;
        assert_eq!((cache.get(&txid(1)), cache.get(&txid(2))), (None, Some(bytes(20))));
        assert_eq!(cache.held().size, 20);
        cache.remove(&txid(2));
        assert_eq!((cache.get(&txid(2)), cache.held().size), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_makes_room() {
        let cache = Cache::new(100, KEEP);
        for number in 0..5 {
            put(&cache, number, 30);
        }
        let kept: Vec<u8> = (0..5).filter(|number| cache.get(&txid(*number)).is_some()).collect();
        assert_eq!((kept, cache.held().size), (vec![2, 3, 4], 90));
        put(&cache, 9, 101);
        assert_eq!(cache.get(&txid(9)), None);
        assert!(cache.get(&txid(2)).is_some(), "what does not fit pushes nothing out");

        tokio::time::advance(KEEP / 2).await;
        put(&cache, 2, 30);
        tokio::time::advance(KEEP / 2).await;
        assert!(cache.get(&txid(2)).is_some(), "its time begins anew");
        assert_eq!(cache.held().size, 30);
    }

    #[tokio::test]
    async fn those_who_ask_at_once_share_one_read() {
        let cache = Cache::new(100, KEEP);
        let (send, wait) = tokio::sync::oneshot::channel::<()>();
        let first = cache.get_or_read(txid(1), async {
            wait.await.unwrap();
            Ok(Some(bytes(10)))
        });
        let second = cache.get_or_read(txid(1), async { panic!("read twice") });
        tokio::pin!(first, second);
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        send.send(()).unwrap();
        assert_eq!(tokio::join!(first, second), (Ok(Some(bytes(10))), Ok(Some(bytes(10)))));
        assert_eq!(cache.get(&txid(1)), Some(bytes(10)));
        assert!(cache.held().reads.is_empty());
    }

    #[tokio::test]
    async fn a_read_that_is_given_up_or_overtaken_is_not_kept() {
        let cache = Cache::new(100, KEEP);
        {
            let given_up = cache.get_or_read(txid(1), std::future::pending());
            tokio::pin!(given_up);
            assert!(given_up.as_mut().now_or_never().is_none());
        }
        assert!(cache.held().reads.is_empty());
        let overtaken = cache.get_or_read(txid(1), async {
            cache.remove(&txid(1));
            Ok(Some(bytes(10)))
        });
        assert_eq!(overtaken.await, Ok(Some(bytes(10))));
        assert_eq!(cache.get(&txid(1)), None);
        assert_eq!(cache.get_or_read(txid(1), async { Ok(None) }).await, Ok(None));
        assert!(cache.held().reads.is_empty());
    }
}
