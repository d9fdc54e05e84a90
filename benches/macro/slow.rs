//! Engine decorator that limits the rows per second.

use std::time::Duration;

use async_trait::async_trait;
use tokio::{sync::Mutex, time::Instant};
use utxo_store::{
    engine::{Cursor, EngineError, Index, RecordEngine, Row, ScanPage, Set},
    record::{Key, Outcome, Record},
};

/// Decorator of an engine.
pub struct ThrottledEngine<E> {
    inner: E,
    rows_a_second: f64,
    /// Time when all requested rows are applied.
    free_at: Mutex<Instant>,
}

impl<E> ThrottledEngine<E> {
    pub fn new(inner: E, rows_a_second: f64) -> Self {
        ThrottledEngine { inner, rows_a_second, free_at: Mutex::new(Instant::now()) }
    }
}

#[async_trait]
impl<E: RecordEngine> RecordEngine for ThrottledEngine<E> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        let due = {
            let mut free_at = self.free_at.lock().await;
            *free_at = Instant::now().max(*free_at) + Duration::from_secs_f64(rows.len() as f64 / self.rows_a_second);
            *free_at
        };
        tokio::time::sleep_until(due).await;
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
