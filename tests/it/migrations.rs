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
        RecordEngine,
        aerospike::{AerospikeEngine, AerospikeSettings, Layout},
        fjall::{FjallEngine, FjallOptions},
        memory::MemoryEngine,
    },
    record::{Operation, Rules},
    snapshot::{MigrateError, MigrateReport, migrate},
    store::{
        StateStore,
        digest::{StateDigest, survey},
        meta::{MetaError, StoreMeta},
    },
};

use crate::{
    aerospike_server::AerospikeServer,
    harness::{World, WorldSettings},
    snapshots::produce_history,
};

async fn digest(store: &StateStore) -> StateDigest {
    survey(store, |_| {}).await.unwrap().digest
}

async fn copy(from: &World, to: &World) -> Result<MigrateReport, MigrateError> {
    let lag = to.settings.durability_lag;
    Box::pin(migrate(&from.store, &to.store, lag, &CancellationToken::new(), &|_| {})).await
}

/// Returns a world on the same log with an empty store. The blob store is the same.
fn beside(world: &World, engine: impl RecordEngine) -> World {
    let mut other = world.beside(Arc::new(engine));
    other.store = other.store.with_blobs(world.store.blobs.clone());
    other.settings.durability_lag = Some(Duration::from_secs(2));
    other
}

/// Migrates, and lets the group go on with the copy: history after the migration leads to the state of a rebuild.
async fn migrates_and_goes_on(world: &World, other: &World) {
    let before = digest(&world.store).await;
    let report = copy(world, other).await.unwrap();
    assert_eq!((report.digest, report.resumed), (before, false));
    assert!(report.copied.unwrap().records > 10 && report.transactions > 5, "{report:?}");
    let (from, to) = (world.store.meta().await.unwrap().unwrap(), other.store.meta().await.unwrap().unwrap());
    assert_eq!((from.store_id, &from.consumed, &from.topics), (to.store_id, &to.consumed, &to.topics));
    assert_eq!(to.restored, None);
    // The command is repeated.
    let again = copy(world, other).await.unwrap();
    assert_eq!((again.digest, again.resumed, again.copied), (before, true, None));

    produce_history(other, 60, 3).await;
    other.run_until_consumed().await;
    other.check_without_model("the copy after the migration").await;
    assert_ne!(digest(&other.store).await, before);
    assert!(matches!(copy(world, other).await.unwrap_err(), MigrateError::OtherDigest { .. }), "the copy is in use");
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
        migrates_and_goes_on(&world, &other).await;
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
        migrates_and_goes_on(&source, &other).await;
        let back = beside(&other, MemoryEngine::new(rules));
        copy(&other, &back).await.unwrap();
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
    let run = |from: &str, to: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
        command.args(["migrate", "--no-group", "--json", "--from", from, "--to", to]);
        let settings = &world.store.settings;
        command.env("UTXO_STORE__STORE__NETWORK", settings.network.to_string());
        command.env("UTXO_STORE__STORE__UTXO_BATCH_SIZE", settings.utxo_batch_size.to_string());
        command.env("UTXO_STORE__STORE__BLOCK_HEIGHT_RETENTION", settings.rules.retention.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
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
    assert_eq!(report["digest"], digest(&world.store).await.to_string());
    let same = run(&url("source"), &url("source")).wait_with_output().unwrap();
    assert_eq!(same.status.code(), Some(2), "{}", String::from_utf8_lossy(&same.stderr));
    let absent = run(&url("nowhere"), &url("copy")).wait_with_output().unwrap();
    assert_eq!(absent.status.code(), Some(1), "{}", String::from_utf8_lossy(&absent.stderr));
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
        match Box::pin(migrate(&world.store, &other.store, None, &stop, &on_progress)).await {
            Err(MigrateError::Stopped) => stops += 1,
            done => {
                assert_eq!(done.unwrap().digest, digest(&world.store).await);
                break;
            }
        }
        if other.store.meta().await.unwrap().is_some() {
            let error = other.parts(&other.store).store.clone();
            let refused = StoreMeta::of(&error).open(true, [9; 16]).await;
            assert!(matches!(refused, Err(MetaError::UnfinishedRestore)), "{refused:?}");
        }
    }
    assert!(stops > 10, "{stops}");
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
    let migration = Box::pin(migrate(&world.store, &other.store, None, &stop, &on_progress));
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
