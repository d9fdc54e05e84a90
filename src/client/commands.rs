//! Publishes commands and waits for their results.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;

use super::{
    PRODUCE_RETRY_PAUSE,
    outcome_feed::{OutcomeContent, OutcomeFeed, OutcomeItem, OutcomeReader},
    publishing::{ResendOrder, produce_until},
};
use crate::{
    broker::{
        Broker, BrokerError, Delivery, Message, OutgoingMessage, PartitionReader, Producer, TopicPartition,
        partitioner::partition_of, produce_until_acknowledged, retry::read_or_reopen,
    },
    config::Topics,
    event::{Command, CommandAction, CommandResult, Decision, DecisionBody, Event, OutcomeEvent, OutcomeKind},
    rng::random_bytes,
    tx::Txid,
};

/// A command before its publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCommand {
    id: [u8; 16],
    subject: Txid,
    vout: Option<u32>,
    is_reconsider: bool,
    payload: Bytes,
}

impl PendingCommand {
    /// Encodes a command with this id. The sequencer handles each id once: a repeated command changes nothing and gets
    /// the first result.
    pub fn new(id: [u8; 16], action: CommandAction<'_>) -> Self {
        let is_reconsider = matches!(action, CommandAction::Reconsider { .. });
        let (subject, vout) = (action.subject(), action.vout());
        let payload = Event::Command(Command { id, action }).encode().into();
        PendingCommand { id, subject, vout, is_reconsider, payload }
    }

    /// Encodes a command with a random id.
    ///
    /// # Errors
    /// The operating system gives no random numbers.
    pub fn with_random_id(action: CommandAction<'_>) -> io::Result<Self> {
        Ok(PendingCommand::new(random_bytes()?, action))
    }

    /// Returns the id of the command.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Returns the transaction that the command names.
    pub fn subject(&self) -> Txid {
        self.subject
    }
}

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum CommandOutcome {
    /// The command has changed the store.
    Applied,
    /// The state was as the command wants; nothing was changed.
    AlreadyApplied,
    /// The sequencer has refused the command; nothing was changed.
    Refused {
        /// Reason as a code, such as `TX_NOT_FOUND`.
        code: String,
        /// Reason in one line.
        message: String,
    },
    /// `Reconsider`: the verdict is the same as before.
    Unchanged,
    /// No answer in time; the sequencer still handles the command.
    Unanswered,
    /// The log has not acknowledged the command, which may be in the log all the same.
    Unacknowledged {
        /// Reason in one line.
        message: String,
    },
}

/// The answer to one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CommandAnswer {
    /// Id of the command, 32 hexadecimal digits.
    pub id: String,
    /// Transaction that the command names.
    pub txid: Txid,
    /// Index of the output that the command names; `None`: the command names a whole transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vout: Option<u32>,
    /// Offset of the command in the chain log; `None`: the log has not acknowledged the command.
    pub chain_offset: Option<u64>,
    /// Result of the command.
    #[serde(flatten)]
    pub outcome: CommandOutcome,
    /// True where the producer can do nothing any more.
    #[serde(skip)]
    pub(crate) is_client_unusable: bool,
}

impl CommandAnswer {
    /// Returns whether the command has reached its goal: applied, already applied, or reconsidered without a change.
    pub fn is_done(&self) -> bool {
        matches!(self.outcome, CommandOutcome::Applied | CommandOutcome::AlreadyApplied | CommandOutcome::Unchanged)
    }
}

impl fmt::Display for CommandOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandOutcome::Applied => f.write_str("done"),
            CommandOutcome::AlreadyApplied => f.write_str("there was nothing to do"),
            CommandOutcome::Refused { code, message } => write!(f, "refused: {code}: {message}"),
            CommandOutcome::Unchanged => {
                f.write_str("reconsidered: the verdict is unchanged; `utxo-store inspect tx` shows the verdict")
            }
            CommandOutcome::Unanswered => {
                f.write_str("no answer in time; submit the same command again, with the same id")
            }
            CommandOutcome::Unacknowledged { message } => {
                write!(f, "not acknowledged by the log: {message}; submit the same command again, with the same id")
            }
        }
    }
}

impl fmt::Display for CommandAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.txid)?;
        if let Some(vout) = self.vout {
            write!(f, ":{vout}")?;
        }
        match self.chain_offset {
            Some(offset) => write!(f, " (id {}, chain offset {offset}): {}", self.id, self.outcome),
            None => write!(f, " (id {}): {}", self.id, self.outcome),
        }
    }
}

impl From<CommandResult> for CommandOutcome {
    fn from(result: CommandResult) -> Self {
        match result {
            CommandResult::Applied => CommandOutcome::Applied,
            CommandResult::AlreadyApplied => CommandOutcome::AlreadyApplied,
            CommandResult::Refused { code, message } => CommandOutcome::Refused { code, message },
        }
    }
}

/// Publishes commands together, in their order, within a minute, and waits at most `timeout` for their results. The
/// result is the command's outcome; the result of a `Reconsider` is the verdict that the decisions have for its chain
/// offset. A command that the log has not acknowledged is [`CommandOutcome::Unacknowledged`]: the same command may be
/// submitted again, with the same id.
///
/// # Errors
/// A topic is missing, or cannot be read.
pub async fn submit_commands(
    broker: &dyn Broker,
    topics: &Topics,
    commands: &[PendingCommand],
    timeout: Duration,
) -> Result<Vec<CommandAnswer>, BrokerError> {
    let by_outcome: Vec<Txid> =
        commands.iter().filter(|command| !command.is_reconsider).map(|command| command.subject).collect();
    let by_decision = commands.iter().any(|command| command.is_reconsider);
    let answers = AnswerReaders::open(broker, topics, &by_outcome, by_decision).await?;
    let client = CommandClient { broker, producer: broker.producer().await?, chain: topics.chain.to_string(), answers };
    match client.submit(commands, PUBLISH_TIMEOUT, timeout).await {
        (answers, None) => Ok(answers),
        (_, Some(error)) => Err(error),
    }
}

/// Longest wait of [`submit_commands`] for the acknowledgements of the log.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(60);
/// Wait for new messages in all partitions.
const WAIT: Duration = Duration::from_millis(100);

/// Client of the sequencer: publishes commands and reads their results, with one producer and one reader per
/// partition.
pub(crate) struct CommandClient<'a> {
    broker: &'a dyn Broker,
    producer: Arc<dyn Producer>,
    chain: String,
    answers: AnswerReaders,
}

impl<'a> CommandClient<'a> {
    /// Opens a client for `Reconsider` commands. Their answers are read from the present end of the decisions, so the
    /// client is opened before the first command is published.
    ///
    /// # Errors
    /// A topic is missing or cannot be read.
    pub(crate) async fn for_reconsiders(
        broker: &'a dyn Broker,
        producer: Arc<dyn Producer>,
        topics: &Topics,
    ) -> Result<Self, BrokerError> {
        let answers = AnswerReaders::open(broker, topics, &[], true).await?;
        Ok(CommandClient { broker, producer, chain: topics.chain.to_string(), answers })
    }

    /// Opens a client for these commands, with a producer and a feed of outcomes that several requests share.
    ///
    /// # Errors
    /// A topic is missing or cannot be read.
    pub(crate) async fn following(
        broker: &'a dyn Broker,
        (producer, feed): (Arc<dyn Producer>, &OutcomeFeed),
        topics: &Topics,
        commands: &[PendingCommand],
    ) -> Result<Self, BrokerError> {
        let by_decision = commands.iter().any(|command| command.is_reconsider);
        let mut answers = AnswerReaders::open(broker, topics, &[], by_decision).await?;
        answers.feed = Some(feed.follow().await?);
        Ok(CommandClient { broker, producer, chain: topics.chain.to_string(), answers })
    }

    /// Publishes commands in their order and returns their chain offsets.
    ///
    /// # Errors
    /// The chain log cannot be written.
    pub(crate) async fn publish(&mut self, commands: &[PendingCommand]) -> Result<Vec<u64>, BrokerError> {
        let messages = self.messages_of(commands);
        let delivered = produce_until_acknowledged(self.producer.as_ref(), &messages, PRODUCE_RETRY_PAUSE).await?;
        Ok(delivered.into_iter().map(|delivered| delivered.offset).collect())
    }

    fn messages_of(&self, commands: &[PendingCommand]) -> Vec<OutgoingMessage> {
        let message = |command: &PendingCommand| OutgoingMessage {
            topic: self.chain.clone(),
            partition: Some(0),
            key: Bytes::copy_from_slice(&command.subject.0),
            payload: command.payload.clone(),
            ..OutgoingMessage::default()
        };
        commands.iter().map(message).collect()
    }

    /// Publishes commands together, in their order, within `publish_within`, and then waits at most `timeout` for the
    /// results of those that the log has acknowledged. Once commands are published no failure takes their places back:
    /// a topic that cannot be read ends the wait, and is the second value.
    pub(crate) async fn submit(
        mut self,
        commands: &[PendingCommand],
        publish_within: Duration,
        timeout: Duration,
    ) -> (Vec<CommandAnswer>, Option<BrokerError>) {
        let messages = self.messages_of(commands);
        let deadline = Instant::now() + publish_within;
        let published = produce_until(self.producer.as_ref(), &messages, ResendOrder::Given, deadline).await;
        let deadline = Instant::now() + timeout;
        let acknowledged = commands.iter().zip(&published);
        let acknowledged: Vec<_> =
            acknowledged.filter_map(|(command, at)| Some((command, at.as_ref().ok()?.offset))).collect();
        // Results come about in the order of the commands.
        let (mut next, mut failure) = (0, None);
        while next < acknowledged.len() && failure.is_none() && !self.answers.has_ended() {
            let (command, at) = acknowledged[next];
            if self.outcome(command, at).is_some() {
                next += 1;
            } else {
                match tokio::time::timeout_at(deadline, self.read_next(|_| ())).await {
                    Ok(read) => failure = read.err(),
                    Err(_) => break,
                }
            }
        }
        let answer = |(command, at): (&PendingCommand, Result<Delivery, BrokerError>)| CommandAnswer {
            id: hex::encode(command.id),
            txid: command.subject,
            vout: command.vout,
            chain_offset: at.as_ref().ok().map(|at| at.offset),
            is_client_unusable: at.as_ref().is_err_and(|error| error.kind.is_client_unusable()),
            outcome: match at {
                Ok(at) => self.outcome(command, at.offset).unwrap_or(CommandOutcome::Unanswered),
                Err(error) => CommandOutcome::Unacknowledged { message: error.to_string() },
            },
        };
        (commands.iter().zip(published).map(answer).collect(), failure)
    }

    /// Waits at most 100 ms for new messages, and passes them to `show`.
    ///
    /// # Errors
    /// A topic cannot be read.
    pub(crate) async fn read_next(&mut self, show: impl FnMut(&Message)) -> Result<(), BrokerError> {
        self.answers.read_next(self.broker, show).await
    }

    /// Returns the result of the command at this chain offset; `None`: no answer was read yet.
    pub(crate) fn outcome(&self, command: &PendingCommand, chain_offset: u64) -> Option<CommandOutcome> {
        self.answers.outcome(command, chain_offset)
    }

    /// Drops all results that were read, since the commands before are settled.
    pub(crate) fn clear(&mut self) {
        let AnswerReaders { readers: _, feed: _, results, verdicts, closed } = &mut self.answers;
        results.clear();
        verdicts.clear();
        closed.clear();
    }
}

/// Readers of the outcomes and decisions, with the results that were read.
struct AnswerReaders {
    readers: Vec<(TopicPartition, Box<dyn PartitionReader>)>,
    /// Outcomes of the process, instead of readers of their partitions.
    feed: Option<OutcomeReader>,
    /// Results of commands by id and chain offset.
    results: BTreeMap<([u8; 16], u64), CommandOutcome>,
    /// Last verdict on a transaction, by chain offset.
    verdicts: BTreeMap<(u64, Txid), CommandOutcome>,
    /// Chain offsets whose decisions are complete.
    closed: BTreeSet<u64>,
}

impl AnswerReaders {
    /// Opens readers at the end of the outcomes' partitions of these transactions, and of the decisions.
    async fn open(
        broker: &dyn Broker,
        topics: &Topics,
        outcomes_of: &[Txid],
        decisions: bool,
    ) -> Result<Self, BrokerError> {
        let count = broker
            .partitions(topics.outcomes.as_str())
            .await?
            .ok_or_else(|| BrokerError::unknown_topic("read", topics.outcomes.as_str()))?;
        let mut partitions: Vec<TopicPartition> = outcomes_of
            .iter()
            .filter_map(|txid| partition_of(&txid.0, count))
            .map(|partition| TopicPartition { topic: topics.outcomes.as_str().into(), partition })
            .collect();
        if decisions {
            partitions.push(TopicPartition { topic: topics.decisions.as_str().into(), partition: 0 });
        }
        partitions.sort_unstable();
        partitions.dedup();
        let mut readers = Vec::new();
        for partition in partitions {
            let (_, end) = broker.watermarks(&partition).await?;
            readers.push((partition.clone(), broker.read(&partition, end).await?));
        }
        let (results, verdicts, closed) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Ok(AnswerReaders { readers, feed: None, results, verdicts, closed })
    }

    /// Returns whether no further answer can come.
    fn has_ended(&self) -> bool {
        self.readers.is_empty() && self.feed.is_none()
    }

    async fn read_next(&mut self, broker: &dyn Broker, show: impl FnMut(&Message)) -> Result<(), BrokerError> {
        let mut read = Vec::new();
        let wait = WAIT / u32::try_from(self.readers.len().max(1)).unwrap_or(u32::MAX);
        for (partition, reader) in &mut self.readers {
            read.extend(read_or_reopen(reader, broker, partition, wait).await?);
        }
        read.iter().for_each(|message| self.take(message));
        read.iter().for_each(show);
        let wait = if self.readers.is_empty() { WAIT } else { Duration::ZERO };
        self.take_outcomes(Instant::now() + wait).await;
        Ok(())
    }

    /// Takes the outcomes of the feed that have come, and waits for the first until the deadline. A feed that is lost
    /// leaves the commands without an answer: the client submits them again.
    async fn take_outcomes(&mut self, mut deadline: Instant) {
        while let Some(feed) = &mut self.feed {
            match tokio::time::timeout_at(deadline, feed.next()).await {
                Ok(Ok(item)) => {
                    if let OutcomeItem::Message(message) = item
                        && let OutcomeContent::One(outcome) = &message.content
                    {
                        self.take_outcome(outcome.clone());
                    }
                    deadline = Instant::now();
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "client: the results of commands are not followed any more");
                    self.feed = None;
                }
                Err(_) => return,
            }
        }
    }

    fn take_outcome(&mut self, outcome: OutcomeEvent) {
        let offset = outcome.source.chain_offset();
        if let (OutcomeKind::Command { id, result }, Some(offset)) = (outcome.kind, offset) {
            self.results.insert((id, offset), result.into());
        }
    }

    fn take(&mut self, message: &Message) {
        match Event::decode(&message.payload) {
            Ok(Event::Outcome(outcome)) => self.take_outcome(outcome),
            // Other messages of these topics are no answers.
            Ok(event) => {
                event.into_decisions(message.offset).into_iter().flatten().for_each(|it| self.take_decision(it))
            }
            Err(_) => {}
        }
    }

    fn take_decision(&mut self, Decision { chain_offset, body, .. }: Decision) {
        match body {
            DecisionBody::Accepted { txid, .. } | DecisionBody::AcceptedPart { txid, .. } => {
                self.verdicts.insert((chain_offset, txid), CommandOutcome::Applied);
            }
            DecisionBody::Conflicting { txid, reason, .. } => {
                let code = "CONFLICTING".to_owned();
                let message = format!("the transaction is conflicting: {}", reason);
                self.verdicts.insert((chain_offset, txid), CommandOutcome::Refused { code, message });
            }
            DecisionBody::Closed => drop(self.closed.insert(chain_offset)),
            DecisionBody::PassedOver { .. }
            | DecisionBody::Cone { .. }
            | DecisionBody::CommandDone { .. }
            | DecisionBody::Lifted { .. } => {}
        }
    }

    fn outcome(&self, command: &PendingCommand, chain_offset: u64) -> Option<CommandOutcome> {
        if command.is_reconsider {
            let decided = self.verdicts.get(&(chain_offset, command.subject)).cloned();
            return self.closed.contains(&chain_offset).then(|| decided.unwrap_or(CommandOutcome::Unchanged));
        }
        self.results.get(&(command.id, chain_offset)).cloned()
    }
}
