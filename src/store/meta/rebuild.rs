//! The rebuild of a set, as the meta record of the set shows it: attempts that begin, continue and end.

use crate::{
    engine::Incarnation,
    record::{ConsumedOffsets, LogEnds, MetaRecord, Rebuilding},
    store::StateStore,
};

use super::{
    MetaError, StoreMeta,
    checks::{check_blobs, check_rebuilder, check_settings},
};

/// An attempt to rebuild a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildAttempt {
    /// Log that is read, and the offsets at which the rebuild ends.
    pub rebuilding: Rebuilding,
    /// Random number of this attempt.
    pub rebuilder: u64,
}

/// The rebuild of a set in its meta record.
#[derive(Clone, Copy)]
pub struct RebuildRecord<'a> {
    meta: StoreMeta<'a>,
}

impl<'a> RebuildRecord<'a> {
    /// Returns the record of the rebuild of this store's set.
    pub fn of(store: &'a StateStore) -> Self {
        RebuildRecord { meta: StoreMeta::of(store) }
    }

    /// Returns whether a rebuild can begin: the set is empty, or has only the meta record of a rebuild that was killed
    /// before it wrote a record.
    ///
    /// # Errors
    /// [`MetaError::Engine`], or [`MetaError::Damaged`].
    pub async fn can_begin(&self) -> Result<bool, MetaError> {
        match self.meta.store.meta().await? {
            Some(meta) if meta.rebuilding.is_some() => Ok(!self.meta.has_records().await?),
            Some(_) => Ok(false),
            None => Ok(true),
        }
    }

    /// Records that a rebuild of this set begins. Until the rebuild has ended, every other use of the set is refused.
    ///
    /// An empty set gets its `store_id` in the same write, before the blob store is marked. A rebuild that is killed
    /// thus begins again under the id with which the blob store is marked. If the earlier attempt still runs, it finds
    /// the number of the new one ([`check_owner`](Self::check_owner)).
    ///
    /// # Errors
    /// [`MetaError`]; the store is unchanged then.
    pub async fn begin(&self, rebuild: RebuildAttempt, store_id: [u8; 16]) -> Result<MetaRecord, MetaError> {
        let settings = &self.meta.store.settings;
        let meta = match self.meta.store.meta().await? {
            // The logs may have been read since the last check.
            Some(_) if self.meta.has_records().await? => return Err(MetaError::StoreInUse),
            Some(meta) => meta,
            None => self.meta.create(store_id, Some(&rebuild)).await?,
        };
        check_settings(&meta, settings)?;
        check_blobs(&meta, self.meta.store)?;
        self.meta
            .change(|meta| match meta.rebuilding {
                Some(_) => Ok(MetaRecord {
                    rebuilding: Some(Box::new(rebuild.rebuilding.clone())),
                    rebuilder: Some(rebuild.rebuilder),
                    retention: settings.rules.retention,
                    ..meta
                }),
                // An instance has begun to use the set, or another rebuild has ended.
                None => Err(MetaError::StoreInUse),
            })
            .await
    }

    /// Continues a rebuild of this set that has begun and not ended, with the same `log` and over nodes of the same
    /// incarnation. If the earlier attempt still runs, it finds the number of this one.
    ///
    /// # Errors
    /// [`MetaError`]; the store is unchanged then.
    pub async fn resume(&self, nodes: &Incarnation, rebuilder: u64, log: &LogEnds) -> Result<MetaRecord, MetaError> {
        let (meta, settings) = (self.meta.read().await?, &self.meta.store.settings);
        check_settings(&meta, settings)?;
        check_blobs(&meta, self.meta.store)?;
        self.meta
            .change(|meta| match &meta.rebuilding {
                Some(rebuilding) if rebuilding.nodes != nodes.0 => Err(MetaError::NodeRestarted),
                Some(rebuilding) if rebuilding.log != *log => Err(MetaError::RebuildTakenOver),
                Some(_) => Ok(MetaRecord { rebuilder: Some(rebuilder), retention: settings.rules.retention, ..meta }),
                None => Err(MetaError::StoreInUse),
            })
            .await
    }

    /// Records the offsets below which every event of the rebuild is durable. `chain_state` is the state of the chain
    /// at `reached`, for a chain offset that has grown.
    ///
    /// # Errors
    /// [`MetaError::RebuildTakenOver`], or an error of [`StoreMeta::change`].
    pub async fn record_progress(
        &self,
        rebuilder: u64,
        reached: &ConsumedOffsets,
        chain_state: &str,
    ) -> Result<MetaRecord, MetaError> {
        self.meta
            .change(|mut meta| {
                check_rebuilder(&meta, rebuilder)?;
                let rebuilding = meta.rebuilding.as_mut().ok_or(MetaError::RebuildTakenOver)?;
                if reached.chain > rebuilding.reached.chain {
                    chain_state.clone_into(&mut rebuilding.chain_state);
                }
                rebuilding.reached.raise(reached);
                Ok(meta)
            })
            .await
    }

    /// Records that the rebuild of this set has ended, with these consumed offsets. The height that the rebuild has
    /// recorded stays.
    ///
    /// # Errors
    /// [`MetaError::RebuildTakenOver`], or an error of [`StoreMeta::change`].
    pub async fn end(&self, rebuilder: u64, consumed: &ConsumedOffsets) -> Result<MetaRecord, MetaError> {
        self.meta
            .change(|meta| {
                check_rebuilder(&meta, rebuilder)?;
                // The rebuild has waited until the store can lose none of its writes.
                let durable = ConsumedOffsets { height: 0, ..consumed.clone() };
                let consumed = ConsumedOffsets { height: meta.consumed.height, ..consumed.clone() };
                Ok(MetaRecord { rebuilding: None, consumed, durable, ..meta })
            })
            .await
    }

    /// Verifies that the rebuild of this set is still the one of `rebuilder`.
    ///
    /// # Errors
    /// [`MetaError::RebuildTakenOver`], or an error of reading the meta record.
    pub async fn check_owner(&self, rebuilder: u64) -> Result<(), MetaError> {
        check_rebuilder(&self.meta.read().await?, rebuilder)
    }
}
