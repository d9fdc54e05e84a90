//! A log in memory, for tests, benches and simulation.
//!
//! The log is deterministic: no threads, no wall clock, no randomly ordered map. Waiters are woken through tokio,
//! deadlines are in tokio's (possibly paused) time, and faults are drawn from a seed. `max.message.bytes` is the only
//! property of a topic that has an effect. Groups rebalance cooperatively: only the partitions that move are revoked. A
//! partition moves once its owner has finished the revocation, or has missed the deadline.

mod consumer;
mod faults;
mod group;
#[cfg(feature = "testkit")]
mod hooks;
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
    faults::FaultInjector,
    group::{GroupRules, GroupState, MemberId},
    log::TopicLogs,
};
use super::{
    Broker, BrokerError, BrokerErrorKind, CommittedOffset, Consumer, Delivery, Message, NewTopic, OutgoingMessage,
    PartitionReader, Producer, TopicIdentity, TopicPartition, partitioner::partition_of,
};
use crate::clock::Clock;

/// Assignment of a group's partitions to its members, which are ordered by their time of joining.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Assignment {
    /// Each member gets a contiguous range of every topic.
    #[default]
    Range,
    /// The members get partitions in turn.
    #[cfg(feature = "testkit")]
    RoundRobin,
}

/// Settings of a [`MemoryBroker`].
#[derive(Debug, Clone)]
pub struct MemorySettings {
    /// Clock that stamps messages without a timestamp.
    pub clock: Clock,
    /// Assignment strategy of the groups.
    pub assignment: Assignment,
    /// Most messages of a batch.
    pub batch_messages: usize,
    /// Most bytes of keys and payloads of a batch; a single message may be larger.
    pub batch_bytes: usize,
    /// Time after which the group removes a member that was dropped without [`Consumer::close`]; zero: at once.
    pub session_timeout: Duration,
    /// Time to finish a revocation; a member that takes longer loses its whole assignment.
    pub revocation_timeout: Duration,
    /// Injected faults with their probabilities.
    pub faults: MemoryFaults,
}

impl MemorySettings {
    /// Default settings: no faults; batches of 500 messages or 1 MiB; range assignment; a dropped consumer is removed
    /// at once; revocations take at most 30 s.
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

    fn rules(&self) -> GroupRules {
        GroupRules { assignment: self.assignment, revocation_timeout: self.revocation_timeout }
    }
}

/// A log in memory. Clones share the log.
#[derive(Clone)]
pub struct MemoryBroker {
    shared: Arc<SharedBroker>,
}

struct SharedBroker {
    settings: MemorySettings,
    state: Mutex<BrokerState>,
    /// Wakes waiting polls after every change.
    changed: Notify,
}

struct BrokerState {
    logs: TopicLogs,
    groups: BTreeMap<String, GroupState>,
    injector: FaultInjector,
    next_member: MemberId,
    /// Counter that chooses the partition of the next message without key and partition.
    next_keyless: i32,
}

impl MemoryBroker {
    /// Creates a log without topics.
    pub fn new(settings: MemorySettings) -> Self {
        let state = BrokerState {
            logs: TopicLogs::default(),
            groups: BTreeMap::new(),
            injector: FaultInjector::new(settings.faults.clone()),
            next_member: 0,
            next_keyless: 0,
        };
        MemoryBroker { shared: Arc::new(SharedBroker { settings, state: Mutex::new(state), changed: Notify::new() }) }
    }

    /// Ids of a group's members, in the order of joining.
    pub fn members(&self, group: &str) -> Vec<u64> {
        self.shared.lock().groups.get(group).map_or(Vec::new(), |group| group.members.keys().copied().collect())
    }
}

impl Default for MemoryBroker {
    /// Creates a log without topics, on the clock of the machine.
    fn default() -> Self {
        MemoryBroker::new(MemorySettings::new(Clock::System))
    }
}

impl SharedBroker {
    /// Locks the state, also after a panic of another test thread: the state is consistent between statements.
    fn lock(&self) -> MutexGuard<'_, BrokerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, group: &str, member: MemberId) {
        let mut guard = self.lock();
        let BrokerState { logs, groups, .. } = &mut *guard;
        if let Some(group) = groups.get_mut(group) {
            group.remove(member, self.settings.rules(), logs, Instant::now());
        }
        drop(guard);
        self.changed.notify_waiters();
    }
}

impl BrokerState {
    /// Removes members whose deadline has passed; true where the group has changed.
    fn expire(&mut self, shared: &SharedBroker, group: &str) -> bool {
        let Some(group) = self.groups.get_mut(group) else { return false };
        group.expire(shared.settings.rules(), &self.logs, Instant::now())
    }

    fn append(&mut self, settings: &MemorySettings, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
        let at = self.choose_partition(&message)?;
        let log = self.logs.get_mut("produce", &at)?;
        if let Some(why) = &log.rejects {
            return Err(BrokerError::new(BrokerErrorKind::Rejected, "produce", format!("{at}: {why}")));
        }
        if log.is_too_large(&message) {
            let message = format!("{at}: a message of {} bytes is larger than the topic takes", message.payload.len());
            return Err(BrokerError::new(BrokerErrorKind::TooLarge, "produce", message));
        }
        if self.injector.should_inject("produce refused", |faults| faults.produce_refused) {
            return Err(BrokerError::new(BrokerErrorKind::Retryable, "produce", format!("{at}: refused by a fault")));
        }
        let offset = log.append(Message {
            offset: 0,
            timestamp_ms: message.timestamp_ms.unwrap_or_else(|| settings.clock.now_ms() as i64),
            key: message.key,
            payload: message.payload,
            headers: message.headers,
        });
        if self.injector.should_inject("produce unacknowledged", |faults| faults.produce_unacknowledged) {
            let message = format!("{at}: acknowledgement lost by a fault");
            return Err(BrokerError::new(BrokerErrorKind::Retryable, "produce", message));
        }
        Ok(Delivery { partition: at.partition, offset })
    }

    fn choose_partition(&mut self, message: &OutgoingMessage) -> Result<TopicPartition, BrokerError> {
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

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
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
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        let state = self.shared.lock();
        let group = state.groups.get(group);
        Ok(partitions.iter().map(|partition| group?.committed.get(partition).cloned()).collect())
    }

    async fn offsets_at(&self, topic: &str, timestamp_ms: i64) -> Result<Vec<Option<u64>>, BrokerError> {
        let state = self.shared.lock();
        let partitions = state.logs.topic(topic).ok_or_else(|| BrokerError::unknown_topic("look up times", topic))?;
        Ok(partitions.iter().map(|log| log.first_at(timestamp_ms)).collect())
    }

    async fn set_committed(
        &self,
        group: &str,
        offsets: &[(TopicPartition, CommittedOffset)],
    ) -> Result<(), BrokerError> {
        let mut state = self.shared.lock();
        for (partition, committed) in offsets {
            state.logs.get("set offsets", partition)?;
            committed.check("set offsets", partition)?;
        }
        state.expire(&self.shared, group);
        let group_state = state.groups.entry(group.to_owned()).or_default();
        if !group_state.members.is_empty() {
            return Err(BrokerError::has_members("set offsets", group));
        }
        group_state.committed.extend(offsets.iter().cloned());
        Ok(())
    }

    async fn member_count(&self, group: &str) -> Result<usize, BrokerError> {
        // Without a polling member no other call removes expired members.
        self.shared.lock().expire(&self.shared, group);
        Ok(self.members(group).len())
    }

    async fn create_topics(&self, topics: &[NewTopic]) -> Result<(), BrokerError> {
        let mut state = self.shared.lock();
        topics.iter().try_for_each(|topic| state.logs.create(topic))
    }
}

struct MemoryProducer {
    shared: Arc<SharedBroker>,
}

impl MemoryProducer {
    async fn append_all(&self, messages: Vec<OutgoingMessage>) -> Vec<Result<Delivery, BrokerError>> {
        coop::consume_budget().await;
        let mut delivered = Vec::with_capacity(messages.len());
        {
            let mut state = self.shared.lock();
            for message in messages {
                delivered.push(state.append(&self.shared.settings, message));
            }
        }
        self.shared.changed.notify_waiters();
        delivered
    }
}

#[async_trait]
impl Producer for MemoryProducer {
    async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
        coop::consume_budget().await;
        let delivered = self.shared.lock().append(&self.shared.settings, message);
        self.shared.changed.notify_waiters();
        delivered
    }

    async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
        self.append_all(messages).await.into_iter().collect()
    }

    async fn produce_each(&self, messages: &[OutgoingMessage], _: Instant) -> Vec<Result<Delivery, BrokerError>> {
        self.append_all(messages.to_vec()).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
