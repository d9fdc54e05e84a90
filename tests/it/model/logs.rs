//! All messages of a run, as written.

use std::time::Duration;

use utxo_store::{
    broker::{Broker, BrokerError, Message, TopicPartition},
    sequencer::SequencerTopics,
};

/// Position of a message in the validated topic. Positions are ordered as events: time, partition, offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// Timestamp, milliseconds since the epoch.
    pub timestamp_ms: i64,
    /// Partition of the message.
    pub partition: i32,
    /// Offset of the message itself.
    pub offset: u64,
}

/// A message with its partition.
#[derive(Debug, Clone)]
pub struct Logged {
    /// Partition of the message.
    pub partition: i32,
    /// The message itself.
    pub message: Message,
}

impl Logged {
    /// Returns the position of the message.
    pub fn place(&self) -> LogPosition {
        LogPosition { timestamp_ms: self.message.timestamp_ms, partition: self.partition, offset: self.message.offset }
    }
}

/// All messages of all topics; those of one partition in their order.
#[derive(Debug, Clone, Default)]
pub struct Logs {
    /// Name of the topic of validated transactions, as in contests and dead letters.
    pub validated_topic: String,
    /// Names of the other topics.
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
