//! Rate of the retries of parked transactions, adapted to the share of retries that help. Pure.

/// Retries per second while no results are known: a load that the store serves beside all other work.
pub(super) const DEFAULT_PER_SECOND: u64 = 5_000;

/// Upper bound of the rate, retries per second.
const MAX_PER_SECOND: u64 = DEFAULT_PER_SECOND * 8;

/// Lower bound of the rate, retries per second.
const MIN_PER_SECOND: u64 = DEFAULT_PER_SECOND / 16;

/// Number of results after which the rate is evaluated.
const TRIES_PER_EVALUATION: u32 = 256;

/// The rate doubles when at least one of this many retries helped.
const TRIES_PER_USEFUL_TO_DOUBLE: u32 = 8;

/// The rate halves when fewer than one of this many retries helped.
const TRIES_PER_USEFUL_TO_KEEP: u32 = 32;

/// Retries of one tick, in ms, are released together: they share a batch, and the loop wakes once for all of them.
pub(super) const TRY_TICK_MS: u64 = 16;

/// The longest pause, in ms, whose retries are saved up and released at once.
const BURST_MS: u64 = 100;

/// Token bucket whose rate follows the share of useful retries. A retry is useful when the transaction does not wait
/// for the same parent again. Useless retries would take time of the store and of the processor from the work that
/// creates the parents.
#[derive(Debug)]
pub(super) struct AdaptiveRate {
    per_second: u64,
    tried: u32,
    useful: u32,
    /// Retries that may be released, in thousandths of a retry.
    budget: u64,
    refilled_ms: u64,
}

impl Default for AdaptiveRate {
    fn default() -> Self {
        AdaptiveRate { per_second: DEFAULT_PER_SECOND, tried: 0, useful: 0, budget: 0, refilled_ms: 0 }
    }
}

impl AdaptiveRate {
    /// Refills the bucket and returns whether a retry may be released now.
    pub fn may_try(&mut self, now_ms: u64) -> bool {
        let passed = now_ms.saturating_sub(self.refilled_ms);
        if passed >= TRY_TICK_MS {
            self.refilled_ms = now_ms;
            self.budget = (self.budget + passed.min(BURST_MS) * self.per_second).min(BURST_MS * self.per_second);
        }
        self.budget >= 1_000
    }

    /// Takes one retry out of the bucket.
    pub fn take_try(&mut self) {
        self.budget = self.budget.saturating_sub(1_000);
    }

    /// Earliest time of the next retry, ms, as of the last call of [`may_try`](Self::may_try).
    pub fn next_try_ms(&self) -> u64 {
        if self.budget >= 1_000 { self.refilled_ms } else { self.refilled_ms.saturating_add(TRY_TICK_MS) }
    }

    /// Records the result of one retry and adapts the rate after every [`TRIES_PER_EVALUATION`] results.
    pub fn record_result(&mut self, was_useful: bool) {
        self.tried += 1;
        self.useful += u32::from(was_useful);
        if self.tried < TRIES_PER_EVALUATION {
            return;
        }
        if self.useful * TRIES_PER_USEFUL_TO_DOUBLE >= self.tried {
            self.per_second = (self.per_second * 2).min(MAX_PER_SECOND);
        } else if self.useful * TRIES_PER_USEFUL_TO_KEEP < self.tried {
            self.per_second = (self.per_second / 2).max(MIN_PER_SECOND);
        }
        (self.tried, self.useful) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the retries of one second in which every allowed retry is taken.
    fn tries_in_a_second(rate: &mut AdaptiveRate, from_ms: u64) -> u64 {
        let mut tries = 0;
        let mut now_ms = from_ms;
        while now_ms < from_ms + 1_000 {
            if rate.may_try(now_ms) {
                rate.take_try();
                tries += 1;
            } else {
                assert!(rate.next_try_ms() > now_ms);
                now_ms = rate.next_try_ms();
            }
        }
        tries
    }

    #[test]
    fn rate_follows_the_share_of_useful_retries() {
        let mut rate = AdaptiveRate::default();
        let near = |tries: u64, wanted: u64| assert!(tries.abs_diff(wanted) <= wanted / 8 + 10, "{tries} of {wanted}");
        near(tries_in_a_second(&mut rate, 1_000), DEFAULT_PER_SECOND);
        (0..TRIES_PER_EVALUATION).for_each(|_| rate.record_result(false));
        near(tries_in_a_second(&mut rate, 2_000), DEFAULT_PER_SECOND / 2);
        (0..20 * TRIES_PER_EVALUATION).for_each(|_| rate.record_result(false));
        near(tries_in_a_second(&mut rate, 3_000), MIN_PER_SECOND);
        (0..20 * TRIES_PER_EVALUATION).for_each(|number| rate.record_result(number % 16 == 0));
        near(tries_in_a_second(&mut rate, 4_000), MIN_PER_SECOND);
        (0..20 * TRIES_PER_EVALUATION).for_each(|number| rate.record_result(number % TRIES_PER_USEFUL_TO_DOUBLE == 0));
        near(tries_in_a_second(&mut rate, 5_000), MAX_PER_SECOND);
    }

    #[test]
    fn a_long_pause_saves_up_one_burst() {
        let mut rate = AdaptiveRate::default();
        assert!(rate.may_try(1_000_000));
        let mut burst = 0;
        while rate.may_try(1_000_000) {
            rate.take_try();
            burst += 1;
        }
        assert_eq!(burst, DEFAULT_PER_SECOND * BURST_MS / 1_000);
        // A clock that goes back saves up nothing either.
        assert!(!rate.may_try(5));
        assert!(!rate.may_try(1_000_000 + TRY_TICK_MS - 1));
        assert!(rate.may_try(1_000_000 + TRY_TICK_MS));
    }
}
