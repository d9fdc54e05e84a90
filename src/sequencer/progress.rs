//! The progress of the chain, read from the commits of its group: for the proof that a parent is missing.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    broker::{Broker, BrokerError, Message, TopicPartition},
    group::missing_parent::{ChainProgress, ChainView},
    sequencer::{
        SequencerTopics,
        chain_feed::{produced_at_ms, sequence_of},
        reader_cache::{ReaderCache, RereadOutcome},
        state::ChainState,
    },
};

/// Reads the progress of the chain from the offset that its group has committed.
pub struct CommittedProgress {
    broker: Arc<dyn Broker>,
    group: String,
    topics: SequencerTopics,
    /// The committed offset at the last look, and the number of looks in a row at which the offset had moved.
    last: Mutex<(Option<u64>, u32)>,
    /// Readers with their buffers: a chain that does not move is read every second at the same event.
    readers: tokio::sync::Mutex<ReaderCache>,
}

#[async_trait]
impl ChainProgress for CommittedProgress {
    async fn view(&self) -> Result<ChainView, BrokerError> {
        let chain = TopicPartition { topic: self.topics.chain.as_str().into(), partition: 0 };
        let committed = self.broker.committed(&self.group, std::slice::from_ref(&chain)).await?.pop().flatten();
        let offset = committed.as_ref().map_or(0, |committed| committed.offset);
        let state =
            committed.and_then(|committed| ChainState::from_metadata(&committed.metadata).ok()).unwrap_or_default();
        if offset < self.broker.watermarks(&chain).await?.1 && self.has_moved_to(offset) {
            // A moving chain will soon be past its next event, so that event is not read.
            return Ok(ChainView::Unknown);
        }
        let mut view = self.find_unhandled(&chain, offset, |_| true, produced_at_ms).await?;
        // A repeat, and a message that is no event, never gets into the chain log.
        let is_new = |message: &Message| sequence_of(message).is_ok_and(|sequence| sequence > state.sequence);
        // Not the position of the feed: a fed event can be in the chain log after much younger events.
        let (block_mined, reorgs) = state.handled_offsets();
        for (topic, next) in [(&self.topics.block_mined, block_mined), (&self.topics.reorgs, reorgs)] {
            let partition = TopicPartition { topic: topic.as_str().into(), partition: 0 };
            view = match (view, self.find_unhandled(&partition, next, is_new, |message| message.timestamp_ms).await?) {
                (ChainView::Unknown, _) | (_, ChainView::Unknown) => ChainView::Unknown,
                (ChainView::AtEnd, other) | (other, ChainView::AtEnd) => other,
                (ChainView::Unhandled(one), ChainView::Unhandled(other)) => ChainView::Unhandled(one.min(other)),
            };
        }
        Ok(view)
    }
}

impl CommittedProgress {
    /// Makes a view of the chain that this group consumes.
    pub fn new(broker: Arc<dyn Broker>, group: String, topics: SequencerTopics) -> Self {
        let readers = tokio::sync::Mutex::new(ReaderCache::with_answer_timeout(READ_TIMEOUT));
        CommittedProgress { broker, group, topics, last: Mutex::default(), readers }
    }

    fn has_moved_to(&self, offset: u64) -> bool {
        // A panic in another thread cannot leave a number half written, so a poisoned lock is taken.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = last.0.replace(offset) != Some(offset) && last.1 < MAX_SKIPPED_LOOKS;
        last.1 = if moved { last.1 + 1 } else { 0 };
        moved
    }

    /// Finds the first message from `next` on that is not handled.
    async fn find_unhandled(
        &self,
        partition: &TopicPartition,
        next: u64,
        is_open: impl Fn(&Message) -> bool,
        time_of: impl Fn(&Message) -> i64,
    ) -> Result<ChainView, BrokerError> {
        let (low, high) = self.broker.watermarks(partition).await?;
        if next < low {
            // The owner of the chain has not passed over the deleted messages yet.
            return Ok(ChainView::Unknown);
        }
        if next >= high {
            return Ok(ChainView::AtEnd);
        }
        let mut readers = self.readers.lock().await;
        for offset in next..high {
            match readers.get(self.broker.as_ref(), partition, offset).await? {
                RereadOutcome::Found(message) if is_open(&message) => {
                    return Ok(ChainView::Unhandled(time_of(&message)));
                }
                RereadOutcome::Found(_) | RereadOutcome::Gone => {}
                RereadOutcome::NoAnswer => return Ok(ChainView::Unknown),
            }
        }
        Ok(ChainView::AtEnd)
    }
}

/// A chain that always moves is read once after this many looks.
const MAX_SKIPPED_LOOKS: u32 = 5;
/// Time to wait for one message of the log.
const READ_TIMEOUT: Duration = Duration::from_millis(500);
