//! One case, from an empty store to the last completed transaction.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use utxo_store::{
    api::Health,
    broker::{Broker, BrokerError, Message, NewTopic, memory::MemoryBroker, memory::MemorySettings},
    cli::wiring,
    clock::Clock,
    config::Config,
    engine::{
        RecordEngine, Row,
        aerospike::AerospikeEngine,
        fjall::{FjallEngine, FjallOptions},
        memory::MemoryEngine,
        null::NullEngine,
    },
    ingest::{
        pipeline::{ChainProgress, Pipeline, PipelineParts, PipelineSettings},
        prepare::{PrepareSettings, Prepared, prepare},
        proof::ChainView,
        publish::Publisher,
        replay::Modes,
    },
    record::{Key, Operation, Page, Rules, build::Inline},
    store::{
        Store,
        create::{Creator, Identity, Processes},
        nodes::Nodes,
        whole::Unaccounted,
    },
    telemetry::{Completion, Metrics},
    tx::Network,
};

use crate::{
    counting::{Counting, Note},
    feed::Feed,
    generator::{Generator, Shape},
    measure::{self, Cpu},
    raw::{self, Raw},
    server::{AerospikeServer, FIT, Setup},
    size,
};

const RULES: Rules = Rules { retention: 288 };
const TOPIC: &str = "utxo.validated-txs";
/// Messages a poll, as librdkafka hands them over.
pub const POLLED: usize = 500;
const PREPARE: PrepareSettings =
    PrepareSettings { network: Network::Main, utxo_batch_size: 20_000, inline: Inline::All };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    Null,
    Memory,
    Fjall,
    Aerospike,
}

impl EngineKind {
    const ALL: [EngineKind; 4] = [EngineKind::Null, EngineKind::Memory, EngineKind::Fjall, EngineKind::Aerospike];

    fn name(self) -> &'static str {
        match self {
            EngineKind::Null => "null",
            EngineKind::Memory => "memory",
            EngineKind::Fjall => "fjall",
            EngineKind::Aerospike => "aerospike",
        }
    }
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Case {
    pub engine: EngineKind,
    pub shape: Shape,
    pub transactions: u64,
    /// All messages are there before the clock starts: their making costs nothing, and they take memory.
    pub generated_ahead: bool,
}

impl Case {
    pub fn name(&self) -> String {
        format!("{}/{}", self.engine.name(), self.shape.name())
    }

    /// For the child; [`parse`](Self::parse) reads them.
    pub fn arguments(&self) -> [String; 3] {
        [self.name(), self.transactions.to_string(), self.generated_ahead.to_string()]
    }

    pub fn parse(arguments: &[String]) -> Option<Case> {
        let [name, transactions, generated_ahead] = arguments else { return None };
        let (engine, shape) = name.split_once('/')?;
        Some(Case {
            engine: EngineKind::ALL.into_iter().find(|kind| kind.name() == engine)?,
            shape: Shape::ALL.into_iter().find(|kind| kind.name() == shape)?,
            transactions: transactions.parse().ok()?,
            generated_ahead: generated_ahead.parse().ok()?,
        })
    }
}

/// What was measured, from the first poll to the last completion.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub seconds: f64,
    pub user_seconds: f64,
    pub system_seconds: f64,
    /// Rows that the engine was given.
    pub operations: u64,
    /// Calls in which they were given.
    pub batches: u64,
    /// Bytes, of the whole process.
    pub peak_memory: u64,
    /// Bytes at the start: what was generated ahead, and the parents that are in the store.
    pub memory_before: u64,
    pub raw: Option<Raw>,
}

pub fn run(case: &Case) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a machine that runs benches has threads");
    // The preparation is on this thread, the pipeline on the workers: a profile can tell them apart.
    runtime.block_on(measured(case))
}

async fn measured(case: &Case) -> Outcome {
    match case.engine {
        EngineKind::Null => consume(case, Arc::new(NullEngine::new(RULES)), 0).await.0,
        EngineKind::Memory => {
            let engine: Arc<dyn RecordEngine> = Arc::new(MemoryEngine::new(RULES));
            fill(case, engine.as_ref()).await;
            consume(case, engine, 0).await.0
        }
        // The first run is for its notes and warms up the memory, so that both that count find it so.
        EngineKind::Fjall => {
            let (first, notes, syncs) = on_fjall(case, 2 * case.transactions as usize).await;
            let raw = raw::same_writes(|| Generator::new(case.shape, case.transactions), &notes, syncs);
            drop(notes);
            let (outcome, ..) = on_fjall(case, 0).await;
            Outcome { raw: Some(raw), peak_memory: first.peak_memory, memory_before: first.memory_before, ..outcome }
        }
        EngineKind::Aerospike => on_aerospike(case).await,
    }
}

/// On a server of its own, which is another process: what is measured is the client's.
async fn on_aerospike(case: &Case) -> Outcome {
    let server = AerospikeServer::start_own(Setup { durable: false, namespace: FIT }).expect("`asd` is in PATH");
    let engine = AerospikeEngine::open(&server.settings(), RULES).await.expect("the server was set up for it");
    let engine = Arc::new(engine);
    fill(case, engine.as_ref()).await;
    let (outcome, _) = consume(case, engine.clone(), 0).await;
    engine.close().await.expect("closed");
    outcome
}

/// Also returns what was noted, and how many synced groups it was written in.
async fn on_fjall(case: &Case, noted: usize) -> (Outcome, Vec<Note>, u64) {
    let directory = scratch();
    let engine = FjallEngine::open(directory.path(), RULES, FjallOptions::default()).expect("a new store");
    let engine = Arc::new(engine);
    fill(case, engine.as_ref()).await;
    let before = engine.groups();
    let (outcome, notes) = consume(case, engine.clone(), noted).await;
    let groups = engine.groups() - before;
    engine.close().await.expect("closed");
    (outcome, notes, groups)
}

/// Puts the parents into the store that are outside of the run.
async fn fill(case: &Case, engine: &dyn RecordEngine) {
    for messages in Generator::new(case.shape, case.transactions).parents_from_before() {
        engine.apply(&creates(&messages)).await.into_iter().for_each(|result| drop(result.expect("created")));
    }
}

/// All messages of the run, chunk by chunk.
fn chunks(case: &Case) -> Box<dyn Iterator<Item = Vec<Message>> + Send> {
    let mut generator = Generator::new(case.shape, case.transactions);
    let mut offset = 0;
    let chunks = std::iter::from_fn(move || {
        let chunk = generator.chunk(POLLED, offset);
        offset += chunk.len() as u64;
        (!chunk.is_empty()).then_some(chunk)
    });
    if case.generated_ahead { Box::new(chunks.collect::<Vec<_>>().into_iter()) } else { Box::new(chunks) }
}

/// Runs the pipeline until everything is completed. Also returns what the engine was given, where so many rows are to be
/// `noted`.
async fn consume(case: &Case, engine: Arc<dyn RecordEngine>, noted: usize) -> (Outcome, Vec<Note>) {
    let engine = Arc::new(Counting::new(engine, noted));
    let metrics = Arc::new(Metrics::new());
    let topic: Arc<str> = TOPIC.into();
    let consumer = Box::new(Feed::new(&topic, chunks(case), case.transactions));
    let config = Config::default();
    let parts = parts(&config, engine.clone(), metrics.clone()).await;
    let pipeline = Pipeline::new(settings(&config), parts, consumer);
    let shutdown = CancellationToken::new();

    measure::forget_peak();
    let memory_before = measure::memory();
    let (started, cpu_before) = (Instant::now(), Cpu::now());
    let running = tokio::spawn(pipeline.run(shutdown.clone()));
    let completed = || metrics.completed.of(Completion::Live).get();
    while completed() < case.transactions && !running.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (seconds, (user_seconds, system_seconds)) = (started.elapsed().as_secs_f64(), Cpu::since(cpu_before));
    let peak_memory = measure::peak_memory();

    shutdown.cancel();
    let report = running.await.expect("the pipeline panicked").expect("the pipeline runs to its end");
    assert_eq!(report.completed, case.transactions, "all are completed, once");
    assert_eq!((completed(), report.contests, report.dead_letters), (case.transactions, 0, 0), "all are live");
    let outcome = Outcome {
        seconds,
        user_seconds,
        system_seconds,
        operations: engine.rows(),
        batches: engine.batches(),
        peak_memory,
        memory_before,
        raw: None,
    };
    (outcome, engine.take_notes())
}

/// The defaults of the configuration (`deploy/utxo-store.toml`).
fn settings(config: &Config) -> PipelineSettings {
    let mut settings = wiring::instance(config).pipeline;
    let dispatch = &mut settings.dispatch;
    dispatch.batch_size = size("MACRO_BATCH", dispatch.batch_size as u64) as usize;
    settings.max_active = size("MACRO_MAX_ACTIVE", settings.max_active as u64) as usize;
    settings.bounds.bytes = size("MACRO_PARKED_BYTES", settings.bounds.bytes);
    settings.bytes_in_all = settings.bytes_in_all.max(settings.bounds.bytes);
    settings
}

async fn parts(config: &Config, engine: Arc<Counting>, metrics: Arc<Metrics>) -> PipelineParts {
    let store = Store::new(engine.clone(), wiring::store(config));
    let clock = Clock::System;
    let broker = MemoryBroker::new(MemorySettings::new(clock.clone()));
    let topics = [TOPIC, "utxo.chain", "utxo.dead-letters"];
    let topics = topics.map(|name| NewTopic { name: name.into(), partitions: 1, config: Vec::new() });
    broker.create_topics(&topics).await.expect("they are new");
    let publisher = Publisher {
        producer: broker.producer().await.expect("the memory broker has one"),
        source_topic: TOPIC.into(),
        chain_topic: "utxo.chain".into(),
        dead_letter_topic: "utxo.dead-letters".into(),
        retry_pause: store.settings.retry_pause,
        metrics: metrics.clone(),
    };
    let identity = Identity { owner: 1, process_id: 1, hostname: "here".to_owned(), sees: Processes::None };
    PipelineParts {
        creator: Creator::new(store, clock.clone(), identity),
        earlier_halts: Arc::default(),
        broker: Arc::new(broker),
        nodes: Nodes::new(engine.clone(), Duration::ZERO),
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

/// A directory on the disk that the build is on, gone when dropped.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("the target directory can be written to")
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
