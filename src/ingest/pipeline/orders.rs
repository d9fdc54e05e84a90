//! Does what operators ask about a partition that is held here: lifts its halt, pauses it, lets it go on.

use tokio::time::Instant;

use super::{Pipeline, PipelineError};
use crate::status::control::{Answer, ControlRequest, PartitionCommand};

impl Pipeline {
    /// Does it, and answers.
    pub(super) async fn on_order(
        &mut self,
        order: ControlRequest<(i32, PartitionCommand)>,
    ) -> Result<(), PipelineError> {
        let (number, wish) = order.what;
        let answer = if !self.partitions.contains_key(&number) {
            match wish {
                PartitionCommand::Resume if self.parts.health.control().set_paused(number, false) => {
                    Answer::Done(format!("partition {number} is read when it comes to this instance again"))
                }
                _ => not_held(number),
            }
        } else {
            match wish {
                PartitionCommand::Retry => self.lift_halt(number).await?,
                PartitionCommand::Pause => self.pause_by_hand(number),
                PartitionCommand::Resume => self.resume_by_hand(number),
            }
        };
        tracing::warn!(partition = number, ?wish, ?answer, "an operator has asked");
        self.show();
        order.answer(answer);
        Ok(())
    }

    /// As a start would: everything that is not committed is read and done again, and what was counted towards a halt is not.
    async fn lift_halt(&mut self, number: i32) -> Result<Answer, PipelineError> {
        // Else its answer would be one of an epoch that is gone, and what is committed then not be known.
        self.end_commit().await?;
        let Some(state) = self.partitions.remove(&number) else { return Ok(not_held(number)) };
        let refused = match &state.halted {
            None => Some(format!("partition {number} is not halted")),
            // A start would not lift that, either.
            Some(halt) if state.begins_above().is_some() => Some(format!("partition {number}: {}", halt.why)),
            Some(_) => None,
        };
        let again = match refused {
            Some(why) => {
                self.partitions.insert(number, state);
                return Ok(Answer::Refused(why));
            }
            None => self.read_again(number, &state).await,
        };
        match again {
            Ok(()) => {}
            Err(error) if error.kind.ends_the_client() => return Err(error.into()),
            Err(error) => {
                self.partitions.insert(number, state);
                return Ok(Answer::not_read_again(&error));
            }
        }
        // Whoever has not looked is halted again by the answer.
        self.identity.forget_other();
        self.ask_identity();
        // What stood, or waited, on behalf of it comes again by its events.
        let now_ms = self.now_ms();
        self.planner.revoke(number, now_ms);
        self.share_out();
        self.tell_halts();
        // Whoever has the partition next is to know.
        self.next_commit = Instant::now();
        Ok(Answer::Done(format!("partition {number} is read again from offset {}", state.rewind_to())))
    }

    /// What is in flight comes to its end.
    fn pause_by_hand(&mut self, number: i32) -> Answer {
        self.pause(number);
        match self.partitions.get_mut(&number).filter(|state| state.paused) {
            Some(state) => {
                state.paused_by_hand = true;
                self.parts.health.control().set_paused(number, true);
                Answer::Done(format!("partition {number} is paused here, until it is resumed or this process ends"))
            }
            None => not_held(number),
        }
    }

    fn resume_by_hand(&mut self, number: i32) -> Answer {
        let Some(state) = self.partitions.get_mut(&number) else { return not_held(number) };
        if !std::mem::take(&mut state.paused_by_hand) {
            return Answer::Refused(format!("partition {number} is not paused by an operator"));
        }
        let is_halted = state.halted.is_some();
        self.parts.health.control().set_paused(number, false);
        self.resume(number);
        let still = if is_halted { "; it is halted still" } else { "" };
        Answer::Done(format!("partition {number} is no longer paused by an operator{still}"))
    }
}

fn not_held(number: i32) -> Answer {
    Answer::NotHeld(format!("this instance does not hold partition {number}"))
}
