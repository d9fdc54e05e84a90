//! Halts partitions that cannot go on until an operator has looked; the rest goes on.

use tokio::time::Instant;

use super::{Pipeline, PipelineError};
use crate::{
    api::Condition,
    broker::{BrokerError, BrokerErrorKind, TopicPartition},
    ingest::{
        partition::Halt,
        plan::{EventRef, Token},
    },
    tx::Txid,
};

impl Pipeline {
    /// What is to be read next is no longer in the topic, or is not there yet: skipping it would lose it, so the partitions
    /// that this befell halt. The rest goes on.
    pub(super) async fn on_gone(&mut self, error: BrokerError) -> Result<(), PipelineError> {
        // Nobody will look at a rebuild: it has failed.
        if error.kind != BrokerErrorKind::OutOfRange || self.parts.modes.ends().is_some() {
            return Err(error.into());
        }
        let mut found = false;
        for number in self.partitions.keys().copied().collect::<Vec<_>>() {
            let Some(position) = self.partitions.get(&number).map(|state| state.tracker.position()) else { continue };
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
            let (low, high) = match self.parts.broker.watermarks(&partition).await {
                Ok(ends) => ends,
                Err(why) if why.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(%error, %why, "which partition that is, is asked again");
                    self.gone = Some(error);
                    return Ok(());
                }
                Err(why) => return Err(why.into()),
            };
            if !(low..=high).contains(&position) {
                found = true;
                let why = format!("offset {position} is next, but the topic holds {low} to {high}");
                self.halt(number, why);
            }
        }
        if found { Ok(()) } else { Err(error.into()) }
    }

    /// An event is a dead letter, as was found after it had been read.
    pub(super) fn count_root(&mut self, event: EventRef, root: Txid) {
        let now_ms = self.now_ms();
        let replayed = self.parts.modes.is_below_frontier(event.partition, event.offset);
        let state = self.partitions.get_mut(&event.partition);
        let Some(state) = state.filter(|state| state.epoch == event.epoch && state.halted.is_none() && !replayed)
        else {
            return;
        };
        if let Some(why) = state.dead_letters.count_root(&self.settings.dead_letter_limits, root, now_ms) {
            self.halt(event.partition, why);
        }
    }

    /// What cannot be stored halts the partitions of who needs it, until an operator has made room, or mended what is damaged.
    pub(super) fn on_standing(&mut self, token: Token, why: &str) -> Result<(), PipelineError> {
        let now_ms = self.now_ms();
        let Some((txid, events)) = self.planner.halt(token, now_ms) else { return Ok(()) };
        let why = format!("{txid} cannot be stored: {why}");
        // Nobody will look at a rebuild: it has failed.
        if self.parts.modes.ends().is_some() {
            return Err(PipelineError::Store(why));
        }
        for EventRef { partition, epoch, .. } in events {
            let state = self.partitions.get(&partition).filter(|state| state.epoch == epoch);
            if state.is_some_and(|state| state.halted.is_none()) {
                self.halt(partition, why.clone());
            }
        }
        Ok(())
    }

    pub(super) fn halt(&mut self, number: i32, why: String) {
        let since_ms = self.parts.clock.now_ms();
        self.stay_halted(number, Halt { why, since_ms });
    }

    pub(super) fn stay_halted(&mut self, number: i32, halt: Halt) {
        let Halt { why, since_ms } = &halt;
        tracing::error!(partition = number, why, since_ms, "halted: the events that follow are left where they are");
        self.parts.health.set(Condition::PartitionsRunning, Some(format!("partition {number}: {why}")));
        if let Some(state) = self.partitions.get_mut(&number) {
            state.halted = Some(halt);
        }
        self.pause(number);
        // Whoever has the partition next is to know.
        self.next_commit = Instant::now();
    }
}
