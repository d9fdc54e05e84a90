//! Decorators of the engine and the broker for one instance: each call passes the instance's gate and is recorded by
//! the observer.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use utxo_store::{
    broker::{
        Broker, BrokerDecorator, BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, Consumer, ConsumerEvent,
        Delivery, Message, OutgoingMessage, PartitionReader, Producer, TopicIdentity, TopicPartition,
        memory::MemoryBroker,
    },
    engine::{self, Cursor, EngineError, Incarnation, Index, RecordEngine, Row, ScanPage, Set},
    record::{Key, Outcome, Record},
};

use super::{commits::CommitCheck, gate::Gate, trace::Observer};

/// Engine whose calls pass the gate before and after.
pub struct GatedEngine {
    pub gate: Arc<Gate>,
    pub inner: Arc<dyn RecordEngine>,
}

impl engine::EngineDecorator for GatedEngine {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        self.gate.pass().await;
        let answers = self.inner.apply(rows).await;
        self.gate.pass().await;
        answers
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        self.gate.pass().await;
        let answers = self.inner.read(keys).await;
        self.gate.pass().await;
        answers
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.gate.pass().await;
        self.inner.query(index, from, to, limit).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.gate.pass().await;
        self.inner.scan(set, cursor, limit).await
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        self.gate.pass().await;
        self.inner.incarnation().await
    }
}

/// Broker whose calls pass the gate; its consumers report commits to the checker.
#[derive(Clone)]
pub struct GatedBroker {
    pub name: u8,
    pub gate: Arc<Gate>,
    pub inner: MemoryBroker,
    pub observer: Arc<Observer>,
    pub commits: Arc<CommitCheck>,
}

impl GatedBroker {
    fn trace(&self, what: &str) {
        self.observer.trace(format!("{} {what}", self.name));
    }
}

impl BrokerDecorator for GatedBroker {
    fn inner(&self) -> &dyn Broker {
        &self.inner
    }

    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        self.gate.pass().await;
        let inner = self.inner.subscribe(group, topics).await?;
        // No await in between can suspend, so the newest member of the group is this consumer.
        if let Some(member) = self.inner.members(group).last() {
            self.gate.record_membership(group, *member);
        }
        self.trace(&format!("joins {group}"));
        Ok(Box::new(GatedConsumer { broker: self.clone(), group: group.to_owned(), inner }))
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
        self.gate.pass().await;
        let inner = self.inner.read(partition, offset).await?;
        Ok(Box::new(GatedReader { gate: self.gate.clone(), inner }))
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        self.gate.pass().await;
        Ok(Arc::new(GatedProducer { broker: self.clone(), inner: self.inner.producer().await? }))
    }

    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError> {
        self.gate.pass().await;
        self.inner.partitions(topic).await
    }

    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        self.gate.pass().await;
        self.inner.identify(topics).await
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        self.gate.pass().await;
        self.inner.watermarks(partition).await
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        self.gate.pass().await;
        self.inner.committed(group, partitions).await
    }
}

struct GatedConsumer {
    broker: GatedBroker,
    group: String,
    inner: Box<dyn Consumer>,
}

#[async_trait]
impl Consumer for GatedConsumer {
    async fn poll(&mut self) -> Result<ConsumerEvent, BrokerError> {
        // The gate is passed before the poll only: a received event must not be dropped after it.
        self.broker.gate.pass_poll().await;
        let polled = self.inner.poll().await?;
        self.broker.trace(&describe_event(&self.group, &polled));
        let kind = match &polled {
            ConsumerEvent::Assigned(_) => "assigned",
            ConsumerEvent::Revoked { lost: true, .. } => "lost",
            ConsumerEvent::Revoked { lost: false, .. } => "revoked",
            ConsumerEvent::Messages(_) | ConsumerEvent::End(_) => return Ok(polled),
        };
        self.broker.observer.count("assignments", kind);
        Ok(polled)
    }

    fn commit(&mut self, offsets: &[(TopicPartition, CommittedOffset)]) -> CommitFuture {
        let (broker, group, offsets) = (self.broker.clone(), self.group.clone(), offsets.to_vec());
        let committing = self.inner.commit(&offsets);
        Box::pin(async move {
            broker.gate.pass().await;
            let answer = committing.await;
            broker.trace(&format!("{group} commits {offsets:?}: {answer:?}"));
            match &answer {
                Ok(()) => {
                    broker.observer.count("commits", "done");
                    broker.commits.check(&offsets).await;
                }
                Err(error) if error.kind == BrokerErrorKind::NotAssigned => {
                    broker.observer.count("commits", "refused to a zombie");
                }
                Err(_) => broker.observer.count("commits", "failed"),
            }
            broker.gate.pass().await;
            answer
        })
    }

    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        self.broker.gate.pass().await;
        self.broker.trace(&format!("{} seeks {partition} {offset}", self.group));
        self.inner.seek(partition, offset).await
    }

    fn pause(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        self.inner.pause(partition)
    }

    fn resume(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        self.inner.resume(partition)
    }

    fn finish_revocation(&mut self) {
        self.inner.finish_revocation();
    }

    async fn close(&mut self) -> Result<(), BrokerError> {
        self.broker.gate.pass().await;
        self.inner.close().await
    }
}

fn describe_event(group: &str, polled: &ConsumerEvent) -> String {
    match polled {
        ConsumerEvent::Messages(batch) => {
            let ends = (batch.messages.first(), batch.messages.last());
            let ends = (ends.0.map(|message| message.offset), ends.1.map(|message| message.offset));
            format!("{group} reads {} {ends:?} under {}", batch.partition, batch.epoch)
        }
        other => format!("{group} receives {other:?}"),
    }
}

struct GatedProducer {
    broker: GatedBroker,
    inner: Arc<dyn Producer>,
}

#[async_trait]
impl Producer for GatedProducer {
    async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
        let mut delivered = self.produce_all(vec![message]).await?;
        Ok(delivered.remove(0))
    }

    async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
        self.broker.gate.pass().await;
        let what: Vec<String> = messages.iter().map(describe_message).collect();
        let answer = self.inner.produce_all(messages).await;
        self.broker.trace(&format!("produces {what:?}: {answer:?}"));
        self.broker.gate.pass().await;
        answer
    }
}

fn describe_message(message: &OutgoingMessage) -> String {
    let hash = blake3::hash(&message.payload).to_hex();
    format!("{} {} {}", message.topic, hex::encode(&message.key[..message.key.len().min(4)]), &hash[..8])
}

struct GatedReader {
    gate: Arc<Gate>,
    inner: Box<dyn PartitionReader>,
}

#[async_trait]
impl PartitionReader for GatedReader {
    async fn next(&mut self, wait: Duration) -> Result<Vec<Message>, BrokerError> {
        self.gate.pass().await;
        self.inner.next(wait).await
    }

    fn position(&self) -> u64 {
        self.inner.position()
    }

    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError> {
        self.gate.pass().await;
        self.inner.seek(offset).await
    }
}
