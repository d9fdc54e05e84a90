//! Pace of the scans of all transactions in flight.

use tokio::time::{Duration, Instant};

/// After a scan of all transactions in flight the next scan waits for this multiple of its duration. Without the pause
/// scans would take all time where many transactions wait, and these would wait the longer.
const SCAN_COOLDOWN_FACTOR: u32 = 20;
/// Upper bound of the pause after a scan: a long duration may have been the machine's doing.
const MAX_SCAN_COOLDOWN: Duration = Duration::from_secs(5);

/// Time before which no scan of all transactions in flight starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanPace {
    next_scan: Instant,
}

impl ScanPace {
    pub(super) fn new(now: Instant) -> Self {
        ScanPace { next_scan: now }
    }

    /// Delays the next scan after one that started at `begun` and has ended.
    pub(super) fn delay_after(&mut self, begun: Instant) {
        let pause = (begun.elapsed() * SCAN_COOLDOWN_FACTOR).min(MAX_SCAN_COOLDOWN);
        self.next_scan = self.next_scan.max(begun + pause);
    }

    /// Returns the first time at which a scan may start.
    pub(super) fn next_scan(&self) -> Instant {
        self.next_scan
    }

    /// Returns the first time at or after `at` at which a scan may start.
    pub(super) fn not_before(&self, at: Instant) -> Instant {
        self.next_scan.max(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_next_scan_waits_for_twenty_times_the_duration_of_the_last() {
        let begun = Instant::now();
        let mut pace = ScanPace::new(begun);
        assert_eq!(pace.not_before(begun), begun);
        tokio::time::advance(Duration::from_millis(10)).await;
        pace.delay_after(begun);
        assert_eq!(pace.not_before(begun), begun + Duration::from_millis(200));
        tokio::time::advance(Duration::from_secs(10)).await;
        pace.delay_after(begun);
        assert_eq!(pace.not_before(begun), begun + MAX_SCAN_COOLDOWN);
        let later = begun + Duration::from_secs(20);
        assert_eq!(pace.not_before(later), later);
    }
}
