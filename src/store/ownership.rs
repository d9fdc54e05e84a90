//! Ownership of a store by a consumer group: the store exists, and the store has consumed what the group has committed.
//!
//! Offsets are in Kafka and their effects in the store; only the operator's configuration connects the two. A store
//! that is behind its group (another store, an older copy, a rebuild that was killed) would lack events that no
//! instance reads again: their children would be proven to miss their parents, and the log keeps the verdicts. So the
//! consumed offsets are written into the meta record *before* an offset is committed, and no committed offset may be
//! above them.

use super::{
    StateStore,
    meta::{MetaError, StoreMeta, check_not_rebuilding},
    topics::LogIdentity,
};
use crate::record::{ChainTip, ConsumedOffsets, MetaRecord};

/// The checks by which a group makes sure of its store.
#[async_trait::async_trait]
pub trait StoreOwnership: Send + Sync {
    /// Verifies after a node's restart that the meta record and all sentinels exist.
    ///
    /// # Errors
    /// A part of the store is lost, which no replay from the committed offsets can repair; or the engine failed.
    async fn verify_intact(&self) -> Result<(), MetaError>;

    /// Records in the meta record that the offsets `consumed` are consumed, before they are committed, and that the
    /// store can lose no write of an event below the offsets `durable`.
    ///
    /// # Errors
    /// The offsets are not recorded, so that they must not be committed.
    async fn record_consumed(&self, consumed: &ConsumedOffsets, durable: &ConsumedOffsets) -> Result<(), MetaError>;

    /// Binds the store to the chain topic whose record at offset 0 has this
    /// [`chain_id`](super::meta::compute_chain_id).
    ///
    /// # Errors
    /// The store is bound to another chain; or the engine failed.
    async fn bind_chain(&self, chain_id: [u8; 32]) -> Result<(), MetaError>;

    /// Records the tip of the chain, unless the meta record has a tip at the same or at a greater chain offset. Called
    /// before the event that moved the tip is completed.
    ///
    /// # Errors
    /// The tip is not recorded.
    async fn record_tip(&self, tip: &ChainTip) -> Result<(), MetaError>;

    /// Returns what the store knows of the chain without its group.
    ///
    /// # Errors
    /// The meta record could not be read.
    async fn recorded_chain(&self) -> Result<RecordedChain, MetaError>;

    /// Records the era of the stamps that follow, unless the meta record has a greater era. Called before the era is
    /// committed.
    ///
    /// # Errors
    /// The era is not recorded, so that no record may be stamped with it.
    async fn record_era(&self, era: u32) -> Result<(), MetaError>;

    /// Verifies that the store has consumed every offset that its group has committed. The commits must have been read
    /// before the call.
    ///
    /// # Errors
    /// [`MetaError::StoreBehindGroup`], or the meta record could not be read.
    async fn verify_covers(&self, committed: &ConsumedOffsets) -> Result<(), MetaError>;
}

/// Facts of a store about the chain, for a group whose commits are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordedChain {
    /// Greatest era in which a sequencer has stamped records.
    pub era: u32,
    /// A block or a reorg of the log was handled.
    pub has_blocks: bool,
}

impl RecordedChain {
    /// Returns what a meta record knows of the chain.
    pub fn of(meta: &MetaRecord) -> Self {
        // The tip of an imported file is at offset 0: its block is no event of the log.
        RecordedChain { era: meta.chain_era, has_blocks: meta.tip.is_some_and(|tip| tip.chain_offset > 0) }
    }

    /// Verifies that a sequencer may begin at `position` without a state of the chain.
    ///
    /// Before the first block any position is right. Later the sequence, the tip and the places of the feed are
    /// unknown, except at the beginning of the log. A store that can lose writes has begun an era with its first
    /// commit, so that no stamp would recognise a repeat: a command that a later one took back would be in force for a
    /// while.
    ///
    /// # Errors
    /// [`MetaError::ChainStateLost`]
    pub fn verify_stateless_start(&self, position: u64, can_lose_writes: bool) -> Result<(), MetaError> {
        let is_allowed = !self.has_blocks || (position == 0 && !can_lose_writes);
        if is_allowed { Ok(()) } else { Err(MetaError::ChainStateLost { position }) }
    }
}

#[async_trait::async_trait]
impl StoreOwnership for StateStore {
    async fn verify_intact(&self) -> Result<(), MetaError> {
        // The store exists, so that the id for a new store is not used.
        StoreMeta::of(self).open(true, [0; 16]).await.map(drop)
    }

    async fn record_consumed(&self, consumed: &ConsumedOffsets, durable: &ConsumedOffsets) -> Result<(), MetaError> {
        let raise = |mut meta: MetaRecord| {
            meta.consumed.raise(consumed);
            meta.durable.raise(durable);
            Ok(meta)
        };
        StoreMeta::of(self).change(raise).await.map(drop)
    }

    async fn bind_chain(&self, chain_id: [u8; 32]) -> Result<(), MetaError> {
        StoreMeta::of(self).bind_chain(Some(chain_id)).await.map(drop)
    }

    async fn record_tip(&self, tip: &ChainTip) -> Result<(), MetaError> {
        let is_later = |stored: &ChainTip| stored.chain_offset >= tip.chain_offset;
        let move_to = |meta: MetaRecord| match meta.tip {
            Some(stored) if is_later(&stored) => Ok(meta),
            _ => Ok(MetaRecord { tip: Some(*tip), ..meta }),
        };
        StoreMeta::of(self).change(move_to).await.map(drop)
    }

    async fn recorded_chain(&self) -> Result<RecordedChain, MetaError> {
        Ok(RecordedChain::of(&self.meta().await?.ok_or(MetaError::NamespaceLost)?))
    }

    async fn record_era(&self, era: u32) -> Result<(), MetaError> {
        let raise = |meta: MetaRecord| Ok(MetaRecord { chain_era: meta.chain_era.max(era), ..meta });
        StoreMeta::of(self).change(raise).await.map(drop)
    }

    async fn verify_covers(&self, committed: &ConsumedOffsets) -> Result<(), MetaError> {
        let meta = self.meta().await?.ok_or(MetaError::NamespaceLost)?;
        verify_has_consumed(&meta, committed)
    }
}

impl StoreMeta<'_> {
    /// Verifies for a group with commits that this is its store: no rebuild, made from this log, and not behind the
    /// committed offsets. Both must have been read before the call. Returns the meta record.
    ///
    /// # Errors
    /// The reason against the store, or the meta record could not be read.
    pub async fn verify_made_from(
        &self,
        log: &LogIdentity,
        committed: &ConsumedOffsets,
    ) -> Result<MetaRecord, MetaError> {
        let meta = self.store().meta().await?.ok_or(MetaError::NamespaceLost)?;
        check_not_rebuilding(&meta)?;
        log.differences(&meta).into_iter().next().map_or(Ok(()), Err)?;
        verify_has_consumed(&meta, committed)?;
        Ok(meta)
    }
}

/// Verifies that a store has consumed every offset that its group has committed.
///
/// # Errors
/// [`MetaError::StoreBehindGroup`]
pub fn verify_has_consumed(meta: &MetaRecord, committed: &ConsumedOffsets) -> Result<(), MetaError> {
    match find_lower(&meta.consumed, committed) {
        Some((what, consumed, committed)) => Err(MetaError::StoreBehindGroup { what, committed, consumed }),
        None => Ok(()),
    }
}

/// Verifies that a group that continues at `from` reads no event below the replay floor, whose records may be pruned.
/// Only a group without members can be set back.
///
/// # Errors
/// [`MetaError::BelowFloor`]
pub fn verify_above_floor(floor: &ConsumedOffsets, from: &ConsumedOffsets) -> Result<(), MetaError> {
    match find_lower(from, floor) {
        Some((what, from, floor)) => Err(MetaError::BelowFloor { what, from, floor }),
        None => Ok(()),
    }
}

/// Returns the first partition, or the chain, with an offset below the one in `least`: its name and both offsets.
fn find_lower(offsets: &ConsumedOffsets, least: &ConsumedOffsets) -> Option<(String, u64, u64)> {
    let validated = least.validated.iter().map(|(partition, least)| {
        let offset = offsets.validated.get(partition).copied().unwrap_or(0);
        (format!("partition {partition} of the validated transactions"), offset, *least)
    });
    let chain = ("the chain".to_owned(), offsets.chain, least.chain);
    validated.chain([chain]).find(|(_, offset, least)| offset < least)
}

/// A store whose consumed offsets are not recorded, for benches and unit tests.
#[cfg(feature = "testkit")]
pub struct UnverifiedStore;

#[cfg(feature = "testkit")]
#[async_trait::async_trait]
impl StoreOwnership for UnverifiedStore {
    async fn verify_intact(&self) -> Result<(), MetaError> {
        Ok(())
    }

    async fn record_consumed(&self, _: &ConsumedOffsets, _: &ConsumedOffsets) -> Result<(), MetaError> {
        Ok(())
    }

    async fn bind_chain(&self, _: [u8; 32]) -> Result<(), MetaError> {
        Ok(())
    }

    async fn record_tip(&self, _: &ChainTip) -> Result<(), MetaError> {
        Ok(())
    }

    async fn verify_covers(&self, _: &ConsumedOffsets) -> Result<(), MetaError> {
        Ok(())
    }

    async fn recorded_chain(&self) -> Result<RecordedChain, MetaError> {
        Ok(RecordedChain::default())
    }

    async fn record_era(&self, _: u32) -> Result<(), MetaError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        event::Topic,
        store::{prune::PruneTerms, testing::store, topics::FoundTopic},
    };

    fn consumed(chain: u64, validated: impl IntoIterator<Item = (u32, u64)>) -> ConsumedOffsets {
        ConsumedOffsets { chain, validated: validated.into_iter().collect(), height: 0 }
    }

    async fn new() -> StateStore {
        let store = store(5);
        StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        store
    }

    async fn record(store: &StateStore, consumed: &ConsumedOffsets) -> Result<(), MetaError> {
        store.record_consumed(consumed, &ConsumedOffsets::default()).await
    }

    #[tokio::test]
    async fn durable_offsets_only_grow() {
        let store = new().await;
        for durable in [consumed(7, [(0, 5), (2, 9)]), consumed(3, [(0, 6), (2, 4)])] {
            store.record_consumed(&ConsumedOffsets::default(), &durable).await.unwrap();
        }
        assert_eq!(store.meta().await.unwrap().unwrap().durable, consumed(7, [(0, 6), (2, 9)]));
    }

    #[tokio::test]
    async fn consumed_offsets_only_grow() {
        let store = new().await;
        record(&store, &consumed(7, [(0, 5), (2, 9)])).await.unwrap();
        record(&store, &consumed(3, [(0, 6), (2, 4), (1, 1)])).await.unwrap();
        for height in [800_001, 9] {
            record(&store, &ConsumedOffsets { height, ..ConsumedOffsets::default() }).await.unwrap();
        }
        let meta = store.meta().await.unwrap().unwrap();
        let expected = ConsumedOffsets { height: 800_001, ..consumed(7, [(0, 6), (1, 1), (2, 9)]) };
        assert_eq!(meta.consumed, expected);
    }

    #[tokio::test]
    async fn a_store_behind_its_group_is_refused_with_both_offsets() {
        let store = new().await;
        store.verify_covers(&ConsumedOffsets::default()).await.unwrap();
        record(&store, &consumed(7, [(0, 5)])).await.unwrap();
        store.verify_covers(&consumed(7, [(0, 5)])).await.unwrap();
        store.verify_covers(&consumed(2, [(0, 1)])).await.unwrap();
        for (committed, words) in [
            (consumed(8, [(0, 5)]), ["the chain", "8", "7"]),
            (consumed(7, [(0, 6)]), ["partition 0", "6", "5"]),
            (consumed(0, [(3, 1)]), ["partition 3", "1", "0"]),
        ] {
            let error = store.verify_covers(&committed).await.unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[tokio::test]
    async fn neither_a_repeat_nor_a_late_sequencer_moves_the_tip_back() {
        let store = new().await;
        let tip = |chain_offset, height| ChainTip { chain_offset, height, hash: [height as u8; 32], median_time: 9 };
        for (written, stored) in [
            (tip(5, 100), tip(5, 100)),
            (tip(7, 102), tip(7, 102)),
            (tip(6, 101), tip(7, 102)),
            (tip(7, 103), tip(7, 102)),
            // A reorg to a lower block.
            (tip(8, 99), tip(8, 99)),
        ] {
            store.record_tip(&written).await.unwrap();
            assert_eq!(store.meta().await.unwrap().unwrap().tip, Some(stored));
        }
    }

    const TERMS: PruneTerms = PruneTerms { height: 400, retention: 288, committed: 7 };

    fn no_log() -> LogIdentity {
        LogIdentity { topics: Vec::new(), chain_id: None }
    }

    /// A cluster without topic ids knows a topic by its first record only.
    #[tokio::test]
    async fn another_chain_and_another_number_of_partitions_are_refused() {
        let store = new().await;
        let validated = |partitions| FoundTopic {
            topic: Topic::ValidatedTxs,
            name: "txs".to_owned(),
            id: None,
            partitions,
            first: BTreeMap::new(),
        };
        let log =
            |partitions, chain: u8| LogIdentity { topics: vec![validated(partitions)], chain_id: Some([chain; 32]) };
        StoreMeta::of(&store).bind_log(&log(2, 1)).await.unwrap();
        let none = ConsumedOffsets::default();
        let verify = async |log: LogIdentity| StoreMeta::of(&store).verify_made_from(&log, &none).await;
        verify(log(2, 1)).await.unwrap();
        assert!(matches!(verify(log(2, 2)).await, Err(MetaError::ChainRecreated { .. })));
        assert!(matches!(verify(log(3, 1)).await, Err(MetaError::OtherPartitions { .. })));
    }

    /// Events below the floor name pruned transactions, of which no record may be left that recognises them.
    #[tokio::test]
    async fn a_group_below_the_replay_floor_is_refused() {
        let store = new().await;
        let may_go_on = async |from| {
            let meta = StoreMeta::of(&store).verify_made_from(&no_log(), &ConsumedOffsets::default()).await.unwrap();
            verify_above_floor(&meta.replay_floor, &from)
        };
        may_go_on(consumed(0, [])).await.unwrap();
        StoreMeta::of(&store).begin_pruning(&consumed(7, [(0, 5)]), &TERMS, 0).await.unwrap();
        StoreMeta::of(&store).begin_pruning(&consumed(6, [(0, 9), (2, 1)]), &TERMS, 0).await.unwrap();
        may_go_on(consumed(7, [(0, 9), (2, 1)])).await.unwrap();
        for (from, words) in [
            (consumed(6, [(0, 9), (2, 1)]), ["the chain", "offset 6", "from 7 on"]),
            (consumed(7, [(0, 8), (2, 1)]), ["partition 0", "offset 8", "from 9 on"]),
            (consumed(7, [(0, 9)]), ["partition 2", "offset 0", "from 1 on"]),
        ] {
            let error = may_go_on(from).await.unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[tokio::test]
    async fn a_lost_meta_record_is_not_created_again() {
        let store = store(5);
        assert!(matches!(store.verify_intact().await, Err(MetaError::NamespaceLost)));
        let none = ConsumedOffsets::default();
        assert!(matches!(store.verify_covers(&none).await, Err(MetaError::NamespaceLost)));
        assert!(matches!(
            StoreMeta::of(&store).verify_made_from(&no_log(), &none).await,
            Err(MetaError::NamespaceLost)
        ));
        assert!(matches!(record(&store, &consumed(1, [])).await, Err(MetaError::NoMetaRecord)));
        assert_eq!(store.meta().await.unwrap(), None);
    }
}
