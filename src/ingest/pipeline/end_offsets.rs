//! Queries the end offsets of partitions that deliver nothing: their lag would not move otherwise.

use super::Pipeline;
use crate::{
    broker::TopicPartition,
    group::partition::offset_out_of_range,
    ingest::dispatch::{EndOffsetAnswer, TaskMessage, spawn},
    replay::Modes,
};

impl Pipeline {
    /// Queries, beside the loop, the end offsets of the partitions that have reported none since the last query.
    pub(super) fn query_end_offsets(&mut self) {
        if self.end_query_running || matches!(self.services.modes, Modes::Rebuild(_)) {
            return;
        }
        let mut quiet = Vec::new();
        for (number, state) in &mut self.partitions {
            if state.needs_end_offset_refresh() {
                let partition = TopicPartition { topic: self.settings.topic.clone(), partition: *number };
                quiet.push((partition, state.epoch, state.tracker.position()));
            }
        }
        if quiet.is_empty() {
            return;
        }
        self.end_query_running = true;
        let (broker, messages) = (self.services.broker.clone(), self.task_sender.clone());
        spawn("querying end offsets", &self.task_sender, async move {
            let mut ends = Vec::new();
            for (partition, epoch, position) in quiet {
                match broker.watermarks(&partition).await {
                    Ok(watermarks) => {
                        ends.push(EndOffsetAnswer { partition: partition.partition, epoch, position, watermarks })
                    }
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
    pub(super) fn on_end_offsets(&mut self, ends: &[EndOffsetAnswer]) {
        for EndOffsetAnswer { partition, epoch, position, watermarks: (low, high) } in ends {
            let state = self.partitions.get(partition).filter(|state| state.epoch == *epoch && state.halted.is_none());
            if let Some(why) = state.and_then(|_| offset_out_of_range(*position, 0, *high)) {
                let why =
                    format!("{why} (from {low} on); its end went back: events are lost, or the topic is another one");
                self.halt(*partition, why);
            }
        }
        self.update_high_watermarks(ends.iter().map(|ended| (ended.partition, ended.watermarks.1)));
    }

    /// Updates the high watermarks of the partitions.
    pub(super) fn update_high_watermarks(&mut self, ends: impl IntoIterator<Item = (i32, u64)>) {
        for (number, end) in ends {
            if let Some(state) = self.partitions.get_mut(&number) {
                state.update_high_watermark(end);
            }
        }
    }
}
