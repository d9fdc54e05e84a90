//! The one writer: takes the calls that wait, applies their rows in sequence, writes what changed as one synced batch,
//! and only then answers.
//!
//! The records that a call is about are read and decoded before it gets here, by as many threads as there are calls
//! ([`Job::prepare`]). What a group of rows touched in the meantime is read again: a record that no group after
//! [`Job::seen`] touched is still as it was found.
//!
//! Two threads, one preparing while the other syncs, with the latest records kept decoded, were measured: 8 % more CPU an
//! operation and no more operations a second on two busy cores.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
};

use ::fjall::PersistMode;
use foldhash::fast::FixedState;
use tokio::sync::{mpsc, oneshot};

use super::tables::{Tables, disk};
use crate::{
    engine::{
        EngineError, ErrorKind, Row,
        local::{IndexValues, index_values},
    },
    record::{self, Key, Outcome, Record, Rules},
};

/// Rows that share one sync. A bound, so that who came first does not wait for ever.
const GROUP: usize = 16_384;

/// Groups whose keys are remembered. A call that waited for longer has its records read again.
const REMEMBERED: usize = 8;

/// One call of `apply`.
pub(super) struct Job {
    rows: Vec<Row>,
    /// What was found under the key of each row; an error is left for the committer to meet again.
    found: Vec<Option<Found>>,
    /// Groups that had been written, whole, before the first record was read.
    seen: u64,
    answer: oneshot::Sender<Vec<Answer>>,
}

/// A record, or that there is none.
type Found = Option<Record>;

impl Job {
    /// Reads what the rows are about. Waits for the disk.
    pub fn prepare(tables: &Tables, rows: Vec<Row>, answer: oneshot::Sender<Vec<Answer>>) -> Self {
        let seen = tables.groups.load(Ordering::Acquire);
        let found = rows.iter().map(|row| tables.get(&row.key).ok()).collect();
        Job { rows, found, seen, answer }
    }
}

pub(super) type Answer = Result<Outcome, EngineError>;

/// Starts the committer. It ends when nobody can send any more, with everything on disk.
pub(super) fn start(
    tables: Arc<Tables>,
    rules: Rules,
    mut queue: mpsc::Receiver<Job>,
) -> std::io::Result<JoinHandle<Result<(), EngineError>>> {
    std::thread::Builder::new().name("fjall-committer".into()).spawn(move || {
        let mut buffer = Vec::new();
        let mut recent = Recent::default();
        while let Some(first) = queue.blocking_recv() {
            commit(&tables, &rules, gather(first, &mut queue), &mut recent, &mut buffer);
        }
        tables.database.persist(PersistMode::SyncAll).map_err(|error| disk("close", "store", &error))
    })
}

/// The calls that are waiting, as they came.
fn gather(first: Job, queue: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let mut rows = first.rows.len();
    let mut jobs = vec![first];
    while rows < GROUP
        && let Ok(job) = queue.try_recv()
    {
        rows += job.rows.len();
        jobs.push(job);
    }
    jobs
}

fn commit(tables: &Tables, rules: &Rules, mut jobs: Vec<Job>, recent: &mut Recent, buffer: &mut Vec<u8>) {
    let mut group = Group::new(tables, rules, recent);
    let mut answers: Vec<Vec<Answer>> = jobs
        .iter_mut()
        .map(|job| {
            let found = std::mem::take(&mut job.found);
            job.rows.iter().zip(found).map(|(row, found)| group.apply(row, found, job.seen)).collect()
        })
        .collect();
    if let Err(error) = group.write(buffer) {
        // Also what changed nothing may rest on a row of this group that is not there now.
        answers.iter_mut().flatten().filter(|answer| answer.is_ok()).for_each(|answer| *answer = Err(error.clone()));
    }
    let places = group.places;
    recent.push(places);
    // Before the answers: who is answered and calls again finds everything that this group wrote.
    tables.groups.fetch_add(1, Ordering::Release);
    for (job, answers) in jobs.into_iter().zip(answers) {
        // Who does not wait any more does not want to know.
        let _ = job.answer.send(answers);
    }
}

/// The keys that the latest groups touched.
#[derive(Default)]
struct Recent {
    /// How many groups there were.
    groups: u64,
    latest: VecDeque<Places>,
}

type Places = HashMap<Key, usize, FixedState>;

impl Recent {
    fn push(&mut self, touched: Places) {
        self.groups += 1;
        self.latest.push_back(touched);
        if self.latest.len() > REMEMBERED {
            self.latest.pop_front();
        }
    }

    /// Whether a record that was read when there were `seen` groups may be another now.
    fn may_differ(&self, key: &Key, seen: u64) -> bool {
        let since = (self.groups - seen) as usize;
        since > self.latest.len() || self.latest.iter().rev().take(since).any(|touched| touched.contains_key(key))
    }
}

/// The records that a group of rows touches, as its rows so far have left them.
struct Group<'a> {
    tables: &'a Tables,
    rules: &'a Rules,
    recent: &'a Recent,
    /// In the order in which they were first touched, which is the order of writing.
    touched: Vec<Touched>,
    places: Places,
}

struct Touched {
    key: Key,
    record: Option<Record>,
    was_there: bool,
    indexed: IndexValues,
    changed: bool,
}

impl<'a> Group<'a> {
    fn new(tables: &'a Tables, rules: &'a Rules, recent: &'a Recent) -> Self {
        Group { tables, rules, recent, touched: Vec::new(), places: HashMap::default() }
    }

    fn apply(&mut self, row: &Row, found: Option<Found>, seen: u64) -> Answer {
        let place = self.place(&row.key, found, seen)?;
        let touched = &mut self.touched[place];
        let effect = record::apply(self.rules, &row.key, &mut touched.record, &row.operation);
        touched.changed |= effect.changed;
        Ok(effect.outcome)
    }

    fn place(&mut self, key: &Key, found: Option<Found>, seen: u64) -> Result<usize, EngineError> {
        if let Some(place) = self.places.get(key) {
            return Ok(*place);
        }
        let record = match found {
            Some(record) if !self.recent.may_differ(key, seen) => record,
            _ => self.tables.get(key)?,
        };
        let place = self.touched.len();
        let (was_there, indexed) = (record.is_some(), index_values(record.as_ref()));
        self.touched.push(Touched { key: *key, record, was_there, indexed, changed: false });
        self.places.insert(*key, place);
        Ok(place)
    }

    /// One batch: all of it is there after a crash, or nothing.
    fn write(&self, buffer: &mut Vec<u8>) -> Result<(), EngineError> {
        let mut batch = self.tables.database.batch().durability(Some(PersistMode::SyncData));
        for touched in self.touched.iter().filter(|touched| touched.changed) {
            let record = touched.record.as_ref();
            if record.is_some() || touched.was_there {
                self.tables.put(&mut batch, &touched.key, record, buffer);
                self.tables.reindex(&mut batch, &touched.key, touched.indexed, index_values(record));
            }
        }
        batch.commit().map_err(|error| not_written(&error))
    }
}

/// A batch whose write or sync failed may be on disk all the same. From then on the store takes no more.
fn not_written(error: &::fjall::Error) -> EngineError {
    let refused = matches!(error, ::fjall::Error::Poisoned);
    EngineError {
        kind: if refused { ErrorKind::Fatal } else { ErrorKind::Unknown },
        ..disk("apply", "a group of rows", error)
    }
}
