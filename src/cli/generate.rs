//! `utxo-store generate`: turns block files or JSON lines into events and produces them.

mod produce;
mod source;

use std::{
    io::{self, Write},
    time::Duration,
};

use clap::{ArgGroup, Args};
use serde::Serialize;

use super::{CliResult, ConfigArgs, Failure, UsageError, block_on, opening, output, topics::create_missing};
use crate::{
    broker::{Broker, TopicPartition},
    config::{Brokers, Topics},
    event::Topic,
    generate::{ChainCounts, LeftOutCounts, Message, Scenario, Story},
    preflight::topics::{NewTopicSettings, new_topics},
};

pub use produce::{EventSink, ProducedTotals, produce, progress_bar};
pub use source::{EventSource, LoadedSource, SourceArgs};

/// Wait of one read for the first block of the topic.
const FIRST_WAIT: Duration = Duration::from_secs(1);

const EXAMPLE: &str = "\
Example:
  utxo-store generate --blocks blk00000.dat --brokers 127.0.0.1:9092
  utxo-store generate --blocks tests/data/mainnet-384188.block --synthesize-prevouts --brokers 127.0.0.1:9092
  utxo-store generate --events events.jsonl --brokers 127.0.0.1:9092
  utxo-store generate --scenario coinbase-reorg --brokers 127.0.0.1:9092

The blocks of all files are connected by their previous-block hashes, in whatever order the files have them; the chain
with the most work is produced. A separate line counts what was left out: stale blocks, half a block, bytes that are no
block. Missing topics are created. Blocks are numbered from 1, so topics with blocks accept only the same files, or more
of the same chain.";

/// Command-line arguments of `utxo-store generate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["blocks", "events", "scenario"]))]
pub struct GenerateArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Produce all events of a short story: double-spend, reorg, coinbase-reorg, freeze (see `demo --scenario`)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["blocks", "events"])]
    scenario: Option<Scenario>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Brokers, `host:port` separated by commas; kafka.brokers by default
    #[arg(long, value_name = "HOST:PORT")]
    brokers: Option<Brokers>,
    /// Number of partitions of created topics that may have several
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    partitions: i32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Counts of the produced events; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct GenerateSummary {
    #[serde(flatten)]
    counts: Option<ChainCounts>,
    #[serde(flatten)]
    produced: ProducedTotals,
    /// Counts of the content of the files that was not produced.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutCounts>,
}

impl GenerateArgs {
    /// Produces all events and prints their counts.
    ///
    /// # Errors
    /// A file cannot be read or is damaged, a line is wrong, a previous output is unknown, or the brokers refuse a
    /// topic or message.
    pub fn run(self) -> CliResult {
        let mut config = self.config.load()?;
        if let Some(brokers) = self.brokers {
            let protocol = config.kafka.security.protocol;
            brokers.check_protocol(protocol).map_err(|problem| UsageError(format!("--brokers {problem}")))?;
            config.kafka.brokers = brokers;
        }
        let story = self.scenario.map(Scenario::story);
        let loaded = match &story {
            Some(story) => LoadedSource::Lines(story.messages().collect()),
            None => self.source.load()?,
        };
        let event_source = loaded.event_source()?;
        block_on(async {
            let broker = opening::build_kafka(super::wiring::kafka_settings(&config))?;
            create_missing(
                &broker,
                &new_topics(&config.kafka.topics, NewTopicSettings::with_partitions(self.partitions)),
            )
            .await?;
            if story.is_some() || matches!(event_source, EventSource::Chain(_)) {
                check_same_chain(&broker, &config.kafka.topics, event_source.messages()).await?;
            }
            let bar = progress_bar("produced", event_source.messages().count() as u64);
            let (producer, bodies) = (broker.producer().await?, opening::open_event_bodies(&config).await?);
            let sink = EventSink { producer: producer.as_ref(), topics: &config.kafka.topics, bodies: bodies.as_ref() };
            let produced = produce(&sink, event_source.messages(), &bar).await?;
            bar.finish_and_clear();
            GenerateSummary { counts: event_source.counts(), produced, left_out: event_source.left_out().cloned() }
                .print(self.json)?;
            if let Some(story) = story.filter(|_| !self.json) {
                print_story_txids(&story)?;
            }
            Ok(())
        })
    }
}

/// Checks that the topic's first block is the first block of `messages`. Blocks are numbered from 1, so an instance
/// would refuse the blocks of a second chain one by one.
///
/// # Errors
/// The topic has another first block, or cannot be read.
async fn check_same_chain(
    broker: &dyn Broker,
    topics: &Topics,
    mut messages: impl Iterator<Item = Message>,
) -> Result<(), Failure> {
    let blocks = TopicPartition { topic: topics.name(Topic::BlockMined).into(), partition: 0 };
    let (low, high) = broker.watermarks(&blocks).await?;
    let mut reader = broker.read(&blocks, low).await?;
    while reader.position() < high {
        let Some(existing) = reader.next(FIRST_WAIT).await?.into_iter().next() else { continue };
        let first = messages.find(|message| message.topic == Topic::BlockMined);
        return match first {
            Some(first) if *first.payload != *existing.payload => Err(Failure::new(format!(
                "topic {} holds the blocks of another chain, or of another part of the chain: use other topics, or \
                 number the blocks yourself and produce them with --events",
                blocks.topic
            ))),
            _ => Ok(()),
        };
    }
    Ok(())
}

/// Prints the txids of the story's transactions with their names, to be used with `inspect`.
fn print_story_txids(story: &Story) -> io::Result<()> {
    let mut out = output::stdout();
    story.transactions.iter().try_for_each(|(name, txid)| writeln!(out, "{txid}  {name}"))
}

impl GenerateSummary {
    fn print(&self, json: bool) -> io::Result<()> {
        let mut out = output::stdout();
        if json {
            return writeln!(out, "{}", serde_json::to_string(self)?);
        }
        writeln!(out, "{}", self.line())?;
        self.left_out.as_ref().map_or(Ok(()), |left_out| writeln!(out, "{left_out}"))
    }

    fn line(&self) -> String {
        let ProducedTotals { events, bytes, by_reference } = self.produced;
        let objects = match by_reference {
            0 => String::new(),
            count => format!(", {count} bodies in objects"),
        };
        match self.counts {
            None => format!("{events} events, {bytes} bytes{objects}"),
            Some(ChainCounts { blocks, transactions, seeded, .. }) => format!(
                "{events} events, {bytes} bytes{objects}: {blocks} blocks with {transactions} transactions, \
                 {seeded} partial parents"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
