//! Messages to validators and clients: the outcome of one transaction, and batches of transactions with one outcome.

use serde::{Deserialize, Serialize, Serializer};

use super::{
    DeadLetterClass,
    codec::{BodyReader, BodyWriter, DecodeError, Wire},
    declare,
    json::values::{block_hash, hex_array},
};
use crate::{
    record::{CommandResult, Reason},
    tx::Txid,
};

declare! {
    /// Message to validators and clients: the result of a contest, of a command, or of an event that was refused.
    pub struct OutcomeEvent {
        /// The transaction; for a command, the transaction that the command names.
        pub txid: Txid,
        /// Event that led to the outcome.
        pub source: OutcomeSource,
        /// Content of the outcome.
        pub kind: OutcomeKind,
    }
}

declare! {
    /// Event that led to an [`OutcomeEvent`].
    #[derive(Copy, Eq)]
    pub enum OutcomeSource {
        /// An event of `utxo.chain`.
        Chain = 0, "chain" {
            /// Offset of the event in its one partition.
            offset: u64,
        },
        /// An event of `utxo.validated-txs`.
        Validated = 1, "validated" {
            /// Number of the partition.
            partition: i32,
            /// Offset of the event in its partition.
            offset: u64,
        },
    }
}

declare! {
    /// Content of an [`OutcomeEvent`].
    pub enum OutcomeKind {
        /// The transaction was contested and is live.
        Accepted = 0, "accepted",
        /// The transaction was contested and is conflicting, or became conflicting.
        Conflicting = 1, "conflicting" {
            /// Reason of the verdict.
            reason: Reason,
        },
        /// The event is a dead letter and has changed nothing. Another event of the transaction may have made it live.
        Refused = 2, "refused" {
            /// Class of the dead letter as a code: `DECODE`, `INVALID`, `SEED_MISMATCH`, `UNSUPPORTED`.
            code: String,
            /// Reason in one line that names the field.
            message: String,
        },
        /// The sequencer has handled a command.
        Command = 3, "command" {
            /// The command's own id.
            id: [u8; 16] as "hex_array",
            /// Result of the execution.
            result: CommandResult,
        },
    }
}

declare! {
    /// Transactions with the same outcome. Each txid is in the partition that it has as a key of this topic.
    #[serde(bound(deserialize = "'de: 'a"))]
    pub struct OutcomeBatch<'a> {
        /// Change that all transactions of the batch have in common.
        pub change: OutcomeChange,
        /// Transactions of the partition that have changed.
        pub txids: TxidList<'a>,
    }
}

declare! {
    /// Change of the transactions of an [`OutcomeBatch`].
    #[derive(Copy, Eq, PartialOrd, Ord)]
    pub enum OutcomeChange {
        /// The transactions became live by their own events.
        Live = 0, "live",
        /// A block of the longest chain lists the transactions, or has them as its coinbase.
        Mined = 1, "mined" {
            /// Offset in `utxo.chain` of the event that connected the block.
            chain_offset: u64,
            /// The block's own id.
            block_id: u32,
            /// Height of the block.
            height: u32,
            /// Hash of the block, internal order.
            hash: [u8; 32] as "block_hash",
        },
        /// A reorg disconnected the block that lists the transactions, or has them as its coinbase.
        Unmined = 2, "unmined" {
            /// Offset in `utxo.chain` of the reorg.
            chain_offset: u64,
            /// The block's own id.
            block_id: u32,
            /// Height of the block.
            height: u32,
            /// Hash of the block, internal order.
            hash: [u8; 32] as "block_hash",
        },
    }
}

impl OutcomeSource {
    /// Returns the offset in `utxo.chain`; `None`: the event is in another topic.
    pub fn chain_offset(self) -> Option<u64> {
        match self {
            OutcomeSource::Chain { offset } => Some(offset),
            OutcomeSource::Validated { .. } => None,
        }
    }
}

impl OutcomeKind {
    /// Returns the outcome of a dead letter of `utxo.validated-txs`. `None` for a missing parent: the sequencer
    /// publishes that outcome, as conflicting.
    pub fn refused(class: DeadLetterClass, message: &str) -> Option<Self> {
        let code = match class {
            DeadLetterClass::Decode => "DECODE",
            DeadLetterClass::Invalid => "INVALID",
            DeadLetterClass::SeedMismatch => "SEED_MISMATCH",
            DeadLetterClass::Unsupported => "UNSUPPORTED",
            DeadLetterClass::MissingParent => return None,
        };
        Some(OutcomeKind::Refused { code: code.to_owned(), message: message.to_owned() })
    }
}

/// Transaction ids in one piece of memory: 32 bytes each, in internal order, nothing between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct TxidList<'a>(&'a [u8]);

impl<'a> TxidList<'a> {
    /// Wraps ids that follow one another; `None`: the length is no multiple of 32 bytes.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.len().is_multiple_of(size_of::<Txid>()).then_some(TxidList(bytes))
    }

    /// Returns the ids, in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Txid> + use<'a> {
        self.0.as_chunks().0.iter().map(|txid| Txid(*txid))
    }

    /// Returns the number of ids.
    pub fn len(self) -> usize {
        self.0.len() / size_of::<Txid>()
    }

    /// Returns whether the list has no id.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes of all ids.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl Serialize for TxidList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'wire, 'a> Wire<'wire> for TxidList<'a>
where
    'wire: 'a,
{
    const LEAST: usize = 8;

    fn encode(&self, sink: &mut BodyWriter) {
        sink.put_length(self.len());
        self.iter().for_each(|txid| sink.put(txid.0));
    }

    fn decode(source: &mut BodyReader<'wire>) -> Result<Self, DecodeError> {
        source.take_elements(size_of::<Txid>()).map(TxidList)
    }
}
