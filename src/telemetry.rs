//! Every metric, with its name and help text, and the set-up of logging.
//!
//! [`Metrics`] owns its registry: two pipelines in one process do not mix. Label values that are known beforehand are enums
//! ([`Counters`] and [`Histograms`] hold a handle for each); partitions get their handles with [`Metrics::partition`]. So the hot
//! path only adds to atomics. Names that the seed gives (`utxo_create_batch_size`, `utxo_store_errors`) are kept.

mod engine;
mod family;
mod labels;
mod logging;
mod process;

use prometheus::{Encoder, Gauge, GaugeVec, Histogram, IntCounter, IntGauge, IntGaugeVec, Registry, TextEncoder};

use crate::{broker::TopicPartition, engine::ErrorKind, event::DeadLetterClass};

pub use engine::WatchedEngine;
pub use family::{Counters, Family, Histograms, Label, Outcomes};
pub use labels::{
    BlobFailure, BlobLabel, BlobOperation, CacheResult, CommitFailure, Completion, Direction, Drain, EventKind,
    OperationKind, PrunedKind, Rebalance, VerdictKind,
};
pub use logging::{LogFormat, LoggingError, init_logging};

/// What is shown of each partition that is held: made, and taken away again, together.
macro_rules! partition_metrics {
    ($($field:ident: $type:ty,)*) => {
        /// Handles of one partition's metrics, each as its help text says; drop them with [`Metrics::forget_partition`].
        #[derive(Clone)]
        #[allow(missing_docs)]
        pub struct PartitionMetrics { $(pub $field: $type,)* }

        impl Metrics {
            /// Handles for a partition; made anew (from zero) after [`forget_partition`](Self::forget_partition).
            pub fn partition(&self, partition: &TopicPartition) -> PartitionMetrics {
                let number = partition.partition.to_string();
                let labels = &[&*partition.topic, number.as_str()];
                PartitionMetrics { $($field: self.$field.with_label_values(labels),)* }
            }

            /// Stops showing a partition that belongs to somebody else now.
            pub fn forget_partition(&self, partition: &TopicPartition) {
                let number = partition.partition.to_string();
                let labels = &[&*partition.topic, number.as_str()];
                // What was never shown need not be forgotten.
                $(drop(self.$field.remove_label_values(labels));)*
            }
        }
    };
}

partition_metrics! {
    lag_messages: IntGauge,
    lag_seconds: Gauge,
    oldest_in_flight_seconds: Gauge,
    position: IntGauge,
    watermark: IntGauge,
    committed: IntGauge,
    high_watermark: IntGauge,
    epoch: IntGauge,
    halted: IntGauge,
    paused: IntGauge,
    paused_by_operator: IntGauge,
    unfinished_events: IntGauge,
    unfinished_bytes: IntGauge,
    parked_events: IntGauge,
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
    /// Age in seconds, by its timestamp, of the oldest event of a partition that is not completed; where none is and there is more to
    /// read, of the latest that was read; 0 when everything is completed.
    lag_seconds: GaugeVec = "utxo_lag_seconds" ["topic", "partition"];
    /// Seconds since the first event of a partition that is not completed was read here; 0 when there is none.
    oldest_in_flight_seconds: GaugeVec = "utxo_oldest_in_flight_seconds" ["topic", "partition"];
    /// Offset of the next event of a partition to be read.
    position: IntGaugeVec = "utxo_position_offset" ["topic", "partition"];
    /// Offset before which every event of a partition is completed.
    watermark: IntGaugeVec = "utxo_watermark_offset" ["topic", "partition"];
    /// Offset of a partition that the group has committed; -1: none yet.
    committed: IntGaugeVec = "utxo_committed_offset" ["topic", "partition"];
    /// End of a partition, as last heard: offset of the next message to be produced.
    high_watermark: IntGaugeVec = "utxo_high_watermark_offset" ["topic", "partition"];
    /// Epoch of the assignment of a partition: another one with every assignment, and whenever it is read again.
    epoch: IntGaugeVec = "utxo_assignment_epoch" ["topic", "partition"];
    /// 1 while a partition is halted: it needs an operator.
    halted: IntGaugeVec = "utxo_halted" ["topic", "partition"];
    /// 1 while nothing is read of a partition: too much is unfinished, it is halted, or an operator has paused it.
    paused: IntGaugeVec = "utxo_paused" ["topic", "partition"];
    /// 1 while a partition is paused because an operator has said so.
    paused_by_operator: IntGaugeVec = "utxo_paused_by_operator" ["topic", "partition"];
    /// Events of a partition that were read and are not completed.
    unfinished_events: IntGaugeVec = "utxo_unfinished_events" ["topic", "partition"];
    /// Bytes of events of a partition that were read and are not completed.
    unfinished_bytes: IntGaugeVec = "utxo_unfinished_bytes" ["topic", "partition"];
    /// Transactions of a partition that wait for a parent or a flag.
    parked_events: IntGaugeVec = "utxo_parked_events" ["topic", "partition"];
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
    pub blob_errors: Counters<BlobFailure> = "utxo_blob_errors_total" ["type"];
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
    /// Commits of offsets that failed, or were not tried, by why.
    pub commit_failures: Counters<CommitFailure> = "utxo_commit_failures_total" ["reason"];
    /// Restarts of the store's nodes that were noticed, by the pipeline and by the sequencer each for itself.
    pub node_restarts: IntCounter = "utxo_node_restarts_total" [];
    /// Changes of the assignment of partitions, however many they were of, the chain's too, by what happened.
    pub rebalances: Counters<Rebalance> = "utxo_rebalances_total" ["change"];
    /// Time it took until what moved had come to its end, in seconds, by why it had to.
    pub drain_seconds: Histograms<Drain> = "utxo_drain_seconds" ["reason"];
    /// 1 while a condition of readiness is met, 0 while it is not.
    condition_met: IntGaugeVec = "utxo_condition_met" ["condition"];
    /// 0 while this process stands with work at hand: `/health/live` fails.
    live: IntGauge = "utxo_live" [];
    /// Resident memory of this process, in bytes.
    resident_memory: IntGauge = "utxo_resident_memory_bytes" [];
    /// Files and connections that this process has open.
    open_files: IntGauge = "utxo_open_files" [];
    /// When this process started, in seconds since the epoch.
    start_time: IntGauge = "utxo_start_time_seconds" [];
    /// Always 1; its label says which version this is.
    build_info: IntGaugeVec = "utxo_build_info" ["version"];
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A new set of metrics in a registry of its own.
    pub fn new() -> Self {
        let metrics = Self::build().expect("names, labels and buckets are constants, and a test makes them");
        metrics.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        metrics.start_time.set(process::start_time_s());
        metrics.live.set(1);
        metrics
    }

    /// Shows how this process is: whether it lives, and which conditions of readiness are met.
    pub fn show_health<'a>(&self, live: bool, conditions: impl IntoIterator<Item = (&'a str, bool)>) {
        self.live.set(i64::from(live));
        for (condition, met) in conditions {
            self.condition_met.with_label_values(&[condition]).set(i64::from(met));
        }
    }

    /// All metrics in Prometheus's text format.
    ///
    /// # Errors
    /// A metric that cannot be written as text.
    pub fn encode(&self) -> Result<String, prometheus::Error> {
        // Where the machine does not say, there is nothing to show.
        process::resident_bytes().into_iter().for_each(|bytes| self.resident_memory.set(bytes));
        process::open_files().into_iter().for_each(|files| self.open_files.set(files));
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests;
