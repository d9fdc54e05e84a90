//! Tests of the sequencer on a log and a store in memory.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use tokio_util::sync::CancellationToken;

use super::{member::BOUNDS, *};
use crate::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, Consumer, ConsumerEvent, NewTopic,
        OutgoingMessage, TopicPartition,
        identity::TopicGuard,
        memory::{MemoryBroker, MemorySettings},
    },
    clock::Clock,
    engine::{
        conformance::RULES,
        fault::{EngineFaults, FaultEngine},
        memory::MemoryEngine,
    },
    event::{Block, BlockMined, Event, Reorg, Subtree, SubtreeTransactions},
    group::{notify::TxNotifier, outcomes::OutcomeTopic},
    status::Health,
    store::{
        create::{Creator, CreatorIdentity, ProcessVisibility},
        ownership::UnverifiedStore,
        restart_detector::RestartDetector,
        testing,
    },
    telemetry::Metrics,
};

fn topics() -> SequencerTopics {
    SequencerTopics {
        block_mined: "block-mined".into(),
        reorgs: "reorgs".into(),
        chain: "chain".into(),
        decisions: "decisions".into(),
        outcomes: "outcomes".into(),
        dead_letters: "dead-letters".into(),
    }
}

pub(super) async fn parts() -> SequencerParts {
    parts_with_log().await.0
}

/// Returns the parts, and the log that a test changes as retention or an operator does.
pub(super) async fn parts_with_log() -> (SequencerParts, MemoryBroker) {
    let clock = Clock::simulated(1_000);
    let broker = MemoryBroker::new(MemorySettings::new(clock.clone()));
    let new = |name: &str| NewTopic { name: name.into(), partitions: 1, config: vec![] };
    let names = ["block-mined", "reorgs", "chain", "decisions", "outcomes", "dead-letters"];
    broker.create_topics(&names.map(new)).await.unwrap();
    let store = testing::store(100);
    let hostname = "here".to_owned();
    let process_visibility = ProcessVisibility::None;
    let identity = CreatorIdentity { owner: 1, process_id: 1, hostname, process_visibility };
    let parts = SequencerParts {
        creator: Creator::new(store.clone(), clock.clone(), identity),
        nodes: RestartDetector::new(store.engine.clone(), Duration::ZERO),
        guard: TopicGuard::unguarded(),
        ownership: Arc::new(UnverifiedStore),
        tx_notifier: TxNotifier::default(),
        verdicts: Arc::default(),
        restored: Arc::default(),
        monitor: None,
        speculation: None,
        record_cache: None,
        producer: broker.producer().await.unwrap(),
        broker: Arc::new(broker.clone()),
        store,
        topics: topics(),
        outcomes: OutcomeTopic { name: "outcomes".into(), partitions: 1 },
        validated: ValidatedSource { topic: "txs".into(), group: "g".into(), grace: Duration::from_secs(1) },
        settings: SequencerSettings {
            prune: None,
            recovery: None,
            block_wait: Duration::from_secs(10),
            descendants_per_decision: 2,
            verdict_memory: VerdictMemory { chunk_bytes: 0, settled_slots: 1 },
            window_events: 256,
            commit_interval: Duration::from_millis(100),
            mined_outcomes: true,
        },
        metrics: Arc::new(Metrics::new()),
        health: Arc::new(Health::new(clock.clone(), Duration::from_secs(600))),
        clock,
    };
    (parts, broker)
}

/// Produces a block that waits for `listed`, and `repeats` repeated reorgs after it.
async fn fill(parts: &SequencerParts, listed: &Bytes, repeats: usize) {
    let coinbase = testing::coinbase(5_000);
    let txid = testing::txid(listed);
    let block = Block {
        block_id: 1,
        hash: [1; 32],
        previous: [0; 32],
        height: 100,
        time: 5,
        longest_chain: true,
        coinbase: &coinbase,
        subtrees: vec![Subtree { count: 1, transactions: SubtreeTransactions::Inline(&txid.0) }],
    };
    let block = Event::BlockMined(BlockMined { sequence: 1, block }).encode();
    let repeat = Event::Reorg(Reorg { sequence: 1, disconnected: vec![], connected: vec![] }).encode();
    let payloads = std::iter::once(block).chain(std::iter::repeat_n(repeat, repeats));
    let message = |payload: Vec<u8>| OutgoingMessage {
        topic: "chain".into(),
        partition: Some(0),
        payload: payload.into(),
        ..OutgoingMessage::default()
    };
    parts.producer.produce_all(payloads.map(message).collect()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiting_block_bounds_the_events_that_are_read_ahead() {
    let parts = parts().await;
    parts.store.plant(testing::seeded(1, 2)).await;
    let listed = testing::transaction(&[(testing::outpoint(crate::tx::Txid([1; 32]), 0), 1_000)], &[600]);
    let repeats = 2 * BOUNDS.span as usize;
    fill(&parts, &listed, repeats).await;
    let consumer = parts.broker.subscribe("g.chain", &["chain".to_owned()]).await.unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(Sequencer::new(parts.clone(), ChainMode::Live, consumer).run(shutdown.clone()));
    let chain = TopicPartition { topic: "chain".into(), partition: 0 };
    let shown = parts.metrics.partition(&chain);

    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(shown.paused.get(), 1);
    let batch = MemorySettings::new(parts.clock.clone()).batch_messages as i64;
    let read = shown.unfinished_events.get();
    assert!((BOUNDS.span as i64..=BOUNDS.span as i64 + batch).contains(&read), "{read}");

    parts.store.accept(&listed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!((shown.paused.get(), shown.unfinished_events.get()), (0, 0));
    let committed = parts.broker.committed("g.chain", &[chain]).await.unwrap();
    assert_eq!(committed[0].as_ref().map(|committed| committed.offset), Some(repeats as u64 + 1));
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_nodes_that_do_not_answer() {
    let parts = parts().await;
    let memory = Arc::new(MemoryEngine::with_loss_window(RULES, parts.clock.clone(), Duration::from_secs(1)));
    let engine = Arc::new(FaultEngine::with_restarts(memory, parts.clock.clone(), 1));
    engine.set(EngineFaults { failed_read: 1.0, ..EngineFaults::default() });
    let parts = SequencerParts { nodes: RestartDetector::new(engine, Duration::from_secs(5)), ..parts };
    let consumer = parts.broker.subscribe("g.chain", &["chain".to_owned()]).await.unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(Sequencer::new(parts.clone(), ChainMode::Live, consumer).run(shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let reasons = format!("{:?}", parts.health.ready().reasons);
    assert!(reasons.contains("the nodes of the store"), "{reasons}");
    shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(5), running).await.unwrap().unwrap().unwrap();
}

/// A consumer whose partition is being revoked once it is paused, before the revocation is polled.
struct RevokedConsumer(Box<dyn Consumer>, bool);

#[async_trait::async_trait]
impl Consumer for RevokedConsumer {
    async fn poll(&mut self) -> Result<ConsumerEvent, BrokerError> {
        self.0.poll().await
    }

    fn commit(&mut self, offsets: &[(TopicPartition, CommittedOffset)]) -> CommitFuture {
        self.0.commit(offsets)
    }

    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        self.0.seek(partition, offset).await
    }

    fn pause(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        if self.1 {
            return Err(BrokerError::new(BrokerErrorKind::NotAssigned, "pause", "the partition is being revoked"));
        }
        self.1 = true;
        self.0.pause(partition)
    }

    fn resume(&mut self, _: &TopicPartition) -> Result<(), BrokerError> {
        Err(BrokerError::new(BrokerErrorKind::NotAssigned, "resume", "the partition is being revoked"))
    }

    fn finish_revocation(&mut self) {
        self.0.finish_revocation();
    }

    async fn close(&mut self) -> Result<(), BrokerError> {
        self.0.close().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_pause_during_a_revocation_does_not_end_the_sequencer() {
    let parts = parts().await;
    parts.store.plant(testing::seeded(1, 2)).await;
    let listed = testing::transaction(&[(testing::outpoint(crate::tx::Txid([1; 32]), 0), 1_000)], &[600]);
    fill(&parts, &listed, 2 * BOUNDS.span as usize).await;
    let consumer = parts.broker.subscribe("g.chain", &["chain".to_owned()]).await.unwrap();
    let shutdown = CancellationToken::new();
    let sequencer = Sequencer::new(parts.clone(), ChainMode::Live, Box::new(RevokedConsumer(consumer, false)));
    let running = tokio::spawn(sequencer.run(shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    parts.store.accept(&listed).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!running.is_finished(), "the next poll reports the revocation");
    shutdown.cancel();
    running.await.unwrap().unwrap();
}
