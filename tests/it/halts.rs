//! Partitions that stand until an operator has looked: no rebalance lifts that, and nothing is skipped.

use std::time::Duration;

use utxo_store::{
    broker::{Broker, TopicPartition},
    ingest::dead_letters::DeadLetterLimits,
};

use crate::world::{GROUP, PARTITIONS, Running, World};

async fn pause() {
    tokio::time::sleep(Duration::from_secs(10)).await;
}

fn reason(running: &Running) -> Option<String> {
    running.health.ready().reasons.remove("partitions_running")
}

async fn world_of_three_dead_letters() -> World {
    let mut world = World::new().await;
    world.settings.pipeline.dead_letter_limits = DeadLetterLimits { consecutive: 3, ratio: 1.0 };
    world
}

#[tokio::test(start_paused = true)]
async fn a_halt_outlives_rebalances_and_ends_with_a_start() {
    let world = world_of_three_dead_letters().await;
    let (first, second) = (world.start(), world.start());
    pause().await;
    for _ in 0..20 {
        // One key: they all go to one partition.
        world.produce("txs", b"poison", vec![9]).await;
    }
    pause().await;
    let buried = || world.count("dead-letters");
    assert_eq!(buried().await, 3);
    assert_eq!((reason(&first).is_some() as u8) + (reason(&second).is_some() as u8), 1, "one of them stands");

    for _ in 0..3 {
        world.broker.rebalance(GROUP);
        pause().await;
        assert_eq!(buried().await, 3, "a rebalance does not lift it");
    }
    let (halted, other) = if reason(&first).is_some() { (first, second) } else { (second, first) };
    halted.stop().await;
    pause().await;
    assert_eq!(buried().await, 3);
    let why = reason(&other).expect("whoever has the partition now knows that it stands");
    assert!(why.contains("3 dead letters in a row"), "{why}");

    other.stop().await;
    let restarted = world.start();
    pause().await;
    assert_eq!(buried().await, 6, "an operator's restart tries again");
    assert!(reason(&restarted).is_some());
    restarted.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_position_that_retention_has_overtaken_halts_its_partition_and_names_both() {
    let world = World::new().await;
    for tag in 1..=40 {
        world.seed(tag, 1).await;
    }
    world.run_until_consumed().await;
    for tag in 41..=80 {
        world.seed(tag, 1).await;
    }
    let partition = TopicPartition { topic: "txs".into(), partition: 1 };
    let committed =
        world.broker.committed(GROUP, std::slice::from_ref(&partition)).await.unwrap()[0].clone().unwrap().offset;
    let (_, end) = world.broker.watermarks(&partition).await.unwrap();
    let low = committed + 2;
    assert!(low < end);
    world.broker.truncate(&partition, low).unwrap();

    let running = world.start();
    pause().await;
    let why = reason(&running).expect("it stands");
    assert_eq!(why, format!("partition 1: offset {committed} is next, but the topic holds {low} to {end}"));
    for number in 0..PARTITIONS {
        let at = TopicPartition { topic: "txs".into(), partition: number };
        let (_, end) = world.broker.watermarks(&at).await.unwrap();
        let now = world.broker.committed(GROUP, &[at]).await.unwrap()[0].clone().unwrap().offset;
        assert_eq!(now, if number == 1 { committed } else { end }, "partition {number}");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_offset_that_retention_has_overtaken_halts_the_chain() {
    let world = World::new().await;
    world.mine(1, &[]).await;
    world.run_until_consumed().await;
    world.mine(2, &[]).await;
    world.mine(3, &[]).await;
    let chain = TopicPartition { topic: "chain".into(), partition: 0 };
    for _ in 0..3 {
        // As a feed that has died: in the chain, and not handled.
        world.produce("chain", b"", vec![9]).await;
    }
    world.broker.truncate(&chain, 3).unwrap();
    let running = world.start();
    pause().await;
    let report = running.health.ready();
    let why = &report.reasons["chain_running"];
    assert!(why.contains("chain/0: offset 1 is out of range: the partition holds 3.."), "{why}");
    assert!(!running.task.is_finished());
    running.stop().await;
}
