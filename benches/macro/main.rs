//! The whole pipeline on each engine with synthetic transactions: transactions/s, µs of CPU per transaction, peak
//! memory.
//!
//! Each case runs in a child process with its own memory and CPU time. `benches/README.md` has the cases, the sizes and
//! the measurements.

mod child;
mod counting;
mod feed;
mod generator;
mod growth;
mod measure;
mod pipeline;
#[allow(clippy::unwrap_used)]
#[path = "../../tests/it/ports.rs"]
mod ports;
#[cfg(feature = "sql")]
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/postgres_server.rs"]
mod postgres;
mod raw;
mod run;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/aerospike_server.rs"]
mod server;
mod slow;
mod table;

use std::{env, process::ExitCode};

use child::{CHILD, is_chosen};
use generator::Shape;
use growth::{Growth, GrowthResult};
use measure::env_number;
use run::{Case, EngineKind};

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((flag, case)) if flag == CHILD => {
            println!("{}", measure_case(case));
            ExitCode::SUCCESS
        }
        _ => run_all(&arguments.into_iter().filter(|word| !word.starts_with('-')).collect::<Vec<_>>()),
    }
}

/// Runs one case in the child and returns its JSON line.
fn measure_case(arguments: &[String]) -> String {
    let growth = Growth::ALL.into_iter().find(|growth| arguments == [growth.name()]);
    let outcome = match growth {
        Some(growth) => serde_json::to_string(&growth::run(growth)),
        None => serde_json::to_string(&run::run(&Case::parse(arguments).expect("the parent writes what it reads"))),
    };
    outcome.expect("an outcome has no map")
}

fn run_all(words: &[String]) -> ExitCode {
    let mut failed = false;
    // Some stores need a server, and have a bench of their own: `make bench-aerospike`, `make bench-sql`.
    let is_selected = |section: &Section| {
        let names_engine = |case: &Case| words.iter().any(|word| word.contains(case.engine.name()));
        !section.by_name_only || section.cases.iter().any(names_engine)
    };
    for section in sections().into_iter().filter(is_selected) {
        let chosen: Vec<Case> = section.cases.into_iter().filter(|case| is_chosen(words, &case.name())).collect();
        if chosen.is_empty() {
            continue;
        }
        println!("\n{}\n", section.title);
        table::print_head();
        for case in chosen {
            match child::outcome(&case.arguments()) {
                Ok(outcome) => table::print_row(&case, &outcome),
                Err(why) => {
                    println!("{}: {why}", case.name());
                    failed = true;
                }
            }
        }
    }
    failed |= !check_memory_bounds(words);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs the growth cases; returns whether memory is bounded.
fn check_memory_bounds(words: &[String]) -> bool {
    let chosen: Vec<Growth> = Growth::ALL.into_iter().filter(|case| is_chosen(words, case.name())).collect();
    if !chosen.is_empty() {
        println!("\nMemory: what has passed, and what waits behind a slow store\n");
    }
    let mut is_bounded = true;
    for case in chosen {
        match child::outcome::<GrowthResult>(&[case.name().to_owned()]) {
            Ok(grown) => {
                grown.print(case.name());
                is_bounded &= grown.fault().is_none();
            }
            Err(why) => {
                println!("{}: {why}", case.name());
                is_bounded = false;
            }
        }
    }
    is_bounded
}

struct Section {
    title: &'static str,
    cases: Vec<Case>,
    by_name_only: bool,
}

fn section(title: &'static str, cases: Vec<Case>) -> Section {
    Section { title, cases, by_name_only: false }
}

fn sections() -> Vec<Section> {
    let in_memory = env_number("MACRO_TRANSACTIONS", 1_000_000);
    let on_disk = env_number("MACRO_FJALL_TRANSACTIONS", 1_000_000);
    let each = |engine, transactions| {
        Shape::ALL.map(|shape| Case { engine, shape, transactions, generated_ahead: true }).to_vec()
    };
    let growth = [in_memory / 5, in_memory]
        .map(|transactions| Case {
            engine: EngineKind::Null,
            shape: Shape::Apart,
            transactions,
            generated_ahead: false,
        })
        .to_vec();
    vec![
        section("The pipeline alone (null engine)", each(EngineKind::Null, in_memory)),
        section("On the memory engine", each(EngineKind::Memory, in_memory)),
        section(
            "On the fjall engine; `raw` is fjall alone with the same writes (how much of it the pipeline is), as they \
             came and sorted",
            each(EngineKind::Fjall, on_disk),
        ),
        section(
            "Memory growth: null engine, transactions made as they are read (their making counts in the CPU)",
            growth,
        ),
        Section {
            by_name_only: true,
            ..section(
                "On Aerospike, a server of its own on the same cores; CPU is the client's",
                each(EngineKind::Aerospike, env_number("MACRO_AEROSPIKE_TRANSACTIONS", 200_000)),
            )
        },
        #[cfg(feature = "sql")]
        Section {
            by_name_only: true,
            ..section(
                "On SQLite, and on PostgreSQL, a server of its own on the same cores; CPU is the client's",
                [EngineKind::Sqlite, EngineKind::Postgres]
                    .map(|engine| each(engine, env_number("MACRO_SQL_TRANSACTIONS", 100_000)))
                    .concat(),
            )
        },
    ]
}
