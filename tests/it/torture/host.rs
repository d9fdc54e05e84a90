//! Several instances in one process, over one store: fjall's belongs to one process. It is told what to do by lines of standard input,
//! `start`, `kill` or `stop` and a slot; at its end all stop in order.

use std::{collections::BTreeMap, path::Path, sync::Arc, thread::JoinHandle, time::Duration};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    broker::kafka::KafkaBroker,
    cli::wiring,
    clock::Clock,
    config::Config,
    engine::{self, RecordEngine},
    instance::{self, InstanceParts},
    status::Health,
    store::{
        Store,
        create::{Identity, Processes},
    },
    telemetry::{LogFormat, Metrics, init_logging},
};

use crate::run::block_on;

/// Names the configuration, where this process is a host.
pub const CONFIG: &str = "TORTURE_HOST";

struct Slot {
    shutdown: CancellationToken,
    kill: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Not a test: a process that tests start.
#[test]
#[ignore = "is a process of the torture"]
fn is_a_process() {
    let Ok(config) = std::env::var(CONFIG) else { return };
    let config = Config::load(Some(Path::new(&config))).unwrap();
    init_logging(LogFormat::Json, "info").unwrap();
    let engine = block_on(engine::open(&config.store.url.to_string(), &wiring::engine(&config))).unwrap();
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
        // Dropped earlier it would be a kill.
        std::mem::forget(slot.kill);
    }
    ending.into_iter().for_each(|thread| thread.join().unwrap());
    block_on(engine.close()).unwrap();
}

/// An instance on a runtime of its own. Whatever ends it by itself ends the process.
fn start(config: Config, engine: Arc<dyn RecordEngine>, owner: u64) -> Slot {
    let shutdown = CancellationToken::new();
    let (kill, killed) = oneshot::channel::<()>();
    let token = shutdown.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                Ok(()) = killed => tracing::info!("is dropped where it stands"),
                () = consume(&config, engine, owner, token) => {}
            }
        });
        runtime.shutdown_background();
    });
    Slot { shutdown, kill, thread }
}

/// As `utxo-store run` does.
async fn consume(config: &Config, engine: Arc<dyn RecordEngine>, owner: u64, shutdown: CancellationToken) {
    let parts = InstanceParts {
        broker: Arc::new(KafkaBroker::new(wiring::kafka(config)).unwrap()),
        store: Store::new(engine, wiring::store(config)),
        clock: Clock::System,
        metrics: Arc::new(Metrics::new()),
        health: Arc::new(Health::new(Clock::System, Duration::from_secs(600))),
        earlier_halts: Arc::default(),
        store_id: [7; 16],
        identity: Identity {
            owner,
            process_id: std::process::id(),
            hostname: "torture".into(),
            // Whom a lock record names may live in this very process.
            sees: Processes::None,
        },
    };
    loop {
        match instance::run(wiring::instance(config), parts.clone(), shutdown.clone()).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "begins again");
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
