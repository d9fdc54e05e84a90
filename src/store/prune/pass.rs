//! One pass: everything that is due at a height, a step at a time. A step that is given up in its middle is done again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tokio::time::Instant;

use crate::{
    engine::Index,
    record::{Body, Key, Page},
    store::{Store, nodes::Nodes},
    tx::Txid,
};

use super::{PruneError, PruneSettings, Pruned, Ruling, Terms, Under, work::Examined};

/// Keys that the index is asked for at once: some megabytes. An engine may look at everything that is due each time.
const FOUND_AT_ONCE: usize = 50_000;
/// Transactions whose marks wait until no node can forget them.
const MOST_MARKED: usize = 10_000;

/// A pass on its way.
#[derive(Debug)]
pub struct Pass {
    settings: PruneSettings,
    /// Transactions in a step, for now.
    step: usize,
    under: Under,
    pruned: Pruned,
    /// Found by the index, and not looked at.
    queue: VecDeque<Key>,
    /// Looked at, and to be looked at again once more of the chain is committed.
    unsafe_yet: BTreeSet<Txid>,
    /// Their parents know; since when, that of the last.
    marked: Vec<Examined>,
    marked_at: Option<Instant>,
    /// Tombstones that may go once what is marked is safe.
    served: Vec<Examined>,
    /// Of a dry run: what was seen, as nothing leaves the index.
    seen: BTreeSet<Key>,
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many transactions were looked at, or so many became tombstones; there is more.
    Did(u64),
    /// Until then there is nothing to do: what is marked might be forgotten.
    Until(Instant),
    /// What is left can only be decided on once more of the chain is committed.
    Unsafe,
    /// Everything that is due at its height is pruned.
    Done,
}

impl Pass {
    /// A pass over everything that is due at the height of these terms.
    pub fn new(settings: PruneSettings, under: Under) -> Self {
        Pass {
            step: settings.step.max(1),
            settings,
            under,
            pruned: Pruned::default(),
            queue: VecDeque::new(),
            unsafe_yet: BTreeSet::new(),
            marked: Vec::new(),
            marked_at: None,
            served: Vec::new(),
            seen: BTreeSet::new(),
        }
    }

    /// Which it is.
    pub fn height(&self) -> u32 {
        self.under.terms.height
    }

    /// What it has come to so far.
    pub fn pruned(&self) -> Pruned {
        self.pruned
    }

    /// After a step that took too long; `false`: they are of one transaction each.
    pub fn take_smaller_steps(&mut self) -> bool {
        let before = self.step;
        self.step = (before / 2).max(1);
        self.step < before
    }

    /// After one that did not.
    pub fn take_larger_steps(&mut self) {
        self.step = self.step.saturating_mul(2).min(self.settings.step.max(1));
    }

    /// More of the chain is committed: what could not be decided on is looked at again. The height stays.
    pub fn advance(&mut self, under: Under) {
        let under = Under { terms: Terms { height: self.height(), ..under.terms }, ..under };
        // What is marked was looked at by the terms of then.
        if self.under != under && self.marked.is_empty() && self.served.is_empty() {
            self.under = under;
            self.unsafe_yet.clear();
            self.queue.clear();
        }
    }

    /// The next step. Given up in its middle, or failed, it may be repeated.
    ///
    /// # Errors
    /// See [`PruneError`]; the pass may be gone on with where only the blob store failed.
    pub async fn step(&mut self, store: &Store, nodes: &Nodes) -> Result<Step, PruneError> {
        if self.marked.len() + self.served.len() >= MOST_MARKED {
            return self.finish_marked(store, nodes).await;
        }
        if self.queue.is_empty() && !self.find(store).await? {
            return match (self.marked.len() + self.served.len(), self.unsafe_yet.len()) {
                (0, 0) => Ok(Step::Done),
                (0, _) => Ok(Step::Unsafe),
                _ => self.finish_marked(store, nodes).await,
            };
        }
        self.look(store).await
    }

    /// Asks the index; whether there is anything new.
    async fn find(&mut self, store: &Store) -> Result<bool, PruneError> {
        let waiting = self.marked.iter().chain(&self.served).map(|examined| examined.master.txid);
        let known: BTreeSet<Txid> = waiting.chain(self.unsafe_yet.iter().copied()).collect();
        // Those stay in the index: as many more are asked for.
        let limit = FOUND_AT_ONCE + known.len() + self.seen.len();
        let found = store.query(Index::DeleteAtHeight, 0, self.height().into(), limit).await?;
        let is_new = |key: &Key| match key {
            Key::Page(txid, _) => !known.contains(txid) && !self.seen.contains(key),
            _ => false,
        };
        self.queue = found.into_iter().filter(is_new).collect();
        Ok(!self.queue.is_empty())
    }

    async fn look(&mut self, store: &Store) -> Result<Step, PruneError> {
        let (under, again) = (self.under, self.height().saturating_add(1));
        let keys: Vec<Key> = self.queue.iter().take(self.step).copied().collect();
        let txids: BTreeSet<Txid> = keys.iter().filter_map(Key::txid).collect();
        let examined = store.examine(&under, &txids.into_iter().collect::<Vec<_>>()).await?;
        let mut counted = self.pruned;
        counted.examined += examined.len() as u64;
        let (mut due, mut served, mut unsafe_yet, mut later) = (Vec::new(), Vec::new(), Vec::new(), BTreeMap::new());
        for examined in examined {
            let txid = examined.master.txid;
            match examined.ruling {
                Ruling::Due => due.push(examined),
                Ruling::Tombstone if self.keeps(&examined.master) => {
                    later.insert(txid, again.saturating_add(self.settings.keep_tombstones.unwrap_or(0)));
                }
                Ruling::Tombstone => served.push(examined),
                Ruling::Unsafe => unsafe_yet.push(txid),
                Ruling::Later(height) => drop(later.insert(txid, height)),
            }
        }
        if self.settings.dry_run {
            counted.add_due(&due);
            counted.tombstones += served.len() as u64;
            counted.kept += (later.len() + unsafe_yet.len()) as u64;
            self.pruned = counted;
            self.seen.extend(keys.iter().copied());
            self.queue.drain(..keys.len());
            return Ok(Step::Did(keys.len() as u64));
        }
        let let_go = store.let_go_of_parents(&under, &due).await?;
        due.retain(|examined| {
            let txid = &examined.master.txid;
            !let_go.damaged.contains(txid) && !let_go.unsafe_yet.contains(txid)
        });
        counted.damaged += let_go.damaged.len() as u64;
        counted.kept += (later.len() + unsafe_yet.len()) as u64;
        later.extend(let_go.damaged.into_iter().map(|txid| (txid, again)));
        // A hint of another page is no more than one of its master.
        let put_off = keys.iter().filter_map(|key| {
            let of_master = key.txid().and_then(|txid| later.get(&txid).copied());
            let beside = !matches!(key, Key::Page(_, 0));
            of_master.or(beside.then_some(again)).map(|height| (*key, height))
        });
        unsafe_yet.extend(store.postpone(&under, &put_off.collect::<Vec<_>>()).await?);
        // From here on nothing can fail, and nothing is given up.
        self.pruned = counted;
        self.queue.drain(..keys.len());
        self.unsafe_yet.extend(unsafe_yet);
        self.unsafe_yet.extend(let_go.unsafe_yet);
        self.served.extend(served);
        if !due.is_empty() {
            self.marked.extend(due);
            self.marked_at = Some(Instant::now());
        }
        Ok(Step::Did(keys.len() as u64))
    }

    /// Whether a tombstone stays as it is, because its blob does.
    fn keeps(&self, tombstone: &Page) -> bool {
        !self.settings.alone && tombstone.conflicting && matches!(tombstone.body(), Some(Body::External(_)))
    }

    /// What is marked, and cannot be forgotten any more, is buried; then the tombstones that have served.
    async fn finish_marked(&mut self, store: &Store, nodes: &Nodes) -> Result<Step, PruneError> {
        if let Some(at) = self.marked_at.filter(|_| nodes.may_forget()) {
            let safe = at + nodes.lag();
            if Instant::now() < safe {
                return Ok(Step::Until(safe));
            }
            if nodes.have_restarted().await? {
                return Err(PruneError::NodeRestarted);
            }
        }
        let (under, step) = (self.under, self.step);
        if self.marked.is_empty() {
            let from = self.served.len().saturating_sub(step);
            let changed = store.forget_tombstones(&under, &self.served[from..]).await?;
            let gone = (self.served.len() - from) as u64;
            self.served.truncate(from);
            self.pruned.tombstones += gone - changed.len() as u64;
            self.unsafe_yet.extend(changed);
            return Ok(Step::Did(gone));
        }
        let from = self.marked.len().saturating_sub(step);
        let keep_until = self.settings.keep_tombstones.map(|blocks| self.height().saturating_add(blocks.max(1)));
        let buried = store.bury(&under, keep_until, &self.marked[from..]).await?;
        let again = self.height().saturating_add(1);
        let refused: Vec<(Key, u32)> = buried.refused.iter().map(|txid| (Key::master(*txid), again)).collect();
        let changed = store.postpone(&under, &refused).await?;
        let due = self.marked.split_off(from);
        let count = due.len() as u64;
        let done = due.into_iter().filter(|examined| buried.done.contains(&examined.master.txid));
        self.pruned.add_due(&done.collect::<Vec<_>>());
        self.pruned.kept += refused.len() as u64;
        self.unsafe_yet.extend(buried.unsafe_yet);
        self.unsafe_yet.extend(changed);
        if self.marked.is_empty() {
            self.marked_at = None;
        }
        Ok(Step::Did(count))
    }
}

impl Pruned {
    fn add_due(&mut self, due: &[Examined]) {
        let conflicting = due.iter().filter(|examined| examined.master.conflicting).count() as u64;
        self.conflicting += conflicting;
        self.spent += due.len() as u64 - conflicting;
    }
}
