//! The API over a real Aerospike.

use std::sync::Arc;

use aerospike::{AdminPolicy, Client, ClientPolicy};
use utxo_store::engine::{aerospike::AerospikeEngine, conformance::RULES};

use crate::{aerospike_server::AerospikeServer, api::Api, harness::World};

/// `serve` over a store from before the index of the list, until an instance has made the index.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_without_its_index_is_unavailable() {
    let Some(server) = AerospikeServer::start() else { return };
    let settings = server.settings();
    let engine = Arc::new(AerospikeEngine::open(&settings, RULES).await.unwrap());
    let world = World::new().await;
    let api = Api::over(world.over(engine).store.clone(), None, &[]).await;
    let list = "/v1/transactions?conflicting=true";
    assert_eq!(api.send(reqwest::Method::GET, list, None).await.0, 200);
    let client = Client::new(&ClientPolicy::default(), &settings.hosts).await.unwrap();
    let index = format!("{}_verdict", settings.set);
    client.drop_index(&AdminPolicy::default(), &settings.namespace, &settings.set, &index).await.unwrap();
    let (status, problem) = api.get(list).await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(status == 503 && detail.contains("no index") && detail.contains("utxo-store run"), "{problem}");
    AerospikeEngine::open(&settings, RULES).await.unwrap();
    assert_eq!(api.send(reqwest::Method::GET, list, None).await.0, 200);
}
