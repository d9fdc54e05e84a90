//! Host process: several instances over one store, since a fjall store belongs to one process. Lines on standard input
//! control it: `start`, `kill` or `stop`, and a slot. At the end of the input all instances stop gracefully.

use std::{collections::BTreeMap, path::Path, sync::Arc, thread::JoinHandle, time::Duration};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    broker::kafka::KafkaBroker,
    clock::Clock,
    config::Config,
    embed::wiring,
    engine::{self, RecordEngine},
    instance::{self, InstanceParts},
    status::Health,
    store::{
        StateStore,
        create::{CreatorIdentity, ProcessVisibility},
    },
    telemetry::{LogFormat, Metrics, init_logging},
};

use crate::run::block_on;

/// Environment variable with the path of the configuration; set only in a host process.
pub const CONFIG: &str = "TORTURE_HOST";

struct Slot {
    shutdown: CancellationToken,
    kill: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Not a test: entry of the host process that tests start.
#[test]
#[ignore = "is a process of the torture"]
fn run_as_host_process() {
    let Ok(config) = std::env::var(CONFIG) else { return };
    let config = Config::load(Some(Path::new(&config))).unwrap();
    init_logging(LogFormat::Json, "info").unwrap();
    let engine = block_on(engine::open(&config.store.url.to_string(), &wiring::engine_options(&config))).unwrap();
    let mut slots: BTreeMap<String, Slot> = BTreeMap::new();
    let mut ending = Vec::new();
    let mut owner = u64::from(std::process::id()) << 32;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (what, slot) = line.split_once(' ').unwrap();
        match what {
            "start" => {
                owner += 1;
                drop(slots.insert(slot.to_owned(), start(config.clone(), engine.clone(), owner)));
            }
            _ => {
                let slot = slots.remove(slot).unwrap();
                match what {
                    "kill" => slot.kill.send(()).unwrap_or(()),
                    _ => slot.shutdown.cancel(),
                }
                ending.push(slot.thread);
            }
        }
    }
    for (_, slot) in slots {
        slot.shutdown.cancel();
        ending.push(slot.thread);
        // Dropping the sender would kill the instance.
        std::mem::forget(slot.kill);
    }
    ending.into_iter().for_each(|thread| thread.join().unwrap());
    block_on(engine.close()).unwrap();
}

/// Starts an instance on a runtime of its own. An instance that ends by itself ends the process.
fn start(config: Config, engine: Arc<dyn RecordEngine>, owner: u64) -> Slot {
    let shutdown = CancellationToken::new();
    let (kill, killed) = oneshot::channel::<()>();
    let token = shutdown.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                Ok(()) = killed => tracing::info!("host: instance killed"),
                () = consume(&config, engine, owner, token) => {}
            }
        });
        runtime.shutdown_background();
    });
    Slot { shutdown, kill, thread }
}

/// Runs the instance as `utxo-store run` does.
async fn consume(config: &Config, engine: Arc<dyn RecordEngine>, owner: u64, shutdown: CancellationToken) {
    let parts = InstanceParts {
        broker: Arc::new(KafkaBroker::new(wiring::kafka_settings(config)).unwrap()),
        store: StateStore::new(engine, wiring::store_settings(config)),
        clock: Clock::System,
        metrics: Arc::new(Metrics::new()),
        health: Arc::new(Health::new(Clock::System, Duration::from_secs(600))),
        earlier_halts: Arc::default(),
        store_id: [7; 16],
        identity: CreatorIdentity {
            owner,
            process_id: std::process::id(),
            hostname: "torture".into(),
            // The owner of a lock record may run in this very process.
            process_visibility: ProcessVisibility::None,
        },
    };
    loop {
        match instance::run(wiring::instance_settings(config), parts.clone(), shutdown.clone()).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "host: restarting the instance");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(error) => {
                eprintln!("an instance ended: {error}");
                std::process::exit(1);
            }
            Ok(_) => return,
        }
    }
}
