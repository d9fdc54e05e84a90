//! Groups whose committed offsets are gone (`offsets.retention.minutes`, a deleted group) over a store that is not new.

use std::time::Duration;

use utxo_store::{
    broker::{Broker, CommittedOffset, TopicPartition},
    record::TxState,
    sequencer::chain_group,
};

use crate::{
    harness::{GROUP, Made, World, WorldSettings, spend},
    snapshots::{create_snapshot, empty_beside, produce_history, restore_into, shelf},
};

fn chain() -> TopicPartition {
    TopicPartition { topic: "chain".into(), partition: 0 }
}

/// Returns a world whose store is in a later era, by a restore, and has handled a history with a rival that lost.
async fn world_in_a_later_era() -> (World, Made) {
    let world = World::with_settings(WorldSettings::calm()).await;
    produce_history(&world, 10, 1).await;
    world.run_until_consumed().await;
    let (_, shelf) = shelf();
    let name = create_snapshot(&world, &shelf).await.unwrap().name;
    // The restored store has to catch up: else its first start begins no era.
    produce_history(&world, 60, 3).await;
    world.run_until_consumed().await;
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
    assert!(reasons.contains("has no state of the chain, and the store has handled blocks"), "{reasons}");
    assert!(reasons.contains("docs/operating/exits/lost-offsets.md"), "{reasons}");
    running.stop().await;
    assert!(is_conflicting(&world, &rival).await, "nothing was changed");
}
