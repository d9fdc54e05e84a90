//! Rate of a counter, from the looks at the page.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Shortest time over which a rate is measured, unless no rate is known.
const WINDOW: Duration = Duration::from_secs(10);

/// Measures the rate of a counter between two looks; the first rate begins with the meter.
pub struct RateMeter(Mutex<RateSample>);

/// Rate of a counter over a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Mean of the counts in a second.
    pub per_second: f64,
    /// Time over which the rate was measured.
    pub over: Duration,
}

struct RateSample {
    taken_at: Instant,
    count: u64,
    rate: Option<Rate>,
}

impl RateMeter {
    /// Begins to measure a counter with its present count.
    pub fn new(count: u64) -> Self {
        RateMeter(Mutex::new(RateSample { taken_at: Instant::now(), count, rate: None }))
    }

    /// Returns the rate up to now; within ten seconds of the last measurement: the rate of that one.
    pub fn look(&self, count: u64) -> Rate {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).look(count, Instant::now())
    }
}

impl RateSample {
    fn look(&mut self, count: u64, now: Instant) -> Rate {
        let over = now.saturating_duration_since(self.taken_at);
        let per_second = count.saturating_sub(self.count) as f64 / over.as_secs_f64().max(1e-3);
        let rate = Rate { per_second, over };
        match self.rate {
            Some(last) if over < WINDOW => last,
            None if over < WINDOW => rate,
            _ => {
                *self = RateSample { taken_at: now, count, rate: Some(rate) };
                rate
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_measured_over_ten_seconds_or_since_the_start() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut sample = RateSample { taken_at: start, count: 100, rate: None };
        let rate = |per_second, seconds| Rate { per_second, over: Duration::from_secs(seconds) };
        assert_eq!(sample.look(300, at(2)), rate(100.0, 2), "since the start");
        assert_eq!(sample.look(500, at(10)), rate(40.0, 10));
        assert_eq!(sample.look(900, at(19)), rate(40.0, 10), "the last measurement");
        assert_eq!(sample.look(900, at(30)), rate(20.0, 20));
    }
}
