//! The torture: a real Apache Kafka, several instances, generated load ([`load`]); instances are killed, stopped, frozen and started at
//! random ([`crew`]), and now and then the broker is. At the end the store must be what the model makes of the logs, break no
//! invariant, and equal a rebuild.
//!
//! `make torture SECONDS=900 RATE=400 SEED=7 STORE=fjall|aerospike PROTOCOL=classic|consumer`; a short one of each is in `make test`. HOLD=1 leaves everything as
//! it is where something fails.

mod crew;
mod host;
mod judge;
mod kills;
mod load;
mod soak;

use std::{
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use utxo_store::{
    broker::{Broker, BrokerError, Produce, Producer, kafka::GroupProtocol},
    seeded::Seeded,
};

use self::{
    crew::{Crew, Host, INSTANCES, Processes},
    load::{Author, Sent},
    soak::Watch,
};
use crate::{
    aerospike_server::AerospikeServer,
    kafka_server::KafkaServer,
    run::{Bench, block_on},
};

pub const PARTITIONS: i32 = 6;
/// Between two ticks of the load.
const TICK: Duration = Duration::from_millis(50);

/// A number of the environment.
fn asked(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn asked_seed() -> u64 {
    asked("SEED", Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()))
}

/// How long, how much, and which.
#[derive(Debug, Clone, Copy)]
struct Size {
    time: Duration,
    /// Moments of the load a second.
    rate: u64,
    seed: u64,
    /// The first instance is never killed, nor told to stop: a soak watches it.
    spares_first: bool,
    /// `kafka.group_protocol` of all instances.
    protocol: GroupProtocol,
}

impl Size {
    /// As the environment says.
    fn asked() -> Self {
        Size {
            time: Duration::from_secs(asked("TORTURE_SECONDS", 900)),
            rate: asked("RATE", 400),
            seed: asked_seed(),
            spares_first: false,
            protocol: std::env::var("PROTOCOL").map_or(GroupProtocol::Classic, |asked| asked.parse().unwrap()),
        }
    }

    fn short(seed: u64) -> Self {
        let time = Duration::from_secs(20);
        Size { time, rate: 300, seed, spares_first: false, protocol: GroupProtocol::Classic }
    }
}

/// Produces at a steady rate until it is enough, and then what was put off; answers how many messages that were. A message that may have
/// been written is written again: repeats do no harm.
fn produce(bench: &Bench, author: &mut Author, rate: u64, is_enough: &AtomicBool) -> u64 {
    let mut messages = 0;
    block_on(async {
        let broker = bench.broker();
        let producer = broker.producer().await.unwrap();
        let (started, mut moments) = (Instant::now(), 0);
        while !is_enough.load(Ordering::Relaxed) {
            // What an absent broker held up is not caught up with at once.
            let due = (started.elapsed().as_millis() as u64 * rate / 1_000).min(moments + rate);
            while moments < due {
                moments += 1;
                messages += send(bench, producer.as_ref(), author.next()).await;
            }
            tokio::time::sleep(TICK).await;
        }
        messages += send(bench, producer.as_ref(), author.last()).await;
    });
    messages
}

/// Does something while there is load; answers how many messages that was as well.
fn under_load<T>(
    bench: &Bench,
    author: &mut Author,
    rate: u64,
    work: impl FnOnce() -> T,
) -> (u64, std::thread::Result<T>) {
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let producing = scope.spawn(|| produce(bench, author, rate, &is_enough));
        let done = panic::catch_unwind(AssertUnwindSafe(work));
        is_enough.store(true, Ordering::Relaxed);
        (producing.join().unwrap(), done)
    })
}

async fn send(bench: &Bench, producer: &dyn Producer, all: Vec<Sent>) -> u64 {
    let count = all.len() as u64;
    let message = |sent: Sent| Produce {
        topic: bench.topic(sent.topic),
        partition: (sent.topic != "validated-txs").then_some(0),
        key: sent.key.into(),
        payload: sent.payload.into(),
        ..Produce::default()
    };
    let messages: Vec<Produce> = all.into_iter().map(message).collect();
    let mut told: Result<_, BrokerError> = producer.produce_all(messages.clone()).await;
    while told.is_err() {
        tokio::time::sleep(TICK).await;
        told = producer.produce_all(messages.clone()).await;
    }
    count
}

/// Does something to somebody every few seconds, until the time is over; then all run.
fn torment(
    crew: &mut dyn Crew,
    kafka: &mut KafkaServer,
    size: Size,
    mut looking: impl FnMut(&dyn Crew),
) -> BTreeMap<&'static str, u64> {
    let mut dice = Seeded::new(size.seed ^ u64::from_be_bytes(*b"tormentr"));
    let mut counts = BTreeMap::new();
    let mut frozen: Option<(usize, Instant)> = None;
    // The shorter the time the less is waited. After each something must get done, or nothing but starts is tested.
    let most = (size.time.as_millis() as u64 / 15).clamp(500, 8_000);
    let mut count = |what, did: bool| *counts.entry(what).or_default() += u64::from(did);
    let started = Instant::now();
    for slot in 0..INSTANCES {
        crew.start(slot);
    }
    while started.elapsed() < size.time {
        std::thread::sleep(Duration::from_millis(100 + dice.below(most)));
        crew.look();
        looking(crew);
        if let Some((slot, until)) = frozen
            && until <= Instant::now()
        {
            crew.freeze(slot, false);
            frozen = None;
        }
        let slot = dice.below(INSTANCES as u64) as usize;
        // Nobody writes to who is frozen.
        if frozen.is_some_and(|(other, _)| other == slot) {
            continue;
        }
        let is_spared = size.spares_first && slot == 0;
        match dice.below(100) {
            0..38 if is_spared => {}
            0..25 => count("killed", crew.kill(slot)),
            25..38 => count("stopped in order", crew.stop(slot)),
            38..46 if frozen.is_none() && crew.freeze(slot, true) => {
                count("frozen", true);
                // Within the session timeout, beyond it, beyond the poll interval.
                let seconds = *dice.pick(&[1, 4, 9, 14]);
                frozen = Some((slot, Instant::now() + Duration::from_secs(seconds)));
            }
            46..48 if frozen.is_none() && !size.spares_first => {
                count("all killed at once", true);
                crew.kill_all();
            }
            48..50 => {
                count("broker killed", true);
                kafka.kill();
                std::thread::sleep(Duration::from_millis(dice.below(5_000)));
                kafka.start_again();
            }
            _ => count("started", crew.start(slot)),
        }
    }
    if let Some((slot, _)) = frozen {
        crew.freeze(slot, false);
    }
    counts
}

/// What all of it happens on.
pub struct Ground {
    bench: Bench,
    /// What is configured besides, as variables of the environment.
    variables: Vec<(String, String)>,
    /// Where the state is, as arguments of `verify`.
    live: Vec<String>,
    /// Where a rebuild goes, as arguments of `replay`.
    rebuilt: Vec<String>,
    /// A node of the store was killed: what the model can say of the logs then holds.
    has_forgotten: bool,
}

impl Ground {
    /// Topics, and what the configuration says of all stores.
    fn on(kafka: &KafkaServer) -> Self {
        let bench = Bench::on(kafka.bootstrap_servers());
        let partitions = PARTITIONS.to_string();
        let mut create = bench.command(&["topics", "create", "--partitions", &partitions], &[]);
        assert!(create.stdout(Stdio::null()).status().unwrap().success());
        let mut ground =
            Ground { bench, variables: Vec::new(), live: Vec::new(), rebuilt: Vec::new(), has_forgotten: false };
        for (key, value) in [
            ("STORE__NETWORK", "regtest"),
            ("PRUNE__ENABLED", "false"),
            ("INGEST__MISSING_PARENT_GRACE_MS", "5000"),
            ("INGEST__DRAIN_TIMEOUT_MS", "3000"),
        ] {
            ground.set(key, value);
        }
        ground
    }

    fn set(&mut self, key: &str, value: &str) {
        let key = format!("UTXO_STORE__{key}");
        self.variables.retain(|(other, _)| *other != key);
        self.variables.push((key, value.to_owned()));
    }

    fn fjall(kafka: &KafkaServer) -> Self {
        let mut ground = Ground::on(kafka);
        let store = |name| arguments([("--store", format!("fjall://{}", ground.bench.path(name).display()))]);
        (ground.live, ground.rebuilt) = (store("store"), store("rebuilt"));
        ground
    }

    /// Records of few slots: most transactions of the load take several.
    fn aerospike(kafka: &KafkaServer, server: &AerospikeServer) -> Self {
        let mut ground = Ground::on(kafka);
        ground.set("STORE__UTXO_BATCH_SIZE", "4");
        ground.goes_to(server.url(), "blobs");
        ground.will_be_rebuilt_in(server.url(), "blobs-rebuilt");
        ground
    }

    /// The store that is worked on.
    fn goes_to(&mut self, url: String, blobs: &str) {
        let blobs = format!("file://{}", self.bench.path(blobs).display());
        self.set("STORE__URL", &url);
        self.set("STORE__BLOBS__URL", &blobs);
        self.live = arguments([("--store", url), ("--blobs", blobs)]);
    }

    fn will_be_rebuilt_in(&mut self, url: String, blobs: &str) {
        let blobs = format!("file://{}", self.bench.path(blobs).display());
        self.rebuilt = arguments([("--store", url), ("--blobs", blobs)]);
    }

    /// What was rebuilt is the store from now on.
    fn goes_to_the_rebuilt(&mut self) {
        self.live = std::mem::take(&mut self.rebuilt);
        let [_, url, _, blobs] = self.live.clone().try_into().unwrap();
        self.set("STORE__URL", &url);
        self.set("STORE__BLOBS__URL", &blobs);
    }

    /// The program, as it is configured here.
    fn command(&self, args: &[&str]) -> Command {
        let variables: Vec<(&str, &str)> = self.variables.iter().map(|(key, value)| (&**key, &**value)).collect();
        self.bench.command(args, &variables)
    }
}

fn arguments<const N: usize>(named: [(&str, String); N]) -> Vec<String> {
    named.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

fn torture(ground: &Ground, kafka: &mut KafkaServer, crew: &mut dyn Crew, size: Size) {
    eprintln!("torture: {size:?}");
    let mut author = Author::new(size.seed);
    let mut watch = Watch::new(size.time);
    let (messages, done) = under_load(&ground.bench, &mut author, size.rate, || {
        torment(crew, kafka, size, |crew| {
            if size.spares_first {
                watch.look(ground, crew)
            }
        })
    });
    eprintln!("{} transactions in {messages} messages: {:?}", author.transactions(), author.counts);
    let judged = done.and_then(|done| {
        eprintln!("instances: {done:?}");
        panic::catch_unwind(AssertUnwindSafe(|| {
            judge::wait_until_all_is_handled(ground, crew);
            crew.stop_all();
            judge::judge(ground);
            if size.spares_first {
                watch.judge(ground);
            }
        }))
    });
    judged.unwrap_or_else(|why| give_up(ground, size.seed, why));
}

/// Something failed.
fn give_up(ground: &Ground, seed: u64, why: Box<dyn std::any::Any + Send>) -> ! {
    eprintln!("this was seed {seed}, in {}", ground.bench.directory.path().display());
    // For whoever wants to look: HOLD=1.
    while std::env::var("HOLD").is_ok() {
        std::thread::sleep(Duration::from_secs(1));
    }
    panic::resume_unwind(why)
}

fn on_fjall(kafka: &mut KafkaServer, size: Size) {
    let mut ground = Ground::fjall(kafka);
    ground.set("KAFKA__GROUP_PROTOCOL", &size.protocol.to_string());
    torture(&ground, kafka, &mut Host::new(&ground), size);
}

fn on_aerospike(kafka: &mut KafkaServer, size: Size) {
    let Some(server) = AerospikeServer::start() else { return };
    let mut ground = Ground::aerospike(kafka, &server);
    ground.set("KAFKA__GROUP_PROTOCOL", &size.protocol.to_string());
    let are_static = size.seed.is_multiple_of(2) && size.protocol == GroupProtocol::Classic;
    torture(&ground, kafka, &mut Processes::new(&ground, are_static), size);
}

/// `make torture`.
#[test]
#[ignore = "takes as long as it is told to"]
fn for_long() {
    let size = Size::asked();
    let Some(mut kafka) = KafkaServer::own() else { return };
    match std::env::var("STORE").as_deref() {
        Ok("aerospike") => on_aerospike(&mut kafka, size),
        _ => on_fjall(&mut kafka, size),
    }
}

#[test]
fn a_short_one_on_fjall() {
    let Some(mut kafka) = KafkaServer::own() else { return };
    on_fjall(&mut kafka, Size::short(1));
}

#[test]
fn a_short_one_on_aerospike() {
    let Some(mut kafka) = KafkaServer::own() else { return };
    on_aerospike(&mut kafka, Size::short(2));
}

#[test]
fn a_short_one_by_the_consumer_protocol() {
    let Some(mut kafka) = KafkaServer::own() else { return };
    on_fjall(&mut kafka, Size { protocol: GroupProtocol::Consumer, ..Size::short(3) });
}
