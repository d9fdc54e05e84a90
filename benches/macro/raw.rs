//! Fjall alone: the writes of the pipeline, repeated without the pipeline, without record operations and without reads.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use serde::{Deserialize, Serialize};
use utxo_store::{
    record::{Page, Record, Slot, codec},
    tx::Txid,
};

use crate::{
    counting::RowNote,
    generator::Generator,
    measure::Cpu,
    pipeline::{POLLED, page_of, scratch_directory},
};

/// Measurement of fjall alone: with the writes in their original order, and with each batch sorted.
#[derive(Debug, Serialize, Deserialize)]
pub struct Raw {
    pub unsorted: RawMeasurement,
    pub sorted: RawMeasurement,
    pub syncs: u64,
    /// Number of written keys, index keys included.
    pub writes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RawMeasurement {
    pub seconds: f64,
    pub user_seconds: f64,
    pub system_seconds: f64,
}

/// One key and its value, encoded beforehand.
struct Write {
    keyspace: usize,
    key: Vec<u8>,
    value: Vec<u8>,
}

const RECORDS: usize = 0;
const UNMINED_SINCE: usize = 2;
/// Keyspaces of the records and the three indexes.
const KEYSPACES: [&str; 4] = ["records", "index_delete_at_height", "index_unmined_since", "index_creating_at"];

/// Repeats the writes of `notes` on an equally filled store, in as many synced batches as the engine made: once in
/// their original order, and once as the engine does it: sorted, keyspace by keyspace.
pub fn repeat_writes(generator: impl Fn() -> Generator, notes: &[RowNote], syncs: u64) -> Raw {
    let mut model = PageModel::default();
    let before = generator();
    let parents: Vec<Vec<Write>> = before
        .parents_from_before()
        .map(|messages| {
            let notes: Vec<RowNote> = messages.iter().map(|message| model.add_page(page_of(message))).collect();
            model.writes_of(&notes)
        })
        .collect();
    model.add_generated(generator());
    let group = notes.len().div_ceil(syncs.max(1) as usize).max(1);
    let mut groups: Vec<Vec<Write>> = notes.chunks(group).map(|notes| model.writes_of(notes)).collect();
    drop(model);

    let (writes, syncs) = (groups.iter().map(|group| group.len() as u64).sum(), groups.len() as u64);
    let unsorted = measure_writes(&parents, &groups);
    groups.iter_mut().for_each(|group| group.sort_by(|a, b| (a.keyspace, &a.key).cmp(&(b.keyspace, &b.key))));
    Raw { unsorted, sorted: measure_writes(&parents, &groups), syncs, writes }
}

/// Creates a store with `parents` and measures the writes of `groups`.
fn measure_writes(parents: &[Vec<Write>], groups: &[Vec<Write>]) -> RawMeasurement {
    let directory = scratch_directory();
    // The options are those of the engine.
    let database = Database::builder(directory.path()).cache_size(256 << 20).open().expect("a new store");
    let keyspaces = KEYSPACES.map(|name| database.keyspace(name, KeyspaceCreateOptions::default).expect("a keyspace"));
    parents.iter().for_each(|group| commit(&database, &keyspaces, group));
    let (started, cpu_before) = (Instant::now(), Cpu::now());
    groups.iter().for_each(|group| commit(&database, &keyspaces, group));
    let (seconds, (user_seconds, system_seconds)) = (started.elapsed().as_secs_f64(), Cpu::since(cpu_before));
    RawMeasurement { seconds, user_seconds, system_seconds }
}

fn commit(database: &Database, keyspaces: &[Keyspace], writes: &[Write]) {
    let mut batch = database.batch().durability(Some(PersistMode::SyncData));
    for Write { keyspace, key, value } in writes {
        batch.insert(&keyspaces[*keyspace], key.as_slice(), value.as_slice());
    }
    batch.commit().expect("written");
}

/// Pages after the rows so far; a page not created yet has its initial state.
#[derive(Default)]
struct PageModel(HashMap<Txid, Arc<Page>>);

impl PageModel {
    fn add_page(&mut self, page: Arc<Page>) -> RowNote {
        let note = RowNote { txid: page.txid, creates: true, taken: Vec::new() };
        self.0.insert(page.txid, page);
        note
    }

    fn add_generated(&mut self, generator: Generator) {
        for message in generator.chunks(POLLED).flatten() {
            self.add_page(page_of(&message));
        }
    }

    /// Returns the writes of a group of rows: each record once, and its index entry if it is created.
    fn writes_of(&mut self, notes: &[RowNote]) -> Vec<Write> {
        let mut touched: Vec<(Txid, bool)> = Vec::new();
        let mut seen = HashSet::new();
        for note in notes {
            self.apply_note(note);
            if seen.insert(note.txid) {
                touched.push((note.txid, note.creates));
            }
        }
        touched.into_iter().flat_map(|(txid, created)| self.writes_to(txid, created)).collect()
    }

    fn apply_note(&mut self, note: &RowNote) {
        let page = Arc::make_mut(self.0.get_mut(&note.txid).expect("the generator makes all that is created"));
        for (offset, by) in &note.taken {
            let slot = &mut page.utxos.as_mut().expect("slots")[*offset as usize];
            *slot = Slot::Spent(slot.hash().expect("a slot"), *by);
            page.spent_utxos += 1;
        }
    }

    fn writes_to(&self, txid: Txid, created: bool) -> Vec<Write> {
        let page = self.0[&txid].clone();
        let unmined_since = page.master.as_ref().and_then(|master| master.unmined_since).map(u64::from);
        let mut value = Vec::new();
        codec::encode(&Record::Page(page), &mut value);
        let mut writes = vec![Write { keyspace: RECORDS, key: txid.0.to_vec(), value }];
        if let Some(height) = unmined_since.filter(|_| created) {
            let key = [&height.to_be_bytes()[..], &txid.0].concat();
            writes.push(Write { keyspace: UNMINED_SINCE, key, value: Vec::new() });
        }
        writes
    }
}
