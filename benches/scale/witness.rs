//! Reads the outcomes, and says for how long each partition stood still and which transactions are live.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use utxo_store::{
    broker::{Broker, ConsumerEvent},
    event::{Event, OutcomeChange},
};

use crate::{measure::runtime, pipeline::OUTCOMES, topic::BenchTopic};

/// Outcomes seen so far.
struct Seen {
    /// Time of the last outcome of each partition.
    last: Vec<Instant>,
    /// Longest time without an outcome of each partition since the last look.
    longest: Vec<Duration>,
    /// First bytes of the txids of live transactions.
    live: HashSet<u64>,
    /// Outcomes of transactions that were live already: events that were handled twice.
    repeats: u64,
}

/// A reader of the outcomes on a thread of its own.
pub struct Witness {
    seen: Arc<Mutex<Seen>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    pub fn start(topic: &BenchTopic) -> Self {
        let partitions = topic.partitions as usize;
        let seen = Seen {
            last: vec![Instant::now(); partitions],
            longest: vec![Duration::ZERO; partitions],
            live: HashSet::new(),
            repeats: 0,
        };
        let (seen, is_over) = (Arc::new(Mutex::new(seen)), Arc::new(AtomicBool::new(false)));
        let (written, stop, topic) = (seen.clone(), is_over.clone(), topic.clone());
        let thread = thread::spawn(move || runtime(1).block_on(read(&topic, &written, &stop)));
        Witness { seen, is_over, thread: Some(thread) }
    }

    /// Begins to measure standstills anew.
    pub fn reset(&self) {
        let mut seen = lock(&self.seen);
        seen.longest.fill(Duration::ZERO);
        seen.last.fill(Instant::now());
    }

    /// Returns the longest standstill of each partition since the last [`reset`](Self::reset), shortest first. A
    /// standstill that lasts counts.
    pub fn standstills(&self) -> Vec<Duration> {
        let seen = lock(&self.seen);
        let of = |(last, longest): (&Instant, &Duration)| (*longest).max(last.elapsed());
        let mut standstills: Vec<Duration> = seen.last.iter().zip(&seen.longest).map(of).collect();
        standstills.sort_unstable();
        standstills
    }

    /// Returns the number of live transactions, and the number of repeated outcomes.
    pub fn counts(&self) -> (u64, u64) {
        let seen = lock(&self.seen);
        (seen.live.len() as u64, seen.repeats)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed.
            let _ = thread.join();
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read(topic: &BenchTopic, seen: &Mutex<Seen>, is_over: &AtomicBool) {
    let broker = topic.broker();
    let group = format!("{}-witness", topic.topic);
    let mut consumer = broker.subscribe(&group, &[OUTCOMES.to_owned()]).await.expect("the broker is ours");
    while !is_over.load(Relaxed) {
        let polled = tokio::time::timeout(Duration::from_millis(100), consumer.poll()).await;
        let Ok(polled) = polled else { continue };
        let ConsumerEvent::Messages(batch) = polled.expect("the broker is ours") else { continue };
        let now = Instant::now();
        let mut seen = lock(seen);
        for message in &batch.messages {
            let Ok(Event::OutcomeBatch(outcomes)) = Event::decode(&message.payload) else { continue };
            if outcomes.change != OutcomeChange::Live {
                continue;
            }
            for txid in outcomes.txids.iter() {
                let first = txid.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                if !seen.live.insert(first) {
                    seen.repeats += 1;
                }
            }
        }
        let partition = batch.partition.partition as usize;
        let stood = now - seen.last[partition];
        seen.longest[partition] = seen.longest[partition].max(stood);
        seen.last[partition] = now;
    }
}
