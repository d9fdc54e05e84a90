//! Liveness of the loops and of the work of a process. The watchdog, `/health/live` and `/state` read this one monitor.
//!
//! - A *beat* shows that a loop *turns*, not that there is work or that work is possible: an unavailable store, a
//!   halted partition and a block that waits for transactions stall no loop. A wait within a turn goes through
//!   [`LoopMonitor::enter`], which beats as long as the runtime polls the wait. `cli/watchdog.rs` ends a process with a
//!   loop that does not beat.
//! - *Progress* shows that a workload *moves*. `/health/live` fails while a workload that is not idle makes no
//!   progress, unless an outage excuses the stall (`status/health.rs`).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Serialize, Serializer};
use tokio::time::Instant;

use crate::clock::Clock;

/// Least number of beats within the limit.
const BEATS_PER_LIMIT: u32 = 8;

/// Longest times without a sign of life.
#[derive(Debug, Clone, Copy)]
pub struct LivenessLimits {
    /// Longest time that a loop may go without a beat; `None`: the watchdog is disabled.
    pub beat: Option<Duration>,
    /// Longest time that a workload that is not idle may go without progress.
    pub progress: Duration,
}

/// A part of the work with a stall of its own: progress of one part hides no stall of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Work of the pipeline on validated transactions.
    Transactions,
    /// Work of the sequencer on the chain.
    Chain,
}

impl Workload {
    /// Every workload, in the order of the declaration.
    pub const ALL: [Workload; 2] = [Workload::Transactions, Workload::Chain];
}

/// The monitored loops and workloads of a process. Clones share the loops and the workloads.
#[derive(Debug, Clone)]
pub struct LivenessMonitor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    limits: LivenessLimits,
    next_id: AtomicU64,
    /// Loops that have a [`LoopMonitor`], and perhaps some that have ended.
    loops: Mutex<Vec<Weak<MonitoredLoop>>>,
    /// Activities in the order of [`Workload::ALL`].
    activities: [Activity; 2],
}

#[derive(Debug)]
struct Activity {
    idle: AtomicBool,
    /// Steady milliseconds of the last progress.
    progress_ms: AtomicU64,
}

#[derive(Debug)]
struct MonitoredLoop {
    id: u64,
    name: String,
    clock: Clock,
    beat_interval: Option<Duration>,
    /// Steady milliseconds of the last beat; in the future while the loop is in an announced blocking call.
    beat_ms: AtomicU64,
    /// The wait that the loop has entered.
    waits_for: Mutex<Option<&'static str>>,
}

impl MonitoredLoop {
    fn status(&self, since: Duration) -> LoopStatus {
        LoopStatus { name: self.name.clone(), waits_for: *self.waits_for(), since }
    }

    fn waits_for(&self) -> MutexGuard<'_, Option<&'static str>> {
        // An assignment of one word cannot be left half done by a panic.
        self.waits_for.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Monitors one loop from its creation until this value and all of its clones are dropped.
#[derive(Debug, Clone)]
pub struct LoopMonitor(Arc<MonitoredLoop>);

impl Shared {
    /// Returns the loops that have not ended, in the order of their registration.
    fn loops(&self) -> Vec<Arc<MonitoredLoop>> {
        self.registered().iter().filter_map(Weak::upgrade).collect()
    }

    fn registered(&self) -> MutexGuard<'_, Vec<Weak<MonitoredLoop>>> {
        // An insertion or removal cannot be left half done by a panic.
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LivenessMonitor {
    /// Returns a monitor without loops, whose workloads are idle.
    pub fn new(clock: Clock, limits: LivenessLimits) -> Self {
        let activities = Workload::ALL
            .map(|_| Activity { idle: AtomicBool::new(true), progress_ms: AtomicU64::new(clock.steady_ms()) });
        LivenessMonitor(Arc::new(Shared {
            clock,
            limits,
            next_id: AtomicU64::new(0),
            loops: Mutex::default(),
            activities,
        }))
    }

    /// Returns the longest times without a sign of life.
    pub fn limits(&self) -> LivenessLimits {
        self.0.limits
    }

    /// Returns each loop with the time since the loop's last beat.
    pub fn loops(&self) -> Vec<LoopStatus> {
        let now_ms = self.0.clock.steady_ms();
        let since =
            |monitored: &MonitoredLoop| Duration::from_millis(now_ms.saturating_sub(monitored.beat_ms.load(Relaxed)));
        self.0.loops().iter().map(|monitored| monitored.status(since(monitored))).collect()
    }

    /// Starts to monitor a loop; logs and `/state` show the loop by `name`.
    pub fn watch_loop(&self, name: impl Into<String>) -> LoopMonitor {
        let monitored = Arc::new(MonitoredLoop {
            id: self.0.next_id.fetch_add(1, Relaxed),
            name: name.into(),
            clock: self.0.clock.clone(),
            beat_interval: self.0.limits.beat.map(|limit| limit / BEATS_PER_LIMIT),
            beat_ms: AtomicU64::new(self.0.clock.steady_ms()),
            waits_for: Mutex::default(),
        });
        let mut registered = self.0.registered();
        registered.retain(|monitored| monitored.strong_count() > 0);
        registered.push(Arc::downgrade(&monitored));
        LoopMonitor(monitored)
    }

    /// Records progress of a workload: an answer of the store, an acknowledgement, a completed event. A wait that a
    /// restart would not end counts, too.
    pub fn record_progress(&self, workload: Workload) {
        self.activity(workload).progress_ms.store(self.0.clock.steady_ms(), Relaxed);
    }

    /// Records that a workload has no work, or has work again. The time to a stall starts with new work.
    pub fn set_idle(&self, workload: Workload, idle: bool) {
        if self.activity(workload).idle.swap(idle, Relaxed) && !idle {
            self.record_progress(workload);
        }
    }

    /// Returns the workloads that are not idle and have made no progress for longer than the limit, with the time since
    /// their last progress.
    pub fn stalled_workloads(&self) -> Vec<(Workload, Duration)> {
        let now_ms = self.0.clock.steady_ms();
        let since = |workload| {
            let Activity { idle, progress_ms } = self.activity(workload);
            let since = Duration::from_millis(now_ms.saturating_sub(progress_ms.load(Relaxed)));
            (!idle.load(Relaxed) && since > self.0.limits.progress).then_some((workload, since))
        };
        Workload::ALL.into_iter().filter_map(since).collect()
    }

    fn activity(&self, workload: Workload) -> &Activity {
        let [transactions, chain] = &self.0.activities;
        match workload {
            Workload::Transactions => transactions,
            Workload::Chain => chain,
        }
    }
}

impl LoopMonitor {
    /// Records that the loop has turned.
    pub fn beat(&self) {
        self.0.beat_ms.store(self.0.clock.steady_ms(), Relaxed);
    }

    /// Announces a call that blocks the thread for at most `bound`.
    pub fn announce_blocking(&self, bound: Duration) {
        let until_ms = self.0.clock.steady_ms().saturating_add(bound.as_millis() as u64);
        self.0.beat_ms.store(until_ms, Relaxed);
    }

    /// Returns the instant by which an idle loop must wake for the next beat; a year from now if the watchdog is
    /// disabled.
    pub fn next_beat(&self) -> Instant {
        const NEVER: Duration = Duration::from_secs(86_400 * 365);
        Instant::now() + self.0.beat_interval.unwrap_or(NEVER)
    }

    /// Awaits `work` of any length and beats while the runtime polls `work`.
    pub async fn enter<T>(&self, waits_for: &'static str, work: impl Future<Output = T>) -> T {
        let Some(beat_interval) = self.0.beat_interval else { return work.await };
        let mut work = std::pin::pin!(work);
        let _entered = Entered { monitor: self, before: self.0.waits_for().replace(waits_for) };
        loop {
            self.beat();
            // `work` is polled first: work that has ended costs no timer.
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(beat_interval) => {}
            }
        }
    }
}

/// Restores the previous wait when dropped.
struct Entered<'a> {
    monitor: &'a LoopMonitor,
    before: Option<&'static str>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        *self.monitor.0.waits_for() = self.before;
        self.monitor.beat();
    }
}

/// A monitored loop, as logs and `/state` show the loop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoopStatus {
    /// Name of the loop in logs and in `/state`.
    pub name: String,
    /// The wait that the loop has entered; `None`: none.
    pub waits_for: Option<&'static str>,
    /// Time since the last beat of the loop.
    #[serde(rename = "age_seconds", serialize_with = "serialize_seconds")]
    pub since: Duration,
}

fn serialize_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Finds stalled loops by repeated checks. The caller decides when to check.
///
/// Time between two checks counts for at most twice the usual interval: a stopped process or a sleeping machine has not
/// stalled.
#[derive(Debug)]
pub struct StallDetector {
    monitor: LivenessMonitor,
    interval: Duration,
    checked_at_ms: u64,
    /// Last beat, and observed time since then, by loop id.
    seen: BTreeMap<u64, (u64, Duration)>,
}

impl StallDetector {
    /// Returns a detector that the caller checks every `interval`.
    pub fn new(monitor: &LivenessMonitor, interval: Duration) -> Self {
        let checked_at_ms = monitor.0.clock.steady_ms();
        StallDetector { checked_at_ms, monitor: monitor.clone(), interval, seen: BTreeMap::new() }
    }

    /// Returns the loops without a beat for the limit or longer, with the observed time since the last beat.
    pub fn check(&mut self) -> Vec<LoopStatus> {
        let now_ms = self.monitor.0.clock.steady_ms();
        let passed = Duration::from_millis(now_ms.saturating_sub(self.checked_at_ms)).min(self.interval * 2);
        self.checked_at_ms = now_ms;
        let Some(limit) = self.monitor.0.limits.beat else { return Vec::new() };
        let loops = self.monitor.0.loops();
        self.seen.retain(|id, _| loops.iter().any(|monitored| monitored.id == *id));
        let mut stalled = Vec::new();
        for monitored in loops {
            let beat_ms = monitored.beat_ms.load(Relaxed);
            let (last_ms, since) = self.seen.entry(monitored.id).or_insert((beat_ms, Duration::ZERO));
            // A beat in the future is a blocking call whose bound has not passed.
            if *last_ms != beat_ms || beat_ms >= now_ms {
                (*last_ms, *since) = (beat_ms, Duration::ZERO);
                continue;
            }
            *since += passed;
            if *since >= limit {
                stalled.push(monitored.status(*since));
            }
        }
        stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const INTERVAL: Duration = Duration::from_secs(1);

    fn with_beat_limit(beat: Option<Duration>) -> LivenessMonitor {
        LivenessMonitor::new(Clock::simulated(0), LivenessLimits { beat, progress: LIMIT })
    }

    fn monitored() -> (LivenessMonitor, StallDetector) {
        let monitor = with_beat_limit(Some(LIMIT));
        (monitor.clone(), StallDetector::new(&monitor, INTERVAL))
    }

    /// Checks once a second for `seconds`; returns the stalled loops of the last check.
    async fn check_for(detector: &mut StallDetector, seconds: u64) -> Vec<LoopStatus> {
        let mut stalled = Vec::new();
        for _ in 0..seconds {
            tokio::time::advance(INTERVAL).await;
            stalled = detector.check();
        }
        stalled
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_without_a_beat_is_stalled_and_one_that_beats_or_ended_is_not() {
        let (monitor, mut detector) = monitored();
        let (stalls, turns, ends) =
            (monitor.watch_loop("one"), monitor.watch_loop("another"), monitor.watch_loop("a third"));
        assert_eq!(check_for(&mut detector, 9).await, []);
        turns.beat();
        drop(ends.clone());
        assert_eq!(check_for(&mut detector, 1).await.len(), 1 + 1, "a dropped clone does not end the monitoring");
        drop(ends);
        let stalled = check_for(&mut detector, 1).await;
        let expected = LoopStatus { name: "one".into(), waits_for: None, since: Duration::from_secs(11) };
        assert_eq!(stalled, [expected]);
        stalls.beat();
        assert_eq!(check_for(&mut detector, 1).await, [], "the loop turns again");
        drop(turns);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_as_a_whole_has_not_stalled() {
        let (monitor, mut detector) = monitored();
        let turns = monitor.watch_loop("one");
        assert_eq!(check_for(&mut detector, 2).await, []);
        tokio::time::advance(Duration::from_secs(86_400)).await;
        assert_eq!(check_for(&mut detector, 1).await, []);
        turns.beat();
        assert_eq!(check_for(&mut detector, 9).await, []);
        assert_eq!(check_for(&mut detector, 2).await.len(), 1, "later checks count as before");
    }

    #[tokio::test(start_paused = true)]
    async fn an_announced_blocking_call_extends_the_limit_by_its_bound() {
        let (monitor, mut detector) = monitored();
        let blocks = monitor.watch_loop("one");
        blocks.announce_blocking(Duration::from_secs(30));
        assert_eq!(check_for(&mut detector, 39).await, []);
        assert_eq!(check_for(&mut detector, 2).await.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_entered_wait_beats_as_long_as_the_runtime_polls_it() {
        let (monitor, mut detector) = monitored();
        let waits = monitor.watch_loop("one");
        let mut waiting = Box::pin(waits.enter("the store", std::future::pending::<()>()));
        for _ in 0..600 {
            assert!(tokio::time::timeout(INTERVAL, &mut waiting).await.is_err());
            assert_eq!(detector.check(), []);
        }
        // Without polls from here on, as on a thread that is blocked.
        let stalled = check_for(&mut detector, 20).await;
        assert_eq!(stalled.iter().map(|stalled| stalled.waits_for).collect::<Vec<_>>(), [Some("the store")]);
        drop(waiting);
        assert_eq!(waits.enter("a word", async { 7 }).await, 7);
        assert_eq!(check_for(&mut detector, 10).await, []);
        assert_eq!(check_for(&mut detector, 1).await[0].waits_for, None);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_no_loop_is_stalled() {
        let monitor = with_beat_limit(None);
        let turns = monitor.watch_loop("one");
        let mut detector = StallDetector::new(&monitor, INTERVAL);
        assert_eq!(check_for(&mut detector, 1_000).await, []);
        assert!(turns.next_beat() > Instant::now() + Duration::from_secs(86_400));
    }
}
