//! Blocks that are disconnected, that are connected again, and that are on side chains.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use utxo_store::{
    blob::{BlobOptions, objects::Objects},
    record::{Key, Reason, Record, TxState, Verdict},
    sequencer::state::ChainState,
};

use crate::{
    harness::{Made, World, WorldSettings, coinbase, spend, wide_coinbase},
    made_blocks::MadeBlock,
    sequencing::{assert_halt_without_a_write, reasons, wait_longer_than_a_block},
};

async fn state(world: &World, made: &Made) -> Option<TxState> {
    Some(world.page(made).await?.state())
}

const LEFT: TxState = TxState::Conflicting(Verdict::Conflicting(Reason::Disconnected));

async fn is_on_longest_chain(world: &World, block: &MadeBlock) -> bool {
    match &world.store.read(vec![Key::Block(block.block_id)]).await.unwrap()[..] {
        [Some(Record::Block(record))] => record.longest_chain,
        other => panic!("no block {}: {other:?}", block.block_id),
    }
}

/// Returns two consecutive blocks that were consumed, and the transaction that the second lists.
async fn two_blocks(world: &World) -> (Made, [MadeBlock; 2]) {
    let seed = world.seed(1, 2).await;
    let listed = spend(&[seed.coin(0)], 1, 1);
    world.validate(&listed).await;
    let first = MadeBlock::new(1, 101, &coinbase(1), &[]);
    let second = first.followed_by(2, &coinbase(2), &[&listed]);
    world.bring(1, &first).await;
    world.bring(2, &second).await;
    world.run_until_consumed().await;
    (listed, [first, second])
}

/// Readiness has the reason of a refused reorg, and the reorg changes nothing.
#[tokio::test(start_paused = true)]
async fn an_invalid_reorg_halts_the_chain_before_a_write() {
    type Lists = (Vec<MadeBlock>, Vec<MadeBlock>);
    type Spoil = fn(&MadeBlock, &MadeBlock) -> Lists;
    let cases: [(&str, Spoil); 8] = [
        ("is to leave, but the tip is", |first, _| (vec![first.clone()], vec![])),
        ("was never connected", |_, second| {
            let below = MadeBlock::new(7, 101, &coinbase(7), &[]);
            (vec![MadeBlock { hash: [9; 32], ..below }, MadeBlock { previous: [9; 32], ..second.clone() }], vec![])
        }),
        ("but the tip is", |_, second| (vec![second.clone()], vec![second.followed_by(3, &coinbase(3), &[])])),
        ("says that it is at height 103, but it follows the tip", |first, second| {
            let next = MadeBlock { height: 103, ..first.followed_by(3, &coinbase(3), &[]) };
            (vec![second.clone()], vec![next])
        }),
        ("has the id 1 of block", |first, second| {
            let next = MadeBlock { block_id: 1, ..first.followed_by(3, &coinbase(3), &[]) };
            (vec![second.clone()], vec![next])
        }),
        ("two blocks of the reorg have the id 2", |first, second| {
            let next = MadeBlock { block_id: 2, ..first.followed_by(3, &coinbase(3), &[]) };
            (vec![second.clone()], vec![next])
        }),
        ("the coinbase of block", |first, second| {
            let next = MadeBlock {
                coinbase: spend(&[first.coinbase.coin(0)], 1, 5),
                ..first.followed_by(3, &coinbase(3), &[])
            };
            (vec![second.clone()], vec![next])
        }),
        ("is stored with other content", |first, second| {
            (vec![second.clone()], vec![first.followed_by(3, &coinbase(66), &[])])
        }),
    ];
    for (why, spoil) in cases {
        let world = World::new().await;
        let (listed, [first, second]) = two_blocks(&world).await;
        // A partial event claims outputs of a coinbase that no block has brought.
        let Made { txid, .. } = coinbase(66);
        world.produce_partial(&Made { txid, extended: Bytes::new(), outputs: vec![(1, vec![0x51])] }).await;
        world.run_until_consumed().await;
        let before = utxo_store::store::digest::survey(&world.store, |_| {}).await.unwrap();
        let (leave, come) = spoil(&first, &second);
        world.reorganise(3, &leave, &come).await;
        assert_halt_without_a_write(&world, why, &before).await;
        assert_eq!(state(&world, &listed).await, Some(TxState::Live), "{why}");
        assert_eq!(world.chain_state().await.sequence, 2, "{why}");
    }
}

/// Tip and sequence are those of the last connected block, or of the block below the last disconnected one.
#[tokio::test(start_paused = true)]
async fn tip_and_sequence_follow_a_reorg() {
    run_reorg_and_back(World::new().await).await;
}

pub async fn run_reorg_and_back(world: World) {
    let (listed, [first, second]) = two_blocks(&world).await;
    let third = first.followed_by(3, &coinbase(3), &[&listed]);
    let fourth = third.followed_by(4, &coinbase(4), &[]);
    world.reorganise(3, std::slice::from_ref(&second), &[third.clone(), fourth.clone()]).await;
    world.run_until_consumed().await;
    let ChainState { sequence, tip, reorgs_next, times, .. } = world.chain_state().await;
    assert_eq!(times, [&first, &third, &fourth].map(|block| block.as_event().time));
    let tip = tip.unwrap();
    assert_eq!((sequence, reorgs_next, tip.hash, tip.height, tip.block_id), (3, 1, fourth.hash, 103, Some(4)));
    let on_chain = [is_on_longest_chain(&world, &second).await, is_on_longest_chain(&world, &third).await];
    assert_eq!(on_chain, [false, true]);
    world.check("a reorg").await;

    world.reorganise(4, &[third, fourth], &[]).await;
    world.run_until_consumed().await;
    let ChainState { sequence, tip, .. } = world.chain_state().await;
    let tip = tip.unwrap();
    assert_eq!((sequence, tip.hash, tip.height, tip.block_id), (4, first.hash, 101, None));
    assert_eq!(world.page(&listed).await.unwrap().master.as_ref().unwrap().unmined_since, Some(102));
    world.bring(5, &second).await;
    world.run_until_consumed().await;
    assert_eq!(world.chain_state().await.tip.unwrap().hash, second.hash);
    world.check("there and back").await;
}

/// A block of a side chain lists an unknown transaction and a loser; the reorg that connects the block waits for the
/// first, and makes the second win.
#[tokio::test(start_paused = true)]
async fn a_side_chain_decides_nothing_until_it_is_connected() {
    run_side_chain(World::new().await).await;
}

pub async fn run_side_chain(world: World) {
    let seed = world.seed(1, 1).await;
    let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let late = spend(&[loser.coin(0)], 1, 3);
    let heir = spend(&[coinbase(2).coin(0)], 1, 4);
    let first = MadeBlock::new(1, 101, &coinbase(1), &[&winner]);
    let aside = MadeBlock { previous: first.previous, ..MadeBlock::new(2, 101, &coinbase(2), &[&loser, &late]) };
    world.validate(&winner).await;
    world.run_until_consumed().await;
    world.validate(&loser).await;
    world.run_until_consumed().await;
    world.bring(1, &first).await;
    world.bring_aside(2, &aside).await;
    world.validate_at(&heir, 300).await;
    world.run_until_consumed().await;
    assert_eq!((state(&world, &coinbase(2)).await, state(&world, &late).await), (Some(LEFT), None));
    for (made, live) in [(&winner, true), (&loser, false), (&heir, false)] {
        assert_eq!(state(&world, made).await == Some(TxState::Live), live, "{}", made.txid);
    }
    let triples = world.page(&loser).await.unwrap().master.as_ref().unwrap().mined.len();
    assert_eq!((triples, world.chain_state().await.tip.unwrap().hash), (1, first.hash));
    world.check("a side chain").await;

    world.reorganise(3, std::slice::from_ref(&first), std::slice::from_ref(&aside)).await;
    let running = world.start();
    wait_longer_than_a_block().await;
    assert!(reasons(&running).contains(&late.txid.to_string()), "{}", reasons(&running));
    world.validate(&late).await;
    world.until_consumed().await;
    running.stop().await;
    for (made, live) in [(&winner, false), (&loser, true), (&late, true), (&heir, true), (&aside.coinbase, true)] {
        assert_eq!(state(&world, made).await == Some(TxState::Live), live, "{}", made.txid);
    }
    world.check("a side chain that is connected").await;
}

#[tokio::test(start_paused = true)]
async fn a_connected_block_repeated_as_a_side_chain_halts_the_chain() {
    let world = World::new().await;
    let (_, [_, second]) = two_blocks(&world).await;
    world.bring_aside(3, &second).await;
    let running = world.start();
    wait_longer_than_a_block().await;
    let shown_reasons = reasons(&running);
    assert!(shown_reasons.contains("came as a side chain block, but is on the longest chain"), "{shown_reasons}");
    running.stop().await;
    assert!(is_on_longest_chain(&world, &second).await);
}

/// The listed txids are in an object, which comes late; the block is disconnected and returns. A rebuild reads the
/// object too.
#[tokio::test(start_paused = true)]
async fn a_block_with_an_object_is_disconnected_and_returns() {
    let world = World::new().await;
    let elsewhere = Arc::new(InMemory::new());
    let objects = Some(Objects::new(elsewhere.clone(), &BlobOptions::default()));
    let world = World { store: world.store.clone().with_objects(objects), ..world };
    let seed = world.seed(1, 3).await;
    let made = [0, 1, 2].map(|vout| spend(&[seed.coin(vout)], 1, vout as u8));
    for made in &made {
        world.validate(made).await;
    }
    let first = MadeBlock::new(1, 101, &coinbase(1), &made.each_ref());
    let first = MadeBlock { object: Some("blocks/1".to_owned()), ..first };
    let other = MadeBlock { previous: first.previous, ..MadeBlock::new(2, 101, &coinbase(2), &[&made[1]]) };
    world.bring(1, &first).await;
    let running = world.start();
    wait_longer_than_a_block().await;
    assert!(reasons(&running).contains("object `blocks/1` does not exist"), "{}", reasons(&running));
    elsewhere.put(&Path::from("blocks/1"), first.listed.clone().into()).await.unwrap();
    world.until_consumed().await;
    running.stop().await;
    let unmined = async || {
        let mut unmined = Vec::new();
        for made in &made {
            unmined.push(world.page(made).await.unwrap().master.as_ref().unwrap().unmined_since);
        }
        unmined
    };
    assert_eq!(unmined().await, [None; 3]);
    world.reorganise(2, std::slice::from_ref(&first), std::slice::from_ref(&other)).await;
    world.run_until_consumed().await;
    assert_eq!(unmined().await, [Some(101), None, Some(101)]);
    world.check_without_model("a block of an object has left").await;
    world.reorganise(3, &[other], &[first]).await;
    world.run_until_consumed().await;
    assert_eq!(unmined().await, [None; 3]);
    world.check_without_model("a block of an object has returned").await;
}

/// Coinbases of several pages become conflicting, come from a side chain, and return, with the children of their last
/// pages; the instance is killed at any moment.
#[tokio::test(start_paused = true)]
async fn coinbases_of_several_pages_are_disconnected_and_return() {
    for kill_after_ms in [None, Some(0), Some(1), Some(2), Some(3), Some(5), Some(8), Some(13), Some(30)] {
        run_coinbase_swap(World::with_settings(WorldSettings::paged(2)).await, kill_after_ms).await;
    }
}

/// Needs a world with pages of two slots.
pub async fn run_coinbase_swap(world: World, kill_after_ms: Option<u64>) {
    world.seed(1, 1).await;
    let [ours, theirs] = [1, 2].map(|number| wide_coinbase(number, 7));
    let [spender, heir] = [&ours, &theirs].map(|made| spend(&[made.coin(6), made.coin(0)], 3, 5));
    let first = MadeBlock::new(1, 101, &ours, &[]);
    let aside = MadeBlock { previous: first.previous, ..MadeBlock::new(2, 101, &theirs, &[]) };
    let go_on = async || {
        if let Some(ms) = kill_after_ms {
            let running = world.start();
            tokio::time::sleep(Duration::from_millis(ms)).await;
            running.kill().await;
        }
        world.run_until_consumed().await;
    };
    world.bring(1, &first).await;
    world.bring_aside(2, &aside).await;
    world.validate_at(&spender, 300).await;
    world.validate_at(&heir, 300).await;
    go_on().await;
    let swap = [(3, &first, &aside), (4, &aside, &first), (5, &first, &aside)];
    for (sequence, leaves, comes) in swap {
        world.reorganise(sequence, std::slice::from_ref(leaves), std::slice::from_ref(comes)).await;
        go_on().await;
        assert_eq!(state(&world, &leaves.coinbase).await, Some(LEFT), "{sequence}, {kill_after_ms:?}");
        assert_eq!(state(&world, &comes.coinbase).await, Some(TxState::Live), "{sequence}, {kill_after_ms:?}");
    }
    assert_eq!(state(&world, &heir).await, Some(TxState::Live), "{kill_after_ms:?}");
    world.check(&format!("coinbases of several pages, {kill_after_ms:?}")).await;
}
