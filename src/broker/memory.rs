//! A log in memory, for tests, benches and simulation.
//!
//! Deterministic: no threads, no wall clock, no randomly ordered map. What waits is woken through tokio, deadlines are in
//! tokio's (possibly paused) time, and faults are drawn from a seed. Of a topic's configuration it knows `max.message.bytes`. Groups rebalance cooperatively: only what has to
//! move is revoked, and it goes to its next owner when the present one has let go, or has let the deadline pass.

mod consumer;
mod faults;
mod group;
mod log;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::Notify, task::coop, time::Instant};

pub use self::faults::MemoryFaults;
use self::{
    consumer::{MemoryConsumer, MemoryReader},
    faults::Dice,
    group::{Group, MemberId, Rules},
    log::Logs,
};
use super::{
    Broker, BrokerError, BrokerErrorKind, Committed, Consumer, Delivered, Message, NewTopic, Produce, Producer, Reader,
    TopicIdentity, TopicPartition, partitioner::partition_of,
};
use crate::clock::Clock;

/// How a group's partitions are spread over its members, which stand in the order in which they joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Assignment {
    /// A contiguous range of every topic for each member.
    #[default]
    Range,
    /// One after the other.
    RoundRobin,
}

/// What can be set on a [`MemoryBroker`].
#[derive(Debug, Clone)]
pub struct MemorySettings {
    /// Stamps messages that are produced without a timestamp.
    pub clock: Clock,
    /// How partitions are spread.
    pub assignment: Assignment,
    /// At most so many messages a batch.
    pub batch_messages: usize,
    /// At most so many bytes of keys and payloads a batch (a single message may be larger).
    pub batch_bytes: usize,
    /// For how long the group waits for a member that was dropped without [`Consumer::close`]; zero: not at all.
    pub session_timeout: Duration,
    /// For how long a member may take to let partitions go before it has lost its whole assignment.
    pub revocation_timeout: Duration,
    /// What goes wrong, how often.
    pub faults: MemoryFaults,
}

impl MemorySettings {
    /// No faults; batches of 500 messages or 1 MiB; range assignment; a dropped consumer is gone at once; 30 s to let go.
    pub fn new(clock: Clock) -> Self {
        MemorySettings {
            clock,
            assignment: Assignment::default(),
            batch_messages: 500,
            batch_bytes: 1 << 20,
            session_timeout: Duration::ZERO,
            revocation_timeout: Duration::from_secs(30),
            faults: MemoryFaults::default(),
        }
    }

    fn rules(&self) -> Rules {
        Rules { assignment: self.assignment, revocation_timeout: self.revocation_timeout }
    }
}

/// A log in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

struct Shared {
    settings: MemorySettings,
    state: Mutex<State>,
    /// Something happened that a waiting poll may want to see.
    changed: Notify,
}

struct State {
    logs: Logs,
    groups: BTreeMap<String, Group>,
    dice: Dice,
    next_member: MemberId,
    /// Where the next message without key and partition goes.
    next_keyless: i32,
}

impl MemoryBroker {
    /// An empty log.
    pub fn new(settings: MemorySettings) -> Self {
        let state = State {
            logs: Logs::default(),
            groups: BTreeMap::new(),
            dice: Dice::new(settings.faults.clone()),
            next_member: 0,
            next_keyless: 0,
        };
        MemoryBroker { shared: Arc::new(Shared { settings, state: Mutex::new(state), changed: Notify::new() }) }
    }

    /// Hook: the whole group gives up all its partitions and gets them anew, as in an eager rebalance.
    pub fn rebalance(&self, group: &str) {
        self.with_group(group, |group, logs, rules| group.rebalance(true, rules, logs, Instant::now()));
    }

    /// Hook: every member loses its assignment without being asked, and joins again when it polls.
    pub fn lose_assignments(&self, group: &str) {
        self.with_group(group, |group, logs, rules| {
            for id in group.members.keys().copied().collect::<Vec<_>>() {
                group.expel(id, rules, logs, Instant::now());
            }
        });
    }

    /// Hook: one member loses its assignment without being asked, and joins again when it polls.
    pub fn expel(&self, group: &str, member: u64) {
        self.with_group(group, |group, logs, rules| group.expel(member, rules, logs, Instant::now()));
    }

    /// The members of a group, in the order in which they joined.
    pub fn members(&self, group: &str) -> Vec<u64> {
        self.shared.lock().groups.get(group).map_or(Vec::new(), |group| group.members.keys().copied().collect())
    }

    /// Hook: other faults from now on; `MemoryFaults::default()` heals the log. The seed stays what it was.
    pub fn set_faults(&self, faults: MemoryFaults) {
        self.shared.lock().dice.set(faults);
        self.shared.changed.notify_waiters();
    }

    /// How often each fault has struck.
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.shared.lock().dice.injected()
    }

    /// Rises with every rebalance of a group; 0 for a group that nobody ever joined.
    pub fn generation(&self, group: &str) -> u64 {
        self.shared.lock().groups.get(group).map_or(0, |group| group.generation)
    }

    /// Hook: forgets the messages of a partition before `offset`, as retention does.
    pub fn truncate(&self, partition: &TopicPartition, offset: u64) -> Result<(), BrokerError> {
        self.shared.lock().logs.get_mut("truncate", partition)?.truncate(offset);
        self.shared.changed.notify_waiters();
        Ok(())
    }

    /// Hook: deletes a topic. Groups lose what they had committed of it, as on Apache Kafka. Members keep their
    /// positions, which librdkafka keeps too where the topic is created again.
    pub fn delete_topic(&self, topic: &str) {
        let mut state = self.shared.lock();
        state.logs.delete(topic);
        state.groups.values_mut().for_each(|group| group.committed.retain(|partition, _| &*partition.topic != topic));
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Hook: deletes a topic and creates it again, with no moment in between.
    ///
    /// # Errors
    /// As [`create_topics`](Broker::create_topics).
    pub fn recreate_topic(&self, topic: &NewTopic) -> Result<(), BrokerError> {
        self.delete_topic(&topic.name);
        self.shared.lock().logs.create(topic)
    }

    /// Hook: from now on a topic takes no message, for this reason; `None`: it takes them again.
    pub fn reject(&self, topic: &str, why: Option<&str>) {
        for log in self.shared.lock().logs.partitions_mut(topic) {
            log.rejects = why.map(str::to_owned);
        }
    }

    /// Hook: leaves `count` offsets of a partition without a message, as compaction and transaction markers do.
    pub fn leave_gap(&self, partition: &TopicPartition, count: u64) -> Result<(), BrokerError> {
        self.shared.lock().logs.get_mut("leave gap", partition)?.leave_gap(count);
        self.shared.changed.notify_waiters();
        Ok(())
    }

    fn with_group(&self, group: &str, change: impl FnOnce(&mut Group, &Logs, Rules)) {
        let mut guard = self.shared.lock();
        let State { logs, groups, .. } = &mut *guard;
        if let Some(group) = groups.get_mut(group) {
            change(group, logs, self.shared.settings.rules());
        }
        drop(guard);
        self.shared.changed.notify_waiters();
    }
}

impl Shared {
    /// The state stays consistent between statements, so that a panic of another test thread does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, group: &str, member: MemberId) {
        let mut guard = self.lock();
        let State { logs, groups, .. } = &mut *guard;
        if let Some(group) = groups.get_mut(group) {
            group.remove(member, self.settings.rules(), logs, Instant::now());
        }
        drop(guard);
        self.changed.notify_waiters();
    }
}

impl State {
    /// Lets a group notice whose time is over; true when that changed something.
    fn expire(&mut self, shared: &Shared, group: &str) -> bool {
        let Some(group) = self.groups.get_mut(group) else { return false };
        group.expire(shared.settings.rules(), &self.logs, Instant::now())
    }

    fn append(&mut self, settings: &MemorySettings, message: Produce) -> Result<Delivered, BrokerError> {
        let at = self.place(&message)?;
        let log = self.logs.get_mut("produce", &at)?;
        if let Some(why) = &log.rejects {
            return Err(BrokerError::new(BrokerErrorKind::Rejected, "produce", format!("{at}: {why}")));
        }
        if log.is_too_large(&message) {
            let message = format!("{at}: a message of {} bytes is larger than the topic takes", message.payload.len());
            return Err(BrokerError::new(BrokerErrorKind::TooLarge, "produce", message));
        }
        if self.dice.strikes("produce refused", |faults| faults.produce_refused) {
            return Err(BrokerError::new(BrokerErrorKind::Retryable, "produce", format!("{at}: refused by a fault")));
        }
        let offset = log.append(Message {
            offset: 0,
            timestamp_ms: message.timestamp_ms.unwrap_or_else(|| settings.clock.now_ms() as i64),
            key: message.key,
            payload: message.payload,
            headers: message.headers,
        });
        if self.dice.strikes("produce unacknowledged", |faults| faults.produce_unacknowledged) {
            let message = format!("{at}: acknowledgement lost by a fault");
            return Err(BrokerError::new(BrokerErrorKind::Retryable, "produce", message));
        }
        Ok(Delivered { partition: at.partition, offset })
    }

    fn place(&mut self, message: &Produce) -> Result<TopicPartition, BrokerError> {
        let Some(topic) = self.logs.name(&message.topic) else {
            return Err(BrokerError::unknown_topic("produce", &message.topic));
        };
        let partitions = self.logs.topic(&topic).map_or(0, |partitions| partitions.len() as i32);
        let by_key = || partition_of(&message.key, partitions).filter(|_| !message.key.is_empty());
        let partition = message.partition.or_else(by_key).unwrap_or_else(|| {
            self.next_keyless = self.next_keyless.wrapping_add(1);
            self.next_keyless.rem_euclid(partitions)
        });
        Ok(TopicPartition { topic, partition })
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let names = topics
            .iter()
            .map(|topic| state.logs.name(topic).ok_or_else(|| BrokerError::unknown_topic("subscribe", topic)))
            .collect::<Result<Vec<_>, _>>()?;
        state.next_member += 1;
        let member = state.next_member;
        let rules = self.shared.settings.rules();
        state.groups.entry(group.to_owned()).or_default().join(member, names, rules, &state.logs, Instant::now());
        drop(guard);
        self.shared.changed.notify_waiters();
        Ok(Box::new(MemoryConsumer { shared: self.shared.clone(), group: group.to_owned(), member, closed: false }))
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn Reader>, BrokerError> {
        self.shared.lock().logs.get("read", partition)?.check("read", partition, offset)?;
        Ok(Box::new(MemoryReader { shared: self.shared.clone(), partition: partition.clone(), position: offset }))
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        Ok(Arc::new(MemoryProducer { shared: self.shared.clone() }))
    }

    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError> {
        Ok(self.shared.lock().logs.topic(topic).map(|partitions| partitions.len() as i32))
    }

    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        let state = self.shared.lock();
        Ok(topics.iter().map(|topic| state.logs.identity(topic)).collect())
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        self.shared.lock().logs.get("watermarks", partition).map(|log| (log.low, log.next))
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<Committed>>, BrokerError> {
        let state = self.shared.lock();
        let group = state.groups.get(group);
        Ok(partitions.iter().map(|partition| group?.committed.get(partition).cloned()).collect())
    }

    async fn offsets_at(&self, topic: &str, timestamp_ms: i64) -> Result<Vec<Option<u64>>, BrokerError> {
        let state = self.shared.lock();
        let partitions = state.logs.topic(topic).ok_or_else(|| BrokerError::unknown_topic("look up times", topic))?;
        Ok(partitions.iter().map(|log| log.first_at(timestamp_ms)).collect())
    }

    async fn set_committed(&self, group: &str, offsets: &[(TopicPartition, Committed)]) -> Result<(), BrokerError> {
        let mut state = self.shared.lock();
        for (partition, committed) in offsets {
            state.logs.get("set offsets", partition)?;
            committed.check("set offsets", partition)?;
        }
        state.expire(&self.shared, group);
        let found = state.groups.entry(group.to_owned()).or_default();
        if !found.members.is_empty() {
            return Err(BrokerError::has_members("set offsets", group));
        }
        found.committed.extend(offsets.iter().cloned());
        Ok(())
    }

    async fn member_count(&self, group: &str) -> Result<usize, BrokerError> {
        // Nobody else may be there to notice who fell silent.
        self.shared.lock().expire(&self.shared, group);
        Ok(self.members(group).len())
    }

    async fn create_topics(&self, topics: &[NewTopic]) -> Result<(), BrokerError> {
        let mut state = self.shared.lock();
        topics.iter().try_for_each(|topic| state.logs.create(topic))
    }
}

struct MemoryProducer {
    shared: Arc<Shared>,
}

#[async_trait]
impl Producer for MemoryProducer {
    async fn produce(&self, message: Produce) -> Result<Delivered, BrokerError> {
        coop::consume_budget().await;
        let delivered = self.shared.lock().append(&self.shared.settings, message);
        self.shared.changed.notify_waiters();
        delivered
    }

    async fn produce_all(&self, messages: Vec<Produce>) -> Result<Vec<Delivered>, BrokerError> {
        coop::consume_budget().await;
        let mut delivered = Vec::with_capacity(messages.len());
        {
            let mut state = self.shared.lock();
            for message in messages {
                delivered.push(state.append(&self.shared.settings, message));
            }
        }
        self.shared.changed.notify_waiters();
        delivered.into_iter().collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
