//! State of one assigned partition: completions, end offset, limits, and the next commit.

use std::collections::VecDeque;

use crate::{
    broker::{AssignedPartition, CommittedOffset, Message, TopicPartition},
    clock::Clock,
    event::Event,
    group::{
        commit_metadata::{CommitMetadata, Halt, committed_by_instance, parse_view},
        dead_letters::DeadLetterGauge,
        missing_parent::{PartitionView, TxidPrefix, WaitingEvents},
        offsets::OffsetTracker,
        reading::{ReadState, Reading},
    },
    status::registry::{HaltStatus, InFlightStatus, PartitionStatus},
    telemetry::PartitionMetrics,
};

/// Limits on the unfinished events of one partition. A partition above a limit is paused, and resumes at half of it.
#[derive(Debug, Clone, Copy)]
pub struct PartitionLimits {
    /// Messages between the watermark and the position.
    pub span: u64,
    /// Bytes of the messages (key, payload, headers) that are not completed, with the bodies to which they refer.
    pub bytes: u64,
}

/// Greatest time by which a producer's clock may be ahead of the own clock; half the grace of a missing parent if that
/// is less. A message with a later timestamp would make its partition count as read past every event to come there.
const MAX_CLOCK_SKEW_MS: u64 = 60_000;
/// Number of messages in a row with such a timestamp after which the own clock counts as the wrong one.
const FUTURE_MESSAGES_BEFORE_TRUST: u32 = 100;

/// Greatest timestamp, ms since the epoch, that counts for a message read at `now_ms`.
pub fn latest_plausible_ms(now_ms: u64, missing_parent_grace_ms: u64) -> i64 {
    (now_ms + MAX_CLOCK_SKEW_MS.min(missing_parent_grace_ms / 2)) as i64
}

/// Time, read from the wall clock and from the steady clock.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Milliseconds since the epoch.
    pub wall_ms: u64,
    /// Milliseconds of a clock that never jumps.
    pub steady_ms: u64,
}

impl Moment {
    /// Reads both clocks at the present time.
    pub fn now(clock: &Clock) -> Self {
        Moment { wall_ms: clock.now_ms(), steady_ms: clock.steady_ms() }
    }
}

/// Resolution of the recorded read times.
const READ_TIME_RESOLUTION_MS: u64 = 100;

/// End offset of a partition, as of the last answer of the broker.
#[derive(Debug, Clone, Copy)]
struct EndOffset {
    offset: u64,
    /// The partition was read to its end.
    is_reached: bool,
    /// A batch or the end was delivered since the last check for a stale end offset.
    is_fresh: bool,
}

/// State of one assigned partition.
pub struct PartitionState {
    partition: TopicPartition,
    /// Epoch of the assignment.
    pub epoch: u64,
    /// Completed and durable offsets of the partition.
    pub tracker: OffsetTracker,
    /// Causes for which the partition is not read.
    pub reads: ReadState,
    /// Counts of the dead letters.
    pub dead_letters: DeadLetterGauge,
    /// The last commit that is known.
    pub committed: Option<CommittedOffset>,
    end: EndOffset,
    /// Greatest timestamp of all messages read, ms since the epoch.
    read_timestamp_ms: i64,
    /// Timestamp of the oldest unread event while nothing was read, ms since the epoch: from the metadata of the commit
    /// at which the assignment begins, or else the time of the assignment.
    oldest_unread_ms: i64,
    /// Number of the messages read last, in a row, whose timestamps are too late to count.
    future_messages: u32,
    /// The store is known to have consumed the committed offset.
    is_verified: bool,
    /// Greatest offset that the group was ever asked to store: a commit without an answer may have arrived.
    attempted_offset: u64,
    /// Offset below which an earlier assignment had read every event (and perhaps later ones).
    replayed_below: u64,
    /// Position of the assignment.
    start_offset: u64,
    /// (offset, steady time): events from this offset on were read at this time or later. Completed events are left
    /// out.
    read_times: VecDeque<(u64, u64)>,
    metrics: PartitionMetrics,
}

impl PartitionState {
    /// State at the assignment, at `now_ms` since the epoch. `can_lose_writes`: the store can lose acknowledged writes.
    pub fn new(assigned: &AssignedPartition, metrics: PartitionMetrics, can_lose_writes: bool, now_ms: u64) -> Self {
        let view = assigned.committed.as_ref().and_then(parse_view);
        let tracker = if can_lose_writes { OffsetTracker::with_durability_lag } else { OffsetTracker::new };
        PartitionState {
            epoch: assigned.epoch,
            tracker: tracker(assigned.position),
            end: EndOffset {
                offset: assigned.high_watermark,
                is_reached: assigned.position >= assigned.high_watermark,
                is_fresh: true,
            },
            reads: ReadState::default(),
            dead_letters: DeadLetterGauge::default(),
            read_timestamp_ms: i64::MIN,
            oldest_unread_ms: view.as_ref().and_then(oldest_unread_in).unwrap_or(now_ms as i64),
            future_messages: 0,
            is_verified: assigned.committed.as_ref().and_then(committed_by_instance).is_none(),
            committed: assigned.committed.clone(),
            attempted_offset: assigned.committed.as_ref().map_or(0, |committed| committed.offset),
            replayed_below: view.map_or(0, |view| view.position),
            start_offset: assigned.position,
            read_times: VecDeque::new(),
            partition: assigned.partition.clone(),
            metrics,
        }
    }

    /// Returns topic and number of the partition.
    pub fn partition(&self) -> &TopicPartition {
        &self.partition
    }

    /// Records the read time of the messages that are delivered next.
    pub fn record_read_time(&mut self, steady_ms: u64) {
        if self.read_times.back().is_none_or(|(_, at_ms)| steady_ms.saturating_sub(*at_ms) >= READ_TIME_RESOLUTION_MS) {
            self.read_times.push_back((self.tracker.position(), steady_ms));
        }
        while self.read_times.get(1).is_some_and(|(offset, _)| *offset <= self.tracker.watermark()) {
            self.read_times.pop_front();
        }
    }

    /// The event that was read first of all events that are not completed.
    fn oldest_in_flight(&self, steady_ms: u64) -> Option<InFlightStatus> {
        // Events are read in the order of their offsets.
        let offset = Some(self.tracker.watermark()).filter(|_| self.tracker.unfinished() > 0)?;
        let read_ms = self.read_times.iter().take_while(|(from, _)| *from <= offset).last().map(|(_, at_ms)| *at_ms);
        let age_ms = steady_ms.saturating_sub(read_ms.unwrap_or(steady_ms));
        Some(InFlightStatus { offset, age_seconds: age_ms as f64 / 1_000.0 })
    }

    /// Returns the first offset that the topic still holds if the group has committed nothing and the first events are
    /// deleted. An instance never commits such a partition: the commit is how an operator accepts the loss.
    pub fn truncated_before_first_commit(&self) -> Option<u64> {
        Some(self.start_offset).filter(|start| *start > 0 && self.committed.is_none())
    }

    /// Registers a message; a timestamp after `latest_ms` does not count. Returns `false` for a message that was read
    /// before.
    pub fn deliver(&mut self, message: &Message, latest_ms: i64) -> bool {
        // The body counts although the memory may not hold it yet: a partition is paused before it reads far ahead.
        let body_bytes = Event::referenced_length(&message.payload).and_then(|length| usize::try_from(length).ok());
        let bytes = message.bytes().saturating_add(body_bytes.unwrap_or(0));
        let is_new = self.tracker.deliver(message.offset, message.timestamp_ms, bytes);
        if is_new {
            let is_future = message.timestamp_ms > latest_ms;
            self.future_messages = if is_future { self.future_messages.saturating_add(1) } else { 0 };
            if self.future_messages == 0 || self.future_messages >= FUTURE_MESSAGES_BEFORE_TRUST {
                self.read_timestamp_ms = self.read_timestamp_ms.max(message.timestamp_ms);
            }
        }
        is_new
    }

    /// Records that a batch comes, and the broker's end offset.
    pub fn begin_batch(&mut self, high_watermark: u64) {
        self.update_high_watermark(high_watermark);
        (self.end.is_reached, self.end.is_fresh) = (false, true);
    }

    /// Raises the end offset to the broker's answer. Messages that are not delivered, of a paused partition say, raise
    /// the end offset, too.
    pub fn update_high_watermark(&mut self, end: u64) {
        self.end.offset = self.end.offset.max(end);
    }

    /// Returns whether the broker has to be asked for the end offset: nothing was delivered since the last call, and
    /// new messages would not be delivered, either (they are after an end that was reached, unless the partition is
    /// paused).
    pub fn needs_end_offset_refresh(&mut self) -> bool {
        let was_fresh = std::mem::take(&mut self.end.is_fresh);
        !was_fresh && (self.reads.is_paused() || !self.end.is_reached)
    }

    /// Records that every message below `position`, the end, has been read.
    pub fn reach_end(&mut self, position: u64) {
        self.tracker.skip_to(position);
        self.update_high_watermark(position);
        (self.end.is_reached, self.end.is_fresh) = (true, true);
    }

    fn is_at_end(&self) -> bool {
        self.end.is_reached && self.tracker.position() >= self.end.offset
    }

    /// Records that the store has consumed every event below the committed offset `offset`. A rewind may have set the
    /// committed offset back meanwhile, never forward.
    pub fn verify_consumed(&mut self, offset: u64) {
        self.is_verified |= self.rewind_offset() <= offset;
    }

    /// Returns the watermark, once the committed offset is compared with the store: the offset to record as consumed.
    pub fn consumed_offset(&self) -> Option<u64> {
        self.is_verified.then(|| self.tracker.watermark())
    }

    /// Returns whether a message is known to have been read under an earlier assignment.
    pub fn is_replayed(&self, message: &Message) -> bool {
        message.offset < self.replayed_below
    }

    /// The exceeded limit (`messages` or `bytes`) for which the partition must be paused.
    pub fn exceeded_limit(&self, limits: &PartitionLimits) -> Option<&'static str> {
        self.exceeded(limits.span, limits.bytes)
    }

    /// The limit (`messages` or `bytes`) half of which is exceeded, so that the partition cannot resume yet.
    pub fn exceeded_resume_limit(&self, limits: &PartitionLimits) -> Option<&'static str> {
        self.exceeded(limits.span / 2, limits.bytes / 2)
    }

    fn exceeded(&self, span: u64, bytes: u64) -> Option<&'static str> {
        if self.tracker.span() > span {
            Some("messages")
        } else if self.tracker.unfinished_bytes() > bytes {
            Some("bytes")
        } else {
            None
        }
    }

    /// Progress of the partition, for the proofs of other instances. `waiting`: the oldest events of the partition that
    /// are parked, as (timestamp, offset, first bytes of the txid).
    pub fn view(&self, waiting: &[(i64, u64, TxidPrefix)]) -> PartitionView {
        // Events that were never read can have any age.
        let never_read = self.truncated_before_first_commit().map(|_| (i64::MIN, 0));
        // An event that waits in a halted partition may stay there for good.
        let includes_waiting = !waiting.is_empty() && never_read.is_none() && !self.reads.is_halted();
        let rest = || self.tracker.oldest_not_durable_except(&waiting.iter().map(|(_, offset, _)| *offset).collect());
        PartitionView {
            waiting: includes_waiting.then(|| WaitingEvents { events: waiting.to_vec(), oldest_of_rest: rest() }),
            oldest_unfinished: never_read.or_else(|| self.tracker.oldest_not_durable()),
            read_timestamp_ms: self.read_timestamp_ms,
            position: self.tracker.position(),
            at_end: self.is_at_end(),
            // Events after a limit are read once there is room. Events after an operator's pause may have any age.
            over_limit: self.reads.is_full() && !self.reads.is_paused_by_operator(),
        }
    }

    /// The assignment at its committed offset.
    pub fn committed_assignment(&self) -> AssignedPartition {
        AssignedPartition {
            partition: self.partition.clone(),
            epoch: self.epoch,
            committed: self.committed.clone(),
            position: self.rewind_offset(),
            high_watermark: self.end.offset,
        }
    }

    /// State after a seek to the committed offset: as at the assignment `again`, with the commits since. `reads`: state
    /// of the reads from now on.
    pub fn rewound(&self, again: &AssignedPartition, reads: ReadState, can_lose_writes: bool) -> Self {
        PartitionState {
            start_offset: self.start_offset,
            attempted_offset: self.attempted_offset,
            is_verified: self.is_verified,
            reads,
            ..PartitionState::new(again, self.metrics.clone(), can_lose_writes, self.oldest_unread_ms.max(0) as u64)
        }
    }

    /// Offset at which reading continues after a node's restart, or after a halt is lifted.
    pub fn rewind_offset(&self) -> u64 {
        self.committed.as_ref().map_or(self.start_offset, |committed| committed.offset)
    }

    /// Records that the group is asked to store this offset.
    pub fn record_attempt(&mut self, offset: u64) {
        self.attempted_offset = self.attempted_offset.max(offset);
    }

    /// Returns the next commit, if the offset or the metadata has changed since the last commit.
    ///
    /// The offset is the durable offset, at most `recorded`, the offset that the meta record durably holds as consumed.
    /// There is no commit while `recorded` is below the committed offset, before the committed offset is compared with
    /// the store, and below an offset that the group was ever asked to store: after a rewind a lower offset would take
    /// back a commit that arrived without an answer. `waiting`: as for [`view`](Self::view).
    pub fn next_commit(&self, recorded: u64, waiting: &[(i64, u64, TxidPrefix)]) -> Option<CommittedOffset> {
        if recorded < self.rewind_offset() || !self.is_verified {
            return None;
        }
        let halted = self.reads.halt().map(Halt::truncated_for_commit);
        let metadata = CommitMetadata { view: self.view(waiting), halted }.to_metadata();
        let now = CommittedOffset { offset: self.tracker.durable_offset().min(recorded), metadata };
        if now.offset < self.attempted_offset {
            return None;
        }
        let moved = self.committed.as_ref().is_none_or(|last| last.offset < now.offset);
        let has_new_metadata =
            self.committed.as_ref().is_some_and(|last| last.offset == now.offset && last.metadata != now.metadata);
        let never_read =
            self.committed.is_none() && self.tracker.position() == 0 || self.truncated_before_first_commit().is_some();
        ((moved && !never_read) || has_new_metadata).then_some(now)
    }

    /// State of the partition for `/state`. `parked`: number of parked transactions. `describe_pause`: text of a pause
    /// at this limit (`messages` or `bytes`), or for a reason of the member.
    pub fn status(
        &self,
        now: Moment,
        limits: &PartitionLimits,
        parked: usize,
        describe_pause: fn(Option<&'static str>) -> &'static str,
    ) -> PartitionStatus {
        let watermark = self.tracker.watermark();
        let read_ms = if self.read_timestamp_ms > i64::MIN { self.read_timestamp_ms } else { self.oldest_unread_ms };
        let oldest_unread_ms = Some(read_ms).filter(|_| self.tracker.position() < self.end.offset);
        let oldest_ms = self.tracker.oldest_not_completed().map(|(timestamp_ms, _)| timestamp_ms).or(oldest_unread_ms);
        let age_ms = oldest_ms.map_or(0, |then| (now.wall_ms as i64).saturating_sub(then).max(0));
        let why = match (self.reads.reading(), self.exceeded_resume_limit(limits)) {
            (Reading::PausedByOperator, _) => "paused by an operator",
            (Reading::Halted(_), _) => "the partition is halted",
            (Reading::Full, limit) => describe_pause(limit),
            (Reading::Read, _) => describe_pause(None),
        };
        PartitionStatus {
            topic: self.partition.topic.to_string(),
            partition: self.partition.partition,
            epoch: self.epoch,
            position: self.tracker.position(),
            watermark,
            committed: self.committed.as_ref().map(|committed| committed.offset),
            high_watermark: self.end.offset,
            at_end: self.is_at_end(),
            lag_messages: self.end.offset.saturating_sub(watermark),
            lag_seconds: age_ms as f64 / 1_000.0,
            unfinished_events: self.tracker.unfinished() as u64,
            unfinished_bytes: self.tracker.unfinished_bytes(),
            oldest_in_flight: self.oldest_in_flight(now.steady_ms),
            parked: parked as u64,
            paused: self.reads.is_paused().then_some(why),
            halted: self.reads.halt().map(|halt| HaltStatus { why: halt.why.clone(), since_ms: halt.since_ms }),
        }
    }

    /// Sets the metrics of the partition to its status.
    pub fn update_metrics(&self, status: &PartitionStatus) {
        let metrics = &self.metrics;
        metrics.lag_messages.set(status.lag_messages as i64);
        metrics.lag_seconds.set(status.lag_seconds);
        metrics.oldest_in_flight_seconds.set(status.oldest_in_flight.map_or(0.0, |oldest| oldest.age_seconds));
        metrics.position.set(status.position as i64);
        metrics.watermark.set(status.watermark as i64);
        metrics.committed.set(status.committed.map_or(-1, |offset| offset as i64));
        metrics.high_watermark.set(status.high_watermark as i64);
        metrics.epoch.set(status.epoch as i64);
        metrics.halted.set(i64::from(status.halted.is_some()));
        metrics.paused.set(i64::from(status.paused.is_some()));
        metrics.paused_by_operator.set(i64::from(self.reads.is_paused_by_operator()));
        metrics.unfinished_events.set(status.unfinished_events as i64);
        metrics.unfinished_bytes.set(status.unfinished_bytes as i64);
        metrics.parked_events.set(status.parked as i64);
    }
}

/// Timestamp of the oldest event that is not read yet, from the metadata of the commit, if the metadata has one.
fn oldest_unread_in(view: &PartitionView) -> Option<i64> {
    let oldest_ms = view.oldest_unfinished.map_or(view.read_timestamp_ms, |(timestamp_ms, _)| timestamp_ms);
    (oldest_ms > i64::MIN).then_some(oldest_ms)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        broker::MAX_COMMIT_METADATA,
        event::{BodyReference, ContentHash, ValidatedReference},
        group::commit_metadata::reset_commit,
        telemetry::Metrics,
        tx::Txid,
    };

    fn describe_pause(limit: Option<&'static str>) -> &'static str {
        limit.map_or("all is full", |_| "too many messages are unfinished")
    }

    fn state(committed: Option<CommittedOffset>) -> PartitionState {
        let partition = TopicPartition { topic: "txs".into(), partition: 0 };
        let metrics = Metrics::new().partition(&partition);
        let position = committed.as_ref().map_or(0, |committed| committed.offset);
        let assigned = AssignedPartition { partition, epoch: 1, committed, position, high_watermark: 100 };
        PartitionState::new(&assigned, metrics, false, 60_000)
    }

    fn rewound(state: &PartitionState) -> PartitionState {
        let again = AssignedPartition { epoch: 2, ..state.committed_assignment() };
        state.rewound(&again, state.reads.after_rewind(), true)
    }

    fn message(offset: u64) -> Message {
        Message { offset, timestamp_ms: 1_000, key: Bytes::new(), payload: Bytes::new(), headers: vec![] }
    }

    #[test]
    fn events_read_and_not_committed_are_known_as_replayed() {
        let mut first = state(None);
        (0..5)
            .for_each(|offset| assert!(first.deliver(&message(offset), 1_000) && !first.is_replayed(&message(offset))));
        first.tracker.complete(0, 0);
        first.tracker.complete(3, 0);
        let committed = first.next_commit(u64::MAX, &[]).unwrap();
        assert_eq!(committed.offset, 1);

        let second = state(Some(committed));
        let replayed: Vec<u64> = (1..10).filter(|offset| second.is_replayed(&message(*offset))).collect();
        assert_eq!(replayed, [1, 2, 3, 4]);
    }

    #[test]
    fn payload_key_and_headers_count_towards_the_byte_limit() {
        let limits = PartitionLimits { span: 100, bytes: 1_000 };
        let large = || Bytes::from(vec![0; 1_001]);
        for message in [
            Message { payload: large(), ..message(0) },
            Message { key: large(), ..message(0) },
            Message { headers: vec![("h".into(), large())], ..message(0) },
        ] {
            let mut state = state(None);
            state.deliver(&message, i64::MAX);
            assert!(state.exceeded_limit(&limits).is_some(), "{message:?}");
        }
    }

    #[test]
    fn a_referenced_body_counts_towards_the_byte_limit() {
        let limits = PartitionLimits { span: 100, bytes: 1_000 };
        let message_of = |length| {
            let tx = BodyReference { key: "k".into(), length, blake3: ContentHash([0; 32]) };
            let event = ValidatedReference { txid: Txid([1; 32]), tx, height: 1, locked: false };
            Message { payload: event.encode().into(), ..message(0) }
        };
        for (length, exceeds) in [(500, false), (1_001, true), (u64::MAX, true)] {
            let mut state = state(None);
            state.deliver(&message_of(length), i64::MAX);
            assert_eq!(state.exceeded_limit(&limits).is_some(), exceeds, "{length}");
        }
    }

    #[test]
    fn a_timestamp_far_ahead_does_not_count_as_read_past() {
        let mut state = state(None);
        let latest_ms = latest_plausible_ms(1_000, 20_000);
        assert_eq!((latest_ms, latest_plausible_ms(1_000, 600_000)), (11_000, 61_000));
        let at = |offset, timestamp_ms| Message { timestamp_ms, ..message(offset) };
        for (offset, timestamp_ms, read) in
            [(0, 500, 500), (1, 1_000_000, 500), (2, 11_000, 11_000), (3, 11_001, 11_000)]
        {
            assert!(state.deliver(&at(offset, timestamp_ms), latest_ms));
            assert_eq!(state.view(&[]).read_timestamp_ms, read, "offset {offset}");
        }
        let first = u64::from(FUTURE_MESSAGES_BEFORE_TRUST) + 3;
        (4..first).for_each(|offset| assert!(state.deliver(&at(offset, 90_000), latest_ms)));
        assert_eq!(state.view(&[]).read_timestamp_ms, 90_000, "the own clock is behind the producers' clocks");
    }

    #[test]
    fn status_shows_progress_and_the_reason_of_a_pause() {
        let limits = PartitionLimits { span: 4, bytes: 1_000 };
        let mut state = state(None);
        let at = |steady_ms| Moment { wall_ms: 60_000 + steady_ms, steady_ms };
        let status = |state: &PartitionState, steady_ms| state.status(at(steady_ms), &limits, 2, describe_pause);
        let idle = status(&state, 1_000);
        assert_eq!(
            (idle.oldest_in_flight, idle.lag_seconds, idle.lag_messages),
            (None, 1.0, 100),
            "since the assignment"
        );
        assert_eq!((idle.committed, idle.paused, idle.parked), (None, None, 2));
        // Two messages each are read at 1, 2 and 3 seconds; their timestamps are from 30 seconds on.
        for second in 1..=3 {
            state.record_read_time(second * 1_000);
            for offset in (second - 1) * 2..second * 2 {
                state.deliver(&Message { timestamp_ms: 30_000 + offset as i64, ..message(offset) }, i64::MAX);
            }
        }
        let oldest = |state: &PartitionState| {
            let status = status(state, 10_000);
            (status.oldest_in_flight.map(|oldest| (oldest.offset, oldest.age_seconds)), status.lag_seconds)
        };
        assert_eq!(oldest(&state), (Some((0, 9.0)), 40.0));
        [0, 1, 2].into_iter().for_each(|offset| state.tracker.complete(offset, 0));
        assert_eq!(oldest(&state), (Some((3, 8.0)), 39.997));
        state.reads.record_pause();
        assert_eq!(status(&state, 0).paused, Some("all is full"));
        assert!(state.reads.enter_full());
        assert_eq!(status(&state, 0).paused, Some("too many messages are unfinished"));
        state.reads.enter_halt(Halt { why: "x".into(), since_ms: 5 });
        assert_eq!(status(&state, 0).paused, Some("the partition is halted"));
        assert!(state.view(&[]).over_limit);
        assert!(state.reads.pause_by_operator());
        assert_eq!(status(&state, 0).paused, Some("paused by an operator"));
        assert!(!state.view(&[]).over_limit, "unread events may be older");
        (3..6).for_each(|offset| state.tracker.complete(offset, 0));
        assert_eq!(oldest(&state), (None, 39.995), "unread events are not older than the read ones");
        state.record_read_time(4_000);
        assert_eq!(state.read_times.len(), 1, "completed events need no read time");
        state.reach_end(100);
        assert_eq!(oldest(&state), (None, 0.0));
        state.update_high_watermark(101);
        assert_eq!(oldest(&state), (None, 39.995), "the end has moved");
    }

    #[test]
    fn age_of_unread_events_is_taken_from_the_commit() {
        let limits = PartitionLimits { span: 4, bytes: 1_000 };
        let lag = |state: &PartitionState| {
            state.status(Moment { wall_ms: 70_000, steady_ms: 0 }, &limits, 0, describe_pause).lag_seconds
        };
        let committed = |metadata: &str| state(Some(CommittedOffset { offset: 3, metadata: metadata.into() }));
        assert_eq!(lag(&state(None)), 10.0, "since the assignment");
        assert_eq!(lag(&committed("")), 10.0, "a commit of an operator");
        assert_eq!(lag(&committed(r#"{"read":30000,"pos":5}"#)), 40.0, "later events are not older");
        assert_eq!(lag(&committed(r#"{"oldest":[20000,3],"read":30000,"pos":5}"#)), 50.0);
        assert_eq!(lag(&state(Some(reset_commit(3)))), 10.0, "the metadata has no timestamp");
        let again = rewound(&committed(r#"{"oldest":[20000,3],"read":30000,"pos":5}"#));
        assert_eq!(lag(&again), 50.0);
        let mut done = state(None);
        done.reach_end(100);
        assert_eq!(lag(&done), 0.0);
    }

    #[test]
    fn nothing_is_committed_before_the_comparison_with_the_store() {
        let committed = CommittedOffset { offset: 3, metadata: r#"{"read":9,"pos":5}"#.into() };
        let mut state = state(Some(committed.clone()));
        state.deliver(&message(3), 1_000);
        state.tracker.complete(3, 0);
        assert_eq!(state.next_commit(u64::MAX, &[]), None);
        state.verify_consumed(2);
        assert!(!state.is_verified, "the committed offset is 3");
        state.verify_consumed(3);
        assert_eq!(state.next_commit(2, &[]), None, "the consumed offset is not durable");
        assert_eq!(state.next_commit(3, &[]).map(|committed| committed.offset), Some(3));
        assert_eq!(state.next_commit(4, &[]).map(|committed| committed.offset), Some(4));
        let by_operator = CommittedOffset { metadata: String::new(), ..committed };
        assert!(self::state(Some(by_operator)).is_verified, "an operator's commit is not compared");
    }

    #[test]
    fn no_commit_is_below_an_attempted_offset() {
        let mut first = state(None);
        (0..5).for_each(|offset| assert!(first.deliver(&message(offset), 1_000)));
        (0..4).for_each(|offset| first.tracker.complete(offset, 0));
        let attempted = first.next_commit(u64::MAX, &[]).unwrap();
        assert_eq!(attempted.offset, 4);
        // The commit gets no answer, and a node loses writes.
        first.record_attempt(attempted.offset);
        let mut again = PartitionState { tracker: OffsetTracker::new(0), ..rewound(&first) };
        (0..5).for_each(|offset| assert!(again.deliver(&message(offset), 1_000)));
        (0..3).for_each(|offset| again.tracker.complete(offset, 0));
        assert_eq!(again.next_commit(u64::MAX, &[]), None);
        again.tracker.complete(3, 0);
        assert_eq!(again.next_commit(u64::MAX, &[]).map(|committed| committed.offset), Some(4));
    }

    #[test]
    fn a_halt_is_part_of_the_commit() {
        let mut first = state(None);
        first.deliver(&message(0), 1_000);
        assert_eq!(Halt::from_commit(&first.next_commit(u64::MAX, &[]).unwrap()), None);
        let halt = Halt { why: "3 dead letters in a row".into(), since_ms: 5_000 };
        first.reads.enter_halt(halt.clone());
        let committed = first.next_commit(u64::MAX, &[]).unwrap();
        assert_eq!(Halt::from_commit(&committed), Some(halt));
        assert!(state(Some(committed)).is_replayed(&message(0)), "the metadata has the view, too");
    }

    #[test]
    fn a_commit_with_a_cut_reason_is_not_repeated() {
        let mut state = state(None);
        state.deliver(&message(0), 1_000);
        state.reads.enter_halt(Halt { why: "\"".repeat(9_000), since_ms: 5_000 });
        let committed = state.next_commit(u64::MAX, &[]).unwrap();
        assert!(committed.metadata.len() <= MAX_COMMIT_METADATA, "{} bytes", committed.metadata.len());
        state.committed = Some(committed);
        assert_eq!(state.next_commit(u64::MAX, &[]), None, "the metadata has not changed");
    }

    #[test]
    fn a_commit_without_metadata_tells_no_read_position() {
        for metadata in ["", "{", "{\"read\":5}"] {
            let state = state(Some(CommittedOffset { offset: 3, metadata: metadata.into() }));
            assert!(!state.is_replayed(&message(3)), "{metadata}");
        }
    }
}
