//! The log of a demo: a broker of its own, or topics of its own on a real cluster.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs::File,
    io::BufWriter,
    time::{SystemTime, UNIX_EPOCH},
};

use super::directory::{Directory, Settings};
use crate::{
    broker::{Broker, BrokerError, TopicPartition, kafka::MockCluster, partitioner::partition_of, saved},
    cli::{Failure, opening, topics::create_missing},
    config::{Brokers, Config},
    event::Topic,
    generate::Message,
    preflight::topics::{Made, new_topics},
    sequencer::chain_group,
};

/// The mock keeps 5 MiB a partition, and drops older batches silently. What is produced stays clear of that, as what
/// surrounds the messages counts too.
const ROOM: usize = 4_500_000;
/// What a message takes beyond its key and its payload, at the most.
const AROUND: usize = 40;

/// Where the events go.
pub struct Log {
    mock: Option<MockCluster>,
    brokers: String,
    suffix: Option<String>,
    partitions: i32,
}

impl Log {
    /// Starts a mock cluster with all topics, or takes the cluster at `brokers`.
    ///
    /// # Errors
    /// The mock cannot be started.
    pub fn start(brokers: Option<&Brokers>, partitions: i32) -> Result<Self, BrokerError> {
        match brokers {
            Some(brokers) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
                let suffix = format!(".demo-{:x}", now ^ (u128::from(std::process::id()) << 64));
                Ok(Log { mock: None, brokers: brokers.as_str().to_owned(), suffix: Some(suffix), partitions })
            }
            None => {
                let mock = MockCluster::start(&new_topics(
                    &Config::default().kafka.topics,
                    Made::with_partitions(partitions),
                ))?;
                let brokers = mock.bootstrap_servers().to_owned();
                Ok(Log { mock: Some(mock), brokers, suffix: None, partitions })
            }
        }
    }

    /// Where clients connect.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// What is appended to names, on a cluster that others use.
    pub fn suffix(&self) -> Option<&str> {
        self.suffix.as_deref()
    }

    /// Creates the topics, where they are not there from the start.
    ///
    /// # Errors
    /// The cluster cannot be reached, or refuses.
    pub async fn create_topics(&self, config: &Config) -> Result<(), Failure> {
        if self.mock.is_none() {
            let broker = opening::broker(config).await?;
            create_missing(broker.as_ref(), &new_topics(&config.kafka.topics, Made::with_partitions(self.partitions)))
                .await?;
        }
        Ok(())
    }

    /// Refuses what the mock would not keep.
    ///
    /// # Errors
    /// That, with the way out.
    pub fn check_room(&self, messages: impl Iterator<Item = Message>) -> Result<(), Failure> {
        if self.mock.is_none() {
            return Ok(());
        }
        let mut sizes: BTreeMap<(Topic, i32), usize> = BTreeMap::new();
        for message in messages {
            let partition = message.key.and_then(|txid| partition_of(&txid.0, self.partitions)).unwrap_or(0);
            *sizes.entry((message.topic, partition)).or_default() += message.payload.len() + 32 + AROUND;
        }
        match sizes.into_iter().max_by_key(|(_, size)| *size) {
            Some(((topic, partition), size)) if size > ROOM => Err(Failure::new(format!(
                "partition {partition} of {} would get {size} bytes, and the demo's own broker keeps {ROOM}: give \
                 more --partitions, fewer blocks, or a real cluster with --brokers",
                topic.default_name()
            ))),
            _ => Ok(()),
        }
    }

    /// Makes sure that the mock has kept what was sent.
    ///
    /// # Errors
    /// It has not.
    pub async fn check_kept(
        &self,
        broker: &dyn Broker,
        config: &Config,
        messages: impl Iterator<Item = Message>,
    ) -> Result<(), BrokerError> {
        let Some(mock) = &self.mock else { return Ok(()) };
        let mut sent: BTreeMap<Topic, u64> = BTreeMap::new();
        messages.for_each(|message| *sent.entry(message.topic).or_default() += 1);
        for (topic, count) in sent {
            mock.assert_kept_everything(broker, config.kafka.topics.name(topic), count).await?;
        }
        Ok(())
    }

    /// Saves the log of the mock, which ends with this process, where the directory stays; and has the configuration
    /// there name it.
    ///
    /// # Errors
    /// The log cannot be read, or the files cannot be written.
    pub async fn keep(&self, config: &Config, directory: &Directory, settings: &Settings<'_>) -> Result<(), Failure> {
        if self.mock.is_none() || !directory.stays() {
            return Ok(());
        }
        let (path, broker) = (directory.kept_log(), opening::broker(config).await?);
        let failed = |error: &dyn Display| Failure::new(format!("cannot keep the log in {}: {error}", path.display()));
        let file = File::create(&path).map_err(|error| failed(&error))?;
        let topics = Topic::ALL.map(|topic| config.kafka.topics.name(topic));
        let groups = [config.kafka.group.clone(), chain_group(&config.kafka.group)];
        let groups = groups.each_ref().map(String::as_str);
        saved::save(broker.as_ref(), &topics, &groups, &mut BufWriter::new(file))
            .await
            .map_err(|error| failed(&error))?;
        directory.configure(&Settings { brokers: &directory.kept_log_url(), ..*settings })?;
        Ok(())
    }

    /// Makes sure that the mock has kept what the store itself has written: the rebuild reads it from the beginning.
    ///
    /// # Errors
    /// It has not.
    pub async fn check_unbroken(&self, broker: &dyn Broker, config: &Config) -> Result<(), Failure> {
        for topic in [Topic::ValidatedTxs, Topic::BlockMined, Topic::Reorgs, Topic::Chain, Topic::Decisions] {
            let name = config.kafka.topics.name(topic);
            let mut low = 0;
            for partition in 0..broker.partitions(name).await?.unwrap_or(0) {
                low += broker.watermarks(&TopicPartition { topic: name.into(), partition }).await?.0;
            }
            if low > 0 {
                let problem =
                    format!("{name}: the broker has dropped the first {low} messages: nothing to rebuild from");
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
    fn more_than_the_mock_keeps_is_refused_with_the_way_out() {
        let log = Log::start(None, 1).unwrap();
        let message = |size| Message { topic: Topic::BlockMined, key: None, payload: vec![0; size] };
        log.check_room([message(1_000_000), message(3_000_000)].into_iter()).unwrap();
        let refused = log.check_room([message(2_000_000), message(3_000_000)].into_iter()).unwrap_err().to_string();
        assert!(refused.contains("utxo.block-mined") && refused.contains("--partitions"), "{refused}");
        assert!(refused.contains("--brokers"), "{refused}");
    }
}
