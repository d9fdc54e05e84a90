//! The two questions to the nodes: for the incarnation, and about the devices.

use std::sync::Arc;

use utxo_store::{
    engine::{RecordEngine, aerospike::AerospikeEngine},
    record::Rules,
};

use super::{
    server::AerospikeServer,
    timed::{self, Batch},
};

/// Questions of each kind, one after the other.
const LOOKS: usize = 10_000;

/// Asks both questions and prints the cost of each.
pub async fn measure(server: &AerospikeServer) {
    let engine = AerospikeEngine::open(&server.settings(), Rules::main(288)).await;
    let engine = Arc::new(engine.expect("the server was set up for it"));
    let process = server.process_id().expect("the server is ours");
    for name in ["incarnation", "check-flushing"] {
        let look = |engine: Arc<AerospikeEngine>| -> Batch {
            Box::pin(async move {
                match name {
                    "incarnation" => drop(engine.incarnation().await.expect("the server answers")),
                    _ => engine.check_flushing().await.expect("no device is behind"),
                }
                1
            })
        };
        let looks: Vec<Batch> = (0..LOOKS).map(|_| look(engine.clone())).collect();
        timed::run(process, looks, 1).await.print("looks", name);
    }
}
