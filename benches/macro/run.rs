//! One case, from an empty store to the last completed transaction.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utxo_store::{
    broker::Message,
    engine::{
        RecordEngine,
        aerospike::AerospikeEngine,
        fjall::{FjallEngine, FjallOptions},
        memory::MemoryEngine,
        null::NullEngine,
    },
};

use crate::{
    counting::{Counting, Note},
    feed::Feed,
    generator::{Generator, Shape},
    pipeline::{self, Log, POLLED, RULES, Took, scratch},
    raw::{self, Raw},
    server::{AerospikeServer, FIT, Setup},
};

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

/// What was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub took: Took,
    /// Rows that the engine was given.
    pub operations: u64,
    /// Calls in which they were given.
    pub batches: u64,
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
            let Took { peak_memory, memory_before, .. } = first.took;
            Outcome { raw: Some(raw), took: Took { peak_memory, memory_before, ..outcome.took }, ..outcome }
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

async fn fill(case: &Case, engine: &dyn RecordEngine) {
    pipeline::fill(&Generator::new(case.shape, case.transactions), engine).await;
}

/// All messages of the run, chunk by chunk.
fn chunks(case: &Case) -> Box<dyn Iterator<Item = Vec<Message>> + Send> {
    let chunks = Generator::new(case.shape, case.transactions).chunks(POLLED);
    if case.generated_ahead { Box::new(chunks.collect::<Vec<_>>().into_iter()) } else { Box::new(chunks) }
}

/// Runs the pipeline until everything is completed. Also returns what the engine was given, where so many rows are to be
/// `noted`.
async fn consume(case: &Case, engine: Arc<dyn RecordEngine>, noted: usize) -> (Outcome, Vec<Note>) {
    let engine = Arc::new(Counting::new(engine, noted));
    let settings = pipeline::settings();
    let feed = Feed::new(&settings.topic, chunks(case), case.transactions);
    let took = pipeline::to_the_end(settings, Log::of_feed(feed).await, engine.clone(), case.transactions, 0).await;
    let outcome = Outcome { took, operations: engine.rows(), batches: engine.batches(), raw: None };
    (outcome, engine.take_notes())
}
