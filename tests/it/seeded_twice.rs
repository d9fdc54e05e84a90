//! A partial and a whole event for one transaction: the first in the log says what the record is.

use std::time::Duration;

use utxo_store::record::{Body, Reason, TxState, Verdict};

use crate::world::{Made, World, spend};

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
    /// Nothing is consumed before everything is in the log.
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

/// The transaction spends an output of a parent, and one of a seed that is always there.
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
        assert_eq!(held.is_some(), live && !case.seeded_first, "{case:?}: only a whole live one holds slots");
        world.check(&format!("{case:?}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_of_a_partial_and_a_whole_event_says_what_the_record_is() {
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
async fn so_it_does_when_the_instance_dies_between() {
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

/// What a whole event took that came second is free again, for a rival that was refused meanwhile, too.
#[tokio::test(start_paused = true)]
async fn a_rival_of_one_that_came_second_wins() {
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
