//! Names of bins, at most 15 bytes each. Bins of the reference system have its spelling; bins that only this store has
//! are marked "Added".

pub const TX_ID: &str = "txID";
pub const VERSION: &str = "version";
pub const LOCK_TIME: &str = "locktime";
pub const FEE: &str = "fee";
pub const SIZE_IN_BYTES: &str = "sizeInBytes";
pub const EXTENDED_SIZE: &str = "extendedSize";
pub const SPENT_UTXOS: &str = "spentUtxos";
pub const RECORD_UTXOS: &str = "recordUtxos";
pub const UTXOS: &str = "utxos";
pub const IS_COINBASE: &str = "isCoinbase";
pub const LOCKED: &str = "locked";
pub const CONFLICTING: &str = "conflicting";
pub const FROZEN: &str = "frozen";
pub const CREATING: &str = "creating";
pub const SPENDING_HEIGHT: &str = "spendingHeight";
pub const SPENDABLE_IN: &str = "utxoSpendableIn";
pub const REASSIGNMENTS: &str = "reassignments";
pub const DELETE_AT_HEIGHT: &str = "deleteAtHeight";

pub const TOTAL_UTXOS: &str = "totalUtxos";
pub const TOTAL_EXTRA_RECS: &str = "totalExtraRecs";
pub const BLOCK_IDS: &str = "blockIDs";
pub const BLOCK_HEIGHTS: &str = "blockHeights";
pub const SUBTREE_IDXS: &str = "subtreeIdxs";
pub const CREATED_AT: &str = "createdAt";
pub const UNMINED_SINCE: &str = "unminedSince";
pub const EXTERNAL: &str = "external";
pub const INPUTS: &str = "inputs";
pub const OUTPUTS: &str = "outputs";
pub const CONFLICTING_CHILDREN: &str = "conflictingCs";
pub const SPENT_EXTRA_RECS: &str = "spentExtraRecs";
pub const PRESERVE_UNTIL: &str = "preserveUntil";

/// Added: the number of a page that is not the master. A scan returns only digests, so the key needs this number.
pub const PAGE_NUMBER: &str = "pageNumber";
/// Added: a byte for each slot, the size of the output's amount in the slot's hash; only where the outputs are not
/// stored.
pub const AMOUNT_SIZES: &str = "amountSizes";
/// Added: milliseconds since the epoch, indexed; present exactly while `creating` is.
pub const CREATING_AT: &str = "creatingAt";
/// Added: slots with a history, ascending.
pub const CONTESTED: &str = "contested";
/// Added: a bitmap; the first slot is the highest bit of the first byte.
pub const PRUNED_SPENDERS: &str = "prunedSpenders";
/// Added: the stamp as one number, chain offset × 4 + phase, so that a filter compares it in one step.
pub const CHAIN_POS: &str = "chainPos";
/// Added: numbers of other pages that are all spent, ascending.
pub const SPENT_PAGES: &str = "spentPages";
/// Added: 0 pending, 1 accepted, 2 conflicting.
pub const VERDICT: &str = "verdict";
/// Added: the reason of a conflicting verdict, in the bytes of `schemas/reasons.md`.
pub const REASON: &str = "reason";
/// Added: the height at which a record became a tombstone.
pub const PRUNED: &str = "pruned";
/// Added: the height whose rule the slots of the page follow; only where a transaction has several pages.
pub const SLOT_HEIGHT: &str = "slotHeight";
/// Added: the place of the event that created a transaction of several pages, twice the offset, plus one for the chain.
pub const CREATED_BY: &str = "createdBy";
/// Added: the BLAKE3 of the blob that holds the body, where another blob of the transaction was stored first.
pub const OTHER_BLOB: &str = "otherBlob";
/// The one bin of the record that a health check of the reference system leaves in the set of transactions.
pub const HEALTH_CHECK: &str = "bin";
/// Added: the BLAKE3 of the blob that holds the body, where no other blob of the transaction was stored before.
pub const BLOB_HASH: &str = "blobHash";
/// Added: a coinbase arrived in extended format; its body is returned in that format.
pub const EXTENDED_BODY: &str = "extendedBody";
/// Added: a body that the bins `inputs` and `outputs` cannot return byte for byte.
pub const RAW_BODY: &str = "rawBody";

/// Added, layout `compact`: what never changes of a page, as `bins::compact` encodes it.
pub const TX: &str = "tx";
/// Added, layout `compact`: a transaction that is stored inline, in extended format. Reads of other parts leave the bin
/// out.
pub const BODY: &str = "body";
/// Added, layout `compact`: the bits of [`super::layout::flag`]; absent: none.
pub const FLAGS: &str = "flags";
/// Added, layout `compact`: slots that are not spent, of those that `recordUtxos` counts.
pub const UNSPENT: &str = "unspent";
/// Added, layout `compact`: the blocks that list the transaction, each as 12 bytes, big-endian: height, block id,
/// subtree index.
pub const BLOCKS: &str = "blocks";

/// Bins of lock records: the reference document's names, and added names for the owner and the expiry.
pub mod lock {
    pub const CREATED_AT: &str = "created_at";
    pub const LOCK_TYPE: &str = "lock_type";
    pub const PROCESS_ID: &str = "process_id";
    pub const HOSTNAME: &str = "hostname";
    pub const EXPECTED_RECS: &str = "expected_recs";
    pub const EXPIRES_AT: &str = "expires_at";
    pub const OWNER: &str = "owner";
}

/// Bins of block records.
pub mod block {
    pub const BLOCK_ID: &str = "blockID";
    pub const HASH: &str = "hash";
    pub const PREVIOUS: &str = "previous";
    pub const HEIGHT: &str = "height";
    pub const TIME: &str = "time";
    pub const LONGEST_CHAIN: &str = "longestChain";
    pub const PROGRESS: &str = "progress";
}

/// Bins of command records. An applied command has only the command's bytes and its chain offset.
pub mod command {
    /// Id of the command: a scan returns only the digests of keys. Absent in records of earlier versions.
    pub const COMMAND_ID: &str = "commandID";
    pub const ASKED: &str = "asked";
    pub const CHAIN_OFFSET: &str = "chainOffset";
    pub const NOTHING_TO_DO: &str = "nothingToDo";
    pub const CODE: &str = "code";
    pub const MESSAGE: &str = "message";
}

/// Bins of the meta record.
pub mod meta {
    pub const STORE_ID: &str = "storeID";
    /// The layout of pages; absent: `teranode`.
    pub const LAYOUT: &str = "layout";
    pub const LAYOUT_VERSION: &str = "layoutVersion";
    pub const NETWORK: &str = "network";
    pub const UTXO_BATCH_SIZE: &str = "utxoBatchSize";
    pub const RETENTION: &str = "retention";
    pub const PRUNE_HORIZON: &str = "pruneHorizon";
    pub const CHAIN_ID: &str = "chainID";
    /// A rebuild in progress, as `record::codec` encodes it.
    pub const REBUILDING: &str = "rebuilding";
    pub const REBUILDER: &str = "rebuilder";
    pub const PARTITIONS: &str = "partitions";
    pub const HAS_BLOBS: &str = "hasBlobs";
    pub const HAS_SENTINELS: &str = "hasSentinels";
    /// The consumed offset of the chain; absent: 0.
    pub const CONSUMED_CHAIN: &str = "chainNext";
    /// Consumed offsets of transactions: partition, offset, partition, offset …
    pub const CONSUMED: &str = "consumed";
    /// The replay floor of the chain, as `chainNext`.
    pub const FLOOR_CHAIN: &str = "floorChain";
    /// The replay floors of transactions, as `consumed`.
    pub const FLOOR: &str = "replayFloor";
    /// The durable offset of the chain, as `chainNext`.
    pub const DURABLE_CHAIN: &str = "durableChain";
    /// Durable offsets of transactions, as `consumed`.
    pub const DURABLE: &str = "durable";
    /// The height `reorg_floor` of the meta record; absent: 0.
    pub const REORG_FLOOR: &str = "reorgFloor";
    pub const TOPICS: &str = "topics";
    /// The greatest height that a consumed event names; absent: 0.
    pub const EVENT_HEIGHT: &str = "eventHeight";
    /// The chain offset of the tip, with which the three bins of the tip exist.
    pub const TIP_OFFSET: &str = "tipOffset";
    pub const TIP_HEIGHT: &str = "tipHeight";
    pub const TIP_HASH: &str = "tipHash";
    pub const MEDIAN_TIME: &str = "medianTime";
    /// The number of deep health checks; absent: 0.
    pub const HEALTH_CHECKS: &str = "healthChecks";
    /// A snapshot in progress, as `record::codec` encodes it.
    pub const SNAPSHOT_HOLD: &str = "snapshotHold";
    /// The restore of a snapshot, as `record::codec` encodes it.
    pub const RESTORED: &str = "restored";
    /// Added: the greatest era of the chain's stamps.
    pub const CHAIN_ERA: &str = "chainEra";
    /// Added: the migration in which the store is the source or the copy.
    pub const MIGRATION: &str = "migration";
}
