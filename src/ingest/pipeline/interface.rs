//! Settings, services, errors and the report of the pipeline.

use std::{sync::Arc, time::Duration};

use crate::{
    broker::{Broker, BrokerError, identity::TopicGuard},
    clock::Clock,
    engine::EngineError,
    group::{
        dead_letters::DeadLetterLimits, earlier_halts::EarlierHalts, member::MemberError,
        missing_parent::ChainProgress, partition::PartitionLimits,
    },
    ingest::{
        dispatch::DispatchSettings,
        plan::{GraceStart, PlanSettings},
        publish::Publisher,
    },
    replay::Modes,
    status::Health,
    store::{create::Creator, meta::MetaError, ownership::StoreOwnership, restart_detector::RestartDetector},
    telemetry::Metrics,
};

/// Settings of the pipeline. Units are in the names.
#[derive(Debug, Clone)]
pub struct PipelineSettings {
    /// Topic of validated transactions.
    pub topic: Arc<str>,
    /// Number of partitions of the topic: an event lies in the partition of its key. `None`: not checked.
    pub partitions: Option<i32>,
    /// Consumer group whose committed offsets count.
    pub group: String,
    /// Pauses and grace times of the planner.
    pub plan: PlanSettings,
    /// Sizes and ages of the batches.
    pub dispatch: DispatchSettings,
    /// Transactions in motion above which polling pauses; it resumes at half. Waiting transactions count, too, while a
    /// sixteenth of the limit is in motion.
    pub max_active: usize,
    /// Completed events that are not durable, above which polling pauses; it resumes at half. Each of them takes about
    /// 200 bytes, and their number grows while no answer says whether a node has restarted. No more events than this
    /// pass within one durability lag.
    pub max_not_durable: usize,
    /// Limits of the unfinished events of one partition, above which the partition is paused.
    pub bounds: PartitionLimits,
    /// Payload of unfinished events of all partitions together, bytes. Each partition gets a max-min fair share, if
    /// that is less than its own limit. One batch per partition, and an event larger than the share of its partition,
    /// go beyond.
    pub bytes_in_all: u64,
    /// Numbers of dead letters that halt a partition.
    pub dead_letter_limits: DeadLetterLimits,
    /// Time for which other partitions must have been read past an event before its parent is missing, ms.
    pub missing_parent_grace_ms: u64,
    /// Time between two commits.
    pub commit_interval: Duration,
    /// Longest time of a drain.
    pub drain_timeout: Duration,
    /// Longest pause between two flushes of live transactions, which are published as outcomes; `None`: they are not
    /// published.
    pub live_outcomes: Option<Duration>,
}

/// Services that the pipeline uses.
#[derive(Clone)]
pub struct PipelineServices {
    /// The log: reads, commits and their metadata.
    pub broker: Arc<dyn Broker>,
    /// The store, with the creates that take more than one write.
    pub creator: Creator,
    /// Publisher of contests, dead letters and outcomes.
    pub publisher: Publisher,
    /// Progress of the chain, for the proof of a missing parent.
    pub chain: Arc<dyn ChainProgress>,
    /// Start of the grace of locked parents, which a restored store moves.
    pub flag_grace_start: Arc<GraceStart>,
    /// Start of the grace of transactions that end live by the log, which a restored store moves.
    pub live_grace_start: Arc<GraceStart>,
    /// Treatment of each event: live, in a rebuild, or while a restored store reads the log again.
    pub modes: Modes,
    /// Detects restarts of the database nodes.
    pub nodes: RestartDetector,
    /// Confirms that the topic is the one that the store is bound to.
    pub guard: TopicGuard,
    /// Verifies that the store is whole and belongs to the group.
    pub whole: Arc<dyn StoreOwnership>,
    /// Halts from before the start of this process, which this instance lifts.
    pub earlier_halts: Arc<EarlierHalts>,
    /// Clock for timestamps and durations.
    pub clock: Clock,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Readiness, liveness and status of the process.
    pub health: Arc<Health>,
}

/// Reason why the pipeline ended without a shutdown.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The broker client cannot continue.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The store cannot continue, or is not the group's.
    #[error("store: {0}")]
    Store(String),
    /// A contest, a dead letter or an outcome cannot be published, and no retry changes that: its events cannot
    /// complete.
    #[error("{what} cannot be published to `{topic}`: {error}")]
    NotPublished {
        /// The message: a contest, dead letter or outcome with its transaction, its offset or its size.
        what: String,
        /// Topic of the message.
        topic: String,
        /// Refusal of the broker.
        error: BrokerError,
    },
    /// The topic is not the store's. Only a rebuild ends with this error; an instance halts.
    #[error("{0}")]
    OtherTopic(String),
    /// The body of an event cannot be read before a setting is changed. Only a rebuild ends with this error; an
    /// instance halts.
    #[error("{0}")]
    Body(String),
    /// A task of the pipeline has panicked.
    #[error("internal: {0}")]
    Internal(String),
}

impl From<MetaError> for PipelineError {
    fn from(error: MetaError) -> Self {
        PipelineError::Store(error.to_string())
    }
}

impl From<EngineError> for PipelineError {
    fn from(error: EngineError) -> Self {
        PipelineError::Store(error.to_string())
    }
}

impl From<MemberError> for PipelineError {
    fn from(error: MemberError) -> Self {
        match error {
            MemberError::Broker(error) => error.into(),
            MemberError::Meta(error) => error.into(),
            MemberError::Engine(error) => error.into(),
        }
    }
}

/// Totals of one run of the pipeline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PipelineReport {
    /// Number of completed events.
    pub completed: u64,
    /// Greatest number of transactions that waited at once.
    pub parked_max: u64,
    /// Number of published contests.
    pub contests: u64,
    /// Number of published dead letters.
    pub dead_letters: u64,
}
