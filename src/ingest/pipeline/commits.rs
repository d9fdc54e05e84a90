//! Commits durable offsets, or rewinds every partition after a restart of a database node.

use std::{collections::VecDeque, pin::Pin, time::Duration};

use tokio::time::Instant;

use super::{Pipeline, PipelineError};
use crate::{
    broker::{
        AssignedPartition, BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, TopicPartition,
        identity::TopicCheck,
    },
    group::partition::{PartitionState, committed_by_instance},
    ingest::dispatch::{TaskMessage, spawn},
    record::ConsumedOffsets,
    replay::Modes,
    store::{
        commit_gate::{self, Blocked, Permit},
        meta::MetaError,
        ownership::StoreOwnership,
        restart_detector::RestartPoll,
    },
    telemetry::CommitFailure,
};

/// Pause between two comparisons with a store that does not answer.
const COMPARE_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// A consumer bounds its commits itself; an answer after this time is not waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The consumed offsets that this instance has recorded in the store.
#[derive(Default)]
pub(super) struct DurableConsumed {
    /// Offsets of the last record.
    recorded: ConsumedOffsets,
    /// Recorded offsets that the store could still lose, each with the time of its record.
    not_durable: VecDeque<(Instant, ConsumedOffsets)>,
    /// Recorded offsets that the store can no longer lose.
    durable: ConsumedOffsets,
}

impl DurableConsumed {
    /// Makes durable the offsets that were recorded at least `lag` before `polled_at`.
    fn promote(&mut self, polled_at: Instant, lag: Duration) {
        while let Some((_, consumed)) = self.not_durable.front().filter(|(at, _)| *at + lag <= polled_at) {
            self.durable.raise(consumed);
            self.not_durable.pop_front();
        }
    }

    /// Returns the durable consumed offset of a partition.
    fn offset_of(&self, partition: i32) -> u64 {
        self.durable.validated.get(&partition.unsigned_abs()).copied().unwrap_or(0)
    }
}

/// Offsets of one commit, each with the epoch of its assignment.
type AttemptedOffsets = Vec<(TopicPartition, CommittedOffset, u64)>;

/// A commit beside the loop, one at a time. Dropping the future cancels the commit.
pub(super) enum PendingCommit {
    /// The store and the id of the topic are being checked.
    Checking(RunningChecks),
    /// The commit is with the group coordinator.
    Sent(AttemptedOffsets, CommitFuture),
}

/// Answers of the checks that precede a commit.
pub(super) struct CommitChecks {
    /// Answer of the store.
    permit: Permit,
    /// Answer about the id of the topic. The question is the last one, so that the answer is as late as possible.
    topic_check: Result<TopicCheck, BrokerError>,
}

type RunningChecks = Pin<Box<dyn Future<Output = CommitChecks> + Send>>;

/// A step of the pending commit that has ended.
pub(super) enum CommitProgress {
    Checked(CommitChecks),
    Answered(AttemptedOffsets, Result<(), BrokerError>),
}

/// Returns the next step of the pending commit; never, if there is none.
pub(super) async fn next_commit_progress(pending_commit: &mut Option<PendingCommit>) -> CommitProgress {
    let progress = match pending_commit {
        None => return std::future::pending().await,
        Some(PendingCommit::Checking(checks)) => CommitProgress::Checked(checks.await),
        Some(PendingCommit::Sent(attempted, committing)) => {
            let answer = committing.await;
            CommitProgress::Answered(std::mem::take(attempted), answer)
        }
    };
    *pending_commit = None;
    progress
}

/// Bounds a commit of the consumer by [`ANSWER_TIMEOUT`].
fn with_timeout(committing: CommitFuture) -> CommitFuture {
    Box::pin(async move {
        tokio::time::timeout(ANSWER_TIMEOUT, committing).await.unwrap_or_else(|_| {
            let message = format!("no answer within {ANSWER_TIMEOUT:?}");
            Err(BrokerError::new(BrokerErrorKind::Retryable, "commit", message))
        })
    })
}

impl Pipeline {
    /// Begins a commit beside the loop, once the pending one has ended.
    pub(super) fn begin_commit(&mut self) {
        self.commit_due = self.pending_commit.is_some();
        if !self.commit_due {
            self.pending_commit = Some(PendingCommit::Checking(self.run_commit_checks()));
        }
    }

    /// Handles a step of the pending commit.
    pub(super) async fn on_commit_progress(&mut self, progress: CommitProgress) -> Result<(), PipelineError> {
        match progress {
            CommitProgress::Checked(checks) => match self.judge_commit_checks(checks)? {
                Some(RestartPoll::Restarted) => self.rewind().await?,
                Some(RestartPoll::Unchanged { .. }) => {
                    self.pending_commit =
                        self.send_commit().map(|(attempted, answer)| PendingCommit::Sent(attempted, answer));
                }
                None => {}
            },
            CommitProgress::Answered(attempted, answer) => self.on_committed(attempted, answer)?,
        }
        if self.pending_commit.is_none() && std::mem::take(&mut self.commit_due) {
            self.next_commit = Instant::now();
        }
        Ok(())
    }

    /// Cancels a pending commit that has not reached the group coordinator; the drain ends with a commit of its own.
    pub(super) fn cancel_unsent_commit(&mut self) {
        self.commit_due = false;
        if let Some(PendingCommit::Checking(_)) = self.pending_commit {
            self.pending_commit = None;
        }
    }

    /// Commits the durable offsets and waits for the answer, since no later commit can follow a revocation. A pending
    /// commit is awaited if the coordinator has it, and begun anew otherwise. Rewinds after a node's restart.
    pub(super) async fn commit(&mut self) -> Result<(), PipelineError> {
        if self.commit_unless_restarted().await? { Ok(()) } else { self.rewind().await }
    }

    /// Commits as [`commit`](Self::commit) does; `false`: a node has restarted, nothing was committed, and the events
    /// since the last commit have to be applied again.
    pub(super) async fn commit_unless_restarted(&mut self) -> Result<bool, PipelineError> {
        self.await_sent_commit().await?;
        let checks = self.run_commit_checks().await;
        match self.judge_commit_checks(checks)? {
            Some(RestartPoll::Restarted) => return Ok(false),
            Some(RestartPoll::Unchanged { .. }) => {
                if let Some((attempted, answer)) = self.send_commit() {
                    let answer = answer.await;
                    self.on_committed(attempted, answer)?;
                }
            }
            None => {}
        }
        Ok(true)
    }

    /// Waits for a commit that the coordinator has; a commit that has only asked the store is cancelled.
    pub(super) async fn await_sent_commit(&mut self) -> Result<(), PipelineError> {
        self.commit_due = false;
        if let Some(PendingCommit::Sent(attempted, committing)) = self.pending_commit.take() {
            let answer = committing.await;
            self.on_committed(attempted, answer)?;
        }
        Ok(())
    }

    /// Returns the checks of a commit as a future that borrows nothing of the pipeline.
    fn run_commit_checks(&self) -> RunningChecks {
        let (whole, nodes, consumed) =
            (self.services.whole.clone(), self.services.nodes.clone(), self.consumed_to_record());
        let (guard, topics) = (self.services.guard.clone(), vec![self.settings.topic.to_string()]);
        Box::pin(async move {
            let permit = commit_gate::check(whole.as_ref(), &nodes, consumed).await;
            let topic_check = tokio::time::timeout(ANSWER_TIMEOUT, guard.check(&topics)).await.unwrap_or_else(|_| {
                let message = format!("no answer within {ANSWER_TIMEOUT:?}");
                Err(BrokerError::new(BrokerErrorKind::Retryable, "look up topic ids", message))
            });
            CommitChecks { permit, topic_check }
        })
    }

    /// Returns the consumed offsets that the store does not have yet.
    fn consumed_to_record(&self) -> Option<ConsumedOffsets> {
        if let Modes::Rebuild(_) = self.services.modes {
            return None;
        }
        let mut consumed = self.durable_consumed.recorded.clone();
        let compared = self.partitions.iter().filter(|(_, state)| state.is_verified);
        let validated = compared.map(|(number, state)| (number.unsigned_abs(), state.tracker.watermark()));
        consumed.raise(&ConsumedOffsets { chain: 0, validated: validated.collect() });
        (consumed != self.durable_consumed.recorded).then_some(consumed)
    }

    /// Handles the checks of a commit: unless a node has restarted, completed events that are old enough become
    /// durable. `None`: nothing may be committed.
    fn judge_commit_checks(
        &mut self,
        CommitChecks { permit, topic_check }: CommitChecks,
    ) -> Result<Option<RestartPoll>, PipelineError> {
        if let Some((at, consumed)) = permit.recorded {
            self.durable_consumed.not_durable.push_back((at, consumed.clone()));
            self.durable_consumed.recorded.raise(&consumed);
        }
        let (failure, why) = match permit.restarts {
            Ok(poll) => {
                let RestartPoll::Unchanged { polled_at } = poll else { return Ok(Some(poll)) };
                self.mark_durable(polled_at);
                let why = match topic_check {
                    Ok(TopicCheck::Same) => return Ok(Some(poll)),
                    // The offsets of one topic mean nothing in another.
                    Ok(TopicCheck::Other(why)) => return self.on_other_topic(why).map(|()| None),
                    Ok(TopicCheck::Absent(topic)) => format!("topic `{topic}` does not exist at the moment"),
                    Err(error) => error.to_string(),
                };
                (CommitFailure::Broker, format!("cannot confirm the id of the topic: {why}"))
            }
            Err(Blocked::Temporary(failure, why)) => (failure, why),
            Err(Blocked::Store(error)) => return Err(PipelineError::Store(error.to_string())),
            Err(Blocked::Engine(error)) => return Err(PipelineError::Store(error.to_string())),
        };
        tracing::warn!(why, "pipeline: offsets not committed");
        self.services.metrics.commit_failures.of(failure).inc();
        self.commits.record_failure(&self.services.health, why);
        Ok(None)
    }

    /// Makes durable each completion that is older than the durability lag at `polled_at`, when no node had restarted.
    fn mark_durable(&mut self, polled_at: Instant) {
        let lag = self.services.nodes.lag();
        let before_ms = self.uptime_ms(polled_at).saturating_sub(lag.as_millis() as u64);
        for (number, state) in &mut self.partitions {
            state.tracker.mark_durable(before_ms);
            self.planner.forget_durable(*number, state.tracker.durable_offset());
        }
        self.durable_consumed.promote(polled_at, lag);
    }

    /// Compares, beside the loop, the store with the committed offset of an assigned partition; another store ends the
    /// pipeline. Until the answer no offset of the partition is recorded or committed.
    pub(super) fn compare_with_store(&mut self, assigned: &AssignedPartition) {
        let partition = assigned.partition.partition;
        let Some(offset) = assigned.committed.as_ref().and_then(committed_by_instance) else { return };
        let committed = ConsumedOffsets { chain: 0, validated: [(partition.unsigned_abs(), offset)].into() };
        let (whole, messages) = (self.services.whole.clone(), self.task_sender.clone());
        spawn("comparing the store with its group", &self.task_sender, async move {
            let answer = match compare_until_answered(whole.as_ref(), &committed).await {
                Ok(()) => TaskMessage::StoreCompared { partition, offset },
                Err(error) => TaskMessage::Fatal(PipelineError::Store(error.to_string())),
            };
            // A pipeline that has ended compares again at its next start.
            let _ = messages.send(answer);
        });
    }

    /// Handles a node's restart: every partition is read again from its committed offset under a new epoch, so that no
    /// earlier completion counts.
    pub(super) async fn rewind(&mut self) -> Result<(), PipelineError> {
        let store = |error: &dyn std::fmt::Display| PipelineError::Store(error.to_string());
        self.services.metrics.node_restarts.inc();
        if let Modes::Rebuild(_) = self.services.modes {
            return Err(store(&"a node restarted while the store was rebuilt: begin again, with an empty set"));
        }
        self.services.nodes.baseline().await.map_err(|error| store(&error))?;
        self.services.whole.verify_intact().await.map_err(|error| store(&error))?;
        // The last record may be among the lost writes.
        self.durable_consumed = DurableConsumed::default();
        self.planner.abandon();
        self.dispatcher.cancel_all();
        self.chunks.clear();
        self.unprepared = 0;
        self.throttled = false;
        for (number, state) in std::mem::take(&mut self.partitions) {
            tracing::warn!(partition = number, "pipeline: node restarted, partition rewound to its committed offset");
            match self.reread_partition(number, &state).await {
                Ok(()) => {
                    // A rewind does not clear a halt; only an operator does.
                    if let Some(halt) = state.halted {
                        self.enter_halt(number, halt);
                    }
                }
                // The partition is being revoked; the revocation follows.
                Err(error) if error.kind == BrokerErrorKind::NotAssigned => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.redistribute_shares();
        self.publish_halts();
        Ok(())
    }

    /// Reads a partition again from its committed offset under a new epoch. `state`: its last state. After an error
    /// nothing has been read.
    pub(super) async fn reread_partition(&mut self, number: i32, state: &PartitionState) -> Result<(), BrokerError> {
        let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
        let position = state.rewind_offset();
        let epoch = self.consumer.seek(&partition, position).await?;
        if state.paused {
            self.consumer.resume(&partition)?;
        }
        self.partitions.insert(number, state.rewound(epoch, position, self.services.nodes.can_lose_writes()));
        if self.throttled || state.paused_by_operator {
            self.pause(number);
        }
        Ok(())
    }

    /// Commits every durable offset that has grown, with the progress that other instances need for their proofs.
    /// `None`: none has grown.
    fn send_commit(&mut self) -> Option<(AttemptedOffsets, CommitFuture)> {
        let rebuild = matches!(self.services.modes, Modes::Rebuild(_));
        let named = self.planner.flights().oldest_waiting_events();
        let mut attempted = Vec::new();
        for (number, state) in &mut self.partitions {
            let consumed_limit = if rebuild { u64::MAX } else { self.durable_consumed.offset_of(*number) };
            let named = named.get(number).map_or(&[][..], Vec::as_slice);
            let Some(committed) = state.next_commit(consumed_limit, named) else { continue };
            state.record_attempt(committed.offset);
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: *number };
            attempted.push((partition, committed, state.epoch));
        }
        if attempted.is_empty() {
            self.commits.record_success(&self.services.health);
            return None;
        }
        let offsets: Vec<_> = attempted.iter().map(|(at, committed, _)| (at.clone(), committed.clone())).collect();
        let committing = with_timeout(self.consumer.commit(&offsets));
        Some((attempted, committing))
    }

    /// Handles the answer of the coordinator. An offset under an epoch that has ended is ignored.
    fn on_committed(
        &mut self,
        attempted: AttemptedOffsets,
        answer: Result<(), BrokerError>,
    ) -> Result<(), PipelineError> {
        match answer {
            Ok(()) => {
                for (partition, committed, epoch) in attempted {
                    let state = self.partitions.get_mut(&partition.partition);
                    if let Some(state) = state.filter(|state| state.epoch == epoch) {
                        state.committed = Some(committed);
                    }
                }
                self.services.metrics.commits.inc();
                self.commits.record_success(&self.services.health);
            }
            Err(error) if error.kind.is_client_unusable() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "pipeline: offsets not committed; retrying");
                self.services.metrics.commit_failures.of(CommitFailure::Broker).inc();
                self.commits.record_failure(&self.services.health, error);
            }
        }
        Ok(())
    }
}

/// Compares until the store answers.
pub(super) async fn compare_until_answered(
    whole: &dyn StoreOwnership,
    committed: &ConsumedOffsets,
) -> Result<(), MetaError> {
    loop {
        match whole.verify_covers(committed).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "pipeline: cannot compare the store with its group; retrying");
                tokio::time::sleep(COMPARE_RETRY_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_offsets_are_durable_after_the_lag() {
        let consumed = |offset| ConsumedOffsets { chain: 0, validated: [(3, offset)].into() };
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut consumed_offsets = DurableConsumed::default();
        (1..=4).for_each(|n| consumed_offsets.not_durable.push_back((start + second * n, consumed(u64::from(n) * 10))));
        let mut durable_at = |second_of_poll: u32| {
            consumed_offsets.promote(start + second * second_of_poll, 2 * second);
            (consumed_offsets.offset_of(3), consumed_offsets.offset_of(4), consumed_offsets.not_durable.len())
        };
        assert_eq!(
            [durable_at(2), durable_at(3), durable_at(5), durable_at(9)],
            [(0, 0, 4), (10, 0, 3), (30, 0, 1), (40, 0, 0)]
        );
    }
}
