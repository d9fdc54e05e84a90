//! Halts partitions that cannot go on until an operator has looked; the rest goes on.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{Pipeline, PipelineError};
use crate::{
    broker::{BrokerError, BrokerErrorKind, TopicPartition},
    group::partition::{Halt, PartitionState, gone},
    ingest::plan::{EventRef, Token},
    status::Condition,
    text::beginning_as_json,
    tx::Txid,
};

impl Pipeline {
    /// What is to be read next is no longer in the topic, or is not there yet: skipping it would lose it, so the partitions
    /// that this befell halt. The rest goes on. It is one of those that were `held` when the log said so.
    pub(super) async fn on_gone(&mut self, error: BrokerError, held: BTreeMap<i32, u64>) -> Result<(), PipelineError> {
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
                    self.gone = Some((error, held));
                    return Ok(());
                }
                Err(why) => return Err(why.into()),
            };
            if let Some(why) = gone(position, low, high) {
                found = true;
                self.halt(number, why);
            }
        }
        // It may have been taken away since: then its next holder finds out.
        let now = self.epochs();
        let all_held = held.iter().all(|(number, epoch)| now.get(number) == Some(epoch));
        if found || !all_held { Ok(()) } else { Err(error.into()) }
    }

    /// The partitions that are held, each with the epoch of its assignment.
    pub(super) fn epochs(&self) -> BTreeMap<i32, u64> {
        self.partitions.iter().map(|(number, state)| (*number, state.epoch)).collect()
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
        let Some((txid, events)) = self.planner.halt(token.flight(), now_ms) else { return Ok(()) };
        let why = format!("{txid} cannot be stored: {why}");
        // Nobody will look at a rebuild: it has failed.
        if self.parts.modes.ends().is_some() {
            return Err(PipelineError::Store(why));
        }
        self.halt_all(&events, &why);
        Ok(())
    }

    /// Halts the partitions of these events, but those that are halted.
    pub(super) fn halt_all(&mut self, events: &[EventRef], why: &str) {
        for EventRef { partition, epoch, .. } in events {
            let state = self.partitions.get(partition).filter(|state| state.epoch == *epoch);
            if state.is_some_and(|state| state.halted.is_none()) {
                self.halt(*partition, why.to_owned());
            }
        }
    }

    pub(super) fn halt(&mut self, number: i32, why: String) {
        let since_ms = self.parts.clock.now_ms();
        // What follows of another topic (an offset that is not there, say) is not the reason.
        let why = self.identity.other().unwrap_or(why);
        self.stay_halted(number, Halt { why, since_ms });
    }

    pub(super) fn stay_halted(&mut self, number: i32, halt: Halt) {
        let Halt { why, since_ms } = &halt;
        tracing::error!(partition = number, why, since_ms, "halted: the events that follow are left where they are");
        if let Some(state) = self.partitions.get_mut(&number) {
            state.halted = Some(halt);
        }
        self.tell_halts();
        self.pause(number);
        // Whoever has the partition next is to know.
        self.next_commit = Instant::now();
    }

    /// Says of every partition that stands why; or that none does.
    pub(super) fn tell_halts(&self) {
        let halted = |(number, state): (&i32, &PartitionState)| Some((*number, state.halted.clone()?.why));
        let halts: BTreeMap<i32, String> = self.partitions.iter().filter_map(halted).collect();
        self.parts.health.set(Condition::PartitionsRunning, told(&halts));
    }
}

/// Of a reason that others stand beside, in bytes; and of so many partitions at the most.
const MOST_OF_EACH: usize = 400;
const MOST_TOLD: usize = 10;

/// Which partitions stand, and why, in a line; `None`: none does. One that stands alone has all the room.
fn told(halts: &BTreeMap<i32, String>) -> Option<String> {
    let most = if halts.len() == 1 { usize::MAX } else { MOST_OF_EACH };
    let each = |(number, why): (&i32, &String)| format!("partition {number}: {}", beginning_as_json(why, most));
    let mut told: Vec<String> = halts.iter().take(MOST_TOLD).map(each).collect();
    let more = halts.len().saturating_sub(MOST_TOLD);
    told.extend((more > 0).then(|| format!("{more} more partitions are halted")));
    (!told.is_empty()).then(|| told.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_stand_are_told_and_no_number_of_them_floods_who_asks() {
        let halts = |numbers: std::ops::Range<i32>, why: &str| numbers.map(|number| (number, why.to_owned())).collect();
        assert_eq!(told(&halts(0..0, "")), None);
        assert_eq!(told(&halts(3..4, &"x".repeat(9_000))).unwrap().len(), 9_000 + "partition 3: ".len());
        assert_eq!(told(&halts(3..5, "it stands")).unwrap(), "partition 3: it stands; partition 4: it stands");
        let many = told(&halts(0..10_000, &"x".repeat(9_000))).unwrap();
        assert!(many.len() < 5_000 && many.contains("partition 9: xx"), "{many}");
        assert!(many.ends_with("…; 9990 more partitions are halted"), "{many}");
    }
}
