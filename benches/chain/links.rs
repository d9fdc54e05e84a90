//! A chain of payments whose links lie with three instances in turn.

use std::time::Duration;

use utxo_store::{
    broker::partitioner::partition_of,
    telemetry::{Completion, TryCause},
};

use crate::{
    Measured, create_coins,
    events::{Coin, MadeTx},
    instance::{Instance, TXS},
    measure::env_number,
};

/// Number of instances, each with one partition.
pub const INSTANCES: i32 = 3;

/// Publishes the whole chain at once, and waits until each link is live.
pub async fn run_links(name: &str, first: &Instance) {
    let count = env_number("CHAIN_LINKS", 1_000);
    let others = [first.start_another(2).await, first.start_another(3).await];
    // The partitions are assigned once more when a member joins.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut coin = create_coins(first, 0, 1).await[0];
    let mut chain = Vec::new();
    for number in 0..count {
        let link = link_in(coin, (number % INSTANCES as u64) as i32);
        coin = link.coins[0];
        chain.push(link.event());
    }
    let measured = Measured::begin();
    first.publish(TXS, chain).await;
    let live = || [first, &others[0], &others[1]].map(|it| it.metrics.completed.of(Completion::Live).get());
    while live().iter().sum::<u64>() < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    measured.print(name, count);
    let tries = |cause| [first, &others[0], &others[1]].map(|it| it.metrics.parked_tries.of(cause).get());
    println!("  live {:?}; woken {:?}; retries {:?}", live(), tries(TryCause::Outcome), tries(TryCause::Retry));
    for other in others {
        other.leave().await;
    }
}

/// Returns a payment whose txid is in this partition.
fn link_in(coin: Coin, partition: i32) -> MadeTx {
    let mut links = (0..).map(|tag| MadeTx::link(coin, tag));
    links.find(|link| partition_of(&link.txid.0, INSTANCES) == Some(partition)).expect("tags do not end")
}
