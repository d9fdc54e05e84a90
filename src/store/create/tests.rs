use std::time::Duration;

use super::*;
use crate::{
    engine::{
        RecordEngine,
        conformance::RULES,
        fault::{FaultEngine, Faults},
        memory::MemoryEngine,
    },
    record::{Body, Reason, StoredOutput, Verdict, build},
    store::testing,
    tx::{Outpoint, Transaction},
};

const PAGE: u32 = 2;

fn identity(owner: u64) -> Identity {
    Identity { owner, process_id: 7, hostname: "here".into(), sees: Processes::None }
}

/// A transaction of five outputs: three pages.
fn paged(starts: Starts) -> Paged {
    let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
    let parsed = Transaction::parse(&bytes).unwrap();
    let (setting, start) = (testing::setting(PAGE), build::Start::default());
    let pages = build::pages_of(&parsed, bytes.clone(), parsed.txid(), &setting, &start).unwrap();
    Paged { master: pages.master.into(), others: pages.others.unwrap().into(), starts }
}

fn creator(store: &Store, owner: u64) -> Creator {
    Creator::new(store.clone(), Clock::simulated(1_000), identity(owner))
}

async fn create(store: &Store, owner: u64, starts: Starts) -> Outcome {
    creator(store, owner).create(&paged(starts), |_| {}).await.unwrap()
}

async fn states(store: &Store) -> Vec<Option<TxState>> {
    let pages = store.pages(paged(Starts::Live).others.txid(), 0, 3).await.unwrap();
    pages.iter().map(|page| page.as_ref().map(|page| page.state())).collect()
}

const LIVE: [Option<TxState>; 3] = [Some(TxState::Live); 3];

#[tokio::test(start_paused = true)]
async fn a_transaction_is_live_on_all_its_pages_and_twice_is_once() {
    let store = testing::store(PAGE);
    assert_eq!(create(&store, 1, Starts::Live).await, Outcome::Applied(Reply::None));
    assert_eq!(states(&store).await, LIVE);
    let lock = store.read(vec![Key::LockRecord(paged(Starts::Live).others.txid())]).await.unwrap();
    assert_eq!(lock, [None]);
    let again = create(&store, 2, Starts::Live).await;
    assert_eq!(again, Outcome::AlreadyApplied(Reply::State(TxState::Live)));
    let mut violations = Vec::new();
    store.verify(|_| {}, |violation| violations.push(violation)).await.unwrap();
    let missing = violations.iter().filter(|it| !matches!(it, crate::store::verify::Violation::InputNotTaken { .. }));
    assert_eq!(missing.count(), 0, "{violations:?}");
    let spend =
        store.get_spend(Outpoint { txid: paged(Starts::Live).others.txid(), vout: 4 }, None, None).await.unwrap();
    assert_eq!(spend, crate::store::read::SpendStatus::Unspent);
    let beyond = Outpoint { txid: paged(Starts::Live).others.txid(), vout: 7 };
    assert_eq!(store.get_spend(beyond, None, None).await.unwrap(), crate::store::read::SpendStatus::NoSuchOutput);
}

/// Its master is there, so all its pages were written, and somebody may have spent what was on the one that is gone.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_gone_is_made_again_only_where_a_node_may_have_forgotten_it() {
    for (store, forgets) in [(testing::store(PAGE), false), (testing::forgetful_store(PAGE), true)] {
        let txid = paged(Starts::Live).others.txid();
        for step in [Step::Others(1..2), Step::Master] {
            store.apply(rows_of_pages(&step, &paged(Starts::Live), 1)).await.unwrap();
        }
        let told = creator(&store, 1).create(&paged(Starts::Live), |_| {}).await;
        match told {
            Ok(outcome) => assert!(forgets && outcome.is_done(), "{outcome:?}"),
            Err(CompleteError::MissingPage { page: 2, why: NotRestored::Lasting, .. }) => assert!(!forgets),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(states(&store).await[2].is_some(), forgets);
        assert_eq!(store.read(vec![Key::LockRecord(txid)]).await.unwrap(), [None], "others need not wait for it");
    }
}

/// A node that forgets a page has the event that made it done again: no later one makes it.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_gone_is_made_again_by_the_event_that_made_it() {
    for (made_at, makes_it) in [(4, true), (5, true), (6, false)] {
        let store = testing::forgetful_store(PAGE);
        for step in [Step::Others(1..2), Step::Master] {
            store.apply(rows_of_pages(&step, &paged(Starts::Live), 1)).await.unwrap();
        }
        let mut later = paged(Starts::Live);
        testing::master(Arc::make_mut(&mut later.master)).created_at = made_at;
        let told = creator(&store, 1).create(&later, |_| {}).await;
        assert_eq!(told.is_ok(), makes_it, "{told:?}");
        assert_eq!(states(&store).await[2].is_some(), makes_it);
        if let Err(told) = told {
            assert!(matches!(told, CompleteError::MissingPage { page: 2, why: NotRestored::OfAnotherEvent, .. }));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_contested_one_bars_its_pages_by_its_master() {
    let store = testing::store(PAGE);
    let state = TxState::Conflicting(Verdict::Pending);
    assert_eq!(create(&store, 1, Starts::Contested).await, Outcome::Applied(Reply::State(state)));
    assert_eq!(states(&store).await, [Some(state), Some(TxState::Creating), Some(TxState::Creating)]);
    let outpoint = Outpoint { txid: paged(Starts::Live).others.txid(), vout: 4 };
    let status = store.get_spend(outpoint, None, None).await.unwrap();
    assert_eq!(status, crate::store::read::SpendStatus::Conflicting(Verdict::Pending));
    let live = create(&store, 2, Starts::Live).await;
    assert_eq!(live, Outcome::Rejected(Rejection::Exists(state)), "it cannot become live by itself");
    assert_eq!(states(&store).await[1], Some(TxState::Creating));
}

#[tokio::test(start_paused = true)]
async fn a_lock_record_of_somebody_else_is_waited_for_until_it_ends() {
    let store = testing::store(PAGE);
    let other = creator(&store, 5);
    let lock_record = other.lock_record(3, 1_000);
    assert_eq!((lock_record.created_at, lock_record.expires_at, lock_record.expected_recs), (1_000, 37_000, 3));
    let key = Key::LockRecord(paged(Starts::Live).others.txid());
    store.must_apply(key, Operation::AcquireLockRecord { lock_record: lock_record.clone(), now_ms: 1_000 }).await;
    let creator = creator(&store, 1);
    let work = paged(Starts::Live);
    let held = Outcome::Rejected(Rejection::Held(lock_record));
    assert_eq!(creator.create(&work, |_| {}).await.unwrap(), held);
    assert_eq!(states(&store).await, [None; 3]);
    assert!(creator.create_now(&work).await.unwrap().is_done(), "nothing depends on it");
    tokio::time::sleep(Duration::from_secs(37)).await;
    assert!(creator.create(&work, |_| {}).await.unwrap().is_done());
}

/// Above what the system gives to any process.
const NO_PROCESS: u32 = u32::MAX;

#[tokio::test(start_paused = true)]
async fn a_lock_record_of_who_is_known_to_have_died_is_not_waited_for() {
    let own = Identity { sees: Processes::OfItsHost, process_id: std::process::id(), ..identity(1) };
    let alive = Identity { owner: 2, process_id: 1, ..own.clone() };
    let elsewhere = Identity { owner: 2, process_id: NO_PROCESS, hostname: "there".into(), ..own.clone() };
    let dead = Identity { owner: 2, process_id: NO_PROCESS, ..own.clone() };
    let earlier_life = Identity { owner: 2, ..own.clone() };
    for (holder, waits) in [(alive, true), (elsewhere, true), (dead, false), (earlier_life, false)] {
        let store = testing::store(PAGE);
        let held = Creator::new(store.clone(), Clock::simulated(1_000), holder.clone()).lock_record(3, 1_000);
        let key = Key::LockRecord(paged(Starts::Live).others.txid());
        store.must_apply(key, Operation::AcquireLockRecord { lock_record: held, now_ms: 1_000 }).await;
        for (sees, waits) in [(Processes::OfItsHost, waits), (Processes::None, true)] {
            let creator = Creator::new(store.clone(), Clock::simulated(1_000), Identity { sees, ..own.clone() });
            let outcome = creator.create(&paged(Starts::Live), |_| {}).await.unwrap();
            assert_eq!(matches!(outcome, Outcome::Rejected(Rejection::Held(_))), waits, "{holder:?}: {outcome:?}");
        }
    }
}

#[test]
fn lock_records_last_longer_where_there_is_more_to_do() {
    let seconds = [1, 10, 100, 135, 200, u32::MAX].map(|records| lock_record_ttl_ms(records) / 1_000);
    assert_eq!(seconds, [32, 50, 230, 300, 300, 300]);
}

/// A partial transaction whose outputs are so many, given by their indexes.
fn partial(outputs: impl Iterator<Item = u32>) -> Paged {
    let output = |vout| build::SeededOutput { vout, output: StoredOutput { satoshis: 7, script: vec![0x51].into() } };
    let seed = build::Seed { txid: Txid([8; 32]), coinbase: false, outputs: outputs.map(output).collect() };
    let pages = build::seeded_pages(&seed, &testing::setting(PAGE)).unwrap();
    Paged { master: pages.master.into(), others: pages.others.unwrap().into(), starts: Starts::Live }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_tells_of_more_pages_than_the_first_writes_none_and_opens_none() {
    let txid = Txid([8; 32]);
    let (narrow, wide) = (partial(0..4), partial((0..4).chain([7])));
    let store = testing::store(PAGE);
    assert!(creator(&store, 1).create(&narrow, |_| {}).await.unwrap().is_done());
    let told = creator(&store, 2).create(&wide, |_| {}).await.unwrap();
    assert_eq!(told, Outcome::AlreadyApplied(Reply::State(TxState::Live)));
    let pages = store.pages(txid, 0, 4).await.unwrap();
    assert_eq!(pages.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);

    // The first is half created: the second leaves it to whoever is at it.
    let store = testing::store(PAGE);
    for step in [Step::Others(1..2), Step::Master] {
        store.apply(rows_of_pages(&step, &narrow, 1)).await.unwrap();
    }
    let told = creator(&store, 2).create(&wide, |_| {}).await.unwrap();
    assert_eq!(told, Outcome::Rejected(Rejection::Exists(TxState::Creating)));
    assert_eq!(store.pages(txid, 2, 4).await.unwrap(), [None, None]);

    // It comes between the pages of the second and its master: they stay barred.
    let store = testing::store(PAGE);
    store.apply(rows_of_pages(&Step::Others(1..4), &wide, 1)).await.unwrap();
    store.apply(rows_of_pages(&Step::Master, &narrow, 1)).await.unwrap();
    let mut creation = Creation::without_lock_record(Kind::Live, 3, 8);
    creation.looked(None);
    creation.body_stored();
    creation.answered(&store.apply(rows_of_pages(&Step::Others(1..4), &wide, 1)).await.unwrap());
    creation.answered(&store.apply(rows_of_pages(&Step::Master, &wide, 1)).await.unwrap());
    assert_eq!(*creation.step(), Step::Look);
    let master = store.master(txid).await.unwrap();
    creation.looked(Seen::of(master.as_ref(), &create_master(&wide, 1)));
    assert_eq!(*creation.step(), Step::Ended(Outcome::Rejected(Rejection::Exists(TxState::Creating))));
}

/// Its child was found without it, and may have a second chance: whoever completes it, the contest is due until it was published.
#[tokio::test(start_paused = true)]
async fn the_contest_of_a_partial_transaction_in_the_place_of_its_stub_is_due_though_the_first_answer_was_lost() {
    let work = partial(0..4);
    for cleared in [false, true] {
        let store = testing::store(PAGE);
        store.sequenced(Key::master(Txid([8; 32])), Sequenced::MarkContested).await;
        for step in [Step::Others(1..2), Step::Master] {
            store.apply(rows_of_pages(&step, &work, 1)).await.unwrap();
        }
        if cleared {
            store.complete(Txid([8; 32])).await.unwrap();
        }
        let told = creator(&store, 1).create(&work, |_| {}).await.unwrap();
        assert_eq!(told, Outcome::AlreadyApplied(Reply::ContestDue));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stub_of_it_becomes_the_coinbase_and_a_verdict_is_told() {
    let store = testing::store(PAGE);
    let (txid, stamp) = (paged(Starts::Live).others.txid(), Stamp { offset: 9, phase: crate::record::Phase::Apply });
    store.sequenced(Key::master(txid), Sequenced::MarkContested).await;
    let outcome = create(&store, 1, Starts::Coinbase(stamp)).await;
    assert_eq!(outcome, Outcome::Applied(Reply::State(TxState::Creating)));
    assert_eq!(states(&store).await, LIVE);

    let store = testing::store(PAGE);
    store.sequenced(Key::master(txid), Sequenced::MarkConflicting { reason: Reason::Command, height: 5 }).await;
    let lost = Verdict::Conflicting(Reason::Command);
    let told = Outcome::Rejected(Rejection::Exists(TxState::Stub(lost)));
    assert_eq!(create(&store, 1, Starts::Live).await, told);
    let told = Outcome::Applied(Reply::State(TxState::Conflicting(lost)));
    assert_eq!(create(&store, 1, Starts::Contested).await, told);
}

#[tokio::test(start_paused = true)]
async fn whoever_creates_under_faults_comes_to_the_same() {
    for seed in 0..200 {
        let memory = Arc::new(MemoryEngine::new(RULES));
        let faults = Faults {
            lost_request: 0.2,
            lost_reply: 0.2,
            half_applied: 0.2,
            key_busy: 0.2,
            repeated: 0.2,
            late: 0.1,
            late_within_calls: 5,
            ..Faults::default()
        };
        let engine: Arc<dyn RecordEngine> = Arc::new(FaultEngine::new(memory.clone(), seed).with(faults));
        let store = Store::new(engine, testing::store(PAGE).settings);
        // The other one's clock is late enough for it to take the lock record over, so that they meet.
        let late = Creator::new(store.clone(), Clock::simulated(1_000_000), identity(2));
        let (one, other) = (creator(&store, 1), late);
        let work = paged(Starts::Live);
        let contested = paged(if seed % 3 == 0 { Starts::Contested } else { Starts::Live });
        let (first, second) = tokio::join!(one.create(&work, |_| {}), other.create(&contested, |_| {}));
        let (first, second) = (first.unwrap(), second.unwrap());
        let store = Store::new(memory, store.settings);
        let last = create(&store, 1, Starts::Live).await;
        let page = store.master(work.others.txid()).await.unwrap().unwrap();
        match page.state() {
            TxState::Live => assert_eq!(states(&store).await, LIVE, "seed {seed}"),
            state @ TxState::Conflicting(Verdict::Pending) => {
                assert_eq!(last, Outcome::Rejected(Rejection::Exists(state)), "seed {seed}");
                assert!(states(&store).await[1..].iter().all(|page| *page == Some(TxState::Creating)));
            }
            state => panic!("seed {seed}: {state:?} after {first:?} and {second:?}"),
        }
        assert_eq!(page.body().map(|body| matches!(body, Body::Transaction(_))), Some(true));
    }
}
