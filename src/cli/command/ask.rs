//! Publishes commands and waits for what became of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, slice,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    broker::{
        Broker, BrokerError, Message, Produce, Producer, Reader, TopicPartition, partitioner::partition_of,
        produce_until_acknowledged, retry::next_messages,
    },
    config,
    event::{Action, Command, CommandResult, Decision, DecisionBody, Event, OutcomeKind},
    store::dump::InWords,
    tx::Txid,
};

/// Topics of commands and of what becomes of them.
#[derive(Debug, Clone)]
pub struct Topics {
    /// `utxo.chain`
    pub chain: String,
    /// `utxo.decisions`
    pub decisions: String,
    /// `utxo.outcomes`
    pub outcomes: String,
}

impl Topics {
    /// Those of a configuration.
    pub fn of(topics: &config::Topics) -> Self {
        Topics {
            chain: topics.chain.to_string(),
            decisions: topics.decisions.to_string(),
            outcomes: topics.outcomes.to_string(),
        }
    }
}

/// A command to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    id: [u8; 16],
    subject: Txid,
    is_reconsider: bool,
    payload: Bytes,
}

impl Asked {
    /// This command.
    pub fn new(id: [u8; 16], action: Action<'_>) -> Self {
        let (subject, is_reconsider) = (action.subject(), matches!(action, Action::Reconsider { .. }));
        Asked { id, subject, is_reconsider, payload: Event::Command(Command { id, action }).encode().into() }
    }

    /// The transaction that it names.
    pub fn subject(&self) -> Txid {
        self.subject
    }
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum Became {
    /// It was done.
    Applied,
    /// There was nothing to do.
    AlreadyApplied,
    /// It was not done.
    Refused {
        /// Why, as a code.
        code: String,
        /// Why, in one line.
        message: String,
    },
    /// A transaction was looked at again, and stands as it stood.
    Unchanged,
    /// Nobody has answered in time; it is handled all the same.
    Unanswered,
}

/// The answer to one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Its id, hexadecimal digits.
    pub id: String,
    /// The transaction that it names.
    pub txid: Txid,
    /// Offset in the chain at which it was published.
    pub chain_offset: u64,
    /// What became of it.
    #[serde(flatten)]
    pub became: Became,
}

impl Answer {
    /// Whether everything that was asked for is done.
    pub fn is_done(&self) -> bool {
        matches!(self.became, Became::Applied | Became::AlreadyApplied | Became::Unchanged)
    }
}

impl fmt::Display for Became {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Became::Applied => f.write_str("done"),
            Became::AlreadyApplied => f.write_str("there was nothing to do"),
            Became::Refused { code, message } => write!(f, "refused: {code}: {message}"),
            Became::Unchanged => f.write_str("looked at again: it stands as it stood, which `inspect tx` shows"),
            Became::Unanswered => f.write_str("no answer in time; ask again with the same id"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (id {}, chain offset {}): {}", self.txid, self.id, self.chain_offset, self.became)
    }
}

impl From<CommandResult> for Became {
    fn from(result: CommandResult) -> Self {
        match result {
            CommandResult::Applied => Became::Applied,
            CommandResult::AlreadyApplied => Became::AlreadyApplied,
            CommandResult::Refused { code, message } => Became::Refused { code, message },
        }
    }
}

/// Publishes these commands, in their order, and waits for what became of them: their outcomes, and of a `Reconsider` the verdict that
/// was decided on it.
///
/// # Errors
/// The log cannot be read or written, or a topic is missing.
pub async fn ask(
    broker: &dyn Broker,
    topics: &Topics,
    commands: &[Asked],
    timeout: Duration,
) -> Result<Vec<Answer>, BrokerError> {
    let until = Instant::now() + timeout;
    let by_outcome: Vec<Txid> = commands.iter().filter(|it| !it.is_reconsider).map(|it| it.subject).collect();
    let by_decision = commands.iter().any(|command| command.is_reconsider);
    let answers = Answers::open(broker, topics, &by_outcome, by_decision).await?;
    let mut asker = Asker { broker, producer: broker.producer().await?, chain: topics.chain.clone(), answers };
    let mut asked = Vec::new();
    for command in commands {
        let at = asker.publish(slice::from_ref(command)).await?;
        asked.push((command, at.first().copied().unwrap_or(0)));
    }
    let answered = |asker: &Asker<'_>, (command, at): &(&Asked, u64)| asker.became(command, *at).is_some();
    while !asked.iter().all(|asked| answered(&asker, asked)) && Instant::now() < until {
        asker.read_on(|_| ()).await?;
    }
    let answer = |(command, chain_offset): (&Asked, u64)| Answer {
        id: hex::encode(command.id),
        txid: command.subject,
        chain_offset,
        became: asker.became(command, chain_offset).unwrap_or(Became::Unanswered),
    };
    Ok(asked.into_iter().map(answer).collect())
}

pub(in crate::cli) const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
const WAIT: Duration = Duration::from_millis(100);

/// Publishes commands and reads on in what answers them, with one producer, and one reader a partition.
pub(in crate::cli) struct Asker<'a> {
    broker: &'a dyn Broker,
    producer: Arc<dyn Producer>,
    chain: String,
    answers: Answers,
}

impl<'a> Asker<'a> {
    /// For `Reconsider`s: where their answers will stand is known before anything is asked.
    ///
    /// # Errors
    /// The log cannot be read, or a topic is missing.
    pub(in crate::cli) async fn of_reconsiders(
        broker: &'a dyn Broker,
        producer: Arc<dyn Producer>,
        topics: &Topics,
    ) -> Result<Self, BrokerError> {
        let answers = Answers::open(broker, topics, &[], true).await?;
        Ok(Asker { broker, producer, chain: topics.chain.clone(), answers })
    }

    /// Publishes these commands, in their order; where in the chain they stand.
    ///
    /// # Errors
    /// The log cannot be written.
    pub(in crate::cli) async fn publish(&self, commands: &[Asked]) -> Result<Vec<u64>, BrokerError> {
        let message = |command: &Asked| Produce {
            topic: self.chain.clone(),
            partition: Some(0),
            key: Bytes::copy_from_slice(&command.subject.0),
            payload: command.payload.clone(),
            ..Produce::default()
        };
        let messages: Vec<Produce> = commands.iter().map(message).collect();
        let delivered = produce_until_acknowledged(self.producer.as_ref(), &messages, PAUSE).await?;
        Ok(delivered.into_iter().map(|delivered| delivered.offset).collect())
    }

    /// Reads on for a while, and shows what it reads.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(in crate::cli) async fn read_on(&mut self, show: impl FnMut(&Message)) -> Result<(), BrokerError> {
        self.answers.read_on(self.broker, show).await
    }

    /// What became of a command that was published there; `None`: nothing was read of it yet.
    pub(in crate::cli) fn became(&self, command: &Asked, chain_offset: u64) -> Option<Became> {
        self.answers.became(command, chain_offset)
    }

    /// Forgets what was read: nobody asks for it any more.
    pub(in crate::cli) fn forget(&mut self) {
        let Answers { readers: _, results, verdicts, closed } = &mut self.answers;
        results.clear();
        verdicts.clear();
        closed.clear();
    }
}

/// What was read of the topics that answer.
struct Answers {
    readers: Vec<(TopicPartition, Box<dyn Reader>)>,
    /// By id and chain offset.
    results: BTreeMap<([u8; 16], u64), Became>,
    /// What was decided last on a transaction, by chain offset.
    verdicts: BTreeMap<(u64, Txid), Became>,
    /// Chain offsets on which all is decided.
    closed: BTreeSet<u64>,
}

impl Answers {
    /// The outcomes of these transactions, and the decisions.
    async fn open(
        broker: &dyn Broker,
        topics: &Topics,
        outcomes_of: &[Txid],
        decisions: bool,
    ) -> Result<Self, BrokerError> {
        let count = broker
            .partitions(&topics.outcomes)
            .await?
            .ok_or_else(|| BrokerError::unknown_topic("read", &topics.outcomes))?;
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
        Ok(Answers { readers, results: BTreeMap::new(), verdicts: BTreeMap::new(), closed: BTreeSet::new() })
    }

    async fn read_on(&mut self, broker: &dyn Broker, show: impl FnMut(&Message)) -> Result<(), BrokerError> {
        let mut read = Vec::new();
        for (partition, reader) in &mut self.readers {
            read.extend(next_messages(reader, broker, partition, WAIT).await?);
        }
        read.iter().for_each(|message| self.take(message));
        read.iter().for_each(show);
        Ok(())
    }

    fn take(&mut self, message: &Message) {
        match Event::decode(&message.payload) {
            Ok(Event::Outcome(outcome)) => {
                if let OutcomeKind::Command { id, result } = outcome.kind {
                    self.results.insert((id, outcome.chain_offset), result.into());
                }
            }
            Ok(Event::Decision(Decision { chain_offset, body, .. })) => match body {
                DecisionBody::Accepted { txid, .. } | DecisionBody::AcceptedPart { txid, .. } => {
                    self.verdicts.insert((chain_offset, txid), Became::Applied);
                }
                DecisionBody::Conflicting { txid, reason, .. } => {
                    let (code, message) = ("CONFLICTING".to_owned(), format!("it is conflicting: {}", InWords(reason)));
                    self.verdicts.insert((chain_offset, txid), Became::Refused { code, message });
                }
                DecisionBody::Closed => drop(self.closed.insert(chain_offset)),
                DecisionBody::PassedOver { .. } | DecisionBody::Cone { .. } | DecisionBody::CommandDone { .. } => {}
            },
            // Whatever else stands there answers nobody.
            _ => {}
        }
    }

    fn became(&self, command: &Asked, chain_offset: u64) -> Option<Became> {
        if command.is_reconsider {
            let decided = self.verdicts.get(&(chain_offset, command.subject)).cloned();
            return self.closed.contains(&chain_offset).then(|| decided.unwrap_or(Became::Unchanged));
        }
        self.results.get(&(command.id, chain_offset)).cloned()
    }
}
