//! The assigned chain partition: its worker, its offsets, and the states that are handled and not committed.

use std::{collections::VecDeque, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    broker::{AssignedPartition, CommittedOffset, MessageBatch, TopicPartition},
    group::partition::PartitionState,
    sequencer::CommittedChain,
};

/// The assigned chain partition, with its worker and the offsets that are handled and not committed.
pub(super) struct ChainLease {
    pub(super) partition: TopicPartition,
    /// Events read and events handled, as published in `/state`.
    pub(super) state: PartitionState,
    pub(super) epoch: u64,
    pub(super) messages: mpsc::UnboundedSender<MessageBatch>,
    pub(super) task: JoinHandle<()>,
    /// Handled states that are not committed: the latest of each commit tick, with the time of the tick.
    pub(super) uncommitted: VecDeque<(Instant, CommittedOffset)>,
    /// The last handled state, not in `uncommitted` yet.
    pub(super) latest: Option<CommittedOffset>,
    /// The next chain offset to handle.
    pub(super) next: u64,
    /// The consumed offset that the meta record contains.
    pub(super) recorded: u64,
    /// The commit from which the chain continues after a node's restart.
    pub(super) committed: Option<CommittedOffset>,
    /// The offset at which the assignment began.
    pub(super) start: u64,
    /// Tells the worker which chain state is committed.
    pub(super) committed_chain: watch::Sender<CommittedChain>,
}

/// The assigned chain partition, halted before it could be acquired. The partition stays with this instance until an
/// operator intervenes.
pub(super) struct HaltedChain {
    pub(super) assigned: AssignedPartition,
    /// The partition as published in `/state`.
    pub(super) state: PartitionState,
}

impl ChainLease {
    /// Returns the assignment at its committed offset.
    pub(super) fn committed_assignment(&self) -> AssignedPartition {
        AssignedPartition {
            partition: self.partition.clone(),
            epoch: self.epoch,
            committed: self.committed.clone(),
            position: self.committed.as_ref().map_or(self.start, |committed| committed.offset),
            high_watermark: self.state.high_watermark,
        }
    }

    pub(super) fn on_handled(&mut self, committed: CommittedOffset) {
        self.next = committed.offset;
        if let Some(offset) = committed.offset.checked_sub(1) {
            self.state.tracker.complete(offset, 0);
        }
        self.latest = Some(committed);
    }

    /// Returns the latest handled state that was older than the durability lag at `polled_at`, the time when the nodes'
    /// incarnation was read. The state stays the first of `uncommitted` until it is committed.
    pub(super) fn latest_durable(&mut self, polled_at: Instant, lag: Duration) -> Option<CommittedOffset> {
        self.uncommitted.extend(self.latest.take().map(|committed| (polled_at, committed)));
        while self.uncommitted.get(1).is_some_and(|(handled_at, _)| *handled_at + lag <= polled_at) {
            self.uncommitted.pop_front();
        }
        self.uncommitted
            .front()
            .filter(|(handled_at, _)| *handled_at + lag <= polled_at)
            .map(|(_, committed)| committed.clone())
    }
}
