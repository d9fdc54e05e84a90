//! An instance works only on the store that its group has committed offsets for, and on no older copy of it.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use utxo_store::{
    engine::memory::MemoryEngine,
    instance::{self, InstanceError},
    record::{Key, MetaRecord, Rules, TxState},
    store::{
        StateStore,
        digest::survey,
        meta::{MetaError, StoreMeta},
    },
};

use crate::harness::{Made, World, spend};

/// Returns an empty store.
fn new_store(world: &World) -> StateStore {
    StateStore::new(Arc::new(MemoryEngine::new(Rules::main(288))), world.store.settings)
}

async fn rebuild(world: &World) -> StateStore {
    let store = new_store(world);
    let parts = world.parts(&store);
    instance::rebuild(world.settings.clone(), parts, CancellationToken::new()).await.unwrap();
    store
}

/// Returns the error with which an instance over this store ends.
pub async fn start_error(world: &World, store: &StateStore) -> InstanceError {
    let run = instance::run(world.settings.clone(), world.parts(store), CancellationToken::new());
    tokio::time::timeout(Duration::from_secs(600), run).await.expect("the instance ends").unwrap_err()
}

async fn digest(store: &StateStore) -> String {
    survey(store, |_| {}).await.unwrap().digest.to_string()
}

async fn is_live(store: &StateStore, made: &Made) -> bool {
    store.master(made.txid).await.unwrap().is_some_and(|page| page.state() == TxState::Live)
}

/// Consumes and commits rivals, a child of each, and a block; returns the rivals.
async fn run_rivals_and_block(world: &World) -> [Made; 2] {
    let seed = world.seed(1, 2).await;
    let (winner, loser) = (spend(&[seed.coin(0)], 2, 1), spend(&[seed.coin(0)], 2, 2));
    let running = world.start();
    for made in [&winner, &loser, &spend(&[winner.coin(0)], 1, 3), &spend(&[loser.coin(0)], 1, 4)] {
        world.validate(made).await;
    }
    world.mine(1, &[&winner]).await;
    world.until_consumed().await;
    running.stop().await;
    [winner, loser]
}

#[tokio::test(start_paused = true)]
async fn a_stopped_group_continues_on_its_rebuilt_store() {
    let world = World::new().await;
    let [winner, loser] = run_rivals_and_block(&world).await;
    let rebuilt = rebuild(&world).await;
    assert_eq!(digest(&rebuilt).await, digest(&world.store).await);

    let moved = world.beside(rebuilt.engine.clone());
    let (child, orphan) = (spend(&[winner.coin(1)], 1, 5), spend(&[loser.coin(1)], 1, 6));
    let running = moved.start();
    for made in [&child, &orphan] {
        moved.validate(made).await;
    }
    moved.mine(2, &[&child]).await;
    moved.until_consumed().await;
    running.stop().await;
    assert!(is_live(&rebuilt, &child).await && !is_live(&rebuilt, &orphan).await);
    assert_eq!(digest(&rebuild(&moved).await).await, digest(&rebuilt).await);
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_behind_its_group_is_refused() {
    let world = World::new().await;
    let [winner, _] = run_rivals_and_block(&world).await;
    let rebuilt = rebuild(&world).await;
    let running = world.start();
    world.validate(&spend(&[winner.coin(1)], 1, 5)).await;
    world.until_consumed().await;
    running.stop().await;

    let before = digest(&rebuilt).await;
    let error = start_error(&world, &rebuilt).await;
    assert!(matches!(&error, InstanceError::Meta(MetaError::StoreBehindGroup { .. })), "{error}");
    assert_eq!(digest(&rebuilt).await, before);
    world.run_until_consumed().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_a_part_is_refused_and_sentinels_are_added() {
    let world = World::new().await;
    run_rivals_and_block(&world).await;
    let engine = Arc::new(MemoryEngine::new(Rules::main(288)).with_losable_parts());
    let store = StateStore::new(engine.clone(), world.store.settings);
    instance::rebuild(world.settings.clone(), world.parts(&store), CancellationToken::new()).await.unwrap();
    assert!(store.meta().await.unwrap().unwrap().has_sentinels, "a rebuild writes sentinels");
    let lose = || engine.put(Key::Sentinel(9), None);
    lose();
    let error = start_error(&world, &store).await;
    assert!(matches!(&error, InstanceError::Meta(MetaError::PartLost { missing: 1, all: 256 })), "{error}");

    // The store looks as if it were made before there were sentinels.
    StoreMeta::of(&store).change(|meta| Ok(MetaRecord { has_sentinels: false, ..meta })).await.unwrap();
    let moved = world.beside(engine.clone());
    let running = moved.start();
    while !store.meta().await.unwrap().unwrap().has_sentinels {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    moved.until_consumed().await;
    running.stop().await;
    lose();
    assert!(matches!(start_error(&world, &store).await, InstanceError::Meta(MetaError::PartLost { .. })));
}

/// Plays `docs/operating/exits/lost-part.md` for a device that is lost with its data.
/// Protects: the rest of the records is refused, and the rebuilt store has the state of the whole one.
#[tokio::test(start_paused = true)]
async fn a_lost_part_ends_with_a_rebuilt_store() {
    let world = World::new().await;
    let [winner, _] = run_rivals_and_block(&world).await;
    let engine = Arc::new(MemoryEngine::new(Rules::main(288)).with_losable_parts());
    let store = StateStore::new(engine.clone(), world.store.settings);
    instance::rebuild(world.settings.clone(), world.parts(&store), CancellationToken::new()).await.unwrap();
    let whole = digest(&store).await;
    engine.put(Key::Sentinel(9), None);
    engine.put(Key::master(winner.txid), None);
    let error = start_error(&world, &store).await;
    assert!(matches!(&error, InstanceError::Meta(MetaError::PartLost { missing: 1, all: 256 })), "{error}");

    let rebuilt = rebuild(&world).await;
    assert_eq!(digest(&rebuilt).await, whole);
    let moved = world.beside(rebuilt.engine.clone());
    let child = spend(&[winner.coin(1)], 1, 5);
    moved.validate(&child).await;
    moved.run_until_consumed().await;
    assert!(is_live(&rebuilt, &child).await);
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_that_was_killed_is_refused() {
    let world = World::new().await;
    run_rivals_and_block(&world).await;
    let store = new_store(&world);
    let parts = world.parts(&store);
    let shutdown = CancellationToken::new();
    let rebuilding = tokio::spawn(instance::rebuild(world.settings.clone(), parts, shutdown));
    while store.meta().await.unwrap().is_none_or(|meta| meta.rebuilding.is_none()) {
        tokio::task::yield_now().await;
    }
    rebuilding.abort();
    let error = start_error(&world, &store).await;
    assert!(matches!(&error, InstanceError::Meta(MetaError::UnfinishedRebuild { .. })), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_that_was_shut_down_is_refused() {
    let world = World::new().await;
    run_rivals_and_block(&world).await;
    let store = new_store(&world);
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    instance::rebuild(world.settings.clone(), world.parts(&store), shutdown).await.unwrap();
    let error = start_error(&world, &store).await;
    assert!(matches!(&error, InstanceError::Meta(MetaError::UnfinishedRebuild { .. })), "{error}");
}

#[tokio::test(start_paused = true)]
async fn one_of_two_instances_with_separate_stores_ends() {
    let world = World::new().await;
    let own = || world.beside(new_store(&world).engine).start();
    let (one, other) = (own(), own());
    let mut made = Vec::new();
    for tag in 1..=20 {
        let parent = spend(&[world.seed(tag, 1).await.coin(0)], 1, tag);
        made.push(spend(&[parent.coin(0)], 1, 100 + tag));
        world.validate(&parent).await;
    }
    for child in &made {
        world.validate(child).await;
    }
    // The instance that is left has a store of its own, and the other one has committed nothing.
    let ended = tokio::select! {
        ended = one.ended() => ended,
        ended = other.ended() => ended,
    };
    let why = ended.expect_err("one of them sees the other's committed offsets").to_string();
    assert!(why.contains("the store is not the one"), "{why}");
    assert_eq!(world.end("chain", 0).await, 0, "no parent was proven missing");
}

/// Plays `docs/operating/exits/crossed-stores.md`: each of two instances of one group has a store of its own.
/// Protects: neither store is whole, and the rebuilt store has the events of both.
#[tokio::test(start_paused = true)]
async fn two_crossed_stores_end_with_one_rebuilt_store() {
    let world = World::new().await;
    let own = || world.beside(new_store(&world).engine).start();
    let (mut one, mut other) = (own(), own());
    let mut made = Vec::new();
    for tag in 1..=20 {
        made.push(spend(&[world.seed(tag, 1).await.coin(0)], 1, tag));
    }
    let children: Vec<Made> = made.iter().zip(101..).map(|(parent, tag)| spend(&[parent.coin(0)], 1, tag)).collect();
    made.extend(children);
    for tx in &made {
        world.validate(tx).await;
    }
    let (is_one, ended) = tokio::select! {
        ended = &mut one.task => (true, ended),
        ended = &mut other.task => (false, ended),
    };
    let why = ended.unwrap().expect_err("the store of one lacks what the other has committed").to_string();
    assert!(why.contains("the store is not the one"), "{why}");
    let left = if is_one { other } else { one };
    left.kill().await;

    let rebuilt = rebuild(&world).await;
    let moved = world.beside(rebuilt.engine.clone());
    moved.run_until_consumed().await;
    for tx in &made {
        assert!(is_live(&rebuilt, tx).await);
    }
    assert_eq!(world.end("chain", 0).await, 0, "no parent was proven missing");
    assert_eq!(digest(&rebuild(&moved).await).await, digest(&rebuilt).await);
}
