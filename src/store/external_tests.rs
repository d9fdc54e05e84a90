use std::time::Duration;

use bytes::Bytes;
use object_store::memory::InMemory;

use super::*;
use crate::{
    blob::{
        BlobName, BlobOptions,
        conformance::hash_of,
        fault::{BlobFault, FaultStore},
    },
    clock::Clock,
    engine::{
        ErrorKind,
        fault::{EngineFaults, FaultEngine},
    },
    record::{Outcome, Reply, TxState, Verdict},
    store::{
        create::{Creator, CreatorIdentity, InitialState, PagedTx, ProcessVisibility},
        digest::{StateDigest, SurveyError, survey},
        outputs::{OutputOptions, OutputQuery, OutputReader},
        read::{ReadError, ReadFields, TxReader},
        testing::{self, outpoint, transaction, txid},
        verify::{Violation, verify},
    },
    telemetry::{Metrics, TransferDirection},
    tx::Transaction,
};

const PAGE: u32 = 2;
/// Inline limit below every body.
const NONE_INLINE: u64 = 0;

/// Returns an empty store with a blob store that can fail.
fn store(inline_limit: u64) -> (StateStore, FaultStore) {
    let objects = FaultStore::new(Arc::new(InMemory::new()), 1);
    let blobs =
        BlobStore::new(Arc::new(objects.clone()), BlobOptions { cache_time: Duration::ZERO, ..Default::default() });
    let mut store = testing::store(PAGE).with_blobs(Some(blobs));
    store.settings.inline_limit = inline_limit;
    (store, objects)
}

/// Creates a whole transaction as the pipeline does.
async fn create(store: &StateStore, bytes: &Bytes, initial_state: InitialState) -> Outcome {
    let parsed = Transaction::parse(bytes).unwrap();
    let setting = testing::setting(store.settings.utxo_batch_size);
    let start = crate::record::build::NewTxState::default();
    let pages = crate::record::build::build_pages(&parsed, bytes.clone(), parsed.txid(), &setting, &start).unwrap();
    let pages = pages.place_body(store.inline(), &setting);
    let Some(others) = pages.others else {
        let row = Row { key: Key::master(parsed.txid()), operation: Operation::Create(pages.master.into()) };
        return store.apply_one(row).await.unwrap();
    };
    let work = PagedTx { master: pages.master.into(), others: others.into(), initial_state };
    creator(store).create(&work, |_| {}).await.unwrap()
}

fn creator(store: &StateStore) -> Creator {
    let identity = CreatorIdentity {
        owner: 1,
        process_id: 1,
        hostname: "here".into(),
        process_visibility: ProcessVisibility::None,
    };
    Creator::new(store.clone(), Clock::simulated(1_000), identity)
}

/// Stores a seeded parent and a child with this number of outputs; returns the bytes of the child.
async fn family(store: &StateStore, outputs: usize) -> Bytes {
    store.plant(testing::seeded(1, 2)).await;
    let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &vec![100; outputs]);
    store.spend_inputs(&bytes).await;
    create(store, &bytes, InitialState::Live).await;
    bytes
}

async fn digest(store: &StateStore) -> StateDigest {
    survey(store, |_| {}).await.unwrap().digest
}

async fn violations(store: &StateStore) -> Vec<Violation> {
    let mut violations = Vec::new();
    verify(store, |_| {}, |violation| violations.push(violation)).await.unwrap();
    violations
}

async fn dumped(store: &StateStore) -> Vec<serde_json::Value> {
    let mut lines = Vec::new();
    let dumped = crate::store::dump::dump::<SurveyError>(store, |line| {
        lines.push(serde_json::to_value(line).unwrap());
        Ok(())
    });
    dumped.await.unwrap();
    lines
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_body_shows_only_in_the_record() {
    for outputs in [1, 5] {
        let (external, _) = store(NONE_INLINE);
        let inline = testing::store(PAGE);
        let bytes = family(&external, outputs).await;
        family(&inline, outputs).await;
        let id = txid(&bytes);
        let master = external.master(id).await.unwrap().unwrap();
        let body = Body::External(Blob::First(Some(hash_of(&bytes))));
        assert_eq!((master.body(), master.state()), (Some(&body), TxState::Live));
        assert_eq!(digest(&external).await, digest(&inline).await);
        assert_eq!(dumped(&external).await, dumped(&inline).await);
        assert_eq!((violations(&external).await, violations(&inline).await), (vec![], vec![]));
        assert_eq!(
            TxReader::of(&external).get_meta(id).await.unwrap(),
            TxReader::of(&inline).get_meta(id).await.unwrap()
        );
        assert_eq!(TxReader::of(&external).get_meta(id).await.unwrap().unwrap().tx, Some(bytes.clone()));
        let child = transaction(&[(outpoint(id, outputs as u32 - 1), 100)], &[100]);
        let child = Transaction::parse(&child).unwrap();
        let previous = TxReader::of(&external).previous_outputs(&child).await.unwrap();
        assert_eq!(previous, TxReader::of(&inline).previous_outputs(&child).await.unwrap());
        assert_eq!(previous[0].satoshis, 100);
    }
}

#[tokio::test(start_paused = true)]
async fn the_place_of_the_outputs_of_a_partial_transaction_does_not_show() {
    let with_page = |store: &StateStore| {
        let mut page = testing::seeded(1, 2);
        page.txid = Txid([1; 32]);
        (store.clone(), page)
    };
    let (external, _) = store(NONE_INLINE);
    let (external, page) = with_page(&external);
    let body = external.externalize_once(&page).await.unwrap().unwrap();
    assert!(matches!(body, Body::External(Blob::First(Some(_)))));
    let placed = with_body_replaced(&Arc::new(page.clone()), body);
    assert!(placed.is_partial() && !placed.differs_in_kind(&page) && !page.differs_in_kind(&placed));
    external.plant(Page::clone(&placed)).await;
    let inline = testing::store(PAGE);
    inline.plant(page.clone()).await;
    assert_eq!((digest(&external).await, dumped(&external).await), (digest(&inline).await, dumped(&inline).await));
    assert_eq!(external.body(&placed).await.unwrap().as_ref(), page.body().unwrap());
    let child = transaction(&[(outpoint(Txid([1; 32]), 1), 1_000)], &[100]);
    let previous = TxReader::of(&external).previous_outputs(&Transaction::parse(&child).unwrap()).await.unwrap();
    assert_eq!(previous[0].satoshis, 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_damaged_blob_is_reported_with_its_txid() {
    let (store, objects) = store(NONE_INLINE);
    let bytes = family(&store, 3).await;
    let id = txid(&bytes);
    let undamaged = digest(&store).await;
    let master = store.master(id).await.unwrap().unwrap();

    objects.fail_all(Some(BlobFault::OtherBytes));
    let error = store.body(&master).await.unwrap_err();
    assert!(matches!(error, BodyError::Blob { .. }) && error.to_string().contains(&id.to_string()), "{error}");
    objects.fail_all(None);
    assert_eq!(digest(&store).await, undamaged);

    store.blobs.as_ref().unwrap().delete(BlobName::tx(id)).await.unwrap();
    assert_eq!(store.body(&master).await.unwrap_err(), BodyError::BlobMissing { txid: id });
    let child = transaction(&[(outpoint(id, 2), 100)], &[100]);
    let error = TxReader::of(&store).previous_outputs(&Transaction::parse(&child).unwrap()).await.unwrap_err();
    assert!(matches!(error, ReadError::Body(BodyError::BlobMissing { .. })), "{error}");
    assert_ne!(digest(&store).await, undamaged, "damage changes the digest");
    let found = violations(&store).await;
    assert!(matches!(&found[..], [Violation::Body { txid, .. }] if *txid == id), "{found:?}");

    let without = StateStore { blobs: None, ..store.clone() };
    assert_eq!(without.body(&master).await.unwrap_err(), BodyError::NoBlobStore { txid: id });
    assert!(matches!(survey(&without, |_| {}).await, Err(SurveyError::Body(BodyError::NoBlobStore { .. }))));
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_a_failing_blob_store_and_name_it() {
    for fault in [BlobFault::LostRequest, BlobFault::Denied] {
        let (store, objects) = store(NONE_INLINE);
        objects.fail_all(Some(fault));
        let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[100; 5]);
        let parsed = Transaction::parse(&bytes).unwrap();
        let start = crate::record::build::NewTxState::default();
        let setting = testing::setting(PAGE);
        let pages = crate::record::build::build_pages(&parsed, bytes.clone(), txid(&bytes), &setting, &start).unwrap();
        let work = PagedTx {
            master: pages.master.into(),
            others: pages.others.unwrap().into(),
            initial_state: InitialState::Live,
        };
        let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let creator = creator(&store);
        let creating = tokio::spawn(async move {
            let report = |failed: Option<&EngineError>| sender.send(failed.map(|error| error.to_string())).unwrap();
            creator.create(&work, report).await
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!creating.is_finished());
        let lock_record = store.read(vec![Key::LockRecord(txid(&bytes)), Key::Page(txid(&bytes), 1)]).await.unwrap();
        assert_eq!(lock_record, [None, None], "no lock record is held, and no record refers to a missing blob");
        objects.fail_all(None);
        assert_eq!(creating.await.unwrap().unwrap(), Outcome::Applied(Reply::None));
        let mut received = Vec::new();
        while let Ok(report) = reports.try_recv() {
            received.push(report);
        }
        let first = received.iter().position(Option::is_some).unwrap();
        let last = received.iter().rposition(Option::is_some).unwrap();
        assert!(received[first].as_ref().unwrap().contains("blob store"), "{received:?}");
        assert!(
            received[first..=last].iter().all(Option::is_some),
            "no report of success before the last failure: {received:?}"
        );
        assert_eq!(received.last(), Some(&None));

        let master = store.master(txid(&bytes)).await.unwrap().unwrap();
        objects.fail_all(Some(fault));
        let reading = {
            let (store, master) = (store.clone(), master.clone());
            tokio::spawn(async move { store.body(&master).await.map(|body| body.into_owned()) })
        };
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!reading.is_finished());
        objects.fail_all(None);
        assert_eq!(reading.await.unwrap().unwrap(), Body::Transaction(bytes));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_too_big_for_the_engine_goes_to_the_blob_store() {
    let (store, _) = store(u64::MAX);
    let small = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[100]);
    let [large, otherwise] =
        [1_000, 1_001].map(|claimed| transaction(&[(outpoint(Txid([2; 32]), 0), claimed)], &[100, 100]));
    let longest_body = Some(small.len() as u64);
    let bounded =
        FaultEngine::new(store.engine.clone(), 1).with(EngineFaults { longest_body, ..EngineFaults::default() });
    let store = StateStore { engine: Arc::new(bounded), ..store };
    for bytes in [&small, &large] {
        let page = testing::page(bytes).contested();
        let row = Row { key: Key::master(page.txid), operation: Operation::CreateContested(page.into()) };
        assert!(store.apply_one(row).await.unwrap().is_done());
    }
    let body = async |id| store.master(id).await.unwrap().unwrap().body().cloned().unwrap();
    assert_eq!(body(txid(&small)).await, Body::Transaction(small.clone()));
    let first_blob = Body::External(Blob::First(Some(hash_of(&large))));
    assert_eq!(body(txid(&large)).await, first_blob);

    // A body with other claims gets a blob of its own.
    let claimed =
        ClaimedBody { body: Body::Transaction(otherwise.clone()), fee: 7, extended_size: otherwise.len() as u64 };
    for _ in 0..2 {
        store.apply(vec![replace(&large, claimed.clone())]).await.unwrap();
        assert!(matches!(body(txid(&large)).await, Body::External(Blob::Other(_))));
        let master = store.master(txid(&large)).await.unwrap().unwrap();
        assert_eq!(master.state(), TxState::Conflicting(Verdict::Pending));
        assert_eq!(*store.body(&master).await.unwrap(), Body::Transaction(otherwise.clone()));
    }
    let first = ClaimedBody { body: Body::Transaction(large.clone()), ..claimed };
    store.apply(vec![replace(&large, first)]).await.unwrap();
    assert_eq!(body(txid(&large)).await, first_blob, "the first blob was not overwritten");

    let without = StateStore { blobs: None, ..store.clone() };
    let page = testing::page(&transaction(&[(outpoint(Txid([3; 32]), 0), 1_000)], &[100, 100]));
    let id = page.txid;
    let row = Row { key: Key::master(id), operation: Operation::Create(page.into()) };
    let refused = without.apply_one(row).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::TooBig);
    assert!(refused.to_string().contains("give the store a blob store (store.blobs.url)"), "{refused}");
    assert_eq!(without.master(id).await.unwrap(), None);
}

fn replace(of: &Bytes, claimed: ClaimedBody) -> Row {
    let stamp = crate::record::Stamp { offset: 1, phase: crate::record::Phase::Apply };
    let operation = Operation::Sequenced(stamp, Sequenced::ReplaceBody(claimed));
    Row { key: Key::master(txid(of)), operation }
}

#[tokio::test]
async fn an_output_needs_the_blob_up_to_it_and_a_damaged_one_is_not_returned() {
    let (objects, metrics) = (FaultStore::new(Arc::new(InMemory::new()), 1), Arc::new(Metrics::new()));
    let options = BlobOptions { metrics: metrics.clone(), ..Default::default() };
    let mut store = testing::store(100).with_blobs(Some(BlobStore::new(Arc::new(objects.clone()), options)));
    store.settings.inline_limit = NONE_INLINE;
    store.plant(testing::seeded(1, 2)).await;
    let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 3_000)], &[1; 2_000]);
    create(&store, &bytes, InitialState::Live).await;
    let reader = OutputReader::of(&store);
    let query = |vout| OutputQuery { outpoint: outpoint(txid(&bytes), vout), hash: None };
    let options = OutputOptions { height: None, output: true, ..OutputOptions::default() };
    objects.fail_all(Some(BlobFault::Dripping(Duration::ZERO)));
    let mut read = Vec::new();
    for vout in [0, 1_999] {
        let before = metrics.blob_bytes.of(TransferDirection::Read).get();
        let state = reader.read_one(query(vout), options).await.unwrap();
        assert_eq!(state.output.unwrap().script, testing::script(vout));
        read.push(metrics.blob_bytes.of(TransferDirection::Read).get() - before);
    }
    // A dripping read has pieces of 4 KiB.
    assert!(read[0] <= 4_096 && read[1] > bytes.len() as u64 - 4_096, "{read:?} of {}", bytes.len());

    objects.fail_all(Some(BlobFault::OtherBytes));
    let (mut right, mut refused) = (0, 0);
    for vout in (0..2_000).step_by(7) {
        match reader.read_one(query(vout), options).await {
            Ok(state) => {
                assert_eq!(state.output.unwrap().script, testing::script(vout));
                right += 1;
            }
            Err(error) => {
                assert!(matches!(error, ReadError::Body(_)), "{error}");
                refused += 1;
            }
        }
    }
    assert!(right > 50 && refused > 10, "{right} right, {refused} refused");
}

/// The blob store is away while a body is read within a limit, as the API reads.
#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_an_error_kind_of_its_own() {
    let (mut store, objects) = store(NONE_INLINE);
    let body = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[100]);
    assert!(create(&store, &body, InitialState::Live).await.is_done());
    objects.fail_all(Some(BlobFault::LostRequest));
    store.read_limit = Some(Duration::from_secs(1));
    match TxReader::of(&store).get(txid(&body), ReadFields::ALL).await {
        Err(ReadError::Engine(error)) => assert!(error.kind == ErrorKind::Storage, "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_error_of_the_blob_store_but_invalid_bytes_has_the_kind_of_storage() {
    for (of_blobs, of_engine, is_repeated) in [
        (BlobErrorKind::Retryable, ErrorKind::Storage, true),
        (BlobErrorKind::Unknown, ErrorKind::Storage, true),
        (BlobErrorKind::Denied, ErrorKind::Storage, true),
        (BlobErrorKind::Corrupt, ErrorKind::Storage, true),
        (BlobErrorKind::Invalid, ErrorKind::Fatal, false),
    ] {
        let error = BlobError { kind: of_blobs, operation: "put", path: "ab.tx".into(), message: "no answer".into() };
        let error = into_engine_error(error);
        assert_eq!((error.kind, error.may_be_retried()), (of_engine, is_repeated), "{error}");
    }
}
