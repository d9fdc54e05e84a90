//! Blocks that contradict the stored state, and how readiness names a halted or waiting chain.

use std::{sync::Arc, time::Duration};

use utxo_store::{
    broker::{Broker, CommittedOffset, ConsumerEvent, memory::MemoryFaults},
    engine::{self, EngineError, RecordEngine, Row, fault::EngineFaults},
    event::CommandAction,
    record::{BlockRecord, Body, Key, Marks, Operation, Outcome, Phase, Sequenced, Spend, SpendSlot, Stamp, TxState},
    sequencer::{chain_group, state::ChainState},
    store::digest::{Survey, survey},
};

use crate::harness::{Coin, GROUP, Made, Running, World, coinbase, spend};
use crate::made_blocks::{MadeBlock, block_hash};

/// Builds the same transaction; its event claims another script of the spent output.
fn lie(coin: &Coin, tag: u8) -> Made {
    let claimed = Coin { script: vec![0x60, tag], ..coin.clone() };
    spend(&[claimed], 1, tag)
}

async fn assert_live_as(world: &World, made: &Made, what: &str) {
    let page = world.page(made).await.unwrap();
    assert_eq!(page.state(), TxState::Live, "{what}: {}", made.txid);
    let body = page.master.as_ref().unwrap().body.clone();
    assert_eq!(body, Some(Body::Transaction(made.extended.clone())), "{what}: {}", made.txid);
}

/// A txid commits to the spent outputs: a wrong claim of an event bars the transaction from nothing that a block
/// proves. `honest_behind`: the honest event stands behind the block.
#[tokio::test(start_paused = true)]
async fn a_listed_transaction_with_wrong_claims_wins_with_true_ones() {
    for (honest_behind, decided_before) in [(false, false), (false, true), (true, false), (true, true)] {
        for kill_after_ms in [None, Some(0), Some(1), Some(2), Some(3), Some(5), Some(8), Some(13), Some(60)] {
            let what = format!("honest behind {honest_behind}, decided before {decided_before}, {kill_after_ms:?}");
            let world = World::new().await;
            let seed = world.seed(1, 2).await;
            let (made, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 9));
            let child = spend(&[made.coin(0)], 1, 2);
            world.validate(&rival).await;
            world.run_until_consumed().await;
            world.validate(&lie(&seed.coin(0), 1)).await;
            world.validate(&lie(&made.coin(0), 2)).await;
            if decided_before {
                world.run_until_consumed().await;
            }
            world.mine(1, &[&made, &child]).await;
            if honest_behind {
                world.validate(&child).await;
                world.validate(&made).await;
            }
            if let Some(ms) = kill_after_ms {
                let running = world.start();
                tokio::time::sleep(Duration::from_millis(ms)).await;
                running.kill().await;
            }
            world.run_until_consumed().await;
            assert_live_as(&world, &made, &what).await;
            assert_live_as(&world, &child, &what).await;
            world.check(&what).await;
        }
    }
}

/// Returns the reasons of readiness that concern the chain.
pub fn reasons(running: &Running) -> String {
    let reasons = running.health.ready().reasons;
    ["chain_running", "chain_fed"].iter().filter_map(|name| Some(format!("{name}: {}", reasons.get(name)?))).collect()
}

pub async fn wait_longer_than_a_block() {
    tokio::time::sleep(Duration::from_secs(15)).await;
}

/// Fails unless an instance names this reason for a halted chain and leaves the store as it was.
pub async fn assert_halt_without_a_write(world: &World, why: &str, before: &Survey) {
    let running = world.start();
    wait_longer_than_a_block().await;
    let reasons_text = reasons(&running);
    assert!(reasons_text.starts_with("chain_running: ") && reasons_text.contains(why), "{why}: {reasons_text}");
    running.stop().await;
    assert_eq!(survey(&world.store, |_| {}).await.unwrap(), *before, "{why}");
}

/// Before the limit readiness names nothing; then it names the wait; and after the answer nothing again.
#[tokio::test(start_paused = true)]
async fn readiness_names_a_store_or_log_that_does_not_answer_the_chain() {
    let world = World::new().await;
    world.seed(1, 1).await;
    let running = world.start();
    world.until_consumed().await;
    world.nodes.set(EngineFaults { failed_read: 1.0, ..EngineFaults::default() });
    world.mine(1, &[]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(reasons(&running), "");
    wait_longer_than_a_block().await;
    assert_eq!(reasons(&running), "chain_running: the store: still waiting for an answer");
    world.nodes.set(EngineFaults::default());
    world.until_consumed().await;
    assert_eq!(reasons(&running), "");

    world.mine(2, &[]).await;
    world.broker.set_faults(MemoryFaults { produce_refused: 1.0, ..MemoryFaults::default() });
    wait_longer_than_a_block().await;
    assert_eq!(reasons(&running), "chain_fed: the feed: still waiting for an answer");
    world.broker.set_faults(MemoryFaults::default());
    world.until_consumed().await;
    assert_eq!(reasons(&running), "");
    running.stop().await;
}

/// A record has the stamp of an event that this sequencer has not handled, as if another sequencer were ahead.
#[tokio::test(start_paused = true)]
async fn a_sequencer_behind_another_one_reports_it() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    world.validate(&spend(&[seed.coin(0)], 1, 1)).await;
    world.run_until_consumed().await;
    let later = Operation::Sequenced(Stamp::in_era(0, 1_000, Phase::Apply), Sequenced::MarkContested);
    world.store.apply_one(Row { key: Key::master(seed.txid), operation: later }).await.unwrap();
    world.validate(&spend(&[seed.coin(0)], 1, 2)).await;
    let running = world.start();
    wait_longer_than_a_block().await;
    wait_longer_than_a_block().await;
    let why = "chain_running: chain offset 0: still waiting for what another sequencer, which is ahead, decided";
    assert_eq!(reasons(&running), why);
    running.stop().await;
}

/// No operation writes such a slot. Taking the slot from its winner for its winner would go on for ever.
#[tokio::test(start_paused = true)]
async fn a_slot_with_another_input_of_its_winner_halts_the_chain() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let made = spend(&[seed.coin(0)], 1, 1);
    let Coin { outpoint, satoshis, script } = seed.coin(0);
    let output = utxo_store::tx::Output { satoshis, script: &script };
    let slots = vec![SpendSlot::claiming(&outpoint, 0, 1, &output, script.clone().into())];
    let damage = Operation::Spend(Spend {
        spender: made.txid,
        height: 200,
        slots: slots.into(),
        marks: Marks::Respect,
        signals: false,
    });
    world.store.apply_one(Row { key: Key::master(seed.txid), operation: damage }).await.unwrap();
    world.validate(&made).await;
    let running = world.start();
    wait_longer_than_a_block().await;
    let (slot, txid) = (outpoint, made.txid);
    let why = format!("the store is damaged: {slot} names input 1 of {txid}, but its input 0 spends it");
    assert_eq!(reasons(&running), format!("chain_running: {why}"));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_block_not_one_above_the_tip_halts_the_chain_before_a_write() {
    for wrong in [0, 101, 103, u32::MAX] {
        let world = World::new().await;
        let running = world.start();
        world.mine(1, &[]).await;
        let coinbase = coinbase(2);
        world.mine_with(2, 2, wrong, &coinbase, &[]).await;
        wait_longer_than_a_block().await;
        let reasons_text = reasons(&running);
        let why = format!("says that it is at height {wrong}, but it follows the tip");
        assert!(reasons_text.contains(&why), "{reasons_text}");
        assert!(world.page(&coinbase).await.is_none());
        running.stop().await;
    }
}

/// A block on another block than the tip, a coinbase that is none, or a coinbase that is stored with other content.
#[tokio::test(start_paused = true)]
async fn an_invalid_block_halts_the_chain_before_a_write() {
    type Spoil = fn(MadeBlock) -> MadeBlock;
    let cases: [(&str, bool, Spoil); 4] = [
        ("follows 0909090909", true, |block| MadeBlock { previous: [9; 32], ..block }),
        ("it is no coinbase", true, |block| MadeBlock {
            coinbase: spend(&[World::partial(1, 1).coin(0)], 1, 5),
            ..block
        }),
        ("is stored with other content", true, |block| MadeBlock { coinbase: coinbase(66), ..block }),
        ("is stored with other content", false, |block| MadeBlock { coinbase: coinbase(66), ..block }),
    ];
    for (why, longest_chain, spoil) in cases {
        let world = World::new().await;
        let listed = spend(&[world.seed(1, 1).await.coin(0)], 1, 1);
        world.validate(&listed).await;
        // A partial event claims outputs of a coinbase that no block has brought.
        let Made { txid, .. } = coinbase(66);
        world.produce_partial(&Made { txid, extended: Default::default(), outputs: vec![(1, vec![0x51])] }).await;
        let first = MadeBlock::new(1, 101, &coinbase(1), &[]);
        world.bring(1, &first).await;
        world.run_until_consumed().await;
        let before = survey(&world.store, |_| {}).await.unwrap();
        let block = spoil(first.followed_by(2, &coinbase(2), &[&listed]));
        world.produce("block-mined", b"", block.mined(2, longest_chain)).await;
        assert_halt_without_a_write(&world, why, &before).await;
        assert_eq!(world.chain_state().await.sequence, 1, "{why}");
    }
}

/// A listed transaction cannot be live: it spends a frozen output, or an output that a mined transaction spends.
#[tokio::test(start_paused = true)]
async fn a_block_with_a_transaction_that_cannot_win_halts_the_chain() {
    for frozen in [true, false] {
        let world = World::new().await;
        let seed = world.seed(1, 1).await;
        let (mined, listed) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
        if frozen {
            world.command(1, CommandAction::Freeze { outpoint: seed.coin(0).outpoint }).await;
            world.run_until_consumed().await;
            world.mine(1, &[]).await;
        } else {
            world.validate(&mined).await;
            world.mine(1, &[&mined]).await;
        }
        world.run_until_consumed().await;
        world.validate(&listed).await;
        world.run_until_consumed().await;
        world.mine(2, &[&listed]).await;
        let running = world.start();
        wait_longer_than_a_block().await;
        let why = match frozen {
            true => format!("lists {}, which cannot be live: Frozen {{ input: 0 }}", listed.txid),
            false => format!("lists {}, whose rival {} is mined", listed.txid, mined.txid),
        };
        assert!(reasons(&running).contains(&why), "{why}: {}", reasons(&running));
        let later = world.seed(2, 1).await;
        wait_longer_than_a_block().await;
        assert!(world.page(&later).await.is_some(), "the pipeline goes on");
        running.stop().await;
        assert!(world.page(&listed).await.unwrap().conflicting);
        assert_eq!(world.page(&mined).await.is_some_and(|page| !page.conflicting), !frozen);
        assert_eq!(world.chain_state().await.sequence, 1);
    }
}

/// No block could follow such a block, and heights counted from it would overflow.
#[tokio::test(start_paused = true)]
async fn a_block_at_an_impossible_height_halts_the_chain() {
    for (longest_chain, height) in [(true, u32::MAX), (true, 1 << 31), (false, u32::MAX)] {
        let world = World::new().await;
        let running = world.start();
        let coinbase = coinbase(1);
        let block = MadeBlock { hash: block_hash(1), ..MadeBlock::new(1, height, &coinbase, &[]) };
        world.produce("block-mined", b"", block.mined(1, longest_chain)).await;
        wait_longer_than_a_block().await;
        let reasons_text = reasons(&running);
        let why = format!("says that it is at height {height}, and heights are below");
        assert!(reasons_text.contains(&why), "{reasons_text}");
        assert!(world.page(&coinbase).await.is_none());
        running.stop().await;
    }
}

/// Writes another block under the id of a block that is being stored, as an earlier sequencer might.
struct RacingEngine(Arc<dyn RecordEngine>);

impl engine::EngineDecorator for RacingEngine {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.0
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        for row in rows {
            if let Operation::Sequenced(stamp, Sequenced::PutBlock(block)) = &row.operation {
                let other = Sequenced::PutBlock(BlockRecord { hash: [9; 32], ..block.clone() });
                let row = Row { key: row.key, operation: Operation::Sequenced(*stamp, other) };
                self.0.apply(&[row]).await;
            }
        }
        self.0.apply(rows).await
    }
}

/// The id was free when it was read, and was used when the block was written.
#[tokio::test(start_paused = true)]
async fn a_block_whose_record_cannot_be_written_halts_the_chain() {
    let world = World::new().await;
    let memory = world.memory.clone();
    let world = world.over(Arc::new(RacingEngine(memory)));
    let running = world.start();
    world.mine(1, &[]).await;
    wait_longer_than_a_block().await;
    let reasons_text = reasons(&running);
    assert!(reasons_text.contains("cannot be stored under its id 1"), "{reasons_text}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn readiness_names_a_missing_sequence() {
    let world = World::new().await;
    let running = world.start();
    world.mine(2, &[]).await;
    wait_longer_than_a_block().await;
    let why = "chain_fed: sequence 1 is missing: in `block-mined` 2 is next, in `reorgs` nothing";
    assert_eq!(reasons(&running), why);
    running.stop().await;
}

/// A block with a used sequence and bytes that are no event do not get into the chain: the next owner of the chain must
/// not meet them again, whether the last fed block is handled or not.
#[tokio::test(start_paused = true)]
async fn the_feed_refuses_an_event_once() {
    for handled in [true, false] {
        let world = World::new().await;
        world.mine(1, &[]).await;
        world.run_until_consumed().await;
        let seed = world.seed(1, 1).await;
        let listed = spend(&[seed.coin(0)], 1, 1);
        let waits_for = if handled { vec![] } else { vec![&listed] };
        world.mine(2, &waits_for).await;
        world.mine_as(7, 1, &[]).await;
        world.produce("block-mined", b"", vec![1, 2, 3]).await;
        for _ in 0..3 {
            let running = world.start();
            tokio::time::sleep(Duration::from_secs(5)).await;
            running.stop().await;
        }
        assert_eq!(world.count("dead-letters").await, 2, "handled: {handled}");
        if !handled {
            world.validate(&listed).await;
        }
        world.mine(3, &[]).await;
        world.run_until_consumed().await;
        assert_eq!((world.count("dead-letters").await, world.end("chain", 0).await), (2, 3), "handled: {handled}");
    }
}

/// Commits this state for chain offset 0.
async fn commit(world: &World, state: &ChainState) {
    let group = chain_group(GROUP);
    let mut consumer = world.broker.subscribe(&group, &["chain".to_owned()]).await.unwrap();
    let ConsumerEvent::Assigned(assigned) = consumer.poll().await.unwrap() else {
        panic!("the assignment comes first")
    };
    let committed = CommittedOffset { offset: 0, metadata: state.to_metadata() };
    consumer.commit(&[(assigned[0].partition.clone(), committed)]).await.unwrap();
    consumer.close().await.unwrap();
}

/// A damaged or malicious sequence halts the chain, and nothing else.
#[tokio::test(start_paused = true)]
async fn the_last_possible_sequence_halts_the_chain() {
    for (sequence, why) in [
        (u64::MAX, "the sequence is at its end"),
        (u64::MAX - 1, "has the sequence 18446744073709551615: nothing could follow it"),
    ] {
        let world = World::new().await;
        commit(&world, &ChainState { sequence, ..ChainState::default() }).await;
        world.mine_with(1, u64::MAX, 1, &coinbase(1), &[]).await;
        let seed = world.seed(1, 1).await;
        let running = world.start();
        wait_longer_than_a_block().await;
        let reasons_text = reasons(&running);
        assert!(reasons_text.starts_with("chain_running") && reasons_text.contains(why), "{reasons_text}");
        assert!(world.page(&seed).await.is_some(), "the pipeline goes on");
        running.stop().await;
    }
}

/// Events of one transaction share a partition, so that the first one is always stored first, also by a rebuild. The
/// first event decides height and lock, even where another event decides the claims.
#[tokio::test(start_paused = true)]
async fn the_first_of_two_events_decides_height_and_lock() {
    for (first_lies, second_lies) in [(false, false), (true, false), (false, true), (true, true)] {
        for (at_once, behind_a_rival) in [(true, false), (false, false), (true, true), (false, true)] {
            for (first_is_locked, kill_after_ms) in [(true, None), (false, None), (true, Some(2)), (false, Some(5))] {
                let what = format!(
                    "lies: {first_lies}, {second_lies}; at once: {at_once}; behind a rival: {behind_a_rival}; \
                     the first is locked: {first_is_locked}; killed: {kill_after_ms:?}"
                );
                let world = World::new().await;
                let seed = world.seed(1, 1).await;
                if behind_a_rival {
                    world.validate(&spend(&[seed.coin(0)], 1, 9)).await;
                }
                world.run_until_consumed().await;
                let honest = spend(&[seed.coin(0)], 1, 1);
                for (lies, locked) in [(first_lies, first_is_locked), (second_lies, !first_is_locked)] {
                    let made = if lies { lie(&seed.coin(0), 1) } else { honest.clone() };
                    if locked {
                        world.validate_locked(&made).await
                    } else {
                        world.validate_at(&made, 150).await
                    }
                    if !at_once {
                        world.run_until_consumed().await;
                    }
                }
                if let Some(ms) = kill_after_ms {
                    let running = world.start();
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    running.kill().await;
                }
                world.run_until_consumed().await;
                let page = world.page(&honest).await.unwrap();
                let since = page.master.as_ref().unwrap().unmined_since;
                let expected = if first_is_locked { (true, Some(200)) } else { (false, Some(150)) };
                assert_eq!((page.locked, since), expected, "{what}");
                world.check(&what).await;
            }
        }
    }
}
