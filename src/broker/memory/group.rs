//! A consumer group as a state machine: who owns what, who has to give it up, by when. No I/O, no waiting.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::Assignment;
use crate::broker::{Assigned, Committed, End, Polled, TopicPartition};

pub(super) type MemberId = u64;

/// A partition in the hands of a member.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) epoch: u64,
    pub(super) position: u64,
    pub(super) paused: bool,
    /// The end was reported and nothing was delivered since.
    pub(super) end_heard: bool,
    /// An out-of-range position was reported; silent until a seek.
    pub(super) stuck: bool,
    /// Messages held back by a fault.
    pub(super) held_until: Option<Instant>,
    revocation: Option<Revocation>,
}

#[derive(Debug)]
struct Revocation {
    deadline: Instant,
    heard: bool,
}

impl Owned {
    /// Says that everything has been read.
    pub(super) fn end(&self, partition: TopicPartition) -> Polled {
        Polled::End(End { partition, epoch: self.epoch, position: self.position })
    }

    /// Whether the member has been asked to give the partition up.
    pub(super) fn is_revoked(&self) -> bool {
        self.revocation.is_some()
    }
}

#[derive(Debug)]
pub(super) struct Member {
    topics: Vec<Arc<str>>,
    pub(super) owned: BTreeMap<TopicPartition, Owned>,
    events: VecDeque<Polled>,
    /// The partition that was delivered last: the next delivery starts behind it.
    pub(super) last: Option<TopicPartition>,
    /// Lost its place in the group; takes part again once it polls.
    expelled: bool,
    /// Dropped without leaving: the group notices at this time.
    dies_at: Option<Instant>,
}

/// What the group needs to know of the log to hand out a partition.
pub(super) trait Log {
    /// Number of partitions of a topic.
    fn partitions(&self, topic: &str) -> i32;
    /// (low, high) watermarks.
    fn watermarks(&self, partition: &TopicPartition) -> (u64, u64);
    /// An epoch never used before.
    fn next_epoch(&self) -> u64;
}

/// Members, what they own and what they committed.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) generation: u64,
    pub(super) committed: BTreeMap<TopicPartition, Committed>,
    pub(super) members: BTreeMap<MemberId, Member>,
    target: BTreeMap<TopicPartition, MemberId>,
}

/// How a group hands out partitions, and how long it waits for one to be given up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) assignment: Assignment,
    pub(super) revocation_timeout: Duration,
}

impl Group {
    pub(super) fn join(&mut self, id: MemberId, topics: Vec<Arc<str>>, rules: Rules, log: &dyn Log, now: Instant) {
        let member = Member {
            topics,
            owned: BTreeMap::new(),
            events: VecDeque::new(),
            last: None,
            expelled: false,
            dies_at: None,
        };
        self.members.insert(id, member);
        self.rebalance(false, rules, log, now);
    }

    /// Takes a member out, with all that it owned.
    pub(super) fn remove(&mut self, id: MemberId, rules: Rules, log: &dyn Log, now: Instant) {
        if self.members.remove(&id).is_some() {
            self.rebalance(false, rules, log, now);
        }
    }

    /// The member fell silent; the group notices at `at`.
    pub(super) fn dies(&mut self, id: MemberId, at: Instant) {
        if let Some(member) = self.members.get_mut(&id) {
            member.dies_at = Some(at);
        }
    }

    /// Takes a member's assignment away without asking; it joins again when it polls.
    pub(super) fn expel(&mut self, id: MemberId, rules: Rules, log: &dyn Log, now: Instant) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.lose_everything();
        self.rebalance(false, rules, log, now);
    }

    /// Removes the members whose time is over: silent ones, and those that did not finish a revocation.
    pub(super) fn expire(&mut self, rules: Rules, log: &dyn Log, now: Instant) -> bool {
        let before = self.members.len();
        self.members.retain(|_, member| member.dies_at.is_none_or(|at| at > now));
        let mut changed = self.members.len() != before;
        for member in self.members.values_mut() {
            if member.revocation_deadline().is_some_and(|deadline| deadline <= now) {
                member.lose_everything();
                changed = true;
            }
        }
        if changed {
            self.rebalance(false, rules, log, now);
        }
        changed
    }

    /// When [`expire`](Self::expire) has something to do next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.members.values().flat_map(|member| [member.dies_at, member.revocation_deadline()]).flatten().min()
    }

    /// Computes who should own what and asks for what has to move (`revoke_all`: for everything).
    pub(super) fn rebalance(&mut self, revoke_all: bool, rules: Rules, log: &dyn Log, now: Instant) {
        self.generation += 1;
        self.target = self.assign(rules.assignment, log);
        for (id, member) in &mut self.members {
            let deadline = now + rules.revocation_timeout;
            let mut partitions = Vec::new();
            for (partition, owned) in &mut member.owned {
                if owned.revocation.is_none() && (revoke_all || self.target.get(partition) != Some(id)) {
                    owned.revocation = Some(Revocation { deadline, heard: false });
                    partitions.push(partition.clone());
                }
            }
            if !partitions.is_empty() {
                member.events.push_back(Polled::Revoked { partitions, lost: false });
            }
        }
        self.hand_out(log);
    }

    /// The next event for a member, which takes it back in if it was expelled.
    pub(super) fn next_event(
        &mut self,
        id: MemberId,
        rules: Rules,
        log: &dyn Log,
        now: Instant,
    ) -> Option<(Polled, bool)> {
        let member = self.members.get_mut(&id)?;
        let mut rejoined = false;
        if member.events.is_empty() && member.expelled {
            member.expelled = false;
            rejoined = true;
            self.rebalance(false, rules, log, now);
        }
        let member = self.members.get_mut(&id)?;
        let event = member.events.pop_front()?;
        if let Polled::Revoked { partitions, lost: false } = &event {
            for partition in partitions {
                if let Some(revocation) = member.owned.get_mut(partition).and_then(|owned| owned.revocation.as_mut()) {
                    revocation.heard = true;
                }
            }
        }
        Some((event, rejoined))
    }

    /// Lets go of what the member was told to give up.
    pub(super) fn finish_revocation(&mut self, id: MemberId, log: &dyn Log) {
        if let Some(member) = self.members.get_mut(&id) {
            member.owned.retain(|_, owned| !owned.revocation.as_ref().is_some_and(|revocation| revocation.heard));
            self.hand_out(log);
        }
    }

    /// Gives partitions that nobody owns to whom they are meant for.
    fn hand_out(&mut self, log: &dyn Log) {
        let mut given: BTreeMap<MemberId, Vec<Assigned>> = BTreeMap::new();
        for (partition, id) in &self.target {
            if self.members.values().any(|member| member.owned.contains_key(partition)) {
                continue;
            }
            let Some(member) = self.members.get_mut(id) else { continue };
            let (low, high_watermark) = log.watermarks(partition);
            let committed = self.committed.get(partition).cloned();
            let position = committed.as_ref().map_or(low, |committed| committed.offset);
            let epoch = log.next_epoch();
            member.owned.insert(partition.clone(), Owned::new(epoch, position));
            let assigned = Assigned { partition: partition.clone(), epoch, committed, position, high_watermark };
            given.entry(*id).or_default().push(assigned);
        }
        for (id, assigned) in given {
            if let Some(member) = self.members.get_mut(&id) {
                member.events.push_back(Polled::Assigned(assigned));
            }
        }
    }

    fn assign(&self, assignment: Assignment, log: &dyn Log) -> BTreeMap<TopicPartition, MemberId> {
        let mut subscribers: BTreeMap<Arc<str>, Vec<MemberId>> = BTreeMap::new();
        for (id, member) in self.members.iter().filter(|(_, member)| !member.expelled) {
            for topic in &member.topics {
                subscribers.entry(topic.clone()).or_default().push(*id);
            }
        }
        let mut target = BTreeMap::new();
        let mut turn = 0;
        for (topic, members) in subscribers {
            let partitions = log.partitions(&topic);
            for partition in 0..partitions {
                let index = match assignment {
                    Assignment::Range => range_index(partition as usize, partitions as usize, members.len()),
                    Assignment::RoundRobin => turn % members.len(),
                };
                turn += 1;
                target.insert(TopicPartition { topic: topic.clone(), partition }, members[index]);
            }
        }
        target
    }
}

/// Which of `members` gets `partition` when each gets a contiguous range, the first ones one more.
fn range_index(partition: usize, partitions: usize, members: usize) -> usize {
    let (each, more) = (partitions / members, partitions % members);
    let boundary = more * (each + 1);
    if partition < boundary { partition / (each + 1) } else { more + (partition - boundary) / each }
}

impl Owned {
    fn new(epoch: u64, position: u64) -> Self {
        Owned { epoch, position, paused: false, end_heard: false, stuck: false, held_until: None, revocation: None }
    }

    /// Reads on from elsewhere under a new epoch; a pause stays.
    pub(super) fn seek(&mut self, epoch: u64, position: u64) {
        *self = Owned { paused: self.paused, ..Owned::new(epoch, position) };
    }
}

impl Member {
    fn revocation_deadline(&self) -> Option<Instant> {
        self.owned.values().filter_map(|owned| owned.revocation.as_ref()).map(|revocation| revocation.deadline).min()
    }

    /// Revocations not heard of yet become losses; the rest is named in one more. What the member is draining already
    /// is not named again: its commits are refused from now on.
    fn lose_everything(&mut self) {
        for event in &mut self.events {
            if let Polled::Revoked { lost, .. } = event {
                *lost = true;
            }
        }
        let partitions: Vec<_> =
            self.owned.iter().filter(|(_, owned)| owned.revocation.is_none()).map(|(p, _)| p.clone()).collect();
        if !partitions.is_empty() {
            self.events.push_back(Polled::Revoked { partitions, lost: true });
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
