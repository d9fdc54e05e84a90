//! End offsets of partitions that deliver nothing: their lag would not move otherwise.

use std::time::Duration;

use tokio::time::Instant;

use super::GroupMember;
use crate::group::commit_metadata::offset_out_of_range;

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

/// Times of the queries for end offsets, one at a time.
pub(super) struct EndOffsets {
    interval: Duration,
    next_query: Instant,
    is_query_running: bool,
}

impl EndOffsets {
    pub(super) fn new(commit_interval: Duration, now: Instant) -> Self {
        let interval = commit_interval * END_OFFSET_REFRESH_COMMITS;
        EndOffsets { interval, next_query: now + interval, is_query_running: false }
    }
}

impl GroupMember {
    /// Returns, once an interval has passed, the query for the end offsets of the partitions that have reported none
    /// since the last query. The loop runs the query beside itself, and passes the answers to
    /// [`on_end_offsets`](Self::on_end_offsets). A rebuild queries none.
    pub fn query_stale_ends(&mut self, now: Instant) -> Option<impl Future<Output = Vec<EndOffsetAnswer>> + use<>> {
        if now < self.ends.next_query {
            return None;
        }
        self.ends.next_query = now + self.ends.interval;
        if self.ends.is_query_running || self.profile.is_rebuild {
            return None;
        }
        let stale = self.partitions.states.iter_mut().filter_map(|(number, state)| {
            state.needs_end_offset_refresh().then(|| (*number, state.epoch, state.tracker.position()))
        });
        let stale: Vec<_> = stale.collect();
        if stale.is_empty() {
            return None;
        }
        self.ends.is_query_running = true;
        let stale: Vec<_> = stale.into_iter().map(|stale| (self.partitions.place(stale.0), stale)).collect();
        let (broker, name) = (self.services.broker.clone(), self.profile.name);
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
    pub fn on_end_offsets(&mut self, ends: &[EndOffsetAnswer]) -> Vec<(i32, String)> {
        self.ends.is_query_running = false;
        let mut went_back = Vec::new();
        for EndOffsetAnswer { partition, epoch, position, watermarks: (low, high) } in ends {
            let is_running = self.partitions.current(*partition, *epoch).is_some_and(|state| !state.reads.is_halted());
            if let Some(why) = offset_out_of_range(*position, 0, *high).filter(|_| is_running) {
                let why =
                    format!("{why} (from {low} on); its end went back: events are lost, or the topic is another one");
                went_back.push((*partition, why));
            }
        }
        self.partitions.update_high_watermarks(ends.iter().map(|ended| (ended.partition, ended.watermarks.1)));
        went_back
    }
}
