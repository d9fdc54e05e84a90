//! Turns block files, and events written as JSON lines, into the messages that feed the store. Pure: nothing here opens a
//! file or knows a broker.

mod blocks;
mod chain;
mod connect;
mod error;
mod left_out;
mod lines;
mod made;
mod prevouts;
mod reorgs;
mod rivals;
mod story;

#[cfg(test)]
mod tests;

pub use blocks::{Placed, PlacedBlock, SourceFile, place_blocks, read_blocks};
pub use chain::{Chain, ChainCounts, PreviousOutputs};
pub use error::GenerateError;
pub use left_out::LeftOutOfFiles;
pub use lines::{LineError, Step, messages_from_lines, steps_from_lines};
pub use prevouts::{Parent, Parents, PrevoutsError};
pub use reorgs::Reorganised;
pub use rivals::{RivalPair, Rivals};
pub use story::{Chapter, NoSuchScenario, Scenario, Story};

use crate::{event::Topic, tx::Txid};

/// One message for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it belongs.
    pub topic: Topic,
    /// The transaction that it is about; `None` in a topic of one partition.
    pub key: Option<Txid>,
    /// The event.
    pub payload: Vec<u8>,
}
