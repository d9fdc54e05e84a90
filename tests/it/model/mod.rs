//! The model: events and decisions in, logical state out. In memory, one thread, no protocols, no pages, no batches.
//!
//! It reads the logs *after* a run in which everything was handled, and says what the store must hold. It shares only
//! plain types with the code that it judges, and it trusts no decision: each must be justified by the history, else
//! there is a [`Complaint`]. What it cannot know is when the fast path did something; so an uncontested transaction is
//! *assumed* live as soon as its parents are, and pinned down by the first decision or block that needs it live.

mod blocks;
mod commands;
mod cone;
mod contests;
mod expected;
mod facts;
mod forget;
mod forgetful;
mod history;
mod logs;
mod replay;
mod tests;
mod verdicts;

use std::fmt;

use utxo_store::tx::Network;

pub use expected::Expected;
pub use logs::{Logged, Logs, Place};

/// What a store is set up for, as far as it decides what the log means.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Decides which outputs get a slot.
    pub network: Network,
    /// Partitions of the validated topic, where an event must lie in that of its key; 0: anywhere will do.
    pub partitions: i32,
    /// Slots a page. Nothing here knows of pages, but for where a reassigned slot lies on its own.
    pub utxo_batch_size: u32,
    /// Blocks between being due and being forgotten; 0: nothing is.
    pub retention: u32,
    /// A node may forget writes that it acknowledged: then a transaction that was live may be found without its slot.
    pub forgetful: bool,
    /// Who stores a transaction may take longer than a command waits for that: the partition of it changes hands, say.
    pub slow: bool,
    /// The block height up to which everything that is due is forgotten in the end; `None`: nothing ever is.
    pub pruned_to: Option<u32>,
}

/// Something in the logs, or in a store, that the history does not justify.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    /// Which message, or which transaction.
    pub about: String,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.what)
    }
}

/// The model.
pub struct Model;

impl Model {
    /// What the logs come to, or everything in them that is not justified.
    pub fn replay(logs: &Logs, rules: &Rules) -> Result<Expected, Vec<Complaint>> {
        replay::Replay::new(logs, rules).run()
    }

    /// What can be said of the logs once a node has forgotten: see [`forgetful`]. Which claims are stored is left open.
    pub fn replay_after_forgetting(logs: &Logs, rules: &Rules) -> Result<Expected, Vec<Complaint>> {
        replay::Replay::new(logs, rules).run_after_forgetting()
    }
}
