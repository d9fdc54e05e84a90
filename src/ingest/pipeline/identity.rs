//! Applies no event of a topic that is not the store's.
//!
//! A topic may be deleted and created again at any moment, and its reader goes on at the old position. So each chunk
//! that was read waits until the topic's identity was asked for after it was read, and was the store's. One question
//! covers all chunks read before it. Before each commit the identity is asked for once more.
//!
//! Left open: brokers of a cluster hear of a new topic one after the other. A broker that has not heard of it
//! yet answers with the old identity, for as long as its metadata lags behind the partition's leader.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::time::{Duration, Instant, sleep_until};

use super::{Pipeline, PipelineError};
use crate::{
    broker::identity::Unconfirmed,
    ingest::dispatch::{Done, spawn},
};

/// Least time between two questions: under load one question covers many chunks.
const PACE: Duration = Duration::from_millis(20);

/// State of the questions about the topic's identity.
pub(super) struct Identity {
    /// Number of the chunk that was read last; the first has 1.
    read: Arc<AtomicU64>,
    /// Chunks up to this number were read of the store's topic (or of partitions that are halted).
    up_to: u64,
    asking: bool,
    /// The next question is asked no sooner.
    not_before: Instant,
    /// Why the topic is not the store's.
    other: Option<String>,
}

impl Identity {
    pub(super) fn new(now: Instant) -> Self {
        Identity { read: Arc::default(), up_to: 0, asking: false, not_before: now, other: None }
    }

    /// Numbers the chunk that was read now.
    pub(super) fn number(&self) -> u64 {
        self.read.fetch_add(1, Relaxed) + 1
    }

    /// Whether the chunk of that number may be worked on.
    pub(super) fn covers(&self, number: u64) -> bool {
        number <= self.up_to
    }

    /// Why the topic is not the store's.
    pub(super) fn other(&self) -> Option<String> {
        self.other.clone()
    }

    /// An operator has looked: the next answer counts.
    pub(super) fn forget_other(&mut self) {
        self.other = None;
    }
}

impl Pipeline {
    /// Asks, beside the loop, whether the topic is the store's.
    pub(super) fn ask_identity(&mut self) {
        if std::mem::replace(&mut self.identity.asking, true) {
            return;
        }
        let (guard, topics) = (self.parts.guard.clone(), vec![self.settings.topic.to_string()]);
        let (read, not_before) = (self.identity.read.clone(), self.identity.not_before);
        self.identity.not_before = not_before.max(Instant::now()) + PACE;
        let done = self.done_sender.clone();
        spawn("asking whether the topic is the store's", &self.done_sender, async move {
            sleep_until(not_before).await;
            let mut up_to = 0;
            let answer = match guard.confirm_after(&topics, || up_to = read.load(Relaxed)).await {
                Ok(()) => Done::Identity { up_to, other: None },
                Err(Unconfirmed::Other(why)) => Done::Identity { up_to, other: Some(why) },
                Err(Unconfirmed::Broker(error)) => Done::Fatal(error.into()),
            };
            // A pipeline that has ended meanwhile asks again when it starts.
            let _ = done.send(answer);
        });
    }

    /// The answer to a question that was asked when `up_to` chunks had been read.
    pub(super) fn on_identity(&mut self, up_to: u64, other: Option<String>) -> Result<(), PipelineError> {
        self.identity.asking = false;
        if let Some(why) = other {
            self.on_other_topic(why)?;
        }
        // Chunks of halted partitions are passed over when their turn comes.
        self.identity.up_to = self.identity.up_to.max(up_to);
        if !self.identity.covers(self.identity.read.load(Relaxed)) {
            self.ask_identity();
        }
        Ok(())
    }

    /// Halts every partition: their offsets mean nothing in another topic. Until an operator has looked nothing is
    /// committed, either.
    pub(super) fn on_other_topic(&mut self, why: String) -> Result<(), PipelineError> {
        // Nobody will look at a rebuild: it has failed.
        if self.parts.modes.ends().is_some() {
            return Err(PipelineError::OtherTopic(why));
        }
        // A partition that is halted for another reason (its offset is not in the new topic, say) is halted for this
        // one from now on.
        let others =
            self.partitions.iter().filter(|(_, state)| state.halted.as_ref().is_none_or(|halt| halt.why != why));
        let others: Vec<i32> = others.map(|(number, _)| *number).collect();
        self.identity.other = Some(why.clone());
        for number in others {
            self.halt(number, why.clone());
        }
        Ok(())
    }
}
