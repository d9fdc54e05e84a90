//! Whether this process lives and whether it is ready, as the rest of it says.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Serialize;

use crate::clock::Clock;

/// What must hold for this process to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It is a member of its group and has its partitions (maybe none), and is not draining.
    Assigned,
    /// The store answers.
    StoreReachable,
    /// No validated partition is halted.
    PartitionsRunning,
    /// The sequencer, if it is here, is not halted.
    ChainRunning,
    /// No block or reorg is missing that the chain would go on with.
    ChainFed,
    /// What is done is committed, by the pipeline: else a restart would do all of it again.
    OffsetsCommitted,
    /// The same of the sequencer.
    ChainCommitted,
}

/// Follows the commits of one group: a few may fail, which heals by itself; many in a row are for somebody to look at.
#[derive(Debug)]
pub struct Commits {
    condition: Condition,
    failed: u32,
}

/// So many in a row may fail without a word: a rebalance, or a node that restarts, takes a few.
const MAY_FAIL: u32 = 10;

impl Commits {
    /// Speaks for [`Condition::OffsetsCommitted`] or [`Condition::ChainCommitted`].
    pub fn new(condition: Condition) -> Self {
        Commits { condition, failed: 0 }
    }

    /// Nothing was committed, and why.
    pub fn failed(&mut self, health: &Health, why: impl Display) {
        self.failed = self.failed.saturating_add(1);
        if self.failed >= MAY_FAIL {
            let why = format!("nothing was committed {} times in a row: {why}", self.failed);
            health.set(self.condition, Some(why));
        }
    }

    /// Everything was that could be.
    pub fn succeeded(&mut self, health: &Health) {
        if std::mem::take(&mut self.failed) >= MAY_FAIL {
            health.set(self.condition, None);
        }
    }
}

/// An answer about health.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether all is well.
    pub ok: bool,
    /// What is not, and why.
    pub reasons: BTreeMap<&'static str, String>,
    /// Which event waits for longer than usual, and for what: worth a look, but nothing is wrong here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

/// The health of a process; shared by those who know and those who ask.
///
/// It starts unready: what nobody has spoken for yet ([`Condition::Assigned`], [`Condition::StoreReachable`]) does not hold.
#[derive(Debug)]
pub struct Health {
    clock: Clock,
    stall_limit: Duration,
    unmet: Mutex<BTreeMap<Condition, String>>,
    waits: Mutex<Option<String>>,
    idle: AtomicBool,
    moved_at_ms: AtomicU64,
}

impl Condition {
    /// Whether nothing can be expected to move while it is unmet. The others name a part that stands; the rest has to go on.
    fn excuses_all(self) -> bool {
        matches!(self, Condition::Assigned | Condition::StoreReachable)
    }

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Assigned => "assigned",
            Condition::StoreReachable => "store_reachable",
            Condition::PartitionsRunning => "partitions_running",
            Condition::ChainRunning => "chain_running",
            Condition::ChainFed => "chain_fed",
            Condition::OffsetsCommitted => "offsets_committed",
            Condition::ChainCommitted => "chain_committed",
        }
    }
}

impl Health {
    /// Health that fails when, with work at hand, nothing moves for `stall_limit`.
    pub fn new(clock: Clock, stall_limit: Duration) -> Self {
        let starting =
            [Condition::Assigned, Condition::StoreReachable].map(|condition| (condition, "starting".to_owned()));
        Self {
            moved_at_ms: AtomicU64::new(clock.steady_ms()),
            clock,
            stall_limit,
            unmet: Mutex::new(starting.into()),
            waits: Mutex::default(),
            idle: AtomicBool::new(true),
        }
    }

    /// Says that a condition holds (`None`) or why it does not.
    pub fn set(&self, condition: Condition, reason: Option<String>) {
        let mut unmet = self.unmet();
        let before = match reason {
            None => unmet.remove(&condition),
            Some(reason) => unmet.insert(condition, reason),
        };
        // What stood for it needs time to move again.
        if before.is_some() && condition.excuses_all() {
            self.moved();
        }
    }

    /// Something came to an end: an answer of the store, an acknowledgement, an event.
    pub fn moved(&self) {
        self.moved_at_ms.store(self.clock.steady_ms(), Relaxed);
    }

    /// Whether there is nothing to do. The time to a stall begins when there is something again.
    pub fn set_idle(&self, idle: bool) {
        if self.idle.swap(idle, Relaxed) && !idle {
            self.moved();
        }
    }

    /// Ready: every condition holds.
    pub fn ready(&self) -> Report {
        let reasons: BTreeMap<_, _> =
            self.unmet().iter().map(|(condition, reason)| (condition.name(), reason.clone())).collect();
        Report { ok: reasons.is_empty(), reasons, waits: self.waits().clone() }
    }

    /// Alive: idle, or moving, or kept from moving by what a restart would not mend: no store, or no partition. A halted
    /// partition, or chain, is no excuse for the others; who works on them says so by [`set_idle`](Self::set_idle).
    pub fn live(&self) -> Report {
        let standing = Duration::from_millis(self.clock.steady_ms().saturating_sub(self.moved_at_ms.load(Relaxed)));
        let ok = self.idle.load(Relaxed)
            || standing <= self.stall_limit
            || self.unmet().keys().any(|condition| condition.excuses_all());
        let reason = || ("stalled", format!("nothing has moved for {} s", standing.as_secs()));
        Report { ok, reasons: (!ok).then(reason).into_iter().collect(), waits: self.waits().clone() }
    }

    /// Says which event waits for longer than usual, and for what; no condition of anything.
    pub fn set_wait(&self, what: Option<String>) {
        *self.waits() = what;
    }

    fn waits(&self) -> MutexGuard<'_, Option<String>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unmet(&self) -> MutexGuard<'_, BTreeMap<Condition, String>> {
        // No change can be left half done, so a panic elsewhere does not spoil it.
        self.unmet.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        Health::new(Clock::simulated(1_000_000), Duration::from_secs(60))
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_when_all_conditions_hold_and_says_which_do_not() {
        let health = health();
        assert_eq!(health.ready().reasons.keys().copied().collect::<Vec<_>>(), ["assigned", "store_reachable"]);
        health.set(Condition::Assigned, None);
        health.set(Condition::StoreReachable, None);
        assert!(health.ready().ok);
        health.set(Condition::ChainRunning, Some("block 7 lists unknown transactions".to_owned()));
        let report = health.ready();
        assert!(!report.ok);
        assert_eq!(report.reasons["chain_running"], "block 7 lists unknown transactions");
        health.set(Condition::ChainRunning, None);
        assert!(health.ready().ok);
    }

    #[tokio::test(start_paused = true)]
    async fn it_lives_while_it_is_idle_or_moves_or_stands_for_a_named_reason() {
        let health = health();
        health.set(Condition::Assigned, None);
        health.set(Condition::StoreReachable, None);
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(health.live().ok, "idle");
        health.set_idle(false);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(health.live().ok, "at the limit");
        health.moved();
        tokio::time::advance(Duration::from_secs(61)).await;
        let report = health.live();
        assert!(!report.ok);
        assert_eq!(report.reasons["stalled"], "nothing has moved for 61 s");
        health.set_idle(false);
        assert!(!health.live().ok, "busy as before is no progress");
        health.set(Condition::StoreReachable, Some("connection refused".to_owned()));
        assert!(health.live().ok, "a restart does not mend the store");
        health.set(Condition::StoreReachable, None);
        assert!(health.live().ok, "what stood for the store may go on first");
        tokio::time::advance(Duration::from_secs(61)).await;
        for condition in [Condition::PartitionsRunning, Condition::ChainRunning, Condition::ChainFed] {
            health.set(condition, Some("halted".to_owned()));
        }
        assert!(!health.live().ok, "what stands elsewhere is no reason for the rest to stand");
    }
}
