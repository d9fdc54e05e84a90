//! A member of a consumer group. The pipeline is a member with many partitions, the sequencer is a member with the
//! partition of the chain; both drive the same type from their loops.
//!
//! ```text
//!               consumer's events: assigned, messages, end, revoked           operator: retry, pause, resume
//!                                   │                                                     │
//!  ┌─ GroupMember ──────────────────▼─────────────────────────────────────────────────────▼─────────────────┐
//!  │ PartitionTable   PartitionState of each partition: OffsetTracker (read, completed, durable),           │
//!  │      │           ReadState (full, halted, paused by an operator), end offset, last commit              │
//!  │      ▼                                                                                                 │
//!  │ CommitCycle      meta record ─► incarnation of the nodes ─► topic ids ─► coordinator of the group      │
//!  │ EndOffsets       end offsets of the partitions that deliver nothing                                    │
//!  └────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The members differ in data ([`MemberProfile`]) and in the content of a commit ([`CommitContent`]):
//!
//! | | pipeline | sequencer |
//! |---|---|---|
//! | metadata of a commit | progress of the partition, and its halt | state of the chain at this very offset |
//! | a completion becomes durable | by the time of each completion | by the commit tick that noticed it |
//! | a commit runs | beside the loop, one at a time | in the loop |
//! | a halt | pauses the partition, is committed | stops the worker of the chain |
//! | reads again from the committed offset | at once | by acquiring the chain again |

mod commit_cycle;
mod end_offsets;
mod partition_table;

pub use commit_cycle::{CommitContent, CommitCycle, CommitProgress, CommitStep, DurableConsumed};
pub use end_offsets::EndOffsetAnswer;
use end_offsets::EndOffsets;
pub use partition_table::PartitionTable;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    broker::{
        AssignedPartition, Broker, BrokerError, BrokerErrorKind, Consumer, MessageBatch, PartitionEnd, TopicPartition,
        identity::TopicGuard,
    },
    clock::Clock,
    engine::EngineError,
    group::{
        commit_metadata::Halt,
        partition::{Moment, PartitionLimits, PartitionState},
        reading::ReadState,
    },
    status::{Condition, Health, control::ControlAnswer, registry::PartitionStatus},
    store::{meta::MetaError, ownership::StoreOwnership},
    telemetry::Metrics,
};

/// Names and rules in which one member differs from another.
#[derive(Debug, Clone)]
pub struct MemberProfile {
    /// Name in the log: `pipeline` or `sequencer`.
    pub name: &'static str,
    /// The committed object, for the log: `offsets`, `chain offset`.
    pub commits: &'static str,
    /// The topic ids that a commit confirms, for its failures.
    pub topic_ids: &'static str,
    /// Topic whose partitions the group assigns.
    pub topic: Arc<str>,
    /// Topics whose ids each commit confirms.
    pub guarded_topics: Vec<String>,
    /// Condition that shows whether commits succeed.
    pub commit_condition: Condition,
    /// Time between two commits.
    pub commit_interval: Duration,
    /// Returns the text of `/state` for a paused partition: at this limit (`messages` or `bytes`), or for a reason of
    /// the member.
    pub describe_pause: fn(Option<&'static str>) -> &'static str,
    /// The trackers of the partitions have to wait for the durability lag: a node can lose writes, and no other part of
    /// the member waits.
    pub can_lose_writes: bool,
    /// A rebuild records no consumed offsets and follows no end offsets.
    pub is_rebuild: bool,
}

/// Services that a member uses.
#[derive(Clone)]
pub struct MemberServices {
    /// The log: end offsets of the partitions.
    pub broker: Arc<dyn Broker>,
    /// Confirms that the topics are those that the store was made from.
    pub guard: TopicGuard,
    /// Verifies that the store belongs to the group, and records consumed offsets.
    pub ownership: Arc<dyn StoreOwnership>,
    /// The clock of the instance.
    pub clock: Clock,
    /// Metrics of the instance.
    pub metrics: Arc<Metrics>,
    /// Readiness, liveness and status of the instance.
    pub health: Arc<Health>,
}

/// Reason why a member cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The client of the broker is unusable.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The meta record of the store refuses the member for good.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The engine fails for good.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Reason why an operator's retry does not apply to a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetryRefusal {
    /// The partition is not assigned to this instance.
    NotAssigned,
    /// The partition is not halted.
    NotHalted,
    /// The first events are deleted and the group has committed nothing: a start would not lift the halt, either.
    NeverRead {
        /// Reason of the halt.
        halted_for: String,
        /// First offset that the topic still holds.
        low: u64,
    },
}

/// Returns the reason why a retry does not apply to an assigned partition.
fn refuse_retry(state: &PartitionState) -> Option<RetryRefusal> {
    let Some(halt) = state.reads.halt() else { return Some(RetryRefusal::NotHalted) };
    let low = state.truncated_before_first_commit()?;
    Some(RetryRefusal::NeverRead { halted_for: halt.why.clone(), low })
}

/// A member of a consumer group, with its assigned partitions. A loop owns the member and drives it.
pub struct GroupMember {
    /// The consumer of the group.
    pub consumer: Box<dyn Consumer>,
    /// The assigned partitions and their states.
    pub partitions: PartitionTable,
    /// Commits of the member.
    pub commits: CommitCycle,
    /// Reason why a topic is not the one that the store belongs to. No offset is committed until an operator has
    /// intervened.
    pub other_topic: Option<String>,
    /// Names and rules of the member.
    pub profile: MemberProfile,
    /// Services of the member.
    pub services: MemberServices,
    ends: EndOffsets,
}

impl GroupMember {
    /// Creates a member over a subscribed consumer, without partitions.
    pub fn new(profile: MemberProfile, services: MemberServices, consumer: Box<dyn Consumer>, now: Instant) -> Self {
        GroupMember {
            consumer,
            partitions: PartitionTable::new(profile.topic.clone(), now),
            commits: CommitCycle::new(&profile, now),
            other_topic: None,
            ends: EndOffsets::new(profile.commit_interval, now),
            profile,
            services,
        }
    }

    /// Adds an assigned partition, which is read from now on.
    pub fn assign(&mut self, assigned: &AssignedPartition) -> &mut PartitionState {
        let number = assigned.partition.partition;
        let metrics = self.services.metrics.partition(&assigned.partition);
        let now_ms = self.services.clock.now_ms();
        let state = PartitionState::new(assigned, metrics, self.profile.can_lose_writes, now_ms);
        self.partitions.states.remove(&number);
        self.partitions.states.entry(number).or_insert(state)
    }

    /// Removes partitions that were revoked, or that no loop reads any more.
    pub fn remove(&mut self, partitions: &[TopicPartition]) {
        for partition in partitions {
            self.partitions.states.remove(&partition.partition);
            self.services.metrics.remove_partition(partition);
        }
    }

    /// Registers the messages of a batch, in order, and keeps the messages that were not read before. A timestamp after
    /// `latest_ms` does not count as read. A batch under an epoch that has ended is dropped (`None`).
    pub fn register(&mut self, mut batch: MessageBatch, latest_ms: i64) -> Option<MessageBatch> {
        let state = self.partitions.current(batch.partition.partition, batch.epoch)?;
        state.begin_batch(batch.high_watermark);
        state.record_read_time(self.services.clock.steady_ms());
        batch.messages.retain(|message| state.deliver(message, latest_ms));
        let replayed = batch.messages.iter().filter(|message| state.is_replayed(message)).count();
        self.services.metrics.replayed_events.inc_by(replayed as u64);
        Some(batch)
    }

    /// Records that a partition has been read to its end. An end under an epoch that has ended is ignored.
    pub fn reach_end(&mut self, end: &PartitionEnd) {
        if let Some(state) = self.partitions.current(end.partition.partition, end.epoch) {
            state.reach_end(end.position);
        }
    }

    /// Returns a halt with this reason, from now on.
    pub fn new_halt(&self, why: String) -> Halt {
        // In another topic any other reason (an offset out of range, for example) is only a consequence.
        let why = self.other_topic.clone().unwrap_or(why);
        Halt { why, since_ms: self.services.clock.now_ms() }
    }

    /// Marks a partition as full if it has reached a limit, and pauses it; returns the name of the limit, `None` where
    /// nothing changes.
    pub fn pause_at_limit(&mut self, number: i32, limits: &PartitionLimits) -> Option<&'static str> {
        let state = self.partitions.states.get_mut(&number).filter(|state| !state.reads.is_full())?;
        let limit = state.exceeded_limit(limits)?;
        state.reads.enter_full();
        self.pause(number);
        Some(limit)
    }

    /// Marks a full partition that is below half of its limits as no longer full; `false`: nothing changes.
    pub fn clear_full(&mut self, number: i32, limits: &PartitionLimits) -> bool {
        let state = self.partitions.states.get_mut(&number);
        let state = state.filter(|state| state.reads.is_full() && state.exceeded_resume_limit(limits).is_none());
        state.is_some_and(|state| state.reads.leave_full())
    }

    /// Pauses the consumer's reads of a partition.
    pub fn pause(&mut self, number: i32) {
        let Some(state) = self.partitions.states.get_mut(&number).filter(|state| !state.reads.is_paused()) else {
            return;
        };
        match self.consumer.pause(state.partition()) {
            Ok(()) => state.reads.record_pause(),
            Err(error) => log_refusal(self.profile.name, "pause", number, &error),
        }
    }

    /// Resumes the consumer's reads of a partition, unless a cause of its own stops them.
    pub fn resume(&mut self, number: i32) {
        let Some(state) = self.partitions.states.get_mut(&number).filter(|state| state.reads.can_resume()) else {
            return;
        };
        match self.consumer.resume(state.partition()) {
            Ok(()) => drop(state.reads.record_resume()),
            Err(error) => log_refusal(self.profile.name, "resume", number, &error),
        }
    }

    /// Seeks a partition to its committed offset, under a new epoch, and returns the assignment from there. The
    /// consumer delivers again. After an error nothing has been read.
    pub async fn seek_to_committed(&mut self, number: i32) -> Result<AssignedPartition, BrokerError> {
        let partition = self.partitions.place(number);
        let Some(state) = self.partitions.states.get(&number) else {
            return Err(BrokerError::not_assigned("seek", &partition));
        };
        let committed = state.committed_assignment();
        let epoch = self.consumer.seek(&partition, committed.position).await?;
        if state.reads.is_paused() {
            self.consumer.resume(&partition)?;
        }
        Ok(AssignedPartition { epoch, ..committed })
    }

    /// Starts a partition anew at `again`, the answer of [`seek_to_committed`](Self::seek_to_committed).
    pub fn restart(&mut self, again: &AssignedPartition, reads: impl FnOnce(&ReadState) -> ReadState) {
        if let Some(state) = self.partitions.states.get_mut(&again.partition.partition) {
            *state = state.rewound(again, reads(&state.reads), self.profile.can_lose_writes);
        }
    }

    /// Seeks a halted partition to its committed offset at an operator's request, as a start would. The halt stays
    /// until the broker has answered. `refuse` words a refusal.
    ///
    /// # Errors
    /// The client of the broker is unusable.
    pub async fn seek_for_retry(
        &mut self,
        number: i32,
        refuse: impl FnOnce(i32, RetryRefusal) -> ControlAnswer,
    ) -> Result<Result<AssignedPartition, ControlAnswer>, BrokerError> {
        if let Some(refusal) = self.partitions.states.get(&number).map_or(Some(RetryRefusal::NotAssigned), refuse_retry)
        {
            return Ok(Err(refuse(number, refusal)));
        }
        match self.seek_to_committed(number).await {
            Err(error) if error.kind.is_client_unusable() => Err(error),
            sought => Ok(sought.map_err(|error| ControlAnswer::from_seek_error(&error))),
        }
    }

    /// Returns the status of each partition for `/state`, and sets the metrics to it. `parked`: number of parked
    /// transactions of a partition.
    pub fn statuses(&self, limits: &PartitionLimits, parked: impl Fn(i32) -> usize) -> Vec<PartitionStatus> {
        let now = Moment::now(&self.services.clock);
        let status = |(number, state): (&i32, &PartitionState)| {
            let status = state.status(now, limits, parked(*number), self.profile.describe_pause);
            state.update_metrics(&status);
            status
        };
        self.partitions.states.iter().map(status).collect()
    }
}

/// Logs that the consumer has refused to pause or resume a partition. The consumer knows of a revocation before the
/// loop does, and the loop tries at each turn until then: such a refusal is no warning.
fn log_refusal(name: &str, operation: &str, partition: i32, error: &BrokerError) {
    match error.kind {
        BrokerErrorKind::NotAssigned => {
            tracing::debug!(partition, "{name}: cannot {operation} the partition: it is being revoked");
        }
        _ => tracing::warn!(partition, %error, "{name}: cannot {operation} the partition"),
    }
}
