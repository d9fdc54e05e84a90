//! [`VaultMetrics`]: metrics that only a process of the vault shows.

use prometheus::{IntCounter, IntCounterVec, IntGauge};

use super::{Metrics, family::MetricField};

/// Declares each metric of the vault once: field, type, name, labels and help text.
macro_rules! vault_metrics {
    ($($(#[doc = $help:literal])+ $field:ident: $type:ty = $name:literal [$($label:literal),*];)*) => {
        /// Metrics of a process of the vault. Cheap to clone.
        #[derive(Clone)]
        pub struct VaultMetrics {
            $($(#[doc = $help])+ pub $field: $type,)*
        }

        impl VaultMetrics {
            /// Adds the metrics of a vault to those of its process.
            ///
            /// # Errors
            /// The process has the metrics of a vault already.
            pub fn register(metrics: &Metrics) -> prometheus::Result<Self> {
                $(
                    let help = concat!($($help),+).trim();
                    let $field = <$type as MetricField>::register(&metrics.registry, $name, help, &[$($label),*])?;
                )*
                Ok(VaultMetrics { $($field),* })
            }
        }
    };
}

vault_metrics! {
    /// Requests that lock outputs, by operation and result: `ok`, or the kind of the refusal.
    requests: IntCounterVec = "utxo_vault_requests_total" ["operation", "result"];
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
