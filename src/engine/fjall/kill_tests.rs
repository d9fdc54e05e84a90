//! Durability under SIGKILL: a child process writes and is killed, and the test looks for every acknowledged batch.
//!
//! The child is this test binary, started with an environment variable.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use super::*;
use crate::{
    engine::{conformance::fixtures::*, local::index_values},
    record::{Body, Page},
    tx::Txid,
};

const DIRECTORY: &str = "UTXO_STORE_TEST_KILLED_IN";
const RULES: Rules = Rules::main(288);
/// Transactions of a batch. The batch creates each transaction and spends one of its slots.
const BATCH: u64 = 50;

fn open(directory: &Path) -> FjallEngine {
    FjallEngine::open(directory, RULES, FjallOptions { cache_bytes: 1 << 20 }).unwrap()
}

fn transaction(number: u64) -> Txid {
    txid_of("killed", number)
}

fn spender(number: u64) -> Txid {
    txid_of("killer", number)
}

fn batch(number: u64) -> Vec<Row> {
    let rows = |n| {
        let txid = transaction(n);
        [
            create(page_with_transaction(txid, 3)),
            Row { key: Key::master(txid), operation: spend_operation(spender(n), &[1]) },
        ]
    };
    (number * BATCH..(number + 1) * BATCH).flat_map(rows).collect()
}

/// The child's main function, not a test. Several tasks write, so that write groups have rows of several calls.
#[test]
fn run_child() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = Arc::new(open(Path::new(&directory)));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..4 {
            let engine = engine.clone();
            tasks.spawn(async move {
                for number in (task..).step_by(4) {
                    let answers = engine.apply(&batch(number)).await;
                    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_done()));
                    println!("acknowledged {number}");
                }
            });
        }
        while tasks.join_next().await.is_some() {}
    });
}

/// Runs the child until it has acknowledged `count` batches, kills it, and returns the acknowledged batches.
fn kill_after(directory: &Path, count: usize) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "engine::fjall::kill_tests::run_child", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    let mut killed = false;
    // The rest of the pipe is read after the kill: these batches are acknowledged, too.
    while let Some(Ok(line)) = lines.next() {
        acknowledged.extend(line.split_once("acknowledged ").and_then(|(_, number)| number.parse::<u64>().ok()));
        if acknowledged.len() >= count && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child ended by itself");
    acknowledged
}

/// Returns whether a page is as the whole batch leaves it, or as the create alone does.
fn is_whole(page: &Page, number: u64) -> bool {
    let master = page.master.as_ref().unwrap();
    let by = page.utxos.as_ref().unwrap()[1].spender();
    let unspent = page_with_transaction(transaction(number), 3);
    matches!(&master.body, Some(Body::Transaction(_)))
        && master.body == unspent.master.as_ref().unwrap().body
        && (by.is_none() && page.spent_utxos == 0
            || by == Some(held_slot(1, spender(number)).holder) && page.spent_utxos == 1)
}

#[tokio::test]
async fn acknowledged_batches_survive_sigkill() {
    for count in [1, 30, 90] {
        let directory = tempfile::tempdir().unwrap();
        let acknowledged = kill_after(directory.path(), count);
        let engine = open(directory.path());
        for number in &acknowledged {
            for n in number * BATCH..(number + 1) * BATCH {
                let record = engine.read(&[Key::master(transaction(n))]).await.remove(0).unwrap();
                let page = record.as_ref().and_then(Record::page).expect("an acknowledged create");
                assert_eq!(page.spent_utxos, 1, "an acknowledged spend");
                assert!(is_whole(page, n));
            }
        }
        check_all(&engine, acknowledged.len()).await;
    }
}

/// Checks that unacknowledged records are whole, too, and that the indexes name exactly the stored records.
async fn check_all(engine: &FjallEngine, acknowledged: usize) {
    let records = engine.scan(Set::Transactions, None, usize::MAX).await.unwrap().records;
    assert!(records.len() >= acknowledged * BATCH as usize);
    let numbers: std::collections::BTreeMap<Txid, u64> = (0..1 << 16).map(|n| (transaction(n), n)).collect();
    let mut unmined = Vec::new();
    for (key, record) in &records {
        let page = record.page().unwrap();
        assert!(is_whole(page, numbers[&page.txid]), "{page:?}");
        unmined.extend(index_values(Some(record))[Index::UnminedSince as usize].map(|value| (value, *key)));
    }
    unmined.sort();
    let found = engine.query(Index::UnminedSince, 0, u64::MAX, usize::MAX).await.unwrap();
    assert_eq!(found, unmined.into_iter().map(|(_, key)| key).collect::<Vec<_>>());
    for empty in [Index::CreatingAt, Index::DeleteAtHeight] {
        assert_eq!(engine.query(empty, 0, u64::MAX, usize::MAX).await.unwrap(), []);
    }
}
