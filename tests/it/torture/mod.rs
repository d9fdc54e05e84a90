//! The torture: a real Apache Kafka, several instances, generated load ([`load`]); instances are killed, stopped, frozen and started at
//! random ([`crew`]), and now and then the broker is. At the end the store must be what the model makes of the logs, break no
//! invariant, and equal a rebuild.
//!
//! `make torture SECONDS=900 RATE=400 SEED=7 STORE=fjall|aerospike`; a short one of each is in `make test`. HOLD=1 leaves everything as
//! it is where something fails.

mod crew;
mod host;
mod judge;
mod load;

use std::{
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use utxo_store::{
    broker::{Broker, BrokerError, Produce, Producer},
    seeded::Seeded,
};

use self::{
    crew::{Crew, Host, INSTANCES, Processes},
    load::{Author, Sent},
};
use crate::{
    aerospike_server::AerospikeServer,
    kafka_server::KafkaServer,
    run::{Bench, block_on},
};

pub const PARTITIONS: i32 = 6;
/// Between two ticks of the load.
const TICK: Duration = Duration::from_millis(50);

/// How long, how much, and which.
#[derive(Debug, Clone, Copy)]
struct Size {
    time: Duration,
    /// Moments of the load a second.
    rate: u64,
    seed: u64,
}

impl Size {
    /// As the environment says.
    fn asked() -> Self {
        let number = |name: &str, otherwise| {
            std::env::var(name)
                .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
        };
        let random = || Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id());
        let seed = if std::env::var("SEED").is_ok() { number("SEED", 0) } else { random() };
        Size { time: Duration::from_secs(number("TORTURE_SECONDS", 900)), rate: number("RATE", 400), seed }
    }

    fn short(seed: u64) -> Self {
        Size { time: Duration::from_secs(20), rate: 300, seed }
    }
}

/// What is written, until it is enough.
struct Load {
    counts: BTreeMap<&'static str, u64>,
    transactions: usize,
    messages: u64,
}

/// Produces at a steady rate. A message that may have been written is written again: repeats do no harm.
fn produce(bench: &Bench, size: Size, is_enough: &AtomicBool) -> Load {
    let mut author = Author::new(size.seed);
    let mut messages = 0;
    block_on(async {
        let broker = bench.broker();
        let producer = broker.producer().await.unwrap();
        let (started, mut moments) = (Instant::now(), 0);
        while !is_enough.load(Ordering::Relaxed) {
            // What an absent broker held up is not caught up with at once.
            let due = (started.elapsed().as_millis() as u64 * size.rate / 1_000).min(moments + size.rate);
            while moments < due {
                moments += 1;
                messages += send(bench, producer.as_ref(), author.next()).await;
            }
            tokio::time::sleep(TICK).await;
        }
        messages += send(bench, producer.as_ref(), author.last()).await;
    });
    Load { transactions: author.transactions(), counts: author.counts, messages }
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
fn torment(crew: &mut dyn Crew, kafka: &mut KafkaServer, size: Size) -> BTreeMap<&'static str, u64> {
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
        match dice.below(100) {
            0..25 => count("killed", crew.kill(slot)),
            25..38 => count("stopped in order", crew.stop(slot)),
            38..46 if frozen.is_none() && crew.freeze(slot, true) => {
                count("frozen", true);
                // Within the session timeout, beyond it, beyond the poll interval.
                let seconds = *dice.pick(&[1, 4, 9, 14]);
                frozen = Some((slot, Instant::now() + Duration::from_secs(seconds)));
            }
            46..48 if frozen.is_none() => {
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
}

impl Ground {
    /// Topics, and what the configuration says of all stores.
    fn on(kafka: &KafkaServer) -> Self {
        let bench = Bench::on(kafka.bootstrap_servers());
        let partitions = PARTITIONS.to_string();
        let mut create = bench.command(&["topics", "create", "--partitions", &partitions], &[]);
        assert!(create.stdout(Stdio::null()).status().unwrap().success());
        let mut ground = Ground { bench, variables: Vec::new(), live: Vec::new(), rebuilt: Vec::new() };
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
        self.variables.push((format!("UTXO_STORE__{key}"), value.to_owned()));
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
        let blobs = |name| format!("file://{}", ground.bench.path(name).display());
        let ((url, blobs), rebuilt) = ((server.url(), blobs("blobs")), (server.url(), blobs("blobs-rebuilt")));
        ground.set("STORE__URL", &url);
        ground.set("STORE__BLOBS__URL", &blobs);
        ground.set("STORE__UTXO_BATCH_SIZE", "4");
        ground.live = arguments([("--store", url), ("--blobs", blobs)]);
        ground.rebuilt = arguments([("--store", rebuilt.0), ("--blobs", rebuilt.1)]);
        ground
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
    let is_enough = AtomicBool::new(false);
    let (load, done) = std::thread::scope(|scope| {
        let producing = scope.spawn(|| produce(&ground.bench, size, &is_enough));
        let done = panic::catch_unwind(AssertUnwindSafe(|| torment(crew, kafka, size)));
        is_enough.store(true, Ordering::Relaxed);
        (producing.join().unwrap(), done)
    });
    let Load { counts, transactions, messages } = load;
    eprintln!("{transactions} transactions in {messages} messages: {counts:?}");
    let judged = done.and_then(|done| {
        eprintln!("instances: {done:?}");
        panic::catch_unwind(AssertUnwindSafe(|| {
            judge::wait_until_all_is_handled(ground, crew);
            crew.stop_all();
            judge::judge(ground);
        }))
    });
    if let Err(why) = judged {
        eprintln!("this was the torture with seed {}, in {}", size.seed, ground.bench.directory.path().display());
        // For whoever wants to look: HOLD=1.
        while std::env::var("HOLD").is_ok() {
            std::thread::sleep(Duration::from_secs(1));
        }
        panic::resume_unwind(why);
    }
}

fn on_fjall(kafka: &mut KafkaServer, size: Size) {
    let ground = Ground::fjall(kafka);
    torture(&ground, kafka, &mut Host::new(&ground), size);
}

fn on_aerospike(kafka: &mut KafkaServer, size: Size) {
    let Some(server) = AerospikeServer::start() else { return };
    let ground = Ground::aerospike(kafka, &server);
    let are_static = size.seed.is_multiple_of(2);
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
