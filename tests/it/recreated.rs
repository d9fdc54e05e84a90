//! Topics that are deleted and created again, in memory: nothing of them is applied, nothing is committed, and the
//! reason is said by name.

use std::time::Duration;

use utxo_store::{
    broker::{Broker, Committed, NewTopic, Produce, TopicPartition},
    event::{Seeded, SeededOutput},
    instance::InstanceError,
    sequencer::chain_group,
    status::control::{Answer, PartitionCommand},
    store::meta::MetaError,
};

use crate::troubled_broker::{TroubledBroker, start_on};
use crate::world::{GROUP, Made, PARTITIONS, Running, World, WorldSettings, spend};

async fn pause() {
    tokio::time::sleep(Duration::from_secs(15)).await;
}

fn topic(name: &str) -> NewTopic {
    let partitions = if ["txs", "outcomes", "dead-letters"].contains(&name) { PARTITIONS } else { 1 };
    NewTopic { name: name.into(), partitions, config: vec![] }
}

fn event_of(made: &Made) -> Produce {
    let outputs = made.outputs.iter().zip(0..);
    let outputs = outputs.map(|((satoshis, script), vout)| SeededOutput { vout, satoshis: *satoshis, script });
    let event = Seeded { txid: made.txid, coinbase: false, height: 1, outputs: outputs.collect() };
    let (key, payload) = (made.txid.0.to_vec().into(), event.encode().into());
    Produce { topic: "txs".into(), key, payload, ..Produce::default() }
}

fn reason(running: &Running, condition: &str) -> Option<String> {
    running.health.ready().reasons.remove(condition)
}

/// Offsets that the group has committed of a topic.
async fn committed(world: &World, group: &str, topic: &str) -> Vec<Option<Committed>> {
    let count = world.broker.partitions(topic).await.unwrap().unwrap();
    let partitions: Vec<_> = (0..count).map(|partition| TopicPartition { topic: topic.into(), partition }).collect();
    world.broker.committed(group, &partitions).await.unwrap()
}

#[track_caller]
fn names_the_topic(why: &str, topic: &str) {
    assert!(why.contains(&format!("topic `{topic}` is not the one that the store was made from")), "{why}");
    assert!(!why.contains("pruned") && !why.contains("--reset-offsets"), "{why}");
}

async fn refused_by_name(world: &World, topic: &str) {
    let Err(InstanceError::Meta(error @ MetaError::TopicRecreated { .. })) = world.start().ended().await else {
        panic!("{topic}: it started")
    };
    names_the_topic(&error.to_string(), topic);
}

/// Three events are handled, the topic is created again and holds more than three: the first of them would be passed
/// over, and the others be read under offsets of another topic.
#[tokio::test(start_paused = true)]
async fn no_event_of_a_topic_that_was_created_again_is_applied_while_instances_run() {
    for rebalances in [false, true] {
        let world = World::new().await;
        let running = [(); 2].map(|()| start_on(&world, TroubledBroker::over(&world).0));
        for tag in 1..=6 {
            world.seed(tag, 1).await;
        }
        world.until_consumed().await;
        let later: Vec<_> = (10..90).map(|tag| World::partial(tag, 1)).collect();
        let producer = world.broker.producer().await.unwrap();
        world.broker.recreate_topic(&topic("txs")).unwrap();
        // All at once: no reader looks before the new topic is longer than the old one was.
        producer.produce_all(later.iter().map(event_of).collect()).await.unwrap();
        for partition in 0..PARTITIONS {
            assert!(world.end("txs", partition).await > 10);
        }
        if rebalances {
            world.broker.rebalance(GROUP);
        }
        pause().await;
        for made in &later {
            assert_eq!(world.page(made).await, None, "{}: it was applied", made.txid);
        }
        for one in &running {
            names_the_topic(&reason(one, "partitions_running").expect("it says so"), "txs");
        }
        assert_eq!(committed(&world, GROUP, "txs").await, vec![None; PARTITIONS as usize]);

        // An operator who has not looked changes nothing.
        for number in 0..PARTITIONS {
            for one in &running {
                let answer = one.health.control().partitions.ask((number, PartitionCommand::Retry)).await;
                assert!(matches!(answer, Answer::Done(_) | Answer::NotHeld(_)), "{answer:?}");
            }
        }
        pause().await;
        for one in running {
            names_the_topic(&reason(&one, "partitions_running").expect("it says so again"), "txs");
            one.stop().await;
        }
        assert_eq!(committed(&world, GROUP, "txs").await, vec![None; PARTITIONS as usize]);
        refused_by_name(&world, "txs").await;
        for made in &later {
            assert_eq!(world.page(made).await, None, "{}: it was applied", made.txid);
        }
    }
}

/// Nothing is produced to it: who is idle notices, too.
#[tokio::test(start_paused = true)]
async fn an_idle_instance_notices_a_topic_that_was_created_again_or_deleted() {
    let world = World::new().await;
    world.seed(1, 1).await;
    let running = world.start();
    world.until_consumed().await;
    world.broker.recreate_topic(&topic("txs")).unwrap();
    pause().await;
    names_the_topic(&reason(&running, "partitions_running").expect("it says so"), "txs");
    running.stop().await;

    let world = World::new().await;
    let running = world.start();
    pause().await;
    world.broker.delete_topic("reorgs");
    pause().await;
    let why = reason(&running, "chain_committed").expect("it says so");
    assert!(why.contains("topic `reorgs` does not exist"), "{why}");
    // It was the broker's doing: nothing has to be lifted.
    running.kill().await;
}

#[tokio::test(start_paused = true)]
async fn another_number_of_partitions_halts_while_an_instance_runs() {
    let world = World::new().await;
    world.seed(1, 1).await;
    let running = world.start();
    world.until_consumed().await;
    world.broker.recreate_topic(&NewTopic { partitions: PARTITIONS - 1, ..topic("txs") }).unwrap();
    pause().await;
    assert!(reason(&running, "partitions_running").is_some());
    running.stop().await;
    let refused = world.start().ended().await;
    assert!(matches!(refused, Err(InstanceError::Meta(_))), "{refused:?}");
}

/// On the store's first life, with nothing but the ids to tell one chain from another; each of the topics that the
/// chain is made from.
#[tokio::test(start_paused = true)]
async fn a_chain_halts_when_one_of_its_topics_was_created_again() {
    for name in ["chain", "decisions", "block-mined", "reorgs"] {
        let world = World::with_settings(WorldSettings::pruned(1)).await;
        let seed = world.seed(1, 4).await;
        let running = world.start();
        world.mine(1, &[]).await;
        world.mine(2, &[]).await;
        world.until_consumed().await;
        let tip = world.chain_state().await.tip;
        assert_eq!(tip.unwrap().height, 102);
        world.broker.recreate_topic(&topic(name)).unwrap();
        for sequence in 3..=5 {
            world.mine(sequence, &[]).await;
        }
        let rivals = [spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2)];
        for rival in &rivals {
            world.validate(rival).await;
        }
        pause().await;
        names_the_topic(&reason(&running, "chain_running").expect("it says so"), name);
        assert_eq!(running.metrics.chain_halted.get(), 1);
        assert_eq!(running.metrics.chain_tip_height.get(), 102, "{name}: no block was connected");
        let answer = running.health.control().chain.ask(()).await;
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        pause().await;
        names_the_topic(&reason(&running, "chain_running").expect("it says so again"), name);
        running.stop().await;
        if name == "chain" {
            assert_eq!(committed(&world, &chain_group(GROUP), name).await, [None]);
        }
        world.mine(6, &[]).await;
        refused_by_name(&world, name).await;
    }
}

/// Stopped, over a store that prunes: the refusal names the topic, not the pruning and not an offset to go on from.
#[tokio::test(start_paused = true)]
async fn a_start_refuses_a_topic_that_was_created_again_meanwhile() {
    for name in ["txs", "chain", "decisions", "block-mined", "reorgs"] {
        let world = World::with_settings(WorldSettings::pruned(1)).await;
        world.seed(1, 4).await;
        for sequence in 1..=4 {
            world.mine(sequence, &[]).await;
        }
        world.run_until_consumed().await;
        world.run_until_consumed().await;
        world.broker.recreate_topic(&topic(name)).unwrap();
        refused_by_name(&world, name).await;
        world.seed(2, 4).await;
        world.mine(1, &[]).await;
        refused_by_name(&world, name).await;
        assert_eq!(world.page(&World::partial(2, 4)).await, None);
    }
}

/// Binding comes with the first start that finds nothing else to refuse.
#[tokio::test(start_paused = true)]
async fn a_store_of_an_earlier_version_is_bound_at_its_next_start() {
    let world = World::new().await;
    world.seed(1, 4).await;
    world.mine(1, &[]).await;
    world.run_until_consumed().await;
    let forget = |meta: utxo_store::record::MetaRecord| {
        Ok(utxo_store::record::MetaRecord { topics: Default::default(), chain_id: None, ..meta })
    };
    world.store.change_meta(forget).await.unwrap();
    world.run_until_consumed().await;
    let meta = world.store.meta().await.unwrap().unwrap();
    assert_eq!(meta.topics.len(), 5, "{meta:?}");
    assert!(meta.chain_id.is_some() && meta.topics.values().all(|bound| bound.id.is_some()), "{meta:?}");
    // A rebuild is of the topics as they are, and is bound to them.
    let rebuilt = world.rebuild().await;
    assert_eq!(rebuilt.meta().await.unwrap().unwrap().topics, meta.topics);
}

/// The first record that is handled binds the store, where no start has found one.
#[tokio::test(start_paused = true)]
async fn the_chain_is_bound_by_its_first_record_in_a_stores_first_life() {
    let world = World::new().await;
    let running = world.start();
    pause().await;
    assert_eq!(world.store.meta().await.unwrap().unwrap().chain_id, None);
    world.mine(1, &[]).await;
    pause().await;
    assert!(world.store.meta().await.unwrap().unwrap().chain_id.is_some());
    running.stop().await;
}
