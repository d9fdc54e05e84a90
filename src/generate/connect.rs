//! Connects blocks by their previous hashes, and chooses the chain with the most work.

use foldhash::{HashMap, HashMapExt};

use super::blocks::NO_BLOCK;
use crate::tx::block::{FileNetwork, RawBlock};

/// Whole block of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileBlock<'a> {
    /// Index of the file in the list of files.
    pub(super) file: usize,
    pub(super) block: RawBlock<'a>,
    pub(super) hash: [u8; 32],
    /// Network of the magic before the block; `None`: the file holds this one block without a frame.
    pub(super) network: Option<FileNetwork>,
}

/// Counts of blocks outside the chosen chains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct UnusedBlocks {
    pub(super) stale: u64,
    pub(super) unconnected: u64,
    pub(super) repeated: u64,
}

impl<'a> FileBlock<'a> {
    pub(super) fn new(file: usize, block: RawBlock<'a>, network: Option<FileNetwork>) -> Self {
        FileBlock { file, block, hash: block.hash(), network }
    }

    fn previous(&self) -> [u8; 32] {
        self.block.header().previous
    }
}

/// Chooses the chains to produce, in the order of the files. Each chain is a list of indexes, lowest block first.
///
/// Among the blocks with frames the chain that begins with a genesis block is chosen, otherwise the chain with the most
/// work. Every chain of bare blocks is chosen.
pub(super) fn choose_chains(found: &[FileBlock<'_>]) -> (Vec<Vec<usize>>, UnusedBlocks) {
    let mut counts = UnusedBlocks::default();
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
    let branches = find_branches(found, &parents);
    let firsts: Vec<usize> = (0..found.len()).filter(|index| by_hash.get(&found[*index].hash) == Some(index)).collect();
    // Best tip of each root. Of two tips with equal work the first one stays, as in nodes.
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
    let used: usize = chosen.iter().map(|tip| branches[*tip].length).sum();
    let connected = firsts.iter().filter(|index| is_chosen(branches[**index].root)).count();
    counts.stale = (connected - used) as u64;
    counts.unconnected = (firsts.len() - connected) as u64;
    (chosen.into_iter().map(|tip| chain_to_tip(tip, &parents)).collect(), counts)
}

/// Branch from a root up to one block, the tip.
#[derive(Debug, Clone, Copy)]
struct Branch {
    root: usize,
    length: usize,
    work: u128,
}

/// Returns, for each block, the branch from the lowest connected block up to the block.
fn find_branches(found: &[FileBlock<'_>], parents: &[Option<usize>]) -> Vec<Branch> {
    let mut branches: Vec<Option<Branch>> = vec![None; found.len()];
    for index in 0..found.len() {
        // Files hold blocks in any order, so the branches of lower blocks may not be known yet.
        let mut unknown = Vec::new();
        let mut at = Some(index);
        while let Some(block) = at.filter(|block| branches[*block].is_none()) {
            unknown.push(block);
            at = parents[block];
        }
        let mut below = at.and_then(|block| branches[block]);
        for block in unknown.into_iter().rev() {
            let (root, length, work) = below.map_or((block, 0, 0), |below| (below.root, below.length, below.work));
            let work = work.saturating_add(found[block].block.header().work());
            below = Some(Branch { root, length: length + 1, work });
            branches[block] = below;
        }
    }
    branches.into_iter().flatten().collect()
}

fn chain_to_tip(tip: usize, parents: &[Option<usize>]) -> Vec<usize> {
    let mut chain: Vec<usize> = std::iter::successors(Some(tip), |block| parents[*block]).collect();
    chain.reverse();
    chain
}
