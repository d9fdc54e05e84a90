//! Producing with acknowledgement: idempotent, in order, bounded.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{DeliveryFuture, FutureProducer, FutureRecord},
};
use tokio::{
    sync::{Mutex, OnceCell},
    time::{Instant, sleep, timeout_at},
};

use super::{
    KafkaBroker,
    errors::{translate, translate_produce},
};
use crate::broker::{Broker, BrokerError, BrokerErrorKind, Delivery, OutgoingMessage, Producer};

/// Pause while librdkafka's queue is full. The wait ends: every queued message is delivered or times out.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(5);

pub(super) struct KafkaProducer {
    producer: FutureProducer,
    /// Producer that puts every message into a batch of its own. Created at the first use.
    unbatched: OnceCell<FutureProducer>,
    broker: KafkaBroker,
    /// Serializes the enqueuing: no message overtakes a message that waits for room in the queue.
    gate: Mutex<KnownTopics>,
}

/// Facts about topics that earlier messages have revealed.
#[derive(Default)]
struct KnownTopics {
    /// Existing topics with their numbers of partitions.
    partitions: BTreeMap<String, i32>,
    /// Topics that accepted a message alone and refused it in a batch: a topic's size limit applies to the batch.
    unbatched: BTreeSet<String>,
}

impl KafkaProducer {
    pub(super) fn new(broker: KafkaBroker) -> Result<Self, BrokerError> {
        let settings = broker.settings();
        let producer = settings
            .producer_config()
            .create()
            .map_err(|error| translate("start producer", &settings.brokers, &error))?;
        Ok(KafkaProducer { producer, unbatched: OnceCell::new(), broker, gate: Mutex::default() })
    }

    async fn unbatched(&self) -> Result<&FutureProducer, BrokerError> {
        let settings = self.broker.settings();
        let make = || {
            let made = settings.producer_config().set("batch.num.messages", "1").create();
            made.map_err(|error| translate("start producer", &settings.brokers, &error))
        };
        self.unbatched.get_or_try_init(async || make()).await
    }

    /// Puts a message into librdkafka's queue and waits for room.
    async fn enqueue(&self, known: &mut KnownTopics, message: &OutgoingMessage) -> Result<DeliveryFuture, BrokerError> {
        self.check_partition(&mut known.partitions, message).await?;
        let producer = if known.unbatched.contains(&message.topic) { self.unbatched().await? } else { &self.producer };
        loop {
            match try_enqueue(producer, message) {
                Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) => sleep(QUEUE_FULL_PAUSE).await,
                result => return result.map_err(|error| translate_produce(&message.topic, &error)),
            }
        }
    }

    /// Refuses a topic or partition that does not exist: a cluster could create a misspelt topic.
    async fn check_partition(
        &self,
        known: &mut BTreeMap<String, i32>,
        message: &OutgoingMessage,
    ) -> Result<(), BrokerError> {
        let partitions = match known.get(&message.topic) {
            Some(partitions) => *partitions,
            None => {
                let partitions = self.broker.partitions(&message.topic).await?;
                let partitions = partitions.ok_or_else(|| BrokerError::unknown_topic("produce", &message.topic))?;
                known.insert(message.topic.clone(), partitions);
                partitions
            }
        };
        match message.partition {
            Some(partition) if !(0..partitions).contains(&partition) => {
                let message = format!("partition {}/{partition} does not exist", message.topic);
                Err(BrokerError::new(BrokerErrorKind::Refused, "produce", message))
            }
            _ => Ok(()),
        }
    }

    /// Sends messages that were refused as too large once more, each in a batch of its own: librdkafka does not split a
    /// batch that exceeds the topic's limit. Later messages of the topic are sent once more, too, to keep the order.
    async fn resend_unbatched(
        &self,
        messages: &[OutgoingMessage],
        results: &mut [Result<Delivery, BrokerError>],
    ) -> Result<(), BrokerError> {
        let too_large = |result: &Result<_, BrokerError>| {
            result.as_ref().is_err_and(|error| error.kind == BrokerErrorKind::TooLarge)
        };
        let mut refused: BTreeSet<&str> = BTreeSet::new();
        for (message, result) in messages.iter().zip(results) {
            if too_large(result) {
                refused.insert(&message.topic);
            }
            if !refused.contains(message.topic.as_str()) {
                continue;
            }
            // The lock is released before the delivery is awaited.
            let delivery = {
                let mut known = self.gate.lock().await;
                self.check_partition(&mut known.partitions, message).await?;
                try_enqueue(self.unbatched().await?, message)
            };
            *result = match delivery {
                Ok(delivery) => await_delivery(&message.topic, delivery).await,
                Err(error) => Err(translate_produce(&message.topic, &error)),
            };
            if result.is_ok() {
                self.gate.lock().await.unbatched.insert(message.topic.clone());
            }
        }
        Ok(())
    }
}

fn try_enqueue(producer: &FutureProducer, message: &OutgoingMessage) -> Result<DeliveryFuture, KafkaError> {
    let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(&message.topic).payload(&message.payload[..]);
    record.partition = message.partition;
    record.timestamp = message.timestamp_ms;
    if !message.key.is_empty() {
        record = record.key(&message.key[..]);
    }
    if !message.headers.is_empty() {
        let mut headers = OwnedHeaders::new_with_capacity(message.headers.len());
        for (key, value) in &message.headers {
            headers = headers.insert(Header { key, value: Some(&value[..]) });
        }
        record = record.headers(headers);
    }
    producer.send_result(record).map_err(|(error, _)| error)
}

async fn await_delivery(topic: &str, delivery: DeliveryFuture) -> Result<Delivery, BrokerError> {
    match delivery.await {
        Ok(Ok(delivery)) => Ok(Delivery { partition: delivery.partition, offset: delivery.offset.max(0) as u64 }),
        Ok(Err((error, _))) => Err(translate_produce(topic, &error)),
        Err(_) => Err(translate("produce", topic, &KafkaError::Canceled)),
    }
}

#[async_trait]
impl Producer for KafkaProducer {
    async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
        let delivery = {
            let mut known = self.gate.lock().await;
            self.enqueue(&mut known, &message).await?
        };
        let mut results = [await_delivery(&message.topic, delivery).await];
        self.resend_unbatched(&[message], &mut results).await?;
        let [results] = results;
        results
    }

    async fn produce_each(
        &self,
        messages: &[OutgoingMessage],
        deadline: Instant,
    ) -> Vec<Result<Delivery, BrokerError>> {
        let mut deliveries = Vec::with_capacity(messages.len());
        {
            let Ok(mut known) = timeout_at(deadline, self.gate.lock()).await else {
                return messages.iter().map(|message| Err(BrokerError::unacknowledged(&message.topic))).collect();
            };
            for message in messages {
                let enqueued = timeout_at(deadline, self.enqueue(&mut known, message)).await;
                deliveries.push(enqueued.unwrap_or_else(|_| Err(BrokerError::unacknowledged(&message.topic))));
            }
        }
        let mut results = Vec::with_capacity(messages.len());
        for (message, delivery) in messages.iter().zip(deliveries) {
            results.push(match delivery {
                Ok(delivery) => timeout_at(deadline, await_delivery(&message.topic, delivery))
                    .await
                    .unwrap_or_else(|_| Err(BrokerError::unacknowledged(&message.topic))),
                Err(error) => Err(error),
            });
        }
        // A batch that was too large leaves each of its messages with its own error, where there is no time to resend.
        if let Ok(Err(error)) = timeout_at(deadline, self.resend_unbatched(messages, &mut results)).await {
            let unsent = results.iter_mut().filter(|result| result.is_err());
            unsent.for_each(|result| *result = Err(error.clone()));
        }
        results
    }

    async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
        let mut deliveries = Vec::with_capacity(messages.len());
        {
            let mut known = self.gate.lock().await;
            for message in &messages {
                deliveries.push(self.enqueue(&mut known, message).await);
            }
        }
        let mut results = Vec::with_capacity(messages.len());
        for (message, delivery) in messages.iter().zip(deliveries) {
            results.push(match delivery {
                Ok(delivery) => await_delivery(&message.topic, delivery).await,
                Err(error) => Err(error),
            });
        }
        self.resend_unbatched(&messages, &mut results).await?;
        collect_deliveries(results)
    }
}

/// Returns all deliveries, or the first failure that no retry heals, or else the first failure. A broker that refuses
/// one message for good fails the rest of the batch with retryable errors.
fn collect_deliveries(results: Vec<Result<Delivery, BrokerError>>) -> Result<Vec<Delivery>, BrokerError> {
    let is_final =
        |result: &&Result<_, BrokerError>| result.as_ref().is_err_and(|error| error.kind != BrokerErrorKind::Retryable);
    match results.iter().find(is_final) {
        Some(Err(error)) => Err(error.clone()),
        _ => results.into_iter().collect(),
    }
}

/// Creates a producer behind the trait.
pub(super) fn producer(broker: KafkaBroker) -> Result<Arc<dyn Producer>, BrokerError> {
    Ok(Arc::new(KafkaProducer::new(broker)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_batch_reports_the_failure_that_no_retry_heals() {
        let failed = |kind| Err(BrokerError::new(kind, "produce", format!("{kind:?}")));
        let delivered = || Ok(Delivery { partition: 0, offset: 1 });
        let kind = |results| collect_deliveries(results).err().map(|error| error.kind);
        let (retryable, rejected) = (BrokerErrorKind::Retryable, BrokerErrorKind::Rejected);
        assert_eq!(kind(vec![delivered(), failed(retryable), failed(rejected), failed(retryable)]), Some(rejected));
        assert_eq!(kind(vec![delivered(), failed(retryable)]), Some(retryable));
        assert_eq!(kind(vec![delivered()]), None);
    }
}
