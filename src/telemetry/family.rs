//! Registration of metrics; label values are resolved once.

use std::{collections::BTreeMap, marker::PhantomData, sync::OnceLock};

use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    Result, core::Collector,
};

use super::OperationKind;
use crate::record::Outcome;

/// A label with a fixed list of values.
pub trait Label: Copy + 'static {
    /// Values of the label, as metrics show them.
    const VALUES: &'static [&'static str];

    /// Index of this value in [`VALUES`](Self::VALUES).
    fn index(self) -> usize;
}

/// Metrics by the values of a label. Every value is resolved at the start and shown from zero.
pub struct Family<L, M> {
    metrics: Box<[M]>,
    label: PhantomData<fn(L)>,
}

/// Counters by the values of a label.
pub type Counters<L> = Family<L, IntCounter>;

/// Histograms by the values of a label.
pub type Histograms<L> = Family<L, Histogram>;

impl<L: Label, M> Family<L, M> {
    fn new(resolve: impl Fn(&'static str) -> M) -> Self {
        Self { metrics: L::VALUES.iter().map(|value| resolve(value)).collect(), label: PhantomData }
    }

    /// Metric of this label value.
    pub fn of(&self, label: L) -> &M {
        &self.metrics[label.index()]
    }

    /// Name of this label value in the metrics.
    pub fn name_of(&self, label: L) -> &'static str {
        L::VALUES[label.index()]
    }
}

impl<L: Label> Counters<L> {
    /// Sum over all values of the label.
    pub fn total(&self) -> u64 {
        self.metrics.iter().map(IntCounter::get).sum()
    }

    /// Current counts by the value of the label.
    pub fn now(&self) -> BTreeMap<&'static str, u64> {
        L::VALUES.iter().copied().zip(self.metrics.iter().map(IntCounter::get)).collect()
    }
}

/// Codes of outcomes, the most frequent first: the list is searched in this order.
const CODES: &[&str] = &[
    APPLIED,
    ALREADY_APPLIED,
    "SPENT",
    "CONTESTED",
    "TX_NOT_FOUND",
    "TX_EXISTS",
    "CREATING",
    "LOCKED",
    "CONFLICTING",
    "COINBASE_IMMATURE",
    "UTXO_NOT_FOUND",
    "UTXO_HASH_MISMATCH",
    "OUTPUT_MISMATCH",
    "FROZEN",
    "FROZEN_UNTIL",
    "PRUNED",
    "SPENDER_PRUNED",
    "INVALID_SPEND",
    "NOT_FROZEN",
    "ALREADY_FROZEN",
    "STALE_STAMP",
    "LOCK_RECORD_HELD",
    "NOT_PRUNABLE",
    "UNEXPECTED",
];
const APPLIED: &str = "APPLIED";
const ALREADY_APPLIED: &str = "ALREADY_APPLIED";

/// Counts outcomes by operation and code. A pair is resolved, and shown, at its first outcome.
pub struct OutcomeCounters {
    vec: IntCounterVec,
    handles: Box<[OnceLock<IntCounter>]>,
}

impl OutcomeCounters {
    fn new(vec: IntCounterVec) -> Self {
        let size = OperationKind::VALUES.len() * CODES.len();
        Self { vec, handles: (0..size).map(|_| OnceLock::new()).collect() }
    }

    /// Counts one outcome of an operation.
    pub fn count(&self, kind: OperationKind, outcome: &Outcome) {
        let code = match outcome {
            Outcome::Applied(_) => APPLIED,
            Outcome::AlreadyApplied(_) => ALREADY_APPLIED,
            Outcome::Rejected(rejection) => rejection.code(),
        };
        let resolve = || self.vec.with_label_values(&[OperationKind::VALUES[kind.index()], code]);
        match CODES.iter().position(|known| *known == code) {
            Some(index) => self.handles[kind.index() * CODES.len() + index].get_or_init(resolve).inc(),
            None => resolve().inc(),
        }
    }
}

/// Buckets of batch sizes: powers of two up to the largest batch.
fn size_buckets() -> Vec<f64> {
    (0..=16).map(|power| f64::from(1_u32 << power)).collect()
}

/// Buckets of times in seconds: from 50 µs (memory) to 60 s (a slow store, a drain).
const SECONDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 20.0, 60.0,
];

/// Type of a field of [`Metrics`](super::Metrics), which can register itself.
pub(super) trait MetricField: Sized {
    fn register(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<Self>;
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

impl MetricField for IntCounter {
    fn register(registry: &Registry, name: &str, help: &str, _: &[&str]) -> Result<Self> {
        register(registry, IntCounter::new(name, help)?)
    }
}

impl MetricField for IntGauge {
    fn register(registry: &Registry, name: &str, help: &str, _: &[&str]) -> Result<Self> {
        register(registry, IntGauge::new(name, help)?)
    }
}

impl MetricField for Histogram {
    fn register(registry: &Registry, name: &str, help: &str, _: &[&str]) -> Result<Self> {
        register(registry, Histogram::with_opts(HistogramOpts::new(name, help).buckets(size_buckets()))?)
    }
}

impl MetricField for IntGaugeVec {
    fn register(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<Self> {
        register(registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
    }
}

impl MetricField for GaugeVec {
    fn register(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<Self> {
        register(registry, GaugeVec::new(Opts::new(name, help), labels)?)
    }
}

impl MetricField for IntCounterVec {
    fn register(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<Self> {
        register(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
    }
}

impl MetricField for HistogramVec {
    fn register(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<Self> {
        register(registry, HistogramVec::new(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()), labels)?)
    }
}

impl<L: Label> MetricField for Counters<L> {
    fn register(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<Self> {
        register(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
            .map(|vec| Family::new(|value| vec.with_label_values(&[value])))
    }
}

impl<L: Label> MetricField for Histograms<L> {
    fn register(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<Self> {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        register(registry, HistogramVec::new(options, labels)?)
            .map(|vec| Family::new(|value| vec.with_label_values(&[value])))
    }
}

impl MetricField for OutcomeCounters {
    fn register(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<Self> {
        register(registry, IntCounterVec::new(Opts::new(name, help), labels)?).map(OutcomeCounters::new)
    }
}
