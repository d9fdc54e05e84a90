//! The state page: statuses that the loops of an instance publish.
//!
//! The page waits for no loop, so that it answers while the store or the log does not. The page has counts, offsets,
//! names and reasons, and no settings: no secret can appear.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde::Serialize;

use super::health::{ConditionStatus, Health, HealthReport};
use crate::{clock::Clock, liveness::LoopStatus};

/// Age from which a wait is on the page: shorter waits are ordinary answers of the store.
const MIN_WAIT_MS: u64 = 1_000;
/// Most waits on the page.
const MAX_WAITS: usize = 16;
/// Most bytes of the text of a wait.
const MAX_WAIT_BYTES: usize = 2_000;

/// Identity of the instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct InstanceStatus {
    /// Name of the client in the brokers' logs.
    pub client_id: String,
    /// Instance id of a static member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// The consumer group of the validated transactions; that of the chain is `GROUP.chain`.
    pub group: String,
    /// Name of the machine, by its own account.
    pub hostname: String,
    /// Id of the process on the machine.
    pub process_id: u32,
}

/// The event of a partition that was read first and is not completed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct InFlightStatus {
    /// Offset of the event.
    pub offset: u64,
    /// Time since this instance read the event.
    pub age_seconds: f64,
}

/// A halt of a partition or of the chain, which needs an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HaltStatus {
    /// Reason of the halt in one line.
    pub why: String,
    /// Time of the halt, milliseconds since the epoch.
    pub since_ms: u64,
}

/// Status of one assigned partition.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct PartitionStatus {
    /// Topic of the partition.
    pub topic: String,
    /// Number of the partition.
    pub partition: i32,
    /// Epoch of the assignment.
    pub epoch: u64,
    /// Offset of the next event to read.
    pub position: u64,
    /// Every event below this offset is completed.
    pub watermark: u64,
    /// Committed offset of the group, as this instance knows it; `null`: none.
    pub committed: Option<u64>,
    /// Last known end offset of the partition.
    pub high_watermark: u64,
    /// True where the partition was read to its end.
    pub at_end: bool,
    /// Messages from the watermark to the end offset.
    pub lag_messages: u64,
    /// Age, by its timestamp, of the oldest event that is not completed. Where every event read is completed and more
    /// can be read: age of the last event read.
    pub lag_seconds: f64,
    /// Number of events that are read and not completed.
    pub unfinished_events: u64,
    /// Payload bytes of the events that are read and not completed.
    pub unfinished_bytes: u64,
    /// The event that was read first of those not completed; `null`: none.
    pub oldest_in_flight: Option<InFlightStatus>,
    /// Number of parked transactions.
    pub parked: u64,
    /// Reason why the partition is not read; `null`: it is read.
    pub paused: Option<&'static str>,
    /// The halt of the partition; `null`: none.
    pub halted: Option<HaltStatus>,
}

/// Durability of the store's writes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NodesStatus {
    /// Time from the completion of an event to its durability, ms; 0: the store loses no acknowledged write.
    pub durability_lag_ms: u64,
    /// Expected incarnation of the store's nodes: another incarnation makes the instance repeat every uncommitted
    /// event. Empty where the store loses no acknowledged write.
    pub incarnation: String,
}

/// Status of the pipeline, which applies the validated transactions.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct PipelineStatus {
    /// Number of transactions in flight, without the parked ones.
    pub in_flight: u64,
    /// Number of parked transactions.
    pub parked: u64,
    /// Number of completed events whose writes are not durable yet.
    #[serde(rename = "not_safe")]
    pub not_durable: u64,
    /// Payload bytes of the events read and not completed, over all partitions.
    pub unfinished_bytes: u64,
    /// Limit of `unfinished_bytes`, `ingest.unfinished_bytes_total`.
    pub unfinished_bytes_bound: u64,
    /// Limit of one partition at the present number of assigned partitions.
    pub partition_bytes_bound: u64,
    /// Durability of the store's writes.
    pub nodes: NodesStatus,
    /// Status of each assigned partition.
    pub partitions: Vec<PartitionStatus>,
}

/// Rebalances and commits of the consumer groups since the process started, the chain's group included.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct GroupStatus {
    /// Number of rebalances by kind: `assigned`, `revoked`, `lost`.
    pub rebalances: BTreeMap<&'static str, u64>,
    /// Number of commits that failed or were not tried, by reason.
    pub commit_failures: BTreeMap<&'static str, u64>,
    /// The last drain; `null`: none yet.
    pub last_drain: Option<DrainStatus>,
}

/// A drain: the time until the events in flight were completed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct DrainStatus {
    /// Reason of the drain: `revocation` or `shutdown`.
    pub reason: &'static str,
    /// Duration of the drain.
    pub seconds: f64,
    /// End of the drain, milliseconds since the epoch.
    pub ended_ms: u64,
}

/// Status of the sequencer's membership in the chain's group.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ChainStatus {
    /// Partition of the chain; `null`: another instance has the chain.
    pub partition: Option<PartitionStatus>,
    /// Durability of the store's writes.
    pub nodes: NodesStatus,
}

/// Tip of the chain after the last event that this instance handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TipStatus {
    /// Height of the last block of the longest chain.
    pub height: Option<u32>,
    /// Hash of that block, in the usual byte order.
    pub hash: Option<String>,
    /// Field `sequence` of the last block or reorg.
    pub sequence: u64,
    /// Number of rewinds of the chain after a restart of the store's nodes.
    pub era: u32,
}

/// Result of the recovery of half-created transactions since this instance has the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RecoveryStatus {
    /// Number of transactions that were completed.
    pub completed: u64,
    /// Number of half-created transactions older than an hour, of the oldest thousand pages.
    pub older_than_an_hour: u64,
    /// End of the last pass, milliseconds since the epoch.
    pub ended_ms: u64,
}

/// The event of the chain that the sequencer handles at the moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventStatus {
    /// Offset of the event.
    pub offset: u64,
    /// Kind of the event.
    pub kind: &'static str,
    /// Start of the handling, milliseconds since the epoch.
    pub since_ms: u64,
}

/// A wait of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitStatus {
    /// The event, or the step of the event, that waits.
    pub about: String,
    /// The missing transactions, answers or offsets; the first few, where they are many.
    pub missing: String,
    /// Start of the wait, milliseconds since the epoch.
    pub since_ms: u64,
}

/// A published status with its age.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Timed<T> {
    /// Time since the status was published.
    age_seconds: f64,
    #[serde(flatten)]
    published: T,
}

#[derive(Debug, Default)]
struct PublishedStatus {
    instance: InstanceStatus,
    store: &'static str,
    group: GroupStatus,
    pipeline: Option<(u64, PipelineStatus)>,
    chain: Option<(u64, ChainStatus)>,
    tip: Option<TipStatus>,
    event: Option<EventStatus>,
    recovery: Option<RecoveryStatus>,
    waits: BTreeMap<u64, WaitStatus>,
}

/// Registry in which the loops publish their statuses for the state page.
#[derive(Debug)]
pub struct StatusRegistry {
    clock: Clock,
    started: (u64, u64),
    next_wait: AtomicU64,
    published: Mutex<PublishedStatus>,
}

/// The state page as JSON.
#[derive(Debug, Serialize)]
pub struct StatePage {
    /// Version of the program.
    version: &'static str,
    instance: InstanceStatus,
    /// Name of the store's engine.
    store: &'static str,
    /// Start of the process, milliseconds since the epoch.
    started_ms: u64,
    uptime_seconds: f64,
    ready: bool,
    live: HealthReport,
    conditions: BTreeMap<&'static str, ConditionStatus>,
    /// The monitored loops. The watchdog ends the process when a loop does not turn for `run.watchdog_ms`.
    loops: Vec<LoopStatus>,
    group: GroupStatus,
    /// Status of the pipeline; `null`: the pipeline has not started.
    pipeline: Option<Timed<PipelineStatus>>,
    chain: ChainPage,
}

/// The part of the page about the chain.
#[derive(Debug, Serialize)]
struct ChainPage {
    /// True where this instance has the chain's partition.
    held: bool,
    /// Membership of the sequencer; absent: no sequencer, or the sequencer has not started.
    #[serde(flatten)]
    member: Option<Timed<ChainStatus>>,
    tip: Option<TipStatus>,
    event: Option<EventStatus>,
    /// The last pass of the recovery; `null`: another instance has the chain, or no pass has ended.
    recovery: Option<RecoveryStatus>,
    waits_for: Vec<WaitStatus>,
}

impl StatusRegistry {
    /// Creates a registry without published statuses.
    pub fn new(clock: Clock) -> Self {
        let started = (clock.now_ms(), clock.steady_ms());
        StatusRegistry { clock, started, next_wait: AtomicU64::new(0), published: Mutex::default() }
    }

    /// Start of the process, milliseconds since the epoch.
    pub fn started_ms(&self) -> u64 {
        self.started.0
    }

    /// Publishes the identity of the instance.
    pub fn publish_instance(&self, instance: InstanceStatus) {
        self.published().instance = instance;
    }

    /// Publishes the name of the store's engine.
    pub fn publish_store(&self, name: &'static str) {
        self.published().store = name;
    }

    /// Publishes the counts of the consumer groups.
    pub fn publish_group(&self, group: GroupStatus) {
        self.published().group = group;
    }

    /// Publishes the current status of the pipeline.
    pub fn publish_pipeline(&self, pipeline: PipelineStatus) {
        self.published().pipeline = Some((self.clock.steady_ms(), pipeline));
    }

    /// Publishes the sequencer's membership. Without the chain's partition, tip and event are removed.
    pub fn publish_chain(&self, chain: ChainStatus) {
        let now_ms = self.clock.steady_ms();
        let mut published = self.published();
        if chain.partition.is_none() {
            (published.tip, published.event) = (None, None);
        }
        published.chain = Some((now_ms, chain));
    }

    /// Publishes the tip of the chain.
    pub fn publish_tip(&self, tip: TipStatus) {
        self.published().tip = Some(tip);
    }

    /// Publishes offset and kind of the event that the sequencer handles; `None`: no event.
    pub fn publish_event(&self, event: Option<(u64, &'static str)>) {
        let since_ms = self.clock.now_ms();
        self.published().event = event.map(|(offset, kind)| EventStatus { offset, kind, since_ms });
    }

    /// Publishes the result of the recovery of half-created transactions; `None`: this instance has no chain.
    pub fn publish_recovery(&self, recovery: Option<RecoveryStatus>) {
        self.published().recovery = recovery;
    }

    /// Returns a new number for a wait of the chain.
    pub fn start_wait(&self) -> u64 {
        self.next_wait.fetch_add(1, Relaxed)
    }

    /// Publishes a wait with its missing items; `since_ms`: start of the wait by the steady clock.
    pub fn publish_wait(&self, number: u64, about: &str, missing: &str, since_ms: u64) {
        let waited_ms = self.clock.steady_ms().saturating_sub(since_ms);
        let since_ms = self.clock.now_ms().saturating_sub(waited_ms);
        let mut end = missing.len().min(MAX_WAIT_BYTES);
        while !missing.is_char_boundary(end) {
            end -= 1;
        }
        let wait = WaitStatus { about: about.to_owned(), missing: missing[..end].to_owned(), since_ms };
        self.published().waits.insert(number, wait);
    }

    /// Removes a wait that has ended.
    pub fn end_wait(&self, number: u64) {
        self.published().waits.remove(&number);
    }

    /// Returns the page with the published statuses and the conditions of `health`.
    pub fn page(&self, health: &Health) -> StatePage {
        let now_ms = self.clock.steady_ms();
        let age = |shown_ms: u64| now_ms.saturating_sub(shown_ms) as f64 / 1_000.0;
        let long_since_ms = self.clock.now_ms().saturating_sub(MIN_WAIT_MS);
        let conditions = health.condition_statuses();
        let live = health.live();
        let published = self.published();
        let chain = published.chain.clone();
        StatePage {
            version: env!("CARGO_PKG_VERSION"),
            instance: published.instance.clone(),
            store: published.store,
            started_ms: self.started.0,
            uptime_seconds: age(self.started.1),
            ready: conditions.values().all(|condition| condition.met),
            live,
            conditions,
            loops: health.liveness().loops(),
            group: published.group.clone(),
            pipeline: published.pipeline.clone().map(|(at_ms, published)| Timed { age_seconds: age(at_ms), published }),
            chain: ChainPage {
                held: chain.as_ref().is_some_and(|(_, chain)| chain.partition.is_some()),
                member: chain.map(|(at_ms, published)| Timed { age_seconds: age(at_ms), published }),
                tip: published.tip.clone(),
                event: published.event.clone(),
                recovery: published.recovery,
                waits_for: {
                    let long = published.waits.values().filter(|wait| wait.since_ms <= long_since_ms);
                    long.take(MAX_WAITS).cloned().collect()
                },
            },
        }
    }

    fn published(&self) -> MutexGuard<'_, PublishedStatus> {
        // No panic can leave a change half done.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
