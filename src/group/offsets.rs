//! Watermark arithmetic of one partition under one epoch: which prefix of what was delivered is *completed*, and which part
//! of that is *safe*: complete for so long that the store can no longer forget it.
//!
//! Commit what is safe, never what was seen. An offset is always the next message to read.

use std::collections::{BTreeSet, VecDeque};

/// One delivered message that is not safe yet.
#[derive(Debug, Clone, Copy)]
struct Delivered {
    offset: u64,
    timestamp_ms: i64,
    bytes: u32,
    /// When it was completed; [`OPEN`] before.
    done_ms: u64,
}

/// Later than every completion.
const OPEN: u64 = u64::MAX;

/// Tracks completions of one partition. Offsets that were never delivered (compaction, control records) count as done,
/// and take no room, however many they are.
#[derive(Debug, Clone)]
pub struct OffsetTracker {
    position: u64,
    /// Ascending by offset; the first is not safe.
    window: VecDeque<Delivered>,
    /// How many of the first are completed.
    completed: usize,
    /// What was completed before is safe.
    safe_before_ms: u64,
    unfinished: usize,
    unfinished_bytes: u64,
}

impl OffsetTracker {
    /// Starts at the offset that will be read first. The store forgets nothing: what is completed is safe.
    pub fn new(position: u64) -> Self {
        OffsetTracker { safe_before_ms: OPEN, ..OffsetTracker::forgetful(position) }
    }

    /// The same, over a store that may forget: what is completed is safe once [`settle`](Self::settle) says so.
    pub fn forgetful(position: u64) -> Self {
        OffsetTracker {
            position,
            window: VecDeque::new(),
            completed: 0,
            safe_before_ms: 0,
            unfinished: 0,
            unfinished_bytes: 0,
        }
    }

    /// A message was read. `false` for one that was read before (the broker repeated it): it must not be worked on again.
    pub fn deliver(&mut self, offset: u64, timestamp_ms: i64, bytes: usize) -> bool {
        if offset < self.position {
            return false;
        }
        self.position = offset + 1;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.window.push_back(Delivered { offset, timestamp_ms, bytes, done_ms: OPEN });
        self.unfinished += 1;
        self.unfinished_bytes += u64::from(bytes);
        true
    }

    /// The end was reached at `position`: what lies below it and was not delivered is no message.
    pub fn pass(&mut self, position: u64) {
        self.position = self.position.max(position);
    }

    /// Everything that the message at `offset` asks for is in the store, as of `at_ms` (any clock that never goes back).
    /// Repeats are ignored.
    pub fn complete(&mut self, offset: u64, at_ms: u64) {
        let Some(index) = self.place_of(offset) else { return };
        let entry = &mut self.window[index];
        if entry.done_ms == OPEN {
            entry.done_ms = at_ms.min(OPEN - 1);
            self.unfinished -= 1;
            self.unfinished_bytes -= u64::from(entry.bytes);
            self.advance();
        }
    }

    /// What was completed before `ms` can no longer be forgotten.
    pub fn settle(&mut self, before_ms: u64) {
        self.safe_before_ms = self.safe_before_ms.max(before_ms);
        self.advance();
    }

    /// Where `offset` stands in the window.
    fn place_of(&self, offset: u64) -> Option<usize> {
        // Without gaps it is exactly here; every offset that was skipped brings it nearer to the front.
        let farthest = usize::try_from(offset.checked_sub(self.safe())?).unwrap_or(usize::MAX);
        match self.window.get(farthest) {
            Some(entry) if entry.offset == offset => Some(farthest),
            _ => self.window.binary_search_by_key(&offset, |entry| entry.offset).ok(),
        }
    }

    fn advance(&mut self) {
        while self.window.get(self.completed).is_some_and(|entry| entry.done_ms < OPEN) {
            self.completed += 1;
        }
        while self.window.front().is_some_and(|entry| entry.done_ms < self.safe_before_ms) {
            self.window.pop_front();
            self.completed -= 1;
        }
    }

    /// End of the safe prefix: what may be committed. Only ever rises.
    pub fn safe(&self) -> u64 {
        self.window.front().map_or(self.position, |entry| entry.offset)
    }

    /// End of the completed prefix. Only ever rises.
    pub fn watermark(&self) -> u64 {
        self.window.get(self.completed).map_or(self.position, |entry| entry.offset)
    }

    /// Messages of the completed prefix that are not safe.
    pub fn not_safe(&self) -> usize {
        self.completed
    }

    /// Offset of the next message to be delivered.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Messages delivered from the watermark on, done or not: how far reading is ahead of it.
    pub fn span(&self) -> u64 {
        (self.window.len() - self.completed) as u64
    }

    /// Messages delivered and not completed.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Bytes of payload of those messages.
    pub fn unfinished_bytes(&self) -> u64 {
        self.unfinished_bytes
    }

    /// (timestamp, offset) of the oldest message that is not completed; looks at the whole window.
    pub fn oldest_open(&self) -> Option<(i64, u64)> {
        let open = self.window.iter().skip(self.completed).filter(|entry| entry.done_ms == OPEN);
        open.map(|entry| (entry.timestamp_ms, entry.offset)).min()
    }

    /// (timestamp, offset) of the oldest message that is not completed, or not safely: should a node forget what came of
    /// it, it is unfinished again. Producers need not agree on the time, so it is not always the first one; looks at the
    /// whole window.
    pub fn oldest_unfinished(&self) -> Option<(i64, u64)> {
        self.oldest_unfinished_but(&BTreeSet::new())
    }

    /// The same, of those that have none of these offsets.
    pub fn oldest_unfinished_but(&self, offsets: &BTreeSet<u64>) -> Option<(i64, u64)> {
        let unfinished = self.window.iter().filter(|entry| entry.done_ms >= self.safe_before_ms);
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
        assert_eq!(tracker.oldest_unfinished(), Some((10, 10)));
        tracker.complete(10, 0);
        assert_eq!((tracker.watermark(), tracker.position(), tracker.span()), (12, 13, 1));
        tracker.complete(12, 0);
        assert_eq!((tracker.watermark(), tracker.oldest_unfinished()), (13, None));
    }

    #[test]
    fn the_oldest_goes_by_its_timestamp() {
        let mut tracker = OffsetTracker::new(0);
        for timestamp_ms in [2_000, 900, 1_500] {
            tracker.deliver(tracker.position(), timestamp_ms, 1);
        }
        assert_eq!(tracker.oldest_unfinished(), Some((900, 1)));
        tracker.complete(1, 0);
        assert_eq!(tracker.oldest_unfinished(), Some((1_500, 2)));
        assert_eq!(tracker.oldest_unfinished_but(&[2].into()), Some((2_000, 0)));
        assert_eq!(tracker.oldest_unfinished_but(&[0, 2].into()), None);
    }

    #[test]
    fn gaps_count_as_done_and_repeats_are_refused() {
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
    fn what_is_no_message_at_the_end_is_passed() {
        let mut tracker = OffsetTracker::new(0);
        tracker.pass(2);
        assert_eq!((tracker.watermark(), tracker.safe(), tracker.position()), (2, 2, 2));
        assert!(!tracker.deliver(1, 0, 1) && tracker.deliver(2, 0, 1));
        tracker.pass(4);
        assert_eq!((tracker.watermark(), tracker.safe(), tracker.position(), tracker.span()), (2, 2, 4, 1));
        tracker.pass(3);
        tracker.complete(2, 0);
        assert_eq!((tracker.watermark(), tracker.safe(), tracker.position()), (4, 4, 4));
    }

    #[test]
    fn what_is_complete_is_committed_only_once_it_is_safe() {
        let mut tracker = OffsetTracker::forgetful(7);
        (7..10).for_each(|offset| assert!(tracker.deliver(offset, 1_000 + offset as i64, 1)));
        tracker.complete(7, 100);
        tracker.complete(9, 100);
        tracker.complete(8, 200);
        assert_eq!((tracker.safe(), tracker.watermark(), tracker.unfinished()), (7, 10, 0));
        assert_eq!(tracker.oldest_unfinished(), Some((1_007, 7)), "it may be forgotten yet");
        tracker.settle(100);
        assert_eq!(tracker.safe(), 7, "before, not at");
        tracker.settle(101);
        assert_eq!((tracker.safe(), tracker.oldest_unfinished()), (8, Some((1_008, 8))), "9 is safe behind it");
        tracker.settle(201);
        assert_eq!((tracker.safe(), tracker.oldest_unfinished()), (10, None));
    }

    #[test]
    fn a_gap_takes_no_room_however_wide() {
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

    /// What happens to a tracker; offsets are counted from its position.
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
        /// What may be committed at time t: the longest prefix of which everything was complete before t - lag, whenever
        /// that was last asked for.
        #[test]
        fn what_is_safe_was_completed_long_enough_ago(
            steps in prop::collection::vec((0u8..4, 0u64..30), 1..200),
            lag in 1u64..50,
        ) {
            let mut tracker = OffsetTracker::forgetful(0);
            let mut done_at = std::collections::BTreeMap::new();
            let (mut delivered, mut position, mut now, mut settled) = (BTreeSet::new(), 0, 100, 0);
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
                        settled = now - lag;
                        tracker.settle(settled);
                    }
                    _ => now += value,
                }
                let safe = |offset: &u64| done_at.get(offset).is_some_and(|at| *at < settled);
                let open: Vec<u64> = delivered.iter().copied().filter(|offset| !safe(offset)).collect();
                let unfinished = delivered.iter().find(|offset| !done_at.contains_key(*offset));
                prop_assert_eq!(tracker.watermark(), unfinished.copied().unwrap_or(position));
                prop_assert_eq!(tracker.oldest_unfinished(), open.first().map(|offset| (*offset as i64, *offset)));
                // Offsets that were never delivered go with what precedes them.
                let first_open = open.first().copied().unwrap_or(position);
                prop_assert!(tracker.safe() <= first_open && tracker.safe() <= tracker.watermark());
                prop_assert!(!delivered.iter().any(|offset| *offset < first_open && *offset >= tracker.safe()));
                prop_assert!(tracker.safe() >= last);
                last = tracker.safe();
            }
        }

        /// Against the obvious model: the watermark is the least delivered offset that is not complete.
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec(step(), 1..200)) {
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
                prop_assert_eq!(tracker.oldest_unfinished(), open.first().map(|offset| (*offset as i64, *offset)));
                prop_assert_eq!(tracker.span(), delivered.range(watermark..).count() as u64);
                prop_assert!(tracker.watermark() >= last);
                last = tracker.watermark();
            }
        }
    }
}
