//! The one writer: takes the calls that wait, applies their rows in sequence, writes what changed as one synced batch,
//! and only then answers.
//!
//! Two threads, one preparing while the other syncs, with the latest records kept decoded, were measured: 8 % more CPU an
//! operation and no more operations a second on two busy cores.

use std::{collections::HashMap, sync::Arc, thread::JoinHandle};

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

/// One call of `apply`.
pub(super) struct Job {
    pub rows: Vec<Row>,
    pub answer: oneshot::Sender<Vec<Answer>>,
}

type Answer = Result<Outcome, EngineError>;

/// Starts the committer. It ends when nobody can send any more, with everything on disk.
pub(super) fn start(
    tables: Arc<Tables>,
    rules: Rules,
    mut queue: mpsc::Receiver<Job>,
) -> std::io::Result<JoinHandle<Result<(), EngineError>>> {
    std::thread::Builder::new().name("fjall-committer".into()).spawn(move || {
        let mut buffer = Vec::new();
        while let Some(first) = queue.blocking_recv() {
            commit(&tables, &rules, gather(first, &mut queue), &mut buffer);
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

fn commit(tables: &Tables, rules: &Rules, jobs: Vec<Job>, buffer: &mut Vec<u8>) {
    let mut group = Group::new(tables, rules);
    let mut answers: Vec<Vec<Answer>> =
        jobs.iter().map(|job| job.rows.iter().map(|row| group.apply(row)).collect()).collect();
    if let Err(error) = group.write(buffer) {
        // Also what changed nothing may rest on a row of this group that is not there now.
        answers.iter_mut().flatten().filter(|answer| answer.is_ok()).for_each(|answer| *answer = Err(error.clone()));
    }
    for (job, answers) in jobs.into_iter().zip(answers) {
        // Who does not wait any more does not want to know.
        let _ = job.answer.send(answers);
    }
}

/// The records that a group of rows touches, as its rows so far have left them.
struct Group<'a> {
    tables: &'a Tables,
    rules: &'a Rules,
    /// In the order in which they were first touched, which is the order of writing.
    touched: Vec<Touched>,
    places: HashMap<Key, usize, FixedState>,
}

struct Touched {
    key: Key,
    record: Option<Record>,
    was_there: bool,
    indexed: IndexValues,
    changed: bool,
}

impl<'a> Group<'a> {
    fn new(tables: &'a Tables, rules: &'a Rules) -> Self {
        Group { tables, rules, touched: Vec::new(), places: HashMap::default() }
    }

    fn apply(&mut self, row: &Row) -> Answer {
        let place = self.place(&row.key)?;
        let touched = &mut self.touched[place];
        let effect = record::apply(self.rules, &row.key, &mut touched.record, &row.operation);
        touched.changed |= effect.changed;
        Ok(effect.outcome)
    }

    fn place(&mut self, key: &Key) -> Result<usize, EngineError> {
        if let Some(place) = self.places.get(key) {
            return Ok(*place);
        }
        let record = self.tables.get(key)?;
        let place = self.touched.len();
        let (was_there, indexed) = (record.is_some(), index_values(record.as_ref()));
        self.touched.push(Touched { key: *key, record, was_there, indexed, changed: false });
        self.places.insert(*key, place);
        Ok(place)
    }

    /// One batch: all of it is there after a crash, or nothing.
    fn write(self, buffer: &mut Vec<u8>) -> Result<(), EngineError> {
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
