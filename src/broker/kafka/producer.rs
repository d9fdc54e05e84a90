//! Producing with acknowledgement: idempotent, in order, bounded.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{DeliveryFuture, FutureProducer, FutureRecord},
};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::sleep,
};

use super::{KafkaBroker, errors::translate};
use crate::broker::{Broker, BrokerError, BrokerErrorKind, Delivered, Produce, Producer};

/// The pause while librdkafka's queue is full. It always ends: what is queued is delivered or times out.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(5);

pub(super) struct KafkaProducer {
    producer: FutureProducer,
    broker: KafkaBroker,
    /// Topics that are known to exist, with their partition counts. Whoever holds it enqueues: so a message that
    /// waits for room is not overtaken.
    gate: Mutex<BTreeMap<String, i32>>,
}

impl KafkaProducer {
    pub(super) fn new(broker: KafkaBroker) -> Result<Self, BrokerError> {
        let settings = broker.settings();
        let producer =
            settings.producing().create().map_err(|error| translate("start producer", &settings.brokers, &error))?;
        Ok(KafkaProducer { producer, broker, gate: Mutex::new(BTreeMap::new()) })
    }

    /// Puts a message into librdkafka's queue, waiting for room.
    async fn enqueue(
        &self,
        known: &mut MutexGuard<'_, BTreeMap<String, i32>>,
        message: &Produce,
    ) -> Result<DeliveryFuture, BrokerError> {
        self.check_place(known, message).await?;
        loop {
            match self.try_enqueue(message) {
                Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) => sleep(QUEUE_FULL_PAUSE).await,
                result => return result.map_err(|error| translate("produce", &message.topic, &error)),
            }
        }
    }

    /// A cluster may create a topic that is produced to; a misspelt one shall be refused instead.
    async fn check_place(
        &self,
        known: &mut MutexGuard<'_, BTreeMap<String, i32>>,
        message: &Produce,
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

    fn try_enqueue(&self, message: &Produce) -> Result<DeliveryFuture, KafkaError> {
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
        self.producer.send_result(record).map_err(|(error, _)| error)
    }
}

async fn settle(topic: &str, delivery: DeliveryFuture) -> Result<Delivered, BrokerError> {
    match delivery.await {
        Ok(Ok(delivery)) => Ok(Delivered { partition: delivery.partition, offset: delivery.offset.max(0) as u64 }),
        Ok(Err((error, _))) => Err(translate("produce", topic, &error)),
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
        settle(&message.topic, delivery).await
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
        settled.into_iter().collect()
    }
}

/// A producer behind the trait.
pub(super) fn producer(broker: KafkaBroker) -> Result<Arc<dyn Producer>, BrokerError> {
    Ok(Arc::new(KafkaProducer::new(broker)?))
}
