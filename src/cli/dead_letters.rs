//! `utxo-store dead-letters`: what could not be applied, and what is done about it.

mod register;
mod settle;
mod verdicts;

use std::{io::Write, time::Duration};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{
    CommandResult, ConfigArgs, Failure, UsageError, block_on,
    command::{each, only},
    generate::progress_bar,
    opening, output,
};
use crate::{
    broker::{Broker, BrokerError, Message, TopicPartition},
    config::Topics,
    event::DeadLetterClass,
    tx::Txid,
};

use register::{Filter, Listed, Register};
use settle::{AT_ONCE, Done, Settler, Way};
use verdicts::Verdicts;

const AFTER_HELP: &str = "\
A dead letter stays in its topic for good; what was done with it stands behind it. To replay one is to publish its source message again, to
the topic that it came from, or, where a parent was missing, to have its transaction looked at again: do that once the cause is mended. What
fails again is a new dead letter. Up to a thousand are asked for at once, and each is settled when its answer comes: it may be killed and begun
again. Blocks, reorgs and commands have their place in an order and are not replayed: publish them anew.

Example:
  utxo-store dead-letters list --config utxo-store.toml
  utxo-store dead-letters replay --config utxo-store.toml --class missing-parent --from-timestamp 2026-11-23T10:00:00Z --dry-run
  utxo-store dead-letters discard --config utxo-store.toml --topic utxo.validated-txs --partition 3 --from-offset 17 --to-offset 17";

/// Arguments of `dead-letters`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DeadLettersCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List those that nothing was done with yet
    #[command(after_help = AFTER_HELP)]
    List {
        #[command(flatten)]
        common: Common,
        /// Those that something was done with, too
        #[arg(long)]
        settled: bool,
    },
    /// Publish their source messages again, or have their transactions looked at again
    #[command(after_help = AFTER_HELP)]
    Replay(SettleArgs),
    /// Note that nobody wants them
    #[command(after_help = AFTER_HELP)]
    Discard(SettleArgs),
}

#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    filter: Filter,
    /// Print one JSON object each
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct SettleArgs {
    #[command(flatten)]
    common: Common,
    /// All that nothing was done with yet; without it something has to say which
    #[arg(long)]
    all: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the next answer about transactions that are looked at again, seconds
    #[arg(long, value_name = "S", default_value_t = 120)]
    timeout_s: u64,
}

impl DeadLettersCommand {
    /// Lists, replays or discards, and prints a line each.
    ///
    /// # Errors
    /// The log does not answer, or with one of them nothing could be done; those before it are settled.
    pub fn run(self) -> CommandResult {
        match self.action {
            Action::List { common, settled } => common.list(settled),
            Action::Replay(args) => args.run(true),
            Action::Discard(args) => args.run(false),
        }
    }
}

impl Common {
    fn list(self, settled_too: bool) -> CommandResult {
        let config = self.config.load()?;
        block_on(async {
            let broker = opening::broker(&config).await?;
            let topics = &config.kafka.topics;
            let listed = listed(broker.as_ref(), topics, &self.filter, settled_too).await?;
            let verdicts = verdicts_on(broker.as_ref(), topics, children_of_missing(&listed)).await?;
            for listed in listed {
                let came = listed.txid.is_some_and(|txid| verdicts.accepts(&txid));
                match came {
                    true if settled_too => self.tell(&listed, Some("its parent came, and the transaction is live"))?,
                    true => {}
                    false => self.tell(&listed, None)?,
                }
            }
            Ok(())
        })
    }

    fn tell(&self, listed: &Listed, result: Option<&str>) -> CommandResult {
        let mut out = output::stdout();
        match (self.json, result) {
            (true, _) => writeln!(out, "{}", serde_json::to_string(&Told { listed, result })?)?,
            (false, Some(result)) => writeln!(out, "{listed}: {result}")?,
            (false, None) => writeln!(out, "{listed}")?,
        }
        Ok(())
    }
}

/// One line of JSON.
#[derive(Debug, Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    listed: &'a Listed,
    /// What became of it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
}

impl SettleArgs {
    fn run(self, replay: bool) -> CommandResult {
        let common = &self.common;
        if common.filter.is_empty() && !self.all {
            return Err(UsageError("say which dead letters (--class, --topic, …), or --all".to_owned()).into());
        }
        let config = common.config.load()?;
        block_on(async {
            let broker = opening::broker(&config).await?;
            let topics = &config.kafka.topics;
            let listed = listed(broker.as_ref(), topics, &common.filter, false).await?;
            let children = if replay { children_of_missing(&listed) } else { Vec::new() };
            let is_any = !children.is_empty();
            let timeout = Duration::from_secs(self.timeout_s);
            let settler = match self.dry_run {
                true => None,
                false => Some(Settler::open(broker.as_ref(), topics, timeout, is_any).await?),
            };
            let verdicts = verdicts_on(broker.as_ref(), topics, children).await?;
            let count = listed.len();
            let way = |letter: &Listed| if replay { Way::of(letter, topics, &verdicts) } else { Way::Discard };
            let letters: Vec<(Listed, Way)> = listed
                .into_iter()
                .map(|letter| {
                    let way = way(&letter);
                    (letter, way)
                })
                .collect();
            let bar = progress_bar("settled", count as u64);
            let mut done = 0;
            let mut tell = |letter: &Listed, result: &Done| {
                done += usize::from(result.is_ok());
                bar.inc(1);
                let told = match result {
                    Ok(told) => told,
                    Err(why) => why.as_str(),
                };
                common.tell(letter, Some(told))
            };
            match settler.map(|settler| settler.knowing(verdicts)) {
                None => letters.iter().try_for_each(|(letter, way)| tell(letter, &way.in_words()))?,
                Some(mut settler) => {
                    for letters in letters.chunks(AT_ONCE) {
                        // Who is asked for more while nobody answers waits in vain.
                        if !settler.settle(letters, &mut tell).await? {
                            break;
                        }
                    }
                }
            }
            bar.finish_and_clear();
            match count - done {
                0 => Ok(()),
                left => Err(Failure::new(format!("{left} of {count} dead letters are as they were"))),
            }
        })
    }
}

/// The transactions of dead letters whose parent was missing: of those the log may say something else since.
fn children_of_missing(listed: &[Listed]) -> Vec<Txid> {
    let missing = listed.iter().filter(|listed| listed.letter.class == DeadLetterClass::MissingParent);
    missing.filter_map(|listed| listed.txid).collect()
}

/// The last verdicts on these transactions, by the topic of decisions, which is read only for any of them.
async fn verdicts_on(broker: &dyn Broker, topics: &Topics, txids: Vec<Txid>) -> Result<Verdicts, BrokerError> {
    let is_any = !txids.is_empty();
    let mut verdicts = Verdicts::on(txids);
    if is_any {
        let decisions = [only(topics.decisions.as_str())];
        read_through(broker, &decisions, "decisions", |_, message| verdicts.take(message)).await?;
    }
    Ok(verdicts)
}

/// The dead letters that are meant, by the partitions of their topic, in their order there.
async fn listed(
    broker: &dyn Broker,
    topics: &Topics,
    filter: &Filter,
    settled_too: bool,
) -> Result<Vec<Listed>, BrokerError> {
    let topic = topics.dead_letters.as_str();
    let count = broker.partitions(topic).await?.ok_or_else(|| BrokerError::unknown_topic("read", topic))?;
    let partitions: Vec<_> = (0..count).map(|partition| TopicPartition { topic: topic.into(), partition }).collect();
    let mut register = Register::new(filter);
    read_through(broker, &partitions, "dead letters", |partition, message| register.take(partition, message)).await?;
    Ok(register.finish(settled_too))
}

/// Reads whole partitions, and shows on a terminal how far it is.
async fn read_through(
    broker: &dyn Broker,
    partitions: &[TopicPartition],
    what: &'static str,
    mut take: impl FnMut(i32, &Message),
) -> Result<(), BrokerError> {
    let mut total = 0;
    for partition in partitions {
        let (low, end) = broker.watermarks(partition).await?;
        total += end - low;
    }
    let bar = progress_bar(what, total);
    for at in partitions {
        each(broker, at, |message| {
            take(at.partition, message);
            bar.inc(1);
        })
        .await?;
    }
    bar.finish_and_clear();
    Ok(())
}
