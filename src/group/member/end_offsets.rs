//! End offsets of partitions that deliver nothing: their lag would not move otherwise.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

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
    /// Alive while a query runs. A query whose answer is dropped has ended, too.
    running_query: Weak<()>,
}

impl EndOffsets {
    pub(super) fn new(commit_interval: Duration, now: Instant) -> Self {
        let interval = commit_interval * END_OFFSET_REFRESH_COMMITS;
        EndOffsets { interval, next_query: now + interval, running_query: Weak::new() }
    }

    /// Returns the token of a new query if a query is due and none runs. The query runs as long as its token lives.
    fn begin_query(&mut self, now: Instant) -> Option<Arc<()>> {
        if now < self.next_query {
            return None;
        }
        self.next_query = now + self.interval;
        if self.running_query.strong_count() > 0 {
            return None;
        }
        let token = Arc::new(());
        self.running_query = Arc::downgrade(&token);
        Some(token)
    }
}

impl GroupMember {
    /// Returns, once an interval has passed, the query for the end offsets of the partitions that have reported none
    /// since the last query. The loop runs the query beside itself, and passes the answers to
    /// [`on_end_offsets`](Self::on_end_offsets). A rebuild queries none.
    pub fn query_stale_ends(&mut self, now: Instant) -> Option<impl Future<Output = Vec<EndOffsetAnswer>> + use<>> {
        if self.profile.is_rebuild {
            return None;
        }
        let running = self.ends.begin_query(now)?;
        let stale = self.partitions.states.iter_mut().filter_map(|(number, state)| {
            state.needs_end_offset_refresh().then(|| (*number, state.epoch, state.tracker.position()))
        });
        let stale: Vec<_> = stale.collect();
        if stale.is_empty() {
            return None;
        }
        let stale: Vec<_> = stale.into_iter().map(|stale| (self.partitions.place(stale.0), stale)).collect();
        let (broker, name) = (self.services.broker.clone(), self.profile.name);
        Some(async move {
            let _running = running;
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
        let mut went_back = Vec::new();
        for EndOffsetAnswer { partition, epoch, position, watermarks: (low, high) } in ends {
            let Some(state) = self.partitions.current(*partition, *epoch) else { continue };
            state.update_high_watermark(*high);
            if let Some(why) = offset_out_of_range(*position, 0, *high).filter(|_| !state.reads.is_halted()) {
                let why =
                    format!("{why} (from {low} on); its end went back: events are lost, or the topic is another one");
                went_back.push((*partition, why));
            }
        }
        went_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_query_runs_at_a_time_and_a_dropped_answer_ends_its_query() {
        let (now, interval) = (Instant::now(), Duration::from_secs(1));
        let mut ends = EndOffsets::new(interval, now);
        let due = |n: u32| now + interval * END_OFFSET_REFRESH_COMMITS * n;
        assert!(ends.begin_query(now).is_none(), "not due");
        let running = ends.begin_query(due(1));
        assert!(running.is_some());
        assert!(ends.begin_query(due(2)).is_none(), "the first query still runs");
        drop(running);
        assert!(ends.begin_query(due(2)).is_none(), "not due again");
        assert!(ends.begin_query(due(3)).is_some());
    }
}
