//! Every metric, with its name and help text, and the set-up of logging.
//!
//! [`Metrics`] owns its registry: two pipelines in one process do not mix. Label values that are known beforehand are enums
//! ([`Counters`] and [`Histograms`] hold a handle for each); partitions get their handles with [`Metrics::partition`]. So the hot
//! path only adds to atomics. Names that the seed gives (`utxo_create_batch_size`, `utxo_store_errors`) are kept.

mod engine;
mod family;
mod logging;

use prometheus::{Encoder, Gauge, GaugeVec, Histogram, IntCounter, IntGauge, IntGaugeVec, Registry, TextEncoder};

use crate::{
    blob::{BlobErrorKind, BlobKind},
    broker::TopicPartition,
    engine::ErrorKind,
    event::{Action, Command, DeadLetterClass, Event},
    record::{Operation, Sequenced},
};

pub use engine::WatchedEngine;
pub use family::{Counters, Family, Histograms, Label, Outcomes};
pub use logging::{LoggingError, init_logging};

/// Enums as labels.
macro_rules! labels {
    ($(
        $(#[$attribute:meta])*
        $name:ident { $($(#[$variant_attribute:meta])* $variant:ident = $value:literal),* $(,)? }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_attribute])* $variant),* }

        impl Label for $name {
            const VALUES: &'static [&'static str] = &[$($value),*];
            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}

labels! {
    /// What an engine is asked to do.
    OperationKind {
        /// Puts a page.
        Create = "create",
        /// Stores a contested transaction.
        CreateContested = "create_contested",
        /// Takes slots.
        Spend = "spend",
        /// Clears `creating`.
        ClearCreating = "clear_creating",
        /// Copies hints between the pages of a transaction.
        Housekeeping = "housekeeping",
        /// Takes or releases a lock record.
        LockRecord = "lock_record",
        /// Writes the meta record.
        Meta = "meta",
        /// Sets or unsets mined.
        Mined = "mined",
        /// Any other operation of the sequencer.
        Sequenced = "sequenced",
        /// Makes a tombstone.
        Prune = "prune",
        /// Reads records by key.
        Read = "read",
        /// Finds records by an index.
        Query = "query",
        /// Reads a set.
        Scan = "scan",
    }

    /// What an event asks for.
    EventKind {
        /// `Validated`
        Validated = "validated",
        /// `Seeded`
        Seeded = "seeded",
        /// `BlockMined`
        BlockMined = "block_mined",
        /// `Reorg`
        Reorg = "reorg",
        /// `Contest`
        Contest = "contest",
        /// `Reconsider`
        Reconsider = "reconsider",
        /// Any other command.
        Command = "command",
    }

    /// How a transaction left the pipeline.
    Completion {
        /// It is live.
        Live = "live",
        /// It is stored contested, and its fate is the sequencer's.
        Contested = "contested",
        /// It is a dead letter.
        DeadLetter = "dead_letter",
        /// It was done already: pruned, or passed over.
        PassedOver = "passed_over",
    }

    /// What became of a contested transaction.
    VerdictKind {
        /// It is live.
        Accepted = "accepted",
        /// It is conflicting.
        Conflicting = "conflicting",
    }

    /// What was pruned.
    PrunedKind {
        /// A transaction, all of whose outputs are spent by what is mined.
        Spent = "spent",
        /// A conflicting transaction.
        Conflicting = "conflicting",
        /// What was left of a transaction.
        Tombstone = "tombstone",
    }

    /// What a blob store is asked to do.
    BlobOperation {
        /// Stores a transaction.
        PutTx = "put_tx",
        /// Reads a transaction, or some of its outputs.
        GetTx = "get_tx",
        /// Stores outputs of a partial transaction.
        PutOutputs = "put_outputs",
        /// Reads outputs of a partial transaction.
        GetOutputs = "get_outputs",
        /// Asks whether there is a blob.
        Exists = "exists",
        /// Deletes a blob.
        Delete = "delete",
    }

    /// The two sorts of blobs.
    BlobLabel {
        /// A whole transaction.
        Tx = "tx",
        /// Outputs of a partial one.
        Outputs = "outputs",
    }

    /// Which way bytes went.
    Direction {
        /// From the store.
        Read = "read",
        /// To the store, whatever became of them.
        Written = "written",
    }

    /// Whether it was at hand.
    CacheResult {
        /// It was.
        Hit = "hit",
        /// It was not.
        Miss = "miss",
    }

    /// What happened to the assignment.
    Rebalance {
        /// Partitions were added.
        Assigned = "assigned",
        /// Partitions were given up in order.
        Revoked = "revoked",
        /// Partitions were gone before they could be given up.
        Lost = "lost",
    }
}

impl From<&Operation> for OperationKind {
    fn from(operation: &Operation) -> Self {
        match operation {
            Operation::Create(_) => OperationKind::Create,
            Operation::CreateContested(_) => OperationKind::CreateContested,
            Operation::Spend(_) => OperationKind::Spend,
            Operation::ClearCreating => OperationKind::ClearCreating,
            Operation::SetPageSpent { .. } | Operation::SetDeleteAtHeight(_) => OperationKind::Housekeeping,
            Operation::AcquireLockRecord { .. } | Operation::ReleaseLockRecord { .. } => OperationKind::LockRecord,
            Operation::CreateMeta(_) | Operation::ReplaceMeta(_) => OperationKind::Meta,
            Operation::Sequenced(
                _,
                Sequenced::SetMined { .. } | Sequenced::WasMined(_) | Sequenced::UnsetMined { .. },
            ) => OperationKind::Mined,
            Operation::Sequenced(_, Sequenced::Prune { .. }) => OperationKind::Prune,
            Operation::Sequenced(..) => OperationKind::Sequenced,
        }
    }
}

impl EventKind {
    /// The kind of an event that stands in the chain; `None`: it does not belong there.
    pub fn of_chain(event: &Event<'_>) -> Option<Self> {
        Some(match event {
            Event::BlockMined(_) => EventKind::BlockMined,
            Event::Reorg(_) => EventKind::Reorg,
            Event::Contest(_) => EventKind::Contest,
            Event::Command(Command { action: Action::Reconsider { .. }, .. }) => EventKind::Reconsider,
            Event::Command(_) => EventKind::Command,
            _ => return None,
        })
    }
}

impl Label for DeadLetterClass {
    const VALUES: &'static [&'static str] = &["decode", "invalid", "missing-parent", "seed-mismatch", "unsupported"];
    fn index(self) -> usize {
        self as usize
    }
}

impl Label for ErrorKind {
    const VALUES: &'static [&'static str] = &["retryable", "unknown", "too_big", "fatal"];
    fn index(self) -> usize {
        match self {
            ErrorKind::Retryable => 0,
            ErrorKind::Unknown => 1,
            ErrorKind::TooBig => 2,
            ErrorKind::Fatal => 3,
        }
    }
}

impl Label for BlobErrorKind {
    const VALUES: &'static [&'static str] = &["retryable", "unknown", "denied", "corrupt", "invalid"];
    fn index(self) -> usize {
        self as usize
    }
}

impl From<BlobKind> for BlobLabel {
    fn from(kind: BlobKind) -> Self {
        match kind {
            BlobKind::Tx => BlobLabel::Tx,
            BlobKind::Outputs => BlobLabel::Outputs,
        }
    }
}

impl From<bool> for CacheResult {
    fn from(hit: bool) -> Self {
        if hit { CacheResult::Hit } else { CacheResult::Miss }
    }
}

/// Handles of one partition's metrics; drop them with [`Metrics::forget_partition`].
#[derive(Clone)]
pub struct PartitionMetrics {
    /// Messages between the watermark and the end of the partition.
    pub lag_messages: IntGauge,
    /// Age of the oldest event that is not completed, in seconds; 0 when there is none.
    pub lag_seconds: Gauge,
    /// Every event before this offset is completed.
    pub watermark: IntGauge,
    /// 1 while the partition is halted.
    pub halted: IntGauge,
    /// 1 while the partition is paused (backpressure).
    pub paused: IntGauge,
    /// Events read and not completed.
    pub unfinished_events: IntGauge,
    /// Bytes of those events.
    pub unfinished_bytes: IntGauge,
}

/// The metrics: field, type, name, labels and help, each said once.
macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $visibility:vis $field:ident: $type:ty = $name:literal [$($label:literal),*];)*) => {
        /// Every metric of the store.
        pub struct Metrics {
            registry: Registry,
            $($(#[doc = $help])+ $visibility $field: $type,)*
        }

        impl Metrics {
            fn build() -> prometheus::Result<Self> {
                let registry = Registry::new();
                $(
                    let help = concat!($($help),+).trim();
                    let $field = <$type as family::Field>::register(&registry, $name, help, &[$($label),*])?;
                )*
                Ok(Self { registry, $($field),* })
            }
        }
    };
}

metrics! {
    /// Messages between the watermark of a partition and its end.
    lag_messages: IntGaugeVec = "utxo_lag_messages" ["topic", "partition"];
    /// Age in seconds of the oldest event of a partition that is not completed.
    lag_seconds: GaugeVec = "utxo_lag_seconds" ["topic", "partition"];
    /// Offset before which every event of a partition is completed.
    watermark: IntGaugeVec = "utxo_watermark_offset" ["topic", "partition"];
    /// 1 while a partition is halted: it needs an operator.
    halted: IntGaugeVec = "utxo_halted" ["topic", "partition"];
    /// 1 while a partition is paused because too much of it is unfinished.
    paused: IntGaugeVec = "utxo_paused" ["topic", "partition"];
    /// Events of a partition that were read and are not completed.
    unfinished_events: IntGaugeVec = "utxo_unfinished_events" ["topic", "partition"];
    /// Bytes of events of a partition that were read and are not completed.
    unfinished_bytes: IntGaugeVec = "utxo_unfinished_bytes" ["topic", "partition"];
    /// Transactions that wait for a parent or a flag.
    pub parked: IntGauge = "utxo_parked_transactions" [];
    /// The most transactions that have waited for a parent or a flag at once since the start.
    pub parked_max: IntGauge = "utxo_parked_transactions_max" [];
    /// How long the event waits for a parent or a flag that came first of those that wait, once that is longer than the grace of a
    /// missing parent, in seconds; 0: none does.
    pub longest_wait_seconds: IntGauge = "utxo_longest_wait_seconds" [];
    /// 1 while the chain is halted: it needs an operator, or something that is missing.
    pub chain_halted: IntGauge = "utxo_chain_halted" [];
    /// 1 while a sequence number is missing in the topics of blocks and reorgs: the chain waits for it.
    pub chain_gap: IntGauge = "utxo_chain_sequence_gap" [];
    /// Verdicts on contested transactions and on what fell with them, by verdict.
    pub verdicts: Counters<VerdictKind> = "utxo_verdicts_total" ["verdict"];
    /// Everything that was due up to this block height is pruned.
    pub prune_horizon: IntGauge = "utxo_prune_horizon_height" [];
    /// Transactions that the pruner has looked at.
    pub prune_examined: IntCounter = "utxo_prune_examined_total" [];
    /// Transactions that are pruned, by why; and tombstones that are gone.
    pub pruned: Counters<PrunedKind> = "utxo_pruned_total" ["kind"];
    /// Events read, by kind; those of the chain when their turn comes.
    pub events: Counters<EventKind> = "utxo_events_total" ["kind"];
    /// Events of validated partitions read again although an earlier assignment had read them: those below the position
    /// that came with the last commit, so what was read between that commit and a kill is not counted.
    pub replayed_events: IntCounter = "utxo_replayed_events_total" [];
    /// Transactions that left the pipeline, by how.
    pub completed: Counters<Completion> = "utxo_transactions_completed_total" ["result"];
    /// Transactions between read and done, parked ones included.
    pub in_flight: IntGauge = "utxo_transactions_in_flight" [];
    /// Create operations a call of the engine that has any.
    pub create_batch_size: Histogram = "utxo_create_batch_size" [];
    /// Spend operations a call of the engine that has any.
    pub spend_batch_size: Histogram = "utxo_spend_batch_size" [];
    /// Rows of any operation a call of the engine.
    pub engine_batch_size: Histogram = "utxo_engine_batch_size" [];
    /// Time a call spends in the engine, in seconds, by the operation (of a mixed batch: its first).
    pub engine_seconds: Histograms<OperationKind> = "utxo_engine_seconds" ["operation"];
    /// Outcomes of record operations, by operation and code.
    pub outcomes: Outcomes = "utxo_outcomes_total" ["operation", "code"];
    /// Errors of the store, by what the caller may do.
    pub store_errors: Counters<ErrorKind> = "utxo_store_errors" ["type"];
    /// Time a request to the blob store takes, in seconds, by what was asked.
    pub blob_seconds: Histograms<BlobOperation> = "utxo_blob_seconds" ["operation"];
    /// Time it takes to store a body externally, in seconds, by the sort of blob.
    pub create_external: Histograms<BlobLabel> = "utxo_create_external" ["blob"];
    /// Failed requests to the blob store, by what the caller may do.
    pub blob_errors: Counters<BlobErrorKind> = "utxo_blob_errors_total" ["type"];
    /// Bytes that came from the blob store or were sent to it.
    pub blob_bytes: Counters<Direction> = "utxo_blob_bytes_total" ["direction"];
    /// Transactions that were asked of the blob store, by whether they were in its cache.
    pub blob_cache: Counters<CacheResult> = "utxo_blob_cache_total" ["result"];
    /// Contests published.
    pub contests: IntCounter = "utxo_contests_total" [];
    /// Dead letters, by class.
    pub dead_letters: Counters<DeadLetterClass> = "utxo_dead_letters_total" ["class"];
    /// Height of the last block that was applied.
    pub chain_tip_height: IntGauge = "utxo_chain_tip_height" [];
    /// Median of the header times of its last eleven blocks, seconds since the epoch.
    pub chain_median_time: IntGauge = "utxo_chain_median_time_seconds" [];
    /// Offset of the next event of the chain topic to be applied.
    pub chain_offset: IntGauge = "utxo_chain_offset" [];
    /// Transactions of the next block that are not there yet.
    pub sequencer_waiting: IntGauge = "utxo_sequencer_waiting_transactions" [];
    /// Commits of offsets.
    pub commits: IntCounter = "utxo_commits_total" [];
    /// Commits of offsets that failed.
    pub commit_failures: IntCounter = "utxo_commit_failures_total" [];
    /// Restarts of the store's nodes that were noticed, by the pipeline and by the sequencer each for itself.
    pub node_restarts: IntCounter = "utxo_node_restarts_total" [];
    /// Changes of the assignment of partitions, the chain's too, by what happened.
    pub rebalances: Counters<Rebalance> = "utxo_rebalances_total" ["change"];
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A new set of metrics in a registry of its own.
    pub fn new() -> Self {
        Self::build().expect("names, labels and buckets are constants, and a test makes them")
    }

    /// Handles for a partition; made anew (from zero) after [`forget_partition`](Self::forget_partition).
    pub fn partition(&self, partition: &TopicPartition) -> PartitionMetrics {
        let number = partition.partition.to_string();
        let labels = &[&*partition.topic, number.as_str()];
        PartitionMetrics {
            lag_messages: self.lag_messages.with_label_values(labels),
            lag_seconds: self.lag_seconds.with_label_values(labels),
            watermark: self.watermark.with_label_values(labels),
            halted: self.halted.with_label_values(labels),
            paused: self.paused.with_label_values(labels),
            unfinished_events: self.unfinished_events.with_label_values(labels),
            unfinished_bytes: self.unfinished_bytes.with_label_values(labels),
        }
    }

    /// Stops showing a partition that belongs to somebody else now.
    pub fn forget_partition(&self, partition: &TopicPartition) {
        let number = partition.partition.to_string();
        let labels = &[&*partition.topic, number.as_str()];
        let gauges = [
            &self.lag_messages,
            &self.watermark,
            &self.halted,
            &self.paused,
            &self.unfinished_events,
            &self.unfinished_bytes,
        ];
        // What was never shown need not be forgotten.
        gauges.into_iter().for_each(|gauge| drop(gauge.remove_label_values(labels)));
        drop(self.lag_seconds.remove_label_values(labels));
    }

    /// All metrics in Prometheus's text format.
    ///
    /// # Errors
    /// A metric that cannot be written as text.
    pub fn encode(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests;
