//! Forgetting: alone, and beside transactions that come in.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;
use utxo_store::{
    engine::Row,
    record::{Key, MinedIn, Operation, Page, Slot, SpendingData},
    sequencer::PruneTask,
    store::{
        Store,
        nodes::Nodes,
        prune::{Pass, PruneSettings, Step, Terms, Under},
    },
    telemetry::Completion,
    tx::{Transaction, Txid},
};

use crate::{
    AT_ONCE, Measured, RULES, coins,
    events::{Made, page_of, seed},
    instance::{Instance, TXS},
    measure::size,
};

const MINED: u32 = 100;
/// Transactions that spend one parent, of which an output is never spent: what most transactions have is two or three.
const OF_ONE: u64 = 2;
/// For how many seconds there is something to prune while others come in: more than that takes.
const SECONDS: u64 = 60;

/// Each transaction that goes has one parent, whose slot is marked, and one child, which is asked for.
pub async fn prune(name: &str, instance: &Instance) {
    let (records, incoming) = (size("CHAIN_PRUNED", 1_000_000), size("CHAIN_INCOMING", 300_000));
    // The default of `prune.per_second`.
    let pace = size("CHAIN_PACE", 1_000);
    fill(&instance.store, 0..records).await;
    let measured = Measured::begin();
    assert_eq!(pass(&instance.store, None, &AtomicU64::new(0)).await, records, "all of them are due");
    measured.print(name, records);

    // What the store does of itself after so many writes (compaction) must not count as pruning: the fill comes before both, and what
    // stands alone is measured on both sides.
    fill(&instance.store, records..records + SECONDS * pace).await;
    let alone = ingest(instance, "  ingest alone", 1 << 40, incoming).await;
    let (store, gone) = (instance.store.clone(), Arc::new(AtomicU64::new(0)));
    let pruning = tokio::spawn({
        let gone = gone.clone();
        async move { pass(&store, Some(pace), &gone).await }
    });
    // What is marked first waits until there is enough to bury.
    while gone.load(Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = gone.load(Relaxed);
    let beside = ingest(instance, "  ingest beside it", 2 << 40, incoming).await;
    println!("  buried meanwhile: {}", gone.load(Relaxed) - before);
    assert!(!pruning.is_finished(), "there was not enough to prune");
    pruning.abort();
    let again = ingest(instance, "  ingest alone again", 3 << 40, incoming).await;
    println!("  beside, of alone: {:.2}", 2.0 * beside / (alone + again));
}

/// Transactions a second.
async fn ingest(instance: &Instance, name: &str, first: u64, count: u64) -> f64 {
    let coins = coins(instance, first, count).await;
    let events: Vec<_> = coins.into_iter().map(|coin| Made::spending(coin, 2, 0).event()).collect();
    let before = instance.metrics.completed.of(Completion::Live).get();
    let (measured, started) = (Measured::begin(), Instant::now());
    instance.publish(TXS, events).await;
    instance.until_completed(Completion::Live, before + count).await;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    measured.print(name, count);
    rate
}

/// One pass over everything, at so many a second; how many have gone, `gone` so far.
async fn pass(store: &Store, pace: Option<u64>, gone: &AtomicU64) -> u64 {
    let nodes = Nodes::new(store.engine.clone(), Duration::ZERO);
    let settings = PruneSettings { keep_tombstones: Some(144), step: 512, dry_run: false, alone: false };
    let task = pace.map(|pace| PruneTask { per_second: pace as u32, pass: settings });
    let terms = Terms { height: MINED + 1 + RULES.retention, retention: RULES.retention, safe: 1 };
    let mut pass = Pass::new(settings, Under::new(terms, 0));
    loop {
        match pass.step(store, &nodes).await.expect("the store answers") {
            Step::Did(count) => {
                gone.store(pass.pruned().spent, Relaxed);
                if let Some(task) = task {
                    tokio::time::sleep(task.rest_after(count)).await;
                }
            }
            Step::Done => return pass.pruned().spent,
            step => unreachable!("nothing is to be waited for: {step:?}"),
        }
    }
}

/// Transactions that are all spent, with their parents and children, all of them mined.
async fn fill(store: &Store, numbers: std::ops::Range<u64>) {
    let mut rows = Vec::new();
    for parent in numbers.start / OF_ONE..numbers.end.div_ceil(OF_ONE) {
        let (row, coins) = seed(parent, OF_ONE as u32 + 1);
        let Operation::Create(page) = row.operation else { unreachable!("a seed is created") };
        let mut page = Page::clone(&page);
        for (coin, slot) in coins.into_iter().zip(page.utxos.iter_mut().flatten()).take(OF_ONE as usize) {
            let made = Made::spending(coin, 1, 0);
            let child = Made::spending(made.coins[0], 1, 0);
            take(slot, made.txid);
            rows.push(mined(&made, MINED, Some(child.txid)));
            rows.push(mined(&child, MINED + 1, None));
        }
        page.spent_utxos = OF_ONE as u32;
        rows.push(create(page));
        if rows.len() >= AT_ONCE {
            store.apply(std::mem::take(&mut rows)).await.expect("created");
        }
    }
    store.apply(rows).await.expect("created");
}

fn mined(made: &Made, height: u32, spender: Option<Txid>) -> Row {
    let transaction = Transaction::parse(&made.extended).expect("made by the builder");
    let mut page = page_of(&transaction, Bytes::copy_from_slice(&made.extended));
    if let Some(master) = &mut page.master {
        master.mined = vec![MinedIn { block_id: 0, height, subtree: 0 }];
        master.unmined_since = None;
    }
    if let (Some(spender), Some(slots)) = (spender, &mut page.utxos) {
        slots.iter_mut().for_each(|slot| take(slot, spender));
        page.spent_utxos = page.record_utxos;
    }
    create(page)
}

fn take(slot: &mut Slot, spender: Txid) {
    if let Slot::Unspent(hash) = *slot {
        *slot = Slot::Spent(hash, SpendingData { txid: spender, input: 0 });
    }
}

fn create(page: Page) -> Row {
    Row { key: Key::master(page.txid), operation: Operation::Create(Arc::new(page)) }
}
