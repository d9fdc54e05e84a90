//! Dead letters of the bridge, with the limits that halt a partition of an instance, too.

use std::sync::Arc;

use tokio::time::Instant;

use super::{BridgeCounts, BridgeError};
use crate::{
    broker::{Message, Producer, TopicPartition},
    client::PRODUCE_RETRY_PAUSE,
    config::Topics,
    event::{DeadLetter, DeadLetterClass, Topic},
    group::dead_letters::{DeadLetterGauge, DeadLetterLimits, publish_dead_letter},
};

/// Stage in the dead letters of the bridge.
const STAGE: &str = "bridge";

/// Publishes the dead letters of one partition of the reference.
pub(super) struct BridgeDeadLetters<'a> {
    pub(super) producer: Arc<dyn Producer>,
    pub(super) partition: &'a TopicPartition,
    topics: &'a Topics,
    counts: &'a BridgeCounts,
    limits: DeadLetterLimits,
    gauge: DeadLetterGauge,
    opened: Instant,
    /// First message without a dead letter of an earlier run.
    from: u64,
}

impl<'a> BridgeDeadLetters<'a> {
    /// Publishes dead letters of messages from the offset `from` on.
    pub(super) fn new(
        producer: Arc<dyn Producer>,
        partition: &'a TopicPartition,
        (topics, counts): (&'a Topics, &'a BridgeCounts),
        limits: DeadLetterLimits,
        from: u64,
    ) -> Self {
        let (gauge, opened) = (DeadLetterGauge::default(), Instant::now());
        BridgeDeadLetters { producer, partition, topics, counts, limits, gauge, opened, from }
    }

    /// Counts a message that becomes an event.
    pub(super) fn count_event(&mut self) {
        let now_ms = self.now_ms();
        self.gauge.count(&self.limits, false, now_ms);
    }

    /// Publishes the dead letter of a message that becomes no event. An earlier run has published the dead letters
    /// below the offset `read=` of its commit.
    ///
    /// # Errors
    /// Too many of the messages become no events: the topic is another one than the bridge can read.
    pub(super) async fn publish(
        &mut self,
        source: Message,
        class: DeadLetterClass,
        problem: String,
    ) -> Result<(), BridgeError> {
        let (partition, offset) = (self.partition, source.offset);
        if offset < self.from {
            return Ok(());
        }
        let now_ms = self.now_ms();
        if let Some(why) = self.gauge.count(&self.limits, true, now_ms) {
            return Err(BridgeError::DeadLetters { partition: partition.clone(), offset, why, problem });
        }
        self.publish_dropped(source, class, problem).await
    }

    /// Publishes the dead letter of a message that has waited in vain. The message counts for no limit: the topic is
    /// the right one.
    ///
    /// # Errors
    /// The log refuses the dead letter.
    pub(super) async fn publish_dropped(
        &self,
        source: Message,
        class: DeadLetterClass,
        problem: String,
    ) -> Result<(), BridgeError> {
        let (partition, offset) = (self.partition, source.offset);
        tracing::warn!(%partition, offset, problem, "bridge: message becomes a dead letter");
        let letter = DeadLetter {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            offset,
            stage: STAGE.to_owned(),
            class,
            message: problem,
            timestamp_ms: source.timestamp_ms,
        };
        let topic = self.topics.name(Topic::DeadLetters);
        publish_dead_letter(self.producer.as_ref(), topic, source, &letter, PRODUCE_RETRY_PAUSE).await?;
        self.counts.metrics.dead_letters.inc();
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }
}
