//! Restore of a snapshot into an empty store of any engine (`docs/protocols/snapshot.md`).

use tokio_util::sync::CancellationToken;

use super::{
    ChunkEntry, CopyProgress, Manifest, OnProgress, Shelf, SnapshotError, Totals,
    bulk_load::{BulkLoad, ChunkSource, RecordBatch},
    manifest::Offsets,
    verify::{check_totals, damaged_chunk, damaged_plan},
};
use crate::{
    broker::{Broker, BrokerError, CommittedOffset, TopicPartition, range::LogRange, retry::until_answered},
    event::{Event, Topic},
    group::commit_metadata::reset_commit,
    instance::{
        InstanceParts, InstanceSettings, frontier::Frontier, offset_reset::OffsetReset, start::check_decisions,
    },
    record::{ConsumedOffsets, Key, MetaRecord, Restored},
    sequencer::{chain_group, state::ChainState},
    store::{
        meta::{LAYOUT_VERSION, MetaError, RestoreRecord},
        topics::LogIdentity,
    },
};

/// Result of a restore.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RestoreReport {
    /// Name of the snapshot.
    pub name: String,
    /// The restore continued one that was stopped.
    pub resumed: bool,
    /// Offsets from which `run` reads the log.
    pub offsets: Offsets,
    /// Offsets at which the restored store has caught up.
    pub until: Offsets,
    /// Counts of all records.
    pub totals: Totals,
}

impl RestoreReport {
    fn new(name: &str, manifest: &Manifest, resumed: bool) -> Self {
        RestoreReport {
            name: name.to_owned(),
            resumed,
            offsets: manifest.plan.offsets.clone(),
            until: manifest.until.clone(),
            totals: manifest.totals,
        }
    }
}

/// Restores a snapshot into the empty store of `parts`, or continues such a restore, and sets the group back to the
/// offsets of the snapshot.
///
/// # Errors
/// See [`SnapshotError`]. Every refusal comes before the first write. [`SnapshotError::Stopped`] after `shutdown`; the
/// same call then continues.
pub async fn restore(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    shelf: &Shelf,
    name: &str,
    shutdown: &CancellationToken,
    on_progress: OnProgress<'_>,
) -> Result<RestoreReport, SnapshotError> {
    let restored = async {
        let manifest = shelf.read_manifest(name).await?;
        if BulkLoad::new(&parts.store, manifest.plan.id, settings.durability_lag)?.has_ended().await? {
            return Ok(RestoreReport::new(name, &manifest, true));
        }
        Restore::check(settings, parts, shelf, name, manifest).await?.run(on_progress).await
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Err(SnapshotError::Stopped),
        done = restored => done,
    }
}

struct Restore<'a> {
    settings: &'a InstanceSettings,
    parts: &'a InstanceParts,
    shelf: &'a Shelf,
    name: &'a str,
    manifest: Manifest,
    /// State of the chain at the snapshot's offset.
    state: ChainState,
    /// Meta record that the store gets.
    meta: MetaRecord,
}

impl<'a> Restore<'a> {
    /// Checks the snapshot, the log and the group, and writes nothing.
    async fn check(
        settings: &'a InstanceSettings,
        parts: &'a InstanceParts,
        shelf: &'a Shelf,
        name: &'a str,
        manifest: Manifest,
    ) -> Result<Self, SnapshotError> {
        let broker = parts.broker.as_ref();
        let source = manifest.plan.meta_record().map_err(|problem| damaged_plan(name, problem))?;
        let state = ChainState::from_metadata(&manifest.plan.chain_state)
            .map_err(|error| damaged_plan(name, error.to_string()))?;
        if source.layout_version != LAYOUT_VERSION {
            return Err(MetaError::OtherLayout { store: source.layout_version }.into());
        }
        let mut refused = Vec::new();
        if let Some(stored) = parts.store.meta().await? {
            // A restore that was stopped goes on; nothing else may be there.
            let is_ours = |restored: &Restored| restored.is_loading && restored.snapshot == manifest.plan.id;
            if !stored.restored.as_deref().is_some_and(is_ours) {
                return Err(MetaError::RestoreNotEmpty.into());
            }
        }
        let group = &settings.pipeline.group;
        refused.extend(OffsetReset { topic: &settings.pipeline.topic, group }.describe_members(broker).await?);
        let log = LogIdentity::read(broker, &settings.state_topics()).await?;
        refused.extend(log.differences(&source).iter().map(ToString::to_string));
        refused.extend(find_lost_offsets(settings, broker, &manifest.plan.offsets, &state).await?);
        if !refused.is_empty() {
            return Err(SnapshotError::Refused(refused));
        }
        let chain_commit = Some(chain_commit(&manifest, &state));
        check_decisions(settings, broker, &Frontier { chain_commit, ..Frontier::default() }).await?;
        let handled = read_handled(settings, broker, state.decisions_from).await?;
        if handled.validated.is_empty() {
            tracing::warn!(
                "restore: the group has no commits: the restored store judges the transactions above the snapshot anew"
            );
        }
        let chain = settings.partition(Topic::Chain, 0);
        let (_, chain_end) = until_answered(|| broker.watermarks(&chain)).await?;
        let earlier = Restored { handled, chain_end, ..Restored::default() };
        let meta = restored_meta(&manifest, source, &state, (parts.store_id, earlier));
        Ok(Restore { settings, parts, shelf, name, manifest, state, meta })
    }

    async fn run(self, on_progress: OnProgress<'_>) -> Result<RestoreReport, SnapshotError> {
        let mut load = BulkLoad::new(&self.parts.store, self.manifest.plan.id, self.settings.durability_lag)?;
        let loaded = load.load(&self.meta, &Chunks { restore: &self, on_progress }).await?;
        if let Some(totals) = loaded.totals {
            check_totals(self.name, &self.manifest, totals)?;
        }
        // The load can take hours, in which a topic drops its oldest events.
        let (broker, offsets) = (self.parts.broker.as_ref(), &self.manifest.plan.offsets);
        let lost = find_lost_offsets(self.settings, broker, offsets, &self.state).await?;
        if !lost.is_empty() {
            return Err(SnapshotError::Refused(lost));
        }
        // Until now the group may have gone on over its earlier store.
        let handled = read_handled(self.settings, broker, self.state.decisions_from).await?;
        let handled = RestoreRecord::of(&self.parts.store, self.manifest.plan.id).raise_handled(&handled).await?;
        let chances_from = self.state.chances_from.max(handled.chain);
        // The offsets come before the end of the loading: a store that instances may use has its group set back.
        self.reset_group(&ChainState { chances_from, ..self.state.clone() }).await?;
        load.end().await?;
        Ok(RestoreReport::new(self.name, &self.manifest, loaded.resumed))
    }

    async fn load_chunk(&self, entry: &ChunkEntry) -> Result<Totals, SnapshotError> {
        let chunk = self.shelf.read_chunk(&self.manifest.plan, entry).await?;
        let (mut totals, mut batch) = (Totals::default(), RecordBatch::new(&self.parts.store));
        let check = |refused: Option<Key>| match refused {
            Some(key) => Err(SnapshotError::OtherRecord { key: key.to_string() }),
            None => Ok(()),
        };
        for record in chunk {
            let (key, record) = record.map_err(|error| damaged_chunk(self.name, entry, error))?;
            totals += Totals::of(&record);
            check(batch.add(key, record).await?)?;
        }
        check(batch.write().await?)?;
        Ok(totals)
    }

    /// Sets the committed offsets of both groups to those of the snapshot. The coordinator refuses a group with
    /// members.
    async fn reset_group(&self, state: &ChainState) -> Result<(), SnapshotError> {
        let (broker, group) = (self.parts.broker.as_ref(), &self.settings.pipeline.group);
        let validated = self.manifest.plan.offsets.validated.iter();
        let at = |number: u32| self.settings.partition(Topic::ValidatedTxs, i32::try_from(number).unwrap_or(i32::MAX));
        let commits: Vec<(TopicPartition, CommittedOffset)> =
            validated.map(|(number, offset)| (at(*number), reset_commit(*offset))).collect();
        broker.set_committed(group, &commits).await?;
        let commit = chain_commit(&self.manifest, state);
        let chain = self.settings.partition(Topic::Chain, 0);
        Ok(broker.set_committed(&chain_group(group), &[(chain, commit)]).await?)
    }
}

/// The chunks of the manifest as the source of a load.
struct Chunks<'a> {
    restore: &'a Restore<'a>,
    on_progress: OnProgress<'a>,
}

impl ChunkSource for Chunks<'_> {
    type Error = SnapshotError;

    fn chunk_count(&self) -> usize {
        self.restore.manifest.chunks.len()
    }

    async fn load_chunk(&self, number: usize) -> Result<Totals, SnapshotError> {
        Box::pin(self.restore.load_chunk(&self.restore.manifest.chunks[number])).await
    }

    fn report_loaded(&self, chunks: usize) {
        let all = &self.restore.manifest.chunks;
        let mut progress = CopyProgress { all_chunks: all.len() as u64, ..CopyProgress::default() };
        for entry in &all[..chunks] {
            progress.records += entry.records;
            progress.bytes += entry.bytes;
            progress.chunks += 1;
        }
        (self.on_progress)(progress);
    }
}

/// Returns the offsets below which the group has handled every event whole, by its committed offsets; on the chain also
/// by the committed offset before an earlier restore.
async fn read_handled(
    settings: &InstanceSettings,
    broker: &dyn Broker,
    from: u64,
) -> Result<ConsumedOffsets, SnapshotError> {
    let Frontier { consumed, chain_commit, .. } = Frontier::read(settings, broker).await?;
    let metadata = chain_commit.map(|committed| committed.metadata).unwrap_or_default();
    let state = ChainState::from_metadata(&metadata).map_err(|error| SnapshotError::Group(error.to_string()))?;
    // A group that was stopped for long has lost its commits.
    let decided = read_decided(settings, broker, from).await?;
    let chain = consumed.chain.max(state.chances_from).max(decided);
    Ok(ConsumedOffsets { chain, ..consumed })
}

/// Returns the chain offset below which every event was handled whole, by the decisions from this offset of their topic
/// on: a sequencer decides in the order of the chain. The events of the last message may not be applied yet.
async fn read_decided(settings: &InstanceSettings, broker: &dyn Broker, from: u64) -> Result<u64, BrokerError> {
    let decisions = settings.partition(Topic::Decisions, 0);
    let (low, high) = until_answered(|| broker.watermarks(&decisions)).await?;
    let (mut range, mut handled) = (LogRange::open(broker, &decisions, from.max(low), high).await?, 0);
    while let Some(messages) = range.next().await? {
        for message in messages {
            let decided = Event::decode_decisions(&message.payload, message.offset);
            handled = decided.iter().map(|decision| decision.chain_offset).min().unwrap_or(0).max(handled);
        }
    }
    Ok(handled)
}

/// Returns the commit of the chain for a restored store.
fn chain_commit(manifest: &Manifest, state: &ChainState) -> CommittedOffset {
    // A group whose instances have committed nothing had no state.
    let offset = if manifest.plan.chain_state.is_empty() { 0 } else { manifest.plan.offsets.chain };
    CommittedOffset { offset, metadata: state.to_metadata() }
}

/// Returns the meta record of the restored store: what the offsets of the snapshot prove, and nothing later.
fn restored_meta(
    manifest: &Manifest,
    source: MetaRecord,
    state: &ChainState,
    (store_id, earlier): ([u8; 16], Restored),
) -> MetaRecord {
    let offsets = manifest.plan.offsets.to_consumed();
    MetaRecord {
        store_id,
        consumed: ConsumedOffsets { height: source.consumed.height, ..offsets.clone() },
        durable: offsets.clone(),
        // The block of an imported UTXO set stands at chain offset 0, and the chain's state does not have it.
        tip: state.recorded_tip(offsets.chain).or(source.tip.filter(|tip| tip.chain_offset == 0)),
        rebuilding: None,
        rebuilder: None,
        has_blobs: false,
        has_sentinels: false,
        health_checks: 0,
        snapshot_hold: None,
        restored: Some(Box::new(Restored {
            snapshot: manifest.plan.id,
            is_loading: true,
            until: manifest.until.to_consumed(),
            chain_from: offsets.chain,
            decisions_from: state.decisions_from,
            ..earlier
        })),
        ..source
    }
}

/// Names each topic that no longer holds the offset from which the restored store reads it.
pub(super) async fn find_lost_offsets(
    settings: &InstanceSettings,
    broker: &dyn Broker,
    offsets: &Offsets,
    state: &ChainState,
) -> Result<Vec<String>, SnapshotError> {
    let mut lost = Vec::new();
    for (topic, number, from) in first_offsets(offsets, state) {
        let partition = settings.partition(topic, number);
        let (low, high) = broker.watermarks(&partition).await?;
        // The feed passes over deleted blocks and reorgs: what the chain needs of them shows as a missing sequence.
        let is_passed_over = topic.is_fed() && from < low;
        if is_passed_over {
            tracing::warn!(%partition, from, first = low, "snapshot: the topic has lost offsets of the feed");
        } else if from < low || from > high {
            lost.push(format!(
                "the snapshot needs {partition} from offset {from} on, and the topic holds {low} to {high}"
            ));
        }
    }
    Ok(lost)
}

/// Returns the first offset that a restored store reads of each partition whose events make the state.
pub fn first_offsets(offsets: &Offsets, state: &ChainState) -> Vec<(Topic, i32, u64)> {
    let (mined, reorgs) = state.handled_offsets();
    let validated = offsets
        .validated
        .iter()
        .filter_map(|(number, offset)| Some((Topic::ValidatedTxs, i32::try_from(*number).ok()?, *offset)));
    let single = [
        (Topic::Chain, 0, offsets.chain),
        (Topic::Decisions, 0, state.decisions_from),
        (Topic::BlockMined, 0, mined),
        (Topic::Reorgs, 0, reorgs),
    ];
    validated.chain(single).collect()
}
