//! Events of `utxo.block-mined` and `utxo.reorgs`, which the feed copies to `utxo.chain`.

use serde::{Deserialize, Serialize};

use super::{
    codec::{BodyReader, BodyWriter, DecodeError, DecodeProblem, Wire},
    declare,
    json::values::{block_hash, hex_array, hex_bytes, txid_list},
};
use crate::tx::Txid;

declare! {
    /// A block and the transactions in it.
    pub struct Block<'a> {
        /// Sequence number of the block, local to the node; 0 stands for the genesis block and for all blocks before
        /// the store began.
        pub block_id: u32,
        /// Hash of the block, internal order.
        pub hash: [u8; 32] as "block_hash",
        /// Hash of the previous block, internal order.
        pub previous: [u8; 32] as "block_hash",
        /// Height of the block.
        pub height: u32,
        /// Time in the header, seconds since the epoch.
        pub time: u32,
        /// The block is on the longest chain.
        pub longest_chain: bool,
        /// The coinbase transaction, in standard format.
        pub coinbase: &'a [u8] as "hex_bytes",
        /// The other transactions, in the order of the block.
        pub subtrees: Vec<Subtree<'a>>,
    }
}

declare! {
    /// Consecutive transactions of a block. The position of a subtree in the block's list is its *subtree index*.
    #[serde(bound(deserialize = "'de: 'a"))]
    pub struct Subtree<'a> {
        /// Number of transactions in the subtree.
        pub count: u64,
        /// Ids of the transactions.
        pub transactions: SubtreeTransactions<'a>,
    }
    check check_count;
}

/// Transactions of a [`Subtree`]: a concatenation of 32-byte ids in internal order, without the coinbase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SubtreeTransactions<'a> {
    /// The ids are in the message: `count` times 32 bytes.
    Inline(#[serde(with = "txid_list")] &'a [u8]),
    /// The ids are an object of the object store.
    Object {
        /// Key of the object.
        key: &'a str,
        /// SHA-256 of the object's content.
        #[serde(with = "hex_array")]
        sha256: [u8; 32],
    },
}

impl<'a> SubtreeTransactions<'a> {
    /// Returns the ids that the message holds; `None` when they are in the object store.
    pub fn inline(&self) -> Option<impl ExactSizeIterator<Item = Txid> + use<'a>> {
        match self {
            SubtreeTransactions::Inline(txids) => Some(txids.as_chunks().0.iter().map(|txid| Txid(*txid))),
            SubtreeTransactions::Object { .. } => None,
        }
    }
}

declare! {
    /// A block was mined.
    #[serde(bound(deserialize = "'de: 'a"))]
    pub struct BlockMined<'a> {
        /// Number of the event over both block topics together: the first is 1, and each next event adds 1.
        pub sequence: u64,
        /// The mined block and its transactions.
        pub block: Block<'a>,
    }
    check check_block_mined;
}

declare! {
    /// The longest chain changed.
    #[serde(bound(deserialize = "'de: 'a"))]
    pub struct Reorg<'a> {
        /// Number of the event over both block topics together: the first is 1, and each next event adds 1.
        pub sequence: u64,
        /// Blocks that left the longest chain, ascending by height.
        pub disconnected: Vec<Block<'a>>,
        /// Blocks that joined the longest chain, ascending by height.
        pub connected: Vec<Block<'a>>,
    }
    check check_reorg;
}

fn check_count(subtree: &Subtree<'_>) -> Result<(), DecodeError> {
    match &subtree.transactions {
        SubtreeTransactions::Inline(txids) if subtree.count.checked_mul(32) != Some(txids.len() as u64) => {
            let rule = format!("{} transactions do not have {} bytes of ids", subtree.count, txids.len());
            Err(DecodeError::broken_rule("count", rule))
        }
        _ => Ok(()),
    }
}

fn check_block_mined(mined: &BlockMined<'_>) -> Result<(), DecodeError> {
    check_sequence(mined.sequence)
}

fn check_reorg(reorg: &Reorg<'_>) -> Result<(), DecodeError> {
    check_sequence(reorg.sequence)?;
    check_ascending("disconnected", &reorg.disconnected)?;
    check_ascending("connected", &reorg.connected)
}

fn check_sequence(sequence: u64) -> Result<(), DecodeError> {
    match sequence {
        0 => Err(DecodeError::broken_rule("sequence", "0 is not used: the first is 1")),
        _ => Ok(()),
    }
}

fn check_ascending(field: &str, blocks: &[Block<'_>]) -> Result<(), DecodeError> {
    match blocks.windows(2).position(|pair| pair[0].height >= pair[1].height) {
        Some(index) => {
            let height = blocks[index + 1].height;
            let rule = format!("{height} is not above the height of the block before it");
            Err(DecodeError::broken_rule(format!("{field}[{}].height", index + 1), rule))
        }
        None => Ok(()),
    }
}

const INLINE: u32 = 0;
const OBJECT: u32 = 1;

impl<'wire, 'a> Wire<'wire> for SubtreeTransactions<'a>
where
    'wire: 'a,
{
    const LEAST: usize = 4 + 8;

    fn encode(&self, sink: &mut BodyWriter) {
        match self {
            SubtreeTransactions::Inline(txids) => {
                sink.put(INLINE);
                sink.put(*txids);
            }
            SubtreeTransactions::Object { key, sha256 } => {
                sink.put(OBJECT);
                sink.put(*key);
                sink.put(sha256);
            }
        }
    }

    fn decode(source: &mut BodyReader<'wire>) -> Result<Self, DecodeError> {
        let within = |field| move |error: DecodeError| error.within(field);
        match source.take()? {
            INLINE => source.take().map(SubtreeTransactions::Inline).map_err(within("inline")),
            OBJECT => Ok(SubtreeTransactions::Object {
                key: source.take().map_err(within("object.key"))?,
                sha256: source.take().map_err(within("object.sha256"))?,
            }),
            other => Err(DecodeProblem::Tag(other).into()),
        }
    }
}
