//! What an instance asks of a store as a whole: is it there, and is it the one that the group's offsets speak of.
//!
//! Offsets live in the log, what came of the events below them in the store; nothing but the operator's configuration ties one
//! to the other. A store that is behind its group (another one, an older copy, a rebuild that was killed) would be worked on
//! as if all that it lacks had never been: missing parents, verdicts on them, in a log that keeps them. So what has been
//! consumed is written into the meta record *before* it is committed, and no committed offset may be beyond it.

use super::{
    Store,
    meta::{MetaError, MetaExpectations},
};
use crate::record::{Consumed, MetaRecord};

/// A store as an instance looks at it.
#[async_trait::async_trait]
pub trait WholeStore: Send + Sync {
    /// Looks, after a node's restart, whether it is still there.
    ///
    /// # Errors
    /// Part of it is gone, which no replay from the committed offsets can mend; or the engine's.
    async fn check(&self) -> Result<(), MetaError>;

    /// Writes down that so much has been consumed into it. Before it is committed.
    ///
    /// # Errors
    /// It is not written down: it must not be committed either.
    async fn note(&self, consumed: &Consumed) -> Result<(), MetaError>;

    /// Holds the store to the chain topic whose record at offset 0 has this [`chain_id`](super::meta::chain_id).
    ///
    /// # Errors
    /// The store was made from another chain; or the engine's.
    async fn bind_chain(&self, chain_id: [u8; 32]) -> Result<(), MetaError>;

    /// Looks whether it has consumed what its group has committed. The commits must have been read before.
    ///
    /// # Errors
    /// [`MetaError::Behind`]; or nobody knows.
    async fn holds(&self, committed: &Consumed) -> Result<(), MetaError>;
}

/// The store of a group.
pub struct GroupStore {
    /// The store.
    pub store: Store,
    /// What it should be.
    pub expected: MetaExpectations,
}

#[async_trait::async_trait]
impl WholeStore for GroupStore {
    async fn check(&self) -> Result<(), MetaError> {
        // It is there, so the id of a new one is used for nothing.
        self.store.open_meta(self.expected, true, [0; 16]).await.map(drop)
    }

    async fn note(&self, consumed: &Consumed) -> Result<(), MetaError> {
        let raise = |mut meta: MetaRecord| {
            meta.consumed.raise(consumed);
            Ok(meta)
        };
        self.store.change_meta(raise).await.map(drop)
    }

    async fn bind_chain(&self, chain_id: [u8; 32]) -> Result<(), MetaError> {
        self.store.bind_chain(Some(chain_id)).await.map(drop)
    }

    async fn holds(&self, committed: &Consumed) -> Result<(), MetaError> {
        let meta = self.store.meta().await?.ok_or(MetaError::NamespaceLost)?;
        has_consumed(&meta, committed)
    }
}

impl GroupStore {
    /// As [`holds`](WholeStore::holds); answers from where on the group may read into it ([`is_above`]).
    ///
    /// # Errors
    /// [`MetaError::Behind`]; or nobody knows.
    pub async fn floor(&self, committed: &Consumed) -> Result<Consumed, MetaError> {
        let meta = self.store.meta().await?.ok_or(MetaError::NamespaceLost)?;
        has_consumed(&meta, committed).map(|()| meta.replay_floor)
    }
}

/// Whether a store has consumed what its group has committed.
///
/// # Errors
/// [`MetaError::Behind`]
pub fn has_consumed(meta: &MetaRecord, committed: &Consumed) -> Result<(), MetaError> {
    behind(&meta.consumed, committed).map_or(Ok(()), Err)
}

/// Looks whether nothing that was pruned is read again where a group goes on `from` there. Only a group without members can be set
/// back.
///
/// # Errors
/// [`MetaError::BelowFloor`]
pub fn is_above(floor: &Consumed, from: &Consumed) -> Result<(), MetaError> {
    below_floor(floor, from).map_or(Ok(()), Err)
}

fn name_of(partition: u32) -> String {
    format!("partition {partition} of the validated transactions")
}

/// The first that would be read again from where it was pruned.
fn below_floor(floor: &Consumed, from: &Consumed) -> Option<MetaError> {
    let validated = floor.validated.iter().map(|(partition, floor)| {
        let from = from.validated.get(partition).copied().unwrap_or(0);
        (name_of(*partition), from, *floor)
    });
    let chain = ("the chain".to_owned(), from.chain, floor.chain);
    let (what, from, floor) = validated.chain([chain]).find(|(_, from, floor)| from < floor)?;
    Some(MetaError::BelowFloor { what, from, floor })
}

/// The first in which a store is behind what is committed.
fn behind(consumed: &Consumed, committed: &Consumed) -> Option<MetaError> {
    let validated = committed.validated.iter().map(|(partition, offset)| {
        let here = consumed.validated.get(partition).copied().unwrap_or(0);
        (name_of(*partition), *offset, here)
    });
    let chain = ("the chain".to_owned(), committed.chain, consumed.chain);
    let (what, committed, consumed) = validated.chain([chain]).find(|(_, there, here)| there > here)?;
    Some(MetaError::Behind { what, committed, consumed })
}

/// A store of which nobody keeps account: benches and unit tests.
pub struct Unaccounted;

#[async_trait::async_trait]
impl WholeStore for Unaccounted {
    async fn check(&self) -> Result<(), MetaError> {
        Ok(())
    }

    async fn note(&self, _: &Consumed) -> Result<(), MetaError> {
        Ok(())
    }

    async fn bind_chain(&self, _: [u8; 32]) -> Result<(), MetaError> {
        Ok(())
    }

    async fn holds(&self, _: &Consumed) -> Result<(), MetaError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        store::{prune::Terms, testing::store},
        tx::Network,
    };

    const EXPECTED: MetaExpectations =
        MetaExpectations { network: Network::Regtest, utxo_batch_size: 5, retention: 288 };

    fn consumed(chain: u64, validated: impl IntoIterator<Item = (u32, u64)>) -> Consumed {
        Consumed { chain, validated: validated.into_iter().collect() }
    }

    async fn new() -> GroupStore {
        let store = store(5);
        store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        GroupStore { store, expected: EXPECTED }
    }

    #[tokio::test]
    async fn what_is_consumed_only_grows() {
        let store = new().await;
        store.note(&consumed(7, [(0, 5), (2, 9)])).await.unwrap();
        store.note(&consumed(3, [(0, 6), (2, 4), (1, 1)])).await.unwrap();
        let meta = store.store.meta().await.unwrap().unwrap();
        assert_eq!(meta.consumed, consumed(7, [(0, 6), (1, 1), (2, 9)]));
    }

    #[tokio::test]
    async fn a_store_behind_its_group_is_refused_naming_both_offsets() {
        let store = new().await;
        store.holds(&Consumed::default()).await.unwrap();
        store.note(&consumed(7, [(0, 5)])).await.unwrap();
        store.holds(&consumed(7, [(0, 5)])).await.unwrap();
        store.holds(&consumed(2, [(0, 1)])).await.unwrap();
        for (committed, words) in [
            (consumed(8, [(0, 5)]), ["the chain", "8", "7"]),
            (consumed(7, [(0, 6)]), ["partition 0", "6", "5"]),
            (consumed(0, [(3, 1)]), ["partition 3", "1", "0"]),
        ] {
            let error = store.holds(&committed).await.unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    const TERMS: Terms = Terms { height: 400, retention: 288, safe: 7 };

    /// Below it the log says what was pruned since, and nothing may be left that recognises it.
    #[tokio::test]
    async fn a_pruned_store_is_not_read_into_from_below() {
        let store = new().await;
        let may_go_on = async |from| is_above(&store.floor(&Consumed::default()).await.unwrap(), &from);
        may_go_on(consumed(0, [])).await.unwrap();
        store.store.begin_pruning(&consumed(7, [(0, 5)]), &TERMS).await.unwrap();
        store.store.begin_pruning(&consumed(6, [(0, 9), (2, 1)]), &TERMS).await.unwrap();
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
    async fn a_lost_meta_record_is_not_made_anew() {
        let store = GroupStore { store: store(5), expected: EXPECTED };
        assert!(matches!(store.check().await, Err(MetaError::NamespaceLost)));
        assert!(matches!(store.holds(&Consumed::default()).await, Err(MetaError::NamespaceLost)));
        assert!(matches!(store.note(&consumed(1, [])).await, Err(MetaError::Absent)));
        assert_eq!(store.store.meta().await.unwrap(), None);
    }
}
