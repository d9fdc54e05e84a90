//! [`FjallEngine`]: records in an embedded log-structured store on local disk, durable to the last acknowledged row.
//!
//! Each call reads the records that it is about, applies its rows to them and encodes what comes of it on a thread of its
//! own (`job.rs`). One thread, the committer, is the only writer: it takes all calls that are waiting, does again what
//! they did on records that are others by now, and writes what changed as one atomic, synced batch (`committer.rs`). So a
//! sync is shared by everybody who waits for it, and many rows on one record cost one write of it. Reads go past it, to
//! what has been written.

mod committer;
mod job;
mod known;
mod open;
mod recent;
mod tables;

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use self::{committer::Call, job::Job, tables::Tables};
use super::{
    Cursor, EngineError, ErrorKind, Index, RecordEngine, Row, ScanPage, Set,
    key::{self, KeyBytes},
    local::{bad_cursor, closed},
};
use crate::record::{Key, Outcome, Record, Rules};

pub use open::{FjallOptions, OpenFjallError};

/// Calls that wait for the committer; beyond these, `apply` itself waits.
const QUEUE: usize = 256;

/// A store in a directory of its own, which one process at a time may open.
pub struct FjallEngine {
    /// `None` once closed.
    open: Mutex<Option<Open>>,
}

struct Open {
    tables: Arc<Tables>,
    rules: Rules,
    calls: mpsc::Sender<Call>,
    committer: JoinHandle<Result<(), EngineError>>,
}

impl FjallEngine {
    /// Opens the store in `directory`, which is created where it is missing.
    ///
    /// # Errors
    /// In use by another process; not a store; a store of another layout; damaged; or the disk's own.
    pub fn open(directory: &Path, rules: Rules, options: FjallOptions) -> Result<Self, OpenFjallError> {
        let tables = Arc::new(open::open(directory, options)?);
        let (calls, queue) = mpsc::channel(QUEUE);
        let committer = committer::start(tables.clone(), rules, queue).map_err(OpenFjallError::Io)?;
        Ok(FjallEngine { open: Mutex::new(Some(Open { tables, rules, calls, committer })) })
    }

    /// Refuses a directory without a store, and leaves it as it is.
    ///
    /// # Errors
    /// There is no store; or the disk's own.
    pub fn must_exist(directory: &Path) -> Result<(), OpenFjallError> {
        open::must_exist(directory)
    }

    /// Groups of rows that were written and synced since the store was opened; 0 once it is closed.
    pub fn groups(&self) -> u64 {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map_or(0, |open| open.tables.groups.load(Ordering::Relaxed))
    }

    fn way_in(&self) -> Option<(Arc<Tables>, Rules, mpsc::Sender<Call>)> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map(|open| (open.tables.clone(), open.rules, open.calls.clone()))
    }

    /// Runs something that may wait for the disk where that holds up nobody else.
    async fn blocking<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Tables) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let tables = self.open.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|open| open.tables.clone());
        let tables = tables.ok_or_else(|| closed(operation, "any"))?;
        let ended = tokio::task::spawn_blocking(move || work(&tables)).await;
        ended.unwrap_or_else(|error| Err(stopped(operation, &error.to_string())))
    }
}

/// A thread of the engine ended, which only a panic in it or the end of the runtime explains.
fn stopped(operation: &'static str, why: &str) -> EngineError {
    let message = format!("a worker of the engine stopped: {why}");
    EngineError { kind: ErrorKind::Fatal, operation, key: "any".into(), message }
}

#[async_trait]
impl RecordEngine for FjallEngine {
    fn name(&self) -> &'static str {
        "fjall"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        if rows.is_empty() {
            return Vec::new();
        }
        let Some((tables, rules, calls)) = self.way_in() else { return vec![Err(closed("apply", "any")); rows.len()] };
        let (count, rows) = (rows.len(), rows.to_vec());
        let prepared = tokio::task::spawn_blocking(move || Job::prepare(&tables, &rules, rows)).await;
        let job = match prepared {
            Ok(job) => job,
            Err(error) => return vec![Err(stopped("apply", &error.to_string())); count],
        };
        let (done, finished) = oneshot::channel();
        if calls.send(Call { job, done }).await.is_err() {
            return vec![Err(closed("apply", "any")); count];
        }
        finished.await.map_or_else(|_| vec![Err(stopped("apply", "the committer")); count], Job::answers)
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let (count, keys) = (keys.len(), keys.to_vec());
        let read = self.blocking("read", move |tables| Ok(keys.iter().map(|key| tables.get(key)).collect())).await;
        read.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.blocking("query", move |tables| tables.query(index, from, to, limit)).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        let after = cursor.map(|cursor| key::decode(&cursor.0).ok_or_else(bad_cursor)).transpose()?;
        let limit = limit.max(1);
        let records = self.blocking("scan", move |tables| tables.scan(set, after, limit)).await?;
        let last = records.last().filter(|_| records.len() == limit);
        let next = last.map(|(key, _)| Cursor(KeyBytes::of(key).as_ref().to_vec()));
        Ok(ScanPage { records, next })
    }

    async fn close(&self) -> Result<(), EngineError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(open) = open else { return Ok(()) };
        let ended = tokio::task::spawn_blocking(move || open.finish()).await;
        ended.unwrap_or_else(|error| Err(stopped("close", &error.to_string())))
    }
}

impl Open {
    /// Lets the committer finish its queue, and gives the directory free.
    fn finish(self) -> Result<(), EngineError> {
        drop(self.calls);
        self.committer.join().unwrap_or_else(|_| Err(stopped("close", "the committer")))
    }
}

impl Drop for FjallEngine {
    /// As `close`, for who forgot: the directory is free when the engine is gone.
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = open.map(Open::finish) {
            tracing::error!(%error, "the store did not close cleanly");
        }
    }
}

#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod tests;
