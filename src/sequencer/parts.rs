//! The services, topics and limits that the sequencer works with.

use std::{sync::Arc, time::Duration};

use crate::{
    broker::{Broker, Producer, identity::TopicGuard},
    clock::Clock,
    group::{notify::TxNotifier, outcomes::OutcomeTopic},
    liveness::LoopMonitor,
    record::Restored,
    replay::LastVerdicts,
    sequencer::{
        command::ValidatedSource,
        prune::PruneTask,
        record_cache::{CachedEngine, RecordCache},
        recovery::RecoveryTask,
        speculation::Speculation,
        waiting::ReportedWait,
    },
    status::{Health, health::Workload},
    store::{StateStore, create::Creator, ownership::StoreOwnership, restart_detector::RestartDetector},
    telemetry::Metrics,
};

/// Topics that the sequencer reads and writes.
#[derive(Debug, Clone)]
pub struct SequencerTopics {
    /// The topic `utxo.block-mined`: blocks of the block feed.
    pub block_mined: String,
    /// The topic `utxo.reorgs`: reorgs of the block feed.
    pub reorgs: String,
    /// The topic `utxo.chain`: the chain log.
    pub chain: String,
    /// The topic `utxo.decisions`: decisions, written ahead.
    pub decisions: String,
    /// The topic `utxo.outcomes`: outcomes for validators and clients.
    pub outcomes: String,
    /// The topic `utxo.dead-letters`: events that cannot be applied.
    pub dead_letters: String,
}

impl SequencerTopics {
    /// Returns the topics that make the chain. Their events count only while their topic ids are those of the store.
    pub fn guarded(&self) -> Vec<String> {
        [&self.chain, &self.decisions, &self.block_mined, &self.reorgs].into_iter().cloned().collect()
    }

    /// Returns the topics whose events the feed appends to the chain log.
    pub fn fed(&self) -> Vec<String> {
        vec![self.block_mined.clone(), self.reorgs.clone()]
    }
}

/// Limits of the sequencer.
#[derive(Debug, Clone, Copy)]
pub struct SequencerSettings {
    /// Time that a block waits for its transactions before the chain counts as halted.
    pub block_wait: Duration,
    /// Descendants that one decision names at most.
    pub descendants_per_decision: usize,
    /// Limits of the memory that one verdict takes.
    pub verdict_memory: VerdictMemory,
    /// Events that a window has at most; 0: each event is handled alone.
    pub window_events: usize,
    /// Time between two commits of the chain offset.
    pub commit_interval: Duration,
    /// True if the transactions of each block are published as mined, and those of a disconnected block as unmined.
    pub mined_outcomes: bool,
    /// Rate of pruning; `None`: the sequencer does not prune.
    pub prune: Option<PruneTask>,
    /// Recovery of half-created transactions in the background; `None`: none.
    pub recovery: Option<RecoveryTask>,
}

/// Limits of the memory that one verdict takes, besides a fingerprint of each descendant.
#[derive(Debug, Clone, Copy)]
pub struct VerdictMemory {
    /// Estimated bytes of decided descendants. Further ones are read again from the decisions topic.
    pub chunk_bytes: usize,
    /// Settled slots. The second chances of these slots are published before further ones are settled.
    pub settled_slots: usize,
}

impl Default for VerdictMemory {
    fn default() -> Self {
        VerdictMemory { chunk_bytes: 4 << 20, settled_slots: 65_536 }
    }
}

/// The services and settings that the sequencer is made of.
#[derive(Clone)]
pub struct SequencerParts {
    /// The broker that holds the log.
    pub broker: Arc<dyn Broker>,
    /// The producer of decisions, outcomes, dead letters and fed events.
    pub producer: Arc<dyn Producer>,
    /// The store that holds the state.
    pub store: StateStore,
    /// Creates transactions of several pages.
    pub creator: Creator,
    /// Names of the topics that the sequencer reads and writes.
    pub topics: SequencerTopics,
    /// The topic of outcomes, with its number of partitions.
    pub outcomes: OutcomeTopic,
    /// Topic and consumer group of validated transactions.
    pub validated: ValidatedSource,
    /// Limits and intervals of the sequencer.
    pub settings: SequencerSettings,
    /// The clock of the instance.
    pub clock: Clock,
    /// Metrics of the instance.
    pub metrics: Arc<Metrics>,
    /// Readiness and liveness of the instance.
    pub health: Arc<Health>,
    /// Detects restarts of the store's nodes, which can lose writes.
    pub nodes: RestartDetector,
    /// Confirms that the topics are those that the store was made from.
    pub guard: TopicGuard,
    /// Verifies that the store belongs to the group and has lost no part.
    pub ownership: Arc<dyn StoreOwnership>,
    /// Wakes the pipeline's transactions that wait for a parent created here.
    pub tx_notifier: TxNotifier,
    /// The last verdicts before a rebuild's frontier; empty without a rebuild.
    pub verdicts: Arc<LastVerdicts>,
    /// The restore of a store that reads the log again; zeros for any other store.
    pub restored: Arc<Restored>,
    /// The loop monitor of the worker that waits with these parts; `None`: the waits are not the worker's.
    pub monitor: Option<LoopMonitor>,
    /// The window whose events are evaluated with these parts; `None`: the parts write to the store and to the log.
    pub speculation: Option<Arc<Speculation>>,
    /// Records that the store of these parts reads from memory; a wait clears the cache.
    pub record_cache: Option<Arc<RecordCache>>,
}

impl SequencerParts {
    /// Returns the same parts with a cache in front of the store.
    pub(super) fn with_record_cache(&self) -> (Self, Arc<RecordCache>) {
        let cache = Arc::new(RecordCache::default());
        let mut store = self.store.clone();
        store.engine = Arc::new(CachedEngine { inner: store.engine.clone(), cache: cache.clone() });
        let creator = self.creator.with_store(store.clone());
        (SequencerParts { store, creator, record_cache: Some(cache.clone()), ..self.clone() }, cache)
    }

    /// Records that the worker with these parts is not stalled. Does nothing without a monitor.
    pub(super) fn beat(&self) {
        if let Some(monitor) = &self.monitor {
            monitor.beat();
            self.health.liveness().record_progress(Workload::Chain);
        }
    }

    /// Runs work on the store or the log, which retry by themselves, and reports the wait as a wait for `of`.
    pub(super) async fn wait_for<T>(&self, of: &str, work: impl Future<Output = T>) -> T {
        // Boxed: a part of every future of the handlers, which would all be large.
        ReportedWait::new(self, of).run(Box::pin(work)).await
    }
}
