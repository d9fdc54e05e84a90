//! How far the chain has been handled, whoever handles it: for the proof that a parent is missing.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    broker::{Broker, BrokerError, Message, TopicPartition},
    ingest::{pipeline::ChainProgress, proof::ChainView},
    sequencer::{feed::sequence_of, handler::SequencerTopics, state::ChainState},
};

/// Reads what the chain's group has committed.
pub struct CommittedProgress {
    /// The log.
    pub broker: Arc<dyn Broker>,
    /// The chain's group.
    pub group: String,
    /// Topics.
    pub topics: SequencerTopics,
    /// Where the chain stood at the last look, and how often in a row it had moved since the one before.
    pub last: Mutex<(Option<u64>, u32)>,
}

#[async_trait]
impl ChainProgress for CommittedProgress {
    async fn view(&self) -> Result<ChainView, BrokerError> {
        let chain = TopicPartition { topic: self.topics.chain.as_str().into(), partition: 0 };
        let committed = self.broker.committed(&self.group, std::slice::from_ref(&chain)).await?.pop().flatten();
        let offset = committed.as_ref().map_or(0, |committed| committed.offset);
        let state =
            committed.and_then(|committed| ChainState::from_metadata(&committed.metadata).ok()).unwrap_or_default();
        if offset < self.broker.watermarks(&chain).await?.1 && self.moved_to(offset) {
            // It moves, so it will soon be further: no need to look at what is next.
            return Ok(ChainView::Unknown);
        }
        let mut view = self.first_open(&chain, offset, |_| true).await?;
        // What the feed passes over (a repeat, or no event at all) never gets into the chain.
        let is_new = |message: &Message| sequence_of(message).is_ok_and(|sequence| sequence > state.sequence);
        for (topic, next) in
            [(&self.topics.block_mined, state.block_mined_next), (&self.topics.reorgs, state.reorgs_next)]
        {
            let partition = TopicPartition { topic: topic.as_str().into(), partition: 0 };
            view = match (view, self.first_open(&partition, next, is_new).await?) {
                (ChainView::Unknown, _) | (_, ChainView::Unknown) => ChainView::Unknown,
                (ChainView::AtEnd, other) | (other, ChainView::AtEnd) => other,
                (ChainView::Behind(one), ChainView::Behind(other)) => ChainView::Behind(one.min(other)),
            };
        }
        Ok(view)
    }
}

impl CommittedProgress {
    fn moved_to(&self, offset: u64) -> bool {
        // A number cannot be left half written, so a panic elsewhere does not spoil it.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = last.0.replace(offset) != Some(offset) && last.1 < LOOKS_SPARED;
        last.1 = if moved { last.1 + 1 } else { 0 };
        moved
    }

    /// The first message from `next` on that is still to be handled.
    async fn first_open(
        &self,
        partition: &TopicPartition,
        next: u64,
        is_open: impl Fn(&Message) -> bool,
    ) -> Result<ChainView, BrokerError> {
        let (_, high) = self.broker.watermarks(partition).await?;
        if next >= high {
            return Ok(ChainView::AtEnd);
        }
        let mut reader = self.broker.read(partition, next).await?;
        while reader.position() < high {
            let messages = reader.next(WAIT).await?;
            if messages.is_empty() {
                return Ok(ChainView::Unknown);
            }
            if let Some(message) = messages.iter().find(|message| is_open(message)) {
                return Ok(ChainView::Behind(message.timestamp_ms));
            }
        }
        Ok(ChainView::AtEnd)
    }
}

/// A chain that never stands still is looked at all the same, once in so many times.
const LOOKS_SPARED: u32 = 5;
const WAIT: Duration = Duration::from_millis(500);
