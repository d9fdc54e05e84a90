//! Content of the pipeline's commits, and the rewind of every partition after a restart of a database node.

use tokio::time::{Duration, Instant};

use super::{Pipeline, PipelineError};
use crate::{
    broker::CommittedOffset,
    group::member::{CommitContent, CommitProgress, CommitStep, DurableConsumed, PartitionTable},
    ingest::plan::Planner,
    record::ConsumedOffsets,
};

/// Commits of the pipeline: durable offsets that have grown, with the progress that other instances need for their
/// proofs.
pub(super) struct PipelineCommits<'a>(pub(super) &'a mut Planner);

impl CommitContent for PipelineCommits<'_> {
    fn consumed(&self, partitions: &PartitionTable) -> ConsumedOffsets {
        let validated = partitions.states.iter();
        let validated = validated.filter_map(|(number, state)| Some((number.unsigned_abs(), state.consumed_offset()?)));
        ConsumedOffsets { chain: 0, validated: validated.collect(), height: partitions.greatest_height() }
    }

    fn durable(&self, partitions: &PartitionTable) -> ConsumedOffsets {
        // Only offsets that are compared with the store.
        let states = partitions.states.iter().filter(|(_, state)| state.consumed_offset().is_some());
        let durable =
            states.filter_map(|(number, state)| Some((number.unsigned_abs(), state.committed.as_ref()?.offset)));
        ConsumedOffsets { validated: durable.collect(), ..ConsumedOffsets::default() }
    }

    fn mark_durable(&mut self, partitions: &mut PartitionTable, polled_at: Instant, lag: Duration) {
        let before_ms = partitions.uptime_ms(polled_at).saturating_sub(lag.as_millis() as u64);
        for (number, state) in &mut partitions.states {
            state.tracker.mark_durable(before_ms);
            self.0.forget_durable(*number, state.tracker.durable_offset());
        }
    }

    fn next_commits(&self, partitions: &PartitionTable, consumed: &DurableConsumed) -> Vec<(i32, CommittedOffset)> {
        let waiting = self.0.flights().oldest_waiting_events();
        let states = partitions.states.iter();
        let next = states.filter_map(|(number, state)| {
            let waiting = waiting.get(number).map_or(&[][..], Vec::as_slice);
            Some((*number, state.next_commit(consumed.limit_of(*number), waiting)?))
        });
        next.collect()
    }
}

impl Pipeline {
    /// Handles a step of the pending commit.
    pub(super) async fn on_commit_progress(&mut self, progress: CommitProgress) -> Result<(), PipelineError> {
        let mut content = PipelineCommits(&mut self.planner);
        let step = self.reads.member.on_commit_progress(progress, &self.services.nodes, &mut content)?;
        if !self.on_commit_step(step)? {
            self.rewind().await?;
        }
        self.reads.member.commits.reschedule_if_due();
        Ok(())
    }

    /// Commits the durable offsets and waits for the answer, since no later commit can follow a revocation. Returns
    /// `false` where a node has restarted: nothing was committed, and the events since the last commit have to be
    /// applied again.
    pub(super) async fn commit_unless_restarted(&mut self) -> Result<bool, PipelineError> {
        let mut content = PipelineCommits(&mut self.planner);
        let step = self.reads.member.commit(&self.services.nodes, &mut content).await?;
        self.on_commit_step(step)
    }

    /// Handles the consequence of a step; `false`: a node has restarted.
    fn on_commit_step(&mut self, step: CommitStep) -> Result<bool, PipelineError> {
        match step {
            CommitStep::Settled => {}
            CommitStep::Restarted => return Ok(false),
            CommitStep::OtherTopic(why) => self.reads.halt_in_other_topic(why)?,
        }
        Ok(true)
    }

    /// Handles a node's restart: every partition is read again from its committed offset under a new epoch, so that no
    /// earlier completion counts. Waits for the restarted nodes to answer. A shutdown ends the wait, and then commits
    /// nothing.
    pub(super) async fn rewind(&mut self) -> Result<(), PipelineError> {
        self.services.metrics.node_restarts.inc();
        if self.services.modes.is_rebuild() {
            let why = "a node restarted while the store was rebuilt: begin again, with an empty set";
            return Err(PipelineError::Store(why.to_owned()));
        }
        let shutdown = self.shutdown.clone();
        let answered = async {
            self.services.nodes.baseline().await?;
            self.services.whole.verify_intact().await?;
            Ok::<(), PipelineError>(())
        };
        match shutdown.run_until_cancelled(answered).await {
            Some(answered) => answered?,
            None => {
                self.has_abandoned_rewind = true;
                return Ok(());
            }
        }
        self.reads.member.commits.forget_recorded();
        self.planner.abandon();
        self.dispatcher.cancel_all();
        self.chunks.clear();
        self.publications.discard_live();
        self.reads.backpressure.clear_throttle();
        for number in self.reads.member.partitions.numbers() {
            tracing::warn!(partition = number, "pipeline: node restarted, partition rewound to its committed offset");
            self.reads.rewind(number).await?;
        }
        self.reads.redistribute_shares(&mut self.planner);
        self.reads.publish_halts();
        Ok(())
    }
}
