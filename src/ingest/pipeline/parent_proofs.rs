//! Queries the progress of all other partitions and of the chain, and contests transactions whose parents are proven
//! missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};

use super::{
    PipelineError, PipelineServices, PipelineSettings, chunks::ChunkQueue, partition_reads::PartitionReads,
    scan_pace::ScanPace, store_group::compare_until_answered,
};
use crate::{
    broker::{CommittedOffset, TopicPartition, partitioner::partition_of},
    group::{
        commit_metadata::{committed_by_instance, read_foreign_view, view_of_commit},
        member::PartitionTable,
        missing_parent::{ChainView, PartitionView, TieRule, TxidPrefix, is_proven_missing, txid_prefix},
        partition::PartitionState,
    },
    ingest::{
        dispatch::{TaskMessage, spawn},
        flight::FlightId,
        plan::Planner,
    },
    record::ConsumedOffsets,
    tx::Txid,
};

/// A chain without progress for this time, ms, may wait for transactions that wait in this instance.
pub(super) const LONG_WAIT_MS: u64 = 5_000;

/// Progress of the group and the chain at one time.
#[derive(Debug)]
pub struct ProofSnapshot {
    /// Number of partitions of the topic.
    count: i32,
    /// Progress of the partitions of other instances, by number.
    partitions: Vec<(i32, PartitionView)>,
    /// End offsets of those partitions of absent parents that are assigned here.
    ends: BTreeMap<i32, u64>,
    chain: ChainView,
    /// Flights that waited at the time of the query: about later ones the snapshot proves nothing.
    waiting: BTreeSet<FlightId>,
}

/// Flights that wait for absent parents.
#[derive(Debug, Default)]
struct WaitingFlights {
    flights: BTreeSet<FlightId>,
    absent_parents: BTreeSet<Txid>,
}

/// Reads the committed offsets of all partitions, the end offsets of the partitions of absent parents, and the progress
/// of the chain. The number of requests thus depends on what waits, not on the number of partitions.
async fn take_proof_snapshot(
    services: &PipelineServices,
    topic: Arc<str>,
    group: &str,
    assigned: &BTreeSet<i32>,
    waiting: WaitingFlights,
) -> Result<ProofSnapshot, PipelineError> {
    let count = services.broker.partitions(&topic).await?.unwrap_or(0);
    let WaitingFlights { flights: waiting, absent_parents } = waiting;
    let of_parents: BTreeSet<i32> = absent_parents.iter().filter_map(|txid| partition_of(&txid.0, count)).collect();
    let foreign: Vec<TopicPartition> = (0..count)
        .filter(|number| !assigned.contains(number))
        .map(|partition| TopicPartition { topic: topic.clone(), partition })
        .collect();
    let committed = services.broker.committed(group, &foreign).await?;
    let mut partitions = Vec::new();
    let known = |(partition, at): (&TopicPartition, &Option<CommittedOffset>)| {
        Some((partition.partition.unsigned_abs(), committed_by_instance(at.as_ref()?)?))
    };
    let consumed = ConsumedOffsets {
        validated: foreign.iter().zip(&committed).filter_map(known).collect(),
        ..ConsumedOffsets::default()
    };
    // The progress of another instance proves nothing about this store unless both use the same store. A rebuild writes
    // into a store of its own.
    if !services.modes.is_rebuild() {
        compare_until_answered(services.whole.as_ref(), &consumed).await?;
    }
    for (partition, committed) in foreign.iter().zip(committed) {
        let view = match of_parents.contains(&partition.partition) {
            true => read_foreign_view(services.broker.as_ref(), partition, committed).await?,
            false => view_of_commit(committed.as_ref()),
        };
        partitions.push((partition.partition, view));
    }
    let mut ends = BTreeMap::new();
    for number in assigned.intersection(&of_parents) {
        let partition = TopicPartition { topic: topic.clone(), partition: *number };
        ends.insert(*number, services.broker.watermarks(&partition).await?.1);
    }
    let chain = services.chain.view().await?;
    Ok(ProofSnapshot { count, partitions, ends, chain, waiting })
}

/// Proofs that parents are missing: their times, and what is known of other instances and of the chain.
pub(super) struct ParentProofs {
    topic: Arc<str>,
    group: String,
    grace_ms: u64,
    commit_interval: Duration,
    sender: mpsc::UnboundedSender<TaskMessage>,
    is_query_running: bool,
    /// Prefixes of the transactions that were last known to wait in partitions of other instances.
    waiting_elsewhere: BTreeSet<TxidPrefix>,
    /// Progress of the chain, and the time since which it is unchanged, ms.
    chain: (ChainView, u64),
    next: Instant,
}

impl ParentProofs {
    pub(super) fn new(settings: &PipelineSettings, sender: mpsc::UnboundedSender<TaskMessage>, now: Instant) -> Self {
        ParentProofs {
            topic: settings.topic.clone(),
            group: settings.group.clone(),
            grace_ms: settings.missing_parent_grace_ms,
            commit_interval: settings.commit_interval,
            sender,
            is_query_running: false,
            waiting_elsewhere: BTreeSet::new(),
            chain: (ChainView::AtEnd, 0),
            next: now,
        }
    }

    /// Returns the time of the next proof, if any transaction waits then.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Schedules the next proof after one that is due now.
    pub(super) fn schedule_next(&mut self, now: Instant, scans: ScanPace) {
        self.next = scans.not_before(now + self.commit_interval);
    }

    /// Postpones the next proof until a scan may start.
    pub(super) fn postpone(&mut self, scans: ScanPace) {
        self.next = scans.not_before(self.next);
    }

    /// Brings the next proof forward to the present.
    pub(super) fn prove_now(&mut self, scans: ScanPace) {
        self.next = scans.not_before(Instant::now());
    }

    /// Queries, beside the loop, the progress from which a proof follows that a parent is missing.
    pub(super) fn query(
        &mut self,
        services: &PipelineServices,
        partitions: &PartitionTable,
        planner: &mut Planner,
        now_ms: u64,
    ) {
        let waiting = planner.flights().waiting_for_absent();
        if self.is_query_running
            || (waiting.is_empty() && planner.long_waiting_flights(LONG_WAIT_MS, now_ms).is_empty())
        {
            return;
        }
        self.is_query_running = true;
        let waiting = waiting.into_iter().fold(WaitingFlights::default(), |mut all, (_, flight, absent)| {
            all.flights.insert(flight);
            all.absent_parents.extend(absent);
            all
        });
        let assigned: BTreeSet<i32> = partitions.states.keys().copied().collect();
        let (services, messages) = (services.clone(), self.sender.clone());
        let (topic, group) = (self.topic.clone(), self.group.clone());
        spawn("querying the progress of the group", &self.sender, async move {
            let answer = match take_proof_snapshot(&services, topic, &group, &assigned, waiting).await {
                Err(error @ PipelineError::Store(_)) => TaskMessage::Fatal(error),
                snapshot => TaskMessage::ProofSnapshot(snapshot.map_err(|error| error.to_string())),
            };
            // A pipeline that has ended queries again at its next start.
            let _ = messages.send(answer);
        });
    }

    /// Handles a snapshot: contests every transaction whose absent parents are all proven missing.
    pub(super) fn on_snapshot(
        &mut self,
        snapshot: Result<ProofSnapshot, String>,
        reads: &mut PartitionReads,
        chunks: &ChunkQueue,
        planner: &mut Planner,
        now_ms: u64,
    ) {
        self.is_query_running = false;
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(error) => {
                return tracing::warn!(
                    error,
                    "pipeline: cannot query the progress of the group; no parent can be proven missing"
                );
            }
        };
        self.observe_chain(snapshot.chain, planner, now_ms);
        let can_lose_writes = reads.member.profile.can_lose_writes;
        let partitions = &mut reads.member.partitions;
        partitions.update_high_watermarks(snapshot.ends.iter().map(|(number, end)| (*number, *end)));
        // The last known end offset is too old: a message of one partition may be late while its child in another is
        // not.
        let named = planner.flights().oldest_waiting_events();
        let own = |(number, state): (&i32, &PartitionState)| {
            let mut view = state.view(named.get(number).map_or(&[], Vec::as_slice));
            // The planner knows the transactions that wait here, and none of them is an absent parent unless the
            // planner says so. The planner does not know a completed event over a store that can lose writes, an event
            // that a halted partition has not handled, or an event beyond the limit of a paused partition. Such a
            // partition counts as read only for an event that is older than its head.
            if !can_lose_writes && !state.reads.is_halted() && !view.over_limit {
                (view.oldest_unfinished, view.waiting) = (chunks.oldest_of(*number), None);
            }
            let at_end = snapshot.ends.get(number).is_some_and(|end| view.position >= *end);
            (*number, PartitionView { at_end, ..view })
        };
        let mut views: BTreeMap<i32, PartitionView> = partitions.states.iter().map(own).collect();
        let elsewhere =
            snapshot.partitions.iter().flat_map(|(_, view)| &view.waiting).flat_map(|waiting| &waiting.events);
        self.waiting_elsewhere = elsewhere.map(|(.., name)| *name).collect();
        views.extend(snapshot.partitions.into_iter().filter(|(number, _)| !partitions.states.contains_key(number)));
        if views.len() < snapshot.count as usize {
            // A partition was revoked since: its next owner has not reported any progress yet.
            return;
        }
        let group = GroupViews { count: snapshot.count, views, chain: snapshot.chain };
        self.judge_waiting(&snapshot.waiting, group, planner, now_ms);
    }

    /// Judges each flight that waited at the time of the snapshot, oldest first.
    fn judge_waiting(
        &self,
        asked_for: &BTreeSet<FlightId>,
        GroupViews { count, views, chain }: GroupViews,
        planner: &mut Planner,
        now_ms: u64,
    ) {
        // The next event of a partition at its limit may be one that the chain waits for. A coinbase that comes after
        // all gives a second chance.
        let any_over_limit = views.values().any(|view| view.over_limit);
        let grace_ms = self.grace_ms;
        let chain = if any_over_limit && self.chain_is_stalled(grace_ms, now_ms) { ChainView::AtEnd } else { chain };
        let mut waiting = planner.flights().waiting_for_absent();
        waiting.retain(|(_, flight, _)| asked_for.contains(flight));
        waiting.sort_unstable();
        let views_of = |parent: &Txid| partition_of(&parent.0, count).and_then(|number| views.get_key_value(&number));
        for (event, flight, wanted) in waiting {
            let order = (event.timestamp_ms, event.partition, event.offset);
            let is_over_limit = |view: &PartitionView| view.over_limit;
            let limit_reached = views.get(&event.partition).is_some_and(is_over_limit)
                || wanted.iter().filter_map(views_of).any(|(_, view)| is_over_limit(view));
            let ties = TieRule::after(planner.in_question_for_ms(flight, now_ms), grace_ms, limit_reached);
            let is_missing = |parent: &Txid| {
                let is_known_here = planner.flights().id_of(parent).is_some() && ties < TieRule::BreakKnown;
                views_of(parent).filter(|_| !is_known_here).is_some_and(|(number, view)| {
                    is_proven_missing(order, txid_prefix(parent), ties, (*number, view), chain, grace_ms as i64)
                })
            };
            if wanted.iter().all(is_missing) {
                planner.on_parents_proven_missing(flight, wanted, ties, now_ms);
            }
        }
    }

    /// Returns whether a missing parent counts towards the limits on dead letters. A parent that is known to wait, here
    /// or elsewhere, gives its child a second chance. A chain that makes no progress may still bring the parent.
    pub(super) fn counts_as_missing(&self, parent: &Txid, planner: &Planner, now_ms: u64) -> bool {
        !self.chain_is_stalled(self.grace_ms, now_ms)
            && planner.flights().id_of(parent).is_none()
            && !self.waiting_elsewhere.contains(&txid_prefix(parent))
    }

    /// Notes the progress of the chain. A chain without progress may wait for a transaction that waits here although
    /// its work is done, or whose record a node lost.
    fn observe_chain(&mut self, chain: ChainView, planner: &mut Planner, now_ms: u64) {
        if self.chain.0 != chain || chain == ChainView::Unknown {
            self.chain = (chain, now_ms);
        } else if self.chain_is_stalled(LONG_WAIT_MS, now_ms) {
            planner.reread_own_records(LONG_WAIT_MS, now_ms);
        }
    }

    /// Returns whether the chain has been at the same event for this time, ms.
    fn chain_is_stalled(&self, for_ms: u64, now_ms: u64) -> bool {
        let (view, since_ms) = self.chain;
        matches!(view, ChainView::Unhandled(_)) && now_ms.saturating_sub(since_ms) >= for_ms
    }
}

/// Progress of all partitions of the topic, and of the chain.
struct GroupViews {
    /// Number of partitions of the topic.
    count: i32,
    views: BTreeMap<i32, PartitionView>,
    chain: ChainView,
}
