//! The commands that copy whole stores, as processes: the import of a UTXO-set file, the creation of a snapshot, its
//! restore and a migration on each engine, and the ingest of an instance beside a creation.
//!
//! `benches/README.md` has the sizes and the measurements.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/aerospike_server.rs"]
mod aerospike_server;
mod beside;
#[path = "../macro/child.rs"]
#[allow(dead_code)]
mod child;
mod copies;
mod file;
#[path = "../macro/generator.rs"]
#[allow(dead_code)]
mod generator;
#[path = "../api/ingest.rs"]
#[allow(dead_code)]
mod ingest;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/kafka_server.rs"]
mod kafka_server;
#[path = "../api/load.rs"]
#[allow(dead_code)]
mod load;
#[path = "../macro/measure.rs"]
#[allow(dead_code)]
mod measure;
mod measured;
#[allow(clippy::unwrap_used)]
#[path = "../../tests/it/ports.rs"]
mod ports;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/postgres_server.rs"]
mod postgres_server;
#[path = "../api/process.rs"]
#[allow(dead_code)]
mod process;
#[allow(dead_code, unused_imports, clippy::unwrap_used)]
#[path = "../../tests/it/run.rs"]
mod program;
#[path = "../api/setup.rs"]
#[allow(dead_code)]
mod setup;

use std::{env, process::ExitCode};

use child::is_chosen;
use copies::Place;
use kafka_server::KafkaServer;
use measure::{env_number, runtime};
use setup::BenchServers;

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    // The server has printed the reason.
    let Some(kafka) = KafkaServer::own() else { return ExitCode::SUCCESS };
    let outputs = env_number("SNAPSHOT_OUTPUTS", 1_000_000);
    println!("{outputs} outputs, two of each transaction, in a UTXO-set file of the reference\n");
    println!("{:<10} {:<8} {:>12} {:>8} {:>12} {:>10}", "engine", "command", "outputs/s", "MB/s", "CPU µs", "peak MiB");
    for engine in ["aerospike", "fjall", "sqlite", "postgres"] {
        // A server that cannot be had has printed the reason.
        if is_chosen(&words, engine)
            && let Some(place) = Place::open(engine)
        {
            copies::measure(&kafka, &place, outputs);
        }
    }
    if is_chosen(&words, "beside") && setup::start_database().is_some() {
        runtime(2).block_on(beside::measure(&BenchServers { kafka }));
    }
    ExitCode::SUCCESS
}
