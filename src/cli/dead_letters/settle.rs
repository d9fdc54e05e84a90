//! Settles dead letters: publishes source messages again, reconsiders transactions, records settlements.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{register::DeadLetterEntry, verdicts::Verdicts};
use crate::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Message, OutgoingMessage, Producer, TopicPartition,
        produce_until_acknowledged,
    },
    cli::{CliResult, Failure},
    client::{CommandClient, CommandOutcome, PRODUCE_RETRY_PAUSE, PendingCommand},
    config::Topics,
    event::{CommandAction, DeadLetterClass, DeadLetterSettlement, SettlementKind},
    sequencer::reader_cache::{ReaderCache, RereadOutcome},
    tx::Txid,
};

/// Way to settle a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleMethod {
    /// Publish the source message again.
    Republish,
    /// Reconsider the transaction, which is stored: its event alone would only be recognised as a repeat.
    Reconsider(Txid),
    /// Record the settlement only: the parent has arrived since and has made the transaction live.
    AlreadyLive,
    /// No replay: the event belongs to an ordered topic.
    NotReplayable,
    /// Record that the operator discards the dead letter.
    Discard,
}

impl SettleMethod {
    /// Chooses the way to replay a dead letter.
    pub fn of(entry: &DeadLetterEntry, topics: &Topics, verdicts: &Verdicts) -> SettleMethod {
        let letter = &entry.letter;
        match (letter.class, entry.txid) {
            _ if letter.topic != topics.validated_txs.as_str() => SettleMethod::NotReplayable,
            (DeadLetterClass::MissingParent, Some(txid)) if verdicts.accepts(&txid) => SettleMethod::AlreadyLive,
            (DeadLetterClass::MissingParent, Some(txid)) => SettleMethod::Reconsider(txid),
            _ => SettleMethod::Republish,
        }
    }

    /// Describes the result without a change; an error: the dead letter would not be settled.
    pub fn describe_dry_run(self) -> SettleResult {
        match self {
            SettleMethod::Republish => Ok("would be published again"),
            SettleMethod::Reconsider(_) => Ok("would be reconsidered"),
            SettleMethod::AlreadyLive => Ok(ALREADY_LIVE),
            SettleMethod::NotReplayable => Err(NOT_REPLAYABLE.to_owned()),
            SettleMethod::Discard => Ok("would be discarded"),
        }
    }
}

const NOT_REPLAYABLE: &str = "not replayed: blocks, reorgs and commands have a fixed order; publish the event anew";

const RECONSIDERED: &str = "reconsidered: the transaction is live";

/// Result of a dead letter whose transaction a later parent has made live.
pub const ALREADY_LIVE: &str = "the parent has arrived: the transaction is live";

/// Greatest number of dead letters that are settled at once.
pub const SETTLE_BATCH: usize = 1_000;

/// Greatest number of source messages in memory at once; each can be large.
const REPUBLISH_BATCH: usize = 32;

/// Description of a settlement; an error: the reason why the dead letter is not settled.
pub type SettleResult = Result<&'static str, String>;

/// Settles dead letters on one cluster.
pub struct Settler<'a> {
    broker: &'a dyn Broker,
    producer: Arc<dyn Producer>,
    dead_letters: String,
    timeout: Duration,
    readers: ReaderCache,
    /// Client for `Reconsider` commands, where some may be needed.
    client: Option<CommandClient<'a>>,
    verdicts: Verdicts,
}

/// A published `Reconsider` with its chain offset and the dead letters of its transaction.
struct PendingReconsider<'l> {
    command: PendingCommand,
    chain_offset: u64,
    entries: Vec<&'l DeadLetterEntry>,
}

impl<'a> Settler<'a> {
    /// Prepares settlements on these topics. `timeout` is the longest wait for the next answer. Without
    /// `may_reconsider` no transaction can be reconsidered.
    ///
    /// # Errors
    /// The producer cannot be created, or a topic cannot be read.
    pub async fn open(
        broker: &'a dyn Broker,
        topics: &Topics,
        timeout: Duration,
        may_reconsider: bool,
    ) -> Result<Self, BrokerError> {
        let producer = broker.producer().await?;
        let client = match may_reconsider {
            true => Some(CommandClient::for_reconsiders(broker, producer.clone(), topics).await?),
            false => None,
        };
        let (dead_letters, readers, verdicts) =
            (topics.dead_letters.to_string(), ReaderCache::default(), Verdicts::default());
        Ok(Settler { broker, producer, dead_letters, timeout, readers, client, verdicts })
    }

    /// Sets the verdicts, which must have been read after `open`: so there is no gap before the decisions read here.
    #[must_use]
    pub fn with_verdicts(self, verdicts: Verdicts) -> Self {
        Settler { verdicts, ..self }
    }

    /// Settles at most [`SETTLE_BATCH`] dead letters and reports each as soon as it is settled. An interrupted call may
    /// be repeated: repeated messages and commands are recognised. `false`: no answer came in time.
    ///
    /// # Errors
    /// The brokers do not answer, the machine has no random numbers, or `report` fails.
    pub async fn settle(
        &mut self,
        entries: &[(DeadLetterEntry, SettleMethod)],
        report: &mut impl FnMut(&DeadLetterEntry, &SettleResult) -> CliResult,
    ) -> Result<bool, Failure> {
        // The sequencer handles these commands while the other dead letters are settled.
        let pending = self.publish_reconsiders(entries).await?;
        let (mut republished, mut settled) = (Vec::new(), Vec::new());
        for (entry, method) in entries {
            match method {
                SettleMethod::NotReplayable => report(entry, &Err(NOT_REPLAYABLE.to_owned()))?,
                SettleMethod::Discard => settled.push((entry, SettlementKind::Discarded, "discarded")),
                SettleMethod::AlreadyLive => settled.push((entry, SettlementKind::Replayed, ALREADY_LIVE)),
                SettleMethod::Republish => republished.push(entry),
                SettleMethod::Reconsider(_) => {}
            }
        }
        self.record_settlements(&settled, report).await?;
        for entries in republished.chunks(REPUBLISH_BATCH) {
            self.publish_again(entries, report).await?;
        }
        self.await_answers(pending, report).await
    }

    /// Publishes one `Reconsider` per transaction, however many dead letters the transaction has, in the order of the
    /// first dead letter. That order has parents before their children.
    async fn publish_reconsiders<'l>(
        &mut self,
        entries: &'l [(DeadLetterEntry, SettleMethod)],
    ) -> Result<Vec<PendingReconsider<'l>>, Failure> {
        let (mut by_txid, mut indexes) = (Vec::<(Txid, Vec<&DeadLetterEntry>)>::new(), BTreeMap::new());
        for (entry, method) in entries {
            if let SettleMethod::Reconsider(txid) = method {
                let index = *indexes.entry(*txid).or_insert(by_txid.len());
                match by_txid.get_mut(index) {
                    Some((_, entries)) => entries.push(entry),
                    None => by_txid.push((*txid, vec![entry])),
                }
            }
        }
        let Some(client) = self.client.as_mut().filter(|_| !by_txid.is_empty()) else { return Ok(Vec::new()) };
        // Each attempt has a random id: under the id of an earlier command the sequencer would only repeat its result.
        let command =
            |(txid, _): &(Txid, _)| Ok(PendingCommand::with_random_id(CommandAction::Reconsider { txid: *txid })?);
        let commands = by_txid.iter().map(command).collect::<Result<Vec<_>, Failure>>()?;
        client.clear();
        let offsets = client.publish(&commands).await?;
        let entries = by_txid.into_iter().map(|(_, entries)| entries);
        let published = commands.into_iter().zip(offsets).zip(entries);
        Ok(published
            .map(|((command, chain_offset), entries)| PendingReconsider { command, chain_offset, entries })
            .collect())
    }

    /// Settles the dead letters of reconsidered transactions as the answers come.
    async fn await_answers(
        &mut self,
        mut open: Vec<PendingReconsider<'_>>,
        report: &mut impl FnMut(&DeadLetterEntry, &SettleResult) -> CliResult,
    ) -> Result<bool, Failure> {
        let Some(mut client) = self.client.take() else { return Ok(true) };
        let mut deadline = Instant::now() + self.timeout;
        while !open.is_empty() && Instant::now() < deadline {
            client.read_next(|message| self.verdicts.take(message)).await?;
            let (mut still_open, mut settled) = (Vec::new(), Vec::new());
            for pending in open {
                let Some(outcome) = client.outcome(&pending.command, pending.chain_offset) else {
                    still_open.push(pending);
                    continue;
                };
                deadline = Instant::now() + self.timeout;
                // A command of an earlier run, which was killed, can have made the transaction live before.
                let is_live = outcome == CommandOutcome::Unchanged && self.verdicts.accepts(&pending.command.subject());
                for entry in pending.entries {
                    match &outcome {
                        CommandOutcome::Applied | CommandOutcome::AlreadyApplied => {
                            settled.push((entry, SettlementKind::Replayed, RECONSIDERED));
                        }
                        _ if is_live => settled.push((entry, SettlementKind::Replayed, RECONSIDERED)),
                        outcome => report(entry, &Err(outcome.to_string()))?,
                    }
                }
            }
            open = still_open;
            self.record_settlements(&settled, report).await?;
        }
        for entry in open.iter().flat_map(|pending| &pending.entries) {
            report(entry, &Err("no answer in time; replay the dead letter again".to_owned()))?;
        }
        self.client = Some(client);
        Ok(open.is_empty())
    }

    /// Publishes the source messages of dead letters again, and records that.
    async fn publish_again(
        &mut self,
        entries: &[&DeadLetterEntry],
        report: &mut impl FnMut(&DeadLetterEntry, &SettleResult) -> CliResult,
    ) -> CliResult {
        let mut found = Vec::new();
        for entry in entries {
            match self.read_source(entry).await? {
                Ok(message) => found.push((*entry, message)),
                Err(reason) => report(entry, &Err(reason))?,
            }
        }
        let producer = self.producer.as_ref();
        let publishing = found.into_iter().map(|(entry, message)| async move {
            (entry, produce_until_acknowledged(producer, &[message], PRODUCE_RETRY_PAUSE).await)
        });
        let mut settled = Vec::new();
        for (entry, published) in join_all(publishing).await {
            match published {
                Ok(_) => settled.push((entry, SettlementKind::Replayed, "published again")),
                Err(error) if error.kind == BrokerErrorKind::TooLarge => report(entry, &Err(error.to_string()))?,
                Err(error) => return Err(error.into()),
            }
        }
        self.record_settlements(&settled, report).await
    }

    /// Reads the source message of a dead letter, to be published by its key. The inner error is the reason why the
    /// source message is not available.
    async fn read_source(&mut self, entry: &DeadLetterEntry) -> Result<Result<OutgoingMessage, String>, BrokerError> {
        let letter = &entry.letter;
        let copy = self.read_message(&self.dead_letters.clone(), entry.at_partition, entry.at_offset).await?;
        let Some(copy) = copy else { return Ok(Err("the dead letter is no longer in its topic".to_owned())) };
        let source = match copy.payload.is_empty() {
            false => copy,
            // A payload too large for the topic of dead letters is only in the source topic.
            true => match self.read_message(&letter.topic, letter.partition, letter.offset).await? {
                Some(source) if source.timestamp_ms == letter.timestamp_ms => source,
                Some(_) => {
                    return Ok(Err("the source offset has another message: the source topic was recreated".to_owned()));
                }
                None => return Ok(Err("the source message is no longer in its topic".to_owned())),
            },
        };
        let Message { key, payload, headers, .. } = source;
        Ok(Ok(OutgoingMessage { topic: letter.topic.clone(), key, payload, headers, ..OutgoingMessage::default() }))
    }

    /// Writes settlements to the partitions of their dead letters, then reports them.
    async fn record_settlements(
        &self,
        settled: &[(&DeadLetterEntry, SettlementKind, &'static str)],
        report: &mut impl FnMut(&DeadLetterEntry, &SettleResult) -> CliResult,
    ) -> CliResult {
        let message = |(entry, settled, _): &(&DeadLetterEntry, SettlementKind, &str)| {
            let letter = &entry.letter;
            let (topic, partition, offset) = (letter.topic.clone(), letter.partition, letter.offset);
            let timestamp_ms = Some(letter.timestamp_ms);
            OutgoingMessage {
                topic: self.dead_letters.clone(),
                partition: Some(entry.at_partition),
                key: entry.txid.map_or_else(Bytes::new, |txid| Bytes::copy_from_slice(&txid.0)),
                headers: DeadLetterSettlement { topic, partition, offset, timestamp_ms, settled: *settled }
                    .to_headers(),
                ..OutgoingMessage::default()
            }
        };
        let messages: Vec<OutgoingMessage> = settled.iter().map(message).collect();
        produce_until_acknowledged(self.producer.as_ref(), &messages, PRODUCE_RETRY_PAUSE).await?;
        settled.iter().try_for_each(|(entry, _, text)| report(entry, &Ok(text)))
    }

    /// Reads one message; `None`: the topic does not have the message.
    async fn read_message(&mut self, topic: &str, partition: i32, offset: u64) -> Result<Option<Message>, BrokerError> {
        let partition = TopicPartition { topic: topic.into(), partition };
        let (low, end) = self.broker.watermarks(&partition).await?;
        if !(low..end).contains(&offset) {
            return Ok(None);
        }
        loop {
            match self.readers.get(self.broker, &partition, offset).await {
                Ok(RereadOutcome::Found(message)) => return Ok(Some(message)),
                Ok(RereadOutcome::Gone) => return Ok(None),
                Ok(RereadOutcome::NoAnswer) => {}
                Err(error) if error.kind == BrokerErrorKind::OutOfRange => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}
