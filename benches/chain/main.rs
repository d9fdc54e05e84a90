//! The chain on a whole instance: blocks, a reorg, contests, descendants, pruning; from the topic to the engine, with
//! the log in memory.
//!
//! `benches/README.md` has the cases, the sizes and the measurements.

mod events;
mod instance;
mod links;
mod losers;
#[path = "../macro/measure.rs"]
mod measure;
#[allow(clippy::unwrap_used)]
#[path = "../../tests/it/ports.rs"]
mod ports;
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

use events::{Coin, HEIGHT, MadeBlock, MadeTx, reorg, seed, unmined};
use futures_util::{StreamExt, stream};
use instance::{BLOCKS, Instance, PARTITIONS, REORGS, TXS};
use measure::{Cpu, env_number, runtime};
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

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RULES: Rules = Rules::main(288);
const CASES: [&str; 12] = [
    "mined",
    "object",
    "reorg",
    "contests",
    "payments",
    "payments-1",
    "payments-10",
    "flood",
    "cone",
    "losers",
    "prune",
    "links",
];
const ENGINES: [&str; 3] = ["memory", "fjall", "aerospike"];
const CHILD: &str = "--case";
/// Number of blocks in the cases `mined` and `reorg`.
const BLOCKS_PER_CASE: u32 = 6;
/// Messages per produce call.
const MESSAGES_PER_CALL: usize = 10_000;
/// Rows per batch, and batches in flight: the defaults of the settings.
const MINED_BATCH: usize = 1_024;
const IN_FLIGHT: usize = 8;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [flag, case, engine] = &arguments[..]
        && flag == CHILD
    {
        runtime(2).block_on(run(case, engine));
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
        // A child process has its own memory and CPU time.
        let program = env::current_exe().expect("the program is there");
        let ended = Command::new(program).args([CHILD, case, engine]).status();
        failed |= !ended.is_ok_and(|status| status.success());
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

async fn run(case: &str, engine: &str) {
    let aerospike = || AerospikeServer::start_own(Setup { durable: false, namespace: FIT }).expect("`asd` is in PATH");
    let server = (engine == "aerospike").then(aerospike);
    // Each call returns another set.
    let settings = server.as_ref().map(AerospikeServer::settings);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the target directory can be written to");
    let record_engine: Arc<dyn RecordEngine> = match &settings {
        Some(settings) => Arc::new(AerospikeEngine::open(settings, RULES).await.expect("it was set up for it")),
        None if engine == "memory" => Arc::new(MemoryEngine::new(RULES)),
        None => Arc::new(FjallEngine::open(directory.path(), RULES, FjallOptions::default()).expect("a new store")),
    };
    let partitions = if case == "links" { links::INSTANCES } else { PARTITIONS };
    let instance = Instance::start(record_engine, directory.path(), partitions).await;
    let name = format!("{case}/{engine}");
    match case {
        "mined" => run_mined(&name, &instance, settings.as_ref()).await,
        "object" => run_object(&name, &instance, directory.path()).await,
        "reorg" => run_reorg(&name, &instance).await,
        "contests" => run_contests(&name, &instance).await,
        "payments" => run_payments(&name, &instance, 0).await,
        "payments-1" => run_payments(&name, &instance, 1).await,
        "payments-10" => run_payments(&name, &instance, 10).await,
        "flood" => run_flood(&name, &instance).await,
        "prune" => prune::prune(&name, &instance).await,
        "links" => links::run_links(&name, &instance).await,
        "losers" => losers::run_losers(&name, &instance).await,
        _ => run_descendants(&name, &instance).await,
    }
    instance.stop().await;
}

/// Measurement from its creation to its printing.
struct Measured {
    started: Instant,
    cpu: Cpu,
    before: u64,
}

impl Measured {
    fn begin() -> Self {
        measure::reset_peak();
        Measured { started: Instant::now(), cpu: Cpu::now(), before: measure::resident_memory() }
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

/// Creates unrelated transactions of two outputs in the store.
async fn create_unrelated(instance: &Instance, numbers: Range<u64>) -> Vec<Txid> {
    let mut txids = Vec::new();
    for from in numbers.clone().step_by(MESSAGES_PER_CALL) {
        let rows: Vec<_> = (from..numbers.end.min(from + MESSAGES_PER_CALL as u64)).map(unmined).collect();
        txids.extend(rows.iter().filter_map(|row| row.key.txid()));
        instance.store.apply(rows).await.expect("created");
    }
    txids
}

/// Returns a chain of blocks that list all these transactions.
fn blocks_of(txids: &[Txid], first_id: u32, first_height: u32, on: Option<&MadeBlock>) -> Vec<MadeBlock> {
    let mut blocks: Vec<MadeBlock> = Vec::new();
    for (listed, number) in txids.chunks(txids.len().div_ceil(BLOCKS_PER_CASE as usize)).zip(0..) {
        let block = MadeBlock::new(first_id + number, first_height + number, blocks.last().or(on), listed);
        blocks.push(block);
    }
    blocks
}

/// Handles blocks from their topic to the engine; on Aerospike the raw client follows.
async fn run_mined(name: &str, instance: &Instance, settings: Option<&AerospikeSettings>) {
    let count = env_number("CHAIN_LISTED", 300_000);
    let txids = create_unrelated(instance, 0..count).await;
    let blocks = blocks_of(&txids, 1, HEIGHT, None);
    let events = blocks.iter().zip(1..).map(|(block, sequence)| block.mined(sequence)).collect();
    let measured = Measured::begin();
    instance.publish(BLOCKS, events).await;
    instance.wait_until_handled(blocks.len() as u64).await;
    measured.print(name, count);
    let Some(settings) = settings else { return };
    let raw = Arc::new(raw::RawClient::open(settings, raw::EngineFeature::None).await);
    // The raw client has transactions of its own: those of the engine are mined.
    let others = create_unrelated(instance, 1 << 40..(1 << 40) + count).await;
    let batches: Vec<_> = others.chunks(MINED_BATCH).map(|txids| raw.clone().set_mined(txids.to_vec())).collect();
    let measured = Measured::begin();
    let mut done = stream::iter(batches).map(tokio::spawn).buffer_unordered(IN_FLIGHT);
    while let Some(batch) = done.next().await {
        batch.expect("a batch of the bench");
    }
    measured.print("  the raw client", count);
}

/// Handles one block whose transactions are in an object.
async fn run_object(name: &str, instance: &Instance, directory: &Path) {
    let count = env_number("CHAIN_OBJECT", 1_000_000);
    let mut object = BufWriter::new(File::create(directory.join("listed")).expect("a new file"));
    let mut sha256 = Sha256::new();
    for from in (0..count).step_by(MESSAGES_PER_CALL) {
        let txids = create_unrelated(instance, from..count.min(from + MESSAGES_PER_CALL as u64)).await;
        for txid in txids {
            object.write_all(&txid.0).expect("there is room");
            sha256.update(txid.0);
        }
    }
    object.flush().expect("there is room");
    let block = MadeBlock::listing_object(1, HEIGHT, "listed", sha256.finalize().into(), count);
    let measured = Measured::begin();
    instance.publish(BLOCKS, vec![block.mined(1)]).await;
    instance.wait_until_handled(1).await;
    measured.print(name, count);
}

/// Handles a reorg of six blocks to six others that list the same transactions.
async fn run_reorg(name: &str, instance: &Instance) {
    let count = env_number("CHAIN_LISTED", 300_000);
    let txids = create_unrelated(instance, 0..count).await;
    let below = MadeBlock::new(1, HEIGHT - 1, None, &[]);
    let disconnected = blocks_of(&txids, 2, HEIGHT, Some(&below));
    let connected = blocks_of(&txids, 100, HEIGHT, Some(&below));
    let events = std::iter::once(&below).chain(&disconnected).zip(1..).map(|(block, sequence)| block.mined(sequence));
    instance.publish(BLOCKS, events.collect()).await;
    let handled = 1 + disconnected.len() as u64;
    instance.wait_until_handled(handled).await;
    let measured = Measured::begin();
    instance.publish(REORGS, vec![reorg(handled + 1, &disconnected, &connected)]).await;
    instance.wait_until_handled(handled + 1).await;
    measured.print(name, count);
}

/// Creates coins in the store, of parents from number `first` on.
async fn create_coins(instance: &Instance, first: u64, count: u64) -> Vec<Coin> {
    const OUTPUTS_PER_PARENT: u32 = 100;
    let mut coins = Vec::new();
    let (mut rows, mut number) = (Vec::new(), first);
    while (coins.len() as u64) < count {
        let (row, made) = seed(number, OUTPUTS_PER_PARENT);
        rows.push(row);
        coins.extend(made);
        number += 1;
    }
    instance.store.apply(rows).await.expect("created");
    coins.truncate(count as usize);
    coins
}

/// Handles rivals of live transactions: each is stored, contested, decided, and gets its outcome.
async fn run_contests(name: &str, instance: &Instance) {
    let count = env_number("CHAIN_CONTESTS", 50_000);
    let coins = create_coins(instance, 0, count).await;
    for coins in coins.chunks(MESSAGES_PER_CALL) {
        instance.publish(TXS, coins.iter().map(|coin| MadeTx::spending(*coin, 2, 0).event()).collect()).await;
    }
    instance.wait_until_completed(Completion::Live, count).await;
    let rivals: Vec<_> = coins.iter().map(|coin| MadeTx::spending(*coin, 2, 1).event()).collect();
    let measured = Measured::begin();
    instance.publish(TXS, rivals).await;
    instance.wait_until_handled(count).await;
    measured.print(name, count);
    assert_eq!(instance.chain_length().await, count, "one contest each");
}

/// Handles payments of which so many of a hundred are double spends of earlier payments.
async fn run_payments(name: &str, instance: &Instance, percent: u64) {
    let count = env_number("CHAIN_PAYMENTS", 200_000);
    let coins = create_coins(instance, 0, count * (100 - percent) / 100).await;
    let payment = |coin: Coin, tag| MadeTx::spending(coin, 2, tag).event();
    let mut payments = Vec::with_capacity(count as usize);
    for (number, coin) in coins.iter().enumerate() {
        payments.push(payment(*coin, 0));
        let is_due = percent > 0 && (number as u64).is_multiple_of(100 / percent - 1);
        if is_due {
            payments.push(payment(coins[number * 7 / 8], 1 + number as u32));
        }
    }
    let measured = Measured::begin();
    for payments in payments.chunks(MESSAGES_PER_CALL) {
        instance.publish(TXS, payments.to_vec()).await;
    }
    // Of two rivals in flight either may win, so that the numbers of live and contested ones are not known.
    let count = payments.len() as u64;
    let completed = |how| instance.metrics.completed.of(how).get();
    instance.wait_until(async || completed(Completion::Live) + completed(Completion::Contested) >= count).await;
    instance.wait_until_handled(0).await;
    measured.print(name, count);
}

/// Completes payments, each followed by the rival of an earlier one: half of the topic is an attack. The first line
/// counts honest payments until every event is complete, the second one until the chain has decided every contest.
async fn run_flood(name: &str, instance: &Instance) {
    let count = env_number("CHAIN_FLOOD", 100_000);
    let coins = create_coins(instance, 0, count).await;
    let pair = |(number, coin): (usize, &Coin)| {
        let rival = MadeTx::spending(coins[number * 7 / 8], 2, 1 + number as u32);
        [MadeTx::spending(*coin, 2, 0).event(), rival.event()]
    };
    let payments: Vec<_> = coins.iter().enumerate().flat_map(pair).collect();
    let (honest, decided) = (Measured::begin(), Measured::begin());
    for payments in payments.chunks(MESSAGES_PER_CALL) {
        instance.publish(TXS, payments.to_vec()).await;
    }
    let completed = |how| instance.metrics.completed.of(how).get();
    let all = payments.len() as u64;
    instance.wait_until(async || completed(Completion::Live) + completed(Completion::Contested) >= all).await;
    honest.print(name, count);
    instance.wait_until_handled(0).await;
    decided.print("  decided", count);
}

/// Handles a block with the rival of a transaction that has `count` descendants, itself included.
async fn run_descendants(name: &str, instance: &Instance) {
    let count = env_number("CHAIN_CONE", 1_000_000);
    let outputs = env_number("CHAIN_CONE_OUTPUTS", 2) as u32;
    let root = create_coins(instance, 0, 1).await[0];
    let mut made = 1;
    let mut level = vec![MadeTx::spending(root, outputs, 0)];
    while !level.is_empty() {
        for made in level.chunks(MESSAGES_PER_CALL) {
            instance.publish(TXS, made.iter().map(MadeTx::event).collect()).await;
        }
        let coins = level.iter().flat_map(|made| made.coins.iter().copied());
        let child = |coin| MadeTx::spending(coin, outputs, 0);
        let next: Vec<MadeTx> = coins.take((count - made) as usize).map(child).collect();
        made += next.len() as u64;
        level = next;
    }
    instance.wait_until_completed(Completion::Live, count).await;
    let rival = MadeTx::spending(root, outputs, 1);
    instance.publish(TXS, vec![rival.event()]).await;
    instance.wait_until_handled(1).await;
    let block = MadeBlock::new(1, HEIGHT, None, &[rival.txid]);
    // The log in memory is not a part of the program.
    let outcomes = instance.drop_outcomes();
    let measured = Measured::begin();
    instance.publish(BLOCKS, vec![block.mined(1)]).await;
    instance.wait_until_handled(2).await;
    measured.print(name, count);
    outcomes.abort();
    println!("  decisions in the log in memory: {} MiB", instance.decision_bytes().await >> 20);
}
