//! Records that the reference system's own store wrote, step by step (`tests/data/reference-records.json`), against the
//! records that the engine writes for the same steps: bin for bin, with types. Each intended difference has a name here
//! and a line in `schemas/records.md`.

mod differences;
pub mod plain;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;
use utxo_store::{
    engine::{
        RecordEngine,
        aerospike::{AerospikeEngine, AerospikeSettings, Layout},
    },
    record::{Outcome, Rules},
};

use crate::aerospike_server::AerospikeServer;

/// Settings under which the reference wrote its records.
const RULES: Rules = Rules::main(10);
const BATCH_SIZE: u32 = 5;

/// Name of a record in a step: transaction, page.
type Name = (String, u32);
/// Typed values by bin, in the form of the file.
pub type Bins = BTreeMap<String, Json>;

/// One step of the reference file.
struct Step {
    title: String,
    /// Records after the step; `None` stands for a deleted record.
    records: BTreeMap<Name, Option<Bins>>,
    /// User keys of these records.
    keys: BTreeMap<Name, Vec<u8>>,
}

fn file() -> Json {
    serde_json::from_str(include_str!("../../data/reference-records.json")).unwrap()
}

fn all_steps(file: &Json) -> Vec<Step> {
    let records = |step: &Json| step["records"].as_array().cloned().unwrap_or_default();
    let name = |record: &Json| (text(&record["tx"]), record["record"].as_u64().unwrap() as u32);
    let bins = |record: &Json| -> Option<Bins> {
        Some(record.get("bins")?.as_object().unwrap().clone().into_iter().collect())
    };
    let step = |step: &Json| Step {
        title: text(&step["title"]),
        records: records(step).iter().map(|record| (name(record), bins(record))).collect(),
        keys: records(step)
            .iter()
            .filter_map(|record| Some((name(record), hex::decode(record.get("key")?.as_str()?).unwrap())))
            .collect(),
    };
    file["steps"].as_array().unwrap().iter().map(step).collect()
}

fn text(value: &Json) -> String {
    value.as_str().unwrap().to_owned()
}

/// Records from which a step starts.
#[derive(Clone, Copy, PartialEq)]
enum Start {
    /// The records that the engine wrote in earlier steps.
    Own,
    /// The records of the reference after the earlier steps, written by the plain client.
    Reference,
}

/// Runs every step and returns the differences found.
async fn replay(start: Start) -> Option<BTreeSet<&'static str>> {
    let server = AerospikeServer::start()?;
    let settings = AerospikeSettings { layout: Some(Layout::Teranode), ..server.settings() };
    let engine = AerospikeEngine::open(&settings, RULES).await.unwrap();
    let plain = plain::Plain::connect(&settings).await;
    let file = file();
    let transactions = steps::Transactions::of(&file);
    let (mut keys, mut left) = (BTreeMap::new(), BTreeMap::<Name, Bins>::new());
    let mut met = BTreeSet::new();
    for step in all_steps(&file) {
        keys.extend(step.keys.clone());
        if start == Start::Reference {
            for (name, bins) in left.iter().filter(|(name, _)| step.records.contains_key(*name)) {
                plain.replace(&keys[name], bins).await;
            }
        }
        for rows in transactions.rows(&step.title) {
            for (row, answer) in rows.iter().zip(engine.apply(&rows).await) {
                assert!(answer.as_ref().is_ok_and(Outcome::is_done), "{}: {row:?}: {answer:?}", step.title);
            }
        }
        for (name, theirs) in &step.records {
            let ours = plain.read(&keys[name]).await;
            let place = format!("{}: {name:?}", step.title);
            met.extend(differences::compare(&place, theirs.as_ref(), ours.as_ref()));
        }
        left.extend(step.records.into_iter().filter_map(|(name, bins)| Some((name, bins?))));
    }
    engine.close().await.unwrap();
    Some(met)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_writes_what_the_reference_writes() {
    let Some(met) = replay(Start::Own).await else { return };
    let mut named: BTreeSet<_> = differences::ALL.iter().map(|difference| difference.name).collect();
    named.remove(differences::COUNTED_AGAIN);
    assert_eq!(met, named, "every named difference must occur");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_continues_with_records_of_the_reference() {
    let Some(met) = replay(Start::Reference).await else { return };
    assert!(met.contains(differences::COUNTED_AGAIN), "{met:?}");
}

#[test]
fn every_difference_is_documented() {
    let document = include_str!("../../../schemas/records.md");
    let (_, section) = document.split_once("## Where this differs from the reference").unwrap();
    let documented: BTreeSet<&str> =
        section.lines().filter_map(|line| line.strip_prefix("- `")?.split_once('`')).map(|(name, _)| name).collect();
    let named: BTreeSet<&str> = differences::ALL.iter().map(|difference| difference.name).collect();
    assert_eq!(documented, named);
}
