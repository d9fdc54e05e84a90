//! Artificial reorgs among real blocks: now and then some of them leave for blocks that no miner made, and come back. So the state in the
//! end is that without them, but for the coinbases of the blocks that have left for good.

use std::collections::VecDeque;

use super::{
    Message,
    made::{MadeBlock, mined_message, reorg_message},
};
use crate::{
    event::{Block, Event, Topic},
    seeded::Seeded,
};

/// Blocks that leave at once, at the most.
const DEPTH: usize = 20;
/// Local ids of artificial blocks begin here.
const ARTIFICIAL: u32 = 1_000_000_000;

/// Messages with artificial reorgs among them, and blocks and reorgs numbered anew. Keeps the last twenty blocks.
pub struct Reorganised<I> {
    messages: I,
    dice: Seeded,
    /// Blocks to come, and reorgs among them.
    left: (u64, u64),
    sequence: u64,
    artificial: u32,
    /// The last real blocks, as their messages have them.
    real: VecDeque<Vec<u8>>,
    ready: VecDeque<Message>,
}

impl<I: Iterator<Item = Message>> Reorganised<I> {
    /// So many reorgs (no more than there are blocks but the first) among messages with so many blocks, chosen by `seed`.
    pub fn new(messages: I, blocks: u64, reorgs: u64, seed: u64) -> Self {
        Reorganised {
            messages,
            dice: Seeded::new(seed),
            left: (blocks.saturating_sub(1), reorgs),
            sequence: 0,
            artificial: ARTIFICIAL,
            real: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// A real block comes, and perhaps leaves and returns.
    fn block(&mut self, payload: Vec<u8>) {
        let sequence = self.next_sequence();
        let Some(block) = block_of(&payload) else { return };
        self.ready.push_back(mined_message(sequence, block));
        let is_first = self.real.is_empty();
        self.real.push_back(payload);
        if self.real.len() > DEPTH + 1 {
            self.real.pop_front();
        }
        let (blocks, reorgs) = &mut self.left;
        if is_first || *blocks == 0 {
            return;
        }
        let now = self.dice.below(*blocks) < *reorgs;
        *blocks -= 1;
        if now {
            *reorgs -= 1;
            self.there_and_back();
        }
    }

    /// So many real blocks leave for artificial ones, perhaps for others after that, and come back.
    fn there_and_back(&mut self) {
        let most = DEPTH.min(self.real.len() - 1) as u64;
        let depth = 1 + self.dice.below(most) as usize;
        let real: Vec<Vec<u8>> = self.real.range(self.real.len() - depth..).cloned().collect();
        let real: Vec<Block<'_>> = real.iter().filter_map(|payload| block_of(payload)).collect();
        let mut on_chain: Option<Vec<MadeBlock>> = None;
        for _ in 0..1 + self.dice.below(2) {
            let made = self.artificial(&real);
            if self.dice.below(3) == 0 {
                // Known as a side chain before.
                for block in &made {
                    let sequence = self.next_sequence();
                    let aside = Block { longest_chain: false, ..block.event() };
                    self.ready.push_back(mined_message(sequence, aside));
                }
            }
            let leave = on_chain.as_ref().map_or_else(|| real.clone(), |made| events(made));
            let sequence = self.next_sequence();
            self.ready.push_back(reorg_message(sequence, leave, events(&made)));
            on_chain = Some(made);
        }
        let sequence = self.next_sequence();
        self.ready.push_back(reorg_message(sequence, events(on_chain.as_deref().unwrap_or_default()), real));
    }

    /// Blocks in the place of these. The first lists what those list, or nothing of it.
    fn artificial(&mut self, real: &[Block<'_>]) -> Vec<MadeBlock> {
        let (mut height, mut previous) = real.first().map_or((0, [0; 32]), |first| (first.height, first.previous));
        let mut made: Vec<MadeBlock> = Vec::new();
        for _ in 0..1 + self.dice.below(real.len() as u64 + 1) {
            self.artificial += 1;
            let block = MadeBlock::new(self.artificial, height, previous, Vec::new());
            (height, previous) = (height + 1, block.hash);
            made.push(block);
        }
        if let Some(first) = made.first_mut().filter(|_| self.dice.below(2) == 0) {
            let subtrees = real.iter().flat_map(|block| &block.subtrees);
            let txids = subtrees.flat_map(|subtree| subtree.transactions.inline()).flatten();
            first.listed = txids.flat_map(|txid| txid.0).collect();
        }
        made
    }
}

impl<I: Iterator<Item = Message>> Iterator for Reorganised<I> {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        while self.ready.is_empty() {
            let message = self.messages.next()?;
            match message.topic {
                Topic::BlockMined => self.block(message.payload),
                _ => return Some(message),
            }
        }
        self.ready.pop_front()
    }
}

fn events(made: &[MadeBlock]) -> Vec<Block<'_>> {
    made.iter().map(MadeBlock::event).collect()
}

/// What is no block is nobody's.
fn block_of(payload: &[u8]) -> Option<Block<'_>> {
    match Event::decode(payload) {
        Ok(Event::BlockMined(mined)) => Some(mined.block),
        _ => None,
    }
}
