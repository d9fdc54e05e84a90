//! The first blocks of the main chain, with artificial reorgs at random heights: the state in the end is that without them.

use std::{collections::BTreeMap, fs};

use serde_json::Value;
use utxo_store::{
    event::{Block, BlockMined, Event, Reorg, Topic},
    generate::{Chain, Message, PreviousOutputs, SourceFile},
    seeded::Seeded,
};

use crate::{
    made_blocks::{MadeBlock, block_hash},
    world::{World, coinbase, dump},
};

/// Blocks that leave at once, at the most.
const DEPTH: usize = 20;
/// Local ids, and coinbases, of artificial blocks begin here.
const ARTIFICIAL: u32 = 1_000_000;

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

fn block_of(message: &Message) -> Block<'_> {
    match Event::decode(&message.payload) {
        Ok(Event::BlockMined(mined)) => mined.block,
        other => panic!("no block: {other:?}"),
    }
}

/// Writes the events of real blocks, and now and then a reorg to artificial ones and back.
struct Author<'m> {
    world: &'m World,
    dice: Seeded,
    sequence: u64,
    artificial: u32,
    /// The real blocks so far.
    real: Vec<Block<'m>>,
}

impl<'m> Author<'m> {
    async fn mined(&mut self, block: Block<'_>) {
        self.sequence += 1;
        let event = Event::BlockMined(BlockMined { sequence: self.sequence, block });
        self.world.produce("block-mined", b"", event.encode()).await;
    }

    async fn reorg(&mut self, disconnected: Vec<Block<'_>>, connected: Vec<Block<'_>>) {
        self.sequence += 1;
        let event = Event::Reorg(Reorg { sequence: self.sequence, disconnected, connected });
        self.world.produce("reorgs", b"", event.encode()).await;
    }

    /// Blocks in the place of the last so many real ones. The first lists what those list, or nothing of it.
    fn artificial(&mut self, depth: usize) -> Vec<MadeBlock> {
        let left = &self.real[self.real.len() - depth..];
        let txids = left.iter().flat_map(|block| &block.subtrees).flat_map(|subtree| subtree.transactions.inline());
        let listed: Vec<u8> = txids.flatten().flat_map(|txid| txid.0).collect();
        let (previous, height) = (left[0].previous, left[0].height);
        let mut made: Vec<MadeBlock> = Vec::new();
        for _ in 0..1 + self.dice.below(depth as u64 + 1) {
            self.artificial += 1;
            let id = ARTIFICIAL + self.artificial;
            let (height, previous) = made.last().map_or((height, previous), |last| (last.height + 1, last.hash));
            let block = MadeBlock::new(id, height, &coinbase(id), &[]);
            made.push(MadeBlock { previous, hash: block_hash(id.into()), ..block });
        }
        if self.dice.below(2) == 0 {
            made[0].listed = listed;
        }
        made
    }

    /// So many real blocks leave for artificial ones, perhaps for others after that, and come back.
    async fn there_and_back(&mut self) {
        let depth = 1 + self.dice.below(DEPTH.min(self.real.len() - 1) as u64) as usize;
        let real = self.real[self.real.len() - depth..].to_vec();
        let mut on_chain: Option<Vec<MadeBlock>> = None;
        for _ in 0..1 + self.dice.below(2) {
            let made = self.artificial(depth);
            let leave = match &on_chain {
                Some(before) => before.iter().map(MadeBlock::as_event).collect(),
                None => real.clone(),
            };
            if self.dice.below(3) == 0 {
                // Known as a side chain before.
                for block in &made {
                    self.mined(Block { longest_chain: false, ..block.as_event() }).await;
                }
            }
            self.reorg(leave, made.iter().map(MadeBlock::as_event).collect()).await;
            on_chain = Some(made);
        }
        let leave = on_chain.iter().flatten().map(MadeBlock::as_event).collect();
        self.reorg(leave, real).await;
    }
}

/// The world once these blocks are consumed, with so many reorgs.
async fn consumed(events: &[Message], reorgs: u64, seed: u64) -> World {
    let world = World::new().await;
    let blocks = events.iter().filter(|message| message.topic == Topic::BlockMined).count() as u64;
    let mut author = Author { world: &world, dice: Seeded::new(seed), sequence: 0, artificial: 0, real: Vec::new() };
    let mut left = reorgs;
    for message in events {
        match (message.topic, message.key) {
            (Topic::ValidatedTxs, Some(txid)) => world.produce("txs", &txid.0, message.payload.clone()).await,
            _ => {
                let block = block_of(message);
                author.real.push(block.clone());
                author.mined(block).await;
                let to_come = blocks - author.real.len() as u64 + 1;
                if author.real.len() > 1 && author.dice.below(to_come) < left {
                    left -= 1;
                    author.there_and_back().await;
                }
            }
        }
    }
    assert_eq!(left, 0);
    world.run_until_consumed().await;
    world
}

/// Transactions by their ids, but for the verdict: a coinbase whose block has returned has one.
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
