//! Parents that come late, or never.

use std::time::Duration;

use super::has_lost;
use crate::world::{World, spend};

/// Seed 12: the child's event is older than that of its parent, and the grandparent never comes. The child waited for the
/// parent, and the parent could not be proven to have no parent while something older was unfinished: the child.
/// Protects: a parent that came behind its child and waits itself is not waited for after the grace.
#[tokio::test(start_paused = true)]
async fn a_child_before_its_parent_whose_own_parent_never_comes() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let missing = spend(&[seed.coin(0)], 1, 1);
    let parent = spend(&[missing.coin(0)], 1, 2);
    let child = spend(&[parent.coin(0)], 1, 3);
    let running = world.start();
    world.validate(&child).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    world.validate(&parent).await;
    world.until_consumed().await;
    for made in [&parent, &child] {
        assert!(has_lost(&world, made).await, "{}", made.txid);
    }
    running.stop().await;
    world.check("a child before its parent").await;
}
