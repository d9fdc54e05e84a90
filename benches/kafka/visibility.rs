//! Engine decorator that records when created transactions become visible.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use utxo_store::{
    engine::{Cursor, EngineError, Index, RecordEngine, Row, ScanPage, Set},
    record::{Key, Operation, Outcome, Record},
    tx::Txid,
};

/// Decorator of an engine.
pub struct VisibilityEngine {
    inner: Arc<dyn RecordEngine>,
    indexes: HashMap<Txid, usize, foldhash::fast::FixedState>,
    /// Time of visibility by index, µs since the epoch.
    visible_at_us: Vec<AtomicU64>,
}

impl VisibilityEngine {
    /// Creates a decorator that records the creates of these transactions.
    pub fn new(inner: Arc<dyn RecordEngine>, txids: impl Iterator<Item = Txid>) -> Self {
        let indexes: HashMap<_, _, _> = txids.zip(0..).collect();
        let visible_at_us = indexes.keys().map(|_| AtomicU64::new(0)).collect();
        VisibilityEngine { inner, indexes, visible_at_us }
    }

    /// Returns when each transaction became visible, µs since the epoch.
    pub fn visible_at_us(&self) -> Vec<u64> {
        self.visible_at_us.iter().map(|at| at.load(Ordering::Relaxed)).collect()
    }
}

/// Returns the µs since the epoch, which two processes of one machine share.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[async_trait]
impl RecordEngine for VisibilityEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        let outcomes = self.inner.apply(rows).await;
        // By the engine's contract every read from now on sees these rows.
        let now = now_us();
        for (row, outcome) in rows.iter().zip(&outcomes) {
            if let (Operation::Create(page), Ok(Outcome::Applied(_))) = (&row.operation, outcome)
                && let Some(index) = self.indexes.get(&page.txid)
            {
                self.visible_at_us[*index].store(now, Ordering::Relaxed);
            }
        }
        outcomes
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
