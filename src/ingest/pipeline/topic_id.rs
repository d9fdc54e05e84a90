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

use tokio::time::{Duration, Instant, sleep_until};

use super::{Pipeline, PipelineError};
use crate::{
    broker::identity::Unconfirmed,
    ingest::dispatch::{TaskMessage, spawn},
};

/// Least time between two questions: under load one question covers many chunks.
const MIN_QUERY_INTERVAL: Duration = Duration::from_millis(20);

/// State of the confirmation of the topic's id.
pub(super) struct TopicConfirmation {
    /// Number of the last chunk that was read; the first chunk has number 1.
    read: Arc<AtomicU64>,
    /// Chunks up to this number belong to the store's topic, or to halted partitions.
    up_to: u64,
    asking: bool,
    /// Earliest time of the next question.
    not_before: Instant,
    /// Reason why the topic is another one; `None`: it is the store's.
    other_topic: Option<String>,
}

impl TopicConfirmation {
    pub(super) fn new(now: Instant) -> Self {
        TopicConfirmation { read: Arc::default(), up_to: 0, asking: false, not_before: now, other_topic: None }
    }

    /// Counts a chunk that was read and returns its number.
    pub(super) fn next_chunk_number(&self) -> u64 {
        self.read.fetch_add(1, Relaxed) + 1
    }

    /// Returns whether the events of the chunk with this number may be applied.
    pub(super) fn is_confirmed(&self, number: u64) -> bool {
        number <= self.up_to
    }

    /// Returns the reason why the topic is another one.
    pub(super) fn other_topic(&self) -> Option<String> {
        self.other_topic.clone()
    }

    /// Clears the reason after an operator's retry: the next answer counts.
    pub(super) fn clear_other_topic(&mut self) {
        self.other_topic = None;
    }
}

impl Pipeline {
    /// Asks, beside the loop, whether the topic is the store's.
    pub(super) fn check_topic_id(&mut self) {
        if std::mem::replace(&mut self.topic_confirmation.asking, true) {
            return;
        }
        let (guard, topics) = (self.services.guard.clone(), vec![self.settings.topic.to_string()]);
        let (read, not_before) = (self.topic_confirmation.read.clone(), self.topic_confirmation.not_before);
        self.topic_confirmation.not_before = not_before.max(Instant::now()) + MIN_QUERY_INTERVAL;
        let messages = self.task_sender.clone();
        spawn("confirming the id of the topic", &self.task_sender, async move {
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

    /// Handles the answer to a question that was asked when `up_to` chunks had been read.
    pub(super) fn on_topic_id_checked(&mut self, up_to: u64, other: Option<String>) -> Result<(), PipelineError> {
        self.topic_confirmation.asking = false;
        if let Some(why) = other {
            self.on_other_topic(why)?;
        }
        // Chunks of halted partitions are passed over later.
        self.topic_confirmation.up_to = self.topic_confirmation.up_to.max(up_to);
        if !self.topic_confirmation.is_confirmed(self.topic_confirmation.read.load(Relaxed)) {
            self.check_topic_id();
        }
        Ok(())
    }

    /// Halts every partition: their offsets mean nothing in another topic. No offset is committed before an operator
    /// has acted.
    pub(super) fn on_other_topic(&mut self, why: String) -> Result<(), PipelineError> {
        // No operator looks at a rebuild: it fails.
        if self.services.modes.end_offsets().is_some() {
            return Err(PipelineError::OtherTopic(why));
        }
        // A partition that is halted for another reason (an offset out of range, for example) is halted for this one
        // from now on.
        let others =
            self.partitions.iter().filter(|(_, state)| state.halted.as_ref().is_none_or(|halt| halt.why != why));
        let others: Vec<i32> = others.map(|(number, _)| *number).collect();
        self.topic_confirmation.other_topic = Some(why.clone());
        for number in others {
            self.halt(number, why.clone());
        }
        Ok(())
    }
}
