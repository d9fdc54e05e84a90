//! Walking a whole set in bounded memory.

use std::sync::Arc;

use crate::{
    engine::{Cursor, EngineError, ScanPage, Set},
    record::{Key, Page, Record},
};

use super::Store;

/// Records read at a time: some megabytes of ordinary transactions.
const BATCH: usize = 1_000;

/// A scan of one set, a batch at a time; what failed and may be retried is.
pub(super) struct Scan<'a> {
    store: &'a Store,
    set: Set,
    batch: usize,
    state: State,
}

enum State {
    At(Option<Cursor>),
    Ended,
}

impl<'a> Scan<'a> {
    pub(super) fn new(store: &'a Store, set: Set) -> Self {
        Scan { store, set, batch: BATCH, state: State::At(None) }
    }

    pub(super) fn with_batch(self, batch: usize) -> Self {
        Scan { batch, ..self }
    }

    /// The next records, never none of them; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<(Key, Record)>>, EngineError> {
        while let State::At(cursor) = &self.state {
            let page = self.fetch(cursor.clone()).await?;
            self.state = page.next.map_or(State::Ended, |cursor| State::At(Some(cursor)));
            if !page.records.is_empty() {
                return Ok(Some(page.records));
            }
        }
        Ok(None)
    }

    /// The masters among the next records; `None` at the end.
    pub(super) async fn next_masters(&mut self) -> Result<Option<impl Iterator<Item = Arc<Page>>>, EngineError> {
        let master = |(key, record)| match (key, record) {
            (Key::Page(_, 0), Record::Page(master)) => Some(master),
            _ => None,
        };
        Ok(self.next().await?.map(|records| records.into_iter().filter_map(master)))
    }

    async fn fetch(&self, cursor: Option<Cursor>) -> Result<ScanPage, EngineError> {
        let ask = || self.store.engine.scan(self.set, cursor.clone(), self.batch);
        self.store.pauses(None).until_answered(EngineError::may_be_retried, ask).await
    }
}
