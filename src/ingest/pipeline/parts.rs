//! What the pipeline works with, and what it answers.

use std::{sync::Arc, time::Duration};

use crate::{
    broker::{Broker, BrokerError, identity::TopicGuard},
    clock::Clock,
    group::{dead_letters::DeadLetterLimits, halts::EarlierHalts, partition::PartitionBounds, proof::ChainProgress},
    ingest::{dispatch::DispatchSettings, plan::PlanSettings, publish::Publisher},
    replay::Modes,
    status::Health,
    store::{create::Creator, nodes::Nodes, whole::WholeStore},
    telemetry::Metrics,
};

/// Everything that the loop needs to know. Units are in the names.
#[derive(Debug, Clone)]
pub struct PipelineSettings {
    /// Topic of validated transactions.
    pub topic: Arc<str>,
    /// How many partitions it has: events lie in that of their key. `None`: not looked at.
    pub partitions: Option<i32>,
    /// Group whose committed offsets count.
    pub group: String,
    /// Bounds and pauses of the planner.
    pub plan: PlanSettings,
    /// Batching.
    pub dispatch: DispatchSettings,
    /// Transactions that move at once; beyond it nothing more is read (it resumes at half). Those that wait count, too, as
    /// long as a sixteenth of it moves.
    pub max_active: usize,
    /// Messages that are done and that the store may still forget; beyond it nothing more is read (it resumes at half). What is known
    /// of each, so that it can be done again, takes some two hundred bytes, and grows for as long as nobody knows whether a node has
    /// restarted. So no more than this go through within the durability lag.
    pub max_not_safe: usize,
    /// What may be unfinished in a partition before it is paused.
    pub bounds: PartitionBounds,
    /// Bytes of payload that may be unfinished in all partitions together: each has an equal share of it, if that is less than its own
    /// bound. Beyond it go a batch a partition, and an event that is greater than its partition's share.
    pub bytes_in_all: u64,
    /// When dead letters halt a partition.
    pub dead_letter_limits: DeadLetterLimits,
    /// How long other partitions must have been read past an event before its parent is missing.
    pub missing_parent_grace_ms: u64,
    /// Between commits.
    pub commit_interval: Duration,
    /// How long a shutdown waits for what is moving.
    pub drain_timeout: Duration,
}

/// What the pipeline works with.
#[derive(Clone)]
pub struct PipelineParts {
    /// The log.
    pub broker: Arc<dyn Broker>,
    /// The state, and who creates in it what takes more than one write.
    pub creator: Creator,
    /// Where contests and dead letters go.
    pub publisher: Publisher,
    /// What is known of the chain, for the proof of a missing parent.
    pub chain: Arc<dyn ChainProgress>,
    /// How each event is treated.
    pub modes: Modes,
    /// Whether the store has forgotten.
    pub nodes: Nodes,
    /// Whether the topic is still the one that the store was made from.
    pub guard: TopicGuard,
    /// Whether it is still there as a whole, and the group's.
    pub whole: Arc<dyn WholeStore>,
    /// Which halts this instance lifts.
    pub earlier_halts: Arc<EarlierHalts>,
    /// Time.
    pub clock: Clock,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Health.
    pub health: Arc<Health>,
}

/// Why the pipeline ended, when nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The broker cannot go on.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The store cannot go on.
    #[error("store: {0}")]
    Store(String),
    /// What had to be in the log before its event completes is not there, and no retry heals that.
    #[error("{what} cannot be published to `{topic}`: {error}")]
    NotPublished {
        /// What, with its transaction or place.
        what: String,
        /// Where it was to go.
        topic: String,
        /// Why not.
        error: BrokerError,
    },
    /// A topic is not the one that the store was made from, and a rebuild has nobody who would look.
    #[error("{0}")]
    OtherTopic(String),
    /// A task of the pipeline died.
    #[error("internal: {0}")]
    Internal(String),
}

/// What a run of the pipeline did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PipelineReport {
    /// Events completed.
    pub completed: u64,
    /// The most transactions that ever waited at once.
    pub parked_max: u64,
    /// Contests published.
    pub contests: u64,
    /// Dead letters published.
    pub dead_letters: u64,
}
