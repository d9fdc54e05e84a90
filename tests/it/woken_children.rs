//! Children whose parents are created by other instances: outcomes wake them, and retries find what outcomes miss.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use utxo_store::{
    broker::{
        Broker, BrokerErrorKind, NewTopic, OutgoingMessage, TopicPartition,
        kafka::{KafkaBroker, KafkaSettings},
        partitioner::partition_of,
    },
    clock::Clock,
    engine::{self, EngineError, RecordEngine, fault::FaultEngine},
    event::{CommandAction, Event, PartialOutput, PartialTxEvent, Validated},
    record::{Key, Record, TxState},
    telemetry::TryCause,
    tx::Txid,
};

use crate::{
    failing_broker::{FailingBroker, LogCall, start_on},
    harness::{Coin, Made, PARTITIONS, Running, World, spend, wide_coinbase},
    kafka_server::KafkaServer,
    node_restarts::until,
};

const HOUR_MS: u64 = 3_600_000;

/// Returns a world whose parked transactions are retried after an hour only.
async fn world_without_retries() -> World {
    let mut world = World::new().await;
    (world.settings.pipeline.plan.retry_min_ms, world.settings.pipeline.plan.retry_max_ms) = (HOUR_MS, HOUR_MS);
    world.settings.pipeline.plan.flag_grace_ms = HOUR_MS;
    world.settings.pipeline.missing_parent_grace_ms = HOUR_MS;
    world
}

fn partition(made: &Made) -> i32 {
    partition_of(&made.txid.0, PARTITIONS).unwrap()
}

/// Returns a chain of payments; each link is in the partition after the one of its parent.
fn chain(from: Coin, before: i32, links: usize) -> Vec<Made> {
    let mut chain: Vec<Made> = Vec::new();
    for _ in 0..links {
        let coin = chain.last().map_or_else(|| from.clone(), |last| last.coin(0));
        let next = (chain.last().map_or(before, partition) + 1) % PARTITIONS;
        let link = (0..=u8::MAX).map(|tag| spend(std::slice::from_ref(&coin), 1, tag));
        chain.push(link.into_iter().find(|link| partition(link) == next).unwrap());
    }
    chain
}

/// Starts three instances and waits until each has its partition.
async fn start_three(world: &World, start: impl Fn(&World) -> Running) -> Vec<Running> {
    let running: Vec<_> = (0..3).map(|_| start(world)).collect();
    let has_one = |running: &Running| {
        let page = serde_json::to_value(running.health.status_registry().page(&running.health)).unwrap();
        page["pipeline"]["partitions"].as_array().map_or(0, Vec::len) == 1
    };
    until(async || running.iter().all(has_one)).await;
    running
}

/// Returns the tries of parked transactions of all instances: by outcomes, and by retries.
fn tries(running: &[Running]) -> (u64, u64) {
    let of = |cause| running.iter().map(|running| running.metrics.parked_tries.of(cause).get()).sum();
    (of(TryCause::Outcome), of(TryCause::Retry))
}

fn parked(running: &[Running]) -> u64 {
    running.iter().map(|running| running.metrics.parked.get() as u64).sum()
}

async fn is_live(world: &World, made: &Made) -> bool {
    world.page(made).await.is_some_and(|page| page.state() == TxState::Live)
}

/// Publishes the links from the last one, waits until all but the first are parked, and publishes the first.
async fn run_chain(world: &World, running: &[Running], chain: &[Made]) {
    for link in chain[1..].iter().rev() {
        world.validate(link).await;
    }
    until(async || parked(running) == chain.len() as u64 - 1).await;
    world.validate(&chain[0]).await;
    world.until_consumed().await;
    for link in chain {
        assert!(is_live(world, link).await);
    }
}

async fn stop_all(running: Vec<Running>) {
    for instance in running {
        instance.stop().await;
    }
}

/// Each link of the chain is created by another instance than its parent. Protects: an outcome wakes the child.
#[tokio::test(start_paused = true)]
async fn each_link_of_a_chain_over_three_instances_is_woken() {
    const LINKS: usize = 60;
    let world = world_without_retries().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let running = start_three(&world, World::start).await;
    let begun = tokio::time::Instant::now();
    run_chain(&world, &running, &chain(seed.coin(0), 0, LINKS)).await;
    assert_eq!(tries(&running), (LINKS as u64 - 1, 0), "one try a link");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    stop_all(running).await;
    world.check("a chain over three instances").await;
}

/// The outcomes are lost, or switched off. Protects: nothing depends on outcomes.
#[tokio::test(start_paused = true)]
async fn retries_find_the_parents_that_outcomes_miss() {
    for is_off in [false, true] {
        let mut world = World::new().await;
        if is_off {
            world.settings.pipeline.live_outcomes = None;
        }
        let seed = world.seed(1, 2).await;
        world.run_until_consumed().await;
        let (broker, rules) = FailingBroker::over(&world);
        rules.refuse(move |call, at| {
            let reads_outcomes = matches!(call, LogCall::Next) && &*at.topic == "outcomes";
            (reads_outcomes && !is_off).then_some(BrokerErrorKind::Refused)
        });
        let running = start_three(&world, |world| start_on(world, broker.clone())).await;
        run_chain(&world, &running, &chain(seed.coin(0), 0, 12)).await;
        let (woken, retried) = tries(&running);
        assert!(woken == 0 && retried >= 11, "off {is_off}: {woken}, {retried}");
        // The topic can be read again.
        rules.refuse(|_, _| None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        run_chain(&world, &running, &chain(seed.coin(1), 0, 12)).await;
        assert_eq!(tries(&running).0 > 0, !is_off, "{:?}", tries(&running));
        stop_all(running).await;
        world.check("lost outcomes").await;
    }
}

/// The topic of outcomes is created again, with more partitions.
#[tokio::test(start_paused = true)]
async fn a_recreated_topic_of_outcomes_wakes_again() {
    let world = world_without_retries().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let running = start_three(&world, World::start).await;
    let topic = NewTopic { name: "outcomes".into(), partitions: PARTITIONS + 2, config: vec![] };
    world.broker.recreate_topic(&topic).unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    run_chain(&world, &running, &chain(seed.coin(0), 0, 12)).await;
    assert_eq!(tries(&running), (11, 0));
    stop_all(running).await;
}

/// Engine whose reads of one record, once switched on, take a second.
struct LateReads {
    inner: Arc<dyn RecordEngine>,
    late: Txid,
    is_late: AtomicBool,
}

impl engine::EngineDecorator for LateReads {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let answers = self.inner.read(keys).await;
        if keys.contains(&Key::master(self.late)) {
            self.is_late.store(true, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        answers
    }
}

/// The outcome of the parent is read after the failed try of the child and before the child is parked. Protects: an
/// outcome that is read too early for a parked child wakes the child all the same.
#[tokio::test(start_paused = true)]
async fn a_parent_named_before_its_child_is_parked_wakes_the_child() {
    let world = world_without_retries().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let chain = chain(seed.coin(0), 0, 2);
    let engine =
        Arc::new(LateReads { inner: world.store.engine.clone(), late: chain[1].txid, is_late: AtomicBool::new(false) });
    let late = World { nodes: Arc::new(FaultEngine::new(engine.clone(), 0)), ..world.clone() };
    let running = start_three(&late, World::start).await;
    world.validate(&chain[1]).await;
    until(async || engine.is_late.load(Ordering::Relaxed)).await;
    assert_eq!(parked(&running), 0);
    world.validate(&chain[0]).await;
    world.until_consumed().await;
    assert!(is_live(&world, &chain[1]).await);
    assert_eq!(tries(&running), (0, 0), "the child is never parked");
    stop_all(running).await;
}

/// A coinbase that another instance creates, a lock that another instance lifts, and a verdict of another instance.
#[tokio::test(start_paused = true)]
async fn outcomes_of_the_sequencer_wake_children_in_other_instances() {
    let mut world = world_without_retries().await;
    let seed = world.seed(1, 2).await;
    let locked = spend(&[seed.coin(0)], 9, 1);
    world.validate_locked(&locked).await;
    let (first, second) = (spend(&[seed.coin(1)], 9, 1), spend(&[seed.coin(1)], 9, 2));
    world.validate(&first).await;
    world.run_until_consumed().await;
    world.settings.sequencer_enabled = false;
    let without = [world.start(), world.start()];
    world.settings.sequencer_enabled = true;
    let sequencer = world.start();
    let running = Vec::from_iter(without.into_iter().chain([sequencer]));
    let coinbase = wide_coinbase(101, 9);
    let children = |parent: &Made| (0..9).map(|vout| spend(&[parent.coin(vout)], 1, 3)).collect::<Vec<_>>();
    let of_coinbase = children(&coinbase);
    for child in children(&locked).iter().chain(&children(&second)) {
        world.validate(child).await;
    }
    for child in &of_coinbase {
        world.validate_at(child, 300).await;
    }
    until(async || parked(&running) == 27).await;
    world.command(1, CommandAction::Unlock { txid: locked.txid }).await;
    // The rival loses: its children are contested, too.
    world.validate(&second).await;
    world.mine_with(1, 1, 101, &coinbase, &[]).await;
    world.until_consumed().await;
    for child in children(&locked).iter().chain(&of_coinbase) {
        assert!(is_live(&world, child).await);
    }
    for child in children(&second) {
        assert!(matches!(world.page(&child).await.unwrap().state(), TxState::Conflicting(_)));
    }
    let (woken, retried) = tries(&running);
    assert!(woken >= 27 && retried == 0, "{woken}, {retried}");
    stop_all(running).await;
    world.check("outcomes of the sequencer").await;
}

/// The same chain on a real Apache Kafka, with three instances on one store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_link_of_a_chain_on_kafka_is_woken() {
    const LINKS: usize = 40;
    let Some(server) = KafkaServer::shared() else { return };
    let settings = KafkaSettings { fetch_min_bytes: 1, ..KafkaSettings::new(server.bootstrap_servers()) };
    let broker: Arc<dyn Broker> = Arc::new(KafkaBroker::new(settings).unwrap());
    let mut world = World { clock: Clock::System, ..world_without_retries().await };
    let name = |name: &str| format!("woken-{name}");
    world.settings.pipeline.topic = name("txs").into();
    world.settings.pipeline.group = name("group");
    world.settings.pipeline.live_outcomes = Some(Duration::from_millis(50));
    let topics = &mut world.settings.topics;
    for topic in [
        &mut topics.block_mined,
        &mut topics.reorgs,
        &mut topics.chain,
        &mut topics.decisions,
        &mut topics.outcomes,
        &mut topics.dead_letters,
    ] {
        *topic = name(topic);
    }
    let new = |topic: &str, partitions| NewTopic { name: name(topic), partitions, config: vec![] };
    let singles = ["block-mined", "reorgs", "chain", "decisions"].map(|topic| new(topic, 1));
    let many = ["txs", "outcomes", "dead-letters"].map(|topic| new(topic, PARTITIONS));
    broker.create_topics(&[singles.as_slice(), many.as_slice()].concat()).await.unwrap();
    let producer = broker.producer().await.unwrap();
    let publish = async |txid: Txid, payload: Vec<u8>| {
        let key = txid.0.to_vec().into();
        let message = OutgoingMessage { topic: name("txs"), key, payload: payload.into(), ..Default::default() };
        producer.produce(message).await.unwrap();
    };
    let running = start_three(&world, |world| start_on(world, broker.clone())).await;
    let seed = World::partial(1, 1);
    let outputs = seed.outputs.iter().zip(0..);
    let outputs =
        outputs.map(|((satoshis, script), vout)| PartialOutput { vout, satoshis: *satoshis, script }).collect();
    let event = PartialTxEvent { txid: seed.txid, coinbase: false, height: 100, outputs };
    publish(seed.txid, Event::Seeded(event).encode()).await;
    until(async || is_live(&world, &seed).await).await;
    let chain = chain(seed.coin(0), 0, LINKS);
    let event = |made: &Made| Validated { tx: &made.extended, height: 200, locked: false }.encode();
    for link in chain[1..].iter().rev() {
        publish(link.txid, event(link)).await;
    }
    until(async || parked(&running) == LINKS as u64 - 1).await;
    publish(chain[0].txid, event(&chain[0])).await;
    let begun = std::time::Instant::now();
    until(async || is_live(&world, &chain[LINKS - 1]).await).await;
    println!("{:?} a link", begun.elapsed() / LINKS as u32);
    assert_eq!(tries(&running), (LINKS as u64 - 1, 0));
    stop_all(running).await;
    let at = |partition| TopicPartition { topic: name("outcomes").into(), partition };
    let mut outcomes = 0;
    for partition in 0..PARTITIONS {
        outcomes += broker.watermarks(&at(partition)).await.unwrap().1;
    }
    assert!(outcomes > 0);
}
