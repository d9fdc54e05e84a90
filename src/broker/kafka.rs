//! The log on Apache Kafka: the only module that names rdkafka.
//!
//! A consumer has two sides, joined by an `inbox`: a thread (`worker`) that owns librdkafka's consumer, and an
//! async side (`consumer`). Calls that may block never run on the runtime's threads.

mod admin;
mod arena;
mod connection_errors;
mod consumer;
mod errors;
mod identities;
mod inbox;
mod lookup;
mod mock;
mod producer;
mod refused;
mod request_clients;
mod rights;
mod security;
mod settings;
mod topics;
mod worker;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rdkafka::{Offset, consumer::Consumer as _};
use tokio::sync::watch;

use self::{
    consumer::{KafkaConsumer, KafkaReader, KafkaSetReader, run_blocking},
    errors::translate,
    identities::TopicIdBroker,
    lookup::{commit_for_group, commit_list, count_members, fetch_committed, fetch_offsets_at, fetch_watermarks},
    request_clients::{RequestClients, serve_log},
    rights::{fetch_group_rights, fetch_topic_rights},
    worker::{ConsumerSignals, ConsumerSource, Handle, start},
};
pub use self::{
    mock::MockCluster,
    refused::{PropertyRefusal, refusal},
    rights::{Right, Rights},
    security::{HAS_TLS, KafkaSecurity, SaslMechanism, SecurityProtocol},
    settings::{AssignmentStrategy, GroupProtocol, KafkaSettings},
    topics::DescribedTopic,
};
#[cfg(test)]
pub use refused::REFUSED_PROPERTIES;

use super::{
    Broker, BrokerError, BrokerErrorKind, CommittedOffset, Consumer, NewTopic, Outage, PartitionReader,
    PartitionSetReader, Producer, TopicIdentity, TopicPartition,
};
use crate::liveness::LivenessMonitor;

/// Pause between requests to a group coordinator that is not available yet.
const COORDINATOR_PAUSE: Duration = Duration::from_millis(100);

/// Number of the next reader. Readers never commit, but librdkafka requires a group id, which must differ from every
/// group in use.
static NEXT_READER_ID: AtomicU64 = AtomicU64::new(0);

/// A cluster as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedCluster {
    /// Id of the cluster; `None`: the cluster has no id.
    pub id: Option<String>,
    /// Addresses of the brokers, `host:port`.
    pub brokers: Vec<String>,
}

/// A Kafka cluster. Clones share the clients for requests.
#[derive(Clone)]
pub struct KafkaBroker {
    clients: RequestClients,
    signals: ConsumerSignals,
    /// Broker that serves the requests for topic ids.
    identities: Arc<TopicIdBroker>,
}

impl KafkaBroker {
    /// Checks the settings and creates the client. The client connects in the background and reconnects.
    pub fn new(settings: KafkaSettings) -> Result<Self, BrokerError> {
        Ok(KafkaBroker {
            clients: RequestClients::new(settings)?,
            signals: ConsumerSignals::default(),
            identities: Arc::default(),
        })
    }

    /// Monitors the polling threads with `liveness`.
    pub fn with_liveness(mut self, liveness: LivenessMonitor) -> Self {
        self.signals.liveness = Some(liveness);
        self
    }

    pub(super) fn settings(&self) -> &KafkaSettings {
        &self.clients.settings
    }

    /// Describes the cluster by the metadata of one of its topics.
    pub async fn describe_cluster(&self, topic: &str) -> Result<DescribedCluster, BrokerError> {
        const OPERATION: &str = "look up the cluster";
        let (topic, brokers) = (topic.to_owned(), self.settings().brokers.clone());
        self.clients
            .query(OPERATION, move |client, bound| {
                // A request for the metadata of all topics would be large where the cluster has many.
                let answer = client.fetch_metadata(Some(&topic), bound);
                let answer = answer.map_err(|error| translate(OPERATION, &brokers, &error))?;
                let brokers = answer.brokers().iter().map(|broker| format!("{}:{}", broker.host(), broker.port()));
                Ok(DescribedCluster { id: client.client().fetch_cluster_id(bound), brokers: brokers.collect() })
            })
            .await
    }

    /// Rights of this client on topics, in the order of `topics`.
    ///
    /// # Errors
    /// The cluster does not answer, or a topic does not exist, or access to a topic is refused.
    pub async fn rights_on_topics(&self, topics: Vec<String>) -> Result<Vec<Rights>, BrokerError> {
        self.clients.query("look up permissions", move |client, bound| fetch_topic_rights(client, &topics, bound)).await
    }

    /// Rights of this client on groups, in the order of `groups`. Joins no group.
    ///
    /// # Errors
    /// The cluster does not answer, or access to a group is refused.
    pub async fn rights_on_groups(&self, groups: Vec<String>) -> Result<Vec<Rights>, BrokerError> {
        self.clients.query("look up permissions", move |client, bound| fetch_group_rights(client, &groups, bound)).await
    }
}

impl KafkaBroker {
    /// Starts the thread of a reader without a group. `name`: the partition, or the topic, for logs and `/state`.
    async fn start_reader(&self, starts: Vec<(TopicPartition, u64)>, name: String) -> Result<Handle, BrokerError> {
        let number = NEXT_READER_ID.fetch_add(1, Ordering::Relaxed);
        let group = format!("{}-reader-{}-{number}", self.settings().client_id, std::process::id());
        let settings = self.settings().clone();
        let config = settings.reader_config(&group, starts.len());
        let (signals, name) = (self.signals.clone(), format!("the Kafka polling thread of a reader of {name}"));
        let started = move || start(config, settings, ConsumerSource::Manual(starts), signals, name);
        run_blocking("read", self.settings().request_timeout, started).await
    }
}

#[async_trait]
impl Broker for KafkaBroker {
    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        let mut partitions = 0;
        for topic in topics {
            let count = self.partitions(topic).await?;
            partitions += count.ok_or_else(|| BrokerError::unknown_topic("subscribe", topic))? as usize;
        }
        let settings = self.settings();
        let config = settings.member_config(group, partitions);
        let settings =
            KafkaSettings { batch_bytes: settings.prefetch_limits(partitions).batch_bytes, ..settings.clone() };
        let source = ConsumerSource::Group { topics: topics.to_vec() };
        let handle = run_blocking("subscribe", self.settings().request_timeout, {
            let (settings, signals) = (settings.clone(), self.signals.clone());
            let name = format!("the Kafka polling thread of group {group}");
            move || start(config, settings, source, signals, name)
        })
        .await?;
        Ok(Box::new(KafkaConsumer { handle, settings, closed: false }))
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
        let (low, high) = self.watermarks(partition).await?;
        if !(low..=high).contains(&offset) {
            return Err(BrokerError::out_of_range("read", partition, offset, low, high));
        }
        let handle = self.start_reader(vec![(partition.clone(), offset)], partition.to_string()).await?;
        Ok(Box::new(KafkaReader { handle, partition: partition.clone(), position: offset, end: high, stuck: None }))
    }

    async fn read_all(&self, starts: &[(TopicPartition, u64)]) -> Result<Box<dyn PartitionSetReader>, BrokerError> {
        let name = starts.first().map_or_else(String::new, |(partition, _)| format!("topic {}", partition.topic));
        Ok(Box::new(KafkaSetReader { handle: self.start_reader(starts.to_vec(), name).await? }))
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        producer::producer(self.clone())
    }

    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError> {
        Ok(self.describe_topic(topic).await?.map(|described| described.partitions))
    }

    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        let topics = topics.to_vec();
        let broker = self.identities.clone();
        self.clients.query("look up topic ids", move |client, bound| broker.identities(client, &topics, bound)).await
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        let at = partition.clone();
        self.clients.query("look up watermarks", move |client, bound| fetch_watermarks(client, &at, bound)).await
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        let (client, partitions) = (self.clients.group_client(group)?, partitions.to_vec());
        self.clients
            .query("look up committed offsets", move |_, bound| {
                // The coordinator of a group may be moving or starting.
                let until = Instant::now() + bound;
                loop {
                    match fetch_committed(&client, &partitions, bound) {
                        Err(error) if error.kind == BrokerErrorKind::Retryable && Instant::now() < until => {
                            std::thread::sleep(COORDINATOR_PAUSE);
                        }
                        answer => {
                            serve_log(&client);
                            return answer;
                        }
                    }
                }
            })
            .await
    }

    async fn offsets_at(&self, topic: &str, timestamp_ms: i64) -> Result<Vec<Option<u64>>, BrokerError> {
        const OPERATION: &str = "look up times";
        let count = self.partitions(topic).await?.ok_or_else(|| BrokerError::unknown_topic(OPERATION, topic))?;
        let topic: Arc<str> = topic.into();
        let partitions: Vec<_> =
            (0..count).map(|partition| TopicPartition { topic: topic.clone(), partition }).collect();
        // librdkafka reads negative numbers as logical offsets, not as timestamps.
        let time = Offset::Offset(timestamp_ms.max(0));
        self.clients
            .query(OPERATION, move |client, bound| fetch_offsets_at(client, &partitions, time, OPERATION, bound))
            .await
    }

    async fn set_committed(
        &self,
        group: &str,
        offsets: &[(TopicPartition, CommittedOffset)],
    ) -> Result<(), BrokerError> {
        let (client, group) = (self.clients.group_client(group)?, group.to_owned());
        let offsets = commit_list("set offsets", offsets)?;
        self.clients
            .query("set offsets", move |_, _| {
                let answer = commit_for_group(&client, &group, &offsets);
                serve_log(&client);
                answer
            })
            .await
    }

    async fn member_count(&self, group: &str) -> Result<usize, BrokerError> {
        let group = group.to_owned();
        self.clients.query("look up group", move |client, bound| count_members(client, &group, bound)).await
    }

    async fn create_topics(&self, topics: &[NewTopic]) -> Result<(), BrokerError> {
        for topic in topics {
            if !self.topic_exists(topic).await? {
                self.create_topic(topic).await?;
            }
        }
        Ok(())
    }

    fn outages(&self) -> Option<watch::Receiver<Outage>> {
        Some(self.signals.outages.subscribe())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
