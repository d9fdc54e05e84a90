//! Commits durable offsets, one commit at a time (`docs/protocols/commit.md`).
//!
//! ```text
//!        begin_commit                      permitted
//!  IDLE ─────────────► CHECKING ─────────────────────────► SENT ──► IDLE: acknowledged, refused, or no answer
//!                         │  records the consumed offsets           with the coordinator of the group
//!                         │  polls the nodes for a restart
//!                         │  confirms the ids of the topics
//!                         ├──► IDLE: no answer; nothing has grown; a drain begins (the commit is dropped)
//!                         ├──► restarted: the loop rewinds
//!                         └──► other topic: the loop halts
//! ```

use std::{collections::VecDeque, pin::Pin, time::Duration};

use tokio::time::Instant;

use super::{GroupMember, MemberError, MemberProfile, PartitionTable};
use crate::{
    broker::{
        BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, TopicPartition,
        identity::{TopicCheck, TopicGuard},
    },
    engine::ErrorKind,
    record::ConsumedOffsets,
    status::CommitHealth,
    store::{
        ownership::StoreOwnership,
        restart_detector::{RestartDetector, RestartPoll},
    },
    telemetry::CommitFailure,
};

/// Time within which the store must have recorded the consumed offsets. A commit is tried again soon, so that a short
/// time does no harm.
const RECORD_TIMEOUT: Duration = Duration::from_secs(2);
/// A consumer bounds its commits itself; an answer after this time is not waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Content of the commits of one member.
pub trait CommitContent {
    /// Returns the offsets below which every event is completed, to be recorded in the meta record.
    fn consumed(&self, partitions: &PartitionTable) -> ConsumedOffsets;

    /// Returns the committed offsets, below which the store can lose no write, to be recorded in the meta record.
    fn durable(&self, partitions: &PartitionTable) -> ConsumedOffsets;

    /// Makes durable each completion that is older than the durability lag `lag` at `polled_at`, when no node had
    /// restarted.
    fn mark_durable(&mut self, partitions: &mut PartitionTable, polled_at: Instant, lag: Duration);

    /// Returns the next commits, by the number of the partition: durable, and consumed durably.
    fn next_commits(&self, partitions: &PartitionTable, consumed: &DurableConsumed) -> Vec<(i32, CommittedOffset)>;

    /// Notes a commit that the coordinator has acknowledged.
    fn on_committed(&mut self, _committed: &CommittedOffset) {}
}

/// Offsets of one record in the meta record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RecordedOffsets {
    consumed: ConsumedOffsets,
    durable: ConsumedOffsets,
}

/// The consumed offsets that this instance has recorded in the store.
#[derive(Debug, Default)]
pub struct DurableConsumed {
    /// A rebuild records no offset, only the height.
    is_rebuild: bool,
    /// Offsets of the last record.
    recorded: RecordedOffsets,
    /// Recorded offsets that the store could still lose, each with the time of its record.
    not_durable: VecDeque<(Instant, ConsumedOffsets)>,
    /// Recorded offsets that the store can no longer lose.
    durable: ConsumedOffsets,
}

impl DurableConsumed {
    /// Returns the offsets and the height to record, if the store does not have all of them.
    fn missing(&self, consumed: &ConsumedOffsets, durable: &ConsumedOffsets) -> Option<RecordedOffsets> {
        let mut raised = self.recorded.clone();
        match self.is_rebuild {
            // The end of a rebuild records its offsets.
            true => raised.consumed.height = raised.consumed.height.max(consumed.height),
            false => {
                raised.consumed.raise(consumed);
                raised.durable.raise(durable);
            }
        }
        (raised != self.recorded).then_some(raised)
    }

    /// Notes offsets that the store has acknowledged.
    fn record(&mut self, at: Instant, RecordedOffsets { consumed, durable }: RecordedOffsets) {
        self.recorded.consumed.raise(&consumed);
        self.recorded.durable.raise(&durable);
        self.not_durable.push_back((at, consumed));
    }

    /// Makes durable the offsets that were recorded at least `lag` before `polled_at`.
    fn promote(&mut self, polled_at: Instant, lag: Duration) {
        while let Some((_, consumed)) = self.not_durable.front().filter(|(at, _)| *at + lag <= polled_at) {
            self.durable.raise(consumed);
            self.not_durable.pop_front();
        }
    }

    /// Returns the greatest offset of a partition of validated transactions that may be committed: the durable consumed
    /// offset. A rebuild has no such limit.
    pub fn limit_of(&self, partition: i32) -> u64 {
        let durable = self.durable.validated.get(&partition.unsigned_abs()).copied().unwrap_or(0);
        if self.is_rebuild { u64::MAX } else { durable }
    }
}

/// Offsets of one commit, each with the epoch of its assignment.
type AttemptedOffsets = Vec<(TopicPartition, CommittedOffset, u64)>;

/// A commit beside the loop, one at a time. Dropping the future cancels the commit.
enum PendingCommit {
    /// The store and the ids of the topics are being checked.
    Checking(RunningChecks),
    /// The commit is with the group coordinator.
    Sent(AttemptedOffsets, CommitFuture),
}

/// Answers of the checks that precede a commit.
pub struct CommitChecks {
    /// Offsets that the meta record has now, and the time at which the store acknowledged them.
    recorded: Option<(Instant, RecordedOffsets)>,
    answer: Result<StoreAnswer, Blocked>,
}

/// Answer of the store and the broker to a commit.
enum StoreAnswer {
    /// A node has restarted.
    Restarted,
    /// No node had restarted at `polled_at`. `topics`: answer about their ids, `None` where it was not asked for.
    Unchanged { polled_at: Instant, topics: Option<Result<TopicCheck, BrokerError>> },
}

/// Reasons against a commit.
enum Blocked {
    /// Failure to count, with its text for the log; the next commit may succeed.
    Temporary(CommitFailure, String),
    /// Failure that no retry heals.
    Fatal(MemberError),
}

/// Records the consumed offsets in the meta record, then polls the nodes for a restart, then looks up the ids of the
/// topics, unless one is known to be another.
///
/// The order matters: writes that were acknowledged longer than the durability lag before the poll are durable. The
/// question about the topics is the last one, so that its answer is as late as possible.
async fn check_store(
    ownership: &dyn StoreOwnership,
    nodes: &RestartDetector,
    (guard, topics): (&TopicGuard, Option<Vec<String>>),
    offsets: Option<RecordedOffsets>,
) -> CommitChecks {
    let mut recorded = None;
    let answer = async {
        if let Some(offsets) = offsets {
            let record = ownership.record_consumed(&offsets.consumed, &offsets.durable);
            let why = match tokio::time::timeout(RECORD_TIMEOUT, record).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) if !error.may_be_retried() => return Err(Blocked::Fatal(error.into())),
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {RECORD_TIMEOUT:?}")),
            };
            if let Some(why) = why {
                let why = format!("cannot record the consumed offsets in the meta record: {why}");
                return Err(Blocked::Temporary(CommitFailure::Store, why));
            }
            recorded = Some((Instant::now(), offsets));
        }
        let polled = nodes.poll().await.map_err(|error| match error.kind {
            ErrorKind::Fatal => Blocked::Fatal(error.into()),
            _ => {
                let why = format!("cannot read the incarnation of the store's nodes: {error}");
                Blocked::Temporary(CommitFailure::Nodes, why)
            }
        })?;
        let RestartPoll::Unchanged { polled_at } = polled else { return Ok(StoreAnswer::Restarted) };
        let topics = match topics {
            Some(topics) => Some(with_timeout("look up topic ids", guard.check(&topics)).await),
            None => None,
        };
        Ok(StoreAnswer::Unchanged { polled_at, topics })
    };
    let answer = answer.await;
    CommitChecks { recorded, answer }
}

type RunningChecks = Pin<Box<dyn Future<Output = CommitChecks> + Send>>;

/// A step of the pending commit that has ended.
pub enum CommitProgress {
    /// The checks have answered.
    Checked(CommitChecks),
    /// The coordinator has answered, or is not waited for any more.
    Answered(AttemptedOffsets, Result<(), BrokerError>),
}

/// Consequence of a step of a commit for the loop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum CommitStep {
    /// The commit is sent or has ended.
    Settled,
    /// A node has restarted: the events since the last commit have to be applied again.
    Restarted,
    /// A topic is another one, for this reason.
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

/// The pending commit of a member, the times of its commits, and its consumed offsets.
pub struct CommitCycle {
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
    pub(super) fn new(profile: &MemberProfile, now: Instant) -> Self {
        CommitCycle {
            consumed: DurableConsumed { is_rebuild: profile.is_rebuild, ..DurableConsumed::default() },
            pending: None,
            is_due: false,
            health: CommitHealth::new(profile.commit_condition),
            interval: profile.commit_interval,
            last: now,
            next: now + profile.commit_interval,
        }
    }

    /// Returns the time of the next commit.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Schedules the next commit after one that is due now, at `not_before` at the earliest.
    pub fn schedule_next(&mut self, now: Instant, not_before: Instant) {
        self.last = now;
        self.next = not_before.max(now + self.interval);
    }

    /// Brings the next commit forward to the present.
    pub fn commit_now(&mut self) {
        self.next = Instant::now();
    }

    /// Brings the next commit forward to a tenth of the interval after the last one, at `not_before` at the earliest.
    pub fn commit_soon(&mut self, not_before: Instant) {
        self.next = self.next.min(not_before.max(self.last + self.interval / 10));
    }

    /// Returns the next step of the pending commit; never, if there is none.
    pub async fn next_progress(&mut self) -> CommitProgress {
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
    pub fn reschedule_if_due(&mut self) {
        if self.pending.is_none() && std::mem::take(&mut self.is_due) {
            self.commit_now();
        }
    }

    /// Cancels a pending commit that has not reached the group coordinator; the drain ends with a commit of its own.
    pub fn cancel_unsent(&mut self) {
        self.is_due = false;
        if let Some(PendingCommit::Checking(_)) = self.pending {
            self.pending = None;
        }
    }

    /// Forgets the recorded offsets after a node's restart: the last record may be among the lost writes.
    pub fn forget_recorded(&mut self) {
        self.consumed = DurableConsumed { is_rebuild: self.consumed.is_rebuild, ..DurableConsumed::default() };
    }
}

impl GroupMember {
    /// Begins a commit beside the loop, once the pending one has ended.
    pub fn begin_commit(&mut self, nodes: &RestartDetector, content: &impl CommitContent) {
        self.commits.is_due = self.commits.pending.is_some();
        if !self.commits.is_due {
            self.commits.pending = Some(PendingCommit::Checking(self.run_checks(nodes, content)));
        }
    }

    /// Commits the durable offsets and waits for the answer. A pending commit is awaited if the coordinator has it, and
    /// begun anew otherwise.
    ///
    /// # Errors
    /// The broker's client or the store cannot continue.
    pub async fn commit(
        &mut self,
        nodes: &RestartDetector,
        content: &mut impl CommitContent,
    ) -> Result<CommitStep, MemberError> {
        self.await_sent(content).await?;
        let checks = self.run_checks(nodes, content).await;
        let step = self.send_if_permitted(checks, nodes, content)?;
        self.await_sent(content).await?;
        Ok(step)
    }

    /// Handles a step of the pending commit.
    ///
    /// # Errors
    /// The broker's client or the store cannot continue.
    pub fn on_commit_progress(
        &mut self,
        progress: CommitProgress,
        nodes: &RestartDetector,
        content: &mut impl CommitContent,
    ) -> Result<CommitStep, MemberError> {
        match progress {
            CommitProgress::Checked(checks) => self.send_if_permitted(checks, nodes, content),
            CommitProgress::Answered(attempted, answer) => {
                self.on_answer(attempted, answer, content)?;
                Ok(CommitStep::Settled)
            }
        }
    }

    /// Waits for a commit that the coordinator has; a commit that has only asked the store is cancelled.
    ///
    /// # Errors
    /// The broker's client is unusable.
    pub async fn await_sent(&mut self, content: &mut impl CommitContent) -> Result<(), MemberError> {
        self.commits.is_due = false;
        if let Some(PendingCommit::Sent(attempted, committing)) = self.commits.pending.take() {
            let answer = committing.await;
            self.on_answer(attempted, answer, content)?;
        }
        Ok(())
    }

    /// Records that every offset that could be committed is committed.
    pub fn record_commit_success(&mut self) {
        self.commits.health.record_success(&self.services.health);
    }

    /// Returns the checks of a commit as a future that borrows nothing of the member.
    fn run_checks(&self, nodes: &RestartDetector, content: &impl CommitContent) -> RunningChecks {
        let (ownership, nodes, guard) = (self.services.ownership.clone(), nodes.clone(), self.services.guard.clone());
        let (consumed, durable) = (content.consumed(&self.partitions), content.durable(&self.partitions));
        let offsets = self.commits.consumed.missing(&consumed, &durable);
        let topics = self.other_topic.is_none().then(|| self.profile.guarded_topics.clone());
        Box::pin(async move { check_store(ownership.as_ref(), &nodes, (&guard, topics), offsets).await })
    }

    /// Sends the commit if its checks permit. Unless a node has restarted, completed events that are old enough become
    /// durable.
    fn send_if_permitted(
        &mut self,
        CommitChecks { recorded, answer }: CommitChecks,
        nodes: &RestartDetector,
        content: &mut impl CommitContent,
    ) -> Result<CommitStep, MemberError> {
        if let Some((at, offsets)) = recorded {
            self.commits.consumed.record(at, offsets);
        }
        let (failure, why) = match answer {
            Ok(StoreAnswer::Restarted) => return Ok(CommitStep::Restarted),
            Ok(StoreAnswer::Unchanged { polled_at, topics }) => {
                let lag = nodes.lag();
                content.mark_durable(&mut self.partitions, polled_at, lag);
                self.commits.consumed.promote(polled_at, lag);
                // Checked also without an offset to commit: an idle member has to detect a recreated topic, too.
                let why = match topics.filter(|_| self.other_topic.is_none()) {
                    // The offsets of one topic mean nothing in another.
                    None => return Ok(CommitStep::Settled),
                    Some(Ok(TopicCheck::Other(why))) => {
                        // The condition may still name a topic that was away for a while.
                        self.commits.health.record_failure(&self.services.health, &why);
                        return Ok(CommitStep::OtherTopic(why));
                    }
                    Some(Ok(TopicCheck::Same)) => {
                        self.send(content);
                        return Ok(CommitStep::Settled);
                    }
                    Some(Ok(TopicCheck::Absent(topic))) => format!("topic `{topic}` does not exist at the moment"),
                    Some(Err(error)) if error.kind.is_client_unusable() => return Err(error.into()),
                    Some(Err(error)) => error.to_string(),
                };
                (CommitFailure::Broker, format!("cannot confirm {}: {why}", self.profile.topic_ids))
            }
            Err(Blocked::Temporary(failure, why)) => (failure, why),
            Err(Blocked::Fatal(error)) => return Err(error),
        };
        let MemberProfile { name, commits, .. } = &self.profile;
        self.services.metrics.commit_failures.of(failure).inc();
        if self.commits.health.record_failure(&self.services.health, &why) {
            tracing::warn!(why, "{name}: {commits} not committed; retrying");
        }
        Ok(CommitStep::Settled)
    }

    /// Sends the next commit of each partition to the coordinator.
    fn send(&mut self, content: &impl CommitContent) {
        let commits = content.next_commits(&self.partitions, &self.commits.consumed);
        if commits.is_empty() {
            return self.record_commit_success();
        }
        let mut attempted = Vec::with_capacity(commits.len());
        for (number, committed) in commits {
            let partition = self.partitions.place(number);
            let Some(state) = self.partitions.states.get_mut(&number) else { continue };
            state.record_attempt(committed.offset);
            attempted.push((partition, committed, state.epoch));
        }
        let offsets: Vec<_> = attempted.iter().map(|(at, committed, _)| (at.clone(), committed.clone())).collect();
        let committing = Box::pin(with_timeout("commit", self.consumer.commit(&offsets)));
        self.commits.pending = Some(PendingCommit::Sent(attempted, committing));
    }

    /// Handles the answer of the coordinator. An offset under an epoch that has ended is ignored.
    fn on_answer(
        &mut self,
        attempted: AttemptedOffsets,
        answer: Result<(), BrokerError>,
        content: &mut impl CommitContent,
    ) -> Result<(), MemberError> {
        match answer {
            Ok(()) => {
                for (partition, committed, epoch) in attempted {
                    if let Some(state) = self.partitions.current(partition.partition, epoch) {
                        content.on_committed(&committed);
                        state.committed = Some(committed);
                    }
                }
                self.services.metrics.commits.inc();
                self.record_commit_success();
            }
            Err(error) if error.kind.is_client_unusable() => return Err(error.into()),
            Err(error) => {
                let MemberProfile { name, commits, .. } = &self.profile;
                self.services.metrics.commit_failures.of(CommitFailure::Broker).inc();
                if self.commits.health.record_failure(&self.services.health, &error) {
                    tracing::warn!(%error, "{name}: {commits} not committed; retrying");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_offsets_are_durable_after_the_lag() {
        let consumed = |offset| ConsumedOffsets { validated: [(3, offset)].into(), ..ConsumedOffsets::default() };
        let offsets = |at, durable| RecordedOffsets { consumed: consumed(at), durable: consumed(durable) };
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut consumed_offsets = DurableConsumed::default();
        (1..=4).for_each(|n| consumed_offsets.record(start + second * n, offsets(u64::from(n) * 10, u64::from(n))));
        assert_eq!(consumed_offsets.missing(&consumed(40), &consumed(4)), None);
        assert_eq!(consumed_offsets.missing(&consumed(41), &consumed(3)), Some(offsets(41, 4)));
        assert_eq!(consumed_offsets.missing(&consumed(40), &consumed(5)), Some(offsets(40, 5)));
        let mut durable_at = |second_of_poll: u32| {
            consumed_offsets.promote(start + second * second_of_poll, 2 * second);
            (consumed_offsets.limit_of(3), consumed_offsets.limit_of(4), consumed_offsets.not_durable.len())
        };
        assert_eq!(
            [durable_at(2), durable_at(3), durable_at(5), durable_at(9)],
            [(0, 0, 4), (10, 0, 3), (30, 0, 1), (40, 0, 0)]
        );
    }
}
