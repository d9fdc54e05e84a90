//! The vault on SQLite and PostgreSQL: selections per second, one owner whose outputs many requesters take, and the CPU
//! of following the log. The store is a program in memory, so that the vault and its database alone are measured.
//!
//! `benches/README.md` has the measurements.

#[path = "../macro/measure.rs"]
#[allow(dead_code)]
mod measure;
#[path = "../api/process.rs"]
#[allow(dead_code)]
mod process_stats;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../tests/it/postgres_server.rs"]
mod server;
mod world;

use std::{
    collections::HashSet,
    env, process,
    time::{Duration, Instant},
};

use utxo_store::{
    tx::Outpoint,
    vault::{Fee, Owner, SelectionRequest, Vault, VaultError},
};

use measure::{env_number, peak_memory, reset_peak, resident_memory, runtime};
use process_stats::{cpu, mib};
use server::PostgresServer;
use world::World;

// The same allocator as in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Amount of each output, and of each selection: a selection takes one output.
const OUTPUT: u64 = 10_000;
const AMOUNT: u64 = 9_000;

fn main() {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_chosen = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let runtime = runtime(2);
    let folder = tempfile::tempdir_in(".").expect("the bench runs in a folder that can be written");
    let server = if is_chosen("postgres") { PostgresServer::start() } else { None };
    let mut databases = Vec::new();
    if is_chosen("sqlite") {
        databases.push(("sqlite", Box::new(|case: &str| sqlite_url(&folder, case)) as Box<dyn Fn(&str) -> String>));
    }
    if let Some(server) = &server {
        databases.push(("postgres", Box::new(|_: &str| server.database().url())));
    }
    for (name, url) in &databases {
        runtime.block_on(measure_selections(name, &url("selections")));
        runtime.block_on(measure_one_owner(name, &url("one-owner")));
        runtime.block_on(measure_following(name, &url("following")));
    }
}

fn sqlite_url(folder: &tempfile::TempDir, case: &str) -> String {
    format!("sqlite://{}/{case}", folder.path().display())
}

fn owner(number: u64) -> Owner {
    format!("owner-{number}").parse().expect("letters, digits and a mark are a name")
}

fn request() -> SelectionRequest {
    SelectionRequest::new(AMOUNT, Fee::Fixed(100))
}

/// 100,000 outputs of 100 owners: each requester selects, and releases what it got.
async fn measure_selections(name: &str, url: &str) {
    let outputs = env_number("VAULT_OUTPUTS", 100_000);
    let seconds = Duration::from_secs(env_number("VAULT_SECONDS", 10));
    let world = World::new(url, 100).await;
    world.fill(outputs).await;
    for requesters in [1, 64] {
        reset_peak();
        let (before, began) = (resident_memory(), Instant::now());
        let cpu_before = cpu(process::id());
        let tasks: Vec<_> = (0..requesters)
            .map(|requester| {
                let vault = world.vault.clone();
                tokio::spawn(async move { select_until(&vault, requester, began + seconds).await })
            })
            .collect();
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await.expect("a requester does not panic"));
        }
        let elapsed = began.elapsed().as_secs_f64();
        let cpu_us = (cpu(process::id()) - cpu_before).as_secs_f64() * 1e6 / times.len() as f64;
        times.sort_unstable();
        let p99 = times[(times.len() - 1) * 99 / 100].as_secs_f64() * 1e3;
        let p50 = times[times.len() / 2].as_secs_f64() * 1e3;
        println!(
            "{name:<10} selections, {requesters:>2} requesters: {:>7.0} selections/s with their releases, \
             p50 {p50:.2} ms, p99 {p99:.2} ms, {cpu_us:.0} µs of CPU each, memory +{:.1} MiB",
            times.len() as f64 / elapsed,
            mib(peak_memory().saturating_sub(before)),
        );
    }
    world.vault.close().await;
}

/// Selects and releases until a time; returns the time of each selection.
async fn select_until(vault: &Vault, requester: u64, end: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut number = requester;
    while Instant::now() < end {
        let owner = owner(number % 100);
        number += 64;
        let began = Instant::now();
        let selected = vault.select(&owner, &request()).await.expect("the owner has a thousand outputs");
        times.push(began.elapsed());
        vault.soft_lock_release(&owner, selected.lock_id, None).await.expect("the lock is in force");
    }
    times
}

/// 64 requesters take the 10,000 outputs of one owner: each gets its own, until none is left.
async fn measure_one_owner(name: &str, url: &str) {
    let outputs = env_number("VAULT_OWNER_OUTPUTS", 10_000);
    let world = World::new(url, 1).await;
    world.fill(outputs).await;
    let began = Instant::now();
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let vault = world.vault.clone();
            tokio::spawn(async move { take_until_none_is_left(&vault).await })
        })
        .collect();
    let (mut taken, mut failures) = (HashSet::<Outpoint>::new(), 0);
    for task in tasks {
        let (outpoints, other_failures) = task.await.expect("a requester does not panic");
        failures += other_failures;
        for outpoint in outpoints {
            assert!(taken.insert(outpoint), "{outpoint} was handed out twice");
        }
    }
    let elapsed = began.elapsed().as_secs_f64();
    assert_eq!(taken.len() as u64, outputs, "outputs are left");
    println!(
        "{name:<10} one owner, 64 requesters: {outputs} outputs in {elapsed:.1} s ({:.0}/s), no output twice, \
         {failures} failures while the sum sufficed",
        outputs as f64 / elapsed
    );
    world.vault.close().await;
}

async fn take_until_none_is_left(vault: &Vault) -> (Vec<Outpoint>, u64) {
    let (mut taken, mut failures) = (Vec::new(), 0);
    loop {
        match vault.select(&owner(0), &request()).await {
            Ok(selected) => taken.extend(selected.outputs.iter().map(|(output, _)| output.outpoint)),
            Err(VaultError::InsufficientBalance { .. }) => return (taken, failures),
            Err(error) => {
                failures += 1;
                assert!(failures < 1_000, "{error}");
            }
        }
    }
}

/// The CPU of following a log of which one output in a hundred is watched.
async fn measure_following(name: &str, url: &str) {
    let transactions = env_number("VAULT_TRANSACTIONS", 400_000);
    let world = World::new(url, 100).await;
    world.publish_payments(transactions).await;
    reset_peak();
    let (memory, began, cpu_before) = (resident_memory(), Instant::now(), cpu(process::id()));
    world.follow_to_the_end().await;
    let elapsed = began.elapsed().as_secs_f64();
    let cpu_us = (cpu(process::id()) - cpu_before).as_secs_f64() * 1e6 / transactions as f64;
    println!(
        "{name:<10} following: {:.0} transactions/s; {cpu_us:.2} µs of CPU each, {:.1} % of a core at 20,000/s; \
         memory +{:.1} MiB",
        transactions as f64 / elapsed,
        cpu_us * 20_000.0 / 1e4,
        mib(peak_memory().saturating_sub(memory)),
    );
    world.vault.close().await;
}
