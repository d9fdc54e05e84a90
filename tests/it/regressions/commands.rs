//! Commands, and what is on its way when they are handled.

use std::{slice, time::Duration};

use utxo_store::{
    event::{Action, CommandResult},
    record::{Body, Key, Operation, Reason, Sequenced, TxState},
};

use super::{
    has_lost,
    held::{Held, is_create_of, is_work_of},
    holder, reason, state,
};
use crate::{
    forgetting::until,
    sequencing::{longer_than_a_block_waits, reasons},
    world::{Coin, MAY_FORGET, World, spend, spend_claiming},
};

/// It is decided that a free output is frozen; before it is, a spend comes.
/// Protects: a free output is marked before it is decided, so that from then on only the sequencer gives it to anybody.
#[tokio::test(start_paused = true)]
async fn a_spend_between_the_decision_to_freeze_and_the_freeze() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let outpoint = seed.coin(0).outpoint;
    let held =
        Held::the_first(&world, |row| matches!(row.operation, Operation::Sequenced(_, Sequenced::Freeze { .. })));
    let running = held.before(&world).start();
    world.until_consumed().await;
    world.command(1, Action::Freeze { outpoint }).await;
    held.until_kept(1).await;
    let late = spend(&[seed.coin(0)], 1, 1);
    world.validate(&late).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    held.let_go().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(reason(&world, &late).await, Some(Reason::Frozen { input: 0 }));
    world.check("a spend between the decision to freeze and the freeze").await;
}

/// A command has locked a parent; its child waits for that, or has waited too long, and a block lists the child, and the parent too or a
/// block before it did. The unlock stands behind.
/// Protects: no lock bars what a block lists.
#[tokio::test(start_paused = true)]
async fn an_unlock_behind_the_block_that_needs_it() {
    for listed_with_it in [false, true] {
        for too_long in [false, true] {
            let what = format!("parent listed with it: {listed_with_it}, too long: {too_long}");
            let world = World::new().await;
            let seed = world.seed(1, 1).await;
            let parent = spend(&[seed.coin(0)], 1, 1);
            let child = spend(&[parent.coin(0)], 1, 2);
            let running = world.start();
            world.validate(&parent).await;
            if !listed_with_it {
                world.mine(1, &[&parent]).await;
            }
            world.until_consumed().await;
            world.command(1, Action::Lock { txid: parent.txid }).await;
            world.until_consumed().await;
            world.validate(&child).await;
            if too_long {
                world.until_consumed().await;
                assert_eq!(reason(&world, &child).await, Some(Reason::Locked { parent: parent.txid }), "{what}");
            }
            if listed_with_it {
                world.mine(1, &[&parent, &child]).await;
            } else {
                world.mine(2, &[&child]).await;
            }
            world.command(2, Action::Unlock { txid: parent.txid }).await;
            world.until_consumed().await;
            running.stop().await;
            for made in [&parent, &child] {
                assert_eq!(state(&world, made).await, TxState::Live, "{what}: {}", made.txid);
            }
            assert!(!world.page(&parent).await.unwrap().locked, "{what}");
            world.check(&what).await;
        }
    }
}

/// A child spent one output of its parent before a command locked that, and another before a freeze that was refused; in a rebuild
/// it comes behind both, and behind a freeze that was lifted before its output was spent.
/// Protects: in a rebuild, who had won ignores locks and freezes.
#[tokio::test(start_paused = true)]
async fn a_rebuild_locks_and_freezes_before_an_honest_holder_arrives() {
    for unfrozen in [false, true] {
        let world = World::new().await;
        let seed = world.seed(1, 2).await;
        let parent = spend(&[seed.coin(0)], 2, 1);
        let honest = spend(&[parent.coin(0)], 1, 2);
        let world = Held::late_in_rebuilds(world, Duration::from_secs(2), is_work_of, honest.txid);
        let running = world.start();
        world.validate(&parent).await;
        let outpoint = parent.coin(0).outpoint;
        if unfrozen {
            world.command(1, Action::Freeze { outpoint }).await;
            world.command(2, Action::Unfreeze { outpoint }).await;
        }
        world.until_consumed().await;
        world.validate(&honest).await;
        world.until_consumed().await;
        world.command(3, Action::Lock { txid: parent.txid }).await;
        world.command(4, Action::Freeze { outpoint }).await;
        world.command(5, Action::Freeze { outpoint: parent.coin(1).outpoint }).await;
        world.until_consumed().await;
        running.stop().await;
        assert!(matches!(world.results(4).await[..], [CommandResult::Refused { .. }]));
        assert_eq!(world.results(5).await, [CommandResult::Applied]);
        assert_eq!(holder(&world, &parent.coin(0)).await, Some(honest.txid));
        world.check(&format!("a lock and a freeze, unfrozen before: {unfrozen}")).await;
    }
}

/// Seed 39: the parent's event lies, so its verdict, by a block, gives the child what it waits for; and before that a command names the
/// child, which is stored. In a rebuild the child waited for the block, and the command for the child. Seed 4888: or for a child of that,
/// which waited for its parent in flight and did not look whether anybody asked for it.
/// Protects: in a rebuild, a command makes who has won by a verdict come.
#[tokio::test(start_paused = true)]
async fn a_rebuild_of_a_command_before_the_block_that_lets_its_transaction_win() {
    for generations in [1, 2] {
        let world = World::new().await;
        let seed = world.seed(1, 1).await;
        let (parent, lie) = {
            let claimed = Coin { script: vec![0x60], ..seed.coin(0) };
            (spend(&[seed.coin(0)], 1, 1), spend_claiming(&[seed.coin(0)], &[claimed], 1, 1))
        };
        let child = spend(&[parent.coin(0)], 1, 2);
        let grandchild = spend(&[child.coin(0)], 1, 3);
        assert_eq!(parent.txid, lie.txid);
        let named = [&child, &grandchild][generations - 1];
        let running = world.start();
        world.validate(&lie).await;
        world.validate(&child).await;
        world.validate(&grandchild).await;
        world.until_consumed().await;
        world.command(1, Action::Preserve { txid: named.txid, until: 900 }).await;
        world.mine(1, &[&parent]).await;
        world.until_consumed().await;
        running.stop().await;
        for made in [&parent, &child, &grandchild] {
            assert_eq!(state(&world, made).await, TxState::Live, "{generations}: {}", made.txid);
        }
        world.check(&format!("a command before a block, {generations} behind what it lists")).await;
    }
}

/// An output was given to a new owner, and a block lists the former one's spend.
/// Protects: what proves claims wrong makes nothing of claims that were true before; the block is impossible, and the chain halts by name.
#[tokio::test(start_paused = true)]
async fn a_block_that_lists_the_spend_of_a_former_owner() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (coin, outpoint) = (seed.coin(0), seed.coin(0).outpoint);
    let former = spend(slice::from_ref(&coin), 1, 1);
    let running = world.start();
    world.command(1, Action::Freeze { outpoint }).await;
    let reassign = Action::Reassign {
        outpoint,
        utxo_hash: coin.utxo_hash(),
        new_script: &[0x53],
        satoshis: coin.satoshis,
        height: 100,
        spendable_after: 0,
    };
    world.command(2, reassign).await;
    world.until_consumed().await;
    world.validate(&former).await;
    world.until_consumed().await;
    assert_eq!(reason(&world, &former).await, Some(Reason::Mismatch { input: 0 }));
    world.mine(1, &[&former]).await;
    longer_than_a_block_waits().await;
    let told = reasons(&running);
    assert!(told.contains(&former.txid.to_string()) && told.contains("Mismatch"), "{told}");
    running.kill().await;
    assert_eq!(world.page(&former).await.unwrap().body(), Some(&Body::Transaction(former.extended.clone())));
}

/// Everything since the beginning is applied again to a store of which a node has forgotten the end; a slot that a verdict gave away was
/// frozen behind the fall of whoever got it.
/// Protects: what cannot be given to who has fallen since is left to that.
#[tokio::test(start_paused = true)]
async fn a_verdict_that_is_done_again_over_a_slot_that_was_frozen_since() {
    let (world, coin) = never_committed().await;
    let outpoint = coin.outpoint;
    let (winner, loser) = (spend(slice::from_ref(&coin), 1, 1), spend(slice::from_ref(&coin), 1, 2));
    let running = world.start();
    world.validate(&winner).await;
    world.validate(&loser).await;
    until(async || world.page(&loser).await.is_some()).await;
    until(async || has_lost(&world, &loser).await).await;
    world.command(1, Action::SetConflicting { txid: winner.txid }).await;
    until(async || world.page(&loser).await.is_some_and(|page| page.state() == TxState::Live)).await;
    world.command(2, Action::SetConflicting { txid: loser.txid }).await;
    world.command(3, Action::Freeze { outpoint }).await;
    until(async || !world.results(3).await.is_empty()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.nodes.forget(MAY_FORGET, |key| *key == Key::master(loser.txid));
    running.kill().await;
    let world = committing(world);
    world.run_until_consumed().await;
    assert!(has_lost(&world, &winner).await && has_lost(&world, &loser).await);
    world.check_after_forgetting("a verdict and a freeze").await;
}

/// A node forgets a freeze with the mark that was made before it was decided, and a spend comes between the look at the slot and its freeze.
/// Protects: whoever freezes again marks again.
#[tokio::test(start_paused = true)]
async fn a_spend_while_a_forgotten_freeze_is_done_again() {
    let (world, coin) = never_committed().await;
    let outpoint = coin.outpoint;
    let running = world.start();
    world.command(1, Action::Freeze { outpoint }).await;
    until(async || !world.results(1).await.is_empty()).await;
    running.kill().await;
    assert!(world.nodes.forget(MAY_FORGET, |key| *key == Key::master(outpoint.txid)) > Some(0));
    let held =
        Held::the_first(&world, move |row| matches!(row.operation, Operation::Sequenced(_, Sequenced::Freeze { .. })));
    let late = spend(&[coin], 1, 1);
    let world = committing(world);
    let running = held.before(&world).start();
    held.until_kept(1).await;
    world.validate(&late).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    held.let_go().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(reason(&world, &late).await, Some(Reason::Frozen { input: 0 }));
    world.check_after_forgetting("a forgotten freeze").await;
}

/// A world over a store that forgets, in which nothing of the chain is committed, with one output that can be spent.
async fn never_committed() -> (World, Coin) {
    let mut world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    world.settings.sequencer.commit_interval = Duration::from_secs(3_600);
    (world, seed.coin(0))
}

/// The same world, in which it is.
fn committing(mut world: World) -> World {
    world.settings.sequencer.commit_interval = Duration::from_millis(100);
    world
}

/// It has taken the slot, and has no record yet.
/// Protects: `Unspend` contests the spender first, so that it does not become live without its slot.
#[tokio::test(start_paused = true)]
async fn an_unspend_of_a_spender_that_is_in_flight() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let spender = spend(&[seed.coin(0), seed.coin(1)], 1, 1);
    let txid = spender.txid;
    let held = Held::until_let_go(&world, move |row| is_create_of(row, txid));
    let running = held.before(&world).start();
    world.validate(&spender).await;
    held.until_kept(1).await;
    assert_eq!(holder(&world, &seed.coin(0)).await, Some(txid));
    world.command(1, Action::Unspend { outpoint: seed.coin(0).outpoint, spender: txid, input: 0 }).await;
    while world.results(1).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.results(1).await, [CommandResult::Applied]);
    assert_eq!(holder(&world, &seed.coin(0)).await, None);
    held.let_go().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &spender).await, TxState::Live, "its contest gave it back");
    assert_eq!(holder(&world, &seed.coin(0)).await, Some(txid));
    world.check("an unspend of a spender in flight").await;
}
