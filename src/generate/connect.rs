//! Connects blocks by the block that each says it follows, and chooses the chain with the most work.

use foldhash::{HashMap, HashMapExt};

use super::blocks::NO_BLOCK;
use crate::tx::block::{Block, FileNetwork};

/// A whole block of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    /// Number of the file.
    pub(super) file: usize,
    pub(super) block: Block<'a>,
    pub(super) hash: [u8; 32],
    /// The network whose magic stands before the block; `None`: it is a file of its own, without a frame.
    pub(super) network: Option<FileNetwork>,
}

/// Blocks that are of no chain that was chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OfNoChain {
    pub(super) stale: u64,
    pub(super) unconnected: u64,
    pub(super) repeated: u64,
}

impl<'a> Found<'a> {
    pub(super) fn new(file: usize, block: Block<'a>, network: Option<FileNetwork>) -> Self {
        Found { file, block, hash: block.hash(), network }
    }

    fn previous(&self) -> [u8; 32] {
        self.block.header().previous
    }
}

/// The chains to be fed, each a list of indexes from its lowest block on, in the order of the files: of blocks with
/// frames the one chain that begins with a genesis block, else the one with the most work; and every chain of bare
/// blocks.
pub(super) fn chains(found: &[Found<'_>]) -> (Vec<Vec<usize>>, OfNoChain) {
    let mut counts = OfNoChain::default();
    let mut by_hash: HashMap<[u8; 32], usize> = HashMap::with_capacity(found.len());
    for (index, block) in found.iter().enumerate() {
        match by_hash.get(&block.hash) {
            Some(_) => counts.repeated += 1,
            None => {
                by_hash.insert(block.hash, index);
            }
        }
    }
    let parents: Vec<Option<usize>> = found.iter().map(|block| by_hash.get(&block.previous()).copied()).collect();
    let branches = branches(found, &parents);
    let firsts: Vec<usize> = (0..found.len()).filter(|index| by_hash.get(&found[*index].hash) == Some(index)).collect();
    // By root. Of two tips with the same work the one that was there first stays, as nodes have it.
    let mut tips: Vec<Option<usize>> = vec![None; found.len()];
    for index in &firsts {
        let tip = &mut tips[branches[*index].root];
        if tip.is_none_or(|tip| branches[*index].work > branches[tip].work) {
            *tip = Some(*index);
        }
    }
    let is_bare = |root: usize| found[root].network.is_none();
    let rank = |root: usize| (found[root].previous() == NO_BLOCK, tips[root].map_or(0, |tip| branches[tip].work));
    let roots = (0..found.len()).filter(|root| tips[*root].is_some());
    let framed = roots.clone().filter(|root| !is_bare(*root));
    let best = framed.reduce(|best, root| if rank(root) > rank(best) { root } else { best });
    let is_chosen = |root: usize| is_bare(root) || Some(root) == best;
    let chosen: Vec<usize> = roots.filter(|root| is_chosen(*root)).filter_map(|root| tips[root]).collect();
    let fed: usize = chosen.iter().map(|tip| branches[*tip].length).sum();
    let connected = firsts.iter().filter(|index| is_chosen(branches[**index].root)).count();
    counts.stale = (connected - fed) as u64;
    counts.unconnected = (firsts.len() - connected) as u64;
    (chosen.into_iter().map(|tip| down_from(tip, &parents)).collect(), counts)
}

/// The branch that a block is the tip of.
#[derive(Debug, Clone, Copy)]
struct Branch {
    root: usize,
    length: usize,
    work: u128,
}

/// For each block the branch from the lowest block that it connects to.
fn branches(found: &[Found<'_>], parents: &[Option<usize>]) -> Vec<Branch> {
    let mut branches: Vec<Option<Branch>> = vec![None; found.len()];
    for index in 0..found.len() {
        // Blocks stand in any order, so the ones below may not be known yet.
        let mut unknown = Vec::new();
        let mut at = Some(index);
        while let Some(block) = at.filter(|block| branches[*block].is_none()) {
            unknown.push(block);
            at = parents[block];
        }
        let mut below = at.and_then(|block| branches[block]);
        for block in unknown.into_iter().rev() {
            let (root, length, work) = below.map_or((block, 0, 0), |below| (below.root, below.length, below.work));
            let work = work.saturating_add(work_of(found[block].block.header().bits));
            below = Some(Branch { root, length: length + 1, work });
            branches[block] = below;
        }
    }
    branches.into_iter().flatten().collect()
}

fn down_from(tip: usize, parents: &[Option<usize>]) -> Vec<usize> {
    let mut chain: Vec<usize> = std::iter::successors(Some(tip), |block| parents[*block]).collect();
    chain.reverse();
    chain
}

/// How many hashes a block of this compact target takes: 2^256 by the target. At least one, so that a longer branch has
/// more work than a part of it.
fn work_of(bits: u32) -> u128 {
    let (size, mantissa) = (bits >> 24, u128::from(bits & 0x007f_ffff));
    let shift = i64::from(size) * 8 - 24;
    match (mantissa, 256 - shift) {
        (0, _) => 1,
        (mantissa, exponent @ 0..=127) => ((1 << exponent) / mantissa).max(1),
        // Less than 2^129 is left for a target that no chain has come near to.
        (mantissa, exponent @ 128..=255) => (u128::MAX / mantissa).saturating_mul(1 << (exponent - 128).min(23)),
        (_, exponent) => {
            if exponent < 0 {
                1
            } else {
                u128::MAX
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_that_of_nodes() {
        assert_eq!(work_of(0x1d00_ffff), 0x1_0001_0001, "what Bitcoin Core says of the genesis block, and a fraction");
        assert_eq!(work_of(0x207f_ffff), 2);
        assert!(work_of(0x1701_0000) > work_of(0x1701_ffff));
        for odd in [0, 0x0100_0000, 0xff7f_ffff, 0x0000_0001, 0x0300_0001] {
            assert!(work_of(odd) >= 1, "{odd:x}");
        }
    }
}
