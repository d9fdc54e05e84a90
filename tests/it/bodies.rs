//! Bodies in a blob store, through pipeline, sequencer and rebuild. Only the record shows where a body is stored. An
//! operation that the blob store cannot do is waited for and named, or halts by name.

use std::{slice, sync::Arc, time::Duration};

use utxo_store::{
    blob::{
        BlobName, BlobOptions, BlobStore,
        fault::{BlobFault, FaultStore},
    },
    record::{Blob, Body, Reason, TxState, Verdict},
};

use crate::harness::{Coin, Made, Running, World, WorldSettings, spend, spend_claiming, wide_coinbase};

/// Bodies of more bytes go to the blob store, as do bodies of several pages: transactions of two inputs do.
const LIMIT: u64 = 120;

/// Returns a world whose blob store can fail.
async fn world(page_size: u32, limit: u64) -> (World, FaultStore) {
    let mut world = World::with_settings(WorldSettings::with_blobs(page_size, limit)).await;
    let objects = FaultStore::new(world.objects.clone(), 1);
    // The cache keeps nothing, so that every read can fail.
    let options = BlobOptions { cache_time: Duration::ZERO, ..BlobOptions::default() };
    world.store.blobs = Some(BlobStore::new(Arc::new(objects.clone()), options));
    (world, objects)
}

/// Returns the blob that the record of a transaction names.
async fn blob(world: &World, made: &Made) -> Option<Blob> {
    match world.page(made).await.unwrap().body() {
        Some(Body::External(blob)) => Some(*blob),
        Some(_) => None,
        None => panic!("{} has no body", made.txid),
    }
}

async fn state(world: &World, made: &Made) -> TxState {
    world.page(made).await.unwrap().state()
}

/// Returns the same outputs with claims of one satoshi more.
fn more(coins: &[Coin]) -> Vec<Coin> {
    coins.iter().map(|coin| Coin { satoshis: coin.satoshis + 1, ..coin.clone() }).collect()
}

/// Returns the reasons why the instance is not ready.
fn reasons(running: &Running) -> String {
    format!("{:?}", running.health.ready().reasons)
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(600), async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.expect("the condition holds in time");
}

/// Whole and partial transactions of one page and of several, a coinbase, spends of the first and last pages, a double
/// spend that a block reverses, and wrong claims, before an honest event and instead of one.
#[tokio::test(start_paused = true)]
async fn large_transactions_end_as_the_model_expects() {
    for limit in [0, LIMIT] {
        let (world, _) = world(2, limit).await;
        let running = world.start();
        let (wide, narrow) = (world.seed(1, 7).await, world.seed(2, 2).await);
        let coins = [wide.coin(0), narrow.coin(0)];
        let paid = spend(&coins, 2, 1);
        let many = spend(&[paid.coin(1)], 5, 2);
        let child = spend(&[many.coin(4), wide.coin(6)], 1, 3);
        let rival = spend(&[many.coin(4), narrow.coin(1)], 1, 4);
        let coins = [wide.coin(2), wide.coin(3)];
        let (lie, honest) = (spend_claiming(&coins, &more(&coins), 3, 5), spend(&coins, 3, 5));
        let coins = [wide.coin(4), wide.coin(5)];
        let only_lie = spend_claiming(&coins, &more(&coins), 1, 6);
        for made in [&paid, &many, &child, &rival, &lie, &honest, &only_lie] {
            world.validate(made).await;
            world.until_consumed().await;
        }
        let lost = Verdict::Conflicting(Reason::DoubleSpend { input: 0, winner: child.txid });
        assert_eq!(state(&world, &rival).await, TxState::Conflicting(lost));
        assert_eq!(state(&world, &honest).await, TxState::Live);
        assert_eq!(
            state(&world, &only_lie).await,
            TxState::Conflicting(Verdict::Conflicting(Reason::Mismatch { input: 0 }))
        );
        // The decision is on the later event: its body has a blob of its own, and the record names the blob.
        assert!(matches!(blob(&world, &honest).await, Some(Blob::Other(_))));
        let coinbase = wide_coinbase(7, 5);
        world.mine_with(1, 1, 101, &coinbase, &[&many, &rival, &only_lie]).await;
        world.until_consumed().await;
        running.stop().await;
        for made in [&wide, &paid, &many, &child, &rival, &coinbase, &only_lie] {
            assert!(blob(&world, made).await.is_some(), "{} is not external", made.txid);
        }
        assert_eq!(blob(&world, &narrow).await.is_some(), limit == 0);
        for winner in [&many, &rival, &only_lie] {
            assert_eq!(state(&world, winner).await, TxState::Live, "{}", winner.txid);
        }
        assert!(matches!(blob(&world, &only_lie).await, Some(Blob::Other(_))), "a block proves what it spends");
        assert!(matches!(state(&world, &child).await, TxState::Conflicting(_)));
        world.check("large transactions").await;
    }
}

/// The hash of a slot concatenates script and amount: an output of 33 satoshis whose script ends in `fd` and a byte has
/// the hash of a shorter script with thousands of satoshis.
/// Protects: such a claim is refused wherever the outputs are stored, with the record, in the blob store or with
/// another page's master.
#[tokio::test(start_paused = true)]
async fn a_claim_that_moves_bytes_from_script_to_amount_is_refused() {
    for (page_size, limit) in [(8, u64::MAX), (8, 0), (1, u64::MAX), (1, 0)] {
        let (world, _) = world(page_size, limit).await;
        let outputs = (0..3).map(|vout| (66, vec![0x52, 0xfd, vout])).collect();
        let partial = Made { outputs, ..World::partial(1, 3) };
        world.produce_partial(&partial).await;
        let whole = spend(&[partial.coin(0)], 2, 0xfd);
        world.validate(&whole).await;
        let running = world.start();
        world.until_consumed().await;
        for (coin, tag) in [partial.coin(1), partial.coin(2), whole.coin(0), whole.coin(1)].into_iter().zip(1..) {
            let [script, 0xfd, low] = coin.script[..] else { panic!("{coin:?}") };
            let claimed = Coin { satoshis: coin.satoshis << 8 | u64::from(low), script: vec![script], ..coin.clone() };
            assert_eq!(claimed.utxo_hash(), coin.utxo_hash());
            let (lie, honest) = (spend_claiming(slice::from_ref(&coin), &[claimed], 1, tag), spend(&[coin], 1, tag));
            world.validate(&lie).await;
            world.until_consumed().await;
            let refused = TxState::Conflicting(Verdict::Conflicting(Reason::Mismatch { input: 0 }));
            assert_eq!(state(&world, &lie).await, refused, "{page_size} a page, limit {limit}");
            world.validate(&honest).await;
            world.until_consumed().await;
            assert_eq!(state(&world, &honest).await, TxState::Live);
        }
        running.stop().await;
        world.check("claims of moved bytes").await;
    }
}

/// Protects: an event that waits for the blob store is no dead letter and is not lost, readiness names the blob store
/// as long as the outage lasts, and all other events are handled.
#[tokio::test(start_paused = true)]
async fn events_wait_for_an_unavailable_or_read_only_blob_store() {
    for fault in
        [BlobFault::LostRequest, BlobFault::Denied, BlobFault::Slow(Duration::from_secs(3_600)), BlobFault::LostReply]
    {
        let (world, objects) = world(2, LIMIT).await;
        let seed = world.seed(1, 2).await;
        let running = world.start();
        world.until_consumed().await;
        objects.fail_all(Some(fault));
        let (large, small) = (spend(&[seed.coin(0)], 5, 1), spend(&[seed.coin(1)], 1, 2));
        world.validate(&large).await;
        world.validate(&small).await;
        until(|| reasons(&running).contains("blob store")).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(reasons(&running).contains("blob store"), "{fault:?}: {}", reasons(&running));
        assert_eq!(world.page(&large).await, None, "{fault:?}: no record refers to a missing body");
        assert_eq!(state(&world, &small).await, TxState::Live, "{fault:?}");
        objects.fail_all(None);
        world.until_consumed().await;
        until(|| running.health.ready().ok).await;
        assert_eq!(state(&world, &large).await, TxState::Live);
        assert_eq!(world.count("dead-letters").await, 0, "{fault:?}");

        // The sequencer needs the stored body of a loser to settle its slots.
        objects.fail_all(Some(fault));
        let rivals = [2, 3].map(|tag| spend(&[large.coin(4), large.coin(0)], 1, tag));
        world.validate(&rivals[0]).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        objects.fail_all(None);
        world.validate(&rivals[1]).await;
        world.until_consumed().await;
        running.stop().await;
        assert_eq!(world.count("dead-letters").await, 0, "{fault:?}");
        world.check("a blob store that was away").await;
    }
}

/// Some of the partitions go to another instance.
/// Protects: a task that waits for the blob store for a partition ends once the partition is revoked.
#[tokio::test(start_paused = true)]
async fn a_rebalance_during_a_blob_outage_adds_no_requests() {
    let (world, objects) = world(2, LIMIT).await;
    let seed = world.seed(1, 12).await;
    let first = world.start();
    world.until_consumed().await;
    objects.fail_all(Some(BlobFault::LostRequest));
    let large: Vec<Made> = (0..12).map(|vout| spend(&[seed.coin(vout)], 5, 1)).collect();
    for made in &large {
        world.validate(made).await;
    }
    let tried_in_a_minute = async || {
        tokio::time::sleep(Duration::from_secs(60)).await;
        let before = objects.requests();
        tokio::time::sleep(Duration::from_secs(60)).await;
        objects.requests() - before
    };
    let alone = tried_in_a_minute().await;
    let second = world.start();
    let together = tried_in_a_minute().await;
    assert!(together * 10 < alone * 11, "{alone} tries a minute became {together}");
    objects.fail_all(None);
    world.until_consumed().await;
    for running in [first, second] {
        until(|| running.health.ready().ok).await;
        running.stop().await;
    }
    for made in &large {
        assert_eq!(state(&world, made).await, TxState::Live);
    }
    world.check("a rebalance of an outage").await;
}

/// Faults of a blob store that is unavailable, refuses, or does not answer.
const AWAY: [BlobFault; 3] = [BlobFault::LostRequest, BlobFault::Denied, BlobFault::Slow(Duration::from_secs(3_600))];

/// The reason of readiness while the chain waits for the blob store.
const WAITS: &str = "the store: still waiting for the blob store";

/// A contest needs a body while the blob store does not answer.
/// Protects: the chain waits, names the blob store, and continues.
#[tokio::test(start_paused = true)]
async fn the_chain_waits_for_an_unavailable_blob_store() {
    for fault in AWAY {
        let (world, objects) = world(2, LIMIT).await;
        let seed = world.seed(1, 2).await;
        let running = world.start();
        let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(1), seed.coin(0)], 5, 2));
        world.validate(&winner).await;
        world.until_consumed().await;
        // The blob is looked up and put; after that it cannot be read.
        (3..10_000).for_each(|request| objects.fail_at(request, fault));
        world.validate(&loser).await;
        until(|| reasons(&running).contains(WAITS)).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(reasons(&running).contains(WAITS), "{fault:?}: {}", reasons(&running));
        objects.clear_script();
        world.until_consumed().await;
        until(|| running.health.ready().ok).await;
        running.stop().await;
        assert!(matches!(state(&world, &loser).await, TxState::Conflicting(Verdict::Conflicting(_))), "{fault:?}");
        world.check("a chain that waited for the blob store").await;
    }
}

/// A block brings a coinbase of several pages while the blob store takes no object.
/// Protects: the chain waits before any record of the coinbase exists, names the blob store, and continues.
#[tokio::test(start_paused = true)]
async fn the_chain_waits_to_store_a_coinbase() {
    for fault in AWAY {
        let (world, objects) = world(2, LIMIT).await;
        let running = world.start();
        objects.fail_all(Some(fault));
        let coinbase = wide_coinbase(7, 5);
        world.mine_with(1, 1, 101, &coinbase, &[]).await;
        until(|| reasons(&running).contains(WAITS)).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(reasons(&running).contains(WAITS), "{fault:?}: {}", reasons(&running));
        assert_eq!(world.page(&coinbase).await, None, "{fault:?}: no record refers to a missing body");
        objects.fail_all(None);
        world.until_consumed().await;
        until(|| running.health.ready().ok).await;
        running.stop().await;
        assert_eq!(state(&world, &coinbase).await, TxState::Live, "{fault:?}");
        world.check("a coinbase that waited for the blob store").await;
    }
}

/// Protects: one event reads a body once, however often the body is needed.
#[tokio::test(start_paused = true)]
async fn a_contest_reads_a_body_once() {
    let (world, objects) = world(2, LIMIT).await;
    let seed = world.seed(1, 2).await;
    let running = world.start();
    let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(1), seed.coin(0)], 5, 2));
    world.validate(&winner).await;
    world.until_consumed().await;
    let before = objects.requests();
    world.validate(&loser).await;
    world.until_consumed().await;
    assert_eq!(objects.requests() - before, 3, "the blob is looked up, put, and read");
    running.stop().await;
    world.check("a contest").await;
}

/// The block waits for the parent of a transaction that is conflicting because the parent is missing.
/// Protects: a waiting block does not read bodies repeatedly.
#[tokio::test(start_paused = true)]
async fn a_waiting_block_reads_each_listed_body_once() {
    let (world, objects) = world(2, LIMIT).await;
    let seed = world.seed(1, 1).await;
    let running = world.start();
    let parent = spend(&[seed.coin(0)], 2, 1);
    let child = spend(&[parent.coin(0), parent.coin(1)], 5, 2);
    world.validate(&child).await;
    world.until_consumed().await;
    assert!(matches!(state(&world, &child).await, TxState::Conflicting(Verdict::Conflicting(_))));
    world.mine(1, &[&parent, &child]).await;
    until(|| reasons(&running).contains("block")).await;
    let before = objects.requests();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(objects.requests(), before);
    world.validate(&parent).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &child).await, TxState::Live);
    world.check("a block that waited").await;
}

/// Protects: a damaged or missing body is named by its txid; the chain halts there, and an instance that is started
/// after the repair continues.
#[tokio::test(start_paused = true)]
async fn a_missing_or_damaged_blob_halts_the_chain_by_name() {
    for is_gone in [true, false] {
        let (world, objects) = world(2, LIMIT).await;
        let seed = world.seed(1, 2).await;
        let running = world.start();
        let (first, second) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(1), seed.coin(0)], 5, 2));
        for made in [&first, &second] {
            world.validate(made).await;
            world.until_consumed().await;
        }
        let blobs = world.store.blobs.clone().unwrap();
        if is_gone {
            blobs.delete(BlobName::tx(second.txid)).await.unwrap();
        } else {
            objects.fail_all(Some(BlobFault::OtherBytes));
        }
        world.mine(1, &[&second]).await;
        let named = format!("the body of {}{}", second.txid, if is_gone { " is not in the blob store" } else { ": " });
        until(|| reasons(&running).contains(&named)).await;
        running.stop().await;
        objects.fail_all(None);
        blobs.put_tx(second.txid, second.extended.clone()).await.unwrap();
        world.run_until_consumed().await;
        assert_eq!(state(&world, &second).await, TxState::Live);
        world.check("a blob that was mended").await;
    }
}
