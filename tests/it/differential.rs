//! The same random operations on every engine: the same outcomes, and the same records in the end.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use utxo_store::{
    engine::{
        Index, RecordEngine, Row,
        aerospike::AerospikeEngine,
        conformance::{RULES, random_row},
        fjall::{FjallEngine, FjallOptions},
        memory::MemoryEngine,
    },
    record::{Key, Outcome, Record},
    seeded::Seeded,
};

use crate::aerospike_server::AerospikeServer;

const RECORDS: u64 = 50;
const STEPS: u64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_operations_on_memory_and_fjall() {
    let directory = tempfile::tempdir().unwrap();
    let options = FjallOptions { cache_bytes: 1 << 20 };
    let fjall = FjallEngine::open(directory.path(), RULES, options).unwrap();
    compare(vec![Arc::new(MemoryEngine::new(RULES)), Arc::new(fjall)], seed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_operations_on_memory_and_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let aerospike = Arc::new(AerospikeEngine::open(&server.settings(), RULES).await.unwrap());
    compare(vec![Arc::new(MemoryEngine::new(RULES)), aerospike.clone()], seed()).await;
    let work = aerospike.work();
    eprintln!("{work:?}");
    // Otherwise everything went the slow way, and the expressions were never tried.
    assert!(work.native > 20 && work.unread > 50 && work.refused > 500 && work.lost == 0, "{work:?}");
}

/// Another every day; a failure prints it, and `DIFFERENTIAL_SEED` replays it.
fn seed() -> u64 {
    match std::env::var("DIFFERENTIAL_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            now.as_secs() / Duration::from_secs(86_400).as_secs()
        }
    }
}

async fn compare(engines: Vec<Arc<dyn RecordEngine>>, seed: u64) {
    let mut seeded = Seeded::new(seed);
    let family = format!("differential {seed}");
    let mut keys = BTreeSet::new();
    for step in 0..STEPS {
        let rows: Vec<Row> = (0..RECORDS).map(|number| random_row(&mut seeded, &family, number, step)).collect();
        keys.extend(rows.iter().map(|row| row.key));
        let mut outcomes = Vec::new();
        for engine in &engines {
            outcomes.push(apply(engine.as_ref(), &rows).await);
        }
        for (number, row) in rows.iter().enumerate() {
            for (engine, outcomes_of) in engines.iter().zip(&outcomes).skip(1) {
                assert_eq!(
                    outcomes_of[number],
                    outcomes[0][number],
                    "seed {seed}, step {step}, {}, {row:?}",
                    engine.name()
                );
            }
        }
    }
    let keys: Vec<Key> = keys.into_iter().collect();
    let expected = state(engines[0].as_ref(), &keys).await;
    assert!(expected.0.iter().filter(|record| record.is_some()).count() > 20);
    for engine in &engines[1..] {
        assert_eq!(state(engine.as_ref(), &keys).await, expected, "seed {seed}, {}", engine.name());
    }
}

async fn apply(engine: &dyn RecordEngine, rows: &[Row]) -> Vec<Outcome> {
    engine.apply(rows).await.into_iter().map(Result::unwrap).collect()
}

/// Every record, and what each index finds.
async fn state(engine: &dyn RecordEngine, keys: &[Key]) -> (Vec<Option<Record>>, Vec<BTreeSet<Key>>) {
    let records = engine.read(keys).await.into_iter().map(Result::unwrap).collect();
    let mut found = Vec::new();
    for index in [Index::DeleteAtHeight, Index::UnminedSince, Index::CreatingAt] {
        found.push(engine.query(index, 0, u64::MAX, usize::MAX).await.unwrap().into_iter().collect());
    }
    (records, found)
}
