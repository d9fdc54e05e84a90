//! Liveness of the loops that must turn for as long as a process runs. `cli/watchdog.rs` ends a process with a stalled
//! loop.
//!
//! A beat shows that a loop *turns*, not that there is work or that work is possible: an unavailable store, a halted
//! partition and a block that waits for transactions stall no loop. A wait within a turn goes through
//! [`LoopMonitor::enter`], which beats as long as the runtime polls the wait.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::clock::Clock;

/// Least number of beats within the limit.
const BEATS_PER_LIMIT: u32 = 8;

/// The monitored loops of a process. Clones share the loops.
#[derive(Debug, Clone)]
pub struct LivenessMonitor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    limit: Option<Duration>,
    next_id: AtomicU64,
    loops: Mutex<BTreeMap<u64, Arc<LoopState>>>,
}

#[derive(Debug)]
struct LoopState {
    name: String,
    /// Steady milliseconds of the last beat; in the future while the loop is in an announced blocking call.
    beat_ms: AtomicU64,
    /// The wait that the loop has entered.
    waits_for: Mutex<Option<&'static str>>,
}

impl LoopState {
    fn waits_for(&self) -> MutexGuard<'_, Option<&'static str>> {
        // An assignment of one word cannot be left half done by a panic.
        self.waits_for.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Monitors one loop from its creation until this value and all of its clones are dropped.
#[derive(Debug, Clone)]
pub struct LoopMonitor(Arc<Registration>);

#[derive(Debug)]
struct Registration {
    id: u64,
    state: Arc<LoopState>,
    monitor: Weak<Shared>,
    clock: Clock,
    beat_interval: Option<Duration>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(shared) = self.monitor.upgrade() {
            shared.loops().remove(&self.id);
        }
    }
}

impl Shared {
    fn loops(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<LoopState>>> {
        // An insertion or removal cannot be left half done by a panic.
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LivenessMonitor {
    /// Returns a monitor whose loops may go without a beat for `limit`; `None` disables the watchdog.
    pub fn new(clock: Clock, limit: Option<Duration>) -> Self {
        LivenessMonitor(Arc::new(Shared { clock, limit, next_id: AtomicU64::new(0), loops: Mutex::default() }))
    }

    /// Returns the longest time that a loop may go without a beat; `None`: the watchdog is disabled.
    pub fn limit(&self) -> Option<Duration> {
        self.0.limit
    }

    /// Returns each loop with the time since the loop's last beat.
    pub fn loops(&self) -> Vec<StalledLoop> {
        let now_ms = self.now_ms();
        let since = |state: &LoopState| Duration::from_millis(now_ms.saturating_sub(state.beat_ms.load(Relaxed)));
        let loops = self.0.loops();
        let as_of_now = |state: &Arc<LoopState>| StalledLoop {
            name: state.name.clone(),
            waits_for: *state.waits_for(),
            since: since(state),
        };
        loops.values().map(as_of_now).collect()
    }

    /// Returns the milliseconds of the steady clock that stamps the beats.
    pub fn now_ms(&self) -> u64 {
        self.0.clock.steady_ms()
    }

    /// Starts to monitor a loop; logs and `/state` show the loop by `name`.
    pub fn watch_loop(&self, name: impl Into<String>) -> LoopMonitor {
        let beat_ms = AtomicU64::new(self.0.clock.steady_ms());
        let state = Arc::new(LoopState { name: name.into(), beat_ms, waits_for: Mutex::default() });
        let id = self.0.next_id.fetch_add(1, Relaxed);
        self.0.loops().insert(id, state.clone());
        let beat_interval = self.0.limit.map(|limit| limit / BEATS_PER_LIMIT);
        let (monitor, clock) = (Arc::downgrade(&self.0), self.0.clock.clone());
        LoopMonitor(Arc::new(Registration { id, state, monitor, clock, beat_interval }))
    }
}

impl LoopMonitor {
    /// Records that the loop has turned.
    pub fn beat(&self) {
        self.0.state.beat_ms.store(self.0.clock.steady_ms(), Relaxed);
    }

    /// Announces a call that blocks the thread for at most `bound`.
    pub fn announce_blocking(&self, bound: Duration) {
        let until_ms = self.0.clock.steady_ms().saturating_add(bound.as_millis() as u64);
        self.0.state.beat_ms.store(until_ms, Relaxed);
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
        let _entered = Entered { monitor: self, before: self.0.state.waits_for().replace(waits_for) };
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
        *self.monitor.0.state.waits_for() = self.before;
        self.monitor.beat();
    }
}

/// A loop and the time since the loop's last beat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StalledLoop {
    /// Name of the loop in logs and in `/state`.
    pub name: String,
    /// The wait that the loop has entered, if any.
    pub waits_for: Option<&'static str>,
    /// Observed time without a beat.
    pub since: Duration,
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
        let checked_at_ms = monitor.now_ms();
        StallDetector { checked_at_ms, monitor: monitor.clone(), interval, seen: BTreeMap::new() }
    }

    /// Returns the loops without a beat for the limit or longer, at `now_ms` of the steady clock.
    pub fn check(&mut self, now_ms: u64) -> Vec<StalledLoop> {
        let passed = Duration::from_millis(now_ms.saturating_sub(self.checked_at_ms)).min(self.interval * 2);
        self.checked_at_ms = now_ms;
        let Some(limit) = self.monitor.limit() else { return Vec::new() };
        let loops = self.monitor.0.loops();
        self.seen.retain(|id, _| loops.contains_key(id));
        let mut stalled = Vec::new();
        for (id, state) in loops.iter() {
            let beat_ms = state.beat_ms.load(Relaxed);
            let (last_ms, since) = self.seen.entry(*id).or_insert((beat_ms, Duration::ZERO));
            // A beat in the future is a blocking call whose bound has not passed.
            if *last_ms != beat_ms || beat_ms >= now_ms {
                (*last_ms, *since) = (beat_ms, Duration::ZERO);
                continue;
            }
            *since += passed;
            if *since >= limit {
                stalled.push(StalledLoop { name: state.name.clone(), waits_for: *state.waits_for(), since: *since });
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

    fn monitored() -> (LivenessMonitor, StallDetector) {
        let monitor = LivenessMonitor::new(Clock::simulated(0), Some(LIMIT));
        (monitor.clone(), StallDetector::new(&monitor, INTERVAL))
    }

    /// Checks once a second for `seconds`; returns the stalled loops of the last check.
    async fn check_for(detector: &mut StallDetector, seconds: u64) -> Vec<StalledLoop> {
        let mut stalled = Vec::new();
        for _ in 0..seconds {
            tokio::time::advance(INTERVAL).await;
            stalled = detector.check(detector.monitor.now_ms());
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
        let expected = StalledLoop { name: "one".into(), waits_for: None, since: Duration::from_secs(11) };
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
            assert_eq!(detector.check(monitor.now_ms()), []);
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
        let monitor = LivenessMonitor::new(Clock::simulated(0), None);
        let turns = monitor.watch_loop("one");
        let mut detector = StallDetector::new(&monitor, INTERVAL);
        assert_eq!(check_for(&mut detector, 1_000).await, []);
        assert!(turns.next_beat() > Instant::now() + Duration::from_secs(86_400));
    }
}
