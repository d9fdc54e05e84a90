//! `utxo-store dead-letters`: lists, replays and discards the events that could not be applied.

mod register;
mod settle;
mod verdicts;

use std::{collections::BTreeMap, io::Write, time::Duration};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CliResult, ConfigArgs, Failure, UsageError, block_on, generate::progress_bar, opening, output};
use crate::{
    broker::{Broker, BrokerError, Message, TopicPartition},
    client::partitions::{read_partition, single_partition},
    config::Topics,
    event::DeadLetterClass,
    tx::Txid,
};

use register::{DeadLetterEntry, Filter, Register};
use settle::{SETTLE_BATCH, SettleMethod, SettleResult, Settler};
use verdicts::Verdicts;

const AFTER_HELP: &str = "\
A dead letter stays in its topic for good; a later message of the topic records that the dead
letter was settled. A replay publishes the source message again to its topic, or reconsiders the
transaction if the reason was a missing parent. Replay after the cause is mended; an event that
fails again becomes a new dead letter. Up to 1,000 dead letters are replayed at once, and each is
settled when its answer comes, so a replay that was killed can be started again. Blocks, reorgs
and commands have a fixed order and are not replayed: publish them anew.

Example:
  utxo-store dead-letters list --config utxo-store.toml
  utxo-store dead-letters replay --config utxo-store.toml --class missing-parent \\
    --from-timestamp 2026-11-23T10:00:00Z --dry-run
  utxo-store dead-letters discard --config utxo-store.toml --topic utxo.validated-txs \\
    --partition 3 --from-offset 17 --to-offset 17";

/// Command-line arguments of `utxo-store dead-letters`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DeadLettersCommand {
    #[command(subcommand)]
    action: DeadLettersAction,
}

#[derive(Debug, Subcommand)]
enum DeadLettersAction {
    /// List the dead letters that are not settled
    #[command(after_help = AFTER_HELP)]
    List {
        #[command(flatten)]
        common: CommonArgs,
        /// List settled dead letters, too: replayed, discarded, or with a live transaction
        #[arg(long)]
        settled: bool,
    },
    /// Publish the source messages again, or reconsider transactions whose parents were missing
    #[command(after_help = AFTER_HELP)]
    Replay(SettleArgs),
    /// Mark dead letters as settled without a replay
    #[command(after_help = AFTER_HELP)]
    Discard(SettleArgs),
}

#[derive(Debug, Args)]
struct CommonArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    filter: Filter,
    /// Print one JSON object per dead letter
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct SettleArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Take all dead letters that are not settled; required without a filter
    #[arg(long)]
    all: bool,
    /// Change nothing: print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Time to wait for the next answer on reconsidered transactions, seconds
    #[arg(long, value_name = "S", default_value_t = 120)]
    timeout_s: u64,
}

impl DeadLettersCommand {
    /// Lists, replays or discards dead letters, and prints one line per dead letter.
    ///
    /// # Errors
    /// The brokers do not answer, or at least one dead letter could not be settled.
    pub fn run(self) -> CliResult {
        match self.action {
            DeadLettersAction::List { common, settled } => common.list(settled),
            DeadLettersAction::Replay(args) => args.run(true),
            DeadLettersAction::Discard(args) => args.run(false),
        }
    }
}

impl CommonArgs {
    fn list(self, include_settled: bool) -> CliResult {
        let config = self.config.load()?;
        block_on(async {
            let broker = opening::open_broker(&config).await?;
            let topics = &config.kafka.topics;
            let entries = read_dead_letters(broker.as_ref(), topics, &self.filter, include_settled).await?;
            let verdicts = read_verdicts(broker.as_ref(), topics, missing_parent_txids(&entries)).await?;
            for entry in entries {
                let is_live = entry.txid.is_some_and(|txid| verdicts.accepts(&txid));
                match is_live {
                    true if include_settled => self.print(&entry, Some(settle::ALREADY_LIVE))?,
                    true => {}
                    false => self.print(&entry, None)?,
                }
            }
            Ok(())
        })
    }

    fn print(&self, entry: &DeadLetterEntry, result: Option<&str>) -> CliResult {
        let mut out = output::stdout();
        match (self.json, result) {
            (true, _) => writeln!(out, "{}", serde_json::to_string(&DeadLetterLine { entry, result })?)?,
            (false, Some(result)) => writeln!(out, "{entry}: {result}")?,
            (false, None) => writeln!(out, "{entry}")?,
        }
        Ok(())
    }
}

/// JSON line of one dead letter.
#[derive(Debug, Serialize)]
struct DeadLetterLine<'a> {
    #[serde(flatten)]
    entry: &'a DeadLetterEntry,
    /// Result of this replay or discard.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
}

impl SettleArgs {
    fn run(self, replay: bool) -> CliResult {
        let common = &self.common;
        if common.filter.is_empty() && !self.all {
            let problem = "give a filter (--class, --topic, …), or --all for all dead letters";
            return Err(UsageError(problem.to_owned()).into());
        }
        let config = common.config.load()?;
        block_on(async {
            let broker = opening::open_broker(&config).await?;
            let topics = &config.kafka.topics;
            let entries = read_dead_letters(broker.as_ref(), topics, &common.filter, false).await?;
            let children = if replay { missing_parent_txids(&entries) } else { Vec::new() };
            let has_children = !children.is_empty();
            let timeout = Duration::from_secs(self.timeout_s);
            let settler = match self.dry_run {
                true => None,
                false => Some(Settler::open(broker.as_ref(), topics, timeout, has_children).await?),
            };
            let verdicts = read_verdicts(broker.as_ref(), topics, children).await?;
            let count = entries.len();
            let with_method = |entry: DeadLetterEntry| {
                let method = match replay {
                    true => SettleMethod::of(&entry, topics, &verdicts),
                    false => SettleMethod::Discard,
                };
                (entry, method)
            };
            let entries: Vec<(DeadLetterEntry, SettleMethod)> = entries.into_iter().map(with_method).collect();
            let bar = progress_bar("settled", count as u64);
            let mut settled = 0;
            let mut report = |entry: &DeadLetterEntry, result: &SettleResult| {
                settled += usize::from(result.is_ok());
                bar.inc(1);
                let message = match result {
                    Ok(message) => message,
                    Err(reason) => reason.as_str(),
                };
                common.print(entry, Some(message))
            };
            match settler.map(|settler| settler.with_verdicts(verdicts)) {
                None => entries.iter().try_for_each(|(entry, method)| report(entry, &method.describe_dry_run()))?,
                Some(mut settler) => {
                    for entries in entries.chunks(SETTLE_BATCH) {
                        // Without an answer in time the sequencer is down: more commands would wait in vain.
                        if !settler.settle(entries, &mut report).await? {
                            break;
                        }
                    }
                }
            }
            bar.finish_and_clear();
            match count - settled {
                0 => Ok(()),
                left => Err(Failure::new(format!("{left} of {count} dead letters were not settled"))),
            }
        })
    }
}

/// Counts the dead letters that are not settled, by class; `None`: the topic has more than `most` messages.
///
/// # Errors
/// The brokers do not answer, or there is no topic of dead letters.
pub(super) async fn count_unsettled(
    broker: &dyn Broker,
    topics: &Topics,
    most: u64,
) -> Result<Option<BTreeMap<&'static str, usize>>, BrokerError> {
    if count_messages(broker, &dead_letter_partitions(broker, topics).await?).await? > most {
        return Ok(None);
    }
    let entries = read_dead_letters(broker, topics, &Filter::default(), false).await?;
    let verdicts = read_verdicts(broker, topics, missing_parent_txids(&entries)).await?;
    let mut counts = BTreeMap::new();
    for entry in entries.iter().filter(|entry| !entry.txid.is_some_and(|txid| verdicts.accepts(&txid))) {
        *counts.entry(entry.letter.class.name()).or_default() += 1;
    }
    Ok(Some(counts))
}

/// Returns the transactions of dead letters whose parent was missing: a later verdict can have accepted them.
fn missing_parent_txids(entries: &[DeadLetterEntry]) -> Vec<Txid> {
    let missing = entries.iter().filter(|entry| entry.letter.class == DeadLetterClass::MissingParent);
    missing.filter_map(|entry| entry.txid).collect()
}

/// Reads the last verdicts on these transactions from the decisions; without transactions nothing is read.
async fn read_verdicts(broker: &dyn Broker, topics: &Topics, txids: Vec<Txid>) -> Result<Verdicts, BrokerError> {
    let has_txids = !txids.is_empty();
    let mut verdicts = Verdicts::for_txids(txids);
    if has_txids {
        let decisions = [single_partition(topics.decisions.as_str())];
        read_partitions(broker, &decisions, "decisions", |_, message| verdicts.take(message)).await?;
    }
    Ok(verdicts)
}

/// Reads the dead letters that match the filter, ordered by partition and offset of their topic.
async fn read_dead_letters(
    broker: &dyn Broker,
    topics: &Topics,
    filter: &Filter,
    include_settled: bool,
) -> Result<Vec<DeadLetterEntry>, BrokerError> {
    let partitions = dead_letter_partitions(broker, topics).await?;
    let mut register = Register::new(filter);
    read_partitions(broker, &partitions, "dead letters", |partition, message| register.add(partition, message)).await?;
    Ok(register.finish(include_settled))
}

async fn dead_letter_partitions(broker: &dyn Broker, topics: &Topics) -> Result<Vec<TopicPartition>, BrokerError> {
    let topic = topics.dead_letters.as_str();
    let count = broker.partitions(topic).await?.ok_or_else(|| BrokerError::unknown_topic("read", topic))?;
    Ok((0..count).map(|partition| TopicPartition { topic: topic.into(), partition }).collect())
}

/// Counts the messages that the topics still hold.
async fn count_messages(broker: &dyn Broker, partitions: &[TopicPartition]) -> Result<u64, BrokerError> {
    let mut total = 0;
    for partition in partitions {
        let (low, end) = broker.watermarks(partition).await?;
        total += end - low;
    }
    Ok(total)
}

/// Reads whole partitions, with a progress bar on a terminal.
async fn read_partitions(
    broker: &dyn Broker,
    partitions: &[TopicPartition],
    label: &'static str,
    mut take: impl FnMut(i32, &Message),
) -> Result<(), BrokerError> {
    let bar = progress_bar(label, count_messages(broker, partitions).await?);
    for partition in partitions {
        read_partition(broker, partition, |message| {
            take(partition.partition, message);
            bar.inc(1);
        })
        .await?;
    }
    bar.finish_and_clear();
    Ok(())
}
