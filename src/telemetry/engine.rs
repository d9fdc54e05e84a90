//! Metrics of an engine: every call is timed, and every outcome and error is counted.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Metrics, OperationKind};
use crate::{
    engine::{self, Cursor, EngineError, Incarnation, Index, RecordEngine, Row, RowResult, ScanPage, Set},
    record::{Key, Record, SelectedPage, Selection},
};

/// Decorator that forwards every call to an engine and records its metrics.
pub struct WatchedEngine {
    engine: Arc<dyn RecordEngine>,
    metrics: Arc<Metrics>,
}

impl WatchedEngine {
    /// Records the calls of `engine` in `metrics`.
    pub fn new(engine: Arc<dyn RecordEngine>, metrics: Arc<Metrics>) -> Self {
        WatchedEngine { engine, metrics }
    }

    async fn timed<T>(&self, kind: OperationKind, call: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let answer = call.await;
        self.metrics.engine_seconds.of(kind).observe(started.elapsed().as_secs_f64());
        answer
    }

    fn count<T>(&self, result: &Result<T, EngineError>) {
        if let Err(error) = result {
            self.metrics.store_errors.of(error.kind).inc();
        }
    }

    fn count_rows(&self, rows: &[Row]) {
        let of = |kind| rows.iter().filter(|row| OperationKind::from(&row.operation) == kind).count() as f64;
        self.metrics.engine_batch_size.observe(rows.len() as f64);
        let each = [
            (OperationKind::Create, &self.metrics.create_batch_size),
            (OperationKind::Spend, &self.metrics.spend_batch_size),
        ];
        for (kind, size) in each {
            let count = of(kind);
            if count > 0.0 {
                size.observe(count);
            }
        }
    }
}

impl engine::EngineDecorator for WatchedEngine {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.engine
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        let Some(first) = rows.first() else { return Vec::new() };
        self.count_rows(rows);
        let results = self.timed(OperationKind::from(&first.operation), self.engine.apply(rows)).await;
        for (row, result) in rows.iter().zip(&results) {
            self.count(result);
            if let Ok(outcome) = result {
                self.metrics.outcomes.count(OperationKind::from(&row.operation), outcome);
            }
        }
        results
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let results = self.timed(OperationKind::Read, self.engine.read(keys)).await;
        results.iter().for_each(|result| self.count(result));
        results
    }

    async fn read_selected(&self, pages: &[(Key, Selection)]) -> Vec<Result<Option<SelectedPage>, EngineError>> {
        let results = self.timed(OperationKind::Read, self.engine.read_selected(pages)).await;
        results.iter().for_each(|result| self.count(result));
        results
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        let result = self.timed(OperationKind::Query, self.engine.query(index, from, to, limit)).await;
        self.count(&result);
        result
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        let result = self.timed(OperationKind::Scan, self.engine.scan(set, cursor, limit)).await;
        self.count(&result);
        result
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        let result = self.engine.incarnation().await;
        self.count(&result);
        result
    }

    async fn check_flushing(&self) -> Result<(), EngineError> {
        let result = self.engine.check_flushing().await;
        self.count(&result);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::memory::MemoryEngine,
        record::{Operation, Rules},
        tx::Txid,
    };

    #[tokio::test]
    async fn calls_outcomes_and_errors_of_an_engine_are_counted() {
        let metrics = Arc::new(Metrics::new());
        let engine = WatchedEngine::new(Arc::new(MemoryEngine::new(Rules::main(288))), metrics.clone());
        let key = Key::master(Txid([1; 32]));
        let clear = |_| Row { key, operation: Operation::ClearCreating };
        let rows: Vec<Row> = (0..3).map(clear).collect();
        assert_eq!(engine.apply(&rows).await.len(), 3);
        assert!(engine.apply(&[]).await.is_empty());
        assert!(engine.read(&[key]).await[0].as_ref().is_ok_and(Option::is_none));
        engine.close().await.unwrap();
        assert!(engine.read(&[key]).await[0].is_err());

        let text = metrics.encode().unwrap();
        for line in [
            "utxo_outcomes_total{code=\"TX_NOT_FOUND\",operation=\"clear_creating\"} 3",
            "utxo_engine_batch_size_count 1",
            "utxo_engine_batch_size_sum 3",
            "utxo_create_batch_size_count 0",
            "utxo_engine_seconds_count{operation=\"clear_creating\"} 1",
            "utxo_engine_seconds_count{operation=\"read\"} 2",
            "utxo_store_errors{type=\"fatal\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
