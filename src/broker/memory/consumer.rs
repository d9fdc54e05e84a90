//! A group member and a reader on the memory broker.

use std::{future::pending, ops::Bound, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{
    task::coop,
    time::{Instant, sleep_until, timeout},
};

use super::{Shared, State, group::MemberId};
use crate::broker::{
    Batch, BrokerError, BrokerErrorKind, Committed, Committing, Consumer, Message, Polled, Reader, TopicPartition,
    memory::group::{Log, Member, Owned},
};

/// A group member. Dropping it is a crash: the group notices after the session timeout.
pub(super) struct MemoryConsumer {
    pub(super) shared: Arc<Shared>,
    pub(super) group: String,
    pub(super) member: MemberId,
    pub(super) closed: bool,
}

#[async_trait]
impl Consumer for MemoryConsumer {
    async fn poll(&mut self) -> Result<Polled, BrokerError> {
        // Nothing below waits while there are messages: without this, the other tasks of the thread would starve.
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
            // `biased`: a run must replay from its seed, and an unbiased select throws dice of its own.
            tokio::select! { biased; () = changed => {}, () = timer => {} }
        }
    }

    fn commit(&mut self, offsets: &[(TopicPartition, Committed)]) -> Committing {
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
        let State { logs, groups, .. } = &mut *guard;
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
            group.dies(self.member, Instant::now() + session);
        }
        drop(state);
        // Those who wait must learn the new deadline.
        self.shared.changed.notify_waiters();
    }
}

impl MemoryConsumer {
    fn open(&self, operation: &'static str) -> Result<std::sync::MutexGuard<'_, State>, BrokerError> {
        if self.closed {
            return Err(BrokerError::new(BrokerErrorKind::Fatal, operation, "the consumer is closed"));
        }
        Ok(self.shared.lock())
    }

    fn owned<'a>(
        &self,
        state: &'a mut State,
        operation: &'static str,
        partition: &TopicPartition,
    ) -> Result<&'a mut Owned, BrokerError> {
        state
            .groups
            .get_mut(&self.group)
            .and_then(|group| group.members.get_mut(&self.member))
            .and_then(|member| member.owned.get_mut(partition))
            .filter(|owned| !owned.is_revoked())
            .ok_or_else(|| BrokerError::not_assigned(operation, partition))
    }

    /// What there is to hear, or when to look again.
    fn try_poll(&self) -> Result<Result<Polled, Option<Instant>>, BrokerError> {
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
            if attempt == 0 && state.dice.strikes("rebalance", |faults| faults.rebalance) {
                group.rebalance(true, rules, &state.logs, now);
                changed = true;
            } else if attempt == 0 && state.dice.strikes("lost assignment", |faults| faults.lost_assignment) {
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

    /// The next batch or end, from the partitions in turn.
    fn deliver(
        &self,
        state: &mut State,
        now: Instant,
        wake_at: &mut Option<Instant>,
    ) -> Result<Option<Polled>, BrokerError> {
        let settings = &self.shared.settings;
        let State { logs, groups, dice, .. } = state;
        let Some(member) = groups.get_mut(&self.group).and_then(|group| group.members.get_mut(&self.member)) else {
            return Ok(None);
        };
        for partition in in_turn(member) {
            // A topic that was deleted delivers nothing until it is created again, as on Kafka.
            let Ok(log) = logs.get("poll", &partition) else { continue };
            let Some(owned) = member.owned.get_mut(&partition) else { continue };
            if owned.paused || owned.stuck || owned.is_revoked() {
                continue;
            }
            if let Err(error) = log.check("poll", &partition, owned.position) {
                owned.stuck = true;
                return Err(error);
            }
            if owned.position == log.next {
                if owned.end_heard {
                    continue;
                }
                owned.end_heard = true;
                return Ok(Some(owned.end(partition)));
            }
            if owned.held_until.is_none() && dice.strikes("delivery delayed", |faults| faults.delay) {
                owned.held_until = Some(now + dice.delay());
            }
            if let Some(until) = owned.held_until.filter(|until| *until > now) {
                *wake_at = Some(wake_at.map_or(until, |at| at.min(until)));
                continue;
            }
            owned.held_until = None;
            let (messages, end) = log.read(owned.position, settings.batch_messages, settings.batch_bytes);
            owned.position = end;
            owned.end_heard = false;
            if messages.is_empty() {
                // Only a gap was left: that is the end.
                owned.end_heard = true;
                return Ok(Some(owned.end(partition)));
            }
            if dice.strikes("delivery repeated", |faults| faults.duplicate) {
                owned.position = messages[dice.below(messages.len())].offset;
            }
            let epoch = owned.epoch;
            member.last = Some(partition.clone());
            return Ok(Some(Polled::Messages(Batch { partition, epoch, messages, high_watermark: log.next })));
        }
        Ok(None)
    }
}

/// The member's partitions in ascending order, beginning behind the one that was delivered last.
fn in_turn(member: &Member) -> Vec<TopicPartition> {
    let Some(last) = &member.last else { return member.owned.keys().cloned().collect() };
    let behind = member.owned.range((Bound::Excluded(last), Bound::Unbounded));
    let before = member.owned.range((Bound::Unbounded, Bound::Included(last)));
    behind.chain(before).map(|(partition, _)| partition.clone()).collect()
}

/// Reads one partition without a group.
pub(super) struct MemoryReader {
    pub(super) shared: Arc<Shared>,
    pub(super) partition: TopicPartition,
    pub(super) position: u64,
}

#[async_trait]
impl Reader for MemoryReader {
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
                    // A topic that was deleted delivers nothing until it is created again, as on Kafka.
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
