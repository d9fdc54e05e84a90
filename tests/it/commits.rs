//! Commits go on beside the loop: what is done meanwhile is done, and nothing is committed that is not safe, whoever does not answer.

use std::time::Duration;

use utxo_store::record::{Key, TxState};

use crate::{
    forgetting::until,
    health::troubled,
    troubled_broker::{TroubledBroker, start_on},
    world::{MAY_FORGET, Made, World, spend},
};

/// No commit on its way is waited for longer, nor a second one.
const A_COMMIT: Duration = Duration::from_secs(15);

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

async fn is_live(world: &World, made: &Made) -> bool {
    world.page(made).await.is_some_and(|page| page.state() == TxState::Live)
}

/// Validates each, and has the next come a second later: all of them are live by then.
async fn are_done_at_once(world: &World, all: &[Made]) {
    for made in all {
        world.validate(made).await;
        seconds(1).await;
        assert!(is_live(world, made).await, "it waits for a commit");
    }
}

fn partitions_of(running: &crate::world::Running) -> usize {
    let page = serde_json::to_value(running.health.status_registry().page(&running.health)).unwrap();
    page["pipeline"]["partitions"].as_array().map_or(0, Vec::len)
}

/// Neither the next event nor a revocation waits for a coordinator that does not answer.
#[tokio::test(start_paused = true)]
async fn a_commit_that_is_never_answered_holds_nothing_up() {
    let world = World::new().await;
    let (broker, rules) = TroubledBroker::over(&world);
    let first = start_on(&world, broker);
    let seed = world.seed(1, 60).await;
    world.until_consumed().await;
    let made: Vec<Made> = (0..60).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    rules.answer_no_commit(true);
    let before = world.committed_txs().await;
    are_done_at_once(&world, &made[..20]).await;
    assert_eq!(world.committed_txs().await, before);

    let began = tokio::time::Instant::now();
    let second = world.start();
    until(async || partitions_of(&second) > 0).await;
    let bound = A_COMMIT * 2 + world.settings.pipeline.drain_timeout;
    assert!(began.elapsed() <= bound, "the revocation took {:?}", began.elapsed());
    until(async || partitions_of(&first) < 3).await;
    assert!(began.elapsed() <= bound, "the revocation took {:?}", began.elapsed());
    are_done_at_once(&world, &made[20..40]).await;
    rules.answer_no_commit(false);
    are_done_at_once(&world, &made[40..]).await;
    world.until_consumed().await;
    first.stop().await;
    second.stop().await;
    world.check("a commit without an answer").await;
}

/// A shutdown waits for the commit that is on its way, and for one of its own, and no longer.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_ever_for_a_commit() {
    let world = World::new().await;
    let (broker, rules) = TroubledBroker::over(&world);
    let first = start_on(&world, broker);
    let seed = world.seed(1, 4).await;
    world.until_consumed().await;
    rules.answer_no_commit(true);
    let made = spend(&[seed.coin(0)], 1, 1);
    are_done_at_once(&world, std::slice::from_ref(&made)).await;
    let began = tokio::time::Instant::now();
    first.stop().await;
    assert!(began.elapsed() <= A_COMMIT * 2 + Duration::from_secs(1), "it took {:?}", began.elapsed());
    // Whoever comes next reads it again.
    world.run_until_consumed().await;
    world.check("a shutdown while no commit is answered").await;
}

/// What is consumed cannot be written into the store: events go on, and nothing is committed before the store knows.
#[tokio::test(start_paused = true)]
async fn a_store_that_takes_no_note_holds_nothing_up_and_has_nothing_committed() {
    let (world, engine) = troubled().await;
    let running = world.start();
    let seed = world.seed(1, 40).await;
    world.until_consumed().await;
    let made: Vec<Made> = (0..20).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    let before = world.committed_txs().await;
    *engine.hangs.lock().unwrap() = Some(Key::Meta);
    are_done_at_once(&world, &made).await;
    assert_eq!(world.committed_txs().await, before, "the store does not know of it");
    *engine.hangs.lock().unwrap() = None;
    world.until_consumed().await;
    running.stop().await;
    world.check("a store that takes no note").await;
}

/// A node restarts while a commit is on its way; what came through without an answer is not taken back by what is done again.
#[tokio::test(start_paused = true)]
async fn a_node_that_forgets_while_a_commit_is_on_its_way() {
    let world = World::forgetful().await;
    let (broker, rules) = TroubledBroker::over(&world);
    let running = start_on(&world, broker);
    let seed = world.seed(1, 60).await;
    world.until_consumed().await;
    let made: Vec<Made> = (0..60).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    for (n, made) in made.iter().enumerate() {
        rules.answer_no_commit(n % 20 >= 8);
        world.validate(made).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        if n % 20 == 17 {
            let before = world.committed_txs().await;
            world.nodes.forget(MAY_FORGET, |_| true);
            seconds(1).await;
            assert!(world.committed_txs().await >= before);
        }
    }
    rules.answer_no_commit(false);
    world.until_consumed().await;
    for made in &made {
        assert!(is_live(&world, made).await);
    }
    running.stop().await;
    world.check("a node that forgets while a commit is on its way").await;
}
