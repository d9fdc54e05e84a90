//! Asks where partitions end of which nothing is delivered: their lag would stand still with them.

use super::Pipeline;
use crate::{
    broker::TopicPartition,
    group::partition::gone,
    ingest::dispatch::{Done, Ended, spawn},
    replay::Modes,
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
                let partition = TopicPartition { topic: self.settings.topic.clone(), partition: *number };
                quiet.push((partition, state.epoch, state.tracker.position()));
            }
        }
        if quiet.is_empty() {
            return;
        }
        self.asking_ends = true;
        let (broker, done) = (self.parts.broker.clone(), self.done_sender.clone());
        spawn("asking for the ends of partitions", &self.done_sender, async move {
            let mut ends = Vec::new();
            for (partition, epoch, position) in quiet {
                match broker.watermarks(&partition).await {
                    Ok(holds) => ends.push(Ended { partition: partition.partition, epoch, position, holds }),
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

    /// The answers for partitions of which nothing was heard. One that ends below what was read of it has lost events,
    /// or is another one: it halts. (A cluster without topic ids shows by nothing else that a topic was created again.)
    pub(super) fn on_ends(&mut self, ends: &[Ended]) {
        for Ended { partition, epoch, position, holds: (low, high) } in ends {
            let state = self.partitions.get(partition).filter(|state| state.epoch == *epoch && state.halted.is_none());
            if let Some(why) = state.and_then(|_| gone(*position, 0, *high)) {
                let why =
                    format!("{why} (from {low} on); its end went back: events are lost, or the topic is another one");
                self.halt(*partition, why);
            }
        }
        self.hear_ends(ends.iter().map(|ended| (ended.partition, ended.holds.1)));
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
