//! Memory that is bounded by the configuration: whatever has passed, and whatever waits to be read.
//!
//! Transactions are made as they are read, so that nothing but the pipeline takes memory; in the Kafka bench they come from a broker. A case
//! fails where memory goes on growing, or comes to more than its bound.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use utxo_store::{
    engine::{RecordEngine, null::NullEngine},
    ingest::pipeline::PipelineSettings,
};

use crate::{
    feed::Feed,
    generator::{Generator, Shape},
    measure::{self, size},
    pipeline::{self, Log, POLLED, RULES, Running},
    slow::Slow,
};

/// Samples of each case.
const SAMPLES: usize = 20;
/// What the allocator keeps for itself, and what is on its way between two tasks.
const ROOM: u64 = 32 << 20;
/// What is held of a transaction besides the bytes of its event, at the most: its page, its spends, its place in the planner, and what the
/// allocator has no use for between them.
const OF_EACH: u64 = 3 << 10;
/// What librdkafka hands over at once is bounded by `kafka.batch_bytes` as well.
const LARGE_AT_ONCE: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// So many pass as fast as they can.
    Passed,
    /// A slow store; small transactions wait: at most so many of them are read.
    Small,
    /// A slow store; transactions of 100 KB wait: at most so many bytes of them are read.
    Large,
}

impl Growth {
    pub const ALL: [Growth; 3] = [Growth::Passed, Growth::Small, Growth::Large];

    pub fn name(self) -> &'static str {
        match self {
            Growth::Passed => "growth/passed",
            Growth::Small => "growth/backlog-small",
            Growth::Large => "growth/backlog-large",
        }
    }

    /// Bytes by which its last script is longer.
    fn padding(self) -> usize {
        if self == Growth::Large { 100_000 } else { 0 }
    }

    /// Bytes of an event, about.
    fn event_bytes(self) -> u64 {
        300 + self.padding() as u64
    }
}

/// Resident memory, in bytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Grown {
    before: u64,
    /// At equal distances, from the first to the last.
    samples: Vec<u64>,
    /// The most that there ever was.
    peak: u64,
    /// What the configuration lets it take besides what was there before, and of that the least that it takes where there is a backlog.
    bound: (u64, u64),
    /// Of the log, in transactions.
    total: u64,
    completed: u64,
    seconds: f64,
}

pub fn run(case: Growth) -> Grown {
    let total = match case {
        Growth::Passed => size("MACRO_GROWTH_TRANSACTIONS", 10_000_000),
        _ => size("MACRO_BACKLOG_BYTES", 10_000_000_000) / case.event_bytes(),
    };
    let settings = pipeline::settings();
    let generator = Generator::new(Shape::Apart, total).padded(case.padding());
    let chunks = generator.chunks(if case == Growth::Large { LARGE_AT_ONCE } else { POLLED });
    // A consumer that does not heed a pause is what a missing bound would be like: the cases of a backlog must fail.
    let feed = Feed::new(&settings.topic, Box::new(chunks), total).heeding(size("MACRO_DEAF", 0) == 0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let watched = watch(case, settings, Log::of_feed(feed), total, 0);
    runtime.expect("a machine that runs benches has threads").block_on(watched)
}

/// Watches the memory of a pipeline over a log of so many transactions, whose client may hold so many bytes of them.
pub async fn watch(
    case: Growth,
    settings: PipelineSettings,
    log: impl Future<Output = Log>,
    total: u64,
    of_client: u64,
) -> Grown {
    let waiting = settings.max_active as u64;
    let (least, bound) = match case {
        Growth::Passed | Growth::Small => (waiting * case.event_bytes(), waiting * (case.event_bytes() + OF_EACH)),
        Growth::Large => (settings.bounds.bytes, settings.bounds.bytes + settings.bounds.bytes / 4),
    };
    let engine: Arc<dyn RecordEngine> = match case {
        Growth::Passed => Arc::new(NullEngine::new(RULES)),
        Growth::Small | Growth::Large => {
            let a_second = size("MACRO_BACKLOG_RATE", 5_000_000) as f64 / case.event_bytes() as f64;
            // Its spend and its create.
            Arc::new(Slow::new(NullEngine::new(RULES), 2.0 * a_second))
        }
    };

    measure::forget_peak();
    let (started, before) = (Instant::now(), measure::memory());
    let bound = bound + of_client;
    let running = Running::start(settings, log.await, engine).await;
    let span = Duration::from_secs(size("MACRO_BACKLOG_SECONDS", 60));
    let mut samples = Vec::new();
    for at in 1..=SAMPLES {
        match case {
            Growth::Passed => running.until_completed(total * at as u64 / SAMPLES as u64).await,
            _ => tokio::time::sleep_until((started + span * at as u32 / SAMPLES as u32).into()).await,
        }
        samples.push(measure::memory());
        if measure::memory() > before + 8 * bound + ROOM {
            // It will not end well: the machine is spared.
            break;
        }
    }
    let (completed, seconds) = (running.completed(), started.elapsed().as_secs_f64());
    let peak = measure::peak_memory();
    running.abandon();
    let bound = (if case == Growth::Passed { 0 } else { least }, bound);
    Grown { before, samples, peak, bound, total, completed, seconds }
}

impl Grown {
    /// What is wrong, if anything is.
    pub fn fault(&self) -> Option<&'static str> {
        let (least, most) = self.bound;
        let quarter = self.samples.len() / 4;
        // While others have the machine more is in flight, and that is gone again; what leaks stays, and lifts even the least.
        let ceiling_at_first = self.samples.iter().take(quarter).max();
        let floor_at_last = self.samples.iter().rev().take(quarter).min();
        if self.peak > self.before + most + ROOM {
            Some("it takes more than its bound")
        } else if floor_at_last.zip(ceiling_at_first).is_none_or(|(last, first)| *last > first + ROOM / 2) {
            Some("it grows")
        } else if self.peak < self.before + least {
            Some("it has not read as far ahead as it may: this shows nothing")
        } else if self.completed == 0 {
            Some("nothing has passed")
        } else {
            None
        }
    }

    pub fn print(&self, name: &str) {
        let mib = |bytes: &u64| (bytes >> 20).to_string();
        println!(
            "{:<22} {:>10} of {:>10} in {:>4.0} s; before {} MiB, bound {} MiB besides, peak {} MiB; {}",
            name,
            self.completed,
            self.total,
            self.seconds,
            mib(&self.before),
            mib(&self.bound.1),
            mib(&self.peak),
            self.fault().unwrap_or("flat"),
        );
        println!("{:<22} MiB from time to time: {}", "", self.samples.iter().map(mib).collect::<Vec<_>>().join(" "));
    }
}
