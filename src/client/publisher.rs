//! Publishes events to the topics of their kinds.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::Instant;

use super::{
    PRODUCE_RETRY_PAUSE,
    publishing::{ResendOrder, produce_until},
};
use crate::{
    backoff::Backoff,
    blob::{BlobError, BlobErrorKind, EventBodies},
    broker::{Broker, BrokerError, BrokerErrorKind, OutgoingMessage, Producer, produce_until_acknowledged},
    config::Topics,
    event::{Destination, DestinationError, Event, PartialTxReference, ValidatedReference},
};

/// Bodies that one call stores as objects at the same time.
const BODIES_AT_A_TIME: usize = 4;

/// Producer of events. Topic, key and partition follow from the event: a transaction goes to the partition of its txid,
/// blocks, reorgs and commands go to the one partition of their topics.
///
/// With an object store of bodies ([`with_bodies`](Self::with_bodies)) the body of a transaction that is too large for
/// a message becomes an object, and the published event refers to the object.
pub struct EventPublisher {
    producer: Arc<dyn Producer>,
    topics: Topics,
    bodies: Option<EventBodies>,
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
    /// The object store has refused the body of the event.
    #[error("cannot store the body of the event as an object: {0}")]
    Body(#[from] BlobError),
}

impl PublishError {
    /// True where the producer can do nothing any more: open another publisher.
    pub fn is_client_unusable(&self) -> bool {
        matches!(self, PublishError::Broker(error) if error.kind.is_client_unusable())
    }
}

impl EventPublisher {
    /// Opens a publisher on the log of `broker`, with the names of the [topics](crate::settings::Kafka::topics).
    ///
    /// # Errors
    /// The producer cannot be created.
    pub async fn open(broker: &dyn Broker, topics: Topics) -> Result<Self, BrokerError> {
        Ok(EventPublisher { producer: broker.producer().await?, topics, bodies: None })
    }

    /// Stores the bodies of large transactions in this object store
    /// ([`open_event_bodies`](crate::open_event_bodies)).
    #[must_use]
    pub fn with_bodies(self, bodies: EventBodies) -> Self {
        EventPublisher { bodies: Some(bodies), ..self }
    }

    /// Publishes an event and waits until all in-sync replicas have the event. The body of a large transaction is
    /// stored first. While the brokers or the object store do not answer the call tries again; a retry may publish the
    /// event twice, which changes nothing, because events are idempotent.
    ///
    /// # Errors
    /// A producer cannot publish the event, or the log refuses the event: the topic does not exist, the event is too
    /// large, or access is refused. The object store refuses the body.
    pub async fn publish(&self, event: &Event<'_>) -> Result<PublishedEvent, PublishError> {
        let destination = event.destination()?;
        let payload = refer_if_large(self.bodies.as_ref(), &destination, event.encode().into()).await?;
        let message = outgoing_message(&self.topics, destination, payload);
        let topic = message.topic.clone();
        let delivered = produce_until_acknowledged(self.producer.as_ref(), &[message], PRODUCE_RETRY_PAUSE).await?;
        let unacknowledged = || BrokerError::new(BrokerErrorKind::Fatal, "produce", "the event has no offset");
        let delivery = delivered.into_iter().next().ok_or_else(unacknowledged)?;
        Ok(PublishedEvent { topic, partition: delivery.partition, offset: delivery.offset })
    }

    /// Publishes events together and waits for their acknowledgements, at most `limit`. `result[i]` belongs to
    /// `events[i]`: an acknowledged event is in the log for good, and an event with an error may be in the log. An
    /// event that is published again changes nothing. While the brokers or the object store do not answer, the call
    /// tries again within the limit; events that were sent again can be behind events that followed them.
    pub async fn publish_all(
        &self,
        events: &[Event<'_>],
        limit: Duration,
    ) -> Vec<Result<PublishedEvent, PublishError>> {
        let deadline = Instant::now() + limit;
        let encode = |event: &Event<'_>| Ok((event.destination()?, Bytes::from(event.encode())));
        let encoded: Vec<Result<(Destination, Bytes), PublishError>> = events.iter().map(encode).collect();
        let prepared = encoded.into_iter().map(|encoded| self.prepare(encoded, deadline).boxed());
        let prepared: Vec<Result<OutgoingMessage, PublishError>> =
            stream::iter(prepared).buffered(BODIES_AT_A_TIME).collect().await;
        let messages: Vec<OutgoingMessage> = prepared.iter().flatten().cloned().collect();
        let delivered = produce_until(self.producer.as_ref(), &messages, ResendOrder::Any, deadline).await;
        let mut delivered = delivered.into_iter();
        let mut place = |message: OutgoingMessage| {
            let delivery = delivered.next().unwrap_or_else(|| unreachable!("one result for one message"))?;
            Ok(PublishedEvent { topic: message.topic, partition: delivery.partition, offset: delivery.offset })
        };
        prepared.into_iter().map(|message| message.and_then(&mut place)).collect()
    }

    /// Returns the message of an encoded event, with a large body stored as an object until the deadline.
    async fn prepare(
        &self,
        encoded: Result<(Destination, Bytes), PublishError>,
        deadline: Instant,
    ) -> Result<OutgoingMessage, PublishError> {
        let (destination, payload) = encoded?;
        let stored = refer_if_large(self.bodies.as_ref(), &destination, payload);
        let payload = tokio::time::timeout_at(deadline, stored).await.map_err(|_| {
            let why = "the object store does not answer in time";
            BrokerError::new(BrokerErrorKind::Retryable, "store the body of the event", why)
        })??;
        Ok(outgoing_message(&self.topics, destination, payload))
    }

    /// Returns the producer of the events.
    pub(crate) fn producer(&self) -> Arc<dyn Producer> {
        self.producer.clone()
    }
}

/// Returns the message of an encoded event: partitioned by its key, or to the only partition of its topic.
pub(crate) fn outgoing_message(topics: &Topics, destination: Destination, payload: Bytes) -> OutgoingMessage {
    let Destination { topic, key } = destination;
    OutgoingMessage {
        topic: topics.name(topic).to_owned(),
        partition: key.is_none().then_some(0),
        key: key.map_or(Bytes::new(), |txid| Bytes::copy_from_slice(&txid.0)),
        payload,
        ..OutgoingMessage::default()
    }
}

/// Returns the message of an encoded event: the same message, or, where the event is too large for a message, an event
/// that refers to its body. The body is an object then. While the object store does not answer the call tries again.
///
/// # Errors
/// The object store refuses the body.
pub(crate) async fn refer_if_large(
    bodies: Option<&EventBodies>,
    destination: &Destination,
    payload: Bytes,
) -> Result<Bytes, BlobError> {
    let large = bodies.filter(|bodies| payload.len() > bodies.limits().inline_event_bytes).zip(destination.key);
    let Some((bodies, txid)) = large else { return Ok(payload) };
    let store = async |body: Bytes| {
        let is_retryable = |error: &BlobError| matches!(error.kind, BlobErrorKind::Retryable | BlobErrorKind::Unknown);
        Backoff::from_key(PRODUCE_RETRY_PAUSE, &txid.0).retry(is_retryable, || bodies.put(body.clone())).await
    };
    let referring = match Event::decode(&payload) {
        Ok(Event::Validated(validated)) => {
            let tx = store(payload.slice_ref(validated.tx)).await?;
            ValidatedReference { txid, tx, height: validated.height, locked: validated.locked }.encode()
        }
        Ok(Event::Seeded(seeded)) => {
            let outputs = store(seeded.encode_outputs().into()).await?;
            PartialTxReference { txid, coinbase: seeded.coinbase, height: seeded.height, outputs }.encode()
        }
        _ => return Ok(payload),
    };
    Ok(referring.into())
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::{
        blob::{
            BlobOptions, EventBodyLimits,
            fault::{BlobFault, FaultStore},
        },
        event::{PartialOutput, PartialTxEvent, Validated},
        tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid},
    };

    #[tokio::test(start_paused = true)]
    async fn only_a_large_transaction_becomes_an_object() {
        let faults = FaultStore::new(Arc::new(InMemory::new()), 1);
        let limits = EventBodyLimits { inline_event_bytes: 200, ..EventBodyLimits::default() };
        let bodies = EventBodies::new(Arc::new(faults.clone()), &BlobOptions::default(), limits);
        let spent = Output { satoshis: 9_000, script: &[0x51] };
        let input = Outpoint { txid: Txid([7; 32]), vout: 0 };
        let whole = |script: &[u8]| {
            TransactionBuilder::default().input(input, &[], 0, Some(spent)).output(1, script).extended()
        };
        let publish = async |event: &Event<'_>, bodies: Option<&EventBodies>| {
            let destination = event.destination().unwrap();
            refer_if_large(bodies, &destination, event.encode().into()).await
        };

        let (small, large) = (whole(&[0x51; 9]), whole(&[0x51; 300]));
        let event = Event::Validated(Validated { tx: &small, height: 7, locked: true });
        assert_eq!(publish(&event, Some(&bodies)).await.unwrap(), event.encode());
        let event = Event::Validated(Validated { tx: &large, height: 7, locked: true });
        assert_eq!(publish(&event, None).await.unwrap(), event.encode(), "the topic refuses the event");
        // The object store does not answer at first.
        faults.fail_at(1, BlobFault::LostRequest);
        faults.fail_at(3, BlobFault::LostReply);
        let message = publish(&event, Some(&bodies)).await.unwrap();
        let Ok(Event::ValidatedReference(reference)) = Event::decode(&message) else { panic!("it is large") };
        assert_eq!(reference.txid, Transaction::parse(&large).unwrap().txid());
        let body = bodies.read(&reference.tx).await.unwrap();
        assert_eq!(Event::Validated(reference.with_body(&body)), event);
        assert_eq!(publish(&event, Some(&bodies)).await.unwrap(), message, "a repeat is the same event");

        let output = PartialOutput { vout: 3, satoshis: 5, script: &[0x52; 300] };
        let seeded = PartialTxEvent { txid: Txid([9; 32]), coinbase: true, height: 5, outputs: vec![output] };
        let message = publish(&Event::Seeded(seeded.clone()), Some(&bodies)).await.unwrap();
        let Ok(Event::SeededReference(reference)) = Event::decode(&message) else { panic!("it is large") };
        let body = bodies.read(&reference.outputs).await.unwrap();
        assert_eq!(reference.with_body(&body), Ok(seeded));

        let limits = EventBodyLimits { inline_event_bytes: 200, max_body_bytes: 300 };
        let narrow = EventBodies::new(Arc::new(faults.clone()), &BlobOptions::default(), limits);
        let refused = publish(&event, Some(&narrow)).await.unwrap_err();
        assert_eq!(refused.kind, BlobErrorKind::Invalid, "instances read less: {refused}");

        faults.fail_all(Some(BlobFault::Denied));
        let refused = publish(&event, Some(&bodies)).await.unwrap_err();
        assert_eq!(refused.kind, BlobErrorKind::Denied, "{refused}");
    }
}
