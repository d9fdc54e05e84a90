//! Forgetting: alone, and beside transactions that come in.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;
use utxo_store::{
    engine::Row,
    record::{Key, MinedIn, Operation, Page, Slot, SpendingData},
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
    size,
};

const MINED: u32 = 100;
/// Transactions that spend one parent, of which an output is never spent: what most transactions have is two or three.
const OF_ONE: u64 = 2;
/// Pruned while others come in: more than there is time for.
const BESIDE: u64 = 500_000;

/// Each transaction that goes has one parent, whose slot is marked, and one child, which is asked for.
pub async fn prune(name: &str, instance: &Instance) {
    let (records, incoming) = (size("CHAIN_PRUNED", 1_000_000), size("CHAIN_INCOMING", 300_000));
    // The default of `prune.per_second`.
    let pace = size("CHAIN_PACE", 1_000) as f64;
    fill(&instance.store, 0..records).await;
    let measured = Measured::begin();
    assert_eq!(pass(&instance.store, None).await, records, "all of them are due");
    measured.print(name, records);

    let alone = ingest(instance, "  ingest alone", 1 << 40, incoming).await;
    fill(&instance.store, records..records + BESIDE).await;
    let store = instance.store.clone();
    let pruning = tokio::spawn(async move { pass(&store, Some(pace)).await });
    let beside = ingest(instance, "  ingest beside it", 2 << 40, incoming).await;
    assert!(!pruning.is_finished(), "there was not enough to prune");
    pruning.abort();
    println!("  beside, of alone: {:.2}", beside / alone);
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

/// One pass over everything, at so many a second; how many have gone.
async fn pass(store: &Store, pace: Option<f64>) -> u64 {
    let nodes = Nodes::new(store.engine.clone(), Duration::ZERO);
    let settings = PruneSettings { keep_tombstones: Some(144), step: 512, dry_run: false, alone: false };
    let terms = Terms { height: MINED + 1 + RULES.retention, retention: RULES.retention, safe: 1 };
    let mut pass = Pass::new(settings, Under::new(terms, 0));
    loop {
        match pass.step(store, &nodes).await.expect("the store answers") {
            Step::Did(count) => {
                if let Some(pace) = pace {
                    tokio::time::sleep(Duration::from_secs_f64(count as f64 / pace)).await;
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
