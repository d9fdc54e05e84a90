use super::*;
use crate::{
    blob::BlobStore,
    engine::Incarnation,
    event::Topic,
    record::{LogEnds, Rebuilding},
    store::{
        StoreSettings,
        testing::{seeded, store},
        topics::{FoundTopic, LogIdentity},
    },
    tx::Network,
};

/// Returns the store with changed settings.
fn changed(store: &StateStore, change: impl FnOnce(&mut StoreSettings)) -> StateStore {
    let mut store = store.clone();
    change(&mut store.settings);
    store
}

fn rebuild(frontier: u64, rebuilder: u64) -> RebuildAttempt {
    RebuildAttempt { rebuilding: Rebuilding { frontier, ..Rebuilding::default() }, rebuilder }
}

fn frontier(meta: &MetaRecord) -> Option<u64> {
    meta.rebuilding.as_ref().map(|rebuilding| rebuilding.frontier)
}

#[tokio::test]
async fn a_rebuild_resumes_where_it_was_until_a_node_restarts_or_it_ends() {
    let store = store(5);
    let nodes = Incarnation("a".into());
    let RebuildAttempt { rebuilding, .. } = rebuild(7, 1);
    let log = rebuilding.log.clone();
    let begun = RebuildAttempt { rebuilding: Rebuilding { nodes: "a".into(), ..rebuilding }, rebuilder: 1 };
    assert!(matches!(RebuildRecord::of(&store).resume(&nodes, 1, &log).await, Err(MetaError::NoMetaRecord)));
    RebuildRecord::of(&store).begin(begun, [1; 16]).await.unwrap();
    let at = |chain: u64, validated: u64| ConsumedOffsets { chain, validated: [(0, validated)].into(), height: 0 };
    for (reached, state) in [(at(3, 9), "three"), (at(0, 12), ""), (at(2, 0), "two")] {
        RebuildRecord::of(&store).record_progress(1, &reached, state).await.unwrap();
    }
    store.plant(seeded(1, 2)).await;
    let meta = RebuildRecord::of(&store).resume(&nodes, 2, &log).await.unwrap();
    let rebuilding = meta.rebuilding.unwrap();
    assert_eq!((rebuilding.reached, rebuilding.chain_state.as_str()), (at(3, 12), "three"));
    assert!(matches!(
        RebuildRecord::of(&store).record_progress(1, &at(4, 0), "four").await,
        Err(MetaError::RebuildTakenOver)
    ));
    let other = changed(&store, |settings| settings.utxo_batch_size = 6);
    assert!(matches!(RebuildRecord::of(&other).resume(&nodes, 3, &log).await, Err(MetaError::OtherBatchSize { .. })));
    let restarted = RebuildRecord::of(&store).resume(&Incarnation("b".into()), 3, &log).await;
    assert!(matches!(restarted, Err(MetaError::NodeRestarted)), "{restarted:?}");
    let of_another_log = LogEnds { ends: ConsumedOffsets { chain: 99, ..ConsumedOffsets::default() }, ..log.clone() };
    let other_log = RebuildRecord::of(&store).resume(&nodes, 3, &of_another_log).await;
    assert!(matches!(other_log, Err(MetaError::RebuildTakenOver)), "{other_log:?}");
    RebuildRecord::of(&store).check_owner(2).await.unwrap();
    RebuildRecord::of(&store).end(2, &at(7, 20)).await.unwrap();
    assert!(matches!(RebuildRecord::of(&store).resume(&nodes, 4, &log).await, Err(MetaError::StoreInUse)));
}

#[tokio::test]
async fn the_first_start_writes_the_meta_record_and_later_starts_find_it() {
    let store = store(5);
    let first = StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
    assert_eq!((first.store_id, first.layout_version, first.chain_id), ([1; 16], LAYOUT_VERSION, None));
    for group_has_offsets in [false, true] {
        assert_eq!(StoreMeta::of(&store).open(group_has_offsets, [2; 16]).await.unwrap(), first);
    }
}

#[tokio::test]
async fn each_difference_is_refused_with_both_values() {
    let store = store(5);
    let written = StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
    let cases = [
        (changed(&store, |settings| settings.network = Network::Main), ["regtest", "main", "network"]),
        (changed(&store, |settings| settings.utxo_batch_size = 20_000), [" 5 ", "20000", "utxo_batch_size"]),
    ];
    for (other, words) in cases {
        let error = StoreMeta::of(&other).open(true, [1; 16]).await.unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    StoreMeta::of(&store).change(|meta| Ok(MetaRecord { layout_version: 7, ..meta })).await.unwrap();
    let error = StoreMeta::of(&store).open(true, [1; 16]).await.unwrap_err().to_string();
    assert!(error.contains("layout 7") && error.contains("has 1"), "{error}");
    StoreMeta::of(&store).change(|_| Ok(written.clone())).await.unwrap();
    StoreMeta::of(&store).open(true, [1; 16]).await.unwrap();
}

#[tokio::test]
async fn a_lost_namespace_is_refused_without_a_write() {
    let store = store(5);
    let error = StoreMeta::of(&store).open(true, [1; 16]).await.unwrap_err();
    assert!(matches!(error, MetaError::NamespaceLost));
    assert!(error.to_string().contains("replay --rebuild"));
    assert_eq!(store.meta().await.unwrap(), None);
}

#[tokio::test]
async fn inspecting_finds_the_same_as_opening_and_writes_nothing() {
    let store = store(5);
    assert_eq!(StoreMeta::of(&store).inspect(false).await.unwrap(), None);
    assert!(matches!(StoreMeta::of(&store).inspect(true).await, Err(MetaError::NamespaceLost)));
    assert_eq!(store.meta().await.unwrap(), None);
    store.plant(seeded(1, 2)).await;
    assert!(matches!(StoreMeta::of(&store).inspect(false).await, Err(MetaError::ForeignRecords)));

    let store = self::store(5);
    let written = StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
    let later = changed(&store, |settings| settings.rules.retention = 10);
    assert_eq!(StoreMeta::of(&later).inspect(true).await.unwrap(), Some(written.clone()));
    let other = changed(&store, |settings| settings.network = Network::Main);
    assert!(matches!(StoreMeta::of(&other).inspect(true).await, Err(MetaError::OtherNetwork { .. })));
    assert_eq!(store.meta().await.unwrap(), Some(written));

    let rebuilt = self::store(5);
    RebuildRecord::of(&rebuilt).begin(rebuild(7, 1), [1; 16]).await.unwrap();
    assert!(matches!(StoreMeta::of(&rebuilt).inspect(true).await, Err(MetaError::UnfinishedRebuild { frontier: 7 })));
}

#[tokio::test]
async fn records_without_a_meta_record_are_refused() {
    let store = store(5);
    store.plant(seeded(1, 2)).await;
    assert!(matches!(StoreMeta::of(&store).open(false, [1; 16]).await, Err(MetaError::ForeignRecords)));
}

#[tokio::test]
async fn a_new_retention_is_recorded() {
    let store = store(5);
    StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
    let later = changed(&store, |settings| settings.rules.retention = 10);
    assert_eq!(StoreMeta::of(&later).open(true, [2; 16]).await.unwrap().retention, 10);
    assert_eq!(store.meta().await.unwrap().unwrap().retention, 10);
}

#[tokio::test]
async fn the_chain_id_is_recorded_once_and_other_ids_are_refused() {
    let store = store(5);
    StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
    let id = compute_chain_id(5, b"key", b"value");
    assert_eq!(StoreMeta::of(&store).bind_chain(None).await.unwrap().chain_id, None);
    for _ in 0..2 {
        assert_eq!(StoreMeta::of(&store).bind_chain(Some(id)).await.unwrap().chain_id, Some(id));
    }
    for (other, named) in [(Some([9; 32]), "0909"), (None, "none")] {
        let error = StoreMeta::of(&store).bind_chain(other).await.unwrap_err();
        assert!(matches!(error, MetaError::ChainRecreated { .. }));
        assert!(error.to_string().contains(named) && error.to_string().contains(&hex::encode(id)));
    }
}

#[tokio::test]
async fn the_number_of_partitions_is_recorded_and_others_are_refused() {
    let store = store(5);
    StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
    let log = |partitions| {
        let (topic, name, first) = (Topic::ValidatedTxs, "txs".to_owned(), Default::default());
        LogIdentity { topics: vec![FoundTopic { topic, name, id: None, partitions, first }], chain_id: None }
    };
    for _ in 0..2 {
        assert_eq!(StoreMeta::of(&store).bind_log(&log(3)).await.unwrap().partitions, Some(3));
    }
    let error = StoreMeta::of(&store).bind_log(&log(4)).await.unwrap_err().to_string();
    assert!(error.contains("has 4 partitions") && error.contains("made from 3"), "{error}");
}

#[test]
fn a_chain_id_depends_on_timestamp_key_and_value() {
    let id = compute_chain_id(5, b"key", b"value");
    for other in [
        compute_chain_id(6, b"key", b"value"),
        compute_chain_id(5, b"kez", b"value"),
        compute_chain_id(5, b"key", b"valuf"),
    ] {
        assert_ne!(id, other);
    }
}

#[tokio::test]
async fn concurrent_changes_of_the_meta_record_are_kept() {
    let store = store(5);
    RebuildRecord::of(&store).begin(rebuild(7, 1), [1; 16]).await.unwrap();
    let (other, interfered) = (store.clone(), std::sync::atomic::AtomicBool::new(false));
    let meta = StoreMeta::of(&store)
        .change(|meta| {
            if !interfered.swap(true, std::sync::atomic::Ordering::Relaxed) {
                // Between the read and the compare-and-set of the first attempt.
                futures_util::future::FutureExt::now_or_never(StoreMeta::of(&other).bind_chain(Some([3; 32])))
                    .unwrap()
                    .unwrap();
            }
            Ok(MetaRecord { prune_horizon: 40, ..meta })
        })
        .await
        .unwrap();
    assert_eq!((meta.prune_horizon, meta.chain_id, frontier(&meta)), (40, Some([3; 32]), Some(7)));
}

#[tokio::test]
async fn a_store_with_blobs_is_refused_without_a_blob_store() {
    let store = store(5);
    let with_blobs = store.clone().with_blobs(Some(BlobStore::memory()));
    StoreMeta::of(&with_blobs).open(false, [1; 16]).await.unwrap();
    assert!(!StoreMeta::of(&store).open(true, [2; 16]).await.unwrap().has_blobs, "not recorded yet");
    StoreMeta::of(&store).record_blob_store().await.unwrap();
    let error = StoreMeta::of(&store).open(true, [2; 16]).await.unwrap_err();
    assert!(matches!(error, MetaError::NoBlobStore) && error.to_string().contains("store.blobs.url"), "{error}");
    assert!(StoreMeta::of(&with_blobs).open(true, [2; 16]).await.unwrap().has_blobs);
}

#[tokio::test]
async fn an_unfinished_rebuild_is_refused() {
    let store = store(5);
    RebuildRecord::of(&store).begin(rebuild(7, 1), [1; 16]).await.unwrap();
    let error = StoreMeta::of(&store).open(true, [2; 16]).await.unwrap_err();
    assert!(matches!(error, MetaError::UnfinishedRebuild { frontier: 7 }) && error.to_string().contains("rebuild"));
    let consumed = ConsumedOffsets { chain: 7, validated: [(0, 3)].into(), height: 0 };
    for _ in 0..2 {
        RebuildRecord::of(&store).end(1, &consumed).await.unwrap();
    }
    assert_eq!(StoreMeta::of(&store).open(true, [2; 16]).await.unwrap().consumed, consumed);
}

#[tokio::test]
async fn a_second_rebuild_takes_over_and_the_first_cannot_end() {
    let store = store(5);
    for rebuilder in [1, 2] {
        RebuildRecord::of(&store).begin(rebuild(7, rebuilder), [1; 16]).await.unwrap();
        RebuildRecord::of(&store).check_owner(rebuilder).await.unwrap();
    }
    assert!(matches!(RebuildRecord::of(&store).check_owner(1).await, Err(MetaError::RebuildTakenOver)));
    assert!(matches!(
        RebuildRecord::of(&store).end(1, &ConsumedOffsets::default()).await,
        Err(MetaError::RebuildTakenOver)
    ));
    assert!(matches!(StoreMeta::of(&store).open(true, [2; 16]).await, Err(MetaError::UnfinishedRebuild { .. })));
    RebuildRecord::of(&store).end(2, &ConsumedOffsets::default()).await.unwrap();
    StoreMeta::of(&store).open(true, [2; 16]).await.unwrap();
}

#[tokio::test]
async fn a_killed_rebuild_begins_again_under_its_store_id_until_a_record_exists() {
    let store = store(5);
    for (frontier, store_id) in [(7, [1; 16]), (9, [2; 16])] {
        assert!(RebuildRecord::of(&store).can_begin().await.unwrap());
        let meta = RebuildRecord::of(&store).begin(rebuild(frontier, frontier), store_id).await.unwrap();
        assert_eq!((meta.store_id, self::frontier(&meta)), ([1; 16], Some(frontier)));
    }
    let other = changed(&store, |settings| settings.utxo_batch_size = 6);
    assert!(matches!(
        RebuildRecord::of(&other).begin(rebuild(9, 9), [1; 16]).await,
        Err(MetaError::OtherBatchSize { .. })
    ));
    store.plant(seeded(1, 2)).await;
    assert!(!RebuildRecord::of(&store).can_begin().await.unwrap());

    let store = self::store(5);
    StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
    assert!(!RebuildRecord::of(&store).can_begin().await.unwrap());
    assert!(matches!(RebuildRecord::of(&store).begin(rebuild(7, 7), [2; 16]).await, Err(MetaError::StoreInUse)));
    assert_eq!(frontier(&store.meta().await.unwrap().unwrap()), None);
}
