//! How far the chain has been handled, whoever handles it: for the proof that a parent is missing.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    broker::{Broker, BrokerError, Message, TopicPartition},
    group::proof::{ChainProgress, ChainView},
    sequencer::{
        feed::{produced_at_ms, sequence_of},
        handler::SequencerTopics,
        reread::{Readers, Reread},
        state::ChainState,
    },
};

/// Reads what the chain's group has committed.
pub struct CommittedProgress {
    broker: Arc<dyn Broker>,
    group: String,
    topics: SequencerTopics,
    /// Where the chain stood at the last look, and how often in a row it had moved since the one before.
    last: Mutex<(Option<u64>, u32)>,
    /// Kept, with what they have read: a chain that stands is looked at every second, at the same event.
    readers: tokio::sync::Mutex<Readers>,
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
        let mut view = self.first_open(&chain, offset, |_| true, produced_at_ms).await?;
        // What the feed passes over (a repeat, or no event at all) never gets into the chain.
        let is_new = |message: &Message| sequence_of(message).is_ok_and(|sequence| sequence > state.sequence);
        // Not where the feed is: what it has fed stands in the chain behind what may be much younger.
        let (block_mined, reorgs) = state.handled();
        for (topic, next) in [(&self.topics.block_mined, block_mined), (&self.topics.reorgs, reorgs)] {
            let partition = TopicPartition { topic: topic.as_str().into(), partition: 0 };
            view = match (view, self.first_open(&partition, next, is_new, |message| message.timestamp_ms).await?) {
                (ChainView::Unknown, _) | (_, ChainView::Unknown) => ChainView::Unknown,
                (ChainView::AtEnd, other) | (other, ChainView::AtEnd) => other,
                (ChainView::Behind(one), ChainView::Behind(other)) => ChainView::Behind(one.min(other)),
            };
        }
        Ok(view)
    }
}

impl CommittedProgress {
    /// Of the chain whose group this is.
    pub fn new(broker: Arc<dyn Broker>, group: String, topics: SequencerTopics) -> Self {
        let readers = tokio::sync::Mutex::new(Readers::that_wait(WAIT));
        CommittedProgress { broker, group, topics, last: Mutex::default(), readers }
    }

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
        time_of: impl Fn(&Message) -> i64,
    ) -> Result<ChainView, BrokerError> {
        let (_, high) = self.broker.watermarks(partition).await?;
        if next >= high {
            return Ok(ChainView::AtEnd);
        }
        let mut readers = self.readers.lock().await;
        for offset in next..high {
            match readers.get(self.broker.as_ref(), partition, offset).await? {
                Reread::Found(message) if is_open(&message) => return Ok(ChainView::Behind(time_of(&message))),
                Reread::Found(_) | Reread::Gone => {}
                Reread::NoAnswer => return Ok(ChainView::Unknown),
            }
        }
        Ok(ChainView::AtEnd)
    }
}

/// A chain that never stands still is looked at all the same, once in so many times.
const LOOKS_SPARED: u32 = 5;
const WAIT: Duration = Duration::from_millis(500);
