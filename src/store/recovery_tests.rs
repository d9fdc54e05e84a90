use object_store::memory::InMemory;

use super::*;
use crate::{
    blob::{
        BlobOptions, BlobStore,
        fault::{BlobFault, FaultStore},
    },
    record::{Blob, Body, LockRecord, Reason, Sequenced, Slot, Verdict, build::NewTxState},
    store::{
        StoreSettings,
        queries::StoreQueries,
        read::{ReadFields, TxReader},
        testing,
    },
    telemetry::{Metrics, OperationKind, WatchedEngine},
};

/// A transaction of five outputs, two a page, after `creating` was cleared on this many of the other pages.
async fn half_created(store: &StateStore, cleared: u32) -> Txid {
    let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
    for mut page in testing::pages(&bytes, &NewTxState::default(), 2).into_iter().rev() {
        page.creating_at = (page.number == 0 || page.number > cleared).then_some(77);
        store.plant(page).await;
    }
    testing::txid(&bytes)
}

async fn are_live(store: &StateStore, txid: Txid) -> bool {
    let pages = store.pages(txid, 0, 3).await.unwrap();
    pages.iter().all(|page| page.as_ref().is_some_and(|page| page.state() == TxState::Live))
}

#[tokio::test(start_paused = true)]
async fn a_half_created_transaction_is_completed_from_every_step() {
    for cleared in 0..3 {
        let store = testing::store(2);
        let txid = half_created(&store, cleared).await;
        assert!(!are_live(&store, txid).await);
        for _ in 0..2 {
            Recovery::of(&store).complete(txid).await.unwrap();
            let master = store.master(txid).await.unwrap().unwrap();
            assert_eq!(master.state(), TxState::Live);
            assert!(are_live(&store, txid).await);
        }
    }
}

/// A half-created transaction without its page 2, and the slots of all its pages.
async fn without_page_2(store: &StateStore) -> (Txid, Vec<Slot>) {
    let whole = testing::store(2);
    let txid = half_created(&whole, 0).await;
    for page in whole.pages(txid, 0, 3).await.unwrap().into_iter().flatten().filter(|page| page.number != 2) {
        store.plant(Page::clone(&page)).await;
    }
    (txid, TxReader::of(&whole).get(txid, ReadFields::ALL).await.unwrap().unwrap().slots)
}

#[tokio::test(start_paused = true)]
async fn a_page_that_a_node_lost_is_restored() {
    let store = testing::forgetful_store(2);
    let (txid, slots) = without_page_2(&store).await;
    Recovery::of(&store).complete(txid).await.unwrap();
    assert!(are_live(&store, txid).await);
    assert_eq!(TxReader::of(&store).get(txid, ReadFields::ALL).await.unwrap().unwrap().slots, slots);
}

#[tokio::test(start_paused = true)]
async fn a_missing_page_is_not_restored_over_an_engine_that_loses_nothing() {
    let store = testing::store(2);
    let (txid, _) = without_page_2(&store).await;
    let error = Recovery::of(&store).complete(txid).await.unwrap_err();
    let why = RestoreError::EngineKeepsWrites;
    assert!(matches!(&error, CompleteError::MissingPage { page: 2, why: found, .. } if *found == why), "{error}");
    assert_eq!(store.pages(txid, 2, 3).await.unwrap(), [None]);
    assert_eq!(store.master(txid).await.unwrap().unwrap().state(), TxState::Creating);
    let swept = NOW.run(&store).await.unwrap();
    assert_eq!(swept.damaged, [sweep::DamagedTx { txid, problem: error.to_string() }]);
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_body_cannot_be_read_is_reported_and_not_restored() {
    let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
    let txid = testing::txid(&bytes);
    let (blobs, objects) = (BlobStore::memory(), FaultStore::new(Arc::new(InMemory::new()), 1));
    let damaged = BlobStore::new(Arc::new(objects.clone()), BlobOptions::default());
    damaged.put_tx(txid, bytes.clone()).await.unwrap();
    objects.fail_all(Some(BlobFault::OtherBytes));
    for (blobs, words) in
        [(None, "none is configured"), (Some(blobs), "not in the blob store"), (Some(damaged), "corrupt")]
    {
        let store = testing::forgetful_store(2).with_blobs(blobs);
        let mut master = testing::pages(&bytes, &NewTxState::default(), 2).remove(0);
        testing::master(&mut master).body = Some(Body::External(Blob::First(None)));
        master.creating_at = Some(7);
        store.plant(master).await;
        let error = Recovery::of(&store).complete(txid).await.unwrap_err();
        assert!(matches!(error, CompleteError::MissingPage { page: 1, why: RestoreError::Body(_), .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(store.master(txid).await.unwrap().unwrap().state(), TxState::Creating);
    }
}

#[tokio::test(start_paused = true)]
async fn a_contested_transaction_is_not_completed() {
    let store = testing::store(2);
    let txid = half_created(&store, 0).await;
    let reason = Reason::Command;
    store.sequenced(Key::master(txid), Sequenced::MarkConflicting { reason, height: 5 }).await;
    Recovery::of(&store).complete(txid).await.unwrap();
    let master = store.master(txid).await.unwrap().unwrap();
    assert_eq!(master.state(), TxState::Conflicting(Verdict::Conflicting(reason)));
    assert_eq!(store.pages(txid, 1, 2).await.unwrap()[0].as_ref().unwrap().state(), TxState::Creating);
    assert_eq!(Recovery::of(&store).complete(Txid([1; 32])).await.unwrap(), [0; 0]);
}

const NOW: Sweep = Sweep { now_ms: 10_000_000, older_than_ms: 120_000, dry_run: false };

#[tokio::test(start_paused = true)]
async fn the_sweep_completes_old_transactions_and_lists_the_others() {
    let store = testing::store(2);
    let half = half_created(&store, 1).await;
    let orphan =
        Page { txid: Txid([5; 32]), ..Page::clone(&store.pages(half, 2, 3).await.unwrap()[0].clone().unwrap()) };
    let young = Page { txid: Txid([6; 32]), creating_at: Some(NOW.now_ms - 1), ..orphan.clone() };
    store.plant(orphan.clone()).await;
    store.plant(young).await;
    let contested = testing::transaction(&[(testing::outpoint(Txid([8; 32]), 0), 1_000)], &[100; 3]);
    let start = NewTxState { verdict: Some(Verdict::Pending), ..NewTxState::default() };
    for mut page in testing::pages(&contested, &start, 2) {
        if page.number > 0 {
            (page.conflicting, page.creating_at) = (false, Some(78));
        }
        store.plant(page).await;
    }
    let expected = Swept {
        completed: vec![half],
        contested: 1,
        orphaned: vec![sweep::OrphanedPages { txid: orphan.txid, pages: [2].into(), since_ms: 77 }],
        older_than_an_hour: 3,
        ..Swept::default()
    };
    assert_eq!(Sweep { dry_run: true, ..NOW }.run(&store).await.unwrap(), expected);
    assert!(!are_live(&store, half).await);
    assert_eq!(NOW.run(&store).await.unwrap(), expected);
    assert!(are_live(&store, half).await);
    let rest = Swept { completed: vec![], older_than_an_hour: 2, ..expected };
    assert_eq!(NOW.run(&store).await.unwrap(), rest);
}

/// The pages are as after a node lost their tombstones.
#[tokio::test(start_paused = true)]
async fn pages_of_a_pruned_transaction_are_not_counted_as_contested() {
    let store = testing::store(2);
    let txid = half_created(&store, 0).await;
    let reason = Reason::Command;
    store.sequenced(Key::master(txid), Sequenced::MarkConflicting { reason, height: 5 }).await;
    store.sequenced(Key::master(txid), Sequenced::Prune { height: 900, keep_until: None }).await;
    let expected = Swept { pruned: 1, older_than_an_hour: 1, ..Swept::default() };
    assert_eq!(NOW.run(&store).await.unwrap(), expected);
    let pages = store.pages(txid, 1, 3).await.unwrap();
    assert!(pages.iter().flatten().all(|page| page.creating_at.is_some()), "unchanged");
}

#[tokio::test(start_paused = true)]
async fn the_sweep_skips_a_creation_that_may_be_running() {
    let store = testing::store(2);
    let txid = half_created(&store, 0).await;
    let hostname = "here".to_owned();
    let lock_record =
        LockRecord { created_at: 1, expires_at: NOW.now_ms + 1, process_id: 2, hostname, expected_recs: 3, owner: 9 };
    let acquire = Operation::AcquireLockRecord { lock_record: lock_record.clone(), now_ms: 1 };
    store.must_apply(Key::LockRecord(txid), acquire).await;
    let swept = NOW.run(&store).await.unwrap();
    assert_eq!((swept.running, swept.completed), (vec![txid], vec![]));
    let mut lock_records = Vec::new();
    StoreQueries::of(&store).lock_records(|txid, lock_record| lock_records.push((txid, lock_record))).await.unwrap();
    assert_eq!(lock_records, [(txid, lock_record)]);
    let swept = Sweep { now_ms: NOW.now_ms + 1, ..NOW }.run(&store).await.unwrap();
    assert_eq!((swept.running, swept.completed), (vec![], vec![txid]));
    assert_eq!(store.read(vec![Key::LockRecord(txid)]).await.unwrap(), [None], "the lock record has expired");
}

/// A page can have tens of thousands of slots.
#[tokio::test(start_paused = true)]
async fn the_sweep_reads_few_pages_at_once() {
    let metrics = Arc::new(Metrics::new());
    let store = testing::store(2);
    let engine = Arc::new(WatchedEngine::new(store.engine.clone(), metrics.clone()));
    let settings = StoreSettings { batch_size: 1_000, ..store.settings };
    let store = StateStore { engine, settings, ..store };
    for number in 1..=80 {
        let slots = Some(vec![]);
        store.plant(Page { number, utxos: slots, creating_at: Some(7), ..Page::empty(Txid([1; 32])) }).await;
    }
    let found = sweep::read_half_created(&store, NOW.now_ms).await.unwrap();
    assert_eq!(found[0].1.pages.len(), 80);
    assert_eq!(metrics.engine_seconds.of(OperationKind::Read).get_sample_count(), 80 / u64::from(PAGES_AT_A_TIME));
}

/// More transactions than one query returns, and more of one millisecond than one query returns.
#[tokio::test(start_paused = true)]
async fn the_sweep_finds_more_transactions_than_one_query_returns() {
    let store = testing::store(2);
    for number in 0..350_u32 {
        plant_orphan(&store, number, if number < 250 { 7 } else { u64::from(number) }).await;
    }
    assert_eq!(NOW.run(&store).await.unwrap().orphaned.len(), 350);
}

/// Plants a page without a master, creating since `since_ms`.
async fn plant_orphan(store: &StateStore, number: u32, since_ms: u64) {
    let mut txid = [9; 32];
    txid[..4].copy_from_slice(&number.to_be_bytes());
    store.plant(Page { number: 1, utxos: Some(vec![]), creating_at: Some(since_ms), ..Page::empty(Txid(txid)) }).await;
}

/// A half-created transaction on one page, creating since `since_ms`.
async fn half_created_since(store: &StateStore, tag: u8, since_ms: u64) -> Txid {
    let bytes = testing::transaction(&[(testing::outpoint(Txid([tag; 32]), 0), 1_000)], &[100; 2]);
    for page in testing::pages(&bytes, &NewTxState::default(), 2) {
        store.plant(Page { creating_at: Some(since_ms), ..page }).await;
    }
    testing::txid(&bytes)
}

/// Pages without a master are the oldest, and no pass can complete them. A pass that began at the oldest page each time
/// would never see the others.
#[tokio::test(start_paused = true)]
async fn passes_complete_a_bounded_number_oldest_first_and_reach_every_page() {
    let store = testing::store(2);
    for number in 0..5 {
        plant_orphan(&store, number, u64::from(number)).await;
    }
    let mut txids = Vec::new();
    for (tag, since_ms) in [(1, 30), (2, 10), (3, 20), (4, 40)] {
        txids.push(half_created_since(&store, tag, since_ms).await);
    }
    half_created_since(&store, 5, NOW.now_ms).await;
    let mut cursor = SweepCursor::new(3);
    let mut completed = Vec::new();
    for _ in 0..4 {
        let swept = NOW.run_pass(&store, &mut cursor).await.unwrap();
        assert!(swept.completed.len() + swept.orphaned.len() <= 3, "{swept:?}");
        completed.extend(swept.completed);
    }
    assert_eq!(completed, [txids[1], txids[2], txids[0], txids[3]], "by age");
    assert_eq!(NOW.run_pass(&store, &mut cursor).await.unwrap().orphaned.len(), 3, "from the oldest again");
    assert_eq!(count_old(&store, NOW.now_ms).await.unwrap(), 5);
    assert_eq!(count_old(&store, 3_600_002).await.unwrap(), 3);
}

/// More pages than a pass reads are creating since one millisecond, and most cannot be completed. Each pass is bounded,
/// and every other page is reached, of that millisecond and of the next.
#[tokio::test(start_paused = true)]
async fn a_pass_is_bounded_where_many_pages_are_of_one_millisecond() {
    let store = testing::store(2);
    for number in 0..20_001_u32 {
        plant_orphan(&store, number, 5).await;
    }
    let mut expected = Vec::new();
    for (tag, since_ms) in [(1, 5), (2, 5), (3, 5), (4, 6)] {
        expected.push(half_created_since(&store, tag, since_ms).await);
    }
    let mut cursor = SweepCursor::new(3_000);
    let (mut completed, mut most) = (Vec::new(), 0);
    for _ in 0..10 {
        let swept = NOW.run_pass(&store, &mut cursor).await.unwrap();
        most = most.max(swept.orphaned.len());
        completed.extend(swept.completed);
    }
    completed.sort();
    expected.sort();
    assert!(most <= 3_000 && completed == expected, "{most}, {} completed", completed.len());
    assert_eq!(NOW.run_pass(&store, &mut cursor).await.unwrap().orphaned.len(), 3_000, "from the oldest again");
}
