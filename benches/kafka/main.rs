//! The whole way from one real broker to the state, in one run: µs of CPU of our process a transaction and transactions/s, beside a bare
//! loop over librdkafka and beside the log in memory; from produce to state; and after SIGKILL.
//!
//! `benches/README.md` says how to choose cases and sizes, and what was measured.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/aerospike_server.rs"]
mod aerospike_server;
mod bare;
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
#[allow(dead_code, unused_imports, clippy::unwrap_used)]
#[path = "../../tests/it/run.rs"]
mod program;
mod resume;
mod run;
mod seen;
#[path = "../macro/slow.rs"]
mod slow;
mod table;
mod topic;

use std::{env, process::ExitCode};

use case::{BARE, Case, Place, Sink, Source};
use child::{CHILD, is_chosen};
use growth::{Grown, Growth};
use kafka_server::KafkaServer;
use latency::LATENCY;
use measure::size;
use run::runtime;
use table::Rounds;

// As the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// On which sinks it is measured how long a transaction takes.
const LATENCIES: [Sink; 3] = [Sink::Memory, Sink::Fjall, Sink::Aerospike];
/// By whether members are static.
const RESUMES: [(&str, bool); 2] = [("resume/static", true), ("resume/dynamic", false)];

/// Of which memory is watched while they come from the broker.
const GROWTHS: [(&str, Growth); 2] = [("growth/passed", Growth::Passed), ("growth/backlog", Growth::Small)];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((flag, arguments)) if flag == CHILD => {
            child_main(arguments).expect("the parent writes what the child reads");
            ExitCode::SUCCESS
        }
        _ => all(&arguments.into_iter().filter(|word| !word.starts_with('-')).collect::<Vec<_>>()),
    }
}

fn child_main(arguments: &[String]) -> Option<()> {
    let (what, rest) = arguments.split_first()?;
    if what == LATENCY {
        let (sink, place) = rest.split_first()?;
        latency::consume(LATENCIES.into_iter().find(|known| known.name() == sink)?, &Place::parse(place)?);
    } else if let Some((_, growth)) = GROWTHS.into_iter().find(|(name, _)| name == what) {
        println!("{}", serde_json::to_string(&run::grown(growth, &Place::parse(rest)?)).ok()?);
    } else {
        let took = run::run(Case::named(what)?, &Place::parse(rest)?);
        println!("{}", serde_json::to_string(&took).ok()?);
    }
    Some(())
}

fn all(words: &[String]) -> ExitCode {
    // It has said why.
    let Some(server) = KafkaServer::own() else { return ExitCode::SUCCESS };
    let mut bench = Bench { brokers: server.bootstrap_servers().to_owned(), words, filled: Vec::new(), failed: false };
    let partitions = bench.partitions();
    println!(
        "One broker on this machine; {partitions} partition(s); {} round(s), of which each figure is the median",
        rounds()
    );
    let measured = bench.throughput();
    bench.latencies(&measured);
    bench.growth();
    for (name, is_static) in RESUMES.into_iter().filter(|(name, _)| is_chosen(words, name)) {
        resume::measure(name, is_static, &bench.brokers);
    }
    if bench.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn rounds() -> u64 {
    size("KAFKA_ROUNDS", 3).max(1)
}

struct Bench<'w> {
    brokers: String,
    words: &'w [String],
    /// Topics that have their transactions.
    filled: Vec<String>,
    failed: bool,
}

impl Bench<'_> {
    /// One broker has one connection, and a partition is read by whoever has it: on one machine more of them only share what there is.
    fn partitions(&self) -> i32 {
        size("KAFKA_PARTITIONS", 1) as i32
    }

    /// Round by round, so that what the machine gives at one moment is given to all.
    fn throughput(&mut self) -> Vec<Rounds> {
        let chosen = Case::ALL.into_iter().filter(|case| is_chosen(self.words, &case.name()));
        let chosen: Vec<Case> = chosen.filter(|case| can_run(case.sink)).collect();
        let mut measured: Vec<Rounds> =
            chosen.iter().map(|case| Rounds { case: *case, place: self.place(*case), took: Vec::new() }).collect();
        for _ in 0..rounds() {
            measured.iter_mut().for_each(|rounds| self.round(rounds));
        }
        measured.retain(|rounds| !rounds.took.is_empty());
        if !measured.is_empty() {
            table::print(&measured);
        }
        measured
    }

    fn round(&mut self, rounds: &mut Rounds) {
        let Rounds { case, place, took } = rounds;
        if case.source == Source::Kafka && !self.filled.contains(&place.topic) {
            runtime(1).block_on(topic::fill(place));
            self.filled.push(place.topic.clone());
        }
        match child::outcome(&[&[case.name()], &place.arguments()[..]].concat()) {
            Ok(outcome) => took.push(outcome),
            Err(why) => {
                println!("{}: {why}", case.name());
                self.failed = true;
            }
        }
    }

    fn place(&self, case: Case) -> Place {
        let (topic, transactions) = match case.sink.is_far() {
            false => ("bench.near", size("KAFKA_TRANSACTIONS", 1_000_000)),
            true => ("bench.far", size("KAFKA_FAR_TRANSACTIONS", 400_000)),
        };
        Place { brokers: self.brokers.clone(), topic: topic.to_owned(), partitions: self.partitions(), transactions }
    }

    /// Memory after so many have passed, and while most of them wait behind a slow store.
    fn growth(&mut self) {
        let chosen: Vec<_> = GROWTHS.into_iter().filter(|(name, _)| is_chosen(self.words, name)).collect();
        if chosen.is_empty() {
            return;
        }
        println!("\nMemory of what reads from the broker:");
        let place = Place {
            topic: "bench.growth".to_owned(),
            transactions: size("KAFKA_GROWTH_TRANSACTIONS", 10_000_000),
            ..self.place(BARE)
        };
        runtime(1).block_on(topic::fill(&place));
        for (name, _) in chosen {
            match child::outcome::<Grown>(&[&[name.to_owned()], &place.arguments()[..]].concat()) {
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

    /// At a share of what was measured; what was not is measured first, once.
    fn latencies(&mut self, measured: &[Rounds]) {
        let share = size("KAFKA_LOAD_PERCENT", 10) as f64 / 100.0;
        let chosen = LATENCIES.into_iter().filter(|sink| is_chosen(self.words, &format!("latency/{}", sink.name())));
        let chosen: Vec<Sink> = chosen.filter(|sink| can_run(*sink)).collect();
        if !chosen.is_empty() {
            println!("\nFrom produce to state, at {:.0} % of the full rate:", share * 100.0);
        }
        for sink in chosen {
            let case = Case { source: Source::Kafka, sink };
            let known = measured.iter().find(|rounds| rounds.case == case).map(Rounds::transactions_a_second);
            let full = known.or_else(|| {
                let mut rounds = Rounds { case, place: self.place(case), took: Vec::new() };
                self.round(&mut rounds);
                (!rounds.took.is_empty()).then(|| rounds.transactions_a_second())
            });
            let Some(full) = full else { continue };
            if let Err(why) = latency::measure(sink, &self.brokers, self.partitions(), full * share) {
                println!("latency/{}: {why}", sink.name());
                self.failed = true;
            }
        }
    }
}

/// Whether its server can be had; if not, says so.
fn can_run(sink: Sink) -> bool {
    let in_path = |name: &str| {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    let can = sink != Sink::Aerospike || in_path("asd");
    if !can {
        println!("Aerospike is left out: no `asd` in PATH");
    }
    can
}
