//! What passes between the polling thread and the async side: events, batches, and who owns what.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::broker::{BrokerError, Polled, TopicPartition};

/// Batches of one partition that may wait to be taken: one to work on, one ready.
pub(super) const BATCHES_AHEAD: usize = 2;

/// A partition in the hands of this member.
#[derive(Debug)]
struct Owned {
    paused: bool,
    /// Asked to give it up: may still be committed, is not read.
    revoked: bool,
    /// Whoever takes from here knows that it is ours. Until then what is asked about it is about an assignment before: it was lost and
    /// given back, and the queue has not told yet.
    heard: bool,
    /// Batches that wait to be taken.
    waiting: usize,
}

/// Where a revocation stands. librdkafka has at most one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Revocation {
    #[default]
    None,
    /// The event waits to be taken.
    Announced,
    /// The event was taken.
    Heard,
    /// The async side has let go.
    Finished,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    events: VecDeque<Result<Polled, BrokerError>>,
    batches: VecDeque<Polled>,
    owned: BTreeMap<TopicPartition, Owned>,
    pub(super) revocation: Revocation,
    /// A commit is on its way: partitions are not let go meanwhile, or it might overwrite the next owner's.
    pub(super) committing: bool,
    /// Set once the polling thread has ended.
    pub(super) ended: Option<BrokerError>,
}

/// The inbox with its lock and bell.
#[derive(Debug, Default)]
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    bell: Notify,
}

impl Shared {
    /// The inbox stays consistent between statements: a panic elsewhere does not spoil it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Waits for something to take. Nothing is lost when the future is dropped: it takes nothing before it returns.
    pub(super) async fn next(&self) -> Result<Polled, BrokerError> {
        loop {
            if let Some(taken) = self.lock().take() {
                return taken;
            }
            self.bell.notified().await;
        }
    }
}

impl Inbox {
    /// Events first, so that a revocation is not stuck behind work; then batches and ends of what is not paused.
    fn take(&mut self) -> Option<Result<Polled, BrokerError>> {
        if let Some(event) = self.events.pop_front() {
            if matches!(event, Ok(Polled::Revoked { lost: false, .. })) && self.revocation == Revocation::Announced {
                self.revocation = Revocation::Heard;
            }
            if let Ok(Polled::Assigned(assigned)) = &event {
                for assigned in assigned {
                    self.owned.entry(assigned.partition.clone()).and_modify(|owned| owned.heard = true);
                }
            }
            return Some(event);
        }
        let deliverable = |polled: &Polled| {
            partition_of(polled).is_none_or(|at| self.owned.get(at).is_some_and(|owned| !owned.paused))
        };
        if let Some(index) = self.batches.iter().position(deliverable) {
            let polled = self.batches.remove(index)?;
            if let Some(owned) = partition_of(&polled).and_then(|at| self.owned.get_mut(at)) {
                owned.waiting -= 1;
            }
            return Some(Ok(polled));
        }
        self.ended.clone().map(Err)
    }

    pub(super) fn push_event(&mut self, event: Result<Polled, BrokerError>) {
        self.events.push_back(event);
    }

    /// Queues a batch or an end, unless its partition was taken away meanwhile.
    pub(super) fn push_batch(&mut self, polled: Polled) {
        if let Some(owned) = partition_of(&polled).and_then(|at| self.owned.get_mut(at)) {
            owned.waiting += 1;
            self.batches.push_back(polled);
        }
    }

    /// Whether another batch of a partition is wanted.
    pub(super) fn wants(&self, at: &TopicPartition) -> bool {
        self.owned.get(at).is_some_and(|owned| !owned.paused && !owned.revoked && owned.waiting < BATCHES_AHEAD)
    }

    /// Takes a partition in; one that is there already stays as it is.
    pub(super) fn own(&mut self, at: TopicPartition) {
        self.owned.entry(at).or_insert(Owned { paused: false, revoked: false, heard: false, waiting: 0 });
    }

    /// Still committable, but no longer read.
    pub(super) fn revoke(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            if let Some(owned) = self.owned.get_mut(at) {
                owned.revoked = true;
                owned.waiting = 0;
            }
        }
        self.batches.retain(|polled| partition_of(polled).is_none_or(|at| !partitions.contains(at)));
    }

    /// No longer ours in any way.
    pub(super) fn disown(&mut self, partitions: &[TopicPartition]) {
        self.revoke(partitions);
        self.owned.retain(|at, _| !partitions.contains(at));
    }

    /// Leaves nothing to take, and nothing to commit.
    pub(super) fn forget_everything(&mut self) {
        self.events.clear();
        self.batches.clear();
        self.owned.clear();
    }

    /// Whether offsets may be committed for a partition.
    pub(super) fn may_commit(&self, at: &TopicPartition) -> bool {
        self.owned.get(at).is_some_and(|owned| owned.heard)
    }

    /// Whether a partition can be sought, paused and resumed.
    pub(super) fn is_assigned(&self, at: &TopicPartition) -> bool {
        self.owned.get(at).is_some_and(|owned| owned.heard && !owned.revoked)
    }

    /// Drops what waits of a partition: a seek has made it old.
    pub(super) fn discard(&mut self, at: &TopicPartition) {
        if let Some(owned) = self.owned.get_mut(at) {
            owned.waiting = 0;
            self.batches.retain(|polled| partition_of(polled) != Some(at));
        }
    }

    /// Pauses or resumes; false when the partition is not assigned.
    pub(super) fn set_paused(&mut self, at: &TopicPartition, paused: bool) -> bool {
        match self.owned.get_mut(at) {
            Some(owned) if owned.heard && !owned.revoked => {
                owned.paused = paused;
                true
            }
            _ => false,
        }
    }
}

fn partition_of(polled: &Polled) -> Option<&TopicPartition> {
    match polled {
        Polled::Messages(batch) => Some(&batch.partition),
        Polled::End(end) => Some(&end.partition),
        Polled::Assigned(_) | Polled::Revoked { .. } => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::broker::{Assigned, End};

    fn at(partition: i32) -> TopicPartition {
        TopicPartition { topic: "topic".into(), partition }
    }

    fn end(partition: i32) -> Polled {
        Polled::End(End { partition: at(partition), epoch: 1, position: 0 })
    }

    fn taken(inbox: &mut Inbox) -> Option<Polled> {
        inbox.take().map(Result::unwrap)
    }

    /// Takes it in, and tells so.
    fn assign(inbox: &mut Inbox, partition: i32) {
        inbox.own(at(partition));
        let assigned = Assigned { partition: at(partition), epoch: 1, committed: None, position: 0, high_watermark: 0 };
        inbox.push_event(Ok(Polled::Assigned(vec![assigned])));
    }

    #[test]
    fn who_has_not_heard_of_an_assignment_has_no_say_in_it() {
        let mut inbox = Inbox::default();
        assign(&mut inbox, 0);
        assert!(taken(&mut inbox).is_some() && inbox.is_assigned(&at(0)));
        // Lost and given back, before anybody has heard of either.
        inbox.disown(&[at(0)]);
        inbox.push_event(Ok(Polled::Revoked { partitions: vec![at(0)], lost: true }));
        assign(&mut inbox, 0);
        for _ in 0..2 {
            assert!(!inbox.may_commit(&at(0)) && !inbox.is_assigned(&at(0)) && !inbox.set_paused(&at(0), true));
            taken(&mut inbox).unwrap();
        }
        assert!(inbox.may_commit(&at(0)) && inbox.is_assigned(&at(0)) && inbox.set_paused(&at(0), true));
    }

    #[test]
    fn a_revocation_overtakes_what_waits_and_drops_it() {
        let mut inbox = Inbox::default();
        for partition in [0, 1] {
            assign(&mut inbox, partition);
            taken(&mut inbox);
        }
        inbox.push_batch(end(0));
        inbox.push_batch(end(1));
        inbox.revoke(&[at(0)]);
        inbox.push_event(Ok(Polled::Revoked { partitions: vec![at(0)], lost: false }));
        inbox.push_batch(end(0));
        assert!(matches!(taken(&mut inbox), Some(Polled::Revoked { .. })));
        assert!(inbox.may_commit(&at(0)) && !inbox.is_assigned(&at(0)) && !inbox.wants(&at(0)));
        inbox.disown(&[at(0)]);
        assert!(!inbox.may_commit(&at(0)));
        assert!(matches!(taken(&mut inbox), Some(Polled::End(end)) if end.partition == at(1)));
        assert!(taken(&mut inbox).is_none());
    }

    #[test]
    fn a_paused_partition_waits_and_lets_others_pass() {
        let mut inbox = Inbox::default();
        for partition in [0, 1] {
            assign(&mut inbox, partition);
            taken(&mut inbox);
        }
        inbox.push_batch(end(0));
        inbox.push_batch(end(1));
        assert!(inbox.set_paused(&at(0), true));
        assert!(matches!(taken(&mut inbox), Some(Polled::End(end)) if end.partition == at(1)));
        assert!(taken(&mut inbox).is_none());
        assert!(inbox.set_paused(&at(0), false));
        assert!(matches!(taken(&mut inbox), Some(Polled::End(end)) if end.partition == at(0)));
    }

    #[test]
    fn few_batches_are_held_ahead() {
        let mut inbox = Inbox::default();
        inbox.own(at(0));
        for _ in 0..BATCHES_AHEAD {
            assert!(inbox.wants(&at(0)));
            inbox.push_batch(end(0));
        }
        assert!(!inbox.wants(&at(0)));
        taken(&mut inbox);
        assert!(inbox.wants(&at(0)));
    }
}
