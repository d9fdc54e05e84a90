//! Pruning: alone, and beside incoming transactions.

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
        StateStore,
        prune::{PruneBasis, PrunePass, PruneSettings, PruneStep, PruneTerms},
        restart_detector::RestartDetector,
    },
    telemetry::Completion,
    tx::{Transaction, Txid},
};

use crate::{
    MESSAGES_PER_CALL, Measured, RULES, create_coins,
    events::{MadeTx, page_of, seed},
    instance::{Instance, TXS},
    measure::env_number,
};

const MINED: u32 = 100;
/// Transactions that spend one parent, which keeps one unspent output: most real transactions have two or three
/// outputs.
const SPENDERS_PER_PARENT: u64 = 2;
/// Seconds of prunable records while transactions come in: more than the ingest takes.
const PRUNABLE_SECONDS: u64 = 60;

/// Prunes transactions with one parent, whose slot is marked, and one child, which is read.
pub async fn prune(name: &str, instance: &Instance) {
    let (records, incoming) = (env_number("CHAIN_PRUNED", 1_000_000), env_number("CHAIN_INCOMING", 300_000));
    // The default is that of `prune.per_second`.
    let per_second = env_number("CHAIN_PACE", 1_000);
    fill(&instance.store, 0..records).await;
    let measured = Measured::begin();
    assert_eq!(run_pass(&instance.store, None, &AtomicU64::new(0)).await, records, "all of them are due");
    measured.print(name, records);

    // Compaction after the fill must not count as pruning: the fill comes before both measurements, and ingest alone is
    // measured before and after.
    fill(&instance.store, records..records + PRUNABLE_SECONDS * per_second).await;
    let alone = ingest(instance, "  ingest alone", 1 << 40, incoming).await;
    let (store, pruned) = (instance.store.clone(), Arc::new(AtomicU64::new(0)));
    let pruning = tokio::spawn({
        let pruned = pruned.clone();
        async move { run_pass(&store, Some(per_second), &pruned).await }
    });
    // Marked records wait until enough of them can become tombstones.
    while pruned.load(Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = pruned.load(Relaxed);
    let beside = ingest(instance, "  ingest beside it", 2 << 40, incoming).await;
    println!("  buried meanwhile: {}", pruned.load(Relaxed) - before);
    assert!(!pruning.is_finished(), "there was not enough to prune");
    pruning.abort();
    let again = ingest(instance, "  ingest alone again", 3 << 40, incoming).await;
    println!("  beside, of alone: {:.2}", 2.0 * beside / (alone + again));
}

/// Returns the transactions per second.
async fn ingest(instance: &Instance, name: &str, first: u64, count: u64) -> f64 {
    let coins = create_coins(instance, first, count).await;
    let events: Vec<_> = coins.into_iter().map(|coin| MadeTx::spending(coin, 2, 0).event()).collect();
    let before = instance.metrics.completed.of(Completion::Live).get();
    let (measured, started) = (Measured::begin(), Instant::now());
    instance.publish(TXS, events).await;
    instance.wait_until_completed(Completion::Live, before + count).await;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    measured.print(name, count);
    rate
}

/// Runs one pass at this rate; returns the number of pruned records, which `pruned` also counts meanwhile.
async fn run_pass(store: &StateStore, per_second: Option<u64>, pruned: &AtomicU64) -> u64 {
    let nodes = RestartDetector::new(store.engine.clone(), Duration::ZERO);
    let settings = PruneSettings { keep_tombstones: Some(144), step_size: 512, dry_run: false, is_exclusive: false };
    let task = per_second.map(|per_second| PruneTask { per_second: per_second as u32, pass: settings });
    let terms = PruneTerms { height: MINED + 1 + RULES.retention, retention: RULES.retention, committed: 1 };
    let mut pass = PrunePass::new(settings, PruneBasis::new(terms, 0));
    loop {
        match pass.step(store, &nodes).await.expect("the store answers") {
            PruneStep::Progressed(count) => {
                pruned.store(pass.pruned().spent, Relaxed);
                if let Some(task) = task {
                    tokio::time::sleep(task.pause_after(count)).await;
                }
            }
            PruneStep::Done => return pass.pruned().spent,
            step => unreachable!("nothing is to be waited for: {step:?}"),
        }
    }
}

/// Creates mined transactions whose outputs are all spent, with their parents and children.
async fn fill(store: &StateStore, numbers: std::ops::Range<u64>) {
    let mut rows = Vec::new();
    for parent in numbers.start / SPENDERS_PER_PARENT..numbers.end.div_ceil(SPENDERS_PER_PARENT) {
        let (row, coins) = seed(parent, SPENDERS_PER_PARENT as u32 + 1);
        let Operation::Create(page) = row.operation else { unreachable!("a seed is created") };
        let mut page = Page::clone(&page);
        for (coin, slot) in coins.into_iter().zip(page.utxos.iter_mut().flatten()).take(SPENDERS_PER_PARENT as usize) {
            let made = MadeTx::spending(coin, 1, 0);
            let child = MadeTx::spending(made.coins[0], 1, 0);
            spend_slot(slot, made.txid);
            rows.push(mined_row(&made, MINED, Some(child.txid)));
            rows.push(mined_row(&child, MINED + 1, None));
        }
        page.spent_utxos = SPENDERS_PER_PARENT as u32;
        rows.push(create(page));
        if rows.len() >= MESSAGES_PER_CALL {
            store.apply(std::mem::take(&mut rows)).await.expect("created");
        }
    }
    store.apply(rows).await.expect("created");
}

fn mined_row(made: &MadeTx, height: u32, spender: Option<Txid>) -> Row {
    let transaction = Transaction::parse(&made.extended).expect("made by the builder");
    let mut page = page_of(&transaction, Bytes::copy_from_slice(&made.extended));
    if let Some(master) = &mut page.master {
        master.mined = vec![MinedIn { block_id: 0, height, subtree: 0 }];
        master.unmined_since = None;
    }
    if let (Some(spender), Some(slots)) = (spender, &mut page.utxos) {
        slots.iter_mut().for_each(|slot| spend_slot(slot, spender));
        page.spent_utxos = page.record_utxos;
    }
    create(page)
}

fn spend_slot(slot: &mut Slot, spender: Txid) {
    if let Slot::Unspent(hash) = *slot {
        *slot = Slot::Spent(hash, SpendingData { txid: spender, input: 0 });
    }
}

fn create(page: Page) -> Row {
    Row { key: Key::master(page.txid), operation: Operation::Create(Arc::new(page)) }
}
