//! The first blocks of the main chain with artificial reorgs at random heights: the final state is the one without
//! reorgs.

use std::{collections::BTreeMap, fs};

use serde_json::Value;
use utxo_store::{
    event::Topic,
    generate::{Chain, Message, PreviousOutputs, ReorgInjector, SourceFile},
};

use crate::harness::{World, dump};

/// Returns the events of the first `blocks` blocks.
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

/// Returns a world that has consumed these events with this number of reorgs.
async fn consumed(events: &[Message], reorgs: u64, seed: u64) -> World {
    let world = World::new().await;
    let blocks = events.iter().filter(|message| message.topic == Topic::BlockMined).count() as u64;
    let mut seen = 0;
    for message in ReorgInjector::new(events.iter().cloned(), blocks, reorgs, seed) {
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

/// Returns transactions by their ids without the verdict: a coinbase whose block returned has one, which does not
/// matter.
async fn state(world: &World) -> BTreeMap<String, Value> {
    let lines = dump(&world.store).await;
    let parsed = lines.iter().map(|line| {
        let mut tx: Value = serde_json::from_str(line).unwrap();
        tx.as_object_mut().unwrap().remove("verdict");
        (tx["txid"].as_str().unwrap().to_owned(), tx)
    });
    parsed.collect()
}

/// Fails unless the reorgs leave the state unchanged, except for coinbases of disconnected blocks, and a rebuild has
/// the same digest.
async fn assert_reorgs_change_nothing(blocks: usize, reorgs: u64, seed: u64) {
    let events = events(blocks);
    let (plain, reorganised) = (consumed(&events, 0, seed).await, consumed(&events, reorgs, seed).await);
    let (expected, mut found) = (state(&plain).await, state(&reorganised).await);
    assert!(expected.len() >= blocks);
    for (txid, tx) in &expected {
        assert_eq!(found.remove(txid).as_ref(), Some(tx), "seed {seed}");
    }
    assert!(found.len() as u64 >= reorgs, "{} artificial coinbases", found.len());
    let standing = async |world: &World| {
        utxo_store::store::digest::survey(&world.store, |_| {}).await.unwrap().digest_without_conflicting
    };
    assert_eq!(standing(&reorganised).await, standing(&plain).await, "seed {seed}");
    for (txid, tx) in &found {
        let left = tx["coinbase"] == true && tx["conflicting"] == true;
        assert!(left && tx["reason"] == "a coinbase whose block left the longest chain", "seed {seed}: {txid}: {tx}");
    }
    reorganised.check_without_model(&format!("{blocks} blocks, {reorgs} reorgs, seed {seed}")).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_real_blocks_end_alike_with_reorgs() {
    for seed in 0..3 {
        assert_reorgs_change_nothing(250, 8, seed).await;
    }
}

/// `SEED=n` selects other reorgs.
#[tokio::test(start_paused = true)]
async fn all_real_blocks_end_alike_with_reorgs() {
    let seed = std::env::var("SEED").map_or(1, |text| text.parse().unwrap());
    assert_reorgs_change_nothing(4_313, 120, seed).await;
}
