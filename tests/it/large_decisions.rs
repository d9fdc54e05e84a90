//! Decisions that are larger than one message may be.

use utxo_store::record::{TxState, Verdict};

use crate::harness::{Coin, World, spend};

#[tokio::test(start_paused = true)]
async fn a_decision_on_thousands_of_inputs_is_split_and_the_rebuild_agrees() {
    let world = World::with_decisions_of(50_000).await;
    let mut coins: Vec<Coin> = Vec::new();
    for tag in 1..=3 {
        let seed = world.seed(tag, 1_000).await;
        coins.extend((0..1_000).map(|vout| seed.coin(vout)));
    }
    let rivals: Vec<_> = coins.chunks(100).take(9).zip(1..).map(|(coins, tag)| spend(&coins[..2], 1, tag)).collect();
    let wide = spend(&coins, 1, 100);
    let running = world.start();
    for rival in &rivals {
        world.validate(rival).await;
    }
    world.until_consumed().await;
    world.validate(&wide).await;
    world.until_consumed().await;
    let before = world.count("decisions").await;
    world.mine(1, &[&wide]).await;
    world.until_consumed().await;
    running.stop().await;

    let parts = world.count("decisions").await - before;
    assert!(parts > 5, "{parts} records for a decision of {} inputs", coins.len());
    assert_eq!(world.page(&wide).await.unwrap().state(), TxState::Live);
    for rival in &rivals {
        let state = world.page(rival).await.unwrap().state();
        assert!(matches!(state, TxState::Conflicting(Verdict::Conflicting(_))), "{state:?}");
    }
    world.check("in parts").await;
}

#[tokio::test(start_paused = true)]
async fn an_unsplittable_decision_halts_only_the_chain() {
    let world = World::with_decisions_of(60).await;
    let seed = world.seed(1, 2).await;
    let (first, second, other) =
        (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2), spend(&[seed.coin(1)], 1, 3));
    let running = world.start();
    for made in [&first, &second] {
        world.validate(made).await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    let report = running.health.ready();
    assert!(report.reasons["chain_running"].contains("chain offset 0 is larger than a message may be"), "{report:?}");
    world.validate(&other).await;
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    assert_eq!(world.page(&other).await.unwrap().state(), TxState::Live);
    running.stop().await;
}
