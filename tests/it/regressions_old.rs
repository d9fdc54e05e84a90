//! Histories that a review or the simulator found, each as a small scenario.

use std::time::Duration;

use utxo_store::record::{TxState, Verdict};

use crate::world::{Made, World, spend};

async fn state(world: &World, made: &Made) -> TxState {
    world.page(made).await.unwrap().state()
}

/// Seed 12: the child's event is older than that of its parent, and the grandparent never comes. The child waited for the
/// parent, and the parent could not be proven to have no parent while something older was unfinished: the child.
#[tokio::test(start_paused = true)]
async fn a_child_before_its_parent_whose_own_parent_never_comes() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let missing = spend(&[seed.coin(0)], 1, 1);
    let parent = spend(&[missing.coin(0)], 1, 2);
    let child = spend(&[parent.coin(0)], 1, 3);
    let running = world.start();
    world.validate(&child).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    world.validate(&parent).await;
    world.until_consumed().await;
    for made in [&parent, &child] {
        assert!(matches!(state(&world, made).await, TxState::Conflicting(Verdict::Conflicting(_))), "{}", made.txid);
    }
    running.stop().await;
    world.check("a child before its parent").await;
}

/// Seed 86: a block lists a transaction that is conflicting and locked, and a child of it. The parent won, and the child
/// was to win before the parent was set mined, which unlocks it: the chain halted.
#[tokio::test(start_paused = true)]
async fn a_block_lists_a_locked_loser_and_its_child() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let rival = spend(&[seed.coin(0)], 1, 1);
    let loser = spend(&[seed.coin(0)], 1, 2);
    let child = spend(&[loser.coin(0), seed.coin(1)], 1, 3);
    let running = world.start();
    world.validate(&rival).await;
    world.until_consumed().await;
    world.validate_locked(&loser).await;
    world.validate(&child).await;
    world.until_consumed().await;
    world.mine(1, &[&loser, &child]).await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&loser, &child] {
        assert_eq!(state(&world, made).await, TxState::Live, "{}", made.txid);
    }
    // Not `check`: the model does not know yet that the block unlocks the parent before its child wins.
    let rebuilt = world.rebuild().await;
    let (live, again) = (world.store.survey(|_| {}).await.unwrap(), rebuilt.survey(|_| {}).await.unwrap());
    assert_eq!(live.digest, again.digest);
}
