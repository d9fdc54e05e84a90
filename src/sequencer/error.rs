//! The reasons why the sequencer stops.

use crate::{
    broker::{BrokerError, BrokerErrorKind, identity::Unconfirmed},
    engine::{EngineError, ErrorKind},
    group::member::MemberError,
    sequencer::decisions::DecisionError,
    store::meta::MetaError,
};

/// The reason why the sequencer stops.
#[derive(Debug, thiserror::Error)]
pub enum SequencerError {
    /// The log cannot be applied: an operator must intervene.
    #[error("{0}")]
    Halt(String),
    /// Records have stamps of later events: another sequencer is ahead of this one.
    #[error("chain offset {0}: the store is ahead: another sequencer has handled later events")]
    Behind(u64),
    /// A restarted node may have lost writes: every event that is not committed is handled again.
    #[error("a node of the store restarted")]
    NodeRestarted,
    /// The store must not be changed, because it is damaged or belongs to another group.
    #[error("store: {0}")]
    Damaged(String),
    /// A task of the sequencer panicked.
    #[error("internal: {0}")]
    Died(String),
    /// An error of the broker.
    #[error(transparent)]
    Broker(BrokerError),
    /// An error of the store's engine.
    #[error(transparent)]
    Store(EngineError),
}

impl From<Unconfirmed> for SequencerError {
    /// Converts a topic that is not the store's into a halt: a restart would not help.
    fn from(unconfirmed: Unconfirmed) -> Self {
        match unconfirmed {
            Unconfirmed::Other(why) => SequencerError::Halt(why),
            Unconfirmed::Broker(error) => SequencerError::Broker(error),
        }
    }
}

impl From<EngineError> for SequencerError {
    /// Converts "too big for the store" into a halt: a restart would not help, and the pipeline continues.
    fn from(error: EngineError) -> Self {
        match error.kind {
            ErrorKind::TooBig => SequencerError::Halt(error.to_string()),
            _ => SequencerError::Store(error),
        }
    }
}

impl From<BrokerError> for SequencerError {
    /// Converts "refused by the topic" and "offset out of range" into a halt: a restart would not help, and the
    /// pipeline continues.
    fn from(error: BrokerError) -> Self {
        match error.kind {
            BrokerErrorKind::TooLarge | BrokerErrorKind::Rejected | BrokerErrorKind::OutOfRange => {
                SequencerError::Halt(error.to_string())
            }
            _ => SequencerError::Broker(error),
        }
    }
}

impl From<DecisionError> for SequencerError {
    fn from(error: DecisionError) -> Self {
        match error {
            DecisionError::Broker(error) => error.into(),
            DecisionError::Bad(_) | DecisionError::TooLarge { .. } => SequencerError::Halt(error.to_string()),
        }
    }
}

impl From<MetaError> for SequencerError {
    /// Converts a recreated chain topic into a halt: a restart would not help.
    fn from(error: MetaError) -> Self {
        match error {
            MetaError::ChainRecreated { .. } => SequencerError::Halt(error.to_string()),
            error => SequencerError::Damaged(error.to_string()),
        }
    }
}

impl From<MemberError> for SequencerError {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::Broker(error) => error.into(),
            MemberError::Meta(error) => error.into(),
            MemberError::Engine(error) => error.into(),
        }
    }
}
