//! Blocks for the events of the bridge, with their own bytes.

use bytes::Bytes;

use crate::event::{Block, Subtree, SubtreeTransactions};

/// A block with its transactions, for an event.
#[derive(Debug, Clone)]
pub(super) struct OwnedBlock {
    pub(super) block_id: u32,
    pub(super) hash: [u8; 32],
    pub(super) previous: [u8; 32],
    pub(super) height: u32,
    pub(super) time: u32,
    pub(super) coinbase: Bytes,
    pub(super) subtrees: Vec<OwnedSubtree>,
}

#[derive(Debug, Clone)]
pub(super) struct OwnedSubtree {
    pub(super) count: u64,
    pub(super) txids: OwnedTxids,
}

#[derive(Debug, Clone)]
pub(super) enum OwnedTxids {
    Inline(Bytes),
    Object { key: String, sha256: [u8; 32] },
}

impl OwnedBlock {
    /// Copies a block of a published event.
    pub(super) fn of(block: &Block<'_>) -> Self {
        let subtree = |subtree: &Subtree<'_>| {
            let txids = match &subtree.transactions {
                SubtreeTransactions::Inline(txids) => OwnedTxids::Inline(Bytes::copy_from_slice(txids)),
                SubtreeTransactions::Object { key, sha256 } => {
                    OwnedTxids::Object { key: (*key).to_owned(), sha256: *sha256 }
                }
            };
            OwnedSubtree { count: subtree.count, txids }
        };
        OwnedBlock {
            block_id: block.block_id,
            hash: block.hash,
            previous: block.previous,
            height: block.height,
            time: block.time,
            coinbase: Bytes::copy_from_slice(block.coinbase),
            subtrees: block.subtrees.iter().map(subtree).collect(),
        }
    }

    pub(super) fn as_block(&self, longest_chain: bool) -> Block<'_> {
        Block {
            block_id: self.block_id,
            hash: self.hash,
            previous: self.previous,
            height: self.height,
            time: self.time,
            longest_chain,
            coinbase: &self.coinbase,
            subtrees: self.subtrees.iter().map(OwnedSubtree::as_subtree).collect(),
        }
    }

    /// Returns the bytes of the txids that are in the event.
    pub(super) fn inline_bytes(&self) -> usize {
        let bytes = |subtree: &OwnedSubtree| match &subtree.txids {
            OwnedTxids::Inline(txids) => txids.len(),
            OwnedTxids::Object { .. } => 0,
        };
        self.subtrees.iter().map(bytes).sum()
    }
}

impl OwnedSubtree {
    fn as_subtree(&self) -> Subtree<'_> {
        let transactions = match &self.txids {
            OwnedTxids::Inline(txids) => SubtreeTransactions::Inline(txids),
            OwnedTxids::Object { key, sha256 } => SubtreeTransactions::Object { key, sha256: *sha256 },
        };
        Subtree { count: self.count, transactions }
    }
}
