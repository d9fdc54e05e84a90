//! Asks how far everybody else is, and contests what is proven to wait for a parent that never comes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{LONG_WAIT_MS, Pipeline, PipelineError, PipelineParts, commits::until_compared};
use crate::{
    broker::{Committed, TopicPartition, partitioner::partition_of},
    group::{
        partition::{PartitionState, consumed_of},
        proof::{ChainView, PartitionView, Ties, name_of, proves_missing},
    },
    ingest::{
        dispatch::{Done, spawn},
        flight::FlightId,
    },
    record::Consumed,
    replay::Modes,
    tx::Txid,
};

/// Of the time between two questions those that wait stand still for this part, to be found by the answer.
const HELD: u64 = 4;

/// How far everybody else is.
#[derive(Debug)]
pub struct Others {
    /// Partitions of the topic.
    count: i32,
    /// Those that are not held here.
    partitions: Vec<(i32, PartitionView)>,
    /// Ends of those that are.
    ends: BTreeMap<i32, u64>,
    chain: ChainView,
    /// Who was waiting when all this was asked for: of anybody who came later it proves nothing.
    waiting: BTreeSet<FlightId>,
}

async fn how_far_others_are(
    parts: &PipelineParts,
    topic: Arc<str>,
    group: &str,
    held: &BTreeSet<i32>,
    waiting: BTreeSet<FlightId>,
) -> Result<Others, PipelineError> {
    let count = parts.broker.partitions(&topic).await?.unwrap_or(0);
    let foreign: Vec<TopicPartition> = (0..count)
        .filter(|number| !held.contains(number))
        .map(|partition| TopicPartition { topic: topic.clone(), partition })
        .collect();
    let committed = parts.broker.committed(group, &foreign).await?;
    let mut partitions = Vec::new();
    let known = |(partition, at): (&TopicPartition, &Option<Committed>)| {
        Some((partition.partition.unsigned_abs(), consumed_of(at.as_ref()?)?))
    };
    let consumed = Consumed { chain: 0, validated: foreign.iter().zip(&committed).filter_map(known).collect() };
    // What others have read is no proof of what this store holds, unless it is theirs too. A rebuild's is not.
    if matches!(parts.modes, Modes::Live) {
        until_compared(parts.whole.as_ref(), &consumed)
            .await
            .map_err(|error| PipelineError::Store(error.to_string()))?;
    }
    for (partition, committed) in foreign.iter().zip(committed) {
        let view = PartitionState::foreign_view(parts.broker.as_ref(), partition, committed).await?;
        partitions.push((partition.partition, view));
    }
    let mut ends = BTreeMap::new();
    for number in held {
        let partition = TopicPartition { topic: topic.clone(), partition: *number };
        ends.insert(*number, parts.broker.watermarks(&partition).await?.1);
    }
    let chain = parts.chain.view().await?;
    Ok(Others { count, partitions, ends, chain, waiting })
}

impl Pipeline {
    /// Others may be waiting for what was contested to be committed, and the next in line here may be proven missing now. Not
    /// for every single contest, though.
    pub(super) fn contests_published(&mut self) {
        if self.publishing == 0 && self.planner.counts().parked > 0 {
            self.next_proof = self.rested.max(Instant::now());
            let soon = self.rested.max(self.last_commit + self.settings.commit_interval / 10);
            self.next_commit = self.next_commit.min(soon);
        }
    }

    /// Asks, beside the loop, how far the others are: whether a parent is missing follows from that.
    pub(super) fn ask_others(&mut self) {
        let waiting = self.planner.waiting_for_absent();
        let now_ms = self.now_ms();
        if self.asking || (waiting.is_empty() && self.planner.waiting_long(LONG_WAIT_MS, now_ms).is_empty()) {
            return;
        }
        self.asking = true;
        let waiting = waiting.into_iter().map(|(_, flight, _)| flight).collect();
        self.planner.hold(&waiting, now_ms + self.settings.commit_interval.as_millis() as u64 / HELD);
        let held: BTreeSet<i32> = self.partitions.keys().copied().collect();
        let (parts, done) = (self.parts.clone(), self.done_sender.clone());
        let (topic, group) = (self.settings.topic.clone(), self.settings.group.clone());
        spawn("asking how far the others are", &self.done_sender, async move {
            let answer = match how_far_others_are(&parts, topic, &group, &held, waiting).await {
                Err(error @ PipelineError::Store(_)) => Done::Fatal(error),
                others => Done::Others(others.map_err(|error| error.to_string())),
            };
            // A pipeline that has ended meanwhile asks again when it starts.
            let _ = done.send(answer);
        });
    }

    /// Contests what waits for a parent that will never come.
    pub(super) fn prove_missing_parents(&mut self, others: Result<Others, String>) {
        let begun = Instant::now();
        self.prove_by(others);
        self.rest_from(begun);
        self.next_proof = self.next_proof.max(self.rested);
    }

    fn prove_by(&mut self, others: Result<Others, String>) {
        self.asking = false;
        let others = match others {
            Ok(others) => others,
            Err(error) => return tracing::warn!(error, "cannot look whether a parent is missing"),
        };
        self.look_at_chain(others.chain);
        self.hear_ends(others.ends.iter().map(|(number, end)| (*number, *end)));
        // The end that was last heard of is too old: a message of one partition may be late, and its child in another not.
        let named = self.planner.named();
        let own = |(number, state): (&i32, &PartitionState)| {
            let mut view = state.view(named.get(number).map_or(&[], Vec::as_slice));
            // The planner knows the transactions that wait here, and none of them is an absent parent unless the
            // planner says so. Over a store that forgets a completed event is not known any more. Nor is an event that
            // a halted partition has not handled, or one beyond the bound of a partition that is paused there: it
            // counts as read only for an event that is older than the partition's head.
            if !self.parts.nodes.may_forget() && state.halted.is_none() && !view.at_bound {
                (view.oldest_unfinished, view.waiting) = (self.oldest_unprepared(*number), None);
            }
            let at_end = others.ends.get(number).is_some_and(|end| view.position >= *end);
            (*number, PartitionView { at_end, ..view })
        };
        let mut views: BTreeMap<i32, PartitionView> = self.partitions.iter().map(own).collect();
        let elsewhere = others.partitions.iter().flat_map(|(_, view)| &view.waiting).flat_map(|waiting| &waiting.named);
        self.waiting_elsewhere = elsewhere.map(|(.., name)| *name).collect();
        views.extend(others.partitions.into_iter().filter(|(number, _)| !self.partitions.contains_key(number)));
        let count = others.count;
        if views.len() < count as usize {
            // A partition was taken away since: its next holder has not said anything yet.
            return;
        }
        // What is to be read next there may be what the chain waits for. A coinbase that comes after all gives a second chance.
        let at_bound = views.values().any(|view| view.at_bound);
        let grace_ms = self.settings.missing_parent_grace_ms;
        let chain = if at_bound && self.chain_stands(grace_ms) { ChainView::AtEnd } else { others.chain };
        let mut waiting = self.planner.waiting_for_absent();
        waiting.retain(|(_, flight, _)| others.waiting.contains(flight));
        waiting.sort_unstable();
        let now_ms = self.now_ms();
        let views_of = |parent: &Txid| partition_of(&parent.0, count).and_then(|number| views.get_key_value(&number));
        for (event, flight, wanted) in waiting {
            let order = (event.timestamp_ms, event.partition, event.offset);
            let is_at_bound = |view: &PartitionView| view.at_bound;
            let held_back = views.get(&event.partition).is_some_and(is_at_bound)
                || wanted.iter().filter_map(views_of).any(|(_, view)| is_at_bound(view));
            let ties = Ties::after(self.planner.has_waited_ms(flight, now_ms), grace_ms, held_back);
            let is_missing = |parent: &Txid| {
                let is_known_here = self.planner.is_in_flight(parent) && ties < Ties::BreakKnown;
                views_of(parent).filter(|_| !is_known_here).is_some_and(|(number, view)| {
                    proves_missing(order, name_of(parent), ties, (*number, view), chain, grace_ms as i64)
                })
            };
            if wanted.iter().all(is_missing) {
                self.planner.parents_are_missing(flight, wanted, ties, now_ms);
            }
        }
    }

    /// Whether a missing parent counts towards the limits on dead letters: a parent that is known to wait, here or
    /// elsewhere, brings its child back by itself.
    pub(super) fn counts_as_missing(&self, parent: &Txid) -> bool {
        !self.planner.is_in_flight(parent) && !self.waiting_elsewhere.contains(&name_of(parent))
    }

    /// The oldest that was read and that nobody has looked at.
    pub(super) fn oldest_unprepared(&self, number: i32) -> Option<(i64, u64)> {
        self.chunks.iter().filter(|chunk| chunk.partition == number).map(|chunk| chunk.oldest).min()
    }

    /// A chain that does not move may want what waits here without need, or what a node forgot.
    pub(super) fn look_at_chain(&mut self, chain: ChainView) {
        let now_ms = self.now_ms();
        if self.chain.0 != chain || chain == ChainView::Unknown {
            self.chain = (chain, now_ms);
        } else if self.chain_stands(LONG_WAIT_MS) {
            self.planner.look_at_own(LONG_WAIT_MS, now_ms);
        }
    }

    /// Whether the chain has been seen to stand at the same event for so long.
    pub(super) fn chain_stands(&self, for_ms: u64) -> bool {
        let (view, since_ms) = self.chain;
        matches!(view, ChainView::Behind(_)) && self.now_ms().saturating_sub(since_ms) >= for_ms
    }
}
