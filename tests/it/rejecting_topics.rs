//! Topics that reject every message: a retry does not help. The writer halts by name, and continues once the cause is
//! gone.

use std::time::Duration;

use utxo_store::{
    event::CommandAction,
    record::{Reason, TxState, Verdict},
    status::control::{ControlAnswer, PartitionCommand},
};

use crate::{
    harness::{PARTITIONS, Running, World, spend},
    node_restarts::until,
};

const WHY: &str = "the broker takes no message of this time";

async fn pause() {
    tokio::time::sleep(Duration::from_secs(15)).await;
}

fn reason(running: &Running, condition: &str) -> Option<String> {
    running.health.ready().reasons.remove(condition)
}

/// Lifts every halt, as an operator does once the cause is gone.
async fn retry(running: &Running) {
    for number in 0..PARTITIONS {
        let answer = running.health.control().partitions.ask((number, PartitionCommand::Retry)).await;
        assert!(matches!(answer, ControlAnswer::Done(_) | ControlAnswer::Refused(_)), "{answer:?}");
    }
    let answer = running.health.control().chain.ask(()).await;
    assert!(matches!(answer, ControlAnswer::Done(_) | ControlAnswer::Refused(_)), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rejecting_topic_halts_its_writer_until_the_cause_is_gone() {
    for (name, condition) in [
        ("chain", "partitions_running"),
        ("dead-letters", "partitions_running"),
        ("decisions", "chain_running"),
        ("outcomes", "chain_running"),
        ("outcomes", "partitions_running"),
    ] {
        let world = World::new().await;
        let seed = world.seed(1, 4).await;
        let running = world.start();
        world.until_consumed().await;
        world.broker.reject(name, Some(WHY));
        let rivals = [spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2)];
        for rival in &rivals {
            world.validate(rival).await;
        }
        world.produce("txs", b"poison", vec![9]).await;
        pause().await;
        let why = reason(&running, condition).unwrap_or_else(|| panic!("{name}: {:?}", running.health.ready()));
        assert!(why.contains(WHY) && why.contains(name), "{name}: {why}");
        assert!(running.metrics.completed.total() > 0, "the instance has not ended");
        world.broker.reject(name, None);
        pause().await;
        retry(&running).await;
        world.until_consumed().await;
        assert_eq!(reason(&running, condition), None, "{name}");
        assert_eq!(world.count("dead-letters").await, 1, "{name}");
        running.stop().await;
        world.check(name).await;
    }
}

/// A `Reconsider` decides a contestant whose contest is not published yet, and the event comes again. Only contests
/// name events. Protects: each event whose parent is missing has its dead letter.
#[tokio::test(start_paused = true)]
async fn each_event_whose_parent_is_missing_has_a_dead_letter() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let state = async || world.page(&child).await.map(|page| page.state());
    let running = world.start();
    world.until_consumed().await;
    world.broker.reject("chain", Some(WHY));
    world.validate(&child).await;
    until(async || state().await == Some(TxState::Conflicting(Verdict::Pending))).await;
    pause().await;
    world.broker.reject("chain", None);
    world.command(1, CommandAction::Reconsider { txid: child.txid }).await;
    let missing = TxState::Conflicting(Verdict::Conflicting(Reason::MissingParent { parent: parent.txid }));
    until(async || state().await == Some(missing)).await;
    assert_eq!(world.count("dead-letters").await, 0);
    retry(&running).await;
    for letters in 1..=2 {
        world.until_consumed().await;
        assert_eq!(world.count("dead-letters").await, letters);
        world.validate(&child).await;
    }
    world.until_consumed().await;
    assert_eq!((state().await, world.count("dead-letters").await), (Some(missing), 3));
    running.stop().await;
    world.check("events whose parent is missing").await;
}

/// The owner of the chain feeds blocks.
#[tokio::test(start_paused = true)]
async fn a_chain_topic_that_rejects_a_block_halts_until_a_restart() {
    let world = World::new().await;
    let running = world.start();
    world.mine(1, &[]).await;
    world.until_consumed().await;
    world.broker.reject("chain", Some(WHY));
    world.mine(2, &[]).await;
    pause().await;
    let why = reason(&running, "chain_running").expect("readiness names the topic");
    assert!(why.contains(WHY) && why.contains("chain"), "{why}");
    running.stop().await;
    world.broker.reject("chain", None);
    world.run_until_consumed().await;
    assert_eq!(world.chain_state().await.tip.unwrap().height, 102);
    world.check("a chain that took no block").await;
}

/// A record of the chain has its own time; the proof of a missing parent uses the time of the source.
#[tokio::test(start_paused = true)]
async fn a_fed_block_carries_the_time_of_its_source_in_a_header() {
    let world = World::new().await;
    let fed_later = Duration::from_secs(7_200);
    world.mine(1, &[]).await;
    world.clock.step(fed_later.as_millis() as i64);
    world.run_until_consumed().await;
    let read = async |topic: &str| {
        use utxo_store::broker::{Broker, TopicPartition};
        let at = TopicPartition { topic: topic.into(), partition: 0 };
        let mut reader = world.broker.read(&at, 0).await.unwrap();
        reader.next(Duration::from_secs(1)).await.unwrap().remove(0)
    };
    let (source, fed) = (read("block-mined").await, read("chain").await);
    assert!(fed.timestamp_ms >= source.timestamp_ms + fed_later.as_millis() as i64);
    assert_eq!(utxo_store::sequencer::chain_feed::produced_at_ms(&fed), source.timestamp_ms);
    // Headers of a foreign producer do not get into the chain.
    let names: Vec<&str> = fed.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["utxo-source-offset", "utxo-source-next-offset", "utxo-source-timestamp-ms"]);
}
