//! A consumer group as a state machine: owners of partitions, revocations and deadlines. No I/O, no waiting.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::Assignment;
use crate::broker::{AssignedPartition, CommittedOffset, ConsumerEvent, PartitionEnd, TopicPartition};

pub(super) type MemberId = u64;

/// A partition that a member owns.
#[derive(Debug)]
pub(super) struct MemberPartition {
    pub(super) epoch: u64,
    pub(super) position: u64,
    pub(super) paused: bool,
    /// The end was reported, and no message was delivered since.
    pub(super) end_reported: bool,
    /// An out-of-range position was reported; the partition delivers nothing until a seek.
    pub(super) is_out_of_range: bool,
    /// End of a delay that a fault has injected.
    pub(super) held_until: Option<Instant>,
    revocation: Option<PendingRevocation>,
}

#[derive(Debug)]
struct PendingRevocation {
    deadline: Instant,
    is_taken: bool,
}

impl MemberPartition {
    /// Event of a partition that was read to its end.
    pub(super) fn end(&self, partition: TopicPartition) -> ConsumerEvent {
        ConsumerEvent::End(PartitionEnd { partition, epoch: self.epoch, position: self.position })
    }

    /// True where the partition is being revoked.
    pub(super) fn is_revoked(&self) -> bool {
        self.revocation.is_some()
    }
}

#[derive(Debug)]
pub(super) struct ConsumerMember {
    topics: Vec<Arc<str>>,
    pub(super) owned: BTreeMap<TopicPartition, MemberPartition>,
    events: VecDeque<ConsumerEvent>,
    /// Partition of the last delivery: the next delivery starts after it.
    pub(super) last: Option<TopicPartition>,
    /// The group has expelled the member, which joins again at its next poll.
    expelled: bool,
    /// Time at which the group removes a member that was dropped without leaving.
    removed_at: Option<Instant>,
}

/// View of the log that the group needs to assign a partition.
pub(super) trait LogView {
    /// Number of partitions of a topic.
    fn partitions(&self, topic: &str) -> i32;
    /// Low and high watermark of a partition.
    fn watermarks(&self, partition: &TopicPartition) -> (u64, u64);
    /// Draws an epoch that was never used before.
    fn next_epoch(&self) -> u64;
}

/// Members of the group, their partitions, and the committed offsets.
#[derive(Debug, Default)]
pub(super) struct GroupState {
    pub(super) generation: u64,
    pub(super) committed: BTreeMap<TopicPartition, CommittedOffset>,
    pub(super) members: BTreeMap<MemberId, ConsumerMember>,
    target: BTreeMap<TopicPartition, MemberId>,
}

/// Rules of a group: assignment strategy and time for a revocation.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupRules {
    pub(super) assignment: Assignment,
    pub(super) revocation_timeout: Duration,
}

impl GroupState {
    pub(super) fn join(
        &mut self,
        id: MemberId,
        topics: Vec<Arc<str>>,
        rules: GroupRules,
        log: &dyn LogView,
        now: Instant,
    ) {
        let member = ConsumerMember {
            topics,
            owned: BTreeMap::new(),
            events: VecDeque::new(),
            last: None,
            expelled: false,
            removed_at: None,
        };
        self.members.insert(id, member);
        self.rebalance(false, rules, log, now);
    }

    /// Removes a member with its partitions.
    pub(super) fn remove(&mut self, id: MemberId, rules: GroupRules, log: &dyn LogView, now: Instant) {
        if self.members.remove(&id).is_some() {
            self.rebalance(false, rules, log, now);
        }
    }

    /// Removes a member without heartbeats at the time `at`.
    pub(super) fn schedule_removal(&mut self, id: MemberId, at: Instant) {
        if let Some(member) = self.members.get_mut(&id) {
            member.removed_at = Some(at);
        }
    }

    /// Takes a member's assignment away without a revocation; the member joins again at its next poll.
    pub(super) fn expel(&mut self, id: MemberId, rules: GroupRules, log: &dyn LogView, now: Instant) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.revoke_as_lost();
        self.rebalance(false, rules, log, now);
    }

    /// Removes dropped members at their deadline, and expels members that missed the deadline of a revocation. True
    /// where the group has changed.
    pub(super) fn expire(&mut self, rules: GroupRules, log: &dyn LogView, now: Instant) -> bool {
        let before = self.members.len();
        self.members.retain(|_, member| member.removed_at.is_none_or(|at| at > now));
        let mut changed = self.members.len() != before;
        for member in self.members.values_mut() {
            if member.revocation_deadline().is_some_and(|deadline| deadline <= now) {
                member.revoke_as_lost();
                changed = true;
            }
        }
        if changed {
            self.rebalance(false, rules, log, now);
        }
        changed
    }

    /// Time of the next deadline for [`expire`](Self::expire).
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.members.values().flat_map(|member| [member.removed_at, member.revocation_deadline()]).flatten().min()
    }

    /// Computes the target assignment and revokes the partitions that move (`revoke_all`: every partition).
    pub(super) fn rebalance(&mut self, revoke_all: bool, rules: GroupRules, log: &dyn LogView, now: Instant) {
        self.generation += 1;
        self.target = self.assign(rules.assignment, log);
        for (id, member) in &mut self.members {
            let deadline = now + rules.revocation_timeout;
            let mut partitions = Vec::new();
            for (partition, owned) in &mut member.owned {
                if owned.revocation.is_none() && (revoke_all || self.target.get(partition) != Some(id)) {
                    owned.revocation = Some(PendingRevocation { deadline, is_taken: false });
                    partitions.push(partition.clone());
                }
            }
            if !partitions.is_empty() {
                member.events.push_back(ConsumerEvent::Revoked { partitions, lost: false });
            }
        }
        self.assign_free_partitions(log);
    }

    /// Next event of a member, with `true` where the poll has made an expelled member join again.
    pub(super) fn next_event(
        &mut self,
        id: MemberId,
        rules: GroupRules,
        log: &dyn LogView,
        now: Instant,
    ) -> Option<(ConsumerEvent, bool)> {
        let member = self.members.get_mut(&id)?;
        let mut rejoined = false;
        if member.events.is_empty() && member.expelled {
            member.expelled = false;
            rejoined = true;
            self.rebalance(false, rules, log, now);
        }
        let member = self.members.get_mut(&id)?;
        let event = member.events.pop_front()?;
        if let ConsumerEvent::Revoked { partitions, lost: false } = &event {
            for partition in partitions {
                if let Some(revocation) = member.owned.get_mut(partition).and_then(|owned| owned.revocation.as_mut()) {
                    revocation.is_taken = true;
                }
            }
        }
        Some((event, rejoined))
    }

    /// Releases the partitions whose revocation the member has polled.
    pub(super) fn finish_revocation(&mut self, id: MemberId, log: &dyn LogView) {
        if let Some(member) = self.members.get_mut(&id) {
            member.owned.retain(|_, owned| !owned.revocation.as_ref().is_some_and(|revocation| revocation.is_taken));
            self.assign_free_partitions(log);
        }
    }

    /// Assigns partitions without an owner to the members of the target assignment.
    fn assign_free_partitions(&mut self, log: &dyn LogView) {
        let mut given: BTreeMap<MemberId, Vec<AssignedPartition>> = BTreeMap::new();
        for (partition, id) in &self.target {
            if self.members.values().any(|member| member.owned.contains_key(partition)) {
                continue;
            }
            let Some(member) = self.members.get_mut(id) else { continue };
            let (low, high_watermark) = log.watermarks(partition);
            let committed = self.committed.get(partition).cloned();
            let position = committed.as_ref().map_or(low, |committed| committed.offset);
            let epoch = log.next_epoch();
            member.owned.insert(partition.clone(), MemberPartition::new(epoch, position));
            let assigned =
                AssignedPartition { partition: partition.clone(), epoch, committed, position, high_watermark };
            given.entry(*id).or_default().push(assigned);
        }
        for (id, assigned) in given {
            if let Some(member) = self.members.get_mut(&id) {
                member.events.push_back(ConsumerEvent::Assigned(assigned));
            }
        }
    }

    fn assign(&self, assignment: Assignment, log: &dyn LogView) -> BTreeMap<TopicPartition, MemberId> {
        let mut subscribers: BTreeMap<Arc<str>, Vec<MemberId>> = BTreeMap::new();
        for (id, member) in self.members.iter().filter(|(_, member)| !member.expelled) {
            for topic in &member.topics {
                subscribers.entry(topic.clone()).or_default().push(*id);
            }
        }
        let mut target = BTreeMap::new();
        for (topic, members) in subscribers {
            let partitions = log.partitions(&topic);
            for partition in 0..partitions {
                let index = match assignment {
                    Assignment::Range => range_index(partition as usize, partitions as usize, members.len()),
                    #[cfg(feature = "testkit")]
                    Assignment::RoundRobin => target.len() % members.len(),
                };
                target.insert(TopicPartition { topic: topic.clone(), partition }, members[index]);
            }
        }
        target
    }
}

/// Index of the member that gets `partition`: each member gets a contiguous range, the first members one partition
/// more.
fn range_index(partition: usize, partitions: usize, members: usize) -> usize {
    let (each, more) = (partitions / members, partitions % members);
    let boundary = more * (each + 1);
    if partition < boundary { partition / (each + 1) } else { more + (partition - boundary) / each }
}

impl MemberPartition {
    fn new(epoch: u64, position: u64) -> Self {
        MemberPartition {
            epoch,
            position,
            paused: false,
            end_reported: false,
            is_out_of_range: false,
            held_until: None,
            revocation: None,
        }
    }

    /// Moves the position under a new epoch; a pause stays.
    pub(super) fn seek(&mut self, epoch: u64, position: u64) {
        *self = MemberPartition { paused: self.paused, ..MemberPartition::new(epoch, position) };
    }
}

impl ConsumerMember {
    fn revocation_deadline(&self) -> Option<Instant> {
        self.owned.values().filter_map(|owned| owned.revocation.as_ref()).map(|revocation| revocation.deadline).min()
    }

    /// Takes every partition away. Queued revocations become losses; one more event names the other partitions.
    /// Partitions that the member is draining are not named again: their commits are refused from now on.
    fn revoke_as_lost(&mut self) {
        for event in &mut self.events {
            if let ConsumerEvent::Revoked { lost, .. } = event {
                *lost = true;
            }
        }
        let partitions: Vec<_> =
            self.owned.iter().filter(|(_, owned)| owned.revocation.is_none()).map(|(p, _)| p.clone()).collect();
        if !partitions.is_empty() {
            self.events.push_back(ConsumerEvent::Revoked { partitions, lost: true });
        }
        self.owned.clear();
        self.expelled = true;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_every_partition_in_order_and_evenly() {
        for partitions in 1..20 {
            for members in 1..9 {
                let indexes: Vec<_> = (0..partitions).map(|p| range_index(p, partitions, members)).collect();
                assert!(indexes.is_sorted(), "{partitions}/{members}: {indexes:?}");
                let counts: Vec<_> =
                    (0..members).map(|m| indexes.iter().filter(|index| **index == m).count()).collect();
                assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
            }
        }
    }
}
