//! The log on Apache Kafka: the only place that names rdkafka.
//!
//! A consumer is a thread ([`worker`]) that owns librdkafka's consumer, and an async side ([`consumer`]) that hears of it
//! through an inbox ([`inbox`]). Nothing that may block runs on the runtime's threads.

mod admin;
mod arena;
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
mod trouble;
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
    consumer::{KafkaConsumer, KafkaReader, off_the_runtime},
    errors::{kind_of_code, translate},
    identities::AskedBroker,
    lookup::{committed_of, list_of, members_of, offsets_at, set_committed_of, watermarks_of},
    trouble::{Asked, Trouble},
    worker::{Signs, Source, start},
};
pub use self::{
    mock::MockCluster,
    refused::{REFUSED, Refusal, refusal},
    rights::{Right, Rights},
    security::{HAS_TLS, KafkaSecurity, SaslMechanism, SecurityProtocol},
    settings::{AssignmentStrategy, GroupProtocol, KafkaSettings},
};
use super::{
    Broker, BrokerError, BrokerErrorKind, Committed, Consumer, NewTopic, Outage, Producer, Reader, TopicIdentity,
    TopicPartition,
};
use crate::liveness::LivenessMonitor;

/// Between questions to a group's coordinator that is not there yet.
const COORDINATOR_PAUSE: Duration = Duration::from_millis(100);

/// How long a cluster that has never answered is given at once.
const FIRST_QUESTIONS: Duration = Duration::from_secs(1);

/// How long a client may take to tell why it has no answer.
const TELLING: Duration = Duration::from_millis(20);
/// Time to find the reason of a failed first question behind the log lines.
const SERVE_ERRORS: Duration = Duration::from_secs(3);

/// Readers never commit: their group id only has to be there, and differ from every group in use.
static NEXT_READER: AtomicU64 = AtomicU64::new(0);

type Admin = AdminClient<DefaultClientContext>;

/// A topic as a cluster tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedTopic {
    /// Number of partitions.
    pub partitions: i32,
    /// Copies of the partition that has fewest.
    pub copies: usize,
    /// Copies that are in sync, of the partition that has fewest such.
    pub in_sync: usize,
    /// Partitions that nobody leads, which can be neither read nor written.
    pub leaderless: Vec<i32>,
}

/// A cluster as it tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedCluster {
    /// Its id, where it has one.
    pub id: Option<String>,
    /// Its brokers, `host:port`.
    pub brokers: Vec<String>,
}

/// A Kafka cluster. Clones share the connection for metadata.
#[derive(Clone)]
pub struct KafkaBroker {
    settings: Arc<KafkaSettings>,
    /// Answers questions about topics; a member of no group.
    metadata: Arc<Asked>,
    /// Asks what only the controller or the owner of a topic can say, or has done; made when it is first needed.
    admin: Arc<Mutex<Option<Arc<Admin>>>>,
    /// Answer what each group has committed, and are no members of it. A client is a handful of threads and connections.
    groups: Arc<Mutex<HashMap<String, Arc<Asked>>>>,
    signs: Signs,
    /// The broker that is asked for topic ids.
    identities: Arc<AskedBroker>,
}

impl KafkaBroker {
    /// Checks the settings and prepares the client. Connects later, and again and again if need be.
    pub fn new(settings: KafkaSettings) -> Result<Self, BrokerError> {
        settings.check()?;
        let metadata = settings
            .client()
            .set("allow.auto.create.topics", "false")
            .create_with_context(Trouble::default())
            .map_err(|error| translate("connect", &settings.brokers, &error))?;
        Ok(KafkaBroker {
            settings: Arc::new(settings),
            metadata: Arc::new(metadata),
            admin: Arc::default(),
            groups: Arc::default(),
            signs: Signs::default(),
            identities: Arc::default(),
        })
    }

    /// The same, whose polling threads beat there.
    pub fn watched(mut self, liveness: LivenessMonitor) -> Self {
        self.signs.liveness = Some(liveness);
        self
    }

    pub(super) fn settings(&self) -> &KafkaSettings {
        &self.settings
    }

    /// Asks the metadata client something that blocks.
    async fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl Fn(&Asked, Duration) -> Result<T, BrokerError> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let (metadata, bound) = (self.metadata.clone(), self.settings.request_timeout);
        // librdkafka keeps to the bound itself, and can name the cause: it gets a moment more.
        off_the_runtime(operation, bound + Duration::from_secs(1), move || {
            let until = Instant::now() + bound;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                // Why a cluster turns a client away is heard of only between two questions.
                let known = metadata.context().is_known();
                let answer = question(&metadata, if known { left } else { left.min(FIRST_QUESTIONS) });
                match answer.is_ok() {
                    true => serve_log(&metadata),
                    false if known => serve_errors(&metadata, Instant::now()),
                    false => serve_errors(&metadata, until.min(Instant::now() + SERVE_ERRORS)),
                }
                match metadata.context().explained(answer) {
                    Err(error) if error.kind == BrokerErrorKind::Retryable && !known && Instant::now() < until => {}
                    answer => return answer,
                }
            }
        })
        .await
    }

    fn admin(&self, operation: &'static str) -> Result<Arc<Admin>, BrokerError> {
        // Nothing is left half done under the lock, so a panic elsewhere does not spoil it.
        let mut made = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(admin) = made.as_ref() {
            return Ok(admin.clone());
        }
        let admin = self.settings.client().create();
        let admin: Admin = admin.map_err(|error| translate(operation, &self.settings.brokers, &error))?;
        Ok(made.insert(Arc::new(admin)).clone())
    }

    /// The configuration of each topic, defaults among it: value by name. (A mock cluster does not answer.)
    ///
    /// # Errors
    /// The cluster does not answer; for a topic alone: it does not exist, or may not be looked at.
    pub async fn topic_configs(&self, topics: &[&str]) -> Result<Vec<Result<TopicConfig, BrokerError>>, BrokerError> {
        const OPERATION: &str = "look up the configuration";
        if topics.is_empty() {
            return Ok(Vec::new());
        }
        let options = AdminOptions::new().request_timeout(Some(self.settings.request_timeout));
        let asked: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let answer = self.admin(OPERATION)?.describe_configs(&asked, &options).await;
        let answer = answer.map_err(|error| translate(OPERATION, &self.settings.brokers, &error))?;
        let mut told = BTreeMap::new();
        for resource in answer.into_iter().flatten() {
            if let OwnedResourceSpecifier::Topic(name) = resource.specifier {
                let entries = resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?)));
                told.insert(name, entries.collect::<TopicConfig>());
            }
        }
        // rdkafka passes over why a topic is refused; one that is not has a value for everything.
        let refused =
            |topic: &str| BrokerError::new(BrokerErrorKind::Refused, OPERATION, format!("{topic}: it is not shown"));
        let config =
            |topic: &&str| told.remove(*topic).filter(|config| !config.is_empty()).ok_or_else(|| refused(topic));
        Ok(topics.iter().map(config).collect())
    }

    /// Gives a topic this configuration; what it does not name is as the cluster has it by default.
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

    /// What is there of a topic; `None`: it does not exist.
    ///
    /// # Errors
    /// The cluster does not answer, or access is refused.
    pub async fn describe_topic(&self, topic: &str) -> Result<Option<DescribedTopic>, BrokerError> {
        let topic = topic.to_owned();
        self.ask("look up topic", move |client, bound| described(client, &topic, bound)).await
    }

    /// Which cluster it is.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn describe_cluster(&self, topic: &str) -> Result<DescribedCluster, BrokerError> {
        const OPERATION: &str = "look up the cluster";
        let (topic, brokers) = (topic.to_owned(), self.settings.brokers.clone());
        self.ask(OPERATION, move |client, bound| {
            // Of one topic: a cluster may have many.
            let answer = client.fetch_metadata(Some(&topic), bound);
            let answer = answer.map_err(|error| translate(OPERATION, &brokers, &error))?;
            let brokers = answer.brokers().iter().map(|broker| format!("{}:{}", broker.host(), broker.port()));
            Ok(DescribedCluster { id: client.client().fetch_cluster_id(bound), brokers: brokers.collect() })
        })
        .await
    }

    /// What this client may do with topics, in the order asked for.
    ///
    /// # Errors
    /// The cluster does not answer, or one of them does not exist or may not be looked at.
    pub async fn rights_on_topics(&self, topics: Vec<String>) -> Result<Vec<Rights>, BrokerError> {
        self.ask("look up permissions", move |client, bound| rights::on_topics(client, &topics, bound)).await
    }

    /// What this client may do with groups, in the order asked for. Joins none of them.
    ///
    /// # Errors
    /// The cluster does not answer, or one of them may not be looked at.
    pub async fn rights_on_groups(&self, groups: Vec<String>) -> Result<Vec<Rights>, BrokerError> {
        self.ask("look up permissions", move |client, bound| rights::on_groups(client, &groups, bound)).await
    }
}

/// A topic's configuration: value by name.
pub type TopicConfig = BTreeMap<String, String>;

fn described(client: &Asked, topic: &str, bound: Duration) -> Result<Option<DescribedTopic>, BrokerError> {
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
        let config = settings.member(group, partitions);
        let settings = KafkaSettings { batch_bytes: settings.ahead(partitions).batch_bytes, ..settings.clone() };
        let source = Source::Group { topics: topics.to_vec() };
        let handle = off_the_runtime("subscribe", self.settings.request_timeout, {
            let (settings, signs) = (settings.clone(), self.signs.clone());
            let name = format!("the Kafka polling thread of group {group}");
            move || start(config, settings, source, signs, name)
        })
        .await?;
        Ok(Box::new(KafkaConsumer { handle, settings, closed: false }))
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn Reader>, BrokerError> {
        let (low, high) = self.watermarks(partition).await?;
        if !(low..=high).contains(&offset) {
            return Err(BrokerError::out_of_range("read", partition, offset, low, high));
        }
        let number = NEXT_READER.fetch_add(1, Ordering::Relaxed);
        let group = format!("{}-reader-{}-{number}", self.settings.client_id, std::process::id());
        let settings = self.settings().clone();
        let config = settings.reading_at_once(&group);
        let source = Source::Manual { partition: partition.clone(), offset };
        let (signs, name) = (self.signs.clone(), format!("the Kafka polling thread of a reader of {partition}"));
        let started = move || start(config, settings, source, signs, name);
        let handle = off_the_runtime("read", self.settings.request_timeout, started).await?;
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
        self.ask("look up topic ids", move |client, bound| broker.identities(client, &topics, bound)).await
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        let at = partition.clone();
        self.ask("look up watermarks", move |client, bound| watermarks_of(client, &at, bound)).await
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<Committed>>, BrokerError> {
        let (client, partitions) = (self.client_of(group)?, partitions.to_vec());
        self.ask("look up committed offsets", move |_, bound| {
            // The coordinator of a group may just be moving, or being made.
            let until = Instant::now() + bound;
            loop {
                match committed_of(&client, &partitions, bound) {
                    Err(error) if error.kind == BrokerErrorKind::Retryable && Instant::now() < until => {
                        std::thread::sleep(COORDINATOR_PAUSE);
                    }
                    told => {
                        serve_log(&client);
                        return told;
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
        // What is below zero is not a time to librdkafka.
        let time = Offset::Offset(timestamp_ms.max(0));
        self.ask(OPERATION, move |client, bound| offsets_at(client, &partitions, time, OPERATION, bound)).await
    }

    async fn set_committed(&self, group: &str, offsets: &[(TopicPartition, Committed)]) -> Result<(), BrokerError> {
        let (client, group) = (self.client_of(group)?, group.to_owned());
        let offsets = list_of("set offsets", offsets)?;
        self.ask("set offsets", move |_, _| {
            let answer = set_committed_of(&client, &group, &offsets);
            serve_log(&client);
            answer
        })
        .await
    }

    async fn member_count(&self, group: &str) -> Result<usize, BrokerError> {
        let group = group.to_owned();
        self.ask("look up group", move |client, bound| members_of(client, &group, bound)).await
    }

    async fn create_topics(&self, topics: &[NewTopic]) -> Result<(), BrokerError> {
        for topic in topics {
            if !self.exists_as(topic).await? {
                self.create_topic(topic).await?;
            }
        }
        Ok(())
    }

    fn outages(&self) -> Option<watch::Receiver<Outage>> {
        Some(self.signs.outages.subscribe())
    }
}

impl KafkaBroker {
    fn client_of(&self, group: &str) -> Result<Arc<Asked>, BrokerError> {
        // Nothing is left half done under the lock, so a panic elsewhere does not spoil it.
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = groups.get(group) {
            return Ok(client.clone());
        }
        let client = self.settings.reading(group, 1).create_with_context(Trouble::default());
        let client: Asked = client.map_err(|error| translate("look up committed offsets", group, &error))?;
        let client = Arc::new(client);
        groups.insert(group.to_owned(), client.clone());
        Ok(client)
    }

    /// Whether a topic exists; refuses one that exists otherwise than asked for.
    async fn exists_as(&self, topic: &NewTopic) -> Result<bool, BrokerError> {
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
                // Brokers before Kafka 3.6 know other limits, and set none by default.
                Err((_, RDKafkaErrorCode::InvalidConfig)) if topic.config.iter().any(is_time_limit) => {
                    let config = topic.config.iter().filter(|property| !is_time_limit(property)).cloned().collect();
                    let plain = NewTopic { config, ..topic.clone() };
                    return Box::pin(self.create_topic(&plain)).await;
                }
                // Somebody else was faster: what they made is checked below.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => {
                    let message = format!("{name}: {code}");
                    return Err(BrokerError::new(kind_of_code(code), "create topics", message));
                }
            }
        }
        self.until_it_exists(topic).await
    }

    /// A created topic is known to all brokers only after a moment.
    async fn until_it_exists(&self, topic: &NewTopic) -> Result<(), BrokerError> {
        let seen = async {
            while !self.exists_as(topic).await? {
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

/// Writes the log lines that have gathered in a client that nobody polls.
fn serve_log(client: &Asked) {
    while client.poll(Duration::ZERO).is_some() {}
}

/// Serves log lines and errors of a failed question until librdkafka has reported a reason, at most until `until`.
///
/// Log lines stand before the error that they tell of, and under `debug` a busy machine logs faster than one poll serves.
fn serve_errors(client: &Asked, until: Instant) {
    loop {
        while client.poll(TELLING).is_some() {}
        if client.context().has_reason() || Instant::now() >= until {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
