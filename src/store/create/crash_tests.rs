//! A creator of three pages dies at every one of its calls of the engine, in every way: before the call, with half of its rows
//! done, with all of them done and no answer. Alone, and beside a rival that dies at every one of its own. After each: nothing can
//! be spent early, and a retry completes it; so do the sweep and the sequencer, where the master is there.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;

use super::*;
use crate::{
    engine::{Cursor, EngineError, Index, RecordEngine, ScanPage, Set, conformance::RULES, memory::MemoryEngine},
    record::{MinedIn, Phase, Record, build},
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
        if call < self.at {
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

/// A creator that dies; whether it came to its end before.
async fn create(inner: &Arc<MemoryEngine>, owner: u64, at: usize, death: Death) -> bool {
    let (sender, mut died) = tokio::sync::mpsc::unbounded_channel();
    let turn = Some(Arc::new(Mutex::new(sender)));
    let dies = Dies { inner: inner.clone(), calls: AtomicUsize::new(0), at, death, turn };
    let store = Store::new(Arc::new(dies), testing::store(PAGE).settings);
    // A rival's lock record has run out as soon as it is taken, or it would only wait.
    let clock = Clock::simulated(NOW_MS + owner * 1_000_000);
    let identity = Identity { owner, process_id: 1, hostname: "here".into() };
    let creator = Creator::new(store, clock, identity);
    tokio::select! {
        biased;
        outcome = async { creator.create(&paged(), |_| {}).await } => outcome.unwrap().is_done(),
        _ = died.recv() => false,
    }
}

fn store_on(inner: &Arc<MemoryEngine>) -> Store {
    Store::new(inner.clone(), testing::store(PAGE).settings)
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
async fn check(inner: &Arc<MemoryEngine>, way: Way, what: &str) {
    let store = store_on(inner);
    let (work, txid) = (paged(), paged().others.txid());
    let before = states(&store).await;
    let open = before.contains(&Some(TxState::Live));
    assert!(!open || before.iter().all(Option::is_some), "{what}: {before:?}");
    assert!(before[0] != Some(TxState::Live) || before == LIVE, "{what}: the master is the last: {before:?}");
    let committed = before[0].is_some();
    let now_ms = NOW_MS + 100_000_000;
    match way {
        Way::Retry => {
            let identity = Identity { owner: 99, process_id: 1, hostname: "here".into() };
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

#[tokio::test(start_paused = true)]
async fn one_that_dies_at_every_step() {
    let inner = Arc::new(MemoryEngine::new(RULES));
    assert!(
        create(&inner, 1, CALLS, Death::LostRequest).await,
        "lock, pages, master, release, clear, clear the master"
    );
    for at in 0..CALLS {
        for death in DEATHS {
            for way in [Way::Retry, Way::Sweep, Way::SetMined] {
                let inner = Arc::new(MemoryEngine::new(RULES));
                assert!(!create(&inner, 1, at, death).await);
                check(&inner, way, &format!("{death:?} at call {at}")).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_rivals_of_which_each_dies_at_every_step() {
    let mut cases = 0;
    for (first, second) in (0..=CALLS).flat_map(|first| (0..=CALLS).map(move |second| (first, second))) {
        for (one, other) in DEATHS.iter().flat_map(|one| DEATHS.iter().map(move |other| (*one, *other))) {
            for way in [Way::Retry, Way::Sweep, Way::SetMined] {
                let inner = Arc::new(MemoryEngine::new(RULES));
                tokio::join!(create(&inner, 1, first, one), create(&inner, 2, second, other));
                check(&inner, way, &format!("{one:?} at {first} and {other:?} at {second}")).await;
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 7 * 7 * 9 * 3);
}
