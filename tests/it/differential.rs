//! The same random operations on every engine give the same outcomes and the same records.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use utxo_store::{
    engine::{
        Index, RecordEngine, Row,
        aerospike::{AerospikeEngine, AerospikeSettings, Layout},
        conformance::{RULES, random_row},
        fjall::{FjallEngine, FjallOptions},
        memory::MemoryEngine,
    },
    record::{Key, Outcome, Record},
    rng::SplitMix64,
};

use crate::aerospike_server::{AerospikeServer, FIT, Setup};

const RECORDS: u64 = 50;
const STEPS: u64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_and_fjall_agree_on_ten_thousand_operations() {
    let directory = tempfile::tempdir().unwrap();
    let options = FjallOptions { cache_bytes: 1 << 20 };
    let fjall = FjallEngine::open(directory.path(), RULES, options).unwrap();
    compare(vec![Arc::new(MemoryEngine::new(RULES)), Arc::new(fjall)], seed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_and_aerospike_agree_on_ten_thousand_operations() {
    let Some(server) = AerospikeServer::start() else { return };
    for layout in [Layout::Compact, Layout::Teranode] {
        let settings = AerospikeSettings { layout: Some(layout), ..server.settings() };
        let aerospike = Arc::new(AerospikeEngine::open(&settings, RULES).await.unwrap());
        compare(vec![Arc::new(MemoryEngine::new(RULES)), aerospike.clone()], seed()).await;
        let counts = aerospike.group_counts();
        eprintln!("{layout}: {counts:?}");
        // Otherwise every operation was read first, and the filter expressions were never tried.
        assert!(counts.native > 20 && counts.blind_writes > 50, "{counts:?}");
        assert!(counts.refused > 500 && counts.lost_races == 0, "{counts:?}");
    }
}

/// Seeds on one set, which share blocks and the meta record.
const SEEDS_OF_SET: u64 = 20;
/// Sets of one server: a namespace has 256 secondary indexes at most, and a set has four.
const SETS_OF_SERVER: u64 = 60;

/// Compares `SEEDS` seeds from `FROM` on with the server itself, ten thousand operations each, in the layout `LAYOUT`.
/// A failure is repeated from the first seed of its set on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes as long as SEEDS says"]
async fn memory_and_aerospike_agree_for_many_seeds() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (from, count) = (number("FROM", 1), number("SEEDS", 100));
    let layout = std::env::var("LAYOUT").map_or(Layout::Compact, |layout| layout.parse().unwrap());
    let start = || AerospikeServer::start_own(Setup { durable: false, namespace: FIT });
    let Some(mut server) = start() else { return };
    let sets = (from..from + count).step_by(SEEDS_OF_SET as usize);
    for (number, first) in (0..).zip(sets) {
        if number > 0 && number % SETS_OF_SERVER == 0 {
            server = start().unwrap();
        }
        let last = (first + SEEDS_OF_SET).min(from + count) - 1;
        eprintln!("{layout}, seeds {first} to {last}");
        let settings = AerospikeSettings { layout: Some(layout), ..server.settings() };
        let aerospike = Arc::new(AerospikeEngine::open(&settings, RULES).await.unwrap());
        let memory = Arc::new(MemoryEngine::new(RULES));
        for seed in first..=last {
            compare(vec![memory.clone(), aerospike.clone()], seed).await;
        }
        let counts = aerospike.group_counts();
        eprintln!("{counts:?}");
        let seeds = last - first + 1;
        assert!(counts.native > 20 * seeds && counts.blind_writes > 50 * seeds, "{counts:?}");
        assert!(counts.refused > 500 * seeds && counts.lost_races == 0, "{counts:?}");
    }
}

#[cfg(feature = "sql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_and_the_databases_agree_on_ten_thousand_operations() {
    let directory = tempfile::tempdir().unwrap();
    let file = crate::sql::open(&format!("sqlite://{}/store", directory.path().display())).await;
    let mut engines: Vec<Arc<dyn RecordEngine>> = vec![Arc::new(MemoryEngine::new(RULES)), file];
    engines.push(crate::sql::open("sqlitememory:///differential").await);
    if let Some(database) = crate::postgres_server::shared_database() {
        engines.push(crate::sql::open(&database.url()).await);
    }
    compare(engines, seed()).await;
}

/// Returns the day as the seed; a failure prints the seed, and `DIFFERENTIAL_SEED` replays it.
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
    let mut seeded = SplitMix64::new(seed);
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

/// Returns every record, and the keys that each index finds.
async fn state(engine: &dyn RecordEngine, keys: &[Key]) -> (Vec<Option<Record>>, Vec<BTreeSet<Key>>) {
    let records = engine.read(keys).await.into_iter().map(Result::unwrap).collect();
    let mut found = Vec::new();
    for index in [Index::DeleteAtHeight, Index::UnminedSince, Index::CreatingAt] {
        found.push(engine.query(index, 0, u64::MAX, usize::MAX).await.unwrap().into_iter().collect());
    }
    (records, found)
}
