//! What is done with a dead letter.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{register::Listed, verdicts::Verdicts};
use crate::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Message, Produce, Producer, TopicPartition, produce_until_acknowledged,
    },
    cli::Failure,
    cli::command::{Asked, Became, PAUSE, Topics as CommandTopics, ask, random_id},
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
    pub fn in_words(self) -> Result<String, String> {
        match self {
            Way::Again => Ok("would be published again".to_owned()),
            Way::Reconsider(_) => Ok("would be looked at again".to_owned()),
            Way::Live => Ok(LIVE.to_owned()),
            Way::Ordered => Err(ORDERED.to_owned()),
            Way::Discard => Ok("would be discarded".to_owned()),
        }
    }
}

const ORDERED: &str = "is not replayed: what comes in one order is published anew, under the next sequence";

const LIVE: &str = "is live: its parent has come";

/// Does it.
pub struct Settler<'a> {
    broker: &'a dyn Broker,
    producer: Arc<dyn Producer>,
    commands: CommandTopics,
    dead_letters: String,
    timeout: Duration,
    readers: Readers,
}

impl<'a> Settler<'a> {
    /// Over this log.
    ///
    /// # Errors
    /// No producer can be had.
    pub async fn open(broker: &'a dyn Broker, topics: &Topics, timeout: Duration) -> Result<Self, BrokerError> {
        let (producer, commands) = (broker.producer().await?, CommandTopics::of(topics));
        let (dead_letters, readers) = (topics.dead_letters.to_string(), Readers::default());
        Ok(Settler { broker, producer, commands, dead_letters, timeout, readers })
    }

    /// What was done; inside, an error: it is as it was, and why. Done half and given up, it may be done again: a message that comes twice is
    /// recognised, and so is a command.
    ///
    /// # Errors
    /// The log does not answer, or the machine has no random numbers.
    pub async fn settle(&mut self, listed: &Listed, way: Way) -> Result<Result<String, String>, Failure> {
        let (settled, told) = match way {
            Way::Ordered => return Ok(Err(ORDERED.to_owned())),
            Way::Discard => (Settled::Discarded, "discarded"),
            Way::Live => (Settled::Replayed, LIVE),
            Way::Again => match self.publish_again(listed).await? {
                Ok(()) => (Settled::Replayed, "published again"),
                Err(why) => return Ok(Err(why)),
            },
            Way::Reconsider(txid) => match self.reconsider(txid).await? {
                Became::Applied | Became::AlreadyApplied => (Settled::Replayed, "looked at again: it is live"),
                became => return Ok(Err(became.to_string())),
            },
        };
        self.note(listed, settled).await?;
        Ok(Ok(told.to_owned()))
    }

    async fn publish_again(&mut self, listed: &Listed) -> Result<Result<(), String>, BrokerError> {
        let letter = &listed.letter;
        let there = self.message(&self.dead_letters.clone(), listed.at_partition, listed.at_offset).await?;
        let Some(there) = there else { return Ok(Err("is no longer in its topic".to_owned())) };
        let source = match there.payload.is_empty() {
            false => there,
            // It was too large for the topic of dead letters.
            true => match self.message(&letter.topic, letter.partition, letter.offset).await? {
                Some(source) => source,
                None => return Ok(Err("its source message is no longer in its topic".to_owned())),
            },
        };
        let Message { key, payload, headers, .. } = source;
        let again = Produce { topic: letter.topic.clone(), key, payload, headers, ..Produce::default() };
        match produce_until_acknowledged(self.producer.as_ref(), &[again], PAUSE).await {
            Ok(_) => Ok(Ok(())),
            Err(error) if error.kind == BrokerErrorKind::TooLarge => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }

    async fn reconsider(&self, txid: Txid) -> Result<Became, Failure> {
        // Another try is another command: the chain may have learnt of the parent since.
        let asked = Asked::new(random_id()?, Action::Reconsider { txid });
        let answers = ask(self.broker, &self.commands, &[asked], self.timeout).await?;
        Ok(answers.into_iter().next().map_or(Became::Unanswered, |answer| answer.became))
    }

    /// Behind the dead letter, in its partition.
    async fn note(&self, listed: &Listed, settled: Settled) -> Result<(), BrokerError> {
        let letter = &listed.letter;
        let (topic, partition, offset) = (letter.topic.clone(), letter.partition, letter.offset);
        let headers = Settlement { topic, partition, offset, settled }.to_headers();
        let key = listed.txid.map_or_else(Bytes::new, |txid| Bytes::copy_from_slice(&txid.0));
        let note = Produce {
            topic: self.dead_letters.clone(),
            partition: Some(listed.at_partition),
            key,
            headers,
            ..Produce::default()
        };
        produce_until_acknowledged(self.producer.as_ref(), &[note], PAUSE).await.map(drop)
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
