//! Halts partitions that cannot continue before an operator has acted; the other partitions continue.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{Pipeline, PipelineError};
use crate::{
    broker::{BrokerError, BrokerErrorKind, TopicPartition},
    group::partition::{Halt, PartitionState, offset_out_of_range},
    ingest::plan::{EventRef, Token},
    status::Condition,
    text::truncate_for_json,
    tx::Txid,
};

impl Pipeline {
    /// Handles an offset out of range: the next offset of a partition is not in the topic any more, or not yet.
    /// Skipping it would lose events, so the partition halts. The partition is one of `assigned`, the partitions and
    /// epochs at the time of the error.
    pub(super) async fn on_offset_out_of_range(
        &mut self,
        error: BrokerError,
        assigned: BTreeMap<i32, u64>,
    ) -> Result<(), PipelineError> {
        // No operator looks at a rebuild: it fails.
        if error.kind != BrokerErrorKind::OutOfRange || self.services.modes.end_offsets().is_some() {
            return Err(error.into());
        }
        let mut found = false;
        for number in self.partitions.keys().copied().collect::<Vec<_>>() {
            let Some(position) = self.partitions.get(&number).map(|state| state.tracker.position()) else { continue };
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
            let (low, high) = match self.services.broker.watermarks(&partition).await {
                Ok(ends) => ends,
                Err(why) if why.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(%error, %why, "pipeline: cannot find the partition whose offset is out of range; retrying");
                    self.out_of_range = Some((error, assigned));
                    return Ok(());
                }
                Err(why) => return Err(why.into()),
            };
            if let Some(why) = offset_out_of_range(position, low, high) {
                found = true;
                self.halt(number, why);
            }
        }
        // The partition may have been revoked since: the next owner gets the same error.
        let now = self.epochs();
        let all_assigned = assigned.iter().all(|(number, epoch)| now.get(number) == Some(epoch));
        if found || !all_assigned { Ok(()) } else { Err(error.into()) }
    }

    /// Returns the assigned partitions, each with the epoch of its assignment.
    pub(super) fn epochs(&self) -> BTreeMap<i32, u64> {
        self.partitions.iter().map(|(number, state)| (*number, state.epoch)).collect()
    }

    /// Counts an event that turned out to be a dead letter after it had been read.
    pub(super) fn count_root(&mut self, event: EventRef, root: Txid) {
        let now_ms = self.now_ms();
        let replayed = self.services.modes.is_below_frontier(event.partition, event.offset);
        let state = self.partitions.get_mut(&event.partition);
        let Some(state) = state.filter(|state| state.epoch == event.epoch && state.halted.is_none() && !replayed)
        else {
            return;
        };
        if let Some(why) = state.dead_letters.count_root(&self.settings.dead_letter_limits, root, now_ms) {
            self.halt(event.partition, why);
        }
    }

    /// Halts the partitions of a transaction that the store cannot take, until an operator has made room or repaired
    /// the damaged records.
    pub(super) fn halt_unstorable(&mut self, token: Token, why: &str) -> Result<(), PipelineError> {
        let now_ms = self.now_ms();
        let Some((txid, events)) = self.planner.halt(token.flight(), now_ms) else { return Ok(()) };
        let why = format!("{txid} cannot be stored: {why}");
        // No operator looks at a rebuild: it fails.
        if self.services.modes.end_offsets().is_some() {
            return Err(PipelineError::Store(why));
        }
        self.halt_all(&events, &why);
        Ok(())
    }

    /// Halts the partitions of these events that are not halted yet.
    pub(super) fn halt_all(&mut self, events: &[EventRef], why: &str) {
        for EventRef { partition, epoch, .. } in events {
            let state = self.partitions.get(partition).filter(|state| state.epoch == *epoch);
            if state.is_some_and(|state| state.halted.is_none()) {
                self.halt(*partition, why.to_owned());
            }
        }
    }

    /// Halts a partition with this reason, from now on.
    pub(super) fn halt(&mut self, number: i32, why: String) {
        let since_ms = self.services.clock.now_ms();
        // In another topic any other reason (an offset out of range, for example) is only a consequence.
        let why = self.topic_confirmation.other_topic().unwrap_or(why);
        self.enter_halt(number, Halt { why, since_ms });
    }

    /// Halts a partition, by a new or an earlier halt.
    pub(super) fn enter_halt(&mut self, number: i32, halt: Halt) {
        let Halt { why, since_ms } = &halt;
        tracing::error!(partition = number, why, since_ms, "pipeline: partition halted");
        if let Some(state) = self.partitions.get_mut(&number) {
            state.halted = Some(halt);
        }
        self.publish_halts();
        self.pause(number);
        // The next owner needs to know of the halt.
        self.next_commit = Instant::now();
    }

    /// Publishes the reasons of all halted partitions as a condition, or that no partition is halted.
    pub(super) fn publish_halts(&self) {
        let halted = |(number, state): (&i32, &PartitionState)| Some((*number, state.halted.clone()?.why));
        let halts: BTreeMap<i32, String> = self.partitions.iter().filter_map(halted).collect();
        self.services.health.set(Condition::PartitionsRunning, halt_summary(&halts));
    }
}

/// Bytes of each reason where several partitions are halted, and the number of partitions that are named.
const MAX_REASON_BYTES: usize = 400;
const MAX_LISTED_PARTITIONS: usize = 10;

/// Returns the halted partitions and the reasons in one line; `None`: no partition is halted. The reason of a single
/// one is not cut.
fn halt_summary(halts: &BTreeMap<i32, String>) -> Option<String> {
    let max_bytes = if halts.len() == 1 { usize::MAX } else { MAX_REASON_BYTES };
    let each = |(number, why): (&i32, &String)| format!("partition {number}: {}", truncate_for_json(why, max_bytes));
    let mut reasons: Vec<String> = halts.iter().take(MAX_LISTED_PARTITIONS).map(each).collect();
    let more = halts.len().saturating_sub(MAX_LISTED_PARTITIONS);
    reasons.extend((more > 0).then(|| format!("{more} more partitions are halted")));
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halt_summary_names_partitions_within_a_bound() {
        let halts = |numbers: std::ops::Range<i32>, why: &str| numbers.map(|number| (number, why.to_owned())).collect();
        assert_eq!(halt_summary(&halts(0..0, "")), None);
        assert_eq!(halt_summary(&halts(3..4, &"x".repeat(9_000))).unwrap().len(), 9_000 + "partition 3: ".len());
        assert_eq!(halt_summary(&halts(3..5, "no room")).unwrap(), "partition 3: no room; partition 4: no room");
        let many = halt_summary(&halts(0..10_000, &"x".repeat(9_000))).unwrap();
        assert!(many.len() < 5_000 && many.contains("partition 9: xx"), "{many}");
        assert!(many.ends_with("…; 9990 more partitions are halted"), "{many}");
    }
}
