//! A process that writes to a database is killed in the middle of batches: acknowledged batches are there, and every
//! record is whole.
//!
//! The killed process is this test binary, started with an environment variable; in the last test the demo kills a
//! process of its own.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use utxo_store::{
    engine::{Index, RecordEngine, Row, Set},
    record::{Key, Page, Record},
};

use crate::{demo, postgres_server, sql};

const KILLED_ON: &str = "UTXO_STORE_TEST_SQL_KILLED_ON";
const KILLED_FROM: &str = "UTXO_STORE_TEST_SQL_KILLED_FROM";
/// Blocks of the demo.
const BLOCKS: u64 = 1_200;
/// Transactions of a batch. The batch creates each transaction and spends one of its slots.
const BATCH: u32 = 50;

fn batch(number: u32) -> Vec<Row> {
    (number * BATCH..(number + 1) * BATCH).flat_map(|n| [sql::create(n, 3), sql::spend(n, 1, n + 1_000_000)]).collect()
}

/// The child's main function, not a test. Several tasks write, so that groups have rows of several calls.
#[test]
fn write_until_killed() {
    let Ok(url) = std::env::var(KILLED_ON) else { return };
    let from: u32 = std::env::var(KILLED_FROM).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = sql::open(&url).await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..4 {
            let engine = engine.clone();
            tasks.spawn(async move {
                for number in (from + task..).step_by(4) {
                    let answers = engine.apply(&batch(number)).await;
                    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_done()));
                    println!("acknowledged {number}");
                }
            });
        }
        tasks.join_all().await;
    });
}

/// Runs the child until it has acknowledged `count` batches, kills it, and returns the acknowledged batches.
fn kill_after(url: &str, from: u32, count: usize) -> Vec<u32> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sql_kills::write_until_killed", "--nocapture", "--test-threads=1"])
        .env(KILLED_ON, url)
        .env(KILLED_FROM, from.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut acknowledged, mut killed) = (Vec::new(), false);
    while let Some(Ok(line)) = lines.next() {
        acknowledged.extend(line.split_once("acknowledged ").and_then(|(_, number)| number.parse::<u32>().ok()));
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
fn is_whole(page: &Page, number: u32) -> bool {
    let created = sql::page(number, 3);
    let spender = page.utxos.as_ref().unwrap()[1].spender();
    page.body() == created.body()
        && match spender {
            None => *page == created,
            Some(spender) => spender.txid == sql::txid(number + 1_000_000) && page.spent_utxos == 1,
        }
}

async fn assert_batches_survive_kills(url: &str) {
    let mut acknowledged = Vec::new();
    for (round, count) in [1, 5, 30, 60, 90].into_iter().enumerate() {
        acknowledged.extend(kill_after(url, round as u32 * 10_000, count));
        let engine = sql::open(url).await;
        let mut numbers = BTreeMap::new();
        for round in 0..=round as u32 {
            numbers.extend((round * 500_000..round * 500_000 + 50_000).map(|number| (sql::txid(number), number)));
        }
        let records = scan(engine.as_ref()).await;
        for (key, record) in &records {
            let page = record.page().unwrap();
            assert!(is_whole(page, numbers[&key.txid().unwrap()]), "{page:?}");
        }
        for number in acknowledged.iter().flat_map(|batch| batch * BATCH..(batch + 1) * BATCH) {
            let page = records[&Key::master(sql::txid(number))].page().unwrap();
            assert_eq!(page.spent_utxos, 1, "an acknowledged spend");
        }
        let found = engine.query(Index::UnminedSince, 0, u64::MAX, usize::MAX).await.unwrap();
        assert_eq!(found.len(), records.len());
        engine.close().await.unwrap();
    }
}

async fn scan(engine: &dyn RecordEngine) -> BTreeMap<Key, Record> {
    let (mut records, mut cursor) = (BTreeMap::new(), None);
    loop {
        let page = engine.scan(Set::Transactions, cursor, 1_000).await.unwrap();
        records.extend(page.records);
        cursor = page.next;
        if cursor.is_none() {
            return records;
        }
    }
}

#[tokio::test]
async fn acknowledged_batches_survive_sigkill_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    assert_batches_survive_kills(&format!("sqlite://{}/store", folder.path().display())).await;
}

#[tokio::test]
async fn acknowledged_batches_survive_sigkill_on_postgres() {
    let Some(database) = postgres_server::shared_database() else { return };
    assert_batches_survive_kills(&database.url()).await;
}

/// Protects: the demo, whose process is killed three times, ends as its rebuild.
#[test]
fn demos_with_kills_pass_on_both_databases() {
    let folder = tempfile::tempdir().unwrap();
    // The first blocks of the main chain, each behind eight bytes with its length: more events than two kills can miss.
    let all = std::fs::read(demo::data("mainnet-0-4312.blk")).unwrap();
    let mut end = 0;
    for _ in 0..BLOCKS {
        end += 8 + u32::from_le_bytes(all[end + 4..end + 8].try_into().unwrap()) as usize;
    }
    let blocks = folder.path().join("first.blk");
    std::fs::write(&blocks, &all[..end]).unwrap();
    let mut urls = vec![format!("sqlite://{}/store", folder.path().display())];
    urls.extend(postgres_server::shared_database().map(|database| database.url()));
    for url in urls {
        let args = ["--blocks", blocks.to_str().unwrap(), "--kills", "3", "--seed", "7", "--store", &url];
        let report = demo::shown(&args);
        demo::assert_counts(&report, &[("blocks", BLOCKS), ("kills", 3)]);
        assert!(report["kills_midway"].as_u64().unwrap() > 0, "{report}");
    }
}
