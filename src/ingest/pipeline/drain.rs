//! Drains events in motion before a revocation or a shutdown.

use tokio::time::Instant;

use super::{Pipeline, PipelineError};
use crate::{broker::TopicPartition, telemetry::DrainReason};

impl Pipeline {
    /// Waits until the events in motion of these partitions (of all: `None`) have completed, at most for the drain
    /// timeout. Waiting events stay and are read again by the next owner.
    pub(super) async fn drain(&mut self, why: DrainReason, of: Option<&[TopicPartition]>) -> Result<(), PipelineError> {
        let begun = Instant::now();
        let deadline = begun + self.settings.drain_timeout;
        self.reads.member.commits.cancel_unsent();
        while self.has_work_in_flight(of) {
            let due = [self.dispatcher.deadline(), self.publications.live_deadline()];
            let flush = due.into_iter().flatten().fold(deadline, Instant::min);
            tokio::select! {
                biased;
                progress = self.reads.member.commits.next_progress() => self.on_commit_progress(progress).await?,
                Some(message) = self.task_messages.recv() => self.on_task_message(message)?,
                chunk = self.chunks.next(&self.topic_confirmation) => self.on_prepared(chunk?),
                () = tokio::time::sleep_until(flush) => {
                    if Instant::now() >= deadline {
                        tracing::warn!(in_flight = self.planner.flights().counts().active, "pipeline: drain timed out");
                        break;
                    }
                }
            }
            self.run_actions();
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.status.record_drain(why, seconds, &self.services.metrics, &self.services.clock);
        Ok(())
    }

    /// Returns whether transactions, rows, chunks or publications are in motion, and with them events of these
    /// partitions (of all: `None`).
    fn has_work_in_flight(&self, of: Option<&[TopicPartition]>) -> bool {
        let any_in_flight = self.planner.flights().counts().active > 0
            || !self.dispatcher.is_idle()
            || self.chunks.messages() > 0
            || self.publications.unfinished() > 0;
        let partitions = &self.reads.member.partitions;
        let is_in_flight = |number| partitions.has_work_in_flight(number, self.planner.flights().parked_of(number));
        any_in_flight && of.is_none_or(|partitions| partitions.iter().any(|one| is_in_flight(one.partition)))
    }
}
