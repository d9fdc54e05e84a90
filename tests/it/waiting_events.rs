//! Events that wait, and for how long: at the limit of a partition, and behind parents that never come.

use std::time::Duration;

use utxo_store::{
    broker::{
        Broker, NewTopic, TopicPartition,
        memory::{MemoryBroker, MemorySettings},
    },
    event::{CommandAction, DeadLetter, DeadLetterClass},
    group::{dead_letters::DeadLetterLimits, partition::PartitionLimits},
    record::{Reason, TxState, Verdict},
};

use crate::harness::{Made, PARTITIONS, Running, World, spend};

pub fn partition_of(made: &Made) -> i32 {
    utxo_store::broker::partitioner::partition_of(&made.txid.0, PARTITIONS).unwrap()
}

async fn state(world: &World, made: &Made) -> Option<TxState> {
    world.page(made).await.map(|page| page.state())
}

/// The children of a locked parent wait, and the unlock stands behind a block that waits for an event that is not read
/// yet.
#[tokio::test(start_paused = true)]
async fn children_of_a_locked_parent_are_contested_at_the_limit() {
    let mut world = World::new().await;
    world.settings.pipeline.bounds = PartitionLimits { span: 10, bytes: 1 << 24 };
    world.settings.pipeline.plan.flag_grace_ms = 3_600_000;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 60, 1);
    world.validate_locked(&parent).await;
    let running = world.start();
    world.until_consumed().await;
    let children: Vec<Made> = (0..60).map(|vout| spend(&[parent.coin(vout)], 1, 2)).collect();
    for child in &children {
        world.validate(child).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let locked = Verdict::Conflicting(Reason::Locked { parent: parent.txid });
    let mut contested = 0;
    for child in &children {
        if let Some(state) = state(&world, child).await {
            assert_eq!(state, TxState::Conflicting(locked));
            contested += 1;
        }
    }
    assert!(contested >= 30, "{contested} of 60: at most 10 of each partition wait");
    running.stop().await;
}

/// Returns the unfinished bytes of an instance, the number of its partitions, and the limit of one partition in bytes.
fn unfinished(running: &Running) -> (u64, u64, u64) {
    let page = serde_json::to_value(running.health.status_registry().page(&running.health)).unwrap();
    let number = |field: &str| page["pipeline"][field].as_u64().unwrap_or(0);
    let held = page["pipeline"]["partitions"].as_array().map_or(0, Vec::len) as u64;
    (number("unfinished_bytes"), held, number("partition_bytes_bound"))
}

/// Children of late parents in many partitions, while a second instance comes and goes.
#[tokio::test(start_paused = true)]
async fn unfinished_bytes_are_bounded_over_all_partitions() {
    const MANY: i32 = 24;
    const IN_ALL: u64 = 20_000;
    let mut world = World::new().await;
    // The consumer reads one message at a time: each partition exceeds its limit by one message at most.
    world.broker = MemoryBroker::new(MemorySettings { batch_messages: 1, ..MemorySettings::new(world.clock.clone()) });
    let new = |(name, partitions): (&str, i32)| NewTopic { name: name.into(), partitions, config: vec![] };
    let topics = [("txs", MANY), ("block-mined", 1), ("reorgs", 1), ("chain", 1), ("decisions", 1)];
    let answers = [("outcomes", PARTITIONS), ("dead-letters", PARTITIONS)];
    world.broker.create_topics(&topics.into_iter().chain(answers).map(new).collect::<Vec<_>>()).await.unwrap();
    world.settings.pipeline.bytes_in_all = IN_ALL;
    world.settings.pipeline.missing_parent_grace_ms = 2_000;
    world.settings.pipeline.commit_interval = Duration::from_millis(10);
    world.settings.pipeline.dead_letter_limits = DeadLetterLimits { consecutive: 1_000_000, ratio: 1.0 };
    let seed = world.seed(1, 8).await;
    let parents: Vec<Made> = (0..8).map(|vout| spend(&[seed.coin(vout)], 250, 1)).collect();
    let coins = parents.iter().flat_map(|parent| (0..250).map(|vout| parent.coin(vout)));
    let children: Vec<Made> = coins.map(|coin| spend(&[coin], 1, 2)).collect();
    for child in &children {
        world.validate(child).await;
    }
    let most = children.iter().map(|child| child.extended.len() as u64 + 16).max().unwrap();
    let first = world.start();
    let mut second = None;
    let (mut greatest, mut bounds) = (0, std::collections::BTreeSet::new());
    for ms in (0..60_000).step_by(50) {
        match ms {
            1_000 | 9_000 => second = Some(world.start()),
            5_000 | 20_000 => _ = second.take().unwrap().stop().await,
            10_000 => {
                for parent in &parents {
                    world.validate(parent).await;
                }
            }
            _ => {}
        }
        for running in [Some(&first), second.as_ref()].into_iter().flatten() {
            let (bytes, held, bound) = unfinished(running);
            assert!(bytes <= IN_ALL + held * most, "{bytes} bytes of {held} partitions after {ms} ms");
            greatest = greatest.max(bytes);
            bounds.insert((held, bound));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(greatest > IN_ALL / 2, "the limit was never near: {greatest}");
    assert!(bounds.contains(&(24, IN_ALL / 24)) && bounds.contains(&(12, IN_ALL / 12)), "{bounds:?}");
    let all: Vec<_> = (0..MANY).map(|partition| TopicPartition { topic: "txs".into(), partition }).collect();
    for (at, committed) in all.iter().zip(world.broker.committed("g", &all).await.unwrap()) {
        assert_eq!(committed.map_or(0, |it| it.offset), world.end("txs", at.partition).await, "{at}");
    }
    first.stop().await;
    for parent in &parents {
        assert_eq!(state(&world, parent).await, Some(TxState::Live));
    }
}

fn limit_dead_letters(world: &mut World) {
    world.settings.pipeline.dead_letter_limits = DeadLetterLimits { consecutive: 4, ratio: 0.05 };
}

async fn reasons(running: &crate::harness::Running) -> String {
    tokio::time::sleep(Duration::from_secs(30)).await;
    format!("{:?}", running.health.ready().reasons)
}

#[tokio::test(start_paused = true)]
async fn contradicting_partial_transactions_count_as_dead_letters() {
    let mut world = World::new().await;
    limit_dead_letters(&mut world);
    let running = world.start();
    for tag in 1..=20 {
        let mut made = world.seed(tag, 1).await;
        made.outputs[0].0 += 1;
        world.produce_partial(&made).await;
    }
    let reasons = reasons(&running).await;
    assert!(reasons.contains("dead letters"), "{reasons}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dead_letters_of_one_missing_parent_count_once() {
    for parents in [1, 30] {
        let mut world = World::new().await;
        limit_dead_letters(&mut world);
        world.settings.pipeline.missing_parent_grace_ms = 200;
        let seed = world.seed(1, 30).await;
        let running = world.start();
        let missing: Vec<Made> = (0..parents).map(|n| spend(&[seed.coin(n)], 30, 1)).collect();
        for n in 0..30 {
            let parent = &missing[n as usize % missing.len()];
            world.validate(&spend(&[parent.coin(n)], 1, 2)).await;
        }
        let reasons = reasons(&running).await;
        assert_eq!(reasons.contains("dead letters"), parents > 1, "{parents}: {reasons}");
        running.stop().await;
    }
}

/// Two events that contradict the stored record each have a dead letter with their own payload, though the second
/// joined the first.
#[tokio::test(start_paused = true)]
async fn a_joined_mismatched_event_has_its_own_dead_letter() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let whole = spend(&[seed.coin(0)], 1, 1);
    let mut partial = whole.clone();
    partial.outputs[0].0 += 1;
    world.produce_partial(&partial).await;
    world.validate_at(&whole, 200).await;
    world.validate_at(&whole, 201).await;
    world.run_until_consumed().await;
    let mut payloads = Vec::new();
    for partition in 0..PARTITIONS {
        let partition = TopicPartition { topic: "dead-letters".into(), partition };
        let end = world.broker.watermarks(&partition).await.unwrap().1;
        let mut reader = world.broker.read(&partition, 0).await.unwrap();
        while reader.position() < end {
            for message in reader.next(Duration::from_millis(1)).await.unwrap() {
                let letter = DeadLetter::from_headers(&message.headers).unwrap();
                assert_eq!((letter.class, &*letter.stage), (DeadLetterClass::SeedMismatch, "apply"));
                payloads.push(message.payload);
            }
        }
    }
    assert_eq!(payloads.len(), 2);
    assert_ne!(payloads[0], payloads[1]);
}

/// Returns the time in which this number of instances contests children of missing parents over all partitions.
async fn measure_time_to_contest(instances: usize, parents: u32, children: u32) -> Duration {
    let mut world = World::new().await;
    world.settings.pipeline.missing_parent_grace_ms = 200;
    let seed = world.seed(1, parents as usize).await;
    let each = children / parents;
    let missing: Vec<Made> = (0..parents).map(|n| spend(&[seed.coin(n)], each as usize, 1)).collect();
    for vout in 0..each {
        for parent in &missing {
            world.validate(&spend(&[parent.coin(vout)], 1, 2)).await;
        }
    }
    let began = tokio::time::Instant::now();
    let running: Vec<_> = (0..instances).map(|_| world.start()).collect();
    world.until_consumed().await;
    let took = began.elapsed();
    for instance in running {
        instance.stop().await;
    }
    assert_eq!(world.count("dead-letters").await, u64::from(children));
    took
}

/// Children are read long before their parents, which lie behind the limit of a partition whose first event waits in
/// vain: unread events of that partition count as read for its first event only.
#[tokio::test(start_paused = true)]
async fn a_parent_behind_the_limit_of_another_partition_is_not_missing() {
    let mut world = World::new().await;
    world.settings.pipeline.bounds = PartitionLimits { span: 10, bytes: 1 << 24 };
    world.settings.pipeline.missing_parent_grace_ms = 200;
    let seed = world.seed(1, 60).await;
    world.run_until_consumed().await;
    let later = || tokio::time::sleep(Duration::from_millis(5));
    // The events are more than one poll returns.
    let missing = spend(&[seed.coin(0)], 1_800, 1);
    let in_vain: Vec<Made> = (0..1_800).map(|vout| spend(&[missing.coin(vout)], 1, 2)).collect();
    let in_first = in_vain.iter().filter(|made| partition_of(made) == 0);
    for made in in_first.clone() {
        world.validate(made).await;
        later().await;
    }
    let parents: Vec<Made> = (1..60).map(|vout| spend(&[seed.coin(vout)], 1, 3)).collect();
    let children: Vec<Made> = parents.iter().map(|parent| spend(&[parent.coin(0)], 1, 4)).collect();
    let is_cross_partition = |(parent, child): &(&Made, &Made)| partition_of(parent) == 0 && partition_of(child) != 0;
    let pairs: Vec<_> = parents.iter().zip(&children).filter(is_cross_partition).collect();
    assert!(in_first.clone().count() > 500 && pairs.len() > 5);
    for (parent, _) in &pairs {
        world.validate(parent).await;
    }
    later().await;
    for (_, child) in &pairs {
        world.validate(child).await;
    }
    // The contests of the first events thus do not delay the proofs of the others.
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.run_until_consumed().await;
    let in_first = in_first.count() as u64;
    assert_eq!((world.count("chain").await, world.count("dead-letters").await), (in_first, in_first));
    for (_, child) in pairs {
        assert_eq!(state(&world, child).await, Some(TxState::Live));
    }
}

/// Parents and children are produced within one millisecond, the parents into higher partitions, and the parents wait
/// for a lock for longer than the grace of a missing parent: by timestamp, partition and offset each child is older
/// than its parent. The test runs in one instance, and in three that know other partitions by their commits.
/// Protects: equal timestamps prove nothing about order, and a parent that is known to wait is not missing.
#[tokio::test(start_paused = true)]
async fn locked_parents_of_the_same_millisecond_are_not_missing() {
    for instances in [1, 3] {
        let mut world = World::new().await;
        world.settings.pipeline.plan.flag_grace_ms = 3_600_000;
        world.settings.pipeline.dead_letter_limits = DeadLetterLimits { consecutive: 5, ratio: 0.05 };
        let seed = world.seed(1, 1).await;
        let locked = spend(&[seed.coin(0)], 60, 1);
        world.validate_locked(&locked).await;
        world.run_until_consumed().await;
        let parents: Vec<Made> = (0..60).map(|vout| spend(&[locked.coin(vout)], 1, 2)).collect();
        let pairs = parents.into_iter().map(|parent| {
            let child = spend(&[parent.coin(0)], 1, 3);
            (parent, child)
        });
        let pairs: Vec<_> =
            pairs.filter(|(parent, child)| partition_of(parent) > partition_of(child)).take(15).collect();
        assert_eq!(pairs.len(), 15);
        for (parent, child) in &pairs {
            world.validate(parent).await;
            world.validate(child).await;
        }
        let running: Vec<_> = (0..instances).map(|_| world.start()).collect();
        // The wait is longer than three graces and shorter than five.
        tokio::time::sleep(Duration::from_secs(9)).await;
        world.command(1, CommandAction::Unlock { txid: locked.txid }).await;
        world.until_consumed().await;
        for instance in running {
            instance.stop().await;
        }
        assert_eq!(world.count("dead-letters").await, 0, "{instances} instances");
        for (parent, child) in &pairs {
            for made in [parent, child] {
                assert_eq!(state(&world, made).await, Some(TxState::Live), "{instances} instances");
            }
        }
    }
}

/// A block lists a transaction that lies behind the limit of a partition whose first event waits in vain and is as old.
/// The block waits for the transaction, the transaction for the first event, and the parent of the first event might
/// come with the block.
#[tokio::test(start_paused = true)]
async fn a_block_and_a_partition_at_its_limit_do_not_deadlock() {
    let mut world = World::new().await;
    world.settings.pipeline.bounds = PartitionLimits { span: 10, bytes: 1 << 24 };
    let seed = world.seed(1, 50).await;
    world.run_until_consumed().await;
    // The events are far more than the dead letters that halt a partition: only the chain decides whether they are dead
    // letters.
    let never = spend(&[seed.coin(0)], 1_800, 1);
    let missing = (0..1_800).map(|vout| spend(&[never.coin(vout)], 1, 2));
    let in_vain: Vec<Made> = missing.map(|missing| spend(&[missing.coin(0)], 1, 2)).collect();
    let in_first: Vec<&Made> = in_vain.iter().filter(|made| partition_of(made) == 0).collect();
    for made in &in_first {
        world.validate(made).await;
    }
    let listed = (1..50).map(|vout| spend(&[seed.coin(vout)], 1, 3)).find(|made| partition_of(made) == 0).unwrap();
    world.validate(&listed).await;
    world.mine(1, &[&listed]).await;
    world.run_until_consumed().await;
    assert_eq!(state(&world, &listed).await, Some(TxState::Live));
    assert_eq!(world.count("dead-letters").await, in_first.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn children_of_missing_parents_are_contested_in_bounded_time() {
    for (parents, children) in [(1, 500), (50, 500)] {
        let took = measure_time_to_contest(1, parents, children).await;
        assert!(took < Duration::from_secs(20), "{children} children of {parents} took {took:?}");
    }
}

/// A coinbase comes with its block, and no event that the pipeline reads creates it.
#[tokio::test(start_paused = true)]
async fn the_child_of_a_coinbase_does_not_wait_for_its_next_retry() {
    let mut world = World::new().await;
    (world.settings.pipeline.plan.retry_min_ms, world.settings.pipeline.plan.retry_max_ms) = (3_600_000, 3_600_000);
    let seed = world.seed(1, 1).await;
    let late = spend(&[seed.coin(0)], 1, 1);
    // The first block waits, and the second behind it.
    world.mine(1, &[&late]).await;
    let second = world.mine(2, &[]).await;
    let child = spend(&[second.coin(0)], 1, 2);
    world.validate_at(&child, 300).await;
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(state(&world, &child).await, None);
    world.validate(&late).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(state(&world, &child).await, Some(TxState::Live));
    running.stop().await;
    world.check("the child of a coinbase").await;
}

/// Children of missing parents, read by two instances; every partition ends in transaction markers.
#[tokio::test(start_paused = true)]
async fn a_partition_that_ends_in_a_transaction_marker_is_at_its_end() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let missing = spend(&[seed.coin(0)], 12, 1);
    for vout in 0..12 {
        world.validate(&spend(&[missing.coin(vout)], 1, 2)).await;
    }
    let running = [world.start(), world.start()];
    for partition in 0..PARTITIONS {
        world.broker.leave_gap(&TopicPartition { topic: "txs".into(), partition }, 2).unwrap();
    }
    world.until_consumed().await;
    assert_eq!(world.count("dead-letters").await, 12);
    assert_eq!(world.committed_txs().await, 13 + 2 * PARTITIONS as u64);
    for instance in running {
        instance.stop().await;
    }
    world.check("partitions that end in a mark").await;
}
