//! End offsets of partitions that deliver nothing: their lag would not move otherwise.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{MemberProfile, PartitionTable};
use crate::{broker::Broker, group::halt::offset_out_of_range};

/// Number of commit intervals between two queries for stale end offsets.
const END_OFFSET_REFRESH_COMMITS: u32 = 5;

/// Offsets of a partition, as of one query.
#[derive(Debug, Clone, Copy)]
pub struct EndOffsetAnswer {
    /// Number of the partition.
    pub partition: i32,
    /// Epoch of the assignment at the time of the query.
    pub epoch: u64,
    /// Position before the query was sent.
    pub position: u64,
    /// First offset that the topic still holds, and the end offset.
    pub watermarks: (u64, u64),
}

/// Queries for end offsets, one at a time.
pub struct EndOffsets {
    broker: Arc<dyn Broker>,
    name: &'static str,
    is_rebuild: bool,
    interval: Duration,
    next_query: Instant,
    is_query_running: bool,
}

impl EndOffsets {
    pub(super) fn new(profile: &MemberProfile, broker: Arc<dyn Broker>, now: Instant) -> Self {
        let MemberProfile { name, is_rebuild, .. } = *profile;
        let interval = profile.commit_interval * END_OFFSET_REFRESH_COMMITS;
        EndOffsets { broker, name, is_rebuild, interval, next_query: now + interval, is_query_running: false }
    }

    /// Returns, once an interval has passed, the query for the end offsets of the partitions that have reported none
    /// since the last query. The loop runs the query beside itself, and passes the answers to
    /// [`on_answers`](Self::on_answers). A rebuild queries none.
    pub fn query_if_due(
        &mut self,
        now: Instant,
        partitions: &mut PartitionTable,
    ) -> Option<impl Future<Output = Vec<EndOffsetAnswer>> + use<>> {
        if now < self.next_query {
            return None;
        }
        self.next_query = now + self.interval;
        if self.is_query_running || self.is_rebuild {
            return None;
        }
        let stale = partitions.states.iter_mut().filter_map(|(number, state)| {
            state.needs_end_offset_refresh().then(|| (*number, state.epoch, state.tracker.position()))
        });
        let stale: Vec<_> = stale.collect();
        if stale.is_empty() {
            return None;
        }
        self.is_query_running = true;
        let stale: Vec<_> = stale.into_iter().map(|stale| (partitions.place(stale.0), stale)).collect();
        let (broker, name) = (self.broker.clone(), self.name);
        Some(async move {
            let mut ends = Vec::new();
            for (place, (partition, epoch, position)) in stale {
                match broker.watermarks(&place).await {
                    Ok(watermarks) => ends.push(EndOffsetAnswer { partition, epoch, position, watermarks }),
                    // The broker would not answer for the other partitions now, either.
                    Err(error) => {
                        tracing::debug!(%error, "{name}: cannot query end offsets; retrying");
                        break;
                    }
                }
            }
            ends
        })
    }

    /// Handles the end offsets of quiet partitions. Returns the partitions that end below their position, each with the
    /// reason of a halt: such a partition has lost events, or belongs to another topic. A cluster without topic ids
    /// shows a recreated topic in no other way.
    pub fn on_answers(&mut self, ends: &[EndOffsetAnswer], partitions: &mut PartitionTable) -> Vec<(i32, String)> {
        self.is_query_running = false;
        let mut went_back = Vec::new();
        for EndOffsetAnswer { partition, epoch, position, watermarks: (low, high) } in ends {
            let is_running = partitions.current(*partition, *epoch).is_some_and(|state| !state.reads.is_halted());
            if let Some(why) = offset_out_of_range(*position, 0, *high).filter(|_| is_running) {
                let why =
                    format!("{why} (from {low} on); its end went back: events are lost, or the topic is another one");
                went_back.push((*partition, why));
            }
        }
        partitions.update_high_watermarks(ends.iter().map(|ended| (ended.partition, ended.watermarks.1)));
        went_back
    }
}
