//! Checks of the final state.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;
use utxo_store::{
    blob::{self, Intent},
    broker::{Broker, TopicPartition},
    config::Config,
    embed::wiring,
    engine,
    group::missing_parent::{ChainProgress, ChainView},
    sequencer::{chain_group, progress::CommittedProgress},
    store::StateStore,
    telemetry::Metrics,
};

use super::{
    PARTITIONS, TestBed,
    instances::{INSTANCES, InstanceSet},
};
use crate::{
    harness::pages_of,
    model::{Logs, Model, Rules},
    run::block_on,
};

/// Maximum time without a new commit: a backlog may take longer in all.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(600);
/// Number of complaints that are printed.
const MAX_SHOWN_COMPLAINTS: usize = 30;

/// Keeps all instances running until the groups have committed every event.
pub fn wait_until_all_is_handled(testbed: &TestBed, instances: &mut dyn InstanceSet) {
    let started = Instant::now();
    let broker = Arc::new(testbed.bench.broker());
    let settings = wiring::instance_settings(&config(testbed));
    let group = &settings.pipeline.group;
    let chain = TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 };
    let progress = CommittedProgress::new(broker.clone(), chain_group(group), settings.topics.clone());
    let (mut position, mut last_progress) = (String::new(), Instant::now());
    block_on(async {
        loop {
            instances.check_alive();
            for slot in 0..INSTANCES {
                instances.start(slot);
            }
            let mut open = Vec::new();
            for partition in 0..PARTITIONS {
                let at = TopicPartition { topic: settings.pipeline.topic.clone(), partition };
                let committed = broker.committed(group, std::slice::from_ref(&at)).await.unwrap().remove(0);
                let (next, (_, end)) = (committed.map_or(0, |at| at.offset), broker.watermarks(&at).await.unwrap());
                if next < end {
                    open.push(format!("{at}: {next} of {end}"));
                }
            }
            let view = progress.view().await.unwrap();
            if open.is_empty() && view == ChainView::AtEnd {
                return;
            }
            let handled = broker.committed(&chain_group(group), std::slice::from_ref(&chain)).await.unwrap().remove(0);
            let now = format!("{open:?}, the chain at {:?}", handled.map(|at| at.offset));
            if now != position {
                (position, last_progress) = (now, Instant::now());
            }
            if started.elapsed().as_secs() % 10 == 9 {
                eprintln!("{:.0} s: {position}, {view:?}", started.elapsed().as_secs_f64());
            }
            assert!(last_progress.elapsed() < PROGRESS_TIMEOUT, "not every event is handled: {position}, {view:?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    eprintln!("every event was handled {:.1} s after the last message", started.elapsed().as_secs_f64());
}

/// Fails unless the store breaks no invariant, equals the model of the logs, and equals a rebuild. No instance runs.
pub fn judge(testbed: &TestBed) {
    let live = judge_store(testbed);
    let rebuilt = rebuild(testbed);
    assert_eq!((&rebuilt["digest"], &rebuilt["undecided"]), (&live["digest"], &0.into()), "{rebuilt}");
    eprintln!("live: {live}\nrebuilt: {rebuilt}");
}

/// Fails unless the store breaks no invariant and equals the model of the logs; returns the report of `verify`. No
/// instance runs.
pub fn judge_store(testbed: &TestBed) -> Value {
    let live = verify(testbed);
    let started = Instant::now();
    let mut expected = block_on(expected(testbed));
    eprintln!("the model: {} transactions, {:.1} s", expected.txs.len(), started.elapsed().as_secs_f64());
    let pages = || block_on(async { pages_of(&store(testbed).await).await });
    if testbed.has_lost_writes {
        // The model leaves the stored claims open then.
        expected = expected.claiming_as(&pages());
    }
    if live["digest"] != expected.digest().to_string() {
        let complaints = expected.compare(pages().iter().map(|page| &**page));
        let lines: Vec<String> =
            complaints.iter().take(MAX_SHOWN_COMPLAINTS).map(|complaint| format!("  {complaint}")).collect();
        panic!("the store differs from the model in {} points:\n{}", complaints.len(), lines.join("\n"));
    }
    live
}

/// Fails unless the store breaks no invariant; returns the report of `verify`. No instance runs.
pub fn verify(testbed: &TestBed) -> Value {
    let live = json(testbed, &append(&["verify", "--json"], &testbed.live));
    assert_eq!(live["violations"], 0, "{live}");
    live
}

/// Runs `replay --rebuild` into the rebuilt store.
pub fn rebuild(testbed: &TestBed) -> Value {
    json(testbed, &append(&["replay", "--rebuild", "--json"], &testbed.rebuilt))
}

/// Fails unless an instance refuses to start with this reason.
pub fn check_start_is_refused(testbed: &TestBed, why: &str) {
    let output = testbed.command(&["run"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains(why), "{}: {stderr}", output.status);
}

fn append<'a>(args: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    args.iter().copied().chain(more.iter().map(String::as_str)).collect()
}

fn json(testbed: &TestBed, args: &[&str]) -> Value {
    let output = testbed.command(args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let err = &err[err.len().saturating_sub(10_000)..];
    assert_eq!(output.status.code(), Some(0), "{args:?}: {err}{out}");
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

fn config(testbed: &TestBed) -> Config {
    let variables = testbed.variables.iter().map(|(key, value)| (key.into(), value.into()));
    Config::load_from(Some(Path::new(&testbed.bench.path("utxo-store.toml"))), variables).unwrap()
}

async fn store(testbed: &TestBed) -> StateStore {
    let config = config(testbed);
    let engine = engine::open_existing(&config.store.url.to_string(), &wiring::engine_options(&config)).await.unwrap();
    let (access, options) = wiring::blob_settings(&config, &Arc::new(Metrics::new()));
    let blobs = match config.store.blob_url().unwrap() {
        Some(url) => Some(blob::open(&url, Intent::Read, &access, options).await.unwrap()),
        None => None,
    };
    StateStore::new(engine, wiring::store_settings(&config)).with_blobs(blobs)
}

async fn expected(testbed: &TestBed) -> crate::model::Expected {
    let config = config(testbed);
    let settings = wiring::instance_settings(&config);
    let logs = Logs::read(&testbed.bench.broker(), &settings.pipeline.topic, &settings.topics).await.unwrap();
    let rules = Rules {
        network: config.store.network,
        partitions: PARTITIONS,
        utxo_batch_size: config.store.utxo_batch_size,
        retention: config.store.block_height_retention,
        forgetful: testbed.has_lost_writes,
        slow: true,
        pruned_to: None,
        live_outcomes: true,
        mined_outcomes: true,
    };
    let replay = if testbed.has_lost_writes { Model::replay_after_forgetting } else { Model::replay };
    replay(&logs, &rules).unwrap_or_else(|complaints| {
        let lines: Vec<String> =
            complaints.iter().take(MAX_SHOWN_COMPLAINTS).map(|complaint| format!("  {complaint}")).collect();
        panic!("the model does not agree, {} times:\n{}", complaints.len(), lines.join("\n"))
    })
}
