//! Reads whole partitions, for commands that look through a log.

use std::time::Duration;

use crate::broker::{Broker, BrokerError, Message, TopicPartition, retry::read_or_reopen};

/// Wait for the next messages of a partition.
const WAIT: Duration = Duration::from_millis(100);

/// Returns the partition of a topic that has one partition.
pub(crate) fn single_partition(topic: &str) -> TopicPartition {
    TopicPartition { topic: topic.into(), partition: 0 }
}

/// Reads a partition from its first offset to its present end offset.
///
/// # Errors
/// The partition cannot be read.
pub(crate) async fn read_partition(
    broker: &dyn Broker,
    partition: &TopicPartition,
    mut take: impl FnMut(&Message),
) -> Result<(), BrokerError> {
    let (low, end) = broker.watermarks(partition).await?;
    let mut reader = broker.read(partition, low).await?;
    while reader.position() < end {
        let messages = read_or_reopen(&mut reader, broker, partition, WAIT).await?;
        messages.iter().filter(|message| message.offset < end).for_each(&mut take);
    }
    Ok(())
}
