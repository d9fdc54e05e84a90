//! The steps of decisions in the order of the log: the first record of a step counts.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::event::{Decision, DecisionBody};

/// Status of a record in the decisions topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DecisionStatus {
    /// The first record for its step.
    Counts,
    /// An earlier record has decided the step: the record is ignored.
    Repeat,
    /// An earlier step is missing: no sequencer writes such a record.
    Gap,
    /// The record is part of a group behind a record that the group's sequencer had not read: the group is ignored.
    Void,
    /// The record is no decision.
    Unreadable,
}

/// Tracks the steps of each chain offset in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct StepTracker(BTreeMap<u64, OffsetSteps>);

/// Steps of one chain offset that have been read.
#[derive(Debug)]
struct OffsetSteps {
    steps: u32,
    closed: bool,
    since_ms: i64,
}

impl StepTracker {
    /// Classifies the next record of the log.
    pub(crate) fn classify(&mut self, decision: &Decision, timestamp_ms: i64) -> DecisionStatus {
        let first = OffsetSteps { steps: 0, closed: false, since_ms: timestamp_ms };
        let seen = self.0.entry(decision.chain_offset).or_insert(first);
        if decision.step < seen.steps {
            DecisionStatus::Repeat
        } else if decision.step > seen.steps {
            DecisionStatus::Gap
        } else {
            seen.steps += 1;
            seen.closed = decision.body == DecisionBody::Closed;
            DecisionStatus::Counts
        }
    }

    /// Returns the chain offsets whose decisions are not closed: offset, number of steps that count, time of the first
    /// step in ms since the epoch.
    pub(crate) fn open(&self) -> impl Iterator<Item = (u64, u32, i64)> + '_ {
        let open = self.0.iter().filter(|(_, seen)| !seen.closed);
        open.map(|(chain_offset, seen)| (*chain_offset, seen.steps, seen.since_ms))
    }
}
