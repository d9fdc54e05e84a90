//! Watermark arithmetic of one partition under one epoch: which prefix of the delivered messages is *completed*, and
//! which part of that prefix is *durable* (completed for so long that the store can no longer lose the writes).
//!
//! Only the durable offset may be committed. An offset always names the next message to read.

use std::collections::{BTreeSet, VecDeque};

/// Delivered message that is not durable yet.
#[derive(Debug, Clone, Copy)]
struct WindowEntry {
    offset: u64,
    timestamp_ms: i64,
    bytes: u32,
    /// Time of the completion, ms; [`NOT_COMPLETED`] before.
    completed_ms: u64,
}

/// Time that is later than every completion.
const NOT_COMPLETED: u64 = u64::MAX;

/// Tracks the completions of one partition. Offsets that were never delivered (compaction, control records) count as
/// completed and take no memory, however many they are.
#[derive(Debug, Clone)]
pub struct OffsetTracker {
    position: u64,
    /// Entries in ascending order of their offsets; the first entry is not durable.
    window: VecDeque<WindowEntry>,
    /// Number of entries at the front of the window that are completed.
    completed: usize,
    /// Completions before this time are durable, ms.
    durable_before_ms: u64,
    unfinished: usize,
    unfinished_bytes: u64,
}

impl OffsetTracker {
    /// Starts at the offset that is read first, over a store that loses no write: a completed offset is durable at
    /// once.
    pub fn new(position: u64) -> Self {
        OffsetTracker { durable_before_ms: NOT_COMPLETED, ..OffsetTracker::with_durability_lag(position) }
    }

    /// Starts at the offset that is read first, over a store that can lose writes: a completed offset is durable only
    /// after [`mark_durable`](Self::mark_durable).
    pub fn with_durability_lag(position: u64) -> Self {
        OffsetTracker {
            position,
            window: VecDeque::new(),
            completed: 0,
            durable_before_ms: 0,
            unfinished: 0,
            unfinished_bytes: 0,
        }
    }

    /// Registers a message that was read. Returns `false` for a message that was read before (the broker repeated it):
    /// the caller drops that message.
    pub fn deliver(&mut self, offset: u64, timestamp_ms: i64, bytes: usize) -> bool {
        if offset < self.position {
            return false;
        }
        self.position = offset + 1;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.window.push_back(WindowEntry { offset, timestamp_ms, bytes, completed_ms: NOT_COMPLETED });
        self.unfinished += 1;
        self.unfinished_bytes += u64::from(bytes);
        true
    }

    /// Moves the position up to `position`: offsets below that were not delivered are no messages. Called when the end
    /// of the partition is reached.
    pub fn skip_to(&mut self, position: u64) {
        self.position = self.position.max(position);
    }

    /// Marks the message at `offset` as completed at `at_ms` (of any clock that never goes back): the store has
    /// acknowledged every change that the message asks for. Repeats are ignored.
    pub fn complete(&mut self, offset: u64, at_ms: u64) {
        let Some(index) = self.index_of(offset) else { return };
        let entry = &mut self.window[index];
        if entry.completed_ms == NOT_COMPLETED {
            entry.completed_ms = at_ms.min(NOT_COMPLETED - 1);
            self.unfinished -= 1;
            self.unfinished_bytes -= u64::from(entry.bytes);
            self.advance();
        }
    }

    /// Marks the messages below `end` as completed, like [`complete`](Self::complete).
    pub fn complete_below(&mut self, end: u64, at_ms: u64) {
        while let Some(entry) = self.window.get(self.completed).filter(|entry| entry.offset < end) {
            self.complete(entry.offset, at_ms);
        }
    }

    /// Marks every completion before `before_ms` as durable.
    pub fn mark_durable(&mut self, before_ms: u64) {
        self.durable_before_ms = self.durable_before_ms.max(before_ms);
        self.advance();
    }

    /// Index of `offset` in the window.
    fn index_of(&self, offset: u64) -> Option<usize> {
        // Without gaps the entry is exactly at this index; every skipped offset brings the entry nearer to the front.
        let upper_bound = usize::try_from(offset.checked_sub(self.durable_offset())?).unwrap_or(usize::MAX);
        match self.window.get(upper_bound) {
            Some(entry) if entry.offset == offset => Some(upper_bound),
            _ => self.window.binary_search_by_key(&offset, |entry| entry.offset).ok(),
        }
    }

    fn advance(&mut self) {
        while self.window.get(self.completed).is_some_and(|entry| entry.completed_ms < NOT_COMPLETED) {
            self.completed += 1;
        }
        while self.window.front().is_some_and(|entry| entry.completed_ms < self.durable_before_ms) {
            self.window.pop_front();
            self.completed -= 1;
        }
    }

    /// End of the durable prefix: the greatest offset that may be committed. The value never falls.
    pub fn durable_offset(&self) -> u64 {
        self.window.front().map_or(self.position, |entry| entry.offset)
    }

    /// End of the completed prefix. The value never falls.
    pub fn watermark(&self) -> u64 {
        self.window.get(self.completed).map_or(self.position, |entry| entry.offset)
    }

    /// Number of messages of the completed prefix that are not durable.
    pub fn not_durable(&self) -> usize {
        self.completed
    }

    /// Offset of the next message to be delivered.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Number of messages delivered from the watermark on, completed or not.
    pub fn span(&self) -> u64 {
        (self.window.len() - self.completed) as u64
    }

    /// Number of messages delivered and not completed.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Bytes of the messages that are delivered and not completed.
    pub fn unfinished_bytes(&self) -> u64 {
        self.unfinished_bytes
    }

    /// (timestamp, offset) of the oldest message that is not completed. Scans the whole window.
    pub fn oldest_not_completed(&self) -> Option<(i64, u64)> {
        let open = self.window.iter().skip(self.completed).filter(|entry| entry.completed_ms == NOT_COMPLETED);
        open.map(|entry| (entry.timestamp_ms, entry.offset)).min()
    }

    /// (timestamp, offset) of the oldest message that is not completed or not durable: a node that loses the writes
    /// makes the message unfinished again. Producers need not agree on the time, so that the oldest message is not
    /// always the first one. Scans the whole window.
    pub fn oldest_not_durable(&self) -> Option<(i64, u64)> {
        self.oldest_not_durable_except(&BTreeSet::new())
    }

    /// (timestamp, offset) of the oldest message that is not durable, except the messages at these offsets.
    pub fn oldest_not_durable_except(&self, offsets: &BTreeSet<u64>) -> Option<(i64, u64)> {
        let unfinished = self.window.iter().filter(|entry| entry.completed_ms >= self.durable_before_ms);
        let others = unfinished.filter(|entry| !offsets.contains(&entry.offset));
        others.map(|entry| (entry.timestamp_ms, entry.offset)).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn watermark_is_the_completed_prefix() {
        let mut tracker = OffsetTracker::new(10);
        for offset in [10, 11, 12] {
            assert!(tracker.deliver(offset, offset as i64, 100));
        }
        tracker.complete(11, 0);
        assert_eq!((tracker.watermark(), tracker.unfinished(), tracker.unfinished_bytes()), (10, 2, 200));
        assert_eq!(tracker.oldest_not_durable(), Some((10, 10)));
        tracker.complete(10, 0);
        assert_eq!((tracker.watermark(), tracker.position(), tracker.span()), (12, 13, 1));
        tracker.complete(12, 0);
        assert_eq!((tracker.watermark(), tracker.oldest_not_durable()), (13, None));
    }

    #[test]
    fn oldest_message_is_chosen_by_timestamp() {
        let mut tracker = OffsetTracker::new(0);
        for timestamp_ms in [2_000, 900, 1_500] {
            tracker.deliver(tracker.position(), timestamp_ms, 1);
        }
        assert_eq!(tracker.oldest_not_durable(), Some((900, 1)));
        tracker.complete(1, 0);
        assert_eq!(tracker.oldest_not_durable(), Some((1_500, 2)));
        assert_eq!(tracker.oldest_not_durable_except(&[2].into()), Some((2_000, 0)));
        assert_eq!(tracker.oldest_not_durable_except(&[0, 2].into()), None);
    }

    #[test]
    fn gaps_count_as_completed_and_repeats_are_refused() {
        let mut tracker = OffsetTracker::new(0);
        assert!(tracker.deliver(5, 0, 1));
        assert_eq!(tracker.watermark(), 5);
        assert!(!tracker.deliver(5, 0, 1));
        assert!(!tracker.deliver(3, 0, 1));
        assert!(tracker.deliver(9, 0, 1));
        tracker.complete(5, 0);
        assert_eq!(tracker.watermark(), 9, "6, 7 and 8 were never delivered");
        tracker.complete(1_000, 0);
        tracker.complete(0, 0);
        assert_eq!(tracker.watermark(), 9);
    }

    #[test]
    fn offsets_without_a_message_at_the_end_are_skipped() {
        let mut tracker = OffsetTracker::new(0);
        tracker.skip_to(2);
        assert_eq!((tracker.watermark(), tracker.durable_offset(), tracker.position()), (2, 2, 2));
        assert!(!tracker.deliver(1, 0, 1) && tracker.deliver(2, 0, 1));
        tracker.skip_to(4);
        assert_eq!((tracker.watermark(), tracker.durable_offset(), tracker.position(), tracker.span()), (2, 2, 4, 1));
        tracker.skip_to(3);
        tracker.complete(2, 0);
        assert_eq!((tracker.watermark(), tracker.durable_offset(), tracker.position()), (4, 4, 4));
    }

    #[test]
    fn all_delivered_messages_below_an_offset_are_completed_together() {
        let mut tracker = OffsetTracker::with_durability_lag(7);
        [7, 8, 11, 12, 13].into_iter().for_each(|offset| assert!(tracker.deliver(offset, 0, 10)));
        tracker.complete(8, 100);
        tracker.complete_below(12, 200);
        assert_eq!((tracker.watermark(), tracker.span(), tracker.unfinished_bytes()), (12, 2, 20));
        tracker.complete_below(5, 300);
        tracker.complete_below(90, 300);
        assert_eq!((tracker.watermark(), tracker.unfinished(), tracker.durable_offset()), (14, 0, 7));
    }

    #[test]
    fn completed_offset_is_durable_only_after_mark_durable() {
        let mut tracker = OffsetTracker::with_durability_lag(7);
        (7..10).for_each(|offset| assert!(tracker.deliver(offset, 1_000 + offset as i64, 1)));
        tracker.complete(7, 100);
        tracker.complete(9, 100);
        tracker.complete(8, 200);
        assert_eq!((tracker.durable_offset(), tracker.watermark(), tracker.unfinished()), (7, 10, 0));
        assert_eq!(tracker.oldest_not_durable(), Some((1_007, 7)), "the store can still lose the write");
        tracker.mark_durable(100);
        assert_eq!(tracker.durable_offset(), 7, "before, not at");
        tracker.mark_durable(101);
        let first_not_durable = (tracker.durable_offset(), tracker.oldest_not_durable());
        assert_eq!(first_not_durable, (8, Some((1_008, 8))), "9 is durable at a later offset");
        tracker.mark_durable(201);
        assert_eq!((tracker.durable_offset(), tracker.oldest_not_durable()), (10, None));
    }

    #[test]
    fn gap_takes_no_memory_however_wide() {
        let mut tracker = OffsetTracker::new(0);
        for offset in [3, 1 << 40, u64::MAX - 1] {
            assert!(tracker.deliver(offset, 0, 1));
        }
        assert_eq!((tracker.span(), tracker.watermark(), tracker.position()), (3, 3, u64::MAX));
        tracker.complete((1 << 40) - 1, 0);
        tracker.complete(1 << 40, 0);
        assert_eq!((tracker.watermark(), tracker.unfinished()), (3, 2));
        tracker.complete(3, 0);
        assert_eq!((tracker.watermark(), tracker.span()), (u64::MAX - 1, 1));
    }

    /// Call of a tracker; offsets are counted from the tracker's position.
    #[derive(Debug, Clone)]
    enum Step {
        Deliver { skipped: u64 },
        Repeat { back: u64 },
        Complete { nth: prop::sample::Index },
        CompleteAny { offset: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => prop_oneof![6 => Just(0), 2 => 1u64..4, 1 => 1_000_000_000u64..1 << 40]
                .prop_map(|skipped| Step::Deliver { skipped }),
            1 => (1u64..6).prop_map(|back| Step::Repeat { back }),
            4 => any::<prop::sample::Index>().prop_map(|nth| Step::Complete { nth }),
            1 => (0u64..60).prop_map(|offset| Step::CompleteAny { offset }),
        ]
    }

    proptest! {
        /// The durable offset is the end of the longest prefix of which every message was completed before the time of
        /// the last call of `mark_durable`.
        #[test]
        fn durable_offset_was_completed_before_the_lag(
            steps in prop::collection::vec((0u8..4, 0u64..30), 1..200),
            lag in 1u64..50,
        ) {
            let mut tracker = OffsetTracker::with_durability_lag(0);
            let mut done_at = std::collections::BTreeMap::new();
            let (mut delivered, mut position, mut now, mut durable_before) = (BTreeSet::new(), 0, 100, 0);
            let mut last = 0;
            for (step, value) in steps {
                match step {
                    0 if tracker.deliver(value, value as i64, 3) => {
                        delivered.insert(value);
                        position = value + 1;
                    }
                    1 => {
                        tracker.complete(value, now);
                        if delivered.contains(&value) {
                            done_at.entry(value).or_insert(now);
                        }
                    }
                    2 => {
                        durable_before = now - lag;
                        tracker.mark_durable(durable_before);
                    }
                    _ => now += value,
                }
                let durable_offset = |offset: &u64| done_at.get(offset).is_some_and(|at| *at < durable_before);
                let open: Vec<u64> = delivered.iter().copied().filter(|offset| !durable_offset(offset)).collect();
                let unfinished = delivered.iter().find(|offset| !done_at.contains_key(*offset));
                prop_assert_eq!(tracker.watermark(), unfinished.copied().unwrap_or(position));
                prop_assert_eq!(tracker.oldest_not_durable(), open.first().map(|offset| (*offset as i64, *offset)));
                // Offsets that were never delivered are durable together with the message before them.
                let first_open = open.first().copied().unwrap_or(position);
                prop_assert!(tracker.durable_offset() <= first_open && tracker.durable_offset() <= tracker.watermark());
                let is_skipped = |offset: &u64| *offset < first_open && *offset >= tracker.durable_offset();
                prop_assert!(!delivered.iter().any(is_skipped));
                prop_assert!(tracker.durable_offset() >= last);
                last = tracker.durable_offset();
            }
        }

        /// Comparison with the obvious model: the watermark is the least delivered offset that is not completed.
        #[test]
        fn tracker_agrees_with_a_set_of_offsets(steps in prop::collection::vec(step(), 1..200)) {
            let mut tracker = OffsetTracker::new(0);
            let (mut delivered, mut done, mut position) = (BTreeSet::new(), BTreeSet::new(), 0);
            let mut last = 0;
            for step in steps {
                match step {
                    Step::Deliver { skipped } => {
                        let offset = position + skipped;
                        prop_assert!(tracker.deliver(offset, offset as i64, 3));
                        delivered.insert(offset);
                        position = offset + 1;
                    }
                    Step::Repeat { back } if back <= position => prop_assert!(!tracker.deliver(position - back, 0, 3)),
                    Step::Repeat { .. } => {}
                    Step::Complete { nth } if !delivered.is_empty() => {
                        let offset = *delivered.iter().nth(nth.index(delivered.len())).unwrap();
                        tracker.complete(offset, 0);
                        done.insert(offset);
                    }
                    Step::Complete { .. } => {}
                    Step::CompleteAny { offset } => {
                        tracker.complete(offset, 0);
                        if delivered.contains(&offset) {
                            done.insert(offset);
                        }
                    }
                }
                let open: Vec<u64> = delivered.difference(&done).copied().collect();
                let watermark = open.first().copied().unwrap_or(position);
                prop_assert_eq!(tracker.watermark(), watermark);
                prop_assert_eq!(tracker.unfinished(), open.len());
                prop_assert_eq!(tracker.unfinished_bytes(), 3 * open.len() as u64);
                prop_assert_eq!(tracker.position(), position);
                prop_assert_eq!(tracker.oldest_not_durable(), open.first().map(|offset| (*offset as i64, *offset)));
                prop_assert_eq!(tracker.span(), delivered.range(watermark..).count() as u64);
                prop_assert!(tracker.watermark() >= last);
                last = tracker.watermark();
            }
        }
    }
}
