//! Halts partitions that cannot continue before an operator has acted; the other partitions continue.

use std::collections::BTreeMap;

use super::{PipelineError, partition_reads::PartitionReads};
use crate::{
    group::{commit_metadata::Halt, dead_letters::DeadLetterLimits, partition::PartitionState},
    ingest::plan::EventRef,
    replay::Modes,
    status::Condition,
    text::truncate_for_json,
    tx::Txid,
};

impl PartitionReads {
    /// Counts an event that turned out to be a dead letter after it had been read.
    pub(super) fn count_root(&mut self, limits: &DeadLetterLimits, modes: &Modes, event: EventRef, root: Txid) {
        let now_ms = self.member.services.clock.steady_ms();
        let replayed = modes.publishes_nothing_at(event.partition, event.offset);
        let state = self.member.partitions.current(event.partition, event.epoch);
        let Some(state) = state.filter(|state| !state.reads.is_halted() && !replayed) else { return };
        if let Some(why) = state.dead_letters.count_root(limits, root, now_ms) {
            self.halt(event.partition, why);
        }
    }

    /// Halts the partitions of these events that are not halted yet; a rebuild fails with this error.
    pub(super) fn halt_or_fail(
        &mut self,
        events: &[EventRef],
        why: &str,
        error: PipelineError,
    ) -> Result<(), PipelineError> {
        if self.ends_by_itself {
            return Err(error);
        }
        for EventRef { partition, epoch, .. } in events {
            if self.member.partitions.current(*partition, *epoch).is_some_and(|state| !state.reads.is_halted()) {
                self.halt(*partition, why.to_owned());
            }
        }
        Ok(())
    }

    /// Halts every partition: their offsets mean nothing in another topic. No offset is committed before an operator
    /// has acted. A rebuild fails.
    pub(super) fn halt_in_other_topic(&mut self, why: String) -> Result<(), PipelineError> {
        if self.ends_by_itself {
            return Err(PipelineError::OtherTopic(why));
        }
        // A partition that is halted for another reason (an offset out of range, for example) is halted for this one
        // from now on.
        let states = self.member.partitions.states.iter();
        let others = states.filter(|(_, state)| state.reads.halt().is_none_or(|halt| halt.why != why));
        let others: Vec<i32> = others.map(|(number, _)| *number).collect();
        self.member.other_topic = Some(why.clone());
        for number in others {
            self.halt(number, why.clone());
        }
        Ok(())
    }

    /// Halts a partition with this reason, from now on.
    pub(super) fn halt(&mut self, number: i32, why: String) {
        let halt = self.member.new_halt(why);
        self.enter_halt(number, halt);
    }

    /// Halts a partition, by a new or an earlier halt.
    pub(super) fn enter_halt(&mut self, number: i32, halt: Halt) {
        let Halt { why, since_ms } = &halt;
        tracing::error!(partition = number, why, since_ms, "pipeline: partition halted");
        if let Some(state) = self.member.partitions.states.get_mut(&number) {
            state.reads.enter_halt(halt);
        }
        self.publish_halts();
        self.member.pause(number);
        self.has_new_halt = true;
    }

    /// Publishes the reasons of all halted partitions as a condition, or that no partition is halted.
    pub(super) fn publish_halts(&self) {
        let halted = |(number, state): (&i32, &PartitionState)| Some((*number, state.reads.halt()?.why.clone()));
        let halts: BTreeMap<i32, String> = self.member.partitions.states.iter().filter_map(halted).collect();
        self.member.services.health.set(Condition::PartitionsRunning, halt_summary(&halts));
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
