//! The one source of time below `cli`: milliseconds since the Unix epoch.
//!
//! The simulated clock follows tokio's, so that a whole pipeline runs under a paused runtime and replays from a seed.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

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
    },
}

impl Clock {
    /// A clock that starts at `start_ms` now and follows tokio's time.
    pub fn simulated(start_ms: u64) -> Self {
        Clock::Simulated { start_ms, origin: Instant::now() }
    }

    /// Milliseconds since the Unix epoch; 0 should the machine's clock stand before it.
    pub fn now_ms(&self) -> u64 {
        match self {
            Clock::System => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
            }
            Clock::Simulated { start_ms, origin } => start_ms + origin.elapsed().as_millis() as u64,
        }
    }
}
