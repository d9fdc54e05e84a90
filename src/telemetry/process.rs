//! Metrics that only a process of one kind shows: [`VaultMetrics`] and [`BridgeMetrics`].

use prometheus::{IntCounter, IntGauge};

use super::{Metrics, family::MetricField};

/// Declares the metrics of a kind of process once: field, type, name, labels and help text.
macro_rules! process_metrics {
    ($(#[$attribute:meta])* $metrics:ident {
        $($(#[doc = $help:literal])+ $field:ident: $type:ty = $name:literal [$($label:literal),*];)*
    }) => {
        $(#[$attribute])*
        #[derive(Clone)]
        pub struct $metrics {
            $($(#[doc = $help])+ pub $field: $type,)*
        }

        impl $metrics {
            /// Adds these metrics to those of the process.
            ///
            /// # Errors
            /// The process has these metrics already.
            pub fn register(metrics: &Metrics) -> prometheus::Result<Self> {
                $(
                    let help = concat!($($help),+).trim();
                    let $field = <$type as MetricField>::register(&metrics.registry, $name, help, &[$($label),*])?;
                )*
                Ok($metrics { $($field),* })
            }
        }
    };
}

#[cfg(feature = "vault")]
process_metrics! {
    /// Metrics of a process of the vault. Cheap to clone.
    VaultMetrics {
        /// Requests that lock outputs, by operation and result: `ok`, or the kind of the refusal.
        requests: prometheus::IntCounterVec = "utxo_vault_requests_total" ["operation", "result"];
        /// Soft locks and sessions that are in force.
        locks: IntGauge = "utxo_vault_locks" [];
        /// Outputs that a soft lock has.
        locked_outputs: IntGauge = "utxo_vault_locked_outputs" [];
        /// Age in seconds of the oldest soft lock in force; 0: no lock.
        oldest_lock_seconds: IntGauge = "utxo_vault_oldest_lock_seconds" [];
        /// Messages of the assigned partitions that are not recorded yet.
        lag_messages: IntGauge = "utxo_vault_lag_messages" [];
        /// Messages of the topics that were recorded.
        messages: IntCounter = "utxo_vault_messages_total" [];
        /// Outputs of watched scripts in these messages.
        outputs: IntCounter = "utxo_vault_outputs_total" [];
        /// Outputs about which the store was asked again.
        answers: IntCounter = "utxo_vault_answers_total" [];
        /// Answers that differed from the row of the output.
        changed_answers: IntCounter = "utxo_vault_changed_answers_total" [];
        /// Height of the last block up to which the rows follow the chain; 0 where another process asks the store.
        tip_height: IntGauge = "utxo_vault_tip_height" [];
        /// Messages and transactions that rescans have read.
        rescanned: IntCounter = "utxo_vault_rescanned_total" [];
    }
}

process_metrics! {
    /// Metrics of a bridge. Cheap to clone.
    BridgeMetrics {
        /// Transactions that were published.
        transactions: IntCounter = "utxo_bridge_transactions_total" [];
        /// Messages that became dead letters.
        dead_letters: IntCounter = "utxo_bridge_dead_letters_total" [];
        /// Events of blocks and reorgs that were published.
        block_events: IntCounter = "utxo_bridge_block_events_total" [];
        /// Block messages that were repeats.
        repeated_blocks: IntCounter = "utxo_bridge_repeated_blocks_total" [];
        /// Blocks that wait for a message of their previous block.
        waiting_blocks: IntGauge = "utxo_bridge_waiting_blocks" [];
    }
}
