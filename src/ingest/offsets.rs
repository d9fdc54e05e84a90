//! Watermark arithmetic of one partition under one epoch: which prefix of what was delivered is *completed*, and which part
//! of that is *safe*: complete for so long that the store can no longer forget it.
//!
//! Commit what is safe, never what was seen. An offset is always the next message to read.

use std::collections::VecDeque;

/// One delivered offset that is not safe yet.
#[derive(Debug, Clone, Copy)]
struct Delivered {
    timestamp_ms: i64,
    bytes: u32,
    /// When it was completed; [`OPEN`] before.
    done_ms: u64,
}

/// Later than every completion.
const OPEN: u64 = u64::MAX;

/// Tracks completions of one partition. Offsets that were never delivered (compaction, control records) count as done.
#[derive(Debug, Clone)]
pub struct OffsetTracker {
    safe: u64,
    watermark: u64,
    /// From `safe` on.
    window: VecDeque<Delivered>,
    /// What was completed before is safe.
    safe_before_ms: u64,
    unfinished: usize,
    unfinished_bytes: u64,
    read_timestamp_ms: i64,
}

impl OffsetTracker {
    /// Starts at the offset that will be read first. The store forgets nothing: what is completed is safe.
    pub fn new(position: u64) -> Self {
        OffsetTracker { safe_before_ms: OPEN, ..OffsetTracker::forgetful(position) }
    }

    /// The same, over a store that may forget: what is completed is safe once [`settle`](Self::settle) says so.
    pub fn forgetful(position: u64) -> Self {
        OffsetTracker {
            safe: position,
            watermark: position,
            window: VecDeque::new(),
            safe_before_ms: 0,
            unfinished: 0,
            unfinished_bytes: 0,
            read_timestamp_ms: i64::MIN,
        }
    }

    /// A message was read. `false` for one that was read before (the broker repeated it): it must not be worked on again.
    pub fn deliver(&mut self, offset: u64, timestamp_ms: i64, bytes: usize) -> bool {
        let next = self.position();
        if offset < next {
            return false;
        }
        if self.window.is_empty() {
            (self.safe, self.watermark) = (offset, offset);
        } else {
            let gap = Delivered { timestamp_ms, bytes: 0, done_ms: 0 };
            self.window.extend(std::iter::repeat_n(gap, (offset - next) as usize));
            if self.watermark == next {
                self.watermark = offset;
            }
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.window.push_back(Delivered { timestamp_ms, bytes, done_ms: OPEN });
        self.unfinished += 1;
        self.unfinished_bytes += u64::from(bytes);
        self.read_timestamp_ms = self.read_timestamp_ms.max(timestamp_ms);
        true
    }

    /// Everything that the message at `offset` asks for is in the store, as of `at_ms` (any clock that never goes back).
    /// Repeats are ignored.
    pub fn complete(&mut self, offset: u64, at_ms: u64) {
        let Some(entry) =
            offset.checked_sub(self.safe).and_then(|index| self.window.get_mut(usize::try_from(index).ok()?))
        else {
            return;
        };
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

    fn advance(&mut self) {
        while self.window.get((self.watermark - self.safe) as usize).is_some_and(|entry| entry.done_ms < OPEN) {
            self.watermark += 1;
        }
        while self.window.front().is_some_and(|entry| entry.done_ms < self.safe_before_ms) {
            self.window.pop_front();
            self.safe += 1;
        }
    }

    /// End of the safe prefix: what may be committed. Only ever rises.
    pub fn safe(&self) -> u64 {
        self.safe
    }

    /// End of the completed prefix. Only ever rises.
    pub fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Offset of the next message to be delivered.
    pub fn position(&self) -> u64 {
        self.safe + self.window.len() as u64
    }

    /// How far reading is ahead of the watermark.
    pub fn span(&self) -> u64 {
        self.position() - self.watermark
    }

    /// Messages delivered and not completed.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Bytes of payload of those messages.
    pub fn unfinished_bytes(&self) -> u64 {
        self.unfinished_bytes
    }

    /// (timestamp, offset) of the oldest message that is not completed, or not safely: should a node forget what came of
    /// it, it is unfinished again. Producers need not agree on the time, so it is not always the first one; looks at the
    /// whole window.
    pub fn oldest_unfinished(&self) -> Option<(i64, u64)> {
        let unfinished = self.window.iter().zip(self.safe..).filter(|(entry, _)| entry.done_ms >= self.safe_before_ms);
        unfinished.map(|(entry, offset)| (entry.timestamp_ms, offset)).min()
    }

    /// The greatest timestamp read; `i64::MIN` before the first message.
    pub fn read_timestamp_ms(&self) -> i64 {
        self.read_timestamp_ms
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
        fn agrees_with_a_set(steps in prop::collection::vec((any::<bool>(), 0u64..40), 1..200)) {
            let mut tracker = OffsetTracker::new(0);
            let (mut delivered, mut done, mut position) = (BTreeSet::new(), BTreeSet::new(), 0);
            let mut last = 0;
            for (deliver, offset) in steps {
                if deliver {
                    prop_assert_eq!(tracker.deliver(offset, 0, 3), offset >= position);
                    if offset >= position {
                        delivered.insert(offset);
                        position = offset + 1;
                    }
                } else {
                    tracker.complete(offset, 0);
                    if delivered.contains(&offset) {
                        done.insert(offset);
                    }
                }
                let open: Vec<u64> = delivered.difference(&done).copied().collect();
                prop_assert_eq!(tracker.watermark(), open.first().copied().unwrap_or(position));
                prop_assert_eq!(tracker.unfinished(), open.len());
                prop_assert_eq!(tracker.unfinished_bytes(), 3 * open.len() as u64);
                prop_assert_eq!(tracker.position(), position);
                prop_assert!(tracker.watermark() >= last);
                last = tracker.watermark();
            }
        }
    }
}
