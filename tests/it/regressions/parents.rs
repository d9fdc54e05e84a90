//! Parents that come late, or never.

use std::time::Duration;

use utxo_store::{
    event::Action,
    group::proof::{ChainProgress, ChainView},
    record::{Outcome, Reason, Sequenced, TxState},
};

use super::{
    has_lost,
    held::{Held, is_sequenced, is_spend},
    holder, reason, state,
};
use crate::{
    made_blocks::MadeBlock,
    world::{World, coinbase, spend},
};

/// Seed 12: the child's event is older than that of its parent, and the grandparent never comes. The child waited for the
/// parent, and the parent could not be proven to have no parent while something older was unfinished: the child.
/// Protects: a parent that came behind its child and waits itself is not waited for after the grace.
#[tokio::test(start_paused = true)]
async fn a_child_before_its_parent_whose_own_parent_never_comes() {
    for world in [World::new().await, World::forgetful().await] {
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
            assert!(has_lost(&world, made).await, "{}", made.txid);
        }
        running.stop().await;
        world.check("a child before its parent").await;
    }
}

/// The verdict that a parent is missing is in the log, and before its place is taken by a stub the parent comes, and is live at
/// once: nobody decides on it, so nobody would think of the child again.
/// Protects: who lost for a parent that is live by the time its slots are settled has a second chance.
#[tokio::test(start_paused = true)]
async fn a_missing_parent_that_comes_between_the_verdict_and_its_stub() {
    let world = World::new().await;
    let parent = spend(&[world.seed(1, 1).await.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let of = parent.txid;
    let held = Held::the_first(&world, move |row| {
        is_sequenced(row, of, |operation| matches!(operation, Sequenced::Settle(_)))
    });
    let running = held.before(&world).start();
    world.validate(&child).await;
    held.until_kept(1).await;
    world.validate(&parent).await;
    while world.page(&parent).await.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    held.let_go().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!((state(&world, &parent).await, state(&world, &child).await), (TxState::Live, TxState::Live));
    world.check("a missing parent that comes between the verdict and its stub").await;
}

/// A spend is on its way when its parent is proven missing; the parent comes after all, and the spend lands on it at once.
/// Protects: a parent that is missing by verdict becomes a stub, so that its slots can be marked and it waits for a verdict.
#[tokio::test(start_paused = true)]
async fn a_late_spend_of_a_missing_parent_that_has_just_come() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let winner = spend(&[seed.coin(1)], 1, 2);
    let child = spend(&[parent.coin(0), seed.coin(1)], 1, 3);
    let (slot_of, spender) = (parent.txid, child.txid);
    let held = Held::the_first(&world, move |row| is_spend(row, slot_of, spender));
    let zombie = held.before(&world).start();
    world.validate(&winner).await;
    world.until_consumed().await;
    world.validate(&child).await;
    held.until_kept(1).await;
    zombie.kill().await;

    let running = world.start();
    world.until_consumed().await;
    assert_eq!(reason(&world, &child).await, Some(Reason::MissingParent { parent: parent.txid }));
    world.validate(&parent).await;
    while world.page(&parent).await.is_none_or(|page| page.utxos.is_none()) {
        tokio::task::yield_now().await;
    }
    let late = held.let_go().await;
    assert!(matches!(late[..], [Outcome::Rejected(_)]), "{late:?}");
    world.until_consumed().await;
    running.stop().await;
    assert_eq!((state(&world, &parent).await, holder(&world, &parent.coin(0)).await), (TxState::Live, None));
    world.check("a late spend of a missing parent").await;
}

/// A child was refused because its parent was locked, and the next block unlocks the parent without listing the child.
/// Protects: what a block unlocks gives those a second chance who were refused for the lock.
#[tokio::test(start_paused = true)]
async fn a_block_unlocks_the_parent_of_who_was_refused_for_it() {
    let world = World::new().await;
    let parent = spend(&[world.seed(1, 1).await.coin(0)], 2, 1);
    let (child, other) = (spend(&[parent.coin(0)], 1, 2), spend(&[parent.coin(1)], 1, 3));
    let grandchild = spend(&[child.coin(0)], 1, 4);
    let running = world.start();
    world.validate_locked(&parent).await;
    for made in [&child, &grandchild, &other] {
        world.validate(made).await;
    }
    world.until_consumed().await;
    assert_eq!(reason(&world, &child).await, Some(Reason::Locked { parent: parent.txid }));
    world.mine(1, &[&parent]).await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&parent, &child, &grandchild, &other] {
        assert_eq!(state(&world, made).await, TxState::Live, "{}", made.txid);
    }
    world.check("a block unlocks the parent of who was refused for it").await;
}

/// Both parents of a child wait for a lock, longer than the grace of a missing parent: one came behind it, the event of the other is older.
/// Protects: nobody is contested before every parent whose event is older has come to its end, or that one would be "missing".
#[tokio::test(start_paused = true)]
async fn a_child_waits_for_its_older_parent_before_another_one_counts_as_missing() {
    let world = World::new().await;
    let locked = spend(&[world.seed(1, 1).await.coin(0)], 2, 1);
    let (older, behind) = (spend(&[locked.coin(0)], 1, 2), spend(&[locked.coin(1)], 1, 3));
    let child = spend(&[older.coin(0), behind.coin(0)], 1, 4);
    let running = world.start();
    world.validate_locked(&locked).await;
    for made in [&older, &child, &behind] {
        world.validate(made).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(reason(&world, &older).await, Some(Reason::Locked { parent: locked.txid }));
    assert_eq!(reason(&world, &child).await, Some(Reason::ConflictingParent { parent: older.txid }));
    world.check("an older parent").await;
}

/// A block was produced before a command, and is fed behind it: the chain is in no order of time.
/// Protects: nobody is proven missing who comes with a block that is fed and not handled.
#[tokio::test(start_paused = true)]
async fn a_block_that_is_fed_behind_what_is_younger_is_not_handled() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let produced_at = world.clock.now_ms() as i64;
    world.mine(1, &[]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.command(1, Action::Lock { txid: seed.txid }).await;
    world.command(2, Action::Unlock { txid: seed.txid }).await;
    let held = Held::late(&world, Duration::from_secs(10), move |row| {
        is_sequenced(row, seed.txid, |operation| matches!(operation, Sequenced::SetLocked(_)))
    });
    let running = held.before(&world).start();
    // The first command is done, and committed with what the feed has done meanwhile; the second is not.
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(world.end("chain", 0).await, 3, "the commands, and the block behind them");
    let progress = world.chain_progress();
    assert_eq!(
        progress.view().await.unwrap(),
        ChainView::Unknown,
        "who looks for the first time cannot say whether it moves"
    );
    let ChainView::Behind(since) = progress.view().await.unwrap() else { panic!("the command is not handled") };
    assert!((produced_at..produced_at + 1_000).contains(&since), "{since}, and the block is of {produced_at}");
    world.until_consumed().await;
    running.stop().await;
    world.check("a block behind what is younger").await;
}

/// Behind the last block of a topic lie a repeat, another block under its sequence, and what is no event.
/// Protects: they are handled when that block is, or every look at the chain would read them again; and not before.
#[tokio::test(start_paused = true)]
async fn what_is_behind_the_last_block_is_handled_with_it() {
    let world = World::new().await;
    let listed = spend(&[world.seed(1, 1).await.coin(0)], 1, 1);
    world.mine(1, &[&listed]).await;
    world.mine(1, &[&listed]).await;
    world.bring(1, &MadeBlock::new(9, 101, &coinbase(9), &[])).await;
    world.produce("block-mined", b"", vec![9]).await;
    world.produce("reorgs", b"", vec![9]).await;
    for handled in [false, true] {
        if handled {
            world.validate(&listed).await;
        }
        let running = world.start();
        tokio::time::sleep(Duration::from_secs(5)).await;
        running.stop().await;
        let state = world.chain_state().await;
        let expected = if handled { (4, 1) } else { (0, 0) };
        assert_eq!(
            (state.handled(), state.block_mined_next, state.reorgs_next),
            (expected, 4, 1),
            "handled: {handled}"
        );
    }
    assert_eq!(world.count("dead-letters").await, 3);
    world.check_without_model("behind the last block").await;
}
