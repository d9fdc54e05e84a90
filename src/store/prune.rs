//! Forgetting (`DESIGN.md` section 8): what is spent by what is mined, and what is conflicting, after so many blocks, and without ever bringing a
//! coin back.
//!
//! An index finds what may be due; [`rule`] decides by what is read then. [`Pass`] does it, step by step: what is due settles its
//! slots, or marks those that it spends as "spender pruned"; once no node can forget that, its other pages and then its master
//! become tombstones; after some more blocks its blob goes and the tombstones do. A pass that was killed anywhere begins
//! again: whatever is not done yet is found by the index.

mod blocks;
mod pass;
mod rule;
mod work;

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::{blob::BlobError, engine::EngineError, record::Stamp, tx::Txid};

pub use pass::{Pass, Step};
pub use rule::{Facts, Ruling, Spenders, Terms, rule};

/// How a pass goes about it.
#[derive(Debug, Clone, Copy)]
pub struct PruneSettings {
    /// Blocks for which tombstones are kept; `None`: for good.
    pub keep_tombstones: Option<u32>,
    /// Transactions looked at in one step.
    pub step: usize,
    /// Nothing is changed: what would be is counted.
    pub dry_run: bool,
    /// Nobody else is at the store, nor comes back to it: the blobs of what has fallen go, too. Of who stops for a while between looking
    /// whether a blob is wanted and deleting it, and is stopped for good then, nobody learns that it is gone; and a block may have
    /// brought its transaction back meanwhile.
    pub alone: bool,
}

/// What a pass has come to so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Transactions looked at.
    pub examined: u64,
    /// Of these spent by what is mined, and pruned.
    pub spent: u64,
    /// Conflicting ones, pruned.
    pub conflicting: u64,
    /// Not due yet.
    pub kept: u64,
    /// Tombstones that are gone, or have shrunk to their names.
    pub tombstones: u64,
    /// Not pruned, since their bodies are damaged or gone: what they spend is not known.
    pub damaged: u64,
}

impl Pruned {
    /// Everything that was changed for good.
    pub fn total(&self) -> u64 {
        self.spent + self.conflicting + self.tombstones
    }
}

/// Why a pass does not go on.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// What was written may be gone.
    #[error("a node of the store restarted")]
    NodeRestarted,
    /// A blob is not deleted.
    #[error("the blob of {txid} cannot be deleted: {why}")]
    Blob {
        /// Whose.
        txid: Txid,
        /// Why.
        why: BlobError,
    },
}

/// What a pass goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Under {
    /// By what is decided.
    pub terms: Terms,
    /// Of the last event that is committed, phase `Prune`: whatever was done since refuses it, and will be looked at again.
    pub stamp: Stamp,
}
