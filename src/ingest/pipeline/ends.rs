//! Asks where partitions end of which nothing is delivered: their lag would stand still with them.

use super::Pipeline;
use crate::{
    broker::TopicPartition,
    ingest::dispatch::{Done, spawn},
    ingest::replay::Modes,
};

impl Pipeline {
    /// Asks, beside the loop, for the ends of those of which nothing was heard since the last time.
    pub(super) fn ask_ends(&mut self) {
        if self.asking_ends || matches!(self.parts.modes, Modes::Rebuild(_)) {
            return;
        }
        let mut quiet = Vec::new();
        for (number, state) in &mut self.partitions {
            if state.end_is_unheard() {
                quiet.push(TopicPartition { topic: self.settings.topic.clone(), partition: *number });
            }
        }
        if quiet.is_empty() {
            return;
        }
        self.asking_ends = true;
        let (broker, done) = (self.parts.broker.clone(), self.done_sender.clone());
        spawn("asking for the ends of partitions", &self.done_sender, async move {
            let mut ends = Vec::new();
            for partition in quiet {
                match broker.watermarks(&partition).await {
                    Ok((_, end)) => ends.push((partition.partition, end)),
                    // Of the others it will not know more now.
                    Err(error) => {
                        tracing::debug!(%error, "the ends of partitions are asked for again");
                        break;
                    }
                }
            }
            // A pipeline that has ended meanwhile asks again when it starts.
            let _ = done.send(Done::Ends(ends));
        });
    }

    /// As they were a moment ago.
    pub(super) fn hear_ends(&mut self, ends: impl IntoIterator<Item = (i32, u64)>) {
        for (number, end) in ends {
            if let Some(state) = self.partitions.get_mut(&number) {
                state.hear_end(end);
            }
        }
    }
}
