//! Commands, and spends in flight when they are handled.

use std::{slice, time::Duration};

use utxo_store::{
    event::{CommandAction, CommandResult},
    record::{Body, Key, Operation, Page, Reason, Record, Sequenced, Slot, TxState},
};

use super::{
    has_lost, holder,
    holding_engine::{HoldingEngine, is_create_of, is_work_of},
    reason, state,
};
use crate::{
    harness::{Coin, LOSS_WINDOW, Made, World, spend, spend_claiming},
    node_restarts::until,
    sequencing::{reasons, wait_longer_than_a_block},
};

/// A freeze of a free output is decided; a spend comes before the freeze is applied. Protects: a free output is marked
/// before the decision, so that from then on only the sequencer gives it to a spender.
#[tokio::test(start_paused = true)]
async fn a_spend_between_the_freeze_decision_and_the_freeze_is_refused() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let outpoint = seed.coin(0).outpoint;
    let holding = HoldingEngine::hold_first(&world, |row| {
        matches!(row.operation, Operation::Sequenced(_, Sequenced::Freeze { .. }))
    });
    let running = holding.in_front_of(&world).start();
    world.until_consumed().await;
    world.command(1, CommandAction::Freeze { outpoint }).await;
    holding.wait_for_held(1).await;
    let late = spend(&[seed.coin(0)], 1, 1);
    world.validate(&late).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(reason(&world, &late).await, Some(Reason::Frozen { input: 0 }));
    world.check("a spend between the decision to freeze and the freeze").await;
}

/// A command locks a parent. Its child waits for the unlock or is refused after the grace, and a block lists the child;
/// the parent is in that block or an earlier one. The unlock comes after the block. Protects: no lock bars a listed
/// transaction.
#[tokio::test(start_paused = true)]
async fn a_lock_does_not_bar_a_block_whose_unlock_comes_later() {
    for listed_with_it in [false, true] {
        for is_refused in [false, true] {
            let what = format!("parent listed with it: {listed_with_it}, refused before: {is_refused}");
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
            world.command(1, CommandAction::Lock { txid: parent.txid }).await;
            world.until_consumed().await;
            world.validate(&child).await;
            if is_refused {
                world.until_consumed().await;
                assert_eq!(reason(&world, &child).await, Some(Reason::Locked { parent: parent.txid }), "{what}");
            }
            if listed_with_it {
                world.mine(1, &[&parent, &child]).await;
            } else {
                world.mine(2, &[&child]).await;
            }
            world.command(2, CommandAction::Unlock { txid: parent.txid }).await;
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

/// A child spent one output of its parent before a command locked the parent, and before a freeze that was refused. In
/// a rebuild the child comes after both commands, and after a freeze that was lifted before the output was spent.
/// Protects: a rebuild ignores locks and freezes for transactions that won.
#[tokio::test(start_paused = true)]
async fn a_rebuild_ignores_locks_and_freezes_for_transactions_that_won() {
    for unfrozen in [false, true] {
        let world = World::new().await;
        let seed = world.seed(1, 2).await;
        let parent = spend(&[seed.coin(0)], 2, 1);
        let honest = spend(&[parent.coin(0)], 1, 2);
        let world = HoldingEngine::delay_in_rebuilds(world, Duration::from_secs(2), is_work_of, honest.txid);
        let running = world.start();
        world.validate(&parent).await;
        let outpoint = parent.coin(0).outpoint;
        if unfrozen {
            world.command(1, CommandAction::Freeze { outpoint }).await;
            world.command(2, CommandAction::Unfreeze { outpoint }).await;
        }
        world.until_consumed().await;
        world.validate(&honest).await;
        world.until_consumed().await;
        world.command(3, CommandAction::Lock { txid: parent.txid }).await;
        world.command(4, CommandAction::Freeze { outpoint }).await;
        world.command(5, CommandAction::Freeze { outpoint: parent.coin(1).outpoint }).await;
        world.until_consumed().await;
        running.stop().await;
        assert!(matches!(world.results(4).await[..], [CommandResult::Refused { .. }]));
        assert_eq!(world.results(5).await, [CommandResult::Applied]);
        assert_eq!(holder(&world, &parent.coin(0)).await, Some(honest.txid));
        world.check(&format!("a lock and a freeze, unfrozen before: {unfrozen}")).await;
    }
}

/// Seed 39: the parent's event has a wrong claim, so the parent is accepted by a block only, and the child waits for
/// that. Before the block a command names the child, which is stored. In a rebuild the child waited for the block, and
/// the command for the child. Seed 4888: the same for a grandchild, which waited for its parent in flight and did not
/// check whether a command asked for it. Protects: in a rebuild a command causes the creation of its accepted subject.
#[tokio::test(start_paused = true)]
async fn a_rebuild_applies_a_command_before_the_block_that_accepts_its_subject() {
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
        world.command(1, CommandAction::Preserve { txid: named.txid, until: 900 }).await;
        world.mine(1, &[&parent]).await;
        world.until_consumed().await;
        running.stop().await;
        for made in [&parent, &child, &grandchild] {
            assert_eq!(state(&world, made).await, TxState::Live, "{generations}: {}", made.txid);
        }
        world.check(&format!("a command before a block, {generations} behind what it lists")).await;
    }
}

/// Removes a transaction, and its spend of the only output of `parent`, as a node's restart does.
async fn forget_with_spend(world: &World, made: &Made, parent: &Made) {
    let stored = world.page(parent).await.unwrap();
    let utxos = Some(vec![Slot::Unspent(parent.coin(0).utxo_hash())]);
    let free = Page { utxos, spent_utxos: 0, ..Page::clone(&stored) };
    world.memory.put(Key::master(parent.txid), Some(Record::Page(free.into())));
    world.memory.put(Key::master(made.txid), None);
}

/// A node forgot a transaction whose child and grandchild were live. The transaction lost to a rival when its event
/// came again, until a block listed the transaction. Commands on the transaction and on the grandchild are before that
/// block (simulator, seeds 1620 and 5007). In a rebuild the first command makes the transaction wait for the block; the
/// child, which no decision names, waited for the transaction, and the second command for the grandchild.
/// Protects: in a rebuild a child that ends live does not wait for the verdict that accepts its parent.
#[tokio::test(start_paused = true)]
async fn a_rebuild_applies_a_command_on_the_grandchild_of_an_accepted_transaction() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (parent, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[parent.coin(0)], 1, 3);
    let grandchild = spend(&[child.coin(0)], 1, 4);
    let running = world.start();
    for made in [&parent, &child, &grandchild] {
        world.validate(made).await;
        world.until_consumed().await;
    }
    world.command(1, CommandAction::Preserve { txid: parent.txid, until: 900 }).await;
    world.command(2, CommandAction::Preserve { txid: grandchild.txid, until: 900 }).await;
    world.until_consumed().await;
    forget_with_spend(&world, &parent, &seed).await;
    for made in [&rival, &parent] {
        world.validate(made).await;
        world.until_consumed().await;
    }
    assert!(matches!(state(&world, &parent).await, TxState::Conflicting(_)));
    world.mine(1, &[&parent]).await;
    world.until_consumed().await;
    world.validate(&child).await;
    world.until_consumed().await;
    world.command(3, CommandAction::Preserve { txid: parent.txid, until: 900 }).await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&parent, &child, &grandchild] {
        assert_eq!(state(&world, made).await, TxState::Live, "{}", made.txid);
    }
    let world = HoldingEngine::delay_in_rebuilds(world, Duration::from_secs(1), is_create_of, parent.txid);
    world.check_without_model("a command before the block that its grandparent waits for").await;
}

/// Before the first block a transaction is preserved, becomes conflicting and is deleted (simulator, seed 119; the
/// model took the height 0). Protects: `preserveUntil` is compared with the height of the transaction's own record.
#[tokio::test(start_paused = true)]
async fn before_the_first_block_a_deletion_goes_by_the_height_of_the_record() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let running = world.start();
    for (vout, until, is_deleted) in [(0, 300, true), (1, 301, false)] {
        let made = spend(&[seed.coin(vout)], 1, vout as u8);
        let txid = made.txid;
        world.validate_at(&made, 300).await;
        world.until_consumed().await;
        let actions = [
            CommandAction::Preserve { txid, until },
            CommandAction::SetConflicting { txid },
            CommandAction::Delete { txid },
        ];
        let first = 1 + 3 * vout as u8;
        for (action, id) in actions.into_iter().zip(first..) {
            world.command(id, action).await;
        }
        world.until_consumed().await;
        let [result] = world.results(first + 2).await.try_into().unwrap();
        let is_refused = matches!(&result, CommandResult::Refused { code, .. } if code == "NOT_PRUNABLE");
        assert_eq!((result == CommandResult::Applied, is_refused), (is_deleted, !is_deleted), "{result:?}");
        assert_eq!(matches!(state(&world, &made).await, TxState::Pruned(300)), is_deleted);
    }
    running.stop().await;
    world.check("deleted before the first block").await;
}

/// An output was reassigned, and a block lists the former owner's spend. Protects: a block does not correct claims that
/// were true before the reassignment. Such a block is impossible, and the chain halts with the name of the transaction.
#[tokio::test(start_paused = true)]
async fn a_block_with_a_spend_of_a_former_owner_halts_the_chain() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (coin, outpoint) = (seed.coin(0), seed.coin(0).outpoint);
    let former = spend(slice::from_ref(&coin), 1, 1);
    let running = world.start();
    world.command(1, CommandAction::Freeze { outpoint }).await;
    let reassign = CommandAction::Reassign {
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
    wait_longer_than_a_block().await;
    let reasons = reasons(&running);
    assert!(reasons.contains(&former.txid.to_string()) && reasons.contains("Mismatch"), "{reasons}");
    running.kill().await;
    assert_eq!(world.page(&former).await.unwrap().body(), Some(&Body::Transaction(former.extended.clone())));
}

/// Every event is applied again to a store that has lost its last writes. A slot that a verdict gave to a transaction
/// was frozen after that transaction became conflicting. Protects: a slot that the later conflicting holder cannot get
/// stays with its present state.
#[tokio::test(start_paused = true)]
async fn a_reapplied_verdict_leaves_a_slot_that_was_frozen_later() {
    let (world, coin) = never_committed().await;
    let outpoint = coin.outpoint;
    let (winner, loser) = (spend(slice::from_ref(&coin), 1, 1), spend(slice::from_ref(&coin), 1, 2));
    let running = world.start();
    world.validate(&winner).await;
    world.validate(&loser).await;
    until(async || world.page(&loser).await.is_some()).await;
    until(async || has_lost(&world, &loser).await).await;
    world.command(1, CommandAction::SetConflicting { txid: winner.txid }).await;
    until(async || world.page(&loser).await.is_some_and(|page| page.state() == TxState::Live)).await;
    world.command(2, CommandAction::SetConflicting { txid: loser.txid }).await;
    world.command(3, CommandAction::Freeze { outpoint }).await;
    until(async || !world.results(3).await.is_empty()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(loser.txid));
    running.kill().await;
    let world = committing(world);
    world.run_until_consumed().await;
    assert!(has_lost(&world, &winner).await && has_lost(&world, &loser).await);
    world.check_after_forgetting("a verdict and a freeze").await;
}

/// A node loses a freeze and the mark made before its decision; a spend comes between the check of the slot and the
/// freeze. Protects: a freeze that is applied again marks again.
#[tokio::test(start_paused = true)]
async fn a_spend_during_a_reapplied_freeze_is_refused() {
    let (world, coin) = never_committed().await;
    let outpoint = coin.outpoint;
    let running = world.start();
    world.command(1, CommandAction::Freeze { outpoint }).await;
    until(async || !world.results(1).await.is_empty()).await;
    running.kill().await;
    assert!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(outpoint.txid)) > Some(0));
    let holding = HoldingEngine::hold_first(&world, move |row| {
        matches!(row.operation, Operation::Sequenced(_, Sequenced::Freeze { .. }))
    });
    let late = spend(&[coin], 1, 1);
    let world = committing(world);
    let running = holding.in_front_of(&world).start();
    holding.wait_for_held(1).await;
    world.validate(&late).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(reason(&world, &late).await, Some(Reason::Frozen { input: 0 }));
    world.check_after_forgetting("a forgotten freeze").await;
}

/// Returns a world over a store that may lose writes, with no commits on the chain, and one spendable output.
async fn never_committed() -> (World, Coin) {
    let mut world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    world.settings.sequencer.commit_interval = Duration::from_secs(3_600);
    (world, seed.coin(0))
}

/// Returns the same world with commits on the chain.
fn committing(mut world: World) -> World {
    world.settings.sequencer.commit_interval = Duration::from_millis(100);
    world
}

/// The spender has taken the slot, but has no record yet. Protects: `Unspend` contests the spender first, so that the
/// spender does not become live without its slot.
#[tokio::test(start_paused = true)]
async fn unspend_contests_a_spender_in_flight() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let spender = spend(&[seed.coin(0), seed.coin(1)], 1, 1);
    let txid = spender.txid;
    let holding = HoldingEngine::hold_all(&world, move |row| is_create_of(row, txid));
    let running = holding.in_front_of(&world).start();
    world.validate(&spender).await;
    holding.wait_for_held(1).await;
    assert_eq!(holder(&world, &seed.coin(0)).await, Some(txid));
    world.command(1, CommandAction::Unspend { outpoint: seed.coin(0).outpoint, spender: txid, input: 0 }).await;
    while world.results(1).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.results(1).await, [CommandResult::Applied]);
    assert_eq!(holder(&world, &seed.coin(0)).await, None);
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &spender).await, TxState::Live, "the contest gave the slot back");
    assert_eq!(holder(&world, &seed.coin(0)).await, Some(txid));
    world.check("an unspend of a spender in flight").await;
}
