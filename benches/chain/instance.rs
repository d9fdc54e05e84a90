//! A whole instance over the log in memory.

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use object_store::local::LocalFileSystem;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{BlobOptions, objects::Objects},
    broker::{
        Broker, NewTopic, OutgoingMessage, Producer, TopicPartition,
        memory::{MemoryBroker, MemorySettings},
    },
    clock::Clock,
    config::Config,
    embed::wiring,
    engine::RecordEngine,
    ingest::pipeline::PipelineReport,
    instance::{self, InstanceError, InstanceParts},
    status::Health,
    store::{
        StateStore,
        create::{CreatorIdentity, ProcessVisibility},
    },
    telemetry::{Completion, Metrics},
};

pub const TXS: &str = "utxo.validated-txs";
pub const BLOCKS: &str = "utxo.block-mined";
pub const REORGS: &str = "utxo.reorgs";
const CHAIN: &str = "utxo.chain";
const DECISIONS: &str = "utxo.decisions";
const OUTCOMES: &str = "utxo.outcomes";
pub const PARTITIONS: i32 = 4;

/// An instance with the settings of `deploy/utxo-store.toml`, except pruning.
pub struct Instance {
    broker: MemoryBroker,
    producer: Arc<dyn Producer>,
    pub store: StateStore,
    pub metrics: Arc<Metrics>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<PipelineReport, InstanceError>>,
}

impl Instance {
    /// Starts an instance on an empty engine; blocks may refer to files in `objects`. The topic of transactions has so
    /// many partitions.
    pub async fn start(engine: Arc<dyn RecordEngine>, objects: &Path, partitions: i32) -> Self {
        let broker = MemoryBroker::new(MemorySettings::new(Clock::System));
        let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: Vec::new() };
        let singles = [BLOCKS, REORGS, CHAIN, DECISIONS].map(|name| new(name, 1));
        let many = [TXS, OUTCOMES, "utxo.dead-letters"].map(|name| new(name, partitions));
        broker.create_topics(&[&singles[..], &many].concat()).await.expect("they are new");
        let files = LocalFileSystem::new_with_prefix(objects).expect("the directory is there");
        let objects = Objects::new(Arc::new(files), &BlobOptions::default());
        let store = StateStore::new(engine, wiring::store_settings(&Config::default())).with_objects(Some(objects));
        Self::join(broker, store, 1).await
    }

    /// Starts another instance on the log and the store of this one.
    pub async fn start_another(&self, number: u64) -> Self {
        Self::join(self.broker.clone(), self.store.clone(), number).await
    }

    async fn join(broker: MemoryBroker, store: StateStore, number: u64) -> Self {
        let mut settings = wiring::instance_settings(&Config::default());
        settings.sequencer.prune = None;
        let (clock, metrics) = (Clock::System, Arc::new(Metrics::new()));
        let parts = InstanceParts {
            broker: Arc::new(broker.clone()),
            store: store.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            health: Arc::new(Health::new(clock, Duration::from_secs(600))),
            earlier_halts: Arc::default(),
            store_id: [7; 16],
            identity: CreatorIdentity {
                owner: number,
                process_id: 1,
                hostname: "here".to_owned(),
                process_visibility: ProcessVisibility::None,
            },
        };
        let health = parts.health.clone();
        let shutdown = CancellationToken::new();
        let running = instance::run(settings, parts, shutdown.clone());
        let task = tokio::spawn(async move { running.await.inspect_err(|error| eprintln!("the instance: {error}")) });
        let producer = broker.producer().await.expect("the memory broker has one");
        let instance = Instance { broker, producer, store, metrics, shutdown, task };
        // The instance must own the store first: records in a store without a meta record would belong to another
        // store, and over nodes that may lose writes the creation of the meta record takes longer than a case.
        instance.wait_until(async || health.ready().ok).await;
        instance
    }

    pub async fn publish(&self, topic: &str, messages: Vec<(Vec<u8>, Vec<u8>)>) {
        let produce = |(key, payload): (Vec<u8>, Vec<u8>)| OutgoingMessage {
            topic: topic.into(),
            key: key.into(),
            payload: payload.into(),
            ..OutgoingMessage::default()
        };
        self.producer.produce_all(messages.into_iter().map(produce).collect()).await.expect("the log is in memory");
    }

    /// Waits until `count` transactions are completed.
    pub async fn wait_until_completed(&self, completion: Completion, count: u64) {
        self.wait_until(async || self.metrics.completed.of(completion).get() >= count).await;
    }

    /// Waits until the chain has `length` events and all are handled.
    pub async fn wait_until_handled(&self, length: u64) {
        let chain = TopicPartition { topic: CHAIN.into(), partition: 0 };
        self.wait_until(async || {
            let (_, end) = self.broker.watermarks(&chain).await.expect("the log is in memory");
            end >= length && self.metrics.chain_offset.get() >= end as i64
        })
        .await;
    }

    pub async fn wait_until<F: Future<Output = bool>>(&self, mut condition: impl FnMut() -> F) {
        while !condition().await {
            assert!(!self.task.is_finished(), "the instance has ended");
            assert_eq!(self.metrics.chain_halted.get(), 0, "the chain is halted");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Drops published outcomes from the log, from now until the task is aborted. Every instance has read them by then.
    pub fn drop_outcomes(&self) -> JoinHandle<()> {
        let broker = self.broker.clone();
        tokio::spawn(async move {
            loop {
                for partition in 0..PARTITIONS {
                    let outcomes = TopicPartition { topic: OUTCOMES.into(), partition };
                    let (_, end) = broker.watermarks(&outcomes).await.expect("the log is in memory");
                    broker.truncate(&outcomes, end.saturating_sub(1_000)).expect("the topic is there");
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
    }

    /// Bytes of all decisions in the log.
    pub async fn decision_bytes(&self) -> usize {
        let decisions = TopicPartition { topic: DECISIONS.into(), partition: 0 };
        let (start, end) = self.broker.watermarks(&decisions).await.expect("the log is in memory");
        let mut reader = self.broker.read(&decisions, start).await.expect("the topic is there");
        let mut bytes = 0;
        while reader.position() < end {
            let messages = reader.next(Duration::from_millis(100)).await.expect("the log is in memory");
            bytes += messages.iter().map(|message| message.bytes()).sum::<usize>();
        }
        bytes
    }

    pub async fn chain_length(&self) -> u64 {
        let chain = TopicPartition { topic: CHAIN.into(), partition: 0 };
        self.broker.watermarks(&chain).await.expect("the log is in memory").1
    }

    /// Stops the instance, and leaves the store to others.
    pub async fn leave(self) {
        self.shutdown.cancel();
        self.task.await.expect("it does not panic").expect("it stops in order");
    }

    pub async fn stop(self) {
        let engine = self.store.engine.clone();
        self.leave().await;
        engine.close().await.expect("closed");
    }
}
