//! Events that are read again, one by one, by their positions: with one reader a partition, which is kept.
//!
//! A consumer of its own for each event would be thousands of them where thousands of parents are missing.

use std::{collections::VecDeque, time::Duration};

use crate::broker::{Broker, BrokerError, Message, Reader, TopicPartition};

/// The most readers that are kept: what several partitions may fetch ahead adds up.
const READERS: usize = 16;

/// What lies so far ahead is read over: a fetch brings about as much, and a seek throws away what was fetched.
const NEAR: u64 = 1_000;

/// How long an answer may take before the reader begins anew.
const ANSWER: Duration = Duration::from_secs(10);

/// What came of it.
#[derive(Debug)]
pub(crate) enum Reread {
    /// The message.
    Found(Message),
    /// The partition holds others around it, and not this one.
    Gone,
    /// Nothing has come: to be asked for again.
    NoAnswer,
}

/// The readers, the one used last at the end.
pub(crate) struct Readers {
    kept: VecDeque<Kept>,
    /// How long one waits for a message.
    answer: Duration,
}

impl Default for Readers {
    fn default() -> Self {
        Self::that_wait(ANSWER)
    }
}

struct Kept {
    partition: TopicPartition,
    reader: Box<dyn Reader>,
    /// Everything that there is from here up to the position of the reader...
    from: u64,
    /// ...is this.
    batch: Vec<Message>,
}

impl Readers {
    /// Readers that wait no longer than this for a message.
    pub(crate) fn that_wait(answer: Duration) -> Self {
        Readers { kept: VecDeque::new(), answer }
    }

    /// The message at `offset`.
    ///
    /// # Errors
    /// Those of the broker; what it does not hold any more is [`OutOfRange`](crate::broker::BrokerErrorKind::OutOfRange).
    pub(crate) async fn get(
        &mut self,
        broker: &dyn Broker,
        partition: &TopicPartition,
        offset: u64,
    ) -> Result<Reread, BrokerError> {
        let kept = match self.kept.iter().position(|kept| kept.partition == *partition) {
            // Taken out: a reader that fails, or whose answer nobody waits for any more, is not used again.
            Some(index) => self.kept.remove(index),
            None => None,
        };
        let mut kept = match kept {
            Some(kept) => kept,
            None => {
                while self.kept.len() >= READERS {
                    self.kept.pop_front();
                }
                let reader = broker.read(partition, offset).await?;
                Kept { partition: partition.clone(), reader, from: offset, batch: Vec::new() }
            }
        };
        let found = kept.get(offset, self.answer).await?;
        if !matches!(found, Reread::NoAnswer) {
            self.kept.push_back(kept);
        }
        Ok(found)
    }
}

impl Kept {
    async fn get(&mut self, offset: u64, answer: Duration) -> Result<Reread, BrokerError> {
        let position = self.reader.position();
        if !(self.from..position.saturating_add(NEAR)).contains(&offset) {
            self.reader.seek(offset).await?;
            (self.from, self.batch) = (offset, Vec::new());
        }
        while self.reader.position() <= offset {
            let from = self.reader.position();
            let batch = self.reader.next(answer).await?;
            if batch.is_empty() && self.reader.position() <= offset {
                return Ok(Reread::NoAnswer);
            }
            (self.from, self.batch) = (from, batch);
        }
        let at = self.batch.binary_search_by_key(&offset, |message| message.offset);
        Ok(at.map_or(Reread::Gone, |index| Reread::Found(self.batch[index].clone())))
    }
}

#[cfg(test)]
#[path = "reread_tests.rs"]
mod tests;
