//! What the chain does to a whole instance: blocks, a reorganisation, contests, a cone, forgetting. From the topic to the engine, with the log in
//! memory.
//!
//! `benches/README.md` says how to choose cases and sizes, and what was measured.

mod events;
mod instance;
#[path = "../macro/measure.rs"]
mod measure;
mod prune;
#[allow(dead_code)]
#[path = "../aerospike/raw.rs"]
mod raw;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/aerospike_server.rs"]
mod server;

use std::{
    env,
    fs::File,
    io::{BufWriter, Write},
    ops::Range,
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
    time::Instant,
};

use events::{Coin, HEIGHT, Made, MadeBlock, reorg, seed, unmined};
use futures_util::{StreamExt, stream};
use instance::{BLOCKS, Instance, REORGS, TXS};
use measure::{Cpu, size};
use server::{AerospikeServer, FIT, Setup};
use sha2::{Digest, Sha256};
use utxo_store::{
    engine::{
        RecordEngine,
        aerospike::{AerospikeEngine, AerospikeSettings},
        fjall::{FjallEngine, FjallOptions},
        memory::MemoryEngine,
    },
    record::Rules,
    telemetry::Completion,
    tx::Txid,
};

// As the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RULES: Rules = Rules::main(288);
const CASES: [&str; 6] = ["mined", "object", "reorg", "contests", "cone", "prune"];
const ENGINES: [&str; 3] = ["memory", "fjall", "aerospike"];
const CHILD: &str = "--case";
/// Blocks of the first two cases.
const BLOCKS_OF: u32 = 6;
/// Messages that are produced at once.
const AT_ONCE: usize = 10_000;
/// Rows of a batch, and batches on their way: the defaults of the settings.
const MINED_BATCH: usize = 1_024;
const IN_FLIGHT: usize = 8;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [flag, case, engine] = &arguments[..]
        && flag == CHILD
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a machine that runs benches has threads").block_on(run(case, engine));
        return ExitCode::SUCCESS;
    }
    let words: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    println!(
        "{:<20} {:>12} {:>10} {:>12} {:>10} {:>10} {:>10}",
        "case", "items", "seconds", "items/s", "CPU µs", "before MiB", "peak MiB"
    );
    let mut failed = false;
    for (case, engine) in CASES.iter().flat_map(|case| ENGINES.map(|engine| (*case, engine))) {
        let name = format!("{case}/{engine}");
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        // Memory and CPU time are its own.
        let program = env::current_exe().expect("the program is there");
        let ended = Command::new(program).args([CHILD, case, engine]).status();
        failed |= !ended.is_ok_and(|status| status.success());
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

async fn run(case: &str, engine: &str) {
    let aerospike = || AerospikeServer::start_own(Setup { durable: false, namespace: FIT }).expect("`asd` is in PATH");
    let server = (engine == "aerospike").then(aerospike);
    // Each call names another set.
    let settings = server.as_ref().map(AerospikeServer::settings);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the target directory can be written to");
    let opened: Arc<dyn RecordEngine> = match &settings {
        Some(settings) => Arc::new(AerospikeEngine::open(settings, RULES).await.expect("it was set up for it")),
        None if engine == "memory" => Arc::new(MemoryEngine::new(RULES)),
        None => Arc::new(FjallEngine::open(directory.path(), RULES, FjallOptions::default()).expect("a new store")),
    };
    let instance = Instance::start(opened, directory.path()).await;
    let name = format!("{case}/{engine}");
    match case {
        "mined" => mined(&name, &instance, settings.as_ref()).await,
        "object" => of_an_object(&name, &instance, directory.path()).await,
        "reorg" => reorganised(&name, &instance).await,
        "contests" => contests(&name, &instance).await,
        "prune" => prune::prune(&name, &instance).await,
        _ => cone(&name, &instance).await,
    }
    instance.stop().await;
}

/// What passes between its making and its printing.
struct Measured {
    started: Instant,
    cpu: Cpu,
    before: u64,
}

impl Measured {
    fn begin() -> Self {
        measure::forget_peak();
        Measured { started: Instant::now(), cpu: Cpu::now(), before: measure::memory() }
    }

    fn print(self, name: &str, items: u64) {
        let seconds = self.started.elapsed().as_secs_f64();
        let (user, system) = Cpu::since(self.cpu);
        println!(
            "{name:<20} {items:>12} {seconds:>10.2} {:>12.0} {:>10.2} {:>10} {:>10}",
            items as f64 / seconds,
            (user + system) * 1e6 / items as f64,
            self.before >> 20,
            measure::peak_memory() >> 20,
        );
    }
}

/// Transactions of two outputs that are in the store, and have nothing to do with each other.
async fn strangers(instance: &Instance, numbers: Range<u64>) -> Vec<Txid> {
    let mut txids = Vec::new();
    for from in numbers.clone().step_by(AT_ONCE) {
        let rows: Vec<_> = (from..numbers.end.min(from + AT_ONCE as u64)).map(unmined).collect();
        txids.extend(rows.iter().filter_map(|row| row.key.txid()));
        instance.store.apply(rows).await.expect("created");
    }
    txids
}

/// A chain of blocks that list all of them.
fn blocks_of(txids: &[Txid], first_id: u32, first_height: u32, on: Option<&MadeBlock>) -> Vec<MadeBlock> {
    let mut blocks: Vec<MadeBlock> = Vec::new();
    for (listed, number) in txids.chunks(txids.len().div_ceil(BLOCKS_OF as usize)).zip(0..) {
        let block = MadeBlock::new(first_id + number, first_height + number, blocks.last().or(on), listed);
        blocks.push(block);
    }
    blocks
}

/// Blocks from their topic to the engine; on Aerospike beside the raw client.
async fn mined(name: &str, instance: &Instance, settings: Option<&AerospikeSettings>) {
    let count = size("CHAIN_LISTED", 300_000);
    let txids = strangers(instance, 0..count).await;
    let blocks = blocks_of(&txids, 1, HEIGHT, None);
    let events = blocks.iter().zip(1..).map(|(block, sequence)| block.mined(sequence)).collect();
    let measured = Measured::begin();
    instance.publish(BLOCKS, events).await;
    instance.until_handled(blocks.len() as u64).await;
    measured.print(name, count);
    let Some(settings) = settings else { return };
    let raw = Arc::new(raw::Raw::open(settings, raw::Care::None).await);
    // Of its own: the engine's are mined.
    let others = strangers(instance, 1 << 40..(1 << 40) + count).await;
    let batches: Vec<_> = others.chunks(MINED_BATCH).map(|txids| raw.clone().set_mined(txids.to_vec())).collect();
    let measured = Measured::begin();
    let mut done = stream::iter(batches).map(tokio::spawn).buffer_unordered(IN_FLIGHT);
    while let Some(batch) = done.next().await {
        batch.expect("a batch of the bench");
    }
    measured.print("  the raw client", count);
}

/// One block whose transactions are in an object.
async fn of_an_object(name: &str, instance: &Instance, directory: &Path) {
    let count = size("CHAIN_OBJECT", 1_000_000);
    let mut object = BufWriter::new(File::create(directory.join("listed")).expect("a new file"));
    let mut sha256 = Sha256::new();
    for from in (0..count).step_by(AT_ONCE) {
        let txids = strangers(instance, from..count.min(from + AT_ONCE as u64)).await;
        for txid in txids {
            object.write_all(&txid.0).expect("there is room");
            sha256.update(txid.0);
        }
    }
    object.flush().expect("there is room");
    let block = MadeBlock::of_object(1, HEIGHT, "listed", sha256.finalize().into(), count);
    let measured = Measured::begin();
    instance.publish(BLOCKS, vec![block.mined(1)]).await;
    instance.until_handled(1).await;
    measured.print(name, count);
}

/// Six blocks leave, and six others come that list the same.
async fn reorganised(name: &str, instance: &Instance) {
    let count = size("CHAIN_LISTED", 300_000);
    let txids = strangers(instance, 0..count).await;
    let below = MadeBlock::new(1, HEIGHT - 1, None, &[]);
    let left = blocks_of(&txids, 2, HEIGHT, Some(&below));
    let come = blocks_of(&txids, 100, HEIGHT, Some(&below));
    let events = std::iter::once(&below).chain(&left).zip(1..).map(|(block, sequence)| block.mined(sequence));
    instance.publish(BLOCKS, events.collect()).await;
    let handled = 1 + left.len() as u64;
    instance.until_handled(handled).await;
    let measured = Measured::begin();
    instance.publish(REORGS, vec![reorg(handled + 1, &left, &come)]).await;
    instance.until_handled(handled + 1).await;
    measured.print(name, count);
}

/// Coins that are in the store, of parents from this number on.
async fn coins(instance: &Instance, first: u64, count: u64) -> Vec<Coin> {
    const OF_ONE: u32 = 100;
    let mut coins = Vec::new();
    let (mut rows, mut number) = (Vec::new(), first);
    while (coins.len() as u64) < count {
        let (row, made) = seed(number, OF_ONE);
        rows.push(row);
        coins.extend(made);
        number += 1;
    }
    instance.store.apply(rows).await.expect("created");
    coins.truncate(count as usize);
    coins
}

/// Rivals of what is live: each is stored, contested, decided on, and has its answer.
async fn contests(name: &str, instance: &Instance) {
    let count = size("CHAIN_CONTESTS", 50_000);
    let coins = coins(instance, 0, count).await;
    for coins in coins.chunks(AT_ONCE) {
        instance.publish(TXS, coins.iter().map(|coin| Made::spending(*coin, 2, 0).event()).collect()).await;
    }
    instance.until_completed(Completion::Live, count).await;
    let rivals: Vec<_> = coins.iter().map(|coin| Made::spending(*coin, 2, 1).event()).collect();
    let measured = Measured::begin();
    instance.publish(TXS, rivals).await;
    instance.until_handled(count).await;
    measured.print(name, count);
    assert_eq!(instance.chain_length().await, count, "one contest each");
}

/// A block brings the rival of a transaction from which so many descend.
async fn cone(name: &str, instance: &Instance) {
    let count = size("CHAIN_CONE", 1_000_000);
    let root = coins(instance, 0, 1).await[0];
    let mut made = 1;
    let mut level = vec![Made::spending(root, 2, 0)];
    while !level.is_empty() {
        for made in level.chunks(AT_ONCE) {
            instance.publish(TXS, made.iter().map(Made::event).collect()).await;
        }
        let coins = level.iter().flat_map(|made| made.coins.iter().copied());
        let next: Vec<Made> = coins.take((count - made) as usize).map(|coin| Made::spending(coin, 2, 0)).collect();
        made += next.len() as u64;
        level = next;
    }
    instance.until_completed(Completion::Live, count).await;
    let rival = Made::spending(root, 2, 1);
    instance.publish(TXS, vec![rival.event()]).await;
    instance.until_handled(1).await;
    let block = MadeBlock::new(1, HEIGHT, None, &[rival.txid]);
    let measured = Measured::begin();
    instance.publish(BLOCKS, vec![block.mined(1)]).await;
    instance.until_handled(2).await;
    measured.print(name, count);
}
