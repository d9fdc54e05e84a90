//! `utxo-store generate`: turns block files or JSON lines into events and produces them.

mod produce;
mod source;

use std::{
    io::{self, Write},
    str::FromStr,
    time::Duration,
};

use clap::{ArgGroup, Args};
use serde::Serialize;

use super::{CliResult, ConfigArgs, Failure, UsageError, block_on, opening, output, topics::create_missing};
use crate::{
    broker::{Broker, TopicPartition},
    clock::Clock,
    config::{Brokers, Config, Topics},
    event::Topic,
    generate::{ChainCounts, Flood, LeftOutCounts, Message, Scenario, Story},
    preflight::topics::{NewTopicSettings, new_topics},
};

pub use produce::{EventSink, ProducedTotals, produce, progress_bar};
pub use source::{EventSource, LoadedSource, SourceArgs};

/// Wait of one read for the first block of the topic.
const FIRST_WAIT: Duration = Duration::from_secs(1);

const EXAMPLE: &str = "\
Example:
  utxo-store generate --blocks blk00000.dat --brokers 127.0.0.1:9092
  utxo-store generate --blocks tests/data/mainnet-384188.block --synthesize-prevouts \\
    --brokers 127.0.0.1:9092
  utxo-store generate --events events.jsonl --brokers 127.0.0.1:9092
  utxo-store generate --scenario coinbase-reorg --brokers 127.0.0.1:9092
  utxo-store generate --scenario flood --rivals 1000000 --brokers 127.0.0.1:9092

A flood is an attack: payments of the same coins, as fast as the brokers take them.

The blocks of all files are connected by their previous-block hashes, in whatever order the files
have them; the chain with the most work is produced. A separate line counts what was left out:
stale blocks, half a block, bytes that are no block. Missing topics are created. Blocks are
numbered from 1, so topics with blocks accept only the same files, or more of the same chain.";

/// Command-line arguments of `utxo-store generate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["blocks", "events", "scenario"]))]
pub struct GenerateArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Produce all events of a short story (double-spend, reorg, coinbase-reorg, freeze: see `demo --scenario`), or a
    /// flood of rival payments (flood)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["blocks", "events"])]
    scenario: Option<GeneratedScenario>,
    #[command(flatten)]
    flood: FloodArgs,
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

/// Content that `--scenario` names: a story in chapters, or a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GeneratedScenario {
    Story(Scenario),
    Flood,
}

impl FromStr for GeneratedScenario {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "flood" => Ok(GeneratedScenario::Flood),
            story => story.parse().map(GeneratedScenario::Story).map_err(|error| format!("{error}, flood")),
        }
    }
}

/// Options of `--scenario flood`.
#[derive(Debug, Clone, Copy, Args)]
struct FloodArgs {
    /// With --scenario flood: number of coins that are spent again and again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    coins: Option<u32>,
    /// With --scenario flood: number of rival payments over all coins
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000_000_000))]
    rivals: Option<u64>,
    /// With --scenario flood: number that all txids depend on; the time by default
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl FloodArgs {
    const COINS: u32 = 100;
    const RIVALS: u64 = 100_000;

    fn flood(self) -> Flood {
        let now = || Clock::System.now_ms();
        Flood {
            coins: self.coins.unwrap_or(Self::COINS),
            rivals: self.rivals.unwrap_or(Self::RIVALS),
            seed: self.seed.unwrap_or_else(now),
        }
    }

    /// Returns the first option that was given.
    fn first_given(self) -> Option<&'static str> {
        let given =
            [("--coins", self.coins.is_some()), ("--rivals", self.rivals.is_some()), ("--seed", self.seed.is_some())];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
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
    /// Seed of a flood.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
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
        let story = match self.scenario {
            Some(GeneratedScenario::Flood) => {
                return produce_flood(&config, self.flood.flood(), self.partitions, self.json);
            }
            Some(GeneratedScenario::Story(scenario)) => Some(scenario.story()),
            None => None,
        };
        if let Some(option) = self.flood.first_given() {
            return Err(UsageError(format!("{option} is an option of --scenario flood")).into());
        }
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
            GenerateSummary {
                counts: event_source.counts(),
                produced,
                left_out: event_source.left_out().cloned(),
                seed: None,
            }
            .print(self.json)?;
            if let Some(story) = story.filter(|_| !self.json) {
                print_story_txids(&story)?;
            }
            Ok(())
        })
    }
}

/// Produces a flood and prints its counts and its seed.
fn produce_flood(config: &Config, flood: Flood, partitions: i32, json: bool) -> CliResult {
    block_on(async {
        let broker = opening::build_kafka(super::wiring::kafka_settings(config))?;
        create_missing(&broker, &new_topics(&config.kafka.topics, NewTopicSettings::with_partitions(partitions)))
            .await?;
        let bar = progress_bar("produced", flood.events());
        let producer = broker.producer().await?;
        let sink = EventSink { producer: producer.as_ref(), topics: &config.kafka.topics, bodies: None };
        let produced = produce(&sink, flood.messages(), &bar).await?;
        bar.finish_and_clear();
        GenerateSummary { counts: None, produced, left_out: None, seed: Some(flood.seed) }.print(json)?;
        if !json {
            let Flood { coins, rivals, seed } = flood;
            writeln!(
                output::stdout(),
                "flood: {coins} coins, each with a payment that came first; {rivals} rivals; seed {seed}"
            )?;
        }
        Ok(())
    })
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
