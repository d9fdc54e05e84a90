//! Scan of a whole set in bounded memory.

use std::sync::Arc;

use crate::{
    engine::{Cursor, EngineError, ScanPage, Set},
    record::{Key, Page, Record},
};

use super::StateStore;

/// Number of records read at a time: some megabytes of ordinary transactions.
const RECORDS_PER_BATCH: usize = 1_000;

/// A scan of one set in batches. Reads that fail with a retryable error are repeated.
pub(super) struct SetScan<'a> {
    store: &'a StateStore,
    set: Set,
    batch: usize,
    state: ScanState,
}

enum ScanState {
    At(Option<Cursor>),
    Ended,
}

impl<'a> SetScan<'a> {
    pub(super) fn new(store: &'a StateStore, set: Set) -> Self {
        SetScan { store, set, batch: RECORDS_PER_BATCH, state: ScanState::At(None) }
    }

    /// Reads the next records, at least one. `None`: the scan has reached the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<(Key, Record)>>, EngineError> {
        while let ScanState::At(cursor) = &self.state {
            let page = self.fetch(cursor.clone()).await?;
            self.state = page.next.map_or(ScanState::Ended, |cursor| ScanState::At(Some(cursor)));
            if !page.records.is_empty() {
                return Ok(Some(page.records));
            }
        }
        Ok(None)
    }

    /// Reads the next records and returns the masters among them. `None`: the scan has reached the end.
    pub(super) async fn next_masters(&mut self) -> Result<Option<impl Iterator<Item = Arc<Page>>>, EngineError> {
        let master = |(key, record)| match (key, record) {
            (Key::Page(_, 0), Record::Page(master)) => Some(master),
            _ => None,
        };
        Ok(self.next().await?.map(|records| records.into_iter().filter_map(master)))
    }

    async fn fetch(&self, cursor: Option<Cursor>) -> Result<ScanPage, EngineError> {
        let send = || self.store.engine.scan(self.set, cursor.clone(), self.batch);
        self.store.new_backoff(None).retry(EngineError::may_be_retried, send).await
    }
}
