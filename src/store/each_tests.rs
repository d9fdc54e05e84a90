use std::sync::Arc;

use super::*;
use crate::{
    engine::fault::FaultEngine,
    store::{
        outputs::{OutputOptions, OutputQuery, OutputReader},
        read::{ReadError, ReadFields, TxReader},
        testing::*,
    },
};

const DAMAGED: Txid = Txid([2; 32]);
const AWAY: Txid = Txid([3; 32]);

/// A store with three transactions, of which one is damaged and one is on a node that is away.
async fn store_with_failures() -> StateStore {
    let store = store(100);
    for id in 1..=3 {
        store.plant(seeded(id, 2)).await;
    }
    let faults = FaultEngine::new(store.engine.clone(), 1);
    faults.fail_reads(|key| match key.txid() {
        Some(DAMAGED) => Some(ErrorKind::Fatal),
        Some(AWAY) => Some(ErrorKind::Retryable),
        _ => None,
    });
    StateStore { engine: Arc::new(faults), ..store }.with_read_limit(Duration::from_secs(2))
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_and_an_absent_node_fail_their_own_keys() {
    let store = store_with_failures().await;
    let (good, absent) = (Txid([1; 32]), Txid([9; 32]));
    let txids = [AWAY, good, DAMAGED, absent, good];
    let kind = |error: &ReadError| match error {
        ReadError::Engine(error) => error.kind,
        other => panic!("{other}"),
    };
    for fields in [ReadFields::default(), ReadFields::ALL] {
        let started = Instant::now();
        let found = TxReader::of(&store).get_many(&txids, fields).await;
        let tried = started.elapsed();
        assert!(tried >= Duration::from_secs(2) && tried < Duration::from_secs(3), "tried for {tried:?}");
        let found: Vec<_> = found.iter().map(|found| found.as_ref().map(Option::is_some).map_err(kind)).collect();
        let expected = [Err(ErrorKind::Retryable), Ok(true), Err(ErrorKind::Fatal), Ok(false), Ok(true)];
        assert_eq!(found, expected);
    }
    let query = |txid| OutputQuery { outpoint: outpoint(txid, 0), hash: None };
    for output in [false, true] {
        let options = OutputOptions { height: None, output, ..OutputOptions::default() };
        let states = OutputReader::of(&store).read(&txids.map(query), options).await;
        let states: Vec<_> =
            states.iter().map(|state| state.as_ref().map(|state| state.utxo_hash.is_some()).map_err(kind)).collect();
        let expected = [Err(ErrorKind::Retryable), Ok(true), Err(ErrorKind::Fatal), Ok(false), Ok(true)];
        assert_eq!(states, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_of_an_absent_node_fails_its_transaction_only() {
    let (store, bytes) = crate::store::read::tests::paged_store().await;
    store.plant(seeded(9, 2)).await;
    let faults = FaultEngine::new(store.engine.clone(), 1);
    let paged = txid(&bytes);
    faults.fail_reads(move |key| (*key == Key::Page(paged, 1)).then_some(ErrorKind::Retryable));
    let store = StateStore { engine: Arc::new(faults), ..store }.with_read_limit(Duration::from_secs(2));
    let slots = ReadFields { slots: true, body: false };
    let found = TxReader::of(&store).get_many(&[paged, Txid([9; 32])], slots).await;
    assert!(matches!(&found[0], Err(ReadError::Engine(error)) if error.may_be_retried()), "{:?}", found[0]);
    assert!(found[1].as_ref().unwrap().is_some());
    let outpoints = [outpoint(paged, 0), outpoint(paged, 2), outpoint(paged, 4)];
    let queries = outpoints.map(|outpoint| OutputQuery { outpoint, hash: None });
    let states = OutputReader::of(&store).read(&queries, OutputOptions::default()).await;
    assert_eq!(states.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_a_read_waits_for_the_node() {
    let store = StateStore { read_limit: None, ..store_with_failures().await };
    let read = store.read_records(vec![Key::master(AWAY)]);
    assert!(tokio::time::timeout(Duration::from_secs(600), read).await.is_err());
}
