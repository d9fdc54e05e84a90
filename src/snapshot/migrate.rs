//! Migration: copies a store at rest into an empty store of another engine or layout, with its meta record and its
//! identity, so that the group goes on with the copy. No log is read.
//!
//! The copy continues after a kill. No instance starts on the copy before its digest was compared with the source.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    CopyProgress, OnProgress, SnapshotError, Totals,
    bulk_load::{BulkLoad, ChunkSource, RecordBatch},
    manifest::{BLOCKS, COMMANDS},
    scan::fetch_part,
};
use crate::{
    engine::EngineError,
    instance::InstanceError,
    record::{MetaRecord, Record, Restored, codec},
    store::{
        StateStore,
        digest::{StateDigest, Survey, SurveyError, survey},
        meta::{LAYOUT_VERSION, MetaError, StoreMeta, check_blobs, check_not_rebuilding},
        restart_detector::LagTooShort,
        sentinels::Sentinels,
    },
};

/// Parts of the transactions that are copied one after the other, a few at once.
const PARTS: u16 = 64;
/// Records of one page of the scan.
const PAGE_RECORDS: usize = 256;

/// Reasons why a migration did not end; each message is one line and names the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum MigrateError {
    #[error(
        "the source was restored and has not caught up with the log: run an instance on the source until `restored` is \
         gone from its meta record"
    )]
    CatchingUp,
    #[error(
        "the source changed during the migration: stop every instance and command of the source, and migrate again \
         into an empty store"
    )]
    SourceChanged,
    #[error(
        "the digests differ: the source has {from}, the copy {to}; `utxo-store dump` of both shows the transactions, \
         and the copy cannot be used"
    )]
    OtherDigest { from: StateDigest, to: StateDigest },
    #[error("record {key} of the source differs from a record of the copy: the copy is in use, or is of another store")]
    OtherRecord { key: String },
    #[error("stopped; the same command continues")]
    Stopped,
    #[error(transparent)]
    Load(#[from] SnapshotError),
    #[error(transparent)]
    Meta(#[from] MetaError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Survey(#[from] SurveyError),
    #[error(transparent)]
    Instance(#[from] InstanceError),
    #[error(transparent)]
    LagTooShort(#[from] LagTooShort),
}

/// Result of a migration.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct MigrateReport {
    /// The migration continued one that was stopped, or found it ended.
    pub resumed: bool,
    /// Counts of the records that were copied; `None`: a part was copied before.
    pub copied: Option<Totals>,
    /// Digest of both stores.
    pub digest: StateDigest,
    /// Transactions of both stores.
    pub transactions: u64,
}

/// Copies the store at rest `from` into the empty store `to`, or continues such a copy, and compares the digests.
/// Large bodies stay in their blob store, which both stores have.
///
/// `lag`: the configured durability lag of the copy.
///
/// # Errors
/// See [`MigrateError`]. Every refusal comes before the first write. [`MigrateError::Stopped`] after `shutdown`; the
/// same call then continues.
pub async fn migrate(
    from: &StateStore,
    to: &StateStore,
    lag: Option<Duration>,
    shutdown: &CancellationToken,
    on_progress: OnProgress<'_>,
) -> Result<MigrateReport, MigrateError> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Err(MigrateError::Stopped),
        done = Box::pin(run(from, to, lag, on_progress)) => done,
    }
}

async fn run(
    from: &StateStore,
    to: &StateStore,
    lag: Option<Duration>,
    on_progress: OnProgress<'_>,
) -> Result<MigrateReport, MigrateError> {
    let source = check_source(from).await?;
    check_blobs(&source, to)?;
    let found = to.meta().await?;
    if found.is_some_and(|found| found.restored.is_none() && found.store_id == source.store_id) {
        let compared = compare(from, to).await?;
        return Ok(MigrateReport::of(true, None, &compared));
    }
    let mut load = BulkLoad::new(to, migration_id(&source), lag)?;
    let copy = Copy { from, to, records: AtomicU64::new(0), on_progress };
    let loaded = load.load(&copied_meta(&source), &copy).await?;
    let compared = compare(from, to).await?;
    if StoreMeta::of(from).inspect(false).await?.as_ref() != Some(&source) {
        return Err(MigrateError::SourceChanged);
    }
    load.end_copy().await?;
    Ok(MigrateReport::of(loaded.resumed, loaded.totals, &compared))
}

impl MigrateReport {
    fn of(resumed: bool, copied: Option<Totals>, compared: &Survey) -> Self {
        MigrateReport { resumed, copied, digest: compared.digest, transactions: compared.stats.transactions }
    }
}

/// Checks that the source is whole and at rest, as far as its records show.
async fn check_source(from: &StateStore) -> Result<MetaRecord, MigrateError> {
    let source = StoreMeta::of(from).inspect(false).await?.ok_or(MetaError::NoMetaRecord)?;
    if source.layout_version != LAYOUT_VERSION {
        return Err(MetaError::OtherLayout { store: source.layout_version }.into());
    }
    check_not_rebuilding(&source)?;
    if source.restored.is_some() {
        return Err(MigrateError::CatchingUp);
    }
    if source.has_sentinels {
        Sentinels::of(from).verify(&source).await?;
    }
    Ok(source)
}

/// Returns the id of the migration of a source in this state: once an instance has used the source, a copy that was
/// begun before is not continued.
fn migration_id(source: &MetaRecord) -> [u8; 16] {
    let mut bytes = Vec::new();
    codec::encode(&Record::Meta(Box::new(source.clone())), &mut bytes);
    let [id @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = blake3::derive_key("utxo-store migration", &bytes);
    id
}

/// Returns the meta record of the copy while records are loaded.
fn copied_meta(source: &MetaRecord) -> MetaRecord {
    let restored = Restored { snapshot: migration_id(source), is_loading: true, ..Restored::default() };
    MetaRecord {
        has_blobs: false,
        has_sentinels: false,
        health_checks: 0,
        snapshot_hold: None,
        restored: Some(Box::new(restored)),
        ..source.clone()
    }
}

/// Compares the digests and counts of both stores.
async fn compare(from: &StateStore, to: &StateStore) -> Result<Survey, MigrateError> {
    let ignore = |_| {};
    let (source, copy) = tokio::try_join!(survey(from, ignore), survey(to, ignore))?;
    match source == copy {
        true => Ok(source),
        false => Err(MigrateError::OtherDigest { from: source.digest, to: copy.digest }),
    }
}

/// The records of the source, in parts.
struct Copy<'a> {
    from: &'a StateStore,
    to: &'a StateStore,
    records: AtomicU64,
    on_progress: OnProgress<'a>,
}

impl ChunkSource for Copy<'_> {
    type Error = MigrateError;

    fn chunk_count(&self) -> usize {
        usize::from(PARTS) + 2
    }

    async fn load_chunk(&self, number: usize) -> Result<Totals, MigrateError> {
        let number = number as u16;
        let part = match number.checked_sub(PARTS) {
            None => number,
            Some(0) => BLOCKS,
            Some(_) => COMMANDS,
        };
        let (mut totals, mut batch, mut cursor) = (Totals::default(), RecordBatch::new(self.to), None);
        let check = |refused: Option<crate::record::Key>| match refused {
            Some(key) => Err(MigrateError::OtherRecord { key: key.to_string() }),
            None => Ok(()),
        };
        loop {
            let page = fetch_part(self.from, (part, PARTS), cursor, PAGE_RECORDS).await?;
            let copied = self.records.fetch_add(page.records.len() as u64, Relaxed);
            for (key, record) in page.records {
                // A lock record is temporary, and the meta record and the sentinels are written for the copy.
                if let Record::Page(_) | Record::Block(_) | Record::Command(_) = record {
                    totals += Totals::of(&record);
                    check(batch.add(key, record).await?)?;
                }
            }
            (self.on_progress)(CopyProgress { records: copied, ..CopyProgress::default() });
            cursor = page.next;
            if cursor.is_none() {
                check(batch.write().await?)?;
                return Ok(totals);
            }
        }
    }

    fn report_loaded(&self, chunks: usize) {
        let (chunks, all_chunks) = (chunks as u64, self.chunk_count() as u64);
        (self.on_progress)(CopyProgress { records: self.records.load(Relaxed), bytes: 0, chunks, all_chunks });
    }
}
