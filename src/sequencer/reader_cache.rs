//! Reads single messages again by their offset, with one cached reader for each partition.
//!
//! A new reader for each message would open thousands of Kafka consumers where thousands of parents are missing.

use std::{collections::VecDeque, time::Duration};

use crate::broker::{Broker, BrokerError, Message, PartitionReader, TopicPartition};

/// The greatest number of cached readers: the messages that they fetch ahead add up.
const MAX_READERS: usize = 16;

/// Messages that a reader skips by reading on, at most. One fetch brings about as many, and a seek discards the fetched
/// ones.
const SEEK_DISTANCE: u64 = 1_000;

/// Time to wait for an answer before the reader is replaced by a new one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of reading one message again.
#[derive(Debug)]
pub(crate) enum RereadOutcome {
    /// The message at the offset.
    Found(Message),
    /// The partition has messages around the offset and none at it.
    Gone,
    /// No answer in time; the caller tries again.
    NoAnswer,
}

/// The cached readers, least recently used first.
pub(crate) struct ReaderCache {
    readers: VecDeque<CachedReader>,
    /// Time to wait for a message.
    answer_timeout: Duration,
}

impl Default for ReaderCache {
    fn default() -> Self {
        Self::with_answer_timeout(ANSWER_TIMEOUT)
    }
}

struct CachedReader {
    partition: TopicPartition,
    reader: Box<dyn PartitionReader>,
    /// `batch` has every message from this offset up to the reader's position.
    from: u64,
    /// Messages of the last answer, in the order of their offsets.
    batch: Vec<Message>,
}

impl ReaderCache {
    /// Creates a cache whose readers wait at most this long for a message.
    pub(crate) fn with_answer_timeout(answer_timeout: Duration) -> Self {
        ReaderCache { readers: VecDeque::new(), answer_timeout }
    }

    /// Closes the readers, with the messages that they have fetched ahead.
    pub(crate) fn close(&mut self) {
        self.readers.clear();
    }

    /// Reads the message at `offset`.
    ///
    /// # Errors
    /// Returns the broker's errors. An offset that the partition no longer has is
    /// [`OutOfRange`](crate::broker::BrokerErrorKind::OutOfRange).
    pub(crate) async fn get(
        &mut self,
        broker: &dyn Broker,
        partition: &TopicPartition,
        offset: u64,
    ) -> Result<RereadOutcome, BrokerError> {
        let cached = match self.readers.iter().position(|cached| cached.partition == *partition) {
            // Removed while in use: a reader that fails, or whose future is dropped, is not used again.
            Some(index) => self.readers.remove(index),
            None => None,
        };
        let mut cached = match cached {
            Some(cached) => cached,
            None => {
                while self.readers.len() >= MAX_READERS {
                    self.readers.pop_front();
                }
                let reader = broker.read(partition, offset).await?;
                CachedReader { partition: partition.clone(), reader, from: offset, batch: Vec::new() }
            }
        };
        let found = cached.get(offset, self.answer_timeout).await?;
        if !matches!(found, RereadOutcome::NoAnswer) {
            self.readers.push_back(cached);
        }
        Ok(found)
    }
}

impl CachedReader {
    async fn get(&mut self, offset: u64, answer_timeout: Duration) -> Result<RereadOutcome, BrokerError> {
        let position = self.reader.position();
        if !(self.from..position.saturating_add(SEEK_DISTANCE)).contains(&offset) {
            self.reader.seek(offset).await?;
            (self.from, self.batch) = (offset, Vec::new());
        }
        while self.reader.position() <= offset {
            let from = self.reader.position();
            let batch = self.reader.next(answer_timeout).await?;
            if batch.is_empty() && self.reader.position() <= offset {
                return Ok(RereadOutcome::NoAnswer);
            }
            (self.from, self.batch) = (from, batch);
        }
        let at = self.batch.binary_search_by_key(&offset, |message| message.offset);
        Ok(at.map_or(RereadOutcome::Gone, |index| RereadOutcome::Found(self.batch[index].clone())))
    }
}

#[cfg(test)]
#[path = "reader_cache_tests.rs"]
mod tests;
