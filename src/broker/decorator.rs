//! [`BrokerDecorator`]: a log in front of another log.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::{
    Broker, BrokerError, CommittedOffset, Consumer, NewTopic, Outage, PartitionReader, Producer, TopicIdentity,
    TopicPartition,
};

/// Log that changes some calls of another log. Every call that an implementation does not override is forwarded.
///
/// Callers use [`Broker`], which every decorator implements.
pub trait BrokerDecorator: Send + Sync + 'static {
    /// Returns the log that gets the forwarded calls.
    fn inner(&self) -> &dyn Broker;

    /// Forwards the call to [`Broker::subscribe`].
    fn subscribe(
        &self,
        group: &str,
        topics: &[String],
    ) -> impl Future<Output = Result<Box<dyn Consumer>, BrokerError>> + Send {
        async move { self.inner().subscribe(group, topics).await }
    }

    /// Forwards the call to [`Broker::read`].
    fn read(
        &self,
        partition: &TopicPartition,
        offset: u64,
    ) -> impl Future<Output = Result<Box<dyn PartitionReader>, BrokerError>> + Send {
        async move { self.inner().read(partition, offset).await }
    }

    /// Forwards the call to [`Broker::producer`].
    fn producer(&self) -> impl Future<Output = Result<Arc<dyn Producer>, BrokerError>> + Send {
        async move { self.inner().producer().await }
    }

    /// Forwards the call to [`Broker::partitions`].
    fn partitions(&self, topic: &str) -> impl Future<Output = Result<Option<i32>, BrokerError>> + Send {
        async move { self.inner().partitions(topic).await }
    }

    /// Forwards the call to [`Broker::identify`].
    fn identify(
        &self,
        topics: &[String],
    ) -> impl Future<Output = Result<Vec<Option<TopicIdentity>>, BrokerError>> + Send {
        async move { self.inner().identify(topics).await }
    }

    /// Forwards the call to [`Broker::watermarks`].
    fn watermarks(&self, partition: &TopicPartition) -> impl Future<Output = Result<(u64, u64), BrokerError>> + Send {
        async move { self.inner().watermarks(partition).await }
    }

    /// Forwards the call to [`Broker::committed`].
    fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> impl Future<Output = Result<Vec<Option<CommittedOffset>>, BrokerError>> + Send {
        async move { self.inner().committed(group, partitions).await }
    }

    /// Forwards the call to [`Broker::outages`].
    fn outages(&self) -> Option<watch::Receiver<Outage>> {
        self.inner().outages()
    }
}

#[async_trait]
impl<D: BrokerDecorator> Broker for D {
    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        BrokerDecorator::subscribe(self, group, topics).await
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
        BrokerDecorator::read(self, partition, offset).await
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        BrokerDecorator::producer(self).await
    }

    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError> {
        BrokerDecorator::partitions(self, topic).await
    }

    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        BrokerDecorator::identify(self, topics).await
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        BrokerDecorator::watermarks(self, partition).await
    }

    async fn offsets_at(&self, topic: &str, timestamp_ms: i64) -> Result<Vec<Option<u64>>, BrokerError> {
        self.inner().offsets_at(topic, timestamp_ms).await
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        BrokerDecorator::committed(self, group, partitions).await
    }

    async fn set_committed(
        &self,
        group: &str,
        offsets: &[(TopicPartition, CommittedOffset)],
    ) -> Result<(), BrokerError> {
        self.inner().set_committed(group, offsets).await
    }

    async fn member_count(&self, group: &str) -> Result<usize, BrokerError> {
        self.inner().member_count(group).await
    }

    async fn create_topics(&self, topics: &[NewTopic]) -> Result<(), BrokerError> {
        self.inner().create_topics(topics).await
    }

    fn outages(&self) -> Option<watch::Receiver<Outage>> {
        BrokerDecorator::outages(self)
    }
}
