//! Handles requests of operators about an assigned partition: retry after a halt, pause, resume.

use super::{Pipeline, PipelineError, commits::PipelineCommits, partition_reads::not_assigned};
use crate::{
    group::{member::RetryRefusal, reading::ReadState},
    status::control::{ControlAnswer, ControlRequest, PartitionCommand},
};

impl Pipeline {
    /// Handles a request and answers it.
    pub(super) async fn on_control_request(
        &mut self,
        request: ControlRequest<(i32, PartitionCommand)>,
    ) -> Result<(), PipelineError> {
        let (number, command) = request.command;
        let answer = if !self.reads.member.partitions.states.contains_key(&number) {
            match command {
                PartitionCommand::Resume if self.services.health.control().set_paused(number, false) => {
                    ControlAnswer::Done(format!(
                        "partition {number} will be read when it is assigned to this instance again"
                    ))
                }
                _ => not_assigned(number),
            }
        } else {
            match command {
                PartitionCommand::Retry => self.lift_halt(number).await?,
                PartitionCommand::Pause => self.reads.pause_for_operator(number),
                PartitionCommand::Resume => self.reads.resume_for_operator(number, &mut self.planner),
            }
        };
        tracing::warn!(partition = number, ?command, ?answer, "pipeline: operator request");
        self.publish_status();
        request.answer(answer);
        Ok(())
    }

    /// Lifts a halt as a start would: events above the committed offset are read again, and the counts towards a halt
    /// are cleared.
    async fn lift_halt(&mut self, number: i32) -> Result<ControlAnswer, PipelineError> {
        // A pending commit would be answered under an epoch that has ended, and its offset would be unknown.
        self.reads.member.await_sent(&mut PipelineCommits(&mut self.planner)).await?;
        let again = match self.reads.member.seek_for_retry(number, word_refusal).await? {
            Ok(again) => again,
            Err(answer) => return Ok(answer),
        };
        self.reads.restart(&again, ReadState::after_retry);
        // A topic that is still another one halts the partition again.
        self.reads.member.other_topic = None;
        self.topic_confirmation.check();
        // Flights that were halted or waited for this partition start again with its events.
        self.planner.revoke(number, self.services.clock.steady_ms());
        self.reads.redistribute_shares(&mut self.planner);
        self.reads.publish_halts();
        // The next owner needs to know that the halt is lifted.
        self.reads.member.commits.commit_now();
        Ok(ControlAnswer::Done(format!("partition {number} is read again from offset {}", again.position)))
    }
}

/// Words the refusal of a retry.
fn word_refusal(number: i32, refusal: RetryRefusal) -> ControlAnswer {
    match refusal {
        RetryRefusal::NotAssigned => not_assigned(number),
        RetryRefusal::NotHalted => ControlAnswer::Refused(format!("partition {number} is not halted")),
        RetryRefusal::NeverRead { halted_for, .. } => {
            ControlAnswer::Refused(format!("partition {number}: {halted_for}"))
        }
    }
}
