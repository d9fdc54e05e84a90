//! The log on Apache Kafka: the only module that names rdkafka.
//!
//! A consumer has two sides, joined by an [`inbox`]: a thread ([`worker`]) that owns librdkafka's consumer, and an
//! async side ([`consumer`]). Calls that may block never run on the runtime's threads.

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
mod rights;
mod security;
mod settings;
mod worker;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rdkafka::{
    Offset,
    admin::{
        AdminClient, AdminOptions, AlterConfig, NewTopic as KafkaTopic, OwnedResourceSpecifier, ResourceSpecifier,
        TopicReplication,
    },
    client::DefaultClientContext,
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataPartition,
};
use tokio::sync::watch;

use self::{
    connection_errors::{ConnectionErrors, QueryClient},
    consumer::{KafkaConsumer, KafkaReader, run_blocking},
    errors::{kind_of_code, translate},
    identities::TopicIdBroker,
    lookup::{commit_for_group, commit_list, count_members, fetch_committed, fetch_offsets_at, fetch_watermarks},
    worker::{ConsumerSignals, ConsumerSource, start},
};
pub use self::{
    mock::MockCluster,
    refused::{PropertyRefusal, REFUSED_PROPERTIES, refusal},
    rights::{Right, Rights},
    security::{HAS_TLS, KafkaSecurity, SaslMechanism, SecurityProtocol},
    settings::{AssignmentStrategy, GroupProtocol, KafkaSettings},
};
use super::{
    Broker, BrokerError, BrokerErrorKind, CommittedOffset, Consumer, NewTopic, Outage, PartitionReader, Producer,
    TopicIdentity, TopicPartition,
};
use crate::liveness::LivenessMonitor;

/// Pause between requests to a group coordinator that is not available yet.
const COORDINATOR_PAUSE: Duration = Duration::from_millis(100);

/// Timeout of one request to a cluster that has never answered.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of one poll for the reason why a request failed.
const ERROR_POLL_TIMEOUT: Duration = Duration::from_millis(20);
/// Time to find the reason of a failed first request behind the queued log lines.
const REASON_TIMEOUT: Duration = Duration::from_secs(3);

/// Number of the next reader. Readers never commit, but librdkafka requires a group id, which must differ from every
/// group in use.
static NEXT_READER_ID: AtomicU64 = AtomicU64::new(0);

type Admin = AdminClient<DefaultClientContext>;

/// A topic as a cluster describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedTopic {
    /// Number of the topic's partitions.
    pub partitions: i32,
    /// Replicas of the partition that has fewest replicas.
    pub copies: usize,
    /// In-sync replicas of the partition that has fewest of them.
    pub in_sync: usize,
    /// Partitions without a leader: they can be neither read nor written.
    pub leaderless: Vec<i32>,
}

/// A cluster as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedCluster {
    /// Id of the cluster; `None`: the cluster has no id.
    pub id: Option<String>,
    /// Addresses of the brokers, `host:port`.
    pub brokers: Vec<String>,
}

/// A Kafka cluster. Clones share the clients for metadata, administration and committed offsets.
#[derive(Clone)]
pub struct KafkaBroker {
    settings: Arc<KafkaSettings>,
    /// Client for metadata requests, a member of no group.
    metadata: Arc<QueryClient>,
    /// Client for requests that only the controller or a partition's leader can serve. Created at the first use.
    admin: Arc<Mutex<Option<Arc<Admin>>>>,
    /// Clients for the committed offsets of each group, not members of the group. Reused, since each client has several
    /// threads and connections.
    groups: Arc<Mutex<HashMap<String, Arc<QueryClient>>>>,
    signals: ConsumerSignals,
    /// Broker that serves the requests for topic ids.
    identities: Arc<TopicIdBroker>,
}

impl KafkaBroker {
    /// Checks the settings and creates the client. The client connects in the background and reconnects.
    pub fn new(settings: KafkaSettings) -> Result<Self, BrokerError> {
        settings.check()?;
        let metadata = settings
            .client_config()
            .set("allow.auto.create.topics", "false")
            .create_with_context(ConnectionErrors::default())
            .map_err(|error| translate("connect", &settings.brokers, &error))?;
        Ok(KafkaBroker {
            settings: Arc::new(settings),
            metadata: Arc::new(metadata),
            admin: Arc::default(),
            groups: Arc::default(),
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
        &self.settings
    }

    /// Runs a blocking request of the metadata client.
    async fn query<T: Send + 'static>(
        &self,
        operation: &'static str,
        request: impl Fn(&QueryClient, Duration) -> Result<T, BrokerError> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let (metadata, bound) = (self.metadata.clone(), self.settings.request_timeout);
        // librdkafka keeps the bound itself and names the cause, so the outer timeout is longer.
        run_blocking(operation, bound + Duration::from_secs(1), move || {
            let until = Instant::now() + bound;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                // librdkafka reports why a cluster refuses a client only between two requests.
                let known = metadata.context().has_answered();
                let answer = request(&metadata, if known { left } else { left.min(FIRST_REQUEST_TIMEOUT) });
                match answer.is_ok() {
                    true => serve_log(&metadata),
                    false if known => serve_errors(&metadata, Instant::now()),
                    false => serve_errors(&metadata, until.min(Instant::now() + REASON_TIMEOUT)),
                }
                match metadata.context().explain(answer) {
                    Err(error) if error.kind == BrokerErrorKind::Retryable && !known && Instant::now() < until => {}
                    answer => return answer,
                }
            }
        })
        .await
    }

    fn admin(&self, operation: &'static str) -> Result<Arc<Admin>, BrokerError> {
        // No panic can leave the option half changed.
        let mut created = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(admin) = created.as_ref() {
            return Ok(admin.clone());
        }
        let admin = self.settings.client_config().create();
        let admin: Admin = admin.map_err(|error| translate(operation, &self.settings.brokers, &error))?;
        Ok(created.insert(Arc::new(admin)).clone())
    }

    /// Configuration of each topic, defaults included. A mock cluster does not answer.
    ///
    /// # Errors
    /// The cluster does not answer. For one topic: the topic does not exist, or access is refused.
    pub async fn topic_configs(&self, topics: &[&str]) -> Result<Vec<Result<TopicConfig, BrokerError>>, BrokerError> {
        const OPERATION: &str = "look up the configuration";
        if topics.is_empty() {
            return Ok(Vec::new());
        }
        let options = AdminOptions::new().request_timeout(Some(self.settings.request_timeout));
        let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let answer = self.admin(OPERATION)?.describe_configs(&resources, &options).await;
        let answer = answer.map_err(|error| translate(OPERATION, &self.settings.brokers, &error))?;
        let mut configs = BTreeMap::new();
        for resource in answer.into_iter().flatten() {
            if let OwnedResourceSpecifier::Topic(name) = resource.specifier {
                let entries = resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?)));
                configs.insert(name, entries.collect::<TopicConfig>());
            }
        }
        // rdkafka drops the reason of a refusal. A topic that is not refused has a value for every property.
        let refused =
            |topic: &str| BrokerError::new(BrokerErrorKind::Refused, OPERATION, format!("{topic}: it is not shown"));
        let config =
            |topic: &&str| configs.remove(*topic).filter(|config| !config.is_empty()).ok_or_else(|| refused(topic));
        Ok(topics.iter().map(config).collect())
    }

    /// Sets the configuration of a topic. A property that `config` does not name returns to the cluster's default.
    ///
    /// # Errors
    /// The cluster does not answer, or access is refused.
    pub async fn set_topic_config(&self, topic: &str, config: &[(String, String)]) -> Result<(), BrokerError> {
        const OPERATION: &str = "configure a topic";
        let options = AdminOptions::new().request_timeout(Some(self.settings.request_timeout));
        let wanted = AlterConfig::new(ResourceSpecifier::Topic(topic));
        let wanted = config.iter().fold(wanted, |wanted, (property, value)| wanted.set(property, value));
        let answer = self.admin(OPERATION)?.alter_configs([&wanted], &options).await;
        let answer = answer.map_err(|error| translate(OPERATION, topic, &error))?;
        match answer.into_iter().find_map(Result::err) {
            Some((_, RDKafkaErrorCode::InvalidConfig)) if config.iter().any(is_time_limit) => {
                let plain: Vec<_> = config.iter().filter(|property| !is_time_limit(property)).cloned().collect();
                Box::pin(self.set_topic_config(topic, &plain)).await
            }
            Some((_, code)) => Err(translate(OPERATION, topic, &KafkaError::AdminOp(code))),
            None => Ok(()),
        }
    }

    /// Describes a topic; `None`: the topic does not exist.
    ///
    /// # Errors
    /// The cluster does not answer, or access is refused.
    pub async fn describe_topic(&self, topic: &str) -> Result<Option<DescribedTopic>, BrokerError> {
        let topic = topic.to_owned();
        self.query("look up topic", move |client, bound| describe(client, &topic, bound)).await
    }

    /// Describes the cluster by the metadata of one of its topics.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub async fn describe_cluster(&self, topic: &str) -> Result<DescribedCluster, BrokerError> {
        const OPERATION: &str = "look up the cluster";
        let (topic, brokers) = (topic.to_owned(), self.settings.brokers.clone());
        self.query(OPERATION, move |client, bound| {
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
        self.query("look up permissions", move |client, bound| rights::fetch_topic_rights(client, &topics, bound)).await
    }

    /// Rights of this client on groups, in the order of `groups`. Joins no group.
    ///
    /// # Errors
    /// The cluster does not answer, or access to a group is refused.
    pub async fn rights_on_groups(&self, groups: Vec<String>) -> Result<Vec<Rights>, BrokerError> {
        self.query("look up permissions", move |client, bound| rights::fetch_group_rights(client, &groups, bound)).await
    }
}

/// A topic's configuration: value by property.
pub type TopicConfig = BTreeMap<String, String>;

fn describe(client: &QueryClient, topic: &str, bound: Duration) -> Result<Option<DescribedTopic>, BrokerError> {
    let answer =
        client.fetch_metadata(Some(topic), bound).map_err(|error| translate("look up topic", topic, &error))?;
    let Some(found) = answer.topics().iter().find(|found| found.name() == topic) else { return Ok(None) };
    match found.error().map(RDKafkaErrorCode::from) {
        None => {}
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => return Ok(None),
        Some(code) => return Err(translate("look up topic", topic, &KafkaError::MetadataFetch(code))),
    }
    let partitions = found.partitions();
    let fewest = |count: fn(&MetadataPartition) -> usize| partitions.iter().map(count).min().unwrap_or(0);
    let leaderless = partitions.iter().filter(|partition| partition.leader() < 0);
    let described = DescribedTopic {
        partitions: partitions.len() as i32,
        copies: fewest(|partition| partition.replicas().len()),
        in_sync: fewest(|partition| partition.isr().len()),
        leaderless: leaderless.map(MetadataPartition::id).collect(),
    };
    Ok(Some(described).filter(|described| described.partitions > 0))
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
        let handle = run_blocking("subscribe", self.settings.request_timeout, {
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
        let number = NEXT_READER_ID.fetch_add(1, Ordering::Relaxed);
        let group = format!("{}-reader-{}-{number}", self.settings.client_id, std::process::id());
        let settings = self.settings().clone();
        let config = settings.reader_config(&group);
        let source = ConsumerSource::Manual { partition: partition.clone(), offset };
        let (signals, name) = (self.signals.clone(), format!("the Kafka polling thread of a reader of {partition}"));
        let started = move || start(config, settings, source, signals, name);
        let handle = run_blocking("read", self.settings.request_timeout, started).await?;
        Ok(Box::new(KafkaReader { handle, partition: partition.clone(), position: offset, end: high, stuck: None }))
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
        self.query("look up topic ids", move |client, bound| broker.identities(client, &topics, bound)).await
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        let at = partition.clone();
        self.query("look up watermarks", move |client, bound| fetch_watermarks(client, &at, bound)).await
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        let (client, partitions) = (self.group_client(group)?, partitions.to_vec());
        self.query("look up committed offsets", move |_, bound| {
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
        self.query(OPERATION, move |client, bound| fetch_offsets_at(client, &partitions, time, OPERATION, bound)).await
    }

    async fn set_committed(
        &self,
        group: &str,
        offsets: &[(TopicPartition, CommittedOffset)],
    ) -> Result<(), BrokerError> {
        let (client, group) = (self.group_client(group)?, group.to_owned());
        let offsets = commit_list("set offsets", offsets)?;
        self.query("set offsets", move |_, _| {
            let answer = commit_for_group(&client, &group, &offsets);
            serve_log(&client);
            answer
        })
        .await
    }

    async fn member_count(&self, group: &str) -> Result<usize, BrokerError> {
        let group = group.to_owned();
        self.query("look up group", move |client, bound| count_members(client, &group, bound)).await
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

impl KafkaBroker {
    fn group_client(&self, group: &str) -> Result<Arc<QueryClient>, BrokerError> {
        // No panic can leave the map half changed.
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = groups.get(group) {
            return Ok(client.clone());
        }
        let client = self.settings.consumer_config(group, 1).create_with_context(ConnectionErrors::default());
        let client: QueryClient = client.map_err(|error| translate("look up committed offsets", group, &error))?;
        let client = Arc::new(client);
        groups.insert(group.to_owned(), client.clone());
        Ok(client)
    }

    /// True where the topic exists. Refuses a topic that exists with another number of partitions.
    async fn topic_exists(&self, topic: &NewTopic) -> Result<bool, BrokerError> {
        match self.partitions(&topic.name).await? {
            None => Ok(false),
            Some(there) if there == topic.partitions => Ok(true),
            Some(there) => {
                let message = format!("{} exists with {there} partitions instead of {}", topic.name, topic.partitions);
                Err(BrokerError::new(BrokerErrorKind::Refused, "create topics", message))
            }
        }
    }

    async fn create_topic(&self, topic: &NewTopic) -> Result<(), BrokerError> {
        let replication = TopicReplication::Fixed(self.settings.replication_factor.unwrap_or(-1));
        let wanted = topic
            .config
            .iter()
            .fold(KafkaTopic::new(&topic.name, topic.partitions, replication), |wanted, (key, value)| {
                wanted.set(key, value)
            });
        let bound = Some(self.settings.request_timeout);
        let options = AdminOptions::new().request_timeout(bound).operation_timeout(bound);
        let results = self
            .admin("create topics")?
            .create_topics([&wanted], &options)
            .await
            .map_err(|error| translate("create topics", &topic.name, &error))?;
        for result in results {
            match result {
                Ok(_) => {}
                // Brokers before Kafka 3.6 do not know these properties, and limit no timestamps by default.
                Err((_, RDKafkaErrorCode::InvalidConfig)) if topic.config.iter().any(is_time_limit) => {
                    let config = topic.config.iter().filter(|property| !is_time_limit(property)).cloned().collect();
                    let plain = NewTopic { config, ..topic.clone() };
                    return Box::pin(self.create_topic(&plain)).await;
                }
                // Another client created the topic first; its partitions are checked below.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => {
                    let message = format!("{name}: {code}");
                    return Err(BrokerError::new(kind_of_code(code), "create topics", message));
                }
            }
        }
        self.wait_until_visible(topic).await
    }

    /// Waits until the created topic is visible: brokers learn of a new topic with a delay.
    async fn wait_until_visible(&self, topic: &NewTopic) -> Result<(), BrokerError> {
        let seen = async {
            while !self.topic_exists(topic).await? {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        tokio::time::timeout(self.settings.request_timeout, seen).await.unwrap_or_else(|_| {
            let message = format!("{} was created but is not known yet", topic.name);
            Err(BrokerError::new(BrokerErrorKind::Retryable, "create topics", message))
        })
    }
}

fn is_time_limit((property, _): &(String, String)) -> bool {
    property.starts_with("message.timestamp.")
}

/// Writes the queued log lines of a client that no loop polls.
fn serve_log(client: &QueryClient) {
    while client.poll(Duration::ZERO).is_some() {}
}

/// Serves the log lines and errors of a failed request until librdkafka has reported a reason, at most until `until`.
///
/// Log lines precede the error in the queue. Under `debug` a loaded machine logs faster than one poll serves.
fn serve_errors(client: &QueryClient, until: Instant) {
    loop {
        while client.poll(ERROR_POLL_TIMEOUT).is_some() {}
        if client.context().has_reason() || Instant::now() >= until {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
