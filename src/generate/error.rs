//! [`GenerateError`]: reasons why blocks cannot be turned into events.

use crate::tx::{
    Outpoint, Txid,
    block::{BlockFileError, MerkleError},
};

/// Reason why blocks cannot be turned into events. Messages show block hashes reversed, like transaction ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// A file that holds no whole block.
    #[error("{file}: {error}")]
    File {
        /// Name of the file.
        file: String,
        /// Error with the position in the file.
        error: BlockFileError,
    },
    /// A block whose header commits to other transactions.
    #[error("{file}: block {block}: {error}")]
    Merkle {
        /// Name of the file.
        file: String,
        /// Hash of the block.
        block: Txid,
        /// Difference between transactions and Merkle root.
        error: MerkleError,
    },
    /// Files that hold only zeros.
    #[error("no block in the {files} files: they hold only the zeros that a node reserves; name files with blocks")]
    NoBlocks {
        /// Number of files that were read.
        files: usize,
    },
    /// A block whose height neither the files nor the coinbase contain.
    #[error(
        "{file}: the height of block {block} is unknown: the previous block is not in the files, and the block's \
         coinbase need not contain the height (BIP 34); set --first-height"
    )]
    UnknownHeight {
        /// Name of the file.
        file: String,
        /// Hash of the block.
        block: Txid,
    },
    /// More blocks than there are heights or local ids.
    #[error("{file}: block {block} is above the greatest height that a block can have")]
    HeightOverflow {
        /// Name of the file.
        file: String,
        /// Hash of the block.
        block: Txid,
    },
    /// An input whose previous output is not known.
    #[error(
        "block {height}: input {input} of {txid} spends {outpoint}, which is not in these files: list the output with \
         --prevouts CSV, or invent the output with --synthesize-prevouts"
    )]
    UnknownPreviousOutput {
        /// Height of the block.
        height: u32,
        /// Txid of the spending transaction.
        txid: Txid,
        /// Index of the input.
        input: usize,
        /// Outpoint that the input spends.
        outpoint: Outpoint,
    },
    /// An output whose index is too great for a partial transaction.
    #[error("cannot invent the previous output {outpoint}: a partial transaction has outputs below {limit} only")]
    TooManyOutputs {
        /// Outpoint whose output cannot be invented.
        outpoint: Outpoint,
        /// Least index that is too great.
        limit: u32,
    },
    /// A listed previous output that differs from the output in the files.
    #[error("the previous outputs contradict the files: {outpoint} differs from the transaction in these files")]
    PreviousOutputMismatch {
        /// Outpoint of the listed output.
        outpoint: Outpoint,
    },
}
