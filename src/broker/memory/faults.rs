//! Faults on demand, drawn from one seeded generator: the same seed and the same calls give the same faults.

use std::{collections::BTreeMap, time::Duration};

use crate::seeded::Seeded;

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

/// The generator, what it is to do, and what it has done.
#[derive(Debug)]
pub(super) struct Dice {
    random: Seeded,
    faults: MemoryFaults,
    injected: BTreeMap<&'static str, u64>,
}

impl Dice {
    pub(super) fn new(faults: MemoryFaults) -> Self {
        Dice { random: Seeded::new(faults.seed), faults, injected: BTreeMap::new() }
    }

    /// Other faults from now on, from the same generator.
    pub(super) fn set(&mut self, faults: MemoryFaults) {
        self.faults = faults;
    }

    /// Whether this fault strikes now.
    pub(super) fn strikes(&mut self, name: &'static str, of: impl Fn(&MemoryFaults) -> f64) -> bool {
        let strikes = self.random.chance(of(&self.faults));
        if strikes {
            *self.injected.entry(name).or_default() += 1;
        }
        strikes
    }

    /// How long messages are held back.
    pub(super) fn delay(&mut self) -> Duration {
        Duration::from_millis(self.random.below(self.faults.delay_max.as_millis() as u64 + 1))
    }

    /// One of so many.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    pub(super) fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.injected.clone()
    }
}
