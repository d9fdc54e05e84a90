//! Model of the store: events and decisions in, logical state out. In memory, one thread, no protocols, no pages, no
//! batches.
//!
//! The model reads the logs *after* a run in which every event was handled, and returns the state that the store must
//! have. It shares only plain types with the code that it checks, and it trusts no decision: the history must justify
//! each one, else the model returns a [`Complaint`]. The logs do not say when the fast path acted: an uncontested
//! transaction is *assumed* live as soon as its parents are, and *confirmed* live by the first decision or block that
//! requires it.

mod blocks;
mod commands;
mod contests;
mod descendants;
mod expected;
mod facts;
mod forgetful;
mod history;
mod logs;
mod outcomes;
mod pruning;
mod replay;
mod tests;
mod verdicts;

use std::fmt;

use utxo_store::tx::Network;

pub use expected::Expected;
pub use logs::{LogPosition, Logged, Logs};

/// Settings of a store that decide what the log means.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Decides which outputs get a slot.
    pub network: Network,
    /// Partitions of the validated topic and of the outcomes; the key decides the partition. 0 disables this check.
    pub partitions: i32,
    /// Live transactions are published as outcomes.
    pub live_outcomes: bool,
    /// Transactions of connected and disconnected blocks are published as outcomes.
    pub mined_outcomes: bool,
    /// Slots per page. The model has no pages; only the page offset of a reassigned slot depends on this.
    pub utxo_batch_size: u32,
    /// Blocks between a record's becoming due and its pruning; 0 disables pruning.
    pub retention: u32,
    /// Whether nodes may lose acknowledged writes: a live transaction may then be found without its slot.
    pub forgetful: bool,
    /// Whether storing a transaction may take longer than a command waits for it, for example while a partition changes
    /// its owner.
    pub slow: bool,
    /// Block height up to which due records are pruned in the end; `None` if none are.
    pub pruned_to: Option<u32>,
}

/// A finding in the logs or in a store that the history does not justify.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    /// The message or transaction that is wrong.
    pub about: String,
    /// The fault, as the rest of a sentence about it.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.what)
    }
}

/// The model of the store.
pub struct Model;

impl Model {
    /// Returns the state that the logs describe, or every finding.
    pub fn replay(logs: &Logs, rules: &Rules) -> Result<Expected, Vec<Complaint>> {
        replay::Replay::new(logs, rules).run()
    }

    /// Returns the state that the logs describe if nodes have lost writes (see [`forgetful`]). The stored claims are
    /// left open.
    pub fn replay_after_forgetting(logs: &Logs, rules: &Rules) -> Result<Expected, Vec<Complaint>> {
        replay::Replay::new(logs, rules).run_after_forgetting()
    }
}
