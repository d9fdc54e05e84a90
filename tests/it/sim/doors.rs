//! The log and the store as one instance sees them: through its gate, under the eyes of the observer.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use utxo_store::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Committed, Committing, Consumer, Delivered, Message, NewTopic, Polled,
        Produce, Producer, Reader, TopicIdentity, TopicPartition, memory::MemoryBroker,
    },
    engine::{Cursor, EngineError, Incarnation, Index, RecordEngine, Row, ScanPage, Set},
    record::{Key, Outcome, Record},
};

use super::{commits::CommitCheck, gate::Gate, trace::Observer};

/// The store behind the gate.
pub struct EngineDoor {
    pub gate: Arc<Gate>,
    pub inner: Arc<dyn RecordEngine>,
}

#[async_trait]
impl RecordEngine for EngineDoor {
    fn name(&self) -> &'static str {
        self.inner.name()
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

    fn may_forget(&self) -> Duration {
        self.inner.may_forget()
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        self.gate.pass().await;
        self.inner.incarnation().await
    }

    async fn close(&self) -> Result<(), EngineError> {
        self.inner.close().await
    }
}

/// The log behind the gate.
#[derive(Clone)]
pub struct LogDoor {
    pub name: u8,
    pub gate: Arc<Gate>,
    pub inner: MemoryBroker,
    pub observer: Arc<Observer>,
    pub commits: Arc<CommitCheck>,
}

impl LogDoor {
    fn saw(&self, what: &str) {
        self.observer.trace(format!("{} {what}", self.name));
    }
}

#[async_trait]
impl Broker for LogDoor {
    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        self.gate.pass().await;
        let inner = self.inner.subscribe(group, topics).await?;
        // Nothing was awaited in between that waits: the newest member is this one.
        if let Some(member) = self.inner.members(group).last() {
            self.gate.joined(group, *member);
        }
        self.saw(&format!("joins {group}"));
        Ok(Box::new(ConsumerDoor { door: self.clone(), group: group.to_owned(), inner }))
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn Reader>, BrokerError> {
        self.gate.pass().await;
        let inner = self.inner.read(partition, offset).await?;
        Ok(Box::new(ReaderDoor { gate: self.gate.clone(), inner }))
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        self.gate.pass().await;
        Ok(Arc::new(ProducerDoor { door: self.clone(), inner: self.inner.producer().await? }))
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
    ) -> Result<Vec<Option<Committed>>, BrokerError> {
        self.gate.pass().await;
        self.inner.committed(group, partitions).await
    }

    async fn offsets_at(&self, topic: &str, timestamp_ms: i64) -> Result<Vec<Option<u64>>, BrokerError> {
        self.inner.offsets_at(topic, timestamp_ms).await
    }

    async fn set_committed(&self, group: &str, offsets: &[(TopicPartition, Committed)]) -> Result<(), BrokerError> {
        self.inner.set_committed(group, offsets).await
    }

    async fn member_count(&self, group: &str) -> Result<usize, BrokerError> {
        self.inner.member_count(group).await
    }

    async fn create_topics(&self, topics: &[NewTopic]) -> Result<(), BrokerError> {
        self.inner.create_topics(topics).await
    }
}

struct ConsumerDoor {
    door: LogDoor,
    group: String,
    inner: Box<dyn Consumer>,
}

#[async_trait]
impl Consumer for ConsumerDoor {
    async fn poll(&mut self) -> Result<Polled, BrokerError> {
        // Only before: what was heard must not be dropped behind it.
        self.door.gate.hear().await;
        let polled = self.inner.poll().await?;
        self.door.saw(&heard(&self.group, &polled));
        let kind = match &polled {
            Polled::Assigned(_) => "assigned",
            Polled::Revoked { lost: true, .. } => "lost",
            Polled::Revoked { lost: false, .. } => "revoked",
            Polled::Messages(_) | Polled::End(_) => return Ok(polled),
        };
        self.door.observer.count("assignments", kind);
        Ok(polled)
    }

    fn commit(&mut self, offsets: &[(TopicPartition, Committed)]) -> Committing {
        let (door, group, offsets) = (self.door.clone(), self.group.clone(), offsets.to_vec());
        let committing = self.inner.commit(&offsets);
        Box::pin(async move {
            door.gate.pass().await;
            let answer = committing.await;
            door.saw(&format!("{group} commits {offsets:?}: {answer:?}"));
            match &answer {
                Ok(()) => {
                    door.observer.count("commits", "done");
                    door.commits.check(&offsets).await;
                }
                Err(error) if error.kind == BrokerErrorKind::NotAssigned => {
                    door.observer.count("commits", "refused to a zombie");
                }
                Err(_) => door.observer.count("commits", "failed"),
            }
            door.gate.pass().await;
            answer
        })
    }

    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        self.door.gate.pass().await;
        self.door.saw(&format!("{} seeks {partition} {offset}", self.group));
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
        self.door.gate.pass().await;
        self.inner.close().await
    }
}

fn heard(group: &str, polled: &Polled) -> String {
    match polled {
        Polled::Messages(batch) => {
            let ends = (batch.messages.first(), batch.messages.last());
            let ends = (ends.0.map(|message| message.offset), ends.1.map(|message| message.offset));
            format!("{group} reads {} {ends:?} under {}", batch.partition, batch.epoch)
        }
        other => format!("{group} hears {other:?}"),
    }
}

struct ProducerDoor {
    door: LogDoor,
    inner: Arc<dyn Producer>,
}

#[async_trait]
impl Producer for ProducerDoor {
    async fn produce(&self, message: Produce) -> Result<Delivered, BrokerError> {
        let mut delivered = self.produce_all(vec![message]).await?;
        Ok(delivered.remove(0))
    }

    async fn produce_all(&self, messages: Vec<Produce>) -> Result<Vec<Delivered>, BrokerError> {
        self.door.gate.pass().await;
        let what: Vec<String> = messages.iter().map(described).collect();
        let answer = self.inner.produce_all(messages).await;
        self.door.saw(&format!("produces {what:?}: {answer:?}"));
        self.door.gate.pass().await;
        answer
    }
}

fn described(message: &Produce) -> String {
    let hash = blake3::hash(&message.payload).to_hex();
    format!("{} {} {}", message.topic, hex::encode(&message.key[..message.key.len().min(4)]), &hash[..8])
}

struct ReaderDoor {
    gate: Arc<Gate>,
    inner: Box<dyn Reader>,
}

#[async_trait]
impl Reader for ReaderDoor {
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
