//! Chunks: messages that were read together, and are prepared together in a task beside the loop.
//!
//! An event whose body is an object is a chunk of its own. Its body is loaded once the memory has room, and while the
//! load lasts the later chunks of the same partition wait; the chunks of other partitions do not.

use std::{
    collections::VecDeque,
    future::poll_fn,
    task::{Context, Poll},
};

use tokio::task::{JoinError, JoinHandle};

use super::{
    PipelineError,
    loads::{BodyLoad, BodyLoads},
    topic_id::TopicConfirmation,
};
use crate::{
    broker::Message,
    event::Event,
    prepare::{Poison, PrepareSettings, PreparedEvent, check_partition, prepare},
};

/// Reasons why an event was not prepared.
#[derive(Debug)]
pub(super) enum PreparationFailure {
    /// The event becomes a dead letter.
    Poison(Poison),
    /// The partition halts, for this reason.
    Halt(String),
}

pub(super) type PreparedMessages = Vec<(Message, Result<PreparedEvent, PreparationFailure>)>;

/// Messages that were read together and are prepared in one task.
struct Chunk {
    partition: i32,
    epoch: u64,
    /// Number in the order of reading, over all partitions; the parts of one batch share their number.
    number: u64,
    /// Least timestamp of the messages, and the first offset.
    oldest: (i64, u64),
    messages: usize,
    work: ChunkWork,
}

/// Preparation of a chunk.
enum ChunkWork {
    /// The bodies are in the messages.
    Inline(JoinHandle<PreparedMessages>),
    /// The body of the one message is an object.
    Load(Box<BodyLoad>),
}

impl ChunkWork {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<PreparedMessages, JoinError>> {
        match self {
            ChunkWork::Inline(task) => std::pin::Pin::new(task).poll(cx),
            ChunkWork::Load(load) => load.poll(cx),
        }
    }
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
    loads: BodyLoads,
}

impl ChunkQueue {
    pub(super) fn new(settings: PrepareSettings, partitions: Option<i32>, loads: BodyLoads) -> Self {
        ChunkQueue { settings, partitions, chunks: VecDeque::new(), messages: 0, loads }
    }

    /// Adds the messages of a partition and starts their preparation. Events whose body is an object wait for
    /// [`begin_loads`](Self::begin_loads).
    pub(super) fn push(&mut self, partition: i32, epoch: u64, number: u64, messages: Vec<Message>) {
        let mut inline = Vec::new();
        for message in messages {
            let Some(length) = Event::referenced_length(&message.payload) else {
                inline.push(message);
                continue;
            };
            self.push_inline(partition, epoch, number, std::mem::take(&mut inline));
            let oldest = (message.timestamp_ms, message.offset);
            let work = ChunkWork::Load(Box::new(self.loads.wait_for_room(message, length)));
            self.messages += 1;
            self.chunks.push_back(Chunk { partition, epoch, number, oldest, messages: 1, work });
        }
        self.push_inline(partition, epoch, number, inline);
    }

    fn push_inline(&mut self, partition: i32, epoch: u64, number: u64, messages: Vec<Message>) {
        let count = messages.len();
        let Some(first) = messages.first() else { return };
        let oldest_ms = messages.iter().map(|message| message.timestamp_ms).min().unwrap_or(i64::MIN);
        let oldest = (oldest_ms, first.offset);
        let (settings, partitions) = (self.settings, self.partitions);
        let prepare_each = move |message: Message| {
            let prepared = prepare(&settings, &message);
            let placed = prepared.and_then(|prepared| {
                let checked = partitions.map_or(Ok(()), |count| check_partition(partition, count, &message));
                checked.map_err(|poison| poison.about(prepared.txid())).map(|()| prepared)
            });
            (message, placed.map_err(PreparationFailure::Poison))
        };
        let task = tokio::spawn(async move { messages.into_iter().map(prepare_each).collect() });
        self.messages += count;
        let work = ChunkWork::Inline(task);
        self.chunks.push_back(Chunk { partition, epoch, number, oldest, messages: count, work });
    }

    /// Begins to load the bodies for which the memory has room: first those of the oldest unfinished event of each
    /// partition, then the others in the order of reading. While an oldest event has no room no other body is loaded,
    /// so that the memory empties; where the bodies in memory wait for such an event, one is loaded beyond the bound
    /// each second. Every partition advances. Loads under an epoch that has ended are dropped, and those of halted
    /// partitions.
    ///
    /// `watermark_of`: watermark of a running partition under this epoch; `None`: the epoch has ended, or the partition
    /// is halted.
    pub(super) fn begin_loads(&mut self, watermark_of: impl Fn(i32, u64) -> Option<u64>) {
        if self.loads.is_empty() {
            return;
        }
        let (partitions, settings) = (self.partitions, self.settings);
        let (mut dropped, mut is_oldest_waiting) = (0, false);
        let placed = |partition| partitions.map(|count| (partition, count));
        self.chunks.retain_mut(|chunk| {
            let ChunkWork::Load(load) = &mut chunk.work else { return true };
            let Some(watermark) = watermark_of(chunk.partition, chunk.epoch) else {
                dropped += chunk.messages;
                return false;
            };
            if chunk.oldest.1 <= watermark {
                load.begin_if_room(true, settings, placed(chunk.partition));
                is_oldest_waiting |= load.is_waiting();
            }
            true
        });
        self.messages -= dropped;
        for chunk in self.chunks.iter_mut().filter(|_| !is_oldest_waiting) {
            if let ChunkWork::Load(load) = &mut chunk.work {
                load.begin_if_room(false, settings, placed(chunk.partition));
            }
        }
    }

    /// Returns the next chunk that is prepared, and whose topic is confirmed. Chunks are used in the order of reading;
    /// a chunk that waits for its body lets the chunks of other partitions pass.
    pub(super) async fn next(&mut self, confirmation: &TopicConfirmation) -> Result<PreparedChunk, PipelineError> {
        let (index, messages) = poll_fn(|cx| self.poll_next(confirmation, cx)).await;
        let messages = messages.map_err(|error| PipelineError::Internal(error.to_string()))?;
        let Some(chunk) = self.chunks.remove(index) else { unreachable!("the chunk was just polled") };
        debug_assert_eq!(messages.len(), chunk.messages);
        self.messages -= chunk.messages;
        Ok(PreparedChunk { partition: chunk.partition, epoch: chunk.epoch, messages })
    }

    fn poll_next(
        &mut self,
        confirmation: &TopicConfirmation,
        cx: &mut Context<'_>,
    ) -> Poll<(usize, Result<PreparedMessages, JoinError>)> {
        let mut waiting: Vec<i32> = Vec::new();
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            if !confirmation.is_confirmed(chunk.number) {
                break;
            }
            if waiting.contains(&chunk.partition) {
                continue;
            }
            match (chunk.work.poll(cx), &chunk.work) {
                (Poll::Ready(prepared), _) => return Poll::Ready((index, prepared)),
                (Poll::Pending, ChunkWork::Load(_)) => waiting.push(chunk.partition),
                (Poll::Pending, ChunkWork::Inline(_)) => break,
            }
        }
        Poll::Pending
    }

    /// Returns the number of messages that are read and not used yet, without those that wait for a body.
    pub(super) fn messages(&self) -> usize {
        if self.loads.is_empty() {
            return self.messages;
        }
        let mut waiting: Vec<i32> = Vec::new();
        let mut count = 0;
        for chunk in &self.chunks {
            if matches!(chunk.work, ChunkWork::Load(_)) && !waiting.contains(&chunk.partition) {
                waiting.push(chunk.partition);
            }
            count += if waiting.contains(&chunk.partition) { 0 } else { chunk.messages };
        }
        count
    }

    /// Returns whether an event waits for its body.
    pub(super) fn is_loading(&self) -> bool {
        !self.loads.is_empty()
    }

    /// Returns the body that could not be read for the longest time: since when, by the steady clock, and why.
    pub(super) fn longest_wait(&self) -> Option<(u64, String)> {
        let failures = self.chunks.iter().filter_map(|chunk| match &chunk.work {
            ChunkWork::Load(load) => Some((chunk, load.failure()?)),
            ChunkWork::Inline(_) => None,
        });
        let (Chunk { partition, oldest, .. }, (since_ms, why)) = failures.min_by_key(|(_, (since_ms, _))| *since_ms)?;
        Some((since_ms, format!("partition {partition} waits at offset {}: {why}", oldest.1)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        event::{BodyReference, ContentHash, ValidatedReference},
        record::build::InlineBodies,
        tx::{Network, Txid},
    };

    #[tokio::test]
    async fn a_load_ends_with_the_epoch_of_its_partition() {
        let settings = PrepareSettings { network: Network::Main, utxo_batch_size: 20, inline: InlineBodies::All };
        let mut queue = ChunkQueue::new(settings, None, BodyLoads::new(None, Clock::System, 10));
        let tx = BodyReference { key: "k".into(), length: 9, blake3: ContentHash([0; 32]) };
        let event = ValidatedReference { txid: Txid([1; 32]), tx, height: 1, locked: false };
        let payload = event.encode().into();
        let message =
            |payload| Message { offset: 7, timestamp_ms: 5, key: Default::default(), payload, headers: vec![] };
        queue.push(3, 1, 1, vec![message(Default::default()), message(payload), message(Default::default())]);
        assert_eq!((queue.messages(), queue.oldest_of(3)), (1, Some((5, 7))), "later events wait for the body");
        queue.begin_loads(|number, epoch| (number == 3 && epoch == 1).then_some(7));
        assert!(queue.is_loading());
        queue.begin_loads(|_, _| None);
        assert_eq!((queue.is_loading(), queue.messages()), (false, 2));
    }
}
