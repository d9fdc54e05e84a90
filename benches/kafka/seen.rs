//! An engine that notes when what it was given can be seen.

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

/// In front of an engine.
pub struct Seen {
    inner: Arc<dyn RecordEngine>,
    places: HashMap<Txid, usize, foldhash::fast::FixedState>,
    /// µs since the epoch, by place.
    at: Vec<AtomicU64>,
}

impl Seen {
    /// Creates of these transactions are noted.
    pub fn new(inner: Arc<dyn RecordEngine>, txids: impl Iterator<Item = Txid>) -> Self {
        let places: HashMap<_, _, _> = txids.zip(0..).collect();
        let at = places.keys().map(|_| AtomicU64::new(0)).collect();
        Seen { inner, places, at }
    }

    /// When each could be seen, µs since the epoch.
    pub fn at(&self) -> Vec<u64> {
        self.at.iter().map(|at| at.load(Ordering::Relaxed)).collect()
    }
}

/// µs since the epoch: two processes of one machine have the same.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[async_trait]
impl RecordEngine for Seen {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        let outcomes = self.inner.apply(rows).await;
        // Whoever reads from now on sees them: that is the engine's contract.
        let now = now_us();
        for (row, outcome) in rows.iter().zip(&outcomes) {
            if let (Operation::Create(page), Ok(Outcome::Applied(_))) = (&row.operation, outcome)
                && let Some(place) = self.places.get(&page.txid)
            {
                self.at[*place].store(now, Ordering::Relaxed);
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
