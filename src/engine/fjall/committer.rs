//! The one writer: takes the calls that wait, puts right what each could not know of the others, writes what changed as
//! one synced batch, and only then answers.
//!
//! The calls come to it done ([`Job::prepare`]), each on the records as it found them. What a call found and another has
//! changed in the meantime is done again: on what an earlier call of the group has made of it, or else on what is stored. A
//! record that no group after [`Job::seen`] changed is still as it was found. So one thread, which writes, has little
//! else to do, and what can be done by many is done by many.
//!
//! It is two threads: while the disk has a group ([`Writer`]), the next one is put right and made into a batch. Only what
//! has to be read again and was changed by the group on its way waits for that.

use std::{
    io,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use ::fjall::{OwnedWriteBatch as WriteBatch, PersistMode};
use tokio::sync::{mpsc, oneshot};

use super::{
    job::{Job, Touched},
    known::Learner,
    recent::{Changed, Recent},
    stopped,
    tables::{Tables, disk},
};
use crate::{
    engine::{EngineError, ErrorKind},
    record::Rules,
};

/// Rows that share one sync. A bound, so that who came first does not wait for ever.
const GROUP: usize = 16_384;

/// A call that waits. It is given back as a whole: who waits frees what it holds, and the committer goes on.
pub(super) struct Call {
    pub job: Job,
    pub done: oneshot::Sender<Job>,
}

/// Starts the committer. It ends when nobody can send any more, with everything on disk.
pub(super) fn start(
    tables: Arc<Tables>,
    rules: Rules,
    mut queue: mpsc::Receiver<Call>,
) -> io::Result<JoinHandle<Result<(), EngineError>>> {
    let mut writer = Writer::start(&tables)?;
    std::thread::Builder::new().name("fjall-committer".into()).spawn(move || {
        let ended = work(&tables, &rules, &mut queue, &mut writer);
        drop(writer);
        ended?;
        tables.database.persist(PersistMode::SyncAll).map_err(|error| disk("close", "store", &error))
    })
}

fn work(
    tables: &Arc<Tables>,
    rules: &Rules,
    queue: &mut mpsc::Receiver<Call>,
    writer: &mut Writer,
) -> Result<(), EngineError> {
    let mut buffer = Vec::new();
    let mut recent = Recent::default();
    let mut learner = None;
    while let Some(first) = queue.blocking_recv() {
        // Not before: who only reads creates nothing.
        learner.get_or_insert_with(|| Learner::start(tables));
        let (mut jobs, waiting) = gather(first, queue);
        let changed = reconcile(tables, rules, &mut jobs, &recent, || writer.rest())?;
        let batch = batch(tables, &mut jobs, &mut buffer);
        writer.write(Group { jobs, waiting, batch })?;
        recent.push(changed);
    }
    writer.rest()
}

/// Calls that are written together.
struct Group {
    jobs: Vec<Job>,
    /// Parallel to `jobs`.
    waiting: Vec<oneshot::Sender<Job>>,
    batch: WriteBatch,
}

/// Has one group at a time written, in the order in which they come.
struct Writer {
    /// `None` at its end.
    groups: Option<SyncSender<Group>>,
    written: Receiver<()>,
    /// Whether the last group is on its way.
    busy: bool,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn start(tables: &Arc<Tables>) -> io::Result<Self> {
        let (groups, queue) = sync_channel::<Group>(1);
        let (tell, written) = sync_channel(1);
        let tables = tables.clone();
        let thread = std::thread::Builder::new().name("fjall-writer".into()).spawn(move || {
            for Group { mut jobs, waiting, batch } in queue {
                write(&tables, &mut jobs, batch);
                // Without the committer this is the last.
                let _ = tell.send(());
                for (job, done) in jobs.into_iter().zip(waiting) {
                    // Who does not wait any more does not want to know.
                    let _ = done.send(job);
                }
            }
        })?;
        Ok(Writer { groups: Some(groups), written, busy: false, thread: Some(thread) })
    }

    /// Waits until nothing is on its way.
    fn rest(&mut self) -> Result<(), EngineError> {
        if std::mem::take(&mut self.busy) { self.written.recv().map_err(|_| ended()) } else { Ok(()) }
    }

    /// Sends a group on its way, once the one before is written.
    fn write(&mut self, group: Group) -> Result<(), EngineError> {
        self.rest()?;
        self.busy = true;
        self.groups.as_ref().and_then(|groups| groups.send(group).ok()).ok_or_else(ended)
    }
}

impl Drop for Writer {
    /// Lets what is on its way come to its end: whoever opens the directory next must not find it in use.
    fn drop(&mut self) {
        drop(self.groups.take());
        // A panic was told to who waited.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn ended() -> EngineError {
    stopped("apply", "the writer")
}

/// The calls that are waiting, as they came.
fn gather(first: Call, queue: &mut mpsc::Receiver<Call>) -> (Vec<Job>, Vec<oneshot::Sender<Job>>) {
    let mut rows = 0;
    let mut calls = (Vec::new(), Vec::new());
    let mut next = Some(first);
    while let Some(Call { job, done }) = next {
        rows += job.len();
        calls.0.push(job);
        calls.1.push(done);
        next = if rows < GROUP { queue.try_recv().ok() } else { None };
    }
    calls
}

/// Makes of calls that were done side by side what they are one after the other. Before it reads what the group on its
/// way changes, it has that one `rest`.
fn reconcile(
    tables: &Tables,
    rules: &Rules,
    jobs: &mut [Job],
    recent: &Recent,
    mut rest: impl FnMut() -> Result<(), EngineError>,
) -> Result<Changed, EngineError> {
    let most = jobs.iter().map(|job| job.touched.len()).sum();
    let mut changed = Changed::with_capacity_and_hasher(most, Default::default());
    for number in 0..jobs.len() {
        let (earlier, later) = jobs.split_at_mut(number);
        let job = &mut later[0];
        for place in 0..job.touched.len() {
            let touched = &job.touched[place];
            let key = touched.key;
            if let Some((by, there)) = changed.get(&key) {
                job.go_on(rules, place, &mut earlier[*by].touched[*there]);
            } else if touched.is_unread() || recent.may_differ(&key, job.seen) {
                if recent.is_last(&key) {
                    rest()?;
                }
                job.read_again(tables, rules, place);
            }
            if job.touched[place].is_changed() {
                changed.insert(key, (number, place));
            }
        }
    }
    Ok(changed)
}

/// One batch: all of it is there after a crash, or nothing. Ascending by key, and keyspace by keyspace: that halves what
/// fjall takes for it, as each search in its memory goes most of the way that the last one went.
fn batch(tables: &Tables, jobs: &mut [Job], buffer: &mut Vec<u8>) -> WriteBatch {
    let mut touched: Vec<&mut Touched> =
        jobs.iter_mut().flat_map(|job| &mut job.touched).filter(|touched| touched.is_changed()).collect();
    touched.sort_by_key(|touched| touched.order());
    // A record and, mostly, one index entry.
    let mut batch = WriteBatch::with_capacity(tables.database.clone(), 2 * touched.len());
    batch = batch.durability(Some(PersistMode::SyncData));
    touched.iter_mut().for_each(|touched| touched.write(tables, &mut batch, buffer));
    touched.iter().for_each(|touched| touched.reindex(tables, &mut batch));
    batch
}

fn write(tables: &Tables, jobs: &mut [Job], batch: WriteBatch) {
    if let Err(error) = batch.commit().map_err(|error| not_written(&error)) {
        jobs.iter_mut().for_each(|job| job.fail(&error));
    }
    // Before the answers: who is answered and calls again finds everything that this group wrote.
    tables.groups.fetch_add(1, Ordering::Release);
}

/// A batch whose write or sync failed may be on disk all the same. From then on the store takes no more.
fn not_written(error: &::fjall::Error) -> EngineError {
    let refused = matches!(error, ::fjall::Error::Poisoned);
    EngineError {
        kind: if refused { ErrorKind::Fatal } else { ErrorKind::Unknown },
        ..disk("apply", "a group of rows", error)
    }
}

#[cfg(test)]
#[path = "committer_tests.rs"]
mod tests;
