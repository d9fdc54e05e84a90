//! Produces events in batches; each batch is acknowledged before the next.

use std::fmt;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::{
    blob::EventBodies,
    broker::{BrokerError, BrokerErrorKind, OutgoingMessage, Producer},
    client::{PublishError, outgoing_message, refer_if_large},
    config::Topics,
    event::Destination,
    generate::Message,
    tx::Txid,
};

/// Greatest number of messages in one batch.
const BATCH_MESSAGES: usize = 1_000;
/// Greatest payload of one batch, bytes; a larger message is a batch of its own.
const BATCH_BYTES: usize = 4 << 20;

/// Counts of the produced and acknowledged messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ProducedTotals {
    /// Number of events, one per message.
    pub events: u64,
    /// Bytes of the payloads, without keys and objects.
    pub bytes: u64,
    /// Number of events that refer to an object with their body.
    pub by_reference: u64,
}

/// Destination of the produced events.
pub struct EventSink<'a> {
    /// Producer of the log.
    pub producer: &'a dyn Producer,
    /// Names of the topics.
    pub topics: &'a Topics,
    /// Object store for the bodies of large transactions; `None`: every event is one message.
    pub bodies: Option<&'a EventBodies>,
}

/// Makes a progress bar with rate and time left. The bar is hidden if standard error is not a terminal.
pub fn progress_bar(label: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:>12} {wide_bar} {human_pos}/{human_len}  {rate}/s, {eta} left");
    let bar = ProgressBar::new(length).with_message(label);
    let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
        // A failed drawing does not matter to the command.
        let _ = write!(out, "{:.0}", state.per_sec());
    };
    // The template is a constant: an invalid template would only change the appearance.
    if let Ok(style) = style { bar.with_style(style.with_key("rate", rate)) } else { bar }
}

/// Produces `messages` in their order.
///
/// # Errors
/// A batch is not acknowledged completely, or a body cannot be stored; all batches before are in the log.
pub async fn produce(
    sink: &EventSink<'_>,
    messages: impl Iterator<Item = Message>,
    bar: &ProgressBar,
) -> Result<ProducedTotals, PublishError> {
    let mut produced = ProducedTotals::default();
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    for Message { topic, key, payload } in messages {
        let (destination, encoded_bytes) = (Destination { topic, key }, payload.len());
        let payload = refer_if_large(sink.bodies, &destination, payload.into()).await?;
        // A reference is smaller than the event.
        produced.by_reference += u64::from(payload.len() < encoded_bytes);
        if batch.len() >= BATCH_MESSAGES || batch_bytes + payload.len() > BATCH_BYTES {
            produced.send(sink.producer, &mut batch, bar).await?;
            batch_bytes = 0;
        }
        batch_bytes += payload.len();
        batch.push(outgoing_message(sink.topics, destination, payload));
    }
    produced.send(sink.producer, &mut batch, bar).await?;
    Ok(produced)
}

impl ProducedTotals {
    async fn send(
        &mut self,
        producer: &dyn Producer,
        batch: &mut Vec<OutgoingMessage>,
        bar: &ProgressBar,
    ) -> Result<(), BrokerError> {
        let (events, bytes) =
            (batch.len() as u64, batch.iter().map(|message| message.payload.len() as u64).sum::<u64>());
        let messages = std::mem::take(batch);
        if let Err(error) = producer.produce_all(messages.clone()).await {
            return Err(if error.kind == BrokerErrorKind::TooLarge { too_large(&messages, error) } else { error });
        }
        self.events += events;
        self.bytes += bytes;
        bar.inc(events);
        Ok(())
    }
}

/// Adds the transaction or block to the error of a message that is too large: the largest message of the topic.
fn too_large(messages: &[OutgoingMessage], error: BrokerError) -> BrokerError {
    let of_topic = messages.iter().filter(|message| error.message.starts_with(&message.topic));
    let Some(largest) = of_topic.max_by_key(|message| message.payload.len()) else { return error };
    let subject = match <[u8; 32]>::try_from(&largest.key[..]) {
        Ok(txid) => format!("transaction {}", Txid(txid)),
        Err(_) => "a block".to_owned(),
    };
    let message = format!(
        "{subject} makes an event of {} bytes, more than topic {} takes (raise its max.message.bytes; objects.url \
         takes the bodies of large transactions): {}",
        largest.payload.len(),
        largest.topic,
        error.message
    );
    BrokerError { message, ..error }
}
