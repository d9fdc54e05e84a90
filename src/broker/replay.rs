//! A consumer without a group that reads every partition of a topic up to a given end offset. For rebuilds.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;

use super::{
    AssignedPartition, Broker, BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, Consumer, ConsumerEvent,
    Message, MessageBatch, PartitionEnd, PartitionReader, TopicPartition,
    retry::{read_or_reopen, until_answered},
};

struct ReplaySource {
    partition: TopicPartition,
    reader: Box<dyn PartitionReader>,
    end: u64,
    paused: bool,
    end_reported: bool,
}

/// Stores the commits of a [`ReplayConsumer`]; the consumer commits nothing to the log.
pub type CommitSink = Arc<dyn Fn(&[(TopicPartition, CommittedOffset)]) -> CommitFuture + Send + Sync>;

/// Reads partitions up to their end offsets, from offset 0 or from the commits of an earlier replay.
pub struct ReplayConsumer {
    broker: Arc<dyn Broker>,
    sources: BTreeMap<i32, ReplaySource>,
    queued: VecDeque<ConsumerEvent>,
    next: usize,
    epoch: u64,
    commit_sink: CommitSink,
}

const WAIT: Duration = Duration::from_millis(20);

impl ReplayConsumer {
    /// Opens every partition of `ends` at its offset in `committed`, else at offset 0.
    ///
    /// # Errors
    /// [`BrokerErrorKind::OutOfRange`]: the topic does not hold all messages to be read. Errors that no retry heals.
    pub async fn open(
        broker: Arc<dyn Broker>,
        topic: &str,
        ends: &BTreeMap<i32, u64>,
        committed: &BTreeMap<i32, CommittedOffset>,
        commit_sink: CommitSink,
    ) -> Result<Self, BrokerError> {
        let topic: Arc<str> = topic.into();
        let mut sources = BTreeMap::new();
        let mut assigned = Vec::new();
        for (&number, &end) in ends {
            let partition = TopicPartition { topic: topic.clone(), partition: number };
            let (low, high) = until_answered(|| broker.watermarks(&partition)).await?;
            let committed = committed.get(&number).cloned();
            let from = committed.as_ref().map_or(0, |committed| committed.offset);
            if low > from && end > from || high < end {
                return Err(BrokerError {
                    kind: BrokerErrorKind::OutOfRange,
                    operation: "replay",
                    message: format!(
                        "{topic} partition {number} holds offsets {low} to {high}, but the replay needs {from} to {end}"
                    ),
                });
            }
            assigned.push(AssignedPartition {
                partition: partition.clone(),
                epoch: 0,
                committed,
                position: from,
                high_watermark: end,
            });
            let reader = until_answered(|| broker.read(&partition, from)).await?;
            sources.insert(number, ReplaySource { partition, reader, end, paused: false, end_reported: false });
        }
        let queued = VecDeque::from([ConsumerEvent::Assigned(assigned)]);
        Ok(ReplayConsumer { broker, sources, queued, next: 0, epoch: 0, commit_sink })
    }

    fn source(&mut self, partition: &TopicPartition) -> Result<&mut ReplaySource, BrokerError> {
        self.sources.get_mut(&partition.partition).ok_or_else(|| BrokerError {
            kind: BrokerErrorKind::NotAssigned,
            operation: "replay",
            message: format!("{} partition {} is not replayed", partition.topic, partition.partition),
        })
    }

    /// Next partition with messages left, round robin.
    fn next_partition(&mut self) -> Option<i32> {
        let open: Vec<i32> = self
            .sources
            .iter()
            .filter(|(_, source)| !source.paused && source.reader.position() < source.end)
            .map(|(number, _)| *number)
            .collect();
        self.next = self.next.wrapping_add(1);
        (!open.is_empty()).then(|| open[self.next % open.len()])
    }
}

#[async_trait]
impl Consumer for ReplayConsumer {
    async fn poll(&mut self) -> Result<ConsumerEvent, BrokerError> {
        loop {
            if let Some(polled) = self.queued.pop_front() {
                return Ok(polled);
            }
            let ended =
                self.sources.values_mut().find(|source| source.reader.position() >= source.end && !source.end_reported);
            if let Some(source) = ended {
                source.end_reported = true;
                let (partition, position) = (source.partition.clone(), source.end);
                return Ok(ConsumerEvent::End(PartitionEnd { partition, epoch: self.epoch, position }));
            }
            let Some(number) = self.next_partition() else {
                tokio::time::sleep(WAIT).await;
                continue;
            };
            let Some(source) = self.sources.get_mut(&number) else { continue };
            let end = source.end;
            let read = read_or_reopen(&mut source.reader, self.broker.as_ref(), &source.partition, WAIT).await?;
            let messages: Vec<Message> = read.into_iter().filter(|message| message.offset < end).collect();
            if !messages.is_empty() {
                let partition = source.partition.clone();
                return Ok(ConsumerEvent::Messages(MessageBatch {
                    partition,
                    epoch: self.epoch,
                    messages,
                    high_watermark: end,
                }));
            }
        }
    }

    fn commit(&mut self, offsets: &[(TopicPartition, CommittedOffset)]) -> CommitFuture {
        (self.commit_sink)(offsets)
    }

    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        let broker = self.broker.clone();
        let reader = broker.read(partition, offset).await?;
        self.epoch += 1;
        let epoch = self.epoch;
        let source = self.source(partition)?;
        source.reader = reader;
        source.end_reported = false;
        Ok(epoch)
    }

    fn pause(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        self.source(partition)?.paused = true;
        Ok(())
    }

    fn resume(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        self.source(partition)?.paused = false;
        Ok(())
    }

    fn finish_revocation(&mut self) {}

    async fn close(&mut self) -> Result<(), BrokerError> {
        Ok(())
    }
}
