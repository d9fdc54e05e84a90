//! The only writer of a store. The committer takes the waiting calls as one write group, reconciles them, writes the
//! changes as one synced batch, and then answers.
//!
//! - Calls arrive applied ([`Job::prepare`]), each on the records as it read them.
//! - A record that another call has changed since is applied again: on the result of an earlier call of the same write
//!   group, or else on the stored record. A record that no write group since [`Job::groups_seen`] changed is as it was
//!   read.
//! - The single committer thus does little more than writing; the parallel calls do the rest.
//!
//! A second thread ([`GroupWriter`]) writes one group while the committer reconciles and batches the next. The
//! committer waits for the writer only before it reads a record that the group being written changes.

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
    job::{Job, TouchedRecord},
    recent_changes::{ChangedKeys, RecentChanges},
    tables::{Tables, disk_error},
    txid_filter::FilterLoader,
    worker_stopped,
};
use crate::{
    engine::{EngineError, ErrorKind},
    record::Rules,
};

/// Rows after which a write group takes no further call. The bound keeps the first call from waiting without end.
const GROUP_ROWS: usize = 16_384;

/// A call in the committer's queue. The job is returned whole, so that the caller, not the committer, frees its memory.
pub(super) struct QueuedCall {
    pub job: Job,
    pub reply_channel: oneshot::Sender<Job>,
}

/// Starts the committer. The thread ends, with everything on disk, when every sender is dropped.
pub(super) fn start(
    tables: Arc<Tables>,
    rules: Rules,
    mut queue: mpsc::Receiver<QueuedCall>,
) -> io::Result<JoinHandle<Result<(), EngineError>>> {
    let mut writer = GroupWriter::start(&tables)?;
    std::thread::Builder::new().name("fjall-committer".into()).spawn(move || {
        let ended = run(&tables, &rules, &mut queue, &mut writer);
        drop(writer);
        ended?;
        tables.database.persist(PersistMode::SyncAll).map_err(|error| disk_error("close", "store", &error))
    })
}

fn run(
    tables: &Arc<Tables>,
    rules: &Rules,
    queue: &mut mpsc::Receiver<QueuedCall>,
    writer: &mut GroupWriter,
) -> Result<(), EngineError> {
    let mut buffer = Vec::new();
    let mut recent = RecentChanges::default();
    let mut filter_loader = None;
    while let Some(first) = queue.blocking_recv() {
        // The filter is loaded at the first write, because a process that only reads creates nothing.
        filter_loader.get_or_insert_with(|| FilterLoader::start(tables));
        let (mut jobs, reply_channels) = gather(first, queue);
        let changed = reconcile(tables, rules, &mut jobs, &recent, || writer.wait_until_written())?;
        let batch = build_batch(tables, &mut jobs, &mut buffer);
        writer.write(WriteGroup { jobs, reply_channels, batch })?;
        recent.push(changed);
    }
    writer.wait_until_written()
}

/// Calls that are written together.
struct WriteGroup {
    jobs: Vec<Job>,
    /// The channels of the answers, parallel to `jobs`.
    reply_channels: Vec<oneshot::Sender<Job>>,
    batch: WriteBatch,
}

/// Writes one group at a time on a thread of its own, in the order of arrival.
struct GroupWriter {
    /// The queue of groups; `None` once the writer ends.
    groups: Option<SyncSender<WriteGroup>>,
    written: Receiver<()>,
    /// True until the last group is written.
    is_writing: bool,
    thread: Option<JoinHandle<()>>,
}

impl GroupWriter {
    fn start(tables: &Arc<Tables>) -> io::Result<Self> {
        let (groups, queue) = sync_channel::<WriteGroup>(1);
        let (notify, written) = sync_channel(1);
        let tables = tables.clone();
        let thread = std::thread::Builder::new().name("fjall-writer".into()).spawn(move || {
            for WriteGroup { mut jobs, reply_channels, batch } in queue {
                commit_batch(&tables, &mut jobs, batch);
                // If the committer has ended, this group is the last.
                let _ = notify.send(());
                for (job, reply_channel) in jobs.into_iter().zip(reply_channels) {
                    // A caller that stopped waiting does not need the answer.
                    let _ = reply_channel.send(job);
                }
            }
        })?;
        Ok(GroupWriter { groups: Some(groups), written, is_writing: false, thread: Some(thread) })
    }

    /// Waits until the last group is written.
    fn wait_until_written(&mut self) -> Result<(), EngineError> {
        if std::mem::take(&mut self.is_writing) { self.written.recv().map_err(|_| writer_stopped()) } else { Ok(()) }
    }

    /// Sends a group to the writer thread once the previous group is written.
    fn write(&mut self, group: WriteGroup) -> Result<(), EngineError> {
        self.wait_until_written()?;
        self.is_writing = true;
        self.groups.as_ref().and_then(|groups| groups.send(group).ok()).ok_or_else(writer_stopped)
    }
}

impl Drop for GroupWriter {
    /// Waits for the last group: the next process that opens the directory must not find it in use.
    fn drop(&mut self) {
        drop(self.groups.take());
        // A panic of the thread has already been reported to the callers.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn writer_stopped() -> EngineError {
    worker_stopped("apply", "the writer")
}

/// Takes the calls that are waiting, in their order of arrival.
fn gather(first: QueuedCall, queue: &mut mpsc::Receiver<QueuedCall>) -> (Vec<Job>, Vec<oneshot::Sender<Job>>) {
    let mut rows = 0;
    let mut calls = (Vec::new(), Vec::new());
    let mut next = Some(first);
    while let Some(QueuedCall { job, reply_channel }) = next {
        rows += job.len();
        calls.0.push(job);
        calls.1.push(reply_channel);
        next = if rows < GROUP_ROWS { queue.try_recv().ok() } else { None };
    }
    calls
}

/// Makes the results of calls that ran in parallel equal to those of calls that ran one after the other. Before it
/// reads a record that the group being written changes, it calls `wait_until_written`.
fn reconcile(
    tables: &Tables,
    rules: &Rules,
    jobs: &mut [Job],
    recent: &RecentChanges,
    mut wait_until_written: impl FnMut() -> Result<(), EngineError>,
) -> Result<ChangedKeys, EngineError> {
    let capacity = jobs.iter().map(|job| job.touched.len()).sum();
    let mut changed = ChangedKeys::with_capacity_and_hasher(capacity, Default::default());
    for number in 0..jobs.len() {
        let (earlier, later) = jobs.split_at_mut(number);
        let job = &mut later[0];
        for place in 0..job.touched.len() {
            let touched = &job.touched[place];
            let key = touched.key;
            if let Some((earlier_job, earlier_place)) = changed.get(&key) {
                job.continue_from(rules, place, &mut earlier[*earlier_job].touched[*earlier_place]);
            } else if touched.is_unreadable() || recent.may_differ(&key, job.groups_seen) {
                if recent.is_in_last_group(&key) {
                    wait_until_written()?;
                }
                job.reread(tables, rules, place);
            }
            if job.touched[place].is_changed() {
                changed.insert(key, (number, place));
            }
        }
    }
    Ok(changed)
}

/// Builds the one batch of a write group; after a crash the whole batch is there or none of it. The batch ascends by
/// keyspace and key, which halves the time that fjall takes: each search in its memory repeats most of the path of the
/// previous one.
fn build_batch(tables: &Tables, jobs: &mut [Job], buffer: &mut Vec<u8>) -> WriteBatch {
    let mut touched: Vec<&mut TouchedRecord> =
        jobs.iter_mut().flat_map(|job| &mut job.touched).filter(|touched| touched.is_changed()).collect();
    touched.sort_by_key(|touched| touched.sort_key());
    // Each record has mostly one index entry.
    let mut batch = WriteBatch::with_capacity(tables.database.clone(), 2 * touched.len());
    batch = batch.durability(Some(PersistMode::SyncData));
    touched.iter_mut().for_each(|touched| touched.write(tables, &mut batch, buffer));
    touched.iter().for_each(|touched| touched.reindex(tables, &mut batch));
    batch
}

fn commit_batch(tables: &Tables, jobs: &mut [Job], batch: WriteBatch) {
    if let Err(error) = batch.commit().map_err(|error| not_written(&error)) {
        jobs.iter_mut().for_each(|job| job.fail_all(&error));
    }
    // The counter rises before the answers: a caller that calls again finds everything that this group wrote.
    tables.groups_written.fetch_add(1, Ordering::Release);
}

/// Makes the error of a batch whose write or sync failed. The batch can be on disk all the same; fjall then refuses
/// every further write.
fn not_written(error: &::fjall::Error) -> EngineError {
    let is_poisoned = matches!(error, ::fjall::Error::Poisoned);
    EngineError {
        kind: if is_poisoned { ErrorKind::Fatal } else { ErrorKind::Unknown },
        ..disk_error("apply", "a write group", error)
    }
}

#[cfg(test)]
#[path = "committer_tests.rs"]
mod tests;
