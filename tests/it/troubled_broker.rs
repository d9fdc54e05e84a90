//! A log that refuses what it is told to, and counts what is opened.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Committed, Committing, Consumer, NewTopic, Outage, Polled, Producer,
        Reader, TopicIdentity, TopicPartition,
    },
    instance::{self, InstanceParts},
    store::Store,
};

use crate::world::{Running, World};

/// What is asked of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Commit,
    Watermarks,
    Open,
    Next,
    Topic,
}

type Refuses = Box<dyn Fn(Asked, &TopicPartition) -> Option<BrokerErrorKind> + Send>;

/// What it refuses, and what was opened.
#[derive(Clone)]
pub struct Rules(Arc<Mutex<(Refuses, Vec<TopicPartition>)>>, Arc<AtomicBool>);

impl Rules {
    pub fn refuse(&self, refuses: impl Fn(Asked, &TopicPartition) -> Option<BrokerErrorKind> + Send + 'static) {
        self.0.lock().unwrap().0 = Box::new(refuses);
    }

    /// From now on no commit of validated transactions is answered, nor comes through; or again they are, those that still wait, too.
    pub fn answer_no_commit(&self, silent: bool) {
        self.1.store(silent, Ordering::Relaxed);
    }

    fn silent(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }

    /// How often a partition of this topic was opened.
    pub fn opened(&self, topic: &str) -> usize {
        self.0.lock().unwrap().1.iter().filter(|partition| partition.topic.as_ref() == topic).count()
    }

    fn check(&self, asked: Asked, partition: &TopicPartition) -> Result<(), BrokerError> {
        let mut rules = self.0.lock().unwrap();
        if asked == Asked::Open {
            rules.1.push(partition.clone());
        }
        let refused = |kind| Err(BrokerError::new(kind, "test", format!("{asked:?} of {partition} is refused")));
        rules.0(asked, partition).map_or(Ok(()), refused)
    }
}

/// The log of a world, with rules.
pub struct TroubledBroker {
    inner: Arc<dyn Broker>,
    rules: Rules,
    /// What its clients notice.
    pub outages: watch::Sender<Outage>,
}

impl TroubledBroker {
    pub fn over(world: &World) -> (Arc<Self>, Rules) {
        let rules = Rules(Arc::new(Mutex::new((Box::new(|_, _| None), Vec::new()))), Arc::default());
        let outages = watch::Sender::default();
        (Arc::new(TroubledBroker { inner: Arc::new(world.broker.clone()), rules: rules.clone(), outages }), rules)
    }
}

/// Starts an instance of the world on this log.
pub fn start_on(world: &World, broker: Arc<dyn Broker>) -> Running {
    let shutdown = CancellationToken::new();
    let store = Store::new(world.nodes.clone(), world.store.settings);
    let parts = InstanceParts { broker, ..world.parts(&store) };
    let (health, metrics) = (parts.health.clone(), parts.metrics.clone());
    let task = tokio::spawn(instance::run(world.settings.clone(), parts, shutdown.clone()));
    Running { shutdown, task, health, metrics }
}

#[async_trait::async_trait]
impl Broker for TroubledBroker {
    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        Ok(Box::new(TroubledConsumer(self.inner.subscribe(group, topics).await?, self.rules.clone())))
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn Reader>, BrokerError> {
        self.rules.check(Asked::Open, partition)?;
        let reader = self.inner.read(partition, offset).await?;
        Ok(Box::new(TroubledReader(reader, partition.clone(), self.rules.clone())))
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        self.inner.producer().await
    }

    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError> {
        self.rules.check(Asked::Topic, &TopicPartition { topic: topic.into(), partition: -1 })?;
        self.inner.partitions(topic).await
    }

    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        // Longer than an event takes to be decoded, as on a network.
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.inner.identify(topics).await
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        self.rules.check(Asked::Watermarks, partition)?;
        self.inner.watermarks(partition).await
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<Committed>>, BrokerError> {
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

    fn outages(&self) -> Option<watch::Receiver<Outage>> {
        Some(self.outages.subscribe())
    }
}

struct TroubledReader(Box<dyn Reader>, TopicPartition, Rules);

#[async_trait::async_trait]
impl Reader for TroubledReader {
    async fn next(&mut self, wait: Duration) -> Result<Vec<utxo_store::broker::Message>, BrokerError> {
        self.2.check(Asked::Next, &self.1)?;
        self.0.next(wait).await
    }

    fn position(&self) -> u64 {
        self.0.position()
    }

    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError> {
        self.0.seek(offset).await
    }
}

struct TroubledConsumer(Box<dyn Consumer>, Rules);

#[async_trait::async_trait]
impl Consumer for TroubledConsumer {
    async fn poll(&mut self) -> Result<Polled, BrokerError> {
        self.0.poll().await
    }

    fn commit(&mut self, offsets: &[(TopicPartition, Committed)]) -> Committing {
        let (rules, offsets, committing) = (self.1.clone(), offsets.to_vec(), self.0.commit(offsets));
        Box::pin(async move {
            for (partition, _) in &offsets {
                rules.check(Asked::Commit, partition)?;
            }
            while rules.silent() && offsets.iter().any(|(partition, _)| partition.topic.as_ref() == "txs") {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            committing.await
        })
    }

    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        self.0.seek(partition, offset).await
    }

    fn pause(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        self.0.pause(partition)
    }

    fn resume(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        self.0.resume(partition)
    }

    fn finish_revocation(&mut self) {
        self.0.finish_revocation();
    }

    async fn close(&mut self) -> Result<(), BrokerError> {
        self.0.close().await
    }
}
