//! The whole path from one real broker to the state, in one run: µs of CPU of this process per transaction and
//! transactions/s, beside a bare loop over librdkafka and the log in memory; latency from produce to state; and the
//! restart after SIGKILL.
//!
//! `benches/README.md` has the cases, the sizes and the measurements.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/aerospike_server.rs"]
mod aerospike_server;
mod bare;
mod bridge;
mod case;
#[path = "../macro/child.rs"]
mod child;
#[path = "../macro/feed.rs"]
mod feed;
#[path = "../macro/generator.rs"]
#[allow(dead_code)]
mod generator;
#[path = "../macro/growth.rs"]
#[allow(dead_code)]
mod growth;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/kafka_server.rs"]
mod kafka_server;
mod latency;
#[path = "../macro/measure.rs"]
mod measure;
#[path = "../macro/pipeline.rs"]
#[allow(dead_code)]
mod pipeline;
#[allow(clippy::unwrap_used)]
#[path = "../../tests/it/ports.rs"]
mod ports;
#[path = "../api/process.rs"]
#[allow(dead_code)]
mod process;
#[allow(dead_code, unused_imports, clippy::unwrap_used)]
#[path = "../../tests/it/run.rs"]
mod program;
mod resume;
mod run;
#[path = "../macro/slow.rs"]
mod slow;
mod table;
mod topic;
mod visibility;

use std::{env, process::ExitCode};

use bridge::BRIDGE;
use case::{BARE, Case, Sink, Source};
use child::{CHILD, is_chosen};
use growth::{Growth, GrowthResult};
use kafka_server::KafkaServer;
use latency::LATENCY;
use measure::{env_number, runtime};
use table::Rounds;
use topic::BenchTopic;

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of partitions of the outcomes, whatever the partitions of the case.
const OUTCOME_PARTITIONS: i32 = 12;

/// Sinks of the latency cases.
const LATENCIES: [Sink; 3] = [Sink::Memory, Sink::Fjall, Sink::Aerospike];
/// Restart cases; true for static members.
const RESUMES: [(&str, bool); 2] = [("resume/static", true), ("resume/dynamic", false)];

/// Growth cases with a broker.
const GROWTHS: [(&str, Growth); 2] = [("growth/passed", Growth::Passed), ("growth/backlog", Growth::Small)];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((flag, arguments)) if flag == CHILD => {
            child_main(arguments).expect("the parent writes what the child reads");
            ExitCode::SUCCESS
        }
        _ => run_all(&arguments.into_iter().filter(|word| !word.starts_with('-')).collect::<Vec<_>>()),
    }
}

fn child_main(arguments: &[String]) -> Option<()> {
    let (what, rest) = arguments.split_first()?;
    if what == LATENCY {
        let (sink, topic) = rest.split_first()?;
        latency::consume(LATENCIES.into_iter().find(|known| known.name() == sink)?, &BenchTopic::parse(topic)?);
    } else if let Some((_, growth)) = GROWTHS.into_iter().find(|(name, _)| name == what) {
        println!("{}", serde_json::to_string(&run::measure_growth(growth, &BenchTopic::parse(rest)?)).ok()?);
    } else {
        let measurement = run::run(Case::named(what)?, &BenchTopic::parse(rest)?);
        println!("{}", serde_json::to_string(&measurement).ok()?);
    }
    Some(())
}

fn run_all(words: &[String]) -> ExitCode {
    // The server has printed the reason.
    let Some(server) = KafkaServer::own() else { return ExitCode::SUCCESS };
    let mut bench = Bench { brokers: server.bootstrap_servers().to_owned(), words, filled: Vec::new(), failed: false };
    let partitions = bench.partitions();
    println!(
        "One broker on this machine; {partitions} partition(s); {} round(s), of which each figure is the median",
        rounds()
    );
    let measured = bench.measure_throughput();
    bench.measure_latencies(&measured);
    bench.measure_growth();
    for (name, is_static) in RESUMES.into_iter().filter(|(name, _)| is_chosen(words, name)) {
        resume::measure(name, is_static, &bench.brokers);
    }
    if is_chosen(words, BRIDGE) {
        bridge::measure(&bench.brokers);
    }
    if bench.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn rounds() -> u64 {
    env_number("KAFKA_ROUNDS", 3).max(1)
}

struct Bench<'w> {
    brokers: String,
    words: &'w [String],
    /// Topics that are filled.
    filled: Vec<String>,
    failed: bool,
}

impl Bench<'_> {
    /// Number of partitions. A client has one connection to a broker, so on one machine more partitions only share its
    /// throughput.
    fn partitions(&self) -> i32 {
        env_number("KAFKA_PARTITIONS", 1) as i32
    }

    /// Runs round by round, so that changes of the machine affect all cases.
    fn measure_throughput(&mut self) -> Vec<Rounds> {
        let chosen = Case::ALL.into_iter().filter(|case| is_chosen(self.words, &case.name()));
        let chosen: Vec<Case> = chosen.filter(|case| is_available(case.sink)).collect();
        let mut measured: Vec<Rounds> = chosen
            .iter()
            .map(|case| Rounds { case: *case, bench_topic: self.bench_topic(*case), measurements: Vec::new() })
            .collect();
        for _ in 0..rounds() {
            measured.iter_mut().for_each(|rounds| self.run_round(rounds));
        }
        measured.retain(|rounds| !rounds.measurements.is_empty());
        if !measured.is_empty() {
            table::print(&measured);
        }
        measured
    }

    fn run_round(&mut self, rounds: &mut Rounds) {
        let Rounds { case, bench_topic, measurements } = rounds;
        if case.source == Source::Kafka && !self.filled.contains(&bench_topic.topic) {
            runtime(1).block_on(topic::fill(bench_topic, OUTCOME_PARTITIONS));
            self.filled.push(bench_topic.topic.clone());
        }
        match child::outcome(&[&[case.name()], &bench_topic.arguments()[..]].concat()) {
            Ok(outcome) => measurements.push(outcome),
            Err(why) => {
                println!("{}: {why}", case.name());
                self.failed = true;
            }
        }
    }

    fn bench_topic(&self, case: Case) -> BenchTopic {
        let (topic, transactions) = match case.sink.is_far() {
            false => ("bench.near", env_number("KAFKA_TRANSACTIONS", 1_000_000)),
            true => ("bench.far", env_number("KAFKA_FAR_TRANSACTIONS", 400_000)),
        };
        BenchTopic {
            brokers: self.brokers.clone(),
            topic: topic.to_owned(),
            partitions: self.partitions(),
            transactions,
        }
    }

    /// Measures memory after all transactions have passed, and while most of them wait for a slow store.
    fn measure_growth(&mut self) {
        let chosen: Vec<_> = GROWTHS.into_iter().filter(|(name, _)| is_chosen(self.words, name)).collect();
        if chosen.is_empty() {
            return;
        }
        println!("\nMemory of what reads from the broker:");
        let bench_topic = BenchTopic {
            topic: "bench.growth".to_owned(),
            transactions: env_number("KAFKA_GROWTH_TRANSACTIONS", 10_000_000),
            ..self.bench_topic(BARE)
        };
        runtime(1).block_on(topic::fill(&bench_topic, OUTCOME_PARTITIONS));
        for (name, _) in chosen {
            match child::outcome::<GrowthResult>(&[&[name.to_owned()], &bench_topic.arguments()[..]].concat()) {
                Ok(grown) => {
                    grown.print(name);
                    self.failed |= grown.fault().is_some();
                }
                Err(why) => {
                    println!("{name}: {why}");
                    self.failed = true;
                }
            }
        }
    }

    /// Measures latencies at a share of the measured rate; an unmeasured rate is measured first, once.
    fn measure_latencies(&mut self, measured: &[Rounds]) {
        let share = env_number("KAFKA_LOAD_PERCENT", 10) as f64 / 100.0;
        let chosen = LATENCIES.into_iter().filter(|sink| is_chosen(self.words, &format!("latency/{}", sink.name())));
        let chosen: Vec<Sink> = chosen.filter(|sink| is_available(*sink)).collect();
        if !chosen.is_empty() {
            println!("\nFrom produce to state, at {:.0} % of the full rate:", share * 100.0);
        }
        for sink in chosen {
            let case = Case { source: Source::Kafka, sink };
            let known = measured.iter().find(|rounds| rounds.case == case).map(Rounds::transactions_a_second);
            let full = known.or_else(|| {
                let mut rounds = Rounds { case, bench_topic: self.bench_topic(case), measurements: Vec::new() };
                self.run_round(&mut rounds);
                (!rounds.measurements.is_empty()).then(|| rounds.transactions_a_second())
            });
            let Some(full) = full else { continue };
            if let Err(why) = latency::measure(sink, &self.brokers, self.partitions(), full * share) {
                println!("latency/{}: {why}", sink.name());
                self.failed = true;
            }
        }
    }
}

/// Whether the server of a sink is available; prints if not.
fn is_available(sink: Sink) -> bool {
    let is_available = sink != Sink::Aerospike || aerospike_server::in_path("asd").is_some();
    if !is_available {
        println!("Aerospike is left out: no `asd` in PATH");
    }
    is_available
}
