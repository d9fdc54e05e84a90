//! The chain of the reference's block messages: which event a message becomes. Pure.
//!
//! The topic has one message for each final block, in the order in which blocks become final. A message whose previous
//! block is the tip extends the chain. A message with an earlier block as previous block is a reorg. A message of a
//! block that is in the chain already is a repeat.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::tx::Txid;

/// A block message and its links to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLink {
    /// Offset of the message in the topic of the blocks.
    pub offset: u64,
    /// Hash of the block, internal order.
    pub hash: [u8; 32],
    /// Hash of the previous block, internal order.
    pub previous: [u8; 32],
    /// Height of the block.
    pub height: u32,
}

/// The event that a block message becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockStep {
    /// The block is in the chain already: no event.
    Repeat,
    /// The block extends the chain: a `block-mined` event.
    Extend,
    /// Blocks leave the chain, and this one joins it: a `reorg` event.
    Reorg {
        /// Offsets of the messages of the blocks that leave, lowest block first.
        disconnected: Vec<u64>,
    },
}

/// Problem of a block message among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum ChainError {
    #[error("its previous block {previous} is not in the chain of the last {blocks} messages")]
    UnknownPrevious { previous: Txid, blocks: usize },
    #[error("its height is {height}, and its previous block has height {previous}")]
    Height { height: u32, previous: u32 },
    #[error("its offset is too large for a block id of 32 bits")]
    NoBlockId,
}

/// Progress of the bridge: what the group commits with the offset of the next block message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockProgress {
    /// Sequence of the last event.
    pub sequence: u64,
    /// Hash of the tip, as explorers show the hash; `None`: no block yet.
    pub tip: Option<Txid>,
    /// The first block of the topic is the genesis block, whose local id is 0.
    pub has_genesis: bool,
}

/// The last block messages of the topic.
#[derive(Debug, Default)]
pub struct ChainWindow {
    links: BTreeMap<u64, BlockLink>,
    /// Offset of the first message of each block.
    first: HashMap<[u8; 32], u64>,
    tip: Option<[u8; 32]>,
}

/// Number of block messages that a window has at least: a reorg is never that deep.
pub const WINDOW: u64 = 2_016;

impl ChainWindow {
    /// Adds a message that was read before.
    pub fn add(&mut self, link: BlockLink) {
        self.first.entry(link.hash).or_insert(link.offset);
        self.links.insert(link.offset, link);
        let Some(oldest) = link.offset.checked_sub(2 * WINDOW) else { return };
        while let Some(entry) = self.links.first_entry().filter(|entry| *entry.key() < oldest) {
            let link = entry.remove();
            if self.first.get(&link.hash) == Some(&link.offset) {
                self.first.remove(&link.hash);
            }
        }
    }

    /// Sets the tip of the chain.
    pub fn set_tip(&mut self, tip: Option<[u8; 32]>) {
        self.tip = tip;
    }

    /// Returns the event that a message becomes.
    ///
    /// # Errors
    /// The previous block is not in the chain, or the heights do not follow each other.
    pub fn plan(&self, link: &BlockLink) -> Result<BlockStep, ChainError> {
        let Some(tip) = self.tip else { return Ok(BlockStep::Extend) };
        let mut disconnected = Vec::new();
        let mut is_in_chain = false;
        for block in self.chain_from(tip) {
            if block.hash == link.previous {
                self.check_height(link, block.height)?;
                // A block below the tip with the same previous block is not this one: the chain has been walked above.
                if is_in_chain {
                    return Ok(BlockStep::Repeat);
                }
                disconnected.reverse();
                return Ok(match disconnected.is_empty() {
                    true => BlockStep::Extend,
                    false => BlockStep::Reorg { disconnected },
                });
            }
            is_in_chain |= block.hash == link.hash;
            disconnected.push(block.offset);
        }
        match is_in_chain {
            // The first block of the topic: its previous block has no message.
            true => Ok(BlockStep::Repeat),
            false => Err(ChainError::UnknownPrevious { previous: Txid(link.previous), blocks: self.links.len() }),
        }
    }

    fn check_height(&self, link: &BlockLink, previous: u32) -> Result<(), ChainError> {
        match previous.checked_add(1) == Some(link.height) {
            true => Ok(()),
            false => Err(ChainError::Height { height: link.height, previous }),
        }
    }

    /// Returns the local id of a block: the offset of its first message, and one more where the topic does not begin
    /// with the genesis block, since id 0 is the genesis block's. A block that joins the chain again has its id again.
    ///
    /// # Errors
    /// The offset is too large for an id.
    pub fn block_id(&self, link: &BlockLink, has_genesis: bool) -> Result<u32, ChainError> {
        let first = self.first.get(&link.hash).copied().unwrap_or(link.offset);
        let id = u32::try_from(first).ok().and_then(|first| first.checked_add(u32::from(!has_genesis)));
        id.ok_or(ChainError::NoBlockId)
    }

    /// Returns the blocks of the chain that ends with `tip`, highest first.
    fn chain_from(&self, tip: [u8; 32]) -> impl Iterator<Item = BlockLink> {
        let find = |hash: &[u8; 32]| self.first.get(hash).and_then(|offset| self.links.get(offset)).copied();
        std::iter::successors(find(&tip), move |block| find(&block.previous))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(offset: u64, hash: u8, previous: u8, height: u32) -> BlockLink {
        BlockLink { offset, hash: [hash; 32], previous: [previous; 32], height }
    }

    /// Plans the messages one after the other, as the bridge does.
    fn plan_all(window: &mut ChainWindow, links: &[BlockLink]) -> Vec<Result<BlockStep, ChainError>> {
        let mut steps = Vec::new();
        for link in links {
            let step = window.plan(link);
            if matches!(step, Ok(BlockStep::Extend | BlockStep::Reorg { .. })) {
                window.set_tip(Some(link.hash));
            }
            window.add(*link);
            steps.push(step);
        }
        steps
    }

    fn reorg(disconnected: &[u64]) -> Result<BlockStep, ChainError> {
        Ok(BlockStep::Reorg { disconnected: disconnected.to_vec() })
    }

    #[test]
    fn blocks_extend_the_chain_or_replace_its_end() {
        let links = [
            link(0, 1, 0, 100),
            link(1, 2, 1, 101),
            link(2, 3, 2, 102),
            link(3, 12, 1, 101),
            link(4, 13, 12, 102),
            link(5, 2, 1, 101),
            link(6, 3, 2, 102),
        ];
        let mut window = ChainWindow::default();
        let steps = plan_all(&mut window, &links);
        let extend = || Ok(BlockStep::Extend);
        let expected = [extend(), extend(), extend(), reorg(&[1, 2]), extend(), reorg(&[3, 4]), extend()];
        assert_eq!(steps, expected);
        assert_eq!(
            (window.block_id(&links[1], false), window.block_id(&links[5], false)),
            (Ok(2), Ok(2)),
            "one id for one block"
        );
    }

    #[test]
    fn a_repeated_message_is_no_event() {
        let links = [link(0, 1, 0, 9), link(1, 2, 1, 10), link(2, 1, 0, 9), link(3, 2, 1, 10), link(4, 3, 2, 11)];
        let steps = plan_all(&mut ChainWindow::default(), &links);
        let (extend, repeat) = (|| Ok(BlockStep::Extend), || Ok(BlockStep::Repeat));
        assert_eq!(steps, [extend(), extend(), repeat(), repeat(), extend()]);
    }

    #[test]
    fn a_block_without_its_previous_block_is_refused() {
        let mut window = ChainWindow::default();
        plan_all(&mut window, &[link(0, 1, 0, 9), link(1, 2, 1, 10)]);
        let unknown = ChainError::UnknownPrevious { previous: Txid([8; 32]), blocks: 2 };
        assert_eq!(window.plan(&link(2, 9, 8, 11)), Err(unknown));
        assert_eq!(window.plan(&link(2, 9, 2, 12)), Err(ChainError::Height { height: 12, previous: 10 }));
        let far = link(u64::from(u32::MAX), 9, 2, 11);
        assert_eq!(window.block_id(&far, false), Err(ChainError::NoBlockId));
        assert_eq!(window.block_id(&far, true), Ok(u32::MAX));
    }

    #[test]
    fn the_window_forgets_old_messages() {
        let mut window = ChainWindow::default();
        let hash = |number: u64| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&number.to_le_bytes());
            hash
        };
        for offset in 0..3 * WINDOW {
            let link = BlockLink { offset, hash: hash(offset + 1), previous: hash(offset), height: offset as u32 };
            assert_eq!(window.plan(&link), Ok(BlockStep::Extend));
            window.add(link);
            window.set_tip(Some(link.hash));
        }
        assert_eq!(window.links.len() as u64, 2 * WINDOW + 1);
        assert_eq!(window.first.len(), window.links.len());
    }
}
