//! Reads of the assigned partitions: assignment, pause and resume, backpressure, and reading again.

use std::{collections::BTreeMap, sync::Arc};

use tokio::{sync::mpsc, time::Instant};

use super::{
    PipelineServices, PipelineSettings,
    backpressure::{Backpressure, PipelineLoad, ThrottleChange},
};
use crate::{
    broker::{AssignedPartition, BrokerError, BrokerErrorKind, Consumer},
    group::{
        commit_metadata::never_read_reason,
        earlier_halts::EarlierHalts,
        member::{EndOffsetAnswer, GroupMember, MemberProfile, MemberServices},
        reading::ReadState,
    },
    ingest::{
        dispatch::{TaskMessage, spawn},
        plan::Planner,
    },
    status::{Condition, control::ControlAnswer},
};

/// Reads of the pipeline's member: the partitions with the limits over all of them.
pub(super) struct PartitionReads {
    pub(super) member: GroupMember,
    pub(super) backpressure: Backpressure,
    /// A partition was halted, or a halt was lifted, since the last commit began: the next owner needs to know.
    pub(super) has_new_halt: bool,
    /// The pipeline ends at the end offsets of a rebuild. No operator looks at such a rebuild: it fails where an
    /// instance halts.
    pub(super) ends_by_itself: bool,
    /// An offset is out of range in one of these partitions, each with its epoch; the broker did not say in which.
    pub(super) out_of_range: Option<(BrokerError, BTreeMap<i32, u64>)>,
    earlier_halts: Arc<EarlierHalts>,
}

impl PartitionReads {
    pub(super) fn new(
        settings: &PipelineSettings,
        services: &PipelineServices,
        consumer: Box<dyn Consumer>,
        now: Instant,
    ) -> Self {
        let profile = MemberProfile {
            name: "pipeline",
            commits: "offsets",
            topic_ids: "the id of the topic",
            topic: settings.topic.clone(),
            guarded_topics: vec![settings.topic.to_string()],
            commit_condition: Condition::OffsetsCommitted,
            commit_interval: settings.commit_interval,
            describe_pause: |limit| match limit {
                Some("messages") => "too many messages are unfinished",
                Some(_) => "too many bytes are unfinished",
                None => "too many transactions are in flight, or completed events not durable",
            },
            can_lose_writes: services.nodes.can_lose_writes(),
            is_rebuild: services.modes.is_rebuild(),
        };
        let member_services = MemberServices {
            broker: services.broker.clone(),
            guard: services.guard.clone(),
            ownership: services.whole.clone(),
            clock: services.clock.clone(),
            metrics: services.metrics.clone(),
            health: services.health.clone(),
        };
        PartitionReads {
            member: GroupMember::new(profile, member_services, consumer, now),
            backpressure: Backpressure::new(settings),
            has_new_halt: false,
            ends_by_itself: services.modes.end_offsets().is_some(),
            out_of_range: None,
            earlier_halts: services.earlier_halts.clone(),
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
        let is_paused = self.member.services.health.control().is_paused(number);
        let state = self.member.assign(assigned);
        if is_paused {
            state.reads.pause_by_operator();
        }
        let truncated = state.truncated_before_first_commit();
        self.pause_if_stopped(number);
        let halt_of = |committed| self.earlier_halts.remaining_halt(number, committed);
        if let Some(halt) = assigned.committed.as_ref().and_then(halt_of) {
            self.enter_halt(number, halt);
        }
        if let Some(why) = self.member.other_topic.clone() {
            self.halt(number, why);
        } else if let Some(low) = truncated {
            self.halt(number, never_read_reason(group, low));
        }
    }

    /// Pauses a partition while all partitions are paused, or where an operator's pause of the partition stays.
    fn pause_if_stopped(&mut self, number: i32) {
        let state = self.member.partitions.states.get(&number);
        if self.backpressure.is_throttled() || state.is_some_and(|state| state.reads.is_paused_by_operator()) {
            self.member.pause(number);
        }
    }

    /// Computes the fair shares of the common limit anew, after an assignment or revocation. Until every partition is
    /// within an equal share, bytes that one partition completes go to the others.
    pub(super) fn redistribute_shares(&mut self, planner: &mut Planner) {
        self.backpressure.redistribute(self.member.partitions.unfinished_bytes());
        for number in self.member.partitions.numbers() {
            self.apply_backpressure(number, planner);
            self.resume(number, planner);
        }
    }

    /// Computes the shares anew while they are unequal.
    pub(super) fn equalize_shares(&mut self, planner: &mut Planner) {
        if self.backpressure.has_unequal_shares(self.member.partitions.running().count()) {
            self.redistribute_shares(planner);
        }
    }

    /// Pauses a partition that has reached its limit.
    pub(super) fn apply_backpressure(&mut self, number: i32, planner: &mut Planner) {
        let Some(why) = self.member.pause_at_limit(number, self.backpressure.limits()) else { return };
        let state = self.member.partitions.states.get(&number);
        if state.is_some_and(|state| state.exceeded_limit(self.backpressure.own_limits()).is_some()) {
            tracing::warn!(partition = number, why, "pipeline: partition paused at its limit of unfinished events");
            planner.mark_over_limit(number, self.member.services.clock.steady_ms());
        } else {
            // Bytes of other partitions caused the pause, which may end with the next batch.
            tracing::debug!(partition = number, why, "pipeline: partition paused at its share of the common limit");
        }
    }

    /// Pauses or resumes all partitions. `unprepared`: the number of events that are read and not prepared.
    pub(super) fn throttle(&mut self, unprepared: usize, planner: &mut Planner) {
        let (counts, not_durable) = (planner.flights().counts(), self.member.partitions.not_durable());
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
                self.member.partitions.numbers().into_iter().for_each(|number| self.member.pause(number));
            }
            Some(ThrottleChange::Ended) => {
                self.member.partitions.numbers().into_iter().for_each(|number| self.resume(number, planner));
            }
            None => {}
        }
    }

    /// Resumes a partition that has room again.
    pub(super) fn resume(&mut self, number: i32, planner: &mut Planner) {
        if self.member.clear_full(number, self.backpressure.limits()) {
            planner.clear_over_limit(number);
        }
        if !self.backpressure.is_throttled() {
            self.member.resume(number);
        }
    }

    /// Queries stale end offsets beside the loop, if a query is due.
    pub(super) fn query_stale_ends(&mut self, now: Instant, sender: &mpsc::UnboundedSender<TaskMessage>) {
        let Some(query) = self.member.query_stale_ends(now) else { return };
        let messages = sender.clone();
        spawn("querying end offsets", sender, async move {
            // A pipeline that has ended queries again at its next start.
            let _ = messages.send(TaskMessage::EndOffsets(query.await));
        });
    }

    /// Handles the end offsets of quiet partitions.
    pub(super) fn on_end_offsets(&mut self, ends: &[EndOffsetAnswer]) {
        for (number, why) in self.member.on_end_offsets(ends) {
            self.halt(number, why);
        }
    }

    /// Reads a partition again from its committed offset after a node's restart.
    pub(super) async fn rewind(&mut self, number: i32) -> Result<(), BrokerError> {
        match self.member.seek_to_committed(number).await {
            Ok(again) => {
                self.restart(&again, ReadState::after_rewind);
                // A rewind does not clear a halt; only an operator does.
                let state = self.member.partitions.states.get(&number);
                if let Some(halt) = state.and_then(|state| state.reads.halt().cloned()) {
                    self.enter_halt(number, halt);
                }
                Ok(())
            }
            // The partition is being revoked; the revocation follows.
            Err(error) if error.kind == BrokerErrorKind::NotAssigned => {
                self.member.partitions.states.remove(&number);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Starts a partition anew at `again`, where the consumer reads again.
    pub(super) fn restart(&mut self, again: &AssignedPartition, reads: impl FnOnce(&ReadState) -> ReadState) {
        self.member.restart(again, reads);
        self.pause_if_stopped(again.partition.partition);
    }

    /// Pauses a partition at an operator's request; events in flight complete.
    pub(super) fn pause_for_operator(&mut self, number: i32) -> ControlAnswer {
        self.member.pause(number);
        match self.member.partitions.states.get_mut(&number).filter(|state| state.reads.is_paused()) {
            Some(state) => {
                state.reads.pause_by_operator();
                self.member.services.health.control().set_paused(number, true);
                ControlAnswer::Done(format!(
                    "partition {number} is paused here, until it is resumed or this process ends"
                ))
            }
            None => not_assigned(number),
        }
    }

    /// Resumes a partition that an operator has paused.
    pub(super) fn resume_for_operator(&mut self, number: i32, planner: &mut Planner) -> ControlAnswer {
        let Some(state) = self.member.partitions.states.get_mut(&number) else { return not_assigned(number) };
        if !state.reads.resume_by_operator() {
            return ControlAnswer::Refused(format!("partition {number} is not paused by an operator"));
        }
        let still = if state.reads.is_halted() { "; it is still halted" } else { "" };
        self.member.services.health.control().set_paused(number, false);
        self.resume(number, planner);
        ControlAnswer::Done(format!("partition {number} is no longer paused by an operator{still}"))
    }
}

/// Returns the answer to a request about a partition that this instance does not have.
pub(super) fn not_assigned(number: i32) -> ControlAnswer {
    ControlAnswer::NotHeld(format!("partition {number} is not assigned to this instance"))
}
