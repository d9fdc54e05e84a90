//! Kills under load of the API: instances, servers of the API and nodes of the store end again and again while
//! transactions and commands are submitted and outcomes are followed. No answer is lost ([`ApiLoad::check`]).
//! `torture::api_kills` does the same with processes, Kafka and Aerospike.

use std::time::Duration;

use tokio::runtime::Runtime;
use utxo_store::{record::Key, rng::SplitMix64};

use crate::{
    api::Api,
    api_load::ApiLoad,
    harness::{World, WorldSettings},
};

/// A server of the API in a runtime of its own. The drop ends all its tasks and connections at once.
struct OwnServer {
    api: Api,
    runtime: Option<Runtime>,
}

impl OwnServer {
    async fn start(world: &World) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let world = world.clone();
        let api = runtime.spawn(async move { Api::start(&world, &[]).await }).await.unwrap();
        OwnServer { api, runtime: Some(runtime) }
    }

    fn address(&self) -> String {
        self.api.address.to_string()
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Part of the system that is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Instance,
    Server,
    /// The nodes restart, and lose some of their last acknowledged writes.
    Nodes(Duration),
}

/// Kills 100 times under load; then every answer is kept, and the store equals the model and a rebuild.
async fn kill_under_load(world: World, victims: &[Victim]) {
    const KILLS: u32 = 100;
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = SplitMix64::new(seed);
    let coins = world.seed(1, (KILLS * ApiLoad::COINS) as usize).await;
    let (mut running, mut server) = (world.start(), OwnServer::start(&world).await);
    let mut load = ApiLoad::start(coins, &server.address());
    // A store that can lose writes opens after two durability lags, and a start that is killed begins them again.
    world.until_consumed().await;
    for kill in 0..KILLS {
        load.submit(&server.address());
        match kill % 5 {
            0 => load.finish().await,
            _ => tokio::time::sleep(Duration::from_millis(random.below(100))).await,
        }
        match *random.pick(victims) {
            Victim::Instance => {
                running.kill().await;
                running = world.start();
            }
            Victim::Server => server = OwnServer::start(&world).await,
            Victim::Nodes(window) => {
                let period = Duration::from_millis(random.below(window.as_millis() as u64));
                let salt = random.next_u64() as u8;
                let is_lost = move |key: &Key| match key {
                    Key::Page(txid, _) => (txid.0[0] ^ salt).is_multiple_of(2),
                    _ => salt.is_multiple_of(2),
                };
                world.nodes.restart_nodes(period, is_lost);
            }
        }
    }
    let has_lost_writes = world.memory.restart_count() > 0;
    load.check(&server.address(), has_lost_writes).await;
    world.until_consumed().await;
    running.stop().await;
    match has_lost_writes {
        true => world.check_after_forgetting("kills under load of the API").await,
        false => world.check("kills under load of the API").await,
    }
}

#[tokio::test]
async fn an_answer_survives_100_kills_of_instances_and_servers() {
    kill_under_load(World::new().await, &[Victim::Instance, Victim::Server]).await;
}

/// The durability lag is five times this loss window.
#[tokio::test]
async fn an_answer_survives_100_kills_of_instances_servers_and_nodes() {
    let window = Duration::from_millis(40);
    let world = World::with_settings(WorldSettings { loss_window: window, ..WorldSettings::calm() }).await;
    kill_under_load(world, &[Victim::Instance, Victim::Server, Victim::Nodes(window), Victim::Nodes(window)]).await;
}
