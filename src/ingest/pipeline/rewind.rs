//! Takes the steps of commits; rewinds every partition after a restart of a database node.

use super::{
    Pipeline, PipelineError,
    commits::{CheckedCommit, CommitChecks, CommitProgress},
};
use crate::{broker::BrokerErrorKind, replay::Modes};

impl Pipeline {
    /// Handles a step of the pending commit.
    pub(super) async fn on_commit_progress(&mut self, progress: CommitProgress) -> Result<(), PipelineError> {
        match progress {
            CommitProgress::Checked(checks) => {
                if !self.send_if_permitted(checks)? {
                    self.rewind().await?;
                }
            }
            CommitProgress::Answered(attempted, answer) => {
                self.commits.on_answer(attempted, answer, &self.services, &mut self.reads)?
            }
        }
        self.commits.reschedule_if_due();
        Ok(())
    }

    /// Commits the durable offsets and waits for the answer, since no later commit can follow a revocation. A pending
    /// commit is awaited if the coordinator has it, and begun anew otherwise. Returns `false` where a node has
    /// restarted: nothing was committed, and the events since the last commit have to be applied again.
    pub(super) async fn commit_unless_restarted(&mut self) -> Result<bool, PipelineError> {
        self.commits.await_sent(&self.services, &mut self.reads).await?;
        let checks = self.commits.run_checks(&self.services, &self.reads).await;
        if !self.send_if_permitted(checks)? {
            return Ok(false);
        }
        self.commits.await_sent(&self.services, &mut self.reads).await?;
        Ok(true)
    }

    /// Sends the commit if its checks permit; `false`: a node has restarted.
    fn send_if_permitted(&mut self, checks: CommitChecks) -> Result<bool, PipelineError> {
        match self.commits.on_checks(checks, &self.services, &mut self.reads, &mut self.planner)? {
            CheckedCommit::Permitted => self.commits.send(&self.services, &mut self.reads, &self.planner),
            CheckedCommit::Refused => {}
            CheckedCommit::Restarted => return Ok(false),
            CheckedCommit::OtherTopic(why) => self.reads.halt_in_other_topic(why)?,
        }
        Ok(true)
    }

    /// Handles a node's restart: every partition is read again from its committed offset under a new epoch, so that no
    /// earlier completion counts.
    pub(super) async fn rewind(&mut self) -> Result<(), PipelineError> {
        let store = |error: &dyn std::fmt::Display| PipelineError::Store(error.to_string());
        self.services.metrics.node_restarts.inc();
        if let Modes::Rebuild(_) = self.services.modes {
            return Err(store(&"a node restarted while the store was rebuilt: begin again, with an empty set"));
        }
        self.services.nodes.baseline().await.map_err(|error| store(&error))?;
        self.services.whole.verify_intact().await.map_err(|error| store(&error))?;
        self.commits.forget_recorded();
        self.planner.abandon();
        self.dispatcher.cancel_all();
        self.chunks.clear();
        self.reads.backpressure.clear_throttle();
        for (number, state) in std::mem::take(&mut self.reads.partitions.states) {
            tracing::warn!(partition = number, "pipeline: node restarted, partition rewound to its committed offset");
            match self.reads.reread(number, &state).await {
                Ok(()) => {
                    // A rewind does not clear a halt; only an operator does.
                    if let Some(halt) = state.halted {
                        self.reads.enter_halt(number, halt);
                    }
                }
                // The partition is being revoked; the revocation follows.
                Err(error) if error.kind == BrokerErrorKind::NotAssigned => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.reads.redistribute_shares(&mut self.planner);
        self.reads.publish_halts();
        Ok(())
    }
}
