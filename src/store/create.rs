//! Creating a transaction over several pages: who drives [`steps`] on a store.
//!
//! A few pages at a time are made, sent and forgotten, so that a transaction of a million outputs is never in memory as a whole but
//! for its bytes; and so are only a few such creations of one instance.

pub mod steps;

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use crate::{
    clock::Clock,
    engine::{EngineError, Row},
    record::{
        Key, LockRecord, Operation, Outcome, Page, Rejection, Reply, Sequenced, Stamp, TxState, build::OtherPages,
    },
    store::Store,
    tx::Txid,
};

use steps::{Creation, Kind, Seen, Step};

/// A lock record lasts so long, and so much longer a record that is to be created, but no longer than the last; ms.
const TTL_MS: (u64, u64, u64) = (30_000, 2_000, 300_000);
/// Pages of one transaction that are made and sent at once: some ten megabytes where they are full.
const PAGES_AT_ONCE: u32 = 8;
/// Transactions that one instance creates at once.
const CREATIONS_AT_ONCE: usize = 4;

/// Who creates: what its lock records say, for people, and the token that fences their release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Random, of this instance alone.
    pub owner: u64,
    /// Of the process.
    pub process_id: u32,
    /// Where it runs.
    pub hostname: String,
}

/// A transaction over several pages, as it is to be stored.
#[derive(Debug, Clone)]
pub struct Paged {
    /// Page 0, as that of a live transaction.
    pub master: Arc<Page>,
    /// The others.
    pub others: Arc<OtherPages>,
    /// How it starts.
    pub starts: Starts,
}

impl Paged {
    fn kind(&self) -> Kind {
        match self.starts {
            Starts::Live | Starts::Coinbase(_) => Kind::Live,
            Starts::Contested => Kind::Contested,
        }
    }
}

/// How a transaction starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// Live.
    Live,
    /// Contested, with no verdict yet.
    Contested,
    /// As the coinbase of the block that the sequencer handles under this stamp.
    Coinbase(Stamp),
}

/// Where bodies go that are not with the master.
#[async_trait]
pub trait Bodies: Send + Sync {
    /// Stores the body of `txid`, unless it is there; done when it is safe.
    async fn store(&self, txid: Txid, work: &Paged) -> Result<(), EngineError>;
}

/// Bodies of several pages are with their masters, as those of one page are: right for embedded engines. The blob store
/// takes its place.
pub struct WithMaster;

#[async_trait]
impl Bodies for WithMaster {
    async fn store(&self, _: Txid, _: &Paged) -> Result<(), EngineError> {
        Ok(())
    }
}

/// Creates transactions over several pages. Cheap to clone.
#[derive(Clone)]
pub struct Creator {
    store: Store,
    clock: Clock,
    identity: Arc<Identity>,
    bodies: Arc<dyn Bodies>,
    permits: Arc<Semaphore>,
}

impl Creator {
    /// Of one instance.
    pub fn new(store: Store, clock: Clock, identity: Identity) -> Self {
        let permits = Arc::new(Semaphore::new(CREATIONS_AT_ONCE));
        Creator { store, clock, identity: Arc::new(identity), bodies: Arc::new(WithMaster), permits }
    }

    /// Creates it, or completes what others have begun. The answer is that of creating one page; [`Rejection::Held`] where
    /// somebody else is at it. `told` hears of the store's troubles: `None` once it answers again.
    ///
    /// # Errors
    /// The engine failed for good.
    pub async fn create(
        &self,
        work: &Paged,
        mut told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Outcome, EngineError> {
        // Closed never: it is ours alone.
        let _permit = self.permits.acquire().await;
        self.drive(Creation::new(work.kind(), work.others.count(), PAGES_AT_ONCE), work, &mut told).await
    }

    /// The same, whoever else may be at it: for the sequencer, which cannot wait for a lock record to end.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_now(&self, work: &Paged) -> Result<Outcome, EngineError> {
        let creation = Creation::without_lock_record(work.kind(), work.others.count(), PAGES_AT_ONCE);
        self.drive(creation, work, &mut |_| {}).await
    }

    async fn drive(
        &self,
        mut creation: Creation,
        work: &Paged,
        told: &mut (impl FnMut(Option<&EngineError>) + Send),
    ) -> Result<Outcome, EngineError> {
        loop {
            let step = creation.step().clone();
            match &step {
                Step::Ended(outcome) => {
                    tell_end(work, outcome);
                    return Ok(outcome.clone());
                }
                Step::Look => {
                    let master = self.store.master(work.others.txid()).await?;
                    creation.looked(Seen::of(master.as_ref(), &create_master(work, self.clock.now_ms())));
                }
                Step::Body => {
                    self.bodies.store(work.others.txid(), work).await?;
                    creation.body_stored();
                }
                step => {
                    let outcomes = self.store.apply_telling(self.rows(step, work).await, &mut *told).await?;
                    tell_progress(step, work, &outcomes);
                    creation.answered(&outcomes);
                }
            }
        }
    }

    async fn rows(&self, step: &Step, work: &Paged) -> Vec<Row> {
        let now_ms = self.clock.now_ms();
        let lock_record = |operation| vec![Row { key: Key::LockRecord(work.others.txid()), operation }];
        match step {
            Step::Acquire => {
                let taken = self.lock_record(work.others.count() + 1, now_ms);
                lock_record(Operation::AcquireLockRecord { lock_record: taken, now_ms })
            }
            Step::Release => lock_record(Operation::ReleaseLockRecord { owner: self.identity.owner }),
            Step::Others(pages) => {
                let mut rows = Vec::new();
                for number in pages.clone() {
                    // Thousands of hashes each: others have their turn in between.
                    tokio::task::yield_now().await;
                    rows.extend(other_pages(work, number..number + 1, now_ms));
                }
                rows
            }
            step => rows_of_pages(step, work, now_ms),
        }
    }

    fn lock_record(&self, expected_recs: u32, now_ms: u64) -> LockRecord {
        let Identity { owner, process_id, hostname } = self.identity.as_ref().clone();
        let expires_at = now_ms + lock_record_ttl_ms(expected_recs);
        LockRecord { created_at: now_ms, expires_at, process_id, hostname, expected_recs, owner }
    }
}

/// How long the lock record of a transaction of so many records lasts, ms.
pub fn lock_record_ttl_ms(records: u32) -> u64 {
    let (base, each, most) = TTL_MS;
    (base + each * u64::from(records)).min(most)
}

/// What a step asks for of the pages.
pub(crate) fn rows_of_pages(step: &Step, work: &Paged, now_ms: u64) -> Vec<Row> {
    let on_master = |operation| vec![Row { key: Key::master(work.others.txid()), operation }];
    match step {
        Step::Others(pages) => other_pages(work, pages.clone(), now_ms),
        Step::Master => on_master(create_master(work, now_ms)),
        Step::Clear(pages) => clear(work.others.txid(), pages.clone()),
        Step::ClearMaster => on_master(Operation::ClearCreating),
        Step::Acquire | Step::Look | Step::Body | Step::Release | Step::Ended(_) => Vec::new(),
    }
}

fn other_pages(work: &Paged, pages: Range<u32>, now_ms: u64) -> Vec<Row> {
    let row = |number| {
        let page = Arc::new(work.others.page(number, now_ms));
        let operation = match work.starts {
            Starts::Contested => Operation::CreateContested(page),
            Starts::Live | Starts::Coinbase(_) => Operation::Create(page),
        };
        Row { key: Key::Page(work.others.txid(), number), operation }
    };
    pages.map(row).collect()
}

pub(crate) fn create_master(work: &Paged, now_ms: u64) -> Operation {
    let creating = || Arc::new(Page { creating_at: Some(now_ms), ..Page::clone(&work.master) });
    match work.starts {
        Starts::Live => Operation::Create(creating()),
        Starts::Contested => Operation::CreateContested(Arc::new(Page::clone(&work.master).contested())),
        Starts::Coinbase(stamp) => Operation::Sequenced(stamp, Sequenced::CreateCoinbase(creating())),
    }
}

/// The rows that clear `creating` on these pages.
pub(super) fn clear(txid: Txid, pages: Range<u32>) -> Vec<Row> {
    pages.map(|number| Row { key: Key::Page(txid, number), operation: Operation::ClearCreating }).collect()
}

/// The seed's log lines (`000_eaac0d3352205430.txt`, section 9).
fn tell_progress(step: &Step, work: &Paged, outcomes: &[Outcome]) {
    let txid = work.others.txid();
    let first = match step {
        Step::Others(pages) | Step::Clear(pages) => pages.start,
        _ => 0,
    };
    for (outcome, number) in outcomes.iter().zip(first..) {
        match (step, outcome) {
            (
                Step::Others(_) | Step::Master,
                Outcome::AlreadyApplied(_) | Outcome::Rejected(Rejection::Exists(TxState::Creating | TxState::Live)),
            ) => tracing::info!(
                "[StoreTransactionExternally] Record {number} already exists for tx {txid} (completing previous attempt)"
            ),
            (Step::Clear(_) | Step::ClearMaster, Outcome::Rejected(rejection)) => tracing::warn!(
                code = rejection.code(),
                "[clearCreatingFlag] Failed to clear creating flag for {} record {number} of tx {txid}",
                if number == 0 { "master" } else { "child" }
            ),
            _ => {}
        }
    }
}

fn tell_end(work: &Paged, outcome: &Outcome) {
    let fell = matches!(
        outcome,
        Outcome::Rejected(Rejection::Exists(TxState::Conflicting(_)))
            | Outcome::AlreadyApplied(Reply::State(TxState::Pruned(_)))
    );
    if fell && work.starts != Starts::Contested {
        let txid = work.others.txid();
        tracing::warn!("[StoreTransactionExternally] Transaction {txid} created but creating flag not cleared");
    }
}

#[cfg(test)]
#[path = "create/tests.rs"]
mod tests;

#[cfg(test)]
#[path = "create/crash_tests.rs"]
mod crash_tests;
