//! Handles requests of operators about an assigned partition: retry after a halt, pause, resume.

use tokio::time::Instant;

use super::{Pipeline, PipelineError};
use crate::status::control::{ControlAnswer, ControlRequest, PartitionCommand};

impl Pipeline {
    /// Handles a request and answers it.
    pub(super) async fn on_control_request(
        &mut self,
        request: ControlRequest<(i32, PartitionCommand)>,
    ) -> Result<(), PipelineError> {
        let (number, command) = request.command;
        let answer = if !self.partitions.contains_key(&number) {
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
                PartitionCommand::Pause => self.pause_for_operator(number),
                PartitionCommand::Resume => self.resume_for_operator(number),
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
        self.await_sent_commit().await?;
        let Some(state) = self.partitions.remove(&number) else { return Ok(not_assigned(number)) };
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
                self.partitions.insert(number, state);
                return Ok(ControlAnswer::Refused(why));
            }
            None => self.reread_partition(number, &state).await,
        };
        match again {
            Ok(()) => {}
            Err(error) if error.kind.is_client_unusable() => return Err(error.into()),
            Err(error) => {
                self.partitions.insert(number, state);
                return Ok(ControlAnswer::from_seek_error(&error));
            }
        }
        // A topic that is still another one halts the partition again.
        self.topic_confirmation.clear_other_topic();
        self.check_topic_id();
        // Flights that were halted or waited for this partition start again with its events.
        let now_ms = self.now_ms();
        self.planner.revoke(number, now_ms);
        self.redistribute_shares();
        self.publish_halts();
        // The next owner needs to know that the halt is lifted.
        self.next_commit = Instant::now();
        Ok(ControlAnswer::Done(format!("partition {number} is read again from offset {}", state.rewind_offset())))
    }

    /// Pauses a partition at an operator's request; events in flight complete.
    fn pause_for_operator(&mut self, number: i32) -> ControlAnswer {
        self.pause(number);
        match self.partitions.get_mut(&number).filter(|state| state.paused) {
            Some(state) => {
                state.paused_by_operator = true;
                self.services.health.control().set_paused(number, true);
                ControlAnswer::Done(format!(
                    "partition {number} is paused here, until it is resumed or this process ends"
                ))
            }
            None => not_assigned(number),
        }
    }

    fn resume_for_operator(&mut self, number: i32) -> ControlAnswer {
        let Some(state) = self.partitions.get_mut(&number) else { return not_assigned(number) };
        if !std::mem::take(&mut state.paused_by_operator) {
            return ControlAnswer::Refused(format!("partition {number} is not paused by an operator"));
        }
        let is_halted = state.halted.is_some();
        self.services.health.control().set_paused(number, false);
        self.resume(number);
        let still = if is_halted { "; it is still halted" } else { "" };
        ControlAnswer::Done(format!("partition {number} is no longer paused by an operator{still}"))
    }
}

fn not_assigned(number: i32) -> ControlAnswer {
    ControlAnswer::NotHeld(format!("partition {number} is not assigned to this instance"))
}
