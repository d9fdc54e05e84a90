//! What is done with a dead letter.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{register::Listed, verdicts::Verdicts};
use crate::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Message, Produce, Producer, TopicPartition, produce_until_acknowledged,
    },
    cli::command::{Asked, Asker, Became, PAUSE, Topics as CommandTopics, random_id},
    cli::{CommandResult, Failure},
    config::Topics,
    event::{Action, DeadLetterClass, Settled, Settlement},
    sequencer::reread::{Readers, Reread},
    tx::Txid,
};

/// What would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Its source message is published again.
    Again,
    /// Its transaction is stored, and is looked at again: by its event alone it would only be recognised.
    Reconsider(Txid),
    /// Its parent has come since, and has brought it back.
    Live,
    /// It has its place in an order, which is over.
    Ordered,
    /// Nobody wants it.
    Discard,
}

impl Way {
    /// How to replay this one.
    pub fn of(listed: &Listed, topics: &Topics, verdicts: &Verdicts) -> Way {
        let letter = &listed.letter;
        match (letter.class, listed.txid) {
            _ if letter.topic != topics.validated_txs.as_str() => Way::Ordered,
            (DeadLetterClass::MissingParent, Some(txid)) if verdicts.accepts(&txid) => Way::Live,
            (DeadLetterClass::MissingParent, Some(txid)) => Way::Reconsider(txid),
            _ => Way::Again,
        }
    }

    /// What would be done; an error: nothing would.
    pub fn in_words(self) -> Done {
        match self {
            Way::Again => Ok("would be published again"),
            Way::Reconsider(_) => Ok("would be looked at again"),
            Way::Live => Ok(LIVE),
            Way::Ordered => Err(ORDERED.to_owned()),
            Way::Discard => Ok("would be discarded"),
        }
    }
}

const ORDERED: &str = "is not replayed: what comes in one order is published anew, under the next sequence";

const REVIVED: &str = "looked at again: it is live";

const LIVE: &str = "is live: its parent has come";

/// So many are asked for at once.
pub const AT_ONCE: usize = 1_000;

/// So many source messages, each of which may be large, are held at once.
const MESSAGES_AT_ONCE: usize = 32;

/// What was done with one; an error: it is as it was, and why.
pub type Done = Result<&'static str, String>;

/// Does it.
pub struct Settler<'a> {
    broker: &'a dyn Broker,
    producer: Arc<dyn Producer>,
    dead_letters: String,
    timeout: Duration,
    readers: Readers,
    /// Where something may be asked.
    asker: Option<Asker<'a>>,
    verdicts: Verdicts,
}

/// A `Reconsider` that was published there, and the dead letters of its transaction.
struct Reconsidered<'l> {
    command: Asked,
    at: u64,
    letters: Vec<&'l Listed>,
}

impl<'a> Settler<'a> {
    /// Over this log; nobody waits longer than `timeout` for the next answer. Transactions may be looked at again if `asks`.
    ///
    /// # Errors
    /// No producer can be had, or the log cannot be read.
    pub async fn open(
        broker: &'a dyn Broker,
        topics: &Topics,
        timeout: Duration,
        asks: bool,
    ) -> Result<Self, BrokerError> {
        let (producer, commands) = (broker.producer().await?, CommandTopics::of(topics));
        let asker = match asks {
            true => Some(Asker::of_reconsiders(broker, producer.clone(), &commands).await?),
            false => None,
        };
        let (dead_letters, readers, verdicts) =
            (topics.dead_letters.to_string(), Readers::default(), Verdicts::default());
        Ok(Settler { broker, producer, dead_letters, timeout, readers, asker, verdicts })
    }

    /// Knows these verdicts, which were read after this was opened: so there is no gap before what is read here.
    #[must_use]
    pub fn knowing(self, verdicts: Verdicts) -> Self {
        Settler { verdicts, ..self }
    }

    /// Settles these, [`AT_ONCE`] of them at the most, and tells of each as soon as that is done. Done half and given up, it may be done
    /// again: a message that comes twice is recognised, and so is a command. `false`: nobody has answered in time.
    ///
    /// # Errors
    /// The log does not answer, or the machine has no random numbers; or it cannot be told.
    pub async fn settle(
        &mut self,
        letters: &[(Listed, Way)],
        tell: &mut impl FnMut(&Listed, &Done) -> CommandResult,
    ) -> Result<bool, Failure> {
        // They are looked at while everything else is done.
        let asked = self.ask(letters).await?;
        let (mut again, mut noted) = (Vec::new(), Vec::new());
        for (letter, way) in letters {
            match way {
                Way::Ordered => tell(letter, &Err(ORDERED.to_owned()))?,
                Way::Discard => noted.push((letter, Settled::Discarded, "discarded")),
                Way::Live => noted.push((letter, Settled::Replayed, LIVE)),
                Way::Again => again.push(letter),
                Way::Reconsider(_) => {}
            }
        }
        self.note(&noted, tell).await?;
        for letters in again.chunks(MESSAGES_AT_ONCE) {
            self.publish_again(letters, tell).await?;
        }
        self.await_answers(asked, tell).await
    }

    /// Publishes the commands: one for each transaction, however many dead letters it has, in the order of the first of them, which is that
    /// of parents and children.
    async fn ask<'l>(&mut self, letters: &'l [(Listed, Way)]) -> Result<Vec<Reconsidered<'l>>, Failure> {
        let (mut of_txid, mut places) = (Vec::<(Txid, Vec<&Listed>)>::new(), BTreeMap::new());
        for (letter, way) in letters {
            if let Way::Reconsider(txid) = way {
                let place = *places.entry(*txid).or_insert(of_txid.len());
                match of_txid.get_mut(place) {
                    Some((_, letters)) => letters.push(letter),
                    None => of_txid.push((*txid, vec![letter])),
                }
            }
        }
        let Some(asker) = self.asker.as_mut().filter(|_| !of_txid.is_empty()) else { return Ok(Vec::new()) };
        // Another try is another command: the chain may have learnt of the parent since.
        let command = |(txid, _): &(Txid, _)| Ok(Asked::new(random_id()?, Action::Reconsider { txid: *txid }));
        let commands = of_txid.iter().map(command).collect::<Result<Vec<_>, Failure>>()?;
        asker.forget();
        let places = asker.publish(&commands).await?;
        let letters = of_txid.into_iter().map(|(_, letters)| letters);
        let asked = commands.into_iter().zip(places).zip(letters);
        Ok(asked.map(|((command, at), letters)| Reconsidered { command, at, letters }).collect())
    }

    /// Settles what was asked for as its answers come.
    async fn await_answers(
        &mut self,
        mut open: Vec<Reconsidered<'_>>,
        tell: &mut impl FnMut(&Listed, &Done) -> CommandResult,
    ) -> Result<bool, Failure> {
        let Some(mut asker) = self.asker.take() else { return Ok(true) };
        let mut until = Instant::now() + self.timeout;
        while !open.is_empty() && Instant::now() < until {
            asker.read_on(|message| self.verdicts.take(message)).await?;
            let (mut still, mut noted) = (Vec::new(), Vec::new());
            for asked in open {
                let Some(became) = asker.became(&asked.command, asked.at) else {
                    still.push(asked);
                    continue;
                };
                until = Instant::now() + self.timeout;
                // One that was asked for before, by whoever was killed, say, has changed nothing any more.
                let is_live = became == Became::Unchanged && self.verdicts.accepts(&asked.command.subject());
                for letter in asked.letters {
                    match &became {
                        Became::Applied | Became::AlreadyApplied => noted.push((letter, Settled::Replayed, REVIVED)),
                        _ if is_live => noted.push((letter, Settled::Replayed, REVIVED)),
                        became => tell(letter, &Err(became.to_string()))?,
                    }
                }
            }
            open = still;
            self.note(&noted, tell).await?;
        }
        for letter in open.iter().flat_map(|asked| &asked.letters) {
            tell(letter, &Err("no answer in time; replay it again".to_owned()))?;
        }
        self.asker = Some(asker);
        Ok(open.is_empty())
    }

    /// Publishes the source messages of these again, and notes that.
    async fn publish_again(
        &mut self,
        letters: &[&Listed],
        tell: &mut impl FnMut(&Listed, &Done) -> CommandResult,
    ) -> CommandResult {
        let mut found = Vec::new();
        for letter in letters {
            match self.source(letter).await? {
                Ok(again) => found.push((*letter, again)),
                Err(why) => tell(letter, &Err(why))?,
            }
        }
        let producer = self.producer.as_ref();
        let publishing = found.into_iter().map(|(letter, again)| async move {
            (letter, produce_until_acknowledged(producer, &[again], PAUSE).await)
        });
        let mut noted = Vec::new();
        for (letter, published) in join_all(publishing).await {
            match published {
                Ok(_) => noted.push((letter, Settled::Replayed, "published again")),
                Err(error) if error.kind == BrokerErrorKind::TooLarge => tell(letter, &Err(error.to_string()))?,
                Err(error) => return Err(error.into()),
            }
        }
        self.note(&noted, tell).await
    }

    /// The source message of one, to be published by its key; inside, an error: why it is not to be had.
    async fn source(&mut self, listed: &Listed) -> Result<Result<Produce, String>, BrokerError> {
        let letter = &listed.letter;
        let there = self.message(&self.dead_letters.clone(), listed.at_partition, listed.at_offset).await?;
        let Some(there) = there else { return Ok(Err("is no longer in its topic".to_owned())) };
        let source = match there.payload.is_empty() {
            false => there,
            // It was too large for the topic of dead letters.
            true => match self.message(&letter.topic, letter.partition, letter.offset).await? {
                Some(source) if source.timestamp_ms == letter.timestamp_ms => source,
                Some(_) => {
                    return Ok(Err("its source message is another one by now: its topic was created again".to_owned()));
                }
                None => return Ok(Err("its source message is no longer in its topic".to_owned())),
            },
        };
        let Message { key, payload, headers, .. } = source;
        Ok(Ok(Produce { topic: letter.topic.clone(), key, payload, headers, ..Produce::default() }))
    }

    /// Notes what was done, behind each dead letter, in its partition; then tells of it.
    async fn note(
        &self,
        done: &[(&Listed, Settled, &'static str)],
        tell: &mut impl FnMut(&Listed, &Done) -> CommandResult,
    ) -> CommandResult {
        let note = |(listed, settled, _): &(&Listed, Settled, &str)| {
            let letter = &listed.letter;
            let (topic, partition, offset) = (letter.topic.clone(), letter.partition, letter.offset);
            let timestamp_ms = Some(letter.timestamp_ms);
            Produce {
                topic: self.dead_letters.clone(),
                partition: Some(listed.at_partition),
                key: listed.txid.map_or_else(Bytes::new, |txid| Bytes::copy_from_slice(&txid.0)),
                headers: Settlement { topic, partition, offset, timestamp_ms, settled: *settled }.to_headers(),
                ..Produce::default()
            }
        };
        let notes: Vec<Produce> = done.iter().map(note).collect();
        produce_until_acknowledged(self.producer.as_ref(), &notes, PAUSE).await?;
        done.iter().try_for_each(|(letter, _, told)| tell(letter, &Ok(told)))
    }

    /// One message; `None`: its topic no longer holds it.
    async fn message(&mut self, topic: &str, partition: i32, offset: u64) -> Result<Option<Message>, BrokerError> {
        let partition = TopicPartition { topic: topic.into(), partition };
        let (low, end) = self.broker.watermarks(&partition).await?;
        if !(low..end).contains(&offset) {
            return Ok(None);
        }
        loop {
            match self.readers.get(self.broker, &partition, offset).await {
                Ok(Reread::Found(message)) => return Ok(Some(message)),
                Ok(Reread::Gone) => return Ok(None),
                Ok(Reread::NoAnswer) => {}
                Err(error) if error.kind == BrokerErrorKind::OutOfRange => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}
