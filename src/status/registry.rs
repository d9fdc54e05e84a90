//! The state page: what an instance is at, as its loops last showed it. Nothing here waits for them, so it answers while the store, or
//! the log, does not. What is shown is counts, offsets, names and reasons; no setting is, so that no secret can be.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde::Serialize;

use super::health::{ConditionStatus, Health, Report};
use crate::clock::Clock;

/// What is waited for is shown once it has taken so long: every answer of the store is waited for.
const WAIT_SHOWN_MS: u64 = 1_000;
/// At most so many waits are shown.
const WAITS_SHOWN: usize = 16;
/// At most so many bytes of what is waited for.
const WAIT_BYTES: usize = 2_000;

/// Who this is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct InstanceStatus {
    /// How it is named in the brokers' logs.
    pub client_id: String,
    /// Of a static member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// The consumer group of the validated transactions; that of the chain is `GROUP.chain`.
    pub group: String,
    /// What its machine calls itself.
    pub hostname: String,
    /// Its number there.
    pub process_id: u32,
}

/// The event of a partition that was read first of those that are not completed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct InFlightStatus {
    /// Its offset.
    pub offset: u64,
    /// Since it was read here.
    pub age_seconds: f64,
}

/// Why a partition, or the chain, does not go on until an operator has looked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HaltStatus {
    /// In one line.
    pub why: String,
    /// Since when, milliseconds since the epoch.
    pub since_ms: u64,
}

/// One partition that is held here.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct PartitionStatus {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// Of its assignment.
    pub epoch: u64,
    /// Offset of the next event to be read.
    pub position: u64,
    /// Every event before this offset is completed.
    pub watermark: u64,
    /// What the group has committed, as far as this instance knows; `null`: nothing.
    pub committed: Option<u64>,
    /// The end of the partition, as last heard.
    pub high_watermark: u64,
    /// It was read to its end.
    pub at_end: bool,
    /// Messages between the watermark and the end.
    pub lag_messages: u64,
    /// Age, by its timestamp, of the oldest event that is not completed; where none is and there is more to read, of the latest
    /// that was read.
    pub lag_seconds: f64,
    /// Events read and not completed.
    pub unfinished_events: u64,
    /// Their bytes.
    pub unfinished_bytes: u64,
    /// The first of them.
    pub oldest_in_flight: Option<InFlightStatus>,
    /// Transactions that wait for a parent or a flag.
    pub parked: u64,
    /// Why nothing is read for now; `null`: it is.
    pub paused: Option<&'static str>,
    /// Why it does not go on until an operator has looked; `null`: it does.
    pub halted: Option<HaltStatus>,
}

/// What a store may forget, and whether it has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NodesStatus {
    /// How long what is complete waits before its offset is committed, ms; 0: the store forgets nothing.
    pub durability_lag_ms: u64,
    /// The incarnation of its nodes that is compared with: another one means that everything uncommitted is done again. Empty where
    /// nothing is forgotten.
    pub incarnation: String,
}

/// The pipeline: the validated transactions.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct PipelineStatus {
    /// Transactions that move.
    pub in_flight: u64,
    /// Transactions that wait for a parent or a flag.
    pub parked: u64,
    /// Transactions that are done, and that the store may still forget.
    pub not_safe: u64,
    /// Bytes of events read and not completed, of all partitions together.
    pub unfinished_bytes: u64,
    /// So many they may be.
    pub unfinished_bytes_bound: u64,
    /// And so many those of one partition, as long as as many partitions are held here.
    pub partition_bytes_bound: u64,
    /// The store.
    pub nodes: NodesStatus,
    /// What is held here.
    pub partitions: Vec<PartitionStatus>,
}

/// What happened in the consumer groups since this process began, that of the chain included.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct GroupStatus {
    /// How often partitions were assigned, given up in order, and lost.
    pub rebalances: BTreeMap<&'static str, u64>,
    /// Commits that failed, or were not tried, by why.
    pub commit_failures: BTreeMap<&'static str, u64>,
    /// When what moves had to come to its end last; `null`: it never had.
    pub last_drain: Option<DrainStatus>,
}

/// A drain.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct DrainStatus {
    /// Why: partitions were given up, or the instance stopped.
    pub reason: &'static str,
    /// How long it took.
    pub seconds: f64,
    /// When it had, milliseconds since the epoch.
    pub ended_ms: u64,
}

/// What the sequencer says of its membership.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ChainStatus {
    /// The chain's partition; `null`: another instance holds it.
    pub partition: Option<PartitionStatus>,
    /// The store.
    pub nodes: NodesStatus,
}

/// Where the chain stands: as of the last event that was handled here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TipStatus {
    /// Height of the last block of the longest chain.
    pub height: Option<u32>,
    /// Its hash, as people write it.
    pub hash: Option<String>,
    /// `sequence` of the last block or reorg.
    pub sequence: u64,
    /// How often the chain has gone back because a node of the store had forgotten.
    pub era: u32,
}

/// The chain event that is being handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EventStatus {
    /// Its offset.
    pub offset: u64,
    /// What it asks for.
    pub kind: &'static str,
    /// Since when, milliseconds since the epoch.
    pub since_ms: u64,
}

/// Something that the chain waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitStatus {
    /// Who waits.
    pub about: String,
    /// For what: the first few, where they are many.
    pub missing: String,
    /// Since when, milliseconds since the epoch.
    pub since_ms: u64,
}

/// A loop that must turn: should it not for `run.watchdog_ms`, the process is ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoopStatus {
    /// Which.
    pub name: String,
    /// What it waits for within its turn.
    pub waits_for: Option<&'static str>,
    /// Since it last turned.
    pub age_seconds: f64,
}

/// Something, and when it was shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct At<T> {
    /// Since it was shown: it is no newer than that.
    age_seconds: f64,
    #[serde(flatten)]
    shown: T,
}

#[derive(Debug, Default)]
struct Shown {
    instance: InstanceStatus,
    store: &'static str,
    group: GroupStatus,
    pipeline: Option<(u64, PipelineStatus)>,
    chain: Option<(u64, ChainStatus)>,
    tip: Option<TipStatus>,
    event: Option<EventStatus>,
    waits: BTreeMap<u64, WaitStatus>,
}

/// Where the loops show what they are at, and whoever asks finds it.
#[derive(Debug)]
pub struct StatusRegistry {
    clock: Clock,
    started: (u64, u64),
    next_wait: AtomicU64,
    shown: Mutex<Shown>,
}

/// The whole page.
#[derive(Debug, Serialize)]
pub struct StatePage {
    /// Of this program.
    version: &'static str,
    instance: InstanceStatus,
    /// Which engine.
    store: &'static str,
    /// Milliseconds since the epoch.
    started_ms: u64,
    uptime_seconds: f64,
    ready: bool,
    live: Report,
    conditions: BTreeMap<&'static str, ConditionStatus>,
    loops: Vec<LoopStatus>,
    group: GroupStatus,
    /// `null`: it has not begun.
    pipeline: Option<At<PipelineStatus>>,
    chain: ChainPage,
}

/// The chain, on the page.
#[derive(Debug, Serialize)]
struct ChainPage {
    /// Whether this instance holds it.
    held: bool,
    /// `null`: this instance takes no part in it, or has not begun.
    #[serde(flatten)]
    member: Option<At<ChainStatus>>,
    tip: Option<TipStatus>,
    event: Option<EventStatus>,
    waits_for: Vec<WaitStatus>,
}

impl StatusRegistry {
    /// Nothing is shown.
    pub fn new(clock: Clock) -> Self {
        let started = (clock.now_ms(), clock.steady_ms());
        StatusRegistry { clock, started, next_wait: AtomicU64::new(0), shown: Mutex::default() }
    }

    /// When this process began, milliseconds since the epoch.
    pub fn started_ms(&self) -> u64 {
        self.started.0
    }

    /// Says who this is.
    pub fn publish_instance(&self, instance: InstanceStatus) {
        self.shown().instance = instance;
    }

    /// Says which engine keeps the state.
    pub fn publish_store(&self, name: &'static str) {
        self.shown().store = name;
    }

    /// Shows what has happened in the groups.
    pub fn publish_group(&self, group: GroupStatus) {
        self.shown().group = group;
    }

    /// Shows the pipeline as it is now.
    pub fn publish_pipeline(&self, pipeline: PipelineStatus) {
        self.shown().pipeline = Some((self.clock.steady_ms(), pipeline));
    }

    /// Shows whether the chain is held here, and how far it is.
    pub fn publish_chain(&self, chain: ChainStatus) {
        let now_ms = self.clock.steady_ms();
        let mut shown = self.shown();
        if chain.partition.is_none() {
            (shown.tip, shown.event) = (None, None);
        }
        shown.chain = Some((now_ms, chain));
    }

    /// Shows where the chain stands.
    pub fn publish_tip(&self, tip: TipStatus) {
        self.shown().tip = Some(tip);
    }

    /// Shows which event of the chain is being handled: its offset and kind; `None`: none is.
    pub fn publish_event(&self, event: Option<(u64, &'static str)>) {
        let since_ms = self.clock.now_ms();
        self.shown().event = event.map(|(offset, kind)| EventStatus { offset, kind, since_ms });
    }

    /// A number for a wait of the chain.
    pub fn start_wait(&self) -> u64 {
        self.next_wait.fetch_add(1, Relaxed)
    }

    /// Shows what a wait is for; `since_ms` by the steady clock.
    pub fn publish_wait(&self, number: u64, about: &str, missing: &str, since_ms: u64) {
        let waited_ms = self.clock.steady_ms().saturating_sub(since_ms);
        let since_ms = self.clock.now_ms().saturating_sub(waited_ms);
        let mut end = missing.len().min(WAIT_BYTES);
        while !missing.is_char_boundary(end) {
            end -= 1;
        }
        let wait = WaitStatus { about: about.to_owned(), missing: missing[..end].to_owned(), since_ms };
        self.shown().waits.insert(number, wait);
    }

    /// A wait is over.
    pub fn end_wait(&self, number: u64) {
        self.shown().waits.remove(&number);
    }

    /// Everything, with what `health` says.
    pub fn page(&self, health: &Health) -> StatePage {
        let now_ms = self.clock.steady_ms();
        let age = |shown_ms: u64| now_ms.saturating_sub(shown_ms) as f64 / 1_000.0;
        let long_since_ms = self.clock.now_ms().saturating_sub(WAIT_SHOWN_MS);
        let conditions = health.conditions_now();
        let live = health.live();
        let loops = health.liveness().loops().into_iter().map(|monitor| LoopStatus {
            name: monitor.name,
            waits_for: monitor.waits_for,
            age_seconds: monitor.since.as_secs_f64(),
        });
        let shown = self.shown();
        let chain = shown.chain.clone();
        StatePage {
            version: env!("CARGO_PKG_VERSION"),
            instance: shown.instance.clone(),
            store: shown.store,
            started_ms: self.started.0,
            uptime_seconds: age(self.started.1),
            ready: conditions.values().all(|condition| condition.met),
            live,
            conditions,
            loops: loops.collect(),
            group: shown.group.clone(),
            pipeline: shown.pipeline.clone().map(|(at_ms, shown)| At { age_seconds: age(at_ms), shown }),
            chain: ChainPage {
                held: chain.as_ref().is_some_and(|(_, chain)| chain.partition.is_some()),
                member: chain.map(|(at_ms, shown)| At { age_seconds: age(at_ms), shown }),
                tip: shown.tip.clone(),
                event: shown.event.clone(),
                waits_for: {
                    let long = shown.waits.values().filter(|wait| wait.since_ms <= long_since_ms);
                    long.take(WAITS_SHOWN).cloned().collect()
                },
            },
        }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        // No change can be left half done, so a panic elsewhere does not spoil it.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
