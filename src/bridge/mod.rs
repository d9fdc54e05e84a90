//! Bridge from the Kafka topics of the reference system to the topics of this store (decision 0269).
//!
//! [`transactions`] gives each transaction its key; [`blocks`] turns block messages and an object store of subtrees
//! into `block-mined` and `reorg` events with a sequence. Both continue at the committed offsets of the bridge's group.
//! A message that is read again becomes the same event again.

pub mod blocks;
pub mod chain;
mod dead_letters;
mod forwarder;
pub mod messages;
mod owned;
mod progress;
pub mod subtree;
pub mod transactions;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    blob::BlobError,
    broker::{BrokerError, TopicPartition},
    client::PublishError,
    tx::Txid,
};

/// Wait for the next messages of a partition.
const READ_WAIT: Duration = Duration::from_millis(250);
/// Time between two looks at the partitions and the id of a topic.
const TOPIC_CHECK_INTERVAL: Duration = Duration::from_secs(10);

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
    /// Blocks that wait for their previous block now.
    pub waiting: AtomicU64,
    /// Block without a message for which blocks above the tip have waited long, as text.
    missing: Mutex<Option<String>>,
}

impl BridgeCounts {
    /// Returns the problem of a block without a message for which blocks above the tip have waited long: transactions
    /// wait meanwhile, or get the height of a past block.
    pub fn missing_block(&self) -> Option<String> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_missing_block(&self, problem: Option<String>) {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Returns the counts as text for a log record.
    pub fn describe(&self) -> String {
        let BridgeCounts { transactions, dead_letters, blocks, repeats, waiting, .. } = self;
        let load = |count: &AtomicU64| count.load(Relaxed);
        format!(
            "{} transactions, {} block events, {} repeated blocks, {} waiting blocks, {} dead letters",
            load(transactions),
            load(blocks),
            load(repeats),
            load(waiting),
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
    #[error(
        "topic `{topic}` is not the one of the committed offsets: its id is {found}, the id with the offsets is \
         {committed}; start with another --group, which reads the topic from its beginning"
    )]
    Recreated { topic: String, committed: String, found: String },
    #[error(
        "{partition} offset {offset}: {why}, the last one because of: {problem}; name the topic with the messages that \
         the bridge reads"
    )]
    DeadLetters { partition: TopicPartition, offset: u64, why: String, problem: String },
    #[error(
        "{partition}: up to offset {end} no message is of block {after} (--after), or of a block after it; correct \
         --after, or start again once the topic has the block"
    )]
    NoBegin { partition: TopicPartition, end: u64, after: Txid },
    /// A block message cannot become an event. The blocks after it need it, so that the bridge ends.
    #[error("{partition} offset {offset}: the block message cannot become an event: {problem}")]
    Block { partition: TopicPartition, offset: u64, problem: String },
    /// An own event cannot be read: another producer writes to the topic.
    #[error("{partition} offset {offset}: no event of a block; only the bridge may write to this topic")]
    ForeignEvent { partition: TopicPartition, offset: u64 },
}
