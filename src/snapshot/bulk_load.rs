//! [`BulkLoad`]: loads records in numbered chunks into an empty store, which no instance uses before the load has
//! ended. The meta record has the number of durable chunks, so that a load that was stopped continues.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    SnapshotError, Totals,
    load::{has_equal_content, to_store},
    verify::CHUNKS_AT_ONCE,
};
use crate::{
    engine::{EngineError, Row},
    instance::{InstanceError, start::claim_blobs},
    record::{Body, Key, MetaRecord, Operation, Outcome, Record},
    store::{
        StateStore,
        meta::{MetaError, RestoreRecord},
        restart_detector::{LagTooShort, RestartDetector, durability_lag},
        sentinels::Sentinels,
    },
};

/// Source of the records of a load, in numbered chunks.
pub(crate) trait ChunkSource: Sync {
    /// Error of the load.
    type Error: From<MetaError> + From<EngineError> + From<InstanceError>;

    /// Returns the number of chunks.
    fn chunk_count(&self) -> usize;

    /// Loads a chunk. A chunk that was loaded before is loaded again without an effect.
    fn load_chunk(&self, number: usize) -> impl Future<Output = Result<Totals, Self::Error>> + Send;

    /// Takes the number of chunks that are loaded, all from the first on.
    fn report_loaded(&self, chunks: usize);
}

/// Result of loading all chunks.
pub(crate) struct LoadedChunks {
    /// The load continued one that was stopped.
    pub(crate) resumed: bool,
    /// Counts of all records; `None`: some chunks were loaded before.
    pub(crate) totals: Option<Totals>,
}

/// A load of records into an empty store.
pub(crate) struct BulkLoad<'a> {
    store: &'a StateStore,
    record: RestoreRecord<'a>,
    nodes: RestartDetector,
}

impl<'a> BulkLoad<'a> {
    /// Creates the load with this id; a load that was stopped continues with its id. `lag`: the configured durability
    /// lag.
    pub(crate) fn new(store: &'a StateStore, id: [u8; 16], lag: Option<Duration>) -> Result<Self, LagTooShort> {
        let lag = durability_lag(store.engine.as_ref(), lag)?;
        let nodes = RestartDetector::new(store.engine.clone(), lag);
        Ok(BulkLoad { store, record: RestoreRecord::of(store, id), nodes })
    }

    /// Returns whether this load has ended already: its command was killed after the last write, and before it had said
    /// so. Returns once the end is durable.
    ///
    /// # Errors
    /// The store does not answer.
    pub(crate) async fn has_ended(&mut self) -> Result<bool, MetaError> {
        if !self.record.has_ended().await? {
            return Ok(false);
        }
        self.nodes.baseline().await?;
        while self.record.has_ended().await? {
            if self.nodes.wait_until_durable().await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Begins the load in an empty store, whose meta record becomes `meta`, or continues the load, and returns once
    /// every record is durable. After a restart of a node every chunk is loaded again.
    ///
    /// # Errors
    /// The store is not empty, and not in this load; or the error of a chunk.
    pub(crate) async fn load<S: ChunkSource>(
        &mut self,
        meta: &MetaRecord,
        source: &S,
    ) -> Result<LoadedChunks, S::Error> {
        let store = self.store;
        self.nodes.baseline().await?;
        let mut resumed = None;
        let totals = loop {
            let meta = self.record.begin(meta.clone(), self.nodes.expected()).await?;
            let first = meta.restored.as_ref().map_or(0, |restored| restored.chunks);
            resumed.get_or_insert(first > 0);
            // The mark of the blob store and the sentinels name the store id, which must be durable before.
            if first == 0 && !self.nodes.wait_until_durable().await? {
                continue;
            }
            claim_blobs(store, &meta).await?;
            Sentinels::of(store).write(&meta).await?;
            let loaded = self.load_from(first, source).await?;
            if self.nodes.wait_until_durable().await? {
                break loaded;
            }
            tracing::warn!("store: a node restarted while records were loaded; loading every record again");
        };
        if store.engine.may_lose_parts() {
            let meta = store.meta().await?.ok_or(MetaError::NoMetaRecord)?;
            Sentinels::of(store).verify(&meta).await?;
            Sentinels::of(store).record().await?;
        }
        Ok(LoadedChunks { resumed: resumed.unwrap_or(false), totals })
    }

    /// Loads the chunks from `first` on. Returns the counts where every chunk was loaded.
    async fn load_from<S: ChunkSource>(&self, first: u64, source: &S) -> Result<Option<Totals>, S::Error> {
        let count = source.chunk_count();
        let skipped = usize::try_from(first).unwrap_or(usize::MAX).min(count);
        let loads = stream::iter(skipped..count)
            .map(|number| async move { Ok::<_, S::Error>((number, source.load_chunk(number).await?)) })
            .buffered(CHUNKS_AT_ONCE);
        let mut loads = std::pin::pin!(loads);
        let (mut totals, mut recorded, mut loaded_at) = (Totals::default(), first, Vec::new());
        while let Some((number, found)) = loads.try_next().await? {
            totals += found;
            source.report_loaded(number + 1);
            // A load whose chunks are all at hand would notice no order to stop.
            tokio::task::yield_now().await;
            loaded_at.push((number as u64 + 1, tokio::time::Instant::now()));
            // A chunk counts as durable one lag after its last write, over nodes that have not restarted.
            let is_old = |(_, at): &&(u64, tokio::time::Instant)| at.elapsed() >= self.nodes.lag();
            let durable = loaded_at.iter().rev().find(is_old).map(|(chunks, _)| *chunks);
            if let Some(chunks) = durable.filter(|chunks| *chunks > recorded) {
                if !self.nodes.has_kept_writes().await? {
                    return Ok(None);
                }
                self.record.record_progress(chunks, self.nodes.expected()).await?;
                recorded = chunks;
                loaded_at.retain(|(loaded, _)| *loaded > chunks);
            }
        }
        Ok((first == 0).then_some(totals))
    }

    /// Ends the load: instances may use the store from now on.
    ///
    /// # Errors
    /// The store does not answer, or another process has ended the load.
    pub(crate) async fn end(&mut self) -> Result<(), MetaError> {
        self.record.end_loading().await?;
        while !self.nodes.wait_until_durable().await? {
            self.record.end_loading().await.map(drop).or_else(|error| match error {
                // The end is in the store already.
                MetaError::RestoreTakenOver => Ok(()),
                error => Err(error),
            })?;
        }
        Ok(())
    }

    /// Ends the load of a copy, which has the offsets of its source: the store is an ordinary one from now on. A repeat
    /// makes sure that the end is durable.
    ///
    /// # Errors
    /// The store does not answer, or another process has begun another load.
    pub(super) async fn end_copy(&mut self) -> Result<(), MetaError> {
        self.nodes.baseline().await?;
        loop {
            self.record.end_copy().await?;
            if self.nodes.wait_until_durable().await? {
                return Ok(());
            }
        }
    }
}

/// Bytes of records that are written at once.
const BATCH_BYTES: u64 = 4 << 20;
/// Bytes of a slot, and of a record besides its slots and its body.
const SLOT_BYTES: u64 = 73;
const RECORD_BYTES: u64 = 512;

/// Estimates the bytes of a record.
pub(super) fn record_bytes(record: &Record) -> u64 {
    let Some(page) = record.page() else { return RECORD_BYTES };
    let slots = page.utxos.as_ref().map_or(0, Vec::len) as u64;
    RECORD_BYTES + SLOT_BYTES * slots + page.body().map_or(0, Body::size)
}

/// Records of a chunk on their way into a store, some megabytes at a time.
pub(crate) struct RecordBatch<'a> {
    store: &'a StateStore,
    rows: Vec<Row>,
    bytes: u64,
}

impl<'a> RecordBatch<'a> {
    /// Creates an empty batch for this store.
    pub(crate) fn new(store: &'a StateStore) -> Self {
        RecordBatch { store, rows: Vec::new(), bytes: 0 }
    }

    /// Adds a record, and writes the batch once it is full. A body that belongs into the blob store is written there
    /// first. Returns the key of a record that the store has with other content; `None`: there is none.
    ///
    /// # Errors
    /// An error of the store that no retry heals.
    pub(crate) async fn add(&mut self, key: Key, record: Record) -> Result<Option<Key>, SnapshotError> {
        self.bytes += record_bytes(&record);
        let record = to_store(self.store, record).await?;
        self.rows.push(Row { key, operation: Operation::Restore(Box::new(record)) });
        if self.bytes >= BATCH_BYTES { Ok(self.write().await?) } else { Ok(None) }
    }

    /// Writes the rest of the batch. The result is that of [`add`](Self::add).
    ///
    /// # Errors
    /// An error of the store that no retry heals.
    pub(crate) async fn write(&mut self) -> Result<Option<Key>, SnapshotError> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let outcomes = self.store.apply(rows.clone()).await?;
        for (Row { key, operation }, outcome) in rows.into_iter().zip(outcomes) {
            let (Outcome::Rejected(_), Operation::Restore(record)) = (outcome, operation) else { continue };
            // A record that was too big for the store has its body elsewhere since the first attempt.
            let stored = self.store.read(vec![key]).await?.pop().flatten();
            let is_equal = match stored {
                Some(stored) => has_equal_content((self.store, *record), (self.store, stored), key).await?,
                None => false,
            };
            if !is_equal {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }
}
