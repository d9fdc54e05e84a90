//! Creation of a snapshot beside running instances (`docs/protocols/snapshot.md`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    ChunkEntry, CopyProgress, FORMAT, Manifest, OnProgress, Shelf, SnapshotError, SnapshotPlan, Totals,
    chunk::ChunkWriter,
    load::to_snapshot,
    manifest::{BLOCKS, COMMANDS, Offsets},
    restore::find_lost_offsets,
};
use crate::{
    engine::{Cursor, EngineError, ScanPage, ScanPart, Set},
    event::Topic,
    instance::{InstanceParts, InstanceSettings, frontier::Frontier},
    record::MetaRecord,
    rng::random_bytes,
    sequencer::state::ChainState,
    store::{
        StateStore,
        meta::{MetaError, PruningHold, check_blobs, check_not_rebuilding},
        ownership::{verify_above_floor, verify_has_consumed},
        restart_detector::{RestartDetector, durability_lag},
        topics::LogIdentity,
    },
};

/// Options of a creation.
#[derive(Debug, Clone, Copy)]
pub struct CreateOptions {
    /// Parts of the transactions that are scanned at the same time, from 1 to 256.
    pub parts: u16,
    /// Bytes after which a chunk ends.
    pub chunk_bytes: usize,
    /// Records that are read at a time.
    pub batch: usize,
    /// Time for which pruning waits after the last sign of life of the command: a stopped creation continues within.
    pub hold: Duration,
    /// Time between two signs of life. Another process continues a creation that gives none for three times as long.
    pub sign_of_life: Duration,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions {
            parts: 8,
            chunk_bytes: 16 << 20,
            batch: 1_000,
            hold: Duration::from_secs(3_600),
            sign_of_life: Duration::from_secs(2),
        }
    }
}

/// Result of a creation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CreateReport {
    /// Name of the snapshot.
    pub name: String,
    /// The creation continued one that was stopped.
    pub resumed: bool,
    /// Offsets from which a restored store reads the log.
    pub offsets: Offsets,
    /// Number of chunks of all parts.
    pub chunks: u64,
    /// Bytes of all chunks.
    pub bytes: u64,
    /// Counts of all records.
    pub totals: Totals,
}

/// Creates a snapshot of the store of a group, or continues the creation that was stopped last.
///
/// # Errors
/// See [`SnapshotError`]. [`SnapshotError::Stopped`] after `shutdown`; the same call then continues.
pub async fn create(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    shelf: &Shelf,
    options: CreateOptions,
    shutdown: &CancellationToken,
    on_progress: OnProgress<'_>,
) -> Result<CreateReport, SnapshotError> {
    let store = &parts.store;
    let meta = store.meta().await?.ok_or(MetaError::NoMetaRecord)?;
    check_not_rebuilding(&meta)?;
    check_blobs(&meta, store)?;
    if meta.restored.is_some() {
        return Err(SnapshotError::CatchingUp);
    }
    let mut nodes =
        RestartDetector::new(store.engine.clone(), durability_lag(store.engine.as_ref(), settings.durability_lag)?);
    nodes.baseline().await?;
    release_hold_of_complete(store, shelf, &meta).await?;
    let (plan, hold, resumed) = match find_unfinished(parts, shelf, &meta, &nodes, options).await? {
        Some((plan, hold)) => (plan, hold, true),
        None => {
            let (plan, hold) = begin(settings, parts, shelf, &nodes, options).await?;
            (plan, hold, false)
        }
    };
    let scanned = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Err(SnapshotError::Stopped),
        lost = keep_hold(parts, &hold, options) => Err(lost),
        scanned = scan_all(store, shelf, &plan, options, on_progress) => scanned,
    };
    let ended = async {
        let (chunks, totals) = scanned?;
        end(settings, parts, &plan, &mut nodes, (&hold, options.hold), chunks, totals).await
    };
    match ended.await {
        Ok(manifest) => {
            shelf.write_manifest(&manifest).await?;
            hold.release().await?;
            Ok(CreateReport {
                name: Shelf::name_of(&plan),
                resumed,
                offsets: plan.offsets,
                chunks: manifest.chunks.len() as u64,
                bytes: manifest.bytes(),
                totals: manifest.totals,
            })
        }
        Err(error) => {
            if let Some(why) = reason_to_discard(&error) {
                hold.release().await?;
                discard(shelf, &plan).await?;
                return Err(SnapshotError::Discarded(why));
            }
            Err(error)
        }
    }
}

/// Returns the reason for which no repeat of the creation can end well.
fn reason_to_discard(error: &SnapshotError) -> Option<String> {
    match error {
        SnapshotError::Meta(
            error @ (MetaError::HoldLost | MetaError::NodeRestarted | MetaError::BelowFloor { .. }),
        ) => Some(error.to_string()),
        SnapshotError::Group(why) => Some(why.clone()),
        _ => None,
    }
}

/// Releases the hold of a complete snapshot of this place: its creation was killed after the manifest was written, and
/// before the hold was released. No other creation would begin until the hold expires.
async fn release_hold_of_complete(store: &StateStore, shelf: &Shelf, meta: &MetaRecord) -> Result<(), SnapshotError> {
    let Some(held) = meta.snapshot_hold else { return Ok(()) };
    if shelf.find_complete(held.snapshot).await?.is_some() {
        PruningHold::of(store, held.snapshot).release().await?;
    }
    Ok(())
}

/// Returns the plan of a creation that was stopped and can go on: its hold was never lost, and no node has restarted.
async fn find_unfinished<'a>(
    parts: &'a InstanceParts,
    shelf: &Shelf,
    meta: &MetaRecord,
    nodes: &RestartDetector,
    options: CreateOptions,
) -> Result<Option<(SnapshotPlan, PruningHold<'a>)>, SnapshotError> {
    for found in shelf.list().await?.into_iter().rev().filter(|found| !found.is_complete) {
        let Some(plan) = shelf.read_sound_plan(&found.name).await? else { continue };
        if plan.store_id != meta.store_id || Shelf::name_of(&plan) != found.name {
            continue;
        }
        let hold = PruningHold::of(&parts.store, plan.id);
        // Two processes that take over in the same millisecond write different ends.
        let difference_ms = u16::from_le_bytes(random_bytes()?) % 1_000;
        let options = CreateOptions { hold: options.hold + Duration::from_millis(difference_ms.into()), ..options };
        match take_over(parts, &hold, plan.id, meta, options).await {
            Ok(_) if plan.nodes == nodes.expected().0 => return Ok(Some((plan, hold))),
            Ok(_) => hold.release().await?,
            Err(MetaError::HoldLost) => {}
            Err(error) => return Err(error.into()),
        }
        tracing::warn!(name = found.name, "snapshot: stopped creation cannot be continued; beginning a new one");
        discard(shelf, &plan).await?;
    }
    Ok(None)
}

/// Deletes the objects of a creation, unless another process has completed the snapshot meanwhile.
async fn discard(shelf: &Shelf, plan: &SnapshotPlan) -> Result<(), SnapshotError> {
    match shelf.find_complete(plan.id).await? {
        Some(_) => Ok(()),
        None => shelf.delete(&Shelf::name_of(plan)).await,
    }
}

/// Takes over the hold of a creation whose process gives no sign of life.
///
/// # Errors
/// [`MetaError::HoldLost`]; [`MetaError::HoldTakenOver`]: the process lives, or another one was faster.
async fn take_over(
    parts: &InstanceParts,
    hold: &PruningHold<'_>,
    snapshot: [u8; 16],
    meta: &MetaRecord,
    options: CreateOptions,
) -> Result<MetaRecord, MetaError> {
    let seen = meta.snapshot_hold.filter(|held| held.snapshot == snapshot).ok_or(MetaError::HoldLost)?;
    tokio::time::sleep(options.sign_of_life * 3).await;
    hold.continue_from(seen.until_ms, hold_end(parts, options.hold)).await
}

fn hold_end(parts: &InstanceParts, hold: Duration) -> u64 {
    parts.clock.now_ms().saturating_add(u64::try_from(hold.as_millis()).unwrap_or(u64::MAX))
}

/// Time of the hold until the plan is written. No repeat can continue a creation that was killed before: it waits until
/// the hold has expired.
const HOLD_WITHOUT_PLAN: Duration = Duration::from_secs(20);

/// Takes the hold, reads the offsets, writes the plan, and extends the hold to its whole length.
async fn begin<'a>(
    settings: &InstanceSettings,
    parts: &'a InstanceParts,
    shelf: &Shelf,
    nodes: &RestartDetector,
    options: CreateOptions,
) -> Result<(SnapshotPlan, PruningHold<'a>), SnapshotError> {
    let (store, broker) = (&parts.store, parts.broker.as_ref());
    let id = random_bytes()?;
    let hold = PruningHold::of(store, id);
    // The hold comes before the offsets: a step of pruning that began before goes by offsets that were committed then.
    hold.take(parts.clock.now_ms(), hold_end(parts, options.hold.min(HOLD_WITHOUT_PLAN))).await?;
    let planned = async {
        let frontier = Frontier::read(settings, broker).await?;
        // Read after the offsets: every consumed offset is recorded before it is committed.
        let meta = store.meta().await?.ok_or(MetaError::NamespaceLost)?;
        let log = LogIdentity::read(broker, &settings.state_topics()).await?;
        if let Some(difference) = log.differences(&meta).into_iter().next() {
            return Err(difference.into());
        }
        verify_has_consumed(&meta, &frontier.consumed)?;
        verify_above_floor(&meta.replay_floor, &frontier.resume)?;
        let chain_state = frontier.chain_commit.as_ref().map_or("", |committed| committed.metadata.as_str());
        if chain_state.is_empty() && frontier.resume.chain > 0 {
            let why = "the chain offset was committed by an operator; run an instance until it has committed";
            return Err(SnapshotError::Group(why.to_owned()));
        }
        Ok(SnapshotPlan {
            format: FORMAT,
            id,
            created_ms: parts.clock.now_ms(),
            store_id: meta.store_id,
            engine: store.engine.name().to_owned(),
            network: meta.network.clone(),
            utxo_batch_size: meta.utxo_batch_size,
            offsets: Offsets::of(&frontier.resume),
            chain_state: chain_state.to_owned(),
            nodes: nodes.expected().0.clone(),
            parts: options.parts.clamp(1, 256),
            meta: SnapshotPlan::encode_meta(&MetaRecord { snapshot_hold: None, ..meta }),
        })
    };
    let written = async {
        let plan = planned.await?;
        shelf.write_plan(&plan).await?;
        // Fails where the hold was lost meanwhile.
        hold.extend(hold_end(parts, options.hold)).await?;
        Ok(plan)
    };
    match written.await {
        Ok(plan) => Ok((plan, hold)),
        Err(error) => {
            hold.release().await?;
            Err(error)
        }
    }
}

/// Extends the hold from time to time; returns once the hold is lost.
async fn keep_hold(parts: &InstanceParts, hold: &PruningHold<'_>, options: CreateOptions) -> SnapshotError {
    loop {
        tokio::time::sleep(options.sign_of_life.min(options.hold / 4)).await;
        if let Err(error) = hold.extend(hold_end(parts, options.hold)).await {
            return error.into();
        }
    }
}

/// Verifies after the scan that all records belong to the plan's offsets, and returns the manifest.
async fn end(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    plan: &SnapshotPlan,
    nodes: &mut RestartDetector,
    (hold, length): (&PruningHold<'_>, Duration),
    chunks: Vec<ChunkEntry>,
    totals: Totals,
) -> Result<Manifest, SnapshotError> {
    let broker = parts.broker.as_ref();
    let ends = Frontier::default().log_ends(settings, broker).await?;
    let mut until = Offsets { chain: ends.ends.chain, ..Offsets::default() };
    for number in plan.offsets.validated.keys() {
        let partition = settings.partition(Topic::ValidatedTxs, i32::try_from(*number).unwrap_or(i32::MAX));
        until.validated.insert(*number, broker.watermarks(&partition).await?.1);
    }
    let frontier = Frontier::read(settings, broker).await?;
    let era = |state: &str| ChainState::from_metadata(state).map(|state| state.era).ok();
    let now = frontier.chain_commit.as_ref().map_or("", |committed| committed.metadata.as_str());
    if era(now) != era(&plan.chain_state) {
        return Err(SnapshotError::Group("the chain began a new era meanwhile".to_owned()));
    }
    if !nodes.wait_until_durable().await? {
        return Err(MetaError::NodeRestarted.into());
    }
    let state =
        ChainState::from_metadata(&plan.chain_state).map_err(|error| SnapshotError::Group(error.to_string()))?;
    if let Some(lost) = find_lost_offsets(settings, broker, &plan.offsets, &state).await?.into_iter().next() {
        return Err(SnapshotError::Group(lost));
    }
    let meta = hold.extend(hold_end(parts, length)).await?;
    verify_above_floor(&meta.replay_floor, &plan.offsets.to_consumed())?;
    if meta.store_id != plan.store_id {
        return Err(SnapshotError::Group("the store was replaced meanwhile".to_owned()));
    }
    let manifest =
        Manifest { format: FORMAT, plan: plan.clone(), ended_ms: parts.clock.now_ms(), until, chunks, totals };
    manifest.check().map_err(SnapshotError::Task)?;
    Ok(manifest)
}

/// Progress of a copy that all parts share.
#[derive(Default)]
struct SharedProgress {
    records: AtomicU64,
    bytes: AtomicU64,
    chunks: AtomicU64,
}

impl SharedProgress {
    fn add(&self, entry: &ChunkEntry) {
        self.records.fetch_add(entry.records, Ordering::Relaxed);
        self.bytes.fetch_add(entry.bytes, Ordering::Relaxed);
        self.chunks.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> CopyProgress {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        CopyProgress {
            records: read(&self.records),
            bytes: read(&self.bytes),
            chunks: read(&self.chunks),
            all_chunks: 0,
        }
    }
}

/// Time between two reports of the progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Scans all parts, each in a task of its own. Returns the chunks by part and number.
async fn scan_all(
    store: &StateStore,
    shelf: &Shelf,
    plan: &SnapshotPlan,
    options: CreateOptions,
    on_progress: OnProgress<'_>,
) -> Result<(Vec<ChunkEntry>, Totals), SnapshotError> {
    let progress = Arc::new(SharedProgress::default());
    // The tasks end with the set.
    let mut tasks = JoinSet::new();
    for part in plan.all_parts() {
        let scan = PartScan { store: store.clone(), shelf: shelf.clone(), plan: plan.clone(), part, options };
        tasks.spawn(scan.run(progress.clone()));
    }
    let (mut chunks, mut totals) = (Vec::new(), Totals::default());
    loop {
        match tokio::time::timeout(REPORT_INTERVAL, tasks.join_next()).await {
            Err(_) => {}
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(SnapshotError::Task(error.to_string())),
            Ok(Some(Ok(scanned))) => {
                let (of_part, counted) = scanned?;
                chunks.extend(of_part);
                totals += counted;
            }
        }
        on_progress(progress.read());
    }
    chunks.sort_by_key(|chunk: &ChunkEntry| (chunk.part, chunk.number));
    Ok((chunks, totals))
}

/// Records of the first page of a part. Each page has up to twice the records of the page before.
const FIRST_PAGE: usize = 16;

/// The scan of one part.
struct PartScan {
    store: StateStore,
    shelf: Shelf,
    plan: SnapshotPlan,
    part: u16,
    options: CreateOptions,
}

impl PartScan {
    /// Continues after the chunks that are complete, up to the end of the part.
    async fn run(self, progress: Arc<SharedProgress>) -> Result<(Vec<ChunkEntry>, Totals), SnapshotError> {
        let name = Shelf::name_of(&self.plan);
        let (mut chunks, mut totals, mut next) = (Vec::new(), Totals::default(), Some(None));
        // A chunk that is damaged is written again, and so is everything behind it.
        while let Ok(Some((chunk, bytes))) = self.shelf.find_chunk(&self.plan, self.part, chunks.len() as u32).await {
            let footer = chunk.footer.clone();
            let Ok(after) = footer.next_cursor() else { break };
            let entry = self.entry(chunks.len() as u32, footer.records, &bytes);
            progress.add(&entry);
            chunks.push(entry);
            totals += footer.totals;
            next = after.map(Some);
            if next.is_none() {
                break;
            }
        }
        let mut page_records = FIRST_PAGE.min(self.options.batch);
        while let Some(cursor) = next {
            let number = chunks.len() as u32;
            let (chunk, after) = self.fill_chunk(number, cursor, &mut page_records).await?;
            let (bytes, footer) = chunk.finish(after.as_ref());
            let entry = self.entry(number, footer.records, &bytes);
            self.shelf.write_chunk(&name, self.part, number, bytes).await?;
            progress.add(&entry);
            chunks.push(entry);
            totals += footer.totals;
            next = after.map(Some);
        }
        Ok((chunks, totals))
    }

    fn entry(&self, number: u32, records: u64, bytes: &[u8]) -> ChunkEntry {
        let blake3 = *blake3::hash(bytes).as_bytes();
        ChunkEntry { part: self.part, number, records, bytes: bytes.len() as u64, blake3 }
    }

    /// Reads records from `cursor` until the chunk is full or the part ends. Returns the position behind the chunk.
    /// `page_records`: records of the next page of the scan. The order of the scan is that of hashes, so that the
    /// largest record of one page is about that of the next: a page of such records is no larger than a chunk.
    async fn fill_chunk(
        &self,
        number: u32,
        mut cursor: Option<Cursor>,
        page_records: &mut usize,
    ) -> Result<(ChunkWriter, Option<Cursor>), SnapshotError> {
        let mut chunk = ChunkWriter::new(self.plan.place(self.part, number));
        loop {
            let page = self.fetch(cursor, *page_records).await?;
            let mut largest = 1;
            for (key, record) in page.records {
                if let Some(record) = to_snapshot(&self.store, key, record).await? {
                    let before = chunk.size();
                    chunk.add(&key, &record);
                    largest = largest.max(chunk.size() - before);
                }
            }
            let fitting = (self.options.chunk_bytes / largest).min(2 * *page_records);
            *page_records = fitting.clamp(1, self.options.batch.max(1));
            cursor = page.next;
            if cursor.is_none() || chunk.size() >= self.options.chunk_bytes {
                return Ok((chunk, cursor));
            }
        }
    }

    async fn fetch(&self, cursor: Option<Cursor>, batch: usize) -> Result<ScanPage, EngineError> {
        let engine = &self.store.engine;
        let part = ScanPart { number: self.part, count: self.plan.parts };
        let send = || async {
            match self.part {
                BLOCKS => engine.scan(Set::Blocks, cursor.clone(), batch).await,
                COMMANDS => engine.scan(Set::Commands, cursor.clone(), batch).await,
                _ => engine.scan_part(part, cursor.clone(), batch).await,
            }
        };
        self.store.new_backoff(None).retry(EngineError::may_be_retried, send).await
    }
}
