//! Fjall alone: the writes that the pipeline caused, made again without the pipeline, without the record operations and
//! without a single read.

use std::{collections::HashMap, time::Instant};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use serde::{Deserialize, Serialize};
use utxo_store::{
    engine::Row,
    record::{self, Key, Record, codec},
};

use crate::{
    generator::Generator,
    measure,
    run::{RULES, creates, scratch},
};

/// What fjall alone took.
#[derive(Debug, Serialize, Deserialize)]
pub struct Raw {
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub syncs: u64,
    /// Keys written, those of indexes too.
    pub writes: u64,
}

/// One key and its value, encoded beforehand.
struct Write {
    keyspace: usize,
    key: Vec<u8>,
    value: Vec<u8>,
}

const RECORDS: usize = 0;
/// Records, and the three indexes.
const KEYSPACES: [&str; 4] = ["records", "index_delete_at_height", "index_unmined_since", "index_creating_at"];

/// Makes the writes of `rows` on an equally filled store, in as many synced batches as the engine made.
pub fn same_writes(generator: &Generator, rows: &[Row], syncs: u64) -> Raw {
    let directory = scratch();
    // As the engine opens it.
    let database = Database::builder(directory.path()).cache_size(256 << 20).open().expect("a new store");
    let keyspaces = KEYSPACES.map(|name| database.keyspace(name, KeyspaceCreateOptions::default).expect("a keyspace"));

    let mut model = Model::default();
    for messages in generator.from_before() {
        commit(&database, &keyspaces, model.writes_of(&creates(&messages)));
    }
    let group = rows.len().div_ceil(syncs.max(1) as usize).max(1);
    let groups: Vec<Vec<Write>> = rows.chunks(group).map(|rows| model.writes_of(rows)).collect();
    drop(model);

    let (writes, syncs) = (groups.iter().map(|group| group.len() as u64).sum(), groups.len() as u64);
    let (started, cpu_before) = (Instant::now(), measure::cpu());
    for group in groups {
        commit(&database, &keyspaces, group);
    }
    Raw {
        seconds: started.elapsed().as_secs_f64(),
        cpu_seconds: (measure::cpu() - cpu_before).as_secs_f64(),
        syncs,
        writes,
    }
}

fn commit(database: &Database, keyspaces: &[Keyspace], writes: Vec<Write>) {
    let mut batch = database.batch().durability(Some(PersistMode::SyncData));
    for Write { keyspace, key, value } in &writes {
        batch.insert(&keyspaces[*keyspace], key.as_slice(), value.as_slice());
    }
    batch.commit().expect("written");
}

/// The records as the rows so far have left them.
#[derive(Default)]
struct Model(HashMap<Key, Option<Record>>);

impl Model {
    /// What a group of rows writes: each record that changed once, and what changed in the indexes.
    fn writes_of(&mut self, rows: &[Row]) -> Vec<Write> {
        let mut touched: Vec<(Key, [Option<u64>; 3])> = Vec::new();
        let mut seen = HashMap::new();
        for row in rows {
            let record = self.0.entry(row.key).or_default();
            let before = index_values(record.as_ref());
            if record::apply(&RULES, &row.key, record, &row.operation).changed {
                seen.entry(row.key).or_insert_with(|| touched.push((row.key, before)));
            }
        }
        touched.iter().flat_map(|(key, before)| self.writes_to(key, before)).collect()
    }

    fn writes_to(&self, key: &Key, before: &[Option<u64>; 3]) -> Vec<Write> {
        let (Key::Page(txid, 0), Some(Some(record))) = (key, self.0.get(key)) else {
            panic!("the pipeline writes one-page transactions only");
        };
        let mut value = Vec::new();
        codec::encode(record, &mut value);
        let mut writes = vec![Write { keyspace: RECORDS, key: txid.0.to_vec(), value }];
        for (place, (before, after)) in before.iter().zip(index_values(Some(record))).enumerate() {
            assert!(before.is_none() || *before == after, "nothing leaves an index on the fast path");
            if let Some(height) = after.filter(|_| before.is_none()) {
                let key = [&height.to_be_bytes()[..], &txid.0].concat();
                writes.push(Write { keyspace: 1 + place, key, value: Vec::new() });
            }
        }
        writes
    }
}

fn index_values(record: Option<&Record>) -> [Option<u64>; 3] {
    let Some(page) = record.and_then(Record::page) else { return [None; 3] };
    let unmined_since = page.master.as_ref().and_then(|master| master.unmined_since);
    [page.delete_at_height.map(u64::from), unmined_since.map(u64::from), page.creating_at]
}
