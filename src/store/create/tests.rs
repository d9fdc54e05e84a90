use std::time::Duration;

use super::*;
use crate::{
    engine::{
        RecordEngine,
        conformance::RULES,
        fault::{EngineFaults, FaultEngine},
        memory::MemoryEngine,
    },
    record::{Body, Reason, StoredOutput, Verdict, build},
    store::{
        outputs::{OutputOptions, OutputQuery, OutputReader},
        recovery::Recovery,
        spend_status::SpendStatus,
        testing,
        verify::{Violation, verify},
    },
    tx::{Outpoint, Transaction, Txid},
};

const PAGE: u32 = 2;

fn identity(owner: u64) -> CreatorIdentity {
    CreatorIdentity { owner, process_id: 7, hostname: "here".into(), process_visibility: ProcessVisibility::None }
}

/// Returns a transaction of five outputs on three pages.
fn paged(initial_state: InitialState) -> PagedTx {
    let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
    let parsed = Transaction::parse(&bytes).unwrap();
    let (setting, start) = (testing::setting(PAGE), build::NewTxState::default());
    let pages = build::build_pages(&parsed, bytes.clone(), parsed.txid(), &setting, &start).unwrap();
    PagedTx { master: pages.master.into(), others: pages.others.unwrap().into(), initial_state }
}

fn creator(store: &StateStore, owner: u64) -> Creator {
    Creator::new(store.clone(), Clock::simulated(1_000), identity(owner))
}

async fn create(store: &StateStore, owner: u64, initial_state: InitialState) -> Outcome {
    creator(store, owner).create(&paged(initial_state), |_| {}).await.unwrap()
}

async fn states(store: &StateStore) -> Vec<Option<TxState>> {
    let pages = store.pages(paged(InitialState::Live).others.txid(), 0, 3).await.unwrap();
    pages.iter().map(|page| page.as_ref().map(|page| page.state())).collect()
}

const LIVE: [Option<TxState>; 3] = [Some(TxState::Live); 3];

#[tokio::test(start_paused = true)]
async fn a_created_transaction_is_live_on_all_pages_and_create_is_idempotent() {
    let store = testing::store(PAGE);
    assert_eq!(create(&store, 1, InitialState::Live).await, Outcome::Applied(Reply::None));
    assert_eq!(states(&store).await, LIVE);
    let lock_record = store.read(vec![Key::LockRecord(paged(InitialState::Live).others.txid())]).await.unwrap();
    assert_eq!(lock_record, [None]);
    let again = create(&store, 2, InitialState::Live).await;
    assert_eq!(again, Outcome::AlreadyApplied(Reply::State(TxState::Live)));
    let mut violations = Vec::new();
    verify(&store, |_| {}, |violation| violations.push(violation)).await.unwrap();
    let missing = violations.iter().filter(|it| !matches!(it, Violation::InputNotTaken { .. }));
    assert_eq!(missing.count(), 0, "{violations:?}");
    let txid = paged(InitialState::Live).others.txid();
    let query = |vout| OutputQuery { outpoint: Outpoint { txid, vout }, hash: None };
    let states = OutputReader::of(&store).read(&[query(4), query(7)], OutputOptions::default()).await;
    let statuses: Vec<SpendStatus> = states.into_iter().map(|state| state.unwrap().status).collect();
    assert_eq!(statuses, [SpendStatus::Unspent, SpendStatus::NoSuchOutput]);
}

/// The master exists, so that every page was written, and slots of the missing page may have been spent.
#[tokio::test(start_paused = true)]
async fn a_missing_page_is_recreated_only_where_the_engine_can_lose_writes() {
    for (store, forgets) in [(testing::store(PAGE), false), (testing::forgetful_store(PAGE), true)] {
        let txid = paged(InitialState::Live).others.txid();
        for step in [CreationStep::Others(1..2), CreationStep::Master] {
            store.apply(build_page_rows(&step, &paged(InitialState::Live), 1)).await.unwrap();
        }
        let outcome = creator(&store, 1).create(&paged(InitialState::Live), |_| {}).await;
        match outcome {
            Ok(outcome) => assert!(forgets && outcome.is_done(), "{outcome:?}"),
            Err(CompleteError::MissingPage { page: 2, why: RestoreError::EngineKeepsWrites, .. }) => assert!(!forgets),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(states(&store).await[2].is_some(), forgets);
        assert_eq!(store.read(vec![Key::LockRecord(txid)]).await.unwrap(), [None], "the lock record is released");
    }
}

/// The event that made a lost page is read again; no later event may make the page.
#[tokio::test(start_paused = true)]
async fn a_missing_page_is_recreated_only_by_the_event_that_made_it() {
    for (made_at, makes_it) in [(4, true), (5, true), (6, false)] {
        let store = testing::forgetful_store(PAGE);
        for step in [CreationStep::Others(1..2), CreationStep::Master] {
            store.apply(build_page_rows(&step, &paged(InitialState::Live), 1)).await.unwrap();
        }
        let mut later = paged(InitialState::Live);
        testing::master(Arc::make_mut(&mut later.master)).created_at = made_at;
        let outcome = creator(&store, 1).create(&later, |_| {}).await;
        assert_eq!(outcome.is_ok(), makes_it, "{outcome:?}");
        assert_eq!(states(&store).await[2].is_some(), makes_it);
        if let Err(error) = outcome {
            assert!(matches!(error, CompleteError::MissingPage { page: 2, why: RestoreError::OtherEvent, .. }));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_master_of_a_contested_transaction_bars_its_pages() {
    let store = testing::store(PAGE);
    let state = TxState::Conflicting(Verdict::Pending);
    assert_eq!(create(&store, 1, InitialState::Contested).await, Outcome::Applied(Reply::State(state)));
    assert_eq!(states(&store).await, [Some(state), Some(TxState::Creating), Some(TxState::Creating)]);
    let outpoint = Outpoint { txid: paged(InitialState::Live).others.txid(), vout: 4 };
    let query = OutputQuery { outpoint, hash: None };
    let status = OutputReader::of(&store).read_one(query, OutputOptions::default()).await.unwrap().status;
    assert_eq!(status, SpendStatus::Conflicting(Verdict::Pending));
    let live = create(&store, 2, InitialState::Live).await;
    assert_eq!(
        live,
        Outcome::Rejected(Rejection::Exists(state)),
        "a contested transaction becomes live only by a verdict"
    );
    assert_eq!(states(&store).await[1], Some(TxState::Creating));
}

/// The creator died on another host after the master: nothing but the clearing is left to do.
#[tokio::test(start_paused = true)]
async fn a_foreign_lock_record_is_not_waited_for_once_the_master_exists() {
    let store = testing::store(PAGE);
    let other = creator(&store, 5);
    let key = Key::LockRecord(paged(InitialState::Live).others.txid());
    let lock_record = other.new_lock_record(3, 1_000);
    store.must_apply(key, Operation::AcquireLockRecord { lock_record, now_ms: 1_000 }).await;
    store.apply(build_page_rows(&CreationStep::Others(1..3), &paged(InitialState::Live), 1)).await.unwrap();
    let create = async || creator(&store, 1).create(&paged(InitialState::Live), |_| {}).await.unwrap();
    assert!(matches!(create().await, Outcome::Rejected(Rejection::Held(_))), "the creator may be writing pages");
    store.apply(build_page_rows(&CreationStep::Master, &paged(InitialState::Live), 1)).await.unwrap();
    assert!(create().await.is_done());
    assert_eq!(states(&store).await, [Some(TxState::Live); 3]);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_lock_record_is_respected_until_it_expires() {
    let store = testing::store(PAGE);
    let other = creator(&store, 5);
    let lock_record = other.new_lock_record(3, 1_000);
    assert_eq!((lock_record.created_at, lock_record.expires_at, lock_record.expected_recs), (1_000, 37_000, 3));
    let key = Key::LockRecord(paged(InitialState::Live).others.txid());
    store.must_apply(key, Operation::AcquireLockRecord { lock_record: lock_record.clone(), now_ms: 1_000 }).await;
    let creator = creator(&store, 1);
    let work = paged(InitialState::Live);
    let refused = Outcome::Rejected(Rejection::Held(lock_record));
    assert_eq!(creator.create(&work, |_| {}).await.unwrap(), refused);
    assert_eq!(states(&store).await, [None; 3]);
    assert!(creator.create_without_lock_record(&work).await.unwrap().is_done(), "no step depends on the lock record");
    tokio::time::sleep(Duration::from_secs(37)).await;
    assert!(creator.create(&work, |_| {}).await.unwrap().is_done());
}

/// A process id above every id that the system assigns.
const NO_PROCESS: u32 = u32::MAX;

#[tokio::test(start_paused = true)]
async fn a_lock_record_of_a_process_known_to_have_ended_is_ignored() {
    let own = CreatorIdentity {
        process_visibility: ProcessVisibility::SameHost,
        process_id: std::process::id(),
        ..identity(1)
    };
    let alive = CreatorIdentity { owner: 2, process_id: 1, ..own.clone() };
    let elsewhere = CreatorIdentity { owner: 2, process_id: NO_PROCESS, hostname: "there".into(), ..own.clone() };
    let dead = CreatorIdentity { owner: 2, process_id: NO_PROCESS, ..own.clone() };
    let earlier_process = CreatorIdentity { owner: 2, ..own.clone() };
    for (holder, waits) in [(alive, true), (elsewhere, true), (dead, false), (earlier_process, false)] {
        for (process_visibility, waits) in [(ProcessVisibility::SameHost, waits), (ProcessVisibility::None, true)] {
            let store = testing::store(PAGE);
            let lock_record =
                Creator::new(store.clone(), Clock::simulated(1_000), holder.clone()).new_lock_record(3, 1_000);
            let key = Key::LockRecord(paged(InitialState::Live).others.txid());
            store.must_apply(key, Operation::AcquireLockRecord { lock_record, now_ms: 1_000 }).await;
            let creator = Creator::new(
                store.clone(),
                Clock::simulated(1_000),
                CreatorIdentity { process_visibility, ..own.clone() },
            );
            let outcome = creator.create(&paged(InitialState::Live), |_| {}).await.unwrap();
            assert_eq!(matches!(outcome, Outcome::Rejected(Rejection::Held(_))), waits, "{holder:?}: {outcome:?}");
        }
    }
}

#[test]
fn lock_records_of_more_records_last_longer() {
    let seconds = [1, 10, 100, 135, 200, u32::MAX].map(|records| lock_record_ttl_ms(records) / 1_000);
    assert_eq!(seconds, [32, 50, 230, 300, 300, 300]);
}

/// Returns a partial transaction with outputs at these indexes.
fn partial(outputs: impl Iterator<Item = u32>) -> PagedTx {
    let output = |vout| build::KnownOutput { vout, output: StoredOutput { satoshis: 7, script: vec![0x51].into() } };
    let partial = build::KnownOutputs { txid: Txid([8; 32]), coinbase: false, outputs: outputs.map(output).collect() };
    let pages = build::build_partial_pages(&partial, &testing::setting(PAGE)).unwrap();
    PagedTx { master: pages.master.into(), others: pages.others.unwrap().into(), initial_state: InitialState::Live }
}

#[tokio::test(start_paused = true)]
async fn a_later_event_with_more_pages_writes_none_and_opens_none() {
    let txid = Txid([8; 32]);
    let (narrow, wide) = (partial(0..4), partial((0..4).chain([7])));
    let store = testing::store(PAGE);
    assert!(creator(&store, 1).create(&narrow, |_| {}).await.unwrap().is_done());
    let outcome = creator(&store, 2).create(&wide, |_| {}).await.unwrap();
    assert_eq!(outcome, Outcome::AlreadyApplied(Reply::State(TxState::Live)));
    let pages = store.pages(txid, 0, 4).await.unwrap();
    assert_eq!(pages.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);

    // The narrow one is half created: the wide event leaves its completion to other creators.
    let store = testing::store(PAGE);
    for step in [CreationStep::Others(1..2), CreationStep::Master] {
        store.apply(build_page_rows(&step, &narrow, 1)).await.unwrap();
    }
    let outcome = creator(&store, 2).create(&wide, |_| {}).await.unwrap();
    assert_eq!(outcome, Outcome::Rejected(Rejection::Exists(TxState::Creating)));
    assert_eq!(store.pages(txid, 2, 4).await.unwrap(), [None, None]);

    // The narrow master is written between the pages and the master of the wide event: the pages stay barred.
    let store = testing::store(PAGE);
    store.apply(build_page_rows(&CreationStep::Others(1..4), &wide, 1)).await.unwrap();
    store.apply(build_page_rows(&CreationStep::Master, &narrow, 1)).await.unwrap();
    let mut creation = Creation::without_lock_record(CreationKind::Live, 3, 8);
    creation.on_master_read(None);
    creation.on_body_stored();
    creation.on_outcomes(&store.apply(build_page_rows(&CreationStep::Others(1..4), &wide, 1)).await.unwrap());
    creation.on_outcomes(&store.apply(build_page_rows(&CreationStep::Master, &wide, 1)).await.unwrap());
    assert_eq!(*creation.step(), CreationStep::ReadMaster);
    let master = store.master(txid).await.unwrap();
    creation.on_master_read(ExistingMaster::of(master.as_ref(), &build_master_create(&wide, 1)));
    assert_eq!(*creation.step(), CreationStep::Ended(Outcome::Rejected(Rejection::Exists(TxState::Creating))));
}

/// A child was decided without its parent and may get a second chance: the contest stays due until it is published.
#[tokio::test(start_paused = true)]
async fn a_partial_transaction_that_fills_its_stub_stays_due_for_contest_on_retry() {
    let work = partial(0..4);
    for cleared in [false, true] {
        let store = testing::store(PAGE);
        store.sequenced(Key::master(Txid([8; 32])), Sequenced::MarkContested).await;
        for step in [CreationStep::Others(1..2), CreationStep::Master] {
            store.apply(build_page_rows(&step, &work, 1)).await.unwrap();
        }
        if cleared {
            Recovery::of(&store).complete(Txid([8; 32])).await.unwrap();
        }
        let outcome = creator(&store, 1).create(&work, |_| {}).await.unwrap();
        assert_eq!(outcome, Outcome::AlreadyApplied(Reply::ContestDue));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stub_becomes_the_coinbase_and_a_verdict_is_returned() {
    let store = testing::store(PAGE);
    let (txid, stamp) =
        (paged(InitialState::Live).others.txid(), Stamp { offset: 9, phase: crate::record::Phase::Apply });
    store.sequenced(Key::master(txid), Sequenced::MarkContested).await;
    let outcome = create(&store, 1, InitialState::Coinbase(stamp)).await;
    assert_eq!(outcome, Outcome::Applied(Reply::State(TxState::Creating)));
    assert_eq!(states(&store).await, LIVE);

    let store = testing::store(PAGE);
    store.sequenced(Key::master(txid), Sequenced::MarkConflicting { reason: Reason::Command, height: 5 }).await;
    let lost = Verdict::Conflicting(Reason::Command);
    let refused = Outcome::Rejected(Rejection::Exists(TxState::Stub(lost)));
    assert_eq!(create(&store, 1, InitialState::Live).await, refused);
    let applied = Outcome::Applied(Reply::State(TxState::Conflicting(lost)));
    assert_eq!(create(&store, 1, InitialState::Contested).await, applied);
}

#[tokio::test(start_paused = true)]
async fn concurrent_creators_under_faults_reach_the_same_state() {
    for seed in 0..200 {
        let memory = Arc::new(MemoryEngine::new(RULES));
        let faults = EngineFaults {
            lost_request: 0.2,
            lost_reply: 0.2,
            half_applied: 0.2,
            key_busy: 0.2,
            repeated: 0.2,
            late: 0.1,
            late_within_calls: 5,
            ..EngineFaults::default()
        };
        let engine: Arc<dyn RecordEngine> = Arc::new(FaultEngine::new(memory.clone(), seed).with(faults));
        let store = StateStore::new(engine, testing::store(PAGE).settings);
        // The clock of the second creator is past the end of the first one's lock record, so that both run at once.
        let late = Creator::new(store.clone(), Clock::simulated(1_000_000), identity(2));
        let (one, other) = (creator(&store, 1), late);
        let work = paged(InitialState::Live);
        let contested = paged(if seed % 3 == 0 { InitialState::Contested } else { InitialState::Live });
        let (first, second) = tokio::join!(one.create(&work, |_| {}), other.create(&contested, |_| {}));
        let (first, second) = (first.unwrap(), second.unwrap());
        let store = StateStore::new(memory, store.settings);
        let last = create(&store, 1, InitialState::Live).await;
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
