use std::time::Duration;

use bytes::Bytes;
use object_store::memory::InMemory;

use super::*;
use crate::{
    blob::{
        BlobName, BlobOptions,
        fault::{Fault, FaultStore},
    },
    clock::Clock,
    engine::{
        ErrorKind,
        fault::{FaultEngine, Faults},
    },
    record::{Outcome, Reply, TxState, Verdict},
    store::{
        create::{Creator, Identity, Paged, Processes, Starts},
        digest::{StateDigest, SurveyError},
        read::ReadError,
        testing::{self, outpoint, transaction, txid},
        verify::Violation,
    },
    tx::Transaction,
};

const PAGE: u32 = 2;
/// Any body is larger.
const NONE_INLINE: u64 = 0;

/// An empty store, with a blob store that can fail.
fn store(inline_limit: u64) -> (Store, FaultStore) {
    let objects = FaultStore::new(Arc::new(InMemory::new()), 1);
    let blobs = BlobStore::new(Arc::new(objects.clone()), BlobOptions { keep: Duration::ZERO, ..Default::default() });
    let mut store = testing::store(PAGE).with_blobs(Some(blobs));
    store.settings.inline_limit = inline_limit;
    (store, objects)
}

/// Creates a whole transaction as the pipeline does.
async fn create(store: &Store, bytes: &Bytes, starts: Starts) -> Outcome {
    let parsed = Transaction::parse(bytes).unwrap();
    let setting = testing::setting(store.settings.utxo_batch_size);
    let start = crate::record::build::Start::default();
    let pages = crate::record::build::pages_of(&parsed, bytes.clone(), parsed.txid(), &setting, &start).unwrap();
    let pages = pages.keeping(store.inline(), &setting);
    let Some(others) = pages.others else {
        let row = Row { key: Key::master(parsed.txid()), operation: Operation::Create(pages.master.into()) };
        return store.apply_one(row).await.unwrap();
    };
    let work = Paged { master: pages.master.into(), others: others.into(), starts };
    creator(store).create(&work, |_| {}).await.unwrap()
}

fn creator(store: &Store) -> Creator {
    let identity = Identity { owner: 1, process_id: 1, hostname: "here".into(), sees: Processes::None };
    Creator::new(store.clone(), Clock::simulated(1_000), identity)
}

/// A seeded parent and its child of so many outputs.
async fn family(store: &Store, outputs: usize) -> Bytes {
    store.plant(testing::seeded(1, 2)).await;
    let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &vec![100; outputs]);
    store.take_inputs(&bytes).await;
    create(store, &bytes, Starts::Live).await;
    bytes
}

async fn digest(store: &Store) -> StateDigest {
    store.survey(|_| {}).await.unwrap().digest
}

async fn violations(store: &Store) -> Vec<Violation> {
    let mut violations = Vec::new();
    store.verify(|_| {}, |violation| violations.push(violation)).await.unwrap();
    violations
}

async fn dumped(store: &Store) -> Vec<serde_json::Value> {
    let mut lines = Vec::new();
    let dumped = store.dump::<SurveyError>(|line| {
        lines.push(serde_json::to_value(line).unwrap());
        Ok(())
    });
    dumped.await.unwrap();
    lines
}

#[tokio::test(start_paused = true)]
async fn where_a_body_is_shows_nowhere_but_in_the_record() {
    for outputs in [1, 5] {
        let (external, _) = store(NONE_INLINE);
        let inline = testing::store(PAGE);
        let bytes = family(&external, outputs).await;
        family(&inline, outputs).await;
        let id = txid(&bytes);
        let master = external.master(id).await.unwrap().unwrap();
        assert_eq!((master.body(), master.state()), (Some(&Body::External(Blob::First)), TxState::Live));
        assert_eq!(digest(&external).await, digest(&inline).await);
        assert_eq!(dumped(&external).await, dumped(&inline).await);
        assert_eq!((violations(&external).await, violations(&inline).await), (vec![], vec![]));
        assert_eq!(external.get_meta(id).await.unwrap(), inline.get_meta(id).await.unwrap());
        assert_eq!(external.get_meta(id).await.unwrap().unwrap().tx, Some(bytes.clone()));
        let child = transaction(&[(outpoint(id, outputs as u32 - 1), 100)], &[100]);
        let child = Transaction::parse(&child).unwrap();
        let previous = external.previous_outputs(&child).await.unwrap();
        assert_eq!(previous, inline.previous_outputs(&child).await.unwrap());
        assert_eq!(previous[0].satoshis, 100);
    }
}

#[tokio::test(start_paused = true)]
async fn so_it_is_with_the_outputs_of_a_partial_transaction() {
    let seed = |store: &Store| {
        let mut page = testing::seeded(1, 2);
        page.txid = Txid([1; 32]);
        (store.clone(), page)
    };
    let (external, _) = store(NONE_INLINE);
    let (external, page) = seed(&external);
    let body = external.placed_once(&page).await.unwrap().unwrap();
    assert_eq!(body, Body::External(Blob::First));
    let placed = page_with_body(&Arc::new(page.clone()), body);
    assert!(placed.is_partial() && !placed.is_other_kind_than(&page) && !page.is_other_kind_than(&placed));
    external.plant(Page::clone(&placed)).await;
    let inline = testing::store(PAGE);
    inline.plant(page.clone()).await;
    assert_eq!((digest(&external).await, dumped(&external).await), (digest(&inline).await, dumped(&inline).await));
    assert_eq!(external.body(&placed).await.unwrap().as_ref(), page.body().unwrap());
    let child = transaction(&[(outpoint(Txid([1; 32]), 1), 1_000)], &[100]);
    let previous = external.previous_outputs(&Transaction::parse(&child).unwrap()).await.unwrap();
    assert_eq!(previous[0].satoshis, 1_000);
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_or_damaged_is_said_by_name() {
    let (store, objects) = store(NONE_INLINE);
    let bytes = family(&store, 3).await;
    let id = txid(&bytes);
    let sound = digest(&store).await;
    let master = store.master(id).await.unwrap().unwrap();

    objects.fail_all(Some(Fault::OtherBytes));
    let error = store.body(&master).await.unwrap_err();
    assert!(matches!(error, BodyError::Blob { .. }) && error.to_string().contains(&id.to_string()), "{error}");
    objects.fail_all(None);
    assert_eq!(digest(&store).await, sound);

    store.blobs.as_ref().unwrap().delete(BlobName::tx(id)).await.unwrap();
    assert_eq!(store.body(&master).await.unwrap_err(), BodyError::NoBlob { txid: id });
    let child = transaction(&[(outpoint(id, 2), 100)], &[100]);
    let error = store.previous_outputs(&Transaction::parse(&child).unwrap()).await.unwrap_err();
    assert!(matches!(error, ReadError::Body(BodyError::NoBlob { .. })), "{error}");
    assert_ne!(digest(&store).await, sound, "damage shows");
    let found = violations(&store).await;
    assert!(matches!(&found[..], [Violation::Body { txid, .. }] if *txid == id), "{found:?}");

    let without = Store { blobs: None, ..store.clone() };
    assert_eq!(without.body(&master).await.unwrap_err(), BodyError::External { txid: id });
    assert!(matches!(without.survey(|_| {}).await, Err(SurveyError::Body(BodyError::External { .. }))));
}

#[tokio::test(start_paused = true)]
async fn a_blob_store_that_is_away_is_waited_for_and_named() {
    for fault in [Fault::LostRequest, Fault::Denied] {
        let (store, objects) = store(NONE_INLINE);
        objects.fail_all(Some(fault));
        let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[100; 5]);
        let parsed = Transaction::parse(&bytes).unwrap();
        let start = crate::record::build::Start::default();
        let setting = testing::setting(PAGE);
        let pages = crate::record::build::pages_of(&parsed, bytes.clone(), txid(&bytes), &setting, &start).unwrap();
        let work = Paged { master: pages.master.into(), others: pages.others.unwrap().into(), starts: Starts::Live };
        let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
        let creator = creator(&store);
        let creating = tokio::spawn(async move {
            let tell = |failed: Option<&EngineError>| sender.send(failed.map(|error| error.to_string())).unwrap();
            creator.create(&work, tell).await
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!creating.is_finished());
        let lock_record = store.read(vec![Key::LockRecord(txid(&bytes)), Key::Page(txid(&bytes), 1)]).await.unwrap();
        assert_eq!(lock_record, [None, None], "nothing is held, and nothing refers to what is not there");
        objects.fail_all(None);
        assert_eq!(creating.await.unwrap().unwrap(), Outcome::Applied(Reply::None));
        let mut says = Vec::new();
        while let Ok(said) = told.try_recv() {
            says.push(said);
        }
        let first = says.iter().position(Option::is_some).unwrap();
        let last = says.iter().rposition(Option::is_some).unwrap();
        assert!(says[first].as_ref().unwrap().contains("blob store"), "{says:?}");
        assert!(says[first..=last].iter().all(Option::is_some), "it is not reachable until it is: {says:?}");
        assert_eq!(says.last(), Some(&None));

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
async fn what_the_engine_finds_too_big_goes_to_the_blob_store() {
    let (store, _) = store(u64::MAX);
    let small = transaction(&[(outpoint(Txid([1; 32]), 0), 1_000)], &[100]);
    let [large, otherwise] =
        [1_000, 1_001].map(|claimed| transaction(&[(outpoint(Txid([2; 32]), 0), claimed)], &[100, 100]));
    let longest_body = Some(small.len() as u64);
    let bounded = FaultEngine::new(store.engine.clone(), 1).with(Faults { longest_body, ..Faults::default() });
    let store = Store { engine: Arc::new(bounded), ..store };
    for bytes in [&small, &large] {
        let page = testing::page(bytes).contested();
        let row = Row { key: Key::master(page.txid), operation: Operation::CreateContested(page.into()) };
        assert!(store.apply_one(row).await.unwrap().is_done());
    }
    let body = async |id| store.master(id).await.unwrap().unwrap().body().cloned().unwrap();
    assert_eq!(body(txid(&small)).await, Body::Transaction(small.clone()));
    assert_eq!(body(txid(&large)).await, Body::External(Blob::First));

    // Other claims get a blob of their own.
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
    assert_eq!(body(txid(&large)).await, Body::External(Blob::First), "nothing was overwritten");

    let without = Store { blobs: None, ..store.clone() };
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
