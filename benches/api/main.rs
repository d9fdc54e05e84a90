//! The HTTP API beside the work that it stands on, with real servers on the same cores: batches beside the raw client,
//! single outputs beside an ingest, the memory of long answers and of idle streams, the cost of outcomes, and a
//! transaction of a million outputs from the log to the answers.
//!
//! `benches/README.md` has the cases, the sizes and the measurements.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/aerospike_server.rs"]
mod aerospike_server;
mod batches;
#[path = "../macro/child.rs"]
#[allow(dead_code)]
mod child;
#[path = "../macro/generator.rs"]
#[allow(dead_code)]
mod generator;
mod ingest;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/kafka_server.rs"]
mod kafka_server;
mod large;
mod load;
#[path = "../macro/measure.rs"]
#[allow(dead_code)]
mod measure;
mod memory;
#[allow(clippy::unwrap_used)]
#[path = "../../tests/it/ports.rs"]
mod ports;
mod process;
#[allow(dead_code, unused_imports, clippy::unwrap_used)]
#[path = "../../tests/it/run.rs"]
mod program;
#[path = "../aerospike/raw.rs"]
#[allow(dead_code)]
mod raw;
mod setup;

use std::{env, process::ExitCode};

use child::is_chosen;
use kafka_server::KafkaServer;
use measure::{env_number, runtime};
use setup::BenchServers;

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    // `reqwest` is built without a crypto provider of its own.
    drop(rustls::crypto::ring::default_provider().install_default());
    // Each server has printed the reason.
    let Some(kafka) = KafkaServer::own() else { return ExitCode::SUCCESS };
    if setup::start_database().is_none() {
        return ExitCode::SUCCESS;
    }
    let servers = BenchServers { kafka };
    let runtime = runtime(2);
    let rounds = env_number("API_ROUNDS", 3).max(1);
    if is_chosen(&words, "batches") {
        runtime.block_on(batches::measure(&servers, rounds));
    }
    if is_chosen(&words, "single") {
        runtime.block_on(ingest::measure_single_outputs(&servers));
    }
    if is_chosen(&words, "outcomes") {
        runtime.block_on(ingest::measure_outcomes(&servers, rounds));
    }
    if is_chosen(&words, "raw") {
        runtime.block_on(memory::measure_raw(&servers));
    }
    if is_chosen(&words, "list") {
        runtime.block_on(memory::measure_list(&servers));
    }
    if is_chosen(&words, "streams") {
        runtime.block_on(memory::measure_streams(&servers));
    }
    if is_chosen(&words, "large") {
        runtime.block_on(large::measure(&servers));
    }
    ExitCode::SUCCESS
}
