//! A log in a file, for inspection after its brokers have ended: a demo saves its log.
//!
//! Each line of the file is a JSON object: first the topics, then their messages in the order of the offsets, then the
//! committed offsets of the groups. A saved log is read-only.

use std::{
    io::{self, BufRead, Write},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Broker, BrokerError, BrokerErrorKind, CommittedOffset, Consumer, NewTopic, OutgoingMessage, PartitionReader,
    Producer, TopicPartition,
    memory::{MemoryBroker, MemorySettings},
};
use crate::clock::Clock;

/// Longest wait for the next message below a partition's end offset.
const MAX_WAIT: Duration = Duration::from_secs(10);
const READ_ONLY: &str =
    "a saved log (kafka.brokers = \"file://…\") is only read: name the brokers of a cluster (host:9092)";

/// A line of the file, tagged by its kind.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum SavedLine {
    Topic { name: String, partitions: i32 },
    Message(SavedMessage),
    Commit { group: String, topic: String, partition: i32, offset: u64, metadata: String },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMessage {
    topic: String,
    partition: i32,
    offset: u64,
    timestamp_ms: i64,
    #[serde(with = "hex")]
    key: Vec<u8>,
    #[serde(with = "hex")]
    payload: Vec<u8>,
    headers: Vec<(String, String)>,
}

/// Reason why a log cannot be saved.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum SaveError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// An offset of a partition has no message.
    #[error("cannot save {partition}: offset {offset} is not there (retention or compaction)")]
    Gap { partition: TopicPartition, offset: u64 },
    #[error("cannot write the log: {0}")]
    Write(#[from] io::Error),
}

/// Reason why a file is no saved log.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum LoadError {
    #[error("cannot read the log: {0}")]
    Read(#[from] io::Error),
    /// A line is malformed or out of order.
    #[error("line {line} of the log: {problem}")]
    Line { line: usize, problem: String },
}

/// Writes topics with all their messages, and the committed offsets of groups.
pub async fn save(
    broker: &dyn Broker,
    topics: &[&str],
    groups: &[&str],
    out: &mut (impl Write + Send),
) -> Result<(), SaveError> {
    let mut all = Vec::new();
    for topic in topics {
        let partitions = broker.partitions(topic).await?.unwrap_or(0);
        write(out, &SavedLine::Topic { name: (*topic).to_owned(), partitions })?;
        all.extend((0..partitions).map(|partition| TopicPartition { topic: (*topic).into(), partition }));
    }
    for partition in &all {
        save_partition(broker, partition, out).await?;
    }
    for group in groups {
        for (at, committed) in all.iter().zip(broker.committed(group, &all).await?) {
            let Some(CommittedOffset { offset, metadata }) = committed else { continue };
            let (topic, partition) = (at.topic.to_string(), at.partition);
            write(out, &SavedLine::Commit { group: (*group).to_owned(), topic, partition, offset, metadata })?;
        }
    }
    Ok(out.flush()?)
}

async fn save_partition(
    broker: &dyn Broker,
    partition: &TopicPartition,
    out: &mut (impl Write + Send),
) -> Result<(), SaveError> {
    let (low, end) = broker.watermarks(partition).await?;
    let mut next = 0;
    let gap = |offset| SaveError::Gap { partition: partition.clone(), offset };
    if low > 0 {
        return Err(gap(0));
    }
    let mut reader = broker.read(partition, low).await?;
    while next < end {
        let messages = reader.next(MAX_WAIT).await?;
        if messages.is_empty() {
            return Err(gap(next));
        }
        for message in messages.into_iter().filter(|message| message.offset < end) {
            if message.offset != next {
                return Err(gap(next));
            }
            next += 1;
            let headers = message.headers.iter().map(|(name, value)| (name.clone(), hex::encode(value)));
            let saved = SavedMessage {
                topic: partition.topic.to_string(),
                partition: partition.partition,
                offset: message.offset,
                timestamp_ms: message.timestamp_ms,
                key: message.key.to_vec(),
                payload: message.payload.to_vec(),
                headers: headers.collect(),
            };
            write(out, &SavedLine::Message(saved))?;
        }
    }
    Ok(())
}

fn write(out: &mut impl Write, line: &SavedLine) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

/// A read-only log that was loaded from a file.
pub struct SavedLog {
    log: MemoryBroker,
}

impl SavedLog {
    /// Loads the whole file into memory.
    pub async fn load(input: impl BufRead) -> Result<Self, LoadError> {
        let log = MemoryBroker::new(MemorySettings::new(Clock::System));
        for (line, text) in (1..).zip(input.lines()) {
            let malformed = |problem: String| LoadError::Line { line, problem };
            let read = serde_json::from_str(&text?).map_err(|error| malformed(error.to_string()))?;
            apply_line(&log, read).await.map_err(malformed)?;
        }
        Ok(SavedLog { log })
    }
}

async fn apply_line(log: &MemoryBroker, line: SavedLine) -> Result<(), String> {
    let describe = |error: BrokerError| error.to_string();
    match line {
        SavedLine::Topic { name, partitions } => {
            log.create_topics(&[NewTopic { name, partitions, config: Vec::new() }]).await.map_err(describe)
        }
        SavedLine::Message(SavedMessage { topic, partition, offset, timestamp_ms, key, payload, headers }) => {
            let headers = headers.into_iter().map(|(name, value)| Ok((name, Bytes::from(hex::decode(value)?))));
            let headers = headers.collect::<Result<_, hex::FromHexError>>().map_err(|error| error.to_string())?;
            let (key, payload) = (key.into(), payload.into());
            let (partition, timestamp_ms) = (Some(partition), Some(timestamp_ms));
            let message = OutgoingMessage { topic, partition, key, payload, headers, timestamp_ms };
            let delivered = log.producer().await.map_err(describe)?.produce(message).await.map_err(describe)?;
            match delivered.offset == offset {
                true => Ok(()),
                false => Err(format!("offset {offset} is not the next one, which is {}", delivered.offset)),
            }
        }
        SavedLine::Commit { group, topic, partition, offset, metadata } => {
            let at = TopicPartition { topic: topic.into(), partition };
            log.set_committed(&group, &[(at, CommittedOffset { offset, metadata })]).await.map_err(describe)
        }
    }
}

fn read_only(operation: &'static str) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Refused, operation, READ_ONLY)
}

#[async_trait]
impl Broker for SavedLog {
    async fn subscribe(&self, _: &str, _: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        Err(read_only("subscribe"))
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
        self.log.read(partition, offset).await
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        Err(read_only("produce"))
    }

    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError> {
        self.log.partitions(topic).await
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        self.log.watermarks(partition).await
    }

    async fn offsets_at(&self, topic: &str, timestamp_ms: i64) -> Result<Vec<Option<u64>>, BrokerError> {
        self.log.offsets_at(topic, timestamp_ms).await
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        self.log.committed(group, partitions).await
    }

    async fn set_committed(&self, _: &str, _: &[(TopicPartition, CommittedOffset)]) -> Result<(), BrokerError> {
        Err(read_only("commit"))
    }

    async fn member_count(&self, group: &str) -> Result<usize, BrokerError> {
        self.log.member_count(group).await
    }

    async fn create_topics(&self, _: &[NewTopic]) -> Result<(), BrokerError> {
        Err(read_only("create topics"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn log() -> MemoryBroker {
        let log = MemoryBroker::new(MemorySettings::new(Clock::System));
        let topic = NewTopic { name: "t".into(), partitions: 2, config: Vec::new() };
        log.create_topics(&[topic]).await.unwrap();
        let producer = log.producer().await.unwrap();
        for number in 0..3_u8 {
            let message = OutgoingMessage {
                topic: "t".into(),
                partition: Some(1),
                key: Bytes::copy_from_slice(&[number]),
                payload: Bytes::copy_from_slice(&[0xff, number]),
                headers: vec![("h".into(), Bytes::from_static(b"\xfe"))],
                timestamp_ms: Some(i64::from(number) * 10),
            };
            producer.produce(message).await.unwrap();
        }
        let at = TopicPartition { topic: "t".into(), partition: 1 };
        log.set_committed("g", &[(at, CommittedOffset { offset: 2, metadata: "m".into() })]).await.unwrap();
        log
    }

    #[tokio::test]
    async fn a_saved_log_is_loaded_unchanged_and_read_only() {
        let log = log().await;
        let mut file = Vec::new();
        save(&log, &["t"], &["g", "other"], &mut file).await.unwrap();
        let saved = SavedLog::load(&file[..]).await.unwrap();
        let mut again = Vec::new();
        save(&saved, &["t"], &["g", "other"], &mut again).await.unwrap();
        assert_eq!(String::from_utf8(file).unwrap(), String::from_utf8(again).unwrap());
        let at = TopicPartition { topic: "t".into(), partition: 1 };
        assert_eq!(saved.watermarks(&at).await.unwrap(), (0, 3));
        assert_eq!(saved.partitions("other").await.unwrap(), None);
        let messages = saved.read(&at, 1).await.unwrap().next(Duration::ZERO).await.unwrap();
        assert_eq!((messages.len(), &messages[0].payload[..], messages[0].timestamp_ms), (2, &[0xff, 1][..], 10));
        for refused in [
            saved.producer().await.err().unwrap(),
            saved.subscribe("g", &[]).await.err().unwrap(),
            saved.set_committed("g", &[]).await.unwrap_err(),
            saved.create_topics(&[]).await.unwrap_err(),
        ] {
            assert!(refused.to_string().contains("is only read"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_log_with_a_gap_is_refused() {
        let log = log().await;
        let mut file = Vec::new();
        save(&log, &["t"], &[], &mut file).await.unwrap();
        let text = String::from_utf8(file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let gap = [lines[0], lines[1], lines[3]].join("\n");
        let error = SavedLog::load(gap.as_bytes()).await.err().unwrap().to_string();
        assert!(error.starts_with("line 3 of the log: offset 2 is not the next one"), "{error}");
        let error = SavedLog::load(&b"{\"what\":1}\n"[..]).await.err().unwrap().to_string();
        assert!(error.starts_with("line 1 of the log: "), "{error}");
        log.truncate(&TopicPartition { topic: "t".into(), partition: 1 }, 1).unwrap();
        let error = save(&log, &["t"], &[], &mut Vec::new()).await.unwrap_err().to_string();
        assert!(error.contains("t/1: offset 0 is not there"), "{error}");
    }
}
