//! `utxo-store topics`: creates the topics that the store reads and writes, and checks those that are there.

mod plan;

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CommandResult, ConfigArgs, Failure, block_on, wiring};
use crate::{
    broker::{Broker, BrokerError, NewTopic, kafka::KafkaBroker},
    config::Topics,
    event::Topic,
};

pub use plan::{Found, Made, Problem, new_topics, problems};

const AFTER_HELP: &str = "\
Blocks, reorgs, the chain and the decisions are one partition each: each is one order. They and the validated transactions are kept for
good: a rebuild reads all of them. How many partitions the validated transactions have is fixed for the life of a store.

Example:
  utxo-store topics create --config utxo-store.toml --partitions 24 --replication-factor 3 --dry-run";

/// Arguments of `topics`.
#[derive(Debug, Args)]
pub struct TopicsCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create those that are missing, and check the others; nothing is changed that is there
    #[command(after_help = AFTER_HELP)]
    Create(CreateArgs),
    /// Check that all are there and as they have to be; exit code 1 where one is not
    #[command(after_help = "Example: utxo-store topics check --config utxo-store.toml")]
    Check(CheckArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Partitions of the validated transactions, the outcomes and the dead letters
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    partitions: i32,
    /// Copies of each; of three or more all but one have to be in sync; otherwise kafka.replication_factor, or the cluster's default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=1_000))]
    replication_factor: Option<i32>,
    /// For how long outcomes are kept, hours; otherwise for good
    #[arg(long, value_name = "H", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    outcomes_hours: Option<u64>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object a topic
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print one JSON object a topic
    #[arg(long)]
    json: bool,
}

/// What became of one topic.
#[derive(Debug, Serialize)]
struct Report {
    topic: String,
    partitions: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    /// In words; none: it is as it has to be.
    problems: Vec<String>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    Created,
    WouldBeCreated,
}

impl TopicsCommand {
    /// Creates or checks, and prints a line a topic.
    ///
    /// # Errors
    /// The brokers cannot be reached or refuse, or a topic is not as it has to be.
    pub fn run(self) -> CommandResult {
        match self.action {
            Action::Create(args) => args.run(),
            Action::Check(args) => args.run(),
        }
    }
}

impl CreateArgs {
    fn run(self) -> CommandResult {
        let config = self.config.load()?;
        let mut settings = wiring::kafka(&config);
        settings.replication_factor = self.replication_factor.or(settings.replication_factor);
        let (partitions, replication_factor) = (self.partitions, settings.replication_factor);
        let outcomes_ms = self.outcomes_hours.map(|hours| hours * 3_600_000);
        let wanted = new_topics(&config.kafka.topics, Made { partitions, replication_factor, outcomes_ms });
        block_on(async {
            let broker = KafkaBroker::new(settings)?;
            let mut wrong = 0;
            for (topic, wanted) in Topic::ALL.into_iter().zip(wanted) {
                let mut line = look(&broker, topic, &wanted.name).await?;
                if line.partitions != 0 && line.partitions != wanted.partitions && line.problems.is_empty() {
                    line.problems
                        .push(format!("has {} partitions, and {} were asked for", line.partitions, wanted.partitions));
                }
                if line.partitions == 0 {
                    line = Report { partitions: wanted.partitions, outcome: Some(Outcome::WouldBeCreated), ..line };
                    line.problems.clear();
                    if !self.dry_run {
                        broker.create_topics(&[wanted]).await?;
                        line.outcome = Some(Outcome::Created);
                    }
                }
                tell(&line, self.json)?;
                wrong += usize::from(!line.problems.is_empty());
            }
            verdict(wrong)
        })
    }
}

impl CheckArgs {
    fn run(self) -> CommandResult {
        let config = self.config.load()?;
        block_on(async {
            let broker = KafkaBroker::new(wiring::kafka(&config))?;
            let mut wrong = 0;
            for topic in Topic::ALL {
                let line = look(&broker, topic, topic_name(&config.kafka.topics, topic)).await?;
                tell(&line, self.json)?;
                wrong += usize::from(!line.problems.is_empty());
            }
            verdict(wrong)
        })
    }
}

async fn look(broker: &KafkaBroker, topic: Topic, name: &str) -> Result<Report, BrokerError> {
    let found = match broker.partitions(name).await? {
        Some(partitions) => Some(Found { partitions, config: broker.topic_config(name).await? }),
        None => None,
    };
    let problems = problems(topic, found.as_ref()).iter().map(Problem::to_string).collect();
    let partitions = found.map_or(0, |found| found.partitions);
    Ok(Report { topic: name.to_owned(), partitions, outcome: None, problems })
}

fn tell(line: &Report, json: bool) -> CommandResult {
    let mut out = io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(line)?)?);
    }
    let Report { topic, partitions, outcome, problems } = line;
    let is = match outcome {
        Some(Outcome::Created) => format!("created with {partitions} partitions"),
        Some(Outcome::WouldBeCreated) => format!("would be created with {partitions} partitions"),
        None if problems.is_empty() => format!("is as it has to be, with {partitions} partitions"),
        None => problems.join("; "),
    };
    Ok(writeln!(out, "{topic}: {is}")?)
}

fn verdict(wrong: usize) -> CommandResult {
    match wrong {
        0 => Ok(()),
        wrong => Err(Failure::new(format!("{wrong} of {} topics are not as they have to be", Topic::ALL.len()))),
    }
}

/// The configured name of a topic.
pub fn topic_name(topics: &Topics, topic: Topic) -> &str {
    let name = match topic {
        Topic::ValidatedTxs => &topics.validated_txs,
        Topic::BlockMined => &topics.block_mined,
        Topic::Reorgs => &topics.reorgs,
        Topic::Chain => &topics.chain,
        Topic::Decisions => &topics.decisions,
        Topic::Outcomes => &topics.outcomes,
        Topic::DeadLetters => &topics.dead_letters,
    };
    name.as_str()
}

/// Creates those that are not there; one that is there keeps its partitions.
///
/// # Errors
/// Whatever the broker refuses.
pub async fn create_missing(broker: &dyn Broker, topics: &[NewTopic]) -> Result<(), BrokerError> {
    let mut missing = Vec::new();
    for topic in topics {
        if broker.partitions(&topic.name).await?.is_none() {
            missing.push(topic.clone());
        }
    }
    if missing.is_empty() { Ok(()) } else { broker.create_topics(&missing).await }
}
