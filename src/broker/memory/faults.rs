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
