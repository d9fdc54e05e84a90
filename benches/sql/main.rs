//! The SQL engines on SQLite and PostgreSQL, against programs written by hand: transactions/s, and µs of CPU per
//! transaction of client and server.
//!
//! A transaction of the bench takes one output of a parent and makes two. `benches/README.md` has the measurements.

#[path = "../macro/measure.rs"]
#[allow(dead_code)]
mod measure;
#[path = "../api/process.rs"]
#[allow(dead_code)]
mod process_stats;
mod raw;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/postgres_server.rs"]
mod server;
mod transactions;

use std::{
    env, fs,
    ops::Range,
    path::Path,
    process,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use utxo_store::{
    engine::{self, OpenOptions, RecordEngine, Row},
    record::{Outcome, Rules},
};

use measure::{env_number, runtime};
use process_stats::cpu;
use server::PostgresServer;
use transactions::Prepared;

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Transactions per batch, and batches in flight.
const BATCH: u32 = 256;
const IN_FLIGHT: u32 = 8;

fn main() {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_chosen = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let count = env_number("SQL_TRANSACTIONS", 50_000) as u32;
    let rounds = env_number("SQL_ROUNDS", 2);
    let runtime = runtime(2);
    let prepared: Arc<Vec<Prepared>> = Arc::new((0..count).map(transactions::prepare).collect());
    println!("{:<10} {:>8} {:>16} {:>12} {:>12}", "database", "way", "transactions/s", "client µs", "server µs");
    if is_chosen("sqlite") {
        let folder = tempfile::tempdir_in(".").expect("the bench runs in a folder that can be written");
        for round in 0..rounds {
            runtime.block_on(measure_sqlite(folder.path(), round, &prepared));
        }
    }
    if is_chosen("postgres")
        && let Some(server) = PostgresServer::start()
    {
        for _ in 0..rounds {
            runtime.block_on(measure_postgres(&server, &prepared));
        }
    }
}

async fn measure_sqlite(folder: &Path, round: u64, prepared: &Arc<Vec<Prepared>>) {
    let count = prepared.len() as u32;
    let url = |way: &str| format!("sqlite://{}/{way}-{round}", folder.display());
    measure_engine("sqlite", &url("engine"), prepared).await;
    let raw_url = url("raw");
    close(open(&raw_url, count).await).await;
    let database = raw::sqlite::Database::open(raw_url.trim_start_matches("sqlite://"), prepared[0].parent).await;
    let started = Started::now();
    // One connection writes: a commit takes what the engine's writer finds waiting.
    for group in prepared.chunks((BATCH * IN_FLIGHT / 2) as usize) {
        database.run(group).await;
    }
    started.print("sqlite", "raw", count);
    database.close().await;
}

async fn measure_postgres(server: &PostgresServer, prepared: &Arc<Vec<Prepared>>) {
    let count = prepared.len() as u32;
    measure_engine("postgres", &server.database().url(), prepared).await;
    let database = server.database();
    close(open(&database.url(), count).await).await;
    let database = Arc::new(raw::postgres::Database::open(&database.url(), IN_FLIGHT, prepared[0].parent).await);
    let started = Started::now();
    run_in_flight(count, |batch| {
        let (database, prepared) = (database.clone(), prepared.clone());
        async move { database.run(&prepared[batch]).await }
    })
    .await;
    started.print("postgres", "raw", count);
    database.close().await;
}

async fn measure_engine(database: &str, url: &str, prepared: &Arc<Vec<Prepared>>) {
    let count = prepared.len() as u32;
    let engine = open(url, count).await;
    let started = Started::now();
    run_in_flight(count, |batch| {
        let (engine, prepared) = (engine.clone(), prepared.clone());
        async move {
            let batch = &prepared[batch];
            apply(engine.as_ref(), batch.iter().map(|prepared| prepared.spend.clone()).collect()).await;
            apply(engine.as_ref(), batch.iter().map(|prepared| prepared.create.clone()).collect()).await;
        }
    })
    .await;
    started.print(database, "engine", count);
    close(engine).await;
}

/// Opens a new store, and creates the parents of all transactions.
async fn open(url: &str, count: u32) -> Arc<dyn RecordEngine> {
    let engine = engine::open(url, &OpenOptions::new(Rules::main(288))).await.expect("a new database");
    for batch in batches(count, 2_000) {
        apply(engine.as_ref(), batch.map(transactions::create_parent).collect()).await;
    }
    engine
}

async fn close(engine: Arc<dyn RecordEngine>) {
    engine.close().await.expect("no call is left");
}

async fn apply(engine: &dyn RecordEngine, rows: Vec<Row>) {
    for answer in engine.apply(&rows).await {
        assert!(matches!(answer, Ok(Outcome::Applied(_))), "{answer:?}");
    }
}

fn batches(count: u32, size: u32) -> impl Iterator<Item = Range<u32>> {
    (0..count.div_ceil(size)).map(move |batch| batch * size..(batch * size + size).min(count))
}

async fn run_in_flight<F: Future<Output = ()> + Send + 'static>(count: u32, run: impl Fn(Range<usize>) -> F) {
    let runs = batches(count, BATCH).map(|batch| tokio::spawn(run(batch.start as usize..batch.end as usize)));
    stream::iter(runs).buffer_unordered(IN_FLIGHT as usize).for_each(|done| async { done.expect("a batch") }).await;
}

/// Time and CPU at the start of a measurement.
struct Started {
    at: Instant,
    client: Duration,
    server: Duration,
}

impl Started {
    fn now() -> Self {
        Started { at: Instant::now(), client: cpu(process::id()), server: server_cpu() }
    }

    fn print(self, database: &str, way: &str, count: u32) {
        let wall = self.at.elapsed();
        let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(count);
        let rate = f64::from(count) / wall.as_secs_f64();
        let (client, server) = (each(cpu(process::id()) - self.client), each(server_cpu().saturating_sub(self.server)));
        println!("{database:<10} {way:>8} {rate:>16.0} {client:>12.1} {server:>12.1}");
    }
}

/// CPU time of all processes of PostgreSQL: one for each connection.
fn server_cpu() -> Duration {
    let processes = fs::read_dir("/proc").expect("benches need Linux's /proc");
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_server = |id: &u32| fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name == "postgres\n");
    ids.filter(is_server).map(cpu).sum()
}
