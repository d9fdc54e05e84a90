//! [`GenerateError`]: why blocks cannot be turned into events.

use crate::tx::{
    Outpoint, Txid,
    block::{BlockFileError, MerkleError},
};

/// Why blocks cannot be turned into events. Block hashes are shown reversed, as transaction ids are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// A file that holds no blocks, or is damaged.
    #[error("{file}: {error}")]
    File {
        /// Its name.
        file: String,
        /// What is wrong, and where.
        error: BlockFileError,
    },
    /// A block whose transactions are not those of its header.
    #[error("{file}: block {block}: {error}")]
    Merkle {
        /// Name of the file.
        file: String,
        /// Hash of the block.
        block: Txid,
        /// What is wrong.
        error: MerkleError,
    },
    /// Files of nothing but zeros.
    #[error("there is no block in the {files} files: they hold nothing but the zeros that a node reserves")]
    NoBlocks {
        /// How many files there are.
        files: usize,
    },
    /// Nothing tells at which height a block is.
    #[error(
        "{file}: nothing tells the height of block {block}: the block before it is not in the files, and its coinbase is not bound \
         to tell it (BIP 34); give it with --first-height"
    )]
    UnknownHeight {
        /// Name of the file.
        file: String,
        /// Hash of the block.
        block: Txid,
    },
    /// More blocks than heights or local ids.
    #[error("{file}: block {block} is beyond the greatest height that a block can have")]
    HeightOverflow {
        /// Name of the file.
        file: String,
        /// Hash of the block.
        block: Txid,
    },
    /// An input spends something that nobody told about.
    #[error(
        "block {height}: input {input} of {txid} spends {outpoint}, which is not in these files: name what it is with \
         --prevouts CSV, or have it invented with --synthesize-prevouts"
    )]
    UnknownPreviousOutput {
        /// Height of the block.
        height: u32,
        /// The spending transaction.
        txid: Txid,
        /// Its input.
        input: usize,
        /// What it spends.
        outpoint: Outpoint,
    },
    /// An output that no partial transaction can have.
    #[error("the previous output {outpoint} cannot be invented: a partial transaction has outputs below {limit} only")]
    TooManyOutputs {
        /// The output.
        outpoint: Outpoint,
        /// The first index that is too great.
        limit: u32,
    },
    /// The list of previous outputs says something else than the files.
    #[error("the previous outputs say otherwise about {outpoint} than the transaction itself, which is in these files")]
    Contradiction {
        /// The output.
        outpoint: Outpoint,
    },
}
