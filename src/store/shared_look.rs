//! [`SharedLook`]: one question to the nodes at a time, whose answer serves every caller that may rely on the answer.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt, Shared};
use tokio::time::Instant;

use crate::engine::{EngineError, ErrorKind};

/// Time after which a question to the nodes counts as unanswered.
pub const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// A point in the order of the looks: a look with a greater number began later.
///
/// The order of two clock readings would not do: a look and a write can have one reading of a simulated clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LookNumber(u64);

/// An answered question to all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look<T> {
    number: LookNumber,
    /// Time at which the question was sent.
    pub began_at: Instant,
    /// Answer of the nodes.
    pub answer: T,
}

/// The looks that a caller may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Looks that began after this point, and so after every write that was acknowledged before.
    After(LookNumber),
    /// Looks that began at or after this time.
    Since(Instant),
}

/// The next step of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LookStep<T> {
    /// The latest look serves the caller.
    Done(Look<T>),
    /// A look is running: wait for its end. The look serves the caller if `serves`.
    Wait { running: LookNumber, serves: bool },
    /// Begin the look with this number.
    Begin(LookNumber),
}

/// Looks in their order: the latest one, and the one that is running. Pure.
#[derive(Debug)]
struct LookLedger<T> {
    begun: LookNumber,
    latest: Option<Look<T>>,
    running: Option<(LookNumber, Instant)>,
}

impl<T: Clone> LookLedger<T> {
    fn new() -> Self {
        LookLedger { begun: LookNumber::default(), latest: None, running: None }
    }

    /// Returns what a caller does next, and begins a look at `now` where none serves the caller and none is running.
    fn next(&mut self, needed: Freshness, now: Instant) -> LookStep<T> {
        let serves = |number: LookNumber, began_at: Instant| match needed {
            Freshness::After(point) => number > point,
            Freshness::Since(time) => began_at >= time,
        };
        if let Some(latest) = self.latest.as_ref().filter(|look| serves(look.number, look.began_at)) {
            return LookStep::Done(latest.clone());
        }
        match self.running {
            Some((running, began_at)) => LookStep::Wait { running, serves: serves(running, began_at) },
            None => {
                self.begun.0 += 1;
                self.running = Some((self.begun, now));
                LookStep::Begin(self.begun)
            }
        }
    }

    /// Records the end of a look; `None`: the look has failed. Only the first report of a look counts.
    fn end(&mut self, number: LookNumber, answer: Option<T>) {
        if let Some((_, began_at)) = self.running.take_if(|(running, _)| *running == number) {
            self.latest = answer.map(|answer| Look { number, began_at, answer }).or(self.latest.take());
        }
    }
}

type RunningLook<T> = Shared<BoxFuture<'static, Result<T, EngineError>>>;

/// Looks of one kind, shared by all parts of an instance. At most one look is running. Callers that need a look at the
/// same time share one; each of them drives the look, so that a caller that is dropped delays no other.
pub struct SharedLook<T: Clone> {
    ask: Box<dyn Fn() -> BoxFuture<'static, Result<T, EngineError>> + Send + Sync>,
    state: Mutex<LookState<T>>,
}

struct LookState<T: Clone> {
    ledger: LookLedger<T>,
    running: Option<RunningLook<T>>,
}

impl<T: Clone + Send + Sync + 'static> SharedLook<T> {
    /// Creates the looks that `ask` makes.
    pub fn new<F>(ask: impl Fn() -> F + Send + Sync + 'static) -> Arc<Self>
    where
        F: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        let state = LookState { ledger: LookLedger::new(), running: None };
        Arc::new(SharedLook { ask: Box::new(move || ask().boxed()), state: Mutex::new(state) })
    }

    /// Returns the present point in the order of the looks.
    pub fn now(&self) -> LookNumber {
        self.state().ledger.begun
    }

    /// Returns the latest look that is fresh enough, or makes one.
    ///
    /// # Errors
    /// The nodes do not answer, or not in time.
    pub async fn get(&self, needed: Freshness) -> Result<Look<T>, EngineError> {
        loop {
            let (number, running, serves) = {
                let LookState { ledger, running } = &mut *self.state();
                let (number, serves) = match ledger.next(needed, Instant::now()) {
                    LookStep::Done(look) => return Ok(look),
                    LookStep::Wait { running, serves } => (running, serves),
                    LookStep::Begin(number) => {
                        *running = Some(with_timeout((self.ask)()).boxed().shared());
                        (number, true)
                    }
                };
                (number, running.clone(), serves)
            };
            // The ledger and the future change under one lock.
            let Some(running) = running else { continue };
            let answer = running.await;
            let LookState { ledger, running } = &mut *self.state();
            if ledger.running.is_some_and(|(running, _)| running == number) {
                *running = None;
            }
            ledger.end(number, answer.as_ref().ok().cloned());
            if let (true, Err(error)) = (serves, answer) {
                return Err(error);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, LookState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn with_timeout<T>(answer: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
    tokio::time::timeout(LOOK_TIMEOUT, answer).await.unwrap_or_else(|_| Err(no_answer()))
}

/// Returns the error of a look without an answer.
fn no_answer() -> EngineError {
    EngineError {
        kind: ErrorKind::Retryable,
        operation: "incarnation",
        key: "all nodes".into(),
        message: format!("no answer within {LOOK_TIMEOUT:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_look_serves_only_callers_that_needed_it_before_it_began() {
        let (mut ledger, now) = (LookLedger::new(), Instant::now());
        let start = ledger.begun;
        assert_eq!(ledger.next(Freshness::After(start), now), LookStep::Begin(LookNumber(1)));
        // A write that is acknowledged while the look runs can be lost without a trace in its answer.
        let during = ledger.begun;
        let wait = |serves| LookStep::Wait { running: LookNumber(1), serves };
        assert_eq!(ledger.next(Freshness::After(start), now), wait(true));
        assert_eq!(ledger.next(Freshness::After(during), now), wait(false));
        ledger.end(LookNumber(1), Some("a"));
        let first = Look { number: LookNumber(1), began_at: now, answer: "a" };
        assert_eq!(ledger.next(Freshness::After(start), now), LookStep::Done(first.clone()));
        assert_eq!(ledger.next(Freshness::After(during), now), LookStep::Begin(LookNumber(2)));
        // A failed look leaves the one before, and a second report of a look changes nothing.
        ledger.end(LookNumber(2), None);
        ledger.end(LookNumber(2), Some("late"));
        assert_eq!(ledger.next(Freshness::After(start), now), LookStep::Done(first));
        assert_eq!(ledger.next(Freshness::After(during), now), LookStep::Begin(LookNumber(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_is_used_again_until_it_is_too_old() {
        let (mut ledger, now, second) = (LookLedger::new(), Instant::now(), Duration::from_secs(1));
        assert_eq!(ledger.next(Freshness::Since(now), now), LookStep::Begin(LookNumber(1)));
        ledger.end(LookNumber(1), Some("a"));
        let look = Look { number: LookNumber(1), began_at: now, answer: "a" };
        assert_eq!(ledger.next(Freshness::Since(now), now + second), LookStep::Done(look));
        assert_eq!(ledger.next(Freshness::Since(now + second), now + second), LookStep::Begin(LookNumber(2)));
    }

    fn counted_look() -> (Arc<AtomicU64>, Arc<SharedLook<u64>>) {
        let asked = Arc::new(AtomicU64::new(0));
        let counter = asked.clone();
        let look = SharedLook::new(move || {
            let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(number)
            }
        });
        (asked, look)
    }

    #[tokio::test(start_paused = true)]
    async fn callers_of_one_moment_share_one_look() {
        let (asked, look) = counted_look();
        let early = look.get(Freshness::After(look.now()));
        let late = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            join_all((0..100).map(|_| look.get(Freshness::After(look.now())))).await
        };
        let (early, late) = tokio::join!(early, late);
        assert_eq!(early.unwrap().answer, 1);
        assert!(late.into_iter().all(|look| look.unwrap().answer == 2), "the look that ran when they came is too old");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_caller_holds_nobody_up() {
        let (_, look) = counted_look();
        let point = look.now();
        let dropped = tokio::time::timeout(Duration::from_millis(5), look.get(Freshness::After(point)));
        assert!(dropped.await.is_err());
        // A caller that is not polled any more keeps its share of the look.
        let mut unpolled = Box::pin(look.get(Freshness::After(point)));
        assert!(futures_util::poll!(&mut unpolled).is_pending());
        assert_eq!(look.get(Freshness::After(look.now())).await.unwrap().answer, 2);
        assert_eq!(unpolled.await.unwrap().answer, 2, "the latest look");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_the_answer_of_its_callers_and_is_not_kept() {
        let asked = AtomicU64::new(0);
        let look = SharedLook::new(move || {
            let number = asked.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                match number {
                    1 => std::future::pending().await,
                    number => Ok(number),
                }
            }
        });
        let point = look.now();
        let started = Instant::now();
        assert_eq!(look.get(Freshness::After(point)).await.unwrap_err().kind, ErrorKind::Retryable);
        assert_eq!(started.elapsed(), LOOK_TIMEOUT);
        assert_eq!(look.get(Freshness::After(point)).await.unwrap().answer, 2);
    }
}
