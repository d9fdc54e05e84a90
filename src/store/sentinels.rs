//! Sentinels: small records in many partitions of a namespace (`docs/protocols/node-restart.md`). A node or device that
//! is lost takes some sentinels along, so that a missing sentinel shows that a part of the namespace is lost.
//!
//! Sentinels count only once the meta record has [`MetaRecord::has_sentinels`], which is written when no node can lose
//! the sentinels any more. So a store without sentinels, or with new ones, differs from a store that has lost some.

use super::{
    StateStore,
    meta::{MetaError, StoreMeta},
};
use crate::{
    engine::Row,
    record::{Key, MetaRecord, Operation, Record},
};

/// The sentinels of a store.
#[derive(Clone, Copy)]
pub struct Sentinels<'a> {
    store: &'a StateStore,
}

impl<'a> Sentinels<'a> {
    /// Returns the sentinels of this store.
    pub fn of(store: &'a StateStore) -> Self {
        Sentinels { store }
    }

    /// Writes the sentinels if this engine [can lose parts](crate::engine::RecordEngine::may_lose_parts) and the meta
    /// record does not have [`MetaRecord::has_sentinels`] yet. Returns whether sentinels were written: these have to be
    /// durable before [`record`](Self::record).
    pub async fn write(&self, meta: &MetaRecord) -> Result<bool, MetaError> {
        if !self.store.engine.may_lose_parts() || meta.has_sentinels {
            return Ok(false);
        }
        let put = |key| Row { key, operation: Operation::PutSentinel(meta.store_id) };
        self.store.apply(keys().map(put).collect()).await?;
        Ok(true)
    }

    /// Records in the meta record that the sentinels exist and are durable.
    ///
    /// # Errors
    /// The errors of [`StoreMeta::change`].
    pub async fn record(&self) -> Result<MetaRecord, MetaError> {
        StoreMeta::of(self.store).change(|meta| Ok(MetaRecord { has_sentinels: true, ..meta })).await
    }

    /// Verifies that all sentinels exist. Over an engine without sentinels nothing is read.
    ///
    /// # Errors
    /// [`MetaError::PartLost`], or the sentinels could not be read.
    pub async fn verify(&self, meta: &MetaRecord) -> Result<(), MetaError> {
        if !self.store.engine.may_lose_parts() {
            return Ok(());
        }
        let ours = Some(Record::Sentinel(meta.store_id));
        let found = self.store.read(keys().collect()).await?;
        let missing = found.iter().filter(|found| **found != ours).count();
        if missing == 0 { Ok(()) } else { Err(MetaError::PartLost { missing, all: found.len() }) }
    }
}

fn keys() -> impl Iterator<Item = Key> {
    (0..=u8::MAX).map(Key::Sentinel)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        engine::memory::MemoryEngine,
        record::Rules,
        store::{ownership::StoreOwnership, testing::store},
    };

    fn in_parts() -> (Arc<MemoryEngine>, StateStore) {
        let engine = Arc::new(MemoryEngine::new(Rules::main(288)).with_losable_parts());
        (engine.clone(), StateStore { engine, ..store(5) })
    }

    async fn with_sentinels() -> (Arc<MemoryEngine>, StateStore) {
        let (engine, store) = in_parts();
        let meta = StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        assert!(Sentinels::of(&store).write(&meta).await.unwrap());
        let meta = Sentinels::of(&store).record().await.unwrap();
        assert!(!Sentinels::of(&store).write(&meta).await.unwrap(), "a second time");
        (engine, store)
    }

    #[tokio::test]
    async fn a_missing_or_foreign_sentinel_is_a_lost_part() {
        for record in [None, Some(Record::Sentinel([9; 16]))] {
            let (engine, store) = with_sentinels().await;
            let group = store.clone();
            group.verify_intact().await.unwrap();
            engine.put(Key::Sentinel(7), record.clone());
            engine.put(Key::Sentinel(255), record);
            let error = group.verify_intact().await.unwrap_err();
            assert!(matches!(error, MetaError::PartLost { missing: 2, all: 256 }), "{error}");
            assert!(error.to_string().contains("replay --rebuild") && !error.may_be_retried(), "{error}");
            assert!(StoreMeta::of(&store).open(true, [2; 16]).await.is_err(), "a start");
            assert!(StoreMeta::of(&store).inspect(true).await.is_err(), "run --check");
        }
    }

    /// A store without sentinels, or whose first instance died before the sentinels were durable.
    #[tokio::test]
    async fn no_sentinel_is_missed_before_they_are_recorded() {
        let (engine, store) = in_parts();
        let meta = StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        StoreMeta::of(&store).open(true, [2; 16]).await.unwrap();
        assert!(Sentinels::of(&store).write(&meta).await.unwrap());
        engine.put(Key::Sentinel(3), None);
        let meta = StoreMeta::of(&store).open(true, [2; 16]).await.unwrap();
        assert!(Sentinels::of(&store).verify(&meta).await.is_err(), "the sentinels must not be recorded yet");
        assert!(Sentinels::of(&store).write(&meta).await.unwrap());
        Sentinels::of(&store).verify(&meta).await.unwrap();
        Sentinels::of(&store).record().await.unwrap();
        StoreMeta::of(&store).open(true, [2; 16]).await.unwrap();
    }

    #[tokio::test]
    async fn an_engine_that_is_lost_as_a_whole_has_no_sentinels() {
        let store = store(5);
        let meta = StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        assert!(!Sentinels::of(&store).write(&meta).await.unwrap());
        assert_eq!(store.read(vec![Key::Sentinel(0)]).await.unwrap(), [None]);
        Sentinels::of(&store).verify(&meta).await.unwrap();
    }
}
