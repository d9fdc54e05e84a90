//! The ingest of an instance on Aerospike, alone and beside the creation of a snapshot of its store.

use std::time::{Duration, Instant};

use tokio::task::block_in_place;

use crate::{
    ingest::{completed, fill_log, wait_until_completed},
    load::median,
    measure::env_number,
    measured,
    program::Instance,
    setup::BenchServers,
};

/// Time of each look at the ingest alone.
const ALONE: Duration = Duration::from_secs(5);

/// Lets an instance consume a filled topic, and creates snapshots meanwhile. The rate beside a creation is compared
/// with the rates directly before and after the creation.
pub async fn measure(servers: &BenchServers) {
    let transactions = env_number("SNAPSHOT_TRANSACTIONS", 1_500_000);
    let rounds = env_number("SNAPSHOT_ROUNDS", 3).max(1);
    let deployment = servers.deploy();
    drop(deployment.start_instance(&[]));
    fill_log(&deployment, transactions).await;
    let own = deployment.variables();
    let variables: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
    println!("\nIngest of {transactions} transactions on Aerospike: transactions/s alone, beside a creation, alone\n");
    let instance = deployment.start_instance(&[]);
    wait_until_completed(&instance, transactions / 20).await;
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let shelf = format!("file://{}", deployment.program.path(&format!("snapshots-{round}")).display());
        let before = rate_of(&instance, || std::thread::sleep(ALONE));
        let mut bytes = 0;
        let beside = rate_of(&instance, || {
            let created = measured::run(&deployment.program, &["snapshot", "create", "--to", &shelf], &variables);
            bytes = created.report["bytes"].as_u64().unwrap_or(0);
        });
        let after = rate_of(&instance, || std::thread::sleep(ALONE));
        if completed(&instance) >= transactions {
            println!("the topic was consumed before the end of round {}: raise SNAPSHOT_TRANSACTIONS", round + 1);
            break;
        }
        println!("{before:>10.0} {beside:>10.0} {after:>10.0}   {:.0} MB of chunks", bytes as f64 / 1e6);
        ratios.push(2.0 * beside / (before + after));
    }
    if !ratios.is_empty() {
        println!("\nbeside / alone: {:.2}", median(ratios));
    }
}

/// Returns the completed transactions per second of an instance while `work` runs.
fn rate_of(instance: &Instance, work: impl FnOnce()) -> f64 {
    let (first, begun) = (completed(instance), Instant::now());
    block_in_place(work);
    (completed(instance) - first) as f64 / begun.elapsed().as_secs_f64()
}
