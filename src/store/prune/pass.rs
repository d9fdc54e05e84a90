//! Pruning pass over all transactions that are due at a height, in steps. A step that is cancelled may be repeated.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tokio::time::Instant;

use crate::{
    engine::{EngineError, Index},
    record::{Body, Key, Page},
    store::{StateStore, restart_detector::RestartDetector},
    tx::Txid,
};

use super::{
    PruneBasis, PruneError, PruneSettings, PruneTerms, PruneTotals, Ruling,
    work::{ExaminedTx, PruneWork},
};

/// Greatest number of keys of one index query: some megabytes. An engine may scan every due entry for each query.
const MAX_INDEX_KEYS: usize = 50_000;
/// Greatest number of transactions whose marks wait for the durability lag.
const MAX_MARKED: usize = 10_000;

/// A pruning pass in progress.
#[derive(Debug)]
pub struct PrunePass {
    settings: PruneSettings,
    /// Present number of transactions in a step.
    step: usize,
    basis: PruneBasis,
    pruned: PruneTotals,
    /// Keys from the index that are not examined yet.
    queue: VecDeque<Key>,
    /// Transactions that are examined again once more of the chain is committed.
    uncommitted: BTreeSet<Txid>,
    /// Transactions whose parents are marked.
    marked: Vec<ExaminedTx>,
    /// Time of the last mark.
    marked_at: Option<Instant>,
    /// Tombstones that shrink once every marked transaction is pruned.
    expired: Vec<ExaminedTx>,
    /// Keys examined by a dry run, which removes no key from the index.
    seen: BTreeSet<Key>,
}

/// Result of one step of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneStep {
    /// Number of transactions that the step examined or pruned. More steps follow.
    Progressed(u64),
    /// Time of the next step: until then a node can lose the marks.
    WaitUntil(Instant),
    /// All remaining transactions can be decided only once more of the chain is committed.
    Uncommitted,
    /// Every transaction that is due at the height is pruned.
    Done,
}

impl PrunePass {
    /// Begins a pass over all transactions that are due at the height of `basis`.
    pub fn new(settings: PruneSettings, basis: PruneBasis) -> Self {
        PrunePass {
            step: settings.step_size.max(1),
            settings,
            basis,
            pruned: PruneTotals::default(),
            queue: VecDeque::new(),
            uncommitted: BTreeSet::new(),
            marked: Vec::new(),
            marked_at: None,
            expired: Vec::new(),
            seen: BTreeSet::new(),
        }
    }

    /// Returns whether the index has a key that is due at this height.
    pub async fn has_due(store: &StateStore, height: u32) -> Result<bool, EngineError> {
        Ok(!store.query(Index::DeleteAtHeight, 0, height.into(), 1).await?.is_empty())
    }

    /// Height at which transactions are due.
    pub fn height(&self) -> u32 {
        self.basis.terms.height
    }

    /// Counts of the pass so far.
    pub fn pruned(&self) -> PruneTotals {
        self.pruned
    }

    /// Halves the number of transactions in a step, after a step that took too long. Returns `false` if a step has one
    /// transaction already.
    pub fn shrink_step_size(&mut self) -> bool {
        let before = self.step;
        self.step = (before / 2).max(1);
        self.step < before
    }

    /// Doubles the number of transactions in a step, up to the setting, after a step that was fast enough.
    pub fn grow_step_size(&mut self) {
        self.step = self.step.saturating_mul(2).min(self.settings.step_size.max(1));
    }

    /// Takes over a later committed chain offset, so that undecided transactions are examined again. The height stays.
    pub fn advance(&mut self, basis: PruneBasis) {
        let basis = PruneBasis { terms: PruneTerms { height: self.height(), ..basis.terms }, ..basis };
        // Marked transactions were examined under the present terms.
        if self.basis != basis && self.marked.is_empty() && self.expired.is_empty() {
            self.basis = basis;
            self.uncommitted.clear();
            self.queue.clear();
        }
    }

    /// Runs the next step. A step that is cancelled or fails may be repeated.
    ///
    /// # Errors
    /// See [`PruneError`]; after [`PruneError::Blob`] the pass may continue.
    pub async fn step(&mut self, store: &StateStore, detector: &RestartDetector) -> Result<PruneStep, PruneError> {
        if self.marked.len() + self.expired.len() >= MAX_MARKED {
            return self.finish_marked(store, detector).await;
        }
        if self.queue.is_empty() && !self.query_index(store).await? {
            return match (self.marked.len() + self.expired.len(), self.uncommitted.len()) {
                (0, 0) => Ok(PruneStep::Done),
                (0, _) => Ok(PruneStep::Uncommitted),
                _ => self.finish_marked(store, detector).await,
            };
        }
        self.examine_next(store).await
    }

    /// Fills the queue from the index. Returns whether the queue has keys.
    async fn query_index(&mut self, store: &StateStore) -> Result<bool, PruneError> {
        let waiting = self.marked.iter().chain(&self.expired).map(|examined| examined.master.txid);
        let known: BTreeSet<Txid> = waiting.chain(self.uncommitted.iter().copied()).collect();
        // Known transactions stay in the index, so that the query asks for as many keys more.
        let limit = MAX_INDEX_KEYS + known.len() + self.seen.len();
        let found = store.query(Index::DeleteAtHeight, 0, self.height().into(), limit).await?;
        let is_new = |key: &Key| match key {
            Key::Page(txid, _) => !known.contains(txid) && !self.seen.contains(key),
            _ => false,
        };
        self.queue = found.into_iter().filter(is_new).collect();
        Ok(!self.queue.is_empty())
    }

    async fn examine_next(&mut self, store: &StateStore) -> Result<PruneStep, PruneError> {
        let (work, again) = (PruneWork::new(store, self.basis), self.height().saturating_add(1));
        let keys: Vec<Key> = self.queue.iter().take(self.step).copied().collect();
        let txids: BTreeSet<Txid> = keys.iter().filter_map(Key::txid).collect();
        let examined = work.examine(&txids.into_iter().collect::<Vec<_>>()).await?;
        let mut counted = self.pruned;
        counted.examined += examined.len() as u64;
        let (mut due, mut expired, mut uncommitted, mut later) = (Vec::new(), Vec::new(), Vec::new(), BTreeMap::new());
        for examined in examined {
            let txid = examined.master.txid;
            match examined.ruling {
                Ruling::Due => due.push(examined),
                Ruling::Tombstone if self.keeps_blob(&examined.master) => {
                    later.insert(txid, again.saturating_add(self.settings.keep_tombstones.unwrap_or(0)));
                }
                Ruling::Tombstone => expired.push(examined),
                Ruling::Uncommitted => uncommitted.push(txid),
                Ruling::Later(height) => drop(later.insert(txid, height)),
            }
        }
        if self.settings.dry_run {
            counted.add_due(&due);
            counted.tombstones += expired.len() as u64;
            counted.kept += (later.len() + uncommitted.len()) as u64;
            self.pruned = counted;
            self.seen.extend(keys.iter().copied());
            self.queue.drain(..keys.len());
            return Ok(PruneStep::Progressed(keys.len() as u64));
        }
        let released = work.release_parents(&due).await?;
        due.retain(|examined| {
            let txid = &examined.master.txid;
            !released.damaged.contains(txid) && !released.uncommitted.contains(txid)
        });
        counted.damaged += released.damaged.len() as u64;
        counted.kept += (later.len() + uncommitted.len()) as u64;
        later.extend(released.damaged.into_iter().map(|txid| (txid, again)));
        // The hint of another page says no more than the hint of its master.
        let put_off = keys.iter().filter_map(|key| {
            let of_master = key.txid().and_then(|txid| later.get(&txid).copied());
            let beside = !matches!(key, Key::Page(_, 0));
            of_master.or(beside.then_some(again)).map(|height| (*key, height))
        });
        uncommitted.extend(work.postpone(&put_off.collect::<Vec<_>>()).await?);
        // From here on no call can fail or be cancelled.
        self.pruned = counted;
        self.queue.drain(..keys.len());
        self.uncommitted.extend(uncommitted);
        self.uncommitted.extend(released.uncommitted);
        self.expired.extend(expired);
        if !due.is_empty() {
            self.marked.extend(due);
            self.marked_at = Some(Instant::now());
        }
        Ok(PruneStep::Progressed(keys.len() as u64))
    }

    /// Returns whether a tombstone keeps its body because the body is a blob that must not be deleted.
    fn keeps_blob(&self, tombstone: &Page) -> bool {
        !self.settings.is_exclusive && tombstone.conflicting && matches!(tombstone.body(), Some(Body::External(_)))
    }

    /// Writes tombstones for the marked transactions once the marks are durable; afterwards shrinks expired tombstones.
    async fn finish_marked(&mut self, store: &StateStore, detector: &RestartDetector) -> Result<PruneStep, PruneError> {
        if let Some(at) = self.marked_at.filter(|_| detector.can_lose_writes()) {
            let durable_at = at + detector.lag();
            if Instant::now() < durable_at {
                return Ok(PruneStep::WaitUntil(durable_at));
            }
            if !detector.has_kept_writes().await? {
                return Err(PruneError::NodeRestarted);
            }
        }
        let (work, step) = (PruneWork::new(store, self.basis), self.step);
        if self.marked.is_empty() {
            let from = self.expired.len().saturating_sub(step);
            let changed = work.shrink_tombstones(&self.expired[from..]).await?;
            let count = (self.expired.len() - from) as u64;
            self.expired.truncate(from);
            self.pruned.tombstones += count - changed.len() as u64;
            self.uncommitted.extend(changed);
            return Ok(PruneStep::Progressed(count));
        }
        let from = self.marked.len().saturating_sub(step);
        let keep_until = self.settings.keep_tombstones.map(|blocks| self.height().saturating_add(blocks.max(1)));
        let written = work.write_tombstones(keep_until, &self.marked[from..]).await?;
        let again = self.height().saturating_add(1);
        let refused: Vec<(Key, u32)> = written.refused.iter().map(|txid| (Key::master(*txid), again)).collect();
        let changed = work.postpone(&refused).await?;
        let due = self.marked.split_off(from);
        let count = due.len() as u64;
        let done = due.into_iter().filter(|examined| written.done.contains(&examined.master.txid));
        self.pruned.add_due(&done.collect::<Vec<_>>());
        self.pruned.kept += refused.len() as u64;
        self.uncommitted.extend(written.uncommitted);
        self.uncommitted.extend(changed);
        if self.marked.is_empty() {
            self.marked_at = None;
        }
        Ok(PruneStep::Progressed(count))
    }
}

impl PruneTotals {
    fn add_due(&mut self, due: &[ExaminedTx]) {
        let conflicting = due.iter().filter(|examined| examined.master.conflicting).count() as u64;
        self.conflicting += conflicting;
        self.spent += due.len() as u64 - conflicting;
    }
}
