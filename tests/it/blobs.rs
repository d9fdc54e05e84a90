//! Tests that a store and its blob store belong together: no instance works on the one without the other.

use std::{fs, path::Path, sync::Arc};

use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{BlobAccess, BlobOptions, BlobStore, BlobUrl, Intent, OpenBlobError, open},
    engine::memory::MemoryEngine,
    instance::{self, InstanceError, InstanceParts},
    record::Rules,
    store::{
        StateStore,
        meta::{MetaError, RebuildAttempt, RebuildRecord, StoreMeta},
    },
};

use crate::harness::{LOSS_WINDOW, World, spend};

const RULES: Rules = Rules::main(288);

pub async fn blobs(root: &Path) -> BlobStore {
    let url = BlobUrl::Directory(root.to_owned());
    open(&url, Intent::Write, &BlobAccess::default(), BlobOptions::default()).await.unwrap()
}

/// Returns how an instance over this store ends with this blob store; an instance that becomes ready is shut down.
async fn run(world: &World, blobs: Option<BlobStore>) -> Result<(), InstanceError> {
    let parts = world.parts(&StateStore::new(world.nodes.clone(), world.store.settings).with_blobs(blobs));
    let (shutdown, health) = (CancellationToken::new(), parts.health.clone());
    let instance = tokio::spawn(instance::run(world.settings.clone(), parts, shutdown.clone()));
    while !instance.is_finished() && !health.ready().ok {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    shutdown.cancel();
    instance.await.unwrap().map(drop)
}

/// Returns a world that has run with the blob store at `root`.
async fn world_with_blobs(root: &Path) -> World {
    let world = World::new().await;
    let store = world.store.clone().with_blobs(Some(blobs(root).await));
    let parts = world.parts(&store);
    let shutdown = CancellationToken::new();
    let instance = tokio::spawn(instance::run(world.settings.clone(), parts, shutdown.clone()));
    let seed = world.seed(1, 1).await;
    world.validate(&spend(&[seed.coin(0)], 1, 1)).await;
    world.until_consumed().await;
    shutdown.cancel();
    instance.await.unwrap().unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn an_instance_refuses_a_missing_foreign_or_empty_blob_store() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("blobs");
    let world = world_with_blobs(&root).await;
    run(&world, Some(blobs(&root).await)).await.unwrap();

    let error = run(&world, None).await.unwrap_err();
    assert!(matches!(error, InstanceError::Meta(MetaError::NoBlobStore)), "{error}");

    let others = folder.path().join("others");
    blobs(&others).await.claim([9; 16], true).await.unwrap();
    let error = run(&world, Some(blobs(&others).await)).await.unwrap_err();
    assert!(matches!(&error, InstanceError::Blobs(OpenBlobError::OtherStore { .. })), "{error}");

    fs::rename(&root, folder.path().join("unmounted")).unwrap();
    fs::create_dir(&root).unwrap();
    let error = run(&world, Some(blobs(&root).await)).await.unwrap_err();
    assert!(matches!(&error, InstanceError::Blobs(OpenBlobError::Missing { .. })), "{error}");
    assert!(!error.may_be_retried() && fs::read_dir(&root).unwrap().next().is_none(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_store_without_blobs_accepts_one_blob_store_once() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new().await;
    run(&world, None).await.unwrap();
    run(&world, Some(blobs(&folder.path().join("one")).await)).await.unwrap();
    let error = run(&world, Some(blobs(&folder.path().join("other")).await)).await.unwrap_err();
    assert!(matches!(&error, InstanceError::Blobs(OpenBlobError::Missing { .. })), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_blob_flag_of_the_meta_record_is_durable_before_an_instance_begins() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::forgetful().await;
    world.seed(1, 1).await;
    world.run_until_consumed().await;
    run(&world, Some(blobs(&folder.path().join("one")).await)).await.unwrap();
    world.nodes.restart_nodes(LOSS_WINDOW, |_| true).unwrap();
    assert!(world.store.meta().await.unwrap().unwrap().has_blobs);
}

/// Returns a store for a rebuild of this world, in this engine.
fn target(world: &World, engine: &Arc<MemoryEngine>, blobs: BlobStore) -> StateStore {
    StateStore::new(engine.clone(), world.store.settings).with_blobs(Some(blobs))
}

/// Runs one rebuild; each rebuild would give a new store another id.
async fn rebuild(world: &World, store: &StateStore, id: u8) -> Result<(), InstanceError> {
    let parts = InstanceParts { store_id: [id; 16], ..world.parts(store) };
    instance::rebuild(world.settings.clone(), parts, CancellationToken::new()).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_needs_a_blob_store_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("blobs");
    let world = world_with_blobs(&root).await;
    let engine = Arc::new(MemoryEngine::new(RULES));
    let error = rebuild(&world, &target(&world, &engine, blobs(&root).await), 8).await.unwrap_err();
    assert!(matches!(&error, InstanceError::Blobs(OpenBlobError::OtherStore { .. })), "{error}");

    let own = folder.path().join("own");
    let store = target(&world, &engine, blobs(&own).await);
    rebuild(&world, &store, 9).await.expect("the rebuild can be repeated");
    let meta = store.meta().await.unwrap().unwrap();
    assert!(meta.has_blobs && meta.rebuilding.is_none());
    blobs(&own).await.claim(meta.store_id, false).await.unwrap();
    let error = rebuild(&world, &store, 10).await.unwrap_err();
    assert!(matches!(&error, InstanceError::NotEmpty), "{error}");
}

/// The rebuild is killed before it has claimed the blob store, before the meta record names a blob store, and before
/// the first record.
#[tokio::test(start_paused = true)]
async fn a_rebuild_killed_at_its_start_can_be_repeated_into_the_same_store() {
    for killed_after in 1..=3 {
        let folder = tempfile::tempdir().unwrap();
        let world = world_with_blobs(&folder.path().join("blobs")).await;
        let (engine, own) = (Arc::new(MemoryEngine::new(RULES)), folder.path().join("own"));
        let store = target(&world, &engine, blobs(&own).await);
        let meta = RebuildRecord::of(&store)
            .begin(RebuildAttempt { rebuilding: Default::default(), rebuilder: 1 }, [8; 16])
            .await
            .unwrap();
        if killed_after > 1 {
            blobs(&own).await.claim(meta.store_id, true).await.unwrap();
        }
        if killed_after > 2 {
            StoreMeta::of(&store).record_blob_store().await.unwrap();
        }
        rebuild(&world, &target(&world, &engine, blobs(&own).await), 9).await.unwrap();
        blobs(&own).await.claim([8; 16], false).await.unwrap();

        // Another record store does not get these blobs, whatever it holds.
        let other = target(&world, &Arc::new(MemoryEngine::new(RULES)), blobs(&own).await);
        let error = rebuild(&world, &other, 9).await.unwrap_err();
        assert!(matches!(&error, InstanceError::Blobs(OpenBlobError::OtherStore { .. })), "{error}");
    }
}
