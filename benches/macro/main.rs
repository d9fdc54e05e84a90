//! The whole pipeline on each engine, over made-up transactions: transactions/s, µs of CPU a transaction, peak memory.
//!
//! Each case runs in a child process, so that its memory and its CPU time are its own. `benches/README.md` says how to
//! choose cases and sizes, and what was measured.

mod child;
mod counting;
mod feed;
mod generator;
mod growth;
mod measure;
mod pipeline;
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
use growth::{Grown, Growth};
use measure::size;
use run::{Case, EngineKind};

// As the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((flag, case)) if flag == CHILD => {
            println!("{}", measured(case));
            ExitCode::SUCCESS
        }
        _ => all(&arguments.into_iter().filter(|word| !word.starts_with('-')).collect::<Vec<_>>()),
    }
}

/// What the child prints.
fn measured(arguments: &[String]) -> String {
    let growth = Growth::ALL.into_iter().find(|growth| arguments == [growth.name()]);
    let outcome = match growth {
        Some(growth) => serde_json::to_string(&growth::run(growth)),
        None => serde_json::to_string(&run::run(&Case::parse(arguments).expect("the parent writes what it reads"))),
    };
    outcome.expect("an outcome has no map")
}

fn all(words: &[String]) -> ExitCode {
    let mut failed = false;
    // Aerospike needs a server, and is measured beside its raw client: `make bench-aerospike`.
    let asked_for = |section: &Section| !section.by_name_only || words.iter().any(|word| word.contains("aerospike"));
    for section in sections().into_iter().filter(asked_for) {
        let chosen: Vec<Case> = section.cases.into_iter().filter(|case| is_chosen(words, &case.name())).collect();
        if chosen.is_empty() {
            continue;
        }
        println!("\n{}\n", section.title);
        table::head();
        for case in chosen {
            match child::outcome(&case.arguments()) {
                Ok(outcome) => table::row(&case, &outcome),
                Err(why) => {
                    println!("{}: {why}", case.name());
                    failed = true;
                }
            }
        }
    }
    failed |= !memory_is_bounded(words);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Prints and judges.
fn memory_is_bounded(words: &[String]) -> bool {
    let chosen: Vec<Growth> = Growth::ALL.into_iter().filter(|case| is_chosen(words, case.name())).collect();
    if !chosen.is_empty() {
        println!("\nMemory: what has passed, and what waits behind a slow store\n");
    }
    let mut holds = true;
    for case in chosen {
        match child::outcome::<Grown>(&[case.name().to_owned()]) {
            Ok(grown) => {
                grown.print(case.name());
                holds &= grown.fault().is_none();
            }
            Err(why) => {
                println!("{}: {why}", case.name());
                holds = false;
            }
        }
    }
    holds
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
    let in_memory = size("MACRO_TRANSACTIONS", 1_000_000);
    let on_disk = size("MACRO_FJALL_TRANSACTIONS", 1_000_000);
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
                each(EngineKind::Aerospike, size("MACRO_AEROSPIKE_TRANSACTIONS", 200_000)),
            )
        },
    ]
}
