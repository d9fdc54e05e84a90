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
    counting::{CountingEngine, RowNote},
    feed::Feed,
    generator::{Generator, Shape},
    measure::runtime,
    pipeline::{self, Log, Measurement, POLLED, RULES, scratch_directory},
    raw::{self, Raw},
    server::{AerospikeServer, FIT, Setup},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    Null,
    Memory,
    Fjall,
    Aerospike,
    #[cfg(feature = "sql")]
    Sqlite,
    #[cfg(feature = "sql")]
    Postgres,
}

impl EngineKind {
    const ALL: &[EngineKind] = &[
        EngineKind::Null,
        EngineKind::Memory,
        EngineKind::Fjall,
        EngineKind::Aerospike,
        #[cfg(feature = "sql")]
        EngineKind::Sqlite,
        #[cfg(feature = "sql")]
        EngineKind::Postgres,
    ];

    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Null => "null",
            EngineKind::Memory => "memory",
            EngineKind::Fjall => "fjall",
            EngineKind::Aerospike => "aerospike",
            #[cfg(feature = "sql")]
            EngineKind::Sqlite => "sqlite",
            #[cfg(feature = "sql")]
            EngineKind::Postgres => "postgres",
        }
    }
}

/// A measured case.
#[derive(Debug, Clone)]
pub struct Case {
    pub engine: EngineKind,
    pub shape: Shape,
    pub transactions: u64,
    /// Whether all messages exist before the clock starts: their generation costs no time, but they take memory.
    pub generated_ahead: bool,
}

impl Case {
    pub fn name(&self) -> String {
        format!("{}/{}", self.engine.name(), self.shape.name())
    }

    /// Returns the arguments of the child; [`parse`](Self::parse) reads them.
    pub fn arguments(&self) -> [String; 3] {
        [self.name(), self.transactions.to_string(), self.generated_ahead.to_string()]
    }

    pub fn parse(arguments: &[String]) -> Option<Case> {
        let [name, transactions, generated_ahead] = arguments else { return None };
        let (engine, shape) = name.split_once('/')?;
        Some(Case {
            engine: *EngineKind::ALL.iter().find(|kind| kind.name() == engine)?,
            shape: Shape::ALL.into_iter().find(|kind| kind.name() == shape)?,
            transactions: transactions.parse().ok()?,
            generated_ahead: generated_ahead.parse().ok()?,
        })
    }
}

/// Result of a case.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub measurement: Measurement,
    /// Number of rows given to the engine.
    pub operations: u64,
    /// Number of calls with these rows.
    pub batches: u64,
    pub raw: Option<Raw>,
}

pub fn run(case: &Case) -> Outcome {
    // The preparation runs on this thread, the pipeline on the workers: a profile can tell them apart.
    runtime(2).block_on(measure(case))
}

async fn measure(case: &Case) -> Outcome {
    match case.engine {
        EngineKind::Null => consume(case, Arc::new(NullEngine::new(RULES)), 0).await.0,
        EngineKind::Memory => {
            let engine: Arc<dyn RecordEngine> = Arc::new(MemoryEngine::new(RULES));
            fill(case, engine.as_ref()).await;
            consume(case, engine, 0).await.0
        }
        // The first run records the rows and warms up the memory for the two measured runs.
        EngineKind::Fjall => {
            let (first, notes, syncs) = run_on_fjall(case, 2 * case.transactions as usize).await;
            let raw = raw::repeat_writes(|| Generator::new(case.shape, case.transactions), &notes, syncs);
            drop(notes);
            let (outcome, ..) = run_on_fjall(case, 0).await;
            let Measurement { peak_memory, memory_before, .. } = first.measurement;
            Outcome {
                raw: Some(raw),
                measurement: Measurement { peak_memory, memory_before, ..outcome.measurement },
                ..outcome
            }
        }
        EngineKind::Aerospike => run_on_aerospike(case).await,
        #[cfg(feature = "sql")]
        EngineKind::Sqlite => {
            let directory = scratch_directory();
            run_on_sql(case, &format!("sqlite://{}/store", directory.path().display())).await
        }
        #[cfg(feature = "sql")]
        EngineKind::Postgres => {
            let server = crate::postgres::PostgresServer::start().expect("`initdb` is installed");
            run_on_sql(case, &server.database().url()).await
        }
    }
}

/// Runs on a server of its own: another process, so only the client's cost is measured.
async fn run_on_aerospike(case: &Case) -> Outcome {
    let server = AerospikeServer::start_own(Setup { durable: false, namespace: FIT }).expect("`asd` is in PATH");
    let engine = AerospikeEngine::open(&server.settings(), RULES).await.expect("the server was set up for it");
    let engine = Arc::new(engine);
    fill(case, engine.as_ref()).await;
    let (outcome, _) = consume(case, engine.clone(), 0).await;
    engine.close().await.expect("closed");
    outcome
}

#[cfg(feature = "sql")]
async fn run_on_sql(case: &Case, url: &str) -> Outcome {
    let options = utxo_store::engine::OpenOptions::new(RULES);
    let engine = utxo_store::engine::open(url, &options).await.expect("a new database");
    fill(case, engine.as_ref()).await;
    let (outcome, _) = consume(case, engine.clone(), 0).await;
    engine.close().await.expect("closed");
    outcome
}

/// Runs on fjall; also returns the recorded rows and the number of synced groups.
async fn run_on_fjall(case: &Case, note_capacity: usize) -> (Outcome, Vec<RowNote>, u64) {
    let directory = scratch_directory();
    let engine = FjallEngine::open(directory.path(), RULES, FjallOptions::default()).expect("a new store");
    let engine = Arc::new(engine);
    fill(case, engine.as_ref()).await;
    let before = engine.groups_written();
    let (outcome, notes) = consume(case, engine.clone(), note_capacity).await;
    let groups = engine.groups_written() - before;
    engine.close().await.expect("closed");
    (outcome, notes, groups)
}

async fn fill(case: &Case, engine: &dyn RecordEngine) {
    pipeline::fill(&Generator::new(case.shape, case.transactions), engine).await;
}

/// Returns all messages of the run in chunks.
fn chunks(case: &Case) -> Box<dyn Iterator<Item = Vec<Message>> + Send> {
    let chunks = Generator::new(case.shape, case.transactions).chunks(POLLED);
    if case.generated_ahead { Box::new(chunks.collect::<Vec<_>>().into_iter()) } else { Box::new(chunks) }
}

/// Runs the pipeline until every transaction is completed. Also returns the recorded rows, at most `note_capacity`.
async fn consume(case: &Case, engine: Arc<dyn RecordEngine>, note_capacity: usize) -> (Outcome, Vec<RowNote>) {
    let engine = Arc::new(CountingEngine::new(engine, note_capacity));
    let settings = pipeline::settings();
    let feed = Feed::new(&settings.topic, chunks(case), case.transactions);
    let measurement =
        pipeline::run_to_end(settings, Log::of_feed(feed).await, engine.clone(), case.transactions, 0).await;
    let outcome = Outcome { measurement, operations: engine.rows(), batches: engine.batches(), raw: None };
    (outcome, engine.take_notes())
}
