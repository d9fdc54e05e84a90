//! The pace of a creation: the records per second that all parts of the scan read together.

use std::{
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Pace of a scan in several parts. Time in which the scan stood still is not made up for.
pub(super) struct RecordPace {
    records_per_second: Option<NonZeroU32>,
    /// Time from which the next records may be read.
    next: Mutex<Instant>,
}

impl RecordPace {
    /// Makes a pace of so many records a second; `None`: as fast as the store.
    pub(super) fn new(records_per_second: Option<NonZeroU32>) -> Self {
        RecordPace { records_per_second, next: Mutex::new(Instant::now()) }
    }

    /// Counts records that were read, and waits until the next ones may be read.
    pub(super) async fn wait_after(&self, records: usize) {
        let Some(per_second) = self.records_per_second else { return };
        let until = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = Duration::from_secs_f64(records as f64 / f64::from(per_second.get()));
            *next = (*next).max(Instant::now()) + taken;
            *next
        };
        tokio::time::sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_parts_together_read_so_many_records_a_second() {
        let (pace, begun) = (RecordPace::new(NonZeroU32::new(1_000)), Instant::now());
        let part = async || {
            for _ in 0..10 {
                pace.wait_after(100).await;
            }
        };
        tokio::join!(part(), part(), part());
        assert_eq!(begun.elapsed().as_millis(), 3_000);
        // A minute without a read gives no burst.
        tokio::time::sleep(Duration::from_secs(60)).await;
        pace.wait_after(1_000).await;
        assert_eq!(begun.elapsed().as_millis(), 64_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_without_a_pace_does_not_wait() {
        let begun = Instant::now();
        RecordPace::new(None).wait_after(1_000_000).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
