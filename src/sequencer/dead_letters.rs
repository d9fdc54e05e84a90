//! Dead letters of the sequencer: messages of the chain, of its sources, and of contested transactions.

use std::time::Duration;

use crate::{
    broker::{BrokerError, Message, TopicPartition},
    event::{DeadLetter, DeadLetterClass},
    group::dead_letters::publish_dead_letter,
    sequencer::SequencerParts,
};

/// A message that cannot be applied, with the reason.
#[derive(Debug)]
pub struct RefusedMessage {
    /// The part of the sequencer that refuses the message.
    pub stage: &'static str,
    /// The partition that holds the message.
    pub partition: TopicPartition,
    /// The message, with its offset and its time.
    pub message: Message,
    /// The class of the reason.
    pub class: DeadLetterClass,
    /// Reason, in one line.
    pub why: String,
}

impl RefusedMessage {
    /// Publishes the dead letter of the message, with retries until the broker acknowledges. `pause` is the first and
    /// the longest pause between two tries.
    pub async fn publish_dead_letter(
        self,
        parts: &SequencerParts,
        pause: (Duration, Duration),
    ) -> Result<(), BrokerError> {
        let RefusedMessage { stage, partition, message, class, why } = self;
        parts.metrics.dead_letters.of(class).inc();
        let letter = DeadLetter {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            offset: message.offset,
            stage: stage.to_owned(),
            class,
            message: why,
            timestamp_ms: message.timestamp_ms,
        };
        publish_dead_letter(parts.producer.as_ref(), &parts.topics.dead_letters, message, &letter, pause).await
    }
}
