//! Torture: a real Apache Kafka and several instances under generated load ([`load`]). Instances are killed, stopped,
//! frozen and started at random ([`instances`]), and so are the brokers ([`brokers`]). At the end the store must equal
//! the model of the logs, break no invariant, and equal a rebuild.
//!
//! `make torture SECONDS=900 RATE=400 SEED=7 STORE=fjall|aerospike PROTOCOL=classic|consumer BROKERS=1|3 NODES=1|3`; a
//! short run with one broker and one node is in `make test`. HOLD=1 keeps everything running after a failure.

mod api_kills;
mod brokers;
mod host;
mod instances;
mod judge;
mod kills;
mod load;
mod lost_brokers;
mod node_deaths;
mod nodes;
mod snapshot_kills;
mod soak;
mod upgrade;
#[cfg(feature = "vault")]
mod vault_kills;

use std::{
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use utxo_store::{
    broker::{Broker, BrokerError, OutgoingMessage, Producer, kafka::GroupProtocol},
    rng::SplitMix64,
};

use self::{
    brokers::{BrokerLosses, start_brokers},
    instances::{HostProcess, INSTANCES, InstanceProcesses, InstanceSet},
    load::{LoadGenerator, LoadMessage},
    nodes::NodeLosses,
    soak::ResourceWatch,
};
use crate::{
    aerospike_cluster::AerospikeCluster,
    aerospike_server::AerospikeServer,
    kafka_server::{KafkaServer, addresses},
    run::{Bench, block_on},
};

pub const PARTITIONS: i32 = 6;
/// Time between two ticks of the load.
const TICK: Duration = Duration::from_millis(50);

/// Returns a number from the environment, or `default`.
fn env_number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn env_seed() -> u64 {
    env_number("SEED", Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()))
}

/// Settings of one torture run.
#[derive(Debug, Clone, Copy)]
struct TortureSettings {
    time: Duration,
    /// Moments of the load per second.
    rate: u64,
    seed: u64,
    /// Whether the first instance is never killed or stopped: a soak samples it.
    is_first_spared: bool,
    /// `kafka.group_protocol` of all instances.
    protocol: GroupProtocol,
    /// Number of Aerospike nodes: one, which is never lost, or three, of which one at a time is lost.
    nodes: usize,
    /// Number of brokers: one, or three, of which one at a time is lost.
    brokers: usize,
}

impl TortureSettings {
    /// Reads the settings from the environment.
    fn from_env() -> Self {
        TortureSettings {
            time: Duration::from_secs(env_number("TORTURE_SECONDS", 900)),
            rate: env_number("RATE", 400),
            seed: env_seed(),
            is_first_spared: false,
            protocol: std::env::var("PROTOCOL").map_or(GroupProtocol::Classic, |text| text.parse().unwrap()),
            nodes: env_number("NODES", 1) as usize,
            brokers: env_number("BROKERS", 1) as usize,
        }
    }

    fn short(seed: u64) -> Self {
        let time = Duration::from_secs(20);
        let protocol = GroupProtocol::Classic;
        TortureSettings { time, rate: 300, seed, is_first_spared: false, protocol, nodes: 1, brokers: 1 }
    }
}

/// Produces at a steady rate until `is_enough`, then the postponed messages; returns the number of messages. A message
/// that may have been written is produced again: repeats are harmless.
fn produce(bench: &Bench, generator: &mut LoadGenerator, rate: u64, is_enough: &AtomicBool) -> u64 {
    let mut messages = 0;
    block_on(async {
        let broker = bench.broker();
        let producer = broker.producer().await.unwrap();
        let (started, mut moments) = (Instant::now(), 0);
        while !is_enough.load(Ordering::Relaxed) {
            // The backlog of an absent broker is not produced at once.
            let due = (started.elapsed().as_millis() as u64 * rate / 1_000).min(moments + rate);
            while moments < due {
                moments += 1;
                messages += send(bench, producer.as_ref(), generator.next()).await;
            }
            tokio::time::sleep(TICK).await;
        }
        messages += send(bench, producer.as_ref(), generator.last()).await;
    });
    messages
}

/// Runs `work` while load is produced; returns the number of messages, too.
fn produce_during<T>(
    bench: &Bench,
    generator: &mut LoadGenerator,
    rate: u64,
    work: impl FnOnce() -> T,
) -> (u64, std::thread::Result<T>) {
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let producing = scope.spawn(|| produce(bench, generator, rate, &is_enough));
        let done = panic::catch_unwind(AssertUnwindSafe(work));
        is_enough.store(true, Ordering::Relaxed);
        (producing.join().unwrap(), done)
    })
}

async fn send(bench: &Bench, producer: &dyn Producer, all: Vec<LoadMessage>) -> u64 {
    let count = all.len() as u64;
    let message = |sent: LoadMessage| OutgoingMessage {
        topic: bench.topic(sent.topic),
        partition: (sent.topic != "validated-txs").then_some(0),
        key: sent.key.into(),
        payload: sent.payload.into(),
        ..OutgoingMessage::default()
    };
    let messages: Vec<OutgoingMessage> = all.into_iter().map(message).collect();
    let mut delivered: Result<_, BrokerError> = producer.produce_all(messages.clone()).await;
    while delivered.is_err() {
        tokio::time::sleep(TICK).await;
        delivered = producer.produce_all(messages.clone()).await;
    }
    count
}

/// Disturbs a random instance or a broker every few seconds until the time is over.
fn disturb_instances(
    instances: &mut dyn InstanceSet,
    kafka: &mut [KafkaServer],
    cluster: Option<&mut AerospikeCluster>,
    settings: TortureSettings,
    mut watch: impl FnMut(&dyn InstanceSet),
) -> BTreeMap<&'static str, u64> {
    let mut rng = SplitMix64::new(settings.seed ^ u64::from_be_bytes(*b"tormentr"));
    let mut counts = BTreeMap::new();
    let mut frozen: Option<(usize, Instant)> = None;
    let mut brokers = BrokerLosses::new(kafka);
    let mut nodes = cluster.map(NodeLosses::new);
    // A shorter run has shorter pauses. After each disturbance work must get done, else only starts are tested.
    let most = (settings.time.as_millis() as u64 / 15).clamp(500, 8_000);
    let mut count = |what, did: bool| *counts.entry(what).or_default() += u64::from(did);
    let started = Instant::now();
    for slot in 0..INSTANCES {
        instances.start(slot);
    }
    while started.elapsed() < settings.time {
        std::thread::sleep(Duration::from_millis(100 + rng.below(most)));
        instances.check_alive();
        watch(instances);
        brokers.end_if_due();
        if let Some(loss) = nodes.as_mut().and_then(|nodes| nodes.turn(&mut rng, false)) {
            count(loss, true);
        }
        if let Some((slot, until)) = frozen
            && until <= Instant::now()
        {
            instances.freeze(slot, false);
            frozen = None;
        }
        let slot = rng.below(INSTANCES as u64) as usize;
        // A frozen instance cannot read commands.
        if frozen.is_some_and(|(other, _)| other == slot) {
            continue;
        }
        let is_spared = settings.is_first_spared && slot == 0;
        match rng.below(100) {
            0..38 if is_spared => {}
            0..25 => count("killed", instances.kill(slot)),
            25..38 => count("stopped in order", instances.stop(slot)),
            38..46 if frozen.is_none() && instances.freeze(slot, true) => {
                count("frozen", true);
                // Shorter than the session timeout, longer, and longer than the poll interval.
                let seconds = *rng.pick(&[1, 4, 9, 14]);
                frozen = Some((slot, Instant::now() + Duration::from_secs(seconds)));
            }
            46..48 if frozen.is_none() && !settings.is_first_spared => {
                count("all killed at once", true);
                instances.kill_all();
            }
            48..50 => count("broker killed", brokers.kill(&mut rng)),
            50..58 if brokers.are_several() => match rng.below(2) {
                0 => count("broker killed", brokers.kill(&mut rng)),
                _ => count("broker frozen", brokers.freeze(&mut rng)),
            },
            _ => count("started", instances.start(slot)),
        }
    }
    if let Some((slot, _)) = frozen {
        instances.freeze(slot, false);
    }
    brokers.end();
    if let Some(mut nodes) = nodes {
        nodes.end(&mut rng);
    }
    counts
}

/// Topics, configuration and stores of one run.
pub struct TestBed {
    bench: Bench,
    /// Configuration besides the file, as environment variables.
    variables: Vec<(String, String)>,
    /// Location of the live store, as arguments of `verify`.
    live: Vec<String>,
    /// Location of the rebuilt store, as arguments of `replay`.
    rebuilt: Vec<String>,
    /// Whether a node of the store was killed: the model then checks less.
    has_lost_writes: bool,
}

impl TestBed {
    /// Creates the topics and the configuration that all stores share.
    fn on(brokers: &str) -> Self {
        let bench = Bench::on(brokers);
        let partitions = PARTITIONS.to_string();
        let mut create = bench.command(&["topics", "create", "--partitions", &partitions], &[]);
        assert!(create.stdout(Stdio::null()).status().unwrap().success());
        let mut testbed =
            TestBed { bench, variables: Vec::new(), live: Vec::new(), rebuilt: Vec::new(), has_lost_writes: false };
        for (key, value) in [
            ("STORE__NETWORK", "regtest"),
            ("PRUNE__ENABLED", "false"),
            ("INGEST__MISSING_PARENT_GRACE_MS", "5000"),
            ("INGEST__DRAIN_TIMEOUT_MS", "3000"),
            // The defaults: with the short times of other tests three instances ask the broker 3,000 times a second.
            ("INGEST__COMMIT_INTERVAL_MS", "1000"),
            ("KAFKA__FETCH_WAIT_MAX_MS", "50"),
            ("KAFKA__FETCH_MIN_BYTES", "65536"),
        ] {
            testbed.set(key, value);
        }
        testbed
    }

    fn set(&mut self, key: &str, value: &str) {
        let key = format!("UTXO_STORE__{key}");
        self.variables.retain(|(other, _)| *other != key);
        self.variables.push((key, value.to_owned()));
    }

    fn fjall(brokers: &str) -> Self {
        let mut testbed = TestBed::on(brokers);
        let store = |name| arguments([("--store", format!("fjall://{}", testbed.bench.path(name).display()))]);
        (testbed.live, testbed.rebuilt) = (store("store"), store("rebuilt"));
        testbed
    }

    /// Uses records of few slots, so that most transactions of the load have several pages.
    fn aerospike(brokers: &str, server: &AerospikeServer) -> Self {
        Self::aerospike_at(brokers, || server.url())
    }

    /// Makes one URL for each of the two stores. `LAYOUT` is the layout of the live store; the rebuilt one has the
    /// default, so that the comparison is one of layouts, too.
    fn aerospike_at(brokers: &str, url: impl Fn() -> String) -> Self {
        let mut testbed = TestBed::on(brokers);
        testbed.set("STORE__UTXO_BATCH_SIZE", "4");
        let layout = std::env::var("LAYOUT").map_or(String::new(), |layout| format!("&layout={layout}"));
        testbed.use_store(format!("{}{layout}", url()), "blobs");
        testbed.set_rebuild_target(url(), "blobs-rebuilt");
        testbed
    }

    /// Sets the live store.
    fn use_store(&mut self, url: String, blobs: &str) {
        let blobs = format!("file://{}", self.bench.path(blobs).display());
        self.set("STORE__URL", &url);
        self.set("STORE__BLOBS__URL", &blobs);
        self.live = arguments([("--store", url), ("--blobs", blobs)]);
    }

    fn set_rebuild_target(&mut self, url: String, blobs: &str) {
        let blobs = format!("file://{}", self.bench.path(blobs).display());
        self.rebuilt = arguments([("--store", url), ("--blobs", blobs)]);
    }

    /// Makes the rebuilt store the live store.
    fn use_rebuilt_store(&mut self) {
        self.live = std::mem::take(&mut self.rebuilt);
        let [_, url, _, blobs] = self.live.clone().try_into().unwrap();
        self.set("STORE__URL", &url);
        self.set("STORE__BLOBS__URL", &blobs);
    }

    /// Returns a command of the program with this configuration.
    fn command(&self, args: &[&str]) -> Command {
        let variables: Vec<(&str, &str)> = self.variables.iter().map(|(key, value)| (&**key, &**value)).collect();
        self.bench.command(args, &variables)
    }
}

fn arguments<const N: usize>(named: [(&str, String); N]) -> Vec<String> {
    named.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

fn torture(
    testbed: &TestBed,
    kafka: &mut [KafkaServer],
    cluster: Option<&mut AerospikeCluster>,
    instances: &mut dyn InstanceSet,
    settings: TortureSettings,
) {
    eprintln!("torture: {settings:?}");
    let mut generator = LoadGenerator::new(settings.seed);
    let mut watch = ResourceWatch::new(settings.time);
    let (messages, done) = produce_during(&testbed.bench, &mut generator, settings.rate, || {
        disturb_instances(instances, kafka, cluster, settings, |instances| {
            if settings.is_first_spared {
                watch.sample(testbed, instances)
            }
        })
    });
    eprintln!("{} transactions in {messages} messages: {:?}", generator.transactions(), generator.counts);
    let judged = done.and_then(|done| {
        eprintln!("instances: {done:?}");
        panic::catch_unwind(AssertUnwindSafe(|| {
            judge::wait_until_all_is_handled(testbed, instances);
            instances.stop_all();
            judge::judge(testbed);
            if settings.is_first_spared {
                watch.judge(testbed);
            }
        }))
    });
    judged.unwrap_or_else(|why| report_failure(testbed, settings.seed, why));
}

/// Prints the seed and the directory, waits with HOLD=1, and continues the panic.
fn report_failure(testbed: &TestBed, seed: u64, why: Box<dyn std::any::Any + Send>) -> ! {
    eprintln!("the run with seed {seed} failed; its files are in {}", testbed.bench.directory.path().display());
    // HOLD=1 keeps the servers and files for inspection.
    while std::env::var("HOLD").is_ok() {
        std::thread::sleep(Duration::from_secs(1));
    }
    panic::resume_unwind(why)
}

fn on_fjall(kafka: &mut [KafkaServer], settings: TortureSettings) {
    let mut testbed = TestBed::fjall(&addresses(kafka));
    testbed.set("KAFKA__GROUP_PROTOCOL", &settings.protocol.to_string());
    torture(&testbed, kafka, None, &mut HostProcess::new(&testbed), settings);
}

fn on_aerospike(kafka: &mut [KafkaServer], settings: TortureSettings) {
    let run = |mut testbed: TestBed, kafka: &mut [KafkaServer], cluster: Option<&mut AerospikeCluster>| {
        testbed.set("KAFKA__GROUP_PROTOCOL", &settings.protocol.to_string());
        let are_static = settings.seed.is_multiple_of(2) && settings.protocol == GroupProtocol::Classic;
        torture(&testbed, kafka, cluster, &mut InstanceProcesses::new(&testbed, are_static), settings);
    };
    match settings.nodes {
        1 => {
            let Some(server) = AerospikeServer::start() else { return };
            run(TestBed::aerospike(&addresses(kafka), &server), kafka, None);
        }
        _ => {
            let Some(mut cluster) = AerospikeCluster::cuttable().or_else(AerospikeCluster::whole) else { return };
            let testbed = TestBed::aerospike_at(&addresses(kafka), || cluster.url());
            run(testbed, kafka, Some(&mut cluster));
        }
    }
}

/// Entry of `make torture`.
#[test]
#[ignore = "takes as long as TORTURE_SECONDS says"]
fn a_long_torture() {
    let settings = TortureSettings::from_env();
    let Some(mut kafka) = start_brokers(settings.brokers) else { return };
    match std::env::var("STORE").as_deref() {
        Ok("aerospike") => on_aerospike(&mut kafka, settings),
        _ => on_fjall(&mut kafka, settings),
    }
}

#[test]
fn a_short_torture_on_fjall() {
    let Some(mut kafka) = start_brokers(1) else { return };
    on_fjall(&mut kafka, TortureSettings::short(1));
}

#[test]
fn a_short_torture_on_aerospike() {
    let Some(mut kafka) = start_brokers(1) else { return };
    on_aerospike(&mut kafka, TortureSettings::short(2));
}

#[test]
fn a_short_torture_with_the_consumer_protocol() {
    let Some(mut kafka) = start_brokers(1) else { return };
    on_fjall(&mut kafka, TortureSettings { protocol: GroupProtocol::Consumer, ..TortureSettings::short(3) });
}

#[test]
#[ignore = "takes minutes: four servers start"]
fn a_short_torture_with_three_brokers() {
    let Some(mut kafka) = start_brokers(3) else { return };
    on_fjall(&mut kafka, TortureSettings { brokers: 3, ..TortureSettings::short(4) });
}
