//! [`GenerateError`]: reasons why blocks cannot be turned into events.

use crate::tx::{
    Outpoint, Txid,
    block::{BlockFileError, MerkleError},
};

/// Reason why blocks cannot be turned into events. Messages show block hashes reversed, like transaction ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum GenerateError {
    /// A file that holds no whole block.
    #[error("{file}: {error}")]
    File { file: String, error: BlockFileError },
    /// A block whose header commits to other transactions.
    #[error("{file}: block {block}: {error}")]
    Merkle { file: String, block: Txid, error: MerkleError },
    #[error("no block in the {files} files: they hold only the zeros that a node reserves; name files with blocks")]
    NoBlocks { files: usize },
    /// A block whose height neither the files nor the coinbase contain.
    #[error(
        "{file}: the height of block {block} is unknown: the previous block is not in the files, and the block's \
         coinbase need not contain the height (BIP 34); set --first-height"
    )]
    UnknownHeight { file: String, block: Txid },
    #[error("{file}: block {block} is above the greatest height that a block can have")]
    HeightOverflow { file: String, block: Txid },
    /// An input whose previous output is not known.
    #[error(
        "block {height}: input {input} of {txid} spends {outpoint}, which is not in these files: list the output with \
         --prevouts CSV, or invent the output with --synthesize-prevouts"
    )]
    UnknownPreviousOutput { height: u32, txid: Txid, input: usize, outpoint: Outpoint },
    #[error("cannot invent the previous output {outpoint}: a partial transaction has outputs below {limit} only")]
    TooManyOutputs { outpoint: Outpoint, limit: u32 },
    #[error("the previous outputs contradict the files: {outpoint} differs from the transaction in these files")]
    PreviousOutputMismatch { outpoint: Outpoint },
}
