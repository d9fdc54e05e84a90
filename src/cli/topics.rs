//! `utxo-store topics`: creates the topics of the store, and checks existing topics.

pub(super) mod needed_log;

use std::{
    io::Write,
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CliResult, ConfigArgs, Failure, block_on, opening, output, wiring};
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, NewTopic, kafka::KafkaBroker},
    config::Config,
    event::Topic,
    preflight::{
        replication::copies_of_new_topics,
        retention::{NeededLog, WholeLogReason},
        topics::{NewTopicSettings, ObservedTopic, TopicStatus, config_for_replicas, new_topics},
    },
    record::MetaRecord,
    store::topics::{find_topics, verify_topic_binding},
    text::one_line,
};

const AFTER_HELP: &str = "\
Blocks, reorgs, the chain log and the decisions have one partition each, since each is one order.
These topics and the validated transactions are kept for good: a rebuild reads all of them. Where
snapshot.url is set, an existing topic may have retention.ms: the topic must keep what a store
restored from the newest complete snapshot reads. The number of partitions of the validated
transactions is fixed for the life of a store.

Example:
  utxo-store topics create --config utxo-store.toml --partitions 24 \\
    --replication-factor 3 --dry-run";

/// Longest wait until the brokers know a topic that was just created.
const VISIBLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two requests during that wait.
const VISIBLE_POLL: Duration = Duration::from_millis(100);

/// Command-line arguments of `utxo-store topics`.
#[derive(Debug, Args)]
pub struct TopicsCommand {
    #[command(subcommand)]
    action: TopicsAction,
}

#[derive(Debug, Subcommand)]
enum TopicsAction {
    /// Create missing topics and check the others; existing topics are not changed
    #[command(after_help = AFTER_HELP)]
    Create(CreateArgs),
    /// Check that all topics exist with the required settings; exit code 1 if one does not
    #[command(after_help = "Example: utxo-store topics check --config utxo-store.toml")]
    Check(CheckArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Number of partitions of the validated transactions, the outcomes and the dead letters
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    partitions: i32,
    /// Replicas of each topic; kafka.replication_factor by default, else 3 where the cluster has three or more brokers.
    /// With three or more replicas all but one must be in sync
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=1_000))]
    replication_factor: Option<i32>,
    /// Retention of the outcomes, hours; for good by default
    #[arg(long, value_name = "H", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    outcomes_hours: Option<u64>,
    /// Change nothing: print what would be created
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object per topic
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print one JSON object per topic
    #[arg(long)]
    json: bool,
}

/// Line of one topic; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct TopicReport {
    topic: String,
    partitions: i32,
    /// Number of replicas of the partition with the fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<usize>,
    /// Number of in-sync replicas of that partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_sync: Option<usize>,
    /// Value of `min.insync.replicas` of the topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_in_sync: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<TopicOutcome>,
    /// Problems of the topic; empty: the topic has the required settings.
    problems: Vec<String>,
    /// Settings that should be different, as texts.
    cautions: Vec<String>,
    #[serde(skip)]
    found: ObservedTopic,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
enum TopicOutcome {
    Created,
    WouldBeCreated,
}

impl TopicsCommand {
    /// Creates or checks the topics, and prints one line per topic.
    ///
    /// # Errors
    /// The brokers cannot be reached or refuse, or a topic does not have the required settings.
    pub fn run(self) -> CliResult {
        match self.action {
            TopicsAction::Create(args) => args.run(),
            TopicsAction::Check(args) => args.run(),
        }
    }
}

impl CreateArgs {
    fn run(self) -> CliResult {
        let config = self.config.load()?;
        let mut settings = wiring::kafka_settings(&config);
        settings.replication_factor = self.replication_factor.or(settings.replication_factor);
        let outcomes_ms = self.outcomes_hours.map(|hours| hours * 3_600_000);
        block_on(async {
            let cluster = opening::build_kafka(settings.clone())?;
            let brokers = cluster.describe_cluster(config.kafka.topics.name(Topic::Chain)).await?.brokers.len();
            let wanted_copies = settings.replication_factor;
            settings.replication_factor = copies_of_new_topics(wanted_copies, brokers);
            let (partitions, replication_factor) = (self.partitions, settings.replication_factor);
            let wanted = NewTopicSettings { partitions, replication_factor, outcomes_ms };
            let wanted = new_topics(&config.kafka.topics, wanted);
            let broker = opening::build_kafka(settings)?;
            let mut wrong = 0;
            let wanted_copies = wanted_copies.and_then(|copies| usize::try_from(copies).ok());
            let needed = read_needed_log(&broker, &config).await;
            let statuses = describe_topics(&broker, &config, wanted_copies, &needed).await?;
            for (status, wanted) in statuses.into_iter().zip(wanted) {
                let mut line = report(&wanted.name, status)?;
                if line.partitions != 0 && line.partitions != wanted.partitions && line.problems.is_empty() {
                    line.problems
                        .push(format!("has {} partitions, and {} were asked for", line.partitions, wanted.partitions));
                }
                if line.partitions == 0 {
                    line = TopicReport {
                        partitions: wanted.partitions,
                        outcome: Some(TopicOutcome::WouldBeCreated),
                        ..line
                    };
                    line.problems.clear();
                    if !self.dry_run {
                        broker.create_topics(slice::from_ref(&wanted)).await?;
                        line.outcome = Some(TopicOutcome::Created);
                        line.cautions.extend(set_min_in_sync(&broker, &wanted).await?);
                    }
                }
                print(&line, self.json)?;
                wrong += usize::from(!line.problems.is_empty());
            }
            check_result(wrong)
        })
    }
}

/// Sets `min.insync.replicas` of a topic that was just created with the cluster's default number of replicas. Returns a
/// caution as text, if the setting should be different.
async fn set_min_in_sync(broker: &KafkaBroker, wanted: &NewTopic) -> Result<Option<String>, BrokerError> {
    let deadline = Instant::now() + VISIBLE_TIMEOUT;
    let found = loop {
        match broker.describe_topic(&wanted.name).await? {
            Some(found) => break ObservedTopic::from_description(found),
            // The brokers learn of a new topic one after the other.
            None if Instant::now() < deadline => tokio::time::sleep(VISIBLE_POLL).await,
            None => return Ok(Some("is not visible yet: run `topics check`".to_owned())),
        }
    };
    let Some(config) = config_for_replicas(wanted, &found) else { return Ok(None) };
    match broker.set_topic_config(&wanted.name, &config).await {
        Ok(()) => Ok(None),
        Err(error) if error.kind == BrokerErrorKind::Refused => {
            Ok(Some(format!("may acknowledge writes of a single replica: cannot set min.insync.replicas: {error}")))
        }
        Err(error) => Err(error),
    }
}

impl CheckArgs {
    fn run(self) -> CliResult {
        let config = self.config.load()?;
        block_on(async {
            let broker = opening::build_kafka(wiring::kafka_settings(&config))?;
            let meta = read_meta_record(&config).await;
            let needed = read_needed_log(&broker, &config).await;
            let mut wrong = 0;
            for status in describe_topics(&broker, &config, wanted_copies(&config), &needed).await? {
                let (topic, name) = (status.topic, config.kafka.topics.name(status.topic));
                let mut line = report(name, status)?;
                if let Some(meta) = meta.as_ref().filter(|_| topic.is_state_source() && line.partitions > 0) {
                    let found = find_topics(&broker, &[(topic, name.to_owned())]).await?;
                    let errors = found.iter().filter_map(|found| verify_topic_binding(meta, found).err());
                    line.problems.extend(errors.map(|error| error.to_string()));
                }
                print(&line, self.json)?;
                wrong += usize::from(!line.problems.is_empty());
            }
            check_result(wrong)
        })
    }
}

/// Reads the meta record of the configured store; `None`: there is no store, or a line on standard error says why the
/// store cannot be opened.
async fn read_meta_record(config: &Config) -> Option<MetaRecord> {
    if config.store.url.is_volatile() {
        return None;
    }
    let unknown = |reason: String| {
        eprintln!("store: cannot check whether the store was made from these topics: {reason}");
        None
    };
    let store = match opening::open_existing_store(config).await {
        Ok(Some(store)) => store,
        Ok(None) => return None,
        Err(error) => return unknown(error.to_string()),
    };
    let meta = store.meta().await;
    if let Err(error) = store.engine.close().await {
        tracing::warn!(%error, "topics: cannot close the store");
    }
    meta.unwrap_or_else(|error| unknown(error.to_string()))
}

/// Reads the part of the log that the topics must keep. Where `snapshot.url` is set, a line on standard error names the
/// snapshot.
async fn read_needed_log(broker: &KafkaBroker, config: &Config) -> Arc<NeededLog> {
    let needed = needed_log::read(broker, config).await;
    if needed != NeededLog::Whole(WholeLogReason::NotConfigured) {
        eprintln!("snapshots: {}", one_line(&needed.to_string()));
    }
    Arc::new(needed)
}

/// Returns the number of copies that the settings demand.
pub(super) fn wanted_copies(config: &Config) -> Option<usize> {
    config.kafka.replication_factor.and_then(|copies| usize::try_from(copies).ok())
}

/// Describes each topic and its configuration. The topics are to have `wanted_copies`, where the settings say so, and
/// to keep the `needed` part of the log.
///
/// # Errors
/// The brokers cannot be reached.
pub(super) async fn describe_topics(
    broker: &KafkaBroker,
    config: &Config,
    wanted_copies: Option<usize>,
    needed: &Arc<NeededLog>,
) -> Result<Vec<TopicStatus>, BrokerError> {
    let (topics, limits) = (&config.kafka.topics, wiring::message_limits(config));
    let mut all = Vec::new();
    for topic in Topic::all() {
        let (found, unknown) = match broker.describe_topic(topics.name(topic)).await {
            Ok(found) => (found.map(ObservedTopic::from_description), None),
            Err(error) if error.kind == BrokerErrorKind::Refused => (None, Some(error)),
            Err(error) => return Err(error),
        };
        all.push(TopicStatus { topic, found, unknown, limits, wanted_copies, needed: needed.clone() });
    }
    let existing: Vec<&str> =
        all.iter().filter(|status| status.found.is_some()).map(|status| topics.name(status.topic)).collect();
    let configs = broker.topic_configs(&existing).await;
    let configs = configs.unwrap_or_else(|error| existing.iter().map(|_| Err(error.clone())).collect());
    for (status, config) in all.iter_mut().filter(|status| status.found.is_some()).zip(configs) {
        match (config, &mut status.found) {
            (Ok(config), Some(found)) => found.config = config,
            (config, _) => status.unknown = config.err(),
        }
    }
    Ok(all)
}

fn report(name: &str, status: TopicStatus) -> Result<TopicReport, BrokerError> {
    let (problems, cautions) = (status.problems(), status.cautions());
    status.unknown.map_or(Ok(()), Err)?;
    let found = status.found.unwrap_or_default();
    Ok(TopicReport {
        topic: name.to_owned(),
        partitions: found.partitions,
        copies: found.copies.map(|(copies, _)| copies),
        in_sync: found.copies.map(|(_, in_sync)| in_sync),
        min_in_sync: found.min_in_sync(),
        outcome: None,
        problems,
        cautions,
        found,
    })
}

fn print(line: &TopicReport, json: bool) -> CliResult {
    let mut out = output::stdout();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(line)?)?);
    }
    let TopicReport { topic, partitions, outcome, problems, cautions, found, .. } = line;
    let state = match outcome {
        Some(TopicOutcome::Created) => format!("created with {partitions} partitions"),
        Some(TopicOutcome::WouldBeCreated) => format!("would be created with {partitions} partitions"),
        None if problems.is_empty() => format!("ok ({found})"),
        None => problems.join("; "),
    };
    let cautions: String = cautions.iter().map(|caution| format!("; but it {caution}")).collect();
    Ok(writeln!(out, "{topic}: {state}{cautions}")?)
}

fn check_result(wrong: usize) -> CliResult {
    match wrong {
        0 => Ok(()),
        wrong => {
            Err(Failure::new(format!("{wrong} of {} topics do not have the required settings", Topic::all().len())))
        }
    }
}

/// Creates missing topics; existing topics keep their partitions.
///
/// # Errors
/// The brokers cannot be reached, or refuse a topic.
pub async fn create_missing(broker: &dyn Broker, topics: &[NewTopic]) -> Result<(), BrokerError> {
    let mut missing = Vec::new();
    for topic in topics {
        if broker.partitions(&topic.name).await?.is_none() {
            missing.push(topic.clone());
        }
    }
    if missing.is_empty() { Ok(()) } else { broker.create_topics(&missing).await }
}
