//! A creator of three pages dies at every one of its calls of the engine, in every way: before the call, with half of its rows
//! done, with all of them done and no answer. Alone, and beside a rival that dies at every one of its own. After each: nothing can
//! be spent early, and a retry completes it; so do the sweep and the sequencer, where the master is there. The same with the body
//! in a blob store, each of whose calls fails in every way, too: a record that refers to a blob is never there before the blob.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use object_store::memory::InMemory;

use super::*;
use crate::{
    blob::{
        BlobOptions, BlobStore,
        fault::{Fault, FaultStore},
    },
    engine::{Cursor, EngineError, Index, RecordEngine, ScanPage, Set, conformance::RULES, memory::MemoryEngine},
    record::{Body, MinedIn, Phase, Record, build},
    store::{recovery::Sweep, testing},
    tx::Transaction,
};

const PAGE: u32 = 2;
const NOW_MS: u64 = 1_000;

/// How the last call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    LostRequest,
    Half,
    LostReply,
}

const DEATHS: [Death; 3] = [Death::LostRequest, Death::Half, Death::LostReply];

/// An engine whose caller dies at a call: it never hears of it.
struct Dies {
    inner: Arc<MemoryEngine>,
    calls: AtomicUsize,
    at: usize,
    death: Death,
    /// The other one takes a call in between.
    turn: Option<Arc<Mutex<tokio::sync::mpsc::UnboundedSender<()>>>>,
}

#[async_trait]
impl RecordEngine for Dies {
    fn name(&self) -> &'static str {
        "dies"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        // Rivals take turns.
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
        if let Some(turn) = &self.turn {
            let _ = turn.lock().unwrap().send(());
        }
        std::future::pending().await
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        self.inner.read(keys).await
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.inner.query(index, from, to, limit).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.inner.scan(set, cursor, limit).await
    }

    async fn close(&self) -> Result<(), EngineError> {
        self.inner.close().await
    }
}

fn paged() -> Paged {
    let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
    let parsed = Transaction::parse(&bytes).unwrap();
    let (setting, start) = (testing::setting(PAGE), build::Start::default());
    let pages = build::pages_of(&parsed, bytes.clone(), parsed.txid(), &setting, &start).unwrap();
    Paged { master: pages.master.into(), others: pages.others.unwrap().into(), starts: Starts::Live }
}

/// What outlives a creator.
#[derive(Clone)]
struct Remains {
    engine: Arc<MemoryEngine>,
    /// Of the blob store, where there is one.
    objects: Option<FaultStore>,
}

impl Remains {
    fn new(external: bool) -> Self {
        let objects = external.then(|| FaultStore::new(Arc::new(InMemory::new()), 1));
        Remains { engine: Arc::new(MemoryEngine::new(RULES)), objects }
    }

    fn store(&self, engine: Arc<dyn RecordEngine>) -> Store {
        let blobs = |objects: &FaultStore| BlobStore::new(Arc::new(objects.clone()), BlobOptions::default());
        Store::new(engine, testing::store(PAGE).settings).with_blobs(self.objects.as_ref().map(blobs))
    }
}

/// A creator that dies; whether it came to its end before.
async fn create(remains: &Remains, owner: u64, at: usize, death: Death) -> bool {
    let (creator, mut died) = mortal(remains, owner, at, death);
    tokio::select! {
        biased;
        outcome = async { creator.create(&paged(), |_| {}).await } => outcome.unwrap().is_done(),
        _ = died.recv() => false,
    }
}

/// One that is given up where it would have died.
async fn give_up(remains: &Remains, at: usize, death: Death) {
    let (creator, mut died) = mortal(remains, 1, at, death);
    let (given_up, work) = (CancellationToken::new(), paged());
    let cancelling = async {
        died.recv().await;
        given_up.cancel();
    };
    let (ended, ()) = tokio::join!(creator.create_unless(&given_up, &work, |_| {}), cancelling);
    assert!(ended.is_none(), "{ended:?}");
}

fn mortal(
    remains: &Remains,
    owner: u64,
    at: usize,
    death: Death,
) -> (Creator, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let (sender, died) = tokio::sync::mpsc::unbounded_channel();
    let turn = Some(Arc::new(Mutex::new(sender)));
    let dies = Dies { inner: remains.engine.clone(), calls: AtomicUsize::new(0), at, death, turn };
    let store = remains.store(Arc::new(dies));
    // A rival's lock record has run out as soon as it is taken, or it would only wait.
    let clock = Clock::simulated(NOW_MS + owner * 1_000_000);
    let identity = Identity { owner, process_id: 1, hostname: "here".into(), sees: Processes::None };
    (Creator::new(store, clock, identity), died)
}

async fn states(store: &Store) -> Vec<Option<TxState>> {
    let pages = store.pages(paged().others.txid(), 0, 3).await.unwrap();
    pages.iter().map(|page| page.as_ref().map(|page| page.state())).collect()
}

const LIVE: [Option<TxState>; 3] = [Some(TxState::Live); 3];

/// The ways to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Retry,
    Sweep,
    SetMined,
}

/// Nothing is open early, and this way leads to the end.
async fn check(remains: &Remains, way: Way, what: &str) {
    let store = remains.store(remains.engine.clone());
    let (work, txid) = (paged(), paged().others.txid());
    let before = states(&store).await;
    let open = before.contains(&Some(TxState::Live));
    assert!(!open || before.iter().all(Option::is_some), "{what}: {before:?}");
    assert!(before[0] != Some(TxState::Live) || before == LIVE, "{what}: the master is the last: {before:?}");
    let committed = before[0].is_some();
    if let Some(master) = store.master(txid).await.unwrap() {
        assert_eq!(matches!(master.body(), Some(Body::External(_))), remains.objects.is_some(), "{what}");
        assert_eq!(Some(store.body(&master).await.unwrap().as_ref()), work.master.body(), "{what}");
    }
    let now_ms = NOW_MS + 100_000_000;
    match way {
        Way::Retry => {
            let identity = Identity { owner: 99, process_id: 1, hostname: "here".into(), sees: Processes::None };
            let creator = Creator::new(store.clone(), Clock::simulated(now_ms), identity);
            assert!(creator.create(&work, |_| {}).await.unwrap().is_done(), "{what}");
            assert_eq!(states(&store).await, LIVE, "{what}: {way:?}");
            return;
        }
        Way::Sweep => {
            let swept = store.sweep(Sweep { now_ms, older_than_ms: 120_000, dry_run: false }).await.unwrap();
            assert!(swept.damaged.is_empty() && swept.running.is_empty(), "{what}: {swept:?}");
            let there = before.iter().any(Option::is_some);
            assert_eq!(swept.orphaned.len(), usize::from(there && !committed), "{what}: {swept:?}");
        }
        Way::SetMined => {
            store.complete(txid).await.unwrap();
            let mined_in = MinedIn { block_id: 1, height: 101, subtree: 0 };
            let stamp = Stamp { offset: 1, phase: Phase::Apply };
            let set = Operation::Sequenced(stamp, Sequenced::SetMined { mined_in, longest_chain: true });
            let outcome = store.apply_one(Row { key: Key::master(txid), operation: set }).await.unwrap();
            assert_eq!(outcome.is_done(), committed, "{what}: {outcome:?}");
        }
    }
    let after = states(&store).await;
    if committed {
        assert_eq!(after, LIVE, "{what}: {way:?}");
    } else {
        assert_eq!(after, before, "{what}: {way:?}: nobody but its event makes a master");
    }
}

/// Calls that a creation takes alone.
const CALLS: usize = 6;

const WAYS: [Way; 3] = [Way::Retry, Way::Sweep, Way::SetMined];

#[tokio::test(start_paused = true)]
async fn one_that_dies_at_every_step() {
    for external in [false, true] {
        let ended = create(&Remains::new(external), 1, CALLS, Death::LostRequest).await;
        assert!(ended, "lock, pages, master, release, clear, clear the master");
        for at in 0..CALLS {
            for (death, way) in DEATHS.iter().flat_map(|death| WAYS.map(|way| (*death, way))) {
                let remains = Remains::new(external);
                assert!(!create(&remains, 1, at, death).await);
                check(&remains, way, &format!("{death:?} at call {at}")).await;
            }
        }
    }
}

/// As when its partition is taken away.
#[tokio::test(start_paused = true)]
async fn one_that_is_given_up_at_every_step_leaves_no_lock_record() {
    for (external, at) in [false, true].iter().flat_map(|external| (0..CALLS).map(|at| (*external, at))) {
        for (death, way) in DEATHS.iter().flat_map(|death| WAYS.map(|way| (*death, way))) {
            let remains = Remains::new(external);
            give_up(&remains, at, death).await;
            let lock_record = remains.engine.read(&[Key::LockRecord(paged().others.txid())]).await.remove(0);
            assert_eq!(lock_record.unwrap(), None, "{death:?} at call {at}");
            check(&remains, way, &format!("given up: {death:?} at call {at}")).await;
        }
    }
}

/// Longer than any call takes that is answered, and shorter than one that is given up.
const KILLED_AFTER: Duration = Duration::from_secs(10);

/// What can become of a call of the blob store. One that takes an hour is the last of its creator.
const BLOB_FAULTS: [Fault; 6] = [
    Fault::LostRequest,
    Fault::LostReply,
    Fault::Denied,
    Fault::OtherBytes,
    Fault::CutShort,
    Fault::Slow(Duration::from_secs(3_600)),
];

/// A creator dies at a call of the engine; then a call of the blob store by its successor fails, who may find the blob or not.
/// How many have failed.
async fn blob_call_fails(dies_at: usize, call: u64, fault: Fault, way: Way) -> u64 {
    let what = format!("{fault:?} at call {call} of the blob store, after a death at call {dies_at} of the engine");
    let remains = Remains::new(true);
    create(&remains, 1, dies_at, Death::LostRequest).await;
    let Some(objects) = &remains.objects else { unreachable!("it was asked for") };
    objects.fail_at(call, fault);
    let ended = tokio::time::timeout(KILLED_AFTER, create(&remains, 2, usize::MAX, Death::LostRequest)).await;
    assert!(matches!((&ended, fault), (Ok(true), _) | (Err(_), Fault::Slow(_))), "{what}: {ended:?}");
    objects.unscript();
    check(&remains, way, &what).await;
    objects.injected_by_kind().values().sum()
}

#[tokio::test(start_paused = true)]
async fn every_call_of_the_blob_store_fails() {
    let mut failed = 0;
    for (dies_at, call) in [0, 2, CALLS].iter().flat_map(|dies_at| (1..=3).map(move |call| (*dies_at, call))) {
        for (fault, way) in BLOB_FAULTS.iter().flat_map(|fault| WAYS.map(|way| (*fault, way))) {
            failed += blob_call_fails(dies_at, call, fault, way).await;
        }
    }
    // Where there is no blob yet one call puts it, and a failed one is followed by another; where there is one, it is compared.
    assert!(failed >= 5 * 6 * 3, "{failed}");
}

#[tokio::test(start_paused = true)]
async fn two_rivals_of_which_each_dies_at_every_step() {
    let mut cases = 0;
    for (first, second) in (0..=CALLS).flat_map(|first| (0..=CALLS).map(move |second| (first, second))) {
        for (one, other) in DEATHS.iter().flat_map(|one| DEATHS.iter().map(move |other| (*one, *other))) {
            for way in WAYS {
                let remains = Remains::new(cases % 2 == 1);
                tokio::join!(create(&remains, 1, first, one), create(&remains, 2, second, other));
                check(&remains, way, &format!("{one:?} at {first} and {other:?} at {second}")).await;
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 7 * 7 * 9 * 3);
}
