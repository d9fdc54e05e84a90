//! Progress of the groups, from their committed offsets, which outlive every process.

use std::{sync::Arc, time::Duration};

use crate::{
    broker::{Broker, BrokerError, TopicPartition},
    cli::Failure,
    config::{Config, Topics},
    event::{Event, Topic},
    sequencer::{chain_group, state::ChainState},
};

/// Committed events and existing events of a demo.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DemoProgress {
    /// Committed events of the topic of validated transactions and of the chain.
    pub committed: u64,
    /// Known events of those two topics, and blocks and reorgs that are not fed into the chain yet.
    pub total: u64,
}

impl DemoProgress {
    /// Returns true if every event is consumed.
    pub fn is_done(&self) -> bool {
        self.committed >= self.total
    }
}

/// The two consumer groups of the instances of a demo.
pub struct DemoGroups {
    broker: Arc<dyn Broker>,
    topics: Topics,
    group: String,
}

impl DemoGroups {
    /// Creates a reader of the groups that the configuration names.
    pub fn new(broker: Arc<dyn Broker>, config: &Config) -> Self {
        DemoGroups { broker, topics: config.kafka.topics.clone(), group: config.kafka.group.clone() }
    }

    /// Reads the progress of both groups.
    ///
    /// # Errors
    /// The broker does not answer, or the metadata of the chain's commit is no chain state.
    pub async fn read_progress(&self) -> Result<DemoProgress, Failure> {
        let mut progress = DemoProgress::default();
        let validated = self.partitions(Topic::ValidatedTxs).await?;
        let committed = self.broker.committed(&self.group, &validated).await?;
        for (partition, committed) in validated.iter().zip(committed) {
            progress.committed += committed.map_or(0, |committed| committed.offset);
            progress.total += self.end(partition).await?;
        }
        let chain = self.partitions(Topic::Chain).await?;
        let committed = self.broker.committed(&chain_group(&self.group), &chain).await?.into_iter().flatten().next();
        let state = match &committed {
            Some(committed) => ChainState::from_metadata(&committed.metadata)?,
            None => ChainState::default(),
        };
        let offset = committed.map_or(0, |committed| committed.offset);
        progress.committed += offset;
        progress.total += self.chain_total(&chain, offset, &state).await?;
        Ok(progress)
    }

    /// Counts the events of the chain and the blocks and reorgs that are not fed into it yet. A fed block that is not
    /// handled counts once.
    async fn chain_total(
        &self,
        chain: &[TopicPartition],
        handled: u64,
        state: &ChainState,
    ) -> Result<u64, BrokerError> {
        let mut end = 0;
        for partition in chain {
            end += self.end(partition).await?;
        }
        let sources = self.count_messages(Topic::BlockMined).await? + self.count_messages(Topic::Reorgs).await?;
        let unfed = sources.saturating_sub(state.block_mined_next + state.reorgs_next);
        Ok(end.max(handled + unfed))
    }

    /// Counts the messages that a topic holds.
    pub async fn count_messages(&self, topic: Topic) -> Result<u64, BrokerError> {
        let mut count = 0;
        for partition in self.partitions(topic).await? {
            let (low, high) = self.broker.watermarks(&partition).await?;
            count += high - low;
        }
        Ok(count)
    }

    /// Counts the contests in the chain.
    pub async fn count_contests(&self) -> Result<u64, BrokerError> {
        let mut contests = 0;
        for partition in self.partitions(Topic::Chain).await? {
            let (low, high) = self.broker.watermarks(&partition).await?;
            let mut reader = self.broker.read(&partition, low).await?;
            while reader.position() < high {
                let messages = reader.next(Duration::from_millis(200)).await?;
                let contested = |message: &&_| matches!(decode(message), Some(Event::Contest(_)));
                contests += messages.iter().filter(contested).count() as u64;
            }
        }
        Ok(contests)
    }

    async fn partitions(&self, topic: Topic) -> Result<Vec<TopicPartition>, BrokerError> {
        let name: Arc<str> = self.topics.name(topic).into();
        let count = self.broker.partitions(&name).await?.unwrap_or(0);
        Ok((0..count).map(|partition| TopicPartition { topic: name.clone(), partition }).collect())
    }

    async fn end(&self, partition: &TopicPartition) -> Result<u64, BrokerError> {
        Ok(self.broker.watermarks(partition).await?.1)
    }
}

/// Decodes an event; `None` for an undecodable message.
fn decode(message: &crate::broker::Message) -> Option<Event<'_>> {
    Event::decode(&message.payload).ok()
}
