//! `utxo-store inspect offsets`: prints committed offsets, end offsets and lag of both groups.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::super::{CliResult, ConfigArgs, opening, output};
use crate::{
    broker::{
        Broker, BrokerError,
        committed::{GroupPosition, read_positions},
    },
    config::Config,
    sequencer::chain_group,
};

const AFTER_HELP: &str = "\
Asks the brokers and joins no group. The column `metadata` is the metadata of the commit: for
validated transactions the oldest unfinished event and the position, for the chain its state.

Example: utxo-store inspect offsets --config deploy/utxo-store.toml --json";

/// Arguments of the command `inspect offsets`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct OffsetsArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Offsets of a group in one partition.
#[derive(Debug, PartialEq, Serialize)]
pub struct PartitionOffsets {
    /// Number of the partition in its topic.
    pub partition: i32,
    /// Offset of the first message that the partition still has.
    pub low: u64,
    /// Committed offset; `None`: the group has committed nothing.
    pub committed: Option<u64>,
    /// End offset: the next message to be produced.
    pub end: u64,
    /// Number of messages from the committed offset (or from `low`) to the end offset.
    pub lag: u64,
    /// Metadata of the commit, parsed if it is JSON.
    pub metadata: Option<serde_json::Value>,
}

/// Offsets of a group in one topic.
#[derive(Debug, PartialEq, Serialize)]
pub struct GroupOffsets {
    group: String,
    /// Name of the topic that the group reads.
    pub topic: String,
    lag: u64,
    /// Offsets by partition, in the order of their numbers.
    pub partitions: Vec<PartitionOffsets>,
}

impl OffsetsArgs {
    pub(super) async fn run(&self, out: &mut impl Write) -> CliResult {
        let config = self.config.load()?;
        let groups = read_group_offsets(opening::open_broker(&config).await?.as_ref(), &config).await?;
        match self.json {
            true => output::write_json(&serde_json::json!({ "groups": groups }), out)?,
            false => write_table(&groups, out)?,
        }
        Ok(())
    }
}

/// Reads the offsets of both groups of an instance: of the validated transactions, and of the chain.
///
/// # Errors
/// The broker does not answer, or a topic does not exist.
pub async fn read_group_offsets(broker: &dyn Broker, config: &Config) -> Result<Vec<GroupOffsets>, BrokerError> {
    let (group, topics) = (&config.kafka.group, &config.kafka.topics);
    Ok(vec![
        read_offsets(broker, group, topics.validated_txs.as_str()).await?,
        read_offsets(broker, &chain_group(group), topics.chain.as_str()).await?,
    ])
}

async fn read_offsets(broker: &dyn Broker, group: &str, topic: &str) -> Result<GroupOffsets, BrokerError> {
    let positions = read_positions(broker, group, topic).await?.into_iter();
    let places: Vec<_> = positions
        .map(|position| {
            let lag = position.lag();
            let GroupPosition { at, low, high, committed } = position;
            let offset = committed.as_ref().map(|committed| committed.offset);
            let metadata = committed.map(|committed| committed.metadata).filter(|text| !text.is_empty());
            PartitionOffsets {
                partition: at.partition,
                low,
                committed: offset,
                end: high,
                lag,
                metadata: metadata.map(parse_metadata),
            }
        })
        .collect();
    let lag = places.iter().map(|place| place.lag).sum();
    Ok(GroupOffsets { group: group.to_owned(), topic: topic.to_owned(), lag, partitions: places })
}

/// Parses metadata. Metadata of this program is JSON; other metadata is kept as text.
fn parse_metadata(metadata: String) -> serde_json::Value {
    serde_json::from_str(&metadata).unwrap_or(serde_json::Value::String(metadata))
}

fn write_table(groups: &[GroupOffsets], out: &mut impl Write) -> io::Result<()> {
    for GroupOffsets { group, topic, lag, partitions } in groups {
        writeln!(out, "group {group} in topic {topic}: lag {lag}")?;
        writeln!(out, "{:>9} {:>12} {:>12} {:>12} {:>10}  metadata", "partition", "low", "committed", "end", "lag")?;
        for PartitionOffsets { partition, low, committed, end, lag, metadata } in partitions {
            let committed = committed.map_or("-".to_owned(), |offset| offset.to_string());
            let metadata = metadata.as_ref().map_or(String::new(), ToString::to_string);
            writeln!(out, "{partition:>9} {low:>12} {committed:>12} {end:>12} {lag:>10}  {metadata}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        broker::{
            CommittedOffset, ConsumerEvent, NewTopic, OutgoingMessage, TopicPartition,
            memory::{MemoryBroker, MemorySettings},
        },
        clock::Clock,
    };

    async fn broker() -> MemoryBroker {
        let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(1_000)));
        let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: vec![] };
        broker.create_topics(&[new("utxo.validated-txs", 2), new("utxo.chain", 1)]).await.unwrap();
        let topic = "utxo.validated-txs".to_owned();
        let message = OutgoingMessage { topic, partition: Some(1), ..OutgoingMessage::default() };
        broker.producer().await.unwrap().produce_all(vec![message; 3]).await.unwrap();
        broker
    }

    #[tokio::test(start_paused = true)]
    async fn both_groups_are_printed_with_lag_and_metadata() {
        let broker = broker().await;
        let mut member = broker.subscribe("utxo-store", &["utxo.validated-txs".into()]).await.unwrap();
        while !matches!(member.poll().await.unwrap(), ConsumerEvent::Messages(_)) {}
        let at = TopicPartition { topic: "utxo.validated-txs".into(), partition: 1 };
        let committed = CommittedOffset { offset: 2, metadata: "{\"read\":7}".into() };
        member.commit(&[(at, committed)]).await.unwrap();

        let groups = read_group_offsets(&broker, &Config::default()).await.unwrap();
        assert_eq!((groups[0].lag, groups[1].lag), (1, 0));
        assert_eq!((&*groups[1].group, &*groups[1].topic), ("utxo-store.chain", "utxo.chain"));
        let [empty, behind] = &groups[0].partitions[..] else { panic!("{groups:?}") };
        assert_eq!((empty.committed, empty.lag, &empty.metadata), (None, 0, &None));
        assert_eq!((behind.low, behind.committed, behind.end, behind.lag), (0, Some(2), 3, 1));
        assert_eq!(behind.metadata, Some(serde_json::json!({ "read": 7 })));

        let mut table = Vec::new();
        write_table(&groups, &mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        assert_eq!(table.lines().count(), 7, "{table}");
        assert!(table.contains("{\"read\":7}"), "{table}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_topic_is_named() {
        let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(1_000)));
        let error = read_group_offsets(&broker, &Config::default()).await.unwrap_err().to_string();
        assert!(error.contains("utxo.validated-txs does not exist"), "{error}");
    }
}
