//! Faults on demand, drawn from one seeded generator: equal seeds and equal calls give equal faults.

use std::{collections::BTreeMap, time::Duration};

use crate::rng::SplitMix64;

/// Probabilities of the faults, from 0 (never, the default) to 1 (always).
#[derive(Debug, Clone, Default)]
pub struct MemoryFaults {
    /// Seed of the random generator.
    pub seed: u64,
    /// A delivered batch, or a part of it, is delivered again under the same epoch.
    pub duplicate: f64,
    /// A delivery is delayed for up to [`delay_max`](Self::delay_max).
    pub delay: f64,
    /// Longest delay of a delivery, in tokio time.
    pub delay_max: Duration,
    /// Before a delivery, all partitions of the group are revoked and assigned anew.
    pub rebalance: f64,
    /// Before a delivery, the member loses its assignment without a revocation, and joins again later.
    pub lost_assignment: f64,
    /// A produce fails as retryable, and the message is not in the log.
    pub produce_refused: f64,
    /// A produce fails as retryable, but the message is in the log.
    pub produce_unacknowledged: f64,
}

/// The generator with its probabilities and the counts of injected faults.
#[derive(Debug)]
pub(super) struct FaultInjector {
    random: SplitMix64,
    faults: MemoryFaults,
    injected: BTreeMap<&'static str, u64>,
}

impl FaultInjector {
    pub(super) fn new(faults: MemoryFaults) -> Self {
        FaultInjector { random: SplitMix64::new(faults.seed), faults, injected: BTreeMap::new() }
    }

    /// Replaces the probabilities; the generator keeps its state.
    #[cfg(feature = "testkit")]
    pub(super) fn set(&mut self, faults: MemoryFaults) {
        self.faults = faults;
    }

    /// Draws whether a fault is injected now, and counts it.
    pub(super) fn should_inject(&mut self, name: &'static str, of: impl Fn(&MemoryFaults) -> f64) -> bool {
        let should_inject = self.random.chance(of(&self.faults));
        if should_inject {
            *self.injected.entry(name).or_default() += 1;
        }
        should_inject
    }

    /// Draws the delay of a delivery.
    pub(super) fn delay(&mut self) -> Duration {
        Duration::from_millis(self.random.below(self.faults.delay_max.as_millis() as u64 + 1))
    }

    /// Draws a number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    #[cfg(feature = "testkit")]
    pub(super) fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.injected.clone()
    }
}
