//! Migrations: a store at rest is copied into another engine or layout, and the group goes on with the copy.

use std::{
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use utxo_store::{
    engine::{
        self, OpenOptions, RecordEngine,
        aerospike::{AerospikeEngine, AerospikeSettings, Layout},
        fjall::{FjallEngine, FjallOptions},
        memory::MemoryEngine,
    },
    record::{MetaRecord, Operation, Rules},
    snapshot::{MigrateError, MigrateReport, MigratedStores, migrate, undo_migration},
    store::{
        StateStore,
        digest::{StateDigest, survey},
        meta::{MetaError, StoreMeta},
    },
};

use crate::{
    aerospike_server::AerospikeServer,
    blobs::blobs,
    harness::{World, WorldSettings},
    snapshots::produce_history,
};

async fn digest(store: &StateStore) -> StateDigest {
    survey(store, |_| {}).await.unwrap().digest
}

fn stores<'a>(from: &'a World, to: &'a World) -> MigratedStores<'a> {
    MigratedStores { from: &from.store, to: &to.store, lag: to.settings.durability_lag }
}

async fn copy(from: &World, to: &World) -> Result<MigrateReport, MigrateError> {
    Box::pin(migrate(stores(from, to), async || Ok(()), &CancellationToken::new(), &|_| {})).await
}

/// Starts on a store as an instance does.
async fn start(world: &World) -> Result<MetaRecord, MetaError> {
    StoreMeta::of(&world.store).open(true, [9; 16]).await
}

/// Returns a world on the same log with an empty store. The blob store is the same.
fn beside(world: &World, engine: impl RecordEngine) -> World {
    let mut other = world.beside(Arc::new(engine));
    other.store = other.store.with_blobs(world.store.blobs.clone());
    other.settings.durability_lag = Some(Duration::from_secs(2));
    other
}

/// Migrates, goes back and migrates again, and lets the group go on with the copy.
async fn migrates_and_goes_on(world: &World, other: &World, third: &World) {
    let before = digest(&world.store).await;
    let report = copy(world, other).await.unwrap();
    assert!(report.compared > 10 && !report.resumed && !report.had_ended, "{report:?}");
    assert_eq!(digest(&other.store).await, before);
    let (from, to) = (world.store.meta().await.unwrap().unwrap(), other.store.meta().await.unwrap().unwrap());
    assert_eq!((from.store_id, &from.consumed, &from.topics), (to.store_id, &to.consumed, &to.topics));
    assert_eq!((to.restored, to.has_blobs), (None, from.has_blobs));
    // No group uses both.
    assert!(matches!(start(world).await, Err(MetaError::Migrated)));
    start(other).await.unwrap();
    // The command is repeated, and another copy is made.
    let again = copy(world, other).await.unwrap();
    assert!(again.resumed && again.had_ended, "{again:?}");
    assert!(matches!(copy(world, third).await, Err(MigrateError::Meta(MetaError::Migrated))));

    undo_migration(stores(world, other)).await.unwrap();
    undo_migration(stores(world, other)).await.unwrap_err();
    assert!(matches!(start(other).await, Err(MetaError::Migrated)));
    start(world).await.unwrap();
    copy(world, third).await.unwrap();
    produce_history(third, 60, 3).await;
    third.run_until_consumed().await;
    third.check_without_model("the copy after the migration").await;
    assert_ne!(digest(&third.store).await, before);
    let error = undo_migration(stores(world, third)).await.unwrap_err().to_string();
    assert!(error.contains("the group has used the copy"), "{error}");
    assert!(copy(world, third).await.unwrap().had_ended, "the copy is in use, and the command says so");
}

async fn world_with_history(settings: WorldSettings) -> World {
    let world = World::with_settings(settings).await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    world
}

fn fjall(folder: &tempfile::TempDir, rules: Rules) -> FjallEngine {
    FjallEngine::open(folder.path(), rules, FjallOptions::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_goes_on_with_a_copy_in_another_engine() {
    for settings in [WorldSettings::calm(), WorldSettings::paged(2), WorldSettings::with_blobs(2, 0)] {
        let world = world_with_history(settings).await;
        let folder = tempfile::tempdir().unwrap();
        let other = beside(&world, fjall(&folder, world.store.settings.rules));
        let third = beside(&world, MemoryEngine::new(world.store.settings.rules));
        migrates_and_goes_on(&world, &other, &third).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_goes_on_with_a_copy_in_each_layout_of_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let open = async |layout, rules| {
        let settings = AerospikeSettings { layout: Some(layout), ..server.settings() };
        AerospikeEngine::open(&settings, rules).await.unwrap()
    };
    for (from, to) in [(Layout::Teranode, Layout::Compact), (Layout::Compact, Layout::Teranode)] {
        let memory = world_with_history(WorldSettings::paged(3)).await;
        let rules = memory.store.settings.rules;
        let source = beside(&memory, open(from, rules).await);
        copy(&memory, &source).await.unwrap();
        let other = beside(&source, open(to, rules).await);
        let third = beside(&source, open(to, rules).await);
        migrates_and_goes_on(&source, &other, &third).await;
        let back = beside(&third, MemoryEngine::new(rules));
        copy(&third, &back).await.unwrap();
        assert_eq!(digest(&back.store).await, digest(&third.store).await);
    }
}

/// The command is killed at any moment, and repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_migration_continues() {
    let world = World::with_settings(WorldSettings::calm()).await;
    for (from, sequence) in [(10, 1), (60, 3), (110, 5), (160, 7)] {
        produce_history(&world, from, sequence).await;
    }
    world.run_until_consumed().await;
    let folder = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("fjall://{}", folder.path().join(name).display());
    let engine = FjallEngine::open(&folder.path().join("source"), world.store.settings.rules, FjallOptions::default());
    let source = beside(&world, engine.unwrap());
    copy(&world, &source).await.unwrap();
    source.store.engine.close().await.unwrap();
    let command = |from: &str, to: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
        command.args(["migrate", "--no-group", "--json", "--from", from, "--to", to]);
        let settings = &world.store.settings;
        command.env("UTXO_STORE__STORE__NETWORK", settings.network.to_string());
        command.env("UTXO_STORE__STORE__UTXO_BATCH_SIZE", settings.utxo_batch_size.to_string());
        command.env("UTXO_STORE__STORE__BLOCK_HEIGHT_RETENTION", settings.rules.retention.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let run = |from: &str, to: &str| command(from, to).spawn().unwrap();
    let to = format!("sqlite://{}", folder.path().join("copy.sqlite").display());
    for kill in 0..20 {
        let mut child = run(&url("source"), &to);
        tokio::time::sleep(Duration::from_millis(10 * kill)).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = run(&url("source"), &to).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["resumed"], true, "a kill fell into the copy");
    let again = run(&url("source"), &to).wait_with_output().unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&again.stdout).unwrap()["had_ended"], true);
    let engine = engine::open_existing(&to, &OpenOptions::new(world.store.settings.rules)).await.unwrap();
    let copied = world.beside(engine);
    assert_eq!(digest(&copied.store).await, digest(&world.store).await);
    copied.store.engine.close().await.unwrap();
    let volatile = run(&url("source"), "memory:///").wait_with_output().unwrap();
    assert_eq!(volatile.status.code(), Some(2), "{}", String::from_utf8_lossy(&volatile.stderr));
    let same = run(&url("source"), &url("source")).wait_with_output().unwrap();
    assert_eq!(same.status.code(), Some(2), "{}", String::from_utf8_lossy(&same.stderr));
    let absent = run(&url("nowhere"), &url("copy")).wait_with_output().unwrap();
    assert_eq!(absent.status.code(), Some(1), "{}", String::from_utf8_lossy(&absent.stderr));

    let undo = |to: &str| command(&url("source"), to).arg("--undo").output().unwrap();
    let mistyped = undo(&url("mistyped"));
    assert_eq!(mistyped.status.code(), Some(1), "{}", String::from_utf8_lossy(&mistyped.stderr));
    assert!(!folder.path().join("mistyped").exists(), "no store is made");
    let undone = undo(&to);
    assert!(undone.status.success(), "{}", String::from_utf8_lossy(&undone.stderr));
    let report: serde_json::Value = serde_json::from_slice(&undone.stdout).unwrap();
    assert_eq!((&report["undone"], report.get("had_ended")), (&serde_json::Value::Bool(true), None));
}

/// A copy that is not compared yet is no store: an instance refuses it, and the same migration continues.
#[tokio::test(start_paused = true)]
async fn a_migration_that_is_stopped_continues_and_is_refused_by_instances_meanwhile() {
    let world = world_with_history(WorldSettings::paged(2)).await;
    let other = beside(&world, MemoryEngine::new(world.store.settings.rules));
    let mut stops = 0;
    for parts in 1.. {
        let (stop, seen) = (CancellationToken::new(), AtomicU64::new(0));
        let on_progress = |_| {
            if seen.fetch_add(1, Relaxed) == parts {
                stop.cancel();
            }
        };
        match Box::pin(migrate(stores(&world, &other), async || Ok(()), &stop, &on_progress)).await {
            Err(MigrateError::Stopped) => stops += 1,
            done => {
                done.unwrap();
                assert_eq!(digest(&other.store).await, digest(&world.store).await);
                break;
            }
        }
        if other.store.meta().await.unwrap().is_some() {
            let refused = start(&other).await;
            assert!(matches!(refused, Err(MetaError::UnfinishedRestore)), "{refused:?}");
        }
    }
    assert!(stops > 10, "{stops}");
}

/// An instance starts on the source while the store is copied, and changes nothing yet.
#[tokio::test(start_paused = true)]
async fn an_instance_that_starts_meanwhile_ends_the_migration() {
    let world = world_with_history(WorldSettings::calm()).await;
    let other = beside(&world, MemoryEngine::new(world.store.settings.rules));
    let checks = AtomicU64::new(0);
    let check_group = async || match checks.fetch_add(1, Relaxed) {
        0 => Ok(()),
        _ => Err(MigrateError::Running("1 of the instances of this store run".into())),
    };
    let stop = CancellationToken::new();
    let migrated = migrate(stores(&world, &other), check_group, &stop, &|_| {});
    assert!(matches!(Box::pin(migrated).await, Err(MigrateError::Running(_))));
    start(&world).await.unwrap();
    assert!(matches!(start(&other).await, Err(MetaError::UnfinishedRestore)));
    assert!(copy(&world, &other).await.unwrap().resumed);
}

/// A blob store that is not mounted is as empty as a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_blob_store_than_that_of_the_source_is_refused() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [own, other] = [blobs(folders[0].path()).await, blobs(folders[1].path()).await];
    let mut world = World::with_settings(WorldSettings::with_blobs(2, 0)).await;
    world.store = world.store.with_blobs(Some(own));
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let mut to = beside(&world, MemoryEngine::new(world.store.settings.rules));
    to.store = to.store.with_blobs(Some(other));
    let error = copy(&world, &to).await.unwrap_err();
    assert!(matches!(error, MigrateError::Blobs(_)), "{error}");
    assert_eq!(to.store.meta().await.unwrap(), None);
    assert!(folders[1].path().read_dir().unwrap().next().is_none(), "no mark was written");
    to.store = to.store.with_blobs(world.store.blobs.clone());
    copy(&world, &to).await.unwrap();
}

/// A body that is too big for the engine goes to the blob store. A part that is copied again finds the body there.
#[tokio::test(start_paused = true)]
async fn a_body_that_moved_to_the_blob_store_is_equal_content() {
    let world = world_with_history(WorldSettings::calm()).await;
    let mut other = beside(&world, MemoryEngine::new(world.store.settings.rules));
    other.store = other.store.with_blobs(Some(utxo_store::blob::BlobStore::memory()));
    other.store.settings.inline_limit = 0;
    let stop = CancellationToken::new();
    let on_progress = |done: utxo_store::snapshot::CopyProgress| {
        if done.chunks == 250 {
            stop.cancel();
        }
    };
    let stopped = Box::pin(migrate(stores(&world, &other), async || Ok(()), &stop, &on_progress)).await;
    assert!(matches!(stopped, Err(MigrateError::Stopped)));
    // The setting is raised before the command is repeated.
    other.store.settings.inline_limit = u64::MAX;
    assert!(copy(&world, &other).await.unwrap().resumed);
    assert_eq!(digest(&other.store).await, digest(&world.store).await);
}

#[tokio::test(start_paused = true)]
async fn stores_that_cannot_be_migrated_are_refused_before_the_first_write() {
    let world = world_with_history(WorldSettings::calm()).await;
    let rules = world.store.settings.rules;
    let refusal = async |from: &World, to: &World| {
        let before = to.store.meta().await.unwrap();
        let error = copy(from, to).await.unwrap_err().to_string();
        assert_eq!(to.store.meta().await.unwrap(), before, "{error}");
        error
    };
    let empty = beside(&world, MemoryEngine::new(rules));
    assert!(refusal(&empty, &beside(&world, MemoryEngine::new(rules))).await.contains("has no meta record"));
    // One store under two names.
    assert!(refusal(&world, &world).await.contains("not empty"));
    let used = beside(&world, MemoryEngine::new(rules));
    StoreMeta::of(&used.store).open(false, [5; 16]).await.unwrap();
    assert!(refusal(&world, &used).await.contains("not empty"));
    let mut paged = beside(&world, MemoryEngine::new(rules));
    paged.store.settings.utxo_batch_size = 7;
    assert!(refusal(&world, &paged).await.contains("slots a page"));
    // Another program's records.
    let foreign = beside(&world, MemoryEngine::new(rules));
    let page = world.store.engine.scan(utxo_store::engine::Set::Transactions, None, 1).await.unwrap().records.remove(0);
    let row = utxo_store::engine::Row { key: page.0, operation: Operation::Restore(Box::new(page.1)) };
    assert!(foreign.store.engine.apply(&[row]).await.remove(0).unwrap().is_done());
    assert!(refusal(&world, &foreign).await.contains("not empty"));
}

/// An instance of the source that was forgotten changes the source during the copy.
#[tokio::test(start_paused = true)]
async fn a_source_that_changes_meanwhile_is_no_source() {
    let world = world_with_history(WorldSettings::calm()).await;
    let other = beside(&world, MemoryEngine::new(world.store.settings.rules));
    let has_changed = AtomicBool::new(false);
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let on_progress = |_| {
        if !has_changed.swap(true, Relaxed) {
            sender.send(()).unwrap();
        }
    };
    let stop = CancellationToken::new();
    let migration = Box::pin(migrate(stores(&world, &other), async || Ok(()), &stop, &on_progress));
    let change = async {
        receiver.recv().await.unwrap();
        StoreMeta::of(&world.store)
            .change(|meta| {
                let mut meta = meta;
                meta.consumed.chain += 1;
                Ok(meta)
            })
            .await
            .unwrap();
    };
    let (migrated, ()) = tokio::join!(migration, change);
    assert!(matches!(migrated, Err(MigrateError::SourceChanged)), "{migrated:?}");
    assert!(other.store.meta().await.unwrap().unwrap().restored.is_some(), "no instance starts on this copy");
    // The copy belongs to the source as it was.
    assert!(copy(&world, &other).await.unwrap_err().to_string().contains("not empty"));
}
