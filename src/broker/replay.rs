//! A consumer without a group: every partition of a topic from its beginning to a given end. For rebuilds.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;

use super::{
    Assigned, Batch, Broker, BrokerError, BrokerErrorKind, Committed, Committing, Consumer, End, Message, Polled,
    Reader, TopicPartition,
    retry::{next_messages, until_answered},
};

struct Source {
    partition: TopicPartition,
    reader: Box<dyn Reader>,
    end: u64,
    paused: bool,
    end_told: bool,
}

/// Where what is committed goes: the log is not touched.
pub type Keep = Arc<dyn Fn(&[(TopicPartition, Committed)]) -> Committing + Send + Sync>;

/// Reads partitions to their ends, from their beginning or from where an earlier one has kept that it had come.
pub struct ReplayConsumer {
    broker: Arc<dyn Broker>,
    sources: BTreeMap<i32, Source>,
    to_say: VecDeque<Polled>,
    next: usize,
    epoch: u64,
    keep: Keep,
}

const WAIT: Duration = Duration::from_millis(20);

impl ReplayConsumer {
    /// Opens every partition that `ends` names, to go on at what is `committed` of it. Refuses a topic that no longer holds what is to be
    /// read.
    pub async fn open(
        broker: Arc<dyn Broker>,
        topic: &str,
        ends: &BTreeMap<i32, u64>,
        committed: &BTreeMap<i32, Committed>,
        keep: Keep,
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
            assigned.push(Assigned {
                partition: partition.clone(),
                epoch: 0,
                committed,
                position: from,
                high_watermark: end,
            });
            let reader = until_answered(|| broker.read(&partition, from)).await?;
            sources.insert(number, Source { partition, reader, end, paused: false, end_told: false });
        }
        let to_say = VecDeque::from([Polled::Assigned(assigned)]);
        Ok(ReplayConsumer { broker, sources, to_say, next: 0, epoch: 0, keep })
    }

    fn source(&mut self, partition: &TopicPartition) -> Result<&mut Source, BrokerError> {
        self.sources.get_mut(&partition.partition).ok_or_else(|| BrokerError {
            kind: BrokerErrorKind::NotAssigned,
            operation: "replay",
            message: format!("{} partition {} is not replayed", partition.topic, partition.partition),
        })
    }

    /// The next partition that has something left, in turn.
    fn turn(&mut self) -> Option<i32> {
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
    async fn poll(&mut self) -> Result<Polled, BrokerError> {
        loop {
            if let Some(polled) = self.to_say.pop_front() {
                return Ok(polled);
            }
            let ended =
                self.sources.values_mut().find(|source| source.reader.position() >= source.end && !source.end_told);
            if let Some(source) = ended {
                source.end_told = true;
                let (partition, position) = (source.partition.clone(), source.end);
                return Ok(Polled::End(End { partition, epoch: self.epoch, position }));
            }
            let Some(number) = self.turn() else {
                tokio::time::sleep(WAIT).await;
                continue;
            };
            let Some(source) = self.sources.get_mut(&number) else { continue };
            let end = source.end;
            let read = next_messages(&mut source.reader, self.broker.as_ref(), &source.partition, WAIT).await?;
            let messages: Vec<Message> = read.into_iter().filter(|message| message.offset < end).collect();
            if !messages.is_empty() {
                let partition = source.partition.clone();
                return Ok(Polled::Messages(Batch { partition, epoch: self.epoch, messages, high_watermark: end }));
            }
        }
    }

    fn commit(&mut self, offsets: &[(TopicPartition, Committed)]) -> Committing {
        (self.keep)(offsets)
    }

    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        let broker = self.broker.clone();
        let reader = broker.read(partition, offset).await?;
        self.epoch += 1;
        let epoch = self.epoch;
        let source = self.source(partition)?;
        source.reader = reader;
        source.end_told = false;
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
