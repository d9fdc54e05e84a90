//! The hold of a snapshot on pruning, in the meta record.
//!
//! A record that is pruned during a snapshot can be a tombstone in the snapshot although its spender, or the spender of
//! its spender, is not in the snapshot: the replay would find a pruned parent (`docs/protocols/snapshot.md`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    record::{MetaRecord, SnapshotHold},
    store::StateStore,
};

use super::{MetaError, StoreMeta};

/// The hold of one snapshot, as one process has it.
pub struct PruningHold<'a> {
    meta: StoreMeta<'a>,
    snapshot: [u8; 16],
    /// The end that this process has written last. Another end was written by another process.
    until_ms: AtomicU64,
}

impl<'a> PruningHold<'a> {
    /// Returns the hold of this snapshot on the pruning of this store.
    pub fn of(store: &'a StateStore, snapshot: [u8; 16]) -> Self {
        PruningHold { meta: StoreMeta::of(store), snapshot, until_ms: AtomicU64::new(0) }
    }

    /// Takes the hold until `until_ms`, in place of an expired hold of another snapshot. Returns the meta record.
    ///
    /// # Errors
    /// [`MetaError::HeldBySnapshot`], or an error of [`StoreMeta::change`].
    pub async fn take(&self, now_ms: u64, until_ms: u64) -> Result<MetaRecord, MetaError> {
        let hold = SnapshotHold { snapshot: self.snapshot, until_ms };
        let taken = self
            .meta
            .change(|meta| {
                let meta = match meta.snapshot_hold {
                    Some(held) if held.snapshot == self.snapshot => meta,
                    _ => without_expired_hold(meta, now_ms)?,
                };
                Ok(MetaRecord { snapshot_hold: Some(hold), ..meta })
            })
            .await?;
        self.until_ms.store(until_ms, Ordering::Relaxed);
        Ok(taken)
    }

    /// Extends the hold, which no pruner, no other snapshot and no other process has changed. Each extension changes
    /// the end, and none makes the hold shorter. Returns the meta record.
    ///
    /// # Errors
    /// [`MetaError::HoldLost`], [`MetaError::HoldTakenOver`], or an error of [`StoreMeta::change`].
    pub async fn extend(&self, until_ms: u64) -> Result<MetaRecord, MetaError> {
        self.continue_from(self.until_ms.load(Ordering::Relaxed), until_ms).await
    }

    /// Takes the hold over from a process that wrote the end `seen_ms` and has written none since. Returns the meta
    /// record.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    pub async fn continue_from(&self, seen_ms: u64, until_ms: u64) -> Result<MetaRecord, MetaError> {
        let until_ms = until_ms.max(seen_ms.saturating_add(1));
        let extended = self
            .meta
            .change(|meta| match meta.snapshot_hold {
                // The second one is this change, whose answer was lost.
                Some(held) if held.snapshot == self.snapshot && [seen_ms, until_ms].contains(&held.until_ms) => {
                    Ok(MetaRecord { snapshot_hold: Some(SnapshotHold { until_ms, ..held }), ..meta })
                }
                Some(held) if held.snapshot == self.snapshot => Err(MetaError::HoldTakenOver),
                _ => Err(MetaError::HoldLost),
            })
            .await?;
        self.until_ms.store(until_ms, Ordering::Relaxed);
        Ok(extended)
    }

    /// Removes the hold. Succeeds where the hold is gone already.
    ///
    /// # Errors
    /// An error of [`StoreMeta::change`].
    pub async fn release(&self) -> Result<(), MetaError> {
        let is_ours = |meta: &MetaRecord| meta.snapshot_hold.is_some_and(|held| held.snapshot == self.snapshot);
        let release = |meta: MetaRecord| match is_ours(&meta) {
            true => Ok(MetaRecord { snapshot_hold: None, ..meta }),
            false => Ok(meta),
        };
        self.meta.change(release).await.map(drop)
    }
}

/// Returns the meta record without a hold that has expired.
///
/// # Errors
/// [`MetaError::HeldBySnapshot`]
pub(super) fn without_expired_hold(meta: MetaRecord, now_ms: u64) -> Result<MetaRecord, MetaError> {
    match meta.snapshot_hold {
        Some(SnapshotHold { snapshot, until_ms }) if until_ms > now_ms => {
            Err(MetaError::HeldBySnapshot { snapshot: hex::encode(snapshot), seconds: (until_ms - now_ms) / 1_000 })
        }
        _ => Ok(MetaRecord { snapshot_hold: None, ..meta }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::ConsumedOffsets,
        store::{prune::PruneTerms, testing::store},
    };

    const TERMS: PruneTerms = PruneTerms { height: 400, retention: 288, committed: 7 };

    /// Protects: the replay of a snapshot meets no record that was pruned after the snapshot's offsets.
    #[tokio::test]
    async fn no_record_is_pruned_while_a_snapshot_holds_and_a_lost_hold_shows() {
        let store = store(5);
        StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        let (hold, other) = (PruningHold::of(&store, [1; 16]), PruningHold::of(&store, [2; 16]));
        hold.take(100, 1_100).await.unwrap();
        let prune = async |now_ms| {
            StoreMeta::of(&store).begin_pruning(&ConsumedOffsets::default(), &TERMS, now_ms).await.map(drop)
        };
        assert!(matches!(prune(1_099).await, Err(MetaError::HeldBySnapshot { seconds: 0, .. })));
        assert!(matches!(StoreMeta::of(&store).check_may_prune(100).await, Err(MetaError::HeldBySnapshot { .. })));
        assert!(matches!(other.take(200, 9_000).await, Err(MetaError::HeldBySnapshot { .. })));
        assert_eq!(store.meta().await.unwrap().unwrap().reorg_floor, 0);
        hold.extend(2_000).await.unwrap();
        hold.extend(1_500).await.unwrap();
        assert!(prune(2_000).await.is_err());
        prune(2_001).await.unwrap();
        assert!(matches!(hold.extend(9_000).await, Err(MetaError::HoldLost)));
        hold.release().await.unwrap();
        other.take(2_001, 3_000).await.unwrap();
        hold.release().await.unwrap();
        assert!(prune(2_500).await.is_err(), "the hold of the other snapshot stays");
        other.release().await.unwrap();
        StoreMeta::of(&store).check_may_prune(2_500).await.unwrap();
    }

    /// Protects: two processes never create one snapshot at the same time.
    #[tokio::test]
    async fn a_process_that_lost_its_hold_to_another_stops() {
        let store = store(5);
        StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        let [first, second, third] = [0; 3].map(|_| PruningHold::of(&store, [1; 16]));
        first.take(0, 1_000).await.unwrap();
        first.extend(1_000).await.unwrap();
        assert!(matches!(second.continue_from(1_000, 5_000).await, Err(MetaError::HoldTakenOver)), "a sign of life");
        second.continue_from(1_001, 5_000).await.unwrap();
        assert!(matches!(third.continue_from(1_001, 6_000).await, Err(MetaError::HoldTakenOver)));
        assert!(matches!(first.extend(9_000).await, Err(MetaError::HoldTakenOver)));
        second.extend(7_000).await.unwrap();
    }
}
