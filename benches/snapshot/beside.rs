//! The ingest of an instance on Aerospike, alone and beside the creation of a snapshot of its store.

use std::{
    env,
    fs::File,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tokio::task::block_in_place;

use crate::{
    ingest::{completed, fill_log, wait_until_completed},
    load::median,
    measure::env_number,
    program::Instance,
    setup::{BenchServers, Deployment},
};

/// Time of each look at the ingest alone.
const ALONE: Duration = Duration::from_secs(5);

/// Time from the start of a creation to the look at the ingest beside it. A creation continues the one before, and
/// waits six seconds for a sign of life of that one first.
const BEGINS: Duration = Duration::from_secs(8);
/// Time of the look at the ingest beside a creation, which is stopped then.
const BESIDE: Duration = Duration::from_secs(8);

/// Lets an instance consume a filled topic, and creates snapshots meanwhile, each with another limit of records per
/// second. The rate beside a creation is compared with the rates directly before and after. The namespace in memory
/// has room for some 2,800,000 transactions.
pub async fn measure(servers: &BenchServers) {
    let transactions = env_number("SNAPSHOT_TRANSACTIONS", 2_500_000);
    let rounds = env_number("SNAPSHOT_ROUNDS", 1).max(1);
    let deployment = servers.deploy();
    drop(deployment.start_instance(&[]));
    fill_log(&deployment, transactions).await;
    println!("\nIngest of {transactions} transactions on Aerospike: transactions/s alone, beside a creation, alone\n");
    let limits = env::var("SNAPSHOT_PACE").unwrap_or_else(|_| "15000,30000,60000,all".to_owned());
    let limits: Vec<&str> = limits.split(',').collect();
    let instance = deployment.start_instance(&[]);
    wait_until_completed(&instance, transactions / 20).await;
    let mut ratios = vec![Vec::new(); limits.len()];
    'rounds: for round in 0..rounds {
        for (limit, ratios) in limits.iter().zip(&mut ratios) {
            let before = rate_of(&instance, || std::thread::sleep(ALONE));
            let beside = rate_beside(&deployment, &instance, limit);
            let after = rate_of(&instance, || std::thread::sleep(ALONE));
            if completed(&instance) >= transactions {
                println!("the topic was consumed before the end of creation {round}-{limit}");
                println!("raise SNAPSHOT_TRANSACTIONS");
                break 'rounds;
            }
            println!("{before:>10.0} {beside:>10.0} {after:>10.0}   {limit} records/s");
            ratios.push(2.0 * beside / (before + after));
        }
    }
    for (ratios, limit) in ratios.into_iter().zip(limits).filter(|(ratios, _)| !ratios.is_empty()) {
        println!("\nbeside / alone, {limit} records/s: {:.2}", median(ratios));
    }
}

/// Returns the rate of an instance beside a creation, which is stopped afterwards.
fn rate_beside(deployment: &Deployment, instance: &Instance, limit: &str) -> f64 {
    // One place: the hold of a stopped creation refuses a creation at another place.
    let shelf = format!("file://{}", deployment.program.path("snapshots").display());
    let own = deployment.variables();
    let variables: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut command = vec!["snapshot", "create", "--to", &shelf];
    if limit != "all" {
        command.extend(["--records-per-second", limit]);
    }
    let log = File::create(deployment.program.path("command.log")).expect("the folder belongs to the bench");
    let mut command = deployment.program.command(&command, &variables);
    let mut creation = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("it was built");
    std::thread::sleep(BEGINS);
    let rate = rate_of(instance, || std::thread::sleep(BESIDE));
    let still_runs = creation.try_wait().expect("the process belongs to the bench").is_none();
    assert!(still_runs, "the creation with {limit} records/s ended within {BESIDE:?}");
    let stopped = Command::new("kill").arg(creation.id().to_string()).status();
    assert!(stopped.is_ok_and(|status| status.success()), "the creation gets SIGTERM");
    creation.wait().expect("the process belongs to the bench");
    rate
}

/// Returns the completed transactions per second of an instance while `work` runs.
fn rate_of(instance: &Instance, work: impl FnOnce()) -> f64 {
    let (first, begun) = (completed(instance), Instant::now());
    block_in_place(work);
    (completed(instance) - first) as f64 / begun.elapsed().as_secs_f64()
}
