//! The one source of time below `cli`: milliseconds since the Unix epoch, for what others see, and steady ones, for how long
//! something takes.
//!
//! The simulated clock follows tokio's, so that a whole pipeline runs under a paused runtime and replays from a seed.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

/// When this process first asked for a time that only rises.
static BEGINNING: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// Where "now" comes from. Nothing that decides (maturity, retention) reads it: heights come from events.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's wall clock.
    System,
    /// Starts at `start_ms` and advances with tokio's (possibly paused) clock since `origin`.
    Simulated {
        /// Milliseconds since the epoch at `origin`.
        start_ms: u64,
        /// The instant that stands for `start_ms`.
        origin: Instant,
        /// Milliseconds by which the wall clock was put forward or back since.
        stepped_ms: Arc<AtomicI64>,
    },
}

impl Clock {
    /// A clock that starts at `start_ms` now and follows tokio's time.
    pub fn simulated(start_ms: u64) -> Self {
        Clock::Simulated { start_ms, origin: Instant::now(), stepped_ms: Arc::default() }
    }

    /// Puts a simulated wall clock forward, or back, as its operator or NTP might. That of the machine is not ours to put.
    pub fn step(&self, by_ms: i64) {
        if let Clock::Simulated { stepped_ms, .. } = self {
            stepped_ms.fetch_add(by_ms, Relaxed);
        }
    }

    /// Milliseconds since the Unix epoch; 0 should the machine's clock stand before it. For what is stored or told to others: it
    /// may jump, and is no measure of how long something takes ([`steady_ms`](Self::steady_ms) is).
    pub fn now_ms(&self) -> u64 {
        match self {
            Clock::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
            }
            Clock::Simulated { start_ms, origin, stepped_ms } => {
                (start_ms + origin.elapsed().as_millis() as u64).saturating_add_signed(stepped_ms.load(Relaxed))
            }
        }
    }

    /// Milliseconds that never jump or go back, whatever is done to the machine's clock: for pauses, limits and graces. Their
    /// beginning means nothing, and is another one in each process.
    pub fn steady_ms(&self) -> u64 {
        match self {
            Clock::System => BEGINNING.elapsed().as_millis() as u64,
            Clock::Simulated { origin, .. } => origin.elapsed().as_millis() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_steady_goes_on_as_the_wall_clock_is_put_back() {
        let clock = Clock::simulated(7_200_000);
        clock.step(-3_600_000);
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        assert_eq!((clock.now_ms(), clock.steady_ms()), (3_605_000, 5_000));
        let before = Clock::System.steady_ms();
        assert!(Clock::System.steady_ms() >= before);
    }
}
