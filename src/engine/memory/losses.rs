//! A store in memory that loses acknowledged changes, in place of a database that acknowledges before it syncs.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{MemoryEngine, Shard, shard_of};
use crate::{
    clock::Clock,
    engine::{Incarnation, Row, local::index_values},
    record::{Effect, Key, Outcome, Record, Rules},
};

/// Losses that a store simulates; by default none.
#[derive(Default)]
pub(super) struct SimulatedLosses {
    undo_window: Option<UndoWindow>,
    pub(super) may_lose_parts: bool,
    /// Number of simulated restarts.
    restarts: AtomicU64,
}

/// Time for which changes can be undone.
struct UndoWindow {
    clock: Clock,
    period: Duration,
}

impl SimulatedLosses {
    pub(super) fn window(&self) -> Duration {
        self.undo_window.as_ref().map_or(Duration::ZERO, |window| window.period)
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        let incarnation = || Incarnation(format!("memory-{}", self.restarts.load(Ordering::Acquire)));
        self.undo_window.as_ref().map_or_else(Incarnation::default, |_| incarnation())
    }
}

impl MemoryEngine {
    /// Creates an empty store that can [lose changes](Self::lose_changes_since) acknowledged within `period`. It stands
    /// in for a database that acknowledges before it syncs, and costs a copy of each changed page.
    pub fn with_loss_window(rules: Rules, clock: Clock, period: Duration) -> Self {
        let losses = SimulatedLosses { undo_window: Some(UndoWindow { clock, period }), ..SimulatedLosses::default() };
        MemoryEngine { losses, ..MemoryEngine::new(rules) }
    }

    /// Returns the store as one that [may lose parts](crate::engine::RecordEngine::may_lose_parts), in place of a
    /// cluster.
    #[must_use]
    pub fn with_losable_parts(self) -> Self {
        MemoryEngine { losses: SimulatedLosses { may_lose_parts: true, ..self.losses }, ..self }
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
        self.losses.restarts.fetch_add(1, Ordering::AcqRel);
        undone
    }

    /// Replaces a record without any check, in place of a node that comes back with an older record.
    pub fn put(&self, key: Key, record: Option<Record>) {
        self.lock(shard_of(&key)).put(key, record);
    }

    /// Returns the number of simulated restarts.
    pub fn restart_count(&self) -> u64 {
        self.losses.restarts.load(Ordering::Acquire)
    }

    pub(super) fn apply_row(&self, row: &Row) -> Outcome {
        let mut shard = self.lock(shard_of(&row.key));
        let Some(UndoWindow { clock, period }) = &self.losses.undo_window else {
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
}

impl Shard {
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
}

/// Recent changes of records, oldest first.
#[derive(Default)]
pub(super) struct UndoLog {
    changes: VecDeque<UndoEntry>,
}

struct UndoEntry {
    at_ms: u64,
    key: Key,
    before: Option<Record>,
}

impl UndoLog {
    /// Records that `key` changed at `at_ms` (ms since the epoch) and held `before` until then.
    pub(super) fn push(&mut self, at_ms: u64, key: Key, before: Option<Record>) {
        self.changes.push_back(UndoEntry { at_ms, key, before });
    }

    /// Drops changes before `ms`, which can no longer be lost.
    pub(super) fn drop_before(&mut self, ms: u64) {
        while self.changes.front().is_some_and(|change| change.at_ms < ms) {
            self.changes.pop_front();
        }
    }

    /// Removes the changes since `ms` of the keys that `lost` picks, and returns the earlier records, newest first.
    pub(super) fn take_since(&mut self, ms: u64, lost: impl Fn(&Key) -> bool) -> Vec<(Key, Option<Record>)> {
        let (undone, remaining): (VecDeque<_>, _) =
            self.changes.drain(..).partition(|change| change.at_ms >= ms && lost(&change.key));
        self.changes = remaining;
        undone.into_iter().rev().map(|change| (change.key, change.before)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        Index, RecordEngine, Set,
        conformance::{RULES, fixtures::*},
    };

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
}
