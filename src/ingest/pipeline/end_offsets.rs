//! End offsets: of partitions that deliver nothing, whose lag would not move otherwise, and of all partitions where an
//! offset is out of range.

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};

use super::{PipelineError, partition_reads::PartitionReads};
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind},
    group::partition::{END_OFFSET_REFRESH_COMMITS, offset_out_of_range},
    ingest::dispatch::{EndOffsetAnswer, TaskMessage, spawn},
};

/// Queries for end offsets.
pub(super) struct EndOffsets {
    broker: Arc<dyn Broker>,
    sender: mpsc::UnboundedSender<TaskMessage>,
    interval: Duration,
    next_query: Instant,
    is_query_running: bool,
    /// An offset is out of range in one of these partitions, each with its epoch; the broker did not say in which.
    out_of_range: Option<(BrokerError, BTreeMap<i32, u64>)>,
}

impl EndOffsets {
    pub(super) fn new(
        broker: Arc<dyn Broker>,
        sender: mpsc::UnboundedSender<TaskMessage>,
        commit_interval: Duration,
        now: Instant,
    ) -> Self {
        let interval = commit_interval * END_OFFSET_REFRESH_COMMITS;
        let next_query = now + interval;
        EndOffsets { broker, sender, interval, next_query, is_query_running: false, out_of_range: None }
    }

    /// Queries, beside the loop, the end offsets of the partitions that have reported none since the last query, once
    /// an interval has passed. A rebuild queries none.
    pub(super) fn query_if_due(&mut self, now: Instant, is_rebuild: bool, reads: &mut PartitionReads) {
        if now < self.next_query {
            return;
        }
        self.next_query = now + self.interval;
        if self.is_query_running || is_rebuild {
            return;
        }
        let stale = reads.partitions.states.iter_mut().filter_map(|(number, state)| {
            state.needs_end_offset_refresh().then(|| (*number, state.epoch, state.tracker.position()))
        });
        let stale: Vec<_> = stale.collect();
        if stale.is_empty() {
            return;
        }
        self.is_query_running = true;
        let places: Vec<_> = stale.iter().map(|(number, ..)| reads.partitions.place(*number)).collect();
        let (broker, messages) = (self.broker.clone(), self.sender.clone());
        spawn("querying end offsets", &self.sender, async move {
            let mut ends = Vec::new();
            for (place, (partition, epoch, position)) in places.into_iter().zip(stale) {
                match broker.watermarks(&place).await {
                    Ok(watermarks) => ends.push(EndOffsetAnswer { partition, epoch, position, watermarks }),
                    // The broker would not answer for the other partitions now, either.
                    Err(error) => {
                        tracing::debug!(%error, "pipeline: cannot query end offsets; retrying");
                        break;
                    }
                }
            }
            // A pipeline that has ended queries again at its next start.
            let _ = messages.send(TaskMessage::EndOffsets(ends));
        });
    }

    /// Handles the end offsets of quiet partitions. A partition that ends below its position has lost events, or
    /// belongs to another topic, and halts. A cluster without topic ids shows a recreated topic in no other way.
    pub(super) fn on_answers(&mut self, ends: &[EndOffsetAnswer], reads: &mut PartitionReads) {
        self.is_query_running = false;
        for EndOffsetAnswer { partition, epoch, position, watermarks: (low, high) } in ends {
            let is_running = reads.partitions.current(*partition, *epoch).is_some_and(|state| state.halted.is_none());
            if let Some(why) = offset_out_of_range(*position, 0, *high).filter(|_| is_running) {
                let why =
                    format!("{why} (from {low} on); its end went back: events are lost, or the topic is another one");
                reads.halt(*partition, why);
            }
        }
        reads.partitions.update_high_watermarks(ends.iter().map(|ended| (ended.partition, ended.watermarks.1)));
    }

    /// Handles an offset out of range: the next offset of a partition is not in the topic any more, or not yet.
    /// Skipping it would lose events, so the partition halts. The partition is one of `assigned`, the partitions and
    /// epochs at the time of the error.
    pub(super) async fn on_out_of_range(
        &mut self,
        error: BrokerError,
        assigned: BTreeMap<i32, u64>,
        reads: &mut PartitionReads,
    ) -> Result<(), PipelineError> {
        if error.kind != BrokerErrorKind::OutOfRange || reads.ends_by_itself {
            return Err(error.into());
        }
        let mut found = false;
        for number in reads.partitions.numbers() {
            let Some(state) = reads.partitions.states.get(&number) else { continue };
            let position = state.tracker.position();
            let (low, high) = match self.broker.watermarks(&reads.partitions.place(number)).await {
                Ok(ends) => ends,
                Err(why) if why.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(
                        %error, %why,
                        "pipeline: cannot find the partition whose offset is out of range; retrying"
                    );
                    self.out_of_range = Some((error, assigned));
                    return Ok(());
                }
                Err(why) => return Err(why.into()),
            };
            if let Some(why) = offset_out_of_range(position, low, high) {
                found = true;
                reads.halt(number, why);
            }
        }
        // The partition may have been revoked since: the next owner gets the same error.
        let now = reads.partitions.epochs();
        let all_assigned = assigned.iter().all(|(number, epoch)| now.get(number) == Some(epoch));
        if found || !all_assigned { Ok(()) } else { Err(error.into()) }
    }

    /// Searches again for the partition whose offset is out of range, if the broker has not answered yet.
    pub(super) async fn retry_out_of_range(&mut self, reads: &mut PartitionReads) -> Result<(), PipelineError> {
        match self.out_of_range.take() {
            Some((error, assigned)) => self.on_out_of_range(error, assigned, reads).await,
            None => Ok(()),
        }
    }
}
