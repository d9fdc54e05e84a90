//! Rebuilds of groups at work: the committed events of one partition name transactions that another partition has not
//! committed.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use utxo_store::{
    broker::{Broker, TopicPartition, partitioner::partition_of},
    engine::{RecordEngine, fault::FaultEngine, memory::MemoryEngine},
    group::missing_parent::MAX_WAITING_EVENTS,
    instance::{self, InstanceError},
    record::{Operation, Page, Reason, Rules, Sequenced, TxState},
    store::{StateStore, digest::survey, meta::MetaError, verify::verify},
    tx::{Outpoint, Txid},
};

use crate::harness::{Coin, GROUP, LOSS_WINDOW, Made, PARTITIONS, World, spend};
use crate::reapplied_decisions::contest;
use crate::regressions::holding_engine::HoldingEngine;

const RULES: Rules = Rules::main(288);
const HOUR: Duration = Duration::from_secs(3_600);

async fn pause() {
    tokio::time::sleep(Duration::from_secs(20)).await;
}

async fn rebuild(world: &World) -> (StateStore, Result<(), InstanceError>) {
    rebuild_into(world, Arc::new(MemoryEngine::new(RULES))).await
}

/// Rebuilds the committed events of the group into this engine.
pub async fn rebuild_into(world: &World, engine: Arc<dyn RecordEngine>) -> (StateStore, Result<(), InstanceError>) {
    let store = StateStore::new(engine, world.store.settings);
    let rebuilt = instance::rebuild(world.settings.clone(), world.parts(&store), CancellationToken::new());
    let ended = tokio::time::timeout(HOUR, rebuilt).await.expect("a rebuild ends");
    (store, ended.map(drop))
}

async fn state(store: &StateStore, made: &Made) -> Option<TxState> {
    store.master(made.txid).await.unwrap().map(|page| page.state())
}

async fn digest(store: &StateStore) -> String {
    survey(store, |_| {}).await.unwrap().digest.to_string()
}

async fn committed(world: &World, group: &str, topic: &str, count: i32) -> Vec<Option<u64>> {
    let at: Vec<_> = (0..count).map(|partition| TopicPartition { topic: topic.into(), partition }).collect();
    let committed = world.broker.committed(group, &at).await.unwrap();
    committed.into_iter().map(|committed| Some(committed?.offset).filter(|offset| *offset > 0)).collect()
}

/// Produces many events at the head of every partition that wait for parents which never come, and which would lie in
/// other partitions. All have one timestamp, and there are more than a commit names: over a store that can lose writes,
/// no parent is proven missing before the grace.
async fn block_every_partition(world: &World) {
    let orphan = |number: u32| {
        let mut txid = [0xEE; 32];
        txid[..4].copy_from_slice(&number.to_le_bytes());
        let outpoint = Outpoint { txid: Txid(txid), vout: 0 };
        let coin = Coin { outpoint, satoshis: 1_000, script: vec![0x51] };
        (spend(&[coin], 1, number as u8), Txid(txid))
    };
    let at = |txid: &Txid| partition_of(&txid.0, PARTITIONS);
    let orphans = (0..).map(orphan).filter(|(orphan, parent)| at(&orphan.txid) != at(parent));
    for (orphan, _) in orphans.take(5 * MAX_WAITING_EVENTS) {
        world.validate(&orphan).await;
    }
}

/// Protects: a rebuild into a store that can lose writes ends, and does not take the first incarnation for a restart.
#[tokio::test(start_paused = true)]
async fn a_rebuild_into_a_store_that_can_lose_writes_ends() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 2).await;
    let (winner, loser, mined) =
        (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2), spend(&[seed.coin(1)], 1, 3));
    for made in [&winner, &loser, &mined] {
        world.validate(made).await;
    }
    world.mine(1, &[&mined]).await;
    world.run_until_consumed().await;
    let memory = Arc::new(MemoryEngine::with_loss_window(RULES, world.clock.clone(), LOSS_WINDOW));
    let nodes = Arc::new(FaultEngine::with_restarts(memory, world.clock.clone(), 1));
    let (store, ended) = rebuild_into(&world, nodes.clone()).await;
    ended.unwrap();
    assert_eq!(digest(&store).await, digest(&world.store).await);
    // All records are durable by now.
    nodes.restart_nodes(LOSS_WINDOW, |_| true);
    assert_eq!(digest(&store).await, digest(&world.store).await);
}

/// The chain completes last, and a node loses its writes before the rebuild has recorded its end.
/// Protects: a rebuild ends only when all writes are durable, the chain's last ones too.
#[tokio::test(start_paused = true)]
async fn a_node_restart_after_the_last_chain_write_fails_the_rebuild() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let mined = spend(&[seed.coin(0)], 1, 1);
    world.validate(&mined).await;
    world.mine(1, &[&mined]).await;
    world.run_until_consumed().await;
    let memory = Arc::new(MemoryEngine::with_loss_window(RULES, world.clock.clone(), LOSS_WINDOW));
    let nodes = Arc::new(FaultEngine::with_restarts(memory, world.clock.clone(), 1));
    let behind = World { store: StateStore { engine: nodes.clone(), ..world.store.clone() }, ..world.clone() };
    // The writes of the transactions are durable by then.
    let late = HoldingEngine::delay(&behind, LOSS_WINDOW * 30, |row| {
        matches!(row.operation, Operation::Sequenced(_, Sequenced::SetMined { .. }))
    });
    let rebuilding = rebuild_into(&world, late);
    let forgetting = async {
        let is_mined = |page: &Page| page.master.as_ref().is_some_and(|master| !master.mined.is_empty());
        while !behind.page(&mined).await.is_some_and(|page| is_mined(&page)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        nodes.restart_nodes(LOSS_WINDOW, |_| true);
    };
    let ((_, ended), ()) = tokio::join!(rebuilding, forgetting);
    let error = ended.unwrap_err();
    assert!(matches!(error, InstanceError::Meta(MetaError::NodeRestarted)), "{error}");
}

/// A block lists a transaction. A node forgot the transaction, its event came again and was contested, and the group
/// has not decided the contest when the rebuild begins. The group will handle the block again, which then wins.
/// Protects: the rebuild does not end with a conflicting transaction that a block lists, which the contest would let
/// lose; `verify` finds such a transaction.
#[tokio::test(start_paused = true)]
async fn a_rebuild_refuses_an_undecided_transaction_that_a_block_lists() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let mined = spend(&[seed.coin(0)], 1, 1);
    world.validate(&mined).await;
    world.mine(1, &[&mined]).await;
    world.run_until_consumed().await;
    contest(&world, &mined, 0, Reason::Found).await;
    let (store, ended) = rebuild(&world).await;
    let error = ended.unwrap_err().to_string();
    assert!(error.contains(&format!("{} is contested without a decision, and block 1", mined.txid)), "{error}");
    let mut violations = Vec::new();
    verify(&store, |_| {}, |violation| violations.push(violation.to_string())).await.unwrap();
    assert!(violations.iter().any(|found| found.contains("block 1 of the longest chain")), "{violations:?}");

    world.run_until_consumed().await;
    let (store, ended) = rebuild(&world).await;
    ended.unwrap();
    assert_eq!(digest(&store).await, digest(&world.store).await);
}

#[tokio::test(start_paused = true)]
async fn mentioned_transactions_above_the_frontier_count_with_their_parents() {
    let mut world = World::forgetful().await;
    world.settings.pipeline.missing_parent_grace_ms = 100_000;
    block_every_partition(&world).await;
    let seed = world.seed(1, 3).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let (winner, loser) = (spend(&[parent.coin(0)], 1, 2), spend(&[parent.coin(0)], 1, 3));
    let child = spend(&[loser.coin(0)], 1, 4);
    let mined = spend(&[seed.coin(1)], 1, 5);
    let running = world.start();
    for made in [&parent, &winner, &loser, &child, &mined] {
        world.validate(made).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    world.mine(1, &[&mined, &winner]).await;
    pause().await;
    assert_eq!(committed(&world, GROUP, "txs", PARTITIONS).await, vec![None; PARTITIONS as usize]);
    assert!(committed(&world, "g.chain", "chain", 1).await[0].unwrap() >= 3, "two contests and a block");
    let live = digest(&world.store).await;
    let stranger = spend(&[seed.coin(2)], 1, 6);
    world.validate(&stranger).await;
    pause().await;
    assert_eq!(state(&world.store, &stranger).await, Some(TxState::Live));

    let (store, ended) = rebuild(&world).await;
    ended.unwrap();
    assert_eq!(state(&store, &stranger).await, None, "no event below the frontier names it");
    assert_eq!(digest(&store).await, live);
    running.kill().await;
}

/// Otherwise an instance on the rebuilt store would find the winner's coin free and give it to another transaction.
#[tokio::test(start_paused = true)]
async fn a_winner_above_the_frontier_of_the_partitions_counts() {
    let mut world = World::forgetful().await;
    world.settings.pipeline.missing_parent_grace_ms = 100_000;
    block_every_partition(&world).await;
    let seed = world.seed(1, 1).await;
    let rivals = [1, 2].map(|tag| spend(&[seed.coin(0)], 1, tag));
    let running = world.start();
    for made in &rivals {
        world.validate(made).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    pause().await;
    assert_eq!(committed(&world, GROUP, "txs", PARTITIONS).await, vec![None; PARTITIONS as usize]);
    assert_eq!(committed(&world, "g.chain", "chain", 1).await, [Some(1)], "the contest");
    let live = digest(&world.store).await;
    running.kill().await;

    let (store, ended) = rebuild(&world).await;
    ended.unwrap();
    for made in &rivals {
        assert_eq!(state(&store, made).await, state(&world.store, made).await);
    }
    assert_eq!(digest(&store).await, live);
}

#[tokio::test(start_paused = true)]
async fn uncommitted_decisions_are_applied() {
    let mut world = World::new().await;
    world.settings.sequencer.commit_interval = HOUR;
    let seed = world.seed(1, 2).await;
    let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let running = world.start();
    for made in [&winner, &loser, &spend(&[winner.coin(0)], 1, 3)] {
        world.validate(made).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    pause().await;
    running.kill().await;
    assert_eq!(committed(&world, "g.chain", "chain", 1).await, [None]);
    let (store, ended) = rebuild(&world).await;
    ended.unwrap();
    assert_eq!(digest(&store).await, digest(&world.store).await);
}

/// The chain waits at a block with an unknown transaction: the live store has given free slots to the contestant.
#[tokio::test(start_paused = true)]
async fn undecided_contests_are_counted() {
    let world = World::new().await;
    let seed = world.seed(1, 3).await;
    let (first, second) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(1), seed.coin(0)], 1, 2));
    let running = world.start();
    world.validate(&first).await;
    pause().await;
    world.mine(1, &[&spend(&[seed.coin(2)], 1, 3)]).await;
    pause().await;
    world.validate(&second).await;
    pause().await;
    running.stop().await;

    let store = StateStore::new(Arc::new(MemoryEngine::new(Rules::main(288))), world.store.settings);
    let rebuilt = instance::rebuild(world.settings.clone(), world.parts(&store), CancellationToken::new());
    assert_eq!(rebuilt.await.unwrap().undecided, 1);
    assert_eq!(state(&store, &second).await, state(&world.store, &second).await);
    assert_ne!(digest(&store).await, digest(&world.store).await, "the live contestant holds a slot");
}

#[tokio::test(start_paused = true)]
async fn a_parent_above_the_frontier_ends_a_rebuild_by_name() {
    let mut world = World::new().await;
    world.settings.sequencer.commit_interval = HOUR;
    let running = world.start();
    let coinbase = world.mine(1, &[]).await;
    let child = spend(&[coinbase.coin(0)], 1, 1);
    pause().await;
    world.validate_at(&child, 250).await;
    pause().await;
    running.kill().await;
    assert_eq!(state(&world.store, &child).await, Some(TxState::Live));

    let (_, ended) = rebuild(&world).await;
    let error = ended.unwrap_err().to_string();
    let waits = format!("{} (partition ", child.txid);
    assert!(error.contains(&waits) && error.contains(&format!("waits for {}", coinbase.txid)), "{error}");
    assert!(error.contains("after the rebuild's end offsets (partitions {0: "), "{error}");
    assert!(error.contains(", chain 0)"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_beside_a_running_instance_ends() {
    let world = World::new().await;
    let mut coins = Vec::new();
    for tag in 1..=40 {
        coins.push(world.seed(tag, 1).await.coin(0));
    }
    let running = world.start();
    let (mut stood, mut sequence) = (Vec::new(), 0);
    let mut listed = Vec::new();
    for round in 0..30_u8 {
        for (index, coin) in coins.iter_mut().enumerate() {
            let made = spend(std::slice::from_ref(coin), 1, 2 * round);
            world.validate(&made).await;
            if index % 5 == 0 {
                world.validate(&spend(std::slice::from_ref(coin), 1, 2 * round + 1)).await;
            }
            *coin = made.coin(0);
            listed.push(made);
        }
        if round % 3 == 0 {
            sequence += 1;
            world.mine(sequence, &listed.iter().collect::<Vec<_>>()).await;
            listed.clear();
        }
        // The rebuild begins within a commit interval, at another time in each round.
        tokio::time::sleep(Duration::from_millis(u64::from(round) * 7)).await;
        let (store, ended) = rebuild(&world).await;
        match ended {
            Ok(()) => {}
            Err(error @ InstanceError::RebuildBlocked { .. }) => {
                stood.push(format!("round {round}: {error}"));
                continue;
            }
            Err(error) => panic!("round {round}: {error}"),
        }
        let mut violations = Vec::new();
        verify(&store, |_| {}, |violation| violations.push(violation.to_string())).await.unwrap();
        assert!(violations.is_empty(), "round {round}: {violations:#?}\n{}", world.story(&store).await);
    }
    assert!(stood.is_empty(), "no event spends an output of an uncommitted block: {stood:#?}");
    world.until_consumed().await;
    running.stop().await;
    world.check("at rest").await;
}

/// Two rebuilds find the same set empty, and the first waits in its first write while the second ends.
/// Protects: the first rebuild ends by name and lets no instance in; no rebuild writes once instances are let in.
#[tokio::test(start_paused = true)]
async fn the_first_of_two_rebuilds_into_one_set_is_taken_over() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    world.validate(&spend(&[seed.coin(0)], 1, 1)).await;
    world.run_until_consumed().await;
    let memory = Arc::new(MemoryEngine::new(RULES));
    let beside = world.beside(memory.clone());
    let held = HoldingEngine::hold_all(&beside, |row| matches!(row.operation, Operation::Create(_)));
    let first = tokio::spawn({
        let (world, held) = (world.clone(), held.clone());
        async move { rebuild_into(&world, held).await.1 }
    });
    held.wait_for_held(1).await;
    let (store, second) = rebuild_into(&world, memory).await;
    second.unwrap();
    let first = first.await.unwrap().unwrap_err();
    assert!(matches!(first, InstanceError::Meta(MetaError::RebuildTakenOver)), "{first}");
    held.release().await;
    assert_eq!(digest(&store).await, digest(&world.store).await);
    assert_eq!(store.meta().await.unwrap().unwrap().rebuilding, None);
}

/// The transactions of a rebuild may complete long before its chain; a liveness probe must not end it meanwhile.
#[tokio::test(start_paused = true)]
async fn a_completed_part_of_a_rebuild_is_no_stall() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    world.validate(&spend(&[seed.coin(0)], 1, 1)).await;
    world.run_until_consumed().await;
    let store = StateStore::new(Arc::new(MemoryEngine::new(RULES)), world.store.settings);
    let parts = world.parts(&store);
    let health = parts.health.clone();
    instance::rebuild(world.settings.clone(), parts, CancellationToken::new()).await.unwrap();
    tokio::time::sleep(HOUR).await;
    assert!(health.live().ok, "{:?}", health.live());
}
