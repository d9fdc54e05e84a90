//! Produces events in batches; each batch is acknowledged before the next.

use std::fmt;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::{
    broker::{BrokerError, BrokerErrorKind, OutgoingMessage, Producer},
    client::outgoing_message,
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
    /// Bytes of the payloads, without keys.
    pub bytes: u64,
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
/// A batch is not acknowledged completely; all batches before are in the log.
pub async fn produce(
    producer: &dyn Producer,
    topics: &Topics,
    messages: impl Iterator<Item = Message>,
    bar: &ProgressBar,
) -> Result<ProducedTotals, BrokerError> {
    let mut produced = ProducedTotals::default();
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    for message in messages {
        if batch.len() >= BATCH_MESSAGES || batch_bytes + message.payload.len() > BATCH_BYTES {
            produced.send(producer, &mut batch, bar).await?;
            batch_bytes = 0;
        }
        batch_bytes += message.payload.len();
        let Message { topic, key, payload } = message;
        batch.push(outgoing_message(topics, Destination { topic, key }, payload));
    }
    produced.send(producer, &mut batch, bar).await?;
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
        "{subject} makes an event of {} bytes, more than topic {} takes (raise its max.message.bytes): {}",
        largest.payload.len(),
        largest.topic,
        error.message
    );
    BrokerError { message, ..error }
}
