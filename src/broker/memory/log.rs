//! Topics in memory: queues of messages with ascending offsets.

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::group;
use crate::broker::{BrokerError, BrokerErrorKind, Message, NewTopic, OutgoingMessage, TopicIdentity, TopicPartition};

/// Messages of a partition. Offsets ascend and may have gaps, as after compaction.
#[derive(Debug, Default)]
pub(super) struct PartitionLog {
    messages: VecDeque<Message>,
    pub(super) low: u64,
    pub(super) next: u64,
    /// Most bytes of a message (`max.message.bytes`).
    max_message_bytes: Option<usize>,
    /// Reason why the partition refuses every message, if it does.
    pub(super) rejects: Option<String>,
}

impl PartitionLog {
    /// True where a message is larger than the topic's limit.
    pub(super) fn is_too_large(&self, message: &OutgoingMessage) -> bool {
        let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let bytes = message.key.len() + message.payload.len() + headers;
        self.max_message_bytes.is_some_and(|most| bytes > most)
    }

    /// Appends a message and returns its offset.
    pub(super) fn append(&mut self, mut message: Message) -> u64 {
        message.offset = self.next;
        self.next += 1;
        self.messages.push_back(message);
        self.next - 1
    }

    /// Removes every message below `offset`, as retention does.
    #[cfg(feature = "testkit")]
    pub(super) fn truncate(&mut self, offset: u64) {
        self.low = offset.clamp(self.low, self.next);
        let removed = self.messages.partition_point(|message| message.offset < self.low);
        self.messages.drain(..removed);
    }

    /// Leaves `count` offsets without a message.
    #[cfg(feature = "testkit")]
    pub(super) fn leave_gap(&mut self, count: u64) {
        self.next += count;
    }

    /// Messages from `position` on, within the limits but at least one, and the next position.
    pub(super) fn read(&self, position: u64, max_messages: usize, max_bytes: usize) -> (Vec<Message>, u64) {
        let start = self.messages.partition_point(|message| message.offset < position);
        let mut bytes = 0;
        let count = self
            .messages
            .range(start..)
            .take(max_messages.max(1))
            .take_while(|message| {
                let first = bytes == 0;
                bytes += message.key.len() + message.payload.len() + 1;
                first || bytes <= max_bytes
            })
            .count();
        let messages: Vec<_> = self.messages.range(start..start + count).cloned().collect();
        let end = match messages.last() {
            Some(last) if start + count < self.messages.len() => last.offset + 1,
            _ => self.next,
        };
        (messages, end)
    }

    /// Offset of the first message with this timestamp or a later one.
    pub(super) fn first_at(&self, timestamp_ms: i64) -> Option<u64> {
        self.messages.iter().find(|message| message.timestamp_ms >= timestamp_ms).map(|message| message.offset)
    }

    /// Refuses a position that the partition does not hold; the error names the offsets that it holds.
    pub(super) fn check(&self, operation: &'static str, at: &TopicPartition, position: u64) -> Result<(), BrokerError> {
        if (self.low..=self.next).contains(&position) {
            return Ok(());
        }
        Err(BrokerError::out_of_range(operation, at, position, self.low, self.next))
    }
}

/// All topics, and the source of epochs.
#[derive(Debug, Default)]
pub(super) struct TopicLogs {
    topics: BTreeMap<Arc<str>, Vec<PartitionLog>>,
    /// Number of topics ever created; the number at its creation identifies a topic.
    created: u64,
    numbers: BTreeMap<Arc<str>, u64>,
    epoch: Cell<u64>,
}

impl TopicLogs {
    pub(super) fn create(&mut self, topic: &NewTopic) -> Result<(), BrokerError> {
        let refused = |message| Err(BrokerError::new(BrokerErrorKind::Refused, "create topic", message));
        match self.topics.get(topic.name.as_str()).map(Vec::len) {
            _ if topic.partitions < 1 => refused(format!("{}: {} partitions", topic.name, topic.partitions)),
            Some(there) if there == topic.partitions as usize => Ok(()),
            Some(there) => {
                refused(format!("{} exists with {there} partitions instead of {}", topic.name, topic.partitions))
            }
            None => {
                let limit = topic.config.iter().find(|(key, _)| key == "max.message.bytes");
                let max_message_bytes = match limit.map(|(_, value)| value.parse()).transpose() {
                    Ok(limit) => limit,
                    Err(_) => return refused(format!("{}: max.message.bytes is no number", topic.name)),
                };
                let new = || PartitionLog { max_message_bytes, ..PartitionLog::default() };
                let partitions = std::iter::repeat_with(new).take(topic.partitions as usize).collect();
                let name: Arc<str> = topic.name.as_str().into();
                self.created += 1;
                self.numbers.insert(name.clone(), self.created);
                self.topics.insert(name, partitions);
                Ok(())
            }
        }
    }

    /// Deletes a topic with its messages.
    #[cfg(feature = "testkit")]
    pub(super) fn delete(&mut self, topic: &str) {
        self.topics.remove(topic);
        self.numbers.remove(topic);
    }

    /// Id and number of partitions of a topic.
    pub(super) fn identity(&self, topic: &str) -> Option<TopicIdentity> {
        let id = u128::from(*self.numbers.get(topic)?).to_be_bytes();
        Some(TopicIdentity { id: Some(id), partitions: self.topic(topic)?.len() as i32 })
    }

    /// Interned name of a topic.
    pub(super) fn name(&self, topic: &str) -> Option<Arc<str>> {
        self.topics.get_key_value(topic).map(|(name, _)| name.clone())
    }

    pub(super) fn topic(&self, topic: &str) -> Option<&[PartitionLog]> {
        self.topics.get(topic).map(Vec::as_slice)
    }

    /// Partitions of a topic; empty: the topic does not exist.
    #[cfg(feature = "testkit")]
    pub(super) fn partitions_mut(&mut self, topic: &str) -> &mut [PartitionLog] {
        self.topics.get_mut(topic).map_or(&mut [], Vec::as_mut_slice)
    }

    pub(super) fn get(&self, operation: &'static str, at: &TopicPartition) -> Result<&PartitionLog, BrokerError> {
        let index = usize::try_from(at.partition).ok();
        self.topics
            .get(&at.topic)
            .and_then(|partitions| partitions.get(index?))
            .ok_or_else(|| BrokerError::unknown_partition(operation, at))
    }

    pub(super) fn get_mut(
        &mut self,
        operation: &'static str,
        at: &TopicPartition,
    ) -> Result<&mut PartitionLog, BrokerError> {
        let index = usize::try_from(at.partition).ok();
        self.topics
            .get_mut(&at.topic)
            .and_then(|partitions| partitions.get_mut(index?))
            .ok_or_else(|| BrokerError::unknown_partition(operation, at))
    }
}

impl group::LogView for TopicLogs {
    fn partitions(&self, topic: &str) -> i32 {
        self.topic(topic).map_or(0, |partitions| partitions.len() as i32)
    }

    fn watermarks(&self, partition: &TopicPartition) -> (u64, u64) {
        self.get("watermarks", partition).map_or((0, 0), |log| (log.low, log.next))
    }

    fn next_epoch(&self) -> u64 {
        self.epoch.set(self.epoch.get() + 1);
        self.epoch.get()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn message(size: usize) -> Message {
        let payload = Bytes::from(vec![0; size]);
        Message { offset: 0, timestamp_ms: 0, key: Bytes::new(), payload, headers: Vec::new() }
    }

    fn offsets(log: &PartitionLog, position: u64, messages: usize, bytes: usize) -> (Vec<u64>, u64) {
        let (read, end) = log.read(position, messages, bytes);
        (read.iter().map(|message| message.offset).collect(), end)
    }

    #[test]
    fn reads_within_limits_across_gaps() {
        let mut log = PartitionLog::default();
        log.append(message(10));
        log.append(message(10));
        log.leave_gap(3);
        log.append(message(500));
        log.append(message(10));
        log.leave_gap(2);
        assert_eq!(offsets(&log, 0, 2, 1000), (vec![0, 1], 2));
        assert_eq!(offsets(&log, 2, 1, 10), (vec![5], 6), "the first comes however large it is");
        assert_eq!(offsets(&log, 0, 10, 30), (vec![0, 1], 2));
        assert_eq!(offsets(&log, 6, 10, 1000), (vec![6], 9), "a gap at the end is read over");
        assert_eq!(offsets(&log, 7, 10, 1000), (vec![], 9));
    }

    #[test]
    fn retention_only_rises_and_stops_at_the_end() {
        let mut log = PartitionLog::default();
        for _ in 0..5 {
            log.append(message(1));
        }
        log.truncate(3);
        log.truncate(1);
        assert_eq!((log.low, offsets(&log, 0, 10, 100).0), (3, vec![3, 4]));
        log.truncate(99);
        assert_eq!((log.low, log.next), (5, 5));
    }
}
