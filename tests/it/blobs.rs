//! A store and its blob store belong together: no instance works on the one without the other.

use std::{fs, path::Path, sync::Arc};

use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{BlobAccess, BlobOptions, BlobStore, BlobUrl, Intent, OpenBlobError, open},
    engine::memory::MemoryEngine,
    instance::{self, InstanceError, InstanceParts},
    record::Rules,
    store::{
        Store,
        meta::{MetaError, MetaExpectations, Rebuild},
    },
};

use crate::world::{MAY_FORGET, World, spend};

const RULES: Rules = Rules::main(288);

async fn blobs(root: &Path) -> BlobStore {
    let url = BlobUrl::Directory(root.to_owned());
    open(&url, Intent::Write, &BlobAccess::default(), BlobOptions::default()).await.unwrap()
}

/// How an instance over this store ends, with this blob store; one that goes on is shut down.
async fn run(world: &World, blobs: Option<BlobStore>) -> Result<(), InstanceError> {
    let parts = world.parts(&Store::new(world.nodes.clone(), world.store.settings).with_blobs(blobs));
    let (shutdown, health) = (CancellationToken::new(), parts.health.clone());
    let instance = tokio::spawn(instance::run(world.settings.clone(), parts, shutdown.clone()));
    while !instance.is_finished() && !health.ready().ok {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    shutdown.cancel();
    instance.await.unwrap().map(drop)
}

/// A world that has lived with the blob store at `root`.
async fn lived(root: &Path) -> World {
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
async fn a_store_with_blobs_is_not_run_without_them_nor_over_others_nor_over_an_empty_mount_point() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("blobs");
    let world = lived(&root).await;
    run(&world, Some(blobs(&root).await)).await.unwrap();

    let error = run(&world, None).await.unwrap_err();
    assert!(matches!(error, InstanceError::Meta(MetaError::WithoutBlobs)), "{error}");

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
async fn a_store_that_has_lived_without_blobs_gets_them_once() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new().await;
    run(&world, None).await.unwrap();
    run(&world, Some(blobs(&folder.path().join("one")).await)).await.unwrap();
    let error = run(&world, Some(blobs(&folder.path().join("other")).await)).await.unwrap_err();
    assert!(matches!(&error, InstanceError::Blobs(OpenBlobError::Missing { .. })), "{error}");
}

#[tokio::test(start_paused = true)]
async fn no_node_can_forget_that_a_store_has_blobs_once_anything_begins() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::forgetful().await;
    world.seed(1, 1).await;
    world.run_until_consumed().await;
    run(&world, Some(blobs(&folder.path().join("one")).await)).await.unwrap();
    world.nodes.forget(MAY_FORGET, |_| true).unwrap();
    assert!(world.store.meta().await.unwrap().unwrap().has_blobs);
}

/// A store for a rebuild of this world, in this engine.
fn target(world: &World, engine: &Arc<MemoryEngine>, blobs: BlobStore) -> Store {
    Store::new(engine.clone(), world.store.settings).with_blobs(Some(blobs))
}

/// One try of a rebuild: each would name a new store differently.
async fn rebuild(world: &World, store: &Store, id: u8) -> Result<(), InstanceError> {
    let parts = InstanceParts { store_id: [id; 16], ..world.parts(store) };
    instance::rebuild(world.settings.clone(), parts, CancellationToken::new()).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_has_a_blob_store_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("blobs");
    let world = lived(&root).await;
    let engine = Arc::new(MemoryEngine::new(RULES));
    let error = rebuild(&world, &target(&world, &engine, blobs(&root).await), 8).await.unwrap_err();
    assert!(matches!(&error, InstanceError::Blobs(OpenBlobError::OtherStore { .. })), "{error}");

    let own = folder.path().join("own");
    let store = target(&world, &engine, blobs(&own).await);
    rebuild(&world, &store, 9).await.expect("it can be tried again");
    let meta = store.meta().await.unwrap().unwrap();
    assert!(meta.has_blobs && meta.rebuilding.is_none());
    blobs(&own).await.claim(meta.store_id, false).await.unwrap();
    let error = rebuild(&world, &store, 10).await.unwrap_err();
    assert!(matches!(&error, InstanceError::NotEmpty), "{error}");
}

/// Killed before it has said whose the blobs are, before the store knows that it has some, and before the first record.
#[tokio::test(start_paused = true)]
async fn a_rebuild_that_was_killed_as_it_began_is_repeated_into_the_same_place() {
    for killed_after in 1..=3 {
        let folder = tempfile::tempdir().unwrap();
        let world = lived(&folder.path().join("blobs")).await;
        let (engine, own) = (Arc::new(MemoryEngine::new(RULES)), folder.path().join("own"));
        let store = target(&world, &engine, blobs(&own).await);
        let settings = store.settings;
        let expected =
            MetaExpectations { network: settings.network, utxo_batch_size: settings.utxo_batch_size, retention: 288 };
        let meta = store
            .begin_rebuild(expected, Rebuild { rebuilding: Default::default(), rebuilder: 1 }, [8; 16])
            .await
            .unwrap();
        if killed_after > 1 {
            blobs(&own).await.claim(meta.store_id, true).await.unwrap();
        }
        if killed_after > 2 {
            store.note_blobs().await.unwrap();
        }
        rebuild(&world, &target(&world, &engine, blobs(&own).await), 9).await.unwrap();
        blobs(&own).await.claim([8; 16], false).await.unwrap();

        // Another store of records does not get these blobs, whatever it holds.
        let other = target(&world, &Arc::new(MemoryEngine::new(RULES)), blobs(&own).await);
        let error = rebuild(&world, &other, 9).await.unwrap_err();
        assert!(matches!(&error, InstanceError::Blobs(OpenBlobError::OtherStore { .. })), "{error}");
    }
}
