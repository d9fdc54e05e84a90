//! Fjall alone: the writes that the pipeline caused, made again without the pipeline, without the record operations and
//! without a single read.

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
    counting::Note,
    generator::Generator,
    measure::Cpu,
    pipeline::{POLLED, page_of, scratch},
};

/// What fjall alone took, for the writes as they came, and for the same writes with those of each batch sorted.
#[derive(Debug, Serialize, Deserialize)]
pub struct Raw {
    pub as_they_came: Took,
    pub sorted: Took,
    pub syncs: u64,
    /// Keys written, those of indexes too.
    pub writes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Took {
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
/// Records, and the three indexes.
const KEYSPACES: [&str; 4] = ["records", "index_delete_at_height", "index_unmined_since", "index_creating_at"];

/// Makes the writes of `notes` on an equally filled store, in as many synced batches as the engine made; once as they
/// came, and once as the engine does it: sorted, keyspace by keyspace.
pub fn same_writes(generator: impl Fn() -> Generator, notes: &[Note], syncs: u64) -> Raw {
    let mut model = Model::default();
    let before = generator();
    let parents: Vec<Vec<Write>> = before
        .parents_from_before()
        .map(|messages| {
            let notes: Vec<Note> = messages.iter().map(|message| model.there(page_of(message))).collect();
            model.writes_of(&notes)
        })
        .collect();
    model.will_come(generator());
    let group = notes.len().div_ceil(syncs.max(1) as usize).max(1);
    let mut groups: Vec<Vec<Write>> = notes.chunks(group).map(|notes| model.writes_of(notes)).collect();
    drop(model);

    let (writes, syncs) = (groups.iter().map(|group| group.len() as u64).sum(), groups.len() as u64);
    let as_they_came = took(&parents, &groups);
    groups.iter_mut().for_each(|group| group.sort_by(|a, b| (a.keyspace, &a.key).cmp(&(b.keyspace, &b.key))));
    Raw { as_they_came, sorted: took(&parents, &groups), syncs, writes }
}

/// A new store with `parents` in it, then `groups` against the clock.
fn took(parents: &[Vec<Write>], groups: &[Vec<Write>]) -> Took {
    let directory = scratch();
    // As the engine opens it.
    let database = Database::builder(directory.path()).cache_size(256 << 20).open().expect("a new store");
    let keyspaces = KEYSPACES.map(|name| database.keyspace(name, KeyspaceCreateOptions::default).expect("a keyspace"));
    parents.iter().for_each(|group| commit(&database, &keyspaces, group));
    let (started, cpu_before) = (Instant::now(), Cpu::now());
    groups.iter().for_each(|group| commit(&database, &keyspaces, group));
    let (seconds, (user_seconds, system_seconds)) = (started.elapsed().as_secs_f64(), Cpu::since(cpu_before));
    Took { seconds, user_seconds, system_seconds }
}

fn commit(database: &Database, keyspaces: &[Keyspace], writes: &[Write]) {
    let mut batch = database.batch().durability(Some(PersistMode::SyncData));
    for Write { keyspace, key, value } in writes {
        batch.insert(&keyspaces[*keyspace], key.as_slice(), value.as_slice());
    }
    batch.commit().expect("written");
}

/// The pages as the rows so far have left them; of those that are still to be created, what they start as.
#[derive(Default)]
struct Model(HashMap<Txid, Arc<Page>>);

impl Model {
    fn there(&mut self, page: Arc<Page>) -> Note {
        let note = Note { txid: page.txid, creates: true, taken: Vec::new() };
        self.0.insert(page.txid, page);
        note
    }

    fn will_come(&mut self, generator: Generator) {
        for message in generator.chunks(POLLED).flatten() {
            self.there(page_of(&message));
        }
    }

    /// What a group of rows writes: each record once, and its index entry where it is created.
    fn writes_of(&mut self, notes: &[Note]) -> Vec<Write> {
        let mut touched: Vec<(Txid, bool)> = Vec::new();
        let mut seen = HashSet::new();
        for note in notes {
            self.take(note);
            if seen.insert(note.txid) {
                touched.push((note.txid, note.creates));
            }
        }
        touched.into_iter().flat_map(|(txid, created)| self.writes_to(txid, created)).collect()
    }

    fn take(&mut self, note: &Note) {
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
