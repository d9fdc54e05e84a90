//! How far the groups have come, from what they have committed: that outlives every process.

use std::{sync::Arc, time::Duration};

use crate::{
    broker::{Broker, BrokerError, TopicPartition},
    cli::Failure,
    config::{Config, Topics},
    event::{Event, Topic},
    sequencer::{chain_group, state::ChainState},
};

/// What is committed, and how much there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DemoProgress {
    /// Committed events of the transactions' topic and of the chain.
    pub committed: u64,
    /// Events that are known to be there: of those topics, and not yet fed into the chain.
    pub total: u64,
}

impl DemoProgress {
    /// Everything is consumed.
    pub fn is_done(&self) -> bool {
        self.committed >= self.total
    }
}

/// The two groups of an instance.
pub struct Groups {
    broker: Arc<dyn Broker>,
    topics: Topics,
    group: String,
}

impl Groups {
    /// Those of a configuration.
    pub fn new(broker: Arc<dyn Broker>, config: &Config) -> Self {
        Groups { broker, topics: config.kafka.topics.clone(), group: config.kafka.group.clone() }
    }

    /// How far they are.
    ///
    /// # Errors
    /// The broker does not answer, or what was committed is not a chain's state.
    pub async fn standing(&self) -> Result<DemoProgress, Failure> {
        let mut standing = DemoProgress::default();
        let validated = self.partitions(Topic::ValidatedTxs).await?;
        let committed = self.broker.committed(&self.group, &validated).await?;
        for (partition, committed) in validated.iter().zip(committed) {
            standing.committed += committed.map_or(0, |committed| committed.offset);
            standing.total += self.end(partition).await?;
        }
        let chain = self.partitions(Topic::Chain).await?;
        let committed = self.broker.committed(&chain_group(&self.group), &chain).await?.into_iter().flatten().next();
        let state = match &committed {
            Some(committed) => ChainState::from_metadata(&committed.metadata)?,
            None => ChainState::default(),
        };
        let offset = committed.map_or(0, |committed| committed.offset);
        standing.committed += offset;
        standing.total += self.chain_total(&chain, offset, &state).await?;
        Ok(standing)
    }

    /// What the chain holds or will hold: blocks that were fed and not handled count where they are read from.
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
        let sources = self.messages_in(Topic::BlockMined).await? + self.messages_in(Topic::Reorgs).await?;
        let unfed = sources.saturating_sub(state.block_mined_next + state.reorgs_next);
        Ok(end.max(handled + unfed))
    }

    /// How many messages a topic holds.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn messages_in(&self, topic: Topic) -> Result<u64, BrokerError> {
        let mut count = 0;
        for partition in self.partitions(topic).await? {
            let (low, high) = self.broker.watermarks(&partition).await?;
            count += high - low;
        }
        Ok(count)
    }

    /// How many contests there were: they are all in the chain.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn contests(&self) -> Result<u64, BrokerError> {
        let mut contests = 0;
        for partition in self.partitions(Topic::Chain).await? {
            let (low, high) = self.broker.watermarks(&partition).await?;
            let mut reader = self.broker.read(&partition, low).await?;
            while reader.position() < high {
                let messages = reader.next(Duration::from_millis(200)).await?;
                let contested = |message: &&_| matches!(decoded(message), Some(Event::Contest(_)));
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

/// What is no event is nobody's contest.
fn decoded(message: &crate::broker::Message) -> Option<Event<'_>> {
    Event::decode(&message.payload).ok()
}
