//! What has come of it.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;
use utxo_store::{
    blob::{self, Intent},
    broker::{Broker, TopicPartition},
    cli::wiring,
    config::Config,
    engine,
    group::proof::{ChainProgress, ChainView},
    sequencer::{chain_group, progress::CommittedProgress},
    store::Store,
    telemetry::Metrics,
};

use super::{
    Ground, PARTITIONS,
    crew::{Crew, INSTANCES},
};
use crate::{
    model::{Logs, Model, Rules},
    run::block_on,
    world::pages_of,
};

/// Without anything being committed: a backlog takes as long as it takes.
const PATIENCE: Duration = Duration::from_secs(600);
/// Complaints that are shown.
const SHOWN: usize = 30;

/// Has all instances run until the groups have committed everything.
pub fn wait_until_all_is_handled(ground: &Ground, crew: &mut dyn Crew) {
    let started = Instant::now();
    let broker = Arc::new(ground.bench.broker());
    let settings = wiring::instance(&config(ground));
    let group = &settings.pipeline.group;
    let chain = TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 };
    let progress = CommittedProgress::new(broker.clone(), chain_group(group), settings.topics.clone());
    let (mut stands, mut moved) = (String::new(), Instant::now());
    block_on(async {
        loop {
            crew.look();
            for slot in 0..INSTANCES {
                crew.start(slot);
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
            if now != stands {
                (stands, moved) = (now, Instant::now());
            }
            if started.elapsed().as_secs() % 10 == 9 {
                eprintln!("{:.0} s: {stands}, {view:?}", started.elapsed().as_secs_f64());
            }
            assert!(moved.elapsed() < PATIENCE, "not everything is handled: {stands}, {view:?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    eprintln!("all is handled {:.1} s after the last message", started.elapsed().as_secs_f64());
}

/// Fails unless the store breaks no invariant, holds what the model makes of the logs, and equals a rebuild. Nobody runs.
pub fn judge(ground: &Ground) {
    let live = judge_store(ground);
    let rebuilt = rebuild(ground);
    assert_eq!((&rebuilt["digest"], &rebuilt["undecided"]), (&live["digest"], &0.into()), "{rebuilt}");
    eprintln!("live: {live}\nrebuilt: {rebuilt}");
}

/// Fails unless the store breaks no invariant, and holds what the model makes of the logs; answers what `verify` says. Nobody runs.
pub fn judge_store(ground: &Ground) -> Value {
    let live = json(ground, &with(&["verify", "--json"], &ground.live));
    assert_eq!(live["violations"], 0, "{live}");
    let started = Instant::now();
    let mut expected = block_on(expected(ground));
    eprintln!("the model: {} transactions, {:.1} s", expected.txs.len(), started.elapsed().as_secs_f64());
    let pages = || block_on(async { pages_of(&store(ground).await).await });
    if ground.has_forgotten {
        // Which claims are stored is then left open.
        expected = expected.claiming_as(&pages());
    }
    if live["digest"] != expected.digest().to_string() {
        let complaints = expected.compare(pages().iter().map(|page| &**page));
        let lines: Vec<String> = complaints.iter().take(SHOWN).map(|complaint| format!("  {complaint}")).collect();
        panic!("the store differs from the model in {} points:\n{}", complaints.len(), lines.join("\n"));
    }
    live
}

/// `replay --rebuild`, into where rebuilds go.
pub fn rebuild(ground: &Ground) -> Value {
    json(ground, &with(&["replay", "--rebuild", "--json"], &ground.rebuilt))
}

/// Fails unless an instance that starts ends by itself, saying this.
pub fn is_refused(ground: &Ground, why: &str) {
    let output = ground.command(&["run"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains(why), "{}: {told}", output.status);
}

fn with<'a>(args: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    args.iter().copied().chain(more.iter().map(String::as_str)).collect()
}

fn json(ground: &Ground, args: &[&str]) -> Value {
    let output = ground.command(args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let err = &err[err.len().saturating_sub(10_000)..];
    assert_eq!(output.status.code(), Some(0), "{args:?}: {err}{out}");
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

fn config(ground: &Ground) -> Config {
    let variables = ground.variables.iter().map(|(key, value)| (key.into(), value.into()));
    Config::load_from(Some(Path::new(&ground.bench.path("utxo-store.toml"))), variables).unwrap()
}

async fn store(ground: &Ground) -> Store {
    let config = config(ground);
    let engine = engine::open_existing(&config.store.url.to_string(), &wiring::engine(&config)).await.unwrap();
    let (access, options) = wiring::blobs(&config, &Arc::new(Metrics::new()));
    let blobs = match config.store.blob_url().unwrap() {
        Some(url) => Some(blob::open(&url, Intent::Read, &access, options).await.unwrap()),
        None => None,
    };
    Store::new(engine, wiring::store(&config)).with_blobs(blobs)
}

async fn expected(ground: &Ground) -> crate::model::Expected {
    let config = config(ground);
    let settings = wiring::instance(&config);
    let logs = Logs::read(&ground.bench.broker(), &settings.pipeline.topic, &settings.topics).await.unwrap();
    let rules = Rules {
        network: config.store.network,
        partitions: PARTITIONS,
        utxo_batch_size: config.store.utxo_batch_size,
        retention: config.store.block_height_retention,
        forgetful: ground.has_forgotten,
        slow: true,
        pruned_to: None,
    };
    let replay = if ground.has_forgotten { Model::replay_after_forgetting } else { Model::replay };
    replay(&logs, &rules).unwrap_or_else(|complaints| {
        let lines: Vec<String> = complaints.iter().take(SHOWN).map(|complaint| format!("  {complaint}")).collect();
        panic!("the model does not agree, {} times:\n{}", complaints.len(), lines.join("\n"))
    })
}
