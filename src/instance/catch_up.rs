//! A restored store that reads the log again, until its group has read everything that the earlier store had.

use std::{convert::Infallible, sync::Arc, time::Duration};

use super::{
    InstanceError, InstanceParts, InstanceSettings,
    frontier::{Frontier, plan_reading_again},
};
use crate::{
    engine::RestoredEngine,
    ingest::plan::GraceStart,
    record::{ConsumedOffsets, Restored},
    replay::Modes,
    status::{Condition, Health},
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
    /// Movement of the chain.
    chain: Movement,
    /// Movement of the chain and of every partition together.
    all: Movement,
    /// Start of the grace of locked parents in the pipeline: follows the chain.
    pub(super) flag_grace_start: Arc<GraceStart>,
    /// Start of the grace of transactions that end live by the log: follows the chain and every partition.
    pub(super) live_grace_start: Arc<GraceStart>,
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
        parts.health.set(Condition::CaughtUp, is_behind(&restored).then(|| BEHIND.to_owned()));
        parts.store.engine = Arc::new(RestoredEngine::new(parts.store.engine.clone(), restored.snapshot));
        let ends = restored.ends();
        let (chain, all) = (Movement::to(ends.chain), Movement::to(sum_below(&ends, &ends)));
        let mut catch_up = CatchUp { restored: Some(restored), chain, all, ..CatchUp::default() };
        catch_up.observe_movement(settings, &parts, &frontier);
        Ok((parts, catch_up))
    }

    /// Returns the restore; zeros for an ordinary store.
    pub(super) fn restored(&self) -> Arc<Restored> {
        Arc::new(self.restored.as_deref().cloned().unwrap_or_default())
    }

    /// Returns the treatment of the events of the pipeline: a restored store reads the decisions of the log.
    pub(super) async fn modes(
        &self,
        settings: &InstanceSettings,
        parts: &InstanceParts,
        frontier: &Frontier,
    ) -> Result<Modes, InstanceError> {
        let Some(restored) = &self.restored else { return Ok(Modes::Live) };
        let plan = plan_reading_again(restored, frontier, settings, parts.broker.as_ref()).await?;
        Ok(Modes::ReadAgain(Arc::new(plan)))
    }

    /// Compares the restore with the committed offsets of its group. A store that has caught up becomes an ordinary
    /// one; a running instance keeps its engine to its end.
    pub(super) async fn observe(&mut self, settings: &InstanceSettings, parts: &InstanceParts, frontier: &Frontier) {
        self.observe_movement(settings, parts, frontier);
        if let Some(restore) = &self.restored {
            match end_restore(&parts.store, restore, frontier).await {
                Ok(true) => self.restored = None,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "instance: cannot end the restore, trying again"),
            }
        }
    }

    fn observe_movement(&mut self, settings: &InstanceSettings, parts: &InstanceParts, frontier: &Frontier) {
        let Some(restored) = &self.restored else { return };
        let (now_ms, wait) = (parts.clock.steady_ms(), settings.sequencer.block_wait);
        let looks = [
            (&mut self.chain, frontier.resume.chain, &self.flag_grace_start),
            (&mut self.all, sum_below(&frontier.resume, &restored.ends()), &self.live_grace_start),
        ];
        for (movement, position, start) in looks {
            if let Some(time) = movement.observe(position, now_ms, wait) {
                start.move_to(time);
            }
        }
    }
}

/// Reports in the health conditions whether the store was restored and reads the log again: its answers are older than
/// those of the store before it. While the store does not answer, the report stays as it is.
pub(crate) async fn report_catch_up(store: &StateStore, health: &Health) -> Infallible {
    loop {
        if let Ok(meta) = store.meta().await {
            let is_behind = meta.and_then(|meta| meta.restored).is_some_and(|restored| is_behind(&restored));
            health.set(Condition::CaughtUp, is_behind.then(|| BEHIND.to_owned()));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Returns whether a store before this one had read more of the log. An imported store has no store before it.
fn is_behind(restored: &Restored) -> bool {
    restored.is_loading || restored.ends() != ConsumedOffsets::default()
}

/// Time between two looks at the meta record of the store.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Reason of a restored store that is behind.
const BEHIND: &str = "the store was restored, and has not read again what the store before it had read: its answers \
                      are older than answers that were given";

/// Returns the sum of the committed offsets, each of them as far as its end.
fn sum_below(committed: &ConsumedOffsets, ends: &ConsumedOffsets) -> u64 {
    let reached = |(partition, end): (&u32, &u64)| committed.validated.get(partition).copied().unwrap_or(0).min(*end);
    committed.chain.min(ends.chain) + ends.validated.iter().map(reached).sum::<u64>()
}

/// The committed offsets of a restored store, which reads the log again.
#[derive(Default)]
struct Movement {
    /// Position that the earlier store had reached.
    end: u64,
    /// Position at the last look; `None` before the first look.
    position: Option<u64>,
}

impl Movement {
    fn to(end: u64) -> Self {
        Movement { end, position: None }
    }

    /// Records the position. Returns the new start of a grace, steady ms: the last movement, and `wait` after it before
    /// the end. A command or a block may hold the chain for that long, and the awaited event comes behind.
    fn observe(&mut self, position: u64, now_ms: u64, wait: Duration) -> Option<u64> {
        let has_ended = |position: u64| position >= self.end;
        if self.position.is_some_and(has_ended) {
            return None;
        }
        let wait_ms = if has_ended(position) { 0 } else { u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) };
        let has_moved = self.position.replace(position) != Some(position);
        has_moved.then(|| now_ms.saturating_add(wait_ms))
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
    use crate::{clock::Clock, record::MetaRecord, store::testing};

    #[test]
    fn a_grace_begins_after_the_last_movement() {
        let wait = Duration::from_millis(600);
        let mut chain = Movement::to(9);
        assert_eq!(chain.observe(0, 100, wait), Some(700), "no block was read yet");
        assert_eq!(chain.observe(0, 300, wait), None, "the chain stands");
        assert_eq!(chain.observe(8, 400, wait), Some(1_000));
        assert_eq!(chain.observe(9, 500, wait), Some(500), "everything is read again");
        assert_eq!(chain.observe(11, 600, wait), None, "what follows is no reading again");
        let mut chain = Movement::to(0);
        assert_eq!((chain.observe(0, 100, wait), chain.observe(1, 200, wait)), (Some(100), None));
    }

    /// Protects: a reader, which has no loop that reads the log, reports a restored store as behind, and an imported
    /// store as ready.
    #[tokio::test(start_paused = true)]
    async fn a_reader_reports_a_restored_store_until_it_has_caught_up() {
        let store = testing::store(100);
        StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        let health = Health::new(Clock::simulated(1_000), Duration::from_secs(600));
        let until = ConsumedOffsets { chain: 7, ..ConsumedOffsets::default() };
        let loading = Restored { is_loading: true, ..Restored::default() };
        let restored = Restored { until, ..Restored::default() };
        for (meta, is_met) in [
            (None, true),
            (Some(loading), false),
            (Some(restored), false),
            (Some(Restored::default()), true),
            (None, true),
        ] {
            let meta = meta.map(Box::new);
            let change = |record| Ok(MetaRecord { restored: meta.clone(), ..record });
            StoreMeta::of(&store).change(change).await.unwrap();
            let report = report_catch_up(&store, &health);
            tokio::time::timeout(Duration::from_secs(1), report).await.unwrap_err();
            assert_eq!(!health.is_unmet(Condition::CaughtUp), is_met, "{meta:?}");
        }
    }

    #[test]
    fn offsets_count_as_far_as_their_ends() {
        let at = |chain, validated: [u64; 2]| ConsumedOffsets {
            chain,
            validated: (0..).zip(validated).collect(),
            height: 0,
        };
        let ends = at(5, [10, 20]);
        assert_eq!(sum_below(&ends, &ends), 35);
        assert_eq!(sum_below(&at(9, [3, 90]), &ends), 28);
        assert_eq!(sum_below(&ConsumedOffsets::default(), &ends), 0);
    }
}
