//! Checks of the store that end: a probe of one read, and the deep check of a write and a read.

use std::{fmt::Display, time::Duration};

use crate::record::{Key, MetaRecord};

use super::{StateStore, meta::StoreMeta};

/// Request of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum CheckStep {
    /// A write of the meta record.
    Write,
    /// A read of the meta record.
    Read,
}

/// Failure of a check: the step, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {step} the meta record of the store: {why}")]
pub struct CheckError {
    /// The request that failed.
    pub step: CheckStep,
    /// Reason in one line.
    pub why: String,
}

impl StateStore {
    /// Reads the meta record once, without a retry.
    ///
    /// # Errors
    /// The engine fails, or gives no answer within `limit`.
    pub async fn probe(&self, limit: Duration) -> Result<(), CheckError> {
        let read = async { self.engine.read(&[Key::Meta]).await.into_iter().try_for_each(|answer| answer.map(drop)) };
        within(limit, CheckStep::Read, read).await
    }

    /// Checks that the store takes a write and gives it back: writes the next number into the meta record, and reads
    /// the record. Each of the two ends within `limit`, and failed requests are retried until then.
    ///
    /// # Errors
    /// A step fails or does not end, or the store has lost the write.
    pub async fn check_deep(&self, limit: Duration) -> Result<(), CheckError> {
        let count = |meta: MetaRecord| Ok(MetaRecord { health_checks: meta.health_checks.wrapping_add(1), ..meta });
        let written = within(limit, CheckStep::Write, StoreMeta::of(self).change(count)).await?.health_checks;
        let read = within(limit, CheckStep::Read, self.meta()).await?;
        match read.map(|meta| meta.health_checks) {
            // Another check may have written meanwhile.
            Some(found) if found >= written => Ok(()),
            found => {
                let why = format!("number {written} was written and acknowledged, and the record has {found:?}");
                Err(CheckError { step: CheckStep::Read, why })
            }
        }
    }
}

async fn within<T, E: Display>(
    limit: Duration,
    step: CheckStep,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, CheckError> {
    let why = match tokio::time::timeout(limit, work).await {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {limit:?}"),
    };
    Err(CheckError { step, why })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        engine::fault::{EngineFault, EngineFaults, FaultEngine},
        store::testing,
    };

    const LIMIT: Duration = Duration::from_secs(2);

    async fn faulty_store() -> (StateStore, Arc<FaultEngine>) {
        let store = testing::store(5);
        StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        let engine = Arc::new(FaultEngine::new(store.engine.clone(), 7));
        (StateStore { engine: engine.clone(), ..store }, engine)
    }

    #[tokio::test(start_paused = true)]
    async fn a_deep_check_writes_and_reads_and_retries_what_fails_once() {
        let (store, engine) = faulty_store().await;
        for (fault, checks) in [(None, 1), (Some(EngineFault::LostRequest), 2), (Some(EngineFault::LostReply), 3)] {
            fault.into_iter().for_each(|fault| engine.fail_at(1, fault));
            store.check_deep(LIMIT).await.unwrap();
            assert_eq!(store.meta().await.unwrap().unwrap().health_checks, checks, "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_check_names_its_step_in_bounded_time() {
        let (store, engine) = faulty_store().await;
        for (faults, words) in [
            (EngineFaults { lost_request: 1.0, ..EngineFaults::default() }, "cannot write the meta record"),
            (EngineFaults { failed_read: 1.0, ..EngineFaults::default() }, "cannot write the meta record"),
        ] {
            engine.set(faults);
            let started = tokio::time::Instant::now();
            let error = store.check_deep(LIMIT).await.unwrap_err().to_string();
            assert!(error.starts_with(words) && error.contains("no answer within 2s"), "{error}");
            assert!(started.elapsed() <= LIMIT * 2);
        }
        let error = store.probe(LIMIT).await.unwrap_err();
        assert_eq!((error.step, error.why.contains("request lost")), (CheckStep::Read, true), "{error}");
        engine.set(EngineFaults::default());
        store.probe(LIMIT).await.unwrap();
        let empty = testing::store(5);
        empty.probe(LIMIT).await.unwrap();
        let error = empty.check_deep(LIMIT).await.unwrap_err().to_string();
        assert!(error.contains("no meta record"), "{error}");
    }
}
