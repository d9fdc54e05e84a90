//! Reads with an answer for each key: a damaged record, or a node that does not answer, fails its own keys only.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;

use super::StateStore;
use crate::{
    engine::{EngineError, ErrorKind},
    record::{Key, Record, SelectedPage, Selection},
    tx::Txid,
};

impl StateStore {
    /// Returns the same store with a limit for the reads of this module: a key whose reads fail, and may be retried, is
    /// read again for this time. Without a limit such a key is read until the engine answers.
    pub fn with_read_limit(self, limit: Duration) -> Self {
        StateStore { read_limit: Some(limit), ..self }
    }

    /// Reads records; `record[i]` belongs to `keys[i]`, and `None` stands for an absent record.
    pub(crate) async fn read_records(&self, keys: Vec<Key>) -> Vec<Result<Option<Record>, EngineError>> {
        let engine = &self.engine;
        let first = keys.first().copied();
        self.read_each(first, keys, |keys| async move { engine.read(&keys).await }).await
    }

    /// Reads parts of pages; `page[i]` belongs to `pages[i]`, and `None` stands for an absent page.
    pub(crate) async fn read_selected(
        &self,
        pages: Vec<(Key, Selection)>,
    ) -> Vec<Result<Option<SelectedPage>, EngineError>> {
        let engine = &self.engine;
        let first = pages.first().map(|(key, _)| *key);
        self.read_each(first, pages, |pages| async move { engine.read_selected(&pages).await }).await
    }

    /// Bounds a read of one transaction's body by the limit of this store.
    ///
    /// # Errors
    /// The body did not arrive within the limit.
    pub(super) async fn within_limit<T>(&self, txid: Txid, read: impl Future<Output = T>) -> Result<T, EngineError> {
        let Some(limit) = self.read_limit else { return Ok(read.await) };
        tokio::time::timeout(limit, read).await.map_err(|_| EngineError {
            kind: ErrorKind::Storage,
            operation: "read",
            key: txid.to_string(),
            message: format!("the body did not arrive within {limit:?}"),
        })
    }

    /// Sends reads in batches until each item has an answer or an error that no retry heals, or until the limit.
    async fn read_each<I, O, F>(
        &self,
        first: Option<Key>,
        items: Vec<I>,
        send: impl Fn(Vec<I>) -> F,
    ) -> Vec<Result<O, EngineError>>
    where
        I: Clone,
        F: Future<Output = Vec<Result<O, EngineError>>>,
    {
        let deadline = self.read_limit.map(|limit| Instant::now() + limit);
        let mut backoff = self.new_backoff(first);
        let mut answers: BTreeMap<usize, Result<O, EngineError>> = BTreeMap::new();
        let mut pending: Vec<usize> = (0..items.len()).collect();
        while !pending.is_empty() {
            let is_last = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let mut failed = Vec::new();
            let mut unsent = pending.chunks(self.settings.batch_size.max(1)).map(|batch| {
                let sent = send(batch.iter().map(|&index| items[index].clone()).collect());
                async move { (batch, sent.await) }
            });
            let mut sent: FuturesUnordered<_> = unsent.by_ref().take(self.settings.concurrency.max(1)).collect();
            while let Some((batch, results)) = sent.next().await {
                sent.extend(unsent.next());
                for (&index, result) in batch.iter().zip(results) {
                    match result {
                        Err(error) if error.may_be_retried() && !is_last => failed.push((index, error)),
                        result => drop(answers.insert(index, result)),
                    }
                }
            }
            drop(sent);
            if let Some((_, error)) = failed.first() {
                tracing::warn!(%error, keys = failed.len(), "store: retrying failed reads");
                let pause = backoff.pause();
                match deadline {
                    Some(deadline) => drop(tokio::time::timeout_at(deadline, pause).await),
                    None => pause.await,
                }
            }
            pending = failed.into_iter().map(|(index, _)| index).collect();
        }
        answers.into_values().collect()
    }
}

#[cfg(test)]
#[path = "each_tests.rs"]
mod tests;
