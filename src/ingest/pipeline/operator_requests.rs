//! Handles requests of operators about an assigned partition: retry after a halt, pause, resume.

use super::{Pipeline, PipelineError, partition_reads::not_assigned};
use crate::status::control::{ControlAnswer, ControlRequest, PartitionCommand};

impl Pipeline {
    /// Handles a request and answers it.
    pub(super) async fn on_control_request(
        &mut self,
        request: ControlRequest<(i32, PartitionCommand)>,
    ) -> Result<(), PipelineError> {
        let (number, command) = request.command;
        let answer = if !self.reads.partitions.states.contains_key(&number) {
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
        self.commits.await_sent(&self.services, &mut self.reads).await?;
        let Some(state) = self.reads.partitions.states.remove(&number) else { return Ok(not_assigned(number)) };
        let refused = match &state.halted {
            None => Some(format!("partition {number} is not halted")),
            // A start would not lift this halt, either.
            Some(halt) if state.truncated_before_first_commit().is_some() => {
                Some(format!("partition {number}: {}", halt.why))
            }
            Some(_) => None,
        };
        let again = match refused {
            Some(why) => {
                self.reads.partitions.states.insert(number, state);
                return Ok(ControlAnswer::Refused(why));
            }
            None => self.reads.reread(number, &state).await,
        };
        match again {
            Ok(()) => {}
            Err(error) if error.kind.is_client_unusable() => return Err(error.into()),
            Err(error) => {
                self.reads.partitions.states.insert(number, state);
                return Ok(ControlAnswer::from_seek_error(&error));
            }
        }
        // A topic that is still another one halts the partition again.
        self.reads.other_topic = None;
        self.topic_confirmation.check();
        // Flights that were halted or waited for this partition start again with its events.
        self.planner.revoke(number, self.services.clock.steady_ms());
        self.reads.redistribute_shares(&mut self.planner);
        self.reads.publish_halts();
        // The next owner needs to know that the halt is lifted.
        self.commits.commit_now();
        Ok(ControlAnswer::Done(format!("partition {number} is read again from offset {}", state.rewind_offset())))
    }
}
