//! What is known of one assigned partition.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{
    broker::{Assigned, Broker, BrokerError, Committed, MAX_COMMIT_METADATA, Message, TopicPartition},
    clock::Clock,
    group::{
        dead_letters::DeadLetterGauge,
        offsets::OffsetTracker,
        proof::{Name, PartitionView, Waiting},
    },
    status::registry::{HaltStatus, InFlightStatus, PartitionStatus},
    telemetry::PartitionMetrics,
    text::beginning_as_json,
};

/// What may be unfinished in one partition before it is paused; it goes on at half.
#[derive(Debug, Clone, Copy)]
pub struct PartitionBounds {
    /// Messages between the watermark and the position.
    pub span: u64,
    /// Bytes of payload that are not completed.
    pub bytes: u64,
}

/// A producer's clock may be ahead of ours by so much, or half the grace of a missing parent. A message from beyond would make
/// its partition count as read past everything that is still to come there.
const CLOCKS_DIFFER_MS: u64 = 60_000;
/// So many from beyond, one after the other: the clock that is wrong is ours.
const OURS_IS_WRONG: u32 = 100;

/// No later timestamp is believed of what is read at `now_ms`.
pub fn latest_believed_ms(now_ms: u64, missing_parent_grace_ms: u64) -> i64 {
    (now_ms + CLOCKS_DIFFER_MS.min(missing_parent_grace_ms / 2)) as i64
}

/// Why a partition does not go on until an operator has looked. It travels with the commit, so that no rebalance lifts it:
/// only an instance that was started after it tries again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    /// In one line.
    pub why: String,
    /// Since when, ms since the epoch.
    #[serde(rename = "since")]
    pub since_ms: u64,
}

/// Bytes of a commit that the reason of a halt may take, as JSON writes it. What else is said takes fewer than the rest, always: so the
/// reason is cut in one place, whatever else is said, and a commit that is repeated tells of the same halt.
const MOST_OF_WHY: usize = MAX_COMMIT_METADATA - 512;

impl Halt {
    /// As a commit may carry it: the broker refuses longer metadata, and with it every later commit of the partition.
    fn within_a_commit(&self) -> Halt {
        Halt { why: beginning_as_json(&self.why, MOST_OF_WHY).into_owned(), since_ms: self.since_ms }
    }

    /// The halt that a commit tells of.
    pub fn of(committed: &Committed) -> Option<Halt> {
        note_in(committed)?.halted
    }
}

/// What is said with a commit, as JSON. What a later version adds is passed over, what an earlier one lacks is none.
#[derive(Serialize, Deserialize)]
struct Note {
    #[serde(flatten)]
    view: PartitionView,
    #[serde(rename = "halt", default, skip_serializing_if = "Option::is_none")]
    halted: Option<Halt>,
}

impl Note {
    fn to_metadata(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| unreachable!("numbers and text always serialise"))
    }
}

/// How far a commit says that an instance has come. `None`: it is no instance's; an operator has said where to go on.
pub fn consumed_of(committed: &Committed) -> Option<u64> {
    note_in(committed).map(|_| committed.offset)
}

/// What is committed for a group that is set back: nothing from this offset on is finished, and nothing was read. It is an instance's word,
/// as the store has consumed so much; it stands before every proof until the partition is read again; and it lifts a halt.
pub fn begins_at(offset: u64) -> Committed {
    let view = PartitionView {
        oldest_unfinished: Some((i64::MIN, offset)),
        waiting: None,
        read_timestamp_ms: i64::MIN,
        position: offset,
        at_end: false,
        at_bound: false,
    };
    Committed { offset, metadata: Note { view, halted: None }.to_metadata() }
}

/// Why a partition halts whose beginning retention took before the group had committed anything of it.
pub fn never_read(group: &str, low: u64) -> String {
    format!(
        "the topic no longer holds offsets 0 to {low}, and the group has committed nothing: they were never read (to go on \
         without them, commit where to begin with `kafka-consumer-groups --group {group} --reset-offsets` and start again)"
    )
}

/// Why a partition halts whose next offset is not in the topic (any more, or yet); `None`: it is.
pub fn gone(next: u64, low: u64, high: u64) -> Option<String> {
    (!(low..=high).contains(&next)).then(|| format!("offset {next} is next, but the topic holds {low} to {high}"))
}

/// A time, by the wall clock and by the steady one.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Milliseconds since the epoch.
    pub wall_ms: u64,
    /// Milliseconds that never jump.
    pub steady_ms: u64,
}

impl Moment {
    /// As of now.
    pub fn of(clock: &Clock) -> Self {
        Moment { wall_ms: clock.now_ms(), steady_ms: clock.steady_ms() }
    }
}

/// When events were read is known as exactly as this.
const READ_MARK_MS: u64 = 100;

/// One assigned partition.
pub struct PartitionState {
    partition: TopicPartition,
    /// Of its assignment.
    pub epoch: u64,
    /// Its completions.
    pub tracker: OffsetTracker,
    /// Its end, as last heard.
    pub high_watermark: u64,
    /// Something was delivered of it, or its end, since it was last looked whether that is so.
    pub heard: bool,
    /// It was read to its end.
    pub at_end: bool,
    /// It delivers nothing for now.
    pub paused: bool,
    /// It was read to its bound, and has not come below half of it since.
    pub at_bound: bool,
    /// Why it does not go on until an operator has looked.
    pub halted: Option<Halt>,
    /// An operator has said that nothing more is to be read of it here.
    pub paused_by_hand: bool,
    /// Its dead letters.
    pub dead_letters: DeadLetterGauge,
    /// Greatest timestamp read.
    read_timestamp_ms: i64,
    /// As old as what there is to read is known to be, while nothing was read: by what was said with the commit that it begins at, or else
    /// as it was assigned.
    unread_ms: i64,
    /// Messages read last, one after the other, whose timestamps are not believed.
    from_beyond: u32,
    /// The store is known to hold what has been committed.
    pub compared: bool,
    /// What was committed last.
    pub committed: Option<Committed>,
    /// The greatest offset that the group was ever asked to take: of a commit without an answer nobody knows what became.
    offered: u64,
    /// Below it, an earlier assignment had read everything (and perhaps more).
    read_before: u64,
    /// Where it began without a committed offset.
    start: u64,
    /// (offset, steady time): from this offset on events were read at that time, or later; as far as they are not completed.
    read_at: VecDeque<(u64, u64)>,
    metrics: PartitionMetrics,
}

impl PartitionState {
    /// As it is assigned, at `now_ms` since the epoch. `forgetful`: the store may lose what it has acknowledged, for a while.
    pub fn new(assigned: &Assigned, metrics: PartitionMetrics, forgetful: bool, now_ms: u64) -> Self {
        let said = assigned.committed.as_ref().and_then(view_in);
        let tracker = if forgetful { OffsetTracker::forgetful } else { OffsetTracker::new };
        PartitionState {
            epoch: assigned.epoch,
            tracker: tracker(assigned.position),
            high_watermark: assigned.high_watermark,
            heard: true,
            at_end: assigned.position >= assigned.high_watermark,
            paused: false,
            at_bound: false,
            halted: None,
            paused_by_hand: false,
            dead_letters: DeadLetterGauge::default(),
            read_timestamp_ms: i64::MIN,
            unread_ms: said.as_ref().and_then(unread_of).unwrap_or(now_ms as i64),
            from_beyond: 0,
            compared: assigned.committed.as_ref().and_then(consumed_of).is_none(),
            committed: assigned.committed.clone(),
            offered: assigned.committed.as_ref().map_or(0, |committed| committed.offset),
            read_before: said.map_or(0, |view| view.position),
            start: assigned.position,
            read_at: VecDeque::new(),
            partition: assigned.partition.clone(),
            metrics,
        }
    }

    /// Notes that what is delivered next is read at this time.
    pub fn note_read(&mut self, steady_ms: u64) {
        if self.read_at.back().is_none_or(|(_, at_ms)| steady_ms.saturating_sub(*at_ms) >= READ_MARK_MS) {
            self.read_at.push_back((self.tracker.position(), steady_ms));
        }
        while self.read_at.get(1).is_some_and(|(offset, _)| *offset <= self.tracker.watermark()) {
            self.read_at.pop_front();
        }
    }

    /// Of those that are not completed, the event that was read first.
    fn oldest_in_flight(&self, steady_ms: u64) -> Option<InFlightStatus> {
        // They were read in the order of their offsets.
        let offset = Some(self.tracker.watermark()).filter(|_| self.tracker.unfinished() > 0)?;
        let read_ms = self.read_at.iter().take_while(|(from, _)| *from <= offset).last().map(|(_, at_ms)| *at_ms);
        let age_ms = steady_ms.saturating_sub(read_ms.unwrap_or(steady_ms));
        Some(InFlightStatus { offset, age_seconds: age_ms as f64 / 1_000.0 })
    }

    /// Whether its beginning is gone and nobody has ever committed anything of it: where reading would start. Such a
    /// partition is never committed by us: that is how an operator says that he knows.
    pub fn begins_above(&self) -> Option<u64> {
        Some(self.start).filter(|start| *start > 0 && self.committed.is_none())
    }

    /// Registers a message, of which no timestamp after `latest_ms` is believed; `false` for one that was read before.
    pub fn deliver(&mut self, message: &Message, latest_ms: i64) -> bool {
        let is_new = self.tracker.deliver(message.offset, message.timestamp_ms, message.bytes());
        if is_new {
            self.from_beyond = if message.timestamp_ms > latest_ms { self.from_beyond.saturating_add(1) } else { 0 };
            if self.from_beyond == 0 || self.from_beyond >= OURS_IS_WRONG {
                self.read_timestamp_ms = self.read_timestamp_ms.max(message.timestamp_ms);
            }
        }
        is_new
    }

    /// Its end, as the log says: what is not delivered, since it is paused say, moves it, too.
    pub fn hear_end(&mut self, end: u64) {
        self.high_watermark = self.high_watermark.max(end);
    }

    /// Whether its end has to be asked for: nothing was delivered since this was last asked, and what comes behind it would not be, either
    /// (behind an end that was reached it is, unless it is paused).
    pub fn end_is_unheard(&mut self) -> bool {
        let has_heard = std::mem::take(&mut self.heard);
        !has_heard && (self.paused || !self.at_end)
    }

    /// Everything has been read.
    pub fn reach_end(&mut self, position: u64) {
        self.tracker.pass(position);
        self.hear_end(position);
        (self.at_end, self.heard) = (true, true);
    }

    /// Whether a message is known to have been read under an earlier assignment.
    pub fn is_replayed(&self, message: &Message) -> bool {
        message.offset < self.read_before
    }

    /// Why it must be paused.
    pub fn over_bound(&self, bounds: &PartitionBounds) -> Option<&'static str> {
        self.over(bounds.span, bounds.bytes)
    }

    /// Why it cannot go on yet.
    pub fn over_half(&self, bounds: &PartitionBounds) -> Option<&'static str> {
        self.over(bounds.span / 2, bounds.bytes / 2)
    }

    fn over(&self, span: u64, bytes: u64) -> Option<&'static str> {
        if self.tracker.span() > span {
            Some("messages")
        } else if self.tracker.unfinished_bytes() > bytes {
            Some("bytes")
        } else {
            None
        }
    }

    /// What others need to know for their proofs. `named`: the oldest of its events that wait themselves.
    pub fn view(&self, named: &[(i64, u64, Name)]) -> PartitionView {
        // What was never read is as old as can be.
        let never_read = self.begins_above().map(|_| (i64::MIN, 0));
        // Who waits in a halted one may stand for good.
        let tells = !named.is_empty() && never_read.is_none() && self.halted.is_none();
        let rest = || self.tracker.oldest_unfinished_but(&named.iter().map(|(_, offset, _)| *offset).collect());
        PartitionView {
            waiting: tells.then(|| Waiting { named: named.to_vec(), oldest_of_rest: rest() }),
            oldest_unfinished: never_read.or_else(|| self.tracker.oldest_unfinished()),
            read_timestamp_ms: self.read_timestamp_ms,
            position: self.tracker.position(),
            at_end: self.at_end && self.tracker.position() >= self.high_watermark,
            // What lies beyond a bound is read once there is room; what an operator keeps from being read may be older than anything.
            at_bound: self.at_bound && !self.paused_by_hand,
        }
    }

    /// What is known of a partition that another instance holds (or nobody).
    ///
    /// What was committed may be old: then it shows less progress than there is, never more. A partition whose
    /// committed offset is its end has nothing unfinished.
    pub async fn foreign_view(
        broker: &dyn Broker,
        partition: &TopicPartition,
        committed: Option<Committed>,
    ) -> Result<PartitionView, BrokerError> {
        let (_, high) = broker.watermarks(partition).await?;
        let next = committed.as_ref().map_or(0, |committed| committed.offset);
        let unknown = PartitionView {
            oldest_unfinished: (next < high).then_some((i64::MIN, next)),
            waiting: None,
            read_timestamp_ms: i64::MIN,
            position: next,
            at_end: next >= high,
            at_bound: false,
        };
        let known = committed.as_ref().and_then(view_in);
        // Its end may have moved since it was committed.
        Ok(match known {
            Some(view) if next < high => PartitionView { at_end: view.position >= high, ..view },
            _ => unknown,
        })
    }

    /// As it was assigned, or as it has been committed since: what it goes back to. Nothing halts it.
    pub fn rewound(&self, epoch: u64, position: u64, forgetful: bool) -> Self {
        let partition = self.partition.clone();
        let committed = self.committed.clone();
        let assigned = Assigned { partition, epoch, committed, position, high_watermark: self.high_watermark };
        PartitionState {
            start: self.start,
            offered: self.offered,
            compared: self.compared,
            paused_by_hand: self.paused_by_hand,
            ..PartitionState::new(&assigned, self.metrics.clone(), forgetful, self.unread_ms.max(0) as u64)
        }
    }

    /// Where reading goes on when a node has forgotten, or a halt is lifted.
    pub fn rewind_to(&self) -> u64 {
        self.committed.as_ref().map_or(self.start, |committed| committed.offset)
    }

    /// The group is asked to take this offset.
    pub fn offer(&mut self, offset: u64) {
        self.offered = self.offered.max(offset);
    }

    /// The safe prefix, where it (or what is said with it) has changed since the last commit: up to `noted`, which the store
    /// knows to be consumed. Before it knows as much as is committed already, nothing; nor before it is as far as was ever offered: what
    /// is done again, since a node forgot, would take back what came through without an answer. `named`: as for [`view`](Self::view).
    pub fn to_commit(&self, noted: u64, named: &[(i64, u64, Name)]) -> Option<Committed> {
        if noted < self.rewind_to() || !self.compared {
            return None;
        }
        let note = Note { view: self.view(named), halted: self.halted.as_ref().map(Halt::within_a_commit) };
        let metadata = note.to_metadata();
        let now = Committed { offset: self.tracker.safe().min(noted), metadata };
        if now.offset < self.offered {
            return None;
        }
        let moved = self.committed.as_ref().is_none_or(|last| last.offset < now.offset);
        let says_more =
            self.committed.as_ref().is_some_and(|last| last.offset == now.offset && last.metadata != now.metadata);
        let never_read = self.committed.is_none() && self.tracker.position() == 0 || self.begins_above().is_some();
        ((moved && !never_read) || says_more).then_some(now)
    }

    /// How it stands: `parked` transactions wait in it; `paused` says why, where that is neither an operator, nor a halt, nor its own bound.
    pub fn shown(&self, now: Moment, bounds: &PartitionBounds, parked: usize, paused: &'static str) -> PartitionStatus {
        let watermark = self.tracker.watermark();
        let read_ms = if self.read_timestamp_ms > i64::MIN { self.read_timestamp_ms } else { self.unread_ms };
        let unread_ms = Some(read_ms).filter(|_| self.tracker.position() < self.high_watermark);
        let oldest_ms = self.tracker.oldest_open().map(|(timestamp_ms, _)| timestamp_ms).or(unread_ms);
        let age_ms = oldest_ms.map_or(0, |then| (now.wall_ms as i64).saturating_sub(then).max(0));
        let why = match self.over_half(bounds) {
            _ if self.paused_by_hand => "an operator has paused it",
            _ if self.halted.is_some() => "it is halted",
            Some("messages") if self.at_bound => "too many messages are unfinished",
            Some(_) if self.at_bound => "too many bytes are unfinished",
            _ => paused,
        };
        PartitionStatus {
            topic: self.partition.topic.to_string(),
            partition: self.partition.partition,
            epoch: self.epoch,
            position: self.tracker.position(),
            watermark,
            committed: self.committed.as_ref().map(|committed| committed.offset),
            high_watermark: self.high_watermark,
            at_end: self.at_end && self.tracker.position() >= self.high_watermark,
            lag_messages: self.high_watermark.saturating_sub(watermark),
            lag_seconds: age_ms as f64 / 1_000.0,
            unfinished_events: self.tracker.unfinished() as u64,
            unfinished_bytes: self.tracker.unfinished_bytes(),
            oldest_in_flight: self.oldest_in_flight(now.steady_ms),
            parked: parked as u64,
            paused: self.paused.then_some(why),
            halted: self.halted.as_ref().map(|halt| HaltStatus { why: halt.why.clone(), since_ms: halt.since_ms }),
        }
    }

    /// Puts what is shown into the metrics.
    pub fn measure(&self, shown: &PartitionStatus) {
        let metrics = &self.metrics;
        metrics.lag_messages.set(shown.lag_messages as i64);
        metrics.lag_seconds.set(shown.lag_seconds);
        metrics.oldest_in_flight_seconds.set(shown.oldest_in_flight.map_or(0.0, |oldest| oldest.age_seconds));
        metrics.position.set(shown.position as i64);
        metrics.watermark.set(shown.watermark as i64);
        metrics.committed.set(shown.committed.map_or(-1, |offset| offset as i64));
        metrics.high_watermark.set(shown.high_watermark as i64);
        metrics.epoch.set(shown.epoch as i64);
        metrics.halted.set(i64::from(shown.halted.is_some()));
        metrics.paused.set(i64::from(shown.paused.is_some()));
        metrics.paused_by_operator.set(i64::from(self.paused_by_hand));
        metrics.unfinished_events.set(shown.unfinished_events as i64);
        metrics.unfinished_bytes.set(shown.unfinished_bytes as i64);
        metrics.parked_events.set(shown.parked as i64);
    }
}

/// Ends that are unheard of are asked for once in so many commits.
pub const ENDS_EVERY: u32 = 5;

/// As old as what is next to be read is, by what was said with the commit before it, if that is said.
fn unread_of(view: &PartitionView) -> Option<i64> {
    let oldest_ms = view.oldest_unfinished.map_or(view.read_timestamp_ms, |(timestamp_ms, _)| timestamp_ms);
    (oldest_ms > i64::MIN).then_some(oldest_ms)
}

/// What was said with a commit; `None`: nothing that can be read.
fn note_in(committed: &Committed) -> Option<Note> {
    serde_json::from_str(&committed.metadata).ok()
}

fn view_in(committed: &Committed) -> Option<PartitionView> {
    note_in(committed).map(|note| note.view)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::telemetry::Metrics;

    fn state(committed: Option<Committed>) -> PartitionState {
        let partition = TopicPartition { topic: "txs".into(), partition: 0 };
        let metrics = Metrics::new().partition(&partition);
        let position = committed.as_ref().map_or(0, |committed| committed.offset);
        let assigned = Assigned { partition, epoch: 1, committed, position, high_watermark: 100 };
        PartitionState::new(&assigned, metrics, false, 60_000)
    }

    fn message(offset: u64) -> Message {
        Message { offset, timestamp_ms: 1_000, key: Bytes::new(), payload: Bytes::new(), headers: vec![] }
    }

    #[test]
    fn what_was_read_and_not_committed_is_known_to_be_read_again() {
        let mut first = state(None);
        (0..5)
            .for_each(|offset| assert!(first.deliver(&message(offset), 1_000) && !first.is_replayed(&message(offset))));
        first.tracker.complete(0, 0);
        first.tracker.complete(3, 0);
        let committed = first.to_commit(u64::MAX, &[]).unwrap();
        assert_eq!(committed.offset, 1);

        let second = state(Some(committed));
        let replayed: Vec<u64> = (1..10).filter(|offset| second.is_replayed(&message(*offset))).collect();
        assert_eq!(replayed, [1, 2, 3, 4]);
    }

    #[test]
    fn what_is_kept_of_a_message_counts_whether_payload_key_or_header() {
        let bounds = PartitionBounds { span: 100, bytes: 1_000 };
        let large = || Bytes::from(vec![0; 1_001]);
        for message in [
            Message { payload: large(), ..message(0) },
            Message { key: large(), ..message(0) },
            Message { headers: vec![("h".into(), large())], ..message(0) },
        ] {
            let mut state = state(None);
            state.deliver(&message, i64::MAX);
            assert!(state.over_bound(&bounds).is_some(), "{message:?}");
        }
    }

    #[test]
    fn a_timestamp_far_ahead_does_not_make_a_partition_read_past_what_follows() {
        let mut state = state(None);
        let latest_ms = latest_believed_ms(1_000, 20_000);
        assert_eq!((latest_ms, latest_believed_ms(1_000, 600_000)), (11_000, 61_000));
        let at = |offset, timestamp_ms| Message { timestamp_ms, ..message(offset) };
        for (offset, timestamp_ms, read) in
            [(0, 500, 500), (1, 1_000_000, 500), (2, 11_000, 11_000), (3, 11_001, 11_000)]
        {
            assert!(state.deliver(&at(offset, timestamp_ms), latest_ms));
            assert_eq!(state.view(&[]).read_timestamp_ms, read, "offset {offset}");
        }
        let first = u64::from(OURS_IS_WRONG) + 3;
        (4..first).for_each(|offset| assert!(state.deliver(&at(offset, 90_000), latest_ms)));
        assert_eq!(state.view(&[]).read_timestamp_ms, 90_000, "our clock is behind theirs");
    }

    #[test]
    fn what_is_shown_says_how_far_it_is_and_what_keeps_it() {
        let bounds = PartitionBounds { span: 4, bytes: 1_000 };
        let mut state = state(None);
        let at = |steady_ms| Moment { wall_ms: 60_000 + steady_ms, steady_ms };
        let shown = |state: &PartitionState, steady_ms| state.shown(at(steady_ms), &bounds, 2, "all is full");
        let idle = shown(&state, 1_000);
        assert_eq!(
            (idle.oldest_in_flight, idle.lag_seconds, idle.lag_messages),
            (None, 1.0, 100),
            "since it was assigned"
        );
        assert_eq!((idle.committed, idle.paused, idle.parked), (None, None, 2));
        // Read at 1, at 2 and at 3 seconds; stamped at 30 seconds.
        for second in 1..=3 {
            state.note_read(second * 1_000);
            for offset in (second - 1) * 2..second * 2 {
                state.deliver(&Message { timestamp_ms: 30_000 + offset as i64, ..message(offset) }, i64::MAX);
            }
        }
        let oldest = |state: &PartitionState| {
            let shown = shown(state, 10_000);
            (shown.oldest_in_flight.map(|oldest| (oldest.offset, oldest.age_seconds)), shown.lag_seconds)
        };
        assert_eq!(oldest(&state), (Some((0, 9.0)), 40.0));
        [0, 1, 2].into_iter().for_each(|offset| state.tracker.complete(offset, 0));
        assert_eq!(oldest(&state), (Some((3, 8.0)), 39.997));
        state.paused = true;
        assert_eq!(shown(&state, 0).paused, Some("all is full"));
        state.at_bound = true;
        assert_eq!(shown(&state, 0).paused, Some("too many messages are unfinished"));
        state.halted = Some(Halt { why: "x".into(), since_ms: 5 });
        assert_eq!(shown(&state, 0).paused, Some("it is halted"));
        assert!(state.view(&[]).at_bound);
        state.paused_by_hand = true;
        assert_eq!(shown(&state, 0).paused, Some("an operator has paused it"));
        assert!(!state.view(&[]).at_bound, "what it has not read is no younger");
        (3..6).for_each(|offset| state.tracker.complete(offset, 0));
        assert_eq!(oldest(&state), (None, 39.995), "there is more to read, which is later than what was");
        state.note_read(4_000);
        assert_eq!(state.read_at.len(), 1, "what is completed needs no mark");
        state.reach_end(100);
        assert_eq!(oldest(&state), (None, 0.0));
        state.hear_end(101);
        assert_eq!(oldest(&state), (None, 39.995), "it has gone on");
    }

    #[test]
    fn what_was_never_read_here_is_as_old_as_was_said_of_it() {
        let bounds = PartitionBounds { span: 4, bytes: 1_000 };
        let lag =
            |state: &PartitionState| state.shown(Moment { wall_ms: 70_000, steady_ms: 0 }, &bounds, 0, "").lag_seconds;
        let committed = |metadata: &str| state(Some(Committed { offset: 3, metadata: metadata.into() }));
        assert_eq!(lag(&state(None)), 10.0, "since it was assigned");
        assert_eq!(lag(&committed("")), 10.0, "by an operator");
        assert_eq!(lag(&committed(r#"{"read":30000,"pos":5}"#)), 40.0, "what follows is no older");
        assert_eq!(lag(&committed(r#"{"oldest":[20000,3],"read":30000,"pos":5}"#)), 50.0);
        assert_eq!(lag(&state(Some(begins_at(3)))), 10.0, "nothing is known of it");
        let again = committed(r#"{"oldest":[20000,3],"read":30000,"pos":5}"#).rewound(2, 3, true);
        assert_eq!(lag(&again), 50.0);
        let mut done = state(None);
        done.reach_end(100);
        assert_eq!(lag(&done), 0.0);
    }

    #[test]
    fn nothing_is_committed_before_the_store_is_known_to_hold_what_is() {
        let committed = Committed { offset: 3, metadata: r#"{"read":9,"pos":5}"#.into() };
        let mut state = state(Some(committed.clone()));
        state.deliver(&message(3), 1_000);
        state.tracker.complete(3, 0);
        assert_eq!(state.to_commit(u64::MAX, &[]), None);
        state.compared = true;
        assert_eq!(state.to_commit(2, &[]), None, "the store may forget that so much is consumed");
        assert_eq!(state.to_commit(3, &[]).map(|committed| committed.offset), Some(3));
        assert_eq!(state.to_commit(4, &[]).map(|committed| committed.offset), Some(4));
        let by_operator = Committed { metadata: String::new(), ..committed };
        assert!(self::state(Some(by_operator)).compared, "nothing is asked of the store");
    }

    #[test]
    fn what_is_done_again_takes_nothing_back_that_may_have_been_committed() {
        let mut first = state(None);
        (0..5).for_each(|offset| assert!(first.deliver(&message(offset), 1_000)));
        (0..4).for_each(|offset| first.tracker.complete(offset, 0));
        let offered = first.to_commit(u64::MAX, &[]).unwrap();
        assert_eq!(offered.offset, 4);
        // No answer comes, and a node forgets.
        first.offer(offered.offset);
        let mut again = PartitionState { tracker: OffsetTracker::new(0), ..first.rewound(2, 0, true) };
        (0..5).for_each(|offset| assert!(again.deliver(&message(offset), 1_000)));
        (0..3).for_each(|offset| again.tracker.complete(offset, 0));
        assert_eq!(again.to_commit(u64::MAX, &[]), None);
        again.tracker.complete(3, 0);
        assert_eq!(again.to_commit(u64::MAX, &[]).map(|committed| committed.offset), Some(4));
    }

    #[test]
    fn a_halt_travels_with_the_commit() {
        let mut first = state(None);
        first.deliver(&message(0), 1_000);
        assert_eq!(Halt::of(&first.to_commit(u64::MAX, &[]).unwrap()), None);
        let halt = Halt { why: "3 dead letters in a row".into(), since_ms: 5_000 };
        first.halted = Some(halt.clone());
        let committed = first.to_commit(u64::MAX, &[]).unwrap();
        assert_eq!(Halt::of(&committed), Some(halt));
        assert!(state(Some(committed)).is_replayed(&message(0)), "the view is there, too");
    }

    #[test]
    fn a_reason_of_any_length_fits_into_a_commit_and_stays_the_same() {
        let view = PartitionView {
            oldest_unfinished: Some((i64::MIN, u64::MAX)),
            waiting: None,
            read_timestamp_ms: i64::MIN,
            at_end: false,
            at_bound: false,
            position: u64::MAX,
        };
        let told = |why: String, view: &PartitionView| {
            let view = view.clone();
            let halted = Some(Halt { why, since_ms: u64::MAX }.within_a_commit());
            let metadata = Note { view, halted }.to_metadata();
            assert!(metadata.len() <= MAX_COMMIT_METADATA, "{} bytes", metadata.len());
            Halt::of(&Committed { offset: 0, metadata }).unwrap().why
        };
        for letter in ["x", "ü", "₿", "\"", "\n", "\u{1}", "\u{7f}", "🚀"] {
            let each = serde_json::to_string(letter).unwrap().len() - 2;
            let most = letter.repeat(MOST_OF_WHY / each);
            assert_eq!(told(most.clone(), &view), most, "all of it fits");
            let cut = told(letter.repeat(MOST_OF_WHY / each + 1), &view);
            assert!(cut.ends_with('…') && cut.starts_with(&letter.repeat((MOST_OF_WHY - 3) / each)), "{cut}");
            let shorter = PartitionView { oldest_unfinished: None, position: 1, ..view.clone() };
            assert_eq!(
                told(letter.repeat(9_000), &shorter),
                told(letter.repeat(9_000), &view),
                "whatever else is said"
            );
            assert_eq!(told(cut.clone(), &view), cut, "it is cut once");
        }
        let mut state = state(None);
        state.deliver(&message(0), 1_000);
        state.halted = Some(Halt { why: "\"".repeat(9_000), since_ms: 5_000 });
        let committed = state.to_commit(u64::MAX, &[]).unwrap();
        assert!(committed.metadata.len() <= MAX_COMMIT_METADATA, "{} bytes", committed.metadata.len());
        state.committed = Some(committed);
        assert_eq!(state.to_commit(u64::MAX, &[]), None, "it says nothing new");
    }

    #[test]
    fn what_other_versions_committed_can_be_read() {
        let committed = |metadata: &str| Committed { offset: 3, metadata: metadata.into() };
        let before = committed(r#"{"oldest":[7,3],"read":9,"end":true,"bound":false,"pos":5}"#);
        assert_eq!(view_in(&before).map(|view| (view.position, view.oldest_unfinished)), Some((5, Some((7, 3)))));
        assert_eq!(Halt::of(&before), None);
        let after = committed(r#"{"read":9,"pos":5,"halt":{"why":"x","since":4,"by":"y"},"more":[1]}"#);
        assert_eq!(view_in(&after).map(|view| view.position), Some(5));
        assert_eq!(Halt::of(&after), Some(Halt { why: "x".into(), since_ms: 4 }));
    }

    #[test]
    fn a_commit_of_somebody_else_tells_nothing_of_what_was_read() {
        for metadata in ["", "{", "{\"read\":5}"] {
            let state = state(Some(Committed { offset: 3, metadata: metadata.into() }));
            assert!(!state.is_replayed(&message(3)), "{metadata}");
        }
    }
}
