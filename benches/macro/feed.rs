//! A consumer that hands out what a generator makes: a broker that costs nothing.

use std::{future::pending, sync::Arc};

use async_trait::async_trait;
use tokio::task::coop;
use utxo_store::broker::{
    Assigned, Batch, BrokerError, Committed, Committing, Consumer, Message, Polled, TopicPartition,
};

const EPOCH: u64 = 1;

/// One partition, assigned at the first poll and never revoked.
pub struct Feed {
    partition: TopicPartition,
    chunks: Box<dyn Iterator<Item = Vec<Message>> + Send>,
    total: u64,
    assigned: bool,
    heeds: bool,
    paused: bool,
}

impl Feed {
    /// Over chunks that hold `total` messages, with offsets from 0.
    pub fn new(topic: &Arc<str>, chunks: Box<dyn Iterator<Item = Vec<Message>> + Send>, total: u64) -> Self {
        let partition = TopicPartition { topic: topic.clone(), partition: 0 };
        Feed { partition, chunks, total, assigned: false, heeds: true, paused: false }
    }

    /// One that does not heed a pause goes on, whatever it is told.
    #[allow(dead_code, reason = "another bench shares this file")]
    pub fn heeding(self, heeds: bool) -> Self {
        Feed { heeds, ..self }
    }
}

#[async_trait]
impl Consumer for Feed {
    async fn poll(&mut self) -> Result<Polled, BrokerError> {
        coop::consume_budget().await;
        let partition = self.partition.clone();
        if !self.assigned {
            self.assigned = true;
            let high_watermark = self.total;
            let assigned = Assigned { partition, epoch: EPOCH, committed: None, position: 0, high_watermark };
            return Ok(Polled::Assigned(vec![assigned]));
        }
        if self.paused {
            return pending().await;
        }
        match self.chunks.next() {
            Some(messages) => {
                Ok(Polled::Messages(Batch { partition, epoch: EPOCH, messages, high_watermark: self.total }))
            }
            None => pending().await,
        }
    }

    fn commit(&mut self, _: &[(TopicPartition, Committed)]) -> Committing {
        Box::pin(std::future::ready(Ok(())))
    }

    async fn seek(&mut self, _: &TopicPartition, _: u64) -> Result<u64, BrokerError> {
        Ok(EPOCH)
    }

    fn pause(&mut self, _: &TopicPartition) -> Result<(), BrokerError> {
        self.paused = self.heeds;
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
