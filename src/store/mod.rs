//! Protocols that change several records, built on operations on one record, and the reads of the state.

pub mod blob_status;
pub mod block_index;
pub mod body;
pub mod canonical;
pub mod chain;
pub mod clearing;
pub mod compare;
pub mod create;
pub mod digest;
pub mod dump;
mod each;
pub mod external;
pub mod health_check;
pub mod meta;
pub mod outputs;
pub mod ownership;
pub mod previous_outputs;
pub mod prune;
pub mod queries;
pub mod raw;
pub mod read;
pub mod recovery;
pub mod restart_detector;
pub mod sentinels;
pub mod shared_look;
pub mod spend_status;
pub mod stats;
pub mod topics;
pub mod tx_list;
pub mod unspent;
pub mod verify;

pub(crate) mod page_reports;
pub(crate) mod pages;
mod scan;
#[cfg(test)]
pub(crate) mod testing;

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};

use crate::{
    backoff::Backoff,
    blob::{BlobStore, EventBodies, objects::Objects},
    engine::{Cursor, EngineError, ErrorKind, Index, KeyPage, RecordEngine, Row},
    record::{Key, Outcome, Page, Record, Rules},
    tx::{Network, Outpoint, Txid},
};

use blob_status::BlobStatus;

/// Settings of a store.
#[derive(Debug, Clone, Copy)]
pub struct StoreSettings {
    /// Network whose rules decide which outputs get a slot.
    pub network: Network,
    /// Rules that the operations follow.
    pub rules: Rules,
    /// Slots of a page; fixed for the life of a set.
    pub utxo_batch_size: u32,
    /// Largest number of rows in one batch.
    pub batch_size: usize,
    /// Largest number of batches that are sent at once.
    pub concurrency: usize,
    /// First and longest pause before a failed row or a failed blob request is sent again.
    pub retry_pause: (Duration, Duration),
    /// Largest body in bytes that the master holds inline. With a blob store, larger bodies and the bodies of
    /// transactions of several pages are blobs.
    pub inline_limit: u64,
}

/// An engine with the settings and the blob store that belong to its records. Cheap to clone.
#[derive(Clone)]
pub struct StateStore {
    /// Engine that holds the records.
    pub engine: Arc<dyn RecordEngine>,
    /// Settings of this store.
    pub settings: StoreSettings,
    /// Blob store with the bodies of large transactions; `None`: every body is inline.
    pub blobs: Option<BlobStore>,
    /// Failure of the blob store for which requests of this handle wait.
    pub blob_status: BlobStatus,
    /// Objects to which block events can refer for their transaction lists; `None`: not configured.
    pub objects: Option<Objects>,
    /// Bodies to which the events of transactions can refer; `None`: not configured.
    pub event_bodies: Option<EventBodies>,
    /// Longest time for which a read with an answer for each key tries a key again; `None`: until the engine answers.
    pub read_limit: Option<Duration>,
}

impl StateStore {
    /// Creates a store on an open engine, without a blob store and without objects.
    pub fn new(engine: Arc<dyn RecordEngine>, settings: StoreSettings) -> Self {
        let blob_status = BlobStatus::default();
        StateStore { engine, settings, blobs: None, blob_status, objects: None, event_bodies: None, read_limit: None }
    }

    /// Returns the same store with this blob store.
    pub fn with_blobs(self, blobs: Option<BlobStore>) -> Self {
        StateStore { blobs, ..self }
    }

    /// Returns the same store with these objects for block events.
    pub fn with_objects(self, objects: Option<Objects>) -> Self {
        StateStore { objects, ..self }
    }

    /// Returns the same store with these bodies for events of transactions.
    pub fn with_event_bodies(self, event_bodies: Option<EventBodies>) -> Self {
        StateStore { event_bodies, ..self }
    }

    /// Returns the same store with a blob status of its own, for a task that reports its waits for blobs separately.
    pub fn with_own_blob_status(&self) -> Self {
        StateStore { blob_status: BlobStatus::default(), ..self.clone() }
    }

    /// Returns whether the engine can lose writes that it has acknowledged.
    pub fn can_lose_writes(&self) -> bool {
        !self.engine.loss_window().is_zero()
    }

    /// Applies rows in batches; no two rows may depend on each other's order. Rows on one record that follow each other
    /// share a batch, however many: batches that are on their way at once would contend for the record.
    ///
    /// A row whose error may be retried is sent again until it has an outcome. A row that is too big is sent again with
    /// its body in the blob store. `outcome[i]` belongs to `rows[i]`.
    ///
    /// # Errors
    /// The first error that may not be retried.
    pub async fn apply(&self, rows: Vec<Row>) -> Result<Vec<Outcome>, EngineError> {
        self.apply_reporting(rows, |_| {}).await
    }

    /// Like [`apply`](Self::apply); calls `report` with each error that is retried, and with `None` once every row has
    /// an outcome.
    pub async fn apply_reporting(
        &self,
        rows: Vec<Row>,
        report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Vec<Outcome>, EngineError> {
        let engine = &self.engine;
        // Boxed: the future is rarely polled, and would enlarge every future of this function.
        let externalize_body =
            |row: Row, too_big| Box::pin(async move { self.externalize_body(&row, too_big, |_| {}).await });
        let backoff = self.new_backoff(rows.first().map(|row| row.key));
        let is_same_record: fn(&Row, &Row) -> bool = |row, next| row.key == next.key;
        let apply = |rows: Vec<Row>| async move { engine.apply(&rows).await };
        self.retry_until_done(backoff, rows, is_same_record, apply, externalize_body, report).await
    }

    /// Applies one row like [`apply`](Self::apply).
    pub async fn apply_one(&self, row: Row) -> Result<Outcome, EngineError> {
        let mut outcomes = self.apply(vec![row]).await?;
        Ok(outcomes.pop().unwrap_or_else(|| unreachable!("one outcome for one row")))
    }

    /// Reads records with retries; `record[i]` belongs to `keys[i]`, and `None` stands for an absent record.
    pub async fn read(&self, keys: Vec<Key>) -> Result<Vec<Option<Record>>, EngineError> {
        let engine = &self.engine;
        let externalize_body = |_: Key, too_big| std::future::ready(Err(too_big));
        let backoff = self.new_backoff(keys.first().copied());
        let read = |keys: Vec<Key>| async move { engine.read(&keys).await };
        self.retry_until_done(backoff, keys, |_, _| false, read, externalize_body, |_| {}).await
    }

    /// Reads the masters of several transactions; `None` stands for an absent master.
    pub async fn masters(&self, txids: &[Txid]) -> Result<Vec<Option<Arc<Page>>>, EngineError> {
        let records = self.read(txids.iter().map(|txid| Key::master(*txid)).collect()).await?;
        Ok(records.into_iter().map(into_page).collect())
    }

    /// Reads the master of one transaction; `None`: no master exists.
    pub async fn master(&self, txid: Txid) -> Result<Option<Arc<Page>>, EngineError> {
        Ok(self.read(vec![Key::master(txid)]).await?.pop().and_then(into_page))
    }

    /// Reads the pages `from..to` of a transaction; `None` stands for a missing page.
    pub(crate) async fn pages(&self, txid: Txid, from: u32, to: u32) -> Result<Vec<Option<Arc<Page>>>, EngineError> {
        let keys = (from..to).map(|number| Key::Page(txid, number)).collect();
        Ok(self.read(keys).await?.into_iter().map(into_page).collect())
    }

    /// Returns the page of an output's slot and the offset of the slot in that page.
    pub(crate) fn locate_slot(&self, outpoint: Outpoint) -> (u32, u32) {
        outpoint.place(self.settings.utxo_batch_size.max(1))
    }

    /// Reads at most `limit` keys of pages whose value of `index` is in `from..=to`, in ascending order of that value.
    /// Queries that fail with a retryable error are repeated.
    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        let ask = || self.engine.query(index, from, to, limit);
        self.new_backoff(None).retry(EngineError::may_be_retried, ask).await
    }

    /// Reads the next keys of pages whose value of `index` is `value`, from `cursor` (`None`: from the start). Queries
    /// that fail with a retryable error are repeated.
    async fn query_part(&self, index: Index, value: u64, cursor: Option<Cursor>) -> Result<KeyPage, EngineError> {
        let ask = || self.engine.query_part(index, (value, value), cursor.clone());
        self.new_backoff(None).retry(EngineError::may_be_retried, ask).await
    }

    /// Returns the pauses between the tries of a request. The first key seeds the pauses, so that two tasks or two
    /// instances do not retry in step.
    pub(crate) fn new_backoff(&self, first: Option<Key>) -> Backoff {
        Backoff::from_key(self.settings.retry_pause, first.map(|key| key.to_string()).unwrap_or_default().as_bytes())
    }

    /// Sends items in batches until each has an output. Replaces an item that is too big by `externalize_body`.
    async fn retry_until_done<I, O, F, L>(
        &self,
        mut backoff: Backoff,
        mut items: Vec<I>,
        share_batch: fn(&I, &I) -> bool,
        send: impl Fn(Vec<I>) -> F,
        externalize_body: impl Fn(I, EngineError) -> L,
        mut report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Vec<O>, EngineError>
    where
        I: Clone,
        F: Future<Output = Vec<Result<O, EngineError>>>,
        L: Future<Output = Result<I, EngineError>>,
    {
        let mut outputs: Vec<Option<O>> = items.iter().map(|_| None).collect();
        let mut pending: Vec<usize> = (0..items.len()).collect();
        while !pending.is_empty() {
            let (mut failed, mut too_big, mut has_failed) = (Vec::new(), Vec::new(), false);
            let share_batch = |one: usize, next: usize| share_batch(&items[one], &items[next]);
            let batches = into_batches(&pending, self.settings.batch_size.max(1), share_batch);
            let mut unsent = batches.iter().map(|batch| {
                let sent = send(batch.iter().map(|&index| items[index].clone()).collect());
                async move { (*batch, sent.await) }
            });
            let mut sent: FuturesUnordered<_> = unsent.by_ref().take(self.settings.concurrency.max(1)).collect();
            while let Some((batch, results)) = sent.next().await {
                sent.extend(unsent.next());
                for (&index, result) in batch.iter().zip(results) {
                    match result {
                        Ok(output) => outputs[index] = Some(output),
                        Err(error) if error.may_be_retried() => {
                            tracing::warn!(%error, "store: retrying a failed request");
                            report(Some(&error));
                            has_failed = true;
                            failed.push(index);
                        }
                        Err(error) if error.kind == ErrorKind::TooBig => too_big.push((index, error)),
                        Err(error) => return Err(error),
                    }
                }
            }
            drop(sent);
            for (index, error) in too_big {
                items[index] = externalize_body(items[index].clone(), error).await?;
                failed.push(index);
            }
            pending = failed;
            if has_failed {
                backoff.pause().await;
            }
        }
        report(None);
        Ok(outputs.into_iter().flatten().collect())
    }
}

/// Splits indexes into batches of `size`. A batch is longer where its last item shares a batch with the following ones.
fn into_batches(mut indexes: &[usize], size: usize, share_batch: impl Fn(usize, usize) -> bool) -> Vec<&[usize]> {
    let mut batches = Vec::new();
    while !indexes.is_empty() {
        let mut end = indexes.len().min(size);
        while end < indexes.len() && share_batch(indexes[end - 1], indexes[end]) {
            end += 1;
        }
        let (batch, rest) = indexes.split_at(end);
        batches.push(batch);
        indexes = rest;
    }
    batches
}

/// Returns the page of a record; `None` where the record is absent or of another kind.
pub fn into_page(record: Option<Record>) -> Option<Arc<Page>> {
    match record {
        Some(Record::Page(page)) => Some(page),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        engine::{EngineDecorator, RowResult},
        record::{Operation, Phase, Sequenced, Stamp},
    };

    /// Records the keys of each call.
    struct RecordedCalls(Arc<dyn RecordEngine>, Mutex<Vec<Vec<Key>>>);

    impl EngineDecorator for RecordedCalls {
        fn inner(&self) -> &dyn RecordEngine {
            self.0.as_ref()
        }

        async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
            self.1.lock().unwrap().push(rows.iter().map(|row| row.key).collect());
            self.0.apply(rows).await
        }
    }

    /// Protects: children of one parent that become conflicting together do not contend for its record.
    #[tokio::test]
    async fn rows_on_one_record_share_a_batch() {
        let store = testing::store(100);
        let calls = Arc::new(RecordedCalls(store.engine.clone(), Mutex::default()));
        let store = StateStore { engine: calls.clone(), ..store };
        let row = |tag: u8| {
            let operation = Operation::Sequenced(Stamp::in_era(0, 1, Phase::Apply), Sequenced::MarkContested);
            Row { key: Key::master(Txid([tag; 32])), operation }
        };
        let rows = [1, 2, 3, 3, 3, 3, 3, 4, 5, 5].map(row);
        assert_eq!(store.apply(rows.to_vec()).await.unwrap().len(), rows.len());
        let mut sizes: Vec<usize> = calls.1.lock().unwrap().iter().map(Vec::len).collect();
        sizes.sort_unstable();
        assert_eq!((store.settings.batch_size, sizes), (3, vec![3, 7]));
    }
}
