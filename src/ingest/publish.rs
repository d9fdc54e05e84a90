//! Contests and dead letters: published until they are acknowledged, beside the loop.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    broker::{BrokerError, BrokerErrorKind, Message, Produce, Producer, produce_until_acknowledged},
    event::{Contest, DeadLetter, DeadLetterClass, Event, Position},
    ingest::{dispatch::Done, flight::FlightId, plan::EventRef, prepare::Poison},
    record::Reason,
    telemetry::Metrics,
    tx::Txid,
};

/// Where the pipeline's own messages go.
#[derive(Clone)]
pub struct Publisher {
    /// Acknowledges.
    pub producer: Arc<dyn Producer>,
    /// Topic whose events are consumed: the place that contests and dead letters name.
    pub source_topic: Arc<str>,
    /// `utxo.chain`
    pub chain_topic: String,
    /// `utxo.dead-letters`
    pub dead_letter_topic: String,
    /// First and longest pause between tries.
    pub retry_pause: (Duration, Duration),
    /// Metrics.
    pub metrics: Arc<Metrics>,
}

impl Publisher {
    /// Puts a contest into the log; answers with [`Done::ContestPublished`].
    pub fn contest(
        &self,
        flight: FlightId,
        txid: Txid,
        event: EventRef,
        reason: Reason,
        done: mpsc::UnboundedSender<Done>,
    ) {
        self.metrics.contests.inc();
        let position = Position {
            topic: self.source_topic.to_string(),
            partition: event.partition,
            offset: event.offset,
            timestamp_ms: event.timestamp_ms,
        };
        let payload = Event::Contest(Contest { txid, position, reason }).encode();
        let message = Produce {
            topic: self.chain_topic.clone(),
            partition: Some(0),
            key: Bytes::copy_from_slice(&txid.0),
            payload: payload.into(),
            ..Produce::default()
        };
        let publisher = self.clone();
        self.answer(done, async move {
            let producer = publisher.producer.as_ref();
            produce_until_acknowledged(producer, &[message], publisher.retry_pause).await?;
            Ok(Done::ContestPublished(flight))
        });
    }

    /// Puts a message aside, untouched, saying whence and why; answers with [`Done::DeadLetterPublished`].
    pub fn dead_letter(&self, event: EventRef, source: Message, poison: Poison, done: mpsc::UnboundedSender<Done>) {
        self.metrics.dead_letters.of(poison.class).inc();
        let letter = DeadLetter {
            topic: self.source_topic.to_string(),
            partition: event.partition,
            offset: event.offset,
            stage: "prepare".to_owned(),
            class: poison.class,
            message: poison.message,
            timestamp_ms: event.timestamp_ms,
        };
        tracing::warn!(
            partition = event.partition,
            offset = event.offset,
            class = letter.class.name(),
            why = letter.message,
            "dead letter"
        );
        let mut headers = source.headers;
        headers.extend(letter.to_headers());
        let message = Produce {
            topic: self.dead_letter_topic.clone(),
            partition: None,
            key: source.key,
            payload: source.payload,
            headers,
            timestamp_ms: None,
        };
        let publisher = self.clone();
        self.answer(done, async move {
            bury_until_acknowledged(publisher.producer.as_ref(), message, publisher.retry_pause).await?;
            Ok(Done::DeadLetterPublished(event))
        });
    }

    fn answer(
        &self,
        done: mpsc::UnboundedSender<Done>,
        published: impl Future<Output = Result<Done, BrokerError>> + Send + 'static,
    ) {
        tokio::spawn(async move {
            let answer = published.await.unwrap_or_else(|error| Done::Fatal(error.to_string()));
            // A pipeline that has ended meanwhile reads the event again when it starts.
            let _ = done.send(answer);
        });
    }
}

/// Produces a dead letter until it is acknowledged. One that is larger than its topic takes goes without its payload: its
/// headers name the source, where the rest can be read.
///
/// # Errors
/// What no retry heals.
pub async fn bury_until_acknowledged(
    producer: &dyn Producer,
    mut letter: Produce,
    pause: (Duration, Duration),
) -> Result<(), BrokerError> {
    match produce_until_acknowledged(producer, std::slice::from_ref(&letter), pause).await {
        Err(error) if error.kind == BrokerErrorKind::TooLarge => {
            tracing::warn!(%error, "dead letter without its payload");
            letter.payload = Bytes::new();
            produce_until_acknowledged(producer, &[letter], pause).await.map(drop)
        }
        produced => produced.map(drop),
    }
}

/// What is wrong with an event that contradicts what is stored.
pub fn mismatch(txid: Txid) -> Poison {
    Poison {
        class: DeadLetterClass::SeedMismatch,
        message: format!("outputs: transaction {txid} is stored with other content"),
    }
}
