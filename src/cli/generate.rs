//! `utxo-store generate`: block files, or events as JSON lines, into the log.

mod produce;
mod source;

use std::{
    io::{self, Write},
    time::Duration,
};

use clap::{ArgGroup, Args};
use serde::Serialize;

use super::{CommandResult, ConfigArgs, Failure, UsageError, block_on, output, topics::create_missing};
use crate::{
    broker::{Broker, TopicPartition},
    config::{Brokers, Topics},
    event::Topic,
    generate::{ChainCounts, LeftOutOfFiles, Message, Scenario, Story},
    preflight::topics::{Made, new_topics},
};

pub use produce::{Produced, produce, progress_bar};
pub use source::{Feed, Loaded, SourceArgs};

const FIRST_WAIT: Duration = Duration::from_secs(1);

const EXAMPLE: &str = "\
Example:
  utxo-store generate --blocks blk00000.dat --brokers 127.0.0.1:9092
  utxo-store generate --blocks tests/data/mainnet-384188.block --synthesize-prevouts --brokers 127.0.0.1:9092
  utxo-store generate --events events.jsonl --brokers 127.0.0.1:9092
  utxo-store generate --scenario coinbase-reorg --brokers 127.0.0.1:9092

The blocks of all files are connected by the block that each follows, in whatever order they are there; the chain with the most
work is produced. What is left out (stale blocks, half a block, what is no block) is counted in a line of its own. Topics that are not there are created. Blocks are numbered from 1, so only the same
files (or more of the same chain) can be produced to topics that hold blocks.";

/// Turns block files into events, and feeds them to the log
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["blocks", "events", "scenario"]))]
pub struct GenerateArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// All events of a short story: double-spend, reorg, coinbase-reorg, freeze (`demo --scenario` tells it)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["blocks", "events"])]
    scenario: Option<Scenario>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Brokers, `host:port` separated by commas; otherwise those of the configuration
    #[arg(long, value_name = "HOST:PORT")]
    brokers: Option<Brokers>,
    /// Partitions of topics that are created here and have many
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    partitions: i32,
    /// Print one JSON object instead of a line
    #[arg(long)]
    json: bool,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    counts: Option<ChainCounts>,
    #[serde(flatten)]
    produced: Produced,
    /// Counts of the files' content that the feed does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutOfFiles>,
}

impl GenerateArgs {
    /// Produces everything, and tells what it was.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged, a bad line, an unknown previous output, whatever the broker refuses.
    pub fn run(self) -> CommandResult {
        let mut config = self.config.load()?;
        if let Some(brokers) = self.brokers {
            let protocol = config.kafka.security.protocol;
            brokers.check_protocol(protocol).map_err(|problem| UsageError(format!("--brokers {problem}")))?;
            config.kafka.brokers = brokers;
        }
        let story = self.scenario.map(Scenario::story);
        let loaded = match &story {
            Some(story) => Loaded::Lines(story.messages().collect()),
            None => self.source.load()?,
        };
        let feed = loaded.feed()?;
        block_on(async {
            let broker = super::opening::kafka(super::wiring::kafka(&config))?;
            create_missing(&broker, &new_topics(&config.kafka.topics, Made::with_partitions(self.partitions))).await?;
            if story.is_some() || matches!(feed, Feed::Chain(_)) {
                check_same_chain(&broker, &config.kafka.topics, feed.messages()).await?;
            }
            let bar = progress_bar("produced", feed.messages().count() as u64);
            let producer = broker.producer().await?;
            let produced = produce(producer.as_ref(), &config.kafka.topics, feed.messages(), &bar).await?;
            bar.finish_and_clear();
            Summary { counts: feed.counts(), produced, left_out: feed.left_out().cloned() }.print(self.json)?;
            if let Some(story) = story.filter(|_| !self.json) {
                print_cast(&story)?;
            }
            Ok(())
        })
    }
}

/// Blocks are numbered from 1: under another chain's numbers they would be refused one by one.
///
/// # Errors
/// The topic holds blocks that do not begin as `messages` do.
async fn check_same_chain(
    broker: &dyn Broker,
    topics: &Topics,
    mut messages: impl Iterator<Item = Message>,
) -> Result<(), Failure> {
    let blocks = TopicPartition { topic: topics.name(Topic::BlockMined).into(), partition: 0 };
    let (low, high) = broker.watermarks(&blocks).await?;
    let mut reader = broker.read(&blocks, low).await?;
    while reader.position() < high {
        let Some(there) = reader.next(FIRST_WAIT).await?.into_iter().next() else { continue };
        let first = messages.find(|message| message.topic == Topic::BlockMined);
        return match first {
            Some(first) if *first.payload != *there.payload => Err(Failure::new(format!(
                "topic {} holds the blocks of another chain, or of another part of it: use topics of its own for this one, or number its \
                 blocks yourself and produce them with --events",
                blocks.topic
            ))),
            _ => Ok(()),
        };
    }
    Ok(())
}

/// Whom to ask the store for.
fn print_cast(story: &Story) -> io::Result<()> {
    let mut out = output::stdout();
    story.cast.iter().try_for_each(|(name, txid)| writeln!(out, "{txid}  {name}"))
}

impl Summary {
    fn print(&self, json: bool) -> io::Result<()> {
        let mut out = output::stdout();
        if json {
            return writeln!(out, "{}", serde_json::to_string(self)?);
        }
        writeln!(out, "{}", self.line())?;
        self.left_out.as_ref().map_or(Ok(()), |left_out| writeln!(out, "{left_out}"))
    }

    fn line(&self) -> String {
        let Produced { events, bytes } = self.produced;
        match self.counts {
            None => format!("{events} events, {bytes} bytes"),
            Some(ChainCounts { blocks, transactions, seeded, .. }) => format!(
                "{events} events, {bytes} bytes: {blocks} blocks with {transactions} transactions, {seeded} partial parents"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
