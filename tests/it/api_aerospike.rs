//! The API over a real Aerospike, in this process and as `serve`.

use std::sync::Arc;

use aerospike::{AdminPolicy, Client, ClientPolicy};
use utxo_store::{
    engine::{aerospike::AerospikeEngine, conformance::RULES},
    tx::Txid,
};

use crate::{
    aerospike_server::AerospikeServer,
    api::Api,
    harness::World,
    kafka_server::KafkaServer,
    run::{Bench, Instance, until},
};

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

/// Protects: any number of `serve` processes answer about one store, beside an instance and after its end. A server
/// without the log answers about the store alone.
#[test]
fn several_servers_answer_about_one_store() {
    let Some(asd) = AerospikeServer::start() else { return };
    let Some(kafka) = KafkaServer::shared() else { return };
    let bench = Bench::on(kafka.bootstrap_servers());
    bench.create_topics();
    let store = asd.url();
    let blobs = format!("file://{}", bench.path("blobs").display());
    let variables = [("UTXO_STORE__STORE__URL", &store[..]), ("UTXO_STORE__STORE__BLOBS__URL", &blobs[..])];
    let instance = bench.start_with(&variables);
    bench.seed(9);
    let servers = [&["serve"][..], &["serve"], &["serve", "--without-log"]];
    let servers = servers.map(|args| bench.start_process(args, &variables));
    let ask =
        |server: &Instance, tag: u8, path: &str| server.get(&format!("/v1/transactions/{}{path}", Txid([tag; 32])));
    for server in &servers {
        for tag in 1..=9 {
            until("the transaction is there", || ask(server, tag, "").starts_with("HTTP/1.1 200"));
        }
        assert!(ask(server, 10, "").starts_with("HTTP/1.1 404"));
    }
    drop(instance);
    let [first, second, without_log] = servers;
    drop(first);
    let history = ask(&second, 1, "/history");
    assert!(ask(&second, 9, "").starts_with("HTTP/1.1 200") && history.starts_with("HTTP/1.1 200"), "{history}");
    let history = ask(&without_log, 1, "/history");
    assert!(history.starts_with("HTTP/1.1 503") && history.contains("this server has no log"), "{history}");
    assert!(ask(&without_log, 9, "").starts_with("HTTP/1.1 200"));
}
