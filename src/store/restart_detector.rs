//! Detects the restart of a node of the store, after which the last acknowledged writes may be lost
//! (`docs/protocols/node-restart.md`).

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    backoff::Backoff,
    engine::{EngineError, ErrorKind, Incarnation, RecordEngine},
    status::registry::NodesStatus,
};

/// Compares the incarnation of the store's nodes with the incarnation at the last [`baseline`](Self::baseline). Over an
/// engine that loses no write the detector asks nothing and reports no restart.
#[derive(Clone)]
pub struct RestartDetector {
    engine: Arc<dyn RecordEngine>,
    lag: Duration,
    expected: Incarnation,
}

/// Result of one comparison of incarnations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestartPoll {
    /// No node has restarted: writes acknowledged at least the durability lag before `polled_at` are durable.
    Unchanged {
        /// Time at which the question was sent.
        polled_at: Instant,
    },
    /// A node has restarted: writes acknowledged since the last commit may be lost.
    Restarted,
}

/// Default durability lag, in multiples of the time for which the engine can lose an acknowledged write.
const LAG_FACTOR: u32 = 5;
/// Time after which a question to the nodes counts as unanswered.
const INCARNATION_TIMEOUT: Duration = Duration::from_secs(2);
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
        RestartDetector { engine, lag, expected: Incarnation::default() }
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
            self.expected = self.read_incarnation_until_answered().await?;
        }
        Ok(&self.expected)
    }

    /// Compares the present incarnation with the baseline, with one question.
    ///
    /// # Errors
    /// The incarnation is unknown: nothing may be committed.
    pub async fn poll(&self) -> Result<RestartPoll, EngineError> {
        let polled_at = Instant::now();
        let is_unchanged = !self.can_lose_writes() || self.read_incarnation().await? == self.expected;
        Ok(if is_unchanged { RestartPoll::Unchanged { polled_at } } else { RestartPoll::Restarted })
    }

    /// Returns whether a node has restarted since the baseline. Asks until the nodes answer.
    pub async fn has_restarted(&self) -> Result<bool, EngineError> {
        Ok(self.can_lose_writes() && self.read_incarnation_until_answered().await? != self.expected)
    }

    /// Waits until every write acknowledged before the call is durable. Returns `false` if a node has restarted
    /// meanwhile: the writes have to be done again, and the present incarnation is the new baseline.
    pub async fn wait_until_durable(&mut self) -> Result<bool, EngineError> {
        if !self.can_lose_writes() {
            return Ok(true);
        }
        tokio::time::sleep(self.lag).await;
        let restarted = self.has_restarted().await?;
        if restarted {
            self.baseline().await?;
        }
        Ok(!restarted)
    }

    async fn read_incarnation(&self) -> Result<Incarnation, EngineError> {
        tokio::time::timeout(INCARNATION_TIMEOUT, self.engine.incarnation()).await.unwrap_or_else(|_| {
            Err(EngineError {
                kind: ErrorKind::Retryable,
                operation: "incarnation",
                key: "all nodes".into(),
                message: format!("no answer within {INCARNATION_TIMEOUT:?}"),
            })
        })
    }

    async fn read_incarnation_until_answered(&self) -> Result<Incarnation, EngineError> {
        Backoff::new(RETRY_PAUSE, 0).retry(EngineError::may_be_retried, || self.read_incarnation()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        engine::{
            conformance::RULES,
            fault::{EngineFaults, FaultEngine},
            memory::MemoryEngine,
        },
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
