//! Parents that are produced late, or never.

use std::time::Duration;

use utxo_store::{
    event::CommandAction,
    group::missing_parent::{ChainProgress, ChainView},
    record::{Outcome, Reason, Sequenced, TxState},
};

use super::{
    has_lost, holder,
    holding_engine::{HoldingEngine, is_sequenced, is_spend},
    reason, state,
};
use crate::{
    harness::{World, coinbase, spend},
    made_blocks::MadeBlock,
};

/// Seed 12: the child's event is older than that of its parent, and the grandparent is never produced. The child waited
/// for the parent, and the grandparent could not be proven missing while an older event, the child's, was unfinished.
/// Protects: after the grace a child does not wait for a later parent that waits itself.
#[tokio::test(start_paused = true)]
async fn a_child_does_not_wait_for_a_later_parent_whose_own_parent_is_missing() {
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

/// The verdict that a parent is missing is in the log. Before the stub is written the parent is created and live at
/// once: no decision names it, so no decision would reconsider the child. Protects: a child that lost for a parent
/// which is live when its slots are settled gets a second chance.
#[tokio::test(start_paused = true)]
async fn a_parent_created_between_the_verdict_and_its_stub_gives_a_second_chance() {
    let world = World::new().await;
    let parent = spend(&[world.seed(1, 1).await.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let of = parent.txid;
    let holding = HoldingEngine::hold_first(&world, move |row| {
        is_sequenced(row, of, |operation| matches!(operation, Sequenced::Settle(_)))
    });
    let running = holding.in_front_of(&world).start();
    world.validate(&child).await;
    holding.wait_for_held(1).await;
    world.validate(&parent).await;
    while world.page(&parent).await.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!((state(&world, &parent).await, state(&world, &child).await), (TxState::Live, TxState::Live));
    world.check("a missing parent that comes between the verdict and its stub").await;
}

/// A spend is in flight when its parent is proven missing; the parent is created after all, and the spend reaches it at
/// once. Protects: a parent that is missing by verdict becomes a stub, so that its slots can be marked and it waits for
/// a verdict.
#[tokio::test(start_paused = true)]
async fn a_late_spend_of_a_parent_created_after_the_verdict_is_refused() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let winner = spend(&[seed.coin(1)], 1, 2);
    let child = spend(&[parent.coin(0), seed.coin(1)], 1, 3);
    let (slot_of, spender) = (parent.txid, child.txid);
    let holding = HoldingEngine::hold_first(&world, move |row| is_spend(row, slot_of, spender));
    let zombie = holding.in_front_of(&world).start();
    world.validate(&winner).await;
    world.until_consumed().await;
    world.validate(&child).await;
    holding.wait_for_held(1).await;
    zombie.kill().await;

    let running = world.start();
    world.until_consumed().await;
    assert_eq!(reason(&world, &child).await, Some(Reason::MissingParent { parent: parent.txid }));
    world.validate(&parent).await;
    while world.page(&parent).await.is_none_or(|page| page.utxos.is_none()) {
        tokio::task::yield_now().await;
    }
    let late = holding.release().await;
    assert!(matches!(late[..], [Outcome::Rejected(_)]), "{late:?}");
    world.until_consumed().await;
    running.stop().await;
    assert_eq!((state(&world, &parent).await, holder(&world, &parent.coin(0)).await), (TxState::Live, None));
    world.check("a late spend of a missing parent").await;
}

/// A child was refused because its parent was locked, and the next block unlocks the parent without listing the child.
/// Protects: a block that unlocks a parent gives the refused children a second chance.
#[tokio::test(start_paused = true)]
async fn a_block_that_unlocks_a_parent_reconsiders_the_refused_children() {
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

/// The first try of a child ends when its parents have been read. Both parents wait for a lock, longer than five graces
/// of a missing parent: the event of one is older than the event of the child, the event of the other is later.
/// Protects: a child is contested only after every older parent has ended; else the later parent would count as
/// missing.
#[tokio::test(start_paused = true)]
async fn an_older_parent_ends_before_a_later_one_counts_as_missing() {
    let mut world = World::new().await;
    (world.settings.pipeline.missing_parent_grace_ms, world.settings.pipeline.plan.flag_grace_ms) = (500, 9_000);
    let locked = spend(&[world.seed(1, 1).await.coin(0)], 2, 1);
    let (older, behind) = (spend(&[locked.coin(0)], 1, 2), spend(&[locked.coin(1)], 1, 3));
    let child = spend(&[older.coin(0), behind.coin(0)], 1, 4);
    let (slot_of, spender) = (older.txid, child.txid);
    let holding = HoldingEngine::hold_first(&world, move |row| is_spend(row, slot_of, spender));
    let running = holding.in_front_of(&world).start();
    world.validate_locked(&locked).await;
    world.validate(&child).await;
    holding.wait_for_held(1).await;
    world.clock.step(-500);
    world.validate(&older).await;
    world.clock.step(500);
    world.validate(&behind).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(reason(&world, &older).await, Some(Reason::Locked { parent: locked.txid }));
    assert_eq!(reason(&world, &child).await, Some(Reason::ConflictingParent { parent: older.txid }));
    world.check("an older parent").await;
}

/// A block was produced before a command and fed after it: the chain is not ordered by time. Protects: a coinbase is
/// not proven missing while its block is fed and not handled.
#[tokio::test(start_paused = true)]
async fn a_block_fed_after_younger_events_is_not_yet_handled() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let produced_at = world.clock.now_ms() as i64;
    world.mine(1, &[]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.command(1, CommandAction::Lock { txid: seed.txid }).await;
    world.command(2, CommandAction::Unlock { txid: seed.txid }).await;
    let holding = HoldingEngine::delay(&world, Duration::from_secs(10), move |row| {
        is_sequenced(row, seed.txid, |operation| matches!(operation, Sequenced::SetLocked(_)))
    });
    let running = holding.in_front_of(&world).start();
    // The first command is handled and committed, together with the progress of the feed; the second is not.
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(world.end("chain", 0).await, 3, "two commands and the block after them");
    let progress = world.chain_progress();
    assert_eq!(progress.view().await.unwrap(), ChainView::Unknown, "a first look cannot tell whether the chain moves");
    let ChainView::Unhandled(since) = progress.view().await.unwrap() else { panic!("the command is not handled") };
    assert!(
        (produced_at..produced_at + 1_000).contains(&since),
        "{since}, but the block was produced at {produced_at}"
    );
    world.until_consumed().await;
    running.stop().await;
    world.check("a block behind what is younger").await;
}

/// After the last block of a topic come a repeat, another block with the same sequence, and bytes that are no event.
/// Protects: these count as handled when that block is, and not before; otherwise every look at the chain would read
/// them again.
#[tokio::test(start_paused = true)]
async fn skipped_messages_after_the_last_block_count_as_handled_with_it() {
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
            (state.handled_offsets(), state.block_mined_next, state.reorgs_next),
            (expected, 4, 1),
            "handled: {handled}"
        );
    }
    assert_eq!(world.count("dead-letters").await, 3);
    world.check_without_model("behind the last block").await;
}
