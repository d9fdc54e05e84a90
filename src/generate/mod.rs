//! Turns block files, and events written as JSON lines, into the messages that feed the store. Pure: the caller reads
//! the files and produces the messages.

mod blocks;
mod chain;
mod connect;
mod error;
mod flood;
mod left_out;
mod lines;
mod prevouts;
mod reorgs;
mod rivals;
mod story;
mod synthetic;

#[cfg(test)]
mod tests;

pub use blocks::SourceFile;
pub use chain::{Chain, ChainCounts, PreviousOutputs};
pub use error::GenerateError;
pub use flood::Flood;
pub use left_out::LeftOutCounts;
pub use lines::{DemoStep, parse_demo_lines, parse_event_lines};
pub use prevouts::Parents;
pub use reorgs::ReorgInjector;
pub use rivals::Rivals;
pub use story::{Scenario, Story, UnknownScenario};
#[cfg(feature = "vault")]
pub(crate) use synthetic::{ANYONE_CAN_SPEND, SyntheticBlock, compute_txid};

use crate::{event::Topic, tx::Txid};

/// Message to be produced to a topic of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Topic of the event's kind.
    pub topic: Topic,
    /// Txid of the transaction, which chooses the partition; `None` for a topic of one partition.
    pub key: Option<Txid>,
    /// Event in the binary form.
    pub payload: Vec<u8>,
}
