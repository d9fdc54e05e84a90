//! The simulator: real pipelines, sequencers and store protocols on one thread under a paused clock, against a log and
//! a store that fail in every way that a seed asks for.
//!
//! A seed gives a [`plan`](plan::Plan), which is data; [`run`](run::run) executes it; every step is looked at
//! ([`checks`], [`commits`]), and the end is compared with a rebuild in another interleaving. A plan that fails is
//! [made small](shrink) and printed, to be replayed:
//!
//! - `make sim SEEDS=10000` runs many; `make sim SEED=7` replays one; `make sim PLAN=file` runs a printed plan.
//! - `SIM_WITHOUT=lie,poison` leaves kinds of events out (`reorgs`, side chains with them, `commands` and `prune` as wholes); `SIM_WITH=node-forgets` has those later faults in every history.
//! - `SIM_REORGS=1` has reorgs and side chains in every history, not in one of three.
//! - `SIM_COMMANDS=1` has commands in every history, not in a third of them.
//! - `SIM_SET_BACK=1` has an operator set the group back at the end of every history, not of an eighth of them: what is read again changes nothing.
//! - `SIM_PRUNE=1` prunes in every history, with a retention of a few blocks; else a quarter of them do.
//! - `SIM_PAGES=1` has most transactions take several pages in every history, not in two of five.
//! - `SIM_LATECOMERS=1` has transactions that hold one slot while another parent is late in every history, not in a
//!   third of them.
//! - `SIM_TRACE=file` writes down everything that happens in the one that is replayed; `RUST_LOG=debug` logs.

mod chain;
pub mod chain_log;
mod checks;
mod commits;
mod coverage;
mod doors;
mod forget;
mod gate;
mod history;
mod latecomers;
mod objects;
mod orders;
mod plan;
mod quiet;
mod reorganise;
mod run;
mod shrink;
mod swarm;
mod text;
mod trace;
mod watched;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use self::{coverage::Coverage, plan::Plan, run::run, shrink::Budget};

/// Seeds of `make test`.
const FEW: u64 = 300;
/// Half of what a thread of an instance has: what needs nearly all of that is found here.
const STACK: usize = 1 << 20;
/// Failures after which a run of many seeds ends, unless `ENOUGH` says otherwise.
const ENOUGH: u64 = 5;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs the plan; panics with the small form of it, and how to replay that, when it fails.
fn check(name: &str, plan: Plan) -> Result<Coverage, String> {
    let finished = run(&plan, false);
    let Some(failure) = finished.failure else { return Ok(finished.coverage) };
    let seconds = number("SIM_SHRINK").unwrap_or(30);
    let (small, small_failure) =
        shrink::shrink(plan, failure.clone(), Budget { time: Duration::from_secs(seconds), dice: 3 });
    let path = std::env::temp_dir().join(format!("utxo-store-sim-{name}.plan"));
    let kept = match std::fs::write(&path, small.to_string()) {
        Ok(()) => format!("make sim PLAN={}", path.display()),
        Err(error) => format!("(the plan below could not be written: {error})"),
    };
    Err(format!(
        "{name} fails: {}\n\nreduced to:\n{small}\nwhich fails: {small_failure}\n\nreplay: make sim {}\nreduced: {kept}\n",
        failure.lines().next().unwrap_or_default(),
        name.replacen("seed-", "SEED=", 1)
    ))
}

/// All seeds on so many threads; the failures.
fn check_many(seeds: std::ops::Range<u64>, threads: u64) -> (Coverage, Vec<String>) {
    let next = AtomicU64::new(seeds.start);
    let (coverage, failures) = (Mutex::new(Coverage::default()), Mutex::new(Vec::<String>::new()));
    let enough = number("ENOUGH").unwrap_or(ENOUGH) as usize;
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || failures.lock().unwrap().len() >= enough {
                return;
            }
            match check(&format!("seed-{seed}"), history::plan(seed)) {
                Ok(met) => coverage.lock().unwrap().absorb(met),
                Err(failure) => {
                    eprintln!("{failure}");
                    failures.lock().unwrap().push(failure);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let thread = std::thread::Builder::new().name("simulator".into()).stack_size(STACK);
            drop(thread.spawn_scoped(scope, work).unwrap());
        }
    });
    (coverage.into_inner().unwrap(), failures.into_inner().unwrap())
}

fn replay(name: &str, plan: Plan) {
    if let Ok(filter) = std::env::var("RUST_LOG") {
        // Another test of this process may have set it up.
        let _ = utxo_store::telemetry::init_logging(utxo_store::telemetry::LogFormat::Pretty, &filter);
    }
    eprintln!("{plan}");
    if let Ok(path) = std::env::var("SIM_TRACE") {
        std::fs::write(&path, run(&plan, true).lines.join("\n")).unwrap();
    }
    match check(name, plan) {
        Ok(coverage) => eprintln!("{coverage}\n{name}: nothing found"),
        Err(failure) => panic!("{failure}"),
    }
}

/// `make sim`, and a fixed short set of seeds in `make test`.
#[test]
fn histories_break_no_rule_and_rebuild_to_the_same_state() {
    if let Ok(plan) = std::env::var("SIM_PLAN") {
        let text = std::fs::read_to_string(&plan).unwrap_or(plan);
        return replay("plan", text.parse().unwrap());
    }
    if let Some(seed) = number("SEED") {
        return replay(&format!("seed-{seed}"), history::plan(seed));
    }
    let from = number("FROM").unwrap_or(0);
    let seeds = number("SEEDS").unwrap_or(FEW);
    let started = Instant::now();
    let (coverage, failures) = check_many(from..from + seeds, number("THREADS").unwrap_or(2));
    eprintln!("{coverage}not simulated yet: {}\n", swarm::PENDING.join(", "));
    eprintln!("{seeds} seeds from {from} in {:.1} s: {} failures", started.elapsed().as_secs_f64(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Where a run differs from another one of the same plan.
fn difference(seed: u64) -> Option<String> {
    let plan = history::plan(seed);
    let (one, other) = (run(&plan, true), run(&plan, true));
    if one.hash == other.hash {
        return None;
    }
    let at = one.lines.iter().zip(&other.lines).position(|(one, other)| one != other);
    let at = at.unwrap_or(one.lines.len().min(other.lines.len()));
    Some(format!("seed {seed}, line {at}: {:?} and {:?}", one.lines.get(at), other.lines.get(at)))
}

#[test]
fn the_same_seed_is_the_same_run() {
    let different: Vec<String> = (0..number("SEEDS").unwrap_or(40).min(2_000)).filter_map(difference).collect();
    assert!(different.is_empty(), "{different:#?}");
}

/// Prints hashes when another process asks for them, which has other addresses and other random hashers.
#[test]
fn the_same_seed_is_the_same_run_in_another_process() {
    let hashes: String = (0..20).map(|seed| run(&history::plan(seed), false).hash + "\n").collect();
    if let Ok(path) = std::env::var("SIM_HASHES") {
        return std::fs::write(path, hashes).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let name = "sim::the_same_seed_is_the_same_run_in_another_process";
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args([name, "--exact"]).env("SIM_HASHES", file.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), hashes);
}
