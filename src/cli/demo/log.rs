//! The log of a demo: a mock broker, or topics with unique names on a real cluster.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs::File,
    io::BufWriter,
    time::{SystemTime, UNIX_EPOCH},
};

use super::directory::{DemoDirectory, DemoSettings};
use crate::{
    broker::{Broker, BrokerError, TopicPartition, kafka::MockCluster, partitioner::partition_of, saved},
    cli::{Failure, opening, topics::create_missing},
    config::{Brokers, Config},
    event::Topic,
    generate::Message,
    preflight::topics::{NewTopicSettings, new_topics},
    sequencer::chain_group,
};

/// Most bytes of messages per partition of the mock, which keeps 5 MiB and drops older batches silently. The margin is
/// for the overhead of batches.
const PARTITION_BYTES: usize = 4_500_000;
/// Most bytes of a message beyond its key and its payload.
const MESSAGE_OVERHEAD: usize = 40;

/// Log of a demo, with the names that clients use.
pub struct DemoLog {
    mock: Option<MockCluster>,
    brokers: String,
    suffix: Option<String>,
    partitions: i32,
}

impl DemoLog {
    /// Starts a mock cluster with all topics, or uses the cluster at `brokers`.
    ///
    /// # Errors
    /// The mock cannot be started.
    pub fn start(brokers: Option<&Brokers>, partitions: i32) -> Result<Self, BrokerError> {
        match brokers {
            Some(brokers) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
                let suffix = format!(".demo-{:x}", now ^ (u128::from(std::process::id()) << 64));
                Ok(DemoLog { mock: None, brokers: brokers.as_str().to_owned(), suffix: Some(suffix), partitions })
            }
            None => {
                let mock = MockCluster::start(&new_topics(
                    &Config::default().kafka.topics,
                    NewTopicSettings::with_partitions(partitions),
                ))?;
                let brokers = mock.bootstrap_servers().to_owned();
                Ok(DemoLog { mock: Some(mock), brokers, suffix: None, partitions })
            }
        }
    }

    /// Returns the bootstrap brokers.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Returns the suffix of names on a shared cluster; `None` for a mock.
    pub fn suffix(&self) -> Option<&str> {
        self.suffix.as_deref()
    }

    /// Creates the topics on a real cluster. A mock has its topics from the start.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses the creation.
    pub async fn create_topics(&self, config: &Config) -> Result<(), Failure> {
        if self.mock.is_none() {
            let broker = opening::open_broker(config).await?;
            let settings = NewTopicSettings::with_partitions(self.partitions);
            create_missing(broker.as_ref(), &new_topics(&config.kafka.topics, settings)).await?;
        }
        Ok(())
    }

    /// Checks that the mock retains these messages.
    ///
    /// # Errors
    /// A partition would become too large; the error names the remedies.
    pub fn check_capacity(&self, messages: impl Iterator<Item = Message>) -> Result<(), Failure> {
        if self.mock.is_none() {
            return Ok(());
        }
        let mut sizes: BTreeMap<(Topic, i32), usize> = BTreeMap::new();
        for message in messages {
            let partition = message.key.and_then(|txid| partition_of(&txid.0, self.partitions)).unwrap_or(0);
            *sizes.entry((message.topic, partition)).or_default() += message.payload.len() + 32 + MESSAGE_OVERHEAD;
        }
        match sizes.into_iter().max_by_key(|(_, size)| *size) {
            Some(((topic, partition), size)) if size > PARTITION_BYTES => Err(Failure::new(format!(
                "partition {partition} of {} would get {size} bytes, but the mock broker keeps {PARTITION_BYTES}: give \
                 more --partitions, fewer blocks, or a real cluster with --brokers",
                topic.default_name()
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that the mock still has every produced message.
    ///
    /// # Errors
    /// The mock has dropped messages, or does not answer.
    pub async fn check_retained(
        &self,
        broker: &dyn Broker,
        config: &Config,
        messages: impl Iterator<Item = Message>,
    ) -> Result<(), BrokerError> {
        let Some(mock) = &self.mock else { return Ok(()) };
        let mut sent: BTreeMap<Topic, u64> = BTreeMap::new();
        messages.for_each(|message| *sent.entry(message.topic).or_default() += 1);
        for (topic, count) in sent {
            mock.check_retention(broker, config.kafka.topics.name(topic), count).await?;
        }
        Ok(())
    }

    /// Saves the log of the mock, which ends with this process, if the directory is kept. The configuration in the
    /// directory then names the saved log.
    ///
    /// # Errors
    /// The log cannot be read, or the files cannot be written.
    pub async fn save(
        &self,
        config: &Config,
        directory: &DemoDirectory,
        settings: &DemoSettings<'_>,
    ) -> Result<(), Failure> {
        if self.mock.is_none() || !directory.is_kept() {
            return Ok(());
        }
        let (path, broker) = (directory.saved_log(), opening::open_broker(config).await?);
        let failed = |error: &dyn Display| Failure::new(format!("cannot save the log in {}: {error}", path.display()));
        let file = File::create(&path).map_err(|error| failed(&error))?;
        let topics = Topic::all().map(|topic| config.kafka.topics.name(topic)).collect::<Vec<_>>();
        let groups = [config.kafka.group.clone(), chain_group(&config.kafka.group)];
        let groups = groups.each_ref().map(String::as_str);
        saved::save(broker.as_ref(), &topics, &groups, &mut BufWriter::new(file))
            .await
            .map_err(|error| failed(&error))?;
        directory.configure(&DemoSettings { brokers: &directory.saved_log_url(), ..*settings })?;
        Ok(())
    }

    /// Checks that the broker still has the first message of every topic that a rebuild reads.
    ///
    /// # Errors
    /// The broker has dropped messages, or does not answer.
    pub async fn check_complete(&self, broker: &dyn Broker, config: &Config) -> Result<(), Failure> {
        for topic in [Topic::ValidatedTxs, Topic::BlockMined, Topic::Reorgs, Topic::Chain, Topic::Decisions] {
            let name = config.kafka.topics.name(topic);
            let mut low = 0;
            for partition in 0..broker.partitions(name).await?.unwrap_or(0) {
                low += broker.watermarks(&TopicPartition { topic: name.into(), partition }).await?.0;
            }
            if low > 0 {
                let problem =
                    format!("{name}: the broker has dropped the first {low} messages, which the rebuild needs");
                return Err(Failure::new(format!("{problem}; give fewer blocks, or a real cluster with --brokers")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_mock_retains_is_refused_with_the_remedies() {
        let log = DemoLog::start(None, 1).unwrap();
        let message = |size| Message { topic: Topic::BlockMined, key: None, payload: vec![0; size] };
        log.check_capacity([message(1_000_000), message(3_000_000)].into_iter()).unwrap();
        let refused = log.check_capacity([message(2_000_000), message(3_000_000)].into_iter()).unwrap_err().to_string();
        assert!(refused.contains("utxo.block-mined") && refused.contains("--partitions"), "{refused}");
        assert!(refused.contains("--brokers"), "{refused}");
    }
}
