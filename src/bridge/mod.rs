//! Bridge from the Kafka topics of the reference system to the topics of this store (decision 0269).
//!
//! [`transactions`] gives each transaction its key; [`blocks`] turns block messages and an object store of subtrees
//! into `block-mined` and `reorg` events with a sequence. Both continue at the committed offsets of the bridge's group.
//! A message that is read again becomes the same event again.

pub mod blocks;
pub mod chain;
pub mod messages;
pub mod subtree;
pub mod transactions;

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    blob::BlobError,
    broker::{Broker, BrokerError, CommittedOffset, TopicPartition, retry::until_answered},
    client::PublishError,
};

/// Wait for the next messages of a partition.
const READ_WAIT: Duration = Duration::from_millis(250);
/// Time between two commits of a partition.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Counts of the messages that the bridge has handled since its start.
#[derive(Debug, Default)]
pub struct BridgeCounts {
    /// Transactions that were published.
    pub transactions: AtomicU64,
    /// Transactions that create no outputs, which the store does not need.
    pub skipped: AtomicU64,
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
        let BridgeCounts { transactions, skipped, dead_letters, blocks, repeats } = self;
        let load = |count: &AtomicU64| count.load(Relaxed);
        format!(
            "{} transactions, {} without outputs, {} dead letters; {} block events, {} repeats",
            load(transactions),
            load(skipped),
            load(dead_letters),
            load(blocks),
            load(repeats)
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
    /// A block message cannot become an event. No later block can, so that the bridge ends.
    #[error("{partition} offset {offset}: the block message cannot become an event: {problem}")]
    Block { partition: TopicPartition, offset: u64, problem: String },
    #[error("the committed offset of {0} was not committed by a bridge; commit nothing else under its group")]
    ForeignCommit(TopicPartition),
    #[error(
        "topic `{0}` has events already, and the group of the bridge has committed nothing: the first event of the \
         bridge has sequence 1; start with empty topics, or with the group of the earlier bridge"
    )]
    NotEmpty(String),
}

/// Returns the offset at which a partition continues: the committed one, or the first that the topic holds.
async fn start_offset(
    broker: &dyn Broker,
    group: &str,
    partition: &TopicPartition,
) -> Result<(u64, Option<String>), BridgeError> {
    let committed = until_answered(|| broker.committed(group, std::slice::from_ref(partition))).await?;
    match committed.into_iter().next().flatten() {
        Some(CommittedOffset { offset, metadata }) => Ok((offset, Some(metadata))),
        None => Ok((until_answered(|| broker.watermarks(partition)).await?.0, None)),
    }
}

/// Commits the progress of one partition from time to time.
struct Committer<'a> {
    broker: &'a dyn Broker,
    group: &'a str,
    partition: TopicPartition,
    committed: Option<CommittedOffset>,
    last: Instant,
}

impl<'a> Committer<'a> {
    fn new(broker: &'a dyn Broker, group: &'a str, partition: TopicPartition) -> Self {
        Committer { broker, group, partition, committed: None, last: Instant::now() }
    }

    /// Commits where the offset has changed and the last commit is old enough.
    async fn commit_in_time(&mut self, offset: CommittedOffset) -> Result<(), BrokerError> {
        if self.last.elapsed() < COMMIT_INTERVAL { Ok(()) } else { self.commit(offset).await }
    }

    async fn commit(&mut self, offset: CommittedOffset) -> Result<(), BrokerError> {
        self.last = Instant::now();
        if self.committed.as_ref() == Some(&offset) {
            return Ok(());
        }
        let commit = [(self.partition.clone(), offset.clone())];
        until_answered(|| self.broker.set_committed(self.group, &commit)).await?;
        self.committed = Some(offset);
        Ok(())
    }
}
