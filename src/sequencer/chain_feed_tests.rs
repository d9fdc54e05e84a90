//! Tests of the feed on a log in memory.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::*;
use crate::{
    broker::{Broker, Delivery, Producer, memory::MemoryBroker},
    engine::{Row, conformance::fixtures},
    event::{Block, BlockMined, Reorg},
    record::Sequenced,
    sequencer::{handler::advance_handled, tests::parts_with_log},
    telemetry::Metrics,
};

#[test]
fn topics_are_merged_by_sequence_and_a_missing_one_is_waited_for() {
    assert_eq!(choose_step(5, Some(5), None), MergeStep::Copy(FeedTopic::BlockMined));
    assert_eq!(choose_step(5, Some(6), Some(5)), MergeStep::Copy(FeedTopic::Reorgs));
    assert_eq!(choose_step(5, Some(4), Some(5)), MergeStep::Skip(FeedTopic::BlockMined));
    assert_eq!(choose_step(5, Some(6), Some(3)), MergeStep::Skip(FeedTopic::Reorgs));
    assert_eq!(choose_step(5, Some(6), None), MergeStep::Wait);
    assert_eq!(choose_step(5, None, None), MergeStep::Wait);
    assert_eq!(choose_step(5, Some(6), Some(7)), MergeStep::Gap);
}

/// The log lines of this thread.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Logged {
    fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let logged = Logged::default();
        let writer = logged.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (logged, tracing::subscriber::set_default(subscriber))
    }

    /// Returns the log lines about a gap.
    fn gaps(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains("a sequence number is missing")).map(str::to_owned).collect()
    }
}

/// The topics and parts that a feed needs.
struct Topics {
    broker: Arc<dyn Broker>,
    log: MemoryBroker,
    parts: SequencerParts,
    metrics: Arc<Metrics>,
}

impl Topics {
    async fn new() -> Self {
        let (parts, log) = parts_with_log().await;
        Topics { log, broker: parts.broker.clone(), metrics: parts.metrics.clone(), parts }
    }

    /// Puts a reorg with this sequence into a topic.
    async fn put(&self, topic: &str, sequence: u64) {
        let payload = Event::Reorg(Reorg { sequence, disconnected: vec![], connected: vec![] }).encode();
        self.produce(topic, payload).await;
    }

    async fn produce(&self, topic: &str, payload: Vec<u8>) {
        let message = OutgoingMessage {
            topic: topic.into(),
            partition: Some(0),
            payload: payload.into(),
            ..OutgoingMessage::default()
        };
        self.broker.producer().await.unwrap().produce(message).await.unwrap();
    }

    async fn feed(&self, state: &ChainState, handled: u64) -> ChainFeed {
        ChainFeed::open(&self.parts, state, handled).await.unwrap()
    }

    /// Returns the sequences in the chain in their order; 0 for a message without a sequence.
    async fn chain(&self) -> Vec<u64> {
        let chain = TopicPartition { topic: "chain".into(), partition: 0 };
        let (_, end) = self.broker.watermarks(&chain).await.unwrap();
        let mut reader = self.broker.read(&chain, 0).await.unwrap();
        let mut sequences = Vec::new();
        while reader.position() < end {
            let messages = reader.next(IDLE).await.unwrap();
            sequences.extend(messages.iter().map(|message| sequence_of(message).unwrap_or(0)));
        }
        sequences
    }
}

async fn a_while() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Produces each message, and never acknowledges a batch to the chain.
struct Unacknowledged(Arc<dyn Producer>);

#[async_trait::async_trait]
impl Producer for Unacknowledged {
    async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
        self.0.produce(message).await
    }

    async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
        self.0.produce_all(messages).await?;
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn progress_counts_acknowledged_events_only() {
    let topics = Topics::new().await;
    for sequence in [1, 2] {
        topics.put("block-mined", sequence).await;
    }
    topics.put("reorgs", 4).await;
    topics.produce("reorgs", vec![1, 2, 3]).await;
    let parts =
        SequencerParts { producer: Arc::new(Unacknowledged(topics.parts.producer.clone())), ..topics.parts.clone() };
    for (parts, expected) in [(parts, (0, 0, 0)), (topics.parts.clone(), (2, 0, 2))] {
        let feed = ChainFeed::open(&parts, &ChainState::default(), 9).await.unwrap();
        let progress = feed.subscribe_progress();
        let feed = tokio::spawn(feed.run());
        a_while().await;
        let FeedProgress { block_mined, reorgs, sequence } = *progress.borrow();
        assert_eq!(
            (block_mined, reorgs, sequence),
            expected,
            "an event that waits for its sequence, and all after it, are not counted yet"
        );
        feed.abort();
    }
    assert_eq!(topics.metrics.dead_letters.of(DeadLetterClass::Decode).get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_logged_once_and_no_event_after_it_is_copied() {
    let (logged, _guard) = Logged::listen();
    let topics = Topics::new().await;
    let feed = tokio::spawn(topics.feed(&ChainState::default(), 0).await.run());
    topics.put("block-mined", 1).await;
    topics.put("block-mined", 4).await;
    topics.put("reorgs", 3).await;
    a_while().await;
    a_while().await;
    assert_eq!(topics.chain().await, [1]);
    assert_eq!(topics.metrics.chain_gap.get(), 1);
    let [line] = logged.gaps().try_into().expect("the gap is logged once");
    assert!(["missing=2", "block_mined=4", "reorgs=3"].iter().all(|word| line.contains(word)), "{line}");

    feed.abort();
}

#[tokio::test(start_paused = true)]
async fn a_missing_sequence_is_reported_only_after_a_grace() {
    let (logged, _guard) = Logged::listen();
    let topics = Topics::new().await;
    let feed = tokio::spawn(topics.feed(&ChainState::default(), 0).await.run());
    topics.put("block-mined", 2).await;
    tokio::time::sleep(GAP_GRACE / 2).await;
    assert_eq!((topics.metrics.chain_gap.get(), logged.gaps().len()), (0, 0), "the reorg may still be produced");
    tokio::time::sleep(GAP_GRACE).await;
    assert_eq!((topics.metrics.chain_gap.get(), logged.gaps().len()), (1, 1));
    let why = &topics.parts.health.ready().reasons["chain_fed"];
    assert_eq!(why, "sequence 1 is missing: in `block-mined` 2 is next, in `reorgs` nothing");
    topics.put("reorgs", 1).await;
    a_while().await;
    assert_eq!((topics.metrics.chain_gap.get(), topics.chain().await), (0, vec![1, 2]));
    assert_eq!(topics.parts.health.ready().reasons.get("chain_fed"), None);
    feed.abort();
}

#[tokio::test(start_paused = true)]
async fn events_copied_by_an_earlier_owner_are_not_copied_again() {
    let topics = Topics::new().await;
    for sequence in 1..=4 {
        topics.put(if sequence == 2 { "reorgs" } else { "block-mined" }, sequence).await;
    }
    // An earlier owner copied three events, one of them twice, with another message in between. The first event is
    // handled.
    for sequence in [1, 2, 2] {
        topics.put("chain", sequence).await;
    }
    topics.produce("chain", vec![1, 2, 3]).await;
    topics.put("chain", 3).await;
    let state = ChainState { sequence: 1, block_mined_next: 1, ..ChainState::default() };
    let feed = tokio::spawn(topics.feed(&state, 1).await.run());
    a_while().await;
    assert_eq!(topics.chain().await, [1, 2, 2, 0, 3, 4]);
    feed.abort();
}

#[tokio::test(start_paused = true)]
async fn events_that_reached_the_chain_out_of_sequence_are_copied_again() {
    let topics = Topics::new().await;
    for sequence in 1..=3 {
        topics.put("block-mined", sequence).await;
    }
    // The produce of 2 failed, that of 3 did not.
    topics.put("chain", 1).await;
    topics.put("chain", 3).await;
    let feed = tokio::spawn(topics.feed(&ChainState::default(), 0).await.run());
    a_while().await;
    assert_eq!(topics.chain().await, [1, 3, 2, 3]);
    feed.abort();
}

/// Builds a block; with `stored` the store has its record.
async fn block(topics: &Topics, n: u8, sequence: u64, stored: bool) -> Vec<u8> {
    let record = fixtures::block(u32::from(n), 1);
    if stored {
        let operation = fixtures::sequenced_at(1, Sequenced::PutBlock(record.clone()));
        let row = Row { key: Key::Block(record.block_id), operation };
        topics.parts.store.engine.apply(&[row]).await.remove(0).unwrap();
    }
    let block = Block {
        hash: record.hash,
        previous: [n - 1; 32],
        height: u32::from(n),
        block_id: u32::from(n),
        longest_chain: true,
        time: 0,
        coinbase: b"none",
        subtrees: vec![],
    };
    Event::BlockMined(BlockMined { sequence, block }).encode()
}

#[tokio::test(start_paused = true)]
async fn a_block_under_a_used_sequence_is_a_dead_letter_and_readiness_names_it() {
    let topics = Topics::new().await;
    let state = ChainState { sequence: 2, ..ChainState::default() };
    let feed = tokio::spawn(topics.feed(&state, 0).await.run());
    // A repeat of a handled event, a repeat of an event copied now, and one event of each kind that is no repeat.
    for (n, sequence, stored) in [(1, 1, true), (3, 3, false), (3, 3, false), (7, 3, false), (8, 2, false)] {
        let payload = block(&topics, n, sequence, stored).await;
        topics.produce("block-mined", payload).await;
    }
    a_while().await;
    assert_eq!(topics.chain().await, [3]);
    assert_eq!(topics.metrics.dead_letters.of(DeadLetterClass::Invalid).get(), 2);
    let why = topics.parts.health.ready().reasons["chain_fed"].clone();
    assert!(why.contains(&"08".repeat(32)) && why.contains("sequence 2") && why.contains("4 is next"), "{why}");
    let payload = block(&topics, 4, 4, false).await;
    topics.produce("block-mined", payload).await;
    a_while().await;
    assert_eq!(topics.chain().await, [3, 4]);
    assert_eq!(topics.parts.health.ready().reasons.get("chain_fed"), None);
    feed.abort();
}

/// A producer left a sequence out and produced it after others: among the messages that were read, and far after them.
/// The next owner of the chain finds the same place.
#[tokio::test(start_paused = true)]
async fn a_sequence_that_is_produced_late_is_found_in_its_topic() {
    for later in [2, 3 * BATCH as u64] {
        let topics = Topics::new().await;
        let late = [1, 3];
        let sequences = (2..=later).filter(|sequence| !late.contains(sequence));
        for sequence in sequences.chain(late).chain([later + 1, later + 2].into_iter().filter(|it| *it > 3)) {
            topics.put("block-mined", sequence).await;
        }
        let last = (later + 2).max(3);
        let expected: Vec<u64> = (1..=last).collect();
        for _ in 0..2 {
            let feed = topics.feed(&ChainState::default(), 0).await;
            let progress = feed.subscribe_progress();
            let feed = tokio::spawn(feed.run());
            a_while().await;
            assert_eq!(topics.chain().await, expected);
            assert_eq!((progress.borrow().block_mined, progress.borrow().sequence), (last, last));
            assert_eq!(topics.metrics.chain_gap.get(), 0);
            assert_eq!(topics.metrics.dead_letters.of(DeadLetterClass::Invalid).get(), 0);
            feed.abort();
        }
    }
}

/// Acknowledges one batch to the chain. The instance is killed before the second one is written.
struct OneBatch(Arc<dyn Producer>, AtomicBool);

#[async_trait::async_trait]
impl Producer for OneBatch {
    async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
        self.0.produce(message).await
    }

    async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
        if self.1.swap(true, Ordering::Relaxed) {
            return std::future::pending().await;
        }
        self.0.produce_all(messages).await
    }
}

/// Protects: an event that was produced late, behind events with later sequences, is handled before these are copied.
/// The next owner of the chain copies them: the committed place is not behind the late event.
#[tokio::test(start_paused = true)]
async fn a_late_event_moves_the_place_over_no_event_that_is_not_copied() {
    for (later, first_batch) in [(2, 3), (3 * BATCH as u64, BATCH)] {
        let topics = Topics::new().await;
        for sequence in (2..=later).chain([1]) {
            topics.put("block-mined", sequence).await;
        }
        topics.put("block-mined", later + 1).await;
        let mut feed = topics.feed(&ChainState::default(), 0).await;
        feed.parts.producer = Arc::new(OneBatch(topics.parts.producer.clone(), AtomicBool::new(false)));
        let feed = tokio::spawn(feed.run());
        a_while().await;
        feed.abort();

        let chain = TopicPartition { topic: "chain".into(), partition: 0 };
        let copies = topics.broker.read(&chain, 0).await.unwrap().next(IDLE).await.unwrap();
        assert!(copies.len() >= first_batch, "{}", copies.len());
        for handled in 1..=copies.len() {
            let mut state = ChainState { sequence: handled as u64, ..ChainState::default() };
            copies[..handled].iter().for_each(|copy| advance_handled(&mut state.block_mined_next, copy));
            // Later copies of this batch are lost with the instance: only the handled ones were written.
            let feed = topics.feed(&state, u64::MAX).await;
            assert_eq!(feed.copied.next_sequence(), handled as u64 + 1);
            let place = feed.block_mined.next_offset();
            let uncopied = (handled as u64 + 1..=later + 1).map(|sequence| match sequence {
                sequence if sequence == later + 1 => later,
                sequence => sequence - 2,
            });
            assert!(uncopied.min().is_none_or(|first| place <= first), "{handled} handled, the place is {place}");
        }
        let mut state = ChainState { sequence: copies.len() as u64, ..ChainState::default() };
        copies.iter().for_each(|copy| advance_handled(&mut state.block_mined_next, copy));
        let feed = tokio::spawn(topics.feed(&state, copies.len() as u64).await.run());
        a_while().await;
        assert_eq!(topics.chain().await, (1..=later + 1).collect::<Vec<_>>());
        feed.abort();
    }
}

/// Protects: events that were deleted before the feed read them are no dead end. A sequence that is missing is waited
/// for by name, and the producer produces the event again. A topic that has lost its end stays an error.
#[tokio::test(start_paused = true)]
async fn deleted_events_are_passed_over_and_waited_for_by_sequence() {
    let topics = Topics::new().await;
    for sequence in 1..=4 {
        topics.put("block-mined", sequence).await;
    }
    let at = TopicPartition { topic: "block-mined".into(), partition: 0 };
    topics.log.truncate(&at, 3).unwrap();
    let state = ChainState { sequence: 1, block_mined_next: 1, ..ChainState::default() };
    let feed = topics.feed(&state, 0).await;
    let progress = feed.subscribe_progress();
    let feed = tokio::spawn(feed.run());
    tokio::time::sleep(2 * GAP_GRACE).await;
    let why = topics.parts.health.ready().reasons.remove("chain_fed").expect("a sequence is missing");
    assert!(why.starts_with("sequence 2 is missing: in `block-mined` 4 is next"), "{why}");
    assert!(topics.chain().await.is_empty());

    for sequence in [2, 3] {
        topics.put("block-mined", sequence).await;
    }
    a_while().await;
    assert_eq!(topics.chain().await, [2, 3, 4]);
    assert_eq!((progress.borrow().block_mined, topics.metrics.chain_gap.get()), (6, 0));
    feed.abort();

    let lost_end = ChainState { sequence: 4, block_mined_next: 7, ..ChainState::default() };
    let error = ChainFeed::open(&topics.parts, &lost_end, 3).await.err().expect("the topic ends at 6");
    assert_eq!(error.kind, BrokerErrorKind::OutOfRange);
}

/// Messages that were deleted while the feed runs: it has read some of them, and comes to the others too late.
#[tokio::test(start_paused = true)]
async fn events_that_are_deleted_while_the_feed_runs_are_passed_over() {
    let topics = Topics::new().await;
    let last = 3 * BATCH as u64;
    for sequence in 2..=last {
        topics.put("block-mined", sequence).await;
    }
    let feed = topics.feed(&ChainState::default(), 0).await;
    let feed = tokio::spawn(feed.run());
    a_while().await;
    let at = TopicPartition { topic: "block-mined".into(), partition: 0 };
    topics.log.truncate(&at, last - 2).unwrap();
    topics.put("reorgs", 1).await;
    a_while().await;
    for sequence in 2..=last {
        topics.put("block-mined", sequence).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let copied = topics.chain().await;
    assert!(copied.iter().copied().eq(1..=last), "{} events, {:?} last", copied.len(), copied.last());
    feed.abort();
}

/// The search for a sequence has reached the end of its topic. The other topic brings the sequence, and a later one is
/// missing, which the search has passed.
#[tokio::test(start_paused = true)]
async fn a_search_for_a_later_sequence_begins_anew() {
    let topics = Topics::new().await;
    let late = 2 + BATCH as u64;
    let last = late + 6 * BATCH as u64;
    for sequence in (2..late).chain(late + 1..=last).chain([late]) {
        topics.put("block-mined", sequence).await;
    }
    let feed = tokio::spawn(topics.feed(&ChainState::default(), 0).await.run());
    a_while().await;
    assert!(topics.chain().await.is_empty());
    topics.put("reorgs", 1).await;
    a_while().await;
    assert_eq!(topics.chain().await, (1..=last).collect::<Vec<_>>());
    feed.abort();
}

/// The search has found the next sequence in one topic, and the other topic brings the sequence before the found
/// message is copied. Protects: the found message is not copied in the place of a later sequence.
#[tokio::test(start_paused = true)]
async fn a_found_message_counts_for_its_own_sequence() {
    let topics = Topics::new().await;
    let missing = 2 + BATCH as u64;
    for sequence in 2..missing {
        topics.put("reorgs", sequence).await;
    }
    let mut feed = topics.feed(&ChainState::default(), 0).await;
    feed.read_heads().await.unwrap();
    topics.put("reorgs", 1).await;
    feed.search_ahead().await.unwrap();
    assert!(feed.reorgs.found.is_some());
    topics.put("block-mined", 1).await;
    let feed = tokio::spawn(feed.run());
    a_while().await;
    assert_eq!(topics.chain().await, (1..missing).collect::<Vec<_>>(), "{missing} is missing");
    topics.put("block-mined", missing).await;
    a_while().await;
    assert_eq!(topics.chain().await, (1..=missing).collect::<Vec<_>>());
    feed.abort();
}

#[test]
fn a_feed_at_a_gap_yields_to_other_tasks() {
    // Real threads: under a paused clock a task that never yields would hang the test instead of failing it.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let ended = runtime.block_on(async {
        let topics = Topics::new().await;
        for sequence in 2..2 + 2 * BATCH as u64 + 40 {
            topics.put(["block-mined", "reorgs"][sequence as usize % 2], sequence).await;
        }
        let feeding = tokio::spawn(topics.feed(&ChainState::default(), 0).await.run());
        tokio::time::sleep(Duration::from_millis(300)).await;
        feeding.abort();
        tokio::time::timeout(Duration::from_secs(10), feeding).await
    });
    runtime.shutdown_background();
    assert!(ended.is_ok_and(|ended| ended.is_err_and(|error| error.is_cancelled())), "the feed cannot be stopped");
}
