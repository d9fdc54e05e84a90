//! The meta record: the identity of a store, checked at every start.

mod checks;
mod error;
mod rebuild;
mod restore;
mod snapshot_hold;
mod topic_id;

use crate::{
    engine::{EngineError, Row, Set},
    record::{ConsumedOffsets, Key, MetaRecord, MigrationPart, Operation, Outcome, Record, ReplaceMeta},
};

use super::{StateStore, prune::PruneTerms, sentinels::Sentinels};

pub use checks::{LAYOUT_VERSION, check_blobs, check_chain_id, check_not_rebuilding, check_partition_count};
pub use error::MetaError;
pub use rebuild::{RebuildAttempt, RebuildRecord};
pub use restore::RestoreRecord;
pub use snapshot_hold::PruningHold;
pub use topic_id::{compute_chain_id, read_topic_id};

use checks::check_settings;
use snapshot_hold::without_expired_hold;

impl StateStore {
    /// Reads the meta record; `None`: the store has none.
    pub async fn meta(&self) -> Result<Option<MetaRecord>, MetaError> {
        match self.read(vec![Key::Meta]).await?.pop().flatten() {
            None => Ok(None),
            Some(Record::Meta(meta)) => Ok(Some(*meta)),
            Some(_) => Err(MetaError::Damaged),
        }
    }
}

/// The meta record of a store: its checks and its changes.
#[derive(Clone, Copy)]
pub struct StoreMeta<'a> {
    store: &'a StateStore,
}

impl<'a> StoreMeta<'a> {
    /// Returns the meta record of this store.
    pub fn of(store: &'a StateStore) -> Self {
        StoreMeta { store }
    }

    pub(super) fn store(&self) -> &'a StateStore {
        self.store
    }

    /// Reads the meta record and compares it with the settings of the store.
    ///
    /// An empty set gets a meta record with the random `store_id`. A changed retention is recorded. A rebuild that
    /// has not ended is refused, and so is a store with blobs that is opened without a blob store.
    ///
    /// `group_has_offsets`: the consumer group has committed offsets, so that the store cannot be new. A rebuild passes
    /// `false`, since it begins with an empty set.
    ///
    /// # Errors
    /// [`MetaError`]; the store is unchanged then.
    pub async fn open(&self, group_has_offsets: bool, store_id: [u8; 16]) -> Result<MetaRecord, MetaError> {
        let meta = match self.store.meta().await? {
            Some(meta) => meta,
            None if group_has_offsets => return Err(MetaError::NamespaceLost),
            None => self.create(store_id, None).await?,
        };
        self.check_usable(&meta).await?;
        let retention = self.store.settings.rules.retention;
        if meta.retention == retention {
            return Ok(meta);
        }
        tracing::warn!(from = meta.retention, to = retention, "store: block_height_retention changed");
        self.change(|meta| Ok(MetaRecord { retention, ..meta })).await
    }

    /// Runs the checks of [`open`](Self::open) without a write; `None`: the set is empty, and `open` would write a meta
    /// record.
    ///
    /// # Errors
    /// As `open`.
    pub async fn inspect(&self, group_has_offsets: bool) -> Result<Option<MetaRecord>, MetaError> {
        match self.store.meta().await? {
            Some(meta) => self.check_usable(&meta).await.map(|()| Some(meta)),
            None if group_has_offsets => Err(MetaError::NamespaceLost),
            None if self.has_records().await? => Err(MetaError::ForeignRecords),
            None => Ok(None),
        }
    }

    /// Reads the meta record of a store that is to be copied, and runs the checks of [`open`](Self::open), also on the
    /// source of a migration.
    ///
    /// # Errors
    /// As `open`, or [`MetaError::NoMetaRecord`].
    pub async fn inspect_source(&self) -> Result<MetaRecord, MetaError> {
        let meta = self.read().await?;
        self.check_usable(&MetaRecord { migration: None, ..meta.clone() }).await?;
        Ok(meta)
    }

    async fn check_usable(&self, meta: &MetaRecord) -> Result<(), MetaError> {
        if let Some(MigrationPart::Source(_)) = meta.migration {
            return Err(MetaError::Migrated);
        }
        check_settings(meta, &self.store.settings)?;
        check_not_rebuilding(meta)?;
        check_blobs(meta, self.store)?;
        self.verify_whole(meta).await
    }

    /// Verifies that no part of the store is gone: all sentinels exist, once they were written.
    ///
    /// # Errors
    /// [`MetaError::PartLost`], or the sentinels could not be read.
    pub async fn verify_whole(&self, meta: &MetaRecord) -> Result<(), MetaError> {
        if meta.has_sentinels { Sentinels::of(self.store).verify(meta).await } else { Ok(()) }
    }

    /// Binds the store to the chain topic with this id ([`compute_chain_id`]). The first id is recorded, any other id
    /// is refused from then on. `None`: the topic has no record at offset 0 yet.
    pub async fn bind_chain(&self, chain_id: Option<[u8; 32]>) -> Result<MetaRecord, MetaError> {
        self.change(|meta| {
            check_chain_id(&meta, chain_id)?;
            Ok(MetaRecord { chain_id: meta.chain_id.or(chain_id), ..meta })
        })
        .await
    }

    /// Records that the store has a blob store with its mark from now on.
    pub async fn record_blob_store(&self) -> Result<MetaRecord, MetaError> {
        self.change(|meta| Ok(MetaRecord { has_blobs: true, ..meta })).await
    }

    /// Records that pruning begins: no event below `floor` is read into this set again, and no block that can list a
    /// pruned transaction is disconnected.
    ///
    /// # Errors
    /// [`MetaError::HeldBySnapshot`], or an error of [`change`](Self::change).
    pub async fn begin_pruning(
        &self,
        floor: &ConsumedOffsets,
        terms: &PruneTerms,
        now_ms: u64,
    ) -> Result<MetaRecord, MetaError> {
        self.change(|meta| {
            let mut meta = without_expired_hold(meta, now_ms)?;
            meta.replay_floor.raise(floor);
            meta.reorg_floor = meta.reorg_floor.max(terms.reorg_floor());
            Ok(meta)
        })
        .await
    }

    /// Verifies before a step of a pass that no snapshot is in progress. An expired hold is removed.
    ///
    /// # Errors
    /// As [`begin_pruning`](Self::begin_pruning).
    pub async fn check_may_prune(&self, now_ms: u64) -> Result<(), MetaError> {
        let meta = self.read().await?;
        if without_expired_hold(meta.clone(), now_ms)? == meta {
            return Ok(());
        }
        self.change(|meta| without_expired_hold(meta, now_ms)).await.map(drop)
    }

    /// Records that every record that was due at `height` is pruned.
    pub async fn end_pruning(&self, height: u32) -> Result<MetaRecord, MetaError> {
        self.change(|meta| Ok(MetaRecord { prune_horizon: meta.prune_horizon.max(height), ..meta })).await
    }

    /// Reads the meta record, which must exist.
    async fn read(&self) -> Result<MetaRecord, MetaError> {
        self.store.meta().await?.ok_or(MetaError::NoMetaRecord)
    }

    /// Changes the meta record by compare-and-set. `change` is called again with the new record if another instance
    /// wrote the meta record meanwhile. A change that changes nothing is sent, too: the node that was read may be the
    /// only one with the present record, and the engine then copies the record before its answer.
    ///
    /// # Errors
    /// [`MetaError::NoMetaRecord`], the error of `change`, or an error of the engine.
    pub async fn change(
        &self,
        change: impl Fn(MetaRecord) -> Result<MetaRecord, MetaError>,
    ) -> Result<MetaRecord, MetaError> {
        loop {
            let expected = self.read().await?;
            let new = change(expected.clone())?;
            let operation = Operation::ReplaceMeta(Box::new(ReplaceMeta { expected, new: new.clone() }));
            match self.store.apply_one(Row { key: Key::Meta, operation }).await? {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => return Ok(new),
                Outcome::Rejected(rejection) => {
                    tracing::debug!(?rejection, "store: meta record changed by another instance; trying again")
                }
            }
        }
    }

    async fn create(&self, store_id: [u8; 16], rebuild: Option<&RebuildAttempt>) -> Result<MetaRecord, MetaError> {
        if self.has_records().await? {
            // Another instance may have written the meta record between the two reads.
            return self.store.meta().await?.ok_or(MetaError::ForeignRecords);
        }
        let settings = &self.store.settings;
        let meta = MetaRecord {
            store_id,
            layout_version: LAYOUT_VERSION,
            network: settings.network.to_string(),
            utxo_batch_size: settings.utxo_batch_size,
            retention: settings.rules.retention,
            rebuilding: rebuild.map(|rebuild| Box::new(rebuild.rebuilding.clone())),
            rebuilder: rebuild.map(|rebuild| rebuild.rebuilder),
            ..MetaRecord::default()
        };
        match self
            .store
            .apply_one(Row { key: Key::Meta, operation: Operation::CreateMeta(Box::new(meta.clone())) })
            .await?
        {
            Outcome::Applied(_) | Outcome::AlreadyApplied(_) => Ok(meta),
            Outcome::Rejected(_) => self.read().await,
        }
    }

    async fn has_records(&self) -> Result<bool, EngineError> {
        for set in [Set::Transactions, Set::Blocks] {
            let read = || self.store.engine.is_empty(set);
            if !self.store.new_backoff(None).retry(EngineError::may_be_retried, read).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
