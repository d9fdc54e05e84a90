//! Rebuilds that are killed, and go on where they had come to.

use std::{process::Stdio, sync::Arc, time::Duration};

use object_store::memory::InMemory;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{BlobOptions, BlobStore},
    broker::Broker,
    engine::{fault::FaultEngine, memory::MemoryEngine},
    event::Action,
    instance::{self, InstanceError, Rebuilt},
    record::{Key, Rebuilding, Rules, TxState},
    store::{Store, meta::MetaError},
};

use crate::{
    kafka_server::KafkaServer,
    read_again::{digest_of, refused, run_to_the_end, told},
    run::{Bench, block_on},
    world::{MAY_FORGET, Made, World, spend},
};

const RULES: Rules = Rules::main(288);
const HOUR: Duration = Duration::from_secs(3_600);

async fn digest(store: &Store) -> String {
    store.survey(|_| {}).await.unwrap().digest.to_string()
}

fn empty(world: &World) -> Store {
    Store::new(Arc::new(MemoryEngine::new(RULES)), world.store.settings)
}

async fn resume(world: &World, store: &Store) -> Result<Rebuilt, InstanceError> {
    let resumed = instance::resume_rebuild(world.settings.clone(), world.parts(store), CancellationToken::new());
    tokio::time::timeout(HOUR, resumed).await.expect("a rebuild ends")
}

fn begin(world: &World, store: &Store) -> JoinHandle<Result<Rebuilt, InstanceError>> {
    let (settings, parts) = (world.settings.clone(), world.parts(store));
    tokio::spawn(instance::rebuild(settings, parts, CancellationToken::new()))
}

async fn kill(rebuilding: JoinHandle<Result<Rebuilt, InstanceError>>) {
    rebuilding.abort();
    assert!(rebuilding.await.is_err(), "it had ended by itself");
}

async fn rebuilding(store: &Store) -> Option<Rebuilding> {
    store.meta().await.unwrap()?.rebuilding.map(|rebuilding| *rebuilding)
}

/// A hundred payments, each tenth of which is contested, and blocks that list them.
async fn a_history(world: &World) -> Vec<Made> {
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

/// Everything is as with a rebuild that nobody killed, wherever that was, and however far the group has come since. What had been reached
/// is not read again.
#[tokio::test(start_paused = true)]
async fn wherever_a_rebuild_is_killed_it_comes_to_the_same_state_and_reads_the_less() {
    let mut world = World::new().await;
    let made = a_history(&world).await;
    let live = digest(&world.store).await;
    // Slow enough to be killed within.
    world.settings.pipeline.dispatch.batch_size = 4;
    let whole = resume(&world, &empty(&world)).await.unwrap().pipeline.completed;
    let slow = |store: &Store| {
        let faults = utxo_store::engine::fault::Faults {
            delayed: 1.0,
            delay_within: Duration::from_millis(200),
            ..Default::default()
        };
        Store { engine: Arc::new(FaultEngine::new(store.engine.clone(), 7).with(faults)), ..store.clone() }
    };
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
        let begun = rebuilding(store).await.expect("it has not ended");
        reached = begun.reached.validated.values().sum::<u64>();
        // The group goes on meanwhile, and spends what the rebuild is to find unspent.
        let later = spend(&[made[stores.len() % 7].coin(1)], 1, 9);
        world.validate(&later).await;
        world.run_until_consumed().await;
        let resumed = resume(&world, store).await.unwrap();
        assert_eq!(resumed.pipeline.completed, whole - reached, "what lies behind");
        assert_eq!(digest(store).await, live, "killed when {:?} was reached", begun.reached);
        assert!(matches!(resume(&world, store).await, Err(InstanceError::Rebuilt)));
    }
    assert!(stores.len() > 5 && reached > 50, "{} kills, the last at {reached} of {whole}", stores.len());
    assert_ne!(digest(&world.store).await, live, "the group has gone on");
}

/// Without being told so, nothing is taken for the rest of another rebuild; and there must be one.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_resumed_is_refused_by_name() {
    let world = World::new().await;
    a_history(&world).await;
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
    assert!(matches!(error, InstanceError::OtherLog), "another log: {error}");
    resume(&world, &store).await.unwrap();
}

/// Who goes on over nodes that have forgotten would miss what they forgot.
#[tokio::test(start_paused = true)]
async fn a_rebuild_whose_nodes_have_restarted_is_not_resumed() {
    let world = World::forgetful().await;
    a_history(&world).await;
    let memory = Arc::new(MemoryEngine::forgetful(RULES, world.clock.clone(), MAY_FORGET));
    let nodes = Arc::new(FaultEngine::forgetful(memory, world.clock.clone(), 1));
    let store = Store::new(nodes.clone(), world.store.settings);
    for restarts in [false, true] {
        let begun = tokio::spawn({
            let (settings, parts) = (world.settings.clone(), world.parts(&store));
            instance::resume_rebuild(settings, parts, CancellationToken::new())
        });
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        kill(begun).await;
        if restarts {
            nodes.forget(MAY_FORGET, |_| true);
            let error = resume(&world, &store).await.unwrap_err();
            assert!(matches!(error, InstanceError::Meta(MetaError::Forgotten)), "{error}");
            assert!(error.to_string().contains("begin again"), "{error}");
        }
    }
}

/// A device is gone, and with it a part of what was reached.
/// Protects: what is not read again is not given new sentinels.
#[tokio::test(start_paused = true)]
async fn a_rebuild_of_which_a_part_is_lost_is_not_resumed() {
    let world = World::new().await;
    a_history(&world).await;
    let memory = Arc::new(MemoryEngine::new(RULES).in_parts());
    let store = Store::new(memory.clone(), world.store.settings);
    let first = begin(&world, &store);
    while rebuilding(&store).await.is_none_or(|begun| begun.reached.validated.is_empty()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kill(first).await;
    memory.put(Key::Sentinel(7), None);
    let error = resume(&world, &store).await.unwrap_err();
    assert!(matches!(error, InstanceError::Meta(MetaError::PartLost { missing: 1, .. })), "{error}");
}

/// It was killed, and resumed, before nodes could no longer forget that it had begun; then they did.
/// Protects: no place for blobs is marked with an id that a node forgets, or nobody could begin again there.
#[tokio::test(start_paused = true)]
async fn the_blobs_of_a_rebuild_are_marked_once_nobody_forgets_that_it_has_begun() {
    let world = World::forgetful().await;
    a_history(&world).await;
    let may_forget = Duration::from_secs(3);
    let memory = Arc::new(MemoryEngine::forgetful(RULES, world.clock.clone(), may_forget));
    let nodes = Arc::new(FaultEngine::forgetful(memory, world.clock.clone(), 1));
    let blobs = BlobStore::new(Arc::new(InMemory::new()), BlobOptions::default());
    let store = Store { blobs: Some(blobs), ..Store::new(nodes.clone(), world.store.settings) };
    let first = begin(&world, &store);
    while rebuilding(&store).await.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kill(first).await;
    let again = tokio::spawn({
        let (settings, parts) = (world.settings.clone(), world.parts(&store));
        instance::resume_rebuild(settings, parts, CancellationToken::new())
    });
    // It has said that it goes on, and looked whether anybody else did.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    nodes.forget(may_forget, |_| true);
    let error = again.await.unwrap().unwrap_err();
    assert!(matches!(error, InstanceError::Meta(MetaError::Forgotten)), "{error}");
    assert!(store.meta().await.unwrap().is_none(), "it is forgotten that it had begun");
    resume(&world, &store).await.unwrap();
}

/// A verdict makes a transaction fall with its child, later ones delete both; whoever rebuilds dies when all of that is done and little of
/// it is kept.
/// Protects: verdicts that are applied again pass over what was deleted since.
#[tokio::test(start_paused = true)]
async fn verdicts_on_what_was_deleted_since_are_applied_again() {
    let mut world = World::new().await;
    let seed = world.seed(1, 2).await;
    let (parent, mined) = (spend(&[seed.coin(0)], 2, 1), spend(&[seed.coin(1)], 1, 2));
    let (child, other) = (spend(&[parent.coin(0)], 1, 3), spend(&[parent.coin(1)], 1, 4));
    let running = world.start();
    for event in [&parent, &child, &other, &mined] {
        world.validate(event).await;
    }
    world.until_consumed().await;
    world.command(1, Action::SetConflicting { txid: parent.txid }).await;
    for (id, made) in [(2, &child), (3, &other), (4, &parent)] {
        world.command(id, Action::Delete { txid: made.txid }).await;
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
}

/// By the command, on Apache Kafka and fjall.
#[test]
fn a_rebuild_is_killed_and_resumed() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let events = bench.partials(0..20_000);
    block_on(async { bench.broker().producer().await.unwrap().produce_all(events).await.unwrap() });
    run_to_the_end(&bench);
    let rebuilt = format!("fjall://{}", bench.path("rebuilt").display());
    let often = [("UTXO_STORE__INGEST__COMMIT_INTERVAL_MS", "20")];
    let replay = |args: &[&str]| {
        bench.command(&[&["replay", "--rebuild", "--json", "--store", &rebuilt], args].concat(), &often)
    };
    // Little is done within the first second.
    for (kills, after_ms) in [600, 1_200, 1_500, 1_800].into_iter().enumerate() {
        let resume: &[&str] = if kills == 0 { &[] } else { &["--resume"] };
        let mut killed = replay(resume).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after_ms));
        killed.kill().unwrap();
        let ended = killed.wait().unwrap().code();
        assert!(ended.is_none() || kills > 1, "it had ended after {after_ms} ms: {ended:?}");
    }
    let (code, done) = told(replay(&["--resume"]));
    match code {
        0 => assert_eq!(done["digest"], digest_of(&bench.store_url()), "{done}"),
        // It was fast, and killed behind its end.
        _ => refused(replay(&["--resume"]), 1, &["has reached its end"]),
    }
    assert_eq!(digest_of(&rebuilt), digest_of(&bench.store_url()));
    refused(replay(&[]), 1, &["not empty"]);
}
