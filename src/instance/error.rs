//! Reasons why an instance does not start, or ends.

use crate::{
    blob::{OpenBlobError, objects::ObjectError},
    broker::{BrokerError, BrokerErrorKind},
    ingest::pipeline::PipelineError,
    sequencer::{SequencerError, decisions::DecisionError},
    store::{meta::MetaError, restart_detector::LagTooShort},
};

/// Reason why an instance ended without a shutdown.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// The meta record refuses this instance, or could not be read or written.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The blob store belongs to another store, or does not answer.
    #[error(transparent)]
    Blobs(#[from] OpenBlobError),
    /// An object with the transaction ids of a block cannot be read.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// A topic is missing, or a broker request failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The pipeline ended with an error.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The sequencer ended with an error.
    #[error("the chain: {0}")]
    Sequencer(#[from] SequencerError),
    /// The decisions topic has an unreadable or contradicting record.
    #[error(transparent)]
    Decisions(#[from] DecisionError),
    /// Offsets would be committed whose writes the store could still lose.
    #[error(transparent)]
    LagTooShort(#[from] LagTooShort),
    /// The store of a rebuild is not empty.
    #[error(
        "the store is not empty: a rebuild needs an empty store, unless it resumes (`--resume`) a rebuild that has not \
         ended"
    )]
    NotEmpty,
    /// The decisions topic is not the topic with the decisions on this chain.
    #[error(
        "topic `{topic}` is not the one that holds the decisions on this chain: its first record has id {found}, the \
         chain's committed offset names {expected}; the topic ends at {high}, and the next decision to read is at \
         {next}; restore the topic"
    )]
    DecisionsRecreated {
        /// Configured name of the topic.
        topic: String,
        /// Id of the first decision as of the committed offset of the chain, or `none`.
        expected: String,
        /// Id of the first record now, or `none` where the topic has no record at offset 0.
        found: String,
        /// Offset of the next decision to read.
        next: u64,
        /// End offset of the topic.
        high: u64,
    },
    /// The rebuild to resume has ended already.
    #[error(
        "cannot resume the rebuild of this store: it has reached its end; start `run`, or rebuild into an empty store"
    )]
    RebuildEnded,
    /// The log no longer holds the offsets or decisions with which the rebuild began.
    #[error("cannot resume the rebuild: the log is not the one that it began with; rebuild into an empty store")]
    LogChanged,
    /// A transaction or block of the rebuild waits for an event above the frontier.
    #[error(
        "rebuild blocked: {waits} depend on events after the rebuild's end offsets ({frontier}); stop the group \
         gracefully, then rebuild into an empty store"
    )]
    RebuildBlocked {
        /// Transactions and blocks that wait, with the missing events.
        waits: String,
        /// End offsets of the rebuild, by partition and of the chain.
        frontier: String,
    },
}

impl InstanceError {
    /// Returns true if another start after a pause can succeed: the broker or the blob store was away.
    pub fn may_be_retried(&self) -> bool {
        match self {
            InstanceError::Blobs(error) => error.may_be_retried(),
            _ => self.broker().is_some_and(|error| error.kind == BrokerErrorKind::Retryable),
        }
    }

    /// Returns true if another process has the same name (static member). A restart would end that process in turn.
    pub fn is_fenced(&self) -> bool {
        self.broker().is_some_and(|error| error.kind == BrokerErrorKind::Fenced)
    }

    fn broker(&self) -> Option<&BrokerError> {
        match self {
            InstanceError::Broker(error)
            | InstanceError::Pipeline(PipelineError::Broker(error))
            | InstanceError::Sequencer(SequencerError::Broker(error))
            | InstanceError::Decisions(DecisionError::Broker(error)) => Some(error),
            _ => None,
        }
    }
}
