//! The assigned partitions and their states.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use crate::{broker::TopicPartition, group::partition::PartitionState};

/// The assigned partitions of one topic, by number.
pub struct PartitionTable {
    topic: Arc<str>,
    /// State of each partition.
    pub states: BTreeMap<i32, PartitionState>,
    /// Start of the member: completion times count from here.
    started: Instant,
    /// Greatest height that an event of any partition has named.
    greatest_height: u32,
}

impl PartitionTable {
    /// Creates a table without partitions.
    pub fn new(topic: Arc<str>, started: Instant) -> Self {
        PartitionTable { topic, states: BTreeMap::new(), started, greatest_height: 0 }
    }

    /// Returns the greatest height that an event has named since the start of the member.
    pub fn greatest_height(&self) -> u32 {
        self.greatest_height
    }

    /// Raises the greatest height to the one that an event names.
    pub fn raise_height(&mut self, height: u32) {
        self.greatest_height = self.greatest_height.max(height);
    }

    /// Returns topic and number of a partition.
    pub fn place(&self, number: i32) -> TopicPartition {
        TopicPartition { topic: self.topic.clone(), partition: number }
    }

    /// Returns the numbers of the partitions.
    pub fn numbers(&self) -> Vec<i32> {
        self.states.keys().copied().collect()
    }

    /// Returns topic and number of each partition.
    pub fn places(&self) -> Vec<TopicPartition> {
        self.states.keys().map(|number| self.place(*number)).collect()
    }

    /// Returns the assigned partitions, each with the epoch of its assignment.
    pub fn epochs(&self) -> BTreeMap<i32, u64> {
        self.states.iter().map(|(number, state)| (*number, state.epoch)).collect()
    }

    /// Returns the state of a partition under this epoch; `None`: the epoch has ended.
    pub fn current(&mut self, number: i32, epoch: u64) -> Option<&mut PartitionState> {
        self.states.get_mut(&number).filter(|state| state.epoch == epoch)
    }

    /// Returns the watermark of a partition under this epoch; `None`: the epoch has ended, or the partition is halted.
    pub fn running_watermark(&self, number: i32, epoch: u64) -> Option<u64> {
        let state = self.states.get(&number).filter(|state| state.epoch == epoch && !state.reads.is_halted());
        state.map(|state| state.tracker.watermark())
    }

    /// Returns the partitions that are not halted.
    pub fn running(&self) -> impl Iterator<Item = &PartitionState> {
        self.states.values().filter(|state| !state.reads.is_halted())
    }

    /// Returns the unfinished bytes of each partition that is not halted: a halted partition keeps no bytes of its
    /// events.
    pub fn unfinished_bytes(&self) -> impl Iterator<Item = u64> {
        self.running().map(|state| state.tracker.unfinished_bytes())
    }

    /// Returns whether every event is completed, except in halted partitions.
    pub fn has_completed_all(&self) -> bool {
        self.running().all(|state| state.tracker.unfinished() == 0)
    }

    /// Returns the number of completed events that are not durable.
    pub fn not_durable(&self) -> usize {
        self.states.values().map(|state| state.tracker.not_durable()).sum()
    }

    /// Returns whether every partition has reached its end offset, durably; `None`: there are no end offsets.
    pub fn has_reached_all(&self, ends: Option<&BTreeMap<i32, u64>>) -> bool {
        let has_reached = |number: &i32, end: &u64| {
            *end == 0 || self.states.get(number).is_some_and(|state| state.tracker.durable_offset() >= *end)
        };
        ends.is_some_and(|ends| ends.iter().all(|(number, end)| has_reached(number, end)))
    }

    /// Returns whether events of a partition are in motion. In a halted partition none are: its events never complete.
    /// The result may be `true` where two events wait as one transaction.
    pub fn has_work_in_flight(&self, number: i32, parked: usize) -> bool {
        let running = self.states.get(&number).filter(|state| !state.reads.is_halted());
        running.is_some_and(|state| state.tracker.unfinished() > parked)
    }

    /// Completes an event now; `false`: the epoch of the event has ended. A completion under such an epoch is dropped:
    /// a duplicate is better than a loss.
    pub fn complete(&mut self, number: i32, epoch: u64, offset: u64) -> bool {
        let at_ms = self.uptime_ms(Instant::now());
        let state = self.current(number, epoch);
        state.map(|state| state.tracker.complete(offset, at_ms)).is_some()
    }

    /// Completes the events below `end` now, unless the epoch has ended.
    pub fn complete_below(&mut self, number: i32, epoch: u64, end: u64) {
        let at_ms = self.uptime_ms(Instant::now());
        if let Some(state) = self.current(number, epoch) {
            state.tracker.complete_below(end, at_ms);
        }
    }

    /// Returns the time since the start of the member, ms; never decreases or jumps.
    pub fn uptime_ms(&self, at: Instant) -> u64 {
        at.duration_since(self.started).as_millis() as u64
    }

    /// Updates the high watermarks of the partitions.
    pub fn update_high_watermarks(&mut self, ends: impl IntoIterator<Item = (i32, u64)>) {
        for (number, end) in ends {
            if let Some(state) = self.states.get_mut(&number) {
                state.update_high_watermark(end);
            }
        }
    }
}
