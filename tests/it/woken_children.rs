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
        Broker, BrokerErrorKind, NewTopic, OutgoingMessage,
        kafka::{KafkaBroker, KafkaSettings},
        partitioner::partition_of,
    },
    clock::Clock,
    engine::{self, EngineError, RecordEngine, fault::FaultEngine},
    event::{Command, CommandAction, Event, PartialOutput, PartialTxEvent, Validated},
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
        let mut links = (0..=u8::MAX).map(|tag| spend(std::slice::from_ref(&coin), 1, tag));
        chain.push(links.find(|link| partition(link) == next).unwrap());
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

/// Waits until so many transactions are parked.
async fn until_parked(running: &[Running], count: usize) {
    for _ in 0..10_000 {
        if parked(running) == count as u64 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pages = running.iter().map(|running| running.health.status_registry().page(&running.health));
    let pages: Vec<String> = pages.map(|page| serde_json::to_string(&page).unwrap()).collect();
    panic!("{} of {count} are parked: {pages:#?}", parked(running));
}

async fn is_live(world: &World, made: &Made) -> bool {
    world.page(made).await.is_some_and(|page| page.state() == TxState::Live)
}

/// A chain of payments behind a locked transaction: no link can be live before the unlock.
struct LockedChain {
    root: Made,
    links: Vec<Made>,
}

impl LockedChain {
    fn new(coin: Coin, links: usize) -> Self {
        let root = spend(&[coin], 1, 1);
        LockedChain { links: chain(root.coin(0), partition(&root), links), root }
    }

    /// Publishes the chain, waits until all links are parked, unlocks the root, and waits until all links are live.
    async fn run(&self, world: &World, running: &[Running], command: u8) {
        world.validate_locked(&self.root).await;
        until(async || is_live(world, &self.root).await).await;
        for link in &self.links {
            world.validate(link).await;
        }
        until_parked(running, self.links.len()).await;
        world.command(command, CommandAction::Unlock { txid: self.root.txid }).await;
        world.until_consumed().await;
        for link in &self.links {
            assert!(is_live(world, link).await);
        }
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
    LockedChain::new(seed.coin(0), LINKS).run(&world, &running, 1).await;
    assert_eq!(tries(&running), (LINKS as u64, 0), "one try a link");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    stop_all(running).await;
    world.check("a chain over three instances").await;
}

/// A client publishes the event of a locked parent again and again. Protects: the repeats cause no tries, and the
/// unlock wakes the child.
#[tokio::test(start_paused = true)]
async fn repeats_of_a_locked_parent_wake_no_child() {
    let world = world_without_retries().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let running = start_three(&world, World::start).await;
    let LockedChain { root, links } = LockedChain::new(seed.coin(0), 1);
    world.validate_locked(&root).await;
    until(async || is_live(&world, &root).await).await;
    world.validate(&links[0]).await;
    until_parked(&running, 1).await;
    for _ in 0..100 {
        world.validate_locked(&root).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(tries(&running), (0, 0));
    world.command(1, CommandAction::Unlock { txid: root.txid }).await;
    world.until_consumed().await;
    assert!(is_live(&world, &links[0]).await);
    assert_eq!(tries(&running), (1, 0));
    stop_all(running).await;
    world.check("a locked parent whose event is repeated").await;
}

/// The outcomes are lost, or switched off. Protects: nothing depends on outcomes.
#[tokio::test(start_paused = true)]
async fn retries_find_the_parents_that_outcomes_miss() {
    for is_off in [false, true] {
        let mut world = World::new().await;
        world.settings.pipeline.plan.flag_grace_ms = HOUR_MS;
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
        LockedChain::new(seed.coin(0), 12).run(&world, &running, 1).await;
        let (woken, retried) = tries(&running);
        // The outcome of the command is published all the same.
        assert!(woken == u64::from(is_off) && retried >= 11, "off {is_off}: {woken}, {retried}");
        // The topic can be read again.
        rules.refuse(|_, _| None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        LockedChain::new(seed.coin(1), 12).run(&world, &running, 2).await;
        assert_eq!(tries(&running).0 > 2, !is_off, "{:?}", tries(&running));
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
    LockedChain::new(seed.coin(0), 12).run(&world, &running, 1).await;
    assert_eq!(tries(&running), (12, 0));
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
/// outcome that is read too early for a parked child wakes the child all the same. A block waits meanwhile, so that no
/// parent is proven missing: the last try after the proof would find the parent, too.
#[tokio::test(start_paused = true)]
async fn a_parent_named_before_its_child_is_parked_wakes_the_child() {
    let world = world_without_retries().await;
    let seed = world.seed(1, 2).await;
    let listed = spend(&[seed.coin(1)], 1, 9);
    world.run_until_consumed().await;
    let chain = chain(seed.coin(0), 0, 2);
    let engine =
        Arc::new(LateReads { inner: world.store.engine.clone(), late: chain[1].txid, is_late: AtomicBool::new(false) });
    let late = World { nodes: Arc::new(FaultEngine::new(engine.clone(), 0)), ..world.clone() };
    let running = start_three(&late, World::start).await;
    world.mine(1, &[&listed]).await;
    world.validate(&chain[1]).await;
    until(async || engine.is_late.load(Ordering::Relaxed)).await;
    assert_eq!(parked(&running), 0);
    world.validate(&chain[0]).await;
    until(async || is_live(&world, &chain[1]).await).await;
    assert_eq!(tries(&running), (0, 0), "the child is never parked");
    world.validate(&listed).await;
    world.until_consumed().await;
    stop_all(running).await;
    world.check("a parent named early").await;
}

/// The children of a coinbase are in three instances, of which one has the chain.
#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_block_wakes_the_children_of_its_coinbase() {
    let world = world_without_retries().await;
    let seed = world.seed(1, 1).await;
    let late = spend(&[seed.coin(0)], 1, 1);
    world.run_until_consumed().await;
    let running = start_three(&world, World::start).await;
    // The first block waits, and the second behind it.
    world.mine(1, &[&late]).await;
    let coinbase = wide_coinbase(102, 9);
    world.mine_with(2, 2, 102, &coinbase, &[]).await;
    let children: Vec<Made> = (0..9).map(|vout| spend(&[coinbase.coin(vout)], 1, 3)).collect();
    for child in &children {
        world.validate_at(child, 300).await;
    }
    until_parked(&running, 9).await;
    world.validate(&late).await;
    world.until_consumed().await;
    for child in &children {
        assert!(is_live(&world, child).await);
    }
    assert_eq!(tries(&running), (9, 0));
    stop_all(running).await;
    world.check("the children of a coinbase").await;
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
    let LockedChain { root, links } = LockedChain::new(seed.coin(0), LINKS);
    let event = |made: &Made, locked| Validated { tx: &made.extended, height: 200, locked }.encode();
    publish(root.txid, event(&root, true)).await;
    until(async || is_live(&world, &root).await).await;
    for link in &links {
        publish(link.txid, event(link, false)).await;
    }
    until_parked(&running, LINKS).await;
    let unlock = Event::Command(Command { id: [1; 16], action: CommandAction::Unlock { txid: root.txid } }).encode();
    let command =
        OutgoingMessage { topic: name("chain"), partition: Some(0), payload: unlock.into(), ..Default::default() };
    producer.produce(command).await.unwrap();
    until(async || is_live(&world, &links[LINKS - 1]).await).await;
    // On a slow broker the first outcome of the root arrives after its child is parked, and wakes the child in vain.
    let (woken, retried) = tries(&running);
    assert!((LINKS as u64..=LINKS as u64 + 1).contains(&woken) && retried == 0, "woken {woken}, retried {retried}");
    stop_all(running).await;
}
