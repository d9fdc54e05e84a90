//! Reads the newest complete snapshot of `snapshot.url`, and what the topics hold of the log beyond it.

use std::time::Duration;

use super::super::snapshot::open_shelf_at;
use crate::{
    blob::{BlobUrl, Intent, OpenBlobError},
    broker::{Broker, kafka::KafkaBroker},
    clock::Clock,
    config::Config,
    embed::wiring,
    instance::InstanceSettings,
    preflight::retention::{NeededLog, NeededOffset, NewestSnapshot, WholeLogReason},
    sequencer::state::ChainState,
    snapshot::{Manifest, Shelf, SnapshotError, first_offsets},
    store::topics::LogIdentity,
};

/// Returns the part of the log that the topics must keep. An error is a reason for the whole log: without a snapshot
/// that can be restored nothing but a rebuild is left.
pub(in crate::cli) async fn read(broker: &KafkaBroker, config: &Config) -> NeededLog {
    let Some(url) = &config.snapshot.url else { return NeededLog::Whole(WholeLogReason::NotConfigured) };
    let place = url.to_string();
    match read_newest(broker, config, url).await {
        Ok(Some(newest)) => NeededLog::BeyondSnapshot(newest),
        Ok(None) => NeededLog::Whole(WholeLogReason::NoSnapshot { place }),
        Err(problem) => NeededLog::Whole(WholeLogReason::Unusable { place, problem }),
    }
}

/// Reads the newest complete snapshot; `None`: the place has none. An error is one line.
async fn read_newest(broker: &KafkaBroker, config: &Config, url: &BlobUrl) -> Result<Option<NewestSnapshot>, String> {
    let shelf = match open_shelf_at(config, url, Intent::Read).await {
        Ok(shelf) => shelf,
        // The first creation makes the directory.
        Err(OpenBlobError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let found = read_newest_manifest(&shelf).await.map_err(|error| error.to_string())?;
    let Some((name, manifest)) = found else { return Ok(None) };
    let settings = wiring::instance_settings(config);
    let partitions = find_offsets(broker, &settings, &manifest).await;
    let partitions = partitions.map_err(|problem| format!("snapshot {name}: {problem}"))?;
    // A snapshot of the future, by a clock that goes wrong, is new.
    let age = Duration::from_millis(Clock::System.now_ms().saturating_sub(manifest.plan.created_ms));
    Ok(Some(NewestSnapshot { name, age, partitions }))
}

async fn read_newest_manifest(shelf: &Shelf) -> Result<Option<(String, Manifest)>, SnapshotError> {
    let name = match shelf.newest().await {
        Ok(name) => name,
        Err(SnapshotError::NoSnapshot) => return Ok(None),
        Err(error) => return Err(error),
    };
    let manifest = shelf.read_manifest(&name).await?;
    Ok(Some((name, manifest)))
}

/// Reads what the topics hold of the offsets that a store restored from the snapshot reads first. Offsets in another
/// log mean nothing, so that a snapshot of another log is an error.
async fn find_offsets(
    broker: &KafkaBroker,
    settings: &InstanceSettings,
    manifest: &Manifest,
) -> Result<Vec<NeededOffset>, String> {
    let meta = manifest.plan.meta_record()?;
    let log = LogIdentity::read(broker, &settings.state_topics()).await.map_err(|error| error.to_string())?;
    if let Some(difference) = log.differences(&meta).into_iter().next() {
        return Err(difference.to_string());
    }
    let state = ChainState::from_metadata(&manifest.plan.chain_state).map_err(|error| error.to_string())?;
    let mut offsets = Vec::new();
    for (topic, partition, from) in first_offsets(&manifest.plan.offsets, &state) {
        let (low, high) =
            broker.watermarks(&settings.partition(topic, partition)).await.map_err(|error| error.to_string())?;
        offsets.push(NeededOffset { topic, partition, from, low, high });
    }
    Ok(offsets)
}
