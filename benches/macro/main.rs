//! The whole pipeline on each engine, over made-up transactions: transactions/s, µs of CPU a transaction, peak memory.
//!
//! Each case runs in a child process, so that its memory and its CPU time are its own. `benches/README.md` says how to
//! choose cases and sizes, and what was measured.

mod counting;
mod feed;
mod generator;
mod measure;
mod raw;
mod run;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/aerospike_server.rs"]
mod server;
mod table;

use std::{
    env,
    process::{Command, ExitCode, Stdio},
};

use generator::Shape;
use run::{Case, EngineKind, Outcome};

// As the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHILD: &str = "--case";

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    match arguments.next().as_deref() {
        Some(CHILD) => {
            let case = Case::parse(&arguments.collect::<Vec<_>>()).expect("the parent writes what the child reads");
            println!("{}", serde_json::to_string(&run::run(&case)).expect("an outcome has no map"));
            ExitCode::SUCCESS
        }
        first => {
            // Cargo adds `--bench`; every other word picks the cases that contain it.
            let words: Vec<String> =
                first.map(str::to_owned).into_iter().chain(arguments).filter(|word| !word.starts_with('-')).collect();
            all(&words)
        }
    }
}

fn all(words: &[String]) -> ExitCode {
    let mut failed = false;
    // Aerospike needs a server, and is measured beside its raw client: `make bench-aerospike`.
    let asked_for = |section: &Section| !section.by_name_only || words.iter().any(|word| word.contains("aerospike"));
    for section in sections().into_iter().filter(asked_for) {
        let chosen: Vec<Case> = section
            .cases
            .into_iter()
            .filter(|case| words.is_empty() || words.iter().any(|word| case.name().contains(word.as_str())))
            .collect();
        if chosen.is_empty() {
            continue;
        }
        println!("\n{}\n", section.title);
        table::head();
        for case in chosen {
            match in_child(&case) {
                Ok(outcome) => table::row(&case, &outcome),
                Err(why) => {
                    println!("{}: {why}", case.name());
                    failed = true;
                }
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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

/// A number from the environment.
fn size(variable: &str, default: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text.replace('_', "").parse().unwrap_or_else(|_| panic!("{variable}=`{text}` is no number")),
        Err(_) => default,
    }
}

fn in_child(case: &Case) -> Result<Outcome, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .arg(CHILD)
        .args(case.arguments())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("the case ended with {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}
