//! Liveness and readiness of the process, as its loops report them.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;
use strum::{EnumIter, IntoEnumIterator, IntoStaticStr};

use super::{control::Control, registry::StatusRegistry};
pub use crate::liveness::Workload;
use crate::{
    clock::Clock,
    liveness::{LivenessLimits, LivenessMonitor},
};

/// A condition of readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, EnumIter, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Condition {
    /// The instance is a member of its group, knows its partitions (maybe none), and does not drain.
    Assigned,
    /// The log answers requests of the instance.
    BrokerReachable,
    /// The store answers requests of the instance.
    StoreReachable,
    /// No partition of validated transactions is halted.
    PartitionsRunning,
    /// The chain is not halted, if this instance has the chain.
    ChainRunning,
    /// The chain waits for no missing block or reorg.
    ChainFed,
    /// No event has waited long for an object with its body.
    ObjectsReadable,
    /// The pipeline commits its completed events: a restart would repeat uncommitted events.
    OffsetsCommitted,
    /// The sequencer commits its completed events.
    ChainCommitted,
    /// The store was not restored, or has read again everything that the store before it had read.
    CaughtUp,
}

/// Turns the commits of one group into a condition: a few failures heal, many in a row need an operator.
#[derive(Debug)]
pub struct CommitHealth {
    condition: Condition,
    failures: u32,
    /// Reason of the last failure; empty after a success.
    last_reason: String,
}

/// Failed commits in a row at which the condition is no longer met. A rebalance, or a node restart, causes a few.
const MAX_QUIET_FAILURES: u32 = 10;

impl CommitHealth {
    /// Sets `condition`: [`Condition::OffsetsCommitted`] or [`Condition::ChainCommitted`].
    pub fn new(condition: Condition) -> Self {
        CommitHealth { condition, failures: 0, last_reason: String::new() }
    }

    /// Records that a commit failed or was not tried. Returns whether the reason differs from that of the failure
    /// before: the log has a reason once, however many commits fail for it.
    pub fn record_failure(&mut self, health: &Health, why: impl Display) -> bool {
        let reason = why.to_string();
        self.failures = self.failures.saturating_add(1);
        if self.failures >= MAX_QUIET_FAILURES {
            let why = format!("nothing was committed {} times in a row: {reason}", self.failures);
            health.set(self.condition, Some(why));
        }
        let is_new = self.last_reason != reason;
        self.last_reason = reason;
        is_new
    }

    /// Records that a commit has stored all offsets that could be committed.
    pub fn record_success(&mut self, health: &Health) {
        self.last_reason.clear();
        if std::mem::take(&mut self.failures) >= MAX_QUIET_FAILURES {
            health.set(self.condition, None);
        }
    }
}

/// Answer of `/health/live` or `/health/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HealthReport {
    /// True where no reason speaks against health.
    pub ok: bool,
    /// Reasons by the name of the condition or stall.
    pub reasons: BTreeMap<&'static str, String>,
    /// The event that waits for longer than usual, and its missing parent or flag. A wait is no failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

/// Health of a process, shared by the loops that report and the servers that answer.
///
/// A process starts unready: [`Condition::Assigned`] and [`Condition::StoreReachable`] are not met until a loop sets
/// them.
#[derive(Debug)]
pub struct Health {
    clock: Clock,
    liveness: LivenessMonitor,
    status_registry: StatusRegistry,
    control: Control,
    conditions: Mutex<ConditionStates>,
    waits: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct ConditionStates {
    /// Conditions that are not met, with the reason.
    unmet: BTreeMap<Condition, String>,
    /// Time of the last change of a condition, milliseconds since the epoch; absent: no change since the start.
    changed_ms: BTreeMap<Condition, u64>,
    /// Number of tasks that get no answer from the store.
    tasks_without_answer: usize,
}

/// Status of one condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConditionStatus {
    /// True where the condition is met.
    pub met: bool,
    /// Time since which `met` has not changed, milliseconds since the epoch.
    pub since_ms: u64,
    /// Reason why the condition is not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Condition {
    /// True where no workload can progress while the condition is unmet. The other conditions concern one partition or
    /// the chain, and the rest must progress.
    fn excuses_every_stall(self) -> bool {
        matches!(self, Condition::Assigned | Condition::BrokerReachable | Condition::StoreReachable)
    }

    /// Name of the condition in reports and metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Health {
    /// Health whose liveness fails when a workload that is not idle has made no progress for `stall_limit`.
    pub fn new(clock: Clock, stall_limit: Duration) -> Self {
        let starting =
            [Condition::Assigned, Condition::StoreReachable].map(|condition| (condition, "starting".to_owned()));
        Self {
            liveness: LivenessMonitor::new(clock.clone(), LivenessLimits { beat: None, progress: stall_limit }),
            status_registry: StatusRegistry::new(clock.clone()),
            control: Control::default(),
            clock,
            conditions: Mutex::new(ConditionStates { unmet: starting.into(), ..ConditionStates::default() }),
            waits: Mutex::default(),
        }
    }

    /// Sets the longest time that a loop may go without a beat; `None`: the watchdog is disabled.
    pub fn with_watchdog(mut self, limit: Option<Duration>) -> Self {
        let limits = LivenessLimits { beat: limit, ..self.liveness.limits() };
        self.liveness = LivenessMonitor::new(self.clock.clone(), limits);
        self
    }

    /// Monitor of the loops and the workloads of this process.
    pub fn liveness(&self) -> &LivenessMonitor {
        &self.liveness
    }

    /// Statuses that the loops publish.
    pub fn status_registry(&self) -> &StatusRegistry {
        &self.status_registry
    }

    /// Queues of operators' requests to the loops.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Sets a condition as met (`None`) or as not met, with the reason.
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
        // The workloads that the condition has stopped need time for their next progress.
        if before.is_some() && condition.excuses_every_stall() {
            Workload::ALL.into_iter().for_each(|workload| self.liveness.record_progress(workload));
        }
    }

    /// Records that the store is open: it answers, and no task waits for an answer yet.
    pub fn on_store_opened(&self) {
        self.conditions().tasks_without_answer = 0;
        self.set(Condition::StoreReachable, None);
    }

    /// Records that a task gets no answer from the store, with the reason, or gets answers again after that. The store
    /// counts as reachable once no task is without an answer: one answer does not speak for other nodes.
    pub fn on_store_answer(&self, answer: Result<(), String>) {
        let without_answer = {
            let tasks = &mut self.conditions().tasks_without_answer;
            *tasks = if answer.is_ok() { tasks.saturating_sub(1) } else { *tasks + 1 };
            *tasks
        };
        if answer.is_err() || without_answer == 0 {
            self.set(Condition::StoreReachable, answer.err());
        }
    }

    /// Returns whether a condition is not met.
    pub fn is_unmet(&self, condition: Condition) -> bool {
        self.conditions().unmet.contains_key(&condition)
    }

    /// Report of readiness: ready while every condition is met.
    pub fn ready(&self) -> HealthReport {
        let reasons: BTreeMap<_, _> =
            self.conditions().unmet.iter().map(|(condition, reason)| (condition.name(), reason.clone())).collect();
        HealthReport { ok: reasons.is_empty(), reasons, waits: self.waits().clone() }
    }

    /// Status of each condition, by name.
    pub fn condition_statuses(&self) -> BTreeMap<&'static str, ConditionStatus> {
        let ConditionStates { unmet, changed_ms, .. } = &*self.conditions();
        let status_of = |condition: Condition| {
            let reason = unmet.get(&condition).cloned();
            let since_ms = changed_ms.get(&condition).copied().unwrap_or(self.status_registry.started_ms());
            (condition.name(), ConditionStatus { met: reason.is_none(), since_ms, reason })
        };
        Condition::iter().map(status_of).collect()
    }

    /// Report of liveness. A process is live while each workload is idle or has progressed, or while the store, the
    /// broker or the assignment is missing: a restart would not help. A halted partition, or a halted chain, excuses no
    /// stall of the rest; the loops count halted work as idle ([`set_idle`](LivenessMonitor::set_idle)).
    pub fn live(&self) -> HealthReport {
        let is_excused = self.conditions().unmet.keys().any(|condition| condition.excuses_every_stall());
        let stalled = if is_excused { Vec::new() } else { self.liveness.stalled_workloads() };
        let reason = |(workload, since): (Workload, Duration)| {
            let (name, what) = match workload {
                Workload::Transactions => ("stalled", "nothing"),
                Workload::Chain => ("chain_stalled", "nothing of the chain"),
            };
            (name, format!("{what} has moved for {} s", since.as_secs()))
        };
        let reasons: BTreeMap<_, _> = stalled.into_iter().map(reason).collect();
        HealthReport { ok: reasons.is_empty(), reasons, waits: self.waits().clone() }
    }

    /// Publishes the event that waits for longer than usual, and its missing parent or flag. No condition depends on
    /// the wait.
    pub fn set_wait(&self, what: Option<String>) {
        *self.waits() = what;
    }

    fn waits(&self) -> MutexGuard<'_, Option<String>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn conditions(&self) -> MutexGuard<'_, ConditionStates> {
        // No panic can leave a change half done.
        self.conditions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liveness::StallDetector;

    fn health() -> Health {
        Health::new(Clock::simulated(1_000_000), Duration::from_secs(60))
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_ready_when_all_conditions_are_met_and_names_the_others() {
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

    #[test]
    fn a_commit_that_fails_again_for_the_same_reason_is_no_news() {
        let health = health();
        let mut commits = CommitHealth::new(Condition::ChainCommitted);
        let mut news_of = |reason: &str| commits.record_failure(&health, reason);
        assert_eq!(["on its way", "on its way", "timeout", "on its way"].map(&mut news_of), [true, false, true, true]);
        commits.record_success(&health);
        assert!(commits.record_failure(&health, "on its way"));
    }

    #[tokio::test(start_paused = true)]
    async fn each_condition_has_the_time_of_its_last_change() {
        let health = health();
        tokio::time::advance(Duration::from_secs(1)).await;
        health.set(Condition::StoreReachable, Some("connection refused".to_owned()));
        health.set(Condition::BrokerReachable, Some("all brokers are down".to_owned()));
        tokio::time::advance(Duration::from_secs(1)).await;
        health.set(Condition::BrokerReachable, Some("no answer".to_owned()));
        health.set(Condition::Assigned, None);
        health.set(Condition::ChainFed, None);
        let conditions = health.condition_statuses();
        assert_eq!(conditions.len(), 10);
        let of = |name| {
            let ConditionStatus { met, since_ms, reason } = &conditions[name];
            (*met, *since_ms, reason.as_deref())
        };
        assert_eq!(of("assigned"), (true, 1_002_000, None));
        assert_eq!(of("broker_reachable"), (false, 1_001_000, Some("no answer")), "another reason is the same outage");
        assert_eq!(
            of("store_reachable"),
            (false, 1_000_000, Some("connection refused")),
            "the store was never reachable"
        );
        assert_eq!(of("chain_fed"), (true, 1_000_000, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_live_while_idle_or_progressing_or_stopped_by_an_outage() {
        let health = health();
        health.set(Condition::Assigned, None);
        health.set(Condition::StoreReachable, None);
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(health.live().ok, "idle");
        health.liveness().set_idle(Workload::Transactions, false);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(health.live().ok, "at the limit");
        health.liveness().record_progress(Workload::Transactions);
        tokio::time::advance(Duration::from_secs(61)).await;
        let report = health.live();
        assert!(!report.ok);
        assert_eq!(report.reasons["stalled"], "nothing has moved for 61 s");
        health.liveness().set_idle(Workload::Transactions, false);
        assert!(!health.live().ok, "work without progress is a stall");
        health.set(Condition::StoreReachable, Some("connection refused".to_owned()));
        assert!(health.live().ok, "a restart does not help the store");
        health.set(Condition::StoreReachable, None);
        assert!(health.live().ok, "work that waited for the store has the time to progress");
        tokio::time::advance(Duration::from_secs(61)).await;
        for condition in [Condition::PartitionsRunning, Condition::ChainRunning, Condition::ChainFed] {
            health.set(condition, Some("halted".to_owned()));
        }
        assert!(!health.live().ok, "a halt excuses no stall of the rest");
        health.liveness().record_progress(Workload::Transactions);
        assert!(health.live().ok);
        health.liveness().set_idle(Workload::Chain, false);
        tokio::time::advance(Duration::from_secs(61)).await;
        health.liveness().record_progress(Workload::Transactions);
        assert_eq!(health.live().reasons["chain_stalled"], "nothing of the chain has moved for 61 s");
        health.liveness().record_progress(Workload::Chain);
        assert!(health.live().ok);
    }

    /// A beat does not stand for progress, nor progress for a beat; an outage excuses work, and no loop.
    #[tokio::test(start_paused = true)]
    async fn one_monitor_tells_work_that_does_not_move_from_a_loop_that_does_not_turn() {
        let (beat_limit, second) = (Duration::from_secs(10), Duration::from_secs(1));
        let health = health().with_watchdog(Some(beat_limit));
        health.set(Condition::Assigned, None);
        health.set(Condition::StoreReachable, None);
        let monitor = health.liveness().watch_loop("the pipeline's loop");
        let mut watchdog = StallDetector::new(health.liveness(), second);
        health.liveness().set_idle(Workload::Transactions, false);
        for _ in 0..61 {
            tokio::time::advance(second).await;
            monitor.beat();
            assert_eq!(watchdog.check(), []);
        }
        assert_eq!(health.live().reasons["stalled"], "nothing has moved for 61 s", "the loop turns in vain");
        assert_eq!(health.liveness().loops()[0].since, Duration::ZERO);

        health.set(Condition::StoreReachable, Some("connection refused".to_owned()));
        for _ in 0..10 {
            tokio::time::advance(second).await;
            health.liveness().record_progress(Workload::Transactions);
            assert!(health.live().ok);
        }
        assert_eq!(watchdog.check(), [], "time between two checks counts for at most two intervals");
        for _ in 0..8 {
            tokio::time::advance(second).await;
            watchdog.check();
        }
        health.liveness().set_idle(Workload::Transactions, true);
        let stalled = watchdog.check();
        assert_eq!(stalled.iter().map(|stalled| &*stalled.name).collect::<Vec<_>>(), ["the pipeline's loop"]);
        assert!(health.live().ok, "idle, without the store");
        assert_eq!(serde_json::to_value(health.liveness().loops()).unwrap()[0]["age_seconds"], 18.0);
        drop(monitor);
        assert_eq!((watchdog.check(), health.liveness().loops()), (vec![], vec![]));
    }
}
