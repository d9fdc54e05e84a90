//! The engine on a real Aerospike.

use std::sync::Arc;

use utxo_store::engine::{aerospike::AerospikeEngine, conformance};

use crate::aerospike_server::AerospikeServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn aerospike_conforms() {
    let Some(server) = AerospikeServer::start() else { return };
    for check in conformance::CHECKS {
        eprintln!("{}", check.name);
        let engine = AerospikeEngine::open(&server.settings(), conformance::RULES).await.unwrap();
        check.run(Arc::new(engine)).await;
    }
    let engine = AerospikeEngine::open(&server.settings(), conformance::RULES).await.unwrap();
    conformance::run(Arc::new(engine)).await;
}
