//! Memory bounded by the configuration, whatever has passed and whatever waits to be read.
//!
//! Transactions are generated as they are read, so that only the pipeline takes memory; in the Kafka bench they come
//! from a broker. A case fails if memory keeps growing or exceeds its bound.

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
    measure::{self, env_number, runtime},
    pipeline::{self, Log, POLLED, RULES, Running},
    slow::ThrottledEngine,
};

/// Number of samples of each case.
const SAMPLES: usize = 20;
/// Memory of the allocator, and of data between two tasks.
const ALLOCATOR_ROOM: u64 = 32 << 20;
/// Maximum memory of a transaction besides the bytes of its event: its page, its spends, its entry in the planner, and
/// allocator overhead.
const BYTES_PER_TRANSACTION: u64 = 3 << 10;
/// Large messages per poll: `kafka.batch_bytes` bounds a batch of librdkafka, too.
const LARGE_MESSAGES_PER_POLL: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// All transactions pass as fast as possible.
    Passed,
    /// Slow store with small transactions: the number of events read ahead is bounded.
    Small,
    /// Slow store with transactions of 100 KB: the bytes read ahead are bounded.
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

    /// Additional bytes in the last script.
    fn padding(self) -> usize {
        if self == Growth::Large { 100_000 } else { 0 }
    }

    /// Approximate bytes of an event.
    fn event_bytes(self) -> u64 {
        300 + self.padding() as u64
    }
}

/// Resident memory, in bytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct GrowthResult {
    before: u64,
    /// Samples at equal distances.
    samples: Vec<u64>,
    /// Peak of the resident memory.
    peak: u64,
    /// Minimum (with a backlog) and maximum that the configuration allows besides `before`.
    bound: (u64, u64),
    /// Transactions in the log.
    total: u64,
    completed: u64,
    seconds: f64,
}

pub fn run(case: Growth) -> GrowthResult {
    let total = match case {
        Growth::Passed => env_number("MACRO_GROWTH_TRANSACTIONS", 10_000_000),
        _ => env_number("MACRO_BACKLOG_BYTES", 10_000_000_000) / case.event_bytes(),
    };
    let settings = pipeline::settings();
    let generator = Generator::new(Shape::Apart, total).padded(case.padding());
    let chunks = generator.chunks(if case == Growth::Large { LARGE_MESSAGES_PER_POLL } else { POLLED });
    // A consumer that ignores pauses stands for a missing bound: the backlog cases must fail then.
    let feed = Feed::new(&settings.topic, Box::new(chunks), total).obeying_pauses(env_number("MACRO_DEAF", 0) == 0);
    runtime(2).block_on(measure_growth(case, settings, Log::of_feed(feed), total, 0))
}

/// Samples the memory of a pipeline on a log of `total` transactions, whose client may hold `client_bytes`.
pub async fn measure_growth(
    case: Growth,
    settings: PipelineSettings,
    log: impl Future<Output = Log>,
    total: u64,
    client_bytes: u64,
) -> GrowthResult {
    let waiting = settings.max_active as u64;
    let (least, bound) = match case {
        Growth::Passed | Growth::Small => {
            (waiting * case.event_bytes(), waiting * (case.event_bytes() + BYTES_PER_TRANSACTION))
        }
        Growth::Large => (settings.bounds.bytes, settings.bounds.bytes + settings.bounds.bytes / 4),
    };
    let engine: Arc<dyn RecordEngine> = match case {
        Growth::Passed => Arc::new(NullEngine::new(RULES)),
        Growth::Small | Growth::Large => {
            let a_second = env_number("MACRO_BACKLOG_RATE", 5_000_000) as f64 / case.event_bytes() as f64;
            // Each transaction has two rows: its spend and its create.
            Arc::new(ThrottledEngine::new(NullEngine::new(RULES), 2.0 * a_second))
        }
    };

    measure::reset_peak();
    let (started, before) = (Instant::now(), measure::resident_memory());
    let bound = bound + client_bytes;
    let running = Running::start(settings, log.await, engine).await;
    let span = Duration::from_secs(env_number("MACRO_BACKLOG_SECONDS", 60));
    let mut samples = Vec::new();
    for at in 1..=SAMPLES {
        match case {
            Growth::Passed => running.wait_until_completed(total * at as u64 / SAMPLES as u64).await,
            _ => tokio::time::sleep_until((started + span * at as u32 / SAMPLES as u32).into()).await,
        }
        samples.push(measure::resident_memory());
        if measure::resident_memory() > before + 8 * bound + ALLOCATOR_ROOM {
            // The case has failed; the machine would run out of memory.
            break;
        }
    }
    let (completed, seconds) = (running.completed(), started.elapsed().as_secs_f64());
    let peak = measure::peak_memory();
    running.abort();
    let bound = (if case == Growth::Passed { 0 } else { least }, bound);
    GrowthResult { before, samples, peak, bound, total, completed, seconds }
}

impl GrowthResult {
    /// Returns the fault, if there is one.
    pub fn fault(&self) -> Option<&'static str> {
        let (least, most) = self.bound;
        let quarter = self.samples.len() / 4;
        // Load of the machine puts more in flight for a while; a leak stays and raises even the minimum.
        let ceiling_at_first = self.samples.iter().take(quarter).max();
        let floor_at_last = self.samples.iter().rev().take(quarter).min();
        if self.peak > self.before + most + ALLOCATOR_ROOM {
            Some("memory exceeds its bound")
        } else if floor_at_last.zip(ceiling_at_first).is_none_or(|(last, first)| *last > first + ALLOCATOR_ROOM / 2) {
            Some("memory grows")
        } else if self.peak < self.before + least {
            Some("too little was read ahead: the bound was not tested")
        } else if self.completed == 0 {
            Some("no transaction was completed")
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
