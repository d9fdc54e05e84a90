//! Whether a node of the store has restarted, and so forgotten what it had acknowledged (`DESIGN.md` section 9,
//! "Durability lag").

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    backoff::Backoff,
    engine::{EngineError, ErrorKind, Incarnation, RecordEngine},
    status::registry::NodesStatus,
};

/// The nodes of the store as somebody knows them who works on it. Over an engine that forgets nothing it asks nothing.
#[derive(Clone)]
pub struct Nodes {
    engine: Arc<dyn RecordEngine>,
    lag: Duration,
    known: Incarnation,
}

/// What a look at the nodes tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// None has restarted: what was acknowledged longer than the lag before `asked` cannot be lost any more.
    Same {
        /// When the question was sent.
        asked: Instant,
    },
    /// One has restarted: what was acknowledged since the last commit may be gone.
    Restarted,
}

/// The lag is so many times what the engine may forget, unless it is configured.
const LAG_FACTOR: u32 = 5;
/// A node that does not answer within it has not answered.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How long what is complete waits before its offset is committed; `None`: `configured` is too short for this engine.
pub fn durability_lag(engine: &dyn RecordEngine, configured: Option<Duration>) -> Option<Duration> {
    let may_forget = engine.may_forget();
    let lag = configured.unwrap_or(may_forget * LAG_FACTOR);
    (may_forget.is_zero() || lag > may_forget).then_some(if may_forget.is_zero() { Duration::ZERO } else { lag })
}

impl Nodes {
    /// Nodes that nobody has looked at; [`meet`](Self::meet) them before anything is done that they may forget.
    pub fn new(engine: Arc<dyn RecordEngine>, lag: Duration) -> Self {
        Nodes { engine, lag, known: Incarnation::default() }
    }

    /// Whether they may forget anything.
    pub fn may_forget(&self) -> bool {
        !self.lag.is_zero()
    }

    /// How long what is complete waits before its offset is committed.
    pub fn lag(&self) -> Duration {
        self.lag
    }

    /// The incarnation that is compared with; empty before they are met, and where nothing is forgotten.
    pub fn known(&self) -> &Incarnation {
        &self.known
    }

    /// The durability lag and the known incarnation, for `/state`.
    pub fn status(&self) -> NodesStatus {
        NodesStatus { durability_lag_ms: self.lag.as_millis() as u64, incarnation: self.known.0.clone() }
    }

    /// The present incarnation is the one to compare with from now on. Asks until there is an answer.
    ///
    /// # Errors
    /// What no retry heals.
    pub async fn meet(&mut self) -> Result<&Incarnation, EngineError> {
        if self.may_forget() {
            self.known = self.ask_until_known().await?;
        }
        Ok(&self.known)
    }

    /// Whether one has restarted since they were met.
    ///
    /// # Errors
    /// Nobody knows: nothing may be committed.
    pub async fn look(&self) -> Result<Look, EngineError> {
        let asked = Instant::now();
        let same = !self.may_forget() || self.ask().await? == self.known;
        Ok(if same { Look::Same { asked } } else { Look::Restarted })
    }

    /// The same, asking until there is an answer.
    ///
    /// # Errors
    /// What no retry heals.
    pub async fn have_restarted(&self) -> Result<bool, EngineError> {
        Ok(self.may_forget() && self.ask_until_known().await? != self.known)
    }

    /// Waits until what was acknowledged before cannot be forgotten any more. `false`: one has restarted meanwhile, and is met;
    /// it has to be done again.
    ///
    /// # Errors
    /// What no retry heals.
    pub async fn outlast(&mut self) -> Result<bool, EngineError> {
        if !self.may_forget() {
            return Ok(true);
        }
        tokio::time::sleep(self.lag).await;
        let restarted = self.have_restarted().await?;
        if restarted {
            self.meet().await?;
        }
        Ok(!restarted)
    }

    async fn ask(&self) -> Result<Incarnation, EngineError> {
        tokio::time::timeout(PATIENCE, self.engine.incarnation()).await.unwrap_or_else(|_| {
            Err(EngineError {
                kind: ErrorKind::Retryable,
                operation: "incarnation",
                key: "all nodes".into(),
                message: format!("no answer within {PATIENCE:?}"),
            })
        })
    }

    async fn ask_until_known(&self) -> Result<Incarnation, EngineError> {
        Backoff::new(PAUSE, 0).until_answered(EngineError::may_be_retried, || self.ask()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        engine::{
            conformance::RULES,
            fault::{FaultEngine, Faults},
            memory::MemoryEngine,
        },
    };

    #[tokio::test(start_paused = true)]
    async fn a_restart_is_seen_and_an_error_is_no_answer() {
        let clock = Clock::simulated(0);
        let memory = Arc::new(MemoryEngine::forgetful(RULES, clock.clone(), Duration::from_secs(1)));
        let engine = Arc::new(FaultEngine::forgetful(memory, clock, 1));
        let lag = durability_lag(engine.as_ref(), None).unwrap();
        assert_eq!(lag, Duration::from_secs(5));
        let mut nodes = Nodes::new(engine.clone(), lag);
        nodes.meet().await.unwrap();
        assert_eq!(nodes.look().await.unwrap(), Look::Same { asked: Instant::now() });
        engine.set(Faults { failed_read: 1.0, ..Faults::default() });
        assert!(nodes.look().await.is_err());
        engine.set(Faults::default());
        engine.forget(Duration::from_secs(1), |_| false);
        assert_eq!(nodes.look().await.unwrap(), Look::Restarted);
        nodes.meet().await.unwrap();
        assert!(!nodes.have_restarted().await.unwrap());
    }

    #[tokio::test]
    async fn the_lag_is_longer_than_what_may_be_lost_and_none_where_nothing_is() {
        let forgetful = MemoryEngine::forgetful(RULES, Clock::System, Duration::from_secs(1));
        for (configured, lag) in [(None, Some(5_000)), (Some(1_000), None), (Some(1_001), Some(1_001))] {
            let lag = lag.map(Duration::from_millis);
            assert_eq!(durability_lag(&forgetful, configured.map(Duration::from_millis)), lag);
        }
        let syncs = MemoryEngine::new(RULES);
        assert_eq!(durability_lag(&syncs, Some(Duration::from_secs(9))), Some(Duration::ZERO));
    }
}
