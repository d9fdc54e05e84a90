//! Watermark arithmetic of one partition under one epoch: which prefix of what was delivered is *completed*.
//!
//! Commit what is completed, never what was seen. An offset is always the next message to read.

use std::collections::VecDeque;

/// One delivered offset that is not below the watermark yet.
#[derive(Debug, Clone, Copy)]
struct Delivered {
    timestamp_ms: i64,
    bytes: u32,
    done: bool,
}

/// Tracks completions of one partition. Offsets that were never delivered (compaction, control records) count as done.
#[derive(Debug, Clone)]
pub struct OffsetTracker {
    watermark: u64,
    window: VecDeque<Delivered>,
    unfinished: usize,
    unfinished_bytes: u64,
    read_timestamp_ms: i64,
}

impl OffsetTracker {
    /// Starts at the offset that will be read first.
    pub fn new(position: u64) -> Self {
        OffsetTracker {
            watermark: position,
            window: VecDeque::new(),
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
            self.watermark = offset;
        } else {
            let gap = Delivered { timestamp_ms, bytes: 0, done: true };
            self.window.extend(std::iter::repeat_n(gap, (offset - next) as usize));
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.window.push_back(Delivered { timestamp_ms, bytes, done: false });
        self.unfinished += 1;
        self.unfinished_bytes += u64::from(bytes);
        self.read_timestamp_ms = self.read_timestamp_ms.max(timestamp_ms);
        true
    }

    /// Everything that the message at `offset` asks for is in the store. Repeats are ignored.
    pub fn complete(&mut self, offset: u64) {
        let Some(entry) =
            offset.checked_sub(self.watermark).and_then(|index| self.window.get_mut(usize::try_from(index).ok()?))
        else {
            return;
        };
        if !entry.done {
            entry.done = true;
            self.unfinished -= 1;
            self.unfinished_bytes -= u64::from(entry.bytes);
            self.advance();
        }
    }

    fn advance(&mut self) {
        while self.window.front().is_some_and(|entry| entry.done) {
            self.window.pop_front();
            self.watermark += 1;
        }
    }

    /// End of the completed prefix: what may be committed. Only ever rises.
    pub fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Offset of the next message to be delivered.
    pub fn position(&self) -> u64 {
        self.watermark + self.window.len() as u64
    }

    /// How far reading is ahead of the watermark.
    pub fn span(&self) -> u64 {
        self.window.len() as u64
    }

    /// Messages delivered and not completed.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Bytes of payload of those messages.
    pub fn unfinished_bytes(&self) -> u64 {
        self.unfinished_bytes
    }

    /// (timestamp, offset) of the oldest message that is not completed. Producers need not agree on the time, so it is not
    /// always the first one; looks at the whole window.
    pub fn oldest_unfinished(&self) -> Option<(i64, u64)> {
        let unfinished = self.window.iter().zip(self.watermark..).filter(|(entry, _)| !entry.done);
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
        tracker.complete(11);
        assert_eq!((tracker.watermark(), tracker.unfinished(), tracker.unfinished_bytes()), (10, 2, 200));
        assert_eq!(tracker.oldest_unfinished(), Some((10, 10)));
        tracker.complete(10);
        assert_eq!((tracker.watermark(), tracker.position(), tracker.span()), (12, 13, 1));
        tracker.complete(12);
        assert_eq!((tracker.watermark(), tracker.oldest_unfinished()), (13, None));
    }

    #[test]
    fn the_oldest_goes_by_its_timestamp() {
        let mut tracker = OffsetTracker::new(0);
        for timestamp_ms in [2_000, 900, 1_500] {
            tracker.deliver(tracker.position(), timestamp_ms, 1);
        }
        assert_eq!(tracker.oldest_unfinished(), Some((900, 1)));
        tracker.complete(1);
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
        tracker.complete(5);
        assert_eq!(tracker.watermark(), 9, "6, 7 and 8 were never delivered");
        tracker.complete(1_000);
        tracker.complete(0);
        assert_eq!(tracker.watermark(), 9);
    }

    proptest! {
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
                    tracker.complete(offset);
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
