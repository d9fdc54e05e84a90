//! The one source of time below `cli`: milliseconds since the Unix epoch for timestamps, steady milliseconds for
//! durations.
//!
//! The simulated clock follows tokio's clock, so that a whole pipeline runs under a paused runtime and replays from a
//! seed.

#[cfg(feature = "testkit")]
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering::Relaxed},
};
use std::{
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

#[cfg(feature = "testkit")]
use tokio::time::Instant;

/// Origin of the steady time of this process: the first read of the steady clock.
static STEADY_ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// Source of the current time. Decisions (maturity, retention) never read the clock: heights come from events.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's wall clock.
    System,
    /// Starts at `start_ms` and advances with tokio's (possibly paused) clock since `origin`.
    #[cfg(feature = "testkit")]
    Simulated {
        /// Milliseconds since the epoch at `origin`.
        start_ms: u64,
        /// Instant of tokio's clock at `start_ms`.
        origin: Instant,
        /// Sum of all steps of the wall clock since `origin`, in milliseconds.
        stepped_ms: Arc<AtomicI64>,
    },
}

#[cfg(feature = "testkit")]
impl Clock {
    /// Returns a clock that shows `start_ms` now and follows tokio's clock.
    pub fn simulated(start_ms: u64) -> Self {
        Clock::Simulated { start_ms, origin: Instant::now(), stepped_ms: Arc::default() }
    }

    /// Steps a simulated wall clock forward or back, as an operator or NTP might. The machine's clock is not stepped.
    pub fn step(&self, by_ms: i64) {
        if let Clock::Simulated { stepped_ms, .. } = self {
            stepped_ms.fetch_add(by_ms, Relaxed);
        }
    }
}

impl Clock {
    /// Returns milliseconds since the Unix epoch; 0 if the machine's clock is set before the epoch.
    ///
    /// For timestamps that are stored or published. The wall clock may jump, so durations are measured with
    /// [`steady_ms`](Self::steady_ms).
    pub fn now_ms(&self) -> u64 {
        match self {
            Clock::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
            }
            #[cfg(feature = "testkit")]
            Clock::Simulated { start_ms, origin, stepped_ms } => {
                (start_ms + origin.elapsed().as_millis() as u64).saturating_add_signed(stepped_ms.load(Relaxed))
            }
        }
    }

    /// Returns milliseconds that never jump or go back when the machine's clock is set: for pauses, limits and grace
    /// periods. The origin differs in each process and has no meaning.
    pub fn steady_ms(&self) -> u64 {
        match self {
            Clock::System => STEADY_ORIGIN.elapsed().as_millis() as u64,
            #[cfg(feature = "testkit")]
            Clock::Simulated { origin, .. } => origin.elapsed().as_millis() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn steady_time_continues_when_the_wall_clock_is_set_back() {
        let clock = Clock::simulated(7_200_000);
        clock.step(-3_600_000);
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        assert_eq!((clock.now_ms(), clock.steady_ms()), (3_605_000, 5_000));
        let before = Clock::System.steady_ms();
        assert!(Clock::System.steady_ms() >= before);
    }
}
