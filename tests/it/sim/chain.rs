//! Blocks of a simulation: their parents, the longest chain, and the events that report them.
//!
//! A plan mines blocks in *runs* (see [`Plan::height_step`](super::plan::Plan)). The coinbase of its last block names a
//! run, and only the last block lists transactions.

use std::collections::BTreeMap;

use super::plan::BASE_HEIGHT;
use crate::{
    harness::{Made, coinbase},
    made_blocks::{self, MadeBlock, block_hash},
};

/// First tag of the coinbases of blocks that list nothing; the tags of a plan are lower.
const FILLER_COINBASES: u32 = 1_000_000;

/// Every block that the plan has produced so far.
pub struct Chain {
    blocks_a_run: u32,
    sequence: u64,
    made: u32,
    runs: BTreeMap<u32, Vec<MadeBlock>>,
    longest: Vec<u32>,
}

impl Chain {
    pub fn new(blocks_a_run: u32) -> Self {
        Chain { blocks_a_run, sequence: 0, made: 0, runs: BTreeMap::new(), longest: Vec::new() }
    }

    /// Returns the events of a new run on top of the longest chain.
    pub fn mine(&mut self, name: u32, coinbase: &Made, listed: &[&Made]) -> Vec<Vec<u8>> {
        self.ensure_run(name, 0, coinbase, listed);
        self.longest.push(name);
        self.mined_events(name, true)
    }

    /// Returns the events of a run on a side chain whose parent lies `below` runs below the tip.
    pub fn mine_side_chain(&mut self, name: u32, below: usize, coinbase: &Made, listed: &[&Made]) -> Vec<Vec<u8>> {
        self.ensure_run(name, below, coinbase, listed);
        self.mined_events(name, false)
    }

    /// Returns the event of a reorg that disconnects `disconnect` runs and connects others, known ones included.
    pub fn reorg_event<'m>(
        &mut self,
        disconnect: usize,
        connect: impl Iterator<Item = (u32, &'m Made, Vec<&'m Made>)>,
    ) -> Vec<u8> {
        let left = self.longest.split_off(self.longest.len().saturating_sub(disconnect));
        let kept = self.longest.len();
        for (name, coinbase, listed) in connect {
            self.ensure_run(name, 0, coinbase, &listed);
            self.longest.push(name);
        }
        self.sequence += 1;
        let blocks = |names: &[u32]| names.iter().flat_map(|name| self.runs[name].clone()).collect::<Vec<_>>();
        made_blocks::reorg(self.sequence, &blocks(&left), &blocks(&self.longest[kept..]))
    }

    fn mined_events(&mut self, name: u32, longest_chain: bool) -> Vec<Vec<u8>> {
        let sequences = self.sequence + 1..;
        let events =
            self.runs[&name].iter().zip(sequences).map(|(block, sequence)| block.mined(sequence, longest_chain));
        let events: Vec<Vec<u8>> = events.collect();
        self.sequence += events.len() as u64;
        events
    }

    /// Adds a run, unless the run is known.
    fn ensure_run(&mut self, name: u32, below: usize, coinbase_of_last: &Made, listed: &[&Made]) {
        if self.runs.contains_key(&name) {
            return;
        }
        let parent = self.longest.iter().rev().nth(below).and_then(|name| self.runs[name].last()).cloned();
        let mut run: Vec<MadeBlock> = Vec::new();
        for left in (0..self.blocks_a_run).rev() {
            self.made += 1;
            let filler = coinbase(FILLER_COINBASES + self.made);
            let (coinbase, listed) = if left == 0 { (coinbase_of_last, listed) } else { (&filler, &[][..]) };
            let block = match run.last().or(parent.as_ref()) {
                Some(last) => last.followed_by(self.made, coinbase, listed),
                None => {
                    let first = MadeBlock::new(self.made, BASE_HEIGHT + 1, coinbase, listed);
                    MadeBlock { previous: block_hash(0), ..first }
                }
            };
            run.push(block);
        }
        self.runs.insert(name, run);
    }
}
