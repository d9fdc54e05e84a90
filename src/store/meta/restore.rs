//! The restore of a snapshot into a set, as the meta record of the set shows it.

use crate::{
    engine::Incarnation,
    record::{ConsumedOffsets, Key, MetaRecord, MigrationPart, Operation, Outcome, Restored},
    store::StateStore,
};

use super::{
    MetaError, Row, StoreMeta,
    checks::{check_blobs, check_settings},
};

/// The restore of a snapshot in the meta record of its set.
#[derive(Clone, Copy)]
pub struct RestoreRecord<'a> {
    meta: StoreMeta<'a>,
    snapshot: [u8; 16],
}

impl<'a> RestoreRecord<'a> {
    /// Returns the record of the restore of this snapshot into this store's set.
    pub fn of(store: &'a StateStore, snapshot: [u8; 16]) -> Self {
        RestoreRecord { meta: StoreMeta::of(store), snapshot }
    }

    /// Begins the restore in an empty set, whose meta record becomes `new`, or continues the restore of the same
    /// snapshot. Chunks that were loaded over nodes of another incarnation do not count: a node may have lost them.
    ///
    /// # Errors
    /// [`MetaError::RestoreNotEmpty`]; the set is unchanged then. Or an error of [`StoreMeta::change`].
    pub async fn begin(&self, new: MetaRecord, nodes: &Incarnation) -> Result<MetaRecord, MetaError> {
        check_settings(&new, &self.meta.store().settings)?;
        let stored = match self.meta.store().meta().await? {
            Some(meta) => meta,
            None if self.meta.has_records().await? => return Err(MetaError::RestoreNotEmpty),
            None => {
                let operation = Operation::CreateMeta(Box::new(new.clone()));
                match self.meta.store().apply_one(Row { key: Key::Meta, operation }).await? {
                    Outcome::Applied(_) | Outcome::AlreadyApplied(_) => new,
                    Outcome::Rejected(_) => self.meta.read().await?,
                }
            }
        };
        check_settings(&stored, &self.meta.store().settings)?;
        check_blobs(&stored, self.meta.store())?;
        self.meta
            .change(|mut meta| {
                let restored = self.loading(&mut meta)?;
                if restored.nodes != nodes.0 {
                    restored.nodes.clone_from(&nodes.0);
                    restored.chunks = 0;
                }
                Ok(meta)
            })
            .await
    }

    /// Records that the first `chunks` chunks are loaded and durable over nodes of this incarnation.
    ///
    /// # Errors
    /// [`MetaError::RestoreTakenOver`], or an error of [`StoreMeta::change`].
    pub async fn record_progress(&self, chunks: u64, nodes: &Incarnation) -> Result<(), MetaError> {
        let raise = |mut meta: MetaRecord| {
            let restored = self.loading(&mut meta)?;
            if restored.nodes != nodes.0 {
                return Err(MetaError::RestoreTakenOver);
            }
            restored.chunks = restored.chunks.max(chunks);
            Ok(meta)
        };
        self.meta.change(raise).await.map(drop)
    }

    /// Raises the offsets that the group had handled before the restore to these, and returns the raised ones. A group
    /// that was set back since has lower offsets.
    ///
    /// # Errors
    /// [`MetaError::RestoreTakenOver`], or an error of [`StoreMeta::change`].
    pub async fn raise_handled(&self, handled: &ConsumedOffsets) -> Result<ConsumedOffsets, MetaError> {
        let raise = |mut meta: MetaRecord| {
            self.loading(&mut meta)?.handled.raise(handled);
            Ok(meta)
        };
        let raised = self.meta.change(raise).await?.restored;
        Ok(raised.map(|restored| restored.handled).unwrap_or_default())
    }

    /// Records that every record is loaded and durable: instances may use the store from now on.
    ///
    /// # Errors
    /// [`MetaError::RestoreTakenOver`], or an error of [`StoreMeta::change`].
    pub async fn end_loading(&self) -> Result<MetaRecord, MetaError> {
        self.meta
            .change(|mut meta| {
                self.loading(&mut meta)?.is_loading = false;
                Ok(meta)
            })
            .await
    }

    /// Records that every record of a copy is loaded, compared and durable: the store is an ordinary one from now on. A
    /// copy that is an ordinary store already stays.
    ///
    /// # Errors
    /// [`MetaError::RestoreNotEmpty`] where another load has begun since, or an error of [`StoreMeta::change`].
    pub async fn end_copy(&self) -> Result<MetaRecord, MetaError> {
        self.meta
            .change(|mut meta| {
                if meta.restored.is_none() && meta.migration == Some(MigrationPart::Copy(self.snapshot)) {
                    return Ok(meta);
                }
                self.loading(&mut meta)?;
                Ok(MetaRecord { restored: None, migration: Some(MigrationPart::Copy(self.snapshot)), ..meta })
            })
            .await
    }

    /// Returns whether the store was filled by this load, and no instance has made it an ordinary store yet.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn has_ended(&self) -> Result<bool, MetaError> {
        let restored = self.meta.store().meta().await?.and_then(|meta| meta.restored);
        Ok(restored.is_some_and(|restored| restored.snapshot == self.snapshot && !restored.is_loading))
    }

    fn loading<'m>(&self, meta: &'m mut MetaRecord) -> Result<&'m mut Restored, MetaError> {
        match &mut meta.restored {
            Some(restored) if restored.snapshot != self.snapshot => Err(MetaError::RestoreNotEmpty),
            Some(restored) if restored.is_loading => Ok(restored),
            Some(_) => Err(MetaError::RestoreTakenOver),
            None => Err(MetaError::RestoreNotEmpty),
        }
    }
}

impl StoreMeta<'_> {
    /// Records that the group has committed every offset of this restore, so that the records belong together. Another
    /// restore that began meanwhile stays.
    ///
    /// # Errors
    /// An error of [`StoreMeta::change`].
    pub async fn end_restore(&self, restored: &Restored) -> Result<MetaRecord, MetaError> {
        self.change(|meta| match meta.restored.as_deref() == Some(restored) {
            true => Ok(MetaRecord { restored: None, ..meta }),
            false => Ok(meta),
        })
        .await
    }
}

impl Restored {
    /// Returns the offsets that the group has to commit before the store has caught up.
    pub fn ends(&self) -> ConsumedOffsets {
        let mut ends = self.until.clone();
        ends.raise(&self.handled);
        ends
    }

    /// Returns whether a group that has committed these offsets has read everything again.
    pub fn is_covered_by(&self, committed: &ConsumedOffsets) -> bool {
        let ends = self.ends();
        let has = |(partition, end): (&u32, &u64)| {
            *end == 0 || committed.validated.get(partition).is_some_and(|offset| offset >= end)
        };
        committed.chain >= ends.chain && ends.validated.iter().all(has)
    }
}
