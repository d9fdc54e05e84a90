//! Commands: evaluate, write the result ahead, apply, answer. Each is executed once, whatever comes again under its id.

mod evaluate;
mod execute;
mod presence;

use crate::{
    event::{Command, DecisionBody, Event, OutcomeKind},
    record::{CommandRecord, CommandResult, Key, Phase, Record, Sequenced},
    sequencer::{
        Stop,
        decisions::DecisionLog,
        handler::{At, Handler},
        steps::Steps,
    },
};

pub use presence::ValidatedSource;

impl Handler {
    /// Handles a command other than `Reconsider`; `asked_ms`: when it was published.
    pub async fn command(
        &self,
        at: At,
        log: &mut DecisionLog,
        command: &Command<'_>,
        asked_ms: i64,
    ) -> Result<(), Stop> {
        let mut steps = Steps::new(log, at.offset, at.making);
        let mut body = steps.decide(Box::pin(self.judge_command(at, command, asked_ms))).await?;
        if let DecisionBody::Conflicting { .. } = body {
            Box::pin(self.carry_out(at, &mut steps, body)).await?;
            let done =
                DecisionBody::CommandDone { id: command.id, executed_at: at.offset, result: CommandResult::Applied };
            body = steps.decide(async { Ok(done) }).await?;
        }
        let DecisionBody::CommandDone { id, executed_at, result } = body else {
            return Err(Stop::Halt(format!(
                "chain offset {}: a decision stands where the result of a command should: {body:?}",
                at.offset
            )));
        };
        if executed_at == at.offset {
            self.execute(at, steps.is_applied_again(), &command.action, &result).await?;
            self.note_command(at, command, &result).await?;
        }
        self.tell(at, vec![(command.action.subject(), OutcomeKind::Command { id, result })]).await?;
        steps.close().await
    }

    /// What a command comes to, by what the store shows. Does only what is harmless.
    async fn judge_command(&self, at: At, command: &Command<'_>, asked_ms: i64) -> Result<DecisionBody, Stop> {
        let (id, executed_at) = (command.id, at.offset);
        if let Some(first) = self.executed(id).await? {
            let result = match first.asked == asked(command) {
                true => first.result,
                false => evaluate::refused("ID_USED", "another command has this id"),
            };
            return Ok(DecisionBody::CommandDone { id, executed_at: first.chain_offset, result });
        }
        let result = match evaluate::refused_unseen(&command.action) {
            Some(refused) => refused,
            None => match self.present(at, command.action.subject(), asked_ms).await? {
                Ok(master) => match self.evaluate(at, &command.action, &master).await? {
                    evaluate::Answer::Result(result) => result,
                    evaluate::Answer::First(decision) => return Ok(decision),
                },
                Err(refused) => refused,
            },
        };
        Ok(DecisionBody::CommandDone { id, executed_at, result })
    }

    /// What is known of the command under this id.
    async fn executed(&self, id: [u8; 16]) -> Result<Option<CommandRecord>, Stop> {
        let there = self.answer("the store", self.parts.store.read(vec![Key::Command(id)])).await?;
        Ok(there.into_iter().flatten().find_map(|record| match record {
            Record::Command(command) => Some(command),
            _ => None,
        }))
    }

    /// Keeps the result under the command's id, before anything behind it is handled.
    async fn note_command(&self, at: At, command: &Command<'_>, result: &CommandResult) -> Result<(), Stop> {
        let (id, asked) = (command.id, asked(command));
        let record = CommandRecord { id, asked, chain_offset: at.offset, result: result.clone(), chain_pos: None };
        self.apply_decided(at, vec![at.row(Phase::Apply, Key::Command(id), Sequenced::PutCommand(record))]).await
    }
}

fn asked(command: &Command<'_>) -> [u8; 32] {
    *blake3::hash(&Event::Command(command.clone()).encode()).as_bytes()
}
