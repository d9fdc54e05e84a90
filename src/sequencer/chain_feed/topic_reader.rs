//! Reader of a topic that the feed copies, and the messages that wait for their sequence.

use std::{collections::VecDeque, time::Duration};

use crate::broker::{
    Broker, BrokerError, BrokerErrorKind, Message, PartitionReader, TopicPartition,
    retry::{read_or_reopen, until_answered},
};

/// Reader of one topic of blocks or reorgs, with the messages that were read and not copied.
pub(super) struct TopicReader {
    pub(super) topic: TopicPartition,
    pub(super) reader: Box<dyn PartitionReader>,
    /// Messages that were read and not copied, each with its sequence, or with the reason why it has none.
    pub(super) heads: VecDeque<(Result<u64, String>, Message)>,
    /// Reader that looks for a sequence after the messages that were read, and that sequence.
    pub(super) search: Option<(u64, Box<dyn PartitionReader>)>,
    /// The message that the search has found, and its sequence. Valid while that sequence is the next one: the other
    /// topic may bring the sequence meanwhile.
    pub(super) found: Option<(u64, Message)>,
}

impl TopicReader {
    pub(super) async fn open(broker: &dyn Broker, topic: &str, offset: u64) -> Result<Self, BrokerError> {
        let topic = TopicPartition { topic: topic.into(), partition: 0 };
        let reader = log_reader(broker, &topic, offset).await?;
        Ok(TopicReader { topic, reader, heads: VecDeque::new(), search: None, found: None })
    }

    /// Returns `next` where a message has that sequence, and else the sequence of the first message.
    pub(super) fn head(&self, next: u64) -> Option<u64> {
        let is_found = self.found.as_ref().is_some_and(|(sequence, _)| *sequence == next);
        match is_found || self.place_of(next).is_some() {
            true => Some(next),
            false => self.heads.front().and_then(|(sequence, _)| sequence.as_ref().ok().copied()),
        }
    }

    fn place_of(&self, sequence: u64) -> Option<usize> {
        self.heads.iter().position(|(found, _)| *found == Ok(sequence))
    }

    /// Removes and returns the message with the next sequence.
    pub(super) fn take(&mut self, next: u64) -> Option<Message> {
        match self.place_of(next) {
            Some(place) => self.heads.remove(place).map(|(_, message)| message),
            None => self.found.take_if(|(sequence, _)| *sequence == next).map(|(_, message)| message),
        }
    }

    /// Removes and returns the first message, whose sequence is the next one or an earlier one, with its sequence.
    /// `None`: no message was read, or the first one has no sequence.
    pub(super) fn take_first(&mut self) -> Option<(u64, Message)> {
        let (sequence, message) = self.heads.pop_front_if(|(sequence, _)| sequence.is_ok())?;
        Some((sequence.ok()?, message))
    }

    /// Returns the offset of the first message that is not copied, skipped or discarded.
    pub(super) fn next_offset(&self) -> u64 {
        self.heads.front().map_or_else(|| self.reader.position(), |(_, message)| message.offset)
    }
}

/// Opens a reader at `offset`, or at the first offset that the topic holds, where the topic no longer holds `offset`.
///
/// A deleted message with the next sequence shows as a gap: the chain waits for the sequence by name, and the producer
/// can produce the event again. An offset above the end remains an error: the topic has lost its end.
pub(super) async fn log_reader(
    broker: &dyn Broker,
    topic: &TopicPartition,
    offset: u64,
) -> Result<Box<dyn PartitionReader>, BrokerError> {
    loop {
        let (low, _) = until_answered(|| broker.watermarks(topic)).await?;
        if offset < low {
            tracing::warn!(%topic, offset, first = low, "chain feed: the topic no longer holds the next offset, \
                continuing at its first; a missing sequence number is reported");
        }
        match until_answered(|| broker.read(topic, offset.max(low))).await {
            // More messages were deleted since the look at the topic.
            Err(error)
                if error.kind == BrokerErrorKind::OutOfRange
                    && until_answered(|| broker.watermarks(topic)).await?.0 > offset.max(low) => {}
            opened => return opened,
        }
    }
}

/// Returns the next messages, or none after `wait`. Messages that were deleted before the reader came to them are
/// passed over, as by [`log_reader`].
pub(super) async fn read_passing_deleted(
    reader: &mut Box<dyn PartitionReader>,
    broker: &dyn Broker,
    topic: &TopicPartition,
    wait: Duration,
) -> Result<Vec<Message>, BrokerError> {
    match read_or_reopen(reader, broker, topic, wait).await {
        Err(error) if error.kind == BrokerErrorKind::OutOfRange => {
            let position = reader.position();
            *reader = log_reader(broker, topic, position).await?;
            if reader.position() == position { Err(error) } else { Ok(Vec::new()) }
        }
        read => read,
    }
}
