//! Progress in the topics of the reference: committed offsets that belong to a topic with an id.

use std::time::Duration;

use tokio::time::Instant;

use super::BridgeError;
use crate::broker::{
    Broker, BrokerError, CommittedOffset, TopicId, TopicIdentity, TopicPartition, retry::until_answered,
};

/// Time between two commits of a partition.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two commits of an unchanged offset.
const REPEAT_INTERVAL: Duration = Duration::from_secs(3_600);
/// Longest time of the commit at the end.
const LAST_COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// A topic of the reference, known by its id.
pub(super) struct SourceTopic<'a> {
    broker: &'a dyn Broker,
    name: &'a str,
    /// `None`: the cluster gives no ids.
    id: Option<TopicId>,
}

/// Offsets of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceProgress {
    /// First message that a start reads for its event.
    pub(super) offset: u64,
    /// Next message that was never read. Messages between both offsets wait, or are handled.
    pub(super) read: u64,
    /// Sequence of the last published event; 0: none, or a topic of transactions.
    pub(super) sequence: u64,
}

impl<'a> SourceTopic<'a> {
    /// Looks a topic up, and returns the topic with its number of partitions.
    pub(super) async fn open(broker: &'a dyn Broker, name: &'a str) -> Result<(Self, i32), BridgeError> {
        let mut topic = SourceTopic { broker, name, id: None };
        let found = topic.identify().await?.ok_or_else(|| BridgeError::NoTopic(name.to_owned()))?;
        topic.id = found.id;
        Ok((topic, found.partitions))
    }

    /// Returns the number of partitions; `None`: the topic is absent at the moment.
    ///
    /// # Errors
    /// The topic was deleted and created again.
    pub(super) async fn check(&self) -> Result<Option<i32>, BridgeError> {
        let Some(found) = self.identify().await? else { return Ok(None) };
        match (self.id, found.id) {
            (Some(opened), Some(found)) if opened != found => Err(self.recreated(hex::encode(opened), found)),
            _ => Ok(Some(found.partitions)),
        }
    }

    async fn identify(&self) -> Result<Option<TopicIdentity>, BrokerError> {
        let names = [self.name.to_owned()];
        Ok(until_answered(|| self.broker.identify(&names)).await?.pop().flatten())
    }

    fn recreated(&self, committed: String, found: TopicId) -> BridgeError {
        BridgeError::Recreated { topic: self.name.to_owned(), committed, found: hex::encode(found) }
    }
}

/// Commits the progress of one partition from time to time.
pub(super) struct Committer<'a> {
    topic: &'a SourceTopic<'a>,
    group: &'a str,
    partition: TopicPartition,
    /// The progress that the next commit has; `None`: no message was handled, and the start is not known.
    next: Option<SourceProgress>,
    committed: Option<SourceProgress>,
    last: Instant,
}

impl<'a> Committer<'a> {
    pub(super) fn new(topic: &'a SourceTopic<'a>, group: &'a str, partition: TopicPartition) -> Self {
        Committer { topic, group, partition, next: None, committed: None, last: Instant::now() }
    }

    /// Returns the committed progress, or the first offset that the topic holds.
    ///
    /// # Errors
    /// The commit belongs to another topic of the same name.
    pub(super) async fn resume(&self) -> Result<SourceProgress, BridgeError> {
        let broker = self.topic.broker;
        let committed = until_answered(|| broker.committed(self.group, std::slice::from_ref(&self.partition))).await?;
        let Some(CommittedOffset { offset, metadata }) = committed.into_iter().next().flatten() else {
            let (low, _) = until_answered(|| broker.watermarks(&self.partition)).await?;
            return Ok(SourceProgress { offset: low, read: low, sequence: 0 });
        };
        let field = |name: &str| metadata.split(' ').find_map(|field| field.strip_prefix(name));
        match (field("topic="), self.topic.id) {
            (Some(committed), Some(found)) if committed != hex::encode(found) => {
                Err(self.topic.recreated(committed.to_owned(), found))
            }
            _ => {
                let read = field("read=").and_then(|read| read.parse().ok()).unwrap_or(offset);
                let sequence = field("sequence=").and_then(|sequence| sequence.parse().ok()).unwrap_or(0);
                Ok(SourceProgress { offset, read, sequence })
            }
        }
    }

    /// Commits where the progress has changed and the last commit is old enough. An unchanged progress is committed
    /// again each hour: brokers drop the offsets of a group without members after some days.
    pub(super) async fn commit_in_time(&mut self, progress: SourceProgress) -> Result<(), BridgeError> {
        self.next = Some(progress);
        let interval = if self.committed == Some(progress) { REPEAT_INTERVAL } else { COMMIT_INTERVAL };
        if self.last.elapsed() < interval { Ok(()) } else { self.commit(progress).await }
    }

    /// Commits the progress at the end of the bridge, also where too many dead letters have ended the bridge: their
    /// messages get no second dead letter.
    pub(super) async fn finish(&mut self, ended: Result<(), BridgeError>) -> Result<(), BridgeError> {
        match &ended {
            Ok(()) => {}
            Err(BridgeError::DeadLetters { offset, .. }) => {
                self.next = self.next.map(|next| SourceProgress { read: next.read.max(*offset), ..next });
            }
            Err(_) => return ended,
        }
        self.commit_at_end().await?;
        ended
    }

    /// Commits the progress at the end of the bridge. A broker that does not answer in time is no error: the messages
    /// since the last commit are read again.
    async fn commit_at_end(&mut self) -> Result<(), BridgeError> {
        let Some(progress) = self.next.filter(|next| self.committed != Some(*next)) else { return Ok(()) };
        match tokio::time::timeout(LAST_COMMIT_TIMEOUT, self.commit(progress)).await {
            Ok(committed) => committed,
            Err(_) => {
                tracing::warn!(partition = %self.partition, ?progress, "bridge: last offset not committed in time");
                Ok(())
            }
        }
    }

    /// Commits with the id of the topic, by which a start refuses the offsets of a topic that was created again.
    async fn commit(&mut self, progress: SourceProgress) -> Result<(), BridgeError> {
        self.last = Instant::now();
        let SourceProgress { offset, read, sequence } = progress;
        let mut metadata = format!("read={read}");
        if sequence > 0 {
            metadata += &format!(" sequence={sequence}");
        }
        if let Some(id) = self.topic.id {
            metadata = format!("topic={} {metadata}", hex::encode(id));
        }
        let commit = [(self.partition.clone(), CommittedOffset { offset, metadata })];
        until_answered(|| self.topic.broker.set_committed(self.group, &commit)).await?;
        self.committed = Some(progress);
        Ok(())
    }
}
