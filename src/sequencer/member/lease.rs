//! The worker of the acquired chain, and the states of the chain that are handled and not committed.

use std::{collections::VecDeque, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    broker::{CommittedOffset, MessageBatch},
    group::member::{CommitContent, DurableConsumed, PartitionTable},
    record::ConsumedOffsets,
    sequencer::{CommittedChain, member::CHAIN},
};

/// The worker of the acquired chain. The chain partition without a lease is halted: acquiring it failed.
pub(super) struct ChainLease {
    pub(super) messages: mpsc::UnboundedSender<MessageBatch>,
    pub(super) task: JoinHandle<()>,
    pub(super) handled: HandledStates,
    /// Tells the worker which chain state is committed.
    pub(super) committed_chain: watch::Sender<CommittedChain>,
}

/// States of the chain that are handled and not committed. Each is a whole commit: an offset with the state at this
/// offset.
pub(super) struct HandledStates {
    /// The next chain offset to handle.
    pub(super) next: u64,
    /// The last handled state, until the next commit tick.
    latest: Option<CommittedOffset>,
    /// States that a node can still lose: the latest of each commit tick, with the time of the tick.
    not_durable: VecDeque<(Instant, CommittedOffset)>,
    /// The latest state that is durable.
    durable: Option<CommittedOffset>,
    /// The committed state, until the worker is told.
    pub(super) committed: Option<CommittedOffset>,
    /// The committed offset, which the next commit records in the meta record as durable.
    committed_offset: u64,
}

impl HandledStates {
    /// Starts at the committed offset.
    pub(super) fn new(next: u64) -> Self {
        HandledStates {
            next,
            latest: None,
            not_durable: VecDeque::new(),
            durable: None,
            committed: None,
            committed_offset: next,
        }
    }

    /// Notes a state that is handled.
    pub(super) fn push(&mut self, handled: CommittedOffset) {
        self.next = handled.offset;
        self.latest = Some(handled);
    }
}

impl CommitContent for HandledStates {
    fn consumed(&self, _: &PartitionTable) -> ConsumedOffsets {
        ConsumedOffsets { chain: self.next, ..ConsumedOffsets::default() }
    }

    fn durable(&self, _: &PartitionTable) -> ConsumedOffsets {
        ConsumedOffsets { chain: self.committed_offset, ..ConsumedOffsets::default() }
    }

    /// Keeps the latest state that was older than the durability lag at `polled_at`, until it is committed.
    fn mark_durable(&mut self, _: &mut PartitionTable, polled_at: Instant, lag: Duration) {
        self.not_durable.extend(self.latest.take().map(|handled| (polled_at, handled)));
        while self.not_durable.front().is_some_and(|(handled_at, _)| *handled_at + lag <= polled_at) {
            self.durable = self.not_durable.pop_front().map(|(_, handled)| handled);
        }
    }

    /// Each state was recorded as consumed before its tick, so that a durable state is consumed durably.
    fn next_commits(&self, _: &PartitionTable, _: &DurableConsumed) -> Vec<(i32, CommittedOffset)> {
        self.durable.iter().map(|state| (CHAIN, state.clone())).collect()
    }

    fn on_committed(&mut self, committed: &CommittedOffset) {
        self.committed_offset = self.committed_offset.max(committed.offset);
        self.committed = self.durable.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_state_older_than_the_lag_is_committed_until_the_coordinator_answers() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut partitions = PartitionTable::new("chain".into(), start);
        let mut states = HandledStates::new(3);
        let state = |offset| CommittedOffset { offset, metadata: String::new() };
        let mut next_at = |states: &mut HandledStates, seconds: u32| {
            states.mark_durable(&mut partitions, start + second * seconds, 2 * second);
            states.next_commits(&partitions, &DurableConsumed::default()).pop().map(|(_, state)| state.offset)
        };
        assert_eq!(next_at(&mut states, 0), None);
        states.push(state(4));
        states.push(state(5));
        assert_eq!(next_at(&mut states, 1), None);
        states.push(state(6));
        assert_eq!(next_at(&mut states, 2), None);
        assert_eq!(next_at(&mut states, 3), Some(5), "4 was not the last of its tick");
        assert_eq!(next_at(&mut states, 3), Some(5), "there was no answer");
        states.on_committed(&state(5));
        assert_eq!((states.committed.take(), next_at(&mut states, 3)), (Some(state(5)), None));
        states.push(state(7));
        assert_eq!((next_at(&mut states, 9), next_at(&mut states, 11)), (Some(6), Some(7)));
        assert_eq!(states.consumed(&PartitionTable::new("chain".into(), start)).chain, 7);
    }
}
