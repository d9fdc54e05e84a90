//! An engine that counts what it is given, and remembers it where it is to be done again.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use utxo_store::{
    engine::{Cursor, EngineError, Index, RecordEngine, Row, ScanPage, Set},
    record::{Key, Outcome, Record},
};

/// In front of an engine.
pub struct Counting {
    inner: Arc<dyn RecordEngine>,
    rows: AtomicU64,
    batches: AtomicU64,
    log: Option<Mutex<Vec<Row>>>,
}

impl Counting {
    /// `remembers`: all rows are kept, for [`take_log`](Self::take_log).
    pub fn new(inner: Arc<dyn RecordEngine>, remembers: bool) -> Self {
        Counting { inner, rows: AtomicU64::new(0), batches: AtomicU64::new(0), log: remembers.then(Mutex::default) }
    }

    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// The rows, in the order of the calls.
    pub fn take_log(&self) -> Vec<Row> {
        self.log
            .as_ref()
            .map_or_else(Vec::new, |log| std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[async_trait]
impl RecordEngine for Counting {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        self.rows.fetch_add(rows.len() as u64, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        if let Some(log) = &self.log {
            log.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(rows);
        }
        self.inner.apply(rows).await
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        self.inner.read(keys).await
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.inner.query(index, from, to, limit).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.inner.scan(set, cursor, limit).await
    }

    async fn close(&self) -> Result<(), EngineError> {
        self.inner.close().await
    }
}
