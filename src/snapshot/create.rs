//! Creation of a snapshot beside running instances (`docs/protocols/snapshot.md`).

use std::{num::NonZeroU32, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    ChunkEntry, FORMAT, Manifest, OnProgress, Shelf, SnapshotError, SnapshotPlan, Totals, manifest::Offsets,
    restore::find_lost_offsets, scan::scan_all,
};
use crate::{
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
    /// Records that all parts read together in a second; `None`: as many as the store gives.
    pub records_per_second: Option<NonZeroU32>,
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
            records_per_second: None,
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
/// See [`SnapshotError`]. [`SnapshotError::Stopped`] after `shutdown`; the same call then continues, or begins anew
/// where no plan was written yet.
pub async fn create(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    shelf: &Shelf,
    options: CreateOptions,
    shutdown: &CancellationToken,
    on_progress: OnProgress<'_>,
) -> Result<CreateReport, SnapshotError> {
    let (report, hold) = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Err(SnapshotError::Stopped),
        created = Box::pin(begin_or_continue(settings, parts, shelf, options, on_progress)) => created?,
    };
    match tokio::time::timeout(RELEASE_LIMIT, hold.release()).await {
        Ok(released) => released?,
        Err(_) => tracing::warn!(name = report.name, "snapshot: the hold is not released; the next creation does it"),
    }
    Ok(report)
}

/// Time for which a complete creation tries to release its hold.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// Creates the snapshot up to its manifest. Returns the hold, which is still to be released.
async fn begin_or_continue<'a>(
    settings: &InstanceSettings,
    parts: &'a InstanceParts,
    shelf: &Shelf,
    options: CreateOptions,
    on_progress: OnProgress<'_>,
) -> Result<(CreateReport, PruningHold<'a>), SnapshotError> {
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
            let report = CreateReport {
                name: Shelf::name_of(&plan),
                resumed,
                offsets: plan.offsets,
                chunks: manifest.chunks.len() as u64,
                bytes: manifest.bytes(),
                totals: manifest.totals,
            };
            Ok((report, hold))
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
