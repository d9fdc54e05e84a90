//! Publishes contests, dead letters and outcomes beside the loop, until the broker acknowledges them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    backoff::Backoff,
    broker::{BrokerError, BrokerErrorKind, Message, OutgoingMessage, Producer, produce_until_acknowledged},
    event::{
        Contest, DeadLetter, DeadLetterClass, Event, EventPosition, OutcomeChange, OutcomeEvent, OutcomeKind,
        OutcomeSource,
    },
    group::{
        dead_letters::publish_dead_letter,
        outcomes::{OutcomeTopic, PartitionTxids},
    },
    ingest::{
        dispatch::{LiveEvent, Publication, TaskMessage, spawn},
        flight::FlightId,
        pipeline::PipelineError,
        plan::EventRef,
    },
    prepare::Poison,
    record::Reason,
    telemetry::{Metrics, PublishedOutcome},
    tx::Txid,
};

/// Time after which contests without an answer are published again. The client of the broker answers before.
const ANSWER_BOUND: Duration = Duration::from_secs(600);

/// Publisher of the pipeline's own messages. Each is answered with [`TaskMessage::Published`], also together with
/// others, or with [`TaskMessage::NotPublished`].
#[derive(Clone)]
pub struct Publisher {
    /// Producer whose acknowledgements complete events.
    pub producer: Arc<dyn Producer>,
    /// Topic of the consumed events, which contests and dead letters name as their source.
    pub source_topic: Arc<str>,
    /// Topic of contests, usually `utxo.chain`.
    pub chain_topic: String,
    /// Topic of dead letters, usually `utxo.dead-letters`.
    pub dead_letter_topic: String,
    /// Topic of outcomes, usually `utxo.outcomes`.
    pub outcomes: OutcomeTopic,
    /// First and longest pause between two attempts.
    pub retry_pause: (Duration, Duration),
    /// Counters of contests, dead letters and outcomes.
    pub metrics: Arc<Metrics>,
}

/// The contest of a flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlightContest {
    /// Flight that goes on once the contest is in the log.
    pub flight: FlightId,
    /// The transaction that is contested.
    pub txid: Txid,
    /// First event of the flight.
    pub event: EventRef,
    /// Hash of the body in that event.
    pub body: [u8; 32],
    /// Reason of the contest.
    pub reason: Reason,
}

impl Publisher {
    /// Publishes contests to the chain log: one request for all, and an answer for each. Contests of one turn of the
    /// loop follow from at most some answers of the store, so that their number is bounded.
    pub fn publish_contests(&self, contests: Vec<FlightContest>, messages: mpsc::UnboundedSender<TaskMessage>) {
        if contests.is_empty() {
            return;
        }
        self.metrics.contests.inc_by(contests.len() as u64);
        let contests = contests.into_iter().map(|contest| (self.contest_message(&contest), contest)).collect();
        let (publisher, sender) = (self.clone(), messages.clone());
        spawn("publishing contests", &sender, async move { publisher.produce_contests(contests, &messages).await });
    }

    /// Produces contests until each is acknowledged, or refused for good. Only contests without an acknowledgement are
    /// repeated: each repeat of a contest is an event of the chain.
    async fn produce_contests(
        &self,
        mut left: Vec<(OutgoingMessage, FlightContest)>,
        messages: &mpsc::UnboundedSender<TaskMessage>,
    ) {
        let mut backoff = Backoff::from_key(self.retry_pause, left.first().map_or(&[][..], |(first, _)| &first.key));
        loop {
            let request: Vec<OutgoingMessage> = left.iter().map(|(message, _)| message.clone()).collect();
            let results = self.producer.produce_each(&request, Instant::now() + ANSWER_BOUND).await;
            let (mut acknowledged, mut again) = (Vec::new(), Vec::new());
            for ((message, contest), result) in std::mem::take(&mut left).into_iter().zip(results) {
                match result {
                    Ok(_) => acknowledged.push(contest.flight),
                    Err(error) if error.kind == BrokerErrorKind::Retryable => again.push((message, contest, error)),
                    Err(error) => {
                        let FlightContest { flight, txid, event: EventRef { partition, offset, .. }, .. } = contest;
                        let what = format!("the contest of {txid} (partition {partition}, offset {offset})");
                        let refused = Err(refuse(what, &self.chain_topic, error));
                        answer(messages, Publication::Contests(vec![flight]), refused);
                    }
                }
            }
            if !acknowledged.is_empty() {
                answer(messages, Publication::Contests(acknowledged), Ok(()));
            }
            let Some((.., error)) = again.last() else { return };
            tracing::warn!(%error, contests = again.len(), "contests not published; publishing them again");
            left = again.into_iter().map(|(message, contest, _)| (message, contest)).collect();
            backoff.pause().await;
        }
    }

    fn contest_message(&self, contest: &FlightContest) -> OutgoingMessage {
        let FlightContest { txid, event, body, reason, .. } = *contest;
        let position = EventPosition {
            topic: self.source_topic.to_string(),
            partition: event.partition,
            offset: event.offset,
            timestamp_ms: event.timestamp_ms,
        };
        OutgoingMessage {
            topic: self.chain_topic.clone(),
            partition: Some(0),
            key: Bytes::copy_from_slice(&txid.0),
            payload: Event::Contest(Contest { txid, position, body, reason }).encode().into(),
            ..OutgoingMessage::default()
        }
    }

    /// Publishes the unchanged message of an event as a dead letter with its source and the reason, then the outcome of
    /// its transaction, if that is known.
    pub fn publish_dead_letter(
        &self,
        event: EventRef,
        source: Message,
        poison: Poison,
        messages: mpsc::UnboundedSender<TaskMessage>,
    ) {
        self.metrics.dead_letters.of(poison.class).inc();
        let letter = DeadLetter {
            topic: self.source_topic.to_string(),
            partition: event.partition,
            offset: event.offset,
            stage: poison.stage.to_owned(),
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
        let publisher = self.clone();
        let of_event = format!("of partition {}, offset {}", event.partition, event.offset);
        let outcome = poison.txid.and_then(|txid| self.refusal_of(txid, &letter));
        spawn_publish(messages, Publication::DeadLetter(event), async move {
            let (producer, topic) = (publisher.producer.as_ref(), publisher.dead_letter_topic.as_str());
            publish_dead_letter(producer, topic, source, &letter, publisher.retry_pause)
                .await
                .map_err(|error| refuse(format!("the dead letter {of_event}"), topic, error))?;
            if let Some(outcome) = outcome {
                let topic = &publisher.outcomes.name;
                let refuse = |error| refuse(format!("the outcome {of_event}"), topic, error);
                publisher.produce(outcome).await.map_err(refuse)?;
                publisher.metrics.published_outcomes.of(PublishedOutcome::Refused).inc();
            }
            Ok(())
        });
    }

    /// Returns the outcome of the transaction of a dead letter.
    fn refusal_of(&self, txid: Txid, letter: &DeadLetter) -> Option<OutgoingMessage> {
        let kind = OutcomeKind::refused(letter.class, &letter.message)?;
        let source = OutcomeSource::Validated { partition: letter.partition, offset: letter.offset };
        Some(OutgoingMessage {
            topic: self.outcomes.name.clone(),
            key: Bytes::copy_from_slice(&txid.0),
            payload: OutcomeEvent { txid, source, kind }.encode().into(),
            ..OutgoingMessage::default()
        })
    }

    /// Publishes transactions of one partition of the outcomes as live.
    pub fn publish_live(&self, live: PartitionTxids<LiveEvent>, messages: mpsc::UnboundedSender<TaskMessage>) {
        let (message, events) = live.into_message(&self.outcomes.name, OutcomeChange::Live);
        let (publisher, count) = (self.clone(), events.len());
        spawn_publish(messages, Publication::Live(events), async move {
            let refuse =
                |error| refuse(format!("the outcome of {count} transactions"), &publisher.outcomes.name, error);
            publisher.produce(message).await.map_err(refuse)?;
            publisher.metrics.published_outcomes.of(PublishedOutcome::Live).inc_by(count as u64);
            Ok(())
        });
    }

    async fn produce(&self, message: OutgoingMessage) -> Result<(), BrokerError> {
        produce_until_acknowledged(self.producer.as_ref(), &[message], self.retry_pause).await.map(drop)
    }
}

/// Returns the error of a message that its topic refuses for good.
fn refuse(what: String, topic: &str, error: BrokerError) -> PipelineError {
    PipelineError::NotPublished { what, topic: topic.to_owned(), error }
}

fn spawn_publish(
    messages: mpsc::UnboundedSender<TaskMessage>,
    publication: Publication,
    published: impl Future<Output = Result<(), PipelineError>> + Send + 'static,
) {
    let sender = messages.clone();
    spawn("publishing", &sender, async move { answer(&messages, publication, published.await) });
}

/// Tells the loop the result of a publication.
fn answer(
    messages: &mpsc::UnboundedSender<TaskMessage>,
    publication: Publication,
    published: Result<(), PipelineError>,
) {
    let answer = match published {
        Ok(()) => TaskMessage::Published(publication),
        Err(error @ PipelineError::NotPublished { error: BrokerError { kind, .. }, .. })
            if kind.is_client_unusable() =>
        {
            TaskMessage::Fatal(error)
        }
        Err(error) => TaskMessage::NotPublished(publication, error),
    };
    // A pipeline that has ended reads the event again at its next start.
    let _ = messages.send(answer);
}

/// Returns the reason of a dead letter for an event that contradicts the stored record.
pub fn mismatch_poison(txid: Txid) -> Poison {
    Poison {
        stage: "apply",
        class: DeadLetterClass::SeedMismatch,
        message: format!("outputs: transaction {txid} is stored with other content"),
        txid: Some(txid),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, sync::Mutex};

    use super::*;
    use crate::broker::Delivery;

    /// A producer that refuses messages above this number of bytes.
    struct Narrow(usize, Mutex<Vec<OutgoingMessage>>);

    #[async_trait::async_trait]
    impl Producer for Narrow {
        async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
            let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
            if message.key.len() + message.payload.len() + headers > self.0 {
                return Err(BrokerError::new(BrokerErrorKind::TooLarge, "produce", "too large"));
            }
            self.1.lock().unwrap().push(message);
            Ok(Delivery { partition: 0, offset: 0 })
        }

        async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
            let mut delivered = Vec::new();
            for message in messages {
                delivered.push(self.produce(message).await?);
            }
            Ok(delivered)
        }
    }

    /// A producer that answers by a script, and notes the keys.
    struct Scripted(Mutex<VecDeque<Option<BrokerErrorKind>>>, Mutex<Vec<Bytes>>);

    #[async_trait::async_trait]
    impl Producer for Scripted {
        async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
            self.1.lock().unwrap().push(message.key);
            match self.0.lock().unwrap().pop_front().unwrap() {
                None => Ok(Delivery { partition: 0, offset: 0 }),
                Some(kind) => Err(BrokerError::new(kind, "produce", "scripted")),
            }
        }

        async fn produce_all(&self, _: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
            unreachable!("contests are produced each for itself")
        }
    }

    #[tokio::test]
    async fn contests_that_leave_together_are_acknowledged_refused_and_repeated_each() {
        let script = [None, Some(BrokerErrorKind::Rejected), Some(BrokerErrorKind::Retryable), None];
        let producer = Arc::new(Scripted(Mutex::new(script.into()), Mutex::default()));
        let publisher = publisher(producer.clone());
        let flight = |index| FlightId { index, generation: 0 };
        let contest = |index| FlightContest {
            flight: flight(index),
            txid: Txid([index as u8; 32]),
            event: EventRef { partition: 3, offset: 7, timestamp_ms: 9, epoch: 1 },
            body: [0; 32],
            reason: Reason::Found,
        };
        let (sender, mut messages) = mpsc::unbounded_channel();
        publisher.publish_contests((0..3).map(contest).collect(), sender);
        let mut answers = Vec::new();
        while let Some(message) = messages.recv().await {
            answers.push(match message {
                TaskMessage::Published(Publication::Contests(flights)) => (true, flights),
                TaskMessage::NotPublished(Publication::Contests(flights), _) => (false, flights),
                _ => panic!("another message"),
            });
        }
        assert_eq!(answers, [(false, vec![flight(1)]), (true, vec![flight(0)]), (true, vec![flight(2)])]);
        let keys: Vec<u8> = producer.1.lock().unwrap().iter().map(|key| key[0]).collect();
        assert_eq!(keys, [0, 1, 2, 2], "an acknowledged contest is not repeated");
    }

    fn publisher(producer: Arc<dyn Producer>) -> Publisher {
        Publisher {
            producer,
            source_topic: "txs".into(),
            chain_topic: "chain".into(),
            dead_letter_topic: "dead".into(),
            outcomes: OutcomeTopic { name: "outcomes".into(), partitions: 1 },
            retry_pause: (Duration::ZERO, Duration::ZERO),
            metrics: Arc::default(),
        }
    }

    #[tokio::test]
    async fn a_failed_publication_names_the_message_and_its_topic() {
        let publisher = publisher(Arc::new(Narrow(0, Mutex::default())));
        let event = EventRef { partition: 3, offset: 7, timestamp_ms: 9, epoch: 1 };
        let (sender, mut messages) = mpsc::unbounded_channel();
        let (flight, txid) = (FlightId { index: 0, generation: 0 }, Txid([1; 32]));
        let contest = FlightContest { flight, txid, event, body: [0; 32], reason: Reason::Found };
        publisher.publish_contests(vec![contest], sender.clone());
        let Some(TaskMessage::NotPublished(Publication::Contests(flights), error)) = messages.recv().await else {
            panic!("the contest was published")
        };
        assert_eq!(flights, [flight]);
        let what = format!("the contest of {txid} (partition 3, offset 7)");
        assert_eq!(error.to_string(), format!("{what} cannot be published to `chain`: produce: too large"));
        let source =
            Message { offset: 7, timestamp_ms: 9, key: Bytes::new(), payload: Bytes::new(), headers: Vec::new() };
        let poison = Poison { stage: "prepare", class: DeadLetterClass::Decode, message: "why".into(), txid: None };
        publisher.publish_dead_letter(event, source, poison, sender);
        let Some(TaskMessage::NotPublished(Publication::DeadLetter(_), error)) = messages.recv().await else {
            panic!("it was published")
        };
        let expected = "the dead letter of partition 3, offset 7 cannot be published to `dead`: produce: too large";
        assert_eq!(error.to_string(), expected);
    }

    /// Returns the lengths of key, payload and the header of the source in the produced dead letter.
    async fn published(limit: usize, key: usize, payload: usize, header: usize) -> (usize, usize, usize) {
        let producer = Arc::new(Narrow(limit, Mutex::default()));
        let publisher = publisher(producer.clone());
        let source = Message {
            offset: 7,
            timestamp_ms: 9,
            key: vec![1; key].into(),
            payload: vec![2; payload].into(),
            headers: vec![("trace".into(), vec![3; header].into())],
        };
        let event = EventRef { partition: 3, offset: 7, timestamp_ms: 9, epoch: 1 };
        let poison = Poison { stage: "prepare", class: DeadLetterClass::Decode, message: "why".into(), txid: None };
        let (sender, mut messages) = mpsc::unbounded_channel();
        publisher.publish_dead_letter(event, source, poison, sender);
        assert!(matches!(messages.recv().await, Some(TaskMessage::Published(Publication::DeadLetter(_)))));
        let produced = producer.1.lock().unwrap().pop().unwrap();
        assert_eq!(DeadLetter::from_headers(&produced.headers).unwrap().offset, 7);
        let trace = produced.headers.iter().find(|(name, _)| name == "trace").map_or(0, |(_, value)| value.len());
        (produced.key.len(), produced.payload.len(), trace)
    }

    #[tokio::test]
    async fn a_dead_letter_keeps_as_much_of_its_source_as_the_broker_takes() {
        assert_eq!(published(1_000, 32, 300, 50).await, (32, 300, 50));
        assert_eq!(published(1_000, 32, 900, 50).await, (32, 0, 50));
        assert_eq!(published(1_000, 900, 50, 50).await, (0, 0, 0));
        assert_eq!(published(1_000, 32, 50, 900).await, (0, 0, 0));
    }
}
