//! Heights that decide. The block that lists a transaction decides which outputs get a slot. The last block that has a
//! coinbase decides its maturity. The event of a transaction gives the height before the first block.

use std::{slice::from_ref, time::Duration};

use utxo_store::{
    engine::Row,
    event::{CommandAction, PartialOutput, PartialTxEvent},
    record::{Key, Reason, Sequenced, Slot, TxState, Verdict},
    store::recovery::Recovery,
    tx::Network,
};

use crate::{
    harness::{Coin, LOSS_WINDOW, Made, World, WorldSettings, coinbase, spend, spend_to},
    made_blocks::MadeBlock,
    regressions::holding_engine::{HoldingEngine, is_sequenced},
};

async fn state(world: &World, made: &Made) -> TxState {
    world.page(made).await.unwrap().state()
}

async fn slots(world: &World, made: &Made, count: u32) -> Vec<Option<Slot>> {
    let mut slots = Vec::new();
    for vout in 0..count {
        slots.push(utxo_store::store::read::TxReader::of(&world.store).slot(made.coin(vout).outpoint).await.unwrap());
    }
    slots
}

fn reason(state: TxState) -> Option<Reason> {
    match state {
        TxState::Conflicting(Verdict::Conflicting(reason)) => Some(reason),
        _ => None,
    }
}

const GENESIS: u32 = Network::Regtest.genesis_activation_height();

/// Builds a transaction with a payment, a bare `OP_RETURN` and a script of 10,001 bytes.
fn spend_to_genesis_scripts(coin: &Coin, tag: u8) -> Made {
    spend_to(from_ref(coin), vec![(50, vec![0x51]), (40, vec![0x6a, 1]), (10, vec![0x51; 10_001])], tag)
}

/// Transactions validated for the last height before Genesis are mined at the first height after it: one page, three
/// pages, and with the body in a blob store. Children of the outputs that thereby get a slot came before.
/// Protects: `SetMined` refuses a transaction whose slots were made by the rule of another height, and `AddSlots` adds
/// the missing slots first.
#[tokio::test(start_paused = true)]
async fn the_block_that_lists_a_transaction_decides_which_outputs_have_slots() {
    for settings in [WorldSettings::calm(), WorldSettings::paged(1), WorldSettings::with_blobs(2, 0)] {
        let world = World::with_settings(settings).await;
        let seed = world.seed(1, 3).await;
        let crossing = spend_to_genesis_scripts(&seed.coin(0), 1);
        let stays = spend_to_genesis_scripts(&seed.coin(1), 2);
        let children: Vec<Made> = (1..3).map(|vout| spend(&[crossing.coin(vout)], 1, 3)).collect();
        let running = world.start();
        for made in [&crossing, &stays] {
            world.validate_at(made, GENESIS - 1).await;
        }
        for child in &children {
            world.validate_at(child, GENESIS).await;
        }
        world.until_consumed().await;
        assert_eq!(slots(&world, &crossing, 3).await.iter().filter(|slot| slot.is_some()).count(), 1);
        assert_eq!(reason(state(&world, &children[0]).await), Some(Reason::NoSuchOutput { input: 0 }));
        let before = MadeBlock::new(1, GENESIS - 1, &coinbase(1), &[&stays]);
        let first = before.followed_by(2, &coinbase(2), &[&crossing, &children[0]]);
        world.bring(1, &before).await;
        world.bring(2, &first).await;
        world.until_consumed().await;
        assert_eq!(slots(&world, &stays, 3).await.iter().filter(|slot| slot.is_some()).count(), 1);
        assert!(slots(&world, &crossing, 3).await.iter().all(Option::is_some));
        for made in children.iter().chain([&crossing]) {
            assert_eq!(state(&world, made).await, TxState::Live);
        }
        // An event with a height after Genesis creates the slots at once.
        let alone = spend_to_genesis_scripts(&seed.coin(2), 4);
        world.validate_at(&alone, GENESIS).await;
        world.until_consumed().await;
        assert!(slots(&world, &alone, 3).await.iter().all(Option::is_some));
        running.stop().await;
        world.check_without_model("slots by the height of the block").await;
    }
}

/// A transaction of three pages is mined across Genesis. A node loses the slots that the block added to the last page,
/// or the whole page, and not the master, before the block is committed.
/// Protects: the redo finds a mined master and gives the page its slots, so that a spend of its output can be mined.
#[tokio::test(start_paused = true)]
async fn a_page_that_lost_its_added_slots_gets_them_again() {
    for loses_page in [false, true] {
        let settings = WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::paged(1) };
        let world = World::with_settings(settings).await;
        let seed = world.seed(1, 2).await;
        let crossing = spend_to_genesis_scripts(&seed.coin(0), 1);
        let last = Key::Page(crossing.txid, 2);
        let running = world.start();
        if !loses_page {
            world.validate_at(&crossing, GENESIS - 1).await;
            world.until_consumed().await;
        }
        let block = MadeBlock::new(1, GENESIS, &coinbase(1), &[&crossing]);
        world.bring(1, &block).await;
        if loses_page {
            world.validate_at(&crossing, GENESIS - 1).await;
        }
        while !slots(&world, &crossing, 3).await.iter().all(Option::is_some)
            || world.page(&crossing).await.unwrap().unmined_since().is_some()
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == last).unwrap() > 0);
        assert!(slots(&world, &crossing, 3).await[2].is_none());
        let child = spend(&[crossing.coin(2)], 1, 3);
        world.bring(2, &block.followed_by(2, &coinbase(2), &[&child])).await;
        world.validate_at(&child, GENESIS).await;
        world.until_consumed().await;
        running.stop().await;
        assert!(slots(&world, &crossing, 3).await.iter().all(Option::is_some), "{loses_page}");
        assert_eq!(state(&world, &child).await, TxState::Live);
        world.check_without_model("a page that lost its added slots").await;
    }
}

/// A transaction of three pages is validated for a height since Genesis. A block of a side chain before Genesis lists
/// the transaction, then one of the longest chain since Genesis. A node loses the last page, and not the master.
/// Protects: the page that is made again has the slots of its event, not those of the first block that lists it.
#[tokio::test(start_paused = true)]
async fn a_page_is_made_again_by_the_height_of_its_slots() {
    let world = World::with_settings(WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::paged(1) }).await;
    let seed = world.seed(1, 1).await;
    let wide = spend_to_genesis_scripts(&seed.coin(0), 1);
    let last = Key::Page(wide.txid, 2);
    let first = MadeBlock::new(1, GENESIS - 1, &coinbase(1), &[]);
    let side = MadeBlock::new(2, GENESIS - 1, &coinbase(2), &[&wide]);
    let running = world.start();
    world.bring(1, &first).await;
    world.validate_at(&wide, GENESIS).await;
    while world.page(&wide).await.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.bring_aside(2, &side).await;
    world.bring(3, &first.followed_by(3, &coinbase(3), &[&wide])).await;
    while world.page(&wide).await.is_none_or(|page| page.master.as_ref().unwrap().mined.len() < 2) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == last).unwrap() > 0);
    Recovery::of(&world.store).complete(wide.txid).await.unwrap();
    assert!(slots(&world, &wide, 3).await.iter().all(Option::is_some));
    world.until_consumed().await;
    running.stop().await;
    world.check_without_model("a page made again").await;
}

/// Block 1 and block 31 of one chain have the same coinbase.
/// Protects: its outputs mature from the later block, and from the earlier one again once the later one is
/// disconnected.
#[tokio::test(start_paused = true)]
async fn a_coinbase_that_comes_twice_matures_from_the_later_block() {
    for spent_before in [false, true] {
        let world = World::new().await;
        let twice = coinbase(1);
        let first = MadeBlock::new(1, 101, &twice, &[]);
        let second = first.followed_by(2, &coinbase(2), &[]);
        let third = second.followed_by(3, &twice, &[]);
        let early = spend(&[twice.coin(0)], 1, 1);
        let child = spend(&[early.coin(0)], 1, 2);
        let running = world.start();
        world.bring(1, &first).await;
        world.bring(2, &second).await;
        let spends = || async {
            for made in [&early, &child] {
                world.validate_at(made, 202).await;
                world.until_consumed().await;
            }
        };
        world.until_consumed().await;
        if spent_before {
            spends().await;
            assert_eq!(state(&world, &early).await, TxState::Live, "the coinbase is mature by the first block");
        }
        world.bring(3, &third).await;
        world.until_consumed().await;
        if !spent_before {
            spends().await;
        }
        assert_eq!(world.page(&twice).await.unwrap().spending_height, Some(203));
        assert_eq!(reason(state(&world, &early).await), Some(Reason::Immature { input: 0 }), "{spent_before}");
        assert_eq!(reason(state(&world, &child).await), Some(Reason::ConflictingParent { parent: early.txid }));
        world.reorganise(4, from_ref(&third), &[]).await;
        world.until_consumed().await;
        let page = world.page(&twice).await.unwrap();
        assert_eq!((page.state(), page.spending_height), (TxState::Live, Some(201)));
        assert_eq!(page.master.as_ref().unwrap().unmined_since, None, "the first block still lists the coinbase");
        for made in [&early, &child] {
            assert_eq!(state(&world, made).await, TxState::Live, "{spent_before}");
        }
        world.reorganise(5, &[first.clone(), second.clone()], &[]).await;
        world.until_consumed().await;
        running.stop().await;
        assert_eq!(reason(state(&world, &twice).await), Some(Reason::Disconnected));
        world.check(&format!("a coinbase that comes twice, spent before: {spent_before}")).await;
    }
}

/// A coinbase of a side chain comes with a block of the longest chain at another height. A spender comes by the height
/// of the side chain, and the process dies after the new height is written, before the holders are looked at.
/// Protects: the redo finds the right height and looks at the holders all the same.
#[tokio::test(start_paused = true)]
async fn a_spender_that_is_too_young_is_found_after_a_kill() {
    let world = World::new().await;
    let twice = coinbase(9);
    let first = MadeBlock::new(1, 101, &coinbase(1), &[]);
    let side = MadeBlock::new(2, 101, &twice, &[]);
    let early = spend(&[twice.coin(0)], 1, 1);
    let (coinbase_id, spender) = (twice.txid, early.txid);
    let set_height = move |row: &Row| {
        is_sequenced(row, coinbase_id, |operation| matches!(operation, Sequenced::SetSpendingHeight(_)))
    };
    let contests = move |row: &Row| is_sequenced(row, spender, |operation| *operation == Sequenced::MarkContested);
    let before_height = HoldingEngine::hold_first(&world, set_height);
    let slow = world.beside(before_height.clone());
    let before_check = HoldingEngine::hold_first(&slow, contests);
    let running = before_check.in_front_of(&slow).start();
    world.bring(1, &first).await;
    world.bring_aside(2, &side).await;
    world.bring(3, &first.followed_by(3, &twice, &[])).await;
    before_height.wait_for_held(1).await;
    world.validate_at(&early, 201).await;
    while world.page(&early).await.is_none_or(|page| page.state() != TxState::Live) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    before_height.release().await;
    before_check.wait_for_held(1).await;
    running.kill().await;
    assert_eq!(world.page(&twice).await.unwrap().spending_height, Some(202));
    world.run_until_consumed().await;
    assert_eq!(reason(state(&world, &early).await), Some(Reason::Immature { input: 0 }));
    world.check_without_model("a spender that is too young").await;
}

/// A store that was seeded at height 800,000 sees a double spend before its first block.
/// Protects: a decision before the first block carries the height of the transaction's own event, so that pruning does
/// not take the transaction at once.
#[tokio::test(start_paused = true)]
async fn a_conflict_before_the_first_block_is_due_by_its_own_height() {
    let world = World::new().await;
    let partial = World::partial(1, 2);
    let outputs = partial.outputs.iter().zip(0..);
    let outputs = outputs.map(|((satoshis, script), vout)| PartialOutput { vout, satoshis: *satoshis, script });
    let seeded = PartialTxEvent { txid: partial.txid, coinbase: false, height: 800_000, outputs: outputs.collect() };
    let running = world.start();
    world.produce("txs", &partial.txid.0, seeded.encode()).await;
    world.until_consumed().await;
    let height = async || world.store.chain().await.unwrap().height;
    assert_eq!(height().await, 800_000);
    let [first, rival, refused, deleted] =
        [(0, 1), (0, 2), (1, 3), (0, 4)].map(|(vout, tag)| spend(&[partial.coin(vout)], 1, tag));
    for made in [&first, &rival, &refused, &deleted] {
        world.validate_at(made, 800_001).await;
        world.until_consumed().await;
    }
    world.command(1, CommandAction::SetConflicting { txid: refused.txid }).await;
    world.command(2, CommandAction::Delete { txid: deleted.txid }).await;
    world.until_consumed().await;
    running.stop().await;
    let page = world.page(&rival).await.unwrap();
    assert!(matches!(reason(page.state()), Some(Reason::DoubleSpend { .. })));
    for made in [&rival, &refused] {
        assert_eq!(world.page(made).await.unwrap().delete_at_height, Some(800_001 + 288));
    }
    assert_eq!(state(&world, &deleted).await, TxState::Pruned(800_001));
    assert_eq!((height().await, world.store.chain().await.unwrap().hash), (800_001, None));
    world.check("a conflict before the first block").await;
}

/// Seeded at 800,000, with the default retention of 288 blocks. Protects: the first blocks prune nothing that became
/// conflicting before them.
#[tokio::test(start_paused = true)]
async fn the_first_block_of_a_seeded_store_prunes_no_conflict_before_it() {
    let world = World::with_settings(WorldSettings::pruned(288)).await;
    let partial = World::partial(1, 1);
    let [(satoshis, script)] = &partial.outputs[..] else { panic!("one output") };
    let outputs = vec![PartialOutput { vout: 0, satoshis: *satoshis, script }];
    let seeded = PartialTxEvent { txid: partial.txid, coinbase: false, height: 800_000, outputs };
    world.produce("txs", &partial.txid.0, seeded.encode()).await;
    let (first, rival) = (spend(&[partial.coin(0)], 1, 1), spend(&[partial.coin(0)], 1, 2));
    let running = world.start();
    for made in [&first, &rival] {
        world.validate_at(made, 800_001).await;
        world.until_consumed().await;
    }
    let block = MadeBlock::new(1, 800_001, &coinbase(1), &[&first]);
    world.bring(1, &block).await;
    world.bring(2, &block.followed_by(2, &coinbase(2), &[])).await;
    world.until_consumed().await;
    while world.store.chain().await.unwrap().prune_horizon < 800_002 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(reason(state(&world, &rival).await).is_some(), "not pruned");
    running.stop().await;
    world.check("the first blocks of a seeded store").await;
}
