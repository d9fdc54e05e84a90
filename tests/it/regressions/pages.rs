//! Transactions of several pages: half created, contested meanwhile, or spent on their last pages.

use std::{sync::Arc, time::Duration};

use utxo_store::{
    broker::partitioner::partition_of,
    engine::Row,
    record::{
        Key, Operation, Outcome, Page, Reason, Record, Sequenced, TxState,
        build::{NewTxState, PageParams, build_pages},
    },
    sequencer::RecoveryTask,
    tx::{Outpoint, Transaction, Txid},
};

use super::{
    has_lost, holder,
    holding_engine::{HoldingEngine, is_create_of, is_sequenced, is_spend_by},
    reason, state,
};
use crate::harness::{Coin, LOSS_WINDOW, Made, PARTITIONS, Running, World, WorldSettings, spend, wide_coinbase};

async fn paged(page_size: u32) -> World {
    World::with_settings(WorldSettings::paged(page_size)).await
}

/// Returns the state of each page of a transaction.
async fn pages(world: &World, made: &Made, count: u32) -> Vec<Option<TxState>> {
    let keys = (0..count).map(|number| Key::Page(made.txid, number)).collect();
    let records = world.store.read(keys).await.unwrap();
    records.iter().map(|record| record.as_ref().and_then(|record| record.page()).map(|page| page.state())).collect()
}

fn clears(txid: Txid) -> impl Fn(&Row) -> bool + Send + Sync {
    move |row| matches!(row.key, Key::Page(of, _) if of == txid) && row.operation == Operation::ClearCreating
}

/// All pages of the holder exist, but its creator has not cleared them yet. Protects: a transaction with a master
/// counts as live. It is completed, not contested, and the child of its last page stays.
#[tokio::test(start_paused = true)]
async fn a_half_created_holder_is_completed_not_contested() {
    let world = paged(2).await;
    let seed = world.seed(1, 1).await;
    let (wide, rival) = (spend(&[seed.coin(0)], 4, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[wide.coin(3)], 1, 3);
    let holding = HoldingEngine::hold_first(&world, clears(wide.txid));
    let running = holding.in_front_of(&world).start();
    world.validate(&wide).await;
    holding.wait_for_held(1).await;
    assert_eq!(pages(&world, &wide, 2).await, [Some(TxState::Creating); 2]);
    world.validate(&rival).await;
    while world.page(&rival).await.is_none() || !has_lost(&world, &rival).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(pages(&world, &wide, 2).await, [Some(TxState::Live); 2], "the sequencer has completed it");
    world.validate(&child).await;
    assert!(matches!(holding.release().await[..], [Outcome::AlreadyApplied(_)]));
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(reason(&world, &rival).await, Some(Reason::DoubleSpend { input: 0, winner: wide.txid }));
    assert_eq!(state(&world, &child).await, TxState::Live);
    assert_eq!(holder(&world, &wide.coin(3)).await, Some(child.txid));
    world.check("a holder that is half created").await;
}

/// The other pages of the holder exist, but not its master. Protects: without a master the creation is not committed,
/// and the transaction loses as a whole; the child of its last page becomes conflicting with it.
#[tokio::test(start_paused = true)]
async fn a_holder_without_a_master_is_contested_with_all_pages() {
    let world = paged(2).await;
    let seed = world.seed(1, 1).await;
    let (wide, rival) = (spend(&[seed.coin(0)], 4, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[wide.coin(3)], 1, 3);
    let txid = wide.txid;
    let holding = HoldingEngine::hold_first(&world, move |row| is_create_of(row, txid));
    let running = holding.in_front_of(&world).start();
    world.validate(&wide).await;
    holding.wait_for_held(1).await;
    assert_eq!(pages(&world, &wide, 2).await, [None, Some(TxState::Creating)]);
    world.validate(&child).await;
    world.validate(&rival).await;
    while world.page(&rival).await.is_none_or(|page| page.state() != TxState::Live) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&wide, &child] {
        assert!(has_lost(&world, made).await, "{}", made.txid);
    }
    assert!(pages(&world, &wide, 2).await.iter().all(|page| !matches!(page, Some(TxState::Live | TxState::Creating))));
    assert_eq!(holder(&world, &wide.coin(3)).await, None);
    world.check("a holder without a master").await;
}

/// A node lost the clearing of a page, while another node has the live master. Protects: a page that is creating is
/// completed before the transaction is set mined; the chain does not halt.
#[tokio::test(start_paused = true)]
async fn a_block_completes_a_page_that_is_creating_under_a_live_master() {
    let world = paged(2).await;
    let seed = world.seed(1, 1).await;
    let wide = spend(&[seed.coin(0)], 4, 1);
    let running = world.start();
    world.validate(&wide).await;
    world.until_consumed().await;
    let network = world.store.settings.network;
    let setting = PageParams { network, height: 200, batch_size: 2, created_at: 1, event: None };
    let transaction = Transaction::parse(&wide.extended).unwrap();
    let pages_of =
        build_pages(&transaction, wide.extended.clone(), wide.txid, &setting, &NewTxState::default()).unwrap();
    let fresh = pages_of.all(1);
    world.memory.put(Key::Page(wide.txid, 1), Some(Record::Page(fresh[1].clone().into())));
    assert_eq!(pages(&world, &wide, 2).await, [Some(TxState::Live), Some(TxState::Creating)]);
    world.mine(1, &[&wide]).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(pages(&world, &wide, 2).await, [Some(TxState::Live); 2]);
    world.check("a page that is creating under a live master").await;
}

/// The last page of a loser has a live child. Protects: descendants are read from every page.
#[tokio::test(start_paused = true)]
async fn the_child_of_the_last_page_conflicts_with_its_paged_parent() {
    let world = paged(2).await;
    let seed = world.seed(1, 1).await;
    let (wide, rival) = (spend(&[seed.coin(0)], 5, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[wide.coin(4), wide.coin(3)], 1, 3);
    let running = world.start();
    for made in [&wide, &child, &rival] {
        world.validate(made).await;
        world.until_consumed().await;
    }
    assert_eq!(state(&world, &child).await, TxState::Live);
    world.mine(1, &[&rival]).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(reason(&world, &child).await, Some(Reason::ConflictingParent { parent: wide.txid }));
    assert_eq!(state(&world, &rival).await, TxState::Live);
    world.check("a wide loser").await;
}

/// Protects: an impossible page has no outputs, and no child waits for it.
#[tokio::test(start_paused = true)]
async fn an_output_on_an_impossible_page_is_refused() {
    let world = paged(2).await;
    let seed = world.seed(1, 1).await;
    let wide = spend(&[seed.coin(0)], 3, 1);
    let running = world.start();
    world.validate(&wide).await;
    let mut children = Vec::new();
    for (vout, tag) in [(3, 2), (4, 3), (u32::MAX, 4)] {
        let coin = Coin { outpoint: Outpoint { txid: wide.txid, vout }, ..wide.coin(0) };
        children.push(spend(&[coin], 1, tag));
    }
    for child in &children {
        world.validate(child).await;
    }
    world.until_consumed().await;
    running.stop().await;
    for child in &children {
        assert_eq!(reason(&world, child).await, Some(Reason::NoSuchOutput { input: 0 }));
    }
    world.check("outputs that cannot exist").await;
}

/// As `parents::a_late_spend_of_a_parent_created_after_the_verdict_is_refused`, for an output beyond the first page.
/// Protects: marks are stored at the key of an absent page.
#[tokio::test(start_paused = true)]
async fn a_late_spend_of_a_page_created_after_the_verdict_is_refused() {
    let world = paged(2).await;
    let seed = world.seed(1, 2).await;
    let parent = spend(&[seed.coin(0)], 6, 1);
    let winner = spend(&[seed.coin(1)], 1, 2);
    let child = spend(&[parent.coin(5), seed.coin(1)], 1, 3);
    let (slot_of, spender) = (Key::Page(parent.txid, 2), child.txid);
    let holding = HoldingEngine::hold_first(&world, move |row| row.key == slot_of && is_spend_by(row, spender));
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
    let page = loop {
        let record = world.store.read(vec![slot_of]).await.unwrap().remove(0);
        match record.as_ref().and_then(|record| record.page()).filter(|page| page.utxos.is_some()) {
            Some(page) => break page.clone(),
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!(page.contested, [1].into(), "the mark of output 5 was stored before its page");
    while pages(&world, &parent, 3).await[2] != Some(TxState::Live) {
        tokio::task::yield_now().await;
    }
    let late = holding.release().await;
    assert!(matches!(late[..], [Outcome::Rejected(_)]), "{late:?}");
    world.until_consumed().await;
    running.stop().await;
    assert_eq!((state(&world, &parent).await, holder(&world, &parent.coin(5)).await), (TxState::Live, None));
    world.check("a late spend of a page").await;
}

/// Protects: a block unlocks every page, and a coinbase may have several.
#[tokio::test(start_paused = true)]
async fn a_block_unlocks_every_page_and_may_have_a_paged_coinbase() {
    let world = paged(2).await;
    let wide = spend(&[world.seed(1, 1).await.coin(0)], 5, 1);
    let child = spend(&[wide.coin(4)], 1, 2);
    let coinbase = wide_coinbase(1, 5);
    let heir = spend(&[coinbase.coin(4)], 1, 3);
    let running = world.start();
    world.validate_locked(&wide).await;
    world.validate(&child).await;
    world.validate_at(&heir, 300).await;
    world.mine_with(1, 1, 101, &coinbase, &[&wide, &child]).await;
    world.until_consumed().await;
    running.stop().await;
    for made in [&wide, &child, &heir] {
        assert_eq!(state(&world, made).await, TxState::Live, "{}", made.txid);
    }
    assert_eq!(
        pages(&world, &coinbase, 4).await,
        [Some(TxState::Live), Some(TxState::Live), Some(TxState::Live), None]
    );
    world.check("a wide coinbase").await;
}

/// The holder of the lock record is dead. Protects: other creators wait as long as the lock record lasts, and no
/// longer.
#[tokio::test(start_paused = true)]
async fn the_lock_record_of_a_dead_creator_expires() {
    let world = paged(2).await;
    let wide = spend(&[world.seed(1, 1).await.coin(0)], 5, 1);
    let child = spend(&[wide.coin(4)], 1, 2);
    let (txid, page) = (wide.txid, Key::Page(wide.txid, 2));
    let holding =
        HoldingEngine::hold_first(&world, move |row| row.key == page && matches!(row.operation, Operation::Create(_)));
    let killed = holding.in_front_of(&world).start();
    world.validate(&wide).await;
    world.validate(&child).await;
    holding.wait_for_held(1).await;
    killed.kill().await;
    let started = tokio::time::Instant::now();
    world.run_until_consumed().await;
    assert!(started.elapsed().as_secs() >= 36, "the lock record of {txid} lasts 36 s");
    holding.release().await;
    assert_eq!((state(&world, &wide).await, state(&world, &child).await), (TxState::Live, TxState::Live));
    let lock_record = world.store.read(vec![Key::LockRecord(txid)]).await.unwrap();
    assert_eq!(lock_record, [None]);
    world.check("a creator that died").await;
}

/// An instance is stopped gracefully while it creates a transaction of several pages. Protects: the instance releases
/// the lock record before it ends, so that no creator has to wait until the record expires.
#[tokio::test(start_paused = true)]
async fn a_stopped_creator_releases_its_lock_record() {
    let world = paged(2).await;
    let wide = spend(&[world.seed(1, 1).await.coin(0)], 5, 1);
    let page = Key::Page(wide.txid, 2);
    let release = |row: &Row| matches!(row.operation, Operation::ReleaseLockRecord { .. });
    let slow = world.beside(HoldingEngine::delay(&world, Duration::from_secs(1), release));
    let holding =
        HoldingEngine::hold_first(&slow, move |row| row.key == page && matches!(row.operation, Operation::Create(_)));
    let running = holding.in_front_of(&slow).start();
    world.validate(&wide).await;
    holding.wait_for_held(1).await;
    let lock_record = async || world.store.read(vec![Key::LockRecord(wide.txid)]).await.unwrap().remove(0);
    assert!(lock_record().await.is_some());
    running.stop().await;
    assert_eq!(lock_record().await, None);
    world.run_until_consumed().await;
    assert_eq!(state(&world, &wide).await, TxState::Live);
    world.check("a creator that was stopped").await;
}

/// A node loses a master, but not its other page, which is all spent: the spender's event is applied again before the
/// master's (simulator, seed 5599). Protects: a master that is created again records which of its pages are all spent.
#[tokio::test(start_paused = true)]
async fn a_recreated_master_records_that_its_page_is_all_spent() {
    let world = World::with_settings(WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::paged(1) }).await;
    let seed = world.seed(1, 2).await;
    let child = spend(&[seed.coin(1)], 1, 1);
    world.validate(&child).await;
    let running = world.start();
    while world.page(&child).await.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.kill().await;
    assert!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(seed.txid)).unwrap() > 0);
    let txid = seed.txid;
    let holding = HoldingEngine::hold_first(&world, move |row| is_create_of(row, txid));
    let running = holding.in_front_of(&world).start();
    holding.wait_for_held(1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(world.page(&seed).await.is_none());
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &child).await, TxState::Live);
    world.check("a master that learns again").await;
}

/// The sequencer has settled a slot and is about to record that the page is not all spent. Meanwhile the last slot is
/// taken, and that is recorded first. Returns the instance, the record that is held back, and the two rivals.
async fn page_spent_during_a_settle(world: &World) -> (Running, Arc<HoldingEngine>, [Made; 2]) {
    let seed = world.seed(1, 4).await;
    let rivals = [1, 2].map(|tag| spend(&[seed.coin(2)], 1, tag));
    let last = spend(&[seed.coin(3)], 1, 3);
    let of = seed.txid;
    let holding = HoldingEngine::hold_first(world, move |row| {
        is_sequenced(row, of, |operation| matches!(operation, Sequenced::SetPageSpent { spent: false, .. }))
    });
    let running = holding.in_front_of(world).start();
    for made in &rivals {
        world.validate(made).await;
    }
    holding.wait_for_held(1).await;
    world.validate(&last).await;
    while world.page(&last).await.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (running, holding, rivals)
}

/// Protects: the last record about a page is its actual state.
#[tokio::test(start_paused = true)]
async fn a_page_spent_during_a_settle_stays_recorded_as_all_spent() {
    let world = paged(2).await;
    let (running, holding, [winner, loser]) = page_spent_during_a_settle(&world).await;
    assert!(matches!(holding.release().await[..], [Outcome::Applied(_)]));
    world.until_consumed().await;
    running.stop().await;
    assert!(has_lost(&world, &loser).await || has_lost(&world, &winner).await);
    world.check("a page that is all spent meanwhile").await;
}

/// The sequencer is killed before its second look at the page (simulator, seed 33578). Protects: the next sequencer
/// settles the slot again, finds the page all spent, and records that.
#[tokio::test(start_paused = true)]
async fn a_page_spent_during_a_settle_is_recorded_by_the_next_sequencer() {
    let world = paged(2).await;
    let (running, holding, _) = page_spent_during_a_settle(&world).await;
    running.kill().await;
    assert!(matches!(holding.release().await[..], [Outcome::Applied(_)]));
    let next = world.start();
    world.until_consumed().await;
    next.stop().await;
    world.check("a page that is all spent before a kill").await;
}

/// A node loses the clearing of a page of a live transaction, and a block lists that transaction before any instance
/// notices (simulator, seed 301034 with `SIM_WITH=node-forgets`). Protects: a half-created page is completed and does
/// not halt the chain.
#[tokio::test(start_paused = true)]
async fn a_block_completes_a_page_whose_clearing_a_node_lost() {
    let mut world = World::with_settings(WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::paged(1) }).await;
    world.settings.pipeline.commit_interval = Duration::from_secs(5);
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    let wide = spend(&[seed.coin(0)], 2, 1);
    let last = Key::Page(wide.txid, 1);
    let holding =
        HoldingEngine::hold_first(&world, move |row| row.key == last && row.operation == Operation::ClearCreating);
    let running = holding.in_front_of(&world).start();
    world.validate(&wide).await;
    holding.wait_for_held(1).await;
    tokio::time::sleep(LOSS_WINDOW / 2).await;
    holding.release().await;
    while pages(&world, &wide, 2).await != [Some(TxState::Live); 2] {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(world.nodes.restart_nodes(LOSS_WINDOW / 4, |key| *key == last), Some(1));
    assert_eq!(pages(&world, &wide, 2).await, [Some(TxState::Live), Some(TxState::Creating)]);
    world.mine(1, &[&wide]).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(pages(&world, &wide, 2).await, [Some(TxState::Live); 2]);
    world.check("a page that is half created again").await;
}

/// A page of a live transaction is lost, with the spend on it, from a store without a loss window. Protects: the page
/// is not created again with free slots. The chain halts and names it, and continues once the page is restored.
#[tokio::test(start_paused = true)]
async fn a_page_lost_from_a_durable_store_halts_the_chain_by_name() {
    let world = paged(2).await;
    let wide = spend(&[world.seed(1, 1).await.coin(0)], 4, 1);
    let child = spend(&[wide.coin(3)], 1, 2);
    let running = world.start();
    for made in [&wide, &child] {
        world.validate(made).await;
        world.until_consumed().await;
    }
    let last = Key::Page(wide.txid, 1);
    let whole = world.store.read(vec![last]).await.unwrap().remove(0);
    world.memory.put(last, None);
    world.mine(1, &[&wide]).await;
    let named = format!("page 1 of {} is missing", wide.txid);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let reasons = format!("{:?}", running.health.ready().reasons);
    assert!(reasons.contains(&named), "{reasons}");
    running.stop().await;
    assert_eq!(world.store.read(vec![last]).await.unwrap(), [None]);

    world.memory.put(last, whole);
    world.run_until_consumed().await;
    assert_eq!(holder(&world, &wide.coin(3)).await, Some(child.txid));
    world.check("a page that was put back").await;
}

/// A page is lost from a store that can forget, with the spend of its output, but by no restart: both events are
/// committed. A repeat of the event comes, then a block that lists the transaction. Protects: neither makes the page
/// again with free slots, which a second spender would take. The chain halts and names the page.
#[tokio::test(start_paused = true)]
async fn a_durable_page_that_no_restart_lost_halts_the_chain_by_name() {
    for by_repeat in [false, true] {
        let world = World::with_settings(WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::paged(2) }).await;
        let wide = spend(&[world.seed(1, 1).await.coin(0)], 4, 1);
        let (child, rival) = (spend(&[wide.coin(3)], 1, 2), spend(&[wide.coin(3)], 1, 3));
        let running = world.start();
        for made in [&wide, &child] {
            world.validate(made).await;
            world.until_consumed().await;
        }
        // The next commit records the committed offsets as durable.
        tokio::time::sleep(seconds(5)).await;
        let last = Key::Page(wide.txid, 1);
        let whole = world.store.read(vec![last]).await.unwrap().remove(0);
        world.memory.put(last, None);
        if by_repeat {
            world.validate(&wide).await;
        } else {
            world.mine(1, &[&wide]).await;
        }
        world.validate(&rival).await;
        tokio::time::sleep(seconds(60)).await;
        let reasons = format!("{:?}", running.health.ready().reasons);
        let named = format!("page 1 of {} is missing: the page was durable", wide.txid);
        assert!(reasons.contains(&named), "{reasons}");
        assert!(world.page(&rival).await.is_none(), "no second spender");
        running.stop().await;
        assert_eq!(world.store.read(vec![last]).await.unwrap(), [None]);

        world.memory.put(last, whole);
        world.run_until_consumed().await;
        assert_eq!(holder(&world, &wide.coin(3)).await, Some(child.txid));
        world.check("a durable page that was put back").await;
    }
}

/// A node loses the parent of a transaction with its spend, while the transaction is half created. Its creator dies,
/// and the parent's event is slow to be applied again (simulator, seed 302845 with `SIM_WITH=node-forgets`). Protects:
/// the next reader of the half-created transaction waits for its parent. Without its slot the transaction would be live
/// for good, and so would the next spender of the slot.
#[tokio::test(start_paused = true)]
async fn a_half_created_transaction_waits_for_a_parent_that_a_node_lost() {
    let world = World::with_settings(WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::paged(1) }).await;
    let seed = world.seed(1, 1).await;
    world.run_until_consumed().await;
    // The partitions belong to two instances: one instance with both would wait for the event of the parent.
    let in_partition = |partition, coin: &Coin, outputs| {
        let made = (0..).map(|tag| spend(std::slice::from_ref(coin), outputs, tag));
        made.into_iter().find(|made| partition_of(&made.txid.0, PARTITIONS) == Some(partition)).unwrap()
    };
    let parent = in_partition(0, &seed.coin(0), 1);
    let wide = in_partition(PARTITIONS - 1, &parent.coin(0), 2);
    let rival = in_partition(0, &parent.coin(0), 1);
    let clearing = HoldingEngine::hold_all(&world, clears(wide.txid));
    let creator = clearing.in_front_of(&world).start();
    for made in [&parent, &wide] {
        world.validate(made).await;
    }
    clearing.wait_for_held(1).await;
    creator.kill().await;
    assert_eq!(pages(&world, &wide, 2).await, [Some(TxState::Creating); 2]);
    assert_eq!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(parent.txid)), Some(1));

    let of = parent.txid;
    let slow = HoldingEngine::hold_first(&world, move |row| is_create_of(row, of));
    let slow_world = slow.in_front_of(&world);
    let running = [slow_world.start(), slow_world.start()];
    slow.wait_for_held(1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(pages(&world, &wide, 2).await, [Some(TxState::Creating); 2], "the slot of the parent is absent");
    slow.release().await;
    world.validate(&rival).await;
    world.until_consumed().await;
    for instance in running {
        instance.stop().await;
    }
    assert_eq!(pages(&world, &wide, 2).await, [Some(TxState::Live); 2]);
    assert_eq!(holder(&world, &parent.coin(0)).await, Some(wide.txid));
    assert_eq!(reason(&world, &rival).await, Some(Reason::DoubleSpend { input: 0, winner: wide.txid }));
    world.check("a half created transaction without its parent").await;
}

/// The event of the transaction is completed and committed, and a node has lost the clearing of its pages since. No
/// event is read again. Protects: the recovery in the background makes the transaction live once it is old enough, and
/// a child that waits gets its slot; a younger transaction is left alone.
#[tokio::test(start_paused = true)]
async fn recovery_completes_a_transaction_whose_event_is_not_read_again() {
    let mut world = paged(2).await;
    let task = RecoveryTask { interval: seconds(10), older_than: seconds(60), batch_size: 4 };
    world.settings.sequencer.recovery = Some(task);
    let seed = world.seed(1, 2).await;
    let [wide, other] = [(0, 1), (1, 2)].map(|(vout, tag)| spend(&[seed.coin(vout)], 5, tag));
    world.validate(&wide).await;
    world.validate(&other).await;
    world.run_until_consumed().await;
    let since_ms = world.clock.now_ms();
    for number in 0..3 {
        for (made, younger_ms) in [(&wide, 0), (&other, 40_000)] {
            let page = world.store.read(vec![Key::Page(made.txid, number)]).await.unwrap().pop().flatten();
            let page = page.and_then(|record| record.page().cloned()).unwrap();
            let half = Page { creating_at: Some(since_ms + younger_ms), ..page };
            world.memory.put(Key::Page(made.txid, number), Some(Record::Page(half.into())));
        }
    }
    let running = world.start();
    let child = spend(&[wide.coin(4)], 1, 3);
    world.validate(&child).await;
    tokio::time::sleep(seconds(50)).await;
    let half_created = [Some(TxState::Creating); 3];
    for made in [&wide, &other] {
        assert_eq!(pages(&world, made, 3).await, half_created);
    }
    assert!(world.page(&child).await.is_none());
    tokio::time::sleep(seconds(25)).await;
    assert_eq!(pages(&world, &wide, 3).await, [Some(TxState::Live); 3]);
    assert_eq!(pages(&world, &other, 3).await, half_created, "too young");
    assert_eq!(state(&world, &child).await, TxState::Live);
    tokio::time::sleep(seconds(40)).await;
    assert_eq!(pages(&world, &other, 3).await, [Some(TxState::Live); 3]);
    assert_eq!((running.metrics.recovered.get(), running.metrics.half_created_old.get()), (2, 0));
    let page = serde_json::to_value(running.health.status_registry().page(&running.health)).unwrap();
    let recovery = &page["chain"]["recovery"];
    assert_eq!((&recovery["completed"], &recovery["older_than_an_hour"]), (&2.into(), &0.into()), "{recovery}");
    world.until_consumed().await;
    running.stop().await;
    world.check("a transaction that recovery has completed").await;
}

/// Recovery ends with the chain: another instance has it, or it is turned off. Protects: pages stay as they are without
/// recovery; an old half-created transaction is counted.
#[tokio::test(start_paused = true)]
async fn recovery_counts_old_transactions_and_runs_only_with_the_chain() {
    let mut world = paged(2).await;
    let seed = world.seed(1, 1).await;
    let wide = spend(&[seed.coin(0)], 3, 1);
    world.validate(&wide).await;
    world.run_until_consumed().await;
    let page = |number| world.store.read(vec![Key::Page(wide.txid, number)]);
    let orphan = page(1).await.unwrap().pop().flatten().and_then(|record| record.page().cloned()).unwrap();
    // The seed is a transaction of one page.
    for txid in [seed.txid, Txid([2; 32])] {
        let orphan = Page { txid, creating_at: Some(world.clock.now_ms()), ..orphan.clone() };
        world.memory.put(Key::Page(txid, 1), Some(Record::Page(orphan.into())));
    }
    let half = Page { creating_at: Some(world.clock.now_ms()), ..Page::clone(&world.page(&wide).await.unwrap()) };
    world.memory.put(Key::master(wide.txid), Some(Record::Page(half.into())));
    let recovery = world.settings.sequencer.recovery.take();
    let running = world.start();
    tokio::time::sleep(seconds(7_200)).await;
    running.stop().await;
    assert_eq!(state(&world, &wide).await, TxState::Creating, "turned off");
    world.settings.sequencer.recovery = recovery;
    let running = world.start();
    tokio::time::sleep(seconds(30)).await;
    assert_eq!(state(&world, &wide).await, TxState::Live);
    assert_eq!((running.metrics.recovered.get(), running.metrics.half_created_old.get()), (1, 2));
    running.stop().await;
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
