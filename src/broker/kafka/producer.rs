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
    time::sleep,
};

use super::{
    KafkaBroker,
    errors::{translate, translate_produce},
};
use crate::broker::{Broker, BrokerError, BrokerErrorKind, Delivered, Produce, Producer};

/// The pause while librdkafka's queue is full. It always ends: what is queued is delivered or times out.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(5);

pub(super) struct KafkaProducer {
    producer: FutureProducer,
    /// Puts every message into a batch of its own; made when it is first needed.
    alone: OnceCell<FutureProducer>,
    broker: KafkaBroker,
    /// Whoever holds it enqueues: so a message that waits for room is not overtaken.
    gate: Mutex<Known>,
}

/// What is known of topics.
#[derive(Default)]
struct Known {
    /// Those that exist, with their partition counts.
    partitions: BTreeMap<String, i32>,
    /// Those that take a message and refuse it in a batch with others: a topic's limit is on the batch.
    narrow: BTreeSet<String>,
}

impl KafkaProducer {
    pub(super) fn new(broker: KafkaBroker) -> Result<Self, BrokerError> {
        let settings = broker.settings();
        let producer =
            settings.producing().create().map_err(|error| translate("start producer", &settings.brokers, &error))?;
        Ok(KafkaProducer { producer, alone: OnceCell::new(), broker, gate: Mutex::default() })
    }

    async fn alone(&self) -> Result<&FutureProducer, BrokerError> {
        let settings = self.broker.settings();
        let make = || {
            let made = settings.producing().set("batch.num.messages", "1").create();
            made.map_err(|error| translate("start producer", &settings.brokers, &error))
        };
        self.alone.get_or_try_init(async || make()).await
    }

    /// Puts a message into librdkafka's queue, waiting for room.
    async fn enqueue(&self, known: &mut Known, message: &Produce) -> Result<DeliveryFuture, BrokerError> {
        self.check_place(&mut known.partitions, message).await?;
        let producer = if known.narrow.contains(&message.topic) { self.alone().await? } else { &self.producer };
        loop {
            match try_enqueue(producer, message) {
                Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) => sleep(QUEUE_FULL_PAUSE).await,
                result => return result.map_err(|error| translate_produce(&message.topic, &error)),
            }
        }
    }

    /// A cluster may create a topic that is produced to; a misspelt one shall be refused instead.
    async fn check_place(&self, known: &mut BTreeMap<String, i32>, message: &Produce) -> Result<(), BrokerError> {
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

    /// Sends again, one message a batch, what was refused as too large: librdkafka does not split a batch that is larger
    /// than its topic takes. Whatever of that topic came behind goes once more, too, so that the order is kept.
    async fn again_alone(
        &self,
        messages: &[Produce],
        settled: &mut [Result<Delivered, BrokerError>],
    ) -> Result<(), BrokerError> {
        let too_large = |result: &Result<_, BrokerError>| {
            result.as_ref().is_err_and(|error| error.kind == BrokerErrorKind::TooLarge)
        };
        let mut refused: BTreeSet<&str> = BTreeSet::new();
        for (message, result) in messages.iter().zip(settled) {
            if too_large(result) {
                refused.insert(&message.topic);
            }
            if !refused.contains(message.topic.as_str()) {
                continue;
            }
            // Nobody else waits for this delivery.
            let delivery = {
                let mut known = self.gate.lock().await;
                self.check_place(&mut known.partitions, message).await?;
                try_enqueue(self.alone().await?, message)
            };
            *result = match delivery {
                Ok(delivery) => settle(&message.topic, delivery).await,
                Err(error) => Err(translate_produce(&message.topic, &error)),
            };
            if result.is_ok() {
                self.gate.lock().await.narrow.insert(message.topic.clone());
            }
        }
        Ok(())
    }
}

fn try_enqueue(producer: &FutureProducer, message: &Produce) -> Result<DeliveryFuture, KafkaError> {
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

async fn settle(topic: &str, delivery: DeliveryFuture) -> Result<Delivered, BrokerError> {
    match delivery.await {
        Ok(Ok(delivery)) => Ok(Delivered { partition: delivery.partition, offset: delivery.offset.max(0) as u64 }),
        Ok(Err((error, _))) => Err(translate_produce(topic, &error)),
        Err(_) => Err(translate("produce", topic, &KafkaError::Canceled)),
    }
}

#[async_trait]
impl Producer for KafkaProducer {
    async fn produce(&self, message: Produce) -> Result<Delivered, BrokerError> {
        let delivery = {
            let mut known = self.gate.lock().await;
            self.enqueue(&mut known, &message).await?
        };
        let mut settled = [settle(&message.topic, delivery).await];
        self.again_alone(&[message], &mut settled).await?;
        let [settled] = settled;
        settled
    }

    async fn produce_all(&self, messages: Vec<Produce>) -> Result<Vec<Delivered>, BrokerError> {
        let mut deliveries = Vec::with_capacity(messages.len());
        {
            let mut known = self.gate.lock().await;
            for message in &messages {
                deliveries.push(self.enqueue(&mut known, message).await);
            }
        }
        let mut settled = Vec::with_capacity(messages.len());
        for (message, delivery) in messages.iter().zip(deliveries) {
            settled.push(match delivery {
                Ok(delivery) => settle(&message.topic, delivery).await,
                Err(error) => Err(error),
            });
        }
        self.again_alone(&messages, &mut settled).await?;
        first_for_good(settled)
    }
}

/// All deliveries; or the first failure that no retry heals, or else the first one. A broker that refuses one record
/// for good fails the others of its batch, too, as if a retry could help.
fn first_for_good(settled: Vec<Result<Delivered, BrokerError>>) -> Result<Vec<Delivered>, BrokerError> {
    let for_good =
        |result: &&Result<_, BrokerError>| result.as_ref().is_err_and(|error| error.kind != BrokerErrorKind::Retryable);
    match settled.iter().find(for_good) {
        Some(Err(error)) => Err(error.clone()),
        _ => settled.into_iter().collect(),
    }
}

/// A producer behind the trait.
pub(super) fn producer(broker: KafkaBroker) -> Result<Arc<dyn Producer>, BrokerError> {
    Ok(Arc::new(KafkaProducer::new(broker)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_batch_that_is_refused_the_failure_counts_that_no_retry_heals() {
        let failed = |kind| Err(BrokerError::new(kind, "produce", format!("{kind:?}")));
        let delivered = || Ok(Delivered { partition: 0, offset: 1 });
        let kind = |settled| first_for_good(settled).err().map(|error| error.kind);
        let (heals, stays) = (BrokerErrorKind::Retryable, BrokerErrorKind::Rejected);
        assert_eq!(kind(vec![delivered(), failed(heals), failed(stays), failed(heals)]), Some(stays));
        assert_eq!(kind(vec![delivered(), failed(heals)]), Some(heals));
        assert_eq!(kind(vec![delivered()]), None);
    }
}
