//! The log on Apache Kafka: the only place that names rdkafka.
//!
//! A consumer is a thread ([`worker`]) that owns librdkafka's consumer, and an async side ([`consumer`]) that hears of it
//! through an inbox ([`inbox`]). Nothing that may block runs on the runtime's threads.

mod arena;
mod consumer;
mod errors;
mod inbox;
mod lookup;
mod mock;
mod producer;
mod refused;
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
    admin::{AdminClient, AdminOptions, NewTopic as KafkaTopic, ResourceSpecifier, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, RDKafkaErrorCode},
};

use self::{
    consumer::{KafkaConsumer, KafkaReader, off_the_runtime},
    errors::{kind_of_code, translate},
    lookup::{committed_of, members_of, watermarks_of},
    worker::{Source, start},
};
pub use self::{
    mock::MockCluster,
    refused::{REFUSED, Refusal, refusal},
    settings::{AssignmentStrategy, KafkaSettings},
};
use super::{Broker, BrokerError, BrokerErrorKind, Committed, Consumer, NewTopic, Producer, Reader, TopicPartition};

/// Between questions to a group's coordinator that is not there yet.
const COORDINATOR_PAUSE: Duration = Duration::from_millis(100);

/// Readers never commit: their group id only has to be there, and differ from every group in use.
static NEXT_READER: AtomicU64 = AtomicU64::new(0);

/// A Kafka cluster. Clones share the connection for metadata.
#[derive(Clone)]
pub struct KafkaBroker {
    settings: Arc<KafkaSettings>,
    /// Answers questions about topics; a member of no group.
    metadata: Arc<BaseConsumer>,
    /// Answer what each group has committed, and are no members of it. A client is a handful of threads and connections.
    groups: Arc<Mutex<HashMap<String, Arc<BaseConsumer>>>>,
}

impl KafkaBroker {
    /// Checks the settings and prepares the client. Connects later, and again and again if need be.
    pub fn new(settings: KafkaSettings) -> Result<Self, BrokerError> {
        settings.check()?;
        let metadata = settings
            .client()
            .set("allow.auto.create.topics", "false")
            .create()
            .map_err(|error| translate("connect", &settings.brokers, &error))?;
        Ok(KafkaBroker { settings: Arc::new(settings), metadata: Arc::new(metadata), groups: Arc::default() })
    }

    pub(super) fn settings(&self) -> &KafkaSettings {
        &self.settings
    }

    /// Asks the metadata client something that blocks.
    async fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        question: impl FnOnce(&BaseConsumer, Duration) -> Result<T, BrokerError> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let (metadata, bound) = (self.metadata.clone(), self.settings.request_timeout);
        // librdkafka keeps to the bound itself, and can name the cause: it gets a moment more.
        off_the_runtime(operation, bound + Duration::from_secs(1), move || {
            let answer = question(&metadata, bound);
            serve_log(&metadata);
            answer
        })
        .await
    }

    fn admin(&self, operation: &'static str) -> Result<AdminClient<DefaultClientContext>, BrokerError> {
        self.settings.client().create().map_err(|error| translate(operation, &self.settings.brokers, &error))
    }

    /// A topic's configuration, defaults among it: value by name. (A mock cluster does not answer.)
    ///
    /// # Errors
    /// The topic does not exist, or the cluster does not say.
    pub async fn topic_config(&self, topic: &str) -> Result<BTreeMap<String, String>, BrokerError> {
        const OPERATION: &str = "look up the configuration";
        let options = AdminOptions::new().request_timeout(Some(self.settings.request_timeout));
        let asked = [ResourceSpecifier::Topic(topic)];
        let answer = self.admin(OPERATION)?.describe_configs(&asked, &options).await;
        let mut config = BTreeMap::new();
        for resource in answer.map_err(|error| translate(OPERATION, topic, &error))? {
            let resource = resource.map_err(|code| {
                let message = format!("{topic}: {code}");
                BrokerError::new(kind_of_code(code), OPERATION, message)
            })?;
            config.extend(resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))));
        }
        Ok(config)
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
        let settings = self.settings().clone();
        let config = settings.member(group, partitions);
        let source = Source::Group { topics: topics.to_vec() };
        let handle = off_the_runtime("subscribe", self.settings.request_timeout, {
            let settings = settings.clone();
            move || start(config, settings, source)
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
        let handle =
            off_the_runtime("read", self.settings.request_timeout, move || start(config, settings, source)).await?;
        Ok(Box::new(KafkaReader { handle, partition: partition.clone(), position: offset, end: high, stuck: None }))
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        producer::producer(self.clone())
    }

    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError> {
        let topic = topic.to_owned();
        self.ask("look up topic", move |client, bound| {
            let answer = client
                .fetch_metadata(Some(&topic), bound)
                .map_err(|error| translate("look up topic", &topic, &error))?;
            let Some(found) = answer.topics().iter().find(|found| found.name() == topic) else { return Ok(None) };
            match found.error().map(RDKafkaErrorCode::from) {
                None => Ok(Some(found.partitions().len() as i32).filter(|count| *count > 0)),
                Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => Ok(None),
                Some(code) => Err(translate("look up topic", &topic, &KafkaError::MetadataFetch(code))),
            }
        })
        .await
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
}

impl KafkaBroker {
    fn client_of(&self, group: &str) -> Result<Arc<BaseConsumer>, BrokerError> {
        // Nothing is left half done under the lock, so a panic elsewhere does not spoil it.
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = groups.get(group) {
            return Ok(client.clone());
        }
        let client = self.settings.reading(group, 1).create();
        let client: BaseConsumer = client.map_err(|error| translate("look up committed offsets", group, &error))?;
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

/// Writes the log lines that have gathered in a client that nobody polls.
fn serve_log(client: &BaseConsumer) {
    while client.poll(Duration::ZERO).is_some() {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
