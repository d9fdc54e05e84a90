//! Scale out: one to eight members of one group on one topic, and the changes of the group under load, with a real
//! broker; then a simulation of more machines with the measured costs.
//!
//! `benches/README.md` has the cases, the sizes and the measurements.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/aerospike_server.rs"]
mod aerospike_server;
mod changes;
#[path = "../macro/child.rs"]
#[allow(dead_code)]
mod child;
#[path = "../macro/feed.rs"]
#[allow(dead_code)]
mod feed;
mod forecast;
#[path = "../macro/generator.rs"]
#[allow(dead_code)]
mod generator;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/kafka_server.rs"]
mod kafka_server;
#[path = "../macro/measure.rs"]
#[allow(dead_code)]
mod measure;
mod member;
#[path = "../macro/pipeline.rs"]
#[allow(dead_code)]
mod pipeline;
#[allow(clippy::unwrap_used)]
#[path = "../../tests/it/ports.rs"]
mod ports;
#[path = "../api/process.rs"]
#[allow(dead_code)]
mod process_stats;
mod simulation;
mod steady;
#[path = "../kafka/topic.rs"]
#[allow(dead_code)]
mod topic;
mod witness;

use std::{env, process::ExitCode};

use child::{CHILD, is_chosen};
use kafka_server::KafkaServer;
use measure::{env_number, runtime};
use member::MEMBER;
use topic::BenchTopic;

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PARTITIONS: i32 = 24;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [flag, what, setup] = &arguments[..]
        && (flag.as_str(), what.as_str()) == (CHILD, MEMBER)
    {
        member::run(setup);
        return ExitCode::SUCCESS;
    }
    let words: Vec<String> = arguments.into_iter().filter(|word| !word.starts_with('-')).collect();
    // The server has printed the reason.
    let Some(server) = KafkaServer::own() else { return ExitCode::SUCCESS };
    run_all(&server, &words)
}

fn run_all(server: &KafkaServer, words: &[String]) -> ExitCode {
    // The witness of the changes reads every outcome of the broker, so that no other case may come before.
    let is_whole = !is_chosen(words, "changes") || changes::measure(server.bootstrap_servers(), PARTITIONS);
    let bench_topic = |name: &str, transactions| BenchTopic {
        brokers: server.bootstrap_servers().to_owned(),
        topic: name.to_owned(),
        partitions: PARTITIONS,
        transactions,
    };
    let sizes = [("null", "SCALE_TRANSACTIONS", 4_000_000), ("aerospike", "SCALE_AEROSPIKE_TRANSACTIONS", 500_000)];
    for (name, variable, default) in sizes.into_iter().filter(|(name, ..)| is_chosen(words, name)) {
        let is_aerospike = name == "aerospike";
        if is_aerospike && aerospike_server::in_path("asd").is_none() {
            println!("Aerospike is left out: no `asd` in PATH");
            continue;
        }
        let filled = bench_topic(&format!("scale.{name}"), env_number(variable, default));
        runtime(1).block_on(topic::fill(&filled, PARTITIONS));
        let steady = steady::measure(&filled, server.process_id(), is_aerospike);
        forecast::compare(&steady, PARTITIONS);
        if let Some(first) = steady.first().filter(|_| is_aerospike) {
            forecast::forecast(first);
        }
    }
    if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
