//! Blocks that are disconnected and connected again, and late writes meanwhile.

use std::{
    slice::from_ref,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use utxo_store::{
    event::CommandAction,
    record::{Key, Operation, Outcome, Reason, Rejection, Sequenced, TxState},
};

use super::{
    has_lost, holder,
    holding_engine::{HoldingEngine, is_create_of},
    reason, state,
};
use crate::{
    harness::{LOSS_WINDOW, Made, World, coinbase, spend},
    made_blocks::MadeBlock,
    node_restarts::until,
};

async fn unmined_since(world: &World, made: &Made) -> Option<u32> {
    world.page(made).await.unwrap().master.as_ref().unwrap().unmined_since
}

/// Returns two blocks of one height.
fn rivals(listed: &[&Made]) -> (MadeBlock, MadeBlock) {
    let first = MadeBlock::new(1, 101, &coinbase(1), listed);
    let other = MadeBlock { previous: first.previous, ..MadeBlock::new(2, 101, &coinbase(2), &[]) };
    (first, other)
}

/// The first answer to a set-mined is lost, so it is sent again; the first request arrives once the block is
/// disconnected. Protects: an unset-mined stamps the record, and the record refuses an earlier stamp.
#[tokio::test(start_paused = true)]
async fn a_late_set_mined_of_a_disconnected_block_is_refused() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let listed = spend(&[seed.coin(0)], 1, 1);
    let (first, other) = rivals(&[&listed]);
    let txid = listed.txid;
    let holding = HoldingEngine::hold_first(&world, move |row| {
        row.key == Key::master(txid) && matches!(row.operation, Operation::Sequenced(_, Sequenced::SetMined { .. }))
    });
    let zombie = holding.in_front_of(&world).start();
    world.validate(&listed).await;
    world.bring(1, &first).await;
    holding.wait_for_held(1).await;
    zombie.kill().await;

    let running = world.start();
    world.reorganise(2, &[first], &[other]).await;
    world.until_consumed().await;
    assert_eq!(unmined_since(&world, &listed).await, Some(101));
    let late = holding.release().await;
    assert!(matches!(late[..], [Outcome::Rejected(Rejection::StaleStamp(_))]), "{late:?}");
    running.stop().await;
    world.check("a late set-mined").await;
}

/// Both blocks have one coinbase, and a write of the disconnect of the first arrives when the second is connected.
/// Protects: the writes of disconnected blocks have an earlier stamp than those of connected blocks.
#[tokio::test(start_paused = true)]
async fn a_late_disconnect_of_a_reconnected_coinbase_is_refused() {
    let world = World::new().await;
    world.seed(1, 1).await;
    let shared = coinbase(1);
    let (first, other) = rivals(&[]);
    let other = MadeBlock { coinbase: shared.clone(), ..other };
    let txid = shared.txid;
    let running = world.start();
    world.bring(1, &first).await;
    world.until_consumed().await;
    running.stop().await;
    let holding = HoldingEngine::hold_first(&world, move |row| {
        let falls =
            |operation: &Operation| matches!(operation, Operation::Sequenced(_, Sequenced::MarkConflicting { .. }));
        row.key == Key::master(txid) && falls(&row.operation)
    });
    let zombie = holding.in_front_of(&world).start();
    world.reorganise(2, &[first], &[other]).await;
    holding.wait_for_held(1).await;
    zombie.kill().await;

    let running = world.start();
    world.until_consumed().await;
    assert_eq!(state(&world, &shared).await, TxState::Live);
    let late = holding.release().await;
    assert!(matches!(late[..], [Outcome::Rejected(Rejection::StaleStamp(_))]), "{late:?}");
    running.stop().await;
    world.check("a late disconnect").await;
}

/// A block lists a transaction that is live by its own event. In later blocks the transaction loses to its rival and is
/// accepted again. A command on the transaction is before the first block (simulator, seed 10296). In a rebuild the
/// command makes the transaction wait for its last verdict, and the first block had no decision to accept it.
/// Protects: in a rebuild a block sets a listed transaction mined that a later verdict accepts.
#[tokio::test(start_paused = true)]
async fn a_rebuild_sets_a_listed_transaction_mined_that_a_later_block_accepts() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (winner, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[winner.coin(0)], 1, 3);
    let first = MadeBlock::new(1, 101, &coinbase(1), &[&winner]);
    let other = MadeBlock { previous: first.previous, ..MadeBlock::new(2, 101, &coinbase(2), &[&rival]) };
    let running = world.start();
    for made in [&winner, &rival, &child] {
        world.validate(made).await;
        world.until_consumed().await;
    }
    world.command(1, CommandAction::Preserve { txid: winner.txid, until: 900 }).await;
    world.bring(1, &first).await;
    world.until_consumed().await;
    world.reorganise(2, from_ref(&first), from_ref(&other)).await;
    world.until_consumed().await;
    assert!(has_lost(&world, &winner).await && has_lost(&world, &child).await);
    world.reorganise(3, from_ref(&other), from_ref(&first)).await;
    world.until_consumed().await;
    assert_eq!((state(&world, &winner).await, state(&world, &child).await), (TxState::Live, TxState::Live));
    running.stop().await;
    let world = HoldingEngine::delay_in_rebuilds(world, Duration::from_secs(1), is_create_of, winner.txid);
    world.check("a block before the verdict on its transaction").await;
}

/// Protects: a coinbase and its descendants become conflicting when its block is disconnected; the coinbase returns
/// with the block, and its descendants get a second chance.
#[tokio::test(start_paused = true)]
async fn a_disconnected_coinbase_returns_with_its_spender_at_every_moment() {
    for moment in ["before", "between", "after"] {
        for kill_after_ms in [None, Some(0), Some(1), Some(2), Some(3), Some(5), Some(8), Some(13), Some(30)] {
            let what = format!("{moment}, {kill_after_ms:?}");
            let world = World::new().await;
            world.seed(1, 1).await;
            let (first, other) = rivals(&[]);
            let spender = spend(&[first.coinbase.coin(0)], 1, 1);
            world.bring(1, &first).await;
            world.run_until_consumed().await;
            let of_moment = async |now: &str| {
                if now == moment {
                    world.validate_at(&spender, 300).await;
                }
                if let Some(ms) = kill_after_ms {
                    let running = world.start();
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    running.kill().await;
                }
                world.run_until_consumed().await;
            };
            of_moment("before").await;
            world.reorganise(2, std::slice::from_ref(&first), std::slice::from_ref(&other)).await;
            of_moment("between").await;
            assert!(has_lost(&world, &first.coinbase).await, "{what}");
            assert_eq!(world.page(&spender).await.is_some(), moment != "after", "{what}");
            assert!(moment == "after" || has_lost(&world, &spender).await, "{what}");
            world.reorganise(3, std::slice::from_ref(&other), std::slice::from_ref(&first)).await;
            of_moment("after").await;
            for made in [&first.coinbase, &spender] {
                assert_eq!(state(&world, made).await, TxState::Live, "{what}: {}", made.txid);
            }
            assert!(has_lost(&world, &other.coinbase).await, "{what}");
            assert_eq!(holder(&world, &first.coinbase.coin(0)).await, Some(spender.txid), "{what}");
            assert_eq!(
                (unmined_since(&world, &first.coinbase).await, unmined_since(&world, &other.coinbase).await),
                (None, Some(101))
            );
            world.check(&what).await;
        }
    }
}

/// A block is disconnected, and a `Reconsider` names its coinbase, which has no input that could bar it. Protects: only
/// its block restores a coinbase; a `Reconsider` would create coins from nothing.
#[tokio::test(start_paused = true)]
async fn a_disconnected_coinbase_is_not_reconsidered() {
    let world = World::new().await;
    world.seed(1, 1).await;
    let (first, other) = rivals(&[]);
    let running = world.start();
    world.bring(1, &first).await;
    world.reorganise(2, from_ref(&first), from_ref(&other)).await;
    world.until_consumed().await;
    world.command(1, CommandAction::Reconsider { txid: first.coinbase.txid }).await;
    world.until_consumed().await;
    assert!(has_lost(&world, &first.coinbase).await);
    world.reorganise(3, from_ref(&other), from_ref(&first)).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &first.coinbase).await, TxState::Live);
    assert!(has_lost(&world, &other.coinbase).await);
    world.check("a coinbase that is not reconsidered").await;
}

/// A transaction is slow to be stored, and its children wait for it. Meanwhile the block whose coinbase one of them
/// descends from is disconnected, and a block that lists the other is connected. Protects: a reorg waits only for the
/// transactions that it lists, and a parked transaction is checked against the present chain when its parent is
/// created.
#[tokio::test(start_paused = true)]
async fn a_reorg_waits_only_for_the_parked_transactions_that_it_lists() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let slow = spend(&[seed.coin(0)], 2, 1);
    let heir = spend(&[coinbase(1).coin(0)], 1, 2);
    let (child, of_both) = (spend(&[slow.coin(0)], 1, 3), spend(&[slow.coin(1), heir.coin(0)], 1, 4));
    let first = MadeBlock::new(1, 101, &coinbase(1), &[]);
    let other = MadeBlock { previous: first.previous, ..MadeBlock::new(2, 101, &coinbase(2), &[]) };
    let last = other.followed_by(3, &coinbase(3), &[&slow, &child]);
    world.bring(1, &first).await;
    world.validate_at(&heir, 300).await;
    world.run_until_consumed().await;
    let txid = slow.txid;
    let holding = HoldingEngine::hold_first(&world, move |row| is_create_of(row, txid));
    let running = holding.in_front_of(&world).start();
    for made in [&slow, &child, &of_both] {
        world.validate_at(made, 300).await;
    }
    holding.wait_for_held(1).await;
    world.reorganise(2, from_ref(&first), &[other, last]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(has_lost(&world, &heir).await, "its coinbase is disconnected");
    assert_eq!((world.page(&child).await, world.page(&of_both).await), (None, None), "both children wait");
    assert_eq!(world.chain_state().await.sequence, 1, "the reorg waits for what it lists");
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!((state(&world, &slow).await, state(&world, &child).await), (TxState::Live, TxState::Live));
    assert_eq!(reason(&world, &of_both).await, Some(Reason::ConflictingParent { parent: heir.txid }));
    world.check("a reorg while parents are parked").await;
}

/// A coinbase is disconnected with its child and grandchild, another one is connected, a listed transaction becomes
/// unmined, and the new block accepts a loser. Protects: a reorg interrupted before any write ends as if it had not
/// been interrupted.
#[tokio::test(start_paused = true)]
async fn a_reorg_interrupted_before_any_write_is_completed() {
    let mut writes = 0;
    loop {
        let world = World::new().await;
        let seed = world.seed(1, 3).await;
        let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
        let (listed, heir) = (spend(&[seed.coin(1)], 1, 3), spend(&[coinbase(1).coin(0)], 1, 4));
        let (second, of_winner) = (spend(&[heir.coin(0)], 1, 5), spend(&[winner.coin(0)], 1, 6));
        let first = MadeBlock::new(1, 101, &coinbase(1), &[&winner, &listed]);
        let other = MadeBlock { previous: first.previous, ..MadeBlock::new(2, 101, &coinbase(2), &[&loser]) };
        world.validate(&winner).await;
        world.run_until_consumed().await;
        for made in [&loser, &listed, &of_winner] {
            world.validate(made).await;
        }
        world.bring(1, &first).await;
        world.bring_aside(2, &other).await;
        for made in [&heir, &second] {
            world.validate_at(made, 300).await;
        }
        world.run_until_consumed().await;
        world.reorganise(3, from_ref(&first), from_ref(&other)).await;

        let done = AtomicUsize::new(0);
        let holding = HoldingEngine::hold_all(&world, move |row| {
            matches!(row.operation, Operation::Sequenced(..)) && done.fetch_add(1, Ordering::SeqCst) >= writes
        });
        let running = holding.in_front_of(&world).start();
        while holding.held_count() == 0 && !world.is_consumed().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let all_done = holding.held_count() == 0;
        running.kill().await;
        world.run_until_consumed().await;
        for (made, live) in [(&winner, false), (&loser, true), (&listed, true), (&heir, false), (&second, false)] {
            assert_eq!(has_lost(&world, made).await, !live, "{} before write {writes}", made.txid);
        }
        assert!(has_lost(&world, &of_winner).await, "before write {writes}");
        assert_eq!(unmined_since(&world, &listed).await, Some(101), "before write {writes}");
        world.check(&format!("a reorg that dies before write {writes}")).await;
        if all_done {
            break;
        }
        writes += 1;
    }
    assert!(writes > 15, "the reorg has only {writes} writes");
}

/// A block lists one of two rivals, and a reorg replaces the block by one that lists the other. A node restarts before
/// any commit, and both events are applied again (simulator, seed 12549 with `node-forgets`). Protects: a rival that a
/// later block mined does not halt the chain at the first block.
#[tokio::test(start_paused = true)]
async fn a_block_whose_rival_a_later_reorg_mined_is_applied_again() {
    let mut world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    world.settings.sequencer.commit_interval = Duration::from_secs(3_600);
    let (first, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let mined = MadeBlock::new(1, 101, &coinbase(1), &[&first]);
    let replacing = MadeBlock { previous: mined.previous, ..MadeBlock::new(2, 101, &coinbase(2), &[&rival]) };
    let running = world.start();
    world.validate(&first).await;
    until(async || world.page(&first).await.is_some_and(|page| page.state() == TxState::Live)).await;
    world.validate(&rival).await;
    world.bring(1, &mined).await;
    world.reorganise(2, &[mined], &[replacing]).await;
    until(async || world.page(&rival).await.is_some_and(|page| page.state() == TxState::Live)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.nodes.restart_nodes(LOSS_WINDOW, |_| false);
    running.kill().await;
    world.settings.sequencer.commit_interval = Duration::from_millis(100);
    world.run_until_consumed().await;
    assert_eq!(state(&world, &rival).await, TxState::Live);
    assert!(has_lost(&world, &first).await);
    world.check_after_forgetting("a block applied again after its reorg").await;
}
