//! A restored store that reads the log again, until its group has read everything that the earlier store had.

use std::{sync::Arc, time::Duration};

use super::{InstanceError, InstanceParts, InstanceSettings, frontier::Frontier};
use crate::{
    engine::RestoredEngine,
    ingest::plan::FlagGraceStart,
    record::Restored,
    store::{
        StateStore,
        meta::{MetaError, StoreMeta},
    },
};

/// The restore of a store, as an instance follows its end.
#[derive(Default)]
pub(super) struct CatchUp {
    /// The restore; `None`: the store is an ordinary one.
    restored: Option<Box<Restored>>,
    chain: Option<ChainCatchUp>,
    /// Start of the grace of locked parents in the pipeline.
    pub(super) flag_grace_start: Arc<FlagGraceStart>,
}

impl CatchUp {
    /// Returns the parts of an instance, and the restore of their store. A store that reads the log again gets an
    /// engine that counts as one that has lost writes.
    pub(super) async fn begin(
        settings: &InstanceSettings,
        mut parts: InstanceParts,
    ) -> Result<(InstanceParts, Self), InstanceError> {
        let Some(restored) = parts.store.meta().await?.and_then(|meta| meta.restored) else {
            return Ok((parts, CatchUp::default()));
        };
        if restored.is_loading {
            // The restore can end before the next look, and has to set the offsets back before.
            return Err(MetaError::UnfinishedRestore.into());
        }
        let frontier = Frontier::read(settings, parts.broker.as_ref()).await?;
        if end_restore(&parts.store, &restored, &frontier).await? {
            return Ok((parts, CatchUp::default()));
        }
        tracing::info!(until = ?restored.until, "instance: the store was restored and reads the log again");
        parts.store.engine = Arc::new(RestoredEngine::new(parts.store.engine.clone(), restored.snapshot));
        let chain = ChainCatchUp { until: restored.chain_until(), committed: None };
        let mut catch_up = CatchUp { restored: Some(restored), chain: Some(chain), ..CatchUp::default() };
        catch_up.observe_chain(settings, &parts, &frontier);
        Ok((parts, catch_up))
    }

    /// Returns the chain offset below which all second chances are in the log; 0 for an ordinary store.
    pub(super) fn handled_chain(&self) -> u64 {
        self.restored.as_ref().map_or(0, |restored| restored.handled_chain)
    }

    /// Compares the restore with the committed offsets of its group. A store that has caught up becomes an ordinary
    /// one; a running instance keeps its engine to its end.
    pub(super) async fn observe(&mut self, settings: &InstanceSettings, parts: &InstanceParts, frontier: &Frontier) {
        self.observe_chain(settings, parts, frontier);
        if let Some(restore) = &self.restored {
            match end_restore(&parts.store, restore, frontier).await {
                Ok(true) => self.restored = None,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "instance: cannot end the restore, trying again"),
            }
        }
    }

    fn observe_chain(&mut self, settings: &InstanceSettings, parts: &InstanceParts, frontier: &Frontier) {
        let Some(chain) = &mut self.chain else { return };
        let now_ms = parts.clock.steady_ms();
        if let Some(start) = chain.observe(frontier.resume.chain, now_ms, settings.sequencer.block_wait) {
            self.flag_grace_start.move_to(start);
        }
        if chain.has_ended() {
            self.chain = None;
        }
    }
}

/// The chain of a restored store, which reads the log again.
struct ChainCatchUp {
    /// Chain offset that the earlier store had reached.
    until: u64,
    /// Committed chain offset at the last look; `None` before the first look.
    committed: Option<u64>,
}

impl ChainCatchUp {
    /// Records the committed chain offset. Returns the new start of the grace of locked parents, steady ms: the last
    /// movement of the chain, and `wait` after it while the chain is not at its end. A command or a block may hold the
    /// chain for that long, and the event that unlocks the parent comes behind.
    fn observe(&mut self, committed: u64, now_ms: u64, wait: Duration) -> Option<u64> {
        let has_moved = self.committed.replace(committed) != Some(committed);
        let wait_ms = if self.has_ended() { 0 } else { u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) };
        has_moved.then(|| now_ms.saturating_add(wait_ms))
    }

    fn has_ended(&self) -> bool {
        self.committed.is_some_and(|committed| committed >= self.until)
    }
}

/// Makes the restored store an ordinary one, where the group has read everything again. Returns whether it has.
async fn end_restore(store: &StateStore, restored: &Restored, frontier: &Frontier) -> Result<bool, MetaError> {
    if !restored.is_covered_by(&frontier.resume) {
        return Ok(false);
    }
    StoreMeta::of(store).end_restore(restored).await?;
    tracing::info!("instance: the restored store has caught up with the log");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_of_locked_parents_begins_after_the_last_movement_of_the_chain() {
        let wait = Duration::from_millis(600);
        let mut chain = ChainCatchUp { until: 9, committed: None };
        assert_eq!(chain.observe(0, 100, wait), Some(700), "no block was read yet");
        assert_eq!(chain.observe(0, 300, wait), None, "the chain stands");
        assert_eq!(chain.observe(8, 400, wait), Some(1_000));
        assert!(!chain.has_ended());
        assert_eq!(chain.observe(9, 500, wait), Some(500), "everything is read again");
        assert!(chain.has_ended());
        let mut chain = ChainCatchUp { until: 0, committed: None };
        assert_eq!((chain.observe(0, 100, wait), chain.has_ended()), (Some(100), true));
    }
}
