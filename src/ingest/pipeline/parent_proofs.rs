//! Queries the progress of all other partitions and of the chain, and contests transactions whose parents are proven
//! missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{LONG_WAIT_MS, Pipeline, PipelineError, PipelineServices, commits::compare_until_answered};
use crate::{
    broker::{CommittedOffset, TopicPartition, partitioner::partition_of},
    group::{
        missing_parent::{ChainView, PartitionView, TieRule, is_proven_missing, txid_prefix},
        partition::{PartitionState, committed_by_instance},
    },
    ingest::{
        dispatch::{TaskMessage, spawn},
        flight::FlightId,
    },
    record::ConsumedOffsets,
    replay::Modes,
    tx::Txid,
};

/// Tries of the waiting transactions are delayed by this part of the commit interval, so that the answer finds them
/// waiting.
const DELAY_DIVISOR: u64 = 4;

/// Progress of the group and the chain at one time.
#[derive(Debug)]
pub struct ProofSnapshot {
    /// Number of partitions of the topic.
    count: i32,
    /// Progress of the partitions of other instances, by number.
    partitions: Vec<(i32, PartitionView)>,
    /// End offsets of the partitions that are assigned here.
    ends: BTreeMap<i32, u64>,
    chain: ChainView,
    /// Flights that waited at the time of the query: about later ones the snapshot proves nothing.
    waiting: BTreeSet<FlightId>,
}

/// Reads the committed offsets and end offsets of all partitions and the progress of the chain.
async fn take_proof_snapshot(
    services: &PipelineServices,
    topic: Arc<str>,
    group: &str,
    assigned: &BTreeSet<i32>,
    waiting: BTreeSet<FlightId>,
) -> Result<ProofSnapshot, PipelineError> {
    let count = services.broker.partitions(&topic).await?.unwrap_or(0);
    let foreign: Vec<TopicPartition> = (0..count)
        .filter(|number| !assigned.contains(number))
        .map(|partition| TopicPartition { topic: topic.clone(), partition })
        .collect();
    let committed = services.broker.committed(group, &foreign).await?;
    let mut partitions = Vec::new();
    let known = |(partition, at): (&TopicPartition, &Option<CommittedOffset>)| {
        Some((partition.partition.unsigned_abs(), committed_by_instance(at.as_ref()?)?))
    };
    let consumed = ConsumedOffsets { chain: 0, validated: foreign.iter().zip(&committed).filter_map(known).collect() };
    // The progress of another instance proves nothing about this store unless both use the same store. A rebuild writes
    // into a store of its own.
    if matches!(services.modes, Modes::Live) {
        compare_until_answered(services.whole.as_ref(), &consumed)
            .await
            .map_err(|error| PipelineError::Store(error.to_string()))?;
    }
    for (partition, committed) in foreign.iter().zip(committed) {
        let view = PartitionState::read_foreign_view(services.broker.as_ref(), partition, committed).await?;
        partitions.push((partition.partition, view));
    }
    let mut ends = BTreeMap::new();
    for number in assigned {
        let partition = TopicPartition { topic: topic.clone(), partition: *number };
        ends.insert(*number, services.broker.watermarks(&partition).await?.1);
    }
    let chain = services.chain.view().await?;
    Ok(ProofSnapshot { count, partitions, ends, chain, waiting })
}

impl Pipeline {
    /// Brings the next commit and the next proof forward once contests are published: other instances may wait for the
    /// commit, and the next transaction here may be proven now. One proof follows several contests.
    pub(super) fn on_contests_published(&mut self) {
        if self.publishing == 0 && self.planner.counts().parked > 0 {
            self.next_proof = self.next_full_scan.max(Instant::now());
            let soon = self.next_full_scan.max(self.last_commit + self.settings.commit_interval / 10);
            self.next_commit = self.next_commit.min(soon);
        }
    }

    /// Queries, beside the loop, the progress from which a proof follows that a parent is missing.
    pub(super) fn query_proof_snapshot(&mut self) {
        let waiting = self.planner.flights().waiting_for_absent();
        let now_ms = self.now_ms();
        if self.snapshot_query_running
            || (waiting.is_empty() && self.planner.long_waiting_flights(LONG_WAIT_MS, now_ms).is_empty())
        {
            return;
        }
        self.snapshot_query_running = true;
        let waiting = waiting.into_iter().map(|(_, flight, _)| flight).collect();
        self.planner.delay_retries(&waiting, now_ms + self.settings.commit_interval.as_millis() as u64 / DELAY_DIVISOR);
        let assigned: BTreeSet<i32> = self.partitions.keys().copied().collect();
        let (services, messages) = (self.services.clone(), self.task_sender.clone());
        let (topic, group) = (self.settings.topic.clone(), self.settings.group.clone());
        spawn("querying the progress of the group", &self.task_sender, async move {
            let answer = match take_proof_snapshot(&services, topic, &group, &assigned, waiting).await {
                Err(error @ PipelineError::Store(_)) => TaskMessage::Fatal(error),
                snapshot => TaskMessage::ProofSnapshot(snapshot.map_err(|error| error.to_string())),
            };
            // A pipeline that has ended queries again at its next start.
            let _ = messages.send(answer);
        });
    }

    /// Handles a snapshot: contests every transaction whose absent parents are all proven missing.
    pub(super) fn on_proof_snapshot(&mut self, snapshot: Result<ProofSnapshot, String>) {
        let begun = Instant::now();
        self.judge_waiting(snapshot);
        self.delay_next_scan(begun);
        self.next_proof = self.next_proof.max(self.next_full_scan);
    }

    /// Judges each flight that waited at the time of the snapshot, oldest first.
    fn judge_waiting(&mut self, snapshot: Result<ProofSnapshot, String>) {
        self.snapshot_query_running = false;
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(error) => {
                return tracing::warn!(
                    error,
                    "pipeline: cannot query the progress of the group; no parent can be proven missing"
                );
            }
        };
        self.observe_chain(snapshot.chain);
        self.update_high_watermarks(snapshot.ends.iter().map(|(number, end)| (*number, *end)));
        // The last known end offset is too old: a message of one partition may be late while its child in another is
        // not.
        let named = self.planner.flights().oldest_waiting_events();
        let own = |(number, state): (&i32, &PartitionState)| {
            let mut view = state.view(named.get(number).map_or(&[], Vec::as_slice));
            // The planner knows the transactions that wait here, and none of them is an absent parent unless the
            // planner says so. The planner does not know a completed event over a store that can lose writes, an event
            // that a halted partition has not handled, or an event beyond the limit of a paused partition. Such a
            // partition counts as read only for an event that is older than its head.
            if !self.services.nodes.can_lose_writes() && state.halted.is_none() && !view.over_limit {
                (view.oldest_unfinished, view.waiting) = (self.oldest_unprepared(*number), None);
            }
            let at_end = snapshot.ends.get(number).is_some_and(|end| view.position >= *end);
            (*number, PartitionView { at_end, ..view })
        };
        let mut views: BTreeMap<i32, PartitionView> = self.partitions.iter().map(own).collect();
        let elsewhere =
            snapshot.partitions.iter().flat_map(|(_, view)| &view.waiting).flat_map(|waiting| &waiting.events);
        self.waiting_elsewhere = elsewhere.map(|(.., name)| *name).collect();
        views.extend(snapshot.partitions.into_iter().filter(|(number, _)| !self.partitions.contains_key(number)));
        let count = snapshot.count;
        if views.len() < count as usize {
            // A partition was revoked since: its next owner has not reported any progress yet.
            return;
        }
        // The next event of a partition at its limit may be one that the chain waits for. A coinbase that comes after
        // all gives a second chance.
        let any_over_limit = views.values().any(|view| view.over_limit);
        let grace_ms = self.settings.missing_parent_grace_ms;
        let chain = if any_over_limit && self.chain_is_stalled(grace_ms) { ChainView::AtEnd } else { snapshot.chain };
        let mut waiting = self.planner.flights().waiting_for_absent();
        waiting.retain(|(_, flight, _)| snapshot.waiting.contains(flight));
        waiting.sort_unstable();
        let now_ms = self.now_ms();
        let views_of = |parent: &Txid| partition_of(&parent.0, count).and_then(|number| views.get_key_value(&number));
        for (event, flight, wanted) in waiting {
            let order = (event.timestamp_ms, event.partition, event.offset);
            let is_over_limit = |view: &PartitionView| view.over_limit;
            let limit_reached = views.get(&event.partition).is_some_and(is_over_limit)
                || wanted.iter().filter_map(views_of).any(|(_, view)| is_over_limit(view));
            let ties = TieRule::after(self.planner.in_question_for_ms(flight, now_ms), grace_ms, limit_reached);
            let is_missing = |parent: &Txid| {
                let is_known_here = self.planner.flights().id_of(parent).is_some() && ties < TieRule::BreakKnown;
                views_of(parent).filter(|_| !is_known_here).is_some_and(|(number, view)| {
                    is_proven_missing(order, txid_prefix(parent), ties, (*number, view), chain, grace_ms as i64)
                })
            };
            if wanted.iter().all(is_missing) {
                self.planner.on_parents_proven_missing(flight, wanted, ties, now_ms);
            }
        }
    }

    /// Returns whether a missing parent counts towards the limits on dead letters. A parent that is known to wait, here
    /// or elsewhere, gives its child a second chance.
    pub(super) fn counts_as_missing(&self, parent: &Txid) -> bool {
        !self.planner.flights().id_of(parent).is_some() && !self.waiting_elsewhere.contains(&txid_prefix(parent))
    }

    /// Returns timestamp and offset of the oldest event that is read and not prepared.
    pub(super) fn oldest_unprepared(&self, number: i32) -> Option<(i64, u64)> {
        self.chunks.iter().filter(|chunk| chunk.partition == number).map(|chunk| chunk.oldest).min()
    }

    /// Notes the progress of the chain. A chain without progress may wait for a transaction that waits here although
    /// its work is done, or whose record a node lost.
    pub(super) fn observe_chain(&mut self, chain: ChainView) {
        let now_ms = self.now_ms();
        if self.chain.0 != chain || chain == ChainView::Unknown {
            self.chain = (chain, now_ms);
        } else if self.chain_is_stalled(LONG_WAIT_MS) {
            self.planner.reread_own_records(LONG_WAIT_MS, now_ms);
        }
    }

    /// Returns whether the chain has been at the same event for this time, ms.
    pub(super) fn chain_is_stalled(&self, for_ms: u64) -> bool {
        let (view, since_ms) = self.chain;
        matches!(view, ChainView::Unhandled(_)) && self.now_ms().saturating_sub(since_ms) >= for_ms
    }
}
