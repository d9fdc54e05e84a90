//! [`Follower`]: reads the log and records what its events mean for watched scripts.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Vault,
    error::VaultError,
    matching::Matches,
    record::{Position, Recorded, Recorder},
    scripts::ScriptTable,
};
use crate::{
    backoff::Backoff,
    blob::{EventBodies, objects::ObjectError},
    broker::{
        AssignedPartition, Broker, BrokerError, BrokerErrorKind, CommittedOffset, Consumer, ConsumerEvent, Message,
        TopicId, TopicPartition, retry::until_answered,
    },
    config::Topics,
    event::Event,
};

/// Messages, and bytes of messages, that one transaction of the database records, at most.
const GROUP_MESSAGES: usize = 10_000;
const GROUP_BYTES: usize = 32 << 20;
/// Age of the oldest message of a group at which the group is recorded.
const GROUP_AGE: Duration = Duration::from_millis(50);
/// First and longest pause while the database or an object store does not answer.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Time that the last group of events has at a shutdown.
const GRACE: Duration = Duration::from_secs(5);

/// Reason why a follower ends.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The log refuses access.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The database has an error that no repeat mends.
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// A topic does not exist.
    #[error("topic `{0}` does not exist")]
    NoTopic(String),
    /// The body of a transaction is an object, and the follower has no object store.
    #[error("{partition} offset {offset}: the transaction is an object: set objects.url, which its instances read")]
    NoObjects {
        /// Partition of the message.
        partition: TopicPartition,
        /// Offset of the message.
        offset: u64,
    },
}

/// Counts of a follower.
#[derive(Debug, Default)]
pub struct FollowCounts {
    /// Messages that were read.
    pub messages: AtomicU64,
    /// Outputs of watched scripts in these messages.
    pub outputs: AtomicU64,
    /// Messages of the assigned partitions that are not recorded yet.
    pub lag: AtomicU64,
}

/// Reads the log of a store for a vault, as a member of a group. The positions are in the database of the vault, so
/// that the rows and the positions are of one state; the group has them for tools.
pub struct Follower {
    /// The vault that records the events.
    pub vault: Vault,
    /// The log of the store.
    pub broker: Arc<dyn Broker>,
    /// Topics of the store.
    pub topics: Topics,
    /// Group of the vault's processes.
    pub group: String,
    /// Object store with the bodies of large transactions.
    pub bodies: Option<EventBodies>,
    /// Counts of this process.
    pub counts: Arc<FollowCounts>,
}

/// A message with its partition.
type Received = (TopicPartition, Message);

/// State of the follower at work.
struct Following<'a> {
    follower: &'a Follower,
    consumer: Box<dyn Consumer>,
    scripts: ScriptTable,
    topic_ids: BTreeMap<Arc<str>, Option<TopicId>>,
    assigned: BTreeMap<TopicPartition, Assigned>,
    group: Vec<Received>,
    group_bytes: usize,
    oldest: Instant,
}

/// Place of the follower in an assigned partition.
#[derive(Debug, Clone, Copy)]
struct Assigned {
    epoch: u64,
    /// The next offset to read.
    next: u64,
    end: u64,
}

impl Follower {
    fn recorder(&self) -> Recorder<'_> {
        Recorder(&self.vault.database)
    }

    fn topics(&self) -> [String; 3] {
        let Topics { validated_txs, chain, outcomes, .. } = &self.topics;
        [validated_txs.to_string(), chain.to_string(), outcomes.to_string()]
    }

    /// Notes the present ends of the topics as the begin of a new vault. A vault that has positions keeps them. Call
    /// before the vault takes requests: a rescan reads up to the positions.
    ///
    /// # Errors
    /// A topic does not exist; the log or the database does not answer for good.
    pub async fn begin(&self) -> Result<(), FollowError> {
        let topics = self.topics();
        let identities = until_answered(|| self.broker.identify(&topics)).await?;
        let known = self.recorder().positions().await?;
        let mut positions = Vec::new();
        for (topic, identity) in topics.iter().zip(identities) {
            let identity = identity.ok_or_else(|| FollowError::NoTopic(topic.clone()))?;
            let recorded = known.iter().find(|position| *position.partition.topic == **topic);
            let mut of_topic = Vec::new();
            for partition in 0..identity.partitions {
                let partition = TopicPartition { topic: topic.as_str().into(), partition };
                let (low, end) = until_answered(|| self.broker.watermarks(&partition)).await?;
                // A partition that was added to a known topic is read from its begin on.
                let next_offset = if recorded.is_none() { end } else { low };
                of_topic.push(Position { partition, topic_id: identity.id, next_offset });
            }
            if let Some(old) = recorded.filter(|position| position.topic_id != identity.id) {
                tracing::warn!(topic, old = ?old.topic_id, "vault: the topic was created again; reading all of it");
                self.recorder().doubt_all().await?;
                self.recorder().reset_positions(&of_topic).await?;
            }
            positions.extend(of_topic);
        }
        Ok(self.recorder().record_first_positions(&positions).await?)
    }

    /// Follows the log until `shutdown`.
    ///
    /// # Errors
    /// The log refuses access, the database has an error that no repeat mends, or a body has no object store.
    pub async fn run(&self, shutdown: &CancellationToken) -> Result<(), FollowError> {
        let topics = self.topics();
        let identities = until_answered(|| self.broker.identify(&topics)).await?;
        let ids = topics.iter().zip(identities).map(|(topic, found)| (topic.as_str().into(), found.and_then(|i| i.id)));
        let topic_ids = ids.collect();
        let consumer = until_answered(|| self.broker.subscribe(&self.group, &topics)).await?;
        let mut following = Following {
            follower: self,
            consumer,
            scripts: ScriptTable { version: -1, ..ScriptTable::default() },
            topic_ids,
            assigned: BTreeMap::new(),
            group: Vec::new(),
            group_bytes: 0,
            oldest: Instant::now(),
        };
        let followed = following.follow(shutdown).await;
        let closed = following.consumer.close().await;
        followed?;
        if let Err(error) = closed {
            tracing::warn!(%error, "vault: left the group without its answer");
        }
        Ok(())
    }
}

impl Following<'_> {
    async fn follow(&mut self, shutdown: &CancellationToken) -> Result<(), FollowError> {
        loop {
            let due = self.oldest + GROUP_AGE;
            let event = tokio::select! {
                biased;
                () = shutdown.cancelled() => return self.record(shutdown).await,
                () = tokio::time::sleep_until(due), if !self.group.is_empty() => {
                    self.record(shutdown).await?;
                    continue;
                }
                event = self.consumer.poll() => event,
            };
            match event {
                Ok(ConsumerEvent::Messages(batch)) => {
                    if let Some(assigned) = self.assigned.get_mut(&batch.partition)
                        && assigned.epoch == batch.epoch
                    {
                        assigned.end = batch.high_watermark;
                        for message in batch.messages {
                            if message.offset >= assigned.next {
                                assigned.next = message.offset + 1;
                                self.group_bytes += message.bytes();
                                if self.group.is_empty() {
                                    self.oldest = Instant::now();
                                }
                                self.group.push((batch.partition.clone(), message));
                            }
                        }
                    }
                    self.note_lag();
                    if self.group.len() >= GROUP_MESSAGES || self.group_bytes >= GROUP_BYTES {
                        self.record(shutdown).await?;
                    }
                }
                Ok(ConsumerEvent::Assigned(partitions)) => self.assign(partitions).await?,
                Ok(ConsumerEvent::Revoked { partitions, lost }) => {
                    if !lost {
                        self.record(shutdown).await?;
                    }
                    self.group.retain(|(partition, _)| !partitions.contains(partition));
                    self.assigned.retain(|partition, _| !partitions.contains(partition));
                    self.consumer.finish_revocation();
                }
                Ok(ConsumerEvent::End(_)) => {}
                Err(error) if error.kind == BrokerErrorKind::OutOfRange => self.find_places().await?,
                Err(error) if error.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(%error, "vault: cannot read the log; trying again");
                    tokio::time::sleep(RETRY_PAUSE.0).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Continues each partition at the position of the vault.
    async fn assign(&mut self, partitions: Vec<AssignedPartition>) -> Result<(), FollowError> {
        let positions = retry(async || self.follower.recorder().positions().await).await?;
        for AssignedPartition { partition, high_watermark, .. } in partitions {
            let known = positions.iter().find(|position| position.partition == partition);
            // A partition that was added to the topic since then is read from its begin on.
            let (low, _) = until_answered(|| self.follower.broker.watermarks(&partition)).await?;
            let next = known.map_or(low, |position| position.next_offset);
            if next < low {
                tracing::error!(%partition, next, low, "vault: events are gone; outputs of the gap need a rescan");
                retry(async || self.follower.recorder().doubt_all().await).await?;
            }
            let next = next.max(low);
            let epoch = self.consumer.seek(&partition, next).await?;
            self.assigned.insert(partition, Assigned { epoch, next, end: high_watermark });
        }
        Ok(())
    }

    /// Continues partitions whose positions the log no longer holds at their first messages.
    async fn find_places(&mut self) -> Result<(), FollowError> {
        let partitions: Vec<(TopicPartition, u64)> =
            self.assigned.iter().map(|(partition, assigned)| (partition.clone(), assigned.next)).collect();
        for (partition, next) in partitions {
            let (low, high) = until_answered(|| self.follower.broker.watermarks(&partition)).await?;
            if (low..=high).contains(&next) {
                continue;
            }
            tracing::error!(%partition, next, low, high, "vault: events are gone; outputs of the gap need a rescan");
            retry(async || self.follower.recorder().doubt_all().await).await?;
            let epoch = self.consumer.seek(&partition, low).await?;
            self.assigned.insert(partition, Assigned { epoch, next: low, end: high });
        }
        Ok(())
    }

    /// Records the group, and commits its offsets. At a shutdown a group that cannot be recorded is read again by the
    /// next start.
    async fn record(&mut self, shutdown: &CancellationToken) -> Result<(), FollowError> {
        if self.group.is_empty() {
            return Ok(());
        }
        let positions = self.positions_after();
        let mut pauses = Backoff::new(RETRY_PAUSE, self.group_bytes as u64);
        let matched = loop {
            let attempt = tokio::select! {
                attempt = self.try_record(&positions) => attempt,
                () = end_of_grace(shutdown) => return Ok(()),
            };
            match attempt {
                Ok(Some(outputs)) => break outputs,
                Ok(None) => {}
                Err(FollowError::Vault(error @ (VaultError::Database(_) | VaultError::Unknown(_)))) => {
                    tracing::warn!(%error, "vault: events wait for the database");
                    tokio::select! {
                        () = pauses.pause() => {}
                        () = end_of_grace(shutdown) => return Ok(()),
                    }
                }
                Err(error) => return Err(error),
            }
        };
        let counts = &self.follower.counts;
        counts.messages.fetch_add(self.group.len() as u64, Relaxed);
        counts.outputs.fetch_add(matched, Relaxed);
        self.group.clear();
        self.group_bytes = 0;
        self.note_lag();
        let commits = positions.into_iter().map(|position| {
            let committed = CommittedOffset { offset: position.next_offset, metadata: String::new() };
            (position.partition, committed)
        });
        let commits: Vec<(TopicPartition, CommittedOffset)> = commits.collect();
        if let Err(error) = self.consumer.commit(&commits).await {
            tracing::debug!(%error, "vault: the group does not have the new offsets; the database has them");
        }
        Ok(())
    }

    /// Notes the messages of the assigned partitions that are not recorded.
    fn note_lag(&self) {
        let unread: u64 = self.assigned.values().map(|assigned| assigned.end.saturating_sub(assigned.next)).sum();
        self.follower.counts.lag.store(unread + self.group.len() as u64, Relaxed);
    }

    fn positions_after(&self) -> Vec<Position> {
        let mut next: BTreeMap<&TopicPartition, u64> = BTreeMap::new();
        for (partition, message) in &self.group {
            next.insert(partition, message.offset + 1);
        }
        let position = |(partition, next_offset): (&TopicPartition, u64)| {
            let topic_id = self.topic_ids.get(&partition.topic).copied().flatten();
            Position { partition: partition.clone(), topic_id, next_offset }
        };
        next.into_iter().map(position).collect()
    }

    /// Matches and records the group once; returns the number of its outputs. `None`: the watched scripts have changed.
    async fn try_record(&mut self, positions: &[Position]) -> Result<Option<u64>, FollowError> {
        let follower = self.follower;
        if let Some(changed) = follower.vault.scripts_since(self.scripts.version).await? {
            self.scripts = changed;
        }
        let mut matches = Matches::default();
        for (partition, message) in &self.group {
            add_message(&mut matches, partition, message, &self.scripts, follower.bodies.as_ref()).await?;
        }
        matches.merge_repeats();
        let recorded = follower.recorder().record(&matches, positions, self.scripts.version).await?;
        Ok((recorded == Recorded::Done).then_some(matches.outputs.len() as u64))
    }
}

/// Adds what a message means. A message that is no event becomes a dead letter of the pipeline, and never an output.
///
/// # Errors
/// The body is an object, and there is no object store.
pub(super) async fn add_message(
    matches: &mut Matches,
    partition: &TopicPartition,
    message: &Message,
    scripts: &ScriptTable,
    bodies: Option<&EventBodies>,
) -> Result<(), FollowError> {
    let Ok(event) = Event::decode(&message.payload) else { return Ok(()) };
    let Some(reference) = event.body_reference() else {
        matches.add(&event, scripts);
        return Ok(());
    };
    if scripts.scripts.is_empty() {
        return Ok(());
    }
    let no_objects = || FollowError::NoObjects { partition: partition.clone(), offset: message.offset };
    let bodies = bodies.ok_or_else(no_objects)?;
    let mut pauses = Backoff::new(RETRY_PAUSE, message.offset);
    let body = loop {
        match bodies.read(reference).await {
            Ok(body) => break body,
            Err(error @ (ObjectError::Missing(_) | ObjectError::Failed(..))) => {
                tracing::warn!(%partition, offset = message.offset, %error, "vault: the body cannot be read yet");
                pauses.pause().await;
            }
            // The pipeline makes a dead letter of this event.
            Err(error @ ObjectError::Wrong { .. }) => {
                tracing::warn!(%partition, offset = message.offset, %error, "vault: the body is none of the event's");
                return Ok(());
            }
        }
    };
    match &event {
        Event::ValidatedReference(event) => matches.add(&Event::Validated(event.with_body(&body)), scripts),
        Event::SeededReference(event) => {
            if let Ok(event) = event.with_body(&body) {
                matches.add(&Event::Seeded(event), scripts);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Waits for a shutdown, and then for the time that a last group of events has.
async fn end_of_grace(shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    tokio::time::sleep(GRACE).await;
}

/// Repeats a request to the database until it has an answer.
async fn retry<T, F>(request: impl FnMut() -> F) -> Result<T, VaultError>
where
    F: Future<Output = Result<T, VaultError>>,
{
    let is_retryable = |error: &VaultError| matches!(error, VaultError::Database(_) | VaultError::Unknown(_));
    Backoff::new(RETRY_PAUSE, 0).retry(is_retryable, request).await
}
