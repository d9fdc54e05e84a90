//! `utxo-store command decide`: a block spends outputs that commands have barred, the chain halts, and an operator
//! lifts the bars.

use std::{slice, sync::Arc, time::Duration};

use utxo_store::{
    broker::{Broker, TopicPartition},
    cli::command::decide::{Bar, DecideError, DecideServices, OperatorDecision},
    event::CommandAction,
    record::{Key, Slot, TxState},
    sequencer::chain_group,
    status::control::ControlAnswer,
    tx::Txid,
};

use crate::{
    commands::topics,
    harness::{Coin, GROUP, LOSS_WINDOW, Made, Running, World, WorldSettings, pages_of, spend, spend_claiming},
    made_blocks::{MadeBlock, block_hash},
    node_restarts::until,
    sequencing::{reasons, wait_longer_than_a_block},
};

/// Publishes an operator's decision, as the command line does.
async fn decide(world: &World, chain_offset: u64, txid: Txid) -> Result<OperatorDecision, DecideError> {
    let (broker, topics): (Arc<dyn Broker>, _) = (Arc::new(world.broker.clone()), topics());
    let services =
        DecideServices { broker: &broker, topics: &topics, group: GROUP, store: &world.store, objects: None };
    services.decide(chain_offset, txid).await
}

/// Returns the chain offset that the group has committed.
async fn committed(world: &World) -> u64 {
    let chain = TopicPartition { topic: "chain".into(), partition: 0 };
    let committed = world.broker.committed(&chain_group(GROUP), &[chain]).await.unwrap().pop().flatten();
    committed.map_or(0, |committed| committed.offset)
}

/// Continues the halted chain, as `POST /chain/retry` does.
async fn retry(running: &Running) {
    let answer = running.health.control().chain.ask(()).await;
    assert!(matches!(answer, ControlAnswer::Done(_)), "{answer:?}");
}

/// The ways in which commands bar an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Barring {
    Freeze,
    FreezeTransaction,
    Delay,
    /// The block lists the former owner's spend.
    Reassign,
    /// The block lists the former owner's spend of an output that was reassigned twice.
    ReassignTwice,
    /// The block lists the new owner's spend, below the height from which the owner can spend.
    SpendTooEarly,
}

use Barring::{Delay, Freeze, FreezeTransaction, Reassign, ReassignTwice, SpendTooEarly};

/// Produces the commands that bar a coin. Returns the spend that the block lists, and the slot hash after the block.
async fn bar(world: &World, barring: Barring, coin: &Coin) -> Made {
    let outpoint = coin.outpoint;
    let mut id = 0;
    let mut command = async |action: CommandAction<'_>| {
        id += 1;
        world.command(id, action).await;
    };
    let owners: Vec<Coin> = (0x60..0x62).map(|script| Coin { script: vec![script], ..coin.clone() }).collect();
    let count = match barring {
        Freeze | FreezeTransaction | Delay => 0,
        Reassign | SpendTooEarly => 1,
        ReassignTwice => 2,
    };
    let mut owner = coin;
    for new in &owners[..count] {
        command(CommandAction::Freeze { outpoint }).await;
        let reassign = CommandAction::Reassign {
            outpoint,
            utxo_hash: owner.utxo_hash(),
            new_script: &new.script,
            satoshis: new.satoshis,
            height: 100,
            spendable_after: 1_000,
        };
        command(reassign).await;
        owner = new;
    }
    match barring {
        Freeze => command(CommandAction::Freeze { outpoint }).await,
        FreezeTransaction => command(CommandAction::FreezeTransaction { txid: outpoint.txid }).await,
        Delay => command(CommandAction::FreezeUntil { outpoint, height: 900 }).await,
        _ => {}
    }
    let claimed = match barring {
        SpendTooEarly | ReassignTwice => owners[0].clone(),
        _ => coin.clone(),
    };
    spend_claiming(slice::from_ref(coin), &[claimed], 1, 9)
}

/// Times in ms after which the instance that goes on is killed, if at all.
const KILLS: [Option<u64>; 6] = [None, Some(0), Some(2), Some(5), Some(12), Some(40)];

/// A block lists a spend of an output that a command has barred. Protects: the chain halts with the way out, an
/// operator's decision lifts the bar before the block, a kill at any time changes nothing, and a rebuild ends the same.
#[tokio::test(start_paused = true)]
async fn a_block_spends_a_barred_output_after_an_operators_decision() {
    for barring in [Freeze, FreezeTransaction, Delay, Reassign, ReassignTwice, SpendTooEarly] {
        for (page_size, kill) in [1_000, 2].into_iter().flat_map(|size| KILLS.map(|kill| (size, kill))) {
            let what = format!("{barring:?}, pages of {page_size}, killed after {kill:?}");
            let world = World::with_settings(WorldSettings::paged(page_size)).await;
            let seed = world.seed(1, 4).await;
            // Output 3 lies on the second page where there are two.
            let listed = bar(&world, barring, &seed.coin(3)).await;
            // The flag of the whole transaction bars its other outputs, too.
            let elsewhere = world.seed(2, 1).await;
            let free = if barring == FreezeTransaction { &elsewhere } else { &seed };
            let other = spend(&[free.coin(0)], 1, 2);
            let running = world.start();
            world.until_consumed().await;
            world.validate(&listed).await;
            world.validate(&other).await;
            world.until_consumed().await;
            world.mine(1, &[&other, &listed]).await;
            wait_longer_than_a_block().await;
            let at = committed(&world).await;
            let way_out = format!("utxo-store command decide {at} --accept {}", listed.txid);
            assert!(reasons(&running).contains(&way_out), "{what}: {}", reasons(&running));

            let decided = decide(&world, at, listed.txid).await.unwrap();
            let bars: Vec<Bar> = decided.lifted.iter().flat_map(|output| output.bars.clone()).collect();
            let expected = match barring {
                Freeze => vec![Bar::Frozen],
                FreezeTransaction => vec![Bar::FrozenTransaction],
                Delay => vec![Bar::Delayed(900)],
                Reassign | ReassignTwice => vec![Bar::Delayed(1_100), Bar::Reassigned],
                SpendTooEarly => vec![Bar::Delayed(1_100)],
            };
            assert_eq!(bars, expected, "{what}");
            let records = world.end("decisions", 0).await;
            assert_eq!(decide(&world, at, listed.txid).await.unwrap(), decided, "{what}: a repeat");
            assert_eq!(world.end("decisions", 0).await, records, "{what}: a repeat publishes nothing");

            match kill {
                None => {
                    retry(&running).await;
                    world.until_consumed().await;
                    running.stop().await;
                }
                Some(ms) => {
                    running.kill().await;
                    let running = world.start();
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    running.kill().await;
                    world.run_until_consumed().await;
                }
            }
            assert_eq!(world.page(&listed).await.unwrap().state(), TxState::Live, "{what}");
            let slot = world.slot(&seed.coin(3)).await;
            assert!(matches!(slot, Slot::Spent(_, holder) if holder.txid == listed.txid), "{what}: {slot:?}");
            world.check(&what).await;
        }
    }
}

/// The former owner's spend is listed while a spend of the new owner is live. Protects: the block wins, as over any
/// unmined rival.
#[tokio::test(start_paused = true)]
async fn a_lifted_bar_lets_a_block_win_over_the_new_owner() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (coin, outpoint) = (seed.coin(0), seed.coin(0).outpoint);
    let new = Coin { script: vec![0x60], ..coin.clone() };
    world.command(1, CommandAction::Freeze { outpoint }).await;
    let reassign = CommandAction::Reassign {
        outpoint,
        utxo_hash: coin.utxo_hash(),
        new_script: &new.script,
        satoshis: new.satoshis,
        height: 50,
        spendable_after: 0,
    };
    world.command(2, reassign).await;
    let running = world.start();
    world.until_consumed().await;
    let owners = spend_claiming(slice::from_ref(&coin), slice::from_ref(&new), 1, 1);
    let former = spend(slice::from_ref(&coin), 1, 2);
    world.validate(&owners).await;
    world.until_consumed().await;
    assert_eq!(world.page(&owners).await.unwrap().state(), TxState::Live);
    world.validate(&former).await;
    world.until_consumed().await;
    world.mine(1, &[&former]).await;
    wait_longer_than_a_block().await;
    let decided = decide(&world, committed(&world).await, former.txid).await.unwrap();
    assert_eq!(decided.lifted[0].bars, [Bar::Reassigned]);
    retry(&running).await;
    world.until_consumed().await;
    running.stop().await;
    assert!(matches!(world.page(&owners).await.unwrap().state(), TxState::Conflicting(_)));
    assert_eq!(world.page(&former).await.unwrap().state(), TxState::Live);
    world.check("the former owner's spend is mined").await;
}

/// A reorg connects a block that spends a frozen output. Protects: the decision holds for reorgs, too.
#[tokio::test(start_paused = true)]
async fn a_reorg_spends_a_frozen_output_after_an_operators_decision() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    world.command(1, CommandAction::Freeze { outpoint: seed.coin(0).outpoint }).await;
    let running = world.start();
    world.until_consumed().await;
    let listed = spend(&[seed.coin(0)], 1, 1);
    world.validate(&listed).await;
    let first = MadeBlock::new(1, 101, &crate::harness::coinbase(1), &[]);
    let first = MadeBlock { previous: block_hash(0), hash: block_hash(1), ..first };
    world.produce("block-mined", b"", first.mined(1, true)).await;
    let second = MadeBlock::new(2, 101, &crate::harness::coinbase(2), &[&listed]);
    let second = MadeBlock { previous: block_hash(0), hash: block_hash(2), ..second };
    world.reorganise(2, &[first], &[second]).await;
    wait_longer_than_a_block().await;
    let at = committed(&world).await;
    decide(&world, at, listed.txid).await.unwrap();
    retry(&running).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(world.page(&listed).await.unwrap().state(), TxState::Live);
    world.check("a reorg spends a frozen output").await;
}

/// A node loses the page of the output after the block was applied and before any commit. Protects: the bars are lifted
/// again when the events are applied again.
#[tokio::test(start_paused = true)]
async fn a_lifted_bar_is_lifted_again_after_a_node_restart() {
    lift_again_after_a_node_restart(|_| true, |coin| CommandAction::Freeze { outpoint: coin.outpoint }).await;
}

/// A node loses the second page of a frozen transaction after the block was applied and before any commit. The command
/// freezes that page again. Protects: the whole transaction is unfrozen when the events are applied again.
#[tokio::test(start_paused = true)]
async fn a_page_of_a_transaction_that_a_decision_unfroze_is_unfrozen_again() {
    let is_second_page = |key: &Key| matches!(key, Key::Page(_, 1));
    let freeze = |coin: &Coin| CommandAction::FreezeTransaction { txid: coin.outpoint.txid };
    lift_again_after_a_node_restart(is_second_page, freeze).await;
}

/// Freezes the last output of a transaction of two pages, has a block spend the output after an operator's decision,
/// lets a node forget records, and applies the events again.
async fn lift_again_after_a_node_restart(
    is_lost: impl Fn(&Key) -> bool + Send + Sync + 'static,
    freeze: fn(&Coin) -> CommandAction<'static>,
) {
    let settings = WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::paged(2) };
    let mut world = World::with_settings(settings).await;
    let seed = world.seed(1, 4).await;
    let running = world.start();
    world.until_consumed().await;
    world.command(1, freeze(&seed.coin(3))).await;
    world.until_consumed().await;
    let listed = spend(&[seed.coin(3)], 1, 1);
    world.validate(&listed).await;
    world.until_consumed().await;
    world.mine(1, &[&listed]).await;
    wait_longer_than_a_block().await;
    running.kill().await;
    decide(&world, committed(&world).await, listed.txid).await.unwrap();
    world.settings.sequencer.commit_interval = Duration::from_secs(3_600);
    let running = world.start();
    until(async || world.page(&listed).await.is_some_and(|page| page.state() == TxState::Live)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.nodes.restart_nodes(LOSS_WINDOW, is_lost);
    running.kill().await;
    world.settings.sequencer.commit_interval = Duration::from_millis(100);
    world.run_until_consumed().await;
    assert_eq!(world.page(&listed).await.unwrap().state(), TxState::Live);
    let pages = pages_of(&world.store).await;
    assert!(!pages.iter().any(|page| page.txid == seed.txid && page.frozen));
    world.check_after_forgetting("a lifted bar").await;
}

/// Protects: an operator can decide nothing that the halt does not ask for.
#[tokio::test(start_paused = true)]
async fn a_decision_that_the_halt_does_not_ask_for_is_refused() {
    let world = World::new().await;
    let seed = world.seed(1, 3).await;
    let running = world.start();
    world.until_consumed().await;
    world.command(1, CommandAction::Freeze { outpoint: seed.coin(0).outpoint }).await;
    world.until_consumed().await;
    let (listed, other, free) =
        (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2), spend(&[seed.coin(1)], 1, 3));
    for made in [&listed, &other, &free] {
        world.validate(made).await;
    }
    world.until_consumed().await;
    let next = committed(&world).await;
    assert!(matches!(decide(&world, next, listed.txid).await, Err(DecideError::NotABlock(_))), "no event is there yet");
    assert!(matches!(decide(&world, next - 1, listed.txid).await, Err(DecideError::NotTheNext { .. })));
    world.mine(1, &[&free, &listed]).await;
    wait_longer_than_a_block().await;
    let at = committed(&world).await;
    let records = world.end("decisions", 0).await;
    let refused = async |offset, txid| decide(&world, offset, txid).await.unwrap_err().to_string();
    assert!(refused(at + 1, listed.txid).await.contains(&format!("the chain is at offset {at}")));
    assert!(refused(at, other.txid).await.contains("no block of the event lists"));
    assert!(refused(at, free.txid).await.contains("no command bars"));
    assert_eq!(world.end("decisions", 0).await, records, "a refused decision publishes nothing");
    decide(&world, at, listed.txid).await.unwrap();
    retry(&running).await;
    world.until_consumed().await;
    assert!(matches!(decide(&world, at, listed.txid).await, Err(DecideError::NotTheNext { .. })));
    running.stop().await;
    world.check("only what the halt asks for").await;
}
