//! Sweep over half-created transactions: whole (`utxo-store recover`), or in bounded passes beside an instance.
//!
//! The sweep needs no log: an index finds half-created transactions by their age. The sweep never creates a master:
//! pages without a master belong to an event that is not completed yet, and are only reported.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{
    engine::{Cursor, EngineError, Index, KeyPage, Row},
    record::{Key, LockRecord, Operation, Record, TxState},
    store::{StateStore, into_page, pages::PAGES_AT_A_TIME},
    tx::Txid,
};

use super::{CompleteError, Recovery};

/// Age from which a half-created transaction is counted as old, ms: no creation takes so long.
const OLD_AFTER_MS: u64 = 3_600_000;
/// Number of keys of one index query of a whole sweep.
const QUERY_LIMIT: usize = 100;
/// Largest number of pages that [`count_old`] counts.
const OLD_LIMIT: usize = 1_000;

/// Settings of a sweep.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    /// Present time, ms since the epoch.
    pub now_ms: u64,
    /// Least age of a transaction that is completed, ms; longer than a whole creation takes.
    pub older_than_ms: u64,
    /// Lists the transactions that would be completed, and changes nothing.
    pub dry_run: bool,
}

/// Result of a sweep. Transactions are in the order of the age of their oldest page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Completed transactions; in a dry run transactions that would be completed.
    pub completed: Vec<Txid>,
    /// Transactions whose lock record has not expired: a creation may be running, so that these are skipped.
    pub running: Vec<Txid>,
    /// Number of contested transactions, whose pages wait for the verdict.
    pub contested: u64,
    /// Number of pruned transactions with a creating page: a node lost the tombstone of the page. The pruner writes the
    /// tombstone again before it shrinks the one of the master.
    pub pruned: u64,
    /// Pages without a master, which the transaction's event creates, or that the master does not know.
    pub orphaned: Vec<OrphanedPages>,
    /// Transactions that cannot be completed, with the problem.
    pub damaged: Vec<DamagedTx>,
    /// Number of all these transactions that are older than an hour.
    pub older_than_an_hour: u64,
}

/// Pages of a transaction without a master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrphanedPages {
    /// Txid of the transaction.
    pub txid: Txid,
    /// Numbers of the pages.
    pub pages: BTreeSet<u32>,
    /// Time since which the oldest page is creating, ms since the epoch.
    pub since_ms: u64,
}

/// A transaction that cannot be completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedTx {
    /// Txid of the transaction.
    pub txid: Txid,
    /// Description of the problem.
    pub problem: String,
}

/// Creating pages of one transaction, and the time of the oldest.
#[derive(Debug, Default)]
pub(super) struct HalfCreated {
    pub(super) pages: BTreeSet<u32>,
    since_ms: u64,
}

/// Position in the index of half-created pages, from the oldest page on.
#[derive(Debug, Clone)]
pub struct SweepCursor {
    from_ms: u64,
    /// Greatest number of keys that are read at once.
    limit: usize,
    /// Position among the pages of the millisecond `from_ms`, where one query has returned no page of a later one.
    within: Option<MillisecondCursor>,
}

/// Position among the pages of one millisecond, which have no order: the index returns their keys in parts.
#[derive(Debug, Clone, Default)]
struct MillisecondCursor {
    /// Keys of the present part that are not read yet.
    keys: Vec<Key>,
    /// Position of the next part.
    next: Option<Cursor>,
}

impl SweepCursor {
    /// Creates a cursor before the oldest page, which reads at most this many pages at once.
    pub fn new(limit: usize) -> Self {
        SweepCursor { from_ms: 0, limit, within: None }
    }

    /// Adds the next pages, which are creating since `until_ms` or before, to `found`. Returns `true` at the end of the
    /// index, where the cursor begins anew.
    async fn read_next(
        &mut self,
        store: &StateStore,
        until_ms: u64,
        found: &mut BTreeMap<Txid, HalfCreated>,
    ) -> Result<bool, EngineError> {
        if let Some(MillisecondCursor { mut keys, mut next }) = self.within.take() {
            if keys.is_empty() {
                KeyPage { keys, next, .. } = store.query_part(Index::CreatingAt, self.from_ms, next).await?;
            }
            let rest = keys.split_off(keys.len().min(self.limit));
            read_pages(store, keys, found).await?;
            if rest.is_empty() && next.is_none() {
                self.from_ms += 1;
            } else {
                self.within = Some(MillisecondCursor { keys: rest, next });
            }
            return Ok(false);
        }
        let keys = store.query(Index::CreatingAt, self.from_ms, until_ms, self.limit).await?;
        let is_last = keys.len() < self.limit;
        let latest_ms = read_pages(store, keys, found).await?;
        if is_last {
            self.from_ms = 0;
        } else if latest_ms > self.from_ms {
            self.from_ms = latest_ms;
        } else {
            self.within = Some(MillisecondCursor::default());
        }
        Ok(is_last)
    }
}

/// Reads these pages, few at once, and adds those that are creating to `found`. Returns the latest time since which one
/// is creating, ms.
async fn read_pages(
    store: &StateStore,
    keys: Vec<Key>,
    found: &mut BTreeMap<Txid, HalfCreated>,
) -> Result<u64, EngineError> {
    let mut latest_ms = 0;
    for keys in keys.chunks(PAGES_AT_A_TIME as usize) {
        for page in store.read(keys.to_vec()).await?.into_iter().filter_map(into_page) {
            let Some(since_ms) = page.creating_at else { continue };
            latest_ms = latest_ms.max(since_ms);
            let new = || HalfCreated { since_ms, ..HalfCreated::default() };
            let half = found.entry(page.txid).or_insert_with(new);
            half.since_ms = half.since_ms.min(since_ms);
            half.pages.insert(page.number);
        }
    }
    Ok(latest_ms)
}

impl Sweep {
    /// Completes half-created transactions of the given age, oldest first, and lists the transactions that it skipped.
    pub async fn run(self, store: &StateStore) -> Result<Swept, EngineError> {
        let found = read_half_created(store, self.now_ms.saturating_sub(self.older_than_ms)).await?;
        self.sweep_all(store, found).await
    }

    /// Runs one pass of the sweep, over the pages of one query: completes the oldest transactions after the cursor. A
    /// pass that ends before the end of the index leaves the rest to the next pass, so that transactions that cannot be
    /// completed stop no other.
    pub async fn run_pass(self, store: &StateStore, cursor: &mut SweepCursor) -> Result<Swept, EngineError> {
        let mut found = BTreeMap::new();
        cursor.read_next(store, self.now_ms.saturating_sub(self.older_than_ms), &mut found).await?;
        self.sweep_all(store, sort_by_age(found)).await
    }

    async fn sweep_all(self, store: &StateStore, found: Vec<(Txid, HalfCreated)>) -> Result<Swept, EngineError> {
        let mut swept = Swept::default();
        for (txid, half) in found {
            swept.older_than_an_hour += u64::from(self.now_ms.saturating_sub(half.since_ms) >= OLD_AFTER_MS);
            self.sweep_one(store, txid, half, &mut swept).await?;
        }
        Ok(swept)
    }

    async fn sweep_one(
        &self,
        store: &StateStore,
        txid: Txid,
        half: HalfCreated,
        swept: &mut Swept,
    ) -> Result<(), EngineError> {
        let mut records = store.read(vec![Key::LockRecord(txid), Key::master(txid)]).await?.into_iter();
        let lock_record = match records.next().flatten() {
            Some(Record::LockRecord(lock_record)) => Some(lock_record),
            _ => None,
        };
        let master = into_page(records.next().flatten());
        if lock_record.as_ref().is_some_and(|lock_record| lock_record.expires_at > self.now_ms) {
            swept.running.push(txid);
            return Ok(());
        }
        // A page that its master does not know is never cleared, as a page without a master.
        let master = master.filter(|master| half.pages.iter().any(|number| *number <= master.extra_pages()));
        match master.map(|master| master.state()) {
            Some(TxState::Creating | TxState::Live) if self.dry_run => swept.completed.push(txid),
            Some(TxState::Creating | TxState::Live) => match Recovery::of(store).complete(txid).await {
                Ok(_) => swept.completed.push(txid),
                Err(CompleteError::Engine(error)) => return Err(error),
                Err(error) => swept.damaged.push(DamagedTx { txid, problem: error.to_string() }),
            },
            Some(TxState::Conflicting(_)) => swept.contested += 1,
            Some(TxState::Pruned(_)) => swept.pruned += 1,
            Some(TxState::Stub(_)) | None => {
                let HalfCreated { pages, since_ms } = half;
                swept.orphaned.push(OrphanedPages { txid, pages, since_ms });
            }
        }
        // Not every engine deletes an expired lock record.
        if let Some(LockRecord { owner, .. }) = lock_record.filter(|_| !self.dry_run) {
            store
                .apply_one(Row { key: Key::LockRecord(txid), operation: Operation::ReleaseLockRecord { owner } })
                .await?;
        }
        Ok(())
    }
}

/// Reads the transactions with pages that are creating since `until_ms` or before, oldest first.
pub(super) async fn read_half_created(
    store: &StateStore,
    until_ms: u64,
) -> Result<Vec<(Txid, HalfCreated)>, EngineError> {
    let (mut found, mut cursor) = (BTreeMap::new(), SweepCursor::new(QUERY_LIMIT));
    while !cursor.read_next(store, until_ms, &mut found).await? {}
    Ok(sort_by_age(found))
}

fn sort_by_age(found: BTreeMap<Txid, HalfCreated>) -> Vec<(Txid, HalfCreated)> {
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(_, half)| half.since_ms);
    found
}

/// Counts the transactions with pages that have been creating for an hour or longer, by the index alone: of the oldest
/// thousand pages.
pub async fn count_old(store: &StateStore, now_ms: u64) -> Result<usize, EngineError> {
    let until_ms = now_ms.saturating_sub(OLD_AFTER_MS);
    let keys = store.query(Index::CreatingAt, 0, until_ms, OLD_LIMIT).await?;
    Ok(keys.iter().filter_map(Key::txid).collect::<BTreeSet<_>>().len())
}
