//! Faults on demand, drawn from one seeded generator: the same seed and the same calls give the same faults.

use std::time::Duration;

/// How often what goes wrong. Probabilities from 0 (never, the default) to 1 (always).
#[derive(Debug, Clone, Default)]
pub struct MemoryFaults {
    /// Seed of the generator.
    pub seed: u64,
    /// A delivered batch comes again, in part or whole, under the same epoch.
    pub duplicate: f64,
    /// Messages of a partition are held back before a delivery, for up to [`delay_max`](Self::delay_max).
    pub delay: f64,
    /// The longest that messages are held back, in tokio time.
    pub delay_max: Duration,
    /// Before a delivery, the whole group gives up all partitions and gets them anew.
    pub rebalance: f64,
    /// Before a delivery, the member loses its assignment without being asked, and joins again later.
    pub lost_assignment: f64,
    /// A produce fails as retryable without having had any effect.
    pub produce_refused: f64,
    /// A produce fails as retryable, but the message is in the log.
    pub produce_unacknowledged: f64,
}

/// A seeded generator (splitmix64): small, and good enough to choose faults.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with the given probability; draws nothing when that is 0, so that a fault switched off shifts no other.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// A number in `0..bound`; 0 for a bound of 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..64).map(|_| random.happens(0.5)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn never_and_always_mean_it() {
        let mut random = Random::new(7);
        assert!((0..1000).all(|_| !random.happens(0.0) && random.happens(1.0)));
        assert!((0..1000).all(|_| random.below(3) < 3));
    }
}
