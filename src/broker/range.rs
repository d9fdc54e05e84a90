//! Reads a range of offsets of one partition.

use std::time::Duration;

use super::{
    Broker, BrokerError, Message, PartitionReader, TopicPartition,
    retry::{read_or_reopen, until_answered},
};

/// Longest wait of one read of the log.
const READ_WAIT: Duration = Duration::from_millis(100);

/// Reads the messages of a partition up to an end offset (exclusive).
pub struct LogRange<'a> {
    broker: &'a dyn Broker,
    partition: &'a TopicPartition,
    end: u64,
    /// `None`: the range is empty.
    reader: Option<Box<dyn PartitionReader>>,
}

impl<'a> LogRange<'a> {
    /// Opens a range of offsets. An empty range reads nothing.
    ///
    /// # Errors
    /// The first error that a retry does not heal.
    pub async fn open(
        broker: &'a dyn Broker,
        partition: &'a TopicPartition,
        from: u64,
        end: u64,
    ) -> Result<Self, BrokerError> {
        let reader = match from < end {
            true => Some(until_answered(|| broker.read(partition, from)).await?),
            false => None,
        };
        Ok(LogRange { broker, partition, end, reader })
    }

    /// Returns the next messages; `None`: the end is reached.
    ///
    /// # Errors
    /// The first error that a retry does not heal.
    pub async fn next(&mut self) -> Result<Option<Vec<Message>>, BrokerError> {
        let Some(reader) = self.reader.as_mut().filter(|reader| reader.position() < self.end) else { return Ok(None) };
        let mut messages = read_or_reopen(reader, self.broker, self.partition, READ_WAIT).await?;
        messages.retain(|message| message.offset < self.end);
        Ok(Some(messages))
    }
}
