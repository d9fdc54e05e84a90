//! The transactions of the reference's topic, published under their txids.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    BridgeCounts, BridgeError, READ_WAIT, TOPIC_CHECK_INTERVAL,
    dead_letters::BridgeDeadLetters,
    messages::TxValidation,
    progress::{Committer, SourceProgress, SourceTopic},
};
use crate::{
    blob::{BlobErrorKind, EventBodies},
    broker::{
        Broker, BrokerErrorKind, Message, OutgoingMessage, Producer, TopicPartition, produce_until_acknowledged,
        retry::{read_or_reopen, until_answered},
    },
    client::{PRODUCE_RETRY_PAUSE, outgoing_message, refer_if_large},
    config::Topics,
    event::{DeadLetterClass, Destination, Topic, Validated},
    group::dead_letters::DeadLetterLimits,
    tx::{Transaction, Txid},
};

/// Reads a message of the reference, and returns the message with the txid of its transaction.
///
/// The options say what the reference's validator does with the transaction, and change nothing here: a transaction for
/// which the reference makes no outputs spends its inputs all the same, and the store judges a double spend itself.
///
/// # Errors
/// The message has no transaction in extended format.
pub fn read_transaction(payload: &Bytes) -> Result<(TxValidation, Txid), String> {
    let message =
        TxValidation::decode(payload.clone()).map_err(|error| format!("no KafkaTxValidationTopicMessage: {error}"))?;
    let transaction = Transaction::parse(&message.tx).map_err(|error| format!("tx: {error}"))?;
    if !transaction.is_extended() {
        return Err("tx: the transaction is not in extended format".to_owned());
    }
    let txid = transaction.txid();
    Ok((message, txid))
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
    /// Limits on dead letters of a partition, beyond which the bridge ends.
    pub dead_letter_limits: DeadLetterLimits,
    /// Counts of the bridge.
    pub counts: Arc<BridgeCounts>,
}

impl TransactionBridge {
    /// Forwards transactions until `shutdown`, also those of partitions that the topic gets meanwhile.
    ///
    /// # Errors
    /// The topic does not exist or was created again; the log refuses a message, an object store a body; a partition
    /// has too many dead letters. A message that becomes no event is no error: the message becomes a dead letter.
    pub async fn run(&self, shutdown: &CancellationToken) -> Result<(), BridgeError> {
        let (topic, mut count) = SourceTopic::open(self.broker.as_ref(), &self.topic).await?;
        let producer = self.broker.producer().await?;
        let mut partitions = FuturesUnordered::new();
        loop {
            let known = partitions.len() as i32;
            if known > 0 && known < count {
                tracing::info!(topic = self.topic, known, count, "bridge: reading the new partitions");
            }
            partitions.extend((known..count).map(|number| self.forward(number, &topic, &producer, shutdown)));
            let look = async {
                tokio::time::sleep(TOPIC_CHECK_INTERVAL).await;
                topic.check().await
            };
            tokio::select! {
                ended = partitions.next() => {
                    ended.unwrap_or(Ok(()))?;
                    // A partition ends without an error only with the bridge.
                    while let Some(ended) = partitions.next().await {
                        ended?;
                    }
                    return Ok(());
                }
                found = look => count = found?.unwrap_or(count),
            }
        }
    }

    async fn forward(
        &self,
        number: i32,
        topic: &SourceTopic<'_>,
        producer: &Arc<dyn Producer>,
        shutdown: &CancellationToken,
    ) -> Result<(), BridgeError> {
        let partition = TopicPartition { topic: self.topic.as_str().into(), partition: number };
        let mut committer = Committer::new(topic, &self.group, partition.clone());
        let ended = tokio::select! {
            biased;
            // Messages on their way are read again by the next start.
            () = shutdown.cancelled() => Ok(()),
            ended = Box::pin(self.forward_messages(&partition, producer, &mut committer)) => ended,
        };
        committer.finish(ended).await
    }

    /// Forwards messages until an error.
    async fn forward_messages(
        &self,
        partition: &TopicPartition,
        producer: &Arc<dyn Producer>,
        committer: &mut Committer<'_>,
    ) -> Result<(), BridgeError> {
        let broker = self.broker.as_ref();
        let start = committer.resume().await?;
        let places = (&self.topics, self.counts.as_ref());
        let mut letters =
            BridgeDeadLetters::new(producer.clone(), partition, places, self.dead_letter_limits, start.read);
        let mut position = start.offset;
        let mut reader = until_answered(|| broker.read(partition, position)).await?;
        loop {
            committer
                .commit_in_time(SourceProgress { offset: position, read: position.max(start.read), sequence: 0 })
                .await?;
            let messages = read_or_reopen(&mut reader, broker, partition, READ_WAIT).await?;
            let end = reader.position();
            self.publish(&mut letters, messages).await?;
            position = position.max(end);
        }
    }

    async fn publish(&self, letters: &mut BridgeDeadLetters<'_>, messages: Vec<Message>) -> Result<(), BridgeError> {
        let mut events = Vec::new();
        for message in messages {
            let (read, txid) = match read_transaction(&message.payload) {
                Ok(read) => read,
                Err(problem) => {
                    self.produce(letters, &mut events).await?;
                    letters.publish(message, DeadLetterClass::Decode, problem).await?;
                    continue;
                }
            };
            let height = match read.height {
                // The events before the message do not wait for the height.
                0 => {
                    self.produce(letters, &mut events).await?;
                    self.wait_for_height().await
                }
                height => height,
            };
            let destination = Destination { topic: Topic::ValidatedTxs, key: Some(txid) };
            let event = Validated { tx: &read.tx, height, locked: false }.encode().into();
            match refer_if_large(self.bodies.as_ref(), &destination, event).await {
                Ok(payload) => events.push((message, outgoing_message(&self.topics, destination, payload))),
                Err(error) if error.kind == BlobErrorKind::Invalid => {
                    self.produce(letters, &mut events).await?;
                    letters.publish(message, DeadLetterClass::Unsupported, error.to_string()).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.produce(letters, &mut events).await
    }

    /// Publishes events. An event that is too large for its topic becomes a dead letter.
    async fn produce(
        &self,
        letters: &mut BridgeDeadLetters<'_>,
        events: &mut Vec<(Message, OutgoingMessage)>,
    ) -> Result<(), BridgeError> {
        let (sources, events): (Vec<Message>, Vec<OutgoingMessage>) = events.drain(..).unzip();
        let producer = letters.producer.clone();
        let produce = async |events: &[OutgoingMessage]| {
            produce_until_acknowledged(producer.as_ref(), events, PRODUCE_RETRY_PAUSE).await
        };
        match produce(&events).await {
            Err(error) if error.kind == BrokerErrorKind::TooLarge => {}
            produced => {
                produced?;
                self.counts.metrics.transactions.inc_by(events.len() as u64);
                events.iter().for_each(|_| letters.count_event());
                return Ok(());
            }
        }
        // An event that is published again changes nothing.
        for (source, event) in sources.into_iter().zip(events) {
            match produce(std::slice::from_ref(&event)).await {
                Err(error) if error.kind == BrokerErrorKind::TooLarge => {
                    letters.publish(source, DeadLetterClass::Unsupported, error.to_string()).await?;
                }
                produced => {
                    produced?;
                    self.counts.metrics.transactions.inc();
                    letters.count_event();
                }
            }
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
        tx::{Outpoint, Output, TransactionBuilder},
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
    fn a_message_without_an_extended_transaction_is_refused() {
        let good = message(builder().extended(), 7);
        let txid = Transaction::parse(&builder().extended()).unwrap().txid();
        let (read, found) = read_transaction(&good).unwrap();
        assert_eq!((read.height, found), (7, txid));
        let refusal = |payload: Bytes| read_transaction(&payload).unwrap_err();
        assert!(refusal(Bytes::from_static(&[0xFF; 9])).contains("no KafkaTxValidationTopicMessage"));
        assert!(refusal(Bytes::new()).starts_with("tx: "));
        assert!(refusal(message(builder().standard(), 7)).contains("not in extended format"));
    }
}
