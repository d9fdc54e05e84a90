//! Blocks, and what stands before or behind them in the log.

use std::time::Duration;

use utxo_store::record::{Reason, TxState};

use super::{
    has_lost,
    held::{Held, is_create_of},
    reason, state,
};
use crate::world::{World, coinbase, spend};

/// Protects: what a block lists wins as soon as it is there, whether it has a verdict or not; its own contest, which stands
/// behind the block and would never be reached, is not waited for, and is passed over in the end.
#[tokio::test(start_paused = true)]
async fn a_block_lists_the_child_of_a_parent_whose_contest_stands_behind_the_block() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (rival, parent) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[parent.coin(0)], 1, 3);
    let txid = parent.txid;
    let held = Held::until_let_go(&world, move |row| is_create_of(row, txid));
    let running = held.before(&world).start();
    world.validate(&rival).await;
    world.until_consumed().await;
    world.validate(&parent).await;
    world.validate(&child).await;
    held.until_kept(1).await;
    world.mine(1, &[&parent, &child]).await;
    while world.count("chain").await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    held.let_go().await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&parent, &child] {
        assert_eq!(state(&world, made).await, TxState::Live, "{}", made.txid);
    }
    assert!(has_lost(&world, &rival).await);
    world.check("a contest behind its block").await;
}

/// A child waits for its locked parent, or has waited for too long; a block lists both.
/// Protects: being mined unlocks, and the parent is set mined before the child needs that.
#[tokio::test(start_paused = true)]
async fn a_lock_and_a_block_that_needs_the_unlock() {
    for too_long in [false, true] {
        let world = World::new().await;
        let seed = world.seed(1, 1).await;
        let parent = spend(&[seed.coin(0)], 1, 1);
        let child = spend(&[parent.coin(0)], 1, 2);
        let running = world.start();
        world.validate_locked(&parent).await;
        world.validate(&child).await;
        if too_long {
            world.until_consumed().await;
            assert_eq!(reason(&world, &child).await, Some(Reason::Locked { parent: parent.txid }));
        } else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(world.page(&child).await.is_none(), "it waits");
        }
        world.mine(1, &[&parent, &child]).await;
        world.until_consumed().await;
        running.stop().await;
        for made in [&parent, &child] {
            assert_eq!(state(&world, made).await, TxState::Live, "{} too long: {too_long}", made.txid);
        }
        world.check(&format!("a lock and a block, too long: {too_long}")).await;
    }
}

/// Seed 86: a block lists a transaction that is conflicting and locked, and a child of it. The parent won, and the child
/// was to win before the parent was set mined, which unlocks it: the chain halted.
/// Protects: a child in a block waits until its locked parent is set mined.
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
    world.check("a locked loser and its child").await;
}

/// The first block waits for a transaction, so the second, whose coinbase is spent, is not handled yet.
/// Protects: a parent is missing only once the chain has been handled past its child.
#[tokio::test(start_paused = true)]
async fn a_coinbase_child_while_the_chain_is_behind() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let slow = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[coinbase(2).coin(0)], 1, 2);
    let running = world.start();
    world.mine(1, &[&slow]).await;
    world.mine(2, &[]).await;
    world.validate_at(&child, 300).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(world.page(&child).await.is_none(), "it waits");
    world.validate(&slow).await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&slow, &child] {
        assert_eq!(state(&world, made).await, TxState::Live, "{}", made.txid);
    }
    assert_eq!(world.count("dead-letters").await, 0);
    world.check("a coinbase child").await;
}
