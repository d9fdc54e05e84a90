//! Artificial reorgs among real blocks: a reorg disconnects some of the last real blocks, connects synthetic blocks in
//! their place, and a later reorg connects the real blocks again. The final state is the state without the reorgs,
//! apart from the coinbases of the synthetic blocks.

use std::collections::VecDeque;

use super::{
    Message,
    synthetic::{SyntheticBlock, mined_message, reorg_message},
};
use crate::{
    event::{Block, Event, Topic},
    rng::SplitMix64,
};

/// Greatest number of blocks that one reorg disconnects.
const MAX_DEPTH: usize = 20;
/// Local ids of synthetic blocks are greater than this.
const SYNTHETIC_IDS: u32 = 1_000_000_000;

/// Iterator that adds artificial reorgs to messages and numbers all blocks and reorgs in sequence. Keeps the last 21
/// real blocks in memory.
pub struct ReorgInjector<I> {
    messages: I,
    rng: SplitMix64,
    /// Number of blocks that follow, and number of reorgs to add among them.
    remaining: (u64, u64),
    sequence: u64,
    last_synthetic_id: u32,
    /// Payloads of the last real blocks.
    real: VecDeque<Vec<u8>>,
    ready: VecDeque<Message>,
}

impl<I: Iterator<Item = Message>> ReorgInjector<I> {
    /// Adds `reorgs` reorgs to messages with `blocks` blocks, at places chosen by `seed`. There is at most one reorg
    /// after each block, and none after the first.
    pub fn new(messages: I, blocks: u64, reorgs: u64, seed: u64) -> Self {
        ReorgInjector {
            messages,
            rng: SplitMix64::new(seed),
            remaining: (blocks.saturating_sub(1), reorgs),
            sequence: 0,
            last_synthetic_id: SYNTHETIC_IDS,
            real: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Passes a real block on, and perhaps adds a reorg after the block.
    fn add_block(&mut self, payload: Vec<u8>) {
        let sequence = self.next_sequence();
        let Some(block) = decode_block(&payload) else { return };
        self.ready.push_back(mined_message(sequence, block));
        let is_first = self.real.is_empty();
        self.real.push_back(payload);
        if self.real.len() > MAX_DEPTH + 1 {
            self.real.pop_front();
        }
        let (blocks, reorgs) = &mut self.remaining;
        if is_first || *blocks == 0 {
            return;
        }
        let reorgs_now = self.rng.below(*blocks) < *reorgs;
        *blocks -= 1;
        if reorgs_now {
            *reorgs -= 1;
            self.inject_reorg();
        }
    }

    /// Replaces a random number of the last real blocks by synthetic ones, once or twice, and connects the real blocks
    /// again.
    fn inject_reorg(&mut self) {
        let most = MAX_DEPTH.min(self.real.len() - 1) as u64;
        let depth = 1 + self.rng.below(most) as usize;
        let real: Vec<Vec<u8>> = self.real.range(self.real.len() - depth..).cloned().collect();
        let real: Vec<Block<'_>> = real.iter().filter_map(|payload| decode_block(payload)).collect();
        let mut connected: Option<Vec<SyntheticBlock>> = None;
        for _ in 0..1 + self.rng.below(2) {
            let branch = self.build_branch(&real);
            if self.rng.below(3) == 0 {
                // The branch is announced as a side chain first.
                for block in &branch {
                    let sequence = self.next_sequence();
                    let side_block = Block { longest_chain: false, ..block.event() };
                    self.ready.push_back(mined_message(sequence, side_block));
                }
            }
            let disconnected = connected.as_ref().map_or_else(|| real.clone(), |branch| events(branch));
            let sequence = self.next_sequence();
            self.ready.push_back(reorg_message(sequence, disconnected, events(&branch)));
            connected = Some(branch);
        }
        let sequence = self.next_sequence();
        self.ready.push_back(reorg_message(sequence, events(connected.as_deref().unwrap_or_default()), real));
    }

    /// Returns a branch of synthetic blocks in the place of `real`. The first block lists either all transactions of
    /// `real` or none.
    fn build_branch(&mut self, real: &[Block<'_>]) -> Vec<SyntheticBlock> {
        let (mut height, mut previous) = real.first().map_or((0, [0; 32]), |first| (first.height, first.previous));
        let mut branch: Vec<SyntheticBlock> = Vec::new();
        for _ in 0..1 + self.rng.below(real.len() as u64 + 1) {
            self.last_synthetic_id += 1;
            let block = SyntheticBlock::new(self.last_synthetic_id, height, previous, Vec::new());
            (height, previous) = (height + 1, block.hash);
            branch.push(block);
        }
        if let Some(first) = branch.first_mut().filter(|_| self.rng.below(2) == 0) {
            let subtrees = real.iter().flat_map(|block| &block.subtrees);
            let txids = subtrees.flat_map(|subtree| subtree.transactions.inline()).flatten();
            first.listed = txids.flat_map(|txid| txid.0).collect();
        }
        branch
    }
}

impl<I: Iterator<Item = Message>> Iterator for ReorgInjector<I> {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        while self.ready.is_empty() {
            let message = self.messages.next()?;
            match message.topic {
                Topic::BlockMined => self.add_block(message.payload),
                _ => return Some(message),
            }
        }
        self.ready.pop_front()
    }
}

fn events(blocks: &[SyntheticBlock]) -> Vec<Block<'_>> {
    blocks.iter().map(SyntheticBlock::event).collect()
}

/// Decodes the block of a `BlockMined` event; `None`: the payload is no such event.
fn decode_block(payload: &[u8]) -> Option<Block<'_>> {
    match Event::decode(payload) {
        Ok(Event::BlockMined(mined)) => Some(mined.block),
        _ => None,
    }
}
