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

use super::{control::Control, registry::StatusRegistry};
use crate::{clock::Clock, liveness::LivenessMonitor};

/// What must hold for this process to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It is a member of its group and has its partitions (maybe none), and is not draining.
    Assigned,
    /// The log answers.
    BrokerReachable,
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

/// What has to move for itself: that the one does hides no stall of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The validated transactions.
    Transactions,
    /// The chain.
    Chain,
}

/// Whether a part has something to do, and when something of it last came to an end.
#[derive(Debug)]
struct Movement {
    idle: AtomicBool,
    at_ms: AtomicU64,
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
    liveness: LivenessMonitor,
    status_registry: StatusRegistry,
    control: Control,
    conditions: Mutex<Conditions>,
    waits: Mutex<Option<String>>,
    movements: [Movement; 2],
}

#[derive(Debug, Default)]
struct Conditions {
    /// Why each one that is not met is not.
    unmet: BTreeMap<Condition, String>,
    /// Since when each has been as it is, where that is not since the start: milliseconds since the epoch.
    changed_ms: BTreeMap<Condition, u64>,
}

/// How a condition stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConditionStatus {
    /// Whether it holds.
    pub met: bool,
    /// Since when it has been as it is, milliseconds since the epoch.
    pub since_ms: u64,
    /// Why it does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Condition {
    /// All of them.
    pub const ALL: [Condition; 8] = [
        Condition::Assigned,
        Condition::BrokerReachable,
        Condition::StoreReachable,
        Condition::PartitionsRunning,
        Condition::ChainRunning,
        Condition::ChainFed,
        Condition::OffsetsCommitted,
        Condition::ChainCommitted,
    ];

    /// Whether nothing can be expected to move while it is unmet. The others name a part that stands; the rest has to go on.
    fn excuses_all(self) -> bool {
        matches!(self, Condition::Assigned | Condition::BrokerReachable | Condition::StoreReachable)
    }

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Assigned => "assigned",
            Condition::BrokerReachable => "broker_reachable",
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
            movements: [(), ()]
                .map(|()| Movement { idle: AtomicBool::new(true), at_ms: AtomicU64::new(clock.steady_ms()) }),
            liveness: LivenessMonitor::new(clock.clone(), None),
            status_registry: StatusRegistry::new(clock.clone()),
            control: Control::default(),
            clock,
            stall_limit,
            conditions: Mutex::new(Conditions { unmet: starting.into(), ..Conditions::default() }),
            waits: Mutex::default(),
        }
    }

    /// With loops that may not stand still for `limit`; `None`: nobody looks.
    pub fn watched(mut self, limit: Option<Duration>) -> Self {
        self.liveness = LivenessMonitor::new(self.clock.clone(), limit);
        self
    }

    /// The loops of the loops of this process.
    pub fn liveness(&self) -> &LivenessMonitor {
        &self.liveness
    }

    /// What the loops show of themselves.
    pub fn status_registry(&self) -> &StatusRegistry {
        &self.status_registry
    }

    /// Where operators ask something of the loops.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Says that a condition holds (`None`) or why it does not.
    pub fn set(&self, condition: Condition, reason: Option<String>) {
        let mut conditions = self.conditions();
        let is_met = reason.is_none();
        let before = match reason {
            None => conditions.unmet.remove(&condition),
            Some(reason) => conditions.unmet.insert(condition, reason),
        };
        if before.is_none() != is_met {
            conditions.changed_ms.insert(condition, self.clock.now_ms());
        }
        drop(conditions);
        // What stood for it needs time to move again.
        if before.is_some() && condition.excuses_all() {
            [Part::Transactions, Part::Chain].into_iter().for_each(|part| self.moved(part));
        }
    }

    /// Something came to an end: an answer of the store, an acknowledgement, an event; or it waits for what a restart would not bring.
    pub fn moved(&self, part: Part) {
        self.movement(part).at_ms.store(self.clock.steady_ms(), Relaxed);
    }

    /// Whether there is nothing to do. The time to a stall begins when there is something again.
    pub fn set_idle(&self, part: Part, idle: bool) {
        if self.movement(part).idle.swap(idle, Relaxed) && !idle {
            self.moved(part);
        }
    }

    fn movement(&self, part: Part) -> &Movement {
        let [transactions, chain] = &self.movements;
        match part {
            Part::Transactions => transactions,
            Part::Chain => chain,
        }
    }

    /// For how long a part with something to do has not moved.
    fn stands(&self, part: Part) -> Duration {
        let Movement { idle, at_ms } = self.movement(part);
        let since_ms = self.clock.steady_ms().saturating_sub(at_ms.load(Relaxed));
        if idle.load(Relaxed) { Duration::ZERO } else { Duration::from_millis(since_ms) }
    }

    /// Ready: every condition holds.
    pub fn ready(&self) -> Report {
        let reasons: BTreeMap<_, _> =
            self.conditions().unmet.iter().map(|(condition, reason)| (condition.name(), reason.clone())).collect();
        Report { ok: reasons.is_empty(), reasons, waits: self.waits().clone() }
    }

    /// How each condition stands, by its name.
    pub fn conditions_now(&self) -> BTreeMap<&'static str, ConditionStatus> {
        let Conditions { unmet, changed_ms } = &*self.conditions();
        let standing = |condition: Condition| {
            let reason = unmet.get(&condition).cloned();
            let since_ms = changed_ms.get(&condition).copied().unwrap_or(self.status_registry.started_ms());
            (condition.name(), ConditionStatus { met: reason.is_none(), since_ms, reason })
        };
        Condition::ALL.into_iter().map(standing).collect()
    }

    /// Alive: idle, or moving, or kept from moving by what a restart would not mend: no store, no broker, or no partition. A halted
    /// partition, or chain, is no excuse for the others; who works on them says so by [`set_idle`](Self::set_idle).
    pub fn live(&self) -> Report {
        let mut reasons = BTreeMap::new();
        if !self.conditions().unmet.keys().any(|condition| condition.excuses_all()) {
            for (part, name, what) in
                [(Part::Transactions, "stalled", "nothing"), (Part::Chain, "chain_stalled", "nothing of the chain")]
            {
                let standing = self.stands(part);
                if standing > self.stall_limit {
                    reasons.insert(name, format!("{what} has moved for {} s", standing.as_secs()));
                }
            }
        }
        Report { ok: reasons.is_empty(), reasons, waits: self.waits().clone() }
    }

    /// Says which event waits for longer than usual, and for what; no condition of anything.
    pub fn set_wait(&self, what: Option<String>) {
        *self.waits() = what;
    }

    fn waits(&self) -> MutexGuard<'_, Option<String>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn conditions(&self) -> MutexGuard<'_, Conditions> {
        // No change can be left half done, so a panic elsewhere does not spoil it.
        self.conditions.lock().unwrap_or_else(PoisonError::into_inner)
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
    async fn each_condition_says_since_when_it_stands_so() {
        let health = health();
        tokio::time::advance(Duration::from_secs(1)).await;
        health.set(Condition::StoreReachable, Some("connection refused".to_owned()));
        health.set(Condition::BrokerReachable, Some("all brokers are down".to_owned()));
        tokio::time::advance(Duration::from_secs(1)).await;
        health.set(Condition::BrokerReachable, Some("no answer".to_owned()));
        health.set(Condition::Assigned, None);
        health.set(Condition::ChainFed, None);
        let conditions = health.conditions_now();
        assert_eq!(conditions.len(), 8);
        let of = |name| {
            let ConditionStatus { met, since_ms, reason } = &conditions[name];
            (*met, *since_ms, reason.as_deref())
        };
        assert_eq!(of("assigned"), (true, 1_002_000, None));
        assert_eq!(of("broker_reachable"), (false, 1_001_000, Some("no answer")), "it is the same outage");
        assert_eq!(of("store_reachable"), (false, 1_000_000, Some("connection refused")), "never was it reachable");
        assert_eq!(of("chain_fed"), (true, 1_000_000, None));
    }

    #[tokio::test(start_paused = true)]
    async fn it_lives_while_it_is_idle_or_moves_or_stands_for_a_named_reason() {
        let health = health();
        health.set(Condition::Assigned, None);
        health.set(Condition::StoreReachable, None);
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(health.live().ok, "idle");
        health.set_idle(Part::Transactions, false);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(health.live().ok, "at the limit");
        health.moved(Part::Transactions);
        tokio::time::advance(Duration::from_secs(61)).await;
        let report = health.live();
        assert!(!report.ok);
        assert_eq!(report.reasons["stalled"], "nothing has moved for 61 s");
        health.set_idle(Part::Transactions, false);
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
        health.moved(Part::Transactions);
        assert!(health.live().ok);
        health.set_idle(Part::Chain, false);
        tokio::time::advance(Duration::from_secs(61)).await;
        health.moved(Part::Transactions);
        assert_eq!(health.live().reasons["chain_stalled"], "nothing of the chain has moved for 61 s");
        health.moved(Part::Chain);
        assert!(health.live().ok);
    }
}
