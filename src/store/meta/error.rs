//! Reasons against using a store.

use crate::{
    engine::{EngineError, ErrorKind},
    tx::Network,
};

use super::LAYOUT_VERSION;

/// Reasons against using a store; each message has the found value, the expected value and the remedy.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum MetaError {
    #[error(
        "the store belongs to network `{store}`, the configuration says `{configured}`: correct `network`, or use \
         another set"
    )]
    OtherNetwork { store: String, configured: Network },
    #[error(
        "the store has {store} slots a page, the configuration says {configured}: set `utxo_batch_size` to {store} \
         (it is fixed for the life of a set), or rebuild into an empty set with `replay --rebuild`"
    )]
    OtherBatchSize { store: u32, configured: u32 },
    #[error(
        "the store has record layout {store}, this program has {LAYOUT_VERSION}: use the program that wrote it, or \
         rebuild into an empty set with `replay --rebuild`"
    )]
    OtherLayout { store: u32 },
    #[error(
        "the namespace was lost: the consumer group has committed offsets, but the store has no meta record; \
         run `replay --rebuild` into an empty set"
    )]
    NamespaceLost,
    #[error(
        "a part of the namespace is gone: of the store's {all} sentinels, {missing} are missing; if a node of the \
         cluster is away, bring it back with its data; otherwise stop the group, and run `replay --rebuild` into an \
         empty set"
    )]
    PartLost { missing: usize, all: usize },
    #[error(
        "the set holds records but no meta record: it belongs to another program, or part of the namespace was lost; \
         use an empty set, or run `replay --rebuild` into one"
    )]
    ForeignRecords,
    #[error("cannot rebuild into this store: it is in use; use an empty store")]
    StoreInUse,
    /// The chain topic is another topic than the one that the store was made from. The ids are in hex; `none`: the
    /// topic has no record at offset 0.
    #[error(
        "the chain topic was recreated: the record at its offset 0 has id {found}, the store was made from {store}; \
         no event of it is applied; configure the topic that the store was made from, or produce all blocks and \
         reorgs again into new topics, for another group and an empty store"
    )]
    ChainRecreated { store: String, found: String },
    #[error("{message}")]
    TopicRecreated { message: String },
    /// The topic of validated transactions has another number of partitions. Events of one transaction would then lie
    /// in two partitions, without an order.
    #[error(
        "the topic of validated transactions has {found} partitions, the store was made from {store}: restore the \
         topic with {store}, or begin a new topic and rebuild into an empty set with `replay --rebuild`"
    )]
    OtherPartitions { store: u32, found: u32 },
    #[error(
        "the store is not the one that its group has committed offsets for, or an older copy of it: of {what} the \
         group has committed {committed}, the store has consumed {consumed}; use the group's store, or stop the group, \
         run `replay --rebuild` into an empty set and use that set"
    )]
    StoreBehindGroup { what: String, committed: u64, consumed: u64 },
    #[error(
        "the store is a rebuild that is under way, or did not reach its end (chain offset {frontier}): wait for its \
         end, or continue it with `replay --rebuild --resume`"
    )]
    UnfinishedRebuild { frontier: u64 },
    #[error("cannot continue the rebuild: another rebuild has begun in this set since, and continues alone")]
    RebuildTakenOver,
    #[error(
        "the store is being loaded from a snapshot, a UTXO-set file or another store, and not all of its records are \
         loaded: repeat the same `snapshot restore`, `utxo-set import` or `migrate`, which continues"
    )]
    UnfinishedRestore,
    #[error(
        "cannot load records into this store: it is not empty, and not the unfinished load of this snapshot, UTXO-set \
         file or store as it is now; use an empty store"
    )]
    RestoreNotEmpty,
    #[error("cannot continue the load of records: another process has continued or ended it")]
    RestoreTakenOver,
    #[error(
        "snapshot {snapshot} is in progress, and nothing is pruned for {seconds} s more unless the snapshot ends; \
         wait, or end the command `snapshot create`"
    )]
    HeldBySnapshot { snapshot: String, seconds: u64 },
    #[error(
        "the snapshot has lost its hold on pruning: records may have been pruned since its offsets were read; begin a \
         new snapshot"
    )]
    HoldLost,
    #[error(
        "another process creates this snapshot; wait until that process ends, or stop that process and repeat the \
         command after a few seconds"
    )]
    HoldTakenOver,
    /// A node has restarted during a rebuild, so that writes of the rebuild may be lost.
    #[error(
        "cannot continue the rebuild: a node of the store has restarted since it began, and may have lost writes of \
         it; begin again with an empty set"
    )]
    NodeRestarted,
    #[error(
        "the store keeps bodies of large transactions in a blob store, and none is given: set `store.blobs.url` \
         (`externalStore` in the URL of Aerospike; `--blobs` of commands that only read) to the blob store of this \
         store"
    )]
    NoBlobStore,
    /// Events below the replay floor would be read again. Pruned transactions would be created again, with free slots.
    #[error(
        "{what} is to be read again from offset {from}, and the store was pruned: a replay may begin from {floor} on; \
         restore the newest snapshot or run `replay --rebuild` into an empty set (for a partition of the validated \
         transactions: or set the group's offset to {floor} or more)"
    )]
    BelowFloor { what: String, from: u64, floor: u64 },
    /// The group has no state of the chain, and the store has handled blocks.
    #[error(
        "the group has no state of the chain at offset {position}, and the store has handled blocks: the commits are \
         gone, or a tool has set the offset, which cannot continue a chain; stop the group, run `replay --rebuild` \
         into an empty set where the log is whole, or import a UTXO-set file of this store under new topics \
         (docs/operating/exits/lost-offsets.md)"
    )]
    ChainStateLost { position: u64 },
    #[error(
        "the store was copied by `migrate`, and the group uses the copy: set `store.url` to the copy; `migrate --undo` \
         goes back to this store while the copy has consumed nothing"
    )]
    Migrated,
    #[error("the store has no meta record: start `run` on it first, or, where it had one, run `replay --rebuild`")]
    NoMetaRecord,
    #[error("the record under the meta key is no meta record: the store is damaged; run `replay --rebuild`")]
    Damaged,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl MetaError {
    /// Returns whether a retry may succeed: the store did not answer.
    pub fn may_be_retried(&self) -> bool {
        matches!(self, MetaError::Engine(error) if error.kind != ErrorKind::Fatal)
    }
}
