//! Synthetic blocks, and the messages of blocks and reorgs.

use super::Message;
use crate::{
    event::{Block, BlockMined, Event, Reorg, Subtree, SubtreeTransactions, Topic},
    tx::{Outpoint, Transaction, TransactionBuilder, Txid},
};

/// Locking script `OP_TRUE`: any unlocking script spends the output.
pub const ANYONE_CAN_SPEND: [u8; 1] = [0x51];

/// Block without a header: the fields that its event needs.
#[derive(Debug, Clone)]
pub struct SyntheticBlock {
    pub id: u32,
    pub height: u32,
    pub hash: [u8; 32],
    pub previous: [u8; 32],
    pub coinbase: Vec<u8>,
    /// Concatenated txids of the listed transactions, 32 bytes each.
    pub listed: Vec<u8>,
}

impl SyntheticBlock {
    /// Value of the coinbase's one output, in satoshis.
    pub const REWARD: u64 = 5_000;

    /// Returns a block whose hash and coinbase depend on `id`, so that no two blocks share them.
    pub fn new(id: u32, height: u32, previous: [u8; 32], listed: Vec<u8>) -> Self {
        let null_outpoint = Outpoint { txid: Txid([0; 32]), vout: u32::MAX };
        let script = [&[3], &height.to_le_bytes()[..3], &id.to_le_bytes()].concat();
        let coinbase = TransactionBuilder::default().input(null_outpoint, &script, u32::MAX, None);
        SyntheticBlock {
            id,
            height,
            hash: *blake3::hash(&id.to_le_bytes()).as_bytes(),
            previous,
            coinbase: coinbase.output(Self::REWARD, &ANYONE_CAN_SPEND).standard(),
            listed,
        }
    }

    pub fn event(&self) -> Block<'_> {
        let count = (self.listed.len() / 32) as u64;
        let listed = Subtree { count, transactions: SubtreeTransactions::Inline(&self.listed) };
        Block {
            block_id: self.id,
            hash: self.hash,
            previous: self.previous,
            height: self.height,
            time: 1_700_000_000_u32.wrapping_add(600_u32.wrapping_mul(self.id)),
            longest_chain: true,
            coinbase: &self.coinbase,
            subtrees: if count == 0 { vec![] } else { vec![listed] },
        }
    }

    pub fn mined(&self, sequence: u64) -> Message {
        mined_message(sequence, self.event())
    }
}

pub fn mined_message(sequence: u64, block: Block<'_>) -> Message {
    let payload = Event::BlockMined(BlockMined { sequence, block }).encode();
    Message { topic: Topic::BlockMined, key: None, payload }
}

/// Returns the message of a reorg; both lists are in ascending order of height.
pub fn reorg_message(sequence: u64, disconnected: Vec<Block<'_>>, connected: Vec<Block<'_>>) -> Message {
    let payload = Event::Reorg(Reorg { sequence, disconnected, connected }).encode();
    Message { topic: Topic::Reorgs, key: None, payload }
}

pub fn compute_txid(tx: &[u8]) -> Txid {
    Transaction::parse(tx).expect("the builder writes what parses, with one input").txid()
}
