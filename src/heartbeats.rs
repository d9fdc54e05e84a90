//! Heartbeats of the loops that must turn for as long as a process runs, and the decision when one stands still. What is done then
//! is somebody else's (`cli/watchdog.rs`).
//!
//! A beat says that a loop *turns*, not that there is work or that work is possible: a store that is away, a partition that is halted,
//! a block that waits for its transactions stop no loop. What a loop waits for within a turn goes through [`Heart::through`], which beats
//! as long as the runtime polls it.

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

/// A beat comes so many times within the limit, at least.
const BEATS_A_LIMIT: u32 = 8;

/// The hearts of a process; clones share them.
#[derive(Debug, Clone)]
pub struct Heartbeats(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    limit: Option<Duration>,
    next: AtomicU64,
    hearts: Mutex<BTreeMap<u64, Arc<Pulse>>>,
}

#[derive(Debug)]
struct Pulse {
    name: String,
    /// When it last beat, by the steady clock; later than now, where it has said that it will be busy.
    at_ms: AtomicU64,
    /// What it waits for within its turn.
    doing: Mutex<Option<&'static str>>,
}

impl Pulse {
    fn doing(&self) -> MutexGuard<'_, Option<&'static str>> {
        // A word cannot be left half written.
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The heart of one loop: watched from now until it, and all of its clones, are dropped.
#[derive(Debug, Clone)]
pub struct Heart(Arc<Guard>);

#[derive(Debug)]
struct Guard {
    id: u64,
    pulse: Arc<Pulse>,
    of: Weak<Shared>,
    clock: Clock,
    every: Option<Duration>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(shared) = self.of.upgrade() {
            shared.hearts().remove(&self.id);
        }
    }
}

impl Shared {
    fn hearts(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Pulse>>> {
        // No change can be left half done, so a panic elsewhere does not spoil it.
        self.hearts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heartbeats {
    /// Hearts of which none may stand still for `limit`; `None`: nobody looks.
    pub fn new(clock: Clock, limit: Option<Duration>) -> Self {
        Heartbeats(Arc::new(Shared { clock, limit, next: AtomicU64::new(0), hearts: Mutex::default() }))
    }

    /// How long a heart may stand still; `None`: nobody looks.
    pub fn limit(&self) -> Option<Duration> {
        self.0.limit
    }

    /// Each heart as it is now: how long ago it last beat.
    pub fn now(&self) -> Vec<Standing> {
        let now_ms = self.now_ms();
        let since = |pulse: &Pulse| Duration::from_millis(now_ms.saturating_sub(pulse.at_ms.load(Relaxed)));
        let hearts = self.0.hearts();
        let standing =
            |pulse: &Arc<Pulse>| Standing { name: pulse.name.clone(), doing: *pulse.doing(), since: since(pulse) };
        hearts.values().map(standing).collect()
    }

    /// By the steady clock that they beat by.
    pub fn now_ms(&self) -> u64 {
        self.0.clock.steady_ms()
    }

    /// The heart of a loop that begins now; `name` is what the operator is told.
    pub fn heart(&self, name: impl Into<String>) -> Heart {
        let at_ms = AtomicU64::new(self.0.clock.steady_ms());
        let pulse = Arc::new(Pulse { name: name.into(), at_ms, doing: Mutex::default() });
        let id = self.0.next.fetch_add(1, Relaxed);
        self.0.hearts().insert(id, pulse.clone());
        let every = self.0.limit.map(|limit| limit / BEATS_A_LIMIT);
        Heart(Arc::new(Guard { id, pulse, of: Arc::downgrade(&self.0), clock: self.0.clock.clone(), every }))
    }
}

impl Heart {
    /// The loop has turned.
    pub fn beat(&self) {
        self.0.pulse.at_ms.store(self.0.clock.steady_ms(), Relaxed);
    }

    /// The thread is about to ask something that blocks it, for `bound` at the most.
    pub fn busy_for(&self, bound: Duration) {
        let until_ms = self.0.clock.steady_ms().saturating_add(bound.as_millis() as u64);
        self.0.pulse.at_ms.store(until_ms, Relaxed);
    }

    /// When the next beat is due: a loop with nothing to do wakes for it. Far away where nobody looks.
    pub fn due(&self) -> Instant {
        const NEVER: Duration = Duration::from_secs(86_400 * 365);
        Instant::now() + self.0.every.unwrap_or(NEVER)
    }

    /// Waits for `work`, which may rightly take as long as it likes, and beats for as long as the runtime lets it.
    pub async fn through<T>(&self, doing: &'static str, work: impl Future<Output = T>) -> T {
        let Some(every) = self.0.every else { return work.await };
        let mut work = std::pin::pin!(work);
        let _doing = Doing { heart: self, before: self.0.pulse.doing().replace(doing) };
        loop {
            self.beat();
            // The work first: what has ended costs no timer.
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(every) => {}
            }
        }
    }
}

/// What is waited for until this is dropped.
struct Doing<'a> {
    heart: &'a Heart,
    before: Option<&'static str>,
}

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        *self.heart.0.pulse.doing() = self.before;
        self.heart.beat();
    }
}

/// A loop that stands, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub name: String,
    /// What it was waiting for within its turn, as far as it has said.
    pub doing: Option<&'static str>,
    /// For how long, as far as somebody looked.
    pub since: Duration,
}

/// Looks at hearts, again and again. Pure: when it looks is the caller's.
///
/// Time in which nobody looked does not count for more than twice the usual pause: a process that was stopped as a whole, or a machine that slept, has not
/// stood still.
#[derive(Debug)]
pub struct Watch {
    beats: Heartbeats,
    pause: Duration,
    looked_at_ms: u64,
    /// The last beat of each heart, and for how long there has been none.
    seen: BTreeMap<u64, (u64, Duration)>,
}

impl Watch {
    /// Looks at these hearts, every `pause`.
    pub fn new(beats: &Heartbeats, pause: Duration) -> Self {
        Watch { looked_at_ms: beats.now_ms(), beats: beats.clone(), pause, seen: BTreeMap::new() }
    }

    /// Those that stand still for the limit, or longer, at `now_ms` of the steady clock.
    pub fn check(&mut self, now_ms: u64) -> Vec<Standing> {
        let passed = Duration::from_millis(now_ms.saturating_sub(self.looked_at_ms)).min(self.pause * 2);
        self.looked_at_ms = now_ms;
        let Some(limit) = self.beats.limit() else { return Vec::new() };
        let hearts = self.beats.0.hearts();
        self.seen.retain(|id, _| hearts.contains_key(id));
        let mut standing = Vec::new();
        for (id, pulse) in hearts.iter() {
            let beat_ms = pulse.at_ms.load(Relaxed);
            let (last_ms, since) = self.seen.entry(*id).or_insert((beat_ms, Duration::ZERO));
            // Busy until later than now: that is as good as a beat.
            if *last_ms != beat_ms || beat_ms >= now_ms {
                (*last_ms, *since) = (beat_ms, Duration::ZERO);
                continue;
            }
            *since += passed;
            if *since >= limit {
                standing.push(Standing { name: pulse.name.clone(), doing: *pulse.doing(), since: *since });
            }
        }
        standing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_secs(1);

    fn watched() -> (Heartbeats, Watch) {
        let beats = Heartbeats::new(Clock::simulated(0), Some(LIMIT));
        (beats.clone(), Watch::new(&beats, PAUSE))
    }

    /// What stands, looking once a second for so long.
    async fn looks(watch: &mut Watch, seconds: u64) -> Vec<Standing> {
        let mut standing = Vec::new();
        for _ in 0..seconds {
            tokio::time::advance(PAUSE).await;
            standing = watch.check(watch.beats.now_ms());
        }
        standing
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_beat_for_the_limit_stands_and_who_beats_or_has_ended_does_not() {
        let (beats, mut watch) = watched();
        let (stands, turns, ends) = (beats.heart("one"), beats.heart("another"), beats.heart("a third"));
        assert_eq!(looks(&mut watch, 9).await, []);
        turns.beat();
        drop(ends.clone());
        assert_eq!(looks(&mut watch, 1).await.len(), 1 + 1, "a clone that is gone is not the last");
        drop(ends);
        let standing = looks(&mut watch, 1).await;
        let expected = Standing { name: "one".into(), doing: None, since: Duration::from_secs(11) };
        assert_eq!(standing, [expected]);
        stands.beat();
        assert_eq!(looks(&mut watch, 1).await, [], "it goes on");
        drop(turns);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_as_a_whole_has_not_stood_still() {
        let (beats, mut watch) = watched();
        let heart = beats.heart("one");
        assert_eq!(looks(&mut watch, 2).await, []);
        tokio::time::advance(Duration::from_secs(86_400)).await;
        assert_eq!(looks(&mut watch, 1).await, []);
        heart.beat();
        assert_eq!(looks(&mut watch, 9).await, []);
        assert_eq!(looks(&mut watch, 2).await.len(), 1, "it is looked at as before");
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_that_it_is_busy_has_that_much_more() {
        let (beats, mut watch) = watched();
        let heart = beats.heart("one");
        heart.busy_for(Duration::from_secs(30));
        assert_eq!(looks(&mut watch, 39).await, []);
        assert_eq!(looks(&mut watch, 2).await.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_within_a_turn_beats_as_long_as_it_is_polled() {
        let (beats, mut watch) = watched();
        let heart = beats.heart("one");
        let mut waiting = Box::pin(heart.through("the store", std::future::pending::<()>()));
        for _ in 0..600 {
            assert!(tokio::time::timeout(PAUSE, &mut waiting).await.is_err());
            assert_eq!(watch.check(beats.now_ms()), []);
        }
        // Nobody polls it any more: as behind a thread that is blocked.
        let standing = looks(&mut watch, 20).await;
        assert_eq!(standing.iter().map(|stands| stands.doing).collect::<Vec<_>>(), [Some("the store")]);
        drop(waiting);
        assert_eq!(heart.through("a word", async { 7 }).await, 7);
        assert_eq!(looks(&mut watch, 10).await, []);
        assert_eq!(looks(&mut watch, 1).await[0].doing, None);
    }

    #[tokio::test(start_paused = true)]
    async fn where_nobody_looks_nothing_stands() {
        let beats = Heartbeats::new(Clock::simulated(0), None);
        let heart = beats.heart("one");
        let mut watch = Watch::new(&beats, PAUSE);
        assert_eq!(looks(&mut watch, 1_000).await, []);
        assert!(heart.due() > Instant::now() + Duration::from_secs(86_400));
    }
}
