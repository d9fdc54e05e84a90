//! The transactions of the reference's topic, published under their txids.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::Bytes;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::{BridgeCounts, BridgeError, Committer, READ_WAIT, messages::TxValidation, start_offset};
use crate::{
    blob::EventBodies,
    broker::{
        Broker, CommittedOffset, Message, OutgoingMessage, Producer, TopicPartition, produce_until_acknowledged,
        retry::{read_or_reopen, until_answered},
    },
    client::{PRODUCE_RETRY_PAUSE, outgoing_message, refer_if_large},
    config::Topics,
    event::{DeadLetter, DeadLetterClass, Destination, Topic, Validated},
    group::dead_letters::publish_dead_letter,
    tx::Transaction,
};

/// Stage in the dead letters of the bridge.
const STAGE: &str = "bridge";

/// Result of the conversion of one message of the reference.
#[derive(Debug, PartialEq, Eq)]
pub enum Converted {
    /// An event with its destination.
    Event(Destination, Bytes),
    /// Nothing: the transaction creates no outputs.
    Skipped,
    /// A dead letter, for this reason.
    Refused(String),
}

/// Converts a message of the reference into the event of a validated transaction.
pub fn convert(payload: &Bytes) -> Converted {
    let message = match TxValidation::decode(payload.clone()) {
        Ok(message) => message,
        Err(error) => return Converted::Refused(format!("no KafkaTxValidationTopicMessage: {error}")),
    };
    if message.options.is_some_and(|options| options.skip_utxo_creation) {
        return Converted::Skipped;
    }
    match Transaction::parse(&message.tx) {
        Err(error) => Converted::Refused(format!("tx: {error}")),
        Ok(transaction) if !transaction.is_extended() => {
            Converted::Refused("tx: the transaction is not in extended format".to_owned())
        }
        Ok(transaction) => {
            let destination = Destination { topic: Topic::ValidatedTxs, key: Some(transaction.txid()) };
            let event = Validated { tx: &message.tx, height: message.height, locked: false };
            Converted::Event(destination, event.encode().into())
        }
    }
}

/// Forwards the transactions of the reference's topic, each partition by a task of its own.
#[derive(Clone)]
pub struct TransactionBridge {
    /// The log of both systems.
    pub broker: Arc<dyn Broker>,
    /// Topic of the reference.
    pub topic: String,
    /// Group that commits the progress.
    pub group: String,
    /// Topics of this store.
    pub topics: Topics,
    /// Object store for the bodies of large transactions.
    pub bodies: Option<EventBodies>,
    /// Counts of the bridge.
    pub counts: Arc<BridgeCounts>,
}

impl TransactionBridge {
    /// Forwards transactions until `shutdown`.
    ///
    /// # Errors
    /// The topic does not exist; the log refuses a message, an object store a body. A message that is no transaction is
    /// no error: the message becomes a dead letter.
    pub async fn run(&self, shutdown: &CancellationToken) -> Result<(), BridgeError> {
        let count = until_answered(|| self.broker.partitions(&self.topic)).await?;
        let count = count.ok_or_else(|| BridgeError::NoTopic(self.topic.clone()))?;
        let producer = self.broker.producer().await?;
        let partitions = (0..count).map(|number| self.forward(number, &producer, shutdown));
        futures_util::future::try_join_all(partitions).await.map(drop)
    }

    async fn forward(
        &self,
        number: i32,
        producer: &Arc<dyn Producer>,
        shutdown: &CancellationToken,
    ) -> Result<(), BridgeError> {
        let broker = self.broker.as_ref();
        let partition = TopicPartition { topic: self.topic.as_str().into(), partition: number };
        let (mut next, _) = start_offset(broker, &self.group, &partition).await?;
        let mut committer = Committer::new(broker, &self.group, partition.clone());
        let mut reader = until_answered(|| broker.read(&partition, next)).await?;
        let commit_at = |offset| CommittedOffset { offset, metadata: String::new() };
        while !shutdown.is_cancelled() {
            let messages = read_or_reopen(&mut reader, broker, &partition, READ_WAIT).await?;
            let position = reader.position();
            self.publish(producer.as_ref(), &partition, messages).await?;
            next = next.max(position);
            committer.commit_in_time(commit_at(next)).await?;
        }
        Ok(committer.commit(commit_at(next)).await?)
    }

    async fn publish(
        &self,
        producer: &dyn Producer,
        partition: &TopicPartition,
        messages: Vec<Message>,
    ) -> Result<(), BridgeError> {
        let mut events: Vec<OutgoingMessage> = Vec::new();
        for message in messages {
            match convert(&message.payload) {
                Converted::Event(destination, payload) => {
                    let payload = refer_if_large(self.bodies.as_ref(), &destination, payload).await?;
                    events.push(outgoing_message(&self.topics, destination, payload));
                }
                Converted::Skipped => {
                    self.counts.skipped.fetch_add(1, Relaxed);
                }
                Converted::Refused(problem) => self.publish_dead(producer, partition, message, problem).await?,
            }
        }
        if !events.is_empty() {
            produce_until_acknowledged(producer, &events, PRODUCE_RETRY_PAUSE).await?;
            self.counts.transactions.fetch_add(events.len() as u64, Relaxed);
        }
        Ok(())
    }

    async fn publish_dead(
        &self,
        producer: &dyn Producer,
        partition: &TopicPartition,
        source: Message,
        problem: String,
    ) -> Result<(), BridgeError> {
        tracing::warn!(%partition, offset = source.offset, problem, "bridge: message becomes a dead letter");
        let letter = DeadLetter {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            offset: source.offset,
            stage: STAGE.to_owned(),
            class: DeadLetterClass::Decode,
            message: problem,
            timestamp_ms: source.timestamp_ms,
        };
        let topic = self.topics.name(Topic::DeadLetters);
        publish_dead_letter(producer, topic, source, &letter, PRODUCE_RETRY_PAUSE).await?;
        self.counts.dead_letters.fetch_add(1, Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bridge::messages::TxValidationOptions,
        event::Event,
        tx::{Outpoint, Output, TransactionBuilder, Txid},
    };

    fn message(tx: Vec<u8>, skip_utxo_creation: bool) -> Bytes {
        let options = Some(TxValidationOptions { skip_utxo_creation, ..TxValidationOptions::default() });
        TxValidation { tx: tx.into(), height: 7, options }.encode_to_vec().into()
    }

    fn builder() -> TransactionBuilder {
        let spent = Output { satoshis: 10, script: &[0x51] };
        let outpoint = Outpoint { txid: Txid([3; 32]), vout: 1 };
        TransactionBuilder::default().input(outpoint, &[], 0, Some(spent)).output(9, &[0x52])
    }

    #[test]
    fn a_transaction_becomes_an_event_under_its_txid() {
        let tx = builder().extended();
        let Converted::Event(destination, payload) = convert(&message(tx.clone(), false)) else { panic!() };
        let txid = Transaction::parse(&tx).unwrap().txid();
        assert_eq!(destination, Destination { topic: Topic::ValidatedTxs, key: Some(txid) });
        assert_eq!(Event::decode(&payload), Ok(Event::Validated(Validated { tx: &tx, height: 7, locked: false })));
        assert_eq!(convert(&message(tx, true)), Converted::Skipped);
    }

    #[test]
    fn a_message_without_an_extended_transaction_is_refused() {
        let refusal = |payload: Bytes| match convert(&payload) {
            Converted::Refused(problem) => problem,
            other => panic!("{other:?}"),
        };
        assert!(refusal(Bytes::from_static(&[0xFF; 9])).contains("no KafkaTxValidationTopicMessage"));
        assert!(refusal(Bytes::new()).starts_with("tx: "));
        assert!(refusal(message(builder().standard(), false)).contains("not in extended format"));
    }
}
