//! The meta record: who this store is, checked at every start (`DESIGN.md`, sections 4 and 9).

use std::time::Duration;

use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, TopicPartition},
    engine::{EngineError, ErrorKind, Incarnation, Row, Set},
    record::{Consumed, Key, LogEnds, MetaRecord, Operation, Outcome, Rebuilding, Record, ReplaceMeta},
    tx::Network,
};

use super::{Store, prune::Terms, scan::Scan};

/// Version of the record layout that this program reads and writes.
pub const LAYOUT_VERSION: u32 = 1;

/// What the configuration says the store should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaExpectations {
    /// The chain whose transactions it holds.
    pub network: Network,
    /// Slots a page.
    pub utxo_batch_size: u32,
    /// `block_height_retention`, blocks. The one setting that may change between starts.
    pub retention: u32,
}

/// An attempt to rebuild a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuild {
    /// What of, and up to where.
    pub rebuilding: Rebuilding,
    /// Random, of this attempt alone.
    pub rebuilder: u64,
}

/// Why this store must not be worked on: what was found, what was expected, and what to do about it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MetaError {
    /// It holds transactions of another chain.
    #[error(
        "the store belongs to network `{store}`, the configuration says `{configured}`: correct `network`, or use another set"
    )]
    OtherNetwork {
        /// As the store has it.
        store: String,
        /// As the configuration has it.
        configured: Network,
    },
    /// Its pages have another size.
    #[error(
        "the store has {store} slots a page, the configuration says {configured}: set `utxo_batch_size` to {store} \
         (it is fixed for the life of a set), or rebuild into an empty set with `replay --rebuild`"
    )]
    OtherBatchSize {
        /// As the store has it.
        store: u32,
        /// As the configuration has it.
        configured: u32,
    },
    /// Its records were written by another version of this program.
    #[error(
        "the store has record layout {store}, this program has {LAYOUT_VERSION}: use the program that wrote it, or \
         rebuild into an empty set with `replay --rebuild`"
    )]
    OtherLayout {
        /// As the store has it.
        store: u32,
    },
    /// The log was consumed, but what came of it is gone.
    #[error(
        "the namespace was lost: the consumer group has committed offsets, but the store has no meta record; \
         run `replay --rebuild` into an empty set"
    )]
    NamespaceLost,
    /// Sentinels are missing.
    #[error(
        "a part of the namespace is gone: of the store's {all} sentinels, {missing} are missing; if a node of the cluster is away, bring \
         it back with its data; otherwise stop the group, and run `replay --rebuild` into an empty set"
    )]
    PartLost {
        /// Sentinels that are not there, or another store's.
        missing: usize,
        /// Sentinels of a store.
        all: usize,
    },
    /// There are records that belong to nobody.
    #[error(
        "the set holds records but no meta record: it belongs to another program, or part of the namespace was lost; \
         use an empty set, or run `replay --rebuild` into one"
    )]
    Unowned,
    /// A rebuild goes into a store of its own.
    #[error("the store is in use: a rebuild needs an empty one")]
    Owned,
    /// Offsets of the chain topic mean something else than when they were stored.
    #[error(
        "the chain topic was recreated: the record at its offset 0 has id {found}, the store was made from {store}; \
         no event of it is applied; configure the topic that the store was made from, or produce all blocks and \
         reorgs again into new topics, for another group and an empty store"
    )]
    ChainRecreated {
        /// Of the topic that the store was made from, in hex.
        store: String,
        /// Of the topic that is there now, in hex, or `none` where it has no record at offset 0.
        found: String,
    },
    /// Offsets of this topic mean something else than when the store was made.
    #[error("{told}")]
    TopicRecreated {
        /// In words, with the topic's name and both ids.
        told: String,
    },
    /// The events of one transaction would lie in two partitions, and which came first nobody could tell.
    #[error(
        "the topic of validated transactions has {found} partitions, the store was made from {store}: restore the topic with \
         {store}, or begin a new topic and rebuild into an empty set with `replay --rebuild`"
    )]
    OtherPartitions {
        /// Of the topic that the store was made from.
        store: u32,
        /// Of the topic as it is.
        found: u32,
    },
    /// What the group has committed did not come into this store.
    #[error(
        "the store is not the one that its group has committed offsets for, or an older copy of it: of {what} the group has \
         committed {committed}, the store has consumed {consumed}; use the group's store, or stop the group, run `replay \
         --rebuild` into an empty set and go on with that"
    )]
    Behind {
        /// Partition or chain.
        what: String,
        /// Next to read by the group.
        committed: u64,
        /// Next to read into the store.
        consumed: u64,
    },
    /// A rebuild has not reached its end.
    #[error(
        "the store is a rebuild that is under way, or did not reach its end (chain offset {frontier}): wait for it, or go on with it by \
         `replay --rebuild --resume`"
    )]
    Unfinished {
        /// Where it was to end.
        frontier: u64,
    },
    /// Two rebuilds began in one set.
    #[error("another rebuild has begun in this set since: it goes on alone")]
    TakenOver,
    /// What a rebuild has reached may be forgotten.
    #[error(
        "a node of the store has restarted since the rebuild began, and may have forgotten of it: begin again, with an empty set"
    )]
    Forgotten,
    /// Bodies of large transactions are in a blob store, which one is not said.
    #[error(
        "the store keeps bodies of large transactions in a blob store, and none is given: set `store.blobs.url` (`externalStore` in \
         the URL of Aerospike; `--blobs` of commands that only read) to the one that it was worked on with"
    )]
    WithoutBlobs,
    /// What was pruned since would be made again, and be spendable.
    #[error(
        "{what} is to be read again from offset {from}, and the store was pruned: it is read again from {floor} on only; set the \
         group's offset to that or more, or run `replay --rebuild` into an empty set"
    )]
    BelowFloor {
        /// Partition or chain.
        what: String,
        /// Next to read.
        from: u64,
        /// The least that it may be.
        floor: u64,
    },
    /// A change needs a meta record and there is none.
    #[error("the store has no meta record (any more): start `run` on it first, or run `replay --rebuild`")]
    Absent,
    /// Something else lies where the meta record belongs.
    #[error("the record under the meta key is no meta record: the store is damaged; run `replay --rebuild`")]
    Damaged,
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The id of a chain topic: BLAKE3 of timestamp (ms since the epoch, 8 bytes, little-endian) ‖ key ‖ value of its record
/// at offset 0. The timestamp sets apart topics whose logs begin alike.
pub fn chain_id(timestamp_ms: i64, key: &[u8], value: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&timestamp_ms.to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    *hasher.finalize().as_bytes()
}

/// The [`chain_id`] of whatever a partition holds at offset 0; `None`: nothing (yet, or any more).
///
/// # Errors
/// The broker's; it may be retried where the record is there but was not delivered in time.
pub async fn topic_id(broker: &dyn Broker, partition: &TopicPartition) -> Result<Option<[u8; 32]>, BrokerError> {
    let (low, high) = broker.watermarks(partition).await?;
    if low > 0 || high == 0 {
        return Ok(None);
    }
    let mut reader = broker.read(partition, 0).await?;
    let Some(first) = reader.next(FIRST_WAIT).await?.into_iter().next() else {
        // A slow broker is no other topic.
        let message = format!("{partition}: the record at offset 0 is there but was not delivered in time");
        return Err(BrokerError::new(BrokerErrorKind::Retryable, "identify topic", message));
    };
    Ok((first.offset == 0).then(|| chain_id(first.timestamp_ms, &first.key, &first.payload)))
}

const FIRST_WAIT: Duration = Duration::from_secs(5);

impl MetaError {
    /// The store did not answer, and may do so when it is asked again.
    pub fn may_be_retried(&self) -> bool {
        matches!(self, MetaError::Engine(error) if error.kind != ErrorKind::Fatal)
    }
}

impl Store {
    /// Reads the meta record and compares it with `expected`; an empty set is made this store's, as `store_id` (random,
    /// used only then). A new `retention` is written down. A rebuild that is not at its end is refused, and so is a store with a blob
    /// store that is opened without.
    ///
    /// `group_has_offsets`: the consumer group has committed offsets, so that the store cannot be new. A rebuild, which
    /// starts from nothing on purpose, says `false`.
    ///
    /// # Errors
    /// See [`MetaError`]; nothing was changed then.
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
        self.may_be_worked_on(&meta, &expected).await?;
        if meta.retention == expected.retention {
            return Ok(meta);
        }
        tracing::warn!(from = meta.retention, to = expected.retention, "block_height_retention was changed");
        self.change_meta(|meta| Ok(MetaRecord { retention: expected.retention, ..meta })).await
    }

    /// What [`open_meta`](Self::open_meta) would find, with nothing written; `None`: it would make the set this store's.
    ///
    /// # Errors
    /// As `open_meta`.
    pub async fn look_at_meta(
        &self,
        expected: MetaExpectations,
        group_has_offsets: bool,
    ) -> Result<Option<MetaRecord>, MetaError> {
        match self.meta().await? {
            Some(meta) => self.may_be_worked_on(&meta, &expected).await.map(|()| Some(meta)),
            None if group_has_offsets => Err(MetaError::NamespaceLost),
            None if self.holds_records().await? => Err(MetaError::Unowned),
            None => Ok(None),
        }
    }

    async fn may_be_worked_on(&self, meta: &MetaRecord, expected: &MetaExpectations) -> Result<(), MetaError> {
        check(meta, expected)?;
        is_rebuilt(meta)?;
        self.check_blobs(meta)?;
        if meta.has_sentinels { self.check_sentinels(meta).await } else { Ok(()) }
    }

    /// Whether bodies that this store may have outside its records can be read.
    ///
    /// # Errors
    /// It was worked on with a blob store, and is opened without.
    pub fn check_blobs(&self, meta: &MetaRecord) -> Result<(), MetaError> {
        if meta.has_blobs && self.blobs.is_none() { Err(MetaError::WithoutBlobs) } else { Ok(()) }
    }

    /// The meta record; `None` where there is none.
    pub async fn meta(&self) -> Result<Option<MetaRecord>, MetaError> {
        match self.read(vec![Key::Meta]).await?.pop().flatten() {
            None => Ok(None),
            Some(Record::Meta(meta)) => Ok(Some(meta)),
            Some(_) => Err(MetaError::Damaged),
        }
    }

    /// Holds the store to the chain topic that has this [`chain_id`]; `None`: the topic has no record at offset 0 (yet).
    /// The first one that is there is written down, any other refused from then on.
    pub async fn bind_chain(&self, chain_id: Option<[u8; 32]>) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| {
            is_made_from(&meta, chain_id)?;
            Ok(MetaRecord { chain_id: meta.chain_id.or(chain_id), ..meta })
        })
        .await
    }

    /// Holds the store to the number of partitions of the topic of validated transactions: the first is written down, any
    /// other refused from then on.
    pub async fn bind_partitions(&self, found: u32) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| {
            has_partitions(&meta, found)?;
            Ok(MetaRecord { partitions: Some(found), ..meta })
        })
        .await
    }

    /// The store has a blob store from now on, with its mark.
    pub async fn note_blobs(&self) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| Ok(MetaRecord { has_blobs: true, ..meta })).await
    }

    /// Whether a rebuild can begin here: there is nothing, or only the meta record of one that was killed before it wrote anything else.
    ///
    /// # Errors
    /// The engine's; or the meta record is none.
    pub async fn takes_rebuild(&self) -> Result<bool, MetaError> {
        match self.meta().await? {
            Some(meta) if meta.rebuilding.is_some() => Ok(!self.holds_records().await?),
            Some(_) => Ok(false),
            None => Ok(true),
        }
    }

    /// A rebuild of this set begins. Until it has ended, nobody may work on the set. It is made the store's with this `store_id` in the same write, before it has a blob store: so one that is killed
    /// begins again under the same id, which is what the blob store is marked with; should it live all the same, it finds the other's
    /// number ([`still_rebuilds`](Self::still_rebuilds)).
    ///
    /// # Errors
    /// See [`MetaError`]; nothing was changed then.
    pub async fn begin_rebuild(
        &self,
        expected: MetaExpectations,
        rebuild: Rebuild,
        store_id: [u8; 16],
    ) -> Result<MetaRecord, MetaError> {
        let meta = match self.meta().await? {
            // Logs may have been read since it was last asked.
            Some(_) if self.holds_records().await? => return Err(MetaError::Owned),
            Some(meta) => meta,
            None => self.create_meta(&expected, store_id, Some(&rebuild)).await?,
        };
        check(&meta, &expected)?;
        self.check_blobs(&meta)?;
        self.change_meta(|meta| match meta.rebuilding {
            Some(_) => Ok(MetaRecord {
                rebuilding: Some(Box::new(rebuild.rebuilding.clone())),
                rebuilder: Some(rebuild.rebuilder),
                retention: expected.retention,
                ..meta
            }),
            // Somebody else has begun to work on it, or has ended a rebuild of his own.
            None => Err(MetaError::Owned),
        })
        .await
    }

    /// Goes on with the rebuild of this set from this `log` that has begun and not ended, over nodes of this incarnation; whoever began it
    /// finds the number of this attempt, should he live.
    ///
    /// # Errors
    /// See [`MetaError`]; nothing was changed then.
    pub async fn resume_rebuild(
        &self,
        expected: MetaExpectations,
        nodes: &Incarnation,
        rebuilder: u64,
        log: &LogEnds,
    ) -> Result<MetaRecord, MetaError> {
        let meta = self.meta().await?.ok_or(MetaError::Absent)?;
        check(&meta, &expected)?;
        self.check_blobs(&meta)?;
        self.change_meta(|meta| match &meta.rebuilding {
            Some(rebuilding) if rebuilding.nodes != nodes.0 => Err(MetaError::Forgotten),
            Some(rebuilding) if rebuilding.log != *log => Err(MetaError::TakenOver),
            Some(_) => Ok(MetaRecord { rebuilder: Some(rebuilder), retention: expected.retention, ..meta }),
            None => Err(MetaError::Owned),
        })
        .await
    }

    /// What the rebuild of this set has read so far is in it for good; `chain_state`: that of the chain, where that is among it.
    ///
    /// # Errors
    /// Another one has begun here since; or as [`change_meta`](Self::change_meta).
    pub async fn note_reached(
        &self,
        rebuilder: u64,
        reached: &Consumed,
        chain_state: &str,
    ) -> Result<MetaRecord, MetaError> {
        self.change_meta(|mut meta| {
            rebuilt_by(&meta, rebuilder)?;
            let rebuilding = meta.rebuilding.as_mut().ok_or(MetaError::TakenOver)?;
            if reached.chain > rebuilding.reached.chain {
                chain_state.clone_into(&mut rebuilding.chain_state);
            }
            rebuilding.reached.raise(reached);
            Ok(meta)
        })
        .await
    }

    /// Pruning begins: nobody reads from below `floor` into this set again, and no block leaves that may list what goes.
    ///
    /// # Errors
    /// As [`change_meta`](Self::change_meta).
    pub async fn begin_pruning(&self, floor: &Consumed, terms: &Terms) -> Result<MetaRecord, MetaError> {
        self.change_meta(|mut meta| {
            meta.replay_floor.raise(floor);
            meta.reorg_floor = meta.reorg_floor.max(terms.reorg_floor());
            Ok(meta)
        })
        .await
    }

    /// Everything that was due at `height` is pruned.
    ///
    /// # Errors
    /// As [`change_meta`](Self::change_meta).
    pub async fn end_pruning(&self, height: u32) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| Ok(MetaRecord { prune_horizon: meta.prune_horizon.max(height), ..meta })).await
    }

    /// The rebuild of this set has ended: all of `consumed` is in it.
    ///
    /// # Errors
    /// Another one has begun here since; or as [`change_meta`](Self::change_meta).
    pub async fn end_rebuild(&self, rebuilder: u64, consumed: &Consumed) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| {
            rebuilt_by(&meta, rebuilder)?;
            Ok(MetaRecord { rebuilding: None, consumed: consumed.clone(), ..meta })
        })
        .await
    }

    /// Whether the rebuild of this set is still that of `rebuilder`.
    ///
    /// # Errors
    /// Another one has begun here since; or the store's.
    pub async fn still_rebuilds(&self, rebuilder: u64) -> Result<(), MetaError> {
        rebuilt_by(&self.meta().await?.ok_or(MetaError::Absent)?, rebuilder)
    }

    /// Changes the meta record by compare-and-set; `change` may be asked again with what somebody else has written
    /// meanwhile.
    pub async fn change_meta(
        &self,
        change: impl Fn(MetaRecord) -> Result<MetaRecord, MetaError>,
    ) -> Result<MetaRecord, MetaError> {
        loop {
            let expected = self.meta().await?.ok_or(MetaError::Absent)?;
            let new = change(expected.clone())?;
            if new == expected {
                return Ok(new);
            }
            let operation = Operation::ReplaceMeta(Box::new(ReplaceMeta { expected, new: new.clone() }));
            match self.apply_one(Row { key: Key::Meta, operation }).await? {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => return Ok(new),
                Outcome::Rejected(rejection) => tracing::debug!(?rejection, "the meta record changed meanwhile"),
            }
        }
    }

    async fn create_meta(
        &self,
        expected: &MetaExpectations,
        store_id: [u8; 16],
        rebuild: Option<&Rebuild>,
    ) -> Result<MetaRecord, MetaError> {
        if self.holds_records().await? {
            // Somebody else may have made the store his between the two reads.
            return self.meta().await?.ok_or(MetaError::Unowned);
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
            Outcome::Rejected(_) => self.meta().await?.ok_or(MetaError::Absent),
        }
    }

    async fn holds_records(&self) -> Result<bool, EngineError> {
        for set in [Set::Transactions, Set::Blocks] {
            if Scan::new(self, set).with_batch(1).next().await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether the chain topic that has this [`chain_id`] (`None`: no record at offset 0) is the one that the store was made from, or the first.
///
/// # Errors
/// [`MetaError::ChainRecreated`]
pub fn is_made_from(meta: &MetaRecord, chain_id: Option<[u8; 32]>) -> Result<(), MetaError> {
    match meta.chain_id {
        Some(store) if chain_id != Some(store) => Err(MetaError::ChainRecreated {
            store: hex::encode(store),
            found: chain_id.map_or_else(|| "none".into(), hex::encode),
        }),
        _ => Ok(()),
    }
}

/// Whether the topic of validated transactions has as many partitions as when the store was made.
///
/// # Errors
/// [`MetaError::OtherPartitions`]
pub fn has_partitions(meta: &MetaRecord, found: u32) -> Result<(), MetaError> {
    match meta.partitions {
        Some(store) if store != found => Err(MetaError::OtherPartitions { store, found }),
        _ => Ok(()),
    }
}

/// Whether no rebuild of the set is under way.
///
/// # Errors
/// [`MetaError::Unfinished`]
pub fn is_rebuilt(meta: &MetaRecord) -> Result<(), MetaError> {
    match &meta.rebuilding {
        Some(rebuilding) => Err(MetaError::Unfinished { frontier: rebuilding.frontier }),
        None => Ok(()),
    }
}

fn rebuilt_by(meta: &MetaRecord, rebuilder: u64) -> Result<(), MetaError> {
    if meta.rebuilder == Some(rebuilder) { Ok(()) } else { Err(MetaError::TakenOver) }
}

/// The layout comes first: should it differ, the other fields may not mean what they seem to.
fn check(meta: &MetaRecord, expected: &MetaExpectations) -> Result<(), MetaError> {
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

    fn rebuild(frontier: u64, rebuilder: u64) -> Rebuild {
        Rebuild { rebuilding: Rebuilding { frontier, ..Rebuilding::default() }, rebuilder }
    }

    fn frontier(meta: &MetaRecord) -> Option<u64> {
        meta.rebuilding.as_ref().map(|rebuilding| rebuilding.frontier)
    }

    #[tokio::test]
    async fn a_rebuild_is_resumed_where_it_was_until_a_node_has_restarted_or_it_has_ended() {
        let store = store(5);
        let nodes = Incarnation("a".into());
        let Rebuild { rebuilding, .. } = rebuild(7, 1);
        let log = rebuilding.log.clone();
        let begun = Rebuild { rebuilding: Rebuilding { nodes: "a".into(), ..rebuilding }, rebuilder: 1 };
        assert!(matches!(store.resume_rebuild(EXPECTED, &nodes, 1, &log).await, Err(MetaError::Absent)));
        store.begin_rebuild(EXPECTED, begun, [1; 16]).await.unwrap();
        let at = |chain: u64, validated: u64| Consumed { chain, validated: [(0, validated)].into() };
        for (reached, state) in [(at(3, 9), "three"), (at(0, 12), ""), (at(2, 0), "two")] {
            store.note_reached(1, &reached, state).await.unwrap();
        }
        store.plant(seeded(1, 2)).await;
        let meta = store.resume_rebuild(EXPECTED, &nodes, 2, &log).await.unwrap();
        let rebuilding = meta.rebuilding.unwrap();
        assert_eq!((rebuilding.reached, rebuilding.chain_state.as_str()), (at(3, 12), "three"));
        assert!(matches!(store.note_reached(1, &at(4, 0), "four").await, Err(MetaError::TakenOver)));
        let other = MetaExpectations { utxo_batch_size: 6, ..EXPECTED };
        assert!(matches!(store.resume_rebuild(other, &nodes, 3, &log).await, Err(MetaError::OtherBatchSize { .. })));
        let restarted = store.resume_rebuild(EXPECTED, &Incarnation("b".into()), 3, &log).await;
        assert!(matches!(restarted, Err(MetaError::Forgotten)), "{restarted:?}");
        let of_another_log = LogEnds { ends: Consumed { chain: 99, ..Consumed::default() }, ..log.clone() };
        let taken = store.resume_rebuild(EXPECTED, &nodes, 3, &of_another_log).await;
        assert!(matches!(taken, Err(MetaError::TakenOver)), "{taken:?}");
        store.still_rebuilds(2).await.unwrap();
        store.end_rebuild(2, &at(7, 20)).await.unwrap();
        assert!(matches!(store.resume_rebuild(EXPECTED, &nodes, 4, &log).await, Err(MetaError::Owned)));
    }

    #[tokio::test]
    async fn the_first_start_names_the_store_and_later_ones_find_it() {
        let store = store(5);
        let first = store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        assert_eq!((first.store_id, first.layout_version, first.chain_id), ([1; 16], LAYOUT_VERSION, None));
        for group_has_offsets in [false, true] {
            assert_eq!(store.open_meta(EXPECTED, group_has_offsets, [2; 16]).await.unwrap(), first);
        }
    }

    #[tokio::test]
    async fn each_difference_is_refused_naming_both_values() {
        let store = store(5);
        let ours = store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
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
        store.change_meta(|_| Ok(ours.clone())).await.unwrap();
        store.open_meta(EXPECTED, true, [1; 16]).await.unwrap();
    }

    #[tokio::test]
    async fn a_lost_namespace_is_refused_and_nothing_is_written() {
        let store = store(5);
        let error = store.open_meta(EXPECTED, true, [1; 16]).await.unwrap_err();
        assert!(matches!(error, MetaError::NamespaceLost));
        assert!(error.to_string().contains("replay --rebuild"));
        assert_eq!(store.meta().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_look_finds_what_an_opening_would_and_writes_nothing() {
        let store = store(5);
        assert_eq!(store.look_at_meta(EXPECTED, false).await.unwrap(), None);
        assert!(matches!(store.look_at_meta(EXPECTED, true).await, Err(MetaError::NamespaceLost)));
        assert_eq!(store.meta().await.unwrap(), None);
        store.plant(seeded(1, 2)).await;
        assert!(matches!(store.look_at_meta(EXPECTED, false).await, Err(MetaError::Unowned)));

        let store = self::store(5);
        let ours = store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        let later = MetaExpectations { retention: 10, ..EXPECTED };
        assert_eq!(store.look_at_meta(later, true).await.unwrap(), Some(ours.clone()));
        let other = MetaExpectations { network: Network::Main, ..EXPECTED };
        assert!(matches!(store.look_at_meta(other, true).await, Err(MetaError::OtherNetwork { .. })));
        assert_eq!(store.meta().await.unwrap(), Some(ours));

        let rebuilt = self::store(5);
        rebuilt.begin_rebuild(EXPECTED, rebuild(7, 1), [1; 16]).await.unwrap();
        assert!(matches!(rebuilt.look_at_meta(EXPECTED, true).await, Err(MetaError::Unfinished { frontier: 7 })));
    }

    #[tokio::test]
    async fn records_without_a_meta_record_belong_to_somebody_else() {
        let store = store(5);
        store.plant(seeded(1, 2)).await;
        assert!(matches!(store.open_meta(EXPECTED, false, [1; 16]).await, Err(MetaError::Unowned)));
    }

    #[tokio::test]
    async fn a_new_retention_is_written_down() {
        let store = store(5);
        store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        let changed = MetaExpectations { retention: 10, ..EXPECTED };
        assert_eq!(store.open_meta(changed, true, [2; 16]).await.unwrap().retention, 10);
        assert_eq!(store.meta().await.unwrap().unwrap().retention, 10);
    }

    #[tokio::test]
    async fn the_chain_topic_is_remembered_from_its_first_record() {
        let store = store(5);
        store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        let id = chain_id(5, b"key", b"value");
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
    async fn the_number_of_partitions_is_remembered() {
        let store = store(5);
        store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        for _ in 0..2 {
            assert_eq!(store.bind_partitions(3).await.unwrap().partitions, Some(3));
        }
        let error = store.bind_partitions(4).await.unwrap_err().to_string();
        assert!(error.contains("has 4 partitions") && error.contains("made from 3"), "{error}");
    }

    #[test]
    fn a_chain_id_depends_on_all_three() {
        let id = chain_id(5, b"key", b"value");
        for other in [chain_id(6, b"key", b"value"), chain_id(5, b"kez", b"value"), chain_id(5, b"key", b"valuf")] {
            assert_ne!(id, other);
        }
    }

    #[tokio::test]
    async fn changes_made_meanwhile_are_kept() {
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
    async fn a_store_with_a_blob_store_is_refused_without() {
        let store = store(5);
        let with_blobs = store.clone().with_blobs(Some(BlobStore::memory()));
        with_blobs.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        assert!(!store.open_meta(EXPECTED, true, [2; 16]).await.unwrap().has_blobs, "it is not said yet");
        store.note_blobs().await.unwrap();
        let error = store.open_meta(EXPECTED, true, [2; 16]).await.unwrap_err();
        assert!(matches!(error, MetaError::WithoutBlobs) && error.to_string().contains("store.blobs.url"), "{error}");
        assert!(with_blobs.open_meta(EXPECTED, true, [2; 16]).await.unwrap().has_blobs);
    }

    #[tokio::test]
    async fn nobody_works_on_a_rebuild_before_its_end() {
        let store = store(5);
        store.begin_rebuild(EXPECTED, rebuild(7, 1), [1; 16]).await.unwrap();
        let error = store.open_meta(EXPECTED, true, [2; 16]).await.unwrap_err();
        assert!(matches!(error, MetaError::Unfinished { frontier: 7 }) && error.to_string().contains("rebuild"));
        let consumed = Consumed { chain: 7, validated: [(0, 3)].into() };
        for _ in 0..2 {
            store.end_rebuild(1, &consumed).await.unwrap();
        }
        assert_eq!(store.open_meta(EXPECTED, true, [2; 16]).await.unwrap().consumed, consumed);
    }

    #[tokio::test]
    async fn of_two_rebuilds_that_begin_at_once_the_first_lets_nobody_in() {
        let store = store(5);
        for rebuilder in [1, 2] {
            store.begin_rebuild(EXPECTED, rebuild(7, rebuilder), [1; 16]).await.unwrap();
            store.still_rebuilds(rebuilder).await.unwrap();
        }
        assert!(matches!(store.still_rebuilds(1).await, Err(MetaError::TakenOver)));
        assert!(matches!(store.end_rebuild(1, &Consumed::default()).await, Err(MetaError::TakenOver)));
        assert!(matches!(store.open_meta(EXPECTED, true, [2; 16]).await, Err(MetaError::Unfinished { .. })));
        store.end_rebuild(2, &Consumed::default()).await.unwrap();
        store.open_meta(EXPECTED, true, [2; 16]).await.unwrap();
    }

    #[tokio::test]
    async fn a_rebuild_begins_again_under_its_id_until_there_is_a_record_and_nowhere_else() {
        let store = store(5);
        for (frontier, store_id) in [(7, [1; 16]), (9, [2; 16])] {
            assert!(store.takes_rebuild().await.unwrap());
            let meta = store.begin_rebuild(EXPECTED, rebuild(frontier, frontier), store_id).await.unwrap();
            assert_eq!((meta.store_id, self::frontier(&meta)), ([1; 16], Some(frontier)));
        }
        let other = MetaExpectations { utxo_batch_size: 6, ..EXPECTED };
        assert!(matches!(
            store.begin_rebuild(other, rebuild(9, 9), [1; 16]).await,
            Err(MetaError::OtherBatchSize { .. })
        ));
        store.plant(seeded(1, 2)).await;
        assert!(!store.takes_rebuild().await.unwrap());

        let store = self::store(5);
        store.open_meta(EXPECTED, false, [1; 16]).await.unwrap();
        assert!(!store.takes_rebuild().await.unwrap());
        assert!(matches!(store.begin_rebuild(EXPECTED, rebuild(7, 7), [2; 16]).await, Err(MetaError::Owned)));
        assert_eq!(frontier(&store.meta().await.unwrap().unwrap()), None);
    }
}
