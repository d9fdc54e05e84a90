//! Pauses between tries.

use std::{fmt, time::Duration};

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

    /// Asks until there is an answer, with a pause before it asks again; what asking again does not heal is an answer, too.
    pub async fn until_answered<T, E: fmt::Display, F: Future<Output = Result<T, E>>>(
        self,
        heals: impl Fn(&E) -> bool,
        ask: impl FnMut() -> F,
    ) -> Result<T, E> {
        self.until_answered_telling(heals, ask, |_| {}).await
    }

    /// The same; `told` hears what keeps it from being answered, and `None` when that is over.
    pub async fn until_answered_telling<T, E: fmt::Display, F: Future<Output = Result<T, E>>>(
        mut self,
        heals: impl Fn(&E) -> bool,
        mut ask: impl FnMut() -> F,
        mut told: impl FnMut(Option<&E>),
    ) -> Result<T, E> {
        loop {
            match ask().await {
                Ok(answer) => {
                    told(None);
                    return Ok(answer);
                }
                Err(error) if heals(&error) => {
                    tracing::warn!(%error, "tried again");
                    told(Some(&error));
                }
                Err(error) => return Err(error),
            }
            self.pause().await;
        }
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

    #[tokio::test(start_paused = true)]
    async fn it_is_asked_again_what_heals_and_nothing_else() {
        let pauses = (Duration::from_secs(1), Duration::from_secs(1));
        for (last, tries) in [(Ok("done"), 3), (Err("broken"), 3), (Err("broken"), 0)] {
            let (started, mut asked, mut told) = (tokio::time::Instant::now(), 0, Vec::new());
            let ask = || {
                asked += 1;
                std::future::ready(if asked > tries { last } else { Err("busy") })
            };
            let tell = |failed: Option<&&str>| told.push(failed.is_some());
            let heals = |error: &&str| *error == "busy";
            assert_eq!(Backoff::of(pauses, b"this").until_answered_telling(heals, ask, tell).await, last);
            let waited = started.elapsed();
            assert!((pauses.0 * tries / 2..=pauses.0 * tries).contains(&waited), "{waited:?} for {tries} tries");
            let expected: Vec<bool> = (0..tries).map(|_| true).chain(last.is_ok().then_some(false)).collect();
            assert_eq!((asked, told), (tries + 1, expected));
        }
    }

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
