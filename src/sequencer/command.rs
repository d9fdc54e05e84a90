//! Handles commands: evaluates, writes the result ahead, applies and answers it. A command id is executed once, however
//! often the command is published.

mod evaluate;
mod execute;
mod presence;
mod shared_waits;

use crate::{
    event::{Command, DecisionBody, Event, OutcomeKind},
    record::{CommandRecord, CommandResult, Key, Phase, Record, Sequenced},
    sequencer::{
        SequencerError, context::HandlerContext, decisions::DecisionLog, steps::Steps, verdict::apply_verdict,
    },
};

use evaluate::{CommandEvaluation, CommandEvaluator, refuse, refuse_by_content};
use execute::CommandExecutor;
use presence::wait_for_transaction;

pub use presence::ValidatedSource;
pub use shared_waits::SharedWaits;

/// Handles one command other than `Reconsider`.
pub struct CommandHandler<'a> {
    cx: &'a HandlerContext<'a>,
    command: &'a Command<'a>,
}

impl<'a> CommandHandler<'a> {
    /// Makes a handler of a command.
    pub fn new(cx: &'a HandlerContext<'a>, command: &'a Command<'a>) -> Self {
        CommandHandler { cx, command }
    }

    /// Handles the command: decides, applies the result, answers and writes `Closed`.
    pub async fn handle(&self, log: &mut DecisionLog) -> Result<(), SequencerError> {
        let CommandHandler { cx, command } = *self;
        let mut steps = Steps::new(log, cx.offset, cx.mode);
        let mut body = steps.decide(Box::pin(self.evaluate())).await?;
        if let DecisionBody::Conflicting { .. } = body {
            apply_verdict(cx, &mut steps, body).await?;
            let done =
                DecisionBody::CommandDone { id: command.id, executed_at: cx.offset, result: CommandResult::Applied };
            body = steps.decide(async { Ok(done) }).await?;
        }
        let DecisionBody::CommandDone { id, executed_at, result } = body else {
            return Err(cx.halt(format_args!("expected the result of a command, found {body:?}")));
        };
        if executed_at == cx.offset {
            CommandExecutor::new(&cx.applying(&steps)).execute(&command.action, &result).await?;
            self.store_result(&result).await?;
        }
        cx.publish_outcomes(vec![(command.action.subject(), OutcomeKind::Command { id, result })]).await?;
        steps.close().await
    }

    /// Evaluates the command by the records in the store. Writes only marks and stubs, so that a repeat does no harm.
    async fn evaluate(&self) -> Result<DecisionBody, SequencerError> {
        let CommandHandler { cx, command } = *self;
        let (id, executed_at) = (command.id, cx.offset);
        if let Some(first) = self.read_command_record(id).await? {
            let result = match first.event_digest == hash_request(command) {
                true => first.result,
                false => refuse("ID_USED", "another command has this id"),
            };
            return Ok(DecisionBody::CommandDone { id, executed_at: first.chain_offset, result });
        }
        let result = match refuse_by_content(&command.action) {
            Some(refused) => refused,
            None => match wait_for_transaction(cx, command.action.subject()).await? {
                Ok(master) => match CommandEvaluator::new(cx, &master).evaluate(&command.action).await? {
                    CommandEvaluation::Result(result) => result,
                    CommandEvaluation::DecideFirst(decision) => return Ok(decision),
                },
                Err(refused) => refused,
            },
        };
        Ok(DecisionBody::CommandDone { id, executed_at, result })
    }

    /// Reads the record of the command with this id.
    async fn read_command_record(&self, id: [u8; 16]) -> Result<Option<CommandRecord>, SequencerError> {
        let records = self.cx.read(vec![Key::Command(id)]).await?;
        Ok(records.into_iter().flatten().find_map(|record| match record {
            Record::Command(command) => Some(command),
            _ => None,
        }))
    }

    /// Stores the result under the command's id, before the next chain event is handled.
    async fn store_result(&self, result: &CommandResult) -> Result<(), SequencerError> {
        let CommandHandler { cx, command } = *self;
        let (id, event_digest) = (command.id, hash_request(command));
        let record =
            CommandRecord { id, event_digest, chain_offset: cx.offset, result: result.clone(), chain_pos: None };
        cx.apply_decided(vec![cx.row(Phase::Apply, Key::Command(id), Sequenced::PutCommand(record))]).await
    }
}

fn hash_request(command: &Command<'_>) -> [u8; 32] {
    *blake3::hash(&Event::Command(command.clone()).encode()).as_bytes()
}
