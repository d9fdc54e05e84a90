//! Commits run beside the loop: events complete meanwhile, and no offset is committed that is not durable, whichever
//! party does not answer.

use std::time::Duration;

use utxo_store::record::{Key, TxState};

use crate::{
    failing_broker::{FailingBroker, start_on},
    harness::{LOSS_WINDOW, Made, World, spend},
    health::failing_world,
    node_restarts::until,
};

/// Time limit of one commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

async fn is_live(world: &World, made: &Made) -> bool {
    world.page(made).await.is_some_and(|page| page.state() == TxState::Live)
}

/// Produces each transaction and one second later checks that it is live.
async fn assert_each_completes_within_a_second(world: &World, all: &[Made]) {
    for made in all {
        world.validate(made).await;
        seconds(1).await;
        assert!(is_live(world, made).await, "the transaction waits for a commit");
    }
}

fn partitions_of(running: &crate::harness::Running) -> usize {
    let page = serde_json::to_value(running.health.status_registry().page(&running.health)).unwrap();
    page["pipeline"]["partitions"].as_array().map_or(0, Vec::len)
}

/// Neither the next event nor a revocation waits for a coordinator that does not answer.
#[tokio::test(start_paused = true)]
async fn an_unanswered_commit_blocks_nothing() {
    let world = World::new().await;
    let (broker, rules) = FailingBroker::over(&world);
    let first = start_on(&world, broker);
    let seed = world.seed(1, 60).await;
    world.until_consumed().await;
    let made: Vec<Made> = (0..60).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    rules.answer_no_commit(true);
    let before = world.committed_txs().await;
    assert_each_completes_within_a_second(&world, &made[..20]).await;
    assert_eq!(world.committed_txs().await, before);

    let began = tokio::time::Instant::now();
    let second = world.start();
    until(async || partitions_of(&second) > 0).await;
    let bound = COMMIT_TIMEOUT * 2 + world.settings.pipeline.drain_timeout;
    assert!(began.elapsed() <= bound, "the revocation took {:?}", began.elapsed());
    until(async || partitions_of(&first) < 3).await;
    assert!(began.elapsed() <= bound, "the revocation took {:?}", began.elapsed());
    assert_each_completes_within_a_second(&world, &made[20..40]).await;
    rules.answer_no_commit(false);
    assert_each_completes_within_a_second(&world, &made[40..]).await;
    world.until_consumed().await;
    first.stop().await;
    second.stop().await;
    world.check("a commit without an answer").await;
}

/// A shutdown waits for the commit in flight and for one commit of its own, each for a limited time.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_a_bounded_time_for_a_commit() {
    let world = World::new().await;
    let (broker, rules) = FailingBroker::over(&world);
    let first = start_on(&world, broker);
    let seed = world.seed(1, 4).await;
    world.until_consumed().await;
    rules.answer_no_commit(true);
    let made = spend(&[seed.coin(0)], 1, 1);
    assert_each_completes_within_a_second(&world, std::slice::from_ref(&made)).await;
    let began = tokio::time::Instant::now();
    first.stop().await;
    assert!(began.elapsed() <= COMMIT_TIMEOUT * 2 + Duration::from_secs(1), "it took {:?}", began.elapsed());
    // The next instance reads the event again.
    world.run_until_consumed().await;
    world.check("a shutdown while no commit is answered").await;
}

/// The consumed offsets cannot be recorded in the meta record: events complete, and no offset is committed before it is
/// recorded.
#[tokio::test(start_paused = true)]
async fn nothing_is_committed_while_the_meta_record_cannot_be_written() {
    let (world, engine) = failing_world().await;
    let running = world.start();
    let seed = world.seed(1, 40).await;
    world.until_consumed().await;
    let made: Vec<Made> = (0..20).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    let before = world.committed_txs().await;
    *engine.hangs.lock().unwrap() = Some(Key::Meta);
    assert_each_completes_within_a_second(&world, &made).await;
    assert_eq!(world.committed_txs().await, before, "the consumed offset is not recorded");
    *engine.hangs.lock().unwrap() = None;
    world.until_consumed().await;
    running.stop().await;
    world.check("a store that takes no note").await;
}

/// A node restarts during a commit. A commit that succeeded without an answer is not undone by the rewind.
#[tokio::test(start_paused = true)]
async fn a_node_restart_during_a_commit_lowers_no_committed_offset() {
    let world = World::forgetful().await;
    let (broker, rules) = FailingBroker::over(&world);
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
            world.nodes.restart_nodes(LOSS_WINDOW, |_| true);
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
