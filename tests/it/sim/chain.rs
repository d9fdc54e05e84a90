//! The blocks of a run: which stand on which, which are on the longest chain, and the events that say so.
//!
//! Blocks come in *runs* (see [`Plan::height_step`](super::plan::Plan)), each named by the coinbase of its last block, which
//! alone lists anything.

use std::collections::BTreeMap;

use super::plan::BASE_HEIGHT;
use crate::{
    made_blocks::{self, MadeBlock, block_hash},
    world::{Made, coinbase},
};

/// The coinbases of blocks that list nothing, beyond those that a plan names.
const FILLERS: u32 = 1_000_000;

/// All blocks so far.
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

    /// Events of a new run on the longest chain.
    pub fn mine(&mut self, name: u32, coinbase: &Made, listed: &[&Made]) -> Vec<Vec<u8>> {
        self.run(name, 0, coinbase, listed);
        self.longest.push(name);
        self.each_mined(name, true)
    }

    /// Events of a run on a side chain, so many runs below the tip.
    pub fn mine_aside(&mut self, name: u32, below: usize, coinbase: &Made, listed: &[&Made]) -> Vec<Vec<u8>> {
        self.run(name, below, coinbase, listed);
        self.each_mined(name, false)
    }

    /// The event of a reorg: so many runs leave, and others come, which may have been there before.
    pub fn reorganise<'m>(
        &mut self,
        leave: usize,
        come: impl Iterator<Item = (u32, &'m Made, Vec<&'m Made>)>,
    ) -> Vec<u8> {
        let left = self.longest.split_off(self.longest.len().saturating_sub(leave));
        let kept = self.longest.len();
        for (name, coinbase, listed) in come {
            self.run(name, 0, coinbase, &listed);
            self.longest.push(name);
        }
        self.sequence += 1;
        let blocks = |names: &[u32]| names.iter().flat_map(|name| self.runs[name].clone()).collect::<Vec<_>>();
        made_blocks::reorg(self.sequence, &blocks(&left), &blocks(&self.longest[kept..]))
    }

    fn each_mined(&mut self, name: u32, longest_chain: bool) -> Vec<Vec<u8>> {
        let sequences = self.sequence + 1..;
        let events =
            self.runs[&name].iter().zip(sequences).map(|(block, sequence)| block.mined(sequence, longest_chain));
        let events: Vec<Vec<u8>> = events.collect();
        self.sequence += events.len() as u64;
        events
    }

    /// Makes a run, unless it was made before.
    fn run(&mut self, name: u32, below: usize, coinbase_of_last: &Made, listed: &[&Made]) {
        if self.runs.contains_key(&name) {
            return;
        }
        let stands_on = self.longest.iter().rev().nth(below).and_then(|name| self.runs[name].last()).cloned();
        let mut run: Vec<MadeBlock> = Vec::new();
        for left in (0..self.blocks_a_run).rev() {
            self.made += 1;
            let filler = coinbase(FILLERS + self.made);
            let (coinbase, listed) = if left == 0 { (coinbase_of_last, listed) } else { (&filler, &[][..]) };
            let block = match run.last().or(stands_on.as_ref()) {
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
