//! Topics that are deleted and created again, in memory: no event of the new topic is applied, no offset is committed,
//! and the reason names the topic.

use std::time::Duration;

use utxo_store::{
    broker::{Broker, CommittedOffset, NewTopic, OutgoingMessage, TopicPartition},
    event::{PartialOutput, PartialTxEvent},
    instance::InstanceError,
    sequencer::chain_group,
    status::control::{ControlAnswer, PartitionCommand},
    store::meta::{MetaError, StoreMeta},
};

use crate::failing_broker::{FailingBroker, start_on};
use crate::harness::{GROUP, Made, PARTITIONS, Running, World, WorldSettings, spend};

async fn pause() {
    tokio::time::sleep(Duration::from_secs(15)).await;
}

fn topic(name: &str) -> NewTopic {
    let partitions = if ["txs", "outcomes", "dead-letters"].contains(&name) { PARTITIONS } else { 1 };
    NewTopic { name: name.into(), partitions, config: vec![] }
}

fn event_of(made: &Made) -> OutgoingMessage {
    let outputs = made.outputs.iter().zip(0..);
    let outputs = outputs.map(|((satoshis, script), vout)| PartialOutput { vout, satoshis: *satoshis, script });
    let event = PartialTxEvent { txid: made.txid, coinbase: false, height: 1, outputs: outputs.collect() };
    let (key, payload) = (made.txid.0.to_vec().into(), event.encode().into());
    OutgoingMessage { topic: "txs".into(), key, payload, ..OutgoingMessage::default() }
}

fn reason(running: &Running, condition: &str) -> Option<String> {
    running.health.ready().reasons.remove(condition)
}

/// Returns the offsets that the group has committed of a topic.
async fn committed(world: &World, group: &str, topic: &str) -> Vec<Option<CommittedOffset>> {
    let count = world.broker.partitions(topic).await.unwrap().unwrap();
    let partitions: Vec<_> = (0..count).map(|partition| TopicPartition { topic: topic.into(), partition }).collect();
    world.broker.committed(group, &partitions).await.unwrap()
}

#[track_caller]
fn assert_names_the_topic(why: &str, topic: &str) {
    assert!(why.contains(&format!("topic `{topic}` is not the one that the store was made from")), "{why}");
    assert!(!why.contains("pruned") && !why.contains("--reset-offsets"), "{why}");
}

async fn assert_start_refused(world: &World, topic: &str) {
    let Err(InstanceError::Meta(error @ MetaError::TopicRecreated { .. })) = world.start().ended().await else {
        panic!("{topic}: the instance started")
    };
    assert_names_the_topic(&error.to_string(), topic);
}

/// Protects: while a topic is away, commits fail for that reason; once another topic has its name, readiness no longer
/// says that the topic does not exist.
#[tokio::test(start_paused = true)]
async fn a_topic_that_was_away_is_not_said_to_be_away_for_good() {
    let world = World::new().await;
    let running = start_on(&world, FailingBroker::over(&world).0);
    world.seed(1, 1).await;
    world.until_consumed().await;
    world.broker.delete_topic("txs");
    pause().await;
    let why = reason(&running, "offsets_committed").expect("commits fail");
    assert!(why.contains("topic `txs` does not exist at the moment"), "{why}");
    world.broker.create_topics(&[topic("txs")]).await.unwrap();
    pause().await;
    assert_names_the_topic(&reason(&running, "partitions_running").expect("readiness names the topic"), "txs");
    assert_names_the_topic(&reason(&running, "offsets_committed").expect("nothing is committed"), "txs");
    running.stop().await;
}

/// Three events are handled; then the topic is created again and holds more than three events. The first of them would
/// be passed over, and the others read under offsets of the old topic.
#[tokio::test(start_paused = true)]
async fn running_instances_apply_no_event_of_a_recreated_topic() {
    for rebalances in [false, true] {
        let world = World::new().await;
        let running = [(); 2].map(|()| start_on(&world, FailingBroker::over(&world).0));
        for tag in 1..=6 {
            world.seed(tag, 1).await;
        }
        world.until_consumed().await;
        let later: Vec<_> = (10..90).map(|tag| World::partial(tag, 1)).collect();
        let producer = world.broker.producer().await.unwrap();
        world.broker.recreate_topic(&topic("txs")).unwrap();
        // All messages are produced at once, so that no reader looks before the new topic is longer than the old one
        // was.
        producer.produce_all(later.iter().map(event_of).collect()).await.unwrap();
        for partition in 0..PARTITIONS {
            assert!(world.end("txs", partition).await > 10);
        }
        if rebalances {
            world.broker.rebalance(GROUP);
        }
        pause().await;
        for made in &later {
            assert_eq!(world.page(made).await, None, "{}: the event was applied", made.txid);
        }
        for one in &running {
            assert_names_the_topic(&reason(one, "partitions_running").expect("readiness names the topic"), "txs");
        }
        assert_eq!(committed(&world, GROUP, "txs").await, vec![None; PARTITIONS as usize]);

        // An operator who retries without a look changes nothing.
        for number in 0..PARTITIONS {
            for one in &running {
                let answer = one.health.control().partitions.ask((number, PartitionCommand::Retry)).await;
                assert!(matches!(answer, ControlAnswer::Done(_) | ControlAnswer::NotHeld(_)), "{answer:?}");
            }
        }
        pause().await;
        for one in running {
            let why = reason(&one, "partitions_running").expect("readiness names the topic again");
            assert_names_the_topic(&why, "txs");
            one.stop().await;
        }
        assert_eq!(committed(&world, GROUP, "txs").await, vec![None; PARTITIONS as usize]);
        assert_start_refused(&world, "txs").await;
        for made in &later {
            assert_eq!(world.page(made).await, None, "{}: the event was applied", made.txid);
        }
    }
}

/// No message is produced to the topic: an idle instance detects the change too.
#[tokio::test(start_paused = true)]
async fn an_idle_instance_detects_a_recreated_or_deleted_topic() {
    let world = World::new().await;
    world.seed(1, 1).await;
    let running = world.start();
    world.until_consumed().await;
    world.broker.recreate_topic(&topic("txs")).unwrap();
    pause().await;
    assert_names_the_topic(&reason(&running, "partitions_running").expect("readiness names the topic"), "txs");
    running.stop().await;

    let world = World::new().await;
    let running = world.start();
    pause().await;
    world.broker.delete_topic("reorgs");
    pause().await;
    let why = reason(&running, "chain_committed").expect("readiness names the topic");
    assert!(why.contains("topic `reorgs` does not exist"), "{why}");
    // The condition is the broker's and not a halt, so that no operator has to lift it.
    running.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_partition_count_halts_a_running_instance() {
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

/// The store has never been restarted, so that only the ids tell one chain from another; the test takes each of the
/// topics that the chain is made from.
#[tokio::test(start_paused = true)]
async fn a_recreated_chain_topic_halts_the_chain() {
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
        assert_names_the_topic(&reason(&running, "chain_running").expect("readiness names the topic"), name);
        assert_eq!(running.metrics.chain_halted.get(), 1);
        assert_eq!(running.metrics.chain_tip_height.get(), 102, "{name}: no block was connected");
        let answer = running.health.control().chain.ask(()).await;
        assert!(matches!(answer, ControlAnswer::Done(_)), "{answer:?}");
        pause().await;
        assert_names_the_topic(&reason(&running, "chain_running").expect("readiness names the topic again"), name);
        running.stop().await;
        if name == "chain" {
            assert_eq!(committed(&world, &chain_group(GROUP), name).await, [None]);
        }
        world.mine(6, &[]).await;
        assert_start_refused(&world, name).await;
    }
}

/// The group is stopped, over a store that prunes: the refusal names the topic, not the pruning and not an offset to
/// continue from.
#[tokio::test(start_paused = true)]
async fn a_start_refuses_a_recreated_topic() {
    for name in ["txs", "chain", "decisions", "block-mined", "reorgs"] {
        let world = World::with_settings(WorldSettings::pruned(1)).await;
        world.seed(1, 4).await;
        for sequence in 1..=4 {
            world.mine(sequence, &[]).await;
        }
        world.run_until_consumed().await;
        world.run_until_consumed().await;
        world.broker.recreate_topic(&topic(name)).unwrap();
        assert_start_refused(&world, name).await;
        world.seed(2, 4).await;
        world.mine(1, &[]).await;
        assert_start_refused(&world, name).await;
        assert_eq!(world.page(&World::partial(2, 4)).await, None);
    }
}

/// The first start without another reason for a refusal binds the store to its topics.
#[tokio::test(start_paused = true)]
async fn a_store_without_topic_ids_is_bound_at_its_next_start() {
    let world = World::new().await;
    world.seed(1, 4).await;
    world.mine(1, &[]).await;
    world.run_until_consumed().await;
    let forget = |meta: utxo_store::record::MetaRecord| {
        Ok(utxo_store::record::MetaRecord { topics: Default::default(), chain_id: None, ..meta })
    };
    StoreMeta::of(&world.store).change(forget).await.unwrap();
    world.run_until_consumed().await;
    let meta = world.store.meta().await.unwrap().unwrap();
    assert_eq!(meta.topics.len(), 5, "{meta:?}");
    assert!(meta.chain_id.is_some() && meta.topics.values().all(|bound| bound.id.is_some()), "{meta:?}");
    // A rebuild reads the present topics, and its store is bound to them.
    let rebuilt = world.rebuild().await;
    assert_eq!(rebuilt.meta().await.unwrap().unwrap().topics, meta.topics);
}

/// The first handled record binds the store where no start has found a record.
#[tokio::test(start_paused = true)]
async fn the_first_chain_record_binds_a_new_store() {
    let world = World::new().await;
    let running = world.start();
    pause().await;
    assert_eq!(world.store.meta().await.unwrap().unwrap().chain_id, None);
    world.mine(1, &[]).await;
    pause().await;
    assert!(world.store.meta().await.unwrap().unwrap().chain_id.is_some());
    running.stop().await;
}
