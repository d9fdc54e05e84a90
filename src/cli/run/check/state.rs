//! Checks of the state: the meta record, the comparison with the log, the database nodes, the blob store.

use std::{path::Path, sync::Arc};

use super::{CheckReport, LogState, with_timeout};
use crate::{
    blob::{BlobStore, BlobUrl, Intent},
    cli::{CliResult, opening, wiring},
    config::Config,
    engine::{self, OpenError, StoreUrl, fjall::OpenFjallError},
    event::Topic,
    instance::{InstanceError, InstanceSettings, meta_expectations},
    preflight::{CheckOutcome, Finding},
    record::MetaRecord,
    store::{
        Store,
        meta::{MetaError, StoreMeta, check_chain_id, check_partition_count},
        ownership::{verify_above_floor, verify_has_consumed},
        restart_detector::durability_lag,
        topics::{has_topic_id, verify_topic_binding},
    },
    telemetry::Metrics,
};

/// Checks the store, and compares it with the log if the state of the log is known.
pub(super) async fn check_state(
    config: &Config,
    settings: &InstanceSettings,
    log_state: Option<&LogState>,
    report: &mut CheckReport,
) -> CliResult {
    let metrics = Arc::new(Metrics::new());
    let found = match engine::open_existing(&config.store.url.to_string(), &wiring::engine_options(config)).await {
        Ok(engine) => {
            let store = Store::new(engine, wiring::store_settings(config));
            let checked = check_records(config, settings, log_state, &store, report).await;
            store.engine.close().await?;
            checked?
        }
        Err(OpenError::Fjall(OpenFjallError::Missing(_))) => {
            let none = StoreState { meta: None, is_known: true };
            report.print(&match log_state {
                Some(log_state) if log_state.has_commits => {
                    Finding::from_result("store", Err::<&str, _>(MetaError::NamespaceLost))
                }
                _ => Finding::new("store", CheckOutcome::Ok, "no store yet: the first start creates the store"),
            })?;
            none
        }
        Err(error) => {
            let remedy = match error {
                OpenError::Fjall(OpenFjallError::InUse(_)) => "; read /health/ready of that process, or stop it first",
                _ => "",
            };
            report.print(&Finding::from_result("store", Err::<&str, _>(format!("{error} (store.url){remedy}"))))?;
            StoreState { meta: None, is_known: false }
        }
    };
    report.print(&check_blobs(config, &found, &metrics).await)?;
    let objects = match opening::open_objects(config, &metrics).await {
        Ok(None) => Finding::new("objects of large blocks", CheckOutcome::Skipped, "sequencer.objects_url is not set"),
        Ok(Some(_)) => Finding::new("objects of large blocks", CheckOutcome::Ok, "sequencer.objects_url can be opened"),
        Err(failure) => Finding::from_result("objects of large blocks", Err::<&str, _>(failure.message())),
    };
    Ok(report.print(&objects)?)
}

/// Meta record of the store, as far as the store could be opened.
struct StoreState {
    /// Meta record of the store; `None`: the first start creates the store.
    meta: Option<MetaRecord>,
    /// The store could be opened and read, or does not exist.
    is_known: bool,
}

async fn check_records(
    config: &Config,
    settings: &InstanceSettings,
    log_state: Option<&LogState>,
    store: &Store,
    report: &mut CheckReport,
) -> Result<StoreState, crate::cli::Failure> {
    // A stand-in: the configured blob store is checked separately.
    let blobs = config.store.blob_url().ok().flatten().map(|_| BlobStore::memory());
    let store = store.clone().with_blobs(blobs);
    let inspected = with_timeout(
        StoreMeta::of(&store)
            .inspect(meta_expectations(&store), log_state.is_some_and(|log_state| log_state.has_commits)),
    )
    .await;
    let meta = match inspected {
        Ok(meta) => meta,
        Err(reason) => {
            report.print(&Finding::from_result("store", Err::<&str, _>(reason)))?;
            return Ok(StoreState { meta: None, is_known: false });
        }
    };
    report.print(&describe_store(config, meta.as_ref()))?;
    report.print(&compare_with_log(log_state, meta.as_ref()))?;
    report.print(&check_durability(settings, &store).await)?;
    Ok(StoreState { meta, is_known: true })
}

fn describe_store(config: &Config, meta: Option<&MetaRecord>) -> Finding {
    let volatile = match config.store.url {
        StoreUrl::Memory => Some("the store is lost at the end of the process (store.url is memory://)".to_owned()),
        StoreUrl::Null => Some("the store keeps no records (store.url is null:///)".to_owned()),
        StoreUrl::Fjall(..) | StoreUrl::Aerospike(_) => None,
    };
    let message = match meta {
        None => "no meta record yet: the first start creates the store".to_owned(),
        Some(meta) => format!("store {} of network {}", hex::encode(meta.store_id), meta.network),
    };
    let retention = meta.filter(|meta| meta.retention != config.store.block_height_retention).map(|meta| {
        format!(
            "the store was last run with store.block_height_retention = {}, and a start changes that to {}",
            meta.retention, config.store.block_height_retention
        )
    });
    let cautions: Vec<String> = volatile.into_iter().chain(retention).collect();
    Finding::from_problems("store", &message, &[], &cautions)
}

/// Checks that the store was made from this log, as far as the state of the log is known.
fn compare_with_log(log_state: Option<&LogState>, meta: Option<&MetaRecord>) -> Finding {
    const CHECK: &str = "store and log";
    let (log_state, meta) = match (log_state, meta) {
        (None, _) => return Finding::new(CHECK, CheckOutcome::Skipped, "the state of the log is not known"),
        (_, None) => return Finding::new(CHECK, CheckOutcome::Ok, "neither the group nor the store has read an event"),
        (Some(log_state), Some(meta)) => (log_state, meta),
    };
    let mut results = vec![check_partition_count(meta, log_state.partitions)];
    results.extend(log_state.topics.iter().map(|topic| verify_topic_binding(meta, topic)));
    // Without a first record the check is possible only if the brokers report no topic id.
    if log_state.chain_id.is_some() || !has_topic_id(&log_state.topics, Topic::Chain) {
        results.push(check_chain_id(meta, log_state.chain_id));
    }
    // Offsets of another topic mean nothing, and findings about them would mislead.
    if results.iter().all(Result::is_ok) {
        results.extend([
            verify_has_consumed(meta, &log_state.consumed),
            verify_above_floor(&meta.replay_floor, &log_state.resume),
        ]);
    }
    let problems: Vec<String> = results.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    let message = "the store was made from this log, and has consumed the committed offsets";
    Finding::from_problems(CHECK, message, &problems, &[])
}

async fn check_durability(settings: &InstanceSettings, store: &Store) -> Finding {
    const CHECK: &str = "durability";
    let loss_window = store.engine.loss_window();
    let Some(lag) = durability_lag(store.engine.as_ref(), settings.durability_lag) else {
        return Finding::from_result(CHECK, Err::<&str, _>(InstanceError::LagTooShort(loss_window)));
    };
    if lag.is_zero() {
        return Finding::new(CHECK, CheckOutcome::Ok, "the store keeps every acknowledged write");
    }
    let message = format!("offsets are committed {lag:?} later: acknowledged writes can be lost for {loss_window:?}");
    let nodes = with_timeout(store.engine.incarnation()).await;
    let unknown = |reason| format!("restarts of nodes cannot be detected, so no offset would be committed: {reason}");
    Finding::from_result(CHECK, nodes.map(|_| message).map_err(unknown))
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
        record::{BoundTopic, ConsumedOffsets},
        store::{meta::MetaExpectations, testing, topics::FoundTopic},
        tx::Network,
    };

    fn consumed(chain: u64, validated: u64) -> ConsumedOffsets {
        ConsumedOffsets { chain, validated: [(0, validated)].into() }
    }

    #[tokio::test]
    async fn a_store_of_another_log_fails_with_every_difference() {
        let expected = MetaExpectations { network: Network::Regtest, utxo_batch_size: 5, retention: 9 };
        let made = StoreMeta::of(&testing::store(5)).open(expected, false, [1; 16]).await.unwrap();
        let meta = MetaRecord {
            partitions: Some(1),
            chain_id: Some([7; 32]),
            consumed: consumed(5, 50),
            replay_floor: consumed(3, 30),
            topics: [("utxo.reorgs".to_owned(), BoundTopic { id: Some([3; 16]), first: Default::default() })].into(),
            ..made
        };
        let reorgs = |id: u8| FoundTopic {
            topic: Topic::Reorgs,
            name: "my.reorgs".into(),
            id: Some([id; 16]),
            partitions: 1,
            first: Default::default(),
        };
        let fits = || LogState {
            partitions: 1,
            chain_id: Some([7; 32]),
            topics: vec![reorgs(3)],
            has_commits: true,
            consumed: consumed(5, 50),
            resume: consumed(3, 30),
        };
        let finding = |log_state| compare_with_log(Some(&log_state), Some(&meta)).to_string();
        assert!(finding(fits()).starts_with("ok "), "{}", finding(fits()));
        for (unfit, words) in [
            (LogState { partitions: 2, ..fits() }, "has 2 partitions, the store was made from 1"),
            (LogState { chain_id: Some([8; 32]), ..fits() }, "the chain topic was recreated"),
            (LogState { chain_id: None, ..fits() }, "has id none"),
            (LogState { topics: vec![reorgs(4)], ..fits() }, "`my.reorgs` is not the one that the store was made from"),
            (LogState { consumed: consumed(6, 50), ..fits() }, "committed 6, the store has consumed 5"),
            (LogState { resume: consumed(3, 29), ..fits() }, "is to be read again from offset 29"),
        ] {
            let finding = finding(unfit);
            assert!(finding.starts_with("FAILED ") && finding.contains(words), "{finding}");
        }
        // With a recreated topic the findings name neither pruning nor offsets.
        let recreated =
            LogState { topics: vec![reorgs(4)], resume: consumed(0, 0), consumed: consumed(9, 99), ..fits() };
        let finding = finding(recreated);
        let names_offsets = finding.contains("pruned") || finding.contains("consumed");
        assert!(!names_offsets && finding.contains("another group"), "{finding}");
        assert!(compare_with_log(None, Some(&meta)).to_string().starts_with("skipped "));
    }
}
