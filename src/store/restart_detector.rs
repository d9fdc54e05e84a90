//! Detects the restart of a node of the store, after which the last acknowledged writes may be lost
//! (`docs/protocols/node-restart.md`).

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::shared_look::{Freshness, Look, LookNumber, SharedLook};
use crate::{
    backoff::Backoff,
    engine::{EngineError, Incarnation, RecordEngine},
    status::registry::NodesStatus,
};

/// Compares the incarnation of the store's nodes with the incarnation at the last [`baseline`](Self::baseline). Over an
/// engine that loses no write the detector asks nothing and reports no restart. Clones keep a baseline each and share
/// their questions to the nodes.
#[derive(Clone)]
pub struct RestartDetector {
    incarnations: Arc<SharedLook<Incarnation>>,
    flushing: Arc<SharedLook<()>>,
    lag: Duration,
    expected: Incarnation,
}

/// Result of one comparison of incarnations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartPoll {
    /// No node has restarted: writes acknowledged at least the durability lag before `polled_at` are durable.
    Unchanged {
        /// Time of the question about the devices, which is at most half a second older than the poll.
        polled_at: Instant,
    },
    /// A node has restarted: writes acknowledged since the last commit may be lost.
    Restarted,
}

/// Default durability lag, in multiples of the time for which the engine can lose an acknowledged write.
const LAG_FACTOR: u32 = 5;
/// Age of an answer about the devices that a commit still uses: twice a second the nodes are asked.
const FLUSH_REUSE: Duration = Duration::from_millis(500);
/// Divisor of the durability lag that gives the age where the lag is short.
const FLUSH_REUSE_OF_LAG: u32 = 20;
/// First and longest pause between two questions.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Offsets would be committed whose writes the store could still lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the durability lag is too short: the store may lose acknowledged writes of the last {0:?}; raise \
     ingest.durability_lag_ms above that"
)]
pub struct LagTooShort(pub Duration);

/// Returns the durability lag, the time from the completion of an event to its durability.
///
/// # Errors
/// `configured` is too short for this engine.
pub fn durability_lag(engine: &dyn RecordEngine, configured: Option<Duration>) -> Result<Duration, LagTooShort> {
    let loss_window = engine.loss_window();
    let lag = configured.unwrap_or(loss_window * LAG_FACTOR);
    match loss_window.is_zero() {
        true => Ok(Duration::ZERO),
        false if lag > loss_window => Ok(lag),
        false => Err(LagTooShort(loss_window)),
    }
}

impl RestartDetector {
    /// Creates a detector without a baseline. Call [`baseline`](Self::baseline) before the first write that a node can
    /// lose.
    pub fn new(engine: Arc<dyn RecordEngine>, lag: Duration) -> Self {
        let (asked, checked) = (engine.clone(), engine);
        RestartDetector {
            incarnations: SharedLook::new(move || {
                let engine = asked.clone();
                async move { engine.incarnation().await }
            }),
            flushing: SharedLook::new(move || {
                let engine = checked.clone();
                async move { engine.check_flushing().await }
            }),
            lag,
            expected: Incarnation::default(),
        }
    }

    /// Returns whether the nodes can lose acknowledged writes.
    pub fn can_lose_writes(&self) -> bool {
        !self.lag.is_zero()
    }

    /// The durability lag: the time from the completion of an event to its durability.
    pub fn lag(&self) -> Duration {
        self.lag
    }

    /// The incarnation of the baseline; empty before the first one, and over an engine that loses no write.
    pub fn expected(&self) -> &Incarnation {
        &self.expected
    }

    /// The durability lag and the incarnation of the baseline, for `/state`.
    pub fn status(&self) -> NodesStatus {
        NodesStatus { durability_lag_ms: self.lag.as_millis() as u64, incarnation: self.expected.0.clone() }
    }

    /// Makes the present incarnation the baseline of later comparisons. Asks until the nodes answer.
    pub async fn baseline(&mut self) -> Result<&Incarnation, EngineError> {
        if self.can_lose_writes() {
            self.expected = self.read_incarnation_until_answered(self.incarnations.now()).await?;
        }
        Ok(&self.expected)
    }

    /// Compares the present incarnation with the baseline, and checks that the devices keep up. The poll makes up to
    /// two looks, and may wait for a look of another caller before each. Each look has its own limit.
    ///
    /// # Errors
    /// The incarnation is unknown, or a device is far behind: nothing may be committed.
    pub async fn poll(&self) -> Result<RestartPoll, EngineError> {
        if !self.can_lose_writes() {
            return Ok(RestartPoll::Unchanged { polled_at: Instant::now() });
        }
        let reuse = FLUSH_REUSE.min(self.lag / FLUSH_REUSE_OF_LAG);
        let oldest = Instant::now().checked_sub(reuse).unwrap_or_else(Instant::now);
        // The devices first: their answers may show a restart, which the incarnation then has.
        let flushing = self.flushing.get(Freshness::Since(oldest)).await;
        // A look of another caller that began before the devices were read could miss that restart.
        let point = self.incarnations.now();
        let Look { answer: incarnation, .. } = self.incarnations.get(Freshness::After(point)).await?;
        if incarnation != self.expected {
            return Ok(RestartPoll::Restarted);
        }
        Ok(RestartPoll::Unchanged { polled_at: flushing?.began_at })
    }

    /// Returns whether a node has restarted since the baseline. Asks until the nodes answer.
    pub async fn has_restarted(&self) -> Result<bool, EngineError> {
        self.has_restarted_since(self.incarnations.now()).await
    }

    /// Returns whether a node has restarted since the baseline and may have lost what the caller read or wrote before
    /// `point`. Asks until the nodes answer, unless another caller has asked since that point.
    async fn has_restarted_since(&self, point: LookNumber) -> Result<bool, EngineError> {
        Ok(self.can_lose_writes() && self.read_incarnation_until_answered(point).await? != self.expected)
    }

    /// Returns whether no node has restarted since the baseline, once the devices keep up: every write acknowledged at
    /// least the durability lag before the call is durable then. Asks until the nodes answer.
    pub async fn has_kept_writes(&self) -> Result<bool, EngineError> {
        if self.can_lose_writes() {
            let check = || self.flushing.get(Freshness::After(self.flushing.now()));
            Backoff::new(RETRY_PAUSE, 0).retry(EngineError::may_be_retried, check).await?;
        }
        Ok(!self.has_restarted().await?)
    }

    /// Waits until every write acknowledged before the call is durable. Returns `false` if a node has restarted
    /// meanwhile: the writes have to be done again, and the present incarnation is the new baseline.
    pub async fn wait_until_durable(&mut self) -> Result<bool, EngineError> {
        if !self.can_lose_writes() {
            return Ok(true);
        }
        tokio::time::sleep(self.lag).await;
        let kept = self.has_kept_writes().await?;
        if !kept {
            self.baseline().await?;
        }
        Ok(kept)
    }

    async fn read_incarnation_until_answered(&self, point: LookNumber) -> Result<Incarnation, EngineError> {
        let read = || self.incarnations.get(Freshness::After(point));
        Ok(Backoff::new(RETRY_PAUSE, 0).retry(EngineError::may_be_retried, read).await?.answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;
    use crate::{
        clock::Clock,
        engine::{
            EngineDecorator, ErrorKind,
            conformance::RULES,
            fault::{EngineFaults, FaultEngine},
            memory::MemoryEngine,
        },
        store::shared_look::LOOK_TIMEOUT,
    };

    #[tokio::test(start_paused = true)]
    async fn a_restart_is_detected_and_an_error_is_no_answer() {
        let clock = Clock::simulated(0);
        let memory = Arc::new(MemoryEngine::with_loss_window(RULES, clock.clone(), Duration::from_secs(1)));
        let engine = Arc::new(FaultEngine::with_restarts(memory, clock, 1));
        let lag = durability_lag(engine.as_ref(), None).unwrap();
        assert_eq!(lag, Duration::from_secs(5));
        let mut detector = RestartDetector::new(engine.clone(), lag);
        detector.baseline().await.unwrap();
        assert_eq!(detector.poll().await.unwrap(), RestartPoll::Unchanged { polled_at: Instant::now() });
        engine.set(EngineFaults { failed_read: 1.0, ..EngineFaults::default() });
        assert!(detector.poll().await.is_err());
        engine.set(EngineFaults::default());
        engine.restart_nodes(Duration::from_secs(1), |_| false);
        assert_eq!(detector.poll().await.unwrap(), RestartPoll::Restarted);
        detector.baseline().await.unwrap();
        assert!(!detector.has_restarted().await.unwrap());
    }

    /// Nodes whose restarts, devices and questions are those of the test.
    struct TestNodes {
        below: MemoryEngine,
        incarnation: Mutex<&'static str>,
        is_behind: Mutex<bool>,
        answer_time: Mutex<Duration>,
        incarnation_questions: AtomicU64,
        device_questions: AtomicU64,
    }

    impl EngineDecorator for TestNodes {
        fn inner(&self) -> &dyn RecordEngine {
            &self.below
        }

        async fn incarnation(&self) -> Result<Incarnation, EngineError> {
            self.incarnation_questions.fetch_add(1, Ordering::Relaxed);
            self.wait_for_answer().await;
            Ok(Incarnation((*self.incarnation.lock().unwrap()).to_owned()))
        }

        async fn check_flushing(&self) -> Result<(), EngineError> {
            self.device_questions.fetch_add(1, Ordering::Relaxed);
            self.wait_for_answer().await;
            let (kind, operation) = (ErrorKind::Retryable, "incarnation");
            let error = EngineError { kind, operation, key: "all nodes".into(), message: "far behind".into() };
            if *self.is_behind.lock().unwrap() { Err(error) } else { Ok(()) }
        }
    }

    impl TestNodes {
        async fn wait_for_answer(&self) {
            let answer_time = *self.answer_time.lock().unwrap();
            tokio::time::sleep(answer_time).await;
        }

        /// Returns the questions since the last call: for the incarnation, and about the devices.
        fn take_questions(&self) -> (u64, u64) {
            (self.incarnation_questions.swap(0, Ordering::Relaxed), self.device_questions.swap(0, Ordering::Relaxed))
        }
    }

    async fn detector_over_test_nodes() -> (Arc<TestNodes>, RestartDetector) {
        let nodes = Arc::new(TestNodes {
            below: MemoryEngine::new(RULES),
            incarnation: Mutex::new("a"),
            is_behind: Mutex::new(false),
            answer_time: Mutex::default(),
            incarnation_questions: AtomicU64::new(0),
            device_questions: AtomicU64::new(0),
        });
        let mut detector = RestartDetector::new(nodes.clone(), Duration::from_secs(10));
        detector.baseline().await.unwrap();
        assert_eq!(nodes.take_questions(), (1, 0));
        (nodes, detector)
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_asks_for_no_devices_and_uses_no_question_from_before_its_reads() {
        let (nodes, detector) = detector_over_test_nodes().await;
        let before = detector.incarnations.now();
        assert!(!detector.has_restarted().await.unwrap());
        assert!(!detector.has_restarted_since(before).await.unwrap());
        assert_eq!(nodes.take_questions(), (1, 0), "the answer of the first question serves the second caller");
        let reads_end = detector.clone().incarnations.now();
        *nodes.incarnation.lock().unwrap() = "b";
        assert!(!detector.has_restarted_since(before).await.unwrap(), "the point is before the restart");
        assert!(detector.has_restarted_since(reads_end).await.unwrap());
        assert_eq!(nodes.take_questions(), (1, 0));
        assert_eq!(detector.poll().await.unwrap(), RestartPoll::Restarted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_device_that_is_behind_holds_commits_up_and_no_decision() {
        let (nodes, detector) = detector_over_test_nodes().await;
        *nodes.is_behind.lock().unwrap() = true;
        assert!(detector.poll().await.unwrap_err().message.contains("far behind"));
        assert!(!detector.has_restarted().await.unwrap());
        let kept = tokio::time::timeout(Duration::from_secs(60), detector.has_kept_writes());
        assert!(kept.await.is_err(), "writes whose device is behind are not durable");
        *nodes.is_behind.lock().unwrap() = false;
        assert!(detector.has_kept_writes().await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn commits_ask_for_the_devices_twice_a_second_and_count_from_that_question() {
        let (nodes, detector) = detector_over_test_nodes().await;
        let start = Instant::now();
        for number in 0..=10 {
            let since = Duration::from_millis(number / 6 * 600);
            let expected = RestartPoll::Unchanged { polled_at: start + since };
            assert_eq!(detector.clone().poll().await.unwrap(), expected, "poll {number}");
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(nodes.take_questions(), (11, 2), "every commit asks for the incarnation");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_nodes_hold_up_a_commit_beside_a_busy_sequencer_and_do_not_fail_it() {
        let (nodes, detector) = detector_over_test_nodes().await;
        *nodes.answer_time.lock().unwrap() = LOOK_TIMEOUT - Duration::from_millis(1);
        let sequencer = detector.clone();
        let busy = tokio::spawn(async move {
            loop {
                sequencer.has_restarted().await.unwrap();
            }
        });
        for _ in 0..5 {
            assert!(matches!(detector.poll().await, Ok(RestartPoll::Unchanged { .. })));
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        busy.abort();
        // Nodes that are silent fail the poll within the limits of its looks.
        *nodes.answer_time.lock().unwrap() = Duration::from_secs(3_600);
        let started = Instant::now();
        assert!(detector.poll().await.unwrap_err().message.contains("no answer within 2s"));
        assert!(started.elapsed() <= 4 * LOOK_TIMEOUT, "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn the_lag_is_longer_than_the_loss_window_or_zero() {
        let forgetful = MemoryEngine::with_loss_window(RULES, Clock::System, Duration::from_secs(1));
        for (configured, lag) in [(None, Some(5_000)), (Some(1_000), None), (Some(1_001), Some(1_001))] {
            let lag = lag.map(Duration::from_millis).ok_or(LagTooShort(Duration::from_secs(1)));
            assert_eq!(durability_lag(&forgetful, configured.map(Duration::from_millis)), lag);
        }
        let syncs = MemoryEngine::new(RULES);
        assert_eq!(durability_lag(&syncs, Some(Duration::from_secs(9))), Ok(Duration::ZERO));
    }
}
