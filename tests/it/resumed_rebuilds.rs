//! Rebuilds that are killed, and resumed where they had come to.

use std::{process::Stdio, sync::Arc, time::Duration};

use object_store::memory::InMemory;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{BlobOptions, BlobStore},
    broker::Broker,
    engine::{
        fault::{EngineFaults, FaultEngine},
        memory::MemoryEngine,
    },
    event::CommandAction,
    instance::{self, InstanceError, RebuildReport},
    record::{Key, Rebuilding, Rules, TxState},
    store::{StateStore, digest::survey, meta::MetaError},
};

use crate::{
    harness::{LOSS_WINDOW, Made, World, spend},
    kafka_server::KafkaServer,
    replay_from_offsets::{assert_refused_with, digest_of, run_json, run_until_committed},
    run::{Bench, block_on},
};

const RULES: Rules = Rules::main(288);
const HOUR: Duration = Duration::from_secs(3_600);

async fn digest(store: &StateStore) -> String {
    survey(store, |_| {}).await.unwrap().digest.to_string()
}

fn empty(world: &World) -> StateStore {
    StateStore::new(Arc::new(MemoryEngine::new(RULES)), world.store.settings)
}

/// Returns the same store behind an engine that is slow.
fn slow(store: &StateStore) -> StateStore {
    let faults = EngineFaults { delayed: 1.0, delay_within: Duration::from_millis(200), ..EngineFaults::default() };
    StateStore { engine: Arc::new(FaultEngine::new(store.engine.clone(), 7).with(faults)), ..store.clone() }
}

async fn resume(world: &World, store: &StateStore) -> Result<RebuildReport, InstanceError> {
    let resumed = instance::resume_rebuild(world.settings.clone(), world.parts(store), CancellationToken::new());
    tokio::time::timeout(HOUR, resumed).await.expect("a rebuild ends")
}

fn begin(world: &World, store: &StateStore) -> JoinHandle<Result<RebuildReport, InstanceError>> {
    let (settings, parts) = (world.settings.clone(), world.parts(store));
    tokio::spawn(instance::rebuild(settings, parts, CancellationToken::new()))
}

async fn kill(rebuilding: JoinHandle<Result<RebuildReport, InstanceError>>) {
    rebuilding.abort();
    assert!(rebuilding.await.is_err(), "the rebuild had ended by itself");
}

async fn rebuilding(store: &StateStore) -> Option<Rebuilding> {
    store.meta().await.unwrap()?.rebuilding.map(|rebuilding| *rebuilding)
}

/// Runs a hundred payments, each tenth of which is contested, and blocks that list them.
async fn run_history(world: &World) -> Vec<Made> {
    let running = world.start();
    let mut made = Vec::new();
    for tag in 1..=10 {
        let seed = world.seed(tag, 10).await;
        for vout in 0..10 {
            made.push(spend(&[seed.coin(vout)], 2, 1));
            world.validate(&made[made.len() - 1]).await;
        }
        world.validate(&spend(&[seed.coin(0)], 1, 2)).await;
        world.mine(u64::from(tag), &made[made.len() - 5..].iter().collect::<Vec<_>>()).await;
    }
    world.until_consumed().await;
    running.stop().await;
    made
}

/// The result is the one of a rebuild without a kill, wherever the kill was and however far the group has come since.
/// Events below the reached offsets are not read again.
#[tokio::test(start_paused = true)]
async fn a_killed_rebuild_resumes_to_the_same_state_and_reads_less() {
    let mut world = World::new().await;
    let made = run_history(&world).await;
    let live = digest(&world.store).await;
    // The rebuild is slow enough to be killed on the way.
    world.settings.pipeline.dispatch.batch_size = 4;
    let whole = resume(&world, &empty(&world)).await.unwrap().pipeline.completed;
    let mut stores = Vec::new();
    for after_ms in (1_100..).step_by(200) {
        let store = empty(&world);
        let first = begin(&world, &slow(&store));
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        if first.is_finished() {
            break;
        }
        kill(first).await;
        stores.push(store);
    }
    let mut reached = 0;
    for store in &stores {
        let begun = rebuilding(store).await.expect("the rebuild has not ended");
        reached = begun.reached.validated.values().sum::<u64>();
        // The group goes on meanwhile, and spends outputs that the rebuild has to find unspent.
        let later = spend(&[made[stores.len() % 7].coin(1)], 1, 9);
        world.validate(&later).await;
        world.run_until_consumed().await;
        let resumed = resume(&world, store).await.unwrap();
        assert_eq!(resumed.pipeline.completed, whole - reached, "only events above the reached offsets are read");
        assert_eq!(digest(store).await, live, "killed when {:?} was reached", begun.reached);
        assert!(matches!(resume(&world, store).await, Err(InstanceError::RebuildEnded)));
    }
    assert!(stores.len() > 5 && reached > 50, "{} kills, the last at {reached} of {whole}", stores.len());
    assert_ne!(digest(&world.store).await, live, "the group has gone on");
}

/// A rebuild is resumed only on request, and only where there is one to resume.
#[tokio::test(start_paused = true)]
async fn an_unresumable_rebuild_is_refused_by_name() {
    let world = World::new().await;
    run_history(&world).await;
    let store = empty(&world);
    let first = begin(&world, &store);
    while rebuilding(&store).await.is_none_or(|begun| begun.reached.validated.is_empty()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kill(first).await;
    let again = instance::rebuild(world.settings.clone(), world.parts(&store), CancellationToken::new()).await;
    let error = again.unwrap_err();
    assert!(matches!(error, InstanceError::NotEmpty) && error.to_string().contains("--resume"), "{error}");
    let live = resume(&world, &world.store).await.unwrap_err();
    assert!(matches!(live, InstanceError::NotEmpty), "the group's own store: {live}");
    let other = World::new().await;
    let error = resume(&other, &store).await.unwrap_err();
    assert!(matches!(error, InstanceError::LogChanged), "another log: {error}");
    resume(&world, &store).await.unwrap();
}

/// A resumed rebuild over nodes that lost writes would miss those writes.
#[tokio::test(start_paused = true)]
async fn a_rebuild_whose_nodes_have_restarted_is_not_resumed() {
    let world = World::forgetful().await;
    run_history(&world).await;
    let memory = Arc::new(MemoryEngine::with_loss_window(RULES, world.clock.clone(), LOSS_WINDOW));
    let nodes = Arc::new(FaultEngine::with_restarts(memory, world.clock.clone(), 1));
    let store = StateStore::new(nodes.clone(), world.store.settings);
    for restarts in [false, true] {
        let begun = tokio::spawn({
            let (settings, parts) = (world.settings.clone(), world.parts(&store));
            instance::resume_rebuild(settings, parts, CancellationToken::new())
        });
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        kill(begun).await;
        if restarts {
            nodes.restart_nodes(LOSS_WINDOW, |_| true);
            let error = resume(&world, &store).await.unwrap_err();
            assert!(matches!(error, InstanceError::Meta(MetaError::NodeRestarted)), "{error}");
            assert!(error.to_string().contains("begin again"), "{error}");
        }
    }
}

/// A device is lost, and with it a part of the records below the reached offsets.
/// Protects: records that are not read again get no new sentinels.
#[tokio::test(start_paused = true)]
async fn a_rebuild_that_lost_a_part_is_not_resumed() {
    let world = World::new().await;
    run_history(&world).await;
    let memory = Arc::new(MemoryEngine::new(RULES).with_losable_parts());
    let store = StateStore::new(memory.clone(), world.store.settings);
    let first = begin(&world, &store);
    while rebuilding(&store).await.is_none_or(|begun| begun.reached.validated.is_empty()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kill(first).await;
    memory.put(Key::Sentinel(7), None);
    let error = resume(&world, &store).await.unwrap_err();
    assert!(matches!(error, InstanceError::Meta(MetaError::PartLost { missing: 1, .. })), "{error}");
}

/// The rebuild was killed and resumed before its begin was durable; then the nodes lost the begin.
/// Protects: no blob store is claimed with an id that a node can lose, or no rebuild could begin there again.
#[tokio::test(start_paused = true)]
async fn the_blob_store_is_claimed_once_the_rebuild_is_durable() {
    let world = World::forgetful().await;
    run_history(&world).await;
    let loss_window = Duration::from_secs(3);
    let memory = Arc::new(MemoryEngine::with_loss_window(RULES, world.clock.clone(), loss_window));
    let nodes = Arc::new(FaultEngine::with_restarts(memory, world.clock.clone(), 1));
    let blobs = BlobStore::new(Arc::new(InMemory::new()), BlobOptions::default());
    let store = StateStore { blobs: Some(blobs), ..StateStore::new(nodes.clone(), world.store.settings) };
    let first = begin(&world, &store);
    while rebuilding(&store).await.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kill(first).await;
    let again = tokio::spawn({
        let (settings, parts) = (world.settings.clone(), world.parts(&store));
        instance::resume_rebuild(settings, parts, CancellationToken::new())
    });
    // The resumed rebuild has recorded itself, and checked for another rebuild.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    nodes.restart_nodes(loss_window, |_| true);
    let error = again.await.unwrap().unwrap_err();
    assert!(matches!(error, InstanceError::Meta(MetaError::NodeRestarted)), "{error}");
    assert!(store.meta().await.unwrap().is_none(), "the begin of the rebuild is lost");
    resume(&world, &store).await.unwrap();
}

/// A verdict makes a transaction conflicting with its children, later commands delete all but one child; the rebuild
/// dies when all of that is applied and little of it committed.
/// Protects: verdicts that are applied again pass over transactions deleted since.
#[tokio::test(start_paused = true)]
async fn a_resumed_rebuild_reapplies_verdicts_on_deleted_transactions() {
    let mut world = World::new().await;
    let seed = world.seed(1, 2).await;
    let (parent, mined) = (spend(&[seed.coin(0)], 3, 1), spend(&[seed.coin(1)], 1, 2));
    let [child, other, kept] = [0, 1, 2].map(|vout| spend(&[parent.coin(vout)], 1, 3 + vout as u8));
    let running = world.start();
    for event in [&parent, &child, &other, &kept, &mined] {
        world.validate(event).await;
    }
    world.until_consumed().await;
    world.command(1, CommandAction::SetConflicting { txid: parent.txid }).await;
    for (id, made) in [(2, &child), (3, &other), (4, &parent)] {
        world.command(id, CommandAction::Delete { txid: made.txid }).await;
    }
    world.mine(1, &[&mined]).await;
    world.until_consumed().await;
    running.stop().await;

    for interval in [Duration::from_millis(1), Duration::from_millis(20), HOUR] {
        (world.settings.sequencer.commit_interval, world.settings.pipeline.commit_interval) = (interval, interval);
        for after_ms in (1_000..3_000).step_by(10) {
            let store = empty(&world);
            let first = begin(&world, &store);
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            if first.is_finished() {
                break;
            }
            kill(first).await;
            resume(&world, &store).await.unwrap();
            for made in [&parent, &child, &other] {
                let page = store.master(made.txid).await.unwrap().unwrap();
                assert!(matches!(page.state(), TxState::Pruned(_)), "{:?}", page.state());
            }
            assert_eq!(digest(&store).await, digest(&world.store).await, "killed after {after_ms} ms");
        }
    }
    // Nothing is committed when the last deletion is applied.
    let store = empty(&world);
    let first = begin(&world, &slow(&store));
    while store.master(parent.txid).await.unwrap().is_none_or(|page| page.pruned.is_none()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kill(first).await;
    resume(&world, &store).await.unwrap();
    assert_eq!(digest(&store).await, digest(&world.store).await, "killed after the last deletion");
}

/// The command resumes a rebuild on Apache Kafka and fjall.
#[test]
fn a_rebuild_on_kafka_is_killed_and_resumed() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let events = bench.partials(0..20_000);
    block_on(async { bench.broker().producer().await.unwrap().produce_all(events).await.unwrap() });
    run_until_committed(&bench);
    let rebuilt = format!("fjall://{}", bench.path("rebuilt").display());
    let often = [("UTXO_STORE__INGEST__COMMIT_INTERVAL_MS", "20")];
    let replay = |args: &[&str]| {
        bench.command(&[&["replay", "--rebuild", "--json", "--store", &rebuilt], args].concat(), &often)
    };
    // The process does little within its first second.
    for (kills, after_ms) in [600, 1_200, 1_500, 1_800].into_iter().enumerate() {
        let resume: &[&str] = if kills == 0 { &[] } else { &["--resume"] };
        let mut killed = replay(resume).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after_ms));
        killed.kill().unwrap();
        let ended = killed.wait().unwrap().code();
        assert!(ended.is_none() || kills > 1, "the rebuild had ended after {after_ms} ms: {ended:?}");
    }
    let (code, done) = run_json(replay(&["--resume"]));
    match code {
        0 => assert_eq!(done["digest"], digest_of(&bench.store_url()), "{done}"),
        // The rebuild was fast, and killed after its end.
        _ => assert_refused_with(replay(&["--resume"]), 1, &["has reached its end"]),
    }
    assert_eq!(digest_of(&rebuilt), digest_of(&bench.store_url()));
    assert_refused_with(replay(&[]), 1, &["not empty"]);
}
