//! Producing in batches, each acknowledged before the next.

use std::fmt;

use bytes::Bytes;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::{
    broker::{BrokerError, BrokerErrorKind, Produce, Producer},
    config::Topics,
    generate::Message,
    tx::Txid,
};

const BATCH_MESSAGES: usize = 1_000;
const BATCH_BYTES: usize = 4 << 20;

/// What was produced and acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Produced {
    /// Messages.
    pub events: u64,
    /// Bytes of them, without their keys.
    pub bytes: u64,
}

/// A progress bar with rate and time left. Nothing is shown where standard error is no terminal.
pub fn progress_bar(what: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:>12} {wide_bar} {human_pos}/{human_len}  {rate}/s, {eta} left");
    let bar = ProgressBar::new(length).with_message(what);
    let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
        // A bar that cannot be drawn loses nothing.
        let _ = write!(out, "{:.0}", state.per_sec());
    };
    // The template is a constant: an unreadable template would only change the looks.
    if let Ok(style) = style { bar.with_style(style.with_key("rate", rate)) } else { bar }
}

/// Produces `messages` in their order.
///
/// # Errors
/// The first batch that is not acknowledged whole; those before it are there.
pub async fn produce(
    producer: &dyn Producer,
    topics: &Topics,
    messages: impl Iterator<Item = Message>,
    bar: &ProgressBar,
) -> Result<Produced, BrokerError> {
    let mut produced = Produced::default();
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    for message in messages {
        if batch.len() >= BATCH_MESSAGES || batch_bytes + message.payload.len() > BATCH_BYTES {
            produced.send(producer, &mut batch, bar).await?;
            batch_bytes = 0;
        }
        batch_bytes += message.payload.len();
        batch.push(to_produce(topics, message));
    }
    produced.send(producer, &mut batch, bar).await?;
    Ok(produced)
}

impl Produced {
    async fn send(
        &mut self,
        producer: &dyn Producer,
        batch: &mut Vec<Produce>,
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

/// Names what is too large: the largest of the topic is among it.
fn too_large(messages: &[Produce], error: BrokerError) -> BrokerError {
    let of_topic = messages.iter().filter(|message| error.message.starts_with(&message.topic));
    let Some(largest) = of_topic.max_by_key(|message| message.payload.len()) else { return error };
    let what = match <[u8; 32]>::try_from(&largest.key[..]) {
        Ok(txid) => format!("transaction {}", Txid(txid)),
        Err(_) => "a block".to_owned(),
    };
    let message = format!(
        "{what} makes an event of {} bytes, more than topic {} takes (raise its max.message.bytes): {}",
        largest.payload.len(),
        largest.topic,
        error.message
    );
    BrokerError { message, ..error }
}

/// Where a message goes: by its key, or to the one partition of its topic.
fn to_produce(topics: &Topics, message: Message) -> Produce {
    Produce {
        topic: topics.name(message.topic).to_owned(),
        partition: message.key.is_none().then_some(0),
        key: message.key.map_or(Bytes::new(), |txid| Bytes::copy_from_slice(&txid.0)),
        payload: message.payload.into(),
        ..Produce::default()
    }
}
