//! [`FjallEngine`]: records in an embedded log-structured store on local disk. Every acknowledged row is durable.
//!
//! 1. Each call of `apply` reads its records, applies its rows and encodes the results on a thread of its own
//!    (`job.rs`).
//! 2. The committer takes all waiting calls as one write group. A call whose records changed since its read is applied
//!    again (`committer.rs`).
//! 3. The write group is one atomic, synced batch. Calls thus share a sync, and many rows on one record cost one write.
//!
//! Reads bypass the committer and see the records as written.

mod committer;
mod job;
mod open;
mod recent_changes;
mod tables;
mod txid_filter;

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use self::{committer::QueuedCall, job::Job, tables::Tables};
use super::{
    Cursor, EngineError, ErrorKind, Index, KeyPage, RecordEngine, Row, RowResult, ScanPage, ScanPart, Set,
    key::{self, KeyBytes},
    local::{KeyRange, bad_cursor_error, closed_error},
};
use crate::record::{Key, Record, Rules};

pub use open::{FjallOptions, OpenFjallError};

/// Calls that wait for the committer, at most. With a full queue `apply` waits.
const CALL_QUEUE: usize = 256;
/// Keys of one part of an index query, at most.
const QUERY_PART: usize = 4_096;

/// A store in a directory of its own, which one process at a time may open.
pub struct FjallEngine {
    /// The open store; `None` once the engine is closed.
    open: Mutex<Option<OpenStore>>,
}

struct OpenStore {
    tables: Arc<Tables>,
    rules: Rules,
    calls: mpsc::Sender<QueuedCall>,
    committer: JoinHandle<Result<(), EngineError>>,
}

impl FjallEngine {
    /// Opens the store in `directory`. A missing directory is created.
    ///
    /// # Errors
    /// The store is in use by another process, damaged, or of another layout; the directory is no store; or the disk
    /// fails.
    pub fn open(directory: &Path, rules: Rules, options: FjallOptions) -> Result<Self, OpenFjallError> {
        let tables = Arc::new(open::open(directory, options)?);
        let (calls, queue) = mpsc::channel(CALL_QUEUE);
        let committer = committer::start(tables.clone(), rules, queue).map_err(OpenFjallError::Io)?;
        Ok(FjallEngine { open: Mutex::new(Some(OpenStore { tables, rules, calls, committer })) })
    }

    /// Checks that `directory` has a store. Changes nothing.
    ///
    /// # Errors
    /// There is no store, or the disk fails.
    pub fn must_exist(directory: &Path) -> Result<(), OpenFjallError> {
        open::must_exist(directory)
    }

    /// Returns the number of write groups synced since the store was opened; 0 once it is closed.
    #[cfg(feature = "testkit")]
    pub fn groups_written(&self) -> u64 {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map_or(0, |open| open.tables.groups_written.load(std::sync::atomic::Ordering::Relaxed))
    }

    fn clone_handles(&self) -> Option<(Arc<Tables>, Rules, mpsc::Sender<QueuedCall>)> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map(|open| (open.tables.clone(), open.rules, open.calls.clone()))
    }

    /// Runs work that may wait for the disk on a thread where waiting is allowed.
    async fn run_blocking<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Tables) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let tables = self.open.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|open| open.tables.clone());
        let tables = tables.ok_or_else(|| closed_error(operation, "any"))?;
        let finished = tokio::task::spawn_blocking(move || work(&tables)).await;
        finished.unwrap_or_else(|error| Err(worker_stopped(operation, &error.to_string())))
    }
}

/// Makes the error for a thread that ended, which happens only by a panic in it or by the end of the runtime.
fn worker_stopped(operation: &'static str, cause: &str) -> EngineError {
    let message = format!("a worker of the engine stopped: {cause}");
    EngineError { kind: ErrorKind::Fatal, operation, key: "any".into(), message }
}

#[async_trait]
impl RecordEngine for FjallEngine {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        if rows.is_empty() {
            return Vec::new();
        }
        let Some((tables, rules, calls)) = self.clone_handles() else {
            return vec![Err(closed_error("apply", "any")); rows.len()];
        };
        let (count, rows) = (rows.len(), rows.to_vec());
        let prepared = tokio::task::spawn_blocking(move || Job::prepare(&tables, &rules, rows)).await;
        let job = match prepared {
            Ok(job) => job,
            Err(error) => return vec![Err(worker_stopped("apply", &error.to_string())); count],
        };
        let (reply_channel, reply) = oneshot::channel();
        if calls.send(QueuedCall { job, reply_channel }).await.is_err() {
            return vec![Err(closed_error("apply", "any")); count];
        }
        reply.await.map_or_else(|_| vec![Err(worker_stopped("apply", "the committer")); count], Job::into_answers)
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let (count, keys) = (keys.len(), keys.to_vec());
        let read = self.run_blocking("read", move |tables| Ok(keys.iter().map(|key| tables.get(key)).collect())).await;
        read.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.run_blocking("query", move |tables| tables.query(index, from, to, limit)).await
    }

    async fn query_part(
        &self,
        index: Index,
        range: (u64, u64),
        cursor: Option<Cursor>,
    ) -> Result<KeyPage, EngineError> {
        let find = move |tables: &Tables| {
            let after = cursor.as_ref().map(|cursor| &*cursor.0);
            if after.is_some_and(|after| after.len() <= 8) {
                return Err(bad_cursor_error());
            }
            tables.query_part(index, range, after, QUERY_PART)
        };
        self.run_blocking("query", find).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        let after = cursor.map(|cursor| key::decode(&cursor.0).ok_or_else(bad_cursor_error)).transpose()?;
        let limit = limit.max(1);
        let find = move |tables: &Tables| match (set, after) {
            (Set::Commands, None) => tables.scan_commands(None, limit),
            (Set::Commands, Some(Key::Command(id))) => tables.scan_commands(Some(id), limit),
            (Set::Commands, Some(_)) => Err(bad_cursor_error()),
            (Set::Transactions | Set::Blocks, after) => tables.scan(set, after, limit),
        };
        let records = self.run_blocking("scan", find).await?;
        let last = records.last().filter(|_| records.len() == limit);
        let next = last.map(|(key, _)| Cursor(KeyBytes::of(key).as_ref().to_vec()));
        Ok(ScanPage { records, next })
    }

    async fn scan_part(&self, part: ScanPart, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        let range = KeyRange::of(part);
        Ok(range.clip(self.scan(Set::Transactions, cursor.or_else(|| range.start()), limit).await?))
    }

    async fn close(&self) -> Result<(), EngineError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(open) = open else { return Ok(()) };
        let finished = tokio::task::spawn_blocking(move || open.finish()).await;
        finished.unwrap_or_else(|error| Err(worker_stopped("close", &error.to_string())))
    }
}

impl OpenStore {
    /// Waits until the committer has written its queue, then releases the directory.
    fn finish(self) -> Result<(), EngineError> {
        drop(self.calls);
        self.committer.join().unwrap_or_else(|_| Err(worker_stopped("close", "the committer")))
    }
}

impl Drop for FjallEngine {
    /// Closes an engine that the caller did not close, so that the directory is released.
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = open.map(OpenStore::finish) {
            tracing::error!(%error, "fjall: the store did not close cleanly");
        }
    }
}

#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod tests;
