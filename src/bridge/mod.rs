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
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    blob::BlobError,
    broker::{BrokerError, TopicPartition},
    client::PublishError,
    telemetry::{BridgeMetrics, Metrics},
    tx::Txid,
};

/// Wait for the next messages of a partition.
const READ_WAIT: Duration = Duration::from_millis(250);
/// Time between two looks at the partitions and the id of a topic.
const TOPIC_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Counts of a bridge since its start, and its long waits.
pub struct BridgeCounts {
    /// The counts, as metrics.
    pub metrics: BridgeMetrics,
    waits: Mutex<LongWaits>,
}

/// Missing messages and objects for which the bridge has waited long, as text.
#[derive(Debug, Default)]
struct LongWaits {
    /// Block without a message, above which blocks wait.
    block: Option<String>,
    /// Object of a subtree.
    subtree: Option<String>,
}

impl BridgeCounts {
    /// Counts into the metrics of this process.
    ///
    /// # Errors
    /// The process has a bridge already.
    pub fn register(metrics: &Metrics) -> prometheus::Result<Self> {
        Ok(BridgeCounts { metrics: BridgeMetrics::register(metrics)?, waits: Mutex::default() })
    }

    /// Returns the problem of a block without a message for which blocks above the tip have waited long: transactions
    /// wait meanwhile, or get the height of a past block.
    pub fn missing_block(&self) -> Option<String> {
        self.waits().block.clone()
    }

    /// Returns the problem of a subtree object for which its block has waited long; the blocks after it wait, too.
    pub fn missing_subtree(&self) -> Option<String> {
        self.waits().subtree.clone()
    }

    fn waits(&self) -> MutexGuard<'_, LongWaits> {
        // No panic can leave a text half written.
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_missing_block(&self, problem: Option<String>) {
        self.waits().block = problem;
    }

    fn set_missing_subtree(&self, problem: Option<String>) {
        self.waits().subtree = problem;
    }

    /// Returns the counts as text for a log record.
    pub fn describe(&self) -> String {
        let BridgeMetrics { transactions, dead_letters, block_events, repeated_blocks, waiting_blocks } = &self.metrics;
        format!(
            "{} transactions, {} block events, {} repeated blocks, {} waiting blocks, {} dead letters",
            transactions.get(),
            block_events.get(),
            repeated_blocks.get(),
            waiting_blocks.get(),
            dead_letters.get()
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
    #[error(
        "the bridge has published events up to sequence {published}, and the topics of blocks and reorgs hold events \
         up to sequence {last}: create new topics, and begin there with another --group, and with --after the last \
         block of the store"
    )]
    LostEvents { last: u64, published: u64 },
    /// An own event cannot be read: another producer writes to the topic.
    #[error("{partition} offset {offset}: no event of a block; only the bridge may write to this topic")]
    ForeignEvent { partition: TopicPartition, offset: u64 },
}
