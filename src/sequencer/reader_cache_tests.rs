//! Tests of reading events again from a log in memory that may be silent.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::*;
use crate::{
    broker::{
        BrokerDecorator, BrokerErrorKind, NewTopic, OutgoingMessage,
        memory::{MemoryBroker, MemorySettings},
    },
    clock::Clock,
    event::EventPosition,
    sequencer::{
        SequencerError, SequencerParts, contested_event::reread_event, handler::Handler, state::ChainState,
        steps::DecisionMode, tests::parts,
    },
};

/// A log that counts its readers and can fall silent.
#[derive(Clone)]
struct Log {
    inner: Arc<dyn Broker>,
    opened: Arc<AtomicUsize>,
    sought: Arc<AtomicUsize>,
    refuses: Arc<AtomicBool>,
    silent: Arc<AtomicBool>,
}

struct LogReader(Log, Box<dyn PartitionReader>);

#[async_trait]
impl PartitionReader for LogReader {
    async fn next(&mut self, wait: Duration) -> Result<Vec<Message>, BrokerError> {
        if self.0.silent.load(Relaxed) {
            tokio::time::sleep(wait).await;
            return Ok(Vec::new());
        }
        self.1.next(wait).await
    }

    fn position(&self) -> u64 {
        self.1.position()
    }

    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError> {
        self.0.sought.fetch_add(1, Relaxed);
        self.1.seek(offset).await
    }
}

impl BrokerDecorator for Log {
    fn inner(&self) -> &dyn Broker {
        &*self.inner
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
        if self.refuses.load(Relaxed) {
            return Err(BrokerError::new(BrokerErrorKind::Retryable, "read", "no broker"));
        }
        self.opened.fetch_add(1, Relaxed);
        Ok(Box::new(LogReader(self.clone(), self.inner.read(partition, offset).await?)))
    }
}

impl Log {
    fn over(inner: Arc<dyn Broker>) -> Self {
        let (opened, sought) = Default::default();
        let (refuses, silent) = Default::default();
        Log { inner, opened, sought, refuses, silent }
    }
}

fn at(partition: i32) -> TopicPartition {
    TopicPartition { topic: "txs".into(), partition }
}

/// Creates three partitions of 5,000 messages, read in batches of 100.
async fn filled() -> (MemoryBroker, Log) {
    let settings = MemorySettings { batch_messages: 100, ..MemorySettings::new(Clock::simulated(1_000)) };
    let broker = MemoryBroker::new(settings);
    broker.create_topics(&[NewTopic { name: "txs".into(), partitions: 3, config: vec![] }]).await.unwrap();
    for partition in 0..3 {
        produce(&broker, partition, 5_000).await;
    }
    (broker.clone(), Log::over(Arc::new(broker)))
}

async fn produce(broker: &dyn Broker, partition: i32, count: usize) {
    let message = OutgoingMessage { topic: "txs".into(), partition: Some(partition), ..OutgoingMessage::default() };
    broker.producer().await.unwrap().produce_all(vec![message; count]).await.unwrap();
}

/// Reads each partition twice, as a handler does.
async fn read(readers: &mut ReaderCache, log: &Log, offset: u64) {
    for partition in [0, 0, 1, 1, 2, 2] {
        let found = readers.get(log, &at(partition), offset).await.unwrap();
        assert!(matches!(&found, RereadOutcome::Found(message) if message.offset == offset), "{found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn thousands_of_events_are_read_again_with_one_reader_per_partition() {
    let (_, log) = filled().await;
    let mut readers = ReaderCache::default();
    for offset in (0..5_000).step_by(7) {
        read(&mut readers, &log, offset).await;
    }
    assert_eq!((log.opened.load(Relaxed), log.sought.load(Relaxed)), (3, 0), "in order");
    for offset in [17, 4_900, 4_890, 2_000, 2_999] {
        read(&mut readers, &log, offset).await;
    }
    assert_eq!((log.opened.load(Relaxed), log.sought.load(Relaxed)), (3, 4 * 3), "back and forth");
}

#[tokio::test(start_paused = true)]
async fn the_number_of_cached_readers_is_bounded() {
    let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(1_000)));
    let partitions = MAX_READERS as i32 + 1;
    broker.create_topics(&[NewTopic { name: "txs".into(), partitions, config: vec![] }]).await.unwrap();
    let log = Log::over(Arc::new(broker.clone()));
    let mut readers = ReaderCache::default();
    for partition in 0..partitions {
        produce(&broker, partition, 1).await;
        readers.get(&log, &at(partition), 0).await.unwrap();
    }
    assert_eq!(readers.readers.len(), MAX_READERS);
    readers.get(&log, &at(1), 0).await.unwrap();
    assert_eq!(log.opened.load(Relaxed), MAX_READERS + 1, "the least recently used reader was dropped");
    readers.get(&log, &at(0), 0).await.unwrap();
    assert_eq!(log.opened.load(Relaxed), MAX_READERS + 2);
}

#[tokio::test(start_paused = true)]
async fn an_offset_without_a_message_is_gone_wherever_it_is() {
    let (broker, log) = filled().await;
    for _ in 0..2 {
        broker.leave_gap(&at(0), 3).unwrap();
        produce(&broker, 0, 1).await;
    }
    broker.leave_gap(&at(0), 3).unwrap();
    let mut readers = ReaderCache::default();
    for offset in [4_999, 5_000, 5_002, 5_003, 5_006, 5_007, 5_008, 5_010, 5_001] {
        let found = readers.get(&log, &at(0), offset).await.unwrap();
        let is_there = matches!(offset, 4_999 | 5_003 | 5_007);
        assert_eq!(matches!(found, RereadOutcome::Found(message) if message.offset == offset), is_there, "{offset}");
        if !is_there {
            let again = readers.get(&log, &at(0), offset).await.unwrap();
            assert!(matches!(again, RereadOutcome::Gone), "{offset}: {again:?}");
        }
    }
    broker.truncate(&at(0), 5_000).unwrap();
    let error = readers.get(&log, &at(0), 10).await.unwrap_err();
    assert_eq!(error.kind, BrokerErrorKind::OutOfRange);
    assert!(readers.readers.is_empty(), "a reader that failed is not used again");
}

async fn handler() -> (Handler, Log) {
    let parts = parts().await;
    parts.broker.create_topics(&[NewTopic { name: "txs".into(), partitions: 1, config: vec![] }]).await.unwrap();
    produce(parts.broker.as_ref(), 0, 3).await;
    let log = Log::over(parts.broker.clone());
    let parts = SequencerParts { broker: Arc::new(log.clone()), ..parts };
    (Handler::new(parts, ChainState::default()), log)
}

fn position(topic: &str, offset: u64) -> EventPosition {
    EventPosition { topic: topic.into(), partition: 0, offset, timestamp_ms: 1_000 }
}

/// A log that does not answer, and one that refuses, are waited for and named by readiness.
#[tokio::test(start_paused = true)]
async fn an_unanswered_read_is_waited_for_and_reported() {
    for silent in [true, false] {
        let (handler, log) = handler().await;
        let quiet = if silent { log.silent.clone() } else { log.refuses.clone() };
        quiet.store(true, Relaxed);
        let health = handler.parts.health.clone();
        let began = Instant::now();
        let looked = async {
            // Ten seconds is the longest wait of a block in this test.
            tokio::time::sleep(Duration::from_secs(60)).await;
            let reasons = format!("{:?}", health.ready().reasons);
            assert!(reasons.contains("an event that is read again: still waiting for offset 2 of txs/0"), "{reasons}");
            quiet.store(false, Relaxed);
        };
        let at = position("txs", 2);
        let cx = handler.context(0, DecisionMode::Live);
        let (message, ()) = tokio::join!(reread_event(&cx, &at), looked);
        assert_eq!(message.unwrap().offset, 2);
        assert!(began.elapsed() < Duration::from_secs(75));
        assert!(!format!("{:?}", health.ready().reasons).contains("still waiting"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_gone_halts_and_is_named() {
    let (handler, _) = handler().await;
    for (at, why) in [
        (position("txs", 9), "offset 9 is out of range"),
        (position("other", 0), "offset 0 of other/0 cannot be read"),
        (EventPosition { timestamp_ms: 999, ..position("txs", 0) }, "offset 0 of txs/0 is another event by now"),
    ] {
        match reread_event(&handler.context(0, DecisionMode::Live), &at).await {
            Err(SequencerError::Halt(message)) => assert!(message.contains(why), "{message}"),
            other => panic!("{other:?}"),
        }
    }
}
