//! Everything that was written, as it was written.

use std::time::Duration;

use utxo_store::{
    broker::{Broker, BrokerError, Message, TopicPartition},
    sequencer::SequencerTopics,
};

/// Where a message of the validated topic is. Ordered as the design orders events: time, partition, offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Milliseconds since the epoch.
    pub timestamp_ms: i64,
    /// Partition.
    pub partition: i32,
    /// The message's own offset.
    pub offset: u64,
}

/// A message and its partition.
#[derive(Debug, Clone)]
pub struct Logged {
    /// Its partition.
    pub partition: i32,
    /// The message.
    pub message: Message,
}

impl Logged {
    /// Where it is.
    pub fn place(&self) -> Place {
        Place { timestamp_ms: self.message.timestamp_ms, partition: self.partition, offset: self.message.offset }
    }
}

/// All messages of all topics; those of one partition in their order.
#[derive(Debug, Clone, Default)]
pub struct Logs {
    /// Name of the topic of validated transactions: contests and dead letters name it.
    pub validated_topic: String,
    /// Names of the others.
    pub topics: Option<SequencerTopics>,
    /// `utxo.validated-txs`
    pub validated: Vec<Logged>,
    /// `utxo.block-mined`
    pub block_mined: Vec<Logged>,
    /// `utxo.reorgs`
    pub reorgs: Vec<Logged>,
    /// `utxo.chain`
    pub chain: Vec<Logged>,
    /// `utxo.decisions`
    pub decisions: Vec<Logged>,
    /// `utxo.outcomes`
    pub outcomes: Vec<Logged>,
    /// `utxo.dead-letters`
    pub dead_letters: Vec<Logged>,
}

impl Logs {
    /// Reads every topic from its beginning to its present end.
    pub async fn read(broker: &dyn Broker, validated: &str, topics: &SequencerTopics) -> Result<Logs, BrokerError> {
        Ok(Logs {
            validated_topic: validated.to_owned(),
            topics: Some(topics.clone()),
            validated: read_topic(broker, validated).await?,
            block_mined: read_topic(broker, &topics.block_mined).await?,
            reorgs: read_topic(broker, &topics.reorgs).await?,
            chain: read_topic(broker, &topics.chain).await?,
            decisions: read_topic(broker, &topics.decisions).await?,
            outcomes: read_topic(broker, &topics.outcomes).await?,
            dead_letters: read_topic(broker, &topics.dead_letters).await?,
        })
    }
}

async fn read_topic(broker: &dyn Broker, topic: &str) -> Result<Vec<Logged>, BrokerError> {
    let mut all = Vec::new();
    for partition in 0..broker.partitions(topic).await?.unwrap_or(0) {
        let at = TopicPartition { topic: topic.into(), partition };
        let (low, high) = broker.watermarks(&at).await?;
        let mut reader = broker.read(&at, low).await?;
        while reader.position() < high {
            let messages = reader.next(Duration::from_millis(1)).await?;
            all.extend(messages.into_iter().map(|message| Logged { partition, message }));
        }
    }
    Ok(all)
}
