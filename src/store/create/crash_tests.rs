//! A creator of three pages is killed at every call of the engine.
//!
//! The call ends in each possible way: before the request, with half of the rows applied, and with all rows applied and
//! no reply. The creator runs alone, and beside a rival that is killed at every call of its own. After each kill no
//! slot can be spent early, and a retry completes the transaction. The sweep and the sequencer complete it where the
//! master exists.
//!
//! The same cases run with the body in a blob store, each of whose calls fails in every way: a record that refers to a
//! blob never exists before the blob.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use object_store::memory::InMemory;

use super::*;
use crate::{
    blob::{
        BlobOptions, BlobStore,
        fault::{BlobFault, FaultStore},
    },
    engine::{self, EngineError, RecordEngine, conformance::RULES, memory::MemoryEngine},
    record::{Body, MinedIn, Phase, build},
    store::{
        recovery::{Recovery, Sweep},
        testing,
    },
    tx::{Transaction, Txid},
};

const PAGE: u32 = 2;
const NOW_MS: u64 = 1_000;

/// Ways in which the last call of a creator ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    LostRequest,
    Half,
    LostReply,
}

const DEATHS: [Death; 3] = [Death::LostRequest, Death::Half, Death::LostReply];

/// An engine that never answers one call, so that its caller can be killed there.
struct KilledAt {
    inner: Arc<MemoryEngine>,
    calls: AtomicUsize,
    at: usize,
    death: Death,
    /// Notifies the test that the call was reached.
    reached: Option<Arc<Mutex<tokio::sync::mpsc::UnboundedSender<()>>>>,
}

impl engine::EngineDecorator for KilledAt {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    fn name(&self) -> &'static str {
        "dies"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        // Rivals run in turns, one call each.
        tokio::task::yield_now().await;
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        if call != self.at {
            return self.inner.apply(rows).await;
        }
        let done = match self.death {
            Death::LostRequest => 0,
            Death::Half => rows.len() / 2,
            Death::LostReply => rows.len(),
        };
        self.inner.apply(&rows[..done]).await;
        if let Some(reached) = &self.reached {
            let _ = reached.lock().unwrap().send(());
        }
        std::future::pending().await
    }
}

fn paged() -> PagedTx {
    let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
    let parsed = Transaction::parse(&bytes).unwrap();
    let (setting, start) = (testing::setting(PAGE), build::NewTxState::default());
    let pages = build::build_pages(&parsed, bytes.clone(), parsed.txid(), &setting, &start).unwrap();
    PagedTx { master: pages.master.into(), others: pages.others.unwrap().into(), initial_state: InitialState::Live }
}

/// The state that outlives a creator.
#[derive(Clone)]
struct Survivors {
    engine: Arc<MemoryEngine>,
    /// Objects of the blob store, if the case has one.
    objects: Option<FaultStore>,
}

impl Survivors {
    fn new(external: bool) -> Self {
        let objects = external.then(|| FaultStore::new(Arc::new(InMemory::new()), 1));
        Survivors { engine: Arc::new(MemoryEngine::new(RULES)), objects }
    }

    fn store(&self, engine: Arc<dyn RecordEngine>) -> StateStore {
        let blobs = |objects: &FaultStore| BlobStore::new(Arc::new(objects.clone()), BlobOptions::default());
        StateStore::new(engine, testing::store(PAGE).settings).with_blobs(self.objects.as_ref().map(blobs))
    }
}

/// Runs a creator that is killed at call `at`; returns whether the creation ended before.
async fn create(survivors: &Survivors, owner: u64, at: usize, death: Death) -> bool {
    let (creator, mut reached) = killed_at(survivors, owner, at, death);
    tokio::select! {
        biased;
        outcome = async { creator.create(&paged(), |_| {}).await } => outcome.unwrap().is_done(),
        _ = reached.recv() => false,
    }
}

/// Runs a creation that is cancelled at call `at`.
async fn cancel(survivors: &Survivors, at: usize, death: Death) {
    let (creator, mut reached) = killed_at(survivors, 1, at, death);
    let (cancelled, work) = (CancellationToken::new(), paged());
    let cancelling = async {
        reached.recv().await;
        cancelled.cancel();
    };
    let (ended, ()) = tokio::join!(creator.create_unless_cancelled(&cancelled, &work, |_| {}), cancelling);
    assert!(ended.is_none(), "{ended:?}");
}

fn killed_at(
    survivors: &Survivors,
    owner: u64,
    at: usize,
    death: Death,
) -> (Creator, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let reached = Some(Arc::new(Mutex::new(sender)));
    let engine = KilledAt { inner: survivors.engine.clone(), calls: AtomicUsize::new(0), at, death, reached };
    let store = survivors.store(Arc::new(engine));
    // The lock record of a rival has expired by the other's clock, or the rival would only wait.
    let clock = Clock::simulated(NOW_MS + owner * 1_000_000);
    let identity =
        CreatorIdentity { owner, process_id: 1, hostname: "here".into(), process_visibility: ProcessVisibility::None };
    (Creator::new(store, clock, identity), receiver)
}

async fn states(store: &StateStore) -> Vec<Option<TxState>> {
    let pages = store.pages(paged().others.txid(), 0, 3).await.unwrap();
    pages.iter().map(|page| page.as_ref().map(|page| page.state())).collect()
}

const LIVE: [Option<TxState>; 3] = [Some(TxState::Live); 3];

/// Ways that complete a half-created transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Retry,
    Sweep,
    SetMined,
}

/// Verifies that no slot is open early, and that this way completes the transaction.
async fn check(survivors: &Survivors, way: Way, what: &str) {
    let store = survivors.store(survivors.engine.clone());
    let (work, txid) = (paged(), paged().others.txid());
    let before = states(&store).await;
    let open = before.contains(&Some(TxState::Live));
    assert!(!open || before.iter().all(Option::is_some), "{what}: {before:?}");
    assert!(before[0] != Some(TxState::Live) || before == LIVE, "{what}: the master is cleared last: {before:?}");
    let has_master = before[0].is_some();
    if let Some(master) = store.master(txid).await.unwrap() {
        assert_eq!(matches!(master.body(), Some(Body::External(_))), survivors.objects.is_some(), "{what}");
        assert_eq!(Some(store.body(&master).await.unwrap().as_ref()), work.master.body(), "{what}");
    }
    let now_ms = NOW_MS + 100_000_000;
    match way {
        Way::Retry => {
            let identity = CreatorIdentity {
                owner: 99,
                process_id: 1,
                hostname: "here".into(),
                process_visibility: ProcessVisibility::None,
            };
            let creator = Creator::new(store.clone(), Clock::simulated(now_ms), identity);
            assert!(creator.create(&work, |_| {}).await.unwrap().is_done(), "{what}");
            assert_eq!(states(&store).await, LIVE, "{what}: {way:?}");
            return;
        }
        Way::Sweep => {
            let swept = Sweep { now_ms, older_than_ms: 120_000, dry_run: false }.run(&store).await.unwrap();
            assert!(swept.damaged.is_empty() && swept.running.is_empty(), "{what}: {swept:?}");
            let there = before.iter().any(Option::is_some);
            assert_eq!(swept.orphaned.len(), usize::from(there && !has_master), "{what}: {swept:?}");
        }
        Way::SetMined => {
            Recovery::of(&store).complete(txid).await.unwrap();
            let mined_in = MinedIn { block_id: 1, height: 101, subtree: 0 };
            let stamp = Stamp { offset: 1, phase: Phase::Apply };
            let set = Operation::Sequenced(stamp, Sequenced::SetMined { mined_in, longest_chain: true });
            let outcome = store.apply_one(Row { key: Key::master(txid), operation: set }).await.unwrap();
            assert_eq!(outcome.is_done(), has_master, "{what}: {outcome:?}");
        }
    }
    let after = states(&store).await;
    if has_master {
        assert_eq!(after, LIVE, "{what}: {way:?}");
    } else {
        assert_eq!(after, before, "{what}: {way:?}: only the event writes a master");
    }
}

/// Number of engine calls of one creation without a rival.
const CALLS: usize = 6;

const WAYS: [Way; 3] = [Way::Retry, Way::Sweep, Way::SetMined];

#[tokio::test(start_paused = true)]
async fn a_creator_killed_at_every_call_leaves_a_completable_state() {
    for external in [false, true] {
        let ended = create(&Survivors::new(external), 1, CALLS, Death::LostRequest).await;
        assert!(ended, "lock, pages, master, release, clear, clear the master");
        for at in 0..CALLS {
            for (death, way) in DEATHS.iter().flat_map(|death| WAYS.map(|way| (*death, way))) {
                let survivors = Survivors::new(external);
                assert!(!create(&survivors, 1, at, death).await);
                check(&survivors, way, &format!("{death:?} at call {at}")).await;
            }
        }
    }
}

/// A revocation of the partition cancels a creation like this.
#[tokio::test(start_paused = true)]
async fn a_creation_cancelled_at_every_call_leaves_no_lock_record() {
    for (external, at) in [false, true].iter().flat_map(|external| (0..CALLS).map(|at| (*external, at))) {
        for (death, way) in DEATHS.iter().flat_map(|death| WAYS.map(|way| (*death, way))) {
            let survivors = Survivors::new(external);
            cancel(&survivors, at, death).await;
            let lock_record = survivors.engine.read(&[Key::LockRecord(paged().others.txid())]).await.remove(0);
            assert_eq!(lock_record.unwrap(), None, "{death:?} at call {at}");
            check(&survivors, way, &format!("cancelled: {death:?} at call {at}")).await;
        }
    }
}

/// Time after which a creator is killed: longer than any answered call, shorter than the slow one.
const KILLED_AFTER: Duration = Duration::from_secs(10);

/// Ways in which a call of the blob store ends. A call that takes an hour is the last call of its creator.
const BLOB_FAULTS: [BlobFault; 6] = [
    BlobFault::LostRequest,
    BlobFault::LostReply,
    BlobFault::Denied,
    BlobFault::OtherBytes,
    BlobFault::CutShort,
    BlobFault::Slow(Duration::from_secs(3_600)),
];

/// Kills a creator at a call of the engine; then fails a call of the blob store by the next creator, with or without a
/// blob in the blob store. Returns the number of calls that failed.
async fn fail_blob_call(killed_at: usize, call: u64, fault: BlobFault, way: Way) -> u64 {
    let what = format!("{fault:?} at call {call} of the blob store, after a kill at call {killed_at} of the engine");
    let survivors = Survivors::new(true);
    create(&survivors, 1, killed_at, Death::LostRequest).await;
    let Some(objects) = &survivors.objects else { unreachable!("created with a blob store") };
    objects.fail_at(call, fault);
    let result = tokio::time::timeout(KILLED_AFTER, create(&survivors, 2, usize::MAX, Death::LostRequest)).await;
    assert!(matches!((&result, fault), (Ok(true), _) | (Err(_), BlobFault::Slow(_))), "{what}: {result:?}");
    objects.clear_script();
    check(&survivors, way, &what).await;
    objects.injected_by_kind().values().sum()
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_every_blob_store_call_leaves_a_completable_state() {
    let mut failed = 0;
    for (killed_at, call) in [0, 2, CALLS].iter().flat_map(|at| (1..=3).map(move |call| (*at, call))) {
        for (fault, way) in BLOB_FAULTS.iter().flat_map(|fault| WAYS.map(|way| (*fault, way))) {
            failed += fail_blob_call(killed_at, call, fault, way).await;
        }
    }
    // Without a blob one call puts the blob, and a failed call is repeated. An existing blob is compared.
    assert!(failed >= 5 * 6 * 3, "{failed}");
}

#[tokio::test(start_paused = true)]
async fn two_rivals_killed_at_every_call_leave_a_completable_state() {
    let mut cases = 0;
    for (first, second) in (0..=CALLS).flat_map(|first| (0..=CALLS).map(move |second| (first, second))) {
        for (one, other) in DEATHS.iter().flat_map(|one| DEATHS.iter().map(move |other| (*one, *other))) {
            for way in WAYS {
                let survivors = Survivors::new(cases % 2 == 1);
                tokio::join!(create(&survivors, 1, first, one), create(&survivors, 2, second, other));
                check(&survivors, way, &format!("{one:?} at {first} and {other:?} at {second}")).await;
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 7 * 7 * 9 * 3);
}
