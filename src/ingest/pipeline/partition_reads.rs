//! Reads of the assigned partitions: assignment, pause and resume, backpressure, and reading again.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    PipelineServices, PipelineSettings,
    backpressure::{Backpressure, PipelineLoad, ThrottleChange},
    partition_table::PartitionTable,
};
use crate::{
    broker::{AssignedPartition, BrokerError, Consumer, Message, MessageBatch, TopicPartition},
    clock::Clock,
    group::{
        earlier_halts::EarlierHalts,
        partition::{PartitionState, latest_plausible_ms, never_read_reason},
    },
    ingest::plan::Planner,
    status::{Health, control::ControlAnswer},
    telemetry::Metrics,
};

/// The assigned partitions and their consumer.
pub(super) struct PartitionReads {
    pub(super) consumer: Box<dyn Consumer>,
    pub(super) partitions: PartitionTable,
    pub(super) backpressure: Backpressure,
    /// Reason why the topic is another one, for which every partition is halted; `None`: it is the store's.
    pub(super) other_topic: Option<String>,
    /// A partition was halted, or a halt was lifted, since the last commit began: the next owner needs to know.
    pub(super) has_new_halt: bool,
    /// The pipeline ends at the end offsets of a rebuild. No operator looks at such a rebuild: it fails where an
    /// instance halts.
    pub(super) ends_by_itself: bool,
    pub(super) can_lose_writes: bool,
    earlier_halts: Arc<EarlierHalts>,
    pub(super) clock: Clock,
    pub(super) health: Arc<Health>,
    metrics: Arc<Metrics>,
}

impl PartitionReads {
    pub(super) fn new(
        settings: &PipelineSettings,
        services: &PipelineServices,
        consumer: Box<dyn Consumer>,
        now: Instant,
    ) -> Self {
        PartitionReads {
            consumer,
            partitions: PartitionTable::new(settings.topic.clone(), now),
            backpressure: Backpressure::new(settings),
            other_topic: None,
            has_new_halt: false,
            ends_by_itself: services.modes.end_offsets().is_some(),
            can_lose_writes: services.nodes.can_lose_writes(),
            earlier_halts: services.earlier_halts.clone(),
            clock: services.clock.clone(),
            health: services.health.clone(),
            metrics: services.metrics.clone(),
        }
    }

    /// Accepts an assigned partition, paused or halted where a pause or a halt of this partition stays.
    pub(super) fn assign(&mut self, assigned: &AssignedPartition, group: &str) {
        let number = assigned.partition.partition;
        tracing::info!(
            partition = number,
            epoch = assigned.epoch,
            position = assigned.position,
            "pipeline: partition assigned"
        );
        let metrics = self.metrics.partition(&assigned.partition);
        let mut state = PartitionState::new(assigned, metrics, self.can_lose_writes, self.clock.now_ms());
        state.paused_by_operator = self.health.control().is_paused(number);
        let paused = self.backpressure.is_throttled() || state.paused_by_operator;
        let truncated = state.truncated_before_first_commit();
        self.partitions.states.insert(number, state);
        if paused {
            self.pause(number);
        }
        let halt_of = |committed| self.earlier_halts.remaining_halt(number, committed);
        if let Some(halt) = assigned.committed.as_ref().and_then(halt_of) {
            self.enter_halt(number, halt);
        }
        if let Some(why) = self.other_topic.clone() {
            self.halt(number, why);
        } else if let Some(low) = truncated {
            self.halt(number, never_read_reason(group, low));
        }
    }

    /// Removes a partition that was revoked.
    pub(super) fn remove(&mut self, partition: &TopicPartition) {
        self.partitions.states.remove(&partition.partition);
        self.metrics.remove_partition(partition);
    }

    /// Registers the messages of a batch, in order, and returns the messages that were not read before. A batch under
    /// an epoch that has ended is dropped.
    pub(super) fn register(&mut self, batch: MessageBatch, missing_parent_grace_ms: u64) -> Vec<Message> {
        let latest_ms = latest_plausible_ms(self.clock.now_ms(), missing_parent_grace_ms);
        let Some(state) = self.partitions.current(batch.partition.partition, batch.epoch) else { return Vec::new() };
        state.update_high_watermark(batch.high_watermark);
        (state.at_end, state.end_offset_is_fresh) = (false, true);
        state.record_read_time(self.clock.steady_ms());
        let messages: Vec<Message> =
            batch.messages.into_iter().filter(|message| state.deliver(message, latest_ms)).collect();
        let replayed = messages.iter().filter(|message| state.is_replayed(message)).count();
        self.metrics.replayed_events.inc_by(replayed as u64);
        messages
    }

    /// Computes the fair shares of the common limit anew, after an assignment or revocation. Until every partition is
    /// within an equal share, bytes that one partition completes go to the others.
    pub(super) fn redistribute_shares(&mut self, planner: &mut Planner) {
        self.backpressure.redistribute(self.partitions.unfinished_bytes());
        for number in self.partitions.numbers() {
            self.apply_backpressure(number, planner);
            self.resume(number, planner);
        }
    }

    /// Computes the shares anew while they are unequal.
    pub(super) fn equalize_shares(&mut self, planner: &mut Planner) {
        if self.backpressure.has_unequal_shares(self.partitions.running().count()) {
            self.redistribute_shares(planner);
        }
    }

    /// Pauses a partition that has reached its limit.
    pub(super) fn apply_backpressure(&mut self, number: i32, planner: &mut Planner) {
        let Some(state) = self.partitions.states.get_mut(&number).filter(|state| !state.over_limit) else { return };
        let Some(why) = state.exceeded_limit(self.backpressure.limits()) else { return };
        let is_its_own = state.exceeded_limit(self.backpressure.own_limits()).is_some();
        state.over_limit = true;
        self.pause(number);
        if is_its_own {
            tracing::warn!(partition = number, why, "pipeline: partition paused at its limit of unfinished events");
            planner.mark_over_limit(number, self.clock.steady_ms());
        } else {
            // Bytes of other partitions caused the pause, which may end with the next batch.
            tracing::debug!(partition = number, why, "pipeline: partition paused at its share of the common limit");
        }
    }

    /// Pauses or resumes all partitions. `unprepared`: the number of events that are read and not prepared.
    pub(super) fn throttle(&mut self, unprepared: usize, planner: &mut Planner) {
        let (counts, not_durable) = (planner.flights().counts(), self.partitions.not_durable());
        let load = PipelineLoad { in_motion: counts.active + unprepared, parked: counts.parked, not_durable };
        match self.backpressure.update_throttle(load) {
            Some(ThrottleChange::Begun { by_not_durable }) => {
                if by_not_durable {
                    tracing::warn!(
                        not_durable,
                        limit = self.backpressure.max_not_durable(),
                        "pipeline: polling paused, too many completed events are not yet durable"
                    );
                }
                self.partitions.numbers().into_iter().for_each(|number| self.pause(number));
            }
            Some(ThrottleChange::Ended) => {
                self.partitions.numbers().into_iter().for_each(|number| self.resume(number, planner));
            }
            None => {}
        }
    }

    pub(super) fn pause(&mut self, number: i32) {
        let partition = self.partitions.place(number);
        let Some(state) = self.partitions.states.get_mut(&number).filter(|state| !state.paused) else { return };
        match self.consumer.pause(&partition) {
            Ok(()) => state.paused = true,
            Err(error) => tracing::warn!(partition = number, %error, "pipeline: cannot pause the partition"),
        }
    }

    /// Resumes a partition that has room again.
    pub(super) fn resume(&mut self, number: i32, planner: &mut Planner) {
        let partition = self.partitions.place(number);
        let Some(state) = self.partitions.states.get_mut(&number) else { return };
        if state.over_limit && state.exceeded_resume_limit(self.backpressure.limits()).is_none() {
            state.over_limit = false;
            planner.clear_over_limit(number);
        }
        let is_stopped = state.over_limit || state.halted.is_some() || state.paused_by_operator;
        if state.paused && !is_stopped && !self.backpressure.is_throttled() {
            match self.consumer.resume(&partition) {
                Ok(()) => state.paused = false,
                Err(error) => tracing::warn!(partition = number, %error, "pipeline: cannot resume the partition"),
            }
        }
    }

    /// Resumes a partition that is paused, after an event of the partition was completed.
    pub(super) fn resume_if_paused(&mut self, number: i32, planner: &mut Planner) {
        if self.partitions.states.get(&number).is_some_and(|state| state.paused) {
            self.resume(number, planner);
        }
    }

    /// Reads a partition again from its committed offset under a new epoch. `state`: its last state. After an error
    /// nothing has been read.
    pub(super) async fn reread(&mut self, number: i32, state: &PartitionState) -> Result<(), BrokerError> {
        let partition = self.partitions.place(number);
        let position = state.rewind_offset();
        let epoch = self.consumer.seek(&partition, position).await?;
        if state.paused {
            self.consumer.resume(&partition)?;
        }
        self.partitions.states.insert(number, state.rewound(epoch, position, self.can_lose_writes));
        if self.backpressure.is_throttled() || state.paused_by_operator {
            self.pause(number);
        }
        Ok(())
    }

    /// Pauses a partition at an operator's request; events in flight complete.
    pub(super) fn pause_for_operator(&mut self, number: i32) -> ControlAnswer {
        self.pause(number);
        match self.partitions.states.get_mut(&number).filter(|state| state.paused) {
            Some(state) => {
                state.paused_by_operator = true;
                self.health.control().set_paused(number, true);
                ControlAnswer::Done(format!(
                    "partition {number} is paused here, until it is resumed or this process ends"
                ))
            }
            None => not_assigned(number),
        }
    }

    /// Resumes a partition that an operator has paused.
    pub(super) fn resume_for_operator(&mut self, number: i32, planner: &mut Planner) -> ControlAnswer {
        let Some(state) = self.partitions.states.get_mut(&number) else { return not_assigned(number) };
        if !std::mem::take(&mut state.paused_by_operator) {
            return ControlAnswer::Refused(format!("partition {number} is not paused by an operator"));
        }
        let is_halted = state.halted.is_some();
        self.health.control().set_paused(number, false);
        self.resume(number, planner);
        let still = if is_halted { "; it is still halted" } else { "" };
        ControlAnswer::Done(format!("partition {number} is no longer paused by an operator{still}"))
    }
}

/// Returns the answer to a request about a partition that this instance does not have.
pub(super) fn not_assigned(number: i32) -> ControlAnswer {
    ControlAnswer::NotHeld(format!("partition {number} is not assigned to this instance"))
}
