//! What the pipeline needs of a log: consume with epochs, seek, commit with metadata, produce with acknowledgement.
//!
//! An *offset* is always the next message to read. [`kafka`] is the only place that names rdkafka; [`memory`] is for
//! tests and simulation.

pub mod conformance;
pub mod identity;
pub mod kafka;
pub mod memory;
pub mod partitioner;
pub mod replay;
pub mod retry;
pub mod saved;

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::backoff::Backoff;

/// A partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// Topic name, interned.
    pub topic: Arc<str>,
    /// Partition number.
    pub partition: i32,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// One message as it was read. Payload and key share the arena of the batch they came in.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its own offset.
    pub offset: u64,
    /// Milliseconds since the epoch, as the topic records it.
    pub timestamp_ms: i64,
    /// Empty when absent.
    pub key: Bytes,
    /// Empty when absent.
    pub payload: Bytes,
    /// In their order.
    pub headers: Vec<(String, Bytes)>,
}

impl Message {
    /// What whoever keeps it keeps: key, payload and headers.
    pub fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        self.key.len() + self.payload.len() + headers.sum::<usize>()
    }
}

/// Messages of one partition, in order, read under one epoch.
///
/// An offset that was delivered under an epoch may, rarely, be delivered again under the same one (the client fetches
/// again after a pause; [`memory::MemoryFaults::duplicate`] does it on purpose): pass over what is not new.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Where they come from.
    pub partition: TopicPartition,
    /// The assignment's epoch: a completion whose epoch is gone is dropped.
    pub epoch: u64,
    /// In ascending offset order; gaps are possible.
    pub messages: Vec<Message>,
    /// The partition's end (offset of the next message to be produced) as last heard; at least `last offset + 1`.
    pub high_watermark: u64,
}

/// A partition that was given to this member.
#[derive(Debug, Clone)]
pub struct Assigned {
    /// The partition.
    pub partition: TopicPartition,
    /// New with every assignment, never reused within a process.
    pub epoch: u64,
    /// What the group had committed, with its metadata.
    pub committed: Option<Committed>,
    /// Where reading starts (the committed offset, else the low watermark).
    pub position: u64,
    /// The partition's end at the time of the assignment.
    pub high_watermark: u64,
}

/// A committed offset and what was said with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Next to read.
    pub offset: u64,
    /// At most 4,096 bytes of text.
    pub metadata: String,
}

impl Committed {
    /// Refuses what no broker takes.
    fn check(&self, operation: &'static str, at: &TopicPartition) -> Result<(), BrokerError> {
        if self.metadata.len() <= MAX_COMMIT_METADATA {
            return Ok(());
        }
        let message = format!("{at}: {} bytes of metadata", self.metadata.len());
        Err(BrokerError::new(BrokerErrorKind::Refused, operation, message))
    }
}

/// The most bytes of metadata that a commit may carry (Kafka's `offset.metadata.max.bytes` by default).
pub const MAX_COMMIT_METADATA: usize = 4096;

/// What a consumer hears.
#[derive(Debug)]
pub enum Polled {
    /// Messages of one partition.
    Messages(Batch),
    /// Partitions were added; none, where this member is in the group, and there are none for it.
    Assigned(Vec<Assigned>),
    /// Partitions are being taken away. They may still be committed (unless `lost`) until
    /// [`Consumer::finish_revocation`] is called; the consumer waits for that, within its own bound.
    Revoked {
        /// Which.
        partitions: Vec<TopicPartition>,
        /// They already belong to somebody else: drain and commit nothing.
        lost: bool,
    },
    /// A partition has been read to its end (as far as is known): once each time that happens, also for an empty one.
    End(End),
}

/// The end of a partition, as it was reached. Everything below it that is a message has been delivered under the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Which.
    pub partition: TopicPartition,
    /// Of the assignment.
    pub epoch: u64,
    /// Where reading goes on: past what lies at the end and is no message, the mark of a transaction.
    pub position: u64,
}

/// A commit that is on its way, which holds nothing of its consumer. Nothing happens before it is polled; dropped, it may or may not
/// have come through.
pub type Committing = Pin<Box<dyn Future<Output = Result<(), BrokerError>> + Send>>;

/// A member of a consumer group.
#[async_trait]
pub trait Consumer: Send {
    /// The next thing to hear. Cancel safe: what a dropped future would have returned comes with the next call. Errors
    /// that heal by themselves are logged, not returned.
    ///
    /// [`BrokerErrorKind::OutOfRange`] comes once for a partition whose position is not there; the partition stays
    /// assigned and silent until a [`seek`](Self::seek).
    async fn poll(&mut self) -> Result<Polled, BrokerError>;

    /// Commits offsets for partitions of the assignment as it is when the answer is first polled. When one of them is not assigned then
    /// (or was lost), the whole call is refused as [`BrokerErrorKind::NotAssigned`] and nothing is committed. Everything else may be asked
    /// of the consumer meanwhile; a revocation that is finished before the commit has ended waits for it, within its own bound.
    fn commit(&mut self, offsets: &[(TopicPartition, Committed)]) -> Committing;

    /// Reads on from `offset`, under a new epoch, which is returned; messages of the old epoch may still come, marked as such.
    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError>;

    /// Stops delivering messages of a partition (backpressure); what was fetched is kept or fetched again.
    fn pause(&mut self, partition: &TopicPartition) -> Result<(), BrokerError>;

    /// Delivers again.
    fn resume(&mut self, partition: &TopicPartition) -> Result<(), BrokerError>;

    /// Lets the revocations that were heard go through: from now on others may own the partitions.
    fn finish_revocation(&mut self);

    /// Leaves the group, with everything that is assigned and without a last [`Polled::Revoked`]: drain and commit
    /// before. Bounded in time; later calls fail with [`BrokerErrorKind::Fatal`]. A consumer dropped without it is a
    /// member that crashed.
    async fn close(&mut self) -> Result<(), BrokerError>;
}

/// Reads one partition without a group: decisions, feeds, rebuilds, inspection.
#[async_trait]
pub trait Reader: Send {
    /// The next messages, or an empty vector after `wait` without any.
    async fn next(&mut self, wait: Duration) -> Result<Vec<Message>, BrokerError>;

    /// Offset of the next message that [`next`](Self::next) would return.
    fn position(&self) -> u64;

    /// Reads on from `offset`. A reader whose seek failed or was not waited for reads nothing until one succeeds.
    ///
    /// # Errors
    /// [`BrokerErrorKind::OutOfRange`]: the partition does not hold it.
    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError>;
}

/// A message to be produced.
#[derive(Debug, Clone, Default)]
pub struct Produce {
    /// Topic name.
    pub topic: String,
    /// `None`: by the key.
    pub partition: Option<i32>,
    /// Empty: no key.
    pub key: Bytes,
    /// Empty is a tombstone in a compacted topic; ours are not.
    pub payload: Bytes,
    /// In their order.
    pub headers: Vec<(String, Bytes)>,
    /// Milliseconds since the epoch; `None`: now.
    pub timestamp_ms: Option<i64>,
}

/// Where a produced message went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Partition number.
    pub partition: i32,
    /// Its own offset.
    pub offset: u64,
}

/// Produces with acknowledgement: when it answers, all in-sync replicas have the message.
#[async_trait]
pub trait Producer: Send + Sync {
    /// Produces one message; waits for the acknowledgement. Messages of one partition keep the order of the calls.
    async fn produce(&self, message: Produce) -> Result<Delivered, BrokerError>;

    /// Produces many, in order within a partition; the first failure is returned once all are settled.
    async fn produce_all(&self, messages: Vec<Produce>) -> Result<Vec<Delivered>, BrokerError>;
}

/// Produces messages until all are acknowledged; a retry may repeat what had been. `pause`: the first and the longest between
/// tries, each shortened by chance.
///
/// # Errors
/// What no retry heals.
pub async fn produce_until_acknowledged(
    producer: &dyn Producer,
    messages: &[Produce],
    pause: (Duration, Duration),
) -> Result<Vec<Delivered>, BrokerError> {
    let pauses = Backoff::of(pause, messages.first().map_or(&[][..], |message| &message.key));
    let produce = || producer.produce_all(messages.to_vec());
    pauses.until_answered(|error| error.kind == BrokerErrorKind::Retryable, produce).await
}

/// A topic to be created.
#[derive(Debug, Clone)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// Number of partitions.
    pub partitions: i32,
    /// Topic configuration, e.g. `retention.ms`.
    pub config: Vec<(String, String)>,
}

/// Id that a cluster gives to a topic when the topic is created; a topic of the same name that is created later has
/// another one.
pub type TopicId = [u8; 16];

/// Identity of a topic: tells it from another topic of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicIdentity {
    /// Id of the topic; `None`: the cluster gives no ids (Apache Kafka before 2.8).
    pub id: Option<TopicId>,
    /// Number of partitions.
    pub partitions: i32,
}

/// A log: the way in to everything above.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Joins a group and subscribes to topics.
    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError>;

    /// Opens a partition from `offset` on.
    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn Reader>, BrokerError>;

    /// A producer (idempotent, `acks=all`).
    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError>;

    /// Number of partitions of a topic; `None` when it does not exist.
    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError>;

    /// Identities of topics as the cluster has them now, in the order asked for; `None`: the topic does not exist. The
    /// default implementation knows no ids.
    ///
    /// # Errors
    /// The broker does not answer, or a topic may not be looked at.
    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        let mut identities = Vec::with_capacity(topics.len());
        for topic in topics {
            let count = self.partitions(topic).await?;
            identities.push(count.map(|partitions| TopicIdentity { id: None, partitions }));
        }
        Ok(identities)
    }

    /// (low, high) watermarks of a partition.
    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError>;

    /// For each partition of a topic the first offset whose message is of this time (ms since the epoch) or later; `None`: there is
    /// none. Behind it there may be messages that are older. Of what the topic no longer holds nothing is said. (librdkafka's mock
    /// cluster looks no times up: there it is `None` always.)
    ///
    /// # Errors
    /// The topic does not exist, or the broker does not answer.
    async fn offsets_at(&self, topic: &str, timestamp_ms: i64) -> Result<Vec<Option<u64>>, BrokerError>;

    /// What a group has committed, for each partition asked for. Does not join the group.
    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<Committed>>, BrokerError>;

    /// Commits for a group that has no members, all or nothing; what it has committed of other partitions stays. A group that
    /// has members is refused ([`BrokerErrorKind::Refused`]) by whoever keeps its offsets: one that joins meanwhile is not
    /// overlooked. After an error that may be retried, ask [`committed`](Self::committed) what became of it.
    /// (The mock cluster refuses every group that ever had a member.)
    async fn set_committed(&self, group: &str, offsets: &[(TopicPartition, Committed)]) -> Result<(), BrokerError>;

    /// How many members a group has; 0 where there is none of that name.
    async fn member_count(&self, group: &str) -> Result<usize, BrokerError>;

    /// Creates topics; one that exists already with as many partitions is no error.
    async fn create_topics(&self, topics: &[NewTopic]) -> Result<(), BrokerError>;

    /// What its clients notice of the log being away; changes each time that one does. That it is there again, who asks it for
    /// something finds out. `None`: it cannot be away.
    fn outages(&self) -> Option<watch::Receiver<Outage>> {
        None
    }
}

/// What a client noticed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outage {
    /// All brokers that it knows are away; otherwise one of them, and another may do.
    pub whole: bool,
    /// In one line.
    pub why: String,
}

/// What the broker could not do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct BrokerError {
    /// What the caller may do.
    pub kind: BrokerErrorKind,
    /// What was being done.
    pub operation: &'static str,
    /// What went wrong, in one line, with the topic or partition.
    pub message: String,
}

/// Classes of broker errors by what the caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerErrorKind {
    /// Try again after a pause.
    Retryable,
    /// A commit or seek named a partition that is not assigned (any more): drop it.
    NotAssigned,
    /// The offset to read from is no longer, or not yet, there: an operator must decide.
    OutOfRange,
    /// Topic, partition or group does not exist, or access is refused.
    Refused,
    /// The message is larger than the client or the topic takes.
    TooLarge,
    /// The topic does not take the message, and a retry changes nothing: its configuration, the login's rights or the
    /// topic itself would have to change.
    Rejected,
    /// Another member has joined the group under this one's name: what was this one's is that one's.
    Fenced,
    /// The client is unusable.
    Fatal,
}

impl BrokerErrorKind {
    /// Whether the client can do nothing any more.
    pub fn ends_the_client(self) -> bool {
        matches!(self, BrokerErrorKind::Fenced | BrokerErrorKind::Fatal)
    }
}

impl BrokerError {
    /// An error of `kind` while doing `operation`.
    pub fn new(kind: BrokerErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        BrokerError { kind, operation, message: message.into() }
    }

    pub(crate) fn unknown_topic(operation: &'static str, topic: &str) -> Self {
        Self::new(BrokerErrorKind::Refused, operation, format!("topic {topic} does not exist"))
    }

    fn unknown_partition(operation: &'static str, at: &TopicPartition) -> Self {
        Self::new(BrokerErrorKind::Refused, operation, format!("partition {at} does not exist"))
    }

    fn has_members(operation: &'static str, group: &str) -> Self {
        let message = format!("the group {group} has members, which commit by themselves: stop them first");
        Self::new(BrokerErrorKind::Refused, operation, message)
    }

    fn not_assigned(operation: &'static str, at: &TopicPartition) -> Self {
        Self::new(BrokerErrorKind::NotAssigned, operation, format!("{at} is not assigned to this member"))
    }

    fn out_of_range(operation: &'static str, at: &TopicPartition, offset: u64, low: u64, high: u64) -> Self {
        let message = format!("{at}: offset {offset} is out of range: the partition holds {low}..{high}");
        Self::new(BrokerErrorKind::OutOfRange, operation, message)
    }
}

/// What was asked of a partition that is being taken away, which is heard next: there is nothing to be done.
pub(crate) fn unless_taken_away(answer: Result<(), BrokerError>) -> Result<(), BrokerError> {
    answer.or_else(|error| if error.kind == BrokerErrorKind::NotAssigned { Ok(()) } else { Err(error) })
}
