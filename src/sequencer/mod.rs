//! The one consumer of `utxo.chain`: handles each event in order and finishes each event before the next. Contests at
//! hand are handled together, with the result of one after the other (`src/sequencer/window.rs`).
//!
//! Three phases for each event: evaluate ([`evaluate`], pure), write the decision ahead ([`decisions`], the log),
//! apply. With [`steps`] each handler reads as if it decided everything itself. [`chain_feed`] appends blocks and
//! reorgs to the chain log in the order of their sequences.

mod added_slots;
mod block;
mod bodies;
pub mod chain_feed;
mod claims;
mod command;
mod contest;
mod contested_event;
mod context;
mod copied_sequences;
mod dead_letters;
pub mod decided_chunks;
mod decision_parts;
pub mod decisions;
mod descendants;
mod error;
pub mod evaluate;
mod findings;
mod handler;
mod holders;
mod joint_decisions;
mod listing;
mod lost_records;
mod member;
mod mined_outcomes;
mod pages;
mod parts;
pub mod progress;
mod prune;
pub(crate) mod reader_cache;
mod record_cache;
mod recovery;
mod reorg;
mod respend;
mod second_chances;
mod settle;
mod speculation;
mod spender_search;
pub mod state;
pub mod steps;
mod verdict;
mod waiting;
mod window;
mod worker;

pub use command::ValidatedSource;
pub use error::SequencerError;
pub use listing::announced_object;
pub use member::Sequencer;
pub use parts::{SequencerParts, SequencerSettings, SequencerTopics, VerdictMemory};
pub use prune::{CommittedChain, PruneTask, read_replay_floor};
pub use recovery::RecoveryTask;
#[cfg(feature = "testkit")]
pub use second_chances::is_second_chance;

/// The mode in which a sequencer handles the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChainMode {
    /// Events are decided in the order of the log.
    #[default]
    Live,
    /// A rebuild: every event below the frontier is decided already. The sequencer applies the decisions, decides
    /// nothing and publishes nothing.
    Rebuild {
        /// The chain offset that the live group had committed when the rebuild began.
        frontier: u64,
        /// True when the run ends at the frontier.
        stop_at_frontier: bool,
    },
}

/// Returns the name of the chain's consumer group. The chain has a group of its own, so that rebalances of validated
/// transactions do not affect it.
pub fn chain_group(group: &str) -> String {
    format!("{group}.chain")
}

#[cfg(test)]
mod tests;
