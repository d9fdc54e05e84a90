//! Decisions that are written ahead in one record, and count together or not at all: those of a window, and those on
//! the losers that a block lists.

use super::{
    decided_chunks::StepRecord,
    decisions::{DecisionError, DecisionLog, EventSteps},
    waiting::{DECISIONS, report_wait},
};
use crate::{
    broker::BrokerErrorKind,
    event::{DecidedEvent, DecisionBody, DecisionGroup, DecisionRun},
};

impl DecisionLog {
    /// Publishes the staged decisions on these events as one group, and reads the group back. Returns whether the group
    /// counts. A group that is void, or too large for a message, leaves no decision on the events.
    pub async fn publish_staged(&mut self, chain_offsets: &[u64]) -> Result<bool, DecisionError> {
        let staged = chain_offsets.iter().map(|chain_offset| DecidedEvent {
            chain_offset: *chain_offset,
            bodies: self.table.unstage(*chain_offset),
        });
        let events: Vec<DecidedEvent> = staged.collect();
        let Some(first) = events.first().map(|event| event.chain_offset) else { return Ok(false) };
        let position = self.end;
        let group = DecisionGroup { position, events };
        let Some(at) = self.publish_together(first, group.encode()).await? else { return Ok(false) };
        Ok(group.events.iter().all(|event| self.counts(event.chain_offset, 0, &event.bodies, (at, position))))
    }

    /// Publishes decisions as the next steps of an event, and reads them back. Returns whether they count; `None`: they
    /// are together too large for a message. Decisions that do not count leave no step.
    pub async fn publish_run(
        &mut self,
        chain_offset: u64,
        bodies: Vec<DecisionBody>,
    ) -> Result<Option<bool>, DecisionError> {
        let (position, step) = (self.end, self.table.next_step(chain_offset));
        let run = DecisionRun { position, chain_offset, step, bodies };
        let Some(at) = self.publish_together(chain_offset, run.encode()).await? else { return Ok(None) };
        Ok(Some(self.counts(chain_offset, step, &run.bodies, (at, position))))
    }

    /// Publishes a record and reads it back. Returns its offset; `None`: the record is too large for a message.
    async fn publish_together(&mut self, chain_offset: u64, record: Vec<u8>) -> Result<Option<u64>, DecisionError> {
        let (parts, bytes) = (self.parts.clone(), record.len());
        match report_wait(parts.as_ref(), DECISIONS, self.produce_and_read_back(chain_offset, record)).await {
            Ok(at) => Ok(Some(at)),
            Err(DecisionError::Broker(error)) if error.kind == BrokerErrorKind::TooLarge => {
                tracing::debug!(chain_offset, bytes, %error, "decisions: too large together for a message");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether exactly these decisions follow the first `step` ones of an event. `places` are the offset of
    /// their record and the offset at which the record counts.
    fn counts(&self, chain_offset: u64, step: u32, bodies: &[DecisionBody], places: (u64, u64)) -> bool {
        let is_same = |(record, body): (&StepRecord, &DecisionBody)| match &record.body {
            Some(known) => **known == *body,
            // A chunk of this very record, which is at the offset that it expects.
            None => record.at == places.0 && places.0 == places.1,
        };
        self.table.by_offset.get(&chain_offset).is_some_and(|EventSteps { steps, .. }| {
            let steps = steps.get(step as usize..).unwrap_or_default();
            steps.len() == bodies.len() && steps.iter().zip(bodies).all(is_same)
        })
    }
}
