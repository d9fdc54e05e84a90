//! [`NullEngine`]: answers every operation with `Applied` and stores nothing; for benchmarks of the layers above an
//! engine.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use super::{Cursor, EngineError, Index, RecordEngine, Row, RowResult, ScanPage, Set};
use crate::record::{self, Key, Operation, Outcome, Record, Reply, Rules};

/// An engine that stores only the meta record, without which no instance starts.
pub struct NullEngine {
    rules: Rules,
    meta: Mutex<Option<Record>>,
}

impl NullEngine {
    /// Creates an engine without a meta record.
    pub fn new(rules: Rules) -> Self {
        NullEngine { rules, meta: Mutex::default() }
    }
}

#[async_trait]
impl RecordEngine for NullEngine {
    fn name(&self) -> &'static str {
        "null"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        let answer = |row: &Row| match &row.operation {
            operation @ (Operation::CreateMeta(_) | Operation::ReplaceMeta(_)) => {
                let mut meta = self.meta.lock().unwrap_or_else(PoisonError::into_inner);
                record::apply(&self.rules, &row.key, &mut meta, operation).outcome
            }
            _ => Outcome::Applied(Reply::None),
        };
        rows.iter().map(|row| Ok(answer(row))).collect()
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let meta = self.meta.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().map(|key| Ok(if *key == Key::Meta { meta.clone() } else { None })).collect()
    }

    async fn query(&self, _: Index, _: u64, _: u64, _: usize) -> Result<Vec<Key>, EngineError> {
        Ok(Vec::new())
    }

    async fn scan(&self, _: Set, _: Option<Cursor>, _: usize) -> Result<ScanPage, EngineError> {
        Ok(ScanPage::default())
    }

    async fn close(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{record::MetaRecord, tx::Txid};

    #[tokio::test]
    async fn only_the_meta_record_is_stored() {
        let engine = NullEngine::new(Rules::main(0));
        let meta = MetaRecord {
            store_id: [1; 16],
            layout_version: 1,
            network: "main".into(),
            utxo_batch_size: 20_000,
            retention: 288,
            ..MetaRecord::default()
        };
        let rows = [
            Row { key: Key::Meta, operation: Operation::CreateMeta(Box::new(meta.clone())) },
            Row { key: Key::master(Txid::default()), operation: Operation::ClearCreating },
        ];
        for outcome in engine.apply(&rows).await {
            assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{outcome:?}");
        }
        let read = engine.read(&[Key::Meta, Key::master(Txid::default())]).await;
        assert_eq!(read[0].as_ref().unwrap(), &Some(Record::Meta(Box::new(meta))));
        assert_eq!(read[1].as_ref().unwrap(), &None);
    }
}
