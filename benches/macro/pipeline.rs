//! The pipeline that is measured, wired as the program does it, over the log and the engine of a case.

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
    cli::wiring,
    clock::Clock,
    config::Config,
    engine::{RecordEngine, Row},
    group::proof::{ChainProgress, ChainView},
    ingest::{
        pipeline::{Pipeline, PipelineError, PipelineParts, PipelineReport, PipelineSettings},
        publish::Publisher,
    },
    prepare::{PrepareSettings, Prepared, prepare},
    record::{Key, Operation, Page, Rules, build::Inline},
    replay::Modes,
    status::Health,
    store::{
        Store,
        create::{Creator, Identity, Processes},
        nodes::Nodes,
        whole::Unaccounted,
    },
    telemetry::{Completion, Metrics, Rebalance},
    tx::Network,
};

use crate::{
    feed::Feed,
    generator::Generator,
    measure::{self, Cpu, size},
};

pub const RULES: Rules = Rules::main(288);
/// Messages a poll, as librdkafka hands them over.
pub const POLLED: usize = 500;
pub const PREPARE: PrepareSettings =
    PrepareSettings { network: Network::Main, utxo_batch_size: 20_000, inline: Inline::All };
const CHAIN: &str = "utxo.chain";
const DEAD_LETTERS: &str = "utxo.dead-letters";

/// The defaults of the configuration (`deploy/utxo-store.toml`), but for what `MACRO_…` says.
pub fn settings() -> PipelineSettings {
    let mut settings = wiring::instance(&Config::default()).pipeline;
    let dispatch = &mut settings.dispatch;
    dispatch.batch_size = size("MACRO_BATCH", dispatch.batch_size as u64) as usize;
    settings.max_active = size("MACRO_MAX_ACTIVE", settings.max_active as u64) as usize;
    settings.bounds.bytes = size("MACRO_PARKED_BYTES", settings.bounds.bytes);
    settings.bytes_in_all = settings.bytes_in_all.max(settings.bounds.bytes);
    settings
}

/// What is read, and where contests and dead letters would go.
pub struct Log {
    pub broker: Arc<dyn Broker>,
    pub consumer: Box<dyn Consumer>,
}

impl Log {
    /// Reads what a generator makes; would publish into memory.
    pub async fn of_feed(feed: Feed) -> Self {
        let broker = memory_broker(&[CHAIN, DEAD_LETTERS]).await;
        Log { broker: Arc::new(broker), consumer: Box::new(feed) }
    }
}

/// A log in memory with these topics, of one partition each.
pub async fn memory_broker(topics: &[&str]) -> MemoryBroker {
    let broker = MemoryBroker::new(MemorySettings::new(Clock::System));
    let new = |name: &&str| NewTopic { name: (*name).into(), partitions: 1, config: Vec::new() };
    broker.create_topics(&topics.iter().map(new).collect::<Vec<_>>()).await.expect("they are new");
    broker
}

/// A pipeline on the runtime's workers.
pub struct Running {
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<PipelineReport, PipelineError>>,
}

impl Running {
    pub async fn start(settings: PipelineSettings, log: Log, engine: Arc<dyn RecordEngine>) -> Self {
        let metrics = Arc::new(Metrics::new());
        let parts = parts(&settings, log.broker, engine, metrics.clone()).await;
        let pipeline = Pipeline::new(settings, parts, log.consumer);
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(pipeline.run(shutdown.clone()));
        Running { metrics, shutdown, task }
    }

    /// So many partitions are its own.
    pub async fn until_assigned(&self, partitions: u64) {
        self.until(async || self.metrics.rebalances.of(Rebalance::Assigned).get() >= partitions).await;
    }

    pub async fn until_completed(&self, transactions: u64) {
        self.until(async || self.completed() >= transactions).await;
    }

    pub fn completed(&self) -> u64 {
        self.metrics.completed.of(Completion::Live).get()
    }

    /// One that has ended says why when it is stopped.
    async fn until<F: Future<Output = bool>>(&self, mut there: impl FnMut() -> F) {
        while !there().await && !self.task.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub async fn stop(self) -> PipelineReport {
        self.shutdown.cancel();
        self.task.await.expect("the pipeline panicked").expect("the pipeline runs to its end")
    }

    /// Leaves what moves as it is.
    pub fn abandon(self) {
        self.task.abort();
    }
}

/// What it took, from the assignment to the last completion; without those that it warmed up with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Took {
    pub transactions: u64,
    pub seconds: f64,
    pub user_seconds: f64,
    pub system_seconds: f64,
    /// Bytes, of the whole process.
    pub peak_memory: u64,
    /// Bytes at the start: what was generated ahead, and the parents that are in the store.
    pub memory_before: u64,
}

/// A clock that runs, and what was there when it was started.
pub struct Watch {
    started: Instant,
    cpu: Cpu,
    memory_before: u64,
}

impl Watch {
    pub fn start() -> Self {
        measure::forget_peak();
        Watch { memory_before: measure::memory(), started: Instant::now(), cpu: Cpu::now() }
    }

    /// What went before was to warm up; but for memory it counts.
    pub fn warmed_up(self) -> Self {
        Watch { started: Instant::now(), cpu: Cpu::now(), ..self }
    }

    pub fn stop(self, transactions: u64) -> Took {
        let (seconds, (user_seconds, system_seconds)) = (self.started.elapsed().as_secs_f64(), Cpu::since(self.cpu));
        let peak_memory = measure::peak_memory();
        Took { transactions, seconds, user_seconds, system_seconds, peak_memory, memory_before: self.memory_before }
    }
}

/// Runs until everything is completed. Joining a group, and the first `warm_up` of the transactions, come before the clock starts; and when
/// it stops, as many are left, so that as much is in hand at the end as was at the beginning.
pub async fn to_the_end(
    settings: PipelineSettings,
    log: Log,
    engine: Arc<dyn RecordEngine>,
    transactions: u64,
    warm_up: u64,
) -> Took {
    let partitions = settings.partitions.map_or(1, i32::unsigned_abs).into();
    let running = Running::start(settings, log, engine).await;
    running.until_assigned(partitions).await;
    let mut watch = Watch::start();
    let mut before = 0;
    if warm_up > 0 {
        running.until_completed(warm_up).await;
        watch = watch.warmed_up();
        before = running.completed();
    }
    running.until_completed(transactions - warm_up).await;
    let took = watch.stop(running.completed() - before);
    running.until_completed(transactions).await;
    let completed = running.completed();
    let report = running.stop().await;
    assert_eq!(report.completed, transactions, "all are completed, once");
    assert_eq!((completed, report.contests, report.dead_letters), (transactions, 0, 0), "all are live");
    took
}

async fn parts(
    settings: &PipelineSettings,
    broker: Arc<dyn Broker>,
    engine: Arc<dyn RecordEngine>,
    metrics: Arc<Metrics>,
) -> PipelineParts {
    let store = Store::new(engine.clone(), wiring::store(&Config::default()));
    let clock = Clock::System;
    let publisher = Publisher {
        producer: broker.producer().await.expect("the log has one"),
        source_topic: settings.topic.clone(),
        chain_topic: CHAIN.into(),
        dead_letter_topic: DEAD_LETTERS.into(),
        retry_pause: store.settings.retry_pause,
        metrics: metrics.clone(),
    };
    let identity = Identity { owner: 1, process_id: 1, hostname: "here".to_owned(), sees: Processes::None };
    PipelineParts {
        creator: Creator::new(store, clock.clone(), identity),
        earlier_halts: Arc::default(),
        broker,
        nodes: Nodes::new(engine, Duration::ZERO),
        guard: TopicGuard::unguarded(),
        whole: Arc::new(Unaccounted),
        publisher,
        chain: Arc::new(NoChain),
        modes: Modes::Live,
        clock: clock.clone(),
        metrics,
        health: Arc::new(Health::new(clock, Duration::from_secs(600))),
    }
}

struct NoChain;

#[async_trait]
impl ChainProgress for NoChain {
    async fn view(&self) -> Result<ChainView, BrokerError> {
        Ok(ChainView::AtEnd)
    }
}

/// Puts the parents into the store that are outside of the run.
pub async fn fill(generator: &Generator, engine: &dyn RecordEngine) {
    for messages in generator.parents_from_before() {
        engine.apply(&creates(&messages)).await.into_iter().for_each(|result| drop(result.expect("created")));
    }
}

fn creates(messages: &[Message]) -> Vec<Row> {
    let row = |page: Arc<Page>| Row { key: Key::master(page.txid), operation: Operation::Create(page) };
    messages.iter().map(page_of).map(row).collect()
}

/// What the transaction in a message starts as.
pub fn page_of(message: &Message) -> Arc<Page> {
    match prepare(&PREPARE, message) {
        Ok(Prepared::Validated(tx)) => tx.page.clone(),
        other => panic!("the generator makes valid transactions only: {other:?}"),
    }
}

/// A directory on the disk that the build is on, gone when dropped.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the target directory can be written to")
}
