//! Commits durable offsets: one commit at a time, beside the loop.

use std::{collections::VecDeque, pin::Pin, time::Duration};

use tokio::time::Instant;

use super::{PipelineError, PipelineServices, PipelineSettings, partition_reads::PartitionReads, scan_pace::ScanPace};
use crate::{
    broker::{BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, TopicPartition, identity::TopicCheck},
    ingest::plan::Planner,
    record::ConsumedOffsets,
    replay::Modes,
    status::{CommitHealth, Condition},
    store::{
        commit_gate::{self, Blocked, Permit},
        restart_detector::{RestartDetector, RestartPoll},
    },
    telemetry::CommitFailure,
};

/// A consumer bounds its commits itself; an answer after this time is not waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The consumed offsets that this instance has recorded in the store.
#[derive(Default)]
struct DurableConsumed {
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
enum PendingCommit {
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

/// Result of the checks of a commit.
pub(super) enum CheckedCommit {
    /// Durable offsets may be committed.
    Permitted,
    /// No commit is possible at the moment.
    Refused,
    /// A node has restarted: the events since the last commit have to be applied again.
    Restarted,
    /// The topic is another one, for this reason.
    OtherTopic(String),
}

/// Bounds a wait for the broker by [`ANSWER_TIMEOUT`].
async fn with_timeout<T>(
    what: &'static str,
    answer: impl Future<Output = Result<T, BrokerError>>,
) -> Result<T, BrokerError> {
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| {
        let message = format!("no answer within {ANSWER_TIMEOUT:?}");
        Err(BrokerError::new(BrokerErrorKind::Retryable, what, message))
    })
}

/// The commits of an instance, one at a time, and their times.
pub(super) struct CommitCycle {
    consumed: DurableConsumed,
    pending: Option<PendingCommit>,
    /// A second commit begins once the pending one has ended.
    is_due: bool,
    health: CommitHealth,
    interval: Duration,
    last: Instant,
    next: Instant,
}

impl CommitCycle {
    pub(super) fn new(settings: &PipelineSettings, now: Instant) -> Self {
        CommitCycle {
            consumed: DurableConsumed::default(),
            pending: None,
            is_due: false,
            health: CommitHealth::new(Condition::OffsetsCommitted),
            interval: settings.commit_interval,
            last: now,
            next: now + settings.commit_interval,
        }
    }

    /// Returns the time of the next commit.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Schedules the next commit after one that is due now.
    pub(super) fn schedule_next(&mut self, now: Instant, scans: ScanPace) {
        self.last = now;
        self.next = scans.not_before(now + self.interval);
    }

    /// Brings the next commit forward to the present.
    pub(super) fn commit_now(&mut self) {
        self.next = Instant::now();
    }

    /// Brings the next commit forward to a tenth of the interval after the last one.
    pub(super) fn commit_soon(&mut self, scans: ScanPace) {
        self.next = self.next.min(scans.not_before(self.last + self.interval / 10));
    }

    /// Begins a commit beside the loop, once the pending one has ended.
    pub(super) fn begin(&mut self, services: &PipelineServices, reads: &PartitionReads) {
        self.is_due = self.pending.is_some();
        if !self.is_due {
            self.pending = Some(PendingCommit::Checking(self.run_checks(services, reads)));
        }
    }

    /// Returns the next step of the pending commit; never, if there is none.
    pub(super) async fn next_progress(&mut self) -> CommitProgress {
        let progress = match &mut self.pending {
            None => return std::future::pending().await,
            Some(PendingCommit::Checking(checks)) => CommitProgress::Checked(checks.await),
            Some(PendingCommit::Sent(attempted, committing)) => {
                let answer = committing.await;
                CommitProgress::Answered(std::mem::take(attempted), answer)
            }
        };
        self.pending = None;
        progress
    }

    /// Brings the next commit forward if one became due while another one was pending.
    pub(super) fn reschedule_if_due(&mut self) {
        if self.pending.is_none() && std::mem::take(&mut self.is_due) {
            self.commit_now();
        }
    }

    /// Cancels a pending commit that has not reached the group coordinator; the drain ends with a commit of its own.
    pub(super) fn cancel_unsent(&mut self) {
        self.is_due = false;
        if let Some(PendingCommit::Checking(_)) = self.pending {
            self.pending = None;
        }
    }

    /// Waits for a commit that the coordinator has; a commit that has only asked the store is cancelled.
    pub(super) async fn await_sent(
        &mut self,
        services: &PipelineServices,
        reads: &mut PartitionReads,
    ) -> Result<(), PipelineError> {
        self.is_due = false;
        if let Some(PendingCommit::Sent(attempted, committing)) = self.pending.take() {
            let answer = committing.await;
            self.on_answer(attempted, answer, services, reads)?;
        }
        Ok(())
    }

    /// Returns the checks of a commit as a future that borrows nothing of the pipeline.
    pub(super) fn run_checks(&self, services: &PipelineServices, reads: &PartitionReads) -> RunningChecks {
        let (whole, nodes, guard) = (services.whole.clone(), services.nodes.clone(), services.guard.clone());
        let consumed = self.consumed_to_record(&services.modes, reads);
        let topics = vec![reads.partitions.topic().to_string()];
        Box::pin(async move {
            let permit = commit_gate::check(whole.as_ref(), &nodes, consumed).await;
            let topic_check = with_timeout("look up topic ids", guard.check(&topics)).await;
            CommitChecks { permit, topic_check }
        })
    }

    /// Returns the consumed offsets that the store does not have yet.
    fn consumed_to_record(&self, modes: &Modes, reads: &PartitionReads) -> Option<ConsumedOffsets> {
        if let Modes::Rebuild(_) = modes {
            return None;
        }
        let mut consumed = self.consumed.recorded.clone();
        let compared = reads.partitions.states.iter().filter(|(_, state)| state.is_verified);
        let validated = compared.map(|(number, state)| (number.unsigned_abs(), state.tracker.watermark()));
        consumed.raise(&ConsumedOffsets { chain: 0, validated: validated.collect() });
        (consumed != self.consumed.recorded).then_some(consumed)
    }

    /// Handles the checks of a commit: unless a node has restarted, completed events that are old enough become
    /// durable.
    pub(super) fn on_checks(
        &mut self,
        CommitChecks { permit, topic_check }: CommitChecks,
        services: &PipelineServices,
        reads: &mut PartitionReads,
        planner: &mut Planner,
    ) -> Result<CheckedCommit, PipelineError> {
        if let Some((at, consumed)) = permit.recorded {
            self.consumed.not_durable.push_back((at, consumed.clone()));
            self.consumed.recorded.raise(&consumed);
        }
        let (failure, why) = match permit.restarts {
            Ok(RestartPoll::Restarted) => return Ok(CheckedCommit::Restarted),
            Ok(RestartPoll::Unchanged { polled_at }) => {
                self.mark_durable(polled_at, &services.nodes, reads, planner);
                let why = match topic_check {
                    Ok(TopicCheck::Same) => return Ok(CheckedCommit::Permitted),
                    // The offsets of one topic mean nothing in another.
                    Ok(TopicCheck::Other(why)) => return Ok(CheckedCommit::OtherTopic(why)),
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
        services.metrics.commit_failures.of(failure).inc();
        self.health.record_failure(&services.health, why);
        Ok(CheckedCommit::Refused)
    }

    /// Makes durable each completion that is older than the durability lag at `polled_at`, when no node had restarted.
    fn mark_durable(
        &mut self,
        polled_at: Instant,
        nodes: &RestartDetector,
        reads: &mut PartitionReads,
        planner: &mut Planner,
    ) {
        let lag = nodes.lag();
        let before_ms = reads.partitions.uptime_ms(polled_at).saturating_sub(lag.as_millis() as u64);
        for (number, state) in &mut reads.partitions.states {
            state.tracker.mark_durable(before_ms);
            planner.forget_durable(*number, state.tracker.durable_offset());
        }
        self.consumed.promote(polled_at, lag);
    }

    /// Commits every durable offset that has grown, with the progress that other instances need for their proofs.
    pub(super) fn send(&mut self, services: &PipelineServices, reads: &mut PartitionReads, planner: &Planner) {
        let rebuild = matches!(services.modes, Modes::Rebuild(_));
        let named = planner.flights().oldest_waiting_events();
        let mut attempted = Vec::new();
        for number in reads.partitions.numbers() {
            let partition = reads.partitions.place(number);
            let Some(state) = reads.partitions.states.get_mut(&number) else { continue };
            let consumed_limit = if rebuild { u64::MAX } else { self.consumed.offset_of(number) };
            let named = named.get(&number).map_or(&[][..], Vec::as_slice);
            let Some(committed) = state.next_commit(consumed_limit, named) else { continue };
            state.record_attempt(committed.offset);
            attempted.push((partition, committed, state.epoch));
        }
        if attempted.is_empty() {
            return self.health.record_success(&services.health);
        }
        let offsets: Vec<_> = attempted.iter().map(|(at, committed, _)| (at.clone(), committed.clone())).collect();
        let committing = Box::pin(with_timeout("commit", reads.consumer.commit(&offsets)));
        self.pending = Some(PendingCommit::Sent(attempted, committing));
    }

    /// Handles the answer of the coordinator. An offset under an epoch that has ended is ignored.
    pub(super) fn on_answer(
        &mut self,
        attempted: AttemptedOffsets,
        answer: Result<(), BrokerError>,
        services: &PipelineServices,
        reads: &mut PartitionReads,
    ) -> Result<(), PipelineError> {
        match answer {
            Ok(()) => {
                for (partition, committed, epoch) in attempted {
                    if let Some(state) = reads.partitions.current(partition.partition, epoch) {
                        state.committed = Some(committed);
                    }
                }
                services.metrics.commits.inc();
                self.health.record_success(&services.health);
            }
            Err(error) if error.kind.is_client_unusable() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "pipeline: offsets not committed; retrying");
                services.metrics.commit_failures.of(CommitFailure::Broker).inc();
                self.health.record_failure(&services.health, error);
            }
        }
        Ok(())
    }

    /// Forgets the recorded offsets after a node's restart: the last record may be among the lost writes.
    pub(super) fn forget_recorded(&mut self) {
        self.consumed = DurableConsumed::default();
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
