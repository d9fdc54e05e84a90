//! The measured pipeline, wired as in the program, with the log and the engine of a case.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    broker::{
        Broker, BrokerError, Consumer, Message, NewTopic,
        identity::TopicGuard,
        memory::{MemoryBroker, MemorySettings},
    },
    clock::Clock,
    config::Config,
    embed::wiring,
    engine::{RecordEngine, Row},
    group::{
        missing_parent::{ChainProgress, ChainView},
        outcomes::OutcomeTopic,
    },
    ingest::{
        pipeline::{Pipeline, PipelineError, PipelineReport, PipelineServices, PipelineSettings},
        publish::Publisher,
    },
    prepare::{PrepareSettings, PreparedEvent, prepare},
    record::{Key, Operation, Page, Rules, build::InlineBodies},
    replay::Modes,
    status::Health,
    store::{
        StateStore,
        create::{Creator, CreatorIdentity, ProcessVisibility},
        ownership::UnverifiedStore,
        restart_detector::RestartDetector,
    },
    telemetry::{Completion, Metrics},
    tx::Network,
};

use crate::{
    feed::Feed,
    generator::Generator,
    measure::{self, Cpu, env_number},
};

pub const RULES: Rules = Rules::main(288);
/// Messages per poll, as librdkafka returns them.
pub const POLLED: usize = 500;
pub const PREPARE: PrepareSettings =
    PrepareSettings { network: Network::Main, utxo_batch_size: 20_000, inline: InlineBodies::All };
const CHAIN: &str = "utxo.chain";
const DEAD_LETTERS: &str = "utxo.dead-letters";
pub const OUTCOMES: &str = "utxo.outcomes";

/// Returns the defaults of the configuration (`deploy/utxo-store.toml`), changed by the `MACRO_…` variables.
pub fn settings() -> PipelineSettings {
    let mut settings = wiring::instance_settings(&Config::default()).pipeline;
    let dispatch = &mut settings.dispatch;
    dispatch.batch_size = env_number("MACRO_BATCH", dispatch.batch_size as u64) as usize;
    settings.max_active = env_number("MACRO_MAX_ACTIVE", settings.max_active as u64) as usize;
    settings.bounds.bytes = env_number("MACRO_PARKED_BYTES", settings.bounds.bytes);
    settings.live_outcomes = settings.live_outcomes.filter(|_| env_number("MACRO_LIVE_OUTCOMES", 1) > 0);
    settings.bytes_in_all = settings.bytes_in_all.max(settings.bounds.bytes);
    settings
}

/// Source of the messages, and broker for contests and dead letters.
pub struct Log {
    pub broker: Arc<dyn Broker>,
    pub consumer: Box<dyn Consumer>,
}

impl Log {
    /// Creates a log that reads generated messages and publishes into memory.
    pub async fn of_feed(feed: Feed) -> Self {
        let broker = memory_broker(&[CHAIN, DEAD_LETTERS, OUTCOMES]).await;
        Log { broker: Arc::new(broker), consumer: Box::new(feed) }
    }
}

/// Returns a log in memory with these topics, of one partition each.
pub async fn memory_broker(topics: &[&str]) -> MemoryBroker {
    let broker = MemoryBroker::new(MemorySettings::new(Clock::System));
    let new = |name: &&str| NewTopic { name: (*name).into(), partitions: 1, config: Vec::new() };
    broker.create_topics(&topics.iter().map(new).collect::<Vec<_>>()).await.expect("they are new");
    broker
}

/// A running pipeline on the runtime's workers.
pub struct Running {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<PipelineReport, PipelineError>>,
}

impl Running {
    pub async fn start(settings: PipelineSettings, log: Log, engine: Arc<dyn RecordEngine>) -> Self {
        let metrics = Arc::new(Metrics::new());
        let parts = parts(&settings, log.broker, engine, metrics.clone()).await;
        let health = parts.health.clone();
        let pipeline = Pipeline::new(settings, parts, log.consumer, None);
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(pipeline.run(shutdown.clone()));
        Running { metrics, health, shutdown, task }
    }

    /// Returns the number of partitions that are assigned.
    pub fn partitions(&self) -> usize {
        let page = serde_json::to_value(self.health.status_registry().page(&self.health)).expect("the page is JSON");
        page["pipeline"]["partitions"].as_array().map_or(0, Vec::len)
    }

    /// Waits until `partitions` partitions are assigned.
    pub async fn wait_until_assigned(&self, partitions: usize) {
        self.wait_until(async || self.partitions() >= partitions).await;
    }

    pub async fn wait_until_completed(&self, transactions: u64) {
        self.wait_until(async || self.completed() >= transactions).await;
    }

    pub fn completed(&self) -> u64 {
        self.metrics.completed.of(Completion::Live).get()
    }

    /// Waits for a condition; an ended pipeline reports its error when it is stopped.
    async fn wait_until<F: Future<Output = bool>>(&self, mut condition: impl FnMut() -> F) {
        while !condition().await && !self.task.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub async fn stop(self) -> PipelineReport {
        self.shutdown.cancel();
        self.task.await.expect("the pipeline panicked").expect("the pipeline runs to its end")
    }

    /// Stops at once, with transactions in flight.
    pub fn abort(self) {
        self.task.abort();
    }
}

/// Measurement from the assignment to the last completion, without the transactions of the warm-up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measurement {
    pub transactions: u64,
    pub seconds: f64,
    pub user_seconds: f64,
    pub system_seconds: f64,
    /// Peak memory of the process, in bytes.
    pub peak_memory: u64,
    /// Memory at the start, in bytes: messages generated ahead, and parents in the store.
    pub memory_before: u64,
}

/// A running clock with the figures at its start.
pub struct Stopwatch {
    started: Instant,
    cpu: Cpu,
    memory_before: u64,
}

impl Stopwatch {
    pub fn start() -> Self {
        measure::reset_peak();
        Stopwatch { memory_before: measure::resident_memory(), started: Instant::now(), cpu: Cpu::now() }
    }

    /// Restarts the clock after the warm-up; memory counts from the first start.
    pub fn warmed_up(self) -> Self {
        Stopwatch { started: Instant::now(), cpu: Cpu::now(), ..self }
    }

    pub fn stop(self, transactions: u64) -> Measurement {
        let (seconds, (user_seconds, system_seconds)) = (self.started.elapsed().as_secs_f64(), Cpu::since(self.cpu));
        let peak_memory = measure::peak_memory();
        Measurement {
            transactions,
            seconds,
            user_seconds,
            system_seconds,
            peak_memory,
            memory_before: self.memory_before,
        }
    }
}

/// Runs until every transaction is completed. The clock starts after joining the group and completing the first
/// `warm_up` transactions, and stops when as many are left, so that equally many are in flight at both times.
pub async fn run_to_end(
    settings: PipelineSettings,
    log: Log,
    engine: Arc<dyn RecordEngine>,
    transactions: u64,
    warm_up: u64,
) -> Measurement {
    let partitions = settings.partitions.map_or(1, |count| count as usize);
    let running = Running::start(settings, log, engine).await;
    running.wait_until_assigned(partitions).await;
    let mut stopwatch = Stopwatch::start();
    let mut before = 0;
    if warm_up > 0 {
        running.wait_until_completed(warm_up).await;
        stopwatch = stopwatch.warmed_up();
        before = running.completed();
    }
    running.wait_until_completed(transactions - warm_up).await;
    let measurement = stopwatch.stop(running.completed() - before);
    running.wait_until_completed(transactions).await;
    let completed = running.completed();
    let report = running.stop().await;
    assert_eq!(report.completed, transactions, "all are completed, once");
    assert_eq!((completed, report.contests, report.dead_letters), (transactions, 0, 0), "all are live");
    measurement
}

async fn parts(
    settings: &PipelineSettings,
    broker: Arc<dyn Broker>,
    engine: Arc<dyn RecordEngine>,
    metrics: Arc<Metrics>,
) -> PipelineServices {
    let store = StateStore::new(engine.clone(), wiring::store_settings(&Config::default()));
    let clock = Clock::System;
    let partitions = broker.partitions(OUTCOMES).await.expect("the log answers").expect("the topic is there");
    let publisher = Publisher {
        producer: broker.producer().await.expect("the log has one"),
        source_topic: settings.topic.clone(),
        chain_topic: CHAIN.into(),
        dead_letter_topic: DEAD_LETTERS.into(),
        outcomes: OutcomeTopic { name: OUTCOMES.into(), partitions },
        retry_pause: store.settings.retry_pause,
        metrics: metrics.clone(),
    };
    let identity = CreatorIdentity {
        owner: 1,
        process_id: 1,
        hostname: "here".to_owned(),
        process_visibility: ProcessVisibility::None,
    };
    PipelineServices {
        creator: Creator::new(store, clock.clone(), identity),
        earlier_halts: Arc::default(),
        broker,
        nodes: RestartDetector::new(engine, Duration::ZERO),
        guard: TopicGuard::unguarded(),
        whole: Arc::new(UnverifiedStore),
        publisher,
        chain: Arc::new(ChainAtEnd),
        flag_grace_start: Arc::default(),
        live_grace_start: Arc::default(),
        modes: Modes::Live,
        clock: clock.clone(),
        metrics,
        health: Arc::new(Health::new(clock, Duration::from_secs(600))),
    }
}

struct ChainAtEnd;

#[async_trait]
impl ChainProgress for ChainAtEnd {
    async fn view(&self) -> Result<ChainView, BrokerError> {
        Ok(ChainView::AtEnd)
    }
}

/// Creates the parents from before the run in the store.
pub async fn fill(generator: &Generator, engine: &dyn RecordEngine) {
    for messages in generator.parents_from_before() {
        engine.apply(&creates(&messages)).await.into_iter().for_each(|result| drop(result.expect("created")));
    }
}

fn creates(messages: &[Message]) -> Vec<Row> {
    let row = |page: Arc<Page>| Row { key: Key::master(page.txid), operation: Operation::Create(page) };
    messages.iter().map(page_of).map(row).collect()
}

/// Returns the master that the transaction in a message creates.
pub fn page_of(message: &Message) -> Arc<Page> {
    match prepare(&PREPARE, message) {
        Ok(PreparedEvent::Validated(tx)) => tx.page.clone(),
        other => panic!("the generator makes valid transactions only: {other:?}"),
    }
}

/// Creates a directory on the disk of the build, removed when dropped.
pub fn scratch_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the target directory can be written to")
}
