//! The multi-record protocols over one-record operations, and reads.

pub mod asked;
pub mod body;
pub mod canonical;
pub mod compare;
pub mod create;
pub mod digest;
pub mod dump;
pub mod external;
pub mod meta;
pub mod nodes;
pub mod prune;
pub mod queries;
pub mod read;
pub mod recovery;
pub mod sentinels;
pub mod stats;
pub mod topics;
pub mod trouble;
pub mod verify;
pub mod whole;

mod scan;
#[cfg(test)]
pub(crate) mod testing;

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};

use crate::{
    backoff::Backoff,
    blob::{BlobStore, objects::Objects},
    engine::{EngineError, ErrorKind, RecordEngine, Row},
    record::{Key, Outcome, Page, Record, Rules},
    tx::{Network, Txid},
};

use trouble::BlobTrouble;

/// What a store is set up for.
#[derive(Debug, Clone, Copy)]
pub struct StoreSettings {
    /// Decides which outputs get a slot.
    pub network: Network,
    /// What operations do.
    pub rules: Rules,
    /// Slots a page; fixed for the life of a set.
    pub utxo_batch_size: u32,
    /// Rows a batch.
    pub batch_size: usize,
    /// Batches on their way at once.
    pub concurrency: usize,
    /// First and longest pause before a failed row is sent again, or the blob store asked.
    pub retry_pause: (Duration, Duration),
    /// Bodies of more bytes go to the blob store, where there is one, and those of several pages.
    pub inline_limit: u64,
}

/// A store: an engine, and how it is used. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    /// Where the records live.
    pub engine: Arc<dyn RecordEngine>,
    /// How it is used.
    pub settings: StoreSettings,
    /// Where bodies of large transactions are, if anywhere.
    pub blobs: Option<BlobStore>,
    /// What it waits for there.
    pub trouble: BlobTrouble,
    /// Where blocks refer to for what they list, if anywhere.
    pub objects: Option<Objects>,
}

impl Store {
    /// A store on an engine that is open, without blobs.
    pub fn new(engine: Arc<dyn RecordEngine>, settings: StoreSettings) -> Self {
        Store { engine, settings, blobs: None, trouble: BlobTrouble::default(), objects: None }
    }

    /// The same records, with this blob store beside them.
    pub fn with_blobs(self, blobs: Option<BlobStore>) -> Self {
        Store { blobs, ..self }
    }

    /// The same records, with blocks that may refer to these objects.
    pub fn with_objects(self, objects: Option<Objects>) -> Self {
        Store { objects, ..self }
    }

    /// The same store for who says by himself what he waits for.
    pub fn apart(&self) -> Self {
        Store { trouble: BlobTrouble::default(), ..self.clone() }
    }

    /// Whether its nodes may forget what they have acknowledged.
    pub fn may_forget(&self) -> bool {
        !self.engine.may_forget().is_zero()
    }

    /// Applies rows of which no two need an order, in batches; what failed and may be retried is sent again until it has
    /// an outcome, and what is too big without its body. `outcome[i]` belongs to `rows[i]`.
    pub async fn apply(&self, rows: Vec<Row>) -> Result<Vec<Outcome>, EngineError> {
        self.apply_telling(rows, |_| {}).await
    }

    /// The same; `told` hears what keeps the store from answering, and `None` when it has answered.
    pub async fn apply_telling(
        &self,
        rows: Vec<Row>,
        told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Vec<Outcome>, EngineError> {
        let engine = &self.engine;
        // Rare, and a part of every future here: boxed.
        let lighter = |row: Row, too_big| Box::pin(async move { self.lighter(&row, too_big, |_| {}).await });
        let pauses = self.pauses(rows.first().map(|row| row.key));
        self.until_done(pauses, rows, |rows| async move { engine.apply(&rows).await }, lighter, told).await
    }

    /// Applies one operation.
    pub async fn apply_one(&self, row: Row) -> Result<Outcome, EngineError> {
        let mut outcomes = self.apply(vec![row]).await?;
        Ok(outcomes.pop().unwrap_or_else(|| unreachable!("one outcome for one row")))
    }

    /// Reads records; `record[i]` belongs to `keys[i]`.
    pub async fn read(&self, keys: Vec<Key>) -> Result<Vec<Option<Record>>, EngineError> {
        let engine = &self.engine;
        let lighter = |_: Key, too_big| std::future::ready(Err(too_big));
        let pauses = self.pauses(keys.first().copied());
        self.until_done(pauses, keys, |keys| async move { engine.read(&keys).await }, lighter, |_| {}).await
    }

    /// Reads master records; `None`: there is none.
    pub async fn masters(&self, txids: &[Txid]) -> Result<Vec<Option<Arc<Page>>>, EngineError> {
        let records = self.read(txids.iter().map(|txid| Key::master(*txid)).collect()).await?;
        Ok(records.into_iter().map(into_page).collect())
    }

    /// Reads one master record.
    pub async fn master(&self, txid: Txid) -> Result<Option<Arc<Page>>, EngineError> {
        Ok(self
            .read(vec![Key::master(txid)])
            .await?
            .into_iter()
            .next()
            .flatten()
            .and_then(|record| into_page(Some(record))))
    }

    /// The pauses between tries: by what is tried first, so that two tasks, or two instances, do not try again in step.
    pub(crate) fn pauses(&self, tried: Option<Key>) -> Backoff {
        Backoff::of(self.settings.retry_pause, tried.map(|key| key.to_string()).unwrap_or_default().as_bytes())
    }

    async fn until_done<I, O, F, L>(
        &self,
        mut pauses: Backoff,
        mut items: Vec<I>,
        send: impl Fn(Vec<I>) -> F,
        lighter: impl Fn(I, EngineError) -> L,
        mut told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Vec<O>, EngineError>
    where
        I: Clone,
        F: Future<Output = Vec<Result<O, EngineError>>>,
        L: Future<Output = Result<I, EngineError>>,
    {
        let mut outputs: Vec<Option<O>> = items.iter().map(|_| None).collect();
        let mut pending: Vec<usize> = (0..items.len()).collect();
        while !pending.is_empty() {
            let (mut failed, mut too_big, mut in_trouble) = (Vec::new(), Vec::new(), false);
            let batches: Vec<&[usize]> = pending.chunks(self.settings.batch_size.max(1)).collect();
            let mut unsent = batches.iter().map(|batch| {
                let sent = send(batch.iter().map(|&place| items[place].clone()).collect());
                async move { (*batch, sent.await) }
            });
            let mut sent: FuturesUnordered<_> = unsent.by_ref().take(self.settings.concurrency.max(1)).collect();
            while let Some((batch, results)) = sent.next().await {
                sent.extend(unsent.next());
                for (&place, result) in batch.iter().zip(results) {
                    match result {
                        Ok(output) => outputs[place] = Some(output),
                        Err(error) if error.may_be_retried() => {
                            tracing::warn!(%error, "tried again");
                            told(Some(&error));
                            in_trouble = true;
                            failed.push(place);
                        }
                        Err(error) if error.kind == ErrorKind::TooBig => too_big.push((place, error)),
                        Err(error) => return Err(error),
                    }
                }
            }
            drop(sent);
            for (place, error) in too_big {
                items[place] = lighter(items[place].clone(), error).await?;
                failed.push(place);
            }
            pending = failed;
            if in_trouble {
                pauses.pause().await;
            }
        }
        told(None);
        Ok(outputs.into_iter().flatten().collect())
    }
}

/// The page in a record, where it is one.
pub fn into_page(record: Option<Record>) -> Option<Arc<Page>> {
    match record {
        Some(Record::Page(page)) => Some(page),
        _ => None,
    }
}
