//! A restored store reads the log again: transactions that the earlier store had handled end as they did there,
//! whichever event is read first.

use std::time::Duration;

use tokio::time::sleep;
use utxo_store::{
    engine::Row,
    event::{CommandAction, Event},
    group::missing_parent::{ChainProgress, ChainView},
    record::TxState,
    snapshot::Shelf,
    store::digest::survey,
};

use crate::{
    harness::{Made, World, spend},
    model::Logs,
    node_restarts::until,
    regressions::holding_engine::{HoldingEngine, is_create_of, is_spend_by},
    snapshots::{create_snapshot, empty_beside, restore_into, seeded_snapshot, shelf},
};

/// Restores the snapshot beside the world, reads the log again while a row is held for five seconds and until `is_due`,
/// and compares the store with the live one. Returns the restored world.
async fn read_again_holding(
    world: &World,
    (shelf, name): (&Shelf, &str),
    is_held: impl Fn(&Row) -> bool + Send + Sync + 'static,
    is_due: impl AsyncFn(&World) -> bool,
) -> World {
    let live = survey(&world.store, |_| {}).await.unwrap().digest;
    let other = empty_beside(world);
    restore_into(&other, shelf, name).await.unwrap();
    let holding = HoldingEngine::hold_first(&other, is_held);
    let running = holding.in_front_of(&other).start();
    holding.wait_for_held(1).await;
    sleep(Duration::from_secs(5)).await;
    until(async || is_due(&other).await).await;
    holding.release().await;
    other.until_consumed().await;
    running.stop().await;
    let restored = survey(&other.store, |_| {}).await.unwrap().digest;
    assert_eq!(restored, live, "{}", other.story(&world.store).await);
    other.check_without_model("the restored store").await;
    other
}

async fn is_stub(world: &World, made: &Made) -> bool {
    world.page(made).await.is_some_and(|page| matches!(page.state(), TxState::Stub(_)))
}

async fn contests_of(world: &World, made: &Made) -> usize {
    let logs = Logs::read(&world.broker, &world.settings.pipeline.topic, &world.settings.topics).await.unwrap();
    let is_of = |event: &Event| matches!(event, Event::Contest(contest) if contest.txid == made.txid);
    logs.chain.iter().filter(|logged| is_of(&Event::decode(&logged.message.payload).unwrap())).count()
}

/// Protects: simulator, seed 763069 with a snapshot. A rival that was read again first took the coin, and the payment
/// that was live at once was contested anew.
#[tokio::test(start_paused = true)]
async fn a_loser_takes_no_coin_of_a_payment_that_is_read_again_later() {
    let (world, seed, shelf, name) = seeded_snapshot().await;
    let [payment, rival] = [1, 2].map(|tag| spend(&[seed.coin(0)], 1, tag));
    for made in [&payment, &rival] {
        world.validate(made).await;
        world.run_until_consumed().await;
    }
    let winner = payment.txid;
    let other = read_again_holding(&world, (&shelf, &name), move |row| is_spend_by(row, winner), async |_| true).await;
    assert_eq!(other.page(&payment).await.unwrap().verdict(), None, "the payment is live by its own event");
    assert_eq!(contests_of(&other, &payment).await, 0);
}

/// Protects: simulator, seed 990205 with a snapshot. A command writes a stub of a transaction whose event is not read
/// again yet. Only a contest makes the transaction of a stub live.
#[tokio::test(start_paused = true)]
async fn a_transaction_becomes_live_over_the_stub_of_a_command() {
    let (world, seed, shelf, name) = seeded_snapshot().await;
    let payment = spend(&[seed.coin(0)], 1, 1);
    world.validate(&payment).await;
    world.run_until_consumed().await;
    world.command(1, CommandAction::Preserve { txid: payment.txid, until: 500 }).await;
    world.run_until_consumed().await;
    let txid = payment.txid;
    let has_stub = async |other: &World| is_stub(other, &payment).await;
    let other = read_again_holding(&world, (&shelf, &name), move |row| is_create_of(row, txid), has_stub).await;
    assert_eq!(other.page(&payment).await.unwrap().state(), TxState::Live);
}

/// The snapshot has a slot of a transaction that waits for a parent, and has no record yet. A command makes the other
/// parent conflicting. The chain of the restored store handles the contest of the transaction before its event is read
/// again.
/// Protects: simulator, seeds 990055 and 990211 with a snapshot. The slot stayed with the loser.
#[tokio::test(start_paused = true)]
async fn a_slot_of_a_loser_without_a_body_is_freed() {
    let world = World::new().await;
    let seed = world.seed(10, 2).await;
    let [taken, late] = [0, 1].map(|vout| spend(&[seed.coin(vout)], 2, 1));
    let loser = spend(&[taken.coin(0), late.coin(0)], 1, 2);
    let running = world.start();
    world.validate(&taken).await;
    world.validate(&loser).await;
    until(async || world.page(&taken).await.is_some_and(|page| page.spent_utxos == 1)).await;
    let (_, shelf) = shelf();
    let created = create_snapshot(&world, &shelf).await.unwrap();
    world.command(1, CommandAction::SetConflicting { txid: taken.txid }).await;
    until(async || is_stub(&world, &loser).await).await;
    world.validate(&late).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(world.page(&taken).await.unwrap().spent_utxos, 0, "the contest has freed the slot");
    let txid = loser.txid;
    let has_handled = async |other: &World| other.chain_progress().view().await.unwrap() == ChainView::AtEnd;
    read_again_holding(&world, (&shelf, &created.name), move |row| is_create_of(row, txid), has_handled).await;
}
