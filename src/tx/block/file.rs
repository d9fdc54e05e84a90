//! [`BlockFile`]: blocks in a file, bare or framed.

use std::iter::FusedIterator;

use strum::IntoEnumIterator;

use super::{FileNetwork, HEADER_LEN, RawBlock};
use crate::tx::{ParseError, reader::ByteReader};

/// File of blocks: either one bare block, or any number of framed blocks. A frame is the network's magic and a
/// little-endian length, as in the node's `.blk` files. A framed file may end in zeros, because the node allocates
/// space ahead.
#[derive(Debug, Clone, Copy)]
pub struct BlockFile<'a> {
    bytes: &'a [u8],
    network: Option<FileNetwork>,
}

/// Error of a block file. Positions are bytes from the start of the file; those within `error` are bytes from the start
/// of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum BlockFileError {
    #[error("block file is empty")]
    Empty,
    /// The file ends within a block, or within its frame (`block_at` is then the position of the frame).
    #[error(
        "block file cut in half at byte {at}: the block that starts at byte {block_at} is incomplete: {error} (counted \
         from there)"
    )]
    CutInHalf { at: usize, block_at: usize, error: ParseError },
    #[error(
        "unknown magic {} at byte {at}: the file begins neither with a block nor with the magic of a known network \
         ({}); a node of Bitcoin Core 28 or later writes its files with a key, so keep its xor.dat beside them",
        hex::encode(found),
        list_known_magics()
    )]
    UnknownMagic { at: usize, found: [u8; 4] },
    /// The bytes after a framed block are neither another frame nor zeros up to the end.
    #[error(
        "{} {} at byte {at}, where the magic {} of its first block should be",
        describe_magic(*found),
        hex::encode(found),
        hex::encode(expected)
    )]
    NoMagic { at: usize, found: [u8; 4], expected: [u8; 4] },
    /// A block is complete but malformed, or its frame has a wrong length. `block_at` is the position after the frame.
    #[error("block file damaged in the block that starts at byte {block_at}: {error} (counted from there)")]
    Damaged { block_at: usize, error: ParseError },
}

fn list_known_magics() -> String {
    let known = FileNetwork::iter().map(|network| format!("{network} {}", hex::encode(network.block_file_magic())));
    known.collect::<Vec<_>>().join(", ")
}

fn describe_magic(magic: [u8; 4]) -> String {
    FileNetwork::from_magic(magic).map_or("unknown magic".to_owned(), |network| format!("magic of {network}"))
}

impl BlockFileError {
    /// Moves the positions to those of a file in which these bytes begin at byte `by`.
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
    /// Recognises the form of the file by its first bytes, without reading a block.
    ///
    /// # Errors
    /// Fails with [`BlockFileError::Empty`] for a file without bytes.
    pub fn new(bytes: &'a [u8]) -> Result<Self, BlockFileError> {
        if bytes.is_empty() {
            return Err(BlockFileError::Empty);
        }
        let network = FileNetwork::iter().find(|network| bytes.starts_with(&network.block_file_magic()));
        Ok(BlockFile { bytes, network })
    }

    /// Returns the network whose magic the frames have; `None` for a bare block.
    pub fn network(&self) -> Option<FileNetwork> {
        self.network
    }

    /// Returns the blocks in the order of the file, which is possibly not that of the chain. Ends after the first
    /// error.
    pub fn blocks(&self) -> Blocks<'a> {
        Blocks { bytes: self.bytes, network: self.network, at: 0 }
    }
}

/// Iterator over the blocks of a file. See [`BlockFile::blocks`].
#[derive(Debug, Clone)]
pub struct Blocks<'a> {
    bytes: &'a [u8],
    network: Option<FileNetwork>,
    at: usize,
}

impl<'a> Blocks<'a> {
    fn bare(&mut self) -> Result<RawBlock<'a>, BlockFileError> {
        self.at = self.bytes.len();
        RawBlock::parse(self.bytes).map_err(|error| match self.bytes.first_chunk() {
            Some(found) if !can_begin_block(self.bytes) => BlockFileError::UnknownMagic { at: 0, found: *found },
            _ if error.is_truncation() => BlockFileError::CutInHalf { at: self.bytes.len(), block_at: 0, error },
            _ => BlockFileError::Damaged { block_at: 0, error },
        })
    }

    fn framed(&mut self, expected: [u8; 4]) -> Result<RawBlock<'a>, BlockFileError> {
        let frame_at = self.at;
        let mut reader = ByteReader::starting_at(self.bytes, frame_at);
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
        RawBlock::parse(bytes).map_err(|error| BlockFileError::Damaged { block_at, error })
    }
}

/// Returns whether the bytes can begin a block: by its version and its compact target. Fewer than one in a hundred
/// random byte strings pass.
fn can_begin_block(bytes: &[u8]) -> bool {
    let number = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let version = number(0).is_some_and(|version| version < 0x100 || version >> 29 == 1);
    let target = number(HEADER_LEN - 8).is_none_or(|bits| bits >> 24 <= 0x20 && bits & 0x0080_0000 == 0);
    version && target
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<RawBlock<'a>, BlockFileError>;

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
