//! The transactions of the reference's topic, published under their txids.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{BridgeCounts, BridgeError, Committer, READ_WAIT, messages::TxValidation, publish_dead, start_offset};
use crate::{
    blob::EventBodies,
    broker::{
        Broker, Message, OutgoingMessage, Producer, TopicPartition, produce_until_acknowledged,
        retry::{read_or_reopen, until_answered},
    },
    client::{PRODUCE_RETRY_PAUSE, outgoing_message, refer_if_large},
    config::Topics,
    event::{Destination, Topic, Validated},
    tx::Transaction,
};

/// Result of the conversion of one message of the reference.
#[derive(Debug, PartialEq, Eq)]
pub enum Converted {
    /// An event with its destination.
    Event(Destination, Bytes),
    /// A dead letter, for this reason.
    Refused(String),
}

/// Converts a message of the reference into the event of a validated transaction. `next_height` is the height of the
/// next block: a message with height 0 leaves the height to its reader.
///
/// The options say what the reference's validator does with the transaction, and change nothing here: a transaction for
/// which the reference makes no outputs spends its inputs all the same, and the store judges a double spend itself.
pub fn convert(payload: &Bytes, next_height: u32) -> Converted {
    let message = match TxValidation::decode(payload.clone()) {
        Ok(message) => message,
        Err(error) => return Converted::Refused(format!("no KafkaTxValidationTopicMessage: {error}")),
    };
    match Transaction::parse(&message.tx) {
        Err(error) => Converted::Refused(format!("tx: {error}")),
        Ok(transaction) if !transaction.is_extended() => {
            Converted::Refused("tx: the transaction is not in extended format".to_owned())
        }
        Ok(transaction) => {
            let destination = Destination { topic: Topic::ValidatedTxs, key: Some(transaction.txid()) };
            let height = if message.height == 0 { next_height } else { message.height };
            let event = Validated { tx: &message.tx, height, locked: false };
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
    /// Height of the next block; `None`: not known yet.
    pub next_height: watch::Receiver<Option<u32>>,
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
        let partition = TopicPartition { topic: self.topic.as_str().into(), partition: number };
        let mut committer = Committer::new(self.broker.as_ref(), &self.group, partition.clone());
        tokio::select! {
            biased;
            // Messages on their way are read again by the next start.
            () = shutdown.cancelled() => {}
            ended = Box::pin(self.forward_messages(&partition, producer.as_ref(), &mut committer)) => return ended,
        }
        committer.commit_at_end().await
    }

    /// Forwards messages until an error.
    async fn forward_messages(
        &self,
        partition: &TopicPartition,
        producer: &dyn Producer,
        committer: &mut Committer<'_>,
    ) -> Result<(), BridgeError> {
        let broker = self.broker.as_ref();
        let mut position = start_offset(broker, &self.group, partition).await?;
        let mut reader = until_answered(|| broker.read(partition, position)).await?;
        loop {
            committer.commit_in_time(position).await?;
            let messages = read_or_reopen(&mut reader, broker, partition, READ_WAIT).await?;
            let end = reader.position();
            self.publish(producer, partition, messages).await?;
            position = position.max(end);
        }
    }

    async fn publish(
        &self,
        producer: &dyn Producer,
        partition: &TopicPartition,
        messages: Vec<Message>,
    ) -> Result<(), BridgeError> {
        let mut events: Vec<OutgoingMessage> = Vec::new();
        let next_height = self.wait_for_height().await;
        for message in messages {
            match convert(&message.payload, next_height) {
                Converted::Event(destination, payload) => {
                    let payload = refer_if_large(self.bodies.as_ref(), &destination, payload).await?;
                    events.push(outgoing_message(&self.topics, destination, payload));
                }
                Converted::Refused(problem) => {
                    publish_dead(producer, &self.topics, partition, message, problem).await?;
                    self.counts.dead_letters.fetch_add(1, Relaxed);
                }
            }
        }
        if !events.is_empty() {
            produce_until_acknowledged(producer, &events, PRODUCE_RETRY_PAUSE).await?;
            self.counts.transactions.fetch_add(events.len() as u64, Relaxed);
        }
        Ok(())
    }

    /// Waits until the bridge of the blocks knows the tip.
    async fn wait_for_height(&self) -> u32 {
        match self.next_height.clone().wait_for(Option::is_some).await {
            Ok(height) => height.unwrap_or(1),
            // The bridge of the blocks has ended, and ends this one.
            Err(_) => std::future::pending().await,
        }
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

    fn message(tx: Vec<u8>, height: u32) -> Bytes {
        let options = Some(TxValidationOptions { skip_utxo_creation: true, ..TxValidationOptions::default() });
        TxValidation { tx: tx.into(), height, options }.encode_to_vec().into()
    }

    fn builder() -> TransactionBuilder {
        let spent = Output { satoshis: 10, script: &[0x51] };
        let outpoint = Outpoint { txid: Txid([3; 32]), vout: 1 };
        TransactionBuilder::default().input(outpoint, &[], 0, Some(spent)).output(9, &[0x52])
    }

    #[test]
    fn a_transaction_becomes_an_event_under_its_txid() {
        let tx = builder().extended();
        let txid = Transaction::parse(&tx).unwrap().txid();
        for (given, height) in [(7, 7), (0, 12)] {
            let Converted::Event(destination, payload) = convert(&message(tx.clone(), given), 12) else { panic!() };
            assert_eq!(destination, Destination { topic: Topic::ValidatedTxs, key: Some(txid) });
            assert_eq!(Event::decode(&payload), Ok(Event::Validated(Validated { tx: &tx, height, locked: false })));
        }
    }

    #[test]
    fn a_message_without_an_extended_transaction_is_refused() {
        let refusal = |payload: Bytes| match convert(&payload, 1) {
            Converted::Refused(problem) => problem,
            other => panic!("{other:?}"),
        };
        assert!(refusal(Bytes::from_static(&[0xFF; 9])).contains("no KafkaTxValidationTopicMessage"));
        assert!(refusal(Bytes::new()).starts_with("tx: "));
        assert!(refusal(message(builder().standard(), 7)).contains("not in extended format"));
    }
}
