//! The log as the pipeline needs it: consume with epochs, seek, commit with metadata, produce with acknowledgement.
//!
//! A stored *offset* always names the next message to read; [`Message::offset`] is the position of the message itself.
//! [`kafka`] is the only module that names rdkafka. [`memory`] serves tests and simulation.

pub mod committed;
#[cfg(feature = "testkit")]
pub mod conformance;
#[cfg(feature = "testkit")]
mod decorator;
pub mod identity;
pub mod kafka;
pub mod memory;
mod merged_readers;
pub mod partitioner;
pub mod range;
pub mod replay;
pub mod retry;
pub mod saved;

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{sync::watch, time::Instant};

#[cfg(feature = "testkit")]
pub use decorator::BrokerDecorator;

use self::merged_readers::MergedReaders;
use crate::backoff::Backoff;

/// A partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// Name of the topic, interned.
    pub topic: Arc<str>,
    /// Number of the partition, from 0.
    pub partition: i32,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// A message as read. Payload and key share the allocation of their [`MessageBatch`].
#[derive(Debug, Clone)]
pub struct Message {
    /// Position of this message in its partition.
    pub offset: u64,
    /// Milliseconds since the epoch, as the topic records it.
    pub timestamp_ms: i64,
    /// Key of the message; empty: no key.
    pub key: Bytes,
    /// Payload of the message; empty: no payload.
    pub payload: Bytes,
    /// Names and values, in the order of the message.
    pub headers: Vec<(String, Bytes)>,
}

impl Message {
    /// Memory that the message occupies: the bytes of key, payload and headers.
    pub fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        self.key.len() + self.payload.len() + headers.sum::<usize>()
    }
}

/// Messages of one partition, in order, read under one epoch.
///
/// A consumer may deliver an offset twice under one epoch, though rarely: the client fetches again after a pause, and
/// `MemoryFaults::duplicate` does so on purpose. The caller skips offsets that it has seen.
#[derive(Debug, Clone)]
pub struct MessageBatch {
    /// Source of the messages.
    pub partition: TopicPartition,
    /// Epoch of the assignment. A completion under an epoch that has ended is dropped.
    pub epoch: u64,
    /// Messages in ascending offset order; gaps are possible.
    pub messages: Vec<Message>,
    /// Last known end offset of the partition; at least the last message's offset + 1.
    pub high_watermark: u64,
}

/// A partition that the group has assigned to this member.
#[derive(Debug, Clone)]
pub struct AssignedPartition {
    /// The topic and number of the partition.
    pub partition: TopicPartition,
    /// Epoch of the assignment: new with every assignment, never reused within a process.
    pub epoch: u64,
    /// Committed offset of the group, with its metadata; `None`: the group has committed nothing.
    pub committed: Option<CommittedOffset>,
    /// First offset to read: the committed offset, else the low watermark.
    pub position: u64,
    /// End offset of the partition at the time of the assignment.
    pub high_watermark: u64,
}

/// A committed offset with its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The next offset to read.
    pub offset: u64,
    /// Text of at most 4,096 bytes.
    pub metadata: String,
}

impl CommittedOffset {
    /// Refuses metadata that is longer than [`MAX_COMMIT_METADATA`]: no broker accepts it.
    fn check(&self, operation: &'static str, at: &TopicPartition) -> Result<(), BrokerError> {
        if self.metadata.len() <= MAX_COMMIT_METADATA {
            return Ok(());
        }
        let message = format!("{at}: {} bytes of metadata", self.metadata.len());
        Err(BrokerError::new(BrokerErrorKind::Refused, operation, message))
    }
}

/// Most bytes of metadata in a commit (the default of Kafka's `offset.metadata.max.bytes`).
pub const MAX_COMMIT_METADATA: usize = 4096;

/// An event of a consumer, returned by [`Consumer::poll`].
#[derive(Debug)]
pub enum ConsumerEvent {
    /// Messages of one partition.
    Messages(MessageBatch),
    /// New partitions of this member; empty where the member is in the group and has no partition.
    Assigned(Vec<AssignedPartition>),
    /// A revocation. Unless `lost`, the member may commit the partitions until it calls
    /// [`Consumer::finish_revocation`]; the consumer waits for that call up to its own timeout.
    Revoked {
        /// The partitions that this member gives up.
        partitions: Vec<TopicPartition>,
        /// The partitions already have another owner: the member drains and commits nothing.
        lost: bool,
    },
    /// The consumer has read a partition up to the end offset that it knows: reported once each time, also for an
    /// empty partition.
    End(PartitionEnd),
}

/// The end of a partition that a consumer has reached. Every message below has been delivered under the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionEnd {
    /// The partition that was read to its end.
    pub partition: TopicPartition,
    /// Epoch of the assignment.
    pub epoch: u64,
    /// Next offset to read, above any marker of a Kafka transaction at the end.
    pub position: u64,
}

/// A commit in progress, independent of its consumer. The commit begins with the first poll of the future. A dropped
/// commit may or may not have reached the group coordinator.
pub type CommitFuture = Pin<Box<dyn Future<Output = Result<(), BrokerError>> + Send>>;

/// A member of a consumer group.
#[async_trait]
pub trait Consumer: Send {
    /// Returns the next event. Cancel safe: the next call returns the event of a dropped future. Errors that heal
    /// without the caller are logged and not returned.
    ///
    /// [`BrokerErrorKind::OutOfRange`] comes once for a partition whose position the log does not hold. The partition
    /// stays assigned and delivers nothing until a [`seek`](Self::seek).
    async fn poll(&mut self) -> Result<ConsumerEvent, BrokerError>;

    /// Commits offsets of assigned partitions. The assignment at the first poll of the future counts: if one of the
    /// partitions is not assigned or was lost, nothing is committed and the error is
    /// [`BrokerErrorKind::NotAssigned`]. The consumer stays usable meanwhile. A revocation that the caller finishes
    /// before the commit has ended waits for the commit, up to its own timeout.
    fn commit(&mut self, offsets: &[(TopicPartition, CommittedOffset)]) -> CommitFuture;

    /// Continues to read at `offset` under a new epoch and returns the epoch. Messages of the old epoch may still
    /// come, marked with the old epoch.
    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError>;

    /// Stops the delivery of a partition's messages (backpressure). Fetched messages are kept, or fetched again.
    fn pause(&mut self, partition: &TopicPartition) -> Result<(), BrokerError>;

    /// Continues the delivery of a paused partition.
    fn resume(&mut self, partition: &TopicPartition) -> Result<(), BrokerError>;

    /// Completes the revocations that [`poll`](Self::poll) has returned: other members may own the partitions from
    /// now on.
    fn finish_revocation(&mut self);

    /// Leaves the group and gives up every partition, without a last [`ConsumerEvent::Revoked`]: the caller drains
    /// and commits before. The call ends within a timeout; later calls fail with [`BrokerErrorKind::Fatal`]. To the
    /// group, a consumer that is dropped without `close` is a member that crashed.
    async fn close(&mut self) -> Result<(), BrokerError>;
}

/// Reads one partition without a group: decisions, feeds, rebuilds, inspection.
#[async_trait]
pub trait PartitionReader: Send {
    /// Returns the next messages, or an empty vector after `wait` without a message. Cancel safe.
    async fn next(&mut self, wait: Duration) -> Result<Vec<Message>, BrokerError>;

    /// Offset of the next message that [`next`](Self::next) would return.
    fn position(&self) -> u64;

    /// Continues to read at `offset`. After a seek that failed or was cancelled the reader returns errors until a
    /// seek succeeds.
    ///
    /// # Errors
    /// [`BrokerErrorKind::OutOfRange`]: the partition does not hold `offset`.
    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError>;
}

/// Reads several partitions without a group, in one client.
#[async_trait]
pub trait PartitionSetReader: Send {
    /// Waits for the next messages of any of the partitions. Cancel safe.
    ///
    /// # Errors
    /// A partition cannot be read. The reader may have lost its place: the caller opens another one.
    async fn next(&mut self) -> Result<MessageBatch, BrokerError>;
}

/// A message to be produced.
#[derive(Debug, Clone, Default)]
pub struct OutgoingMessage {
    /// Name of the destination topic.
    pub topic: String,
    /// Number of the destination partition; `None`: chosen by the key.
    pub partition: Option<i32>,
    /// Key of the message; empty: no key.
    pub key: Bytes,
    /// Payload of the message. An empty payload deletes its key in a compacted topic; our topics are not compacted.
    pub payload: Bytes,
    /// Names and values, in the order of the message.
    pub headers: Vec<(String, Bytes)>,
    /// Milliseconds since the epoch; `None`: now.
    pub timestamp_ms: Option<i64>,
}

/// Partition and offset of a produced message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Number of the partition that stores the message.
    pub partition: i32,
    /// Position of the message in the partition.
    pub offset: u64,
}

/// Produces with acknowledgement: an answer means that all in-sync replicas have the message.
#[async_trait]
pub trait Producer: Send + Sync {
    /// Produces one message and waits for the acknowledgement. Messages of one partition keep the order of the calls.
    async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError>;

    /// Produces messages, in order within a partition. Waits for all answers and returns the first failure, if any.
    async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError>;

    /// Produces messages, in order within a partition, and waits for the answers until `deadline`. `result[i]` belongs
    /// to `messages[i]`. A message without an answer by then may be in the log; its error may be retried. The default
    /// implementation produces one message after the other.
    async fn produce_each(
        &self,
        messages: &[OutgoingMessage],
        deadline: Instant,
    ) -> Vec<Result<Delivery, BrokerError>> {
        let mut results = Vec::with_capacity(messages.len());
        for message in messages {
            let produced = tokio::time::timeout_at(deadline, self.produce(message.clone())).await;
            results.push(produced.unwrap_or_else(|_| Err(BrokerError::unacknowledged(&message.topic))));
        }
        results
    }
}

/// Produces messages until all are acknowledged. A retry may repeat messages that were acknowledged. `pause`: the first
/// and the longest pause between attempts, each shortened at random.
///
/// # Errors
/// The first error that a retry does not heal.
pub async fn produce_until_acknowledged(
    producer: &dyn Producer,
    messages: &[OutgoingMessage],
    pause: (Duration, Duration),
) -> Result<Vec<Delivery>, BrokerError> {
    let pauses = Backoff::from_key(pause, messages.first().map_or(&[][..], |message| &message.key));
    let produce = || producer.produce_all(messages.to_vec());
    pauses.retry(|error| error.kind == BrokerErrorKind::Retryable, produce).await
}

/// A topic to be created.
#[derive(Debug, Clone)]
pub struct NewTopic {
    /// Name of the new topic.
    pub name: String,
    /// Number of partitions to create.
    pub partitions: i32,
    /// Configuration of the topic by property, e.g. `retention.ms`.
    pub config: Vec<(String, String)>,
}

/// Id that a cluster gives to a topic when it creates the topic. A topic of the same name that is created later has
/// another id.
pub type TopicId = [u8; 16];

/// Identity of a topic: tells it from another topic of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicIdentity {
    /// Id of the topic; `None`: the cluster gives no ids (Apache Kafka before 2.8).
    pub id: Option<TopicId>,
    /// Number of the topic's partitions.
    pub partitions: i32,
}

/// A log: opens consumers, readers and producers.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Joins a group and subscribes to topics.
    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError>;

    /// Opens a reader of a partition at `offset`.
    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError>;

    /// Opens one reader of several partitions, each at its offset. The default implementation opens a reader for each.
    async fn read_all(&self, starts: &[(TopicPartition, u64)]) -> Result<Box<dyn PartitionSetReader>, BrokerError> {
        let mut readers = Vec::new();
        for (partition, offset) in starts {
            readers.push((partition.clone(), self.read(partition, *offset).await?));
        }
        Ok(Box::new(MergedReaders::new(readers)))
    }

    /// Returns an idempotent producer with `acks=all`.
    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError>;

    /// Number of partitions of a topic; `None`: the topic does not exist.
    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError>;

    /// Current identities of topics, in the order of `topics`; `None`: the topic does not exist. The default
    /// implementation knows no ids.
    ///
    /// # Errors
    /// The broker does not answer, or refuses access to a topic.
    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        let mut identities = Vec::with_capacity(topics.len());
        for topic in topics {
            let count = self.partitions(topic).await?;
            identities.push(count.map(|partitions| TopicIdentity { id: None, partitions }));
        }
        Ok(identities)
    }

    /// Low and high watermark of a partition.
    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError>;

    /// For each partition of a topic, the first offset whose message has this timestamp (ms since the epoch) or a
    /// later one; `None`: no such message. Older messages may follow. Messages that the topic no longer holds do not
    /// count. librdkafka's mock cluster looks up no timestamps and always answers `None`.
    ///
    /// # Errors
    /// The topic does not exist, or the broker does not answer.
    async fn offsets_at(&self, topic: &str, timestamp_ms: i64) -> Result<Vec<Option<u64>>, BrokerError>;

    /// Committed offsets of a group, in the order of `partitions`. Does not join the group.
    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError>;

    /// Commits offsets, all or none, for a group without members; committed offsets of other partitions stay. The
    /// group coordinator itself refuses a group with members ([`BrokerErrorKind::Refused`]), so that a member which
    /// joins meanwhile is not overlooked. After a retryable error [`committed`](Self::committed) tells the outcome.
    /// The mock cluster refuses every group that ever had a member.
    async fn set_committed(
        &self,
        group: &str,
        offsets: &[(TopicPartition, CommittedOffset)],
    ) -> Result<(), BrokerError>;

    /// Number of members of a group; 0: no group of that name.
    async fn member_count(&self, group: &str) -> Result<usize, BrokerError>;

    /// Creates topics. A topic that exists with the same number of partitions is no error.
    async fn create_topics(&self, topics: &[NewTopic]) -> Result<(), BrokerError>;

    /// Outages of the log that this broker's clients notice: changes with each of them. The end of an outage shows in
    /// the next request. `None`: this log has no outages.
    fn outages(&self) -> Option<watch::Receiver<Outage>> {
        None
    }
}

/// An outage that a client noticed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outage {
    /// True: no broker that the client knows is reachable. False: one broker is unreachable, others may answer.
    pub is_total: bool,
    /// Reason in one line.
    pub reason: String,
}

/// A failed operation of a broker.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct BrokerError {
    /// Class of the error: the caller's possible reaction.
    pub kind: BrokerErrorKind,
    /// Operation that failed, e.g. `commit`.
    pub operation: &'static str,
    /// Cause in one line, with the topic or partition.
    pub message: String,
}

/// Classes of broker errors by the caller's possible reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerErrorKind {
    /// A repeat after a pause may succeed.
    Retryable,
    /// A commit or seek named a partition that is not, or no longer, assigned: drop the request.
    NotAssigned,
    /// The partition does not hold the offset to read: an operator must decide.
    OutOfRange,
    /// Topic, partition or group does not exist, or access is refused.
    Refused,
    /// The message is larger than the client or the topic accepts.
    TooLarge,
    /// The topic refuses the message for good: a retry changes nothing before the topic's configuration, the login's
    /// rights or the topic itself change.
    Rejected,
    /// The instance id of this member belongs to another member now, which owns the partitions.
    Fenced,
    /// The client is unusable.
    Fatal,
}

impl BrokerErrorKind {
    /// True where the client can do nothing any more.
    pub fn is_client_unusable(self) -> bool {
        matches!(self, BrokerErrorKind::Fenced | BrokerErrorKind::Fatal)
    }
}

impl BrokerError {
    /// An error of `operation` with its cause.
    pub fn new(kind: BrokerErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        BrokerError { kind, operation, message: message.into() }
    }

    pub(crate) fn unknown_topic(operation: &'static str, topic: &str) -> Self {
        Self::new(BrokerErrorKind::Refused, operation, format!("topic {topic} does not exist"))
    }

    /// The error of a message that was not acknowledged in time.
    fn unacknowledged(topic: &str) -> Self {
        let message = format!("topic {topic}: not acknowledged in time; the message may be in the log");
        Self::new(BrokerErrorKind::Retryable, "produce", message)
    }

    fn unknown_partition(operation: &'static str, at: &TopicPartition) -> Self {
        Self::new(BrokerErrorKind::Refused, operation, format!("partition {at} does not exist"))
    }

    fn has_members(operation: &'static str, group: &str) -> Self {
        let message = format!("group {group} has members, which commit offsets themselves: stop the members first");
        Self::new(BrokerErrorKind::Refused, operation, message)
    }

    pub(crate) fn not_assigned(operation: &'static str, at: &TopicPartition) -> Self {
        Self::new(BrokerErrorKind::NotAssigned, operation, format!("{at} is not assigned to this member"))
    }

    fn out_of_range(operation: &'static str, at: &TopicPartition, offset: u64, low: u64, high: u64) -> Self {
        let message = format!("{at}: offset {offset} is out of range: the partition holds {low}..{high}");
        Self::new(BrokerErrorKind::OutOfRange, operation, message)
    }
}
