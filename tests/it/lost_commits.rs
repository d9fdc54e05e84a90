//! Groups whose committed offsets are gone (`offsets.retention.minutes`, a deleted group) over a store that is not new.

use std::time::Duration;

use utxo_store::{
    broker::{Broker, CommittedOffset, TopicPartition},
    record::TxState,
    sequencer::chain_group,
};

use crate::{
    harness::{GROUP, LOSS_WINDOW, Made, World, WorldSettings, spend},
    snapshots::{empty_beside, produce_history, restore_into, run_past_a_snapshot},
};

fn chain() -> TopicPartition {
    TopicPartition { topic: "chain".into(), partition: 0 }
}

/// Returns a world whose store is in a later era, by a restore, and has handled a history with a rival that lost.
async fn world_in_a_later_era() -> (World, Made) {
    let world = World::with_settings(WorldSettings::calm()).await;
    // The restored store has to catch up: else its first start begins no era.
    let (shelf, name) = run_past_a_snapshot(&world).await;
    let restored = empty_beside(&world);
    restore_into(&restored, &shelf, &name).await.unwrap();
    // The first instance reads what the snapshot lacks, in a new era. The next one finds an ordinary store.
    restored.run_until_consumed().await;
    restored.run_until_consumed().await;
    assert_eq!(restored.store.meta().await.unwrap().unwrap().restored, None);
    assert!(restored.chain_state().await.era > 0);
    // Of the two rivals of the history the one whose event came later has lost.
    let contested = [World::partial(10, 6).coin(0)];
    for rival in [spend(&contested, 2, 11), spend(&contested, 1, 30)] {
        if is_conflicting(&restored, &rival).await {
            return (restored, rival);
        }
    }
    panic!("no rival has lost");
}

async fn is_conflicting(world: &World, made: &Made) -> bool {
    matches!(world.page(made).await.unwrap().state(), TxState::Conflicting(_))
}

/// Protects: without its commits the chain goes on in the era of the store's stamps. In era 0 every record would count
/// as the work of a later sequencer: the block was recorded, and its transaction stayed conflicting, without an error.
#[tokio::test(start_paused = true)]
async fn a_chain_without_commits_goes_on_in_the_era_of_its_store() {
    let (world, rival) = world_in_a_later_era().await;
    let before = world.chain_state().await.era;
    for group in [GROUP.to_owned(), chain_group(GROUP)] {
        world.broker.forget_commits(&group);
    }
    world.mine(5, &[&rival]).await;
    world.run_until_consumed().await;
    assert_eq!(world.chain_state().await.era, before);
    let state = world.page(&rival).await.unwrap().state();
    assert!(
        !matches!(state, TxState::Conflicting(_)),
        "the block decides for the transaction that it lists: {state:?}"
    );
    world.check_without_model("without commits").await;
}

/// Protects: an offset that an operator has set, without the state of the chain, cannot continue a chain with blocks:
/// the sequence would begin anew, and commands before the offset would be gone.
#[tokio::test(start_paused = true)]
async fn a_chain_offset_without_a_state_halts_over_a_store_with_blocks() {
    let (world, rival) = world_in_a_later_era().await;
    let end = world.end("chain", 0).await;
    let group = chain_group(GROUP);
    world.broker.forget_commits(&group);
    let offset = CommittedOffset { offset: end, metadata: String::new() };
    world.broker.set_committed(&group, &[(chain(), offset)]).await.unwrap();
    world.mine(5, &[&rival]).await;
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let reasons = format!("{:?}", running.health.ready().reasons);
    assert!(reasons.contains("the group has no state of the chain at offset"), "{reasons}");
    assert!(reasons.contains("docs/operating/exits/lost-offsets.md"), "{reasons}");
    running.stop().await;
    assert!(is_conflicting(&world, &rival).await, "nothing was changed");
}

/// Protects: over a store that can lose writes no stamp would recognise an event that is handled again, because its
/// first commit has begun an era. Commands that later ones took back would be in force for a while.
#[tokio::test(start_paused = true)]
async fn a_chain_without_commits_halts_over_a_store_that_can_lose_writes() {
    let world = World::forgetful().await;
    produce_history(&world, 10, 1).await;
    let running = world.start();
    world.until_consumed().await;
    world.nodes.restart_nodes(LOSS_WINDOW, |_| true);
    tokio::time::sleep(Duration::from_secs(30)).await;
    running.stop().await;
    assert!(world.store.meta().await.unwrap().unwrap().chain_era > 1, "the restart has begun an era");
    for group in [GROUP.to_owned(), chain_group(GROUP)] {
        world.broker.forget_commits(&group);
    }
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let reasons = format!("{:?}", running.health.ready().reasons);
    assert!(reasons.contains("the group has no state of the chain at offset 0"), "{reasons}");
    running.stop().await;
}

/// Protects: a kill after the first block of a chain that an operator has set to an offset leaves a chain that goes on.
/// The state is committed before the first event: else the block would be proof that a state was lost.
#[tokio::test(start_paused = true)]
async fn a_stateless_start_commits_its_state_before_the_first_event() {
    let world = World::new().await;
    // The first start creates the store.
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(2)).await;
    running.stop().await;
    world.produce("chain", b"", b"no event".to_vec()).await;
    world.broker.truncate(&chain(), 1).unwrap();
    let offset = CommittedOffset { offset: 1, metadata: String::new() };
    world.broker.set_committed(&chain_group(GROUP), &[(chain(), offset)]).await.unwrap();
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let committed = world.broker.committed(&chain_group(GROUP), &[chain()]).await.unwrap().pop().flatten().unwrap();
    assert!(committed.offset == 1 && !committed.metadata.is_empty(), "{committed:?}");
    running.task.abort();
    world.mine(1, &[]).await;
    world.run_until_consumed().await;
}
