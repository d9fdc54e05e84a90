//! The offsets of a group in a whole topic.

use std::sync::Arc;

use super::{Broker, BrokerError, CommittedOffset, TopicPartition};

/// Offsets of one partition, and the commit of a group there.
#[derive(Debug, Clone)]
pub struct GroupPosition {
    /// The topic and number of the partition.
    pub at: TopicPartition,
    /// Offset of the first message that the partition still has.
    pub low: u64,
    /// End offset of the partition.
    pub high: u64,
    /// Commit of the group; `None`: the group has committed nothing.
    pub committed: Option<CommittedOffset>,
}

impl GroupPosition {
    /// Number of messages from the committed offset, or from the first offset, to the end offset.
    pub fn lag(&self) -> u64 {
        self.high.saturating_sub(self.committed.as_ref().map_or(self.low, |committed| committed.offset))
    }
}

/// Reads the committed offset of a group in each partition of a topic, in the order of the partitions. `None`: the
/// group has committed nothing there. A topic that does not exist has no partitions.
///
/// # Errors
/// The broker does not answer.
pub async fn read_committed(
    broker: &dyn Broker,
    group: &str,
    topic: &str,
) -> Result<Vec<(TopicPartition, Option<CommittedOffset>)>, BrokerError> {
    let count = broker.partitions(topic).await?.unwrap_or(0);
    let topic: Arc<str> = topic.into();
    let partitions: Vec<_> = (0..count).map(|partition| TopicPartition { topic: topic.clone(), partition }).collect();
    let committed = broker.committed(group, &partitions).await?;
    Ok(partitions.into_iter().zip(committed).collect())
}

/// Reads the offsets of each partition of a topic and the commits of a group there, in the order of the partitions.
///
/// # Errors
/// The topic does not exist, or the broker does not answer.
pub async fn read_positions(broker: &dyn Broker, group: &str, topic: &str) -> Result<Vec<GroupPosition>, BrokerError> {
    let mut positions = Vec::new();
    for (at, committed) in read_committed(broker, group, topic).await? {
        let (low, high) = broker.watermarks(&at).await?;
        positions.push(GroupPosition { at, low, high, committed });
    }
    // A topic has at least one partition.
    if positions.is_empty() { Err(BrokerError::unknown_topic("look up topic", topic)) } else { Ok(positions) }
}
