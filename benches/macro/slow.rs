//! Engine decorator that limits the rows per second.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};
use utxo_store::engine::{EngineDecorator, RecordEngine, Row, RowResult};

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

impl<E: RecordEngine> EngineDecorator for ThrottledEngine<E> {
    fn inner(&self) -> &dyn RecordEngine {
        &self.inner
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        let due = {
            let mut free_at = self.free_at.lock().await;
            *free_at = Instant::now().max(*free_at) + Duration::from_secs_f64(rows.len() as f64 / self.rows_a_second);
            *free_at
        };
        tokio::time::sleep_until(due).await;
        self.inner.apply(rows).await
    }
}
