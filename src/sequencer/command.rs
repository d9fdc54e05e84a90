//! Handles commands: evaluates, writes the result ahead, applies and answers it. A command id is executed once, however
//! often the command is published.

mod evaluate;
mod execute;
mod presence;

use crate::{
    event::{Command, DecisionBody, Event, OutcomeKind},
    record::{CommandRecord, CommandResult, Key, Phase, Record, Sequenced},
    sequencer::{
        SequencerError,
        decisions::DecisionLog,
        handler::{EventContext, Handler},
        steps::Steps,
    },
};

pub use presence::ValidatedSource;

impl Handler {
    /// Handles a command other than `Reconsider`; `published_ms` is the time of its publication, milliseconds since the
    /// epoch.
    pub async fn handle_command(
        &self,
        ctx: EventContext,
        log: &mut DecisionLog,
        command: &Command<'_>,
        published_ms: i64,
    ) -> Result<(), SequencerError> {
        let mut steps = Steps::new(log, ctx.offset, ctx.mode);
        let mut body = steps.decide(Box::pin(self.evaluate_command(ctx, command, published_ms))).await?;
        if let DecisionBody::Conflicting { .. } = body {
            Box::pin(self.apply_verdict(ctx, &mut steps, body)).await?;
            let done =
                DecisionBody::CommandDone { id: command.id, executed_at: ctx.offset, result: CommandResult::Applied };
            body = steps.decide(async { Ok(done) }).await?;
        }
        let DecisionBody::CommandDone { id, executed_at, result } = body else {
            return Err(SequencerError::Halt(format!(
                "chain offset {}: expected the result of a command, found {body:?}",
                ctx.offset
            )));
        };
        if executed_at == ctx.offset {
            self.execute(ctx, steps.is_applied_again(), &command.action, &result).await?;
            self.store_command_result(ctx, command, &result).await?;
        }
        self.publish_outcomes(ctx, vec![(command.action.subject(), OutcomeKind::Command { id, result })]).await?;
        steps.close().await
    }

    /// Evaluates a command by the records in the store. Writes only marks and stubs, so that a repeat does no harm.
    async fn evaluate_command(
        &self,
        ctx: EventContext,
        command: &Command<'_>,
        published_ms: i64,
    ) -> Result<DecisionBody, SequencerError> {
        let (id, executed_at) = (command.id, ctx.offset);
        if let Some(first) = self.read_command_record(id).await? {
            let result = match first.event_digest == hash_request(command) {
                true => first.result,
                false => evaluate::refuse("ID_USED", "another command has this id"),
            };
            return Ok(DecisionBody::CommandDone { id, executed_at: first.chain_offset, result });
        }
        let result = match evaluate::refuse_by_content(&command.action) {
            Some(refused) => refused,
            None => match self.wait_for_transaction(ctx, command.action.subject(), published_ms).await? {
                Ok(master) => match self.evaluate_action(ctx, &command.action, &master).await? {
                    evaluate::CommandEvaluation::Result(result) => result,
                    evaluate::CommandEvaluation::DecideFirst(decision) => return Ok(decision),
                },
                Err(refused) => refused,
            },
        };
        Ok(DecisionBody::CommandDone { id, executed_at, result })
    }

    /// Reads the record of the command with this id.
    async fn read_command_record(&self, id: [u8; 16]) -> Result<Option<CommandRecord>, SequencerError> {
        let records = self.wait_for("the store", self.parts.store.read(vec![Key::Command(id)])).await?;
        Ok(records.into_iter().flatten().find_map(|record| match record {
            Record::Command(command) => Some(command),
            _ => None,
        }))
    }

    /// Stores the result under the command's id, before the next chain event is handled.
    async fn store_command_result(
        &self,
        ctx: EventContext,
        command: &Command<'_>,
        result: &CommandResult,
    ) -> Result<(), SequencerError> {
        let (id, event_digest) = (command.id, hash_request(command));
        let record =
            CommandRecord { id, event_digest, chain_offset: ctx.offset, result: result.clone(), chain_pos: None };
        self.apply_decided(ctx, vec![ctx.row(Phase::Apply, Key::Command(id), Sequenced::PutCommand(record))]).await
    }
}

fn hash_request(command: &Command<'_>) -> [u8; 32] {
    *blake3::hash(&Event::Command(command.clone()).encode()).as_bytes()
}
