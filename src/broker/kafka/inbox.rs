//! The inbox between the polling thread and the async side: events, batches and the owned partitions.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::broker::{BrokerError, ConsumerEvent, TopicPartition};

/// Most batches of one partition in the inbox: one to be taken next, and one behind it.
pub(super) const BATCHES_AHEAD: usize = 2;

/// A partition that this member owns.
#[derive(Debug)]
struct OwnedPartition {
    paused: bool,
    /// The revocation has begun: the partition can still be committed and is no longer read.
    revoked: bool,
    /// The async side has taken the assignment from the inbox. Before that, its requests refer to an earlier assignment
    /// of the same partition, which was lost.
    is_assignment_taken: bool,
    /// Number of batches and ends in the inbox.
    waiting_batches: usize,
}

/// State of the revocation. librdkafka has at most one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RevocationState {
    #[default]
    None,
    /// The event is in the inbox.
    Announced,
    /// The async side has taken the event.
    Taken,
    /// The async side has finished the revocation.
    Finished,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    events: VecDeque<Result<ConsumerEvent, BrokerError>>,
    batches: VecDeque<ConsumerEvent>,
    owned: BTreeMap<TopicPartition, OwnedPartition>,
    pub(super) revocation: RevocationState,
    /// A commit is in progress. No partition is released meanwhile: the commit could overwrite the next owner's.
    pub(super) committing: bool,
    /// Error of every later call, once the polling thread has ended.
    pub(super) ended: Option<BrokerError>,
}

/// The inbox with its lock and its wake-up signal.
#[derive(Debug, Default)]
pub(super) struct SharedInbox {
    inbox: Mutex<Inbox>,
    changed: Notify,
}

impl SharedInbox {
    /// Locks the inbox, also after a panic: the inbox is consistent between statements.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Waits for the next event or batch and takes it. Cancel safe: the future takes nothing before it returns.
    pub(super) async fn next(&self) -> Result<ConsumerEvent, BrokerError> {
        loop {
            if let Some(taken) = self.lock().take_next() {
                return taken;
            }
            self.changed.notified().await;
        }
    }
}

impl Inbox {
    /// Takes the next event, so that a revocation does not wait behind batches; else the next batch or end of a
    /// partition that is not paused.
    fn take_next(&mut self) -> Option<Result<ConsumerEvent, BrokerError>> {
        if let Some(event) = self.events.pop_front() {
            if matches!(event, Ok(ConsumerEvent::Revoked { lost: false, .. }))
                && self.revocation == RevocationState::Announced
            {
                self.revocation = RevocationState::Taken;
            }
            if let Ok(ConsumerEvent::Assigned(assigned)) = &event {
                for assigned in assigned {
                    self.owned.entry(assigned.partition.clone()).and_modify(|owned| owned.is_assignment_taken = true);
                }
            }
            return Some(event);
        }
        let deliverable = |polled: &ConsumerEvent| {
            partition_of(polled).is_none_or(|at| self.owned.get(at).is_some_and(|owned| !owned.paused))
        };
        if let Some(index) = self.batches.iter().position(deliverable) {
            let polled = self.batches.remove(index)?;
            if let Some(owned) = partition_of(&polled).and_then(|at| self.owned.get_mut(at)) {
                owned.waiting_batches -= 1;
            }
            return Some(Ok(polled));
        }
        self.ended.clone().map(Err)
    }

    pub(super) fn push_event(&mut self, event: Result<ConsumerEvent, BrokerError>) {
        self.events.push_back(event);
    }

    /// Queues a batch or an end, unless the partition was removed meanwhile.
    pub(super) fn push_batch(&mut self, polled: ConsumerEvent) {
        if let Some(owned) = partition_of(&polled).and_then(|at| self.owned.get_mut(at)) {
            owned.waiting_batches += 1;
            self.batches.push_back(polled);
        }
    }

    /// True where the inbox has room for another batch of a partition that is read.
    pub(super) fn wants_batch(&self, at: &TopicPartition) -> bool {
        self.owned.get(at).is_some_and(|owned| !owned.paused && !owned.revoked && owned.waiting_batches < BATCHES_AHEAD)
    }

    /// Adds a partition. The state of a partition that the inbox has already stays.
    pub(super) fn add_partition(&mut self, at: TopicPartition) {
        self.owned.entry(at).or_insert(OwnedPartition {
            paused: false,
            revoked: false,
            is_assignment_taken: false,
            waiting_batches: 0,
        });
    }

    /// Drops the batches of partitions and reads them no more; commits stay possible.
    pub(super) fn revoke(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            if let Some(owned) = self.owned.get_mut(at) {
                owned.revoked = true;
                owned.waiting_batches = 0;
            }
        }
        self.batches.retain(|polled| partition_of(polled).is_none_or(|at| !partitions.contains(at)));
    }

    /// Removes partitions with their batches: reads and commits are refused.
    pub(super) fn remove_partitions(&mut self, partitions: &[TopicPartition]) {
        self.revoke(partitions);
        self.owned.retain(|at, _| !partitions.contains(at));
    }

    /// Removes all events, batches and partitions.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.batches.clear();
        self.owned.clear();
    }

    /// True where offsets can be committed for a partition.
    pub(super) fn can_commit(&self, at: &TopicPartition) -> bool {
        self.owned.get(at).is_some_and(|owned| owned.is_assignment_taken)
    }

    /// True where a partition can be sought, paused and resumed.
    pub(super) fn is_assigned(&self, at: &TopicPartition) -> bool {
        self.owned.get(at).is_some_and(|owned| owned.is_assignment_taken && !owned.revoked)
    }

    /// Drops the batches of a partition that a seek has made obsolete.
    pub(super) fn discard_batches(&mut self, at: &TopicPartition) {
        if let Some(owned) = self.owned.get_mut(at) {
            owned.waiting_batches = 0;
            self.batches.retain(|polled| partition_of(polled) != Some(at));
        }
    }

    /// Pauses or resumes a partition; `false`: the partition is not assigned.
    pub(super) fn set_paused(&mut self, at: &TopicPartition, paused: bool) -> bool {
        match self.owned.get_mut(at) {
            Some(owned) if owned.is_assignment_taken && !owned.revoked => {
                owned.paused = paused;
                true
            }
            _ => false,
        }
    }
}

fn partition_of(polled: &ConsumerEvent) -> Option<&TopicPartition> {
    match polled {
        ConsumerEvent::Messages(batch) => Some(&batch.partition),
        ConsumerEvent::End(end) => Some(&end.partition),
        ConsumerEvent::Assigned(_) | ConsumerEvent::Revoked { .. } => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::broker::{AssignedPartition, PartitionEnd};

    fn at(partition: i32) -> TopicPartition {
        TopicPartition { topic: "topic".into(), partition }
    }

    fn end(partition: i32) -> ConsumerEvent {
        ConsumerEvent::End(PartitionEnd { partition: at(partition), epoch: 1, position: 0 })
    }

    fn taken(inbox: &mut Inbox) -> Option<ConsumerEvent> {
        inbox.take_next().map(Result::unwrap)
    }

    /// Adds a partition and queues its assignment.
    fn assign(inbox: &mut Inbox, partition: i32) {
        inbox.add_partition(at(partition));
        let assigned =
            AssignedPartition { partition: at(partition), epoch: 1, committed: None, position: 0, high_watermark: 0 };
        inbox.push_event(Ok(ConsumerEvent::Assigned(vec![assigned])));
    }

    /// Builds an inbox with two assigned partitions and an end of each.
    fn with_waiting_ends() -> Inbox {
        let mut inbox = Inbox::default();
        for partition in [0, 1] {
            assign(&mut inbox, partition);
            taken(&mut inbox);
        }
        inbox.push_batch(end(0));
        inbox.push_batch(end(1));
        inbox
    }

    #[test]
    fn a_request_before_the_assignment_is_taken_is_refused() {
        let mut inbox = Inbox::default();
        assign(&mut inbox, 0);
        assert!(taken(&mut inbox).is_some() && inbox.is_assigned(&at(0)));
        // The partition is lost and assigned again before the async side has taken either event.
        inbox.remove_partitions(&[at(0)]);
        inbox.push_event(Ok(ConsumerEvent::Revoked { partitions: vec![at(0)], lost: true }));
        assign(&mut inbox, 0);
        for _ in 0..2 {
            assert!(!inbox.can_commit(&at(0)) && !inbox.is_assigned(&at(0)) && !inbox.set_paused(&at(0), true));
            taken(&mut inbox).unwrap();
        }
        assert!(inbox.can_commit(&at(0)) && inbox.is_assigned(&at(0)) && inbox.set_paused(&at(0), true));
    }

    #[test]
    fn a_revocation_overtakes_and_drops_waiting_batches() {
        let mut inbox = with_waiting_ends();
        inbox.revoke(&[at(0)]);
        inbox.push_event(Ok(ConsumerEvent::Revoked { partitions: vec![at(0)], lost: false }));
        inbox.push_batch(end(0));
        assert!(matches!(taken(&mut inbox), Some(ConsumerEvent::Revoked { .. })));
        assert!(inbox.can_commit(&at(0)) && !inbox.is_assigned(&at(0)) && !inbox.wants_batch(&at(0)));
        inbox.remove_partitions(&[at(0)]);
        assert!(!inbox.can_commit(&at(0)));
        assert!(matches!(taken(&mut inbox), Some(ConsumerEvent::End(end)) if end.partition == at(1)));
        assert!(taken(&mut inbox).is_none());
    }

    #[test]
    fn a_paused_partition_does_not_block_others() {
        let mut inbox = with_waiting_ends();
        assert!(inbox.set_paused(&at(0), true));
        assert!(matches!(taken(&mut inbox), Some(ConsumerEvent::End(end)) if end.partition == at(1)));
        assert!(taken(&mut inbox).is_none());
        assert!(inbox.set_paused(&at(0), false));
        assert!(matches!(taken(&mut inbox), Some(ConsumerEvent::End(end)) if end.partition == at(0)));
    }

    #[test]
    fn at_most_batches_ahead_of_one_partition_wait() {
        let mut inbox = Inbox::default();
        inbox.add_partition(at(0));
        for _ in 0..BATCHES_AHEAD {
            assert!(inbox.wants_batch(&at(0)));
            inbox.push_batch(end(0));
        }
        assert!(!inbox.wants_batch(&at(0)));
        taken(&mut inbox);
        assert!(inbox.wants_batch(&at(0)));
    }
}
