//! From produce to state, at a steady load far below what the pipeline can do.
//!
//! The parent produces on a schedule, the child consumes. A transaction's time runs from when it was due to be produced (so that one that
//! is sent late, since others were slow, counts as late) to when the engine has answered its create: from then on whoever reads sees it.

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
    case::{Place, Sink},
    child,
    measure::size,
    pipeline::{POLLED, Running},
    run::{Opened, joined, runtime, settings},
    seen::{Seen, now_us},
    topic,
};

/// What tells a child that latencies are wanted.
pub const LATENCY: &str = "latency";
const READY: &str = "ready";
/// What is due is sent so often.
const TICK: Duration = Duration::from_millis(1);
/// What comes first is not counted: connections are made, memory is asked for.
const WARM_UP: Duration = Duration::from_secs(1);
/// Between being ready and the first transaction.
const BREATH: Duration = Duration::from_millis(200);

/// The child: consumes, and prints when each transaction could be seen.
pub fn consume(sink: Sink, place: &Place) {
    runtime(2).block_on(async {
        let opened = Opened::new(sink).await;
        opened.fill(&topic::generator(place)).await;
        let id = |key: &[u8]| Txid(key.try_into().expect("keys are ids"));
        let txids = topic::generator(place).chunks(POLLED).flatten().map(|message| id(&message.key));
        let engine = Arc::new(Seen::new(opened.engine.clone(), txids));
        let settings = settings(place);
        let log = joined(place, &settings).await;
        let running = Running::start(settings, log, engine.clone()).await;
        running.until_assigned(place.partitions.unsigned_abs().into()).await;
        println!("{READY}");
        running.until_completed(place.transactions).await;
        running.stop().await;
        println!("{}", serde_json::to_string(&engine.at()).expect("numbers"));
        opened.engine.close().await.expect("closed");
    });
}

/// Measures and prints one line; `rate`: transactions a second.
pub fn measure(sink: Sink, brokers: &str, partitions: i32, rate: f64) -> Result<(), String> {
    let seconds = size("KAFKA_LATENCY_SECONDS", 20) as f64 + WARM_UP.as_secs_f64();
    let topic = format!("bench.latency-{}", sink.name());
    let place = Place { brokers: brokers.to_owned(), topic, partitions, transactions: (rate * seconds) as u64 };
    runtime(1).block_on(async {
        topic::create(&place).await;
        let arguments = [&[LATENCY.to_owned(), sink.name().to_owned()], &place.arguments()[..]].concat();
        let mut child =
            child::command(&arguments)?.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let mut said = BufReader::new(child.stdout.take().ok_or("it says nothing")?).lines().map_while(Result::ok);
        said.find(|line| line == READY).ok_or("it has ended before it was ready")?;
        let sent = send(&place, rate).await;
        let seen = said.find(|line| line.starts_with('[')).ok_or("it has ended before the last transaction")?;
        let seen: Vec<u64> = serde_json::from_str(&seen).map_err(|error| error.to_string())?;
        child.wait().map_err(|error| error.to_string())?;
        sent.print(sink, rate, &seen);
        Ok(())
    })
}

/// What was sent when.
struct Sent {
    /// When the first one was due, µs since the epoch.
    first_us: u64,
    /// By how much each tick's first one was late.
    late: Vec<Duration>,
}

/// Sends what is due whatever has become of what was sent before.
async fn send(place: &Place, rate: f64) -> Sent {
    let messages = topic::generator(place).chunks(POLLED).flatten();
    let mut messages: Vec<_> = messages.map(|message| topic::produce(&place.topic, message)).collect();
    messages.reverse();
    let producer = place.broker().producer().await.expect("the broker is ours");
    let total = messages.len();
    let (first_us, begin) = (now_us() + BREATH.as_micros() as u64, Instant::now() + BREATH);
    tokio::time::sleep(BREATH).await;
    let (mut late, mut on_their_way) = (Vec::new(), JoinSet::new());
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
            on_their_way.spawn(async move { producer.produce_all(batch).await });
        }
        while let Some(done) = on_their_way.try_join_next() {
            done.expect("it does not panic").expect("it is acknowledged");
        }
    }
    for done in on_their_way.join_all().await {
        done.expect("it is acknowledged");
    }
    Sent { first_us, late }
}

impl Sent {
    fn print(mut self, sink: Sink, rate: f64, seen: &[u64]) {
        let due = |place: usize| self.first_us + (place as f64 * 1e6 / rate) as u64;
        let counted = seen.iter().enumerate().skip((rate * WARM_UP.as_secs_f64()) as usize);
        let mut took: Vec<u64> = counted.map(|(place, at)| at.saturating_sub(due(place))).collect();
        took.sort_unstable();
        self.late.sort_unstable();
        let ms = |share: f64| of(&took, share).map_or(0.0, |us| *us as f64 / 1e3);
        println!(
            "{:<20} {:>10.0} tx/s: p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms ({} transactions; sent late by {:.1} ms at p99)",
            format!("latency/{}", sink.name()),
            rate,
            ms(0.5),
            ms(0.99),
            ms(1.0),
            took.len(),
            of(&self.late, 0.99).map_or(0.0, |late| late.as_secs_f64() * 1e3),
        );
    }
}

/// The value below which this share of them lies.
fn of<T>(sorted: &[T], share: f64) -> Option<&T> {
    sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1)))
}
