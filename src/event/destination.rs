//! The topic and the key of an event that a producer publishes.

use super::{Event, Topic};
use crate::tx::{ParseError, Transaction, Txid};

/// Destination of an event: its topic, and the key that chooses the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// Topic of the event's kind.
    pub topic: Topic,
    /// Txid of the transaction, which chooses the partition; `None` for a topic of one partition.
    pub key: Option<Txid>,
}

/// Reasons why a producer cannot publish an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// The transaction of a [`Validated`](super::Validated) event does not parse, so that its txid is unknown.
    #[error("validated.tx: {0}")]
    Transaction(ParseError),
    /// Contests, decisions and outcomes; the name of the kind.
    #[error("cannot produce an event of the kind {0}: only the store writes such events")]
    Internal(&'static str),
}

impl Event<'_> {
    /// Returns the topic and the key under which a producer publishes the event.
    ///
    /// # Errors
    /// The transaction does not parse, or only the store itself writes events of this kind.
    pub fn destination(&self) -> Result<Destination, DestinationError> {
        let (topic, key) = match self {
            Event::Validated(validated) => {
                let transaction = Transaction::parse(validated.tx).map_err(DestinationError::Transaction)?;
                (Topic::ValidatedTxs, Some(transaction.txid()))
            }
            Event::Seeded(seeded) => (Topic::ValidatedTxs, Some(seeded.txid)),
            Event::ValidatedReference(validated) => (Topic::ValidatedTxs, Some(validated.txid)),
            Event::SeededReference(seeded) => (Topic::ValidatedTxs, Some(seeded.txid)),
            Event::BlockMined(_) => (Topic::BlockMined, None),
            Event::Reorg(_) => (Topic::Reorgs, None),
            Event::Command(_) => (Topic::Chain, None),
            Event::Contest(_)
            | Event::Decision(_)
            | Event::DecisionGroup(_)
            | Event::DecisionRun(_)
            | Event::Outcome(_)
            | Event::OutcomeBatch(_) => {
                return Err(DestinationError::Internal(self.kind().name()));
            }
        };
        Ok(Destination { topic, key })
    }
}
