//! Creation of a transaction of several pages, or of a transaction whose body goes to the blob store: runs [`steps`] on
//! a store.
//!
//! Memory is bounded. A few pages at a time are built, sent and dropped, so that of a transaction of a million outputs
//! only the bytes are in memory as a whole. One instance runs a few such creations at a time.

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
    engine::{EngineError, ErrorKind, Row},
    record::{
        Key, LockRecord, Operation, Outcome, Page, Rejection, Reply, Sequenced, Stamp, TxState, build::OtherPages,
    },
    store::{
        StateStore,
        clearing::build_clear_rows,
        external::{into_engine_error, with_body_replaced},
        pages::PAGES_AT_A_TIME,
        recovery::{CompleteError, Recovery, RestoreError},
    },
};

use steps::{Creation, CreationKind, CreationStep, ExistingMaster};

/// Lifetime of a lock record in ms: base, addition for each record to create, maximum.
const TTL_MS: (u64, u64, u64) = (30_000, 2_000, 300_000);
/// Creations that one instance runs at once.
const CREATIONS_AT_ONCE: usize = 4;

/// Time for which a cancelled creation waits for the release of its lock record.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Identity of a creator. Lock records show the identity to operators; the owner fences the release of a lock record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatorIdentity {
    /// Random number of this instance.
    pub owner: u64,
    /// Process id of this instance.
    pub process_id: u32,
    /// Host on which this instance runs.
    pub hostname: String,
    /// Processes whose end this instance can detect.
    pub process_visibility: ProcessVisibility,
}

/// Processes whose end an instance can detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessVisibility {
    /// No process: the holder of a lock record counts as running until the lock record expires.
    #[cfg(feature = "testkit")]
    None,
    /// The processes of the same host, by `/proc`.
    SameHost,
}

impl CreatorIdentity {
    /// Returns whether the holder of a lock record is known to have ended.
    ///
    /// The holder is then a process of this host that does not run, or an earlier process with the same id (the usual
    /// case in a container). If the holder runs under the same names elsewhere, pages are written twice, which does no
    /// harm.
    fn is_known_dead(&self, found: &LockRecord) -> bool {
        let is_same_host = self.process_visibility == ProcessVisibility::SameHost
            && found.hostname == self.hostname
            && found.owner != self.owner;
        is_same_host
            && (found.process_id == self.process_id || !Path::new(&format!("/proc/{}", found.process_id)).exists())
    }
}

/// A transaction that takes more than one write, ready to be stored.
#[derive(Debug, Clone)]
pub struct PagedTx {
    /// Page 0 as of a live transaction, with the body.
    pub master: Arc<Page>,
    /// The other pages; none where only the body makes a second write.
    pub others: Arc<OtherPages>,
    /// State in which the transaction starts.
    pub initial_state: InitialState,
}

impl PagedTx {
    fn kind(&self) -> CreationKind {
        match self.initial_state {
            InitialState::Live | InitialState::Coinbase(_) => CreationKind::Live,
            InitialState::Contested => CreationKind::Contested,
        }
    }
}

/// States in which a transaction can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialState {
    /// Live, from the event of the transaction.
    Live,
    /// Contested, without a verdict.
    Contested,
    /// Live, as the coinbase of the block that the sequencer handles under this stamp.
    Coinbase(Stamp),
}

/// Creates transactions that take more than one write. Cheap to clone.
#[derive(Clone)]
pub struct Creator {
    store: StateStore,
    clock: Clock,
    identity: Arc<CreatorIdentity>,
    permits: Arc<Semaphore>,
}

impl Creator {
    /// Creates the creator of one instance.
    pub fn new(store: StateStore, clock: Clock, identity: CreatorIdentity) -> Self {
        let permits = Arc::new(Semaphore::new(CREATIONS_AT_ONCE));
        Creator { store, clock, identity: Arc::new(identity), permits }
    }

    /// Returns the same creator for another view of the same store.
    pub fn with_store(&self, store: StateStore) -> Self {
        Creator { store, ..self.clone() }
    }

    /// Returns the store into which this creator writes.
    pub fn store(&self) -> &StateStore {
        &self.store
    }

    /// Creates a transaction, or completes a creation that another creator began.
    ///
    /// The outcome is the one of creating a single page, or [`Rejection::Held`] while another creator holds the lock
    /// record and is not known to have ended. `report` is called with each error of the store and of the blob store
    /// that is retried, and with `None` once both answer again.
    ///
    /// # Errors
    /// [`CompleteError`] for an error of the engine that no retry heals, and for a page that is missing under its
    /// master.
    #[cfg(feature = "testkit")]
    pub async fn create(
        &self,
        work: &PagedTx,
        report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Outcome, CompleteError> {
        self.create_with_permit(work, &AtomicBool::default(), report).await
    }

    /// Like [`create`](Self::create), until `cancelled`: then `None`.
    ///
    /// A cancelled creation leaves the same records as a killed one, and the next creator completes the transaction.
    /// The lock record is released, so that the next creator need not wait. If the store does not answer within 2 s,
    /// the lock record stays until it expires, as after a kill.
    pub async fn create_unless_cancelled(
        &self,
        cancelled: &CancellationToken,
        work: &PagedTx,
        report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Option<Result<Outcome, CompleteError>> {
        let may_hold = AtomicBool::default();
        let result = cancelled.run_until_cancelled(self.create_with_permit(work, &may_hold, report)).await;
        if result.is_none() && may_hold.into_inner() {
            let release = self.build_rows(&CreationStep::Release, work).await;
            // One try is enough: the lock record expires otherwise.
            let _ = tokio::time::timeout(RELEASE_TIMEOUT, self.store.engine.apply(&release)).await;
        }
        result
    }

    async fn create_with_permit(
        &self,
        work: &PagedTx,
        may_hold: &AtomicBool,
        mut report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Outcome, CompleteError> {
        let creation = Creation::new(work.kind(), work.others.count(), PAGES_AT_A_TIME);
        match self.retry_until_body_stored(&creation, work, Some(&self.permits), may_hold, &mut report).await? {
            Outcome::Rejected(Rejection::Held(held)) if self.is_lock_record_needless(work, &held).await? => {
                tracing::info!(
                    txid = %work.others.txid(),
                    process = held.process_id,
                    "create: the holder of the lock record has ended or has written every page; completing the creation"
                );
                let creation = Creation::without_lock_record(work.kind(), work.others.count(), PAGES_AT_A_TIME);
                self.retry_until_body_stored(&creation, work, Some(&self.permits), may_hold, report).await
            }
            outcome => Ok(outcome),
        }
    }

    /// Returns whether the lock record of another creator saves no work: its holder has ended, or the master exists, so
    /// that every page was written.
    async fn is_lock_record_needless(&self, work: &PagedTx, held: &LockRecord) -> Result<bool, CompleteError> {
        if self.identity.is_known_dead(held) {
            return Ok(true);
        }
        let master = self.store.master(work.others.txid()).await?;
        Ok(master.is_some_and(|master| master.utxos.is_some() && master.extra_pages() == work.others.count()))
    }

    /// Like [`create`](Self::create), without a lock record: the sequencer cannot wait until another creator's lock
    /// record expires.
    pub async fn create_without_lock_record(&self, work: &PagedTx) -> Result<Outcome, CompleteError> {
        let creation = Creation::without_lock_record(work.kind(), work.others.count(), PAGES_AT_A_TIME);
        self.retry_until_body_stored(&creation, work, None, &AtomicBool::default(), |_| {}).await
    }

    /// Runs a creation, and begins again after a pause whenever the blob store did not take the body: no page was
    /// written then, and the lock record is released. The pause holds no permit, so that other creations continue.
    async fn retry_until_body_stored(
        &self,
        creation: &Creation,
        work: &PagedTx,
        permits: Option<&Semaphore>,
        may_hold: &AtomicBool,
        mut report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Outcome, CompleteError> {
        let mut backoff = self.store.new_backoff(Some(Key::master(work.others.txid())));
        let mut is_blob_store_failing = false;
        let mut blob_wait = None;
        loop {
            // An answer of the engine in between does not mean that the blob store answers.
            let report_engine = |failed: Option<&EngineError>| {
                if failed.is_some() || !is_blob_store_failing {
                    report(failed);
                }
            };
            let result = {
                let _permit = match permits {
                    // The semaphore is never closed.
                    Some(permits) => permits.acquire().await.ok(),
                    None => None,
                };
                self.run_steps(creation.clone(), work, may_hold, report_engine).await
            };
            match result {
                Err(CompleteError::Engine(error)) if error.kind == ErrorKind::Storage => {
                    tracing::warn!(%error, "create: retrying, the blob store did not take the body");
                    is_blob_store_failing = true;
                    blob_wait.get_or_insert_with(|| self.store.blob_status.begin_wait()).record_failure(Some(&error));
                    report(Some(&error));
                }
                result => {
                    if is_blob_store_failing {
                        report(None);
                    }
                    return result.inspect(|outcome| log_end(work, outcome));
                }
            }
            backoff.pause().await;
        }
    }

    /// Runs the steps of a creation to its end, or to the first error. An error releases the lock record.
    async fn run_steps(
        &self,
        mut creation: Creation,
        work: &PagedTx,
        may_hold: &AtomicBool,
        mut report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Outcome, CompleteError> {
        let mut work = Cow::Borrowed(work);
        let error = loop {
            may_hold.store(creation.may_hold_lock_record(), Ordering::Relaxed);
            match self.take_step(&mut creation, &mut work, &mut report).await {
                Ok(None) => {}
                Ok(Some(outcome)) => return Ok(outcome),
                Err(error) => break error,
            }
        };
        if creation.holds_lock_record()
            && let Err(error) = self.store.apply(self.build_rows(&CreationStep::Release, &work).await).await
        {
            tracing::warn!(%error, "create: cannot release the lock record; the next creator waits until it expires");
        }
        Err(error)
    }

    /// Runs one step; returns the outcome of the creation after the last step.
    async fn take_step(
        &self,
        creation: &mut Creation,
        work: &mut Cow<'_, PagedTx>,
        report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Option<Outcome>, CompleteError> {
        match creation.step().clone() {
            CreationStep::Ended(outcome) => return Ok(Some(outcome)),
            CreationStep::ReadMaster => {
                let master = self.store.master(work.others.txid()).await?;
                creation.on_master_read(ExistingMaster::of(
                    master.as_ref(),
                    &build_master_create(work, self.clock.now_ms()),
                ));
            }
            CreationStep::Body => {
                if let Some(body) =
                    Box::pin(self.store.externalize_once(&work.master)).await.map_err(into_engine_error)?
                {
                    work.to_mut().master = with_body_replaced(&work.master, body);
                }
                creation.on_body_stored();
            }
            step => {
                if let (CreationStep::Others(pages), true) = (&step, creation.has_matching_master()) {
                    self.check_recreatable(work, pages).await?;
                }
                let outcomes = self.store.apply_reporting(self.build_rows(&step, work).await, report).await?;
                log_progress(&step, work, &outcomes);
                creation.on_outcomes(&outcomes);
            }
        }
        Ok(None)
    }

    /// Verifies that pages that are missing under their master may be created again.
    ///
    /// A page that is created again has free slots, although its slots may have been spent. That is right only where a
    /// restart can have lost the page, and for the event that made the page before: the events of the lost spends are
    /// then read again, too.
    ///
    /// # Errors
    /// [`CompleteError::MissingPage`] for a missing page that may not be created again.
    async fn check_recreatable(&self, work: &PagedTx, pages: &Range<u32>) -> Result<(), CompleteError> {
        let txid = work.others.txid();
        let created_at = |page: &Page| page.master.as_ref().map(|bins| bins.created_at);
        let master = self.store.master(txid).await?;
        let master = master.as_deref().unwrap_or(&work.master);
        let why = match Recovery::of(&self.store).check_can_be_lost(master).await? {
            Err(why) => why,
            Ok(()) if created_at(master) < created_at(&work.master) => RestoreError::OtherEvent,
            Ok(()) => return Ok(()),
        };
        let stored = self.store.pages(txid, pages.start, pages.end).await?;
        match stored.iter().zip(pages.clone()).find(|(page, _)| page.is_none()) {
            Some((_, page)) => Err(CompleteError::MissingPage { txid, page, why }),
            None => Ok(()),
        }
    }

    async fn build_rows(&self, step: &CreationStep, work: &PagedTx) -> Vec<Row> {
        let now_ms = self.clock.now_ms();
        let lock_record = |operation| vec![Row { key: Key::LockRecord(work.others.txid()), operation }];
        match step {
            CreationStep::Acquire => {
                let new = self.new_lock_record(work.others.count() + 1, now_ms);
                lock_record(Operation::AcquireLockRecord { lock_record: new, now_ms })
            }
            CreationStep::Release => lock_record(Operation::ReleaseLockRecord { owner: self.identity.owner }),
            CreationStep::Others(pages) => {
                let mut rows = Vec::new();
                for number in pages.clone() {
                    // Each page takes thousands of hashes: other tasks run in between.
                    tokio::task::yield_now().await;
                    rows.extend(build_page_creates(work, number..number + 1, now_ms));
                }
                rows
            }
            step => build_page_rows(step, work, now_ms),
        }
    }

    fn new_lock_record(&self, expected_recs: u32, now_ms: u64) -> LockRecord {
        let CreatorIdentity { owner, process_id, hostname, .. } = self.identity.as_ref().clone();
        let expires_at = now_ms + lock_record_ttl_ms(expected_recs);
        LockRecord { created_at: now_ms, expires_at, process_id, hostname, expected_recs, owner }
    }
}

/// Returns the lifetime in ms of the lock record of a transaction of `records` records.
fn lock_record_ttl_ms(records: u32) -> u64 {
    let (base, each, max) = TTL_MS;
    (base + each * u64::from(records)).min(max)
}

/// Builds the rows with which a step changes pages.
pub(crate) fn build_page_rows(step: &CreationStep, work: &PagedTx, now_ms: u64) -> Vec<Row> {
    let on_master = |operation| vec![Row { key: Key::master(work.others.txid()), operation }];
    match step {
        CreationStep::Others(pages) => build_page_creates(work, pages.clone(), now_ms),
        CreationStep::Master => on_master(build_master_create(work, now_ms)),
        CreationStep::Clear(pages) => build_clear_rows(work.others.txid(), pages),
        CreationStep::ClearMaster => on_master(Operation::ClearCreating),
        CreationStep::Acquire
        | CreationStep::ReadMaster
        | CreationStep::Body
        | CreationStep::Release
        | CreationStep::Ended(_) => Vec::new(),
    }
}

fn build_page_creates(work: &PagedTx, pages: Range<u32>, now_ms: u64) -> Vec<Row> {
    let row = |number| {
        let page = Arc::new(work.others.page(number, now_ms));
        let operation = match work.initial_state {
            InitialState::Contested => Operation::CreateContested(page),
            InitialState::Live | InitialState::Coinbase(_) => Operation::Create(page),
        };
        Row { key: Key::Page(work.others.txid(), number), operation }
    };
    pages.map(row).collect()
}

pub(crate) fn build_master_create(work: &PagedTx, now_ms: u64) -> Operation {
    // A transaction of one page is never half created.
    let creating_at = (work.others.count() > 0).then_some(now_ms);
    let creating = || Arc::new(Page { creating_at, ..Page::clone(&work.master) });
    match work.initial_state {
        InitialState::Live => Operation::Create(creating()),
        InitialState::Contested => Operation::CreateContested(Arc::new(Page::clone(&work.master).contested())),
        InitialState::Coinbase(stamp) => Operation::Sequenced(stamp, Sequenced::CreateCoinbase(creating())),
    }
}

/// Writes the log lines of the reference document (`000_eaac0d3352205430.txt`, section 9).
fn log_progress(step: &CreationStep, work: &PagedTx, outcomes: &[Outcome]) {
    let txid = work.others.txid();
    let first = match step {
        CreationStep::Others(pages) => pages.start,
        CreationStep::Clear(pages) => pages.first().copied().unwrap_or(0),
        _ => 0,
    };
    for (outcome, number) in outcomes.iter().zip(first..) {
        match (step, outcome) {
            (
                CreationStep::Others(_) | CreationStep::Master,
                Outcome::AlreadyApplied(_) | Outcome::Rejected(Rejection::Exists(TxState::Creating | TxState::Live)),
            ) => tracing::info!(
                "[StoreTransactionExternally] Record {number} already exists for tx {txid} \
                 (completing previous attempt)"
            ),
            (CreationStep::Clear(_) | CreationStep::ClearMaster, Outcome::Rejected(rejection)) => tracing::warn!(
                code = rejection.code(),
                "[clearCreatingFlag] Failed to clear creating flag for {} record {number} of tx {txid}",
                if number == 0 { "master" } else { "child" }
            ),
            _ => {}
        }
    }
}

fn log_end(work: &PagedTx, outcome: &Outcome) {
    let is_barred = matches!(
        outcome,
        Outcome::Rejected(Rejection::Exists(TxState::Conflicting(_)))
            | Outcome::AlreadyApplied(Reply::State(TxState::Pruned(_)))
    );
    if is_barred && work.initial_state != InitialState::Contested {
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
