//! Confirms by the topic's id that every event belongs to the topic that the store is bound to.
//!
//! A topic may be deleted and created again at any moment, and its reader continues at the old position. So each chunk
//! waits until the topic's id was asked for after the read of the chunk, and is the store's. One question covers all
//! chunks read before it. Each commit asks for the id once more.
//!
//! Open: the brokers of a cluster learn of a new topic one after the other. A broker that has not learned of it answers
//! with the old id, for as long as its metadata lags behind the partition's leader.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::{
    sync::mpsc,
    time::{Duration, Instant, sleep_until},
};

use crate::{
    broker::identity::{TopicGuard, Unconfirmed},
    ingest::dispatch::{TaskMessage, spawn},
};

/// Least time between two questions: under load one question covers many chunks.
const MIN_QUERY_INTERVAL: Duration = Duration::from_millis(20);

/// Confirmation of the topic's id.
pub(super) struct TopicConfirmation {
    guard: TopicGuard,
    topic: String,
    sender: mpsc::UnboundedSender<TaskMessage>,
    /// Number of the last chunk that was read; the first chunk has number 1.
    read: Arc<AtomicU64>,
    /// Chunks up to this number belong to the store's topic, or to halted partitions.
    up_to: u64,
    asking: bool,
    /// Earliest time of the next question.
    not_before: Instant,
}

impl TopicConfirmation {
    pub(super) fn new(
        guard: TopicGuard,
        topic: String,
        sender: mpsc::UnboundedSender<TaskMessage>,
        now: Instant,
    ) -> Self {
        TopicConfirmation { guard, topic, sender, read: Arc::default(), up_to: 0, asking: false, not_before: now }
    }

    /// Counts a chunk that was read and returns its number.
    pub(super) fn next_chunk_number(&self) -> u64 {
        self.read.fetch_add(1, Relaxed) + 1
    }

    /// Returns whether the events of the chunk with this number may be applied.
    pub(super) fn is_confirmed(&self, number: u64) -> bool {
        number <= self.up_to
    }

    /// Asks, beside the loop, whether the topic is the store's.
    pub(super) fn check(&mut self) {
        if std::mem::replace(&mut self.asking, true) {
            return;
        }
        let (guard, topics) = (self.guard.clone(), vec![self.topic.clone()]);
        let (read, not_before) = (self.read.clone(), self.not_before);
        self.not_before = not_before.max(Instant::now()) + MIN_QUERY_INTERVAL;
        let messages = self.sender.clone();
        spawn("confirming the id of the topic", &self.sender, async move {
            sleep_until(not_before).await;
            let mut up_to = 0;
            let answer = match guard.confirm_after(&topics, || up_to = read.load(Relaxed)).await {
                Ok(()) => TaskMessage::TopicIdChecked { up_to, other: None },
                Err(Unconfirmed::Other(why)) => TaskMessage::TopicIdChecked { up_to, other: Some(why) },
                Err(Unconfirmed::Broker(error)) => TaskMessage::Fatal(error.into()),
            };
            // A pipeline that has ended asks again at its next start.
            let _ = messages.send(answer);
        });
    }

    /// Confirms the chunks that had been read at the time of a question, `up_to`, and asks again for later ones. Where
    /// the topic was another one the partitions are halted, and their chunks are passed over.
    pub(super) fn on_checked(&mut self, up_to: u64) {
        self.asking = false;
        self.up_to = self.up_to.max(up_to);
        if !self.is_confirmed(self.read.load(Relaxed)) {
            self.check();
        }
    }
}
