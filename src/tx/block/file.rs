//! [`BlockFile`]: the blocks in a file, bare or framed.

use std::iter::FusedIterator;

use super::{Block, FileNetwork, HEADER_LEN};
use crate::tx::{ParseError, reader::Reader};

/// The bytes of a file that holds either one bare block, or any number of blocks that are each framed by the network's
/// magic and a little-endian length, as the node's `.blk` files are. Such a file may end in zeros: the node reserves
/// room ahead.
#[derive(Debug, Clone, Copy)]
pub struct BlockFile<'a> {
    bytes: &'a [u8],
    network: Option<FileNetwork>,
}

/// What is wrong with a block file. Positions are bytes from the start of the file; those within `error`, from the
/// start of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockFileError {
    /// There is nothing in it.
    #[error("block file is empty")]
    Empty,
    /// It ends within a block.
    #[error(
        "block file cut in half at byte {at}: the block that starts at byte {block_at} is incomplete: {error} (counted from there)"
    )]
    CutInHalf {
        /// Where the file ends.
        at: usize,
        /// Where the incomplete block starts (where its frame does, if the frame itself is cut).
        block_at: usize,
        /// What is missing.
        error: ParseError,
    },
    /// The file begins neither with the magic of a known network nor with a block.
    #[error(
        "unknown magic {} at byte {at}: the file begins neither with a block nor with the magic of a known network ({}); a node of \
         Bitcoin Core 28 or later writes its files with a key, so keep its xor.dat beside them",
        hex::encode(found),
        known_magics()
    )]
    UnknownMagic {
        /// Where the magic should be.
        at: usize,
        /// The text that is there.
        found: [u8; 4],
    },
    /// A framed block is not followed by another frame, nor by zeros up to the end.
    #[error(
        "{} {} at byte {at}, where the magic {} of its first block should be",
        name_of(*found),
        hex::encode(found),
        hex::encode(expected)
    )]
    NoMagic {
        /// Where the magic should be.
        at: usize,
        /// The text that is there.
        found: [u8; 4],
        /// What should be there.
        expected: [u8; 4],
    },
    /// A block that is complete but malformed, or whose frame has a wrong length.
    #[error("block file damaged in the block that starts at byte {block_at}: {error} (counted from there)")]
    Damaged {
        /// Where the block starts (behind its frame).
        block_at: usize,
        /// What is wrong in it.
        error: ParseError,
    },
}

fn known_magics() -> String {
    let known = FileNetwork::ALL.map(|network| format!("{network} {}", hex::encode(network.block_file_magic())));
    known.join(", ")
}

fn name_of(magic: [u8; 4]) -> String {
    FileNetwork::of_magic(magic).map_or("unknown magic".to_owned(), |network| format!("magic of {network}"))
}

impl BlockFileError {
    /// Moves the error to a file in which these bytes begin at `by`.
    pub(super) fn shifted(self, by: usize) -> Self {
        match self {
            BlockFileError::Empty => BlockFileError::Empty,
            BlockFileError::CutInHalf { at, block_at, error } => {
                BlockFileError::CutInHalf { at: at + by, block_at: block_at + by, error }
            }
            BlockFileError::UnknownMagic { at, found } => BlockFileError::UnknownMagic { at: at + by, found },
            BlockFileError::NoMagic { at, found, expected } => BlockFileError::NoMagic { at: at + by, found, expected },
            BlockFileError::Damaged { block_at, error } => BlockFileError::Damaged { block_at: block_at + by, error },
        }
    }
}

impl<'a> BlockFile<'a> {
    /// Recognises the form of the file by its first bytes; the blocks are not looked at yet.
    ///
    /// # Errors
    /// [`BlockFileError::Empty`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, BlockFileError> {
        if bytes.is_empty() {
            return Err(BlockFileError::Empty);
        }
        let network = FileNetwork::ALL.into_iter().find(|network| bytes.starts_with(&network.block_file_magic()));
        Ok(BlockFile { bytes, network })
    }

    /// Whose magic the frames carry; a bare block does not tell.
    pub fn network(&self) -> Option<FileNetwork> {
        self.network
    }

    /// The blocks, in the file's order (which need not be the chain's); ends after the first error.
    pub fn blocks(&self) -> Blocks<'a> {
        Blocks { bytes: self.bytes, network: self.network, at: 0 }
    }
}

/// The blocks of a file. See [`BlockFile::blocks`].
#[derive(Debug, Clone)]
pub struct Blocks<'a> {
    bytes: &'a [u8],
    network: Option<FileNetwork>,
    at: usize,
}

impl<'a> Blocks<'a> {
    fn bare(&mut self) -> Result<Block<'a>, BlockFileError> {
        self.at = self.bytes.len();
        Block::parse(self.bytes).map_err(|error| match self.bytes.first_chunk() {
            Some(found) if !begins_like_a_block(self.bytes) => BlockFileError::UnknownMagic { at: 0, found: *found },
            _ if error.is_truncation() => BlockFileError::CutInHalf { at: self.bytes.len(), block_at: 0, error },
            _ => BlockFileError::Damaged { block_at: 0, error },
        })
    }

    fn framed(&mut self, expected: [u8; 4]) -> Result<Block<'a>, BlockFileError> {
        let frame_at = self.at;
        let mut reader = Reader::starting_at(self.bytes, frame_at);
        let cut_in_half = |block_at: usize, error: ParseError| BlockFileError::CutInHalf {
            at: self.bytes.len(),
            block_at,
            error: ParseError { at: error.at - block_at, ..error },
        };
        let found = reader.array("magic of the frame").map_err(|error| cut_in_half(frame_at, error))?;
        if found != expected {
            return Err(BlockFileError::NoMagic { at: frame_at, found, expected });
        }
        let len = reader.u32("length in the frame").map_err(|error| cut_in_half(frame_at, error))?;
        let block_at = reader.position();
        let bytes = reader.take(u64::from(len), "framed block").map_err(|error| cut_in_half(block_at, error))?;
        self.at = reader.position();
        Block::parse(bytes).map_err(|error| BlockFileError::Damaged { block_at, error })
    }
}

/// Whether the bytes can be those of a block that is cut or damaged further on: by its version, and by its compact
/// target. Of bytes at random fewer than one in a hundred are taken for it.
fn begins_like_a_block(bytes: &[u8]) -> bool {
    let number = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let version = number(0).is_some_and(|version| version < 0x100 || version >> 29 == 1);
    let target = number(HEADER_LEN - 8).is_none_or(|bits| bits >> 24 <= 0x20 && bits & 0x0080_0000 == 0);
    version && target
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<Block<'a>, BlockFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at_end = self.at > 0 && self.bytes[self.at..].iter().all(|byte| *byte == 0);
        if at_end {
            return None;
        }
        let block = match self.network {
            Some(network) => self.framed(network.block_file_magic()),
            None => self.bare(),
        };
        if block.is_err() {
            self.at = self.bytes.len();
        }
        Some(block)
    }
}

impl FusedIterator for Blocks<'_> {}
