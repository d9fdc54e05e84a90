//! Consumer that returns generated messages: a broker without cost.

use std::{future::pending, sync::Arc};

use async_trait::async_trait;
use tokio::task::coop;
use utxo_store::broker::{
    AssignedPartition, BrokerError, CommitFuture, CommittedOffset, Consumer, ConsumerEvent, Message, MessageBatch,
    TopicPartition,
};

const EPOCH: u64 = 1;

/// One partition, assigned at the first poll and never revoked.
pub struct Feed {
    partition: TopicPartition,
    chunks: Box<dyn Iterator<Item = Vec<Message>> + Send>,
    total: u64,
    assigned: bool,
    obeys_pauses: bool,
    paused: bool,
}

impl Feed {
    /// Creates a consumer of chunks with `total` messages and offsets from 0.
    pub fn new(topic: &Arc<str>, chunks: Box<dyn Iterator<Item = Vec<Message>> + Send>, total: u64) -> Self {
        let partition = TopicPartition { topic: topic.clone(), partition: 0 };
        Feed { partition, chunks, total, assigned: false, obeys_pauses: true, paused: false }
    }

    /// Sets whether the consumer obeys a pause.
    #[allow(dead_code, reason = "another bench shares this file")]
    pub fn obeying_pauses(self, obeys_pauses: bool) -> Self {
        Feed { obeys_pauses, ..self }
    }
}

#[async_trait]
impl Consumer for Feed {
    async fn poll(&mut self) -> Result<ConsumerEvent, BrokerError> {
        coop::consume_budget().await;
        let partition = self.partition.clone();
        if !self.assigned {
            self.assigned = true;
            let high_watermark = self.total;
            let assigned = AssignedPartition { partition, epoch: EPOCH, committed: None, position: 0, high_watermark };
            return Ok(ConsumerEvent::Assigned(vec![assigned]));
        }
        if self.paused {
            return pending().await;
        }
        match self.chunks.next() {
            Some(messages) => {
                let high_watermark = self.total;
                Ok(ConsumerEvent::Messages(MessageBatch { partition, epoch: EPOCH, messages, high_watermark }))
            }
            None => pending().await,
        }
    }

    fn commit(&mut self, _: &[(TopicPartition, CommittedOffset)]) -> CommitFuture {
        Box::pin(std::future::ready(Ok(())))
    }

    async fn seek(&mut self, _: &TopicPartition, _: u64) -> Result<u64, BrokerError> {
        Ok(EPOCH)
    }

    fn pause(&mut self, _: &TopicPartition) -> Result<(), BrokerError> {
        self.paused = self.obeys_pauses;
        Ok(())
    }

    fn resume(&mut self, _: &TopicPartition) -> Result<(), BrokerError> {
        self.paused = false;
        Ok(())
    }

    fn finish_revocation(&mut self) {}

    async fn close(&mut self) -> Result<(), BrokerError> {
        Ok(())
    }
}
