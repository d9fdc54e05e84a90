//! Calls by which a test makes the log in memory behave as a cluster may.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{BrokerState, GroupRules, GroupState, MemoryBroker, MemoryFaults, TopicLogs};
use crate::broker::{BrokerError, NewTopic, TopicPartition};

impl MemoryBroker {
    /// Revokes all partitions of the group and assigns them anew, as in an eager rebalance.
    pub fn rebalance(&self, group: &str) {
        self.with_group(group, |group, logs, rules| group.rebalance(true, rules, logs, Instant::now()));
    }

    /// Takes the assignments of all members without a revocation. Each member joins again at its next poll.
    pub fn lose_assignments(&self, group: &str) {
        self.with_group(group, |group, logs, rules| {
            for id in group.members.keys().copied().collect::<Vec<_>>() {
                group.expel(id, rules, logs, Instant::now());
            }
        });
    }

    /// Takes the assignment of one member without a revocation. The member joins again at its next poll.
    pub fn expel(&self, group: &str, member: u64) {
        self.with_group(group, |group, logs, rules| group.expel(member, rules, logs, Instant::now()));
    }

    /// Replaces the faults; `MemoryFaults::default()` injects none. The generator keeps its state.
    pub fn set_faults(&self, faults: MemoryFaults) {
        self.shared.lock().injector.set(faults);
        self.shared.changed.notify_waiters();
    }

    /// Number of injected faults, by name.
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.shared.lock().injector.injected()
    }

    /// Number of rebalances of a group; 0: the group never had a member.
    pub fn generation(&self, group: &str) -> u64 {
        self.shared.lock().groups.get(group).map_or(0, |group| group.generation)
    }

    /// Removes the committed offsets of a group, as `offsets.retention.minutes` and a deletion of the group do.
    pub fn forget_commits(&self, group: &str) {
        self.with_group(group, |group, _, _| group.committed.clear());
    }

    /// Removes the messages of a partition below `offset`, as retention does.
    pub fn truncate(&self, partition: &TopicPartition, offset: u64) -> Result<(), BrokerError> {
        self.shared.lock().logs.get_mut("truncate", partition)?.truncate(offset);
        self.shared.changed.notify_waiters();
        Ok(())
    }

    /// Deletes a topic. Groups lose their committed offsets of the topic, as on Apache Kafka. Members keep their
    /// positions, as librdkafka does where the topic is created again.
    pub fn delete_topic(&self, topic: &str) {
        let mut state = self.shared.lock();
        state.logs.delete(topic);
        state.groups.values_mut().for_each(|group| group.committed.retain(|partition, _| &*partition.topic != topic));
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Deletes a topic and creates it again in one step.
    ///
    /// # Errors
    /// Errors of [`create_topics`](crate::broker::Broker::create_topics).
    pub fn recreate_topic(&self, topic: &NewTopic) -> Result<(), BrokerError> {
        self.delete_topic(&topic.name);
        self.shared.lock().logs.create(topic)
    }

    /// Makes a topic refuse every message for the reason `why`; `None`: accept messages again.
    pub fn reject(&self, topic: &str, why: Option<&str>) {
        for log in self.shared.lock().logs.partitions_mut(topic) {
            log.rejects = why.map(str::to_owned);
        }
    }

    /// Leaves `count` offsets of a partition without a message, as compaction and transaction markers do.
    pub fn leave_gap(&self, partition: &TopicPartition, count: u64) -> Result<(), BrokerError> {
        self.shared.lock().logs.get_mut("leave gap", partition)?.leave_gap(count);
        self.shared.changed.notify_waiters();
        Ok(())
    }

    fn with_group(&self, group: &str, change: impl FnOnce(&mut GroupState, &TopicLogs, GroupRules)) {
        let mut guard = self.shared.lock();
        let BrokerState { logs, groups, .. } = &mut *guard;
        if let Some(group) = groups.get_mut(group) {
            change(group, logs, self.shared.settings.rules());
        }
        drop(guard);
        self.shared.changed.notify_waiters();
    }
}
