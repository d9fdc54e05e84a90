//! How many of those that wait try in a second. Pure.

/// As long as nothing is known: what a store does in passing …
pub(super) const USUAL: u64 = 5_000;

/// … at the most, while many come on by it …
const MOST: u64 = USUAL * 8;

/// … and at the least, however few do.
const LEAST: u64 = USUAL / 16;

/// After so many it is judged what came of them.
const ROUND: u32 = 256;

/// Of those that try, one in so many has to come on for more to try, and …
const MANY: u32 = 8;

/// … one in so many for no fewer to.
const FEW: u32 = 32;

/// So many milliseconds' tries are made together: they share a batch, and the loop wakes for them once.
pub(super) const TOGETHER_MS: u64 = 16;

/// What may be made at once after a pause.
const BURST_MS: u64 = 100;

/// Follows how many tries are of use: instances that are told again and again that what they wait for is not there take the store's time, and
/// the processor's, from whatever would bring it.
#[derive(Debug)]
pub(super) struct Pace {
    a_second: u64,
    tried: u32,
    came_on: u32,
    /// In thousandths of a try.
    allowed: u64,
    since_ms: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { a_second: USUAL, tried: 0, came_on: 0, allowed: 0, since_ms: 0 }
    }
}

impl Pace {
    /// Whether one may try now.
    pub fn allows(&mut self, now_ms: u64) -> bool {
        let passed = now_ms.saturating_sub(self.since_ms);
        if passed >= TOGETHER_MS {
            self.since_ms = now_ms;
            self.allowed = (self.allowed + passed.min(BURST_MS) * self.a_second).min(BURST_MS * self.a_second);
        }
        self.allowed >= 1_000
    }

    /// One tries.
    pub fn spend(&mut self) {
        self.allowed = self.allowed.saturating_sub(1_000);
    }

    /// When one may try, as of the last question.
    pub fn allows_at_ms(&self) -> u64 {
        if self.allowed >= 1_000 { self.since_ms } else { self.since_ms.saturating_add(TOGETHER_MS) }
    }

    /// One has tried: it waits again for the same, or not.
    pub fn judge(&mut self, came_on: bool) {
        self.tried += 1;
        self.came_on += u32::from(came_on);
        if self.tried < ROUND {
            return;
        }
        if self.came_on * MANY >= self.tried {
            self.a_second = (self.a_second * 2).min(MOST);
        } else if self.came_on * FEW < self.tried {
            self.a_second = (self.a_second / 2).max(LEAST);
        }
        (self.tried, self.came_on) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many try within a second in which as many as may do.
    fn within_a_second(pace: &mut Pace, from_ms: u64) -> u64 {
        let mut tries = 0;
        let mut now_ms = from_ms;
        while now_ms < from_ms + 1_000 {
            if pace.allows(now_ms) {
                pace.spend();
                tries += 1;
            } else {
                assert!(pace.allows_at_ms() > now_ms);
                now_ms = pace.allows_at_ms();
            }
        }
        tries
    }

    #[test]
    fn as_many_try_as_are_of_use() {
        let mut pace = Pace::default();
        let near = |tries: u64, wanted: u64| assert!(tries.abs_diff(wanted) <= wanted / 8 + 10, "{tries} of {wanted}");
        near(within_a_second(&mut pace, 1_000), USUAL);
        (0..ROUND).for_each(|_| pace.judge(false));
        near(within_a_second(&mut pace, 2_000), USUAL / 2);
        (0..20 * ROUND).for_each(|_| pace.judge(false));
        near(within_a_second(&mut pace, 3_000), LEAST);
        (0..20 * ROUND).for_each(|number| pace.judge(number % 16 == 0));
        near(within_a_second(&mut pace, 4_000), LEAST);
        (0..20 * ROUND).for_each(|number| pace.judge(number % MANY == 0));
        near(within_a_second(&mut pace, 5_000), MOST);
    }

    #[test]
    fn a_long_pause_saves_up_no_more_than_a_burst() {
        let mut pace = Pace::default();
        assert!(pace.allows(1_000_000));
        let mut burst = 0;
        while pace.allows(1_000_000) {
            pace.spend();
            burst += 1;
        }
        assert_eq!(burst, USUAL * BURST_MS / 1_000);
        // Nor does a clock that goes back.
        assert!(!pace.allows(5));
        assert!(!pace.allows(1_000_000 + TOGETHER_MS - 1));
        assert!(pace.allows(1_000_000 + TOGETHER_MS));
    }
}
