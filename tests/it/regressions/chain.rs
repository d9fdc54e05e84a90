//! Blocks, and related events before or after them in the log.

use std::time::Duration;

use utxo_store::record::{Reason, TxState, Verdict};

use super::{
    has_lost,
    holding_engine::{HoldingEngine, is_create_of},
    reason, state,
};
use crate::harness::{World, coinbase, spend};

/// Protects: a listed transaction wins as soon as it is stored, with or without a verdict. Its own contest comes after
/// the block and is never reached meanwhile: the block does not wait for it, and the contest is passed over in the end.
#[tokio::test(start_paused = true)]
async fn a_listed_parent_wins_before_its_contest_later_in_the_log() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (rival, parent) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[parent.coin(0)], 1, 3);
    let txid = parent.txid;
    let holding = HoldingEngine::hold_all(&world, move |row| is_create_of(row, txid));
    let running = holding.in_front_of(&world).start();
    world.validate(&rival).await;
    world.until_consumed().await;
    world.validate(&parent).await;
    world.validate(&child).await;
    holding.wait_for_held(1).await;
    world.mine(1, &[&parent, &child]).await;
    while world.count("chain").await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&parent, &child] {
        assert_eq!(state(&world, made).await, TxState::Live, "{}", made.txid);
    }
    assert!(has_lost(&world, &rival).await);
    world.check("a contest behind its block").await;
}

/// A child waits for its locked parent, or was refused after the grace; a block lists both. Protects: a mined
/// transaction is unlocked, and the parent is set mined before the child needs that.
#[tokio::test(start_paused = true)]
async fn a_block_unlocks_a_listed_parent_before_its_child_wins() {
    for is_refused in [false, true] {
        let world = World::new().await;
        let seed = world.seed(1, 1).await;
        let parent = spend(&[seed.coin(0)], 1, 1);
        let child = spend(&[parent.coin(0)], 1, 2);
        let running = world.start();
        world.validate_locked(&parent).await;
        world.validate(&child).await;
        if is_refused {
            world.until_consumed().await;
            assert_eq!(reason(&world, &child).await, Some(Reason::Locked { parent: parent.txid }));
        } else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(world.page(&child).await.is_none(), "the child waits for the unlock");
        }
        world.mine(1, &[&parent, &child]).await;
        world.until_consumed().await;
        running.stop().await;
        for made in [&parent, &child] {
            assert_eq!(state(&world, made).await, TxState::Live, "{}, refused before: {is_refused}", made.txid);
        }
        world.check(&format!("a lock and a block, refused before: {is_refused}")).await;
    }
}

/// Seed 86: a block lists a transaction that is conflicting and locked, and its child. The parent won, and the child
/// was to win before the parent was set mined, which unlocks it: the chain halted. Protects: a child in a block waits
/// until its locked parent is set mined.
#[tokio::test(start_paused = true)]
async fn a_block_accepts_a_locked_loser_and_its_child() {
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

/// The first block waits for a transaction; the second block, whose coinbase is spent, is not handled yet.
#[tokio::test(start_paused = true)]
async fn a_coinbase_child_waits_while_the_chain_is_behind() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let slow = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[coinbase(2).coin(0)], 1, 2);
    let running = world.start();
    world.mine(1, &[&slow]).await;
    world.mine(2, &[]).await;
    world.validate_at(&child, 300).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(world.page(&child).await.is_none(), "the child waits for the coinbase");
    world.validate(&slow).await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&slow, &child] {
        assert_eq!(state(&world, made).await, TxState::Live, "{}", made.txid);
    }
    assert_eq!(world.count("dead-letters").await, 0);
    world.check("a coinbase child").await;
}

/// A block waits for a transaction that has not come yet. The contest behind the block names no transaction of the
/// block and none of their outputs. The transaction comes and displaces a live transaction, of which the rival's holder
/// is a child. Protects: a contest behind a waiting block is decided after the block.
#[tokio::test(start_paused = true)]
async fn a_contest_behind_a_waiting_block_depends_on_what_the_block_brings() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let displaced = spend(&[seed.coin(0)], 1, 1);
    let holder = spend(&[displaced.coin(0), seed.coin(1)], 1, 2);
    let (slow, rival) = (spend(&[seed.coin(0)], 1, 3), spend(&[seed.coin(1)], 1, 4));
    let unrelated = spend(&[world.seed(2, 1).await.coin(0)], 1, 5);
    let running = world.start();
    world.validate(&displaced).await;
    world.validate(&holder).await;
    world.until_consumed().await;
    world.mine(1, &[&slow]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.validate(&rival).await;
    world.validate(&unrelated).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(state(&world, &rival).await, TxState::Conflicting(Verdict::Pending));
    assert_eq!(state(&world, &unrelated).await, TxState::Live, "the fast path does not wait for a block");
    world.validate(&slow).await;
    world.until_consumed().await;
    running.stop().await;
    assert!(has_lost(&world, &displaced).await && has_lost(&world, &holder).await);
    assert_eq!(state(&world, &rival).await, TxState::Live);
    world.check("a contest behind a waiting block").await;
}
