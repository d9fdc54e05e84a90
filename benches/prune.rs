//! Pruning: records a second on each engine, and what creating beside it, at the pace that is configured by default, keeps of its own speed.
//!
//! Each transaction that goes has one parent, whose slot is marked, and one child, which is asked for: two reads and two writes besides its
//! own. `PRUNE_RECORDS` says how many (1,000,000), words pick engines: `cargo bench --bench prune -- memory fjall aerospike`.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../tests/it/aerospike_server.rs"]
mod server;

use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use utxo_store::{
    engine::{self, OpenOptions, RecordEngine, Row, aerospike::AerospikeEngine},
    record::{
        Key, MinedIn, Operation, Page, Rules, Slot, SpendingData, StoredOutput,
        build::{Seed, SeededOutput, Setting, Start, pages_of, seeded_pages},
    },
    store::{
        Store, StoreSettings,
        nodes::Nodes,
        prune::{Pass, PruneSettings, Step, Terms, Under},
    },
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

// As the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RULES: Rules = Rules { retention: 288 };
const MINED: u32 = 100;
/// Transactions that spend one parent.
const OF_ONE: u64 = 100;
const BATCH: usize = 256;
const IN_FLIGHT: u64 = 8;
/// `prune.per_second`, by default.
const PACE: f64 = 10_000.0;
/// How many are created while something else is done: as many each time, since a fast engine would fill the memory.
const CREATED: u64 = 500_000;
/// To be pruned meanwhile, more than there is time for.
const BESIDE: u64 = 500_000;

type Failed = Box<dyn Error>;

fn main() -> Result<(), Failed> {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let asked_for = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let records = env::var("PRUNE_RECORDS").map_or(Ok(1_000_000), |text| text.replace('_', "").parse())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!(
        "{:<12} {:>12} {:>16} {:>18} {:>18} {:>8}",
        "engine", "records", "pruned/s", "creates/s alone", "beside", "ratio"
    );
    if asked_for("memory") {
        runtime.block_on(async { measure("memory", engine::open("memory://", &options()).await?, records).await })?;
    }
    if asked_for("fjall") {
        let directory = tempfile::tempdir()?;
        let url = format!("fjall://{}", directory.path().join("store").display());
        runtime.block_on(async { measure("fjall", engine::open(&url, &options()).await?, records).await })?;
    }
    if asked_for("aerospike") {
        let setup = server::Setup { durable: false, namespace: server::FIT };
        let server = server::AerospikeServer::start_own(setup).ok_or("no Aerospike")?;
        runtime.block_on(async {
            let engine = AerospikeEngine::open(&server.settings(), RULES).await?;
            measure("aerospike", Arc::new(engine), records).await
        })?;
    }
    Ok(())
}

fn options() -> OpenOptions {
    OpenOptions::new(RULES)
}

async fn measure(name: &str, engine: Arc<dyn RecordEngine>, records: u64) -> Result<(), Failed> {
    let settings = StoreSettings {
        network: Network::Regtest,
        rules: RULES,
        utxo_batch_size: 20_000,
        batch_size: BATCH,
        concurrency: IN_FLIGHT as usize,
        retry_pause: (Duration::from_millis(5), Duration::from_secs(1)),
        inline_limit: u64::MAX,
    };
    let store = Store::new(engine, settings);
    fill(&store, 0..records).await?;
    let started = Instant::now();
    let pruned = prune(&store, None).await?;
    let rate = pruned as f64 / started.elapsed().as_secs_f64();
    assert_eq!(pruned, records, "all of them are due");

    let alone = creates(&store, 1 << 40, async || std::future::pending().await).await?;
    fill(&store, records..records + BESIDE).await?;
    let beside = creates(&store, 2 << 40, async || prune(&store, Some(PACE)).await.map(drop)).await?;
    println!("{name:<12} {records:>12} {rate:>16.0} {alone:>18.0} {beside:>18.0} {:>8.2}", beside / alone);
    Ok(store.engine.close().await?)
}

/// One pass over everything; how many have gone.
async fn prune(store: &Store, pace: Option<f64>) -> Result<u64, Failed> {
    let nodes = Nodes::new(store.engine.clone(), Duration::ZERO);
    let settings = PruneSettings { keep_tombstones: Some(144), step: 512, dry_run: false, alone: false };
    let terms = Terms { height: MINED + 1 + RULES.retention, retention: RULES.retention, safe: 1 };
    let mut pass = Pass::new(settings, Under::new(terms, 0));
    loop {
        match pass.step(store, &nodes).await? {
            Step::Did(count) => {
                if let Some(pace) = pace {
                    tokio::time::sleep(Duration::from_secs_f64(count as f64 / pace)).await;
                }
            }
            Step::Done => return Ok(pass.pruned().spent),
            step => return Err(format!("the pass stands: {step:?}").into()),
        }
    }
}

/// Creates a second, while something else is done.
async fn creates(store: &Store, first: u64, beside: impl AsyncFnOnce() -> Result<(), Failed>) -> Result<f64, Failed> {
    let next = Arc::new(AtomicU64::new(first));
    let workers: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (store, next) = (store.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let from = next.fetch_add(BATCH as u64, Ordering::Relaxed);
                    if from >= first + CREATED {
                        return Ok::<(), engine::EngineError>(());
                    }
                    let rows = (from..from + BATCH as u64).map(|n| create(partial(txid_of(2, n), 1)));
                    store.apply(rows.collect()).await?;
                }
            })
        })
        .collect();
    let started = Instant::now();
    let created = async {
        for worker in workers {
            worker.await??;
        }
        Ok::<_, Failed>(())
    };
    tokio::select! {
        created = created => created?,
        ended = beside() => return Err(format!("what was beside has ended: {ended:?}").into()),
    }
    Ok(CREATED as f64 / started.elapsed().as_secs_f64())
}

/// Transactions that are all spent, with their parents and children, all mined.
async fn fill(store: &Store, numbers: std::ops::Range<u64>) -> Result<(), Failed> {
    let mut rows = Vec::new();
    for number in numbers {
        let (parent, vout) = (txid_of(0, number / OF_ONE), (number % OF_ONE) as u32);
        let mut page = spending(Outpoint { txid: parent, vout })?;
        let child = spending(Outpoint { txid: page.txid, vout: 0 })?;
        take_all(&mut page, child.txid);
        if vout == 0 {
            rows.push(create(partial(parent, OF_ONE as u32 + 1)));
        }
        rows.push(spend(parent, vout, page.txid));
        rows.push(create(mined(page, MINED)));
        rows.push(create(mined(child, MINED + 1)));
        if rows.len() >= 16 * BATCH {
            apply_in_order(store, &mut rows).await?;
        }
    }
    apply_in_order(store, &mut rows).await
}

/// Rows of one batch have no order: parents first.
async fn apply_in_order(store: &Store, rows: &mut Vec<Row>) -> Result<(), Failed> {
    let (creates, spends) = rows.drain(..).partition(|row| matches!(row.operation, Operation::Create(_)));
    store.apply(creates).await?;
    store.apply(spends).await?;
    Ok(())
}

fn create(page: Page) -> Row {
    Row { key: Key::master(page.txid), operation: Operation::Create(Arc::new(page)) }
}

fn spend(parent: Txid, vout: u32, spender: Txid) -> Row {
    let slot = utxo_store::record::SpendSlot {
        offset: vout,
        input: 0,
        utxo_hash: utxo_store::tx::utxo_hash(&parent, vout, &script(), 1_000),
        satoshis: 1_000,
        script: script(),
    };
    let spend = utxo_store::record::Spend {
        spender,
        height: MINED,
        slots: vec![slot].into(),
        marks: utxo_store::record::Marks::Respect,
        signals: false,
    };
    Row { key: Key::master(parent), operation: Operation::Spend(spend) }
}

fn txid_of(kind: u8, number: u64) -> Txid {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind]).update(&number.to_le_bytes());
    Txid(*hasher.finalize().as_bytes())
}

fn script() -> Bytes {
    Bytes::from_static(&[0x51])
}

fn setting() -> Setting {
    Setting { network: Network::Regtest, height: MINED, batch_size: 20_000, created_at: 1 }
}

fn partial(txid: Txid, outputs: u32) -> Page {
    let output = |vout| SeededOutput { vout, output: StoredOutput { satoshis: 1_000, script: script() } };
    let seed = Seed { txid, coinbase: false, outputs: (0..outputs).map(output).collect() };
    seeded_pages(&seed, &setting()).unwrap_or_else(|error| unreachable!("a seed with outputs: {error}")).master
}

/// A transaction of one output.
fn spending(outpoint: Outpoint) -> Result<Page, Failed> {
    let script = script();
    let previous = Output { satoshis: 1_000, script: &script };
    let bytes: Bytes = TransactionBuilder::default()
        .input(outpoint, &[0; 100], 0, Some(previous))
        .output(1_000, &script)
        .extended()
        .into();
    let transaction = Transaction::parse(&bytes)?;
    Ok(pages_of(&transaction, bytes.clone(), transaction.txid(), &setting(), &Start::default())?.master)
}

fn take_all(page: &mut Page, spender: Txid) {
    for slot in page.utxos.iter_mut().flatten() {
        if let Slot::Unspent(hash) = *slot {
            *slot = Slot::Spent(hash, SpendingData { txid: spender, input: 0 });
        }
    }
    page.spent_utxos = page.record_utxos;
}

fn mined(mut page: Page, height: u32) -> Page {
    if let Some(master) = &mut page.master {
        master.mined = vec![MinedIn { block_id: 0, height, subtree: 0 }];
        master.unmined_since = None;
    }
    page
}
