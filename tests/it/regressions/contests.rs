//! Winners, losers and their descendants, live and in a rebuild.

use std::time::Duration;

use utxo_store::{
    event::CommandAction,
    record::{Key, Reason, Sequenced, TxState},
};

use super::{
    has_lost, holder,
    holding_engine::{HoldingEngine, is_create_of, is_sequenced, is_spend, is_spend_by, is_work_of},
    reason, state,
};
use crate::{
    harness::{Coin, LOSS_WINDOW, Made, World, WorldSettings, spend, spend_claiming},
    node_restarts::until,
};

/// T takes A and loses B, U takes B and loses A. Protects: a contested transaction without a verdict is no winner; the
/// first contest in the log takes the slots from it.
#[tokio::test(start_paused = true)]
async fn two_crossing_holders_get_one_winner() {
    let world = World::new().await;
    let (a, b) = (world.seed(1, 1).await, world.seed(2, 1).await);
    let t = spend(&[a.coin(0), b.coin(0)], 1, 1);
    let u = spend(&[b.coin(0), a.coin(0)], 1, 2);
    let late = [(b.txid, t.txid), (a.txid, u.txid)];
    let holding = HoldingEngine::hold_all(&world, move |row| {
        late.iter().any(|(parent, spender)| is_spend(row, *parent, *spender))
    });
    let running = holding.in_front_of(&world).start();
    world.validate(&t).await;
    world.validate(&u).await;
    holding.wait_for_held(2).await;
    assert_eq!(holder(&world, &a.coin(0)).await, Some(t.txid));
    assert_eq!(holder(&world, &b.coin(0)).await, Some(u.txid));
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    let winner = holder(&world, &a.coin(0)).await;
    assert_eq!(holder(&world, &b.coin(0)).await, winner);
    let (winner, loser) = if winner == Some(t.txid) { (&t, &u) } else { (&u, &t) };
    assert_eq!((state(&world, winner).await, has_lost(&world, loser).await), (TxState::Live, true));
    world.check("crossing holders").await;
}

/// Protects: spends attached to a create are applied only if that create is; if the record exists, they are not.
#[tokio::test(start_paused = true)]
async fn a_repeated_parent_does_not_apply_attached_spends() {
    let world = World::new().await;
    let running = world.start();
    let mut histories = Vec::new();
    // Parent and child have to be in flight together: of eight pairs some are.
    for tag in 1..=8 {
        let seed = world.seed(tag, 1).await;
        let parent = spend(&[seed.coin(0)], 1, tag);
        let rival = spend(&[parent.coin(0)], 1, 100 + tag);
        world.validate(&parent).await;
        world.validate(&rival).await;
        histories.push((parent.clone(), rival, spend(&[parent.coin(0)], 1, 200 + tag)));
    }
    world.until_consumed().await;
    for (parent, _, child) in &histories {
        world.validate(parent).await;
        world.validate(child).await;
    }
    world.until_consumed().await;
    running.stop().await;
    for (parent, rival, child) in &histories {
        assert_eq!(holder(&world, &parent.coin(0)).await, Some(rival.txid));
        assert!(has_lost(&world, child).await);
    }
    world.check("duplicate parents").await;
}

/// The spend or the create of a child is in flight while its parent becomes conflicting. Protects: a spender without a
/// record becomes a stub when its parent becomes conflicting, a transaction with a contested record is not live, and no
/// output of a conflicting transaction is spendable.
#[tokio::test(start_paused = true)]
async fn a_child_created_while_its_parent_becomes_conflicting_is_refused() {
    for created in [false, true] {
        let world = World::new().await;
        let seed = world.seed(1, 1).await;
        let (parent, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
        let child = spend(&[parent.coin(0)], 1, 3);
        let txid = child.txid;
        let late =
            move |row: &utxo_store::engine::Row| if created { is_create_of(row, txid) } else { is_spend_by(row, txid) };
        let holding = HoldingEngine::hold_all(&world, late);
        let running = holding.in_front_of(&world).start();
        for made in [&parent, &rival] {
            world.validate(made).await;
            world.until_consumed().await;
        }
        world.validate(&child).await;
        holding.wait_for_held(1).await;
        world.mine(1, &[&rival]).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(has_lost(&world, &parent).await);
        holding.release().await;
        world.until_consumed().await;
        running.stop().await;
        assert!(has_lost(&world, &child).await, "created: {created}");
        world.check(&format!("a child whose parent falls, created: {created}")).await;
    }
}

/// D spends f1, B spends f0, A both; delivered B A D. A loses f0, and its slot of f1 is settled; D is contested by that
/// and accepted. A rebuild meets them in every order. Protects: in a rebuild a transaction that the first decision
/// found contested takes no slot.
#[tokio::test(start_paused = true)]
async fn a_rebuild_ignores_the_slots_that_a_loser_had_taken() {
    for late in 0..3 {
        let world = World::new().await;
        let (f0, f1) = (world.seed(1, 1).await, world.seed(2, 1).await);
        let b = spend(&[f0.coin(0)], 1, 1);
        let a = spend(&[f0.coin(0), f1.coin(0)], 1, 2);
        let d = spend(&[f1.coin(0)], 1, 3);
        let late_one = [&b, &a, &d][late].txid;
        let world = HoldingEngine::delay_in_rebuilds(world, Duration::from_secs(2), is_work_of, late_one);
        let running = world.start();
        for made in [&b, &a, &d] {
            world.validate(made).await;
            world.until_consumed().await;
        }
        running.stop().await;
        for made in [&b, &d] {
            assert_eq!(state(&world, made).await, TxState::Live);
        }
        assert!(has_lost(&world, &a).await);
        world.check(&format!("late in the rebuild: {late}")).await;
    }
}

/// The loser names a slot that an honest transaction holds, and the verdict marks the slot. A block accepts their
/// parent, because the honest spend would be attached to its create otherwise. Protects: a rebuild ignores marks for
/// transactions that won.
#[tokio::test(start_paused = true)]
async fn a_rebuild_ignores_marks_for_transactions_that_won() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (beaten, parent) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let honest = spend(&[parent.coin(0)], 1, 3);
    let child = spend(&[honest.coin(0)], 1, 4);
    let loser = spend(&[parent.coin(0)], 1, 5);
    let world = HoldingEngine::delay_in_rebuilds(world, Duration::from_secs(2), is_work_of, honest.txid);
    let running = world.start();
    for made in [&beaten, &parent] {
        world.validate(made).await;
        world.until_consumed().await;
    }
    world.mine(1, &[&parent]).await;
    world.until_consumed().await;
    for made in [&honest, &child, &loser] {
        world.validate(made).await;
        world.until_consumed().await;
    }
    running.stop().await;
    assert!(has_lost(&world, &loser).await);
    for made in [&honest, &child] {
        assert_eq!(state(&world, made).await, TxState::Live);
    }
    world.check("a settled slot").await;
}

/// Protects: a verdict is final for the txid. A repeated event of a loser completes at once: the log does not grow, and
/// a rebuild does not wait for a parent that never comes.
#[tokio::test(start_paused = true)]
async fn a_redelivered_loser_is_complete_at_once() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (loser, winner) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[loser.coin(0)], 1, 3);
    let running = world.start();
    world.validate(&loser).await;
    world.validate(&child).await;
    world.until_consumed().await;
    world.validate(&winner).await;
    world.mine(1, &[&winner]).await;
    world.until_consumed().await;
    let (events, decisions) = (world.count("chain").await, world.count("decisions").await);
    for _ in 0..2 {
        world.validate(&loser).await;
        world.until_consumed().await;
    }
    assert_eq!((world.count("chain").await, world.count("decisions").await), (events, decisions));
    // The verdict of a descendant may be older than its body: its contest makes its parents list it, and is passed
    // over.
    world.validate(&child).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!((world.count("chain").await, world.count("decisions").await), (events + 1, decisions + 1));
    assert!(has_lost(&world, &loser).await && has_lost(&world, &child).await);
    world.check("a redelivered loser").await;
}

/// A live transaction is about to become conflicting by a block when a child takes one of its outputs. Protects: a
/// transaction is flagged before its slots are read: a later spender is refused.
#[tokio::test(start_paused = true)]
async fn a_child_spent_just_before_its_parent_is_flagged_conflicts_too() {
    for deep in [false, true] {
        let world = World::new().await;
        let seed = world.seed(1, 1).await;
        let (loser, rival) = (spend(&[seed.coin(0)], 2, 1), spend(&[seed.coin(0)], 1, 2));
        let member = spend(&[loser.coin(0)], 1, 3);
        let flagged = if deep { &member } else { &loser };
        let child = spend(&[flagged.coin(flagged.outputs.len() as u32 - 1)], 1, 4);
        let of = flagged.txid;
        let wanted = |operation: &Sequenced| matches!(operation, Sequenced::MarkConflicting { .. });
        let holding = HoldingEngine::hold_first(&world, move |row| is_sequenced(row, of, wanted));
        let running = holding.in_front_of(&world).start();
        for made in [&loser, &member, &rival] {
            world.validate(made).await;
            world.until_consumed().await;
        }
        world.mine(1, &[&rival]).await;
        holding.wait_for_held(1).await;
        world.validate(&child).await;
        while world.page(&child).await.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(
            state(&world, &child).await,
            TxState::Live,
            "no record says yet that its parent becomes conflicting"
        );
        holding.release().await;
        world.until_consumed().await;
        running.stop().await;
        assert_eq!(reason(&world, &child).await, Some(Reason::ConflictingParent { parent: of }), "deep: {deep}");
        world.check("a child just before its parent is flagged").await;
    }
}

/// A block accepts the rival of a transaction with many children, each of which had taken a coin from a rival of its
/// own. Protects: transactions that become conflicting together release all their slots, and all their parents list
/// them, also if a node loses those parents meanwhile.
#[tokio::test(start_paused = true)]
async fn many_conflicting_children_release_the_slots_of_their_rivals() {
    for kill_after_ms in [None, Some(2), Some(5), Some(10), Some(20), Some(50)] {
        let loss_window = if kill_after_ms.is_some() { LOSS_WINDOW } else { Duration::ZERO };
        let settings =
            WorldSettings { descendants_per_decision: 64, page_size: 7, loss_window, ..WorldSettings::calm() };
        let world = World::with_settings(settings).await;
        let (root, other) = (world.seed(1, 1).await, world.seed(2, 20).await);
        let (loser, winner) = (spend(&[root.coin(0)], 20, 1), spend(&[root.coin(0)], 1, 2));
        let coin = |vout| [loser.coin(vout), other.coin(vout)];
        let children: Vec<Made> = (0..20).map(|vout| spend(&coin(vout), 1, 3)).collect();
        let rivals: Vec<Made> = (0..20).map(|vout| spend(&[other.coin(vout)], 1, 4)).collect();
        world.validate(&loser).await;
        for made in &children {
            world.validate(made).await;
        }
        world.run_until_consumed().await;
        world.validate(&winner).await;
        for made in &rivals {
            world.validate(made).await;
        }
        world.run_until_consumed().await;
        for made in rivals.iter().chain([&winner]) {
            assert!(has_lost(&world, made).await);
        }
        world.mine(1, &[&winner]).await;
        if let Some(ms) = kill_after_ms {
            let running = world.start();
            while world.count("decisions").await < 24 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(ms)).await;
            running.kill().await;
            world.nodes.restart_nodes(LOSS_WINDOW, |key| matches!(key, Key::Page(txid, _) if txid.0[0] % 2 == 0));
        }
        world.run_until_consumed().await;
        for made in rivals.iter().chain([&winner]) {
            assert_eq!(state(&world, made).await, TxState::Live, "{kill_after_ms:?}: {}", made.txid);
        }
        for made in children.iter().chain([&loser]) {
            assert!(has_lost(&world, made).await, "{kill_after_ms:?}: {}", made.txid);
        }
        match kill_after_ms {
            None => world.check("many fall together").await,
            Some(_) => world.check_after_forgetting(&format!("many fall together, {kill_after_ms:?}")).await,
        }
    }
}

/// A child takes a slot of its first parent and waits for the lock of the second one. A block makes the first parent
/// conflicting, and the child with it, before the child has a body. A command reconsiders the child before the child's
/// own contest is handled (simulator, seeds 1934 and 13330). Protects: a slot that a contestant holds of a conflicting
/// parent is none.
#[tokio::test(start_paused = true)]
async fn a_slot_of_a_conflicting_parent_does_not_make_a_child_win() {
    let world = World::new().await;
    let (a, b, c) = (world.seed(1, 1).await, world.seed(2, 1).await, world.seed(3, 1).await);
    let (parent, rival) = (spend(&[a.coin(0)], 1, 1), spend(&[a.coin(0)], 1, 2));
    let locked = spend(&[b.coin(0)], 1, 3);
    let child = spend(&[parent.coin(0), locked.coin(0)], 1, 4);
    let slow = spend(&[c.coin(0)], 1, 5);
    let txid = child.txid;
    let holding = HoldingEngine::hold_all(&world, move |row| is_create_of(row, txid));
    let running = holding.in_front_of(&world).start();
    world.validate(&parent).await;
    world.validate_locked(&locked).await;
    world.until_consumed().await;
    world.validate(&child).await;
    until(async || holder(&world, &parent.coin(0)).await == Some(child.txid)).await;
    world.validate(&rival).await;
    world.mine(1, &[&rival, &locked, &slow]).await;
    until(async || has_lost(&world, &parent).await).await;
    holding.wait_for_held(1).await;
    world.command(1, CommandAction::Reconsider { txid: child.txid }).await;
    holding.release().await;
    until(async || world.page(&child).await.is_some_and(|page| page.utxos.is_some())).await;
    world.validate(&slow).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(reason(&world, &child).await, Some(Reason::ConflictingParent { parent: parent.txid }));
    world.check("a slot of a conflicting parent").await;
}

/// A transaction lost for the wrong claims of its first event. Its second event has true claims and meets a rival. The
/// rival then becomes conflicting (simulator, seed 17902). Protects: the verdict and the body of the first event stay,
/// and the second event, once it comes again, is judged as any later event.
#[tokio::test(start_paused = true)]
async fn an_event_with_true_claims_that_met_a_rival_is_judged_once_it_comes_again() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (coin, rival) = (seed.coin(0), spend(&[seed.coin(0)], 1, 1));
    let claimed = Coin { satoshis: coin.satoshis + 1, ..coin.clone() };
    let coins = [coin.clone()];
    let (honest, wrong) = (spend(&coins, 1, 2), spend_claiming(&coins, &[claimed], 1, 2));
    assert_eq!(honest.txid, wrong.txid);
    let running = world.start();
    for made in [&rival, &wrong, &honest] {
        world.validate(made).await;
        world.until_consumed().await;
    }
    world.command(1, CommandAction::SetConflicting { txid: rival.txid }).await;
    world.until_consumed().await;
    assert_eq!(reason(&world, &honest).await, Some(Reason::Mismatch { input: 0 }));
    world.check("the body that was decided stays").await;
    world.validate(&honest).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!((state(&world, &honest).await, holder(&world, &coin).await), (TxState::Live, Some(honest.txid)));
    world.check("an event with true claims came again").await;
}
