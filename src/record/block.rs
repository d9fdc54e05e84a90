//! The record of a block.

use super::Stamp;

/// Record of a block. Block records determine the triples of transactions that are on the longest chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRecord {
    /// Local sequence number of the block; also the key.
    pub block_id: u32,
    /// Hash of the block, internal order.
    pub hash: [u8; 32],
    /// Hash of the previous block, internal order.
    pub previous: [u8; 32],
    /// Height of the block.
    pub height: u32,
    /// Time in the header, seconds since the epoch.
    pub time: u32,
    /// The block is connected to the longest chain.
    pub longest_chain: bool,
    /// Number of the block's transactions that are already set mined, in the order of the block.
    pub progress: u64,
    /// Stamp of the sequencer's last change, see [`Stamp`].
    pub chain_pos: Option<Stamp>,
}
