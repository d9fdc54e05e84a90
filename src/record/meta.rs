//! The meta record and its parts.

use std::collections::BTreeMap;

/// Meta record: identity of the store. Every start checks the record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetaRecord {
    /// Random id of the store, from the first start.
    pub store_id: [u8; 16],
    /// Version of the record layout that wrote the store.
    pub layout_version: u32,
    /// `main`, `test` or `regtest`
    pub network: String,
    /// Slots per page; fixed for the life of a set.
    pub utxo_batch_size: u32,
    /// Retention of the pruner, `block_height_retention`, blocks
    pub retention: u32,
    /// Prune horizon: every record that was due at this height is pruned. A record that becomes due below the horizon,
    /// after a reorg made the chain shorter, is pruned with the next block.
    pub prune_horizon: u32,
    /// Identity of the chain topic, because a recreated topic starts again at offset 0. `None` until the first event.
    pub chain_id: Option<[u8; 32]>,
    /// Rebuild of this set in progress; `None`: no rebuild is in progress.
    pub rebuilding: Option<Box<Rebuilding>>,
    /// Random number of the latest attempt to rebuild this set. An attempt that continues a killed one writes its own
    /// number, and the earlier attempt ends if it still runs. `None`: the set was never rebuilt.
    pub rebuilder: Option<u64>,
    /// Number of partitions of the topic of validated transactions. With another number the events of one transaction
    /// could be in two partitions. `None` until the first start.
    pub partitions: Option<u32>,
    /// The store has a blob store, whose mark names `store_id`. Never cleared once set.
    pub has_blobs: bool,
    /// The sentinels exist and are durable, so that an absent sentinel was lost.
    pub has_sentinels: bool,
    /// Consumed offsets: at least so much of the log is consumed into this set. The group commits no greater offset.
    pub consumed: ConsumedOffsets,
    /// Durable offsets: the store can lose no write of an event below. At most one commit behind the committed offsets
    /// of the group.
    pub durable: ConsumedOffsets,
    /// Replay floor: no instance reads from a lower offset into this set, because records pruned since are recognised
    /// for a limited time only.
    pub replay_floor: ConsumedOffsets,
    /// Reorg floor: no block up to this height can be disconnected, because its transactions are possibly pruned.
    pub reorg_floor: u32,
    /// Topics whose events make the state, by default name. An absent topic was not read yet.
    pub topics: BTreeMap<String, BoundTopic>,
    /// Tip of the longest chain, as of the last block or reorg that was handled; before the first one, and at chain
    /// offset 0, the block of the UTXO-set file from which the store was imported. `None`: neither.
    pub tip: Option<ChainTip>,
    /// Number of deep health checks: each check writes its number.
    pub health_checks: u64,
    /// Snapshot in progress, for which no record is pruned; `None`: no snapshot is in progress.
    pub snapshot_hold: Option<SnapshotHold>,
    /// Snapshot or UTXO-set file from which the store was loaded, until the store has caught up with the log; `None`:
    /// the store has caught up, or was never loaded.
    pub restored: Option<Box<Restored>>,
    /// Greatest era in which a sequencer has stamped records. A group whose commits are gone continues in this era; a
    /// lower one would take every record for the work of a later sequencer.
    pub chain_era: u32,
    /// MigrationPart of this store; `None`: the store was neither copied, nor is it a copy.
    pub migration: Option<MigrationPart>,
}

/// Part of a store in a migration, with the id of the migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationPart {
    /// The store is the copy of another store.
    Copy([u8; 16]),
    /// The store was copied, and the copy is the store of the group: no instance starts on this store.
    Source([u8; 16]),
}

/// Hold on pruning, for a snapshot in progress. A pruner that finds an expired hold removes the hold before it prunes,
/// so that the snapshot learns of each pruning by the missing hold, whatever the clocks say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotHold {
    /// Id of the snapshot.
    pub snapshot: [u8; 16],
    /// Time of the expiry, milliseconds since the epoch.
    pub until_ms: u64,
}

/// Restore of a snapshot, or import of a UTXO-set file, into this set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// Id of the snapshot, or of the import.
    pub snapshot: [u8; 16],
    /// The records are being loaded: no instance may use the store. `false`: the store reads the log again.
    pub is_loading: bool,
    /// Incarnation of the store's nodes since which `chunks` counts; empty for a store that never loses writes.
    pub nodes: String,
    /// Number of chunks, in the order of the manifest or of the file, that are loaded and durable.
    pub chunks: u64,
    /// Offsets from which every write in the snapshot came. The records belong together once the group has committed
    /// these offsets; the store has caught up once the group has committed `handled`, too.
    pub until: ConsumedOffsets,
    /// Committed offsets of the group before the restore set them back. Every event below was handled whole by the
    /// store that the group had before: contests, decisions and second chances of these events are in the log.
    pub handled: ConsumedOffsets,
    /// End of the chain log when the restore began. Chain events from this offset on were published later.
    pub chain_end: u64,
    /// Chain offset of the snapshot.
    pub chain_from: u64,
    /// Offset in `utxo.decisions` from which the decisions on `chain_from` and on later events are read.
    pub decisions_from: u64,
}

/// Tip of the longest chain at one offset of the chain log. The tip follows from the log alone, so that a record with
/// a greater offset is the later one, whichever sequencer wrote the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChainTip {
    /// Chain offset, next to read: every block and reorg below is counted.
    pub chain_offset: u64,
    /// Height of the last block.
    pub height: u32,
    /// Hash of the last block, internal order; zeros: every block has left.
    pub hash: [u8; 32],
    /// Median of the header times of the last eleven blocks, seconds since the epoch; 0: no block is left, or no block
    /// was handled since an import.
    pub median_time: u32,
}

/// Identity of a topic whose events make the state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BoundTopic {
    /// Id that the cluster gave to the topic; `None`: the cluster gives no ids.
    pub id: Option<[u8; 16]>,
    /// Prefix of the id of the message at offset 0, by partition. Only for clusters that give no topic ids.
    pub first: BTreeMap<u32, [u8; 8]>,
}

/// Rebuild in progress. An attempt that continues the rebuild makes the same state from the same log, however far the
/// live group has read since.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rebuilding {
    /// Chain offset at which the rebuild ends, next to read.
    pub frontier: u64,
    /// Offsets of the live group and ends of its topics when the rebuild began.
    pub log: LogEnds,
    /// Incarnation of the store's nodes when the rebuild began; empty for a store that never loses writes.
    pub nodes: String,
    /// Offsets up to which every event is durable in the set.
    pub reached: ConsumedOffsets,
    /// State of the chain at those offsets, in the form of commit metadata; empty at the beginning.
    pub chain_state: String,
}

/// Committed offsets of a group and end offsets of its log at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogEnds {
    /// Committed offsets of the group, next to read.
    pub committed: ConsumedOffsets,
    /// End offsets of the topics that the group reads.
    pub ends: ConsumedOffsets,
    /// End offset of `utxo.decisions`.
    pub decisions: u64,
}

impl LogEnds {
    /// Returns whether every topic ends at or after its end in `earlier`.
    pub fn reaches(&self, earlier: &LogEnds) -> bool {
        let reaches = |(partition, end): (&u32, &u64)| self.ends.validated.get(partition).is_some_and(|now| now >= end);
        self.decisions >= earlier.decisions
            && self.ends.chain >= earlier.ends.chain
            && earlier.ends.validated.iter().all(reaches)
    }
}

/// Offsets of the log, next to read: all events below are consumed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsumedOffsets {
    /// Offset in the chain log.
    pub chain: u64,
    /// Offsets in the topic of validated transactions, by partition. A partition without an entry was not read yet.
    pub validated: BTreeMap<u32, u64>,
    /// Greatest height that a consumed event names: the height of the chain until its first block. 0 in floors and end
    /// offsets, which have no height.
    pub height: u32,
}

impl ConsumedOffsets {
    /// Raises each offset, and the height, to the one in `other` where that is greater.
    pub fn raise(&mut self, other: &ConsumedOffsets) {
        self.chain = self.chain.max(other.chain);
        self.height = self.height.max(other.height);
        for (partition, offset) in &other.validated {
            let own = self.validated.entry(*partition).or_default();
            *own = (*own).max(*offset);
        }
    }
}
