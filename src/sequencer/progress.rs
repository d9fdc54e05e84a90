//! How far the chain has been handled, whoever handles it: for the proof that a parent is missing.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    broker::{Broker, BrokerError, TopicPartition},
    ingest::{pipeline::ChainProgress, proof::ChainView},
    sequencer::{handler::SequencerTopics, state::ChainState},
};

/// Reads what the chain's group has committed.
pub struct CommittedProgress {
    /// The log.
    pub broker: Arc<dyn Broker>,
    /// The chain's group.
    pub group: String,
    /// Topics.
    pub topics: SequencerTopics,
}

#[async_trait]
impl ChainProgress for CommittedProgress {
    async fn view(&self) -> Result<ChainView, BrokerError> {
        let chain = TopicPartition { topic: self.topics.chain.as_str().into(), partition: 0 };
        let committed = self.broker.committed(&self.group, std::slice::from_ref(&chain)).await?.pop().flatten();
        let offset = committed.as_ref().map_or(0, |committed| committed.offset);
        let state =
            committed.and_then(|committed| ChainState::from_metadata(&committed.metadata).ok()).unwrap_or_default();
        let mut view = self.behind(&chain, offset).await?;
        for (topic, next) in
            [(&self.topics.block_mined, state.block_mined_next), (&self.topics.reorgs, state.reorgs_next)]
        {
            let partition = TopicPartition { topic: topic.as_str().into(), partition: 0 };
            view = match (view, self.behind(&partition, next).await?) {
                (ChainView::AtEnd, other) | (other, ChainView::AtEnd) => other,
                (ChainView::Behind(one), ChainView::Behind(other)) => ChainView::Behind(one.min(other)),
            };
        }
        Ok(view)
    }
}

impl CommittedProgress {
    async fn behind(&self, partition: &TopicPartition, next: u64) -> Result<ChainView, BrokerError> {
        let (_, high) = self.broker.watermarks(partition).await?;
        if next >= high {
            return Ok(ChainView::AtEnd);
        }
        let mut reader = self.broker.read(partition, next).await?;
        let first = reader.next(Duration::from_millis(500)).await?.into_iter().next();
        // Nothing to be read yet proves nothing: as if it were as old as can be.
        Ok(ChainView::Behind(first.map_or(i64::MIN, |message| message.timestamp_ms)))
    }
}
