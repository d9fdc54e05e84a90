//! Halted partitions: only an operator ends a halt, no rebalance does, and no event is skipped.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    broker::{
        Broker, BrokerErrorKind, CommittedOffset, ConsumerEvent, NewTopic, OutgoingMessage, TopicPartition,
        partitioner::partition_of,
    },
    engine::{
        fault::{EngineFaults, FaultEngine},
        memory::MemoryEngine,
    },
    event::Validated,
    group::{
        dead_letters::DeadLetterLimits,
        missing_parent::{ChainProgress, ChainView},
    },
    instance,
    record::{Rules, TxState},
    status::control::{ControlAnswer, PartitionCommand},
    store::StateStore,
};

use crate::{
    failing_broker::{FailingBroker, LogCall, start_on},
    harness::{GROUP, Made, PARTITIONS, Running, World, WorldSettings, spend, wide_coinbase},
};

async fn pause() {
    tokio::time::sleep(Duration::from_secs(10)).await;
}

fn reason(running: &Running) -> Option<String> {
    running.health.ready().reasons.remove("partitions_running")
}

async fn world_that_halts_at_three_dead_letters() -> World {
    let mut world = World::new().await;
    world.settings.pipeline.dead_letter_limits = DeadLetterLimits { consecutive: 3, ratio: 1.0 };
    world
}

#[tokio::test(start_paused = true)]
async fn a_halt_outlives_rebalances_and_ends_at_a_restart() {
    let world = world_that_halts_at_three_dead_letters().await;
    let (first, second) = (world.start(), world.start());
    pause().await;
    for _ in 0..20 {
        // Events with one key all go to one partition.
        world.produce("txs", b"poison", vec![9]).await;
    }
    pause().await;
    let dead_letters = || world.count("dead-letters");
    assert_eq!(dead_letters().await, 3);
    assert_eq!((reason(&first).is_some() as u8) + (reason(&second).is_some() as u8), 1, "one of them is halted");

    for _ in 0..3 {
        world.broker.rebalance(GROUP);
        pause().await;
        assert_eq!(dead_letters().await, 3, "a rebalance does not lift the halt");
    }
    let (halted, other) = if reason(&first).is_some() { (first, second) } else { (second, first) };
    halted.stop().await;
    pause().await;
    assert_eq!(dead_letters().await, 3);
    let why = reason(&other).expect("the present owner knows the halt");
    assert!(why.contains("3 dead letters in a row"), "{why}");

    other.stop().await;
    let restarted = world.start();
    pause().await;
    assert_eq!(dead_letters().await, 6, "an operator's restart retries");
    assert!(reason(&restarted).is_some());
    restarted.stop().await;
}

/// Returns the answer of an instance to an operator's request about a partition.
async fn ask(running: &Running, number: i32, wish: PartitionCommand) -> ControlAnswer {
    running.health.control().partitions.ask((number, wish)).await
}

fn is_done(answer: &ControlAnswer) -> bool {
    matches!(answer, ControlAnswer::Done(_))
}

/// Returns the chain part of the `/state` page.
fn chain_shown(running: &Running) -> serde_json::Value {
    serde_json::to_value(running.health.status_registry().page(&running.health)).unwrap()["chain"].take()
}

/// Returns whether the group's commit of the partition has the halt in its metadata.
async fn halt_in_commit(world: &World, number: i32) -> bool {
    let at = TopicPartition { topic: "txs".into(), partition: number };
    let committed = world.broker.committed(GROUP, &[at]).await.unwrap()[0].clone();
    committed.is_some_and(|committed| committed.metadata.contains("halt"))
}

/// Protects: the surviving instance, which ran all along, keeps a partition halted that halted elsewhere. Once there is
/// room and an operator retries, the partition continues as if it had never halted. A retry that is too early halts
/// again.
#[tokio::test(start_paused = true)]
async fn an_operator_lifts_a_halt_at_the_present_owner() {
    for page_size in [1_000, 3] {
        let world = World::with_settings(WorldSettings::paged(page_size)).await;
        let seed = world.seed(1, 9).await;
        world.run_until_consumed().await;
        world.nodes.set(bounded());
        let large = spend(&[seed.coin(0)], 7, 1);
        let child = child_elsewhere(&large);
        let number = partition(&large);
        let (first, second) = (world.start(), world.start());
        pause().await;
        world.validate(&large).await;
        world.validate(&child).await;
        pause().await;
        let (halted, survivor) = if reason(&first).is_some() { (first, second) } else { (second, first) };
        halted.stop().await;
        pause().await;
        assert!(reason(&survivor).is_some() && halt_in_commit(&world, number).await);

        assert!(is_done(&ask(&survivor, number, PartitionCommand::Retry).await));
        pause().await;
        assert!(reason(&survivor).is_some(), "the cause still exists");
        world.nodes.set(EngineFaults::default());
        pause().await;
        assert!(reason(&survivor).is_some(), "no operator has retried");
        assert!(is_done(&ask(&survivor, number, PartitionCommand::Retry).await));
        world.until_consumed().await;
        assert_eq!((reason(&survivor), halt_in_commit(&world, number).await), (None, false));
        let again = ask(&survivor, number, PartitionCommand::Retry).await;
        assert!(matches!(again, ControlAnswer::Refused(_)), "{again:?}");
        let nobodys = ask(&survivor, PARTITIONS, PartitionCommand::Retry).await;
        assert!(matches!(nobodys, ControlAnswer::NotHeld(_)), "{nobodys:?}");
        for made in [&large, &child] {
            assert_eq!(world.page(made).await.unwrap().state(), TxState::Live);
        }
        assert_eq!((world.count("chain").await, world.count("dead-letters").await), (0, 0));
        survivor.stop().await;
        world.check("a halt was lifted").await;
    }
}

/// Dead letters over a store that can lose writes: a lifted halt does not count the dead letters before it.
#[tokio::test(start_paused = true)]
async fn a_lifted_halt_counts_dead_letters_anew() {
    let mut world = World::forgetful().await;
    world.settings.pipeline.dead_letter_limits = DeadLetterLimits { consecutive: 3, ratio: 1.0 };
    let running = world.start();
    for _ in 0..20 {
        world.produce("txs", b"poison", vec![9]).await;
    }
    let number = partition_of(b"poison", PARTITIONS).unwrap();
    // A store that can lose writes is used only once its start is durable.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(reason(&running).is_some());
    assert!(is_done(&ask(&running, number, PartitionCommand::Pause).await));
    assert!(is_done(&ask(&running, number, PartitionCommand::Retry).await));
    pause().await;
    assert_eq!((reason(&running), world.count("dead-letters").await), (None, 3), "the partition is paused");
    // A node restart lifts neither the pause nor the halt.
    world.memory.lose_changes_since(u64::MAX, |_| true);
    pause().await;
    assert_eq!(world.count("dead-letters").await, 3);
    assert!(is_done(&ask(&running, number, PartitionCommand::Resume).await));
    pause().await;
    let dead_letters = world.count("dead-letters").await;
    assert!(reason(&running).is_some() && dead_letters > 3, "{dead_letters}");
    world.memory.lose_changes_since(u64::MAX, |_| true);
    pause().await;
    let is_unchanged = world.count("dead-letters").await == dead_letters;
    assert!(reason(&running).is_some() && is_unchanged, "only an operator lifts the halt");
    running.stop().await;
}

/// Protects: a paused partition is not read, proves no parent missing, and is no stall; its events in flight are
/// committed.
#[tokio::test(start_paused = true)]
async fn a_paused_partition_is_not_read_and_proves_no_parent_missing() {
    let world = World::new().await;
    let seed = world.seed(1, 9).await;
    let running = world.start();
    world.until_consumed().await;
    let parent = spend(&[seed.coin(0)], 7, 1);
    let child = child_elsewhere(&parent);
    let number = partition(&parent);
    assert!(
        matches!(ask(&running, number, PartitionCommand::Resume).await, ControlAnswer::Refused(_)),
        "the partition is not paused"
    );
    for _ in 0..2 {
        assert!(is_done(&ask(&running, number, PartitionCommand::Pause).await));
    }
    world.validate(&parent).await;
    // The pause lasts longer than any loop may stall.
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert!(running.health.live().ok, "{:?}", running.health.live());
    world.validate(&child).await;
    // Every partition gets a later event, so that a proof by the reading positions elsewhere would be complete.
    pause().await;
    for tag in 2..40 {
        world.seed(tag, 1).await;
    }
    pause().await;
    assert_eq!((world.page(&parent).await, world.page(&child).await), (None, None));
    assert_eq!((world.count("chain").await, world.count("dead-letters").await), (0, 0), "nothing is proven missing");
    assert!(running.health.ready().ok && running.health.live().ok, "{:?}", running.health.ready());
    let page = serde_json::to_value(running.health.status_registry().page(&running.health)).unwrap();
    let shown = &page["pipeline"]["partitions"][number as usize];
    assert_eq!(shown["paused"], "paused by an operator", "{shown}");
    let left = world.end("txs", number).await - shown["watermark"].as_u64().unwrap();
    assert!(left > 1 && shown["lag_messages"] == left && shown["lag_seconds"].as_f64().unwrap() > 700.0, "{shown}");
    let metrics = running.metrics.encode().unwrap();
    for name in ["utxo_paused", "utxo_paused_by_operator"] {
        assert!(metrics.contains(&format!("{name}{{partition=\"{number}\",topic=\"txs\"}} 1")), "{metrics}");
    }
    world.broker.rebalance(GROUP);
    pause().await;
    assert_eq!(world.page(&parent).await, None, "the partition came back and is still paused");
    assert!(is_done(&ask(&running, number, PartitionCommand::Resume).await));
    world.until_consumed().await;
    for made in [&parent, &child] {
        assert_eq!(world.page(made).await.unwrap().state(), TxState::Live);
    }
    assert!(is_done(&ask(&running, number, PartitionCommand::Pause).await));
    world.seed(40, 1).await;
    assert!(is_done(&ask(&running, number, PartitionCommand::Resume).await));
    world.until_consumed().await;
    assert_eq!(world.count("chain").await, 0);
    running.stop().await;
    world.check("a partition was paused").await;
}

/// Protects: readiness names every halted partition of the instance, and none that has gone to another instance.
#[tokio::test(start_paused = true)]
async fn readiness_names_every_halted_partition_of_the_instance() {
    let world = world_that_halts_at_three_dead_letters().await;
    let (first, second) = (world.start(), world.start());
    pause().await;
    for partition in 0..PARTITIONS {
        let key = (0u8..).find(|key| partition_of(&[*key], PARTITIONS) == Some(partition)).unwrap();
        for _ in 0..5 {
            world.produce("txs", &[key], vec![9]).await;
        }
    }
    pause().await;
    let of = |running: &Running| {
        let why = reason(running).unwrap_or_default();
        (0..PARTITIONS).filter(|number| why.contains(&format!("partition {number}: "))).collect::<Vec<_>>()
    };
    let named = [of(&first), of(&second)];
    assert!(named.iter().all(|numbers| !numbers.is_empty()), "{named:?}");
    assert_eq!(named.concat().len(), PARTITIONS as usize, "each instance names its own partitions");
    second.stop().await;
    pause().await;
    assert_eq!(of(&first).len(), PARTITIONS as usize, "the remaining instance names all partitions");
    let third = world.start();
    pause().await;
    let revoked_count = PARTITIONS as usize - of(&first).len();
    assert!(revoked_count > 0 && of(&third).is_empty(), "an instance that starts after a halt retries");
    first.stop().await;
    third.stop().await;
}

/// The clock of the machine that halts is an hour behind the clock of the next owner's machine: by its time the next
/// owner started after the halt.
#[tokio::test(start_paused = true)]
async fn a_halt_with_a_clock_behind_outlives_a_rebalance() {
    let world = world_that_halts_at_three_dead_letters().await;
    let (first, second) = (world.start(), world.start());
    pause().await;
    world.clock.step(-3_600_000);
    for _ in 0..20 {
        world.produce("txs", b"poison", vec![9]).await;
    }
    pause().await;
    let (halted, other) = if reason(&first).is_some() { (first, second) } else { (second, first) };
    halted.stop().await;
    pause().await;
    assert_eq!(world.count("dead-letters").await, 3);
    assert!(reason(&other).is_some(), "the next owner ran before the halt");
    other.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_position_below_the_first_offset_halts_its_partition() {
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
    let why = reason(&running).expect("the partition is halted");
    assert_eq!(why, format!("partition 1: offset {committed} is next, but the topic holds {low} to {end}"));
    for number in 0..PARTITIONS {
        let at = TopicPartition { topic: "txs".into(), partition: number };
        let (_, end) = world.broker.watermarks(&at).await.unwrap();
        let now = world.broker.committed(GROUP, &[at]).await.unwrap()[0].clone().unwrap().offset;
        assert_eq!(now, if number == 1 { committed } else { end }, "partition {number}");
    }
    running.stop().await;
}

/// Plays `docs/operating/exits/lost-offsets.md` for a partition of the validated transactions.
/// Protects: a retry skips nothing, the events behind the accepted offset are applied, and the deleted ones once they
/// are produced again.
#[tokio::test(start_paused = true)]
async fn a_deleted_range_is_passed_over_and_produced_again() {
    let world = World::new().await;
    for tag in 1..=40 {
        world.seed(tag, 1).await;
    }
    world.run_until_consumed().await;
    let later: Vec<Made> = (41..=80).map(|tag| World::partial(tag, 1)).collect();
    for made in &later {
        world.produce_partial(made).await;
    }
    let at = TopicPartition { topic: "txs".into(), partition: 1 };
    let committed = world.broker.committed(GROUP, std::slice::from_ref(&at)).await.unwrap()[0].clone().unwrap().offset;
    let low = committed + 2;
    assert!(low < world.end("txs", 1).await);
    world.broker.truncate(&at, low).unwrap();

    let halted = world.start();
    pause().await;
    let answer = ask(&halted, 1, PartitionCommand::Retry).await;
    assert!(!is_done(&answer), "{answer:?}");
    pause().await;
    let why = reason(&halted).expect("a retry does not accept the loss");
    assert!(why.contains(&format!("offset {committed} is next, but the topic holds {low} to ")), "{why}");
    halted.stop().await;
    reset_offsets(&world, GROUP, &at, low).await;
    let running = world.start();
    world.until_consumed().await;
    assert_eq!(reason(&running), None);
    let lost: Vec<&Made> = later.iter().filter(|made| partition(made) == 1).take(2).collect();
    for made in &later {
        let is_lost = lost.iter().any(|lost| lost.txid == made.txid);
        assert_eq!(world.page(made).await.is_none(), is_lost, "{}", made.txid);
    }
    for made in &lost {
        world.produce_partial(made).await;
    }
    world.until_consumed().await;
    running.stop().await;
    for made in &later {
        assert_eq!(world.page(made).await.unwrap().state(), TxState::Live);
    }
    assert_eq!((world.count("chain").await, world.count("dead-letters").await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_chain_offset_below_the_first_offset_halts_the_chain() {
    let world = World::new().await;
    world.mine(1, &[]).await;
    world.run_until_consumed().await;
    world.mine(2, &[]).await;
    world.mine(3, &[]).await;
    let chain = TopicPartition { topic: "chain".into(), partition: 0 };
    for _ in 0..3 {
        // The events are in the chain and not handled, as after a dead feed.
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

/// Protects: blocks that retention deleted before the feed read them are no dead end. The chain names the missing
/// sequence number, and continues once the block feed has produced the blocks again.
#[tokio::test(start_paused = true)]
async fn deleted_blocks_are_produced_again_under_their_numbers() {
    let world = World::new().await;
    let seed = world.seed(1, 3).await;
    world.run_until_consumed().await;
    let spends = [0, 1, 2].map(|vout| spend(&[seed.coin(vout)], 1, 1));
    for made in &spends {
        world.validate(made).await;
    }
    let mine_all = async || {
        for (sequence, made) in (1..).zip(&spends) {
            world.mine(sequence, &[made]).await;
        }
    };
    mine_all().await;
    let blocks = TopicPartition { topic: "block-mined".into(), partition: 0 };
    let (_, end) = world.broker.watermarks(&blocks).await.unwrap();
    world.broker.truncate(&blocks, end - 1).unwrap();
    let view = async || world.chain_progress().view().await.unwrap();
    assert_eq!(view().await, ChainView::Unknown, "no instance has passed over the deleted blocks");
    let running = world.start();
    pause().await;
    pause().await;
    assert!(matches!(view().await, ChainView::Unhandled(_)), "a block waits behind the gap");
    assert_eq!(world.chain_state().await.block_mined_next, end - 1, "a start does not pass over them again");
    let why = running.health.ready().reasons.remove("chain_fed").expect("two blocks are missing");
    assert!(why.starts_with("sequence 1 is missing: in `block-mined` 3 is next"), "{why}");
    mine_all().await;
    world.until_consumed().await;
    pause().await;
    assert!(running.health.ready().ok, "{:?}", running.health.ready());
    for made in &spends {
        assert!(!world.page(made).await.unwrap().master.as_ref().unwrap().mined.is_empty());
    }
    running.stop().await;
    assert_eq!(world.count("chain").await, 3);
    world.check_without_model("blocks were deleted before the feed read them").await;
}

#[tokio::test(start_paused = true)]
async fn decisions_of_another_topic_are_refused_by_name() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    world.validate(&spend(&[seed.coin(0)], 1, 1)).await;
    world.validate(&spend(&[seed.coin(0)], 1, 2)).await;
    world.run_until_consumed().await;
    let decided = world.count("decisions").await;
    assert!(decided > 0);

    let decisions = TopicPartition { topic: "decisions".into(), partition: 0 };
    // A later copy differs only in its timestamps.
    pause().await;
    for (name, copied) in [("empty", 0), ("copied", decided)] {
        world.broker.create_topics(&[NewTopic { name: name.into(), partitions: 1, config: vec![] }]).await.unwrap();
        let mut reader = world.broker.read(&decisions, 0).await.unwrap();
        for message in reader.next(Duration::ZERO).await.unwrap().into_iter().take(copied as usize) {
            world.produce(name, &message.key, message.payload.to_vec()).await;
        }
        let mut other = world.clone();
        other.settings.topics.decisions = name.into();
        let store = StateStore::new(Arc::new(MemoryEngine::new(Rules::main(288))), world.store.settings);
        let rebuilt = instance::rebuild(other.settings.clone(), other.parts(&store), CancellationToken::new()).await;
        // The store knows its topic by the id; the chain's commit identifies the log of a new store.
        let live = other.start().ended().await.expect_err(name).to_string();
        assert!(live.starts_with(&format!("topic `{name}` is not the one that the store was made from")), "{live}");
        let why = rebuilt.expect_err(name).to_string();
        assert!(why.starts_with(&format!("topic `{name}` is not the one that holds the decisions")), "{why}");
        let ends = format!("the topic ends at {copied}, and the next decision to read is at {decided}");
        assert!(why.contains(&ends), "{why}");
    }
    world.mine(1, &[]).await;
    world.run_until_consumed().await;
    world.check("the store's own decisions are accepted").await;
}

/// Commits an offset to begin at, as an operator does with Kafka's own tool while no instance runs.
async fn reset_offsets(world: &World, group: &str, at: &TopicPartition, offset: u64) {
    let mut member = world.broker.subscribe(group, &[at.topic.to_string()]).await.unwrap();
    assert!(matches!(member.poll().await, Ok(ConsumerEvent::Assigned(_))));
    let committed = CommittedOffset { offset, metadata: String::new() };
    member.commit(&[(at.clone(), committed)]).await.unwrap();
    member.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_gap_before_the_first_commit_halts_until_it_is_accepted() {
    let world = World::new().await;
    let at = |number| TopicPartition { topic: "txs".into(), partition: number };
    for tag in 1..=40 {
        world.seed(tag, 1).await;
    }
    // While messages of a partition were never read, the missing parent of this orphan may have been among them.
    let parent = (50..).find(|tag| partition_of(&[*tag; 32], PARTITIONS) == Some(1)).unwrap();
    let orphan = spend(&[World::partial(parent, 1).coin(0)], 1, 1);
    world.validate(&orphan).await;
    let (_, end) = world.broker.watermarks(&at(1)).await.unwrap();
    // All messages are deleted: the number left to read does not matter.
    world.broker.truncate(&at(1), end).unwrap();

    let (first, second) = (world.start(), world.start());
    for _ in 0..2 {
        pause().await;
        let why = reason(&first).or_else(|| reason(&second)).expect("the partition is halted");
        assert!(why.starts_with(&format!("partition 1: the topic no longer holds offsets 0 to {end}, ")), "{why}");
        assert!(why.contains("never read") && why.contains("kafka-consumer-groups --group g --reset-offsets"), "{why}");
        world.broker.rebalance(GROUP);
    }
    first.stop().await;
    second.stop().await;
    let again = world.start();
    pause().await;
    assert!(reason(&again).is_some(), "neither a shutdown nor a start accepts the gap");
    again.stop().await;
    let committed = world.broker.committed(GROUP, &[at(0), at(1), at(2)]).await.unwrap();
    assert!(committed[1].is_none(), "{committed:?}");
    assert!([0, 2].iter().any(|other| committed[*other].is_some()), "the other partitions go on: {committed:?}");
    assert_eq!(world.count("chain").await, 0, "nothing is proven missing");

    reset_offsets(&world, GROUP, &at(1), end).await;
    let accepted = world.start();
    world.until_consumed().await;
    assert_eq!(reason(&accepted), None);
    assert_eq!(world.count("chain").await, 1, "the orphan is contested");
    accepted.stop().await;

    let store = StateStore::new(Arc::new(MemoryEngine::new(Rules::main(288))), world.store.settings);
    let refused = instance::rebuild(world.settings.clone(), world.parts(&store), CancellationToken::new()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains(&format!("txs partition 1 holds offsets {end} to {end}, but the replay needs 0 to {end}")),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_chain_truncated_before_its_first_commit_halts_until_accepted() {
    let world = World::new().await;
    let chain = TopicPartition { topic: "chain".into(), partition: 0 };
    for _ in 0..3 {
        world.produce("chain", b"", vec![9]).await;
    }
    world.broker.truncate(&chain, 2).unwrap();
    for _ in 0..2 {
        let running = world.start();
        pause().await;
        let why = running.health.ready().reasons.remove("chain_running").expect("the chain is halted");
        assert!(why.starts_with("chain/0: the topic no longer holds offsets 0 to 2, "), "{why}");
        assert!(why.contains("kafka-consumer-groups --group g.chain --reset-offsets"), "{why}");
        let shown = chain_shown(&running);
        assert!(shown["held"] == true && shown["partition"]["halted"]["why"] == why, "{shown}");
        let metrics = running.metrics.encode().unwrap();
        for shown in ["utxo_watermark_offset", "utxo_halted"] {
            assert!(metrics.contains(&format!("{shown}{{partition=\"0\",topic=\"chain\"}}")), "{metrics}");
        }
        let refused = running.health.control().chain.ask(()).await;
        assert!(
            matches!(&refused, ControlAnswer::Refused(message) if why.ends_with(message)),
            "nothing has been accepted: {refused:?}"
        );
        pause().await;
        assert_eq!(running.health.ready().reasons["chain_running"], why);
        let metrics = running.metrics.clone();
        running.stop().await;
        assert!(!metrics.encode().unwrap().contains("topic=\"chain\""));
        assert_eq!(world.broker.committed("g.chain", std::slice::from_ref(&chain)).await.unwrap(), [None]);
    }
    reset_offsets(&world, "g.chain", &chain, 2).await;
    world.run_until_consumed().await;
    assert_eq!(world.count("dead-letters").await, 1);
}

/// Another producer uses another partitioner: the log would not order the events of one transaction.
#[tokio::test(start_paused = true)]
async fn an_event_outside_the_partition_of_its_key_is_a_dead_letter() {
    let world = World::new().await;
    let made = spend(&[world.seed(1, 1).await.coin(0)], 1, 1);
    let own = partition_of(&made.txid.0, PARTITIONS).unwrap();
    let event = Validated { tx: &made.extended, height: 200, locked: false };
    let message = OutgoingMessage {
        topic: "txs".into(),
        partition: Some((own + 1) % PARTITIONS),
        key: Bytes::copy_from_slice(&made.txid.0),
        payload: event.encode().into(),
        ..OutgoingMessage::default()
    };
    world.broker.producer().await.unwrap().produce(message).await.unwrap();
    world.run_until_consumed().await;
    assert_eq!((world.count("dead-letters").await, world.page(&made).await), (1, None));
    world.validate(&made).await;
    world.run_until_consumed().await;
    assert_eq!(world.page(&made).await.unwrap().state(), TxState::Live);
    world.check("an event outside its partition").await;
}

#[tokio::test(start_paused = true)]
async fn a_topic_with_another_number_of_partitions_is_refused() {
    let world = World::new().await;
    world.seed(1, 1).await;
    world.run_until_consumed().await;
    let more = NewTopic { name: "more".into(), partitions: PARTITIONS + 1, config: vec![] };
    world.broker.create_topics(&[more]).await.unwrap();
    let mut other = world.clone();
    other.settings.pipeline.topic = "more".into();
    let error = instance::run(other.settings.clone(), other.parts(&other.store), CancellationToken::new()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("topic `more` is not the one that the store was made from"), "{error}");
}

/// Returns faults by which the store has room for a transaction of one output, and not of seven.
fn bounded() -> EngineFaults {
    EngineFaults { longest_body: Some(120), ..EngineFaults::default() }
}

/// Returns a child of the last output of `parent` whose event lies in another partition.
fn child_elsewhere(parent: &Made) -> Made {
    let last = parent.outputs.len() as u32 - 1;
    let mut children = (1..).map(|tag| spend(&[parent.coin(last)], 1, tag));
    children.find(|child| partition(child) != partition(parent)).unwrap()
}

fn partition(made: &Made) -> i32 {
    partition_of(&made.txid.0, PARTITIONS).unwrap()
}

/// Returns the distance between committed offset and end offset of each partition.
async fn left(world: &World) -> Vec<u64> {
    let mut left = Vec::new();
    for partition in 0..PARTITIONS {
        let at = TopicPartition { topic: "txs".into(), partition };
        let committed = world.broker.committed(GROUP, std::slice::from_ref(&at)).await.unwrap()[0].clone();
        left.push(world.end("txs", partition).await - committed.map_or(0, |committed| committed.offset));
    }
    left
}

/// A transaction that the store cannot take, of one page and of several; the remedies are room, and a blob store.
/// Protects: the partition halts with the txid, through rebalances and starts. Other partitions go on, except for
/// events that wait for the transaction. The halt is no stall, and a shutdown does not wait for it. Once there is a
/// remedy, the state is as if the halt had never been.
#[tokio::test(start_paused = true)]
async fn a_transaction_too_big_for_the_store_halts_its_partition() {
    for (page_size, gets_blobs) in [(1_000, false), (1_000, true), (3, false), (3, true)] {
        let mut world = World::with_settings(WorldSettings::with_blobs(page_size, u64::MAX)).await;
        let blobs = world.store.blobs.take();
        let seed = world.seed(1, 9).await;
        world.run_until_consumed().await;
        world.nodes.set(bounded());
        let large = spend(&[seed.coin(0)], 7, 1);
        let child = child_elsewhere(&large);
        let small: Vec<Made> = (1..9).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
        let expected = |left: &[u64]| {
            let of = |number| (number == partition(&large) || number == partition(&child)) as u64;
            left.iter().zip(0..).all(|(left, number)| (*left > 0) as u64 == of(number))
        };

        let (first, second) = (world.start(), world.start());
        for made in [&large, &child].into_iter().chain(&small) {
            world.validate(made).await;
        }
        for _ in 0..2 {
            pause().await;
            let why = reason(&first).or_else(|| reason(&second)).expect("the partition is halted");
            let named = format!("partition {}: {} cannot be stored: ", partition(&large), large.txid);
            assert!(why.starts_with(&named) && why.contains("give the store a blob store"), "{why}");
            assert!(expected(&left(&world).await), "{:?}", left(&world).await);
            world.broker.rebalance(GROUP);
        }
        second.stop().await;
        first.stop().await;

        let alone = world.start();
        // The halt lasts longer than any loop may stall.
        tokio::time::sleep(Duration::from_secs(700)).await;
        assert!(reason(&alone).is_some(), "there is no remedy yet");
        assert!(alone.health.live().ok, "{:?}", alone.health.live());
        assert_eq!((world.page(&large).await, world.page(&child).await), (None, None));
        assert_eq!(world.count("chain").await, 0, "nothing is proven missing");
        let stopping = tokio::time::Instant::now();
        alone.stop().await;
        assert!(stopping.elapsed() < world.settings.pipeline.drain_timeout, "{:?}", stopping.elapsed());

        match gets_blobs {
            true => world.store.blobs = blobs,
            false => world.nodes.set(EngineFaults::default()),
        }
        world.run_until_consumed().await;
        for made in [&large, &child].into_iter().chain(&small) {
            assert_eq!(world.page(made).await.unwrap().state(), TxState::Live);
        }
        assert_eq!((world.count("chain").await, world.count("dead-letters").await), (0, 0));
        world.check("there is room now").await;
    }
}

/// A coinbase that the store cannot take.
#[tokio::test(start_paused = true)]
async fn a_coinbase_too_big_for_the_store_halts_the_chain() {
    for page_size in [1_000, 3] {
        let world = World::with_settings(WorldSettings::paged(page_size)).await;
        world.nodes.set(bounded());
        let coinbase = wide_coinbase(1, 20);
        let running = world.start();
        world.mine_with(1, 1, 101, &coinbase, &[]).await;
        let seed = world.seed(1, 1).await;
        pause().await;
        let why = running.health.ready().reasons.remove("chain_running").expect("the chain is halted");
        assert!(why.contains(&coinbase.txid.to_string()) && why.contains("give the store a blob store"), "{why}");
        assert_eq!(world.page(&seed).await.unwrap().state(), TxState::Live, "the rest goes on");
        assert!(chain_shown(&running)["partition"]["halted"]["why"].as_str().is_some_and(|shown| shown == why));
        if page_size == 3 {
            // A retry that is too early halts again.
            assert!(is_done(&running.health.control().chain.ask(()).await));
            pause().await;
            assert!(running.health.ready().reasons.contains_key("chain_running"));
            world.nodes.set(EngineFaults::default());
            pause().await;
            assert!(running.health.ready().reasons.contains_key("chain_running"), "the chain does not retry by itself");
            assert!(is_done(&running.health.control().chain.ask(()).await));
            world.until_consumed().await;
            assert!(running.health.ready().ok, "{:?}", running.health.ready());
            let again = running.health.control().chain.ask(()).await;
            assert!(matches!(again, ControlAnswer::Refused(_)), "{again:?}");
            running.stop().await;
        } else {
            running.stop().await;
            world.nodes.set(EngineFaults::default());
            world.run_until_consumed().await;
        }
        assert_eq!(world.page(&coinbase).await.unwrap().state(), TxState::Live);
        world.check("there is room now").await;
    }
}

/// More messages come than the consumer reads ahead.
#[tokio::test(start_paused = true)]
async fn a_halted_chain_knows_its_end_offset() {
    let world = World::with_settings(WorldSettings::paged(3)).await;
    world.nodes.set(bounded());
    let running = world.start();
    world.mine_with(1, 1, 101, &wide_coinbase(1, 20), &[]).await;
    pause().await;
    let chain = || OutgoingMessage {
        topic: "chain".into(),
        partition: Some(0),
        payload: vec![9].into(),
        ..OutgoingMessage::default()
    };
    for count in [11_000, 100] {
        world.broker.producer().await.unwrap().produce_all(vec![chain(); count]).await.unwrap();
        pause().await;
    }
    let shown = chain_shown(&running);
    assert_eq!(shown["partition"]["high_watermark"], 11_101, "{shown}");
    assert!(shown["partition"]["position"].as_u64().unwrap() < 11_101, "{shown}");
    running.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_transaction_too_big_for_the_store_fails_its_rebuild() {
    for page_size in [1_000, 3] {
        let world = World::with_settings(WorldSettings::paged(page_size)).await;
        let seed = world.seed(1, 1).await;
        let large = spend(&[seed.coin(0)], 7, 1);
        world.validate(&large).await;
        world.run_until_consumed().await;
        let engine = FaultEngine::new(Arc::new(MemoryEngine::new(Rules::main(288))), 1);
        engine.set(bounded());
        let store = StateStore::new(Arc::new(engine), world.store.settings);
        let refused = instance::rebuild(world.settings.clone(), world.parts(&store), CancellationToken::new()).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with(&format!("store: {} cannot be stored: ", large.txid)), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_truncated_position_is_left_to_the_next_owner_during_broker_errors() {
    let world = World::new().await;
    for tag in 1..=40 {
        world.seed(tag, 1).await;
    }
    world.run_until_consumed().await;
    for tag in 41..=80 {
        world.seed(tag, 1).await;
    }
    // The first of two members has the first partitions.
    let last = TopicPartition { topic: "txs".into(), partition: PARTITIONS - 1 };
    let committed = world.broker.committed(GROUP, std::slice::from_ref(&last)).await.unwrap()[0].clone().unwrap();
    world.broker.truncate(&last, committed.offset + 2).unwrap();
    let (broker, rules) = FailingBroker::over(&world);
    let first = start_on(&world, broker);
    rules.refuse(move |call, at| (call == LogCall::Watermarks && *at == last).then_some(BrokerErrorKind::Retryable));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!first.task.is_finished() && reason(&first).is_none(), "the first instance cannot read the watermarks");
    let second = world.start();
    pause().await;
    rules.refuse(|_, _| None);
    pause().await;
    assert!(reason(&second).is_some_and(|why| why.starts_with("partition 2: offset")), "{:?}", reason(&second));
    assert!(!first.task.is_finished(), "the first instance's partitions are not truncated");
    assert_eq!(reason(&first), None);
    first.stop().await;
    second.stop().await;
}
