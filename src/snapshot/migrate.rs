//! Migration: copies a store at rest into an empty store of another engine or layout, with its meta record and its
//! identity, so that the group goes on with the copy. No log is read.
//!
//! | step | after a kill |
//! |---|---|
//! | records are copied, part by part | parts that are durable are not copied again |
//! | every record of the source is compared with the copy | all are compared again |
//! | the meta record of the source says that the store has moved | no instance starts on either store |
//! | the meta record of the copy loses the mark `restored` | the group uses the copy |

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio_util::sync::CancellationToken;

use super::{
    CopyProgress, OnProgress, SnapshotError, Totals,
    bulk_load::{BulkLoad, ChunkSource, RecordBatch, record_bytes},
    load::has_equal_content,
    manifest::{BLOCKS, COMMANDS},
    scan::fetch_part,
    verify::CHUNKS_AT_ONCE,
};
use crate::{
    blob::OpenBlobError,
    engine::{Cursor, EngineError},
    instance::InstanceError,
    record::{Key, MetaRecord, MigrationPart, Record, Restored, codec},
    store::{
        StateStore,
        meta::{MetaError, StoreMeta, check_blobs},
        restart_detector::{LagTooShort, RestartDetector, durability_lag},
    },
};

/// Parts of the transactions that are copied one after the other, a few at once.
const PARTS: u16 = 256;
/// Records of the first page of a part, and of any page at most.
const FIRST_PAGE: usize = 16;
const LARGEST_PAGE: usize = 1_024;
/// Bytes of one page of a scan, as far as the size of the largest record before tells.
const PAGE_BYTES: u64 = 8 << 20;

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
        "record {key} of the source differs from the record of the copy: the copy is in use or damaged; migrate into \
         an empty store"
    )]
    OtherRecord { key: String },
    #[error("cannot migrate: {0}")]
    Running(String),
    #[error("cannot go back: {0}")]
    CannotUndo(&'static str),
    #[error("stopped; the same command continues")]
    Stopped,
    #[error(transparent)]
    Load(#[from] SnapshotError),
    #[error(transparent)]
    Meta(#[from] MetaError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Instance(#[from] InstanceError),
    #[error(transparent)]
    Blobs(#[from] OpenBlobError),
    #[error(transparent)]
    LagTooShort(#[from] LagTooShort),
}

/// Result of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MigrateReport {
    /// The migration continued one that was stopped.
    pub resumed: bool,
    /// An earlier command had ended the migration.
    pub had_ended: bool,
    /// Records that are equal in both stores; 0 where the migration had ended, and the group can use the copy.
    pub compared: u64,
}

/// The stores of a migration.
#[derive(Clone, Copy)]
pub struct MigratedStores<'a> {
    /// The store to copy, at rest.
    pub from: &'a StateStore,
    /// The empty store. Both stores have one blob store, in which large bodies stay.
    pub to: &'a StateStore,
    /// Durability lag of the configuration.
    pub lag: Option<Duration>,
}

/// Copies the source into the empty store, or continues such a copy, and compares the records. `check_group` fails
/// while an instance of the group runs: the check comes before the first write, and again before the copy takes the
/// place of the source.
///
/// # Errors
/// See [`MigrateError`]. Every refusal comes before the first record is written. [`MigrateError::Stopped`] after
/// `shutdown`; the same call then continues.
pub async fn migrate(
    stores: MigratedStores<'_>,
    check_group: impl AsyncFn() -> Result<(), MigrateError>,
    shutdown: &CancellationToken,
    on_progress: OnProgress<'_>,
) -> Result<MigrateReport, MigrateError> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Err(MigrateError::Stopped),
        done = Box::pin(run(stores, check_group, on_progress)) => done,
    }
}

async fn run(
    stores: MigratedStores<'_>,
    check_group: impl AsyncFn() -> Result<(), MigrateError>,
    on_progress: OnProgress<'_>,
) -> Result<MigrateReport, MigrateError> {
    let MigratedStores { from, to, lag } = stores;
    check_group().await?;
    let source = StoreMeta::of(from).inspect_source().await?;
    if source.restored.is_some() {
        return Err(MigrateError::CatchingUp);
    }
    let id = migration_id(&source);
    let found = to.meta().await?;
    check_moved(&source, found.as_ref(), id)?;
    check_blobs(&source, to)?;
    let mut load = BulkLoad::new(to, id, lag)?;
    if is_ended(&source, found.as_ref(), id) {
        load.end_copy().await?;
        return Ok(MigrateReport { resumed: true, had_ended: true, compared: 0 });
    }
    if let Some(blobs) = &to.blobs {
        blobs.claim(source.store_id, !source.has_blobs).await?;
    }
    let copy = Copy { from, to, records: AtomicU64::new(0), on_progress };
    load.load(&copied_meta(&source, id), &copy).await?;
    let compared = copy.compare().await?;
    check_group().await?;
    retire(from, lag, &source, id).await?;
    load.end_copy().await?;
    Ok(MigrateReport { resumed: found.is_some(), had_ended: false, compared })
}

/// Goes back from a copy, which has consumed nothing, to the source: the copy is retired, and instances can use the
/// source again.
///
/// # Errors
/// The stores are not source and copy of one migration, or the group has used the copy; or a store does not answer.
pub async fn undo_migration(stores: MigratedStores<'_>) -> Result<(), MigrateError> {
    let MigratedStores { from, to, lag } = stores;
    let (source, copy) = (from.meta().await?, to.meta().await?);
    let (Some(source), Some(copy)) = (source, copy) else { return Err(MetaError::NoMetaRecord.into()) };
    let Some(MigrationPart::Source(id)) = source.migration else {
        return Err(MigrateError::CannotUndo("the source was not migrated, and can be used"));
    };
    match copy.migration {
        // The copy was retired by a command that was killed.
        Some(MigrationPart::Source(retired)) if retired == id => {}
        Some(MigrationPart::Copy(of)) if of == id && copy.consumed == source.consumed => {
            mark_durably(to, lag, |meta| match meta.consumed == source.consumed {
                true => Ok(MetaRecord { migration: Some(MigrationPart::Source(id)), ..meta }),
                false => Err(MetaError::Migrated),
            })
            .await?;
        }
        Some(MigrationPart::Copy(of)) if of == id => {
            return Err(MigrateError::CannotUndo("the group has used the copy: migrate the copy into an empty store"));
        }
        _ => return Err(MigrateError::CannotUndo("the store of --to is not the ended copy of the source")),
    }
    mark_durably(from, lag, |meta| Ok(MetaRecord { migration: None, ..meta })).await
}

/// Refuses a source that has moved to another store than this one.
fn check_moved(source: &MetaRecord, found: Option<&MetaRecord>, id: [u8; 16]) -> Result<(), MigrateError> {
    let is_loading = found.and_then(|found| found.restored.as_ref()).is_some_and(|restored| restored.snapshot == id);
    match source.migration {
        Some(MigrationPart::Source(_)) if !is_loading && !is_ended(source, found, id) => {
            Err(MetaError::Migrated.into())
        }
        _ => Ok(()),
    }
}

fn is_ended(source: &MetaRecord, found: Option<&MetaRecord>, id: [u8; 16]) -> bool {
    let is_copy =
        found.is_some_and(|found| found.migration == Some(MigrationPart::Copy(id)) && found.restored.is_none());
    is_copy && source.migration == Some(MigrationPart::Source(id))
}

/// Returns what the state of the source depends on: not the marks of migrations, of health checks and of snapshots.
fn without_marks(source: &MetaRecord) -> MetaRecord {
    MetaRecord { migration: None, health_checks: 0, snapshot_hold: None, ..source.clone() }
}

/// Returns the id of the migration of a source in this state: once an instance has used the source, a copy that was
/// begun before is not continued.
fn migration_id(source: &MetaRecord) -> [u8; 16] {
    let mut bytes = Vec::new();
    codec::encode(&Record::Meta(Box::new(without_marks(source))), &mut bytes);
    let mut id = [0; 16];
    id.copy_from_slice(&blake3::derive_key("utxo-store migration", &bytes)[..16]);
    id
}

/// Returns the meta record of the copy while records are loaded.
fn copied_meta(source: &MetaRecord, id: [u8; 16]) -> MetaRecord {
    let restored = Restored { snapshot: id, is_loading: true, ..Restored::default() };
    MetaRecord { has_sentinels: false, restored: Some(Box::new(restored)), ..without_marks(source) }
}

/// Marks the source as moved, unless the source has changed.
async fn retire(
    from: &StateStore,
    lag: Option<Duration>,
    source: &MetaRecord,
    id: [u8; 16],
) -> Result<(), MigrateError> {
    let expected = without_marks(source);
    let marked = mark_durably(from, lag, |meta| match without_marks(&meta) == expected {
        true => Ok(MetaRecord { migration: Some(MigrationPart::Source(id)), ..meta }),
        false => Err(MetaError::StoreInUse),
    });
    match marked.await {
        Err(MigrateError::Meta(MetaError::StoreInUse)) => Err(MigrateError::SourceChanged),
        marked => marked,
    }
}

/// Changes the meta record of a store, and returns once the change is durable.
async fn mark_durably(
    store: &StateStore,
    lag: Option<Duration>,
    change: impl Fn(MetaRecord) -> Result<MetaRecord, MetaError>,
) -> Result<(), MigrateError> {
    let lag = durability_lag(store.engine.as_ref(), lag)?;
    let mut nodes = RestartDetector::new(store.engine.clone(), lag);
    nodes.baseline().await?;
    loop {
        StoreMeta::of(store).change(&change).await?;
        if nodes.wait_until_durable().await? {
            return Ok(());
        }
    }
}

/// The records of the source, in parts.
struct Copy<'a> {
    from: &'a StateStore,
    to: &'a StateStore,
    records: AtomicU64,
    on_progress: OnProgress<'a>,
}

impl Copy<'_> {
    /// Compares every record of the source with the record of the copy. Returns their number.
    async fn compare(&self) -> Result<u64, MigrateError> {
        let compared = AtomicU64::new(0);
        let all_chunks = self.chunk_count() as u64;
        let (done, compared) = (AtomicU64::new(0), &compared);
        let parts = stream::iter(0..self.chunk_count()).map(|number| async move {
            self.compare_part(number, compared).await?;
            Ok::<_, MigrateError>(())
        });
        let mut parts = std::pin::pin!(parts.buffer_unordered(CHUNKS_AT_ONCE));
        while parts.try_next().await?.is_some() {
            let chunks = done.fetch_add(1, Relaxed) + 1;
            (self.on_progress)(CopyProgress { records: compared.load(Relaxed), bytes: 0, chunks, all_chunks });
        }
        Ok(compared.load(Relaxed))
    }

    async fn compare_part(&self, number: usize, compared: &AtomicU64) -> Result<(), MigrateError> {
        let mut reader = PartReader::new(self.from, number);
        while let Some(records) = reader.next().await? {
            let keys: Vec<Key> = records.iter().map(|(key, _)| *key).collect();
            let copies = self.to.read(keys).await?;
            for ((key, record), copy) in records.into_iter().zip(copies) {
                let is_equal = match copy {
                    Some(copy) => has_equal_content((self.from, record), (self.to, copy), key).await?,
                    None => false,
                };
                if !is_equal {
                    return Err(MigrateError::OtherRecord { key: key.to_string() });
                }
                compared.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }
}

impl ChunkSource for Copy<'_> {
    type Error = MigrateError;

    fn chunk_count(&self) -> usize {
        usize::from(PARTS) + 2
    }

    async fn load_chunk(&self, number: usize) -> Result<Totals, MigrateError> {
        let mut reader = PartReader::new(self.from, number);
        let (mut totals, mut batch) = (Totals::default(), RecordBatch::new(self.to));
        let check = |refused: Option<Key>| match refused {
            Some(key) => Err(MigrateError::OtherRecord { key: key.to_string() }),
            None => Ok(()),
        };
        while let Some(records) = reader.next().await? {
            self.records.fetch_add(records.len() as u64, Relaxed);
            for (key, record) in records {
                totals += Totals::of(&record);
                check(batch.add(key, record).await?)?;
            }
        }
        check(batch.write().await?)?;
        Ok(totals)
    }

    fn report_loaded(&self, chunks: usize) {
        let (chunks, all_chunks) = (chunks as u64, self.chunk_count() as u64);
        (self.on_progress)(CopyProgress { records: self.records.load(Relaxed), bytes: 0, chunks, all_chunks });
    }
}

/// Reads the records of a part that a copy has, page by page.
struct PartReader<'a> {
    store: &'a StateStore,
    part: u16,
    page_records: usize,
    /// Position of the next page; `None`: the part was read to its end.
    next: Option<Option<Cursor>>,
}

impl<'a> PartReader<'a> {
    fn new(store: &'a StateStore, number: usize) -> Self {
        let number = number as u16;
        let part = match number.checked_sub(PARTS) {
            None => number,
            Some(0) => BLOCKS,
            Some(_) => COMMANDS,
        };
        PartReader { store, part, page_records: FIRST_PAGE, next: Some(None) }
    }

    async fn next(&mut self) -> Result<Option<Vec<(Key, Record)>>, EngineError> {
        let Some(cursor) = self.next.take() else { return Ok(None) };
        let page = fetch_part(self.store, (self.part, PARTS), cursor, self.page_records).await?;
        self.next = page.next.map(Some);
        let largest = page.records.iter().map(|(_, record)| record_bytes(record)).max().unwrap_or(1);
        let fitting = ((PAGE_BYTES / largest) as usize).min(2 * self.page_records);
        self.page_records = fitting.clamp(1, LARGEST_PAGE);
        // A lock record is temporary, and the meta record and the sentinels are written for the copy.
        let is_copied = |record: &Record| matches!(record, Record::Page(_) | Record::Block(_) | Record::Command(_));
        Ok(Some(page.records.into_iter().filter(|(_, record)| is_copied(record)).collect()))
    }
}
