//! A log that rule calls by rules, and counts the readers that are opened.

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
        Broker, BrokerDecorator, BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, Consumer, ConsumerEvent,
        Outage, PartitionReader, TopicIdentity, TopicPartition,
    },
    instance::{self, InstanceParts},
    store::StateStore,
};

use crate::harness::{Running, World};

/// A kind of call to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogCall {
    Commit,
    Watermarks,
    Open,
    Next,
    Topic,
}

type RefusalRule = Box<dyn Fn(LogCall, &TopicPartition) -> Option<BrokerErrorKind> + Send>;

/// The rules of a log: which calls it refuses, and which partitions were opened.
#[derive(Clone)]
pub struct FailureRules(Arc<Mutex<(RefusalRule, Vec<TopicPartition>)>>, Arc<AtomicBool>);

impl FailureRules {
    pub fn refuse(&self, rule: impl Fn(LogCall, &TopicPartition) -> Option<BrokerErrorKind> + Send + 'static) {
        self.0.lock().unwrap().0 = Box::new(rule);
    }

    /// Leaves commits of validated transactions unanswered and without effect; `false` completes all that still wait.
    pub fn answer_no_commit(&self, silent: bool) {
        self.1.store(silent, Ordering::Relaxed);
    }

    fn is_silent(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }

    /// Returns how often a partition of this topic was opened.
    pub fn opened(&self, topic: &str) -> usize {
        self.0.lock().unwrap().1.iter().filter(|partition| partition.topic.as_ref() == topic).count()
    }

    fn check(&self, call: LogCall, partition: &TopicPartition) -> Result<(), BrokerError> {
        let mut rules = self.0.lock().unwrap();
        if call == LogCall::Open {
            rules.1.push(partition.clone());
        }
        let refused = |kind| Err(BrokerError::new(kind, "test", format!("{call:?} of {partition} is refused")));
        rules.0(call, partition).map_or(Ok(()), refused)
    }
}

/// The log of a world, with rules.
pub struct FailingBroker {
    inner: Arc<dyn Broker>,
    rules: FailureRules,
    /// Outages that the clients notice.
    pub outages: watch::Sender<Outage>,
}

impl FailingBroker {
    pub fn over(world: &World) -> (Arc<Self>, FailureRules) {
        let rules = FailureRules(Arc::new(Mutex::new((Box::new(|_, _| None), Vec::new()))), Arc::default());
        let outages = watch::Sender::default();
        (Arc::new(FailingBroker { inner: Arc::new(world.broker.clone()), rules: rules.clone(), outages }), rules)
    }
}

/// Starts an instance of the world on this log.
pub fn start_on(world: &World, broker: Arc<dyn Broker>) -> Running {
    let shutdown = CancellationToken::new();
    let store = StateStore::new(world.nodes.clone(), world.store.settings);
    let parts = InstanceParts { broker, ..world.parts(&store) };
    let (health, metrics) = (parts.health.clone(), parts.metrics.clone());
    let task = tokio::spawn(instance::run(world.settings.clone(), parts, shutdown.clone()));
    Running { shutdown, task, health, metrics }
}

impl BrokerDecorator for FailingBroker {
    fn inner(&self) -> &dyn Broker {
        &*self.inner
    }

    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        Ok(Box::new(FailingConsumer(self.inner.subscribe(group, topics).await?, self.rules.clone())))
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
        self.rules.check(LogCall::Open, partition)?;
        let reader = self.inner.read(partition, offset).await?;
        Ok(Box::new(FailingReader(reader, partition.clone(), self.rules.clone())))
    }

    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError> {
        self.rules.check(LogCall::Topic, &TopicPartition { topic: topic.into(), partition: -1 })?;
        self.inner.partitions(topic).await
    }

    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        // The call takes longer than decoding an event, as on a network.
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.inner.identify(topics).await
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        self.rules.check(LogCall::Watermarks, partition)?;
        self.inner.watermarks(partition).await
    }

    fn outages(&self) -> Option<watch::Receiver<Outage>> {
        Some(self.outages.subscribe())
    }
}

struct FailingReader(Box<dyn PartitionReader>, TopicPartition, FailureRules);

#[async_trait::async_trait]
impl PartitionReader for FailingReader {
    async fn next(&mut self, wait: Duration) -> Result<Vec<utxo_store::broker::Message>, BrokerError> {
        self.2.check(LogCall::Next, &self.1)?;
        self.0.next(wait).await
    }

    fn position(&self) -> u64 {
        self.0.position()
    }

    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError> {
        self.0.seek(offset).await
    }
}

struct FailingConsumer(Box<dyn Consumer>, FailureRules);

#[async_trait::async_trait]
impl Consumer for FailingConsumer {
    async fn poll(&mut self) -> Result<ConsumerEvent, BrokerError> {
        self.0.poll().await
    }

    fn commit(&mut self, offsets: &[(TopicPartition, CommittedOffset)]) -> CommitFuture {
        let (rules, offsets, committing) = (self.1.clone(), offsets.to_vec(), self.0.commit(offsets));
        Box::pin(async move {
            for (partition, _) in &offsets {
                rules.check(LogCall::Commit, partition)?;
            }
            while rules.is_silent() && offsets.iter().any(|(partition, _)| partition.topic.as_ref() == "txs") {
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
