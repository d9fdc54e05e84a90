//! The meta record: the identity of a store, checked at every start.

use std::time::Duration;

use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, TopicPartition},
    engine::{EngineError, ErrorKind, Incarnation, Row, Set},
    record::{ConsumedOffsets, Key, LogEnds, MetaRecord, Operation, Outcome, Rebuilding, Record, ReplaceMeta},
    tx::Network,
};

use super::{Store, prune::PruneTerms, scan::SetScan};

/// Version of the record layout that this program reads and writes.
pub const LAYOUT_VERSION: u32 = 1;

/// Properties that the configuration expects of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaExpectations {
    /// Network whose transactions the store has.
    pub network: Network,
    /// Slots of a page.
    pub utxo_batch_size: u32,
    /// `block_height_retention` in blocks, the one setting that may change between starts.
    pub retention: u32,
}

/// An attempt to rebuild a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildAttempt {
    /// Log that is read, and the offsets at which the rebuild ends.
    pub rebuilding: Rebuilding,
    /// Random number of this attempt.
    pub rebuilder: u64,
}

/// Reasons against using a store; each message has the found value, the expected value and the remedy.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MetaError {
    /// The store belongs to another network.
    #[error(
        "the store belongs to network `{store}`, the configuration says `{configured}`: correct `network`, or use \
         another set"
    )]
    OtherNetwork {
        /// Network of the store.
        store: String,
        /// Network of the configuration.
        configured: Network,
    },
    /// The pages of the store have another size.
    #[error(
        "the store has {store} slots a page, the configuration says {configured}: set `utxo_batch_size` to {store} \
         (it is fixed for the life of a set), or rebuild into an empty set with `replay --rebuild`"
    )]
    OtherBatchSize {
        /// Slots of a page in the store.
        store: u32,
        /// Slots of a page in the configuration.
        configured: u32,
    },
    /// The records have the layout of another version of this program.
    #[error(
        "the store has record layout {store}, this program has {LAYOUT_VERSION}: use the program that wrote it, or \
         rebuild into an empty set with `replay --rebuild`"
    )]
    OtherLayout {
        /// Layout version of the store.
        store: u32,
    },
    /// The group has committed offsets, and the store has no meta record.
    #[error(
        "the namespace was lost: the consumer group has committed offsets, but the store has no meta record; \
         run `replay --rebuild` into an empty set"
    )]
    NamespaceLost,
    /// Some sentinels are missing.
    #[error(
        "a part of the namespace is gone: of the store's {all} sentinels, {missing} are missing; if a node of the \
         cluster is away, bring it back with its data; otherwise stop the group, and run `replay --rebuild` into an \
         empty set"
    )]
    PartLost {
        /// Number of sentinels that are absent or belong to another store.
        missing: usize,
        /// Number of sentinels of a store.
        all: usize,
    },
    /// The set has records and no meta record.
    #[error(
        "the set holds records but no meta record: it belongs to another program, or part of the namespace was lost; \
         use an empty set, or run `replay --rebuild` into one"
    )]
    ForeignRecords,
    /// A rebuild needs an empty store, and this one is in use.
    #[error("cannot rebuild into this store: it is in use; use an empty store")]
    StoreInUse,
    /// The chain topic is another topic than the one that the store was made from.
    #[error(
        "the chain topic was recreated: the record at its offset 0 has id {found}, the store was made from {store}; \
         no event of it is applied; configure the topic that the store was made from, or produce all blocks and \
         reorgs again into new topics, for another group and an empty store"
    )]
    ChainRecreated {
        /// Chain id of the store, in hex.
        store: String,
        /// Chain id of the topic, in hex; `none` for a topic without a record at offset 0.
        found: String,
    },
    /// A topic is another topic than the one that the store was made from.
    #[error("{message}")]
    TopicRecreated {
        /// Message with the name of the topic and both ids.
        message: String,
    },
    /// The topic of validated transactions has another number of partitions. Events of one transaction would then lie
    /// in two partitions, without an order.
    #[error(
        "the topic of validated transactions has {found} partitions, the store was made from {store}: restore the \
         topic with {store}, or begin a new topic and rebuild into an empty set with `replay --rebuild`"
    )]
    OtherPartitions {
        /// Number of partitions that the store was made from.
        store: u32,
        /// Number of partitions of the topic now.
        found: u32,
    },
    /// The group has committed offsets that this store has not consumed.
    #[error(
        "the store is not the one that its group has committed offsets for, or an older copy of it: of {what} the \
         group has committed {committed}, the store has consumed {consumed}; use the group's store, or stop the group, \
         run `replay --rebuild` into an empty set and use that set"
    )]
    StoreBehindGroup {
        /// Partition, or the chain.
        what: String,
        /// Committed offset of the group.
        committed: u64,
        /// Consumed offset of the store.
        consumed: u64,
    },
    /// The store is a rebuild that has not ended.
    #[error(
        "the store is a rebuild that is under way, or did not reach its end (chain offset {frontier}): wait for its \
         end, or continue it with `replay --rebuild --resume`"
    )]
    UnfinishedRebuild {
        /// Chain offset at which the rebuild ends.
        frontier: u64,
    },
    /// A later rebuild has begun in the same set.
    #[error("cannot continue the rebuild: another rebuild has begun in this set since, and continues alone")]
    RebuildTakenOver,
    /// A node has restarted during a rebuild, so that writes of the rebuild may be lost.
    #[error(
        "cannot continue the rebuild: a node of the store has restarted since it began, and may have lost writes of \
         it; begin again with an empty set"
    )]
    NodeRestarted,
    /// The store has bodies in a blob store, and none is configured.
    #[error(
        "the store keeps bodies of large transactions in a blob store, and none is given: set `store.blobs.url` \
         (`externalStore` in the URL of Aerospike; `--blobs` of commands that only read) to the blob store of this \
         store"
    )]
    NoBlobStore,
    /// Events below the replay floor would be read again. Pruned transactions would be created again, with free slots.
    #[error(
        "{what} is to be read again from offset {from}, and the store was pruned: a replay may begin from {floor} on; \
         set the group's offset to that or more, or run `replay --rebuild` into an empty set"
    )]
    BelowFloor {
        /// Partition, or the chain.
        what: String,
        /// Offset from which the group would read.
        from: u64,
        /// Replay floor of the store.
        floor: u64,
    },
    /// A change needs a meta record, and the store has none.
    #[error("the store has no meta record: start `run` on it first, or, where it had one, run `replay --rebuild`")]
    NoMetaRecord,
    /// The record under the meta key is of another kind.
    #[error("the record under the meta key is no meta record: the store is damaged; run `replay --rebuild`")]
    Damaged,
    /// Error of the engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Computes the id of a chain topic: BLAKE3 of timestamp (ms since the epoch, 8 bytes, little-endian) ‖ key ‖ value of
/// its record at offset 0. The timestamp distinguishes topics whose logs begin with the same event.
pub fn compute_chain_id(timestamp_ms: i64, key: &[u8], value: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&timestamp_ms.to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    *hasher.finalize().as_bytes()
}

/// Reads the record at offset 0 of a partition, and computes its id ([`compute_chain_id`]). `None`: the partition has
/// no record at offset 0 yet, or has lost that record.
///
/// # Errors
/// [`BrokerError`]; retryable where the record exists and was not delivered within 5 s.
pub async fn read_topic_id(broker: &dyn Broker, partition: &TopicPartition) -> Result<Option<[u8; 32]>, BrokerError> {
    let (low, high) = broker.watermarks(partition).await?;
    if low > 0 || high == 0 {
        return Ok(None);
    }
    let mut reader = broker.read(partition, 0).await?;
    let Some(first) = reader.next(FIRST_TIMEOUT).await?.into_iter().next() else {
        // A slow broker must not look like another topic.
        let message = format!("{partition}: record at offset 0 exists, but was not delivered within {FIRST_TIMEOUT:?}");
        return Err(BrokerError::new(BrokerErrorKind::Retryable, "identify topic", message));
    };
    Ok((first.offset == 0).then(|| compute_chain_id(first.timestamp_ms, &first.key, &first.payload)))
}

const FIRST_TIMEOUT: Duration = Duration::from_secs(5);

impl MetaError {
    /// Returns whether a retry may succeed: the store did not answer.
    pub fn may_be_retried(&self) -> bool {
        matches!(self, MetaError::Engine(error) if error.kind != ErrorKind::Fatal)
    }
}

impl Store {
    /// Reads the meta record and compares it with `expected`.
    ///
    /// An empty set gets a meta record with the random `store_id`. A changed `retention` is recorded. A rebuild that
    /// has not ended is refused, and so is a store with blobs that is opened without a blob store.
    ///
    /// `group_has_offsets`: the consumer group has committed offsets, so that the store cannot be new. A rebuild passes
    /// `false`, since it begins with an empty set.
    ///
    /// # Errors
    /// [`MetaError`]; the store is unchanged then.
    pub async fn open_meta(
        &self,
        expected: MetaExpectations,
        group_has_offsets: bool,
        store_id: [u8; 16],
    ) -> Result<MetaRecord, MetaError> {
        let meta = match self.meta().await? {
            Some(meta) => meta,
            None if group_has_offsets => return Err(MetaError::NamespaceLost),
            None => self.create_meta(&expected, store_id, None).await?,
        };
        self.check_usable(&meta, &expected).await?;
        if meta.retention == expected.retention {
            return Ok(meta);
        }
        tracing::warn!(from = meta.retention, to = expected.retention, "store: block_height_retention changed");
        self.change_meta(|meta| Ok(MetaRecord { retention: expected.retention, ..meta })).await
    }

    /// Runs the checks of [`open_meta`](Self::open_meta) without a write; `None`: the set is empty, and `open_meta`
    /// would write a meta record.
    ///
    /// # Errors
    /// As `open_meta`.
    pub async fn inspect_meta(
        &self,
        expected: MetaExpectations,
        group_has_offsets: bool,
    ) -> Result<Option<MetaRecord>, MetaError> {
        match self.meta().await? {
            Some(meta) => self.check_usable(&meta, &expected).await.map(|()| Some(meta)),
            None if group_has_offsets => Err(MetaError::NamespaceLost),
            None if self.has_records().await? => Err(MetaError::ForeignRecords),
            None => Ok(None),
        }
    }

    async fn check_usable(&self, meta: &MetaRecord, expected: &MetaExpectations) -> Result<(), MetaError> {
        check_expectations(meta, expected)?;
        check_not_rebuilding(meta)?;
        self.check_blobs(meta)?;
        if meta.has_sentinels { self.verify_sentinels(meta).await } else { Ok(()) }
    }

    /// Verifies that the bodies in the blob store can be read.
    ///
    /// # Errors
    /// [`MetaError::NoBlobStore`] for a store with blobs that is opened without a blob store.
    pub fn check_blobs(&self, meta: &MetaRecord) -> Result<(), MetaError> {
        if meta.has_blobs && self.blobs.is_none() { Err(MetaError::NoBlobStore) } else { Ok(()) }
    }

    /// Reads the meta record; `None`: the store has none.
    pub async fn meta(&self) -> Result<Option<MetaRecord>, MetaError> {
        match self.read(vec![Key::Meta]).await?.pop().flatten() {
            None => Ok(None),
            Some(Record::Meta(meta)) => Ok(Some(meta)),
            Some(_) => Err(MetaError::Damaged),
        }
    }

    /// Binds the store to the chain topic with this id ([`compute_chain_id`]). The first id is recorded, any other id
    /// is refused from then on. `None`: the topic has no record at offset 0 yet.
    pub async fn bind_chain(&self, chain_id: Option<[u8; 32]>) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| {
            check_chain_id(&meta, chain_id)?;
            Ok(MetaRecord { chain_id: meta.chain_id.or(chain_id), ..meta })
        })
        .await
    }

    /// Binds the store to the number of partitions of the topic of validated transactions. The first number is
    /// recorded, any other number is refused from then on.
    pub async fn bind_partitions(&self, found: u32) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| {
            check_partition_count(&meta, found)?;
            Ok(MetaRecord { partitions: Some(found), ..meta })
        })
        .await
    }

    /// Records that the store has a blob store with its mark from now on.
    pub async fn record_blob_store(&self) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| Ok(MetaRecord { has_blobs: true, ..meta })).await
    }

    /// Returns whether a rebuild can begin: the set is empty, or has only the meta record of a rebuild that was killed
    /// before it wrote a record.
    ///
    /// # Errors
    /// [`MetaError::Engine`], or [`MetaError::Damaged`].
    pub async fn can_begin_rebuild(&self) -> Result<bool, MetaError> {
        match self.meta().await? {
            Some(meta) if meta.rebuilding.is_some() => Ok(!self.has_records().await?),
            Some(_) => Ok(false),
            None => Ok(true),
        }
    }

    /// Records that a rebuild of this set begins. Until the rebuild has ended, every other use of the set is refused.
    ///
    /// An empty set gets its `store_id` in the same write, before the blob store is marked. A rebuild that is killed
    /// thus begins again under the id with which the blob store is marked. If the earlier attempt still runs, it finds
    /// the number of the new one ([`check_rebuild_owner`](Self::check_rebuild_owner)).
    ///
    /// # Errors
    /// [`MetaError`]; the store is unchanged then.
    pub async fn begin_rebuild(
        &self,
        expected: MetaExpectations,
        rebuild: RebuildAttempt,
        store_id: [u8; 16],
    ) -> Result<MetaRecord, MetaError> {
        let meta = match self.meta().await? {
            // The logs may have been read since the last check.
            Some(_) if self.has_records().await? => return Err(MetaError::StoreInUse),
            Some(meta) => meta,
            None => self.create_meta(&expected, store_id, Some(&rebuild)).await?,
        };
        check_expectations(&meta, &expected)?;
        self.check_blobs(&meta)?;
        self.change_meta(|meta| match meta.rebuilding {
            Some(_) => Ok(MetaRecord {
                rebuilding: Some(Box::new(rebuild.rebuilding.clone())),
                rebuilder: Some(rebuild.rebuilder),
                retention: expected.retention,
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
    pub async fn resume_rebuild(
        &self,
        expected: MetaExpectations,
        nodes: &Incarnation,
        rebuilder: u64,
        log: &LogEnds,
    ) -> Result<MetaRecord, MetaError> {
        let meta = self.meta().await?.ok_or(MetaError::NoMetaRecord)?;
        check_expectations(&meta, &expected)?;
        self.check_blobs(&meta)?;
        self.change_meta(|meta| match &meta.rebuilding {
            Some(rebuilding) if rebuilding.nodes != nodes.0 => Err(MetaError::NodeRestarted),
            Some(rebuilding) if rebuilding.log != *log => Err(MetaError::RebuildTakenOver),
            Some(_) => Ok(MetaRecord { rebuilder: Some(rebuilder), retention: expected.retention, ..meta }),
            None => Err(MetaError::StoreInUse),
        })
        .await
    }

    /// Records the offsets below which every event of the rebuild is durable. `chain_state` is the state of the chain
    /// at `reached`, for a chain offset that has grown.
    ///
    /// # Errors
    /// [`MetaError::RebuildTakenOver`], or an error of [`change_meta`](Self::change_meta).
    pub async fn record_rebuild_progress(
        &self,
        rebuilder: u64,
        reached: &ConsumedOffsets,
        chain_state: &str,
    ) -> Result<MetaRecord, MetaError> {
        self.change_meta(|mut meta| {
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

    /// Records that pruning begins: no event below `floor` is read into this set again, and no block that can list a
    /// pruned transaction is disconnected.
    ///
    /// # Errors
    /// As [`change_meta`](Self::change_meta).
    pub async fn begin_pruning(&self, floor: &ConsumedOffsets, terms: &PruneTerms) -> Result<MetaRecord, MetaError> {
        self.change_meta(|mut meta| {
            meta.replay_floor.raise(floor);
            meta.reorg_floor = meta.reorg_floor.max(terms.reorg_floor());
            Ok(meta)
        })
        .await
    }

    /// Records that every record that was due at `height` is pruned.
    ///
    /// # Errors
    /// As [`change_meta`](Self::change_meta).
    pub async fn end_pruning(&self, height: u32) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| Ok(MetaRecord { prune_horizon: meta.prune_horizon.max(height), ..meta })).await
    }

    /// Records that the rebuild of this set has ended, with these consumed offsets.
    ///
    /// # Errors
    /// [`MetaError::RebuildTakenOver`], or an error of [`change_meta`](Self::change_meta).
    pub async fn end_rebuild(&self, rebuilder: u64, consumed: &ConsumedOffsets) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| {
            check_rebuilder(&meta, rebuilder)?;
            Ok(MetaRecord { rebuilding: None, consumed: consumed.clone(), ..meta })
        })
        .await
    }

    /// Verifies that the rebuild of this set is still the one of `rebuilder`.
    ///
    /// # Errors
    /// [`MetaError::RebuildTakenOver`], or an error of reading the meta record.
    pub async fn check_rebuild_owner(&self, rebuilder: u64) -> Result<(), MetaError> {
        check_rebuilder(&self.meta().await?.ok_or(MetaError::NoMetaRecord)?, rebuilder)
    }

    /// Changes the meta record by compare-and-set. `change` is called again with the new record if another instance
    /// wrote the meta record meanwhile.
    ///
    /// # Errors
    /// [`MetaError::NoMetaRecord`], the error of `change`, or an error of the engine.
    pub async fn change_meta(
        &self,
        change: impl Fn(MetaRecord) -> Result<MetaRecord, MetaError>,
    ) -> Result<MetaRecord, MetaError> {
        loop {
            let expected = self.meta().await?.ok_or(MetaError::NoMetaRecord)?;
            let new = change(expected.clone())?;
            if new == expected {
                return Ok(new);
            }
            let operation = Operation::ReplaceMeta(Box::new(ReplaceMeta { expected, new: new.clone() }));
            match self.apply_one(Row { key: Key::Meta, operation }).await? {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => return Ok(new),
                Outcome::Rejected(rejection) => {
                    tracing::debug!(?rejection, "store: meta record changed by another instance; trying again")
                }
            }
        }
    }

    async fn create_meta(
        &self,
        expected: &MetaExpectations,
        store_id: [u8; 16],
        rebuild: Option<&RebuildAttempt>,
    ) -> Result<MetaRecord, MetaError> {
        if self.has_records().await? {
            // Another instance may have written the meta record between the two reads.
            return self.meta().await?.ok_or(MetaError::ForeignRecords);
        }
        let meta = MetaRecord {
            store_id,
            layout_version: LAYOUT_VERSION,
            network: expected.network.to_string(),
            utxo_batch_size: expected.utxo_batch_size,
            retention: expected.retention,
            rebuilding: rebuild.map(|rebuild| Box::new(rebuild.rebuilding.clone())),
            rebuilder: rebuild.map(|rebuild| rebuild.rebuilder),
            ..MetaRecord::default()
        };
        match self.apply_one(Row { key: Key::Meta, operation: Operation::CreateMeta(Box::new(meta.clone())) }).await? {
            Outcome::Applied(_) | Outcome::AlreadyApplied(_) => Ok(meta),
            Outcome::Rejected(_) => self.meta().await?.ok_or(MetaError::NoMetaRecord),
        }
    }

    async fn has_records(&self) -> Result<bool, EngineError> {
        for set in [Set::Transactions, Set::Blocks] {
            if SetScan::new(self, set).with_batch(1).next().await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Verifies that the chain topic with this id ([`compute_chain_id`]; `None`: no record at offset 0) is the one that the
/// store was made from. A store without a chain id accepts every topic.
///
/// # Errors
/// [`MetaError::ChainRecreated`]
pub fn check_chain_id(meta: &MetaRecord, chain_id: Option<[u8; 32]>) -> Result<(), MetaError> {
    match meta.chain_id {
        Some(store) if chain_id != Some(store) => Err(MetaError::ChainRecreated {
            store: hex::encode(store),
            found: chain_id.map_or_else(|| "none".into(), hex::encode),
        }),
        _ => Ok(()),
    }
}

/// Verifies the number of partitions of the topic of validated transactions.
///
/// # Errors
/// [`MetaError::OtherPartitions`]
pub fn check_partition_count(meta: &MetaRecord, found: u32) -> Result<(), MetaError> {
    match meta.partitions {
        Some(store) if store != found => Err(MetaError::OtherPartitions { store, found }),
        _ => Ok(()),
    }
}

/// Verifies that no rebuild of the set is under way.
///
/// # Errors
/// [`MetaError::UnfinishedRebuild`]
pub fn check_not_rebuilding(meta: &MetaRecord) -> Result<(), MetaError> {
    match &meta.rebuilding {
        Some(rebuilding) => Err(MetaError::UnfinishedRebuild { frontier: rebuilding.frontier }),
        None => Ok(()),
    }
}

fn check_rebuilder(meta: &MetaRecord, rebuilder: u64) -> Result<(), MetaError> {
    if meta.rebuilder == Some(rebuilder) { Ok(()) } else { Err(MetaError::RebuildTakenOver) }
}

/// Compares a meta record with the configuration. The layout comes first: with another layout the other fields may have
/// another meaning.
fn check_expectations(meta: &MetaRecord, expected: &MetaExpectations) -> Result<(), MetaError> {
    if meta.layout_version != LAYOUT_VERSION {
        return Err(MetaError::OtherLayout { store: meta.layout_version });
    }
    if meta.network != expected.network.to_string() {
        return Err(MetaError::OtherNetwork { store: meta.network.clone(), configured: expected.network });
    }
    if meta.utxo_batch_size != expected.utxo_batch_size {
        return Err(MetaError::OtherBatchSize { store: meta.utxo_batch_size, configured: expected.utxo_batch_size });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        blob::BlobStore,
        store::testing::{seeded, store},
    };

    const EXPECTED: MetaExpectations =
        MetaExpectations { network: Network::Regtest, utxo_batch_size: 5, retention: 288 };

    fn rebuild(frontier: u64, rebuilder: u64) -> RebuildAttempt {
        RebuildAttempt { rebuilding: Rebuilding { frontier, ..Rebuilding::default() }, rebuilder }
    }

    fn frontier(meta: &MetaRecord) -> Option<u64> {
        meta.rebuilding.as_ref().map(|rebuilding| rebuilding.frontier)
    }

    #[tokio::test]
    async fn a_rebuild_resumes_where_it_was_until_a_node_restarts_or_it_ends() {
        let store = store(5);
        let nodes = Incarnation("a".into());
        let RebuildAttempt { rebuilding, .. } = rebuild(7, 1);
        let log = rebuilding.log.clone();
        let begun = RebuildAttempt { rebuilding: Rebuilding { nodes: "a".into(), ..rebuilding }, rebuilder: 1 };
        assert!(matches!(store.resume_rebuild(EXPECTED, &nodes, 1, &log).await, Err(MetaError::NoMetaRecord)));
        store.begin_rebuild(EXPECTED, begun, [1; 16]).await.unwrap();
        let at = |chain: u64, validated: u64| ConsumedOffsets { chain, validated: [(0, validated)].into() };
        for (reached, state) in [(at(3, 9), "three"), (at(0, 12), ""), (at(2, 0), "two")] {
            store.record_rebuild_progress(1, &reached, state).await.unwrap();
        }
        store.plant(seeded(1, 2)).await;
        let meta = store.resume_rebuild(EXPECTED, &nodes, 2, &log).await.unwrap();
        let rebuilding = meta.rebuilding.unwrap();
        assert_eq!((rebuilding.reached, rebuilding.chain_state.as_str()), (at(3, 12), "three"));
        assert!(matches!(store.record_rebuild_progress(1, &at(4, 0), "four").await, Err(MetaError::RebuildTakenOver)));
        let other = MetaExpectations { utxo_batch_size: 6, ..EXPECTED };
        assert!(matches!(store.resume_rebuild(other, &nodes, 3, &log).await, Err(MetaError::OtherBatchSize { .. })));
        let restarted = store.resume_rebuild(EXPECTED, &Incarnation("b".into()), 3, &log).await;
        assert!(matches!(restarted, Err(MetaError::NodeRestarted)), "{restarted:?}");
        let of_another_log =
            LogEnds { ends: ConsumedOffsets { chain: 99, ..ConsumedOffsets::default() }, ..log.clone() };
        let other_log = store.resume_rebuild(EXPECTED, &nodes, 3, &of_another_log).await;
        assert!(matches!(other_log, Err(MetaError::RebuildTakenOver)), "{other_log:?}");
        store.check_rebuild_owner(2).await.unwrap();
        store.end_rebuild(2, &at(7, 20)).await.unwrap();
        assert!(matches!(store.resume_rebuild(EXPECTED, &nodes, 4, &log).await, Err(MetaError::StoreInUse)));
    }

    #[tokio::test]
    async fn the_first_start_writes_the_meta_record_and_later_starts_find_it() {
        let store = store(5);
        let first = store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        assert_eq!((first.store_id, first.layout_version, first.chain_id), ([1; 16], LAYOUT_VERSION, None));
        for group_has_offsets in [false, true] {
            assert_eq!(store.open_meta(EXPECTED, group_has_offsets, [2; 16]).await.unwrap(), first);
        }
    }

    #[tokio::test]
    async fn each_difference_is_refused_with_both_values() {
        let store = store(5);
        let written = store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        let cases = [
            (MetaExpectations { network: Network::Main, ..EXPECTED }, ["regtest", "main", "network"]),
            (MetaExpectations { utxo_batch_size: 20_000, ..EXPECTED }, [" 5 ", "20000", "utxo_batch_size"]),
        ];
        for (expected, words) in cases {
            let error = store.open_meta(expected, true, [1; 16]).await.unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        store.change_meta(|meta| Ok(MetaRecord { layout_version: 7, ..meta })).await.unwrap();
        let error = store.open_meta(EXPECTED, true, [1; 16]).await.unwrap_err().to_string();
        assert!(error.contains("layout 7") && error.contains("has 1"), "{error}");
        store.change_meta(|_| Ok(written.clone())).await.unwrap();
        store.open_meta(EXPECTED, true, [1; 16]).await.unwrap();
    }

    #[tokio::test]
    async fn a_lost_namespace_is_refused_without_a_write() {
        let store = store(5);
        let error = store.open_meta(EXPECTED, true, [1; 16]).await.unwrap_err();
        assert!(matches!(error, MetaError::NamespaceLost));
        assert!(error.to_string().contains("replay --rebuild"));
        assert_eq!(store.meta().await.unwrap(), None);
    }

    #[tokio::test]
    async fn inspecting_finds_the_same_as_opening_and_writes_nothing() {
        let store = store(5);
        assert_eq!(store.inspect_meta(EXPECTED, false).await.unwrap(), None);
        assert!(matches!(store.inspect_meta(EXPECTED, true).await, Err(MetaError::NamespaceLost)));
        assert_eq!(store.meta().await.unwrap(), None);
        store.plant(seeded(1, 2)).await;
        assert!(matches!(store.inspect_meta(EXPECTED, false).await, Err(MetaError::ForeignRecords)));

        let store = self::store(5);
        let written = store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        let later = MetaExpectations { retention: 10, ..EXPECTED };
        assert_eq!(store.inspect_meta(later, true).await.unwrap(), Some(written.clone()));
        let other = MetaExpectations { network: Network::Main, ..EXPECTED };
        assert!(matches!(store.inspect_meta(other, true).await, Err(MetaError::OtherNetwork { .. })));
        assert_eq!(store.meta().await.unwrap(), Some(written));

        let rebuilt = self::store(5);
        rebuilt.begin_rebuild(EXPECTED, rebuild(7, 1), [1; 16]).await.unwrap();
        assert!(matches!(
            rebuilt.inspect_meta(EXPECTED, true).await,
            Err(MetaError::UnfinishedRebuild { frontier: 7 })
        ));
    }

    #[tokio::test]
    async fn records_without_a_meta_record_are_refused() {
        let store = store(5);
        store.plant(seeded(1, 2)).await;
        assert!(matches!(store.open_meta(EXPECTED, false, [1; 16]).await, Err(MetaError::ForeignRecords)));
    }

    #[tokio::test]
    async fn a_new_retention_is_recorded() {
        let store = store(5);
        store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        let changed = MetaExpectations { retention: 10, ..EXPECTED };
        assert_eq!(store.open_meta(changed, true, [2; 16]).await.unwrap().retention, 10);
        assert_eq!(store.meta().await.unwrap().unwrap().retention, 10);
    }

    #[tokio::test]
    async fn the_chain_id_is_recorded_once_and_other_ids_are_refused() {
        let store = store(5);
        store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        let id = compute_chain_id(5, b"key", b"value");
        assert_eq!(store.bind_chain(None).await.unwrap().chain_id, None);
        for _ in 0..2 {
            assert_eq!(store.bind_chain(Some(id)).await.unwrap().chain_id, Some(id));
        }
        for (other, named) in [(Some([9; 32]), "0909"), (None, "none")] {
            let error = store.bind_chain(other).await.unwrap_err();
            assert!(matches!(error, MetaError::ChainRecreated { .. }));
            assert!(error.to_string().contains(named) && error.to_string().contains(&hex::encode(id)));
        }
    }

    #[tokio::test]
    async fn the_number_of_partitions_is_recorded_and_others_are_refused() {
        let store = store(5);
        store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        for _ in 0..2 {
            assert_eq!(store.bind_partitions(3).await.unwrap().partitions, Some(3));
        }
        let error = store.bind_partitions(4).await.unwrap_err().to_string();
        assert!(error.contains("has 4 partitions") && error.contains("made from 3"), "{error}");
    }

    #[test]
    fn a_chain_id_depends_on_timestamp_key_and_value() {
        let id = compute_chain_id(5, b"key", b"value");
        for other in [
            compute_chain_id(6, b"key", b"value"),
            compute_chain_id(5, b"kez", b"value"),
            compute_chain_id(5, b"key", b"valuf"),
        ] {
            assert_ne!(id, other);
        }
    }

    #[tokio::test]
    async fn concurrent_changes_of_the_meta_record_are_kept() {
        let store = store(5);
        store.begin_rebuild(EXPECTED, rebuild(7, 1), [1; 16]).await.unwrap();
        let (other, interfered) = (store.clone(), std::sync::atomic::AtomicBool::new(false));
        let meta = store
            .change_meta(|meta| {
                if !interfered.swap(true, std::sync::atomic::Ordering::Relaxed) {
                    // Between the read and the compare-and-set of the first attempt.
                    futures_util::future::FutureExt::now_or_never(other.bind_chain(Some([3; 32]))).unwrap().unwrap();
                }
                Ok(MetaRecord { prune_horizon: 40, ..meta })
            })
            .await
            .unwrap();
        assert_eq!((meta.prune_horizon, meta.chain_id, frontier(&meta)), (40, Some([3; 32]), Some(7)));
    }

    #[tokio::test]
    async fn a_store_with_blobs_is_refused_without_a_blob_store() {
        let store = store(5);
        let with_blobs = store.clone().with_blobs(Some(BlobStore::memory()));
        with_blobs.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        assert!(!store.open_meta(EXPECTED, true, [2; 16]).await.unwrap().has_blobs, "not recorded yet");
        store.record_blob_store().await.unwrap();
        let error = store.open_meta(EXPECTED, true, [2; 16]).await.unwrap_err();
        assert!(matches!(error, MetaError::NoBlobStore) && error.to_string().contains("store.blobs.url"), "{error}");
        assert!(with_blobs.open_meta(EXPECTED, true, [2; 16]).await.unwrap().has_blobs);
    }

    #[tokio::test]
    async fn an_unfinished_rebuild_is_refused() {
        let store = store(5);
        store.begin_rebuild(EXPECTED, rebuild(7, 1), [1; 16]).await.unwrap();
        let error = store.open_meta(EXPECTED, true, [2; 16]).await.unwrap_err();
        assert!(matches!(error, MetaError::UnfinishedRebuild { frontier: 7 }) && error.to_string().contains("rebuild"));
        let consumed = ConsumedOffsets { chain: 7, validated: [(0, 3)].into() };
        for _ in 0..2 {
            store.end_rebuild(1, &consumed).await.unwrap();
        }
        assert_eq!(store.open_meta(EXPECTED, true, [2; 16]).await.unwrap().consumed, consumed);
    }

    #[tokio::test]
    async fn a_second_rebuild_takes_over_and_the_first_cannot_end() {
        let store = store(5);
        for rebuilder in [1, 2] {
            store.begin_rebuild(EXPECTED, rebuild(7, rebuilder), [1; 16]).await.unwrap();
            store.check_rebuild_owner(rebuilder).await.unwrap();
        }
        assert!(matches!(store.check_rebuild_owner(1).await, Err(MetaError::RebuildTakenOver)));
        assert!(matches!(store.end_rebuild(1, &ConsumedOffsets::default()).await, Err(MetaError::RebuildTakenOver)));
        assert!(matches!(store.open_meta(EXPECTED, true, [2; 16]).await, Err(MetaError::UnfinishedRebuild { .. })));
        store.end_rebuild(2, &ConsumedOffsets::default()).await.unwrap();
        store.open_meta(EXPECTED, true, [2; 16]).await.unwrap();
    }

    #[tokio::test]
    async fn a_killed_rebuild_begins_again_under_its_store_id_until_a_record_exists() {
        let store = store(5);
        for (frontier, store_id) in [(7, [1; 16]), (9, [2; 16])] {
            assert!(store.can_begin_rebuild().await.unwrap());
            let meta = store.begin_rebuild(EXPECTED, rebuild(frontier, frontier), store_id).await.unwrap();
            assert_eq!((meta.store_id, self::frontier(&meta)), ([1; 16], Some(frontier)));
        }
        let other = MetaExpectations { utxo_batch_size: 6, ..EXPECTED };
        assert!(matches!(
            store.begin_rebuild(other, rebuild(9, 9), [1; 16]).await,
            Err(MetaError::OtherBatchSize { .. })
        ));
        store.plant(seeded(1, 2)).await;
        assert!(!store.can_begin_rebuild().await.unwrap());

        let store = self::store(5);
        store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        assert!(!store.can_begin_rebuild().await.unwrap());
        assert!(matches!(store.begin_rebuild(EXPECTED, rebuild(7, 7), [2; 16]).await, Err(MetaError::StoreInUse)));
        assert_eq!(frontier(&store.meta().await.unwrap().unwrap()), None);
    }
}
