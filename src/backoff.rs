//! Pauses between attempts.

use std::{fmt, time::Duration};

use crate::rng::SplitMix64;

/// Pauses that double up to a bound. Each pause is shortened at random, by at most a half: requests that failed at the
/// same time are not repeated at the same time.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
    rng: SplitMix64,
}

impl Backoff {
    /// Returns a backoff with these first and longest pauses. The same `seed` gives the same pauses.
    pub fn new((next, longest): (Duration, Duration), seed: u64) -> Self {
        Backoff { next, longest, rng: SplitMix64::new(seed) }
    }

    /// Like [`new`](Self::new), with the seed from `key`, such as a record's key: concurrent requests get different
    /// pauses, and a repeated run gets the same ones.
    pub fn from_key(pauses: (Duration, Duration), key: &[u8]) -> Self {
        let seed = key.iter().fold(key.len() as u64, |seed, byte| seed.rotate_left(8) ^ u64::from(*byte));
        Self::new(pauses, seed)
    }

    /// Sends a request, and repeats it after a pause while it fails with a retryable error.
    ///
    /// # Errors
    /// The first error for which `is_retryable` is `false`.
    pub async fn retry<T, E: fmt::Display, F: Future<Output = Result<T, E>>>(
        self,
        is_retryable: impl Fn(&E) -> bool,
        request: impl FnMut() -> F,
    ) -> Result<T, E> {
        self.retry_notify(is_retryable, request, |_| {}).await
    }

    /// Like [`retry`](Self::retry); passes each retryable error to `notify`, and `None` on success.
    ///
    /// # Errors
    /// The first error for which `is_retryable` is `false`.
    pub async fn retry_notify<T, E: fmt::Display, F: Future<Output = Result<T, E>>>(
        mut self,
        is_retryable: impl Fn(&E) -> bool,
        mut request: impl FnMut() -> F,
        mut notify: impl FnMut(Option<&E>),
    ) -> Result<T, E> {
        loop {
            match request().await {
                Ok(answer) => {
                    notify(None);
                    return Ok(answer);
                }
                Err(error) if is_retryable(&error) => {
                    tracing::warn!(%error, "retry: request failed; repeating it after a pause");
                    notify(Some(&error));
                }
                Err(error) => return Err(error),
            }
            self.pause().await;
        }
    }

    /// Waits for the next pause.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.next_pause()).await;
    }

    /// Returns the next pause.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let shortened_by = self.rng.below(self.next.as_micros() as u64 / 2 + 1);
        let pause = self.next - Duration::from_micros(shortened_by);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_retryable_errors_are_retried() {
        let pauses = (Duration::from_secs(1), Duration::from_secs(1));
        for (last, retries) in [(Ok("done"), 3), (Err("broken"), 3), (Err("broken"), 0)] {
            let (started, mut requests, mut notices) = (tokio::time::Instant::now(), 0, Vec::new());
            let request = || {
                requests += 1;
                std::future::ready(if requests > retries { last } else { Err("busy") })
            };
            let notify = |failed: Option<&&str>| notices.push(failed.is_some());
            let is_retryable = |error: &&str| *error == "busy";
            assert_eq!(Backoff::from_key(pauses, b"this").retry_notify(is_retryable, request, notify).await, last);
            let waited = started.elapsed();
            let bounds = pauses.0 * retries / 2..=pauses.0 * retries;
            assert!(bounds.contains(&waited), "{waited:?} for {retries} retries");
            let expected: Vec<bool> = (0..retries).map(|_| true).chain(last.is_ok().then_some(false)).collect();
            assert_eq!((requests, notices), (retries + 1, expected));
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_differ_by_key() {
        let pauses = |key: &[u8]| -> Vec<u128> {
            let mut backoff = Backoff::from_key((Duration::from_millis(10), Duration::from_millis(40)), key);
            (0..5).map(|_| backoff.next_pause().as_micros()).collect()
        };
        for (pause, whole) in pauses(b"one").into_iter().zip([10_000, 20_000, 40_000, 40_000, 40_000]) {
            assert!((whole / 2..=whole).contains(&pause), "{pause} of {whole}");
        }
        assert_eq!(pauses(b"one"), pauses(b"one"));
        assert_ne!(pauses(b"one"), pauses(b"two"));
        assert_eq!(Backoff::from_key((Duration::ZERO, Duration::ZERO), b"").next_pause(), Duration::ZERO);
    }
}
