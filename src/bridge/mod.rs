//! Bridge from the Kafka topics of the reference system to the topics of this store (decision 0269).
//!
//! [`transactions`] gives each transaction its key; [`blocks`] turns block messages and an object store of subtrees
//! into `block-mined` and `reorg` events with a sequence. Both continue at the committed offsets of the bridge's group.
//! A message that is read again becomes the same event again.

pub mod blocks;
pub mod chain;
pub mod messages;
mod owned;
pub mod subtree;
pub mod transactions;

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    blob::BlobError,
    broker::{Broker, BrokerError, CommittedOffset, Message, Producer, TopicPartition, retry::until_answered},
    client::{PRODUCE_RETRY_PAUSE, PublishError},
    config::Topics,
    event::{DeadLetter, DeadLetterClass, Topic},
    group::dead_letters::publish_dead_letter,
};

/// Stage in the dead letters of the bridge.
const STAGE: &str = "bridge";

/// Wait for the next messages of a partition.
const READ_WAIT: Duration = Duration::from_millis(250);
/// Time between two commits of a partition.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two commits of an unchanged offset.
const REPEAT_INTERVAL: Duration = Duration::from_secs(3_600);
/// Longest time of the commit at the end.
const LAST_COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Counts of the messages that the bridge has handled since its start.
#[derive(Debug, Default)]
pub struct BridgeCounts {
    /// Transactions that were published.
    pub transactions: AtomicU64,
    /// Messages that became dead letters.
    pub dead_letters: AtomicU64,
    /// Events of blocks and reorgs that were published.
    pub blocks: AtomicU64,
    /// Block messages that were repeats.
    pub repeats: AtomicU64,
}

impl BridgeCounts {
    /// Returns the counts as text for a log record.
    pub fn describe(&self) -> String {
        let BridgeCounts { transactions, dead_letters, blocks, repeats } = self;
        let load = |count: &AtomicU64| count.load(Relaxed);
        format!(
            "{} transactions, {} block events, {} repeated blocks, {} dead letters",
            load(transactions),
            load(blocks),
            load(repeats),
            load(dead_letters)
        )
    }
}

/// Reason why the bridge ends.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum BridgeError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("cannot store a list of txids as an object: {0}")]
    Objects(#[from] BlobError),
    #[error("a block has too many txids for a message: set objects.url, which its instances read")]
    NoObjects,
    #[error("topic `{0}` does not exist")]
    NoTopic(String),
    #[error("topic `{topic}` has {partitions} partitions; the blocks need one order, and so one partition")]
    Partitions { topic: String, partitions: i32 },
    /// A block message cannot become an event. The blocks after it need it, so that the bridge ends.
    #[error("{partition} offset {offset}: the block message cannot become an event: {problem}")]
    Block { partition: TopicPartition, offset: u64, problem: String },
    /// An own event cannot be read: another producer writes to the topic.
    #[error("{partition} offset {offset}: no event of a block; only the bridge may write to this topic")]
    ForeignEvent { partition: TopicPartition, offset: u64 },
}

/// Returns the offset at which a partition continues: the committed one, or the first that the topic holds.
async fn start_offset(broker: &dyn Broker, group: &str, partition: &TopicPartition) -> Result<u64, BridgeError> {
    let committed = until_answered(|| broker.committed(group, std::slice::from_ref(partition))).await?;
    match committed.into_iter().next().flatten() {
        Some(committed) => Ok(committed.offset),
        None => Ok(until_answered(|| broker.watermarks(partition)).await?.0),
    }
}

/// Publishes the dead letter of a message that is none of the reference.
async fn publish_dead(
    producer: &dyn Producer,
    topics: &Topics,
    partition: &TopicPartition,
    source: Message,
    problem: String,
) -> Result<(), BrokerError> {
    tracing::warn!(%partition, offset = source.offset, problem, "bridge: message becomes a dead letter");
    let letter = DeadLetter {
        topic: partition.topic.to_string(),
        partition: partition.partition,
        offset: source.offset,
        stage: STAGE.to_owned(),
        class: DeadLetterClass::Decode,
        message: problem,
        timestamp_ms: source.timestamp_ms,
    };
    publish_dead_letter(producer, topics.name(Topic::DeadLetters), source, &letter, PRODUCE_RETRY_PAUSE).await
}

/// Commits the progress of one partition from time to time.
struct Committer<'a> {
    broker: &'a dyn Broker,
    group: &'a str,
    partition: TopicPartition,
    /// The next offset, once a message was handled or the start is known.
    next: Option<u64>,
    committed: Option<u64>,
    last: Instant,
}

impl<'a> Committer<'a> {
    fn new(broker: &'a dyn Broker, group: &'a str, partition: TopicPartition) -> Self {
        Committer { broker, group, partition, next: None, committed: None, last: Instant::now() }
    }

    /// Commits where the offset has changed and the last commit is old enough. An unchanged offset is committed again
    /// each hour: brokers drop the offsets of a group without members after some days.
    async fn commit_in_time(&mut self, offset: u64) -> Result<(), BrokerError> {
        self.next = Some(offset);
        let interval = if self.committed == Some(offset) { REPEAT_INTERVAL } else { COMMIT_INTERVAL };
        if self.last.elapsed() < interval { Ok(()) } else { self.commit(offset).await }
    }

    /// Commits the offset at the end of the bridge. A broker that does not answer in time is no error: the messages
    /// since the last commit are read again.
    async fn commit_at_end(&mut self) -> Result<(), BridgeError> {
        let Some(offset) = self.next.filter(|offset| self.committed != Some(*offset)) else { return Ok(()) };
        match tokio::time::timeout(LAST_COMMIT_TIMEOUT, self.commit(offset)).await {
            Ok(committed) => Ok(committed?),
            Err(_) => {
                tracing::warn!(partition = %self.partition, offset, "bridge: last offset not committed in time");
                Ok(())
            }
        }
    }

    async fn commit(&mut self, offset: u64) -> Result<(), BrokerError> {
        self.last = Instant::now();
        let commit = [(self.partition.clone(), CommittedOffset { offset, metadata: String::new() })];
        until_answered(|| self.broker.set_committed(self.group, &commit)).await?;
        self.committed = Some(offset);
        Ok(())
    }
}
