//! Checks of the state: the meta record, the comparison with the log, the database nodes, the blob store.

use std::{path::Path, sync::Arc};

use super::{ANSWER_TIMEOUT, CheckReport, LogState, no_answer, with_timeout};
use crate::{
    blob::{BlobStore, BlobUrl, Intent},
    cli::{
        CliResult, Failure,
        opening::{self, OpeningError},
        wiring,
    },
    config::Config,
    engine::{OpenError, StoreUrl, fjall::OpenFjallError},
    instance::InstanceSettings,
    preflight::{CheckOutcome, Finding, cause::Cause},
    record::MetaRecord,
    store::{
        StateStore,
        meta::{MetaError, StoreMeta},
        ownership::{RecordedChain, verify_above_floor, verify_has_consumed},
        restart_detector::durability_lag,
        topics::verify_topic_binding,
    },
    telemetry::Metrics,
};

/// Name of the checks of the meta record.
const STORE: &str = "store";
/// Name of the check of the store's servers for room.
const ROOM: &str = "room";
/// Free bytes below which a disk counts as full: the next journal of fjall takes 64 MiB.
const FULL_DISK: u64 = 64 << 20;
/// Free bytes below which a disk that is four fifths full has little room: a compaction of fjall writes gigabytes.
const LITTLE_ROOM: u64 = 20 << 30;

/// Checks the store, and compares it with the log if the state of the log is known.
pub(super) async fn check_state(
    config: &Config,
    settings: &InstanceSettings,
    log_state: Option<&LogState>,
    report: &mut CheckReport,
) -> CliResult {
    let metrics = Arc::new(Metrics::new());
    let (findings, found) = match opening::open_existing_store(config).await {
        Ok(Some(store)) => {
            let checked = check_records(config, settings, log_state, &store).await;
            store.engine.close().await?;
            checked
        }
        Ok(None) => {
            let finding = match log_state {
                Some(log_state) if log_state.frontier.has_commits() => {
                    Finding::failed(STORE, MetaError::NamespaceLost).with_cause(Cause::LostNamespace)
                }
                _ => Finding::new(STORE, CheckOutcome::Ok, "no store yet: the first start creates the store"),
            };
            (vec![finding], StoreState { meta: None, is_known: true })
        }
        Err(error) => {
            let (remedy, cause) = match error {
                OpenError::Fjall(OpenFjallError::InUse(_)) => {
                    ("; read /health/ready of that process, or stop it first", Cause::StoreInUse)
                }
                _ => ("", Cause::StoreAway),
            };
            let finding = Finding::failed(STORE, format!("{error} (store.url){remedy}")).with_cause(cause);
            (vec![finding], StoreState { meta: None, is_known: false })
        }
    };
    report.add(findings)?;
    report.add(check_disk(&config.store.url))?;
    report.add([check_blobs(config, &found, &metrics).await.with_cause(Cause::Blobs)])?;
    let blocks = opening::open_objects(config, &metrics).await.map(|objects| objects.is_some());
    let bodies = opening::open_event_bodies_for(Intent::Read, config, &metrics).await.map(|bodies| bodies.is_some());
    Ok(report.add([
        check_objects("objects of large blocks", blocks, "objects.url and sequencer.objects_url are not set"),
        check_objects("objects of large transactions", bodies, "objects.url is not set"),
    ])?)
}

/// Returns the finding on a place of objects; `Ok(false)`: `unset` says which setting would name the place.
fn check_objects(check: &'static str, opened: Result<bool, OpeningError>, unset: &str) -> Finding {
    match opened {
        Ok(true) => Finding::new(check, CheckOutcome::Ok, "the place of the objects can be opened"),
        Ok(false) => Finding::new(check, CheckOutcome::Skipped, unset),
        Err(error) => Finding::failed(check, Failure::from(error).message()).with_cause(Cause::Blobs),
    }
}

/// Meta record of the store, as far as the store could be opened.
struct StoreState {
    /// Meta record of the store; `None`: the first start creates the store.
    meta: Option<MetaRecord>,
    /// The store could be opened and read, or does not exist.
    is_known: bool,
}

/// Checks the records of the store. Without a usable meta record nothing is compared.
async fn check_records(
    config: &Config,
    settings: &InstanceSettings,
    log_state: Option<&LogState>,
    store: &StateStore,
) -> (Vec<Finding>, StoreState) {
    // A stand-in: the configured blob store is checked separately.
    let blobs = config.store.blob_url().ok().flatten().map(|_| BlobStore::memory());
    let store = store.clone().with_blobs(blobs);
    let group_has_offsets = log_state.is_some_and(|log_state| log_state.frontier.has_commits());
    let inspected = tokio::time::timeout(ANSWER_TIMEOUT, StoreMeta::of(&store).inspect(group_has_offsets)).await;
    let failure = match inspected {
        Ok(Ok(meta)) => {
            let findings = vec![
                describe_store(config, meta.as_ref(), store.engine.layout_name()),
                compare_with_log(log_state, meta.as_ref(), !store.engine.loss_window().is_zero()),
                check_durability(settings, &store).await,
                check_room(&store).await,
            ];
            return (findings, StoreState { meta, is_known: true });
        }
        Ok(Err(error)) => Finding::failed(STORE, &error).with_cause(cause_of(&error)),
        Err(_) => Finding::failed(STORE, no_answer()).with_cause(Cause::StoreAway),
    };
    (vec![failure], StoreState { meta: None, is_known: false })
}

/// Returns the cause behind a refusal of a store.
fn cause_of(error: &MetaError) -> Cause {
    match error {
        MetaError::NamespaceLost | MetaError::ForeignRecords | MetaError::NoMetaRecord => Cause::LostNamespace,
        MetaError::PartLost { .. } => Cause::LostPart,
        MetaError::ChainRecreated { .. } | MetaError::TopicRecreated { .. } => Cause::RecreatedTopic,
        MetaError::StoreBehindGroup { .. } | MetaError::Migrated => Cause::CrossedStores,
        MetaError::BelowFloor { .. } | MetaError::ChainStateLost { .. } => Cause::LostOffsets,
        MetaError::OtherNetwork { .. }
        | MetaError::OtherBatchSize { .. }
        | MetaError::OtherLayout { .. }
        | MetaError::OtherPartitions { .. } => Cause::StoreFacts,
        MetaError::NoBlobStore => Cause::Blobs,
        MetaError::Damaged => Cause::DamagedRecords,
        MetaError::Engine(_) => Cause::StoreAway,
        MetaError::UnfinishedRebuild { .. } | MetaError::RebuildTakenOver => Cause::UnfinishedRebuild,
        MetaError::StoreInUse
        | MetaError::UnfinishedRestore
        | MetaError::RestoreNotEmpty
        | MetaError::RestoreTakenOver
        | MetaError::HeldBySnapshot { .. }
        | MetaError::HoldLost
        | MetaError::HoldTakenOver
        | MetaError::NodeRestarted => Cause::UnfinishedLoad,
    }
}

/// Checks that the servers of the store take writes.
async fn check_room(store: &StateStore) -> Finding {
    let shortages = match with_timeout(store.engine.shortages()).await {
        Ok(shortages) => shortages,
        Err(reason) => return Finding::failed(ROOM, reason).with_cause(Cause::StoreAway),
    };
    let messages = |refuses: bool| {
        let found = shortages.iter().filter(|shortage| shortage.refuses_writes == refuses);
        found.map(|shortage| shortage.message.clone()).collect::<Vec<_>>()
    };
    let finding = Finding::from_problems(
        ROOM,
        "no server of the store reports a lack of room",
        &messages(true),
        &messages(false),
    );
    finding.with_cause(Cause::FullDevice)
}

/// Checks that the disk of a store in a directory has room; nothing for other stores.
fn check_disk(url: &StoreUrl) -> Option<Finding> {
    const CHECK: &str = "disk";
    let StoreUrl::Fjall(directory, _) = url else { return None };
    // Before the first start the directory does not exist; the disk is that of the nearest directory above.
    let existing = directory.ancestors().find(|path| path.exists())?;
    let finding = match rustix::fs::statvfs(existing) {
        Ok(disk) => judge_disk(CHECK, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize),
        Err(error) => Finding::new(CHECK, CheckOutcome::Skipped, format!("the disk does not report its room: {error}")),
    };
    Some(finding.with_cause(Cause::FullDevice))
}

/// Judges the room of a disk in bytes.
fn judge_disk(check: &str, free: u64, size: u64) -> Finding {
    let message = format!("{:.2} GB of {:.2} GB are free", free as f64 / 1e9, size as f64 / 1e9);
    let outcome = match () {
        () if free < FULL_DISK => CheckOutcome::Failed,
        () if free < LITTLE_ROOM && free < size / 5 => CheckOutcome::Warning,
        () => CheckOutcome::Ok,
    };
    Finding::new(check, outcome, message)
}

fn describe_store(config: &Config, meta: Option<&MetaRecord>, layout: Option<&str>) -> Finding {
    let volatile = match config.store.url {
        StoreUrl::Null => Some("the store keeps no records (store.url is null:///)".to_owned()),
        ref url if url.is_volatile() => {
            Some(format!("the store is lost at the end of the process (store.url is {url})"))
        }
        _ => None,
    };
    let layout = layout.map(|layout| format!(", in the layout {layout}")).unwrap_or_default();
    let message = match meta {
        None => format!("no meta record yet: the first start creates the store{layout}"),
        Some(meta) => format!("store {} of network {}{layout}", hex::encode(meta.store_id), meta.network),
    };
    let retention = meta.filter(|meta| meta.retention != config.store.block_height_retention).map(|meta| {
        format!(
            "the store was last run with store.block_height_retention = {}, and a start changes that to {}",
            meta.retention, config.store.block_height_retention
        )
    });
    let cautions: Vec<String> = volatile.into_iter().chain(retention).collect();
    Finding::from_problems(STORE, &message, &[], &cautions).with_cause(Cause::StoreFacts)
}

/// Checks that the store was made from this log, as far as the state of the log is known.
fn compare_with_log(log_state: Option<&LogState>, meta: Option<&MetaRecord>, can_lose_writes: bool) -> Finding {
    const CHECK: &str = "store and log";
    let (log_state, meta) = match (log_state, meta) {
        (None, _) => return Finding::new(CHECK, CheckOutcome::Skipped, "the state of the log is not known"),
        (_, None) => return Finding::new(CHECK, CheckOutcome::Ok, "neither the group nor the store has read an event"),
        (Some(log_state), Some(meta)) => (log_state, meta),
    };
    let mut problems = log_state.identity.differences(meta);
    // Offsets of another topic mean nothing, and findings about them would mislead.
    if problems.is_empty() {
        let results = [
            verify_has_consumed(meta, &log_state.frontier.consumed),
            verify_above_floor(&meta.replay_floor, &log_state.frontier.resume),
            verify_chain_start(log_state, meta, can_lose_writes),
        ];
        problems.extend(results.into_iter().filter_map(Result::err));
    }
    // Each topic differs where the store belongs to another group; one topic differs where that topic was recreated.
    let is_foreign = log_state.identity.topics.len() > 1
        && log_state.identity.topics.iter().all(|topic| verify_topic_binding(meta, topic).is_err());
    let cause = match problems.first() {
        Some(_) if is_foreign => Cause::CrossedStores,
        Some(error) => cause_of(error),
        None => Cause::CrossedStores,
    };
    let problems: Vec<String> = problems.iter().map(MetaError::to_string).collect();
    let message = "the store was made from this log, and has consumed the committed offsets";
    Finding::from_problems(CHECK, message, &problems, &[]).with_cause(cause)
}

/// Verifies that a chain without a committed state begins where a sequencer can begin.
fn verify_chain_start(log_state: &LogState, meta: &MetaRecord, can_lose_writes: bool) -> Result<(), MetaError> {
    let committed = log_state.frontier.chain_commit.as_ref();
    match committed.map_or(("", 0), |commit| (commit.metadata.as_str(), commit.offset)) {
        ("", position) => RecordedChain::of(meta).verify_stateless_start(position, can_lose_writes),
        _ => Ok(()),
    }
}

async fn check_durability(settings: &InstanceSettings, store: &StateStore) -> Finding {
    const CHECK: &str = "durability";
    let lag = match durability_lag(store.engine.as_ref(), settings.durability_lag) {
        Ok(lag) => lag,
        Err(error) => return Finding::failed(CHECK, error).with_cause(Cause::Configuration),
    };
    if lag.is_zero() {
        return Finding::new(CHECK, CheckOutcome::Ok, "the store keeps every acknowledged write");
    }
    let loss_window = store.engine.loss_window();
    let message = format!("offsets are committed {lag:?} later: acknowledged writes can be lost for {loss_window:?}");
    let nodes = with_timeout(async {
        store.engine.check_flushing().await?;
        store.engine.incarnation().await
    });
    let unknown = |reason| format!("restarts of nodes cannot be detected, so no offset would be committed: {reason}");
    Finding::from_result(CHECK, nodes.await.map(|_| message).map_err(unknown)).with_cause(Cause::StoreAway)
}

async fn check_blobs(config: &Config, found: &StoreState, metrics: &Arc<Metrics>) -> Finding {
    const CHECK: &str = "blob store";
    // The configuration was checked before, so an error is not possible here.
    let Ok(Some(url)) = config.store.blob_url() else {
        return Finding::new(CHECK, CheckOutcome::Skipped, "no blob store is configured (store.blobs.url)");
    };
    if !found.is_known {
        return Finding::new(CHECK, CheckOutcome::Skipped, "the store id is not known");
    }
    let is_first = found.meta.as_ref().is_none_or(|meta| !meta.has_blobs);
    if let BlobUrl::Directory(directory) = &url
        && is_first
        && is_absent(directory)
    {
        return Finding::new(CHECK, CheckOutcome::Ok, format!("the first start creates {}", directory.display()));
    }
    let store_id = found.meta.as_ref().map(|meta| meta.store_id);
    let claimed = with_timeout(async {
        let (access, options) = wiring::blob_settings(config, metrics);
        let store = crate::blob::open(&url, Intent::Check, &access, options).await?;
        store.check_claim(store_id, is_first).await
    });
    let message = |is_claimed| match is_claimed {
        true => "the blob store belongs to this store",
        false => "the blob store is empty: the first start claims the blob store and tests conditional writes",
    };
    Finding::from_result(CHECK, claimed.await.map(message))
}

fn is_absent(directory: &Path) -> bool {
    matches!(directory.try_exists(), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::Topic,
        instance::frontier::Frontier,
        record::{BoundTopic, ConsumedOffsets},
        store::{
            testing,
            topics::{FoundTopic, LogIdentity},
        },
    };

    fn consumed(chain: u64, validated: u64) -> ConsumedOffsets {
        ConsumedOffsets { chain, validated: [(0, validated)].into(), height: 0 }
    }

    #[tokio::test]
    async fn a_store_of_another_log_fails_with_every_difference() {
        let made = StoreMeta::of(&testing::store(5)).open(false, [1; 16]).await.unwrap();
        let meta = MetaRecord {
            partitions: Some(1),
            chain_id: Some([7; 32]),
            consumed: consumed(5, 50),
            replay_floor: consumed(3, 30),
            topics: [("utxo.reorgs".to_owned(), BoundTopic { id: Some([3; 16]), first: Default::default() })].into(),
            ..made
        };
        let found = |topic: Topic, name: &str, id, partitions| FoundTopic {
            topic,
            name: name.into(),
            id,
            partitions,
            first: Default::default(),
        };
        let identity = |partitions, chain_id: Option<u8>, reorgs: u8| LogIdentity {
            topics: vec![
                found(Topic::ValidatedTxs, "my.txs", None, partitions),
                found(Topic::Reorgs, "my.reorgs", Some([reorgs; 16]), 1),
            ],
            chain_id: chain_id.map(|id| [id; 32]),
        };
        let frontier = |consumed, resume| Frontier { consumed, resume, ..Frontier::default() };
        let fits = || LogState {
            identity: identity(1, Some(7), 3),
            frontier: frontier(consumed(5, 50), consumed(3, 30)),
            groups: Default::default(),
        };
        let finding = |log_state| compare_with_log(Some(&log_state), Some(&meta), false).to_string();
        assert!(finding(fits()).starts_with("ok "), "{}", finding(fits()));
        for (unfit, words) in [
            (LogState { identity: identity(2, Some(7), 3), ..fits() }, "has 2 partitions, the store was made from 1"),
            (LogState { identity: identity(1, Some(8), 3), ..fits() }, "the chain topic was recreated"),
            (LogState { identity: identity(1, None, 3), ..fits() }, "has id none"),
            (
                LogState { identity: identity(1, Some(7), 4), ..fits() },
                "`my.reorgs` is not the one that the store was made from",
            ),
            (
                LogState { frontier: frontier(consumed(6, 50), consumed(3, 30)), ..fits() },
                "committed 6, the store has consumed 5",
            ),
            (
                LogState { frontier: frontier(consumed(5, 50), consumed(3, 29)), ..fits() },
                "is to be read again from offset 29",
            ),
        ] {
            let finding = finding(unfit);
            assert!(finding.starts_with("FAILED ") && finding.contains(words), "{finding}");
        }
        // With a recreated topic the findings name neither pruning nor offsets.
        let recreated = LogState {
            identity: identity(1, Some(7), 4),
            frontier: frontier(consumed(9, 99), consumed(0, 0)),
            ..fits()
        };
        let finding = finding(recreated);
        let names_offsets = finding.contains("pruned") || finding.contains("consumed");
        assert!(!names_offsets && finding.contains("another group"), "{finding}");
        assert!(compare_with_log(None, Some(&meta), false).to_string().starts_with("skipped "));
    }
}
