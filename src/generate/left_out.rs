//! [`LeftOutCounts`]: counts of the content of block files that is not produced, for the summary.

use std::fmt;

use serde::Serialize;

use super::connect::UnusedBlocks;
use crate::tx::block::SkippedBytes;

/// Counts of the content of block files outside the chain that is produced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeftOutCounts {
    /// Blocks of branches with less work.
    pub stale_blocks: u64,
    /// Blocks that no block of the files connects to the chain.
    pub unconnected_blocks: u64,
    /// Blocks that the files hold more than once.
    pub repeated_blocks: u64,
    /// Pieces of the files that are no whole block.
    pub pieces: u64,
    /// Bytes in these pieces.
    pub bytes: u64,
    /// First of these pieces: file, byte offset and reason.
    pub first_piece: Option<String>,
}

impl LeftOutCounts {
    /// Returns `true` if the whole content is produced.
    pub fn is_empty(&self) -> bool {
        *self == LeftOutCounts::default()
    }

    pub(super) fn add(&mut self, file: &str, piece: &SkippedBytes) {
        self.pieces += 1;
        self.bytes += piece.bytes as u64;
        self.first_piece.get_or_insert_with(|| format!("{file}: byte {}: {}", piece.at, piece.why));
    }

    pub(super) fn count(&mut self, blocks: &UnusedBlocks) {
        self.stale_blocks += blocks.stale;
        self.unconnected_blocks += blocks.unconnected;
        self.repeated_blocks += blocks.repeated;
    }
}

impl fmt::Display for LeftOutCounts {
    /// Writes one line with a reason for each count above 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (count, reason) in [
            (self.stale_blocks, "blocks of a branch with less work"),
            (
                self.unconnected_blocks,
                "blocks that follow no block of the chain (the previous block is not in the files)",
            ),
            (self.repeated_blocks, "repeated blocks"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {reason}"));
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
