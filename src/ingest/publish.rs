//! Contests and dead letters: published until they are acknowledged, beside the loop.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    broker::{BrokerErrorKind, Message, Produce, Producer, produce_until_acknowledged},
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
        body: [u8; 32],
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
        let payload = Event::Contest(Contest { txid, position, body, reason }).encode();
        let message = Produce {
            topic: self.chain_topic.clone(),
            partition: Some(0),
            key: Bytes::copy_from_slice(&txid.0),
            payload: payload.into(),
            ..Produce::default()
        };
        self.publish(message, Done::ContestPublished(flight), done);
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
        self.publish(message, Done::DeadLetterPublished(event), done);
    }

    fn publish(&self, message: Produce, answer: Done, done: mpsc::UnboundedSender<Done>) {
        let publisher = self.clone();
        tokio::spawn(async move {
            let answer = match publisher.produce_until_done(message).await {
                Ok(()) => answer,
                Err(error) => Done::Fatal(error),
            };
            // A pipeline that has ended meanwhile reads the event again when it starts.
            let _ = done.send(answer);
        });
    }

    async fn produce_until_done(&self, mut message: Produce) -> Result<(), String> {
        let producer = self.producer.as_ref();
        let produced = produce_until_acknowledged(producer, std::slice::from_ref(&message), self.retry_pause).await;
        let Err(error) = produced else { return Ok(()) };
        if error.kind != BrokerErrorKind::TooLarge {
            return Err(error.to_string());
        }
        // The headers name the source, where the rest can be read.
        tracing::warn!(%error, "dead letter without its payload");
        message.payload = Bytes::new();
        let produced = produce_until_acknowledged(producer, &[message], self.retry_pause).await;
        produced.map(drop).map_err(|error| error.to_string())
    }
}

/// What is wrong with an event that contradicts what is stored.
pub fn mismatch(txid: Txid) -> Poison {
    Poison {
        class: DeadLetterClass::SeedMismatch,
        message: format!("outputs: transaction {txid} is stored with other content"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::broker::{BrokerError, Delivered};

    /// Takes messages up to so many bytes of payload.
    struct Narrow {
        most: usize,
        taken: Mutex<Vec<Produce>>,
    }

    #[async_trait::async_trait]
    impl Producer for Narrow {
        async fn produce(&self, message: Produce) -> Result<Delivered, BrokerError> {
            if message.payload.len() > self.most {
                return Err(BrokerError::new(BrokerErrorKind::TooLarge, "produce", "too large"));
            }
            self.taken.lock().unwrap().push(message);
            Ok(Delivered { partition: 0, offset: 0 })
        }

        async fn produce_all(&self, messages: Vec<Produce>) -> Result<Vec<Delivered>, BrokerError> {
            let mut delivered = Vec::new();
            for message in messages {
                delivered.push(self.produce(message).await?);
            }
            Ok(delivered)
        }
    }

    async fn buried(payload: &'static [u8]) -> Produce {
        let producer = Arc::new(Narrow { most: 10, taken: Mutex::default() });
        let publisher = Publisher {
            producer: producer.clone(),
            source_topic: "txs".into(),
            chain_topic: "chain".into(),
            dead_letter_topic: "dead-letters".into(),
            retry_pause: (Duration::ZERO, Duration::ZERO),
            metrics: Arc::new(Metrics::new()),
        };
        let event = EventRef { timestamp_ms: 5, partition: 2, offset: 77, epoch: 1 };
        let source = Message {
            offset: 77,
            timestamp_ms: 5,
            key: Bytes::from_static(b"key"),
            payload: Bytes::from_static(payload),
            headers: vec![("trace".to_owned(), Bytes::from_static(b"abc"))],
        };
        let poison = Poison { class: DeadLetterClass::Decode, message: "it is no event".to_owned() };
        let (sender, mut done) = mpsc::unbounded_channel();
        publisher.dead_letter(event, source, poison, sender);
        assert!(matches!(done.recv().await, Some(Done::DeadLetterPublished(of)) if of == event));
        let taken = std::mem::take(&mut *producer.taken.lock().unwrap());
        let [message] = taken.try_into().expect("one message");
        message
    }

    #[tokio::test]
    async fn a_dead_letter_is_the_source_message_with_whence_and_why() {
        let message = buried(b"short").await;
        assert_eq!((&message.key[..], &message.payload[..]), (&b"key"[..], &b"short"[..]));
        let letter = DeadLetter::from_headers(&message.headers).unwrap();
        assert_eq!((letter.topic.as_str(), letter.partition, letter.offset), ("txs", 2, 77));
        assert_eq!((letter.class, letter.message.as_str()), (DeadLetterClass::Decode, "it is no event"));
    }

    #[tokio::test]
    async fn one_that_is_too_large_keeps_everything_but_its_payload() {
        let message = buried(b"far too long for that topic").await;
        assert_eq!((&message.key[..], message.payload.len()), (&b"key"[..], 0));
        assert_eq!(message.headers[0], ("trace".to_owned(), Bytes::from_static(b"abc")));
        let letter = DeadLetter::from_headers(&message.headers).unwrap();
        assert_eq!((letter.partition, letter.offset), (2, 77), "where the rest can be read");
    }
}
