//! Pruning (`docs/protocols/pruning.md`): replaces the records of transactions that are spent by mined transactions, or
//! that are conflicting, with tombstones after the retention. No pruned output becomes spendable again.
//!
//! An index finds transactions that may be due, and a pure rule (`rule.rs`) decides by the records. [`PrunePass`]
//! prunes in steps:
//!
//! 1. A due transaction that is conflicting settles its slots; any other marks the slots that it spends "spender
//!    pruned".
//! 2. Once no node can lose these marks, the other pages and then the master become tombstones.
//! 3. After `prune.keep_tombstones` blocks the blob is deleted and the tombstones shrink to their names.
//!
//! A pass that was killed at any point begins again: the index finds whatever is not done yet.

mod blocks;
mod pass;
mod rule;
mod work;

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::{blob::BlobError, engine::EngineError, record::Stamp, tx::Txid};

pub use pass::{PrunePass, PruneStep};
pub use rule::PruneTerms;

use rule::{PruneFacts, Ruling, Spenders, rule};

/// Settings of a pruning pass.
#[derive(Debug, Clone, Copy)]
pub struct PruneSettings {
    /// Number of blocks for which whole tombstones are kept; `None`: for ever.
    pub keep_tombstones: Option<u32>,
    /// Greatest number of transactions examined in one step.
    pub step_size: usize,
    /// Counts the transactions that would be pruned, and changes nothing.
    pub dry_run: bool,
    /// No other process can write to the store, and this process only prunes: blobs of conflicting transactions are
    /// deleted, too. Beside other writers such a deletion is not safe: a pruner could stop between the check and the
    /// deletion while a block brings the transaction back, and no later check finds the missing blob if the pruner dies
    /// after the deletion.
    pub is_exclusive: bool,
}

/// Counts of a pruning pass so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PruneTotals {
    /// Number of transactions examined.
    pub examined: u64,
    /// Number of pruned transactions that were spent by mined transactions.
    pub spent: u64,
    /// Number of pruned transactions that were conflicting.
    pub conflicting: u64,
    /// Number of transactions that are not due yet.
    pub kept: u64,
    /// Number of tombstones that have shrunk to their names.
    pub tombstones: u64,
    /// Number of transactions that are not pruned because their bodies are damaged or missing: the outpoints that they
    /// spend are not known.
    pub damaged: u64,
}

impl PruneTotals {
    /// Number of pruned transactions and shrunk tombstones.
    pub fn total(&self) -> u64 {
        self.spent + self.conflicting + self.tombstones
    }
}

/// Reason why a step of a pass failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum PruneError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A node has restarted, so that the marks of this pass may be lost.
    #[error("a node of the store restarted")]
    NodeRestarted,
    #[error("cannot delete the blob of {txid}: {why}")]
    Blob { txid: Txid, why: BlobError },
}

/// Committed state of the chain on which a pass is based.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneBasis {
    /// Height, retention and committed chain offset by which the rule decides.
    pub terms: PruneTerms,
    /// Stamp of the last committed chain event, phase `Prune`: a record that a later event has changed refuses the
    /// write and is examined again.
    pub stamp: Stamp,
}
