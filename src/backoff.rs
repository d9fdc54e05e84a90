//! Pauses between tries.

use std::time::Duration;

use crate::seeded::Seeded;

/// Pauses that double up to a bound, each shortened by chance to as little as a half: those who failed at once must not all come
/// back at once.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
    dice: Seeded,
}

impl Backoff {
    /// The first and the longest pause. The same `seed` gives the same pauses: take it from what is tried.
    pub fn new((next, longest): (Duration, Duration), seed: u64) -> Self {
        Backoff { next, longest, dice: Seeded::new(seed) }
    }

    /// The same, with the seed from the bytes of what is tried: another one in each task, and still the same when a run is
    /// repeated.
    pub fn of(pauses: (Duration, Duration), tried: &[u8]) -> Self {
        let seed = tried.iter().fold(tried.len() as u64, |seed, byte| seed.rotate_left(8) ^ u64::from(*byte));
        Self::new(pauses, seed)
    }

    /// Waits before the next try.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.next_pause()).await;
    }

    fn next_pause(&mut self) -> Duration {
        let by = self.dice.below(self.next.as_micros() as u64 / 2 + 1);
        let pause = self.next - Duration::from_micros(by);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_double_to_the_longest_and_differ_by_what_is_tried() {
        let pauses = |tried: &[u8]| -> Vec<u128> {
            let mut backoff = Backoff::of((Duration::from_millis(10), Duration::from_millis(40)), tried);
            (0..5).map(|_| backoff.next_pause().as_micros()).collect()
        };
        for (pause, whole) in pauses(b"one").into_iter().zip([10_000, 20_000, 40_000, 40_000, 40_000]) {
            assert!((whole / 2..=whole).contains(&pause), "{pause} of {whole}");
        }
        assert_eq!(pauses(b"one"), pauses(b"one"));
        assert_ne!(pauses(b"one"), pauses(b"two"));
        assert_eq!(Backoff::of((Duration::ZERO, Duration::ZERO), b"").next_pause(), Duration::ZERO);
    }
}
