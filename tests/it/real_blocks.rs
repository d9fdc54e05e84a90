//! The first blocks of the main chain, with artificial reorgs at random heights: the state in the end is that without them.

use std::{collections::BTreeMap, fs};

use serde_json::Value;
use utxo_store::{
    event::Topic,
    generate::{Chain, Message, PreviousOutputs, Reorganised, SourceFile},
};

use crate::world::{World, dump};

/// The events of the first so many blocks.
fn events(blocks: usize) -> Vec<Message> {
    let path = format!("{}/tests/data/mainnet-0-4312.blk", env!("CARGO_MANIFEST_DIR"));
    let files = [SourceFile { bytes: fs::read(&path).unwrap(), name: path }];
    let chain = Chain::new(&files, None, PreviousOutputs::InTheFiles).unwrap();
    let mut left = blocks;
    let wanted = chain.messages().take_while(|message| {
        let goes_on = left > 0;
        left -= usize::from(goes_on && message.topic == Topic::BlockMined);
        goes_on
    });
    wanted.collect()
}

/// The world once these blocks are consumed, with so many reorgs.
async fn consumed(events: &[Message], reorgs: u64, seed: u64) -> World {
    let world = World::new().await;
    let blocks = events.iter().filter(|message| message.topic == Topic::BlockMined).count() as u64;
    let mut seen = 0;
    for message in Reorganised::new(events.iter().cloned(), blocks, reorgs, seed) {
        let (topic, key) = match (message.topic, &message.key) {
            (Topic::ValidatedTxs, Some(txid)) => ("txs", &txid.0[..]),
            (Topic::BlockMined, _) => ("block-mined", &b""[..]),
            (Topic::Reorgs, _) => ("reorgs", &b""[..]),
            other => panic!("{other:?}"),
        };
        seen += u64::from(message.topic == Topic::Reorgs);
        world.produce(topic, key, message.payload).await;
    }
    assert!(seen >= 2 * reorgs, "{seen}");
    world.run_until_consumed().await;
    world
}

/// Transactions by their ids, but for the verdict: a coinbase whose block has returned has one, which says nothing.
async fn state(world: &World) -> BTreeMap<String, Value> {
    let lines = dump(&world.store).await;
    let parsed = lines.iter().map(|line| {
        let mut tx: Value = serde_json::from_str(line).unwrap();
        tx.as_object_mut().unwrap().remove("verdict");
        (tx["txid"].as_str().unwrap().to_owned(), tx)
    });
    parsed.collect()
}

/// With the reorgs, the state is the same, and besides it there is nothing but coinbases of blocks that have left; a rebuild has
/// the same digest.
async fn end_alike(blocks: usize, reorgs: u64, seed: u64) {
    let events = events(blocks);
    let (plain, reorganised) = (consumed(&events, 0, seed).await, consumed(&events, reorgs, seed).await);
    let (expected, mut found) = (state(&plain).await, state(&reorganised).await);
    assert!(expected.len() >= blocks);
    for (txid, tx) in &expected {
        assert_eq!(found.remove(txid).as_ref(), Some(tx), "seed {seed}");
    }
    assert!(found.len() as u64 >= reorgs, "{} artificial coinbases", found.len());
    let standing = async |world: &World| world.store.survey(|_| {}).await.unwrap().digest_without_conflicting;
    assert_eq!(standing(&reorganised).await, standing(&plain).await, "seed {seed}");
    for (txid, tx) in &found {
        let left = tx["coinbase"] == true && tx["conflicting"] == true;
        assert!(left && tx["reason"] == "a coinbase whose block left the longest chain", "seed {seed}: {txid}: {tx}");
    }
    reorganised.check_without_model(&format!("{blocks} blocks, {reorgs} reorgs, seed {seed}")).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_real_blocks_with_artificial_reorgs_end_as_without() {
    for seed in 0..3 {
        end_alike(250, 8, seed).await;
    }
}

/// `SEED=n` has other reorgs.
#[tokio::test(start_paused = true)]
async fn all_real_blocks_with_artificial_reorgs_end_as_without() {
    let seed = std::env::var("SEED").map_or(1, |text| text.parse().unwrap());
    end_alike(4_313, 120, seed).await;
}
