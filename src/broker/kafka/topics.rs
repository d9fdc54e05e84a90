//! Topics of a cluster: their description, configuration and creation.

use std::{collections::BTreeMap, time::Duration};

use rdkafka::{
    admin::{
        AdminOptions, AlterConfig, NewTopic as KafkaTopic, OwnedResourceSpecifier, ResourceSpecifier, TopicReplication,
    },
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataPartition,
};

use super::{
    KafkaBroker,
    connection_errors::QueryClient,
    errors::{kind_of_code, translate},
};
use crate::broker::{Broker as _, BrokerError, BrokerErrorKind, NewTopic};

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
    /// Brokers of the cluster that are up.
    pub brokers: usize,
}

/// A topic's configuration: value by property.
pub type TopicConfig = BTreeMap<String, String>;

impl KafkaBroker {
    /// Configuration of each topic, defaults included. A mock cluster does not answer.
    ///
    /// # Errors
    /// The cluster does not answer. For one topic: the topic does not exist, or access is refused.
    pub async fn topic_configs(&self, topics: &[&str]) -> Result<Vec<Result<TopicConfig, BrokerError>>, BrokerError> {
        const OPERATION: &str = "look up the configuration";
        if topics.is_empty() {
            return Ok(Vec::new());
        }
        let options = AdminOptions::new().request_timeout(Some(self.settings().request_timeout));
        let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let answer = self.clients.admin(OPERATION)?.describe_configs(&resources, &options).await;
        let answer = answer.map_err(|error| translate(OPERATION, &self.settings().brokers, &error))?;
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
        let options = AdminOptions::new().request_timeout(Some(self.settings().request_timeout));
        let wanted = AlterConfig::new(ResourceSpecifier::Topic(topic));
        let wanted = config.iter().fold(wanted, |wanted, (property, value)| wanted.set(property, value));
        let answer = self.clients.admin(OPERATION)?.alter_configs([&wanted], &options).await;
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
        self.clients.query("look up topic", move |client, bound| describe(client, &topic, bound)).await
    }

    /// True where the topic exists. Refuses a topic that exists with another number of partitions.
    pub(super) async fn topic_exists(&self, topic: &NewTopic) -> Result<bool, BrokerError> {
        match self.partitions(&topic.name).await? {
            None => Ok(false),
            Some(there) if there == topic.partitions => Ok(true),
            Some(there) => {
                let message = format!("{} exists with {there} partitions instead of {}", topic.name, topic.partitions);
                Err(BrokerError::new(BrokerErrorKind::Refused, "create topics", message))
            }
        }
    }

    /// Creates a topic and waits until the topic is visible.
    pub(super) async fn create_topic(&self, topic: &NewTopic) -> Result<(), BrokerError> {
        let replication = TopicReplication::Fixed(self.settings().replication_factor.unwrap_or(-1));
        let wanted = topic
            .config
            .iter()
            .fold(KafkaTopic::new(&topic.name, topic.partitions, replication), |wanted, (key, value)| {
                wanted.set(key, value)
            });
        let bound = Some(self.settings().request_timeout);
        let options = AdminOptions::new().request_timeout(bound).operation_timeout(bound);
        let results = self
            .clients
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
        tokio::time::timeout(self.settings().request_timeout, seen).await.unwrap_or_else(|_| {
            let message = format!("{} was created but is not known yet", topic.name);
            Err(BrokerError::new(BrokerErrorKind::Retryable, "create topics", message))
        })
    }
}

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
        brokers: answer.brokers().len(),
    };
    Ok(Some(described).filter(|described| described.partitions > 0))
}

fn is_time_limit((property, _): &(String, String)) -> bool {
    property.starts_with("message.timestamp.")
}
