//! Transactions that were read a moment ago, and who is reading which.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

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
}

impl Cache {
    /// Holds at most `limit` bytes, each transaction for `keep`. One of more than `limit` bytes is not held.
    pub fn new(limit: usize, keep: Duration) -> Self {
        Cache { keep, limit, held: Mutex::default() }
    }

    pub fn get(&self, txid: &Txid) -> Option<Bytes> {
        let mut held = self.held();
        held.expire(self.keep);
        held.bytes.get(txid).map(|(bytes, _)| bytes.clone())
    }

    pub fn put(&self, txid: Txid, bytes: Bytes) {
        if bytes.len() > self.limit {
            return;
        }
        let mut held = self.held();
        held.expire(self.keep);
        held.remove(&txid);
        while held.size + bytes.len() > self.limit && held.drop_oldest() {}
        let now = Instant::now();
        held.size += bytes.len();
        held.bytes.insert(txid, (bytes, now));
        held.order.push_back((txid, now));
    }

    pub fn remove(&self, txid: &Txid) {
        self.held().remove(txid);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
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

/// One at a time for each transaction: those who ask for the same blob at once wait for the first, and find it in the cache.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Txid, Arc<tokio::sync::Mutex<()>>>>);

pub(super) struct Turn<'t> {
    turns: &'t Turns,
    txid: Txid,
    guard: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Turns {
    pub async fn of(&self, txid: Txid) -> Turn<'_> {
        let turn = self.all().entry(txid).or_default().clone();
        // Made before it waits, so that it also cleans up when the wait is given up.
        let mut own = Turn { turns: self, txid, guard: None };
        own.guard = Some(turn.lock_owned().await);
        own
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Txid, Arc<tokio::sync::Mutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut all = self.turns.all();
        drop(self.guard.take());
        // Whoever holds or waits for it has a handle of its own.
        if all.get(&self.txid).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            all.remove(&self.txid);
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

    #[tokio::test(start_paused = true)]
    async fn what_was_read_is_kept_for_its_time_and_no_longer() {
        let cache = Cache::new(100, KEEP);
        cache.put(txid(1), bytes(10));
        tokio::time::advance(KEEP / 2).await;
        cache.put(txid(2), bytes(20));
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
            cache.put(txid(number), bytes(30));
        }
        let kept: Vec<u8> = (0..5).filter(|number| cache.get(&txid(*number)).is_some()).collect();
        assert_eq!((kept, cache.held().size), (vec![2, 3, 4], 90));
        cache.put(txid(9), bytes(101));
        assert_eq!(cache.get(&txid(9)), None);
        assert!(cache.get(&txid(2)).is_some(), "what does not fit pushes nothing out");

        tokio::time::advance(KEEP / 2).await;
        cache.put(txid(2), bytes(30));
        tokio::time::advance(KEEP / 2).await;
        assert!(cache.get(&txid(2)).is_some(), "its time begins anew");
        assert_eq!(cache.held().size, 30);
    }

    #[tokio::test]
    async fn turns_are_taken_one_by_one_and_leave_nothing_behind() {
        let turns = Turns::default();
        let first = turns.of(txid(1)).await;
        let other = turns.of(txid(2)).await;
        let waiting = turns.of(txid(1));
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(first);
        drop(waiting.await);
        let first = turns.of(txid(1)).await;
        {
            let given_up = turns.of(txid(1));
            tokio::pin!(given_up);
            assert!(given_up.as_mut().now_or_never().is_none());
        }
        drop((first, other));
        assert!(turns.all().is_empty());
    }
}
