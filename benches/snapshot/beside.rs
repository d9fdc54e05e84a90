//! The ingest of an instance on Aerospike, alone and beside the creation of a snapshot of its store.

use std::{
    env,
    time::{Duration, Instant},
};

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

/// Lets an instance consume a filled topic, and creates snapshots meanwhile: in turn at a pace, and as fast as the
/// store gives its records. The rate beside a creation is compared with the rates directly before and after. The
/// namespace in memory has room for some 2,800,000 transactions.
pub async fn measure(servers: &BenchServers) {
    let transactions = env_number("SNAPSHOT_TRANSACTIONS", 2_500_000);
    let rounds = env_number("SNAPSHOT_ROUNDS", 1).max(1);
    let deployment = servers.deploy();
    drop(deployment.start_instance(&[]));
    fill_log(&deployment, transactions).await;
    let own = deployment.variables();
    let variables: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
    println!("\nIngest of {transactions} transactions on Aerospike: transactions/s alone, beside a creation, alone\n");
    let pace = env::var("SNAPSHOT_PACE").unwrap_or_else(|_| "60000".to_owned());
    let instance = deployment.start_instance(&[]);
    wait_until_completed(&instance, transactions / 20).await;
    let mut ratios = [Vec::new(), Vec::new()];
    for (round, is_paced) in (0..rounds).flat_map(|round| [(2 * round, true), (2 * round + 1, false)]) {
        let shelf = format!("file://{}", deployment.program.path(&format!("snapshots-{round}")).display());
        let before = rate_of(&instance, || std::thread::sleep(ALONE));
        let mut bytes = 0;
        let beside = rate_of(&instance, || {
            let mut command = vec!["snapshot", "create", "--to", &shelf];
            command.extend(is_paced.then_some(["--records-per-second", &pace]).into_iter().flatten());
            let created = measured::run(&deployment.program, &command, &variables);
            bytes = created.report["bytes"].as_u64().unwrap_or(0);
        });
        let after = rate_of(&instance, || std::thread::sleep(ALONE));
        if completed(&instance) >= transactions {
            println!("the topic was consumed before the end of creation {}: raise SNAPSHOT_TRANSACTIONS", round + 1);
            break;
        }
        let records = if is_paced { pace.as_str() } else { "all" };
        println!("{before:>10.0} {beside:>10.0} {after:>10.0}   {records} records/s, {:.0} MB", bytes as f64 / 1e6);
        ratios[usize::from(is_paced)].push(2.0 * beside / (before + after));
    }
    for (ratios, records) in ratios.into_iter().zip(["all", &pace]).filter(|(ratios, _)| !ratios.is_empty()) {
        println!("\nbeside / alone, {records} records/s: {:.2}", median(ratios));
    }
}

/// Returns the completed transactions per second of an instance while `work` runs.
fn rate_of(instance: &Instance, work: impl FnOnce()) -> f64 {
    let (first, begun) = (completed(instance), Instant::now());
    block_in_place(work);
    (completed(instance) - first) as f64 / begun.elapsed().as_secs_f64()
}
