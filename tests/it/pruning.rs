//! Pruning by whole instances: due records are pruned, repeated events are recognised, and no output becomes spendable
//! again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use utxo_store::{
    broker::Message,
    engine::{self, EngineError, Index, RecordEngine, Row, fault::FaultEngine},
    event::{CommandAction, CommandResult, Validated},
    instance::{self, InstanceError},
    prepare::{PrepareSettings, PreparedEvent, prepare},
    record::{ConsumedOffsets, Key, Marks, Operation, Outcome, Reason, TxState, Verdict},
    status::Health,
    store::{
        meta::{MetaError, StoreMeta},
        prune::PruneTerms,
    },
};

use crate::{
    harness::{Coin, LOSS_WINDOW, Made, World, WorldSettings, coinbase, spend, spend_claiming},
    made_blocks::MadeBlock,
};

/// The retention of these tests in blocks.
pub const RETENTION: u32 = 2;

async fn state(world: &World, made: &Made) -> Option<TxState> {
    world.page(made).await.map(|page| page.state())
}

async fn is_pruned(world: &World, made: &Made) -> bool {
    matches!(state(world, made).await, Some(TxState::Pruned(_)))
}

async fn conflict_reason(world: &World, made: &Made) -> Option<Reason> {
    match state(world, made).await {
        Some(TxState::Conflicting(Verdict::Conflicting(reason))) => Some(reason),
        _ => None,
    }
}

async fn until(what: &str, mut there: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(600), async {
        while !there().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what} does not happen in time"));
}

/// Returns a world with a seed, its child and its grandchild, mined in the first two blocks, and two more blocks, after
/// which the child is due.
async fn three(settings: WorldSettings) -> (World, [Made; 3]) {
    let world = World::with_settings(settings).await;
    let made = three_in(&world).await;
    (world, made)
}

async fn three_in(world: &World) -> [Made; 3] {
    let seed = world.seed(1, 2).await;
    let child = spend(&[seed.coin(0)], 1, 1);
    let grandchild = spend(&[child.coin(0)], 2, 2);
    world.validate(&child).await;
    world.validate(&grandchild).await;
    world.mine(1, &[&child]).await;
    world.mine(2, &[&grandchild]).await;
    world.mine(3, &[]).await;
    world.mine(4, &[]).await;
    [seed, child, grandchild]
}

#[tokio::test(start_paused = true)]
async fn a_spent_parent_is_pruned_and_its_events_are_recognised() {
    run_pruned_and_repeated(World::with_settings(WorldSettings::pruned(RETENTION)).await).await;
}

/// Needs a world with [`RETENTION`].
pub async fn run_pruned_and_repeated(world: World) {
    let [seed, child, grandchild] = three_in(&world).await;
    let running = world.start();
    until("the pruning", async || is_pruned(&world, &child).await).await;
    assert_eq!(state(&world, &seed).await, Some(TxState::Live), "one output of the seed is unspent");
    assert_eq!(state(&world, &grandchild).await, Some(TxState::Live));
    let chain = world.count("chain").await;
    for made in [&child, &grandchild, &child] {
        world.validate(made).await;
    }
    world.until_consumed().await;
    assert_eq!((world.count("chain").await, world.count("dead-letters").await), (chain, 0));
    // A late rival loses to the pruned transaction, and a late child loses because its parent was pruned.
    let (rival, late) = (spend(&[seed.coin(0)], 1, 7), spend(&[child.coin(0)], 1, 8));
    world.validate(&rival).await;
    world.validate(&late).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(conflict_reason(&world, &rival).await, Some(Reason::DoubleSpend { input: 0, winner: child.txid }));
    assert_eq!(conflict_reason(&world, &late).await, Some(Reason::PrunedParent { parent: child.txid }));
    assert!(is_pruned(&world, &child).await);
    world.check("what was pruned comes again").await;
}

/// Returns a world with a seed, and a pruned partial transaction that spends the seed's first output.
async fn pruned_partial() -> (World, Made, Made) {
    let world = World::with_settings(WorldSettings::pruned(RETENTION)).await;
    let seed = world.seed(1, 2).await;
    let tx = spend(&[seed.coin(0)], 1, 1);
    world.produce_partial(&tx).await;
    let child = spend(&[tx.coin(0)], 1, 2);
    world.validate(&child).await;
    world.mine(1, &[&tx, &child]).await;
    for number in 2..=4 {
        world.mine(number, &[]).await;
    }
    let running = world.start();
    until("the pruning", async || is_pruned(&world, &tx).await).await;
    running.stop().await;
    (world, seed, tx)
}

/// A whole event behind a pruned partial transaction spends nothing, as a whole event before the pruning does.
#[tokio::test(start_paused = true)]
async fn a_whole_event_behind_a_pruned_partial_one_takes_no_slot() {
    let (world, seed, tx) = pruned_partial().await;
    world.validate(&tx).await;
    world.run_until_consumed().await;
    let parent = world.page(&seed).await.unwrap();
    assert_eq!(parent.utxos.as_ref().unwrap()[0].spender(), None);
    world.check("a whole event behind a pruned partial one").await;
}

/// The whole event does not block a rival while its contest is not decided: the holder of the slot is partial, though
/// pruned.
#[tokio::test(start_paused = true)]
async fn a_rival_of_a_whole_event_behind_a_pruned_partial_one_wins() {
    let (world, seed, tx) = pruned_partial().await;
    let rival = spend(&[seed.coin(0)], 1, 3);
    // The spend of the whole event, before its contest is published.
    let event = Validated { tx: &tx.extended, height: 200, locked: false }.encode();
    let key = tx.txid.0.to_vec().into();
    let message = Message { offset: 0, timestamp_ms: 1, key, payload: event.into(), headers: vec![] };
    let Ok(PreparedEvent::Validated(whole)) = prepare(&PrepareSettings::of(&world.store), &message) else { panic!() };
    let taken = Operation::Spend(whole.spend(&whole.groups[0], Marks::Respect));
    let outcomes = world.store.engine.apply(&[Row { key: Key::master(seed.txid), operation: taken }]).await;
    assert!(matches!(outcomes[..], [Ok(Outcome::Applied(_))]), "{outcomes:?}");
    world.validate(&rival).await;
    world.run_until_consumed().await;
    assert_eq!(state(&world, &rival).await, Some(TxState::Live));
}

/// The contest of the rival is decided when the slot says that its spender was pruned. The pruned spender was taken for
/// the contestant, and the rival passed over for ever (simulator, seed 124 with `SIM_PRUNE`).
#[tokio::test(start_paused = true)]
async fn a_rival_of_a_pruned_transaction_has_its_verdict() {
    let (world, [seed, child, _]) = three(WorldSettings::pruned(RETENTION)).await;
    let running = world.start();
    until("the pruning", async || is_pruned(&world, &child).await).await;
    let rival = spend(&[seed.coin(0), seed.coin(1)], 1, 7);
    world.validate(&rival).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(conflict_reason(&world, &rival).await, Some(Reason::DoubleSpend { input: 0, winner: child.txid }));
    world.check("a rival of who was pruned").await;
}

/// The grandchild is mined, so that its parent may be pruned; the missing parent is no reason against it.
#[tokio::test(start_paused = true)]
async fn a_mined_transaction_is_reconsidered_after_its_parent_was_pruned() {
    let (world, [_, child, grandchild]) = three(WorldSettings::pruned(RETENTION)).await;
    let running = world.start();
    until("the pruning", async || is_pruned(&world, &child).await).await;
    world.command(1, CommandAction::Reconsider { txid: grandchild.txid }).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &grandchild).await, Some(TxState::Live));
    world.check("reconsidered after its parent is gone").await;
}

/// A conflicting transaction stays pruned until a block lists it: deleted by a command or pruned, of one page or
/// several, with its body in the blob store or not. The block restores it from its tombstone, or from an event that was
/// read again when only the name was left. The blob is deleted only while no event needs it.
#[tokio::test(start_paused = true)]
async fn a_block_restores_a_pruned_conflicting_transaction() {
    for (deleted, page_size, inline_limit, a_name) in [
        (true, 1_000, None, false),
        (true, 2, None, false),
        (false, 2, Some(0), false),
        (false, 1_000, None, false),
        (false, 2, Some(0), true),
        (false, 2, None, true),
        (false, 1_000, None, true),
    ] {
        let what =
            format!("deleted: {deleted}, {page_size} slots a page, bodies inline: {inline_limit:?}, a name: {a_name}");
        let settings = WorldSettings { page_size, inline_limit, ..WorldSettings::pruned(RETENTION) };
        let world = World::with_settings(settings).await;
        let seed = world.seed(1, 2).await;
        let (made, mined) = (spend(&[seed.coin(0)], 5, 1), spend(&[seed.coin(1)], 1, 2));
        let mut running = world.start();
        for event in [&made, &mined] {
            world.validate(event).await;
        }
        world.mine(1, &[&mined]).await;
        world.until_consumed().await;
        world.command(1, CommandAction::SetConflicting { txid: made.txid }).await;
        if deleted {
            world.command(2, CommandAction::Delete { txid: made.txid }).await;
        } else {
            for sequence in [2, 3] {
                world.mine(sequence, &[]).await;
            }
        }
        until(&what, async || is_pruned(&world, &made).await).await;
        let mut next = if deleted { 2 } else { 4 };
        if a_name {
            for _ in 0..3 {
                world.mine(next, &[]).await;
                next += 1;
            }
            let is_a_name = async || world.page(&made).await.unwrap().body().is_none();
            if inline_limit.is_some() {
                world.until_consumed().await;
                running.stop().await;
                assert!(!is_a_name().await, "{what}");
                world.prune_to(world.highest().await + 10).await;
                running = world.start();
            }
            until(&what, is_a_name).await;
        }
        world.validate(&made).await;
        world.until_consumed().await;
        assert!(is_pruned(&world, &made).await, "{what}");
        let child = spend(&[made.coin(4)], 1, 3);
        world.validate(&child).await;
        world.until_consumed().await;
        assert_eq!(conflict_reason(&world, &child).await, Some(Reason::PrunedParent { parent: made.txid }), "{what}");
        world.mine(next, &[&made, &child]).await;
        world.until_consumed().await;
        running.stop().await;
        for made in [&made, &child] {
            assert_eq!(state(&world, made).await, Some(TxState::Live), "{what}");
        }
        world.check(&what).await;
    }
}

/// A block lists a conflicting transaction of three pages of which only the name is left, and its event comes after the
/// block (simulator, seed 5864).
/// Protects: the block revives every page, so that every output can be spent.
#[tokio::test(start_paused = true)]
async fn a_block_revives_every_page_of_a_name() {
    let world = World::with_settings(WorldSettings { page_size: 2, ..WorldSettings::pruned(RETENTION) }).await;
    let seed = world.seed(1, 2).await;
    let (made, mined) = (spend(&[seed.coin(0)], 5, 1), spend(&[seed.coin(1)], 1, 2));
    let running = world.start();
    for event in [&made, &mined] {
        world.validate(event).await;
    }
    world.mine(1, &[&mined]).await;
    world.until_consumed().await;
    world.command(1, CommandAction::SetConflicting { txid: made.txid }).await;
    for sequence in 2..=3 {
        world.mine(sequence, &[]).await;
    }
    until("the pruning", async || is_pruned(&world, &made).await).await;
    for sequence in 4..=6 {
        world.mine(sequence, &[]).await;
    }
    until("the name", async || world.page(&made).await.unwrap().body().is_none()).await;
    world.mine(7, &[&made]).await;
    until("the revival", async || !is_pruned(&world, &made).await).await;
    world.validate(&made).await;
    world.until_consumed().await;
    let child = spend(&[made.coin(2), made.coin(4)], 1, 3);
    world.validate(&child).await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&made, &child] {
        assert_eq!(state(&world, made).await, Some(TxState::Live));
    }
    world.check("a name with several pages").await;
}

/// A page returned without a flag, or a slot of the parent names the deleted transaction again; the repeated deletion
/// corrects both.
#[tokio::test(start_paused = true)]
async fn a_deletion_lost_in_part_is_repeated_as_a_whole() {
    for lost in [Lost::ItsPage, Lost::ItsParent] {
        let settings = WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::paged(2) };
        let world = World::with_settings(settings).await;
        let seed = world.seed(1, 1).await;
        let (made, rival) = (spend(&[seed.coin(0)], 3, 1), spend(&[seed.coin(0)], 1, 2));
        let running = world.start();
        world.validate(&made).await;
        world.until_consumed().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        world.command(1, CommandAction::SetConflicting { txid: made.txid }).await;
        world.command(2, CommandAction::Delete { txid: made.txid }).await;
        until("the deletion", async || is_pruned(&world, &made).await).await;
        world.nodes.restart_nodes(LOSS_WINDOW, move |key| match lost {
            Lost::ItsPage => *key == Key::Page(made.txid, 1),
            Lost::ItsParent => *key == Key::master(seed.txid),
        });
        world.validate(&rival).await;
        world.until_consumed().await;
        running.stop().await;
        let page = world.store.engine.read(&[Key::Page(made.txid, 1)]).await.remove(0).unwrap();
        let page = utxo_store::store::into_page(page).unwrap();
        assert!(page.pruned.is_some(), "{lost:?}: {page:?}");
        assert_eq!(state(&world, &rival).await, Some(TxState::Live), "{lost:?}");
        world.check_after_forgetting(&format!("{lost:?}")).await;
    }
}

#[derive(Debug, Clone, Copy)]
enum Lost {
    ItsPage,
    ItsParent,
}

#[tokio::test(start_paused = true)]
async fn a_preserved_transaction_is_kept_until_its_height() {
    let world = World::with_settings(WorldSettings::pruned(RETENTION)).await;
    let seed = world.seed(1, 2).await;
    let preserved = spend(&[seed.coin(0)], 1, 1);
    let heir = spend(&[preserved.coin(0)], 1, 2);
    let running = world.start();
    for made in [&preserved, &heir] {
        world.validate(made).await;
    }
    world.until_consumed().await;
    world.command(1, CommandAction::Preserve { txid: preserved.txid, until: 106 }).await;
    world.until_consumed().await;
    world.mine(1, &[&preserved, &heir]).await;
    for sequence in 2..=5 {
        world.mine(sequence, &[]).await;
    }
    world.until_consumed().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(state(&world, &preserved).await, Some(TxState::Live));
    world.mine(6, &[]).await;
    until("the end of it", async || is_pruned(&world, &preserved).await).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(world.results(1).await, [CommandResult::Applied]);
    world.check("preserved until then").await;
}

/// A preserved transaction becomes conflicting and is pruned after its height, whole or to its name. A block restores
/// the transaction.
/// Protects: a rebuild, which prunes nothing, ends with the same height.
#[tokio::test(start_paused = true)]
async fn a_preserved_transaction_that_a_block_restores_keeps_its_height() {
    for is_name in [false, true] {
        let world = World::with_settings(WorldSettings::pruned(RETENTION)).await;
        let seed = world.seed(1, 1).await;
        let made = spend(&[seed.coin(0)], 1, 1);
        let running = world.start();
        world.validate(&made).await;
        world.mine(1, &[]).await;
        world.until_consumed().await;
        world.command(1, CommandAction::Preserve { txid: made.txid, until: 102 }).await;
        world.command(2, CommandAction::SetConflicting { txid: made.txid }).await;
        world.mine(2, &[]).await;
        world.mine(3, &[]).await;
        until("the pruning", async || is_pruned(&world, &made).await).await;
        let blocks = if is_name { 6 } else { 3 };
        for sequence in 4..=blocks {
            world.mine(sequence, &[]).await;
        }
        until("the name", async || world.page(&made).await.unwrap().body().is_some() != is_name).await;
        world.validate(&made).await;
        world.until_consumed().await;
        world.mine(blocks + 1, &[&made]).await;
        world.until_consumed().await;
        running.stop().await;
        let page = world.page(&made).await.unwrap();
        assert_eq!((page.state(), page.master.as_ref().unwrap().preserve_until), (TxState::Live, Some(102)));
        world.check("preserved, pruned and restored").await;
    }
}

/// Engine whose index of due records, while switched on, takes some time to answer.
struct SlowIndex {
    inner: Arc<dyn RecordEngine>,
    pause: Duration,
    is_slow: AtomicBool,
    asked: AtomicUsize,
}

impl SlowIndex {
    /// Returns the world over such an engine, and the engine.
    fn in_world(world: &World, pause: Duration) -> (World, Arc<SlowIndex>) {
        let (inner, is_slow, asked) = (world.store.engine.clone(), AtomicBool::new(true), AtomicUsize::new(0));
        let engine = Arc::new(SlowIndex { inner, pause, is_slow, asked });
        (World { nodes: Arc::new(FaultEngine::new(engine.clone(), 0)), ..world.clone() }, engine)
    }
}

impl engine::EngineDecorator for SlowIndex {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        if index == Index::DeleteAtHeight && self.is_slow.load(Ordering::Relaxed) {
            self.asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.pause).await;
        }
        self.inner.query(index, from, to, limit).await
    }
}

/// Protects: a chain event waits for a step of pruning for a second at first, not for the time limit of the step.
#[tokio::test(start_paused = true)]
async fn a_step_that_takes_long_holds_no_chain_event() {
    let world = World::with_settings(WorldSettings::pruned(RETENTION)).await;
    let (slow, engine) = SlowIndex::in_world(&world, Duration::from_secs(30));
    let running = slow.start();
    for (sequence, longest) in [(1, 2), (2, 3), (3, 5)] {
        world.mine(sequence, &[]).await;
        let before = engine.asked.load(Ordering::Relaxed);
        until("a step", async || engine.asked.load(Ordering::Relaxed) > before).await;
        let begun = tokio::time::Instant::now();
        world.produce("chain", b"x", b"no event".to_vec()).await;
        until("the event", async || world.count("dead-letters").await == sequence).await;
        assert!(begun.elapsed() < Duration::from_secs(longest), "{:?}", begun.elapsed());
    }
    engine.is_slow.store(false, Ordering::Relaxed);
    let horizon = async || world.store.meta().await.unwrap().unwrap().prune_horizon;
    until("the end of the pass", async || horizon().await == 103).await;
    running.stop().await;
}

/// The chain is never idle, and each step of pruning takes 3 s. Protects: a step that was interrupted gets more time,
/// and the pass ends.
#[tokio::test(start_paused = true)]
async fn a_step_that_takes_long_ends_on_a_busy_chain() {
    let world = World::with_settings(WorldSettings::pruned(RETENTION)).await;
    let [_, child, _] = three_in(&world).await;
    let (slow, _) = SlowIndex::in_world(&world, Duration::from_secs(3));
    let running = slow.start();
    let mut waited = 0;
    while !is_pruned(&world, &child).await {
        assert!(waited < 1_200, "the step does not end");
        waited += 1;
        world.produce("chain", b"x", b"no event".to_vec()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    running.stop().await;
}

/// Protects: a store of which nothing is pruned can still be read from its beginning by another group.
#[tokio::test(start_paused = true)]
async fn a_pass_without_a_due_record_raises_no_floor() {
    let world = World::with_settings(WorldSettings::pruned(RETENTION)).await;
    let meta = async || world.store.meta().await.unwrap().unwrap_or_default();
    for sequence in 1..=4 {
        world.mine(sequence, &[]).await;
    }
    let running = world.start();
    until("the pass", async || meta().await.prune_horizon == 104).await;
    let found = meta().await;
    assert_eq!((found.replay_floor, found.reorg_floor), (ConsumedOffsets::default(), 0));
    let seed = world.seed(1, 1).await;
    let lost = spend(&[seed.coin(0)], 1, 1);
    world.validate(&lost).await;
    world.until_consumed().await;
    world.command(1, CommandAction::SetConflicting { txid: lost.txid }).await;
    for sequence in 5..=6 {
        world.mine(sequence, &[]).await;
    }
    until("the pruning", async || is_pruned(&world, &lost).await).await;
    let found = meta().await;
    assert!(found.replay_floor.chain > 0 && found.reorg_floor == 104, "{found:?}");
    world.until_consumed().await;
    running.stop().await;
    world.check("floors").await;
}

/// One transaction is conflicting and the other spent by a mined one, and both are due; but the change of an authority
/// is kept.
#[tokio::test(start_paused = true)]
async fn a_reassigned_output_is_not_pruned() {
    let world = World::with_settings(WorldSettings::pruned(RETENTION)).await;
    let seed = world.seed(1, 3).await;
    let [falls, spent, goes] = [0, 1, 2].map(|vout| spend(&[seed.coin(vout)], 1, vout as u8));
    let child = spend(&[goes.coin(0)], 1, 5);
    let running = world.start();
    for made in [&falls, &spent, &goes, &child] {
        world.validate(made).await;
    }
    world.mine(1, &[&spent, &goes, &child]).await;
    world.until_consumed().await;
    for (made, id) in [(&falls, 1), (&spent, 3)] {
        let coin = made.coin(0);
        world.command(id, CommandAction::Freeze { outpoint: coin.outpoint }).await;
        let given = CommandAction::Reassign {
            outpoint: coin.outpoint,
            utxo_hash: coin.utxo_hash(),
            new_script: &[0x51, 0x99],
            satoshis: coin.satoshis,
            height: 101,
            spendable_after: 1,
        };
        world.command(id + 1, given).await;
    }
    world.command(5, CommandAction::SetConflicting { txid: falls.txid }).await;
    world.until_consumed().await;
    let new = Coin { script: vec![0x51, 0x99], ..spent.coin(0) };
    let owners = spend_claiming(&[spent.coin(0)], std::slice::from_ref(&new), 1, 4);
    world.validate_at(&owners, 102).await;
    world.mine(2, &[&owners]).await;
    for sequence in 3..=7 {
        world.mine(sequence, &[]).await;
    }
    world.until_consumed().await;
    until("the pruning of the output that was not reassigned", async || is_pruned(&world, &goes).await).await;
    world.command(6, CommandAction::Delete { txid: falls.txid }).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(world.slot(&new).await.spender().map(|by| by.txid), Some(owners.txid));
    assert_eq!((state(&world, &owners).await, state(&world, &spent).await), (Some(TxState::Live), Some(TxState::Live)));
    assert_eq!(conflict_reason(&world, &falls).await, Some(Reason::Command));
    assert!(matches!(&world.results(6).await[..], [CommandResult::Refused { code, .. }] if code == "NOT_PRUNABLE"));
    world.check("given to a new owner").await;
}

/// A frozen output, or one frozen until a height, stays so although a block lists its transaction in the end. A pruned
/// transaction would have come back with a spendable output (found by a review).
#[tokio::test(start_paused = true)]
async fn a_frozen_output_stays_frozen_while_its_transaction_conflicts() {
    for until in [None, Some(900)] {
        let world = World::with_settings(WorldSettings::pruned(RETENTION)).await;
        let seed = world.seed(1, 1).await;
        let made = spend(&[seed.coin(0)], 1, 1);
        let outpoint = made.coin(0).outpoint;
        let running = world.start();
        world.validate(&made).await;
        world.mine(1, &[]).await;
        world.until_consumed().await;
        let bar = match until {
            None => CommandAction::Freeze { outpoint },
            Some(height) => CommandAction::FreezeUntil { outpoint, height },
        };
        world.command(1, bar).await;
        world.command(2, CommandAction::SetConflicting { txid: made.txid }).await;
        for sequence in 2..=6 {
            world.mine(sequence, &[]).await;
        }
        world.until_consumed().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.command(3, CommandAction::Delete { txid: made.txid }).await;
        world.until_consumed().await;
        assert!(matches!(&world.results(3).await[..], [CommandResult::Refused { code, .. }] if code == "NOT_PRUNABLE"));
        world.mine(7, &[&made]).await;
        world.until_consumed().await;
        let thief = spend(&[made.coin(0)], 1, 2);
        world.validate(&thief).await;
        world.until_consumed().await;
        running.stop().await;
        assert_eq!(state(&world, &made).await, Some(TxState::Live));
        let barred = [Reason::Frozen { input: 0 }, Reason::NotYetSpendable { input: 0 }];
        assert!(conflict_reason(&world, &thief).await.is_some_and(|reason| barred.contains(&reason)), "{until:?}");
        world.check("frozen, fallen, and back").await;
    }
}

/// A group whose offsets were set back, or another group, would create pruned transactions again.
#[tokio::test(start_paused = true)]
async fn a_group_with_offsets_below_the_floor_is_refused() {
    let (world, [_, child, _]) = three(WorldSettings::pruned(RETENTION)).await;
    let running = world.start();
    until("the pruning", async || is_pruned(&world, &child).await).await;
    running.stop().await;
    let floor = world.store.meta().await.unwrap().unwrap().replay_floor;
    assert!(floor.chain > 0 && !floor.validated.is_empty(), "{floor:?}");
    let mut settings = world.settings.clone();
    settings.pipeline.group = "another".into();
    let run = instance::run(settings, world.parts(&world.store), CancellationToken::new());
    let error = tokio::time::timeout(Duration::from_secs(600), run).await.expect("the instance ends").unwrap_err();
    assert!(matches!(&error, InstanceError::Meta(MetaError::BelowFloor { .. })), "{error}");
    world.run_until_consumed().await;
}

#[tokio::test(start_paused = true)]
async fn a_reorg_below_the_reorg_floor_halts_the_chain() {
    let world = World::with_settings(WorldSettings::pruned(RETENTION)).await;
    let seed = world.seed(1, 1).await;
    let spent = spend(&[seed.coin(0)], 1, 1);
    let spender = spend(&[spent.coin(0)], 1, 2);
    for made in [&spent, &spender] {
        world.validate(made).await;
    }
    let blocks = chain_of_listing(4, &[&spent, &spender]);
    for (block, sequence) in blocks.iter().zip(1..) {
        world.bring(sequence, block).await;
    }
    let running = world.start();
    world.until_consumed().await;
    // Of the greatest height 104 the blocks down to 103 may be disconnected.
    let floor = async || world.store.meta().await.unwrap().unwrap().reorg_floor;
    until("the pruning", async || floor().await == 102).await;
    let other = blocks[1].followed_by(9, &coinbase(9), &[]);
    world.reorganise(5, &blocks[2..], std::slice::from_ref(&other)).await;
    world.until_consumed().await;
    let deeper = [blocks[1].clone(), other];
    world.reorganise(6, &deeper, &[]).await;
    until("the halt", async || halted_by(&running.health, "at height 102 is to leave")).await;
    running.stop().await;
}

/// The reorg floor follows from any pruning, by whatever retention, also where the instances do not prune.
#[tokio::test(start_paused = true)]
async fn the_reorg_floor_follows_the_actual_pruning() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let blocks = chain_of(4);
    for (block, sequence) in blocks.iter().zip(1..) {
        world.bring(sequence, block).await;
    }
    let other = blocks[0].followed_by(9, &coinbase(9), &[]);
    world.reorganise(5, &blocks[1..], std::slice::from_ref(&other)).await;
    let running = world.start();
    world.until_consumed().await;
    assert!(running.health.ready().reasons.is_empty(), "no pruning refuses the reorg");
    let terms = PruneTerms { height: 104, retention: 3, committed: 0 };
    StoreMeta::of(&world.store).begin_pruning(&ConsumedOffsets::default(), &terms, 0).await.unwrap();
    world.reorganise(6, &[blocks[0].clone(), other], &[]).await;
    until("the halt", async || halted_by(&running.health, "at height 101 is to leave")).await;
    running.stop().await;
}

/// Returns this number of blocks, from height 101.
fn chain_of(count: u32) -> Vec<MadeBlock> {
    chain_of_listing(count, &[])
}

/// Returns such blocks, of which the first lists these transactions.
fn chain_of_listing(count: u32, first: &[&Made]) -> Vec<MadeBlock> {
    let mut blocks = vec![MadeBlock::new(1, 101, &coinbase(1), first)];
    for number in 2..=count {
        let next = blocks[blocks.len() - 1].followed_by(number, &coinbase(number), &[]);
        blocks.push(next);
    }
    blocks
}

fn halted_by(health: &Health, why: &str) -> bool {
    health.ready().reasons.iter().any(|(_, reason)| reason.contains(why))
}
