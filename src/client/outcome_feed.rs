//! [`OutcomeFeed`]: the topic of outcomes, read once for all readers of a process.
//!
//! ```text
//! partition 0 ──┐                       ┌─► reader that follows the present
//! partition 1 ──┼─► feed (from its end) ┼─► reader that waits for one transaction
//! partition 2 ──┘                       └─► reader from an offset: reads up to the feed, then follows
//! ```

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Mutex, task::JoinSet};

use super::outcome_ring::{OutcomeRing, RingEnd, RingReader};
pub(crate) use super::{
    feed_position::{FeedPosition, OutcomeGap},
    outcome_ring::{OutcomeContent, OutcomeMessage},
};
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

/// The outcomes as they come, for all readers of a process. The topic is read from its end, and from the first
/// subscription on. A topic that was created again, has other partitions or has lost the place of the feed ends all
/// readers, and the next subscription starts the feed anew.
pub(crate) struct OutcomeFeed {
    broker: Arc<dyn Broker>,
    topic: Arc<str>,
    running: Mutex<Option<RunningFeed>>,
}

struct RunningFeed {
    identity: TopicIdentity,
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
        let offsets = feed.positions.iter().map(|position| position.load(Ordering::Acquire)).collect();
        let next = FeedPosition { topic: feed.identity.id, offsets };
        Ok(OutcomeReader { receiver, next, missed: VecDeque::new(), current: None, gap: None })
    }

    /// Follows the outcomes from a position on; `None`: from the beginning of the topic. A position of another topic
    /// counts as the beginning, after a gap.
    ///
    /// # Errors
    /// The topic does not exist or cannot be read.
    pub(crate) async fn follow_from(&self, from: Option<FeedPosition>) -> Result<OutcomeReader, BrokerError> {
        let mut reader = self.follow().await?;
        let mut bounds = Vec::new();
        for index in 0..reader.next.offsets.len() {
            bounds.push(self.broker.watermarks(&self.partition(index)).await?);
        }
        let from = from.filter(|from| {
            let is_inside = from.is_inside(reader.next.topic, &bounds);
            reader.gap = (!is_inside).then_some(OutcomeGap::OtherTopic);
            is_inside
        });
        for (index, next) in reader.next.offsets.iter_mut().enumerate() {
            let partition = self.partition(index);
            let start = match &from {
                // A partition that was added since then is read from its first message on.
                Some(from) => from.offsets.get(index).copied().unwrap_or(0),
                None => bounds[index].0,
            };
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
        Ok(RunningFeed { identity, ring, positions, _tasks: tasks })
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
    /// Gap that is not returned yet.
    gap: Option<OutcomeGap>,
}

/// Item of a reader of the outcomes.
#[derive(Debug)]
pub(crate) enum OutcomeItem {
    /// The next message of any partition.
    Message(Arc<OutcomeMessage>),
    /// Outcomes before the next message cannot be read any more.
    Gap(OutcomeGap),
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
    /// Returns the position after the last message or gap that was returned.
    pub(crate) fn position(&self) -> &FeedPosition {
        &self.next
    }

    /// Returns whether messages from before the start are still to be read.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.current.is_some() || !self.missed.is_empty()
    }

    /// Returns whether the next item is a gap.
    pub(crate) fn has_gap(&self) -> bool {
        self.gap.is_some()
    }

    /// Waits for the next message or gap. Cancel safe.
    ///
    /// # Errors
    /// The reader is too slow, or the topic has changed or cannot be read.
    pub(crate) async fn next(&mut self) -> Result<OutcomeItem, OutcomeReaderError> {
        if let Some(gap) = self.gap.take() {
            return Ok(OutcomeItem::Gap(gap));
        }
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
                return Ok(OutcomeItem::Message(found));
            }
        }
    }

    async fn next_missed(&mut self) -> Result<Option<OutcomeItem>, OutcomeReaderError> {
        if self.current.is_none() {
            let Some(part) = self.missed.front_mut() else { return Ok(None) };
            // Retention goes on while the parts before this one are read.
            let (low, _) = part.broker.watermarks(&part.partition).await?;
            if part.start < low {
                let (partition, from, to) = (part.partition.partition, part.start, low.min(part.end));
                part.start = to;
                if to == part.end {
                    self.missed.pop_front();
                }
                self.advance(partition, to - 1);
                return Ok(Some(OutcomeItem::Gap(OutcomeGap::Retention { partition, from, to })));
            }
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
                Ok(Some(OutcomeItem::Message(Arc::new(OutcomeMessage::decode(partition, &message)))))
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
        let next = usize::try_from(partition).ok().and_then(|index| self.next.offsets.get_mut(index));
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
            match tokio::time::timeout(Duration::from_secs(60), reader.next()).await.unwrap().unwrap() {
                OutcomeItem::Message(next) => {
                    texts.extend(next.content.txids().map(|txid| char::from(txid.0[0]).to_string()));
                }
                OutcomeItem::Gap(gap) => texts.push(serde_json::to_string(&gap).unwrap()),
            }
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
        assert_eq!(position.offsets, [2, 1]);
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
        publish(broker.as_ref(), 1, "f").await;
        assert_eq!(texts(&mut all, 1).await, ["f"]);
        assert!(!all.is_catching_up(), "the reader follows the present");
    }

    #[tokio::test]
    async fn dropped_offsets_are_a_gap() {
        let memory = Arc::new(MemoryBroker::default());
        let broker: Arc<dyn Broker> = memory.clone();
        broker.create_topics(&[NewTopic { name: "outcomes".into(), partitions: 2, config: vec![] }]).await.unwrap();
        let feed = OutcomeFeed::new(broker.clone(), "outcomes");
        let mut present = feed.follow().await.unwrap();
        let start = present.position().clone();
        for text in ["a", "b", "c"] {
            publish(broker.as_ref(), 0, text).await;
            publish(broker.as_ref(), 1, text).await;
        }
        // The feed itself has read all messages before they are dropped.
        assert_eq!(texts(&mut present, 6).await.len(), 6);
        memory.truncate(&feed.partition(0), 2).unwrap();
        // A reader from the earliest message asks for no more than the topic has.
        let mut all = feed.follow_from(None).await.unwrap();
        assert_eq!(texts(&mut all, 4).await, ["c", "a", "b", "c"]);
        let mut reader = feed.follow_from(Some(start.clone())).await.unwrap();
        // Retention reaches the other partition while the first is read.
        assert_eq!(texts(&mut reader, 1).await, [r#"{"reason":"retention","partition":0,"from":0,"to":2}"#]);
        assert_eq!(reader.position().offsets, [2, 0]);
        memory.truncate(&feed.partition(1), 3).unwrap();
        assert_eq!(texts(&mut reader, 2).await, ["c", r#"{"reason":"retention","partition":1,"from":0,"to":3}"#]);
        assert_eq!((reader.position().offsets.clone(), reader.is_catching_up()), (vec![3, 3], false));
        let position = reader.position().clone();
        publish(broker.as_ref(), 1, "d").await;
        let mut again = feed.follow_from(Some(position)).await.unwrap();
        assert_eq!(texts(&mut again, 1).await, ["d"], "a gap is told once");
    }

    #[tokio::test]
    async fn a_position_of_another_topic_is_a_gap_and_the_beginning() {
        let memory = Arc::new(MemoryBroker::default());
        let broker: Arc<dyn Broker> = memory.clone();
        let topic = NewTopic { name: "outcomes".into(), partitions: 2, config: vec![] };
        broker.create_topics(std::slice::from_ref(&topic)).await.unwrap();
        let follow = async |from: FeedPosition| {
            let feed = OutcomeFeed::new(broker.clone(), "outcomes");
            feed.follow_from(Some(from)).await.unwrap()
        };
        publish(broker.as_ref(), 0, "a").await;
        let old = OutcomeFeed::new(broker.clone(), "outcomes").follow().await.unwrap().position().clone();
        memory.recreate_topic(&topic).unwrap();
        for text in ["b", "c"] {
            publish(broker.as_ref(), 0, text).await;
        }
        let mut reader = follow(old.clone()).await;
        assert!(reader.has_gap());
        assert_eq!(texts(&mut reader, 3).await, [r#"{"reason":"other-topic"}"#, "b", "c"]);
        let new = reader.position().clone();
        assert_ne!(new.topic, old.topic);
        // An offset behind the end, as of a topic that has lost its end.
        let mut reader = follow(FeedPosition { offsets: vec![3, 0], ..new.clone() }).await;
        assert_eq!(texts(&mut reader, 2).await, [r#"{"reason":"other-topic"}"#, "b"]);
        // A partition that was added since then.
        publish(broker.as_ref(), 1, "d").await;
        let mut reader = follow(FeedPosition { offsets: vec![1], ..new.clone() }).await;
        assert_eq!(texts(&mut reader, 2).await, ["c", "d"]);
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
