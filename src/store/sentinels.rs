//! Sentinels: small records that lie in many partitions of a namespace (`DESIGN.md`, section 9). A node or a device that is gone takes
//! some of them with it, and one that is missing tells that a part of the namespace is gone, whatever else is there.
//!
//! They count only once the meta record says so ([`MetaRecord::has_sentinels`]), and that is written when no node can forget them any more:
//! so a store that was made before there were sentinels, or is being made, is told from one that has lost some.

use super::{Store, meta::MetaError};
use crate::{
    engine::Row,
    record::{Key, MetaRecord, Operation, Record},
};

impl Store {
    /// Writes the sentinels where this engine [may lose parts](crate::engine::RecordEngine::may_lose_parts) and the meta record does not
    /// say yet that they are there. Answers whether it did: they have to outlast the nodes before they are
    /// [noted](Self::note_sentinels).
    ///
    /// # Errors
    /// The engine's.
    pub async fn plant_sentinels(&self, meta: &MetaRecord) -> Result<bool, MetaError> {
        if !self.engine.may_lose_parts() || meta.has_sentinels {
            return Ok(false);
        }
        let put = |key| Row { key, operation: Operation::PutSentinel(meta.store_id) };
        self.apply(keys().map(put).collect()).await?;
        Ok(true)
    }

    /// Says in the meta record that the sentinels are there, and no node can forget them.
    ///
    /// # Errors
    /// As [`change_meta`](Self::change_meta).
    pub async fn note_sentinels(&self) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| Ok(MetaRecord { has_sentinels: true, ..meta })).await
    }

    /// Looks whether all sentinels are there; asks nothing of an engine that has none.
    ///
    /// # Errors
    /// [`MetaError::PartLost`]; or nobody knows.
    pub async fn check_sentinels(&self, meta: &MetaRecord) -> Result<(), MetaError> {
        if !self.engine.may_lose_parts() {
            return Ok(());
        }
        let ours = Some(Record::Sentinel(meta.store_id));
        let found = self.read(keys().collect()).await?;
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
        store::{
            meta::MetaExpectations,
            testing::store,
            whole::{GroupStore, WholeStore},
        },
        tx::Network,
    };

    const EXPECTED: MetaExpectations =
        MetaExpectations { network: Network::Regtest, utxo_batch_size: 5, retention: 288 };

    fn in_parts() -> (Arc<MemoryEngine>, Store) {
        let engine = Arc::new(MemoryEngine::new(Rules::main(288)).in_parts());
        (engine.clone(), Store { engine, ..store(5) })
    }

    async fn with_sentinels() -> (Arc<MemoryEngine>, Store) {
        let (engine, store) = in_parts();
        let meta = store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        assert!(store.plant_sentinels(&meta).await.unwrap());
        let meta = store.note_sentinels().await.unwrap();
        assert!(!store.plant_sentinels(&meta).await.unwrap(), "a second time");
        (engine, store)
    }

    #[tokio::test]
    async fn one_that_is_missing_or_anothers_is_a_part_that_is_lost() {
        for record in [None, Some(Record::Sentinel([9; 16]))] {
            let (engine, store) = with_sentinels().await;
            let group = GroupStore { store: store.clone(), expected: EXPECTED };
            group.check().await.unwrap();
            engine.put(Key::Sentinel(7), record.clone());
            engine.put(Key::Sentinel(255), record);
            let error = group.check().await.unwrap_err();
            assert!(matches!(error, MetaError::PartLost { missing: 2, all: 256 }), "{error}");
            assert!(error.to_string().contains("replay --rebuild") && !error.may_be_retried(), "{error}");
            assert!(store.open_meta(EXPECTED, true, [2; 16]).await.is_err(), "a start");
            assert!(store.look_at_meta(EXPECTED, true).await.is_err(), "run --check");
        }
    }

    /// A store that was made before there were any, or whose maker died before they had outlasted the nodes.
    #[tokio::test]
    async fn before_they_are_noted_none_is_missed() {
        let (engine, store) = in_parts();
        let meta = store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        store.open_meta(EXPECTED, true, [2; 16]).await.unwrap();
        assert!(store.plant_sentinels(&meta).await.unwrap());
        engine.put(Key::Sentinel(3), None);
        let meta = store.open_meta(EXPECTED, true, [2; 16]).await.unwrap();
        assert!(store.check_sentinels(&meta).await.is_err(), "whoever noted them now would be wrong");
        assert!(store.plant_sentinels(&meta).await.unwrap());
        store.check_sentinels(&meta).await.unwrap();
        store.note_sentinels().await.unwrap();
        store.open_meta(EXPECTED, true, [2; 16]).await.unwrap();
    }

    #[tokio::test]
    async fn an_engine_that_is_lost_as_a_whole_has_none() {
        let store = store(5);
        let meta = store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        assert!(!store.plant_sentinels(&meta).await.unwrap());
        assert_eq!(store.read(vec![Key::Sentinel(0)]).await.unwrap(), [None]);
        store.check_sentinels(&meta).await.unwrap();
    }
}
