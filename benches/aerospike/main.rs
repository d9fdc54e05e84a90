//! The engine on a real Aerospike server, against the raw client: operations/s, and µs of CPU per operation of client
//! and server.
//!
//! Each case runs the same operations by three methods: *floor* writes one bin, *best* is a hand-packed `operate`
//! without the features of the engine (it returns only success or failure), *engine* is [`AerospikeEngine`].
//! `benches/README.md` has the measurements.

mod cases;
mod looks;
#[path = "../macro/measure.rs"]
#[allow(dead_code)]
mod measure;
#[allow(clippy::unwrap_used)]
#[path = "../../tests/it/ports.rs"]
mod ports;
#[path = "../api/process.rs"]
#[allow(dead_code)]
mod process_stats;
mod raw;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/aerospike_server.rs"]
mod server;
mod timed;
mod wide;

use std::{env, process::ExitCode, sync::Arc};

use utxo_store::{
    engine::aerospike::{AerospikeEngine, AerospikeSettings, Layout},
    record::Rules,
};

use cases::{Case, Method};
use measure::runtime;
use server::{AerospikeServer, FIT, Setup};

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rows per batch, and batches in flight.
const BATCH: usize = 256;
const IN_FLIGHT: usize = 8;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let Some(server) = AerospikeServer::start_own(Setup { durable: false, namespace: FIT }) else {
        return ExitCode::FAILURE;
    };
    let runtime = runtime(2);
    println!("{:<26} {:>18} {:>12} {:>12} {:>12}", "case", "way", "operations/s", "client µs", "server µs");
    for case in Case::all() {
        let chosen = words.is_empty() || words.iter().any(|word| case.name().contains(word.as_str()));
        if chosen {
            runtime.block_on(measure(&server, &case));
        }
    }
    if words.is_empty() || words.iter().any(|word| "looks".contains(word.as_str())) {
        runtime.block_on(looks::measure(&server));
    }
    for outputs in [45_000, 1_000_000] {
        if words.is_empty() || words.iter().any(|word| format!("wide-{outputs}").contains(word.as_str())) {
            runtime.block_on(wide::measure(&server, outputs));
        }
    }
    ExitCode::SUCCESS
}

async fn measure(server: &AerospikeServer, case: &Case) {
    let process = server.process_id().expect("the server is ours");
    for layout in [Layout::Teranode, Layout::Compact] {
        let settings = AerospikeSettings { layout: Some(layout), ..server.settings() };
        let engine = AerospikeEngine::open(&settings, Rules::main(288)).await.expect("the server was set up for it");
        let engine = Arc::new(engine);
        // The single features of the engine are measured in `teranode`.
        let is_measured = |method: &Method| match method {
            Method::Engine | Method::Best(raw::EngineFeature::None) => true,
            _ => layout == Layout::Teranode,
        };
        for method in case.methods().into_iter().filter(is_measured) {
            let raw = Arc::new(raw::RawClient::open(&settings, method.feature()).await);
            let batches = case.prepare(method, &engine, &raw).await;
            let timed = timed::run(process, batches, IN_FLIGHT).await;
            timed.print(&format!("{} ({layout})", case.name()), method.name());
        }
        let counts = engine.group_counts();
        assert_eq!(
            (counts.refused, counts.lost_races),
            (0, 0),
            "{}: the engine did not use native operations only: {counts:?}",
            case.name()
        );
        raw::RawClient::open(&settings, raw::EngineFeature::None).await.truncate().await;
    }
}
