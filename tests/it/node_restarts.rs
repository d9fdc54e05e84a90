//! A node of the store restarts and loses the last acknowledged writes: all events are applied in the end, and a
//! rebuild from the log gives the same state.

use std::{
    slice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use utxo_store::{
    broker::{
        Broker, BrokerDecorator, BrokerError, Consumer, PartitionReader, Producer, TopicPartition, memory::MemoryFaults,
    },
    engine::{
        EngineDecorator, EngineError, Incarnation, RecordEngine,
        fault::{EngineFaults, FaultEngine},
    },
    event::CommandAction,
    record::{Body, Key, Operation, Page, Record, TxState, Verdict},
    tx::Txid,
};

use crate::{
    failing_broker::start_on,
    harness::{Coin, LOSS_WINDOW, Made, World, coinbase, spend, spend_claiming},
    made_blocks::MadeBlock,
    regressions::holding_engine::HoldingEngine,
};

async fn state(world: &World, made: &Made) -> TxState {
    world.page(made).await.unwrap().state()
}

async fn holder(world: &World, coin: &Coin) -> Option<Txid> {
    let page = world.store.master(coin.outpoint.txid).await.unwrap().unwrap();
    page.utxos.as_ref().unwrap()[coin.outpoint.vout as usize].spender().map(|spender| spender.txid)
}

/// Waits until `there` holds, looking every millisecond of the simulated clock.
pub async fn until(mut there: impl AsyncFnMut() -> bool) {
    for _ in 0..100_000 {
        if there().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the condition does not come true");
}

async fn is_stored(world: &World, made: &Made) -> bool {
    world.page(made).await.is_some_and(|page| page.utxos.is_some())
}

fn everything(_: &Key) -> bool {
    true
}

#[tokio::test(start_paused = true)]
async fn lost_writes_are_applied_again() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 40).await;
    let running = world.start();
    let mut made = Vec::new();
    for vout in 0..40 {
        let mut coin = seed.coin(vout);
        for depth in 0..5 {
            let next = spend(&[coin], 1, depth);
            world.validate(&next).await;
            coin = next.coin(0);
            made.push(next);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(async || is_stored(&world, made.last().unwrap()).await).await;
    let lost = world.nodes.restart_nodes(LOSS_WINDOW, everything).unwrap();
    assert!(lost > 100, "{lost}");
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(made.len(), 200);
    for made in &made {
        assert_eq!(state(&world, made).await, TxState::Live);
    }
    assert_eq!(world.count("chain").await, 0, "nothing was contested");
    world.check("200 transactions").await;
}

#[tokio::test(start_paused = true)]
async fn an_offset_is_committed_only_once_it_is_durable() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let running = world.start();
    until(async || is_stored(&world, &seed).await).await;
    for _ in 0..3 {
        tokio::time::sleep(LOSS_WINDOW - Duration::from_millis(10)).await;
        assert_eq!(world.committed_txs().await, 0);
        world.nodes.restart_nodes(LOSS_WINDOW, everything);
        until(async || is_stored(&world, &seed).await).await;
    }
    world.until_consumed().await;
    assert_eq!(world.committed_txs().await, 1);
    let lost = world.nodes.restart_nodes(LOSS_WINDOW, everything).unwrap();
    assert_eq!(lost, 0, "a committed write cannot be lost");
    running.stop().await;
}

/// The incarnation cannot be read, and writes go on.
/// Protects: only so many events complete as `max_not_durable` allows to be repeated; the rest complete once the
/// incarnation is known.
#[tokio::test(start_paused = true)]
async fn completed_events_that_are_not_durable_are_bounded() {
    const MOST: usize = 50;
    let mut world = World::forgetful().await;
    world.settings.pipeline.max_not_durable = MOST;
    let seed = world.seed(1, 300).await;
    let running = world.start();
    world.until_consumed().await;
    world.nodes.set(EngineFaults { failed_read: 1.0, ..EngineFaults::default() });
    let made: Vec<Made> = (0..300).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    for made in &made {
        world.validate(made).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    let mut stored = 0;
    for made in &made {
        stored += usize::from(is_stored(&world, made).await);
    }
    // Events that the log delivers in one batch complete together.
    assert!((MOST..3 * MOST).contains(&stored), "{stored}");
    world.nodes.set(EngineFaults::default());
    world.until_consumed().await;
    running.stop().await;
    world.check("what had to wait").await;
}

/// No node answers while an instance starts.
/// Protects: a shutdown does not wait for the nodes.
#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_start_that_waits_for_the_nodes() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    world.nodes.set(EngineFaults { failed_read: 1.0, ..EngineFaults::default() });
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let stopping = tokio::time::timeout(Duration::from_secs(5), running.stop());
    assert_eq!(stopping.await.expect("the start has ended").completed, 0);
    world.nodes.set(EngineFaults::default());
    world.run_until_consumed().await;
    assert_eq!(state(&world, &seed).await, TxState::Live);
    world.check("a start that was given up").await;
}

/// The log answers some calls of a start, and leaves one without an answer.
struct SilentLog {
    inner: Arc<dyn Broker>,
    silent: &'static str,
}

impl SilentLog {
    async fn answer(&self, call: &str) {
        if call == self.silent {
            std::future::pending::<()>().await;
        }
    }
}

impl BrokerDecorator for SilentLog {
    fn inner(&self) -> &dyn Broker {
        &*self.inner
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        self.answer("producer").await;
        self.inner.producer().await
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
        self.answer(&partition.topic).await;
        self.inner.read(partition, offset).await
    }

    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        self.answer(if group.ends_with(".chain") { "chain" } else { "transactions" }).await;
        self.inner.subscribe(group, topics).await
    }
}

/// The log stops answering while an instance opens the log: for writing, the outcomes, either group.
/// Protects: a shutdown does not wait for the log.
#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_start_that_waits_for_the_log() {
    let world = World::new().await;
    for silent in ["producer", "outcomes", "transactions", "chain"] {
        let broker = Arc::new(SilentLog { inner: Arc::new(world.broker.clone()), silent });
        let running = start_on(&world, broker);
        tokio::time::sleep(Duration::from_secs(600)).await;
        let stopping = tokio::time::timeout(Duration::from_secs(5), running.stop());
        assert_eq!(stopping.await.unwrap_or_else(|_| panic!("{silent}: the start has not ended")).completed, 0);
    }
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    assert_eq!(state(&world, &seed).await, TxState::Live);
    world.check("starts that were given up").await;
}

/// Store that does not answer reads from a node's restart on.
struct SilentAfterRestart {
    inner: Arc<dyn RecordEngine>,
    incarnation: Mutex<Option<Incarnation>>,
    is_silent: AtomicBool,
}

impl EngineDecorator for SilentAfterRestart {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        if self.is_silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.inner.read(keys).await
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        let incarnation = self.inner.incarnation().await?;
        let mut known = self.incarnation.lock().unwrap();
        if *known.get_or_insert_with(|| incarnation.clone()) != incarnation {
            *known = Some(incarnation.clone());
            self.is_silent.store(true, Ordering::SeqCst);
        }
        Ok(incarnation)
    }
}

/// A rewind has a new baseline and waits for the store, longer than the durability lag, when a shutdown comes.
/// Protects: the shutdown does not wait, and does not take the lost writes for durable.
#[tokio::test(start_paused = true)]
async fn a_shutdown_during_a_rewind_commits_nothing() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let silent = Arc::new(SilentAfterRestart {
        inner: world.store.engine.clone(),
        incarnation: Mutex::default(),
        is_silent: AtomicBool::new(false),
    });
    let running = World { nodes: Arc::new(FaultEngine::new(silent.clone(), 0)), ..world.clone() }.start();
    until(async || is_stored(&world, &seed).await).await;
    tokio::time::sleep(LOSS_WINDOW / 2).await;
    assert!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(seed.txid)) > Some(0));
    until(async || silent.is_silent.load(Ordering::SeqCst)).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    silent.is_silent.store(false, Ordering::SeqCst);
    let stopping = tokio::time::timeout(Duration::from_secs(60), running.stop());
    stopping.await.expect("the rewind has ended");
    assert_eq!(world.committed_txs().await, 0);
    world.run_until_consumed().await;
    assert_eq!(state(&world, &seed).await, TxState::Live);
    world.check("a rewind that was given up").await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_commits_no_offset_that_is_not_durable() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let first = world.start();
    until(async || is_stored(&world, &seed).await).await;
    first.stop().await;
    assert_eq!(world.committed_txs().await, 0);
    world.nodes.restart_nodes(LOSS_WINDOW, everything);
    assert!(world.page(&seed).await.is_none());
    world.run_until_consumed().await;
    assert_eq!(state(&world, &seed).await, TxState::Live);
    world.check("shutdown").await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_rewind_after_a_node_restart() {
    let mut world = World::forgetful().await;
    world.settings.pipeline.commit_interval = Duration::from_secs(600);
    let seed = world.seed(1, 1).await;
    let first = world.start();
    until(async || is_stored(&world, &seed).await).await;
    world.nodes.restart_nodes(LOSS_WINDOW, everything);
    let metrics = first.metrics.clone();
    first.stop().await;
    assert_eq!(metrics.node_restarts.get(), 0, "the next instance reads the event again");
    world.settings.pipeline.commit_interval = Duration::from_secs(1);
    world.run_until_consumed().await;
    assert_eq!(state(&world, &seed).await, TxState::Live);
    world.check("a node that restarts before the end").await;
}

/// Produces two rivals and the child of one; returns them with the seed that the rivals spend.
async fn rivals(world: &World) -> (Made, [Made; 3]) {
    let seed = world.seed(1, 3).await;
    let (one, other) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0), seed.coin(1)], 2, 2));
    let child = spend(&[other.coin(0)], 1, 3);
    for made in [&one, &other, &child] {
        world.validate(made).await;
    }
    (seed, [one, other, child])
}

/// The sequencer dies between writing a decision and applying it, and the node loses the spends of the evaluation.
#[tokio::test(start_paused = true)]
async fn a_decision_is_applied_after_a_crash_and_a_node_restart() {
    for forgotten in [0u8, 1, 2] {
        let world = World::forgetful().await;
        let (seed, [one, other, child]) = rivals(&world).await;
        let running = world.start();
        until(async || world.count("decisions").await > 0).await;
        running.kill().await;
        // The node loses the seed's record, the contestants' records, or all.
        let lost = world.nodes.restart_nodes(LOSS_WINDOW, |key| match forgotten {
            0 => *key == Key::master(seed.txid),
            1 => *key == Key::master(one.txid) || *key == Key::master(other.txid),
            _ => true,
        });
        assert!(lost.unwrap() > 0);
        let running = world.start();
        world.until_consumed().await;
        running.stop().await;
        let winner = holder(&world, &seed.coin(0)).await.unwrap();
        assert!([one.txid, other.txid].contains(&winner));
        assert_eq!(state(&world, &child).await == TxState::Live, winner == other.txid);
        world.check(&format!("forgotten: {forgotten}")).await;
    }
}

/// The slot of a live transaction is free again, and a rival takes it before the restart is detected.
#[tokio::test(start_paused = true)]
async fn a_lost_spend_of_a_live_transaction_is_decided_again() {
    for mined in [false, true] {
        let world = World::forgetful().await;
        let seed = world.seed(1, 1).await;
        let running = world.start();
        until(async || is_stored(&world, &seed).await).await;
        // The seed's record is durable, the spend of its output is not.
        tokio::time::sleep(LOSS_WINDOW * 2).await;
        let (one, other) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
        let child = spend(&[one.coin(0)], 1, 3);
        world.validate(&one).await;
        world.validate(&child).await;
        until(async || is_stored(&world, &child).await).await;
        if mined {
            world.mine(1, &[&one]).await;
            until(async || {
                let page = world.page(&one).await.unwrap();
                page.master.as_ref().unwrap().unmined_since.is_none()
            })
            .await;
        }
        let lost = world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(seed.txid));
        assert_eq!(lost, Some(1), "the node lost the spend");
        world.validate(&other).await;
        world.until_consumed().await;
        running.stop().await;
        let winner = holder(&world, &seed.coin(0)).await.unwrap();
        let (live, fell) = if winner == one.txid { (&one, &other) } else { (&other, &one) };
        assert_eq!(state(&world, live).await, TxState::Live, "mined {mined}");
        assert!(matches!(state(&world, fell).await, TxState::Conflicting(Verdict::Conflicting(_))), "mined {mined}");
        assert_eq!(state(&world, &child).await == TxState::Live, winner == one.txid);
        assert!(!mined || winner == one.txid, "a mined transaction stays live");
        world.check(&format!("mined: {mined}")).await;
    }
}

/// A node loses the spend of a mined transaction whose outcome `live` is not published yet. A rival takes the slot, and
/// the event that is read again is contested: the rival loses, and the transaction stays live (simulator, seed 568).
/// Protects: a live transaction whose contest is passed over has an outcome.
#[tokio::test(start_paused = true)]
async fn a_live_transaction_whose_slot_was_lost_has_an_outcome() {
    let mut world = World::forgetful().await;
    world.settings.pipeline.live_outcomes = Some(Duration::from_secs(20));
    let seed = world.seed(1, 1).await;
    let running = world.start();
    until(async || is_stored(&world, &seed).await).await;
    tokio::time::sleep(LOSS_WINDOW * 2).await;
    let (one, other) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    world.validate(&one).await;
    until(async || is_stored(&world, &one).await).await;
    world.mine(1, &[&one]).await;
    until(async || world.page(&one).await.unwrap().master.as_ref().unwrap().unmined_since.is_none()).await;
    assert_eq!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(seed.txid)), Some(1));
    world.validate(&other).await;
    until(async || is_stored(&world, &other).await).await;
    assert_eq!(holder(&world, &seed.coin(0)).await, Some(other.txid), "the rival takes the slot");
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &one).await, TxState::Live);
    world.check("a lost slot before the outcome").await;
}

#[tokio::test(start_paused = true)]
async fn a_verdict_lost_with_its_slot_is_applied_again() {
    let world = World::forgetful().await;
    let (seed, [one, other, child]) = rivals(&world).await;
    let running = world.start();
    let decided = |state| matches!(state, TxState::Conflicting(Verdict::Conflicting(_)));
    until(async || {
        is_stored(&world, &one).await
            && is_stored(&world, &other).await
            && (decided(state(&world, &one).await) || decided(state(&world, &other).await))
    })
    .await;
    let lost = world.nodes.restart_nodes(LOSS_WINDOW, everything).unwrap();
    assert!(lost > 4);
    world.until_consumed().await;
    running.stop().await;
    let winner = holder(&world, &seed.coin(0)).await.unwrap();
    assert_eq!(state(&world, &child).await == TxState::Live, winner == other.txid);
    world.check("a verdict and its slot").await;
}

#[tokio::test(start_paused = true)]
async fn a_block_is_set_mined_again_after_a_node_restart() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 20).await;
    let made: Vec<Made> = (0..20).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    let rival = spend(&[seed.coin(3)], 1, 2);
    world.validate(&rival).await;
    for made in &made {
        world.validate(made).await;
    }
    let running = world.start();
    let listed: Vec<&Made> = made.iter().collect();
    let coinbase = world.mine(1, &listed).await;
    until(async || world.page(&coinbase).await.is_some()).await;
    world.nodes.restart_nodes(LOSS_WINDOW, |key| matches!(key, Key::Page(txid, _) if txid.0[0] % 2 == 0));
    until(async || world.page(&coinbase).await.is_some()).await;
    // A second block with a later stamp comes before the lost part of the first is detected.
    let later = spend(&[made[0].coin(0)], 1, 5);
    world.validate(&later).await;
    world.mine(2, &[&later]).await;
    world.until_consumed().await;
    running.stop().await;
    for made in made.iter().chain([&later, &coinbase]) {
        let page = world.page(made).await.unwrap();
        assert_eq!(page.state(), TxState::Live, "{}", made.txid);
        assert_eq!(page.master.as_ref().unwrap().unmined_since, None, "{}", made.txid);
    }
    world.check("a block").await;
}

#[tokio::test(start_paused = true)]
async fn descendants_are_flagged_again_with_two_instances() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 2).await;
    let loser = spend(&[seed.coin(0)], 3, 1);
    let children: Vec<Made> = (0..3).map(|vout| spend(&[loser.coin(vout)], 2, 2)).collect();
    let grandchildren: Vec<Made> = children.iter().map(|child| spend(&[child.coin(0)], 1, 3)).collect();
    let cone: Vec<&Made> = std::iter::once(&loser).chain(&children).chain(&grandchildren).collect();
    for made in &cone {
        world.validate(made).await;
    }
    let running = [world.start(), world.start()];
    until(async || is_stored(&world, grandchildren.last().unwrap()).await).await;
    let winner = spend(&[seed.coin(0)], 1, 9);
    world.validate(&winner).await;
    world.mine(1, &[&winner]).await;
    until(async || matches!(state(&world, &children[0]).await, TxState::Conflicting(_))).await;
    world.nodes.restart_nodes(LOSS_WINDOW, |key| matches!(key, Key::Page(txid, _) if txid.0[1] % 3 != 0));
    world.until_consumed().await;
    for running in running {
        running.stop().await;
    }
    assert_eq!(state(&world, &winner).await, TxState::Live);
    for made in cone {
        assert!(matches!(state(&world, made).await, TxState::Conflicting(_)), "{}", made.txid);
    }
    world.check("a cone").await;
}

/// Two events of a transaction differ. The record that the first one created is lost just before the second is handled:
/// the stored record is by the first all the same, as in a rebuild (simulator, seed 102339).
#[tokio::test(start_paused = true)]
async fn a_later_event_creates_no_record_in_place_of_a_lost_one() {
    let mut world = World::forgetful().await;
    world.settings.pipeline.commit_interval = Duration::from_secs(5);
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let running = world.start();
    let wrong = Coin { satoshis: 1_000_001, ..seed.coin(0) };
    let (first, second) = (spend_claiming(&[seed.coin(0)], &[wrong], 1, 1), spend(&[seed.coin(0)], 1, 1));
    assert_eq!(first.txid, second.txid);
    // The contest of the first event has to wait, and the second event waits for the contest.
    world.validate_at(&first, 100).await;
    world.validate_at(&second, 200).await;
    world.broker.set_faults(MemoryFaults { produce_refused: 1.0, ..MemoryFaults::default() });
    until(async || is_stored(&world, &first).await).await;
    assert_eq!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(first.txid)), Some(1));
    world.broker.set_faults(MemoryFaults::default());
    world.until_consumed().await;
    running.stop().await;
    let page = world.page(&first).await.unwrap();
    assert_eq!((page.state(), page.master.as_ref().unwrap().unmined_since), (TxState::Live, Some(100)));
    assert_eq!(page.body(), Some(&Body::Transaction(second.extended.clone())));
    world.check_after_forgetting("two events").await;
}

/// The first event of a transaction is completed, and its record is lost. Before the restart is detected a later event
/// is read, which differs only in the height.
#[tokio::test(start_paused = true)]
async fn a_later_event_creates_no_record_after_the_first_completed() {
    let (world, seed) = world_that_detects_restarts_late().await;
    let running = world.start();
    let made = spend(&[seed.coin(0)], 1, 1);
    world.validate_at(&made, 100).await;
    let later = async || world.validate_at(&made, 200).await;
    lose_record_before(&world, &made, later).await;
    running.stop().await;
    let page = world.page(&made).await.unwrap();
    assert_eq!((page.state(), page.master.as_ref().unwrap().unmined_since), (TxState::Live, Some(100)));
    world.check("two events of a transaction").await;
}

/// The same, and the later event is partial.
#[tokio::test(start_paused = true)]
async fn a_partial_event_creates_no_record_of_a_whole_transaction() {
    let (world, seed) = world_that_detects_restarts_late().await;
    let running = world.start();
    let made = spend(&[seed.coin(0)], 1, 1);
    world.validate(&made).await;
    let later = async || world.produce_partial(&made).await;
    lose_record_before(&world, &made, later).await;
    running.stop().await;
    let page = world.page(&made).await.unwrap();
    assert_eq!((page.state(), page.body()), (TxState::Live, Some(&Body::Transaction(made.extended.clone()))));
    world.check("a partial event").await;
}

/// The same, and the later event has wrong claims: once its contest was decided against the transaction, the first
/// event, completed when the transaction was live, was not handled again.
#[tokio::test(start_paused = true)]
async fn wrong_claims_decide_nothing_while_the_honest_record_is_lost() {
    let (world, seed) = world_that_detects_restarts_late().await;
    let running = world.start();
    let made = spend(&[seed.coin(0)], 1, 1);
    world.validate(&made).await;
    let wrong = Coin { satoshis: 1_000_001, ..seed.coin(0) };
    let lie = spend_claiming(&[seed.coin(0)], &[wrong], 1, 1);
    assert_eq!(lie.txid, made.txid);
    let later = async || world.validate(&lie).await;
    lose_record_before(&world, &made, later).await;
    running.stop().await;
    let page = world.page(&made).await.unwrap();
    assert_eq!((page.state(), page.body()), (TxState::Live, Some(&Body::Transaction(made.extended.clone()))));
    assert_eq!(world.count("chain").await, 0, "no event is contested");
    world.check("wrong claims").await;
}

/// The coinbase of a side chain is lost just before its block is connected, which creates the coinbase again
/// (simulator, seeds 929 and 5032).
/// Protects: a rebuild, for which the coinbase was conflicting, creates it with its block, though no decision names it.
#[tokio::test(start_paused = true)]
async fn a_side_chain_coinbase_lost_before_its_reorg_is_created_again() {
    let (world, _) = world_that_detects_restarts_late().await;
    let aside = MadeBlock::new(1, 101, &coinbase(1), &[]);
    let running = world.start();
    world.bring_aside(1, &aside).await;
    lose_record_before(&world, &aside.coinbase, async || world.reorganise(2, &[], slice::from_ref(&aside)).await).await;
    running.stop().await;
    assert_eq!(state(&world, &aside.coinbase).await, TxState::Live);
    world.check_after_forgetting("a coinbase of a side chain").await;
}

/// One event connects two blocks, and the second makes a loser win. Then the transaction of the first block is lost,
/// and a rival comes before the restart is detected. The lost transaction thus has to win by a decision behind the one
/// that closed the event.
/// Protects: decisions on the blocks of one event are applied in the order of the log, not in the order of the blocks.
#[tokio::test(start_paused = true)]
async fn decisions_on_two_blocks_of_one_event_apply_in_log_order() {
    let (world, seed) = world_that_detects_restarts_late().await;
    let other_seed = world.seed(2, 1).await;
    let (winner, loser) = (spend(&[other_seed.coin(0)], 1, 1), spend(&[other_seed.coin(0)], 1, 2));
    let (listed, rival) = (spend(&[seed.coin(0)], 1, 3), spend(&[seed.coin(0)], 1, 4));
    world.validate(&winner).await;
    world.run_until_consumed().await;
    let running = world.start();
    world.validate(&loser).await;
    world.until_consumed().await;
    world.validate(&listed).await;
    until(async || is_stored(&world, &listed).await).await;
    let first = MadeBlock::new(1, 101, &coinbase(1), &[&listed]);
    let second = first.followed_by(2, &coinbase(2), &[&loser]);
    world.reorganise(1, &[], &[first, second]).await;
    until(async || state(&world, &loser).await == TxState::Live).await;
    tokio::time::sleep(LOSS_WINDOW / 4).await;
    let forgotten = [&listed, &seed].map(|made| Key::master(made.txid));
    assert!(world.nodes.restart_nodes(LOSS_WINDOW, |key| forgotten.contains(key)) > Some(0));
    world.validate(&rival).await;
    world.until_consumed().await;
    running.stop().await;
    for (made, live) in [(&listed, true), (&rival, false), (&loser, true), (&winner, false)] {
        assert_eq!(state(&world, made).await == TxState::Live, live, "{}", made.txid);
    }
    world.check_after_forgetting("two blocks of one event").await;
}

/// A node loses the spend of a listed transaction and a later lock of its parent; the lock is applied again first, and
/// the live spender is evaluated (simulator, seed 400703).
/// Protects: a lock does not bar a live transaction whose spend was lost. The chain halted.
#[tokio::test(start_paused = true)]
async fn a_lost_spend_is_repeated_behind_a_lock() {
    repeat_a_lost_spend_behind(|txid| CommandAction::Lock { txid }, |page| page.locked).await;
}

/// The same with a freeze of the whole parent.
#[tokio::test(start_paused = true)]
async fn a_lost_spend_is_repeated_behind_a_freeze_of_its_parent() {
    repeat_a_lost_spend_behind(|txid| CommandAction::FreezeTransaction { txid }, |page| page.frozen).await;
}

async fn repeat_a_lost_spend_behind(action: fn(Txid) -> CommandAction<'static>, has_flag: fn(&Page) -> bool) {
    let mut world = World::forgetful().await;
    // A command is carried out while the writes before it are not durable yet.
    world.settings.pipeline.missing_parent_grace_ms = 100;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let running = world.start();
    let child = spend(&[seed.coin(0)], 1, 1);
    world.validate(&child).await;
    let coinbase = world.mine(1, &[&child]).await;
    until(async || is_stored(&world, &coinbase).await).await;
    world.command(1, action(seed.txid)).await;
    let is_barred = async || has_flag(&world.page(&seed).await.unwrap());
    until(is_barred).await;
    running.kill().await;
    assert!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(seed.txid)) > Some(1));
    let delay = Duration::from_secs(30);
    let late = HoldingEngine::delay(&world, delay, |row| matches!(row.operation, Operation::Spend(_)));
    let running = late.in_front_of(&world).start();
    until(is_barred).await;
    assert_eq!(holder(&world, &seed.coin(0)).await, None);
    world.command(2, CommandAction::Reconsider { txid: child.txid }).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &child).await, TxState::Live);
    assert_eq!(holder(&world, &seed.coin(0)).await, Some(child.txid));
    world.check_after_forgetting("a spend behind a flag").await;
}

/// A node loses the spend of a transaction that no block lists, and a later flag of the parent. The flag is applied
/// again beside the events.
/// Protects: the flag waits for the events of all partitions, so that a spend before the flag stays live.
#[tokio::test(start_paused = true)]
async fn a_flag_that_is_applied_again_waits_for_the_spends_before_it() {
    let actions: [fn(Txid) -> CommandAction<'static>; 2] =
        [|txid| CommandAction::Lock { txid }, |txid| CommandAction::FreezeTransaction { txid }];
    for action in actions {
        let mut world = World::forgetful().await;
        // The command is carried out while the writes before it are not durable yet.
        let grace = std::mem::replace(&mut world.settings.pipeline.missing_parent_grace_ms, 100);
        let seed = world.seed(1, 1).await;
        world.run_until_consumed().await;
        let running = world.start();
        let child = spend(&[seed.coin(0)], 1, 1);
        world.validate(&child).await;
        until(async || is_stored(&world, &child).await).await;
        world.command(1, action(seed.txid)).await;
        until(async || world.page(&seed).await.is_some_and(|page| page.locked || page.frozen)).await;
        running.kill().await;
        world.settings.pipeline.missing_parent_grace_ms = grace;
        let forgotten = [Key::master(seed.txid), Key::master(child.txid)];
        assert!(world.nodes.restart_nodes(LOSS_WINDOW, move |key| forgotten.contains(key)) > Some(1));
        let delay = Duration::from_millis(500);
        let late = HoldingEngine::delay(&world, delay, |row| matches!(row.operation, Operation::Spend(_)));
        let running = late.in_front_of(&world).start();
        world.until_consumed().await;
        running.stop().await;
        assert_eq!(state(&world, &child).await, TxState::Live);
        assert!(world.page(&seed).await.is_some_and(|page| page.locked || page.frozen));
        world.check_after_forgetting("a flag behind a spend").await;
    }
}

/// Returns a world that is slow to detect a node restart, and one transaction in it.
async fn world_that_detects_restarts_late() -> (World, Made) {
    let mut world = World::forgetful().await;
    world.settings.pipeline.commit_interval = Duration::from_secs(5);
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    (world, seed)
}

/// Stores `made` and completes its event, lets a node lose the record, runs `later`, and waits until all is consumed.
async fn lose_record_before(world: &World, made: &Made, later: impl AsyncFnOnce()) {
    until(async || is_stored(world, made).await).await;
    tokio::time::sleep(LOSS_WINDOW / 2).await;
    assert!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(made.txid)) > Some(0));
    later().await;
    world.until_consumed().await;
}

/// A store with node restarts at random times still completes every event.
#[tokio::test(start_paused = true)]
async fn everything_completes_through_repeated_node_restarts() {
    let faults = EngineFaults { node_restart: 0.4, max_node_restarts: 8, ..EngineFaults::default() };
    let world = World::forgetful().await;
    world.nodes.set(faults);
    let seed = world.seed(1, 30).await;
    let running = world.start();
    let mut made = Vec::new();
    for vout in 0..30 {
        made.push(spend(&[seed.coin(vout)], 1, 1));
        world.validate(made.last().unwrap()).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    world.until_consumed().await;
    // The number of restarts before everything is consumed depends on how often the store is called.
    assert!(world.nodes.injected() > 4);
    running.stop().await;
    for made in &made {
        assert_eq!(state(&world, made).await, TxState::Live);
    }
    world.check("restart after restart").await;
}

/// Protects: the first start reads no event before the meta record and then the sentinels are durable, and the offset
/// of an event is committed once the event is durable.
#[tokio::test(start_paused = true)]
async fn a_first_start_takes_two_durability_lags() {
    let world = World::forgetful().await;
    let lag = 5 * LOSS_WINDOW;
    let seed = world.seed(1, 1).await;
    let began = tokio::time::Instant::now();
    let running = world.start();
    while world.page(&seed).await.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stored = began.elapsed();
    world.until_consumed().await;
    let committed = began.elapsed();
    running.kill().await;
    let began = tokio::time::Instant::now();
    let later = world.seed(2, 1).await;
    let running = world.start();
    while world.page(&later).await.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let again = began.elapsed();
    running.kill().await;
    assert!((2 * lag..3 * lag).contains(&stored), "stored after {stored:?}");
    assert!((stored + lag..stored + 2 * lag).contains(&committed), "stored after {stored:?}, committed {committed:?}");
    assert!(again < lag, "another start took {again:?}");
}
