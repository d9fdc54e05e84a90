//! Reasons against using a store.

use crate::{
    engine::{EngineError, ErrorKind},
    tx::Network,
};

use super::LAYOUT_VERSION;

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

impl MetaError {
    /// Returns whether a retry may succeed: the store did not answer.
    pub fn may_be_retried(&self) -> bool {
        matches!(self, MetaError::Engine(error) if error.kind != ErrorKind::Fatal)
    }
}
