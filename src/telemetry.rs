//! Every metric, with its name and help text, and the set-up of logging.
//!
//! [`Metrics`] owns its registry, so that two pipelines in one process do not mix. Labels with fixed values are enums:
//! [`Counters`] and [`Histograms`] hold a handle for each value. Partitions get their handles with
//! [`Metrics::partition`]. The hot path thereby only adds to atomics. The names `utxo_create_batch_size` and
//! `utxo_store_errors` are those of the reference document; Prometheus' own collector adds `process_*`.

mod engine;
mod family;
mod labels;
mod logging;
mod process;

use std::time::Duration;

use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    TextEncoder,
};

use crate::{broker::TopicPartition, engine::ErrorKind, event::DeadLetterClass};

pub use engine::WatchedEngine;
pub use family::{Counters, Histograms, Label, OutcomeCounters};
pub use labels::{
    BlobErrorKind, BlobKind, BlobOperation, CacheResult, CommitFailure, Completion, DrainReason, EventKind,
    OperationKind, PrunedKind, PublishedOutcome, RebalanceChange, TransferDirection, TryCause, VerdictKind,
};
pub use logging::{LogFormat, LoggingError, init_logging};
pub use process::BridgeMetrics;
#[cfg(feature = "vault")]
pub use process::VaultMetrics;

/// Metrics of each assigned partition, created and removed together.
macro_rules! partition_metrics {
    ($($field:ident: $type:ty,)*) => {
        /// Handles of one partition's metrics, documented by their help texts. [`Metrics::remove_partition`] removes
        /// them.
        #[derive(Clone)]
        #[allow(missing_docs)]
        pub struct PartitionMetrics { $(pub $field: $type,)* }

        impl Metrics {
            /// Handles for a partition; new handles start from zero after [`remove_partition`](Self::remove_partition).
            pub fn partition(&self, partition: &TopicPartition) -> PartitionMetrics {
                let number = partition.partition.to_string();
                let labels = &[&*partition.topic, number.as_str()];
                PartitionMetrics { $($field: self.$field.with_label_values(labels),)* }
            }

            /// Removes the metrics of a partition that is no longer assigned.
            pub fn remove_partition(&self, partition: &TopicPartition) {
                let number = partition.partition.to_string();
                let labels = &[&*partition.topic, number.as_str()];
                // A metric that was never created is not there to remove, which is no error.
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

/// Declares each metric once: field, type, name, labels and help text.
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
                    let $field = <$type as family::MetricField>::register(&registry, $name, help, &[$($label),*])?;
                )*
                Ok(Self { registry, $($field),* })
            }
        }
    };
}

metrics! {
    /// Messages from the watermark of a partition to the end offset.
    lag_messages: IntGaugeVec = "utxo_lag_messages" ["topic", "partition"];
    /// Age in seconds, by its timestamp, of the oldest event of a partition that is not completed; where every event
    /// read is completed and more can be read, age of the last event read; 0 when everything is completed.
    lag_seconds: GaugeVec = "utxo_lag_seconds" ["topic", "partition"];
    /// Seconds since this instance read the first event of a partition that is not completed; 0 when there is none.
    oldest_in_flight_seconds: GaugeVec = "utxo_oldest_in_flight_seconds" ["topic", "partition"];
    /// Offset of the next event of a partition to read.
    position: IntGaugeVec = "utxo_position_offset" ["topic", "partition"];
    /// Offset below which every event of a partition is completed.
    watermark: IntGaugeVec = "utxo_watermark_offset" ["topic", "partition"];
    /// Committed offset of a partition; -1: none yet.
    committed: IntGaugeVec = "utxo_committed_offset" ["topic", "partition"];
    /// Last known end offset of a partition: offset of the next message to be produced.
    high_watermark: IntGaugeVec = "utxo_high_watermark_offset" ["topic", "partition"];
    /// Epoch of the assignment of a partition; another one after every assignment and every rewind.
    epoch: IntGaugeVec = "utxo_assignment_epoch" ["topic", "partition"];
    /// 1 while a partition is halted and needs an operator.
    halted: IntGaugeVec = "utxo_halted" ["topic", "partition"];
    /// 1 while a partition is not read: backpressure, a halt, or a pause by an operator.
    paused: IntGaugeVec = "utxo_paused" ["topic", "partition"];
    /// 1 while a partition is paused by an operator.
    paused_by_operator: IntGaugeVec = "utxo_paused_by_operator" ["topic", "partition"];
    /// Events of a partition that are read and not completed.
    unfinished_events: IntGaugeVec = "utxo_unfinished_events" ["topic", "partition"];
    /// Payload bytes of the events of a partition that are read and not completed.
    unfinished_bytes: IntGaugeVec = "utxo_unfinished_bytes" ["topic", "partition"];
    /// Transactions of a partition that wait for a parent or a flag.
    parked_events: IntGaugeVec = "utxo_parked_events" ["topic", "partition"];
    /// Transactions that wait for a parent or a flag.
    pub parked: IntGauge = "utxo_parked_transactions" [];
    /// Most transactions that have waited for a parent or a flag at once since the start.
    pub parked_max: IntGauge = "utxo_parked_transactions_max" [];
    /// Tries of parked transactions, by cause.
    pub parked_tries: Counters<TryCause> = "utxo_parked_tries_total" ["cause"];
    /// Wait in seconds of the event that has waited longest for a parent or a flag; 0 while no wait is longer than the
    /// grace of a missing parent.
    pub longest_wait_seconds: IntGauge = "utxo_longest_wait_seconds" [];
    /// 1 while the chain is halted and needs an operator or a missing transaction.
    pub chain_halted: IntGauge = "utxo_chain_halted" [];
    /// 1 while the chain waits for a missing sequence number of the topics of blocks and reorgs.
    pub chain_gap: IntGauge = "utxo_chain_sequence_gap" [];
    /// Verdicts on contested transactions and on their descendants, by verdict.
    pub verdicts: Counters<VerdictKind> = "utxo_verdicts_total" ["verdict"];
    /// Block height up to which every record that was due is pruned.
    pub prune_horizon: IntGauge = "utxo_prune_horizon_height" [];
    /// Transactions that the pruner has examined.
    pub prune_examined: IntCounter = "utxo_prune_examined_total" [];
    /// Pruned transactions, by reason, and shrunk tombstones.
    pub pruned: Counters<PrunedKind> = "utxo_pruned_total" ["kind"];
    /// Half-created transactions that the recovery in the background has completed.
    pub recovered: IntCounter = "utxo_recovered_transactions_total" [];
    /// Half-created transactions older than an hour, of the oldest thousand pages; 0 where another instance has the
    /// chain.
    pub half_created_old: IntGauge = "utxo_half_created_older_than_an_hour" [];
    /// Events read, by kind; events of the chain count when they are handled.
    pub events: Counters<EventKind> = "utxo_events_total" ["kind"];
    /// Events of validated partitions that an earlier assignment had read: events below the position that came with the
    /// last commit. Events read between that commit and a kill are not counted.
    pub replayed_events: IntCounter = "utxo_replayed_events_total" [];
    /// Transactions that left the pipeline, by result.
    pub completed: Counters<Completion> = "utxo_transactions_completed_total" ["result"];
    /// Transactions that are read and not completed, parked ones included.
    pub in_flight: IntGauge = "utxo_transactions_in_flight" [];
    /// Create operations in a call of the engine with at least one of them.
    pub create_batch_size: Histogram = "utxo_create_batch_size" [];
    /// Spend operations in a call of the engine with at least one of them.
    pub spend_batch_size: Histogram = "utxo_spend_batch_size" [];
    /// Rows of any operation in a call of the engine.
    pub engine_batch_size: Histogram = "utxo_engine_batch_size" [];
    /// Time of a call of the engine, in seconds, by operation; a mixed batch counts as its first operation.
    pub engine_seconds: Histograms<OperationKind> = "utxo_engine_seconds" ["operation"];
    /// Outcomes of record operations, by operation and code.
    pub outcomes: OutcomeCounters = "utxo_outcomes_total" ["operation", "code"];
    /// Errors of the store, by the caller's possible reaction.
    pub store_errors: Counters<ErrorKind> = "utxo_store_errors" ["type"];
    /// Time of a request to the blob store, in seconds, by operation.
    pub blob_seconds: Histograms<BlobOperation> = "utxo_blob_seconds" ["operation"];
    /// Time to store a body in the blob store, in seconds, by the kind of blob.
    pub create_external: Histograms<BlobKind> = "utxo_create_external" ["blob"];
    /// Failed requests to the blob store, by the caller's possible reaction.
    pub blob_errors: Counters<BlobErrorKind> = "utxo_blob_errors_total" ["type"];
    /// Bytes that were read from the blob store or sent to it.
    pub blob_bytes: Counters<TransferDirection> = "utxo_blob_bytes_total" ["direction"];
    /// Bodies requested from the blob store, by presence in the cache.
    pub blob_cache: Counters<CacheResult> = "utxo_blob_cache_total" ["result"];
    /// Contests that the pipeline has published.
    pub contests: IntCounter = "utxo_contests_total" [];
    /// Dead letters published, by class.
    pub dead_letters: Counters<DeadLetterClass> = "utxo_dead_letters_total" ["class"];
    /// Transactions in published outcomes, by content.
    pub published_outcomes: Counters<PublishedOutcome> = "utxo_outcomes_published_total" ["outcome"];
    /// Height of the last block that was applied.
    pub chain_tip_height: IntGauge = "utxo_chain_tip_height" [];
    /// Median header time of the chain's last eleven blocks, seconds since the epoch.
    pub chain_median_time: IntGauge = "utxo_chain_median_time_seconds" [];
    /// Offset of the next event of the chain topic to handle.
    pub chain_offset: IntGauge = "utxo_chain_offset" [];
    /// Transactions of the next block that are missing in the store.
    pub sequencer_waiting: IntGauge = "utxo_sequencer_waiting_transactions" [];
    /// Commits of offsets to the group coordinator.
    pub commits: IntCounter = "utxo_commits_total" [];
    /// Commits of offsets that failed or were not tried, by reason.
    pub commit_failures: Counters<CommitFailure> = "utxo_commit_failures_total" ["reason"];
    /// Restarts of the store's nodes, counted by the pipeline and by the sequencer separately.
    pub node_restarts: IntCounter = "utxo_node_restarts_total" [];
    /// Changes of the assignment, the chain's included, by kind; a change counts once for any number of partitions.
    pub rebalances: Counters<RebalanceChange> = "utxo_rebalances_total" ["change"];
    /// Time until the events in flight were completed before a revocation or shutdown, in seconds, by reason.
    pub drain_seconds: Histograms<DrainReason> = "utxo_drain_seconds" ["reason"];
    /// 1 while a condition of readiness is met, 0 while it is not.
    condition_met: IntGaugeVec = "utxo_condition_met" ["condition"];
    /// 0 while this process has work and makes no progress: `/health/live` fails.
    live: IntGauge = "utxo_live" [];
    /// Requests over HTTP, by route, method and status.
    http_requests: IntCounterVec = "utxo_http_requests_total" ["route", "method", "status"];
    /// Time until the answer to a request over HTTP begins, in seconds, by route.
    http_seconds: HistogramVec = "utxo_http_seconds" ["route"];
    /// Bytes that the requests of the API hold at the moment: bodies, and what their answers need.
    pub http_bytes_in_flight: IntGauge = "utxo_http_bytes_in_flight" [];
    /// 1 while the files of the server's certificate are refused, and the last good certificate is in use.
    pub http_certificate_refused: IntGauge = "utxo_http_certificate_refused" [];
    /// 1 while the token file has a bad line, no token, or cannot be read.
    pub http_tokens_refused: IntGauge = "utxo_http_tokens_refused" [];
    /// Always 1; the label has the version of the program.
    build_info: IntGaugeVec = "utxo_build_info" ["version"];
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Creates the metrics in a registry of their own.
    pub fn new() -> Self {
        let metrics = Self::build().expect("names, labels and buckets are constants, and a test makes them");
        metrics.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        // The collector reads `/proc`, which only Linux has.
        #[cfg(target_os = "linux")]
        metrics
            .registry
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
            .expect("no other metric has a name that begins with process_");
        metrics.live.set(1);
        metrics
    }

    /// Sets the metrics of liveness and of the conditions of readiness.
    pub fn publish_health<'a>(&self, live: bool, conditions: impl IntoIterator<Item = (&'a str, bool)>) {
        self.live.set(i64::from(live));
        for (condition, met) in conditions {
            self.condition_met.with_label_values(&[condition]).set(i64::from(met));
        }
    }

    /// Counts a request over HTTP. `route` and `method` are of a fixed set.
    pub fn observe_http(&self, route: &str, method: &str, status: u16, time: Duration) {
        self.http_requests.with_label_values(&[route, method, &status.to_string()]).inc();
        self.http_seconds.with_label_values(&[route]).observe(time.as_secs_f64());
    }

    /// Encodes all metrics in the text format of Prometheus.
    ///
    /// # Errors
    /// A metric cannot be written as text.
    pub fn encode(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests;
