//! [`RestoredEngine`]: the engine of a store that was restored from a snapshot and reads the log again.

use std::{sync::Arc, time::Duration};

use super::{EngineDecorator, EngineError, Incarnation, RecordEngine};

/// An engine whose records come from a snapshot. Each record has the state of some moment of the scan: it lacks the
/// latest changes, as a record does that a restarted node has lost writes of. The engine therefore counts as one that
/// has lost writes since the snapshot's offsets, until the group has read the log again: its incarnation differs from
/// that of every store before, so that the chain begins a new era, and its loss window is not zero.
pub struct RestoredEngine {
    inner: Arc<dyn RecordEngine>,
    snapshot: [u8; 16],
}

/// Loss window of an engine that loses nothing by itself: as short as a window can be measured.
const LOSS_WINDOW: Duration = Duration::from_millis(1);

impl RestoredEngine {
    /// Puts the restore of this snapshot in front of an engine.
    pub fn new(inner: Arc<dyn RecordEngine>, snapshot: [u8; 16]) -> Self {
        RestoredEngine { inner, snapshot }
    }
}

impl EngineDecorator for RestoredEngine {
    fn inner(&self) -> &dyn RecordEngine {
        self.inner.as_ref()
    }

    fn loss_window(&self) -> Duration {
        self.inner.loss_window().max(LOSS_WINDOW)
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        let Incarnation(nodes) = self.inner.incarnation().await?;
        Ok(Incarnation(format!("restored {} {nodes}", hex::encode(self.snapshot))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{conformance::RULES, memory::MemoryEngine};

    #[tokio::test]
    async fn a_restored_engine_counts_as_one_that_lost_writes() {
        let plain: Arc<dyn RecordEngine> = Arc::new(MemoryEngine::new(RULES));
        let restored = |id| RestoredEngine::new(plain.clone(), [id; 16]);
        assert!(plain.loss_window().is_zero() && !RecordEngine::loss_window(&restored(1)).is_zero());
        let incarnations = [
            RecordEngine::incarnation(&restored(1)).await.unwrap(),
            RecordEngine::incarnation(&restored(2)).await.unwrap(),
        ];
        assert_ne!(incarnations[0], incarnations[1]);
        assert_ne!(incarnations[0], plain.incarnation().await.unwrap());
    }
}
