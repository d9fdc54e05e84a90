//! A group member and a reader on the memory broker.

use std::{future::pending, ops::Bound, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{
    task::coop,
    time::{Instant, sleep_until, timeout},
};

use super::{BrokerState, SharedBroker, group::MemberId};
use crate::broker::{
    BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, Consumer, ConsumerEvent, Message, MessageBatch,
    PartitionReader, TopicPartition,
    memory::group::{ConsumerMember, LogView, MemberPartition},
};

/// A group member. A drop without a close is a crash: the group removes the member after the session timeout.
pub(super) struct MemoryConsumer {
    pub(super) shared: Arc<SharedBroker>,
    pub(super) group: String,
    pub(super) member: MemberId,
    pub(super) closed: bool,
}

#[async_trait]
impl Consumer for MemoryConsumer {
    async fn poll(&mut self) -> Result<ConsumerEvent, BrokerError> {
        // The loop never waits while messages are ready: without this call other tasks of the thread would starve.
        coop::consume_budget().await;
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            let wake_at = match self.try_poll()? {
                Ok(polled) => return Ok(polled),
                Err(wake_at) => wake_at,
            };
            let timer = async {
                match wake_at {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            // `biased`: a simulation must replay from its seed, and an unbiased select draws its own random numbers.
            tokio::select! { biased; () = changed => {}, () = timer => {} }
        }
    }

    fn commit(&mut self, offsets: &[(TopicPartition, CommittedOffset)]) -> CommitFuture {
        let open = self.open("commit").map(drop);
        let (shared, name, id) = (self.shared.clone(), self.group.clone(), self.member);
        let offsets = offsets.to_vec();
        Box::pin(async move {
            open?;
            let mut state = shared.lock();
            state.expire(&shared, &name);
            let group = state.groups.entry(name).or_default();
            let Some(member) = group.members.get(&id) else {
                let message = "no longer a member of the group";
                return Err(BrokerError::new(BrokerErrorKind::NotAssigned, "commit", message));
            };
            for (partition, committed) in &offsets {
                if !member.owned.contains_key(partition) {
                    return Err(BrokerError::not_assigned("commit", partition));
                }
                committed.check("commit", partition)?;
            }
            group.committed.extend(offsets);
            Ok(())
        })
    }

    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        let mut guard = self.open("seek")?;
        let state = &mut *guard;
        self.owned(state, "seek", partition)?;
        state.logs.get("seek", partition)?.check("seek", partition, offset)?;
        let epoch = state.logs.next_epoch();
        self.owned(state, "seek", partition)?.seek(epoch, offset);
        Ok(epoch)
    }

    fn pause(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        let mut state = self.open("pause")?;
        self.owned(&mut state, "pause", partition)?.paused = true;
        Ok(())
    }

    fn resume(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        let mut state = self.open("resume")?;
        self.owned(&mut state, "resume", partition)?.paused = false;
        drop(state);
        self.shared.changed.notify_waiters();
        Ok(())
    }

    fn finish_revocation(&mut self) {
        let mut guard = self.shared.lock();
        let BrokerState { logs, groups, .. } = &mut *guard;
        if let Some(group) = groups.get_mut(&self.group) {
            group.finish_revocation(self.member, logs);
        }
        drop(guard);
        self.shared.changed.notify_waiters();
    }

    async fn close(&mut self) -> Result<(), BrokerError> {
        self.closed = true;
        self.shared.remove(&self.group, self.member);
        Ok(())
    }
}

impl Drop for MemoryConsumer {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let session = self.shared.settings.session_timeout;
        if session.is_zero() {
            return self.shared.remove(&self.group, self.member);
        }
        let mut state = self.shared.lock();
        if let Some(group) = state.groups.get_mut(&self.group) {
            group.schedule_removal(self.member, Instant::now() + session);
        }
        drop(state);
        // Waiting polls must learn the new deadline.
        self.shared.changed.notify_waiters();
    }
}

impl MemoryConsumer {
    fn open(&self, operation: &'static str) -> Result<std::sync::MutexGuard<'_, BrokerState>, BrokerError> {
        if self.closed {
            return Err(BrokerError::new(BrokerErrorKind::Fatal, operation, "the consumer is closed"));
        }
        Ok(self.shared.lock())
    }

    fn owned<'a>(
        &self,
        state: &'a mut BrokerState,
        operation: &'static str,
        partition: &TopicPartition,
    ) -> Result<&'a mut MemberPartition, BrokerError> {
        state
            .groups
            .get_mut(&self.group)
            .and_then(|group| group.members.get_mut(&self.member))
            .and_then(|member| member.owned.get_mut(partition))
            .filter(|owned| !owned.is_revoked())
            .ok_or_else(|| BrokerError::not_assigned(operation, partition))
    }

    /// Returns the next event, or the time of the next deadline.
    fn try_poll(&self) -> Result<Result<ConsumerEvent, Option<Instant>>, BrokerError> {
        let mut guard = self.open("poll")?;
        let state = &mut *guard;
        let now = Instant::now();
        let rules = self.shared.settings.rules();
        let mut changed = state.expire(&self.shared, &self.group);
        for attempt in 0..2 {
            let group = state.groups.entry(self.group.clone()).or_default();
            if let Some((event, rejoined)) = group.next_event(self.member, rules, &state.logs, now) {
                if changed || rejoined {
                    self.shared.changed.notify_waiters();
                }
                return Ok(Ok(event));
            }
            if attempt == 0 && state.injector.should_inject("rebalance", |faults| faults.rebalance) {
                group.rebalance(true, rules, &state.logs, now);
                changed = true;
            } else if attempt == 0 && state.injector.should_inject("lost assignment", |faults| faults.lost_assignment) {
                group.expel(self.member, rules, &state.logs, now);
                changed = true;
            } else {
                break;
            }
        }
        if changed {
            self.shared.changed.notify_waiters();
        }
        let mut wake_at = state.groups.get(&self.group).and_then(|group| group.next_deadline());
        let delivered = self.deliver(state, now, &mut wake_at)?;
        Ok(delivered.ok_or(wake_at))
    }

    /// Next batch or end, from the partitions in turn.
    fn deliver(
        &self,
        state: &mut BrokerState,
        now: Instant,
        wake_at: &mut Option<Instant>,
    ) -> Result<Option<ConsumerEvent>, BrokerError> {
        let settings = &self.shared.settings;
        let BrokerState { logs, groups, injector, .. } = state;
        let Some(member) = groups.get_mut(&self.group).and_then(|group| group.members.get_mut(&self.member)) else {
            return Ok(None);
        };
        for partition in round_robin(member) {
            // A deleted topic delivers nothing until it is created again, as on Kafka.
            let Ok(log) = logs.get("poll", &partition) else { continue };
            let Some(owned) = member.owned.get_mut(&partition) else { continue };
            if owned.paused || owned.is_out_of_range || owned.is_revoked() {
                continue;
            }
            if let Err(error) = log.check("poll", &partition, owned.position) {
                owned.is_out_of_range = true;
                return Err(error);
            }
            if owned.position == log.next {
                if owned.end_reported {
                    continue;
                }
                owned.end_reported = true;
                return Ok(Some(owned.end(partition)));
            }
            if owned.held_until.is_none() && injector.should_inject("delivery delayed", |faults| faults.delay) {
                owned.held_until = Some(now + injector.delay());
            }
            if let Some(until) = owned.held_until.filter(|until| *until > now) {
                *wake_at = Some(wake_at.map_or(until, |at| at.min(until)));
                continue;
            }
            owned.held_until = None;
            let (messages, end) = log.read(owned.position, settings.batch_messages, settings.batch_bytes);
            owned.position = end;
            owned.end_reported = false;
            if messages.is_empty() {
                // The rest of the partition is a gap: the position has reached the end.
                owned.end_reported = true;
                return Ok(Some(owned.end(partition)));
            }
            if injector.should_inject("delivery repeated", |faults| faults.duplicate) {
                owned.position = messages[injector.below(messages.len())].offset;
            }
            let epoch = owned.epoch;
            member.last = Some(partition.clone());
            return Ok(Some(ConsumerEvent::Messages(MessageBatch {
                partition,
                epoch,
                messages,
                high_watermark: log.next,
            })));
        }
        Ok(None)
    }
}

/// Partitions of the member in ascending order, starting after the partition of the last delivery.
fn round_robin(member: &ConsumerMember) -> Vec<TopicPartition> {
    let Some(last) = &member.last else { return member.owned.keys().cloned().collect() };
    let behind = member.owned.range((Bound::Excluded(last), Bound::Unbounded));
    let before = member.owned.range((Bound::Unbounded, Bound::Included(last)));
    behind.chain(before).map(|(partition, _)| partition.clone()).collect()
}

/// Reads one partition without a group.
pub(super) struct MemoryReader {
    pub(super) shared: Arc<SharedBroker>,
    pub(super) partition: TopicPartition,
    pub(super) position: u64,
}

#[async_trait]
impl PartitionReader for MemoryReader {
    async fn next(&mut self, wait: Duration) -> Result<Vec<Message>, BrokerError> {
        coop::consume_budget().await;
        let deadline = Instant::now() + wait;
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            let messages = {
                let state = self.shared.lock();
                match state.logs.get("read", &self.partition) {
                    Ok(log) => {
                        log.check("read", &self.partition, self.position)?;
                        let settings = &self.shared.settings;
                        let (messages, end) = log.read(self.position, settings.batch_messages, settings.batch_bytes);
                        self.position = end;
                        messages
                    }
                    // A deleted topic delivers nothing until it is created again, as on Kafka.
                    Err(_) => Vec::new(),
                }
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if !messages.is_empty() || left.is_zero() {
                return Ok(messages);
            }
            if timeout(left, changed).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    fn position(&self) -> u64 {
        self.position
    }

    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError> {
        self.shared.lock().logs.get("seek", &self.partition)?.check("seek", &self.partition, offset)?;
        self.position = offset;
        Ok(())
    }
}
