//! [`OutcomeFeed`]: the topic of outcomes, read once for all readers of a process.
//!
//! ```text
//! partition 0 ──┐                       ┌─► reader that follows the present
//! partition 1 ──┼─► feed (from its end) ┼─► reader that waits for one transaction
//! partition 2 ──┘                       └─► reader from an offset: reads up to the feed, then follows
//! ```

use std::{
    collections::VecDeque,
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Mutex, task::JoinSet};

pub(crate) use super::outcome_ring::{OutcomeContent, OutcomeMessage};
use super::outcome_ring::{OutcomeRing, RingEnd, RingReader};
use crate::broker::{
    Broker, BrokerError, Message, PartitionReader, TopicIdentity, TopicPartition, retry::read_or_reopen,
};

/// Bytes of memory by which a slow reader may lag behind the feed.
const BACKLOG_BYTES: usize = 16 << 20;
/// Wait for the next messages of a partition.
const WAIT: Duration = Duration::from_millis(500);
/// Pause after a partition could not be read.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two looks at the identity of the topic.
const TOPIC_PAUSE: Duration = Duration::from_secs(10);

/// Offsets of a reader, one for each partition of the topic of outcomes. The text `12,7,0` has the offsets in the order
/// of the partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FeedPosition(pub Vec<u64>);

/// Error of a text that is no position in the topic of outcomes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the text is no position in the outcomes: write one offset for each partition, joined by commas")]
pub(crate) struct InvalidPosition;

impl fmt::Display for FeedPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offsets: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&offsets.join(","))
    }
}

impl FromStr for FeedPosition {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let offsets: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
        offsets.map(FeedPosition).map_err(|_| InvalidPosition)
    }
}

/// Reasons why a reader cannot follow the outcomes from a position.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    /// The position is not one of this topic.
    #[error(transparent)]
    Position(#[from] InvalidPosition),
    /// The topic cannot be read.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// The outcomes as they come, for all readers of a process. The topic is read from its end, and from the first
/// subscription on. A topic that was created again, has other partitions or has lost the place of the feed ends all
/// readers, and the next subscription starts the feed anew.
pub(crate) struct OutcomeFeed {
    broker: Arc<dyn Broker>,
    topic: Arc<str>,
    running: Mutex<Option<RunningFeed>>,
}

struct RunningFeed {
    ring: Arc<OutcomeRing>,
    /// Next offset of each partition.
    positions: Arc<[AtomicU64]>,
    /// Tasks, one for each partition and one for the topic, which end with the feed.
    _tasks: JoinSet<()>,
}

impl OutcomeFeed {
    /// Makes the feed of a topic, without reading the topic yet.
    pub(crate) fn new(broker: Arc<dyn Broker>, topic: &str) -> Self {
        OutcomeFeed { broker, topic: topic.into(), running: Mutex::default() }
    }

    /// Follows the outcomes from now on. An outcome that is published after the answer is not missed.
    ///
    /// # Errors
    /// The topic does not exist, or cannot be read.
    pub(crate) async fn follow(&self) -> Result<OutcomeReader, BrokerError> {
        let mut running = self.running.lock().await;
        let feed = match running.take().filter(|feed| !feed.ring.is_closed()) {
            Some(feed) => running.insert(feed),
            None => running.insert(self.start().await?),
        };
        let receiver = feed.ring.follow();
        // Read after the subscription: what comes later is in the ring, too.
        let next = feed.positions.iter().map(|position| position.load(Ordering::Acquire)).collect();
        Ok(OutcomeReader { receiver, next: FeedPosition(next), missed: VecDeque::new(), current: None })
    }

    /// Follows the outcomes from a position on; an offset before the first message of the partition counts as the
    /// first. `None`: from the beginning of the topic.
    ///
    /// # Errors
    /// The position has another number of partitions, or the topic does not exist or cannot be read.
    pub(crate) async fn follow_from(&self, from: Option<FeedPosition>) -> Result<OutcomeReader, FollowError> {
        let mut reader = self.follow().await?;
        if from.as_ref().is_some_and(|from| from.0.len() != reader.next.0.len()) {
            return Err(FollowError::Position(InvalidPosition));
        }
        for (index, next) in reader.next.0.iter_mut().enumerate() {
            let partition = self.partition(index);
            let (low, _) = self.broker.watermarks(&partition).await?;
            let start = from.as_ref().and_then(|from| from.0.get(index).copied()).unwrap_or(0).max(low);
            if start < *next {
                reader.missed.push_back(MissedPart { broker: self.broker.clone(), partition, start, end: *next });
                *next = start;
            }
        }
        Ok(reader)
    }

    fn partition(&self, index: usize) -> TopicPartition {
        // A topic has fewer partitions than an i32 has values.
        TopicPartition { topic: self.topic.clone(), partition: i32::try_from(index).unwrap_or(i32::MAX) }
    }

    async fn start(&self) -> Result<RunningFeed, BrokerError> {
        let identity = self.broker.identify(&[self.topic.to_string()]).await?.pop().flatten();
        let identity = identity.ok_or_else(|| BrokerError::unknown_topic("read", &self.topic))?;
        let ring = OutcomeRing::new(BACKLOG_BYTES);
        let mut readers = Vec::new();
        for index in 0..usize::try_from(identity.partitions).unwrap_or(0) {
            let partition = self.partition(index);
            let (_, end) = self.broker.watermarks(&partition).await?;
            readers.push((partition.clone(), self.broker.read(&partition, end).await?));
        }
        let positions: Arc<[AtomicU64]> = readers.iter().map(|(_, reader)| AtomicU64::new(reader.position())).collect();
        let mut tasks = JoinSet::new();
        for (index, (partition, reader)) in readers.into_iter().enumerate() {
            let target = FeedTarget { ring: ring.clone(), positions: positions.clone(), index };
            tasks.spawn(feed_partition(self.broker.clone(), partition, reader, target));
        }
        tasks.spawn(watch_topic(self.broker.clone(), self.topic.to_string(), identity, ring.clone()));
        Ok(RunningFeed { ring, positions, _tasks: tasks })
    }
}

/// Readers of the feed, and the place of one partition in its positions.
struct FeedTarget {
    ring: Arc<OutcomeRing>,
    positions: Arc<[AtomicU64]>,
    index: usize,
}

impl FeedTarget {
    /// Sends a message to the readers. The position moves first: a reader that subscribes in between either finds the
    /// message in the ring, or counts the message as published before.
    fn send(&self, partition: i32, message: &Message) {
        self.positions[self.index].store(message.offset + 1, Ordering::Release);
        self.ring.push(OutcomeMessage::decode(partition, message));
    }
}

/// Sends the messages of one partition to the readers, until the partition no longer has the place of the feed.
async fn feed_partition(
    broker: Arc<dyn Broker>,
    partition: TopicPartition,
    mut reader: Box<dyn PartitionReader>,
    target: FeedTarget,
) {
    loop {
        match read_or_reopen(&mut reader, broker.as_ref(), &partition, WAIT).await {
            Ok(messages) => {
                messages.iter().for_each(|message| target.send(partition.partition, message));
            }
            Err(error) => {
                tracing::warn!(%partition, %error, "outcomes: cannot read; trying again");
                tokio::time::sleep(RETRY_PAUSE).await;
                let place = reader.position();
                if let Ok((low, end)) = broker.watermarks(&partition).await
                    && !(low..=end).contains(&place)
                {
                    tracing::warn!(%partition, place, low, end, "outcomes: the place is gone; all readers end");
                    target.ring.close();
                    return;
                }
            }
        }
    }
}

/// Ends the feed when the topic is gone, was created again, or has another number of partitions than the feed reads. A
/// reader of Kafka continues in a new topic that is as long as the old one, without an error.
async fn watch_topic(broker: Arc<dyn Broker>, topic: String, identity: TopicIdentity, ring: Arc<OutcomeRing>) {
    let topic = [topic];
    loop {
        tokio::time::sleep(TOPIC_PAUSE).await;
        if let Ok(found) = broker.identify(&topic).await
            && found.first() != Some(&Some(identity))
        {
            tracing::warn!(topic = topic[0], ?identity, ?found, "outcomes: the topic has changed; all readers end");
            ring.close();
            return;
        }
    }
}

/// Part of a partition that was published before the reader began to follow.
struct MissedPart {
    broker: Arc<dyn Broker>,
    partition: TopicPartition,
    start: u64,
    end: u64,
}

/// A missed part that is being read.
struct OpenPart {
    part: MissedPart,
    reader: Box<dyn PartitionReader>,
    ready: VecDeque<Message>,
}

/// Reader of the outcomes.
pub(crate) struct OutcomeReader {
    receiver: RingReader,
    /// Next offset of each partition.
    next: FeedPosition,
    missed: VecDeque<MissedPart>,
    current: Option<OpenPart>,
}

/// Reasons why a reader of outcomes ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutcomeReaderError {
    /// The reader is too slow: messages are lost to this reader. A new reader continues from the position.
    #[error("the reader is too slow; continue from the last position")]
    Lagging,
    /// The topic was created again, has other partitions, or no longer has the place of the feed.
    #[error("the topic of outcomes has changed; continue from the last position, or from now")]
    Changed,
    /// The topic cannot be read.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

impl OutcomeReader {
    /// Returns the position after the last message that was returned.
    pub(crate) fn position(&self) -> &FeedPosition {
        &self.next
    }

    /// Returns whether messages from before the start are still to be read.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.current.is_some() || !self.missed.is_empty()
    }

    /// Waits for the next message. Cancel safe.
    ///
    /// # Errors
    /// The reader is too slow, or the topic has changed or cannot be read.
    pub(crate) async fn next(&mut self) -> Result<Arc<OutcomeMessage>, OutcomeReaderError> {
        while self.is_catching_up() {
            if let Some(found) = self.next_missed().await? {
                return Ok(found);
            }
        }
        loop {
            let found = self.receiver.next().await.map_err(|end| match end {
                RingEnd::PlaceLost => OutcomeReaderError::Lagging,
                RingEnd::Closed => OutcomeReaderError::Changed,
            })?;
            // Messages around the start are both in the missed part and in the ring.
            if self.advance(found.partition, found.offset) {
                return Ok(found);
            }
        }
    }

    async fn next_missed(&mut self) -> Result<Option<Arc<OutcomeMessage>>, OutcomeReaderError> {
        if self.current.is_none() {
            let Some(part) = self.missed.front() else { return Ok(None) };
            let reader = part.broker.read(&part.partition, part.start).await?;
            let Some(part) = self.missed.pop_front() else { return Ok(None) };
            self.current = Some(OpenPart { part, reader, ready: VecDeque::new() });
        }
        let Some(open) = &mut self.current else { return Ok(None) };
        if open.ready.is_empty() && open.reader.position() < open.part.end {
            let broker = open.part.broker.clone();
            open.ready = read_or_reopen(&mut open.reader, broker.as_ref(), &open.part.partition, WAIT).await?.into();
        }
        let partition = open.part.partition.partition;
        match open.ready.pop_front().filter(|message| message.offset < open.part.end) {
            Some(message) => {
                self.advance(partition, message.offset);
                Ok(Some(Arc::new(OutcomeMessage::decode(partition, &message))))
            }
            None => {
                let end = open.part.end;
                if open.reader.position() >= end {
                    self.advance(partition, end - 1);
                    self.current = None;
                }
                Ok(None)
            }
        }
    }

    /// Moves past a message; `false`: the message was returned before.
    fn advance(&mut self, partition: i32, offset: u64) -> bool {
        let next = usize::try_from(partition).ok().and_then(|index| self.next.0.get_mut(index));
        match next {
            Some(next) if offset >= *next => {
                *next = offset + 1;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        broker::{NewTopic, OutgoingMessage, memory::MemoryBroker},
        event::{Event, OutcomeEvent, OutcomeKind, OutcomeSource},
        tx::Txid,
    };

    async fn topic() -> (Arc<dyn Broker>, OutcomeFeed) {
        let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
        broker.create_topics(&[NewTopic { name: "outcomes".into(), partitions: 2, config: vec![] }]).await.unwrap();
        (broker.clone(), OutcomeFeed::new(broker, "outcomes"))
    }

    async fn publish(broker: &dyn Broker, partition: i32, text: &'static str) {
        let txid = Txid([text.as_bytes()[0]; 32]);
        let outcome = OutcomeEvent { txid, source: OutcomeSource::Chain { offset: 0 }, kind: OutcomeKind::Accepted };
        let payload = Bytes::from(Event::Outcome(outcome).encode());
        let message =
            OutgoingMessage { topic: "outcomes".into(), partition: Some(partition), payload, ..Default::default() };
        broker.producer().await.unwrap().produce(message).await.unwrap();
    }

    async fn texts(reader: &mut OutcomeReader, count: usize) -> Vec<String> {
        let mut texts = Vec::new();
        for _ in 0..count {
            let next = tokio::time::timeout(Duration::from_secs(60), reader.next()).await.unwrap().unwrap();
            texts.extend(next.content.txids().map(|txid| char::from(txid.0[0]).to_string()));
        }
        texts
    }

    #[tokio::test]
    async fn a_reader_continues_from_the_position_of_another() {
        let (broker, feed) = topic().await;
        publish(broker.as_ref(), 0, "early").await;
        let mut first = feed.follow().await.unwrap();
        publish(broker.as_ref(), 1, "a").await;
        publish(broker.as_ref(), 0, "b").await;
        let mut found = texts(&mut first, 2).await;
        found.sort();
        assert_eq!(found, ["a", "b"]);
        let position: FeedPosition = first.position().to_string().parse().unwrap();
        assert_eq!(position, FeedPosition(vec![2, 1]));
        publish(broker.as_ref(), 0, "c").await;
        publish(broker.as_ref(), 1, "d").await;
        assert_eq!(texts(&mut first, 2).await.len(), 2);
        let mut second = feed.follow_from(Some(position)).await.unwrap();
        publish(broker.as_ref(), 0, "e").await;
        let mut found = texts(&mut second, 3).await;
        found.sort();
        assert_eq!(found, ["c", "d", "e"], "each once");
        let mut all = feed.follow_from(None).await.unwrap();
        assert_eq!(texts(&mut all, 6).await.len(), 6);
        assert!(!all.is_catching_up() || all.position().0.len() == 2);
        assert!("1,x".parse::<FeedPosition>().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_topic_ends_its_readers_and_is_followed_anew() {
        let memory = Arc::new(MemoryBroker::default());
        let broker: Arc<dyn Broker> = memory.clone();
        let topic = |partitions| NewTopic { name: "outcomes".into(), partitions, config: vec![] };
        broker.create_topics(&[topic(2)]).await.unwrap();
        let feed = OutcomeFeed::new(broker.clone(), "outcomes");
        let mut reader = feed.follow().await.unwrap();
        publish(broker.as_ref(), 0, "a").await;
        assert_eq!(texts(&mut reader, 1).await, ["a"]);
        memory.recreate_topic(&topic(3)).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), reader.next()).await.unwrap();
        assert!(matches!(ended, Err(OutcomeReaderError::Changed)));
        let mut again = feed.follow().await.unwrap();
        publish(broker.as_ref(), 2, "b").await;
        assert_eq!(texts(&mut again, 1).await, ["b"]);
        // As many partitions as before, and nothing is read from the other partitions.
        memory.recreate_topic(&topic(3)).unwrap();
        publish(broker.as_ref(), 2, "c").await;
        let ended = tokio::time::timeout(Duration::from_secs(60), again.next()).await.unwrap();
        assert!(matches!(ended, Err(OutcomeReaderError::Changed)));
    }
}
