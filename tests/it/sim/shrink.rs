//! Reduces a failing plan while it still fails: fewer steps, fewer faults, simpler settings.

use std::time::{Duration, Instant};

use super::{
    plan::{Plan, Step},
    run::run,
};

/// Limits of the reduction.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    pub time: Duration,
    /// Random seeds tried for each candidate: a removed step shifts the random numbers of all others.
    pub seeds_per_candidate: u64,
}

struct Shrinker {
    best: Plan,
    failure: String,
    until: Instant,
    seeds_per_candidate: u64,
}

/// Returns the smallest failing plan found, and its failure.
pub fn shrink(plan: Plan, failure: String, budget: Budget) -> (Plan, String) {
    let mut shrinker = Shrinker {
        best: plan,
        failure,
        until: Instant::now() + budget.time,
        seeds_per_candidate: budget.seeds_per_candidate,
    };
    loop {
        let before = shrinker.best.clone();
        shrinker.drop_steps();
        shrinker.drop_faults();
        shrinker.simplify();
        if shrinker.best == before || shrinker.is_out_of_time() {
            let used = shrinker.best.used();
            shrinker.best.txs.retain(|id, _| used.contains(id));
            return (shrinker.best, shrinker.failure);
        }
    }
}

impl Shrinker {
    fn is_out_of_time(&self) -> bool {
        Instant::now() >= self.until
    }

    fn fails(&mut self, candidate: Plan) -> bool {
        let candidate = candidate.with_honest_blocks();
        if candidate == self.best {
            return false;
        }
        for attempt in 0..self.seeds_per_candidate {
            if self.is_out_of_time() {
                return false;
            }
            let candidate = Plan { rng_seed: candidate.rng_seed.wrapping_add(attempt), ..candidate.clone() };
            if let Some(failure) = run(&candidate, false).failure.filter(|failure| is_same_kind(failure, &self.failure))
            {
                (self.best, self.failure) = (candidate, failure);
                return true;
            }
        }
        false
    }

    /// Removes ever shorter sequences of steps.
    fn drop_steps(&mut self) {
        let mut length = self.best.steps.len().div_ceil(2);
        while length > 0 {
            let mut from = 0;
            while from < self.best.steps.len() && !self.is_out_of_time() {
                let mut candidate = self.best.clone();
                candidate.steps.drain(from..(from + length).min(candidate.steps.len()));
                if !self.fails(candidate) {
                    from += length;
                }
            }
            length /= 2;
        }
    }

    fn drop_faults(&mut self) {
        for fault in self.best.faults.keys().copied().collect::<Vec<_>>() {
            let mut candidate = self.best.clone();
            candidate.faults.remove(fault);
            self.fails(candidate);
        }
    }

    fn simplify(&mut self) {
        for change in [
            (|plan| plan.session_ms = 0) as fn(&mut Plan),
            |plan| plan.batch = 16,
            |plan| plan.height_step = 1,
            |plan| {
                plan.steps.iter_mut().for_each(|step| {
                    if let Step::Start { slot } | Step::Crash { slot, .. } | Step::Wake { slot } = step {
                        *slot = 0;
                    }
                });
            },
        ] {
            let mut candidate = self.best.clone();
            change(&mut candidate);
            self.fails(candidate);
        }
        for index in 0..self.best.steps.len() {
            let mut candidate = self.best.clone();
            let simpler = match &mut candidate.steps[index] {
                Step::Mine { listed, .. } | Step::MineSideChain { listed, .. } => listed.pop().is_some(),
                Step::Reorg { connect, .. } => connect.last_mut().is_some_and(|run| run.listed.pop().is_some()),
                Step::Validate { locked, .. } => std::mem::take(locked),
                _ => false,
            };
            if simpler {
                self.fails(candidate);
            }
            let mut candidate = self.best.clone();
            if let Step::Reorg { disconnect, connect } = &mut candidate.steps[index] {
                if connect.pop().is_none() {
                    *disconnect = disconnect.saturating_sub(1);
                }
                self.fails(candidate);
            }
        }
    }
}

/// Whether two failures are of one kind: the reduction must not replace one failure by another.
fn is_same_kind(one: &str, other: &str) -> bool {
    let kind = |failure: &str| -> String {
        let line = failure.lines().next().unwrap_or_default();
        line.chars().filter(|c| !c.is_ascii_digit()).take(40).collect()
    };
    kind(one) == kind(other)
}
