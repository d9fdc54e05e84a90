//! Publishes events to the topics of their kinds.

use std::sync::Arc;

use bytes::Bytes;

use super::PRODUCE_RETRY_PAUSE;
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, OutgoingMessage, Producer, produce_until_acknowledged},
    config::Topics,
    event::{Destination, DestinationError, Event},
};

/// Producer of events. Topic, key and partition follow from the event: a transaction goes to the partition of its txid,
/// blocks, reorgs and commands go to the one partition of their topics.
pub struct EventPublisher {
    producer: Arc<dyn Producer>,
    topics: Topics,
}

/// Place of a published event in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedEvent {
    /// Name of the topic.
    pub topic: String,
    /// Number of the partition.
    pub partition: i32,
    /// Offset of the event in the partition.
    pub offset: u64,
}

/// Reasons why an event was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A producer cannot publish the event.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    /// The log has refused the event.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

impl EventPublisher {
    /// Opens a publisher on the log of `broker`, with the names of the [topics](crate::settings::Kafka::topics).
    ///
    /// # Errors
    /// The producer cannot be created.
    pub async fn open(broker: &dyn Broker, topics: Topics) -> Result<Self, BrokerError> {
        Ok(EventPublisher { producer: broker.producer().await?, topics })
    }

    /// Publishes an event and waits until all in-sync replicas have the event. While the brokers do not answer the call
    /// tries again; a retry may publish the event twice, which changes nothing, because events are idempotent.
    ///
    /// # Errors
    /// A producer cannot publish the event, or the log refuses the event: the topic does not exist, the event is too
    /// large, or access is refused.
    pub async fn publish(&self, event: &Event<'_>) -> Result<PublishedEvent, PublishError> {
        let message = outgoing_message(&self.topics, event.destination()?, event.encode());
        let topic = message.topic.clone();
        let delivered = produce_until_acknowledged(self.producer.as_ref(), &[message], PRODUCE_RETRY_PAUSE).await?;
        let unacknowledged = || BrokerError::new(BrokerErrorKind::Fatal, "produce", "the event has no offset");
        let delivery = delivered.into_iter().next().ok_or_else(unacknowledged)?;
        Ok(PublishedEvent { topic, partition: delivery.partition, offset: delivery.offset })
    }
}

/// Returns the message of an encoded event: partitioned by its key, or to the only partition of its topic.
pub(crate) fn outgoing_message(topics: &Topics, destination: Destination, payload: Vec<u8>) -> OutgoingMessage {
    let Destination { topic, key } = destination;
    OutgoingMessage {
        topic: topics.name(topic).to_owned(),
        partition: key.is_none().then_some(0),
        key: key.map_or(Bytes::new(), |txid| Bytes::copy_from_slice(&txid.0)),
        payload: payload.into(),
        ..OutgoingMessage::default()
    }
}
