//! [`MergedReaders`]: a reader of several partitions over a log that opens one reader for each.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::select_all;

use super::{BrokerError, MessageBatch, PartitionReader, PartitionSetReader, TopicPartition};

/// Time after which a reader without a message is polled again.
const WAIT: Duration = Duration::from_secs(60);

/// Readers of single partitions as one reader.
pub(super) struct MergedReaders {
    readers: Vec<(TopicPartition, Box<dyn PartitionReader>)>,
}

impl MergedReaders {
    pub(super) fn new(readers: Vec<(TopicPartition, Box<dyn PartitionReader>)>) -> Self {
        MergedReaders { readers }
    }
}

#[async_trait]
impl PartitionSetReader for MergedReaders {
    async fn next(&mut self) -> Result<MessageBatch, BrokerError> {
        if self.readers.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let nexts = self.readers.iter_mut().map(|(_, reader)| reader.next(WAIT));
            let (read, index, _) = select_all(nexts).await;
            let messages = read?;
            // The partition that has answered is the last one to be asked: none waits for a busy one.
            self.readers.rotate_left(index + 1);
            if let (Some(last), Some((partition, _))) = (messages.last(), self.readers.last()) {
                let high_watermark = last.offset + 1;
                return Ok(MessageBatch { partition: partition.clone(), epoch: 0, messages, high_watermark });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Broker, NewTopic, OutgoingMessage, memory::MemoryBroker};

    #[tokio::test(start_paused = true)]
    async fn every_partition_is_read_in_turn_and_in_order() {
        let broker = MemoryBroker::default();
        broker.create_topics(&[NewTopic { name: "t".into(), partitions: 3, config: vec![] }]).await.unwrap();
        let starts: Vec<_> = (0..3).map(|partition| (TopicPartition { topic: "t".into(), partition }, 0)).collect();
        let mut reader = broker.read_all(&starts).await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_secs(300), reader.next()).await;
        assert!(waiting.is_err(), "an empty topic has no messages");
        let producer = broker.producer().await.unwrap();
        for number in 0..30 {
            let payload = vec![number].into();
            let message = OutgoingMessage {
                topic: "t".into(),
                partition: Some(i32::from(number) % 3),
                payload,
                ..Default::default()
            };
            producer.produce(message).await.unwrap();
        }
        let mut found: Vec<u8> = Vec::new();
        let mut first_three = Vec::new();
        while found.len() < 30 {
            let batch = reader.next().await.unwrap();
            assert_eq!(batch.high_watermark, batch.messages.last().unwrap().offset + 1);
            assert!(batch.messages.iter().all(|it| i32::from(it.payload[0]) % 3 == batch.partition.partition));
            first_three.push(batch.partition.partition);
            found.extend(batch.messages.iter().map(|message| message.payload[0]));
        }
        first_three.truncate(3);
        first_three.sort();
        assert_eq!(first_three, [0, 1, 2], "none is read twice before all are read once");
        found.sort();
        assert_eq!(found, (0..30).collect::<Vec<_>>());
    }
}
