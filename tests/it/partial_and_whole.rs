//! A partial and a whole event for one transaction: the first one in the log decides the record.

use std::time::Duration;

use utxo_store::record::{Body, Outcome, Reason, Rejection, TxState, Verdict};

use crate::{
    harness::{Made, World, spend},
    regressions::holding_engine::{HoldingEngine, is_spend},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parent {
    Before,
    After,
    Never,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    seeded_first: bool,
    /// The partial event claims other outputs.
    other: bool,
    parent: Parent,
    /// All events are produced before the first is consumed.
    at_once: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for seeded_first in [true, false] {
        for other in [true, false] {
            for parent in [Parent::Before, Parent::After, Parent::Never] {
                for at_once in [true, false] {
                    cases.push(Case { seeded_first, other, parent, at_once });
                }
            }
        }
    }
    cases
}

/// A transaction that spends an output of a parent, and one of a seed that is always stored.
struct Scene {
    seed: Made,
    parent: Made,
    tx: Made,
}

impl Scene {
    async fn new(world: &World) -> Self {
        let seed = world.seed(1, 2).await;
        let parent = spend(&[seed.coin(0)], 1, 1);
        let tx = spend(&[parent.coin(0), seed.coin(1)], 1, 2);
        Scene { seed, parent, tx }
    }

    async fn produce(&self, world: &World, case: Case) {
        let settled = async || {
            if !case.at_once {
                world.until_consumed().await;
            }
        };
        let mut partial = self.tx.clone();
        partial.outputs[0].0 += u64::from(case.other);
        if case.parent == Parent::Before {
            world.validate(&self.parent).await;
            settled().await;
        }
        for is_partial in [case.seeded_first, !case.seeded_first] {
            if is_partial {
                world.produce_partial(&partial).await
            } else {
                world.validate(&self.tx).await
            }
            settled().await;
        }
        if case.parent == Parent::After {
            world.validate(&self.parent).await;
        }
    }

    async fn check(&self, world: &World, case: Case) {
        let page = world.page(&self.tx).await.unwrap();
        let is_partial = matches!(page.body(), Some(Body::Outputs(_)));
        assert_eq!(is_partial, case.seeded_first, "{case:?}");
        let held = world.page(&self.seed).await.unwrap().utxos.as_ref().unwrap()[1].spender();
        let live = match case.parent {
            Parent::Never if !case.seeded_first => {
                let missing = Reason::MissingParent { parent: self.parent.txid };
                assert_eq!(page.state(), TxState::Conflicting(Verdict::Conflicting(missing)), "{case:?}");
                false
            }
            _ => {
                assert_eq!(page.state(), TxState::Live, "{case:?}");
                true
            }
        };
        assert_eq!(held.is_some(), live && !case.seeded_first, "{case:?}: only a live whole transaction holds slots");
        world.check(&format!("{case:?}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_of_a_partial_and_a_whole_event_decides_the_record() {
    for case in cases() {
        let world = World::new().await;
        let scene = Scene::new(&world).await;
        let running = world.start();
        scene.produce(&world, case).await;
        world.until_consumed().await;
        running.stop().await;
        scene.check(&world, case).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_event_decides_the_record_after_a_kill() {
    for case in cases().into_iter().filter(|case| case.at_once) {
        for kill_after_ms in [1, 4, 9, 30] {
            let world = World::new().await;
            let scene = Scene::new(&world).await;
            scene.produce(&world, case).await;
            let running = world.start();
            tokio::time::sleep(Duration::from_millis(kill_after_ms)).await;
            running.kill().await;
            world.run_until_consumed().await;
            scene.check(&world, case).await;
        }
    }
}

/// Slots that a second whole event took are free again, also for a rival that was refused meanwhile.
#[tokio::test(start_paused = true)]
async fn a_rival_of_a_second_whole_event_wins() {
    for at_once in [true, false] {
        let world = World::new().await;
        let scene = Scene::new(&world).await;
        let running = world.start();
        let case = Case { seeded_first: true, other: false, parent: Parent::Before, at_once };
        scene.produce(&world, case).await;
        let rival = spend(&[scene.seed.coin(1)], 1, 3);
        world.validate(&rival).await;
        world.until_consumed().await;
        running.stop().await;
        assert_eq!(world.page(&rival).await.unwrap().state(), TxState::Live, "at once: {at_once}");
        world.check(&format!("a rival of one that came second, at once: {at_once}")).await;
    }
}

/// The partial event was complete before the instance died, so that the whole event, read again, is the first of its
/// transaction in the new instance (simulator, seed 5870). The whole event waits for a parent, its child for the event,
/// and the block for the child; while the block waits, the parent cannot be proven missing.
/// Protects: an event that waits while the chain is blocked reads its own record, over every store.
#[tokio::test(start_paused = true)]
async fn a_block_lists_the_child_of_a_second_whole_event_that_waits() {
    let world = World::new().await;
    let missing = spend(&[world.seed(1, 1).await.coin(0)], 1, 1);
    let parent = spend(&[missing.coin(0)], 1, 2);
    let tx = spend(&[parent.coin(0)], 1, 3);
    let child = spend(&[tx.coin(0)], 1, 4);
    world.produce_partial(&tx).await;
    world.run_until_consumed().await;
    let running = world.start();
    for made in [&parent, &tx, &child] {
        world.validate(made).await;
    }
    world.mine(1, &[&child]).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(world.page(&child).await.unwrap().state(), TxState::Live);
    world.check("the child of one that came second").await;
}

/// A partial transaction comes late: a child of it has lost for its absence, and a block before it lists another child.
/// The contest of the partial transaction would stand behind that block, which waited for ever.
/// Protects: a partial transaction becomes live in the place of its stub; its loser has a second chance all the same.
#[tokio::test(start_paused = true)]
async fn a_block_waits_for_a_partial_transaction_behind_it() {
    for kill_after_ms in [None, Some(1), Some(2), Some(3), Some(5), Some(8)] {
        let world = World::new().await;
        let late = World::partial(1, 2);
        let refused = spend(&[late.coin(0)], 1, 1);
        let listed = spend(&[late.coin(1)], 1, 2);
        let running = world.start();
        world.validate(&refused).await;
        world.until_consumed().await;
        let missing = TxState::Conflicting(Verdict::Conflicting(Reason::MissingParent { parent: late.txid }));
        assert_eq!(world.page(&refused).await.unwrap().state(), missing);
        world.mine(1, &[&listed]).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.produce_partial(&late).await;
        world.validate(&listed).await;
        match kill_after_ms {
            Some(kill_after_ms) => {
                tokio::time::sleep(Duration::from_millis(kill_after_ms)).await;
                running.kill().await;
                world.run_until_consumed().await;
            }
            None => {
                world.until_consumed().await;
                running.stop().await;
            }
        }
        for made in [&late, &listed, &refused] {
            assert_eq!(world.page(made).await.unwrap().state(), TxState::Live, "{kill_after_ms:?} {}", made.txid);
        }
        world.check(&format!("a late partial transaction, killed after {kill_after_ms:?}")).await;
    }
}

/// When the whole event was handled its parent was locked, so that it held nothing; a spend that an earlier instance
/// had sent arrived once the parent was unlocked (simulator, seed 6787).
/// Protects: a second whole event is contested whatever it has taken, so that its slots are marked.
#[tokio::test(start_paused = true)]
async fn a_late_spend_of_a_second_whole_event_takes_no_slot() {
    let world = World::new().await;
    let parent = spend(&[world.seed(1, 1).await.coin(0)], 1, 1);
    let tx = spend(&[parent.coin(0)], 1, 2);
    let (slot_of, spender) = (parent.txid, tx.txid);
    let held = HoldingEngine::hold_first(&world, move |row| is_spend(row, slot_of, spender));
    let zombie = held.in_front_of(&world).start();
    world.validate_locked(&parent).await;
    world.produce_partial(&tx).await;
    world.until_consumed().await;
    world.validate(&tx).await;
    held.wait_for_held(1).await;
    zombie.kill().await;

    let running = world.start();
    world.until_consumed().await;
    world.mine(1, &[&parent]).await;
    world.until_consumed().await;
    let late = held.release().await;
    assert!(matches!(late[..], [Outcome::Rejected(Rejection::Contested(0))]), "{late:?}");
    running.stop().await;
    world.check("a late spend of one that came second").await;
}
