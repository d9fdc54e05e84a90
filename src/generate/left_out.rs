//! [`LeftOutOfFiles`]: what block files hold and what is not fed, for the summary.

use std::fmt;

use serde::Serialize;

use super::connect::OfNoChain;
use crate::tx::block::LeftOut;

/// Counts of the block files' content besides the chain that is fed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeftOutOfFiles {
    /// Blocks of a branch with less work.
    pub stale_blocks: u64,
    /// Blocks that connect to the chain by none of the files' blocks.
    pub unconnected_blocks: u64,
    /// Blocks that were there before.
    pub repeated_blocks: u64,
    /// Pieces of files that are no whole block.
    pub pieces: u64,
    /// Bytes of these pieces.
    pub bytes: u64,
    /// The first of these pieces: its file, its place, and what is wrong there.
    pub first_piece: Option<String>,
}

impl LeftOutOfFiles {
    /// Whether everything was fed.
    pub fn is_empty(&self) -> bool {
        *self == LeftOutOfFiles::default()
    }

    pub(super) fn add(&mut self, file: &str, piece: &LeftOut) {
        self.pieces += 1;
        self.bytes += piece.bytes as u64;
        self.first_piece.get_or_insert_with(|| format!("{file}: byte {}: {}", piece.at, piece.why));
    }

    pub(super) fn count(&mut self, blocks: &OfNoChain) {
        self.stale_blocks += blocks.stale;
        self.unconnected_blocks += blocks.unconnected;
        self.repeated_blocks += blocks.repeated;
    }
}

impl fmt::Display for LeftOutOfFiles {
    /// One line, with a reason for each number above 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (count, what) in [
            (self.stale_blocks, "blocks of a branch with less work"),
            (
                self.unconnected_blocks,
                "blocks that follow no block of the chain (the block before is not in the files)",
            ),
            (self.repeated_blocks, "blocks that are there twice"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        if let Some(first) = &self.first_piece {
            parts.push(format!(
                "{} pieces of {} bytes that are no whole block (first: {first})",
                self.pieces, self.bytes
            ));
        }
        match parts.is_empty() {
            true => f.write_str("left out: nothing"),
            false => write!(f, "left out: {}", parts.join("; ")),
        }
    }
}
