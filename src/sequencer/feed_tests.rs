//! The feed on a log in memory.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use super::*;
use crate::{
    broker::{Delivered, Producer},
    engine::{Row, conformance::fixtures},
    event::{Block, BlockMined, Reorg},
    record::Sequenced,
    sequencer::tests::parts,
};

#[test]
fn merges_by_sequence_and_waits_for_what_is_missing() {
    assert_eq!(choose(5, Some(5), None), Choice::Feed(Source::BlockMined));
    assert_eq!(choose(5, Some(6), Some(5)), Choice::Feed(Source::Reorgs));
    assert_eq!(choose(5, Some(4), Some(5)), Choice::Skip(Source::BlockMined));
    assert_eq!(choose(5, Some(6), Some(3)), Choice::Skip(Source::Reorgs));
    assert_eq!(choose(5, Some(6), None), Choice::Wait);
    assert_eq!(choose(5, None, None), Choice::Wait);
    assert_eq!(choose(5, Some(6), Some(7)), Choice::Gap);
}

/// What was logged on this thread.
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

    /// The lines about a gap.
    fn gaps(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains("a sequence number is missing")).map(str::to_owned).collect()
    }
}

/// The topics, and what a feed of them needs.
struct Topics {
    broker: Arc<dyn Broker>,
    parts: SequencerParts,
    metrics: Arc<Metrics>,
}

impl Topics {
    async fn new() -> Self {
        let parts = parts().await;
        Topics { broker: parts.broker.clone(), metrics: parts.metrics.clone(), parts }
    }

    /// Puts an event with this sequence into a topic.
    async fn put(&self, topic: &str, sequence: u64) {
        let payload = Event::Reorg(Reorg { sequence, disconnected: vec![], connected: vec![] }).encode();
        self.produce(topic, payload).await;
    }

    async fn produce(&self, topic: &str, payload: Vec<u8>) {
        let message =
            Produce { topic: topic.into(), partition: Some(0), payload: payload.into(), ..Produce::default() };
        self.broker.producer().await.unwrap().produce(message).await.unwrap();
    }

    async fn feed(&self, state: &ChainState, handled: u64) -> Feed {
        Feed::open(&self.parts, state, handled).await.unwrap()
    }

    /// The sequences in the chain, in their order; 0 for what has none.
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

/// Takes everything to its topics, and acknowledges nothing that goes to the chain.
struct Unacknowledged(Arc<dyn Producer>);

#[async_trait::async_trait]
impl Producer for Unacknowledged {
    async fn produce(&self, message: Produce) -> Result<Delivered, BrokerError> {
        self.0.produce(message).await
    }

    async fn produce_all(&self, messages: Vec<Produce>) -> Result<Vec<Delivered>, BrokerError> {
        self.0.produce_all(messages).await?;
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_acknowledged_is_not_passed() {
    let topics = Topics::new().await;
    for sequence in [1, 2] {
        topics.put("block-mined", sequence).await;
    }
    topics.put("reorgs", 4).await;
    topics.produce("reorgs", vec![1, 2, 3]).await;
    let parts =
        SequencerParts { producer: Arc::new(Unacknowledged(topics.parts.producer.clone())), ..topics.parts.clone() };
    for (parts, expected) in [(parts, (0, 0, 0)), (topics.parts.clone(), (2, 0, 2))] {
        let feed = Feed::open(&parts, &ChainState::default(), 9).await.unwrap();
        let passed = feed.passed();
        let feed = tokio::spawn(feed.run());
        a_while().await;
        let Passed { block_mined, reorgs, sequence } = *passed.borrow();
        assert_eq!(
            (block_mined, reorgs, sequence),
            expected,
            "what waits for its sequence, and what is behind it, has no turn yet"
        );
        feed.abort();
    }
    assert_eq!(topics.metrics.dead_letters.of(DeadLetterClass::Decode).get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_named_once_and_nothing_behind_it_is_fed() {
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
    let [line] = logged.gaps().try_into().expect("it is told once");
    assert!(["missing=2", "block_mined=4", "reorgs=3"].iter().all(|word| line.contains(word)), "{line}");

    feed.abort();
}

#[tokio::test(start_paused = true)]
async fn what_may_still_be_on_its_way_is_named_only_after_a_grace() {
    let (logged, _guard) = Logged::listen();
    let topics = Topics::new().await;
    let feed = tokio::spawn(topics.feed(&ChainState::default(), 0).await.run());
    topics.put("block-mined", 2).await;
    tokio::time::sleep(GAP_GRACE / 2).await;
    assert_eq!((topics.metrics.chain_gap.get(), logged.gaps().len()), (0, 0), "the reorg may be on its way");
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
async fn what_an_earlier_holder_has_fed_is_not_fed_again() {
    let topics = Topics::new().await;
    for sequence in 1..=4 {
        topics.put(if sequence == 2 { "reorgs" } else { "block-mined" }, sequence).await;
    }
    // An earlier holder fed three, one of them twice, with something else in between; the first is handled.
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
async fn what_got_into_the_chain_out_of_sequence_is_fed_again() {
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

/// A block with a record in the store, where it is `stored`.
async fn block(topics: &Topics, n: u8, sequence: u64, stored: bool) -> Vec<u8> {
    let record = fixtures::block(u32::from(n), 1);
    if stored {
        let operation = fixtures::at(1, Sequenced::PutBlock(record.clone()));
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
async fn a_block_under_a_sequence_that_another_had_is_a_dead_letter_and_readiness_names_it() {
    let topics = Topics::new().await;
    let state = ChainState { sequence: 2, ..ChainState::default() };
    let feed = tokio::spawn(topics.feed(&state, 0).await.run());
    // One repeat of what was handled before, one of what is fed now, and one of each that is none.
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

#[test]
fn behind_a_gap_it_lets_others_have_their_turn() {
    // Real threads: under a paused clock who never waits would hang the test instead of failing it.
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
    assert!(ended.is_ok_and(|ended| ended.is_err_and(|error| error.is_cancelled())), "it cannot be stopped");
}
