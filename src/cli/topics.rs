//! `utxo-store topics`: creates the topics that the store reads and writes, and checks those that are there.

use std::{
    io::Write,
    slice,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CommandResult, ConfigArgs, Failure, block_on, opening, output, wiring};
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, NewTopic, kafka::KafkaBroker},
    config::{Config, Topics},
    engine::{self, OpenError, StoreUrl, fjall::OpenFjallError},
    event::Topic,
    preflight::topics::{Caution, Found, Made, Problem, cautions, config_by_copies, new_topics, problems},
    record::MetaRecord,
    store::{
        Store,
        topics::{find_topics, is_bound_to},
    },
};

const AFTER_HELP: &str = "\
Blocks, reorgs, the chain and the decisions are one partition each: each is one order. They and the validated transactions are kept for
good: a rebuild reads all of them. How many partitions the validated transactions have is fixed for the life of a store.

Example:
  utxo-store topics create --config utxo-store.toml --partitions 24 --replication-factor 3 --dry-run";

/// For how long a topic that was made is looked for, and how often.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

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
    /// Of the partition that has fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<usize>,
    /// Likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_sync: Option<usize>,
    /// `min.insync.replicas`
    #[serde(skip_serializing_if = "Option::is_none")]
    min_in_sync: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    /// In words; none: it is as it has to be.
    problems: Vec<String>,
    /// What should be otherwise, in words.
    cautions: Vec<String>,
    #[serde(skip)]
    found: Found,
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
            let broker = opening::kafka(settings)?;
            let mut wrong = 0;
            for (looked, wanted) in look(&broker, &config.kafka.topics).await?.into_iter().zip(wanted) {
                let mut line = report(&wanted.name, looked)?;
                if line.partitions != 0 && line.partitions != wanted.partitions && line.problems.is_empty() {
                    line.problems
                        .push(format!("has {} partitions, and {} were asked for", line.partitions, wanted.partitions));
                }
                if line.partitions == 0 {
                    line = Report { partitions: wanted.partitions, outcome: Some(Outcome::WouldBeCreated), ..line };
                    line.problems.clear();
                    if !self.dry_run {
                        broker.create_topics(slice::from_ref(&wanted)).await?;
                        line.outcome = Some(Outcome::Created);
                        line.cautions.extend(keep_in_sync(&broker, &wanted).await?);
                    }
                }
                tell(&line, self.json)?;
                wrong += usize::from(!line.problems.is_empty());
            }
            verdict(wrong)
        })
    }
}

/// Says how many copies of a topic that was made just now have to be in sync, by how many it was given where nobody had asked for a
/// number. What should be otherwise, in words.
async fn keep_in_sync(broker: &KafkaBroker, wanted: &NewTopic) -> Result<Option<String>, BrokerError> {
    let deadline = Instant::now() + SEEN_WITHIN;
    let found = loop {
        match broker.describe_topic(&wanted.name).await? {
            Some(found) => break Found::described(found),
            // Brokers hear of it one after the other.
            None if Instant::now() < deadline => tokio::time::sleep(LOOK).await,
            None => return Ok(Some("is not seen yet: see `topics check`".to_owned())),
        }
    };
    let Some(config) = config_by_copies(wanted, &found) else { return Ok(None) };
    match broker.set_topic_config(&wanted.name, &config).await {
        Ok(()) => Ok(None),
        Err(error) if error.kind == BrokerErrorKind::Refused => {
            Ok(Some(format!("may acknowledge what one copy alone has: min.insync.replicas could not be set: {error}")))
        }
        Err(error) => Err(error),
    }
}

impl CheckArgs {
    fn run(self) -> CommandResult {
        let config = self.config.load()?;
        block_on(async {
            let broker = opening::kafka(wiring::kafka(&config))?;
            let meta = meta_of_store(&config).await;
            let mut wrong = 0;
            for looked in look(&broker, &config.kafka.topics).await? {
                let (topic, name) = (looked.topic, config.kafka.topics.name(looked.topic));
                let mut line = report(name, looked)?;
                if let Some(meta) = meta.as_ref().filter(|_| topic.makes_the_state() && line.partitions > 0) {
                    let found = find_topics(&broker, &[(topic, name.to_owned())]).await?;
                    let others = found.iter().filter_map(|found| is_bound_to(meta, found).err());
                    line.problems.extend(others.map(|error| error.to_string()));
                }
                tell(&line, self.json)?;
                wrong += usize::from(!line.problems.is_empty());
            }
            verdict(wrong)
        })
    }
}

/// The meta record of the configured store, where there is a store and nobody has it to himself. What cannot be looked
/// at is said.
async fn meta_of_store(config: &Config) -> Option<MetaRecord> {
    if !matches!(config.store.url, StoreUrl::Fjall(..) | StoreUrl::Aerospike(_)) {
        return None;
    }
    let unknown = |why: String| {
        eprintln!(
            "store: not looked at, so that it is not known whether the topics are those that it was made from: {why}"
        );
        None
    };
    let engine = match engine::open_existing(&config.store.url.to_string(), &wiring::engine(config)).await {
        Ok(engine) => engine,
        Err(OpenError::Fjall(OpenFjallError::Missing(_))) => return None,
        Err(error) => return unknown(error.to_string()),
    };
    let store = Store::new(engine, wiring::store(config));
    let meta = store.meta().await;
    if let Err(error) = store.engine.close().await {
        tracing::warn!(%error, "store: not closed in order");
    }
    meta.unwrap_or_else(|error| unknown(error.to_string()))
}

/// What there is of one topic.
pub(super) struct Looked {
    /// Which.
    pub(super) topic: Topic,
    /// `None`: it is not there, unless that is not known.
    pub(super) found: Option<Found>,
    /// Why it, or its configuration, is not known.
    pub(super) unknown: Option<BrokerError>,
}

/// What there is of each topic.
///
/// # Errors
/// The brokers cannot be reached.
pub(super) async fn look(broker: &KafkaBroker, topics: &Topics) -> Result<Vec<Looked>, BrokerError> {
    let mut all = Vec::new();
    for topic in Topic::ALL {
        all.push(match broker.describe_topic(topics.name(topic)).await {
            Ok(found) => Looked { topic, found: found.map(Found::described), unknown: None },
            Err(error) if error.kind == BrokerErrorKind::Refused => Looked { topic, found: None, unknown: Some(error) },
            Err(error) => return Err(error),
        });
    }
    let there: Vec<&str> = all.iter().filter(|it| it.found.is_some()).map(|it| topics.name(it.topic)).collect();
    let configs = broker.topic_configs(&there).await;
    let configs = configs.unwrap_or_else(|error| there.iter().map(|_| Err(error.clone())).collect());
    for (looked, config) in all.iter_mut().filter(|looked| looked.found.is_some()).zip(configs) {
        match (config, &mut looked.found) {
            (Ok(config), Some(found)) => found.config = config,
            (config, _) => looked.unknown = config.err(),
        }
    }
    Ok(all)
}

fn report(name: &str, looked: Looked) -> Result<Report, BrokerError> {
    let Looked { topic, found, unknown } = looked;
    unknown.map_or(Ok(()), Err)?;
    let problems = problems(topic, found.as_ref()).iter().map(Problem::to_string).collect();
    let found = found.unwrap_or_default();
    Ok(Report {
        topic: name.to_owned(),
        partitions: found.partitions,
        copies: found.copies.map(|(copies, _)| copies),
        in_sync: found.copies.map(|(_, in_sync)| in_sync),
        min_in_sync: found.min_in_sync(),
        outcome: None,
        problems,
        cautions: cautions(topic, &found).iter().map(Caution::to_string).collect(),
        found,
    })
}

fn tell(line: &Report, json: bool) -> CommandResult {
    let mut out = output::stdout();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(line)?)?);
    }
    let Report { topic, partitions, outcome, problems, cautions, found, .. } = line;
    let is = match outcome {
        Some(Outcome::Created) => format!("created with {partitions} partitions"),
        Some(Outcome::WouldBeCreated) => format!("would be created with {partitions} partitions"),
        None if problems.is_empty() => format!("is as it has to be ({found})"),
        None => problems.join("; "),
    };
    let cautions: String = cautions.iter().map(|caution| format!("; but it {caution}")).collect();
    Ok(writeln!(out, "{topic}: {is}{cautions}")?)
}

fn verdict(wrong: usize) -> CommandResult {
    match wrong {
        0 => Ok(()),
        wrong => Err(Failure::new(format!("{wrong} of {} topics are not as they have to be", Topic::ALL.len()))),
    }
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
