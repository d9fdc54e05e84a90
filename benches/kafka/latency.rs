//! Latency from produce to state, at a steady load far below the maximum of the pipeline.
//!
//! The parent produces on a schedule, the child consumes. The latency of a transaction runs from its scheduled time (a
//! transaction sent late because others were slow counts as late) to the engine's answer to its create, after which
//! readers see it.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use utxo_store::{broker::Broker, tx::Txid};

use crate::{
    OUTCOME_PARTITIONS,
    case::Sink,
    child,
    measure::{env_number, runtime},
    pipeline::{POLLED, Running},
    run::{BenchEngine, join_group, settings},
    topic::{self, BenchTopic},
    visibility::{VisibilityEngine, now_us},
};

/// Argument that selects the latency case in a child.
pub const LATENCY: &str = "latency";
const READY: &str = "ready";
/// Interval between two sends of due messages.
const TICK: Duration = Duration::from_millis(1);
/// Time that is not counted: connections are opened and memory is allocated.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time between readiness and the first transaction.
const START_DELAY: Duration = Duration::from_millis(200);

/// Child process: consumes, and prints when each transaction became visible.
pub fn consume(sink: Sink, bench_topic: &BenchTopic) {
    runtime(2).block_on(async {
        let bench_engine = BenchEngine::new(sink).await;
        bench_engine.fill(&topic::generator(bench_topic)).await;
        let id = |key: &[u8]| Txid(key.try_into().expect("keys are ids"));
        let txids = topic::generator(bench_topic).chunks(POLLED).flatten().map(|message| id(&message.key));
        let engine = Arc::new(VisibilityEngine::new(bench_engine.engine.clone(), txids));
        let settings = settings(bench_topic);
        let log = join_group(bench_topic, &settings).await;
        let running = Running::start(settings, log, engine.clone()).await;
        running.wait_until_assigned(bench_topic.partitions as usize).await;
        println!("{READY}");
        running.wait_until_completed(bench_topic.transactions).await;
        running.stop().await;
        println!("{}", serde_json::to_string(&engine.visible_at_us()).expect("numbers"));
        bench_engine.engine.close().await.expect("closed");
    });
}

/// Measures and prints one line; `rate` is in transactions per second.
pub fn measure(sink: Sink, brokers: &str, partitions: i32, rate: f64) -> Result<(), String> {
    let seconds = env_number("KAFKA_LATENCY_SECONDS", 20) as f64 + WARM_UP.as_secs_f64();
    let topic = format!("bench.latency-{}", sink.name());
    let bench_topic =
        BenchTopic { brokers: brokers.to_owned(), topic, partitions, transactions: (rate * seconds) as u64 };
    runtime(1).block_on(async {
        topic::create(&bench_topic, OUTCOME_PARTITIONS).await;
        let arguments = [&[LATENCY.to_owned(), sink.name().to_owned()], &bench_topic.arguments()[..]].concat();
        let mut child =
            child::command(&arguments)?.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let mut output_lines =
            BufReader::new(child.stdout.take().ok_or("the child has no output")?).lines().map_while(Result::ok);
        output_lines.find(|line| line == READY).ok_or("the child ended before it was ready")?;
        let sent = send(&bench_topic, rate).await;
        let visible_us =
            output_lines.find(|line| line.starts_with('[')).ok_or("the child ended before the last transaction")?;
        let visible_us: Vec<u64> = serde_json::from_str(&visible_us).map_err(|error| error.to_string())?;
        child.wait().map_err(|error| error.to_string())?;
        sent.print(sink, rate, &visible_us);
        Ok(())
    })
}

/// Times of the sent messages.
struct Sent {
    /// Scheduled time of the first message, µs since the epoch.
    first_us: u64,
    /// Delay of the first message of each tick.
    late: Vec<Duration>,
}

/// Sends due messages, whatever the state of earlier ones.
async fn send(bench_topic: &BenchTopic, rate: f64) -> Sent {
    let messages = topic::generator(bench_topic).chunks(POLLED).flatten();
    let mut messages: Vec<_> = messages.map(|message| topic::produce(&bench_topic.topic, message)).collect();
    messages.reverse();
    let producer = bench_topic.broker().producer().await.expect("the broker is ours");
    let total = messages.len();
    let (first_us, begin) = (now_us() + START_DELAY.as_micros() as u64, Instant::now() + START_DELAY);
    tokio::time::sleep(START_DELAY).await;
    let (mut late, mut in_flight) = (Vec::new(), JoinSet::new());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !messages.is_empty() {
        ticks.tick().await;
        let (sent, passed) = (total - messages.len(), begin.elapsed());
        let due = ((passed.as_secs_f64() * rate) as usize).min(total);
        if due > sent {
            late.push(passed.saturating_sub(Duration::from_secs_f64(sent as f64 / rate)));
            let mut batch = messages.split_off(total - due);
            batch.reverse();
            let producer = producer.clone();
            in_flight.spawn(async move { producer.produce_all(batch).await });
        }
        while let Some(done) = in_flight.try_join_next() {
            done.expect("it does not panic").expect("it is acknowledged");
        }
    }
    for done in in_flight.join_all().await {
        done.expect("it is acknowledged");
    }
    Sent { first_us, late }
}

impl Sent {
    fn print(mut self, sink: Sink, rate: f64, visible_us: &[u64]) {
        let due = |index: usize| self.first_us + (index as f64 * 1e6 / rate) as u64;
        let counted = visible_us.iter().enumerate().skip((rate * WARM_UP.as_secs_f64()) as usize);
        let mut latencies_us: Vec<u64> = counted.map(|(index, at)| at.saturating_sub(due(index))).collect();
        latencies_us.sort_unstable();
        self.late.sort_unstable();
        let ms = |share: f64| percentile(&latencies_us, share).map_or(0.0, |us| *us as f64 / 1e3);
        println!(
            "{:<20} {:>10.0} tx/s: p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms \
             ({} transactions; sent late by {:.1} ms at p99)",
            format!("latency/{}", sink.name()),
            rate,
            ms(0.5),
            ms(0.99),
            ms(1.0),
            latencies_us.len(),
            percentile(&self.late, 0.99).map_or(0.0, |late| late.as_secs_f64() * 1e3),
        );
    }
}

/// Returns the value below which this share of the sorted values lies.
fn percentile<T>(sorted: &[T], share: f64) -> Option<&T> {
    sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1)))
}
