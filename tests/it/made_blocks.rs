//! Blocks and reorgs as events.

use sha2::{Digest, Sha256};
use utxo_store::event::{Block, BlockMined, Event, Reorg, Subtree, SubtreeTransactions};

use crate::harness::{Made, World};

/// A block that can be mined, disconnected and connected again.
#[derive(Debug, Clone)]
pub struct MadeBlock {
    pub block_id: u32,
    pub hash: [u8; 32],
    pub previous: [u8; 32],
    pub height: u32,
    pub coinbase: Made,
    /// The listed txids, one after the other.
    pub listed: Vec<u8>,
    /// Key of the object with the txids, where the event does not have them.
    pub object: Option<String>,
}

/// Returns a hash for the block of this number.
pub fn block_hash(number: u64) -> [u8; 32] {
    let mut hash = [number as u8; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    hash
}

impl MadeBlock {
    /// Builds a block that follows the block with the next lower number.
    pub fn new(block_id: u32, height: u32, coinbase: &Made, listed: &[&Made]) -> Self {
        MadeBlock {
            block_id,
            hash: block_hash(block_id.into()),
            previous: block_hash(u64::from(block_id) - 1),
            height,
            coinbase: coinbase.clone(),
            listed: listed.iter().flat_map(|made| made.txid.0).collect(),
            object: None,
        }
    }

    /// Builds another block one above this one.
    pub fn followed_by(&self, block_id: u32, coinbase: &Made, listed: &[&Made]) -> Self {
        MadeBlock { previous: self.hash, ..MadeBlock::new(block_id, self.height + 1, coinbase, listed) }
    }

    /// Encodes the event of the block.
    pub fn mined(&self, sequence: u64, longest_chain: bool) -> Vec<u8> {
        let block = Block { longest_chain, ..self.as_event() };
        Event::BlockMined(BlockMined { sequence, block }).encode()
    }

    /// Returns the block as a part of an event.
    pub fn as_event(&self) -> Block<'_> {
        let count = self.listed.len() as u64 / 32;
        let transactions = match &self.object {
            Some(key) => SubtreeTransactions::Object { key, sha256: Sha256::digest(&self.listed).into() },
            None => SubtreeTransactions::Inline(&self.listed),
        };
        Block {
            block_id: self.block_id,
            hash: self.hash,
            previous: self.previous,
            height: self.height,
            time: 1_700_000_000,
            longest_chain: true,
            coinbase: &self.coinbase.extended,
            subtrees: vec![Subtree { count, transactions }],
        }
    }
}

/// Encodes the event of a reorg; both arrays ascend.
pub fn reorg(sequence: u64, disconnected: &[MadeBlock], connected: &[MadeBlock]) -> Vec<u8> {
    let [disconnected, connected] =
        [disconnected, connected].map(|made| made.iter().map(MadeBlock::as_event).collect());
    Event::Reorg(Reorg { sequence, disconnected, connected }).encode()
}

impl World {
    /// Produces a block of the longest chain.
    pub async fn bring(&self, sequence: u64, block: &MadeBlock) {
        self.produce("block-mined", b"", block.mined(sequence, true)).await;
    }

    /// Produces a block of a side chain.
    pub async fn bring_aside(&self, sequence: u64, block: &MadeBlock) {
        self.produce("block-mined", b"", block.mined(sequence, false)).await;
    }

    /// Produces a reorg; both arrays ascend.
    pub async fn reorganise(&self, sequence: u64, leave: &[MadeBlock], come: &[MadeBlock]) {
        self.produce("reorgs", b"", reorg(sequence, leave, come)).await;
    }
}
