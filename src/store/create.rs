//! Creating a transaction over several pages, or one whose body goes to the blob store: who drives [`steps`] on a store.
//!
//! A few pages at a time are made, sent and forgotten, so that a transaction of a million outputs is never in memory as a whole but
//! for its bytes; and so are only a few such creations of one instance.

pub mod steps;

use std::{
    borrow::Cow,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    engine::{EngineError, Row},
    record::{
        Key, LockRecord, Operation, Outcome, Page, Rejection, Reply, Sequenced, Stamp, TxState, build::OtherPages,
    },
    store::{
        Store,
        external::{engine_error, page_with_body},
        recovery::{CompleteError, NotRestored},
    },
    tx::Txid,
};

use steps::{Creation, Kind, Seen, Step};

/// A lock record lasts so long, and so much longer a record that is to be created, but no longer than the last; ms.
const TTL_MS: (u64, u64, u64) = (30_000, 2_000, 300_000);
/// Pages of one transaction that are made and sent at once: some ten megabytes where they are full.
const PAGES_AT_ONCE: u32 = 8;
/// Transactions that one instance creates at once.
const CREATIONS_AT_ONCE: usize = 4;

/// Who gives up waits no longer for his lock record to be released.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

/// Who creates: what its lock records say, for people, and the token that fences their release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Random, of this instance alone.
    pub owner: u64,
    /// Of the process.
    pub process_id: u32,
    /// Where it runs.
    pub hostname: String,
    /// Whether it can see which processes run there.
    pub sees: Processes,
}

/// Which processes somebody can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    /// None: whoever holds a lock record may still be at it.
    None,
    /// Those of its own host.
    OfItsHost,
}

impl Identity {
    /// Whether whoever holds this lock record is known to have died: a process of this host that does not run, or an earlier life of
    /// this very process (in a container they have one number). Should it live all the same, somewhere under the same names, work is
    /// done twice, and nothing worse.
    fn knows_dead(&self, held: &LockRecord) -> bool {
        let is_here = self.sees == Processes::OfItsHost && held.hostname == self.hostname && held.owner != self.owner;
        is_here && (held.process_id == self.process_id || !Path::new(&format!("/proc/{}", held.process_id)).exists())
    }
}

/// A transaction that takes more than one write, as it is to be stored.
#[derive(Debug, Clone)]
pub struct Paged {
    /// Page 0, as that of a live transaction, with its body.
    pub master: Arc<Page>,
    /// The others; none, where it has one page and its body goes to the blob store.
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

/// Creates transactions that take more than one write. Cheap to clone.
#[derive(Clone)]
pub struct Creator {
    store: Store,
    clock: Clock,
    identity: Arc<Identity>,
    permits: Arc<Semaphore>,
}

impl Creator {
    /// Of one instance.
    pub fn new(store: Store, clock: Clock, identity: Identity) -> Self {
        let permits = Arc::new(Semaphore::new(CREATIONS_AT_ONCE));
        Creator { store, clock, identity: Arc::new(identity), permits }
    }

    /// Where it creates.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Creates it, or completes what others have begun. The answer is that of creating one page; [`Rejection::Held`] where
    /// somebody else is at it, who is not known to have died. `told` hears of the troubles of the store and of the blob store: `None` once they answer again.
    ///
    /// # Errors
    /// The engine failed for good.
    pub async fn create(
        &self,
        work: &Paged,
        told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Outcome, CompleteError> {
        self.create_in_turn(work, &AtomicBool::default(), told).await
    }

    /// The same, until it is given up: `None`. What is there then is what a kill leaves, and whoever comes next completes it. The lock
    /// record, which only saves work, is given back, so that he need not wait until it ends; where the store does not answer at once it is
    /// left to end, as after a kill.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_unless(
        &self,
        given_up: &CancellationToken,
        work: &Paged,
        told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Option<Result<Outcome, CompleteError>> {
        let may_hold = AtomicBool::default();
        let ended = given_up.run_until_cancelled(self.create_in_turn(work, &may_hold, told)).await;
        if ended.is_none() && may_hold.into_inner() {
            let release = self.rows(&Step::Release, work).await;
            // One try: nobody waits for it.
            let _ = tokio::time::timeout(RELEASE_WITHIN, self.store.engine.apply(&release)).await;
        }
        ended
    }

    async fn create_in_turn(
        &self,
        work: &Paged,
        may_hold: &AtomicBool,
        mut told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Outcome, CompleteError> {
        let creation = Creation::new(work.kind(), work.others.count(), PAGES_AT_ONCE);
        match self.until_ended(&creation, work, Some(&self.permits), may_hold, &mut told).await? {
            Outcome::Rejected(Rejection::Held(held)) if self.identity.knows_dead(&held) => {
                tracing::info!(txid = %work.others.txid(), process = held.process_id, "its creator has died: done by another");
                let creation = Creation::without_lock_record(work.kind(), work.others.count(), PAGES_AT_ONCE);
                self.until_ended(&creation, work, Some(&self.permits), may_hold, told).await
            }
            outcome => Ok(outcome),
        }
    }

    /// The same, whoever else may be at it: for the sequencer, which cannot wait for a lock record to end.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_now(&self, work: &Paged) -> Result<Outcome, CompleteError> {
        let creation = Creation::without_lock_record(work.kind(), work.others.count(), PAGES_AT_ONCE);
        self.until_ended(&creation, work, None, &AtomicBool::default(), |_| {}).await
    }

    /// Begins anew, after a pause, whenever the blob store did not take the body: nothing was written then, and the lock record is
    /// released. Nobody else waits for the permit of who pauses.
    async fn until_ended(
        &self,
        creation: &Creation,
        work: &Paged,
        permits: Option<&Semaphore>,
        may_hold: &AtomicBool,
        mut told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Outcome, CompleteError> {
        let mut pauses = self.store.pauses(Some(Key::master(work.others.txid())));
        let mut waits_for_blobs = false;
        let mut asking = None;
        loop {
            // The engine that answers in between does not speak for the blob store.
            let tell = |failed: Option<&EngineError>| {
                if failed.is_some() || !waits_for_blobs {
                    told(failed);
                }
            };
            let ended = {
                let _permit = match permits {
                    // Closed never: it is ours alone.
                    Some(permits) => permits.acquire().await.ok(),
                    None => None,
                };
                self.drive(creation.clone(), work, may_hold, tell).await
            };
            match ended {
                // Not of the engine, which was asked until it answered.
                Err(CompleteError::Engine(error)) if error.may_be_retried() => {
                    tracing::warn!(%error, "tried again");
                    waits_for_blobs = true;
                    asking.get_or_insert_with(|| self.store.trouble.asking()).heard(Some(&error));
                    told(Some(&error));
                }
                ended => {
                    if waits_for_blobs {
                        told(None);
                    }
                    return ended.inspect(|outcome| tell_end(work, outcome));
                }
            }
            pauses.pause().await;
        }
    }

    /// To the end, or to where the blob store does not take the body, or the engine one of the records.
    async fn drive(
        &self,
        mut creation: Creation,
        work: &Paged,
        may_hold: &AtomicBool,
        mut told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Outcome, CompleteError> {
        let mut work = Cow::Borrowed(work);
        let failed = loop {
            may_hold.store(creation.may_hold_lock_record(), Ordering::Relaxed);
            match self.take_step(&mut creation, &mut work, &mut told).await {
                Ok(None) => {}
                Ok(Some(outcome)) => return Ok(outcome),
                Err(error) => break error,
            }
        };
        if creation.holds_lock_record()
            && let Err(error) = self.store.apply(self.rows(&Step::Release, &work).await).await
        {
            tracing::warn!(%error, "whoever comes next waits until the lock record ends");
        }
        Err(failed)
    }

    /// Answers what all of it came to, when that was the last step.
    async fn take_step(
        &self,
        creation: &mut Creation,
        work: &mut Cow<'_, Paged>,
        told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Option<Outcome>, CompleteError> {
        match creation.step().clone() {
            Step::Ended(outcome) => return Ok(Some(outcome)),
            Step::Look => {
                let master = self.store.master(work.others.txid()).await?;
                creation.looked(Seen::of(master.as_ref(), &create_master(work, self.clock.now_ms())));
            }
            Step::Body => {
                if let Some(body) = Box::pin(self.store.placed_once(&work.master)).await.map_err(engine_error)? {
                    work.to_mut().master = page_with_body(&work.master, body);
                }
                creation.body_stored();
            }
            step => {
                if let (Step::Others(pages), true) = (&step, creation.pages_were_there()) {
                    self.may_be_made_again(work, pages).await?;
                }
                let outcomes = self.store.apply_telling(self.rows(&step, work).await, told).await?;
                tell_progress(&step, work, &outcomes);
                creation.answered(&outcomes);
            }
        }
        Ok(None)
    }

    /// A page that is gone from under its master would come again with its slots free, though they may have been spent. Over a store that
    /// forgets, those who spent them come again, too, where the page is made by the event that made it before.
    async fn may_be_made_again(&self, work: &Paged, pages: &Range<u32>) -> Result<(), CompleteError> {
        let txid = work.others.txid();
        let made_at = |page: &Page| page.master.as_ref().map(|bins| bins.created_at);
        let why = if !self.store.may_forget() {
            NotRestored::Lasting
        } else if self.store.master(txid).await?.is_some_and(|there| made_at(&there) < made_at(&work.master)) {
            NotRestored::OfAnotherEvent
        } else {
            return Ok(());
        };
        let there = self.store.pages(txid, pages.start, pages.end).await?;
        match there.iter().zip(pages.clone()).find(|(page, _)| page.is_none()) {
            Some((_, page)) => Err(CompleteError::MissingPage { txid, page, why }),
            None => Ok(()),
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
        let Identity { owner, process_id, hostname, .. } = self.identity.as_ref().clone();
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
    // One page is there or not.
    let creating_at = (work.others.count() > 0).then_some(now_ms);
    let creating = || Arc::new(Page { creating_at, ..Page::clone(&work.master) });
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
