//! Chunks: messages that were read together, and are prepared together in a task beside the loop.

use std::collections::VecDeque;

use tokio::task::JoinHandle;

use super::{PipelineError, topic_id::TopicConfirmation};
use crate::{
    broker::Message,
    prepare::{Poison, PrepareSettings, PreparedEvent, check_partition, prepare},
};

type PreparedMessages = Vec<(Message, Result<PreparedEvent, Poison>)>;

/// Messages that were read together and are prepared in one task.
struct Chunk {
    partition: i32,
    epoch: u64,
    /// Number in the order of reading, over all partitions.
    number: u64,
    /// Least timestamp of the messages, and the first offset.
    oldest: (i64, u64),
    messages: usize,
    prepared: JoinHandle<PreparedMessages>,
}

/// Messages of one chunk, prepared.
pub(super) struct PreparedChunk {
    pub partition: i32,
    pub epoch: u64,
    pub messages: PreparedMessages,
}

/// Chunks that are not used yet, in the order of reading.
pub(super) struct ChunkQueue {
    settings: PrepareSettings,
    /// Number of partitions of the topic, if it is checked.
    partitions: Option<i32>,
    chunks: VecDeque<Chunk>,
    /// Number of messages of all chunks.
    messages: usize,
}

impl ChunkQueue {
    pub(super) fn new(settings: PrepareSettings, partitions: Option<i32>) -> Self {
        ChunkQueue { settings, partitions, chunks: VecDeque::new(), messages: 0 }
    }

    /// Adds the messages of a partition and starts their preparation.
    pub(super) fn push(&mut self, partition: i32, epoch: u64, number: u64, messages: Vec<Message>) {
        let (settings, partitions) = (self.settings, self.partitions);
        let count = messages.len();
        let oldest_ms = messages.iter().map(|message| message.timestamp_ms).min().unwrap_or(i64::MIN);
        let oldest = (oldest_ms, messages.first().map_or(0, |message| message.offset));
        let prepared = tokio::spawn(async move {
            messages
                .into_iter()
                .map(|message| {
                    let result = prepare(&settings, &message).and_then(|prepared| {
                        partitions
                            .map_or(Ok(()), |count| check_partition(partition, count, &message))
                            .map_err(|poison| poison.about(prepared.txid()))
                            .map(|()| prepared)
                    });
                    (message, result)
                })
                .collect()
        });
        self.messages += count;
        self.chunks.push_back(Chunk { partition, epoch, number, oldest, messages: count, prepared });
    }

    /// Returns the oldest chunk, once the chunk is prepared and the topic confirmed: chunks are used in the order of
    /// reading.
    pub(super) async fn next(&mut self, confirmation: &TopicConfirmation) -> Result<PreparedChunk, PipelineError> {
        let Some(chunk) = self.chunks.front_mut().filter(|chunk| confirmation.is_confirmed(chunk.number)) else {
            return std::future::pending().await;
        };
        let messages = (&mut chunk.prepared).await.map_err(|error| PipelineError::Internal(error.to_string()))?;
        let (partition, epoch) = (chunk.partition, chunk.epoch);
        debug_assert_eq!(messages.len(), chunk.messages);
        self.messages -= chunk.messages;
        self.chunks.pop_front();
        Ok(PreparedChunk { partition, epoch, messages })
    }

    /// Returns the number of messages that are read and not used yet.
    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    /// Returns timestamp and offset of the oldest event of a partition that is read and not prepared.
    pub(super) fn oldest_of(&self, partition: i32) -> Option<(i64, u64)> {
        self.chunks.iter().filter(|chunk| chunk.partition == partition).map(|chunk| chunk.oldest).min()
    }

    /// Drops the chunks of all partitions.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.messages = 0;
    }
}
