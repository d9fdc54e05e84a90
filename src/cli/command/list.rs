//! Lists the commands of the chain log with their results.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::{
    broker::{Broker, BrokerError, Message},
    client::{
        CommandOutcome,
        command_line::CommandLine,
        partitions::{read_partition, single_partition},
    },
    config::Topics,
    event::{Command, CommandAction, Decision, DecisionBody, Event, to_json},
};

/// A command of the chain log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoggedCommand {
    /// Offset of the command in the chain log.
    pub chain_offset: u64,
    /// Time of publication, milliseconds since 1970.
    pub timestamp_ms: i64,
    /// Id of the command, 32 hexadecimal digits.
    pub id: String,
    /// Action of the command, in the JSON form of events.
    pub action: serde_json::Value,
    /// Action of the command, as arguments of `utxo-store command`.
    #[serde(skip)]
    pub line: String,
    /// Result of the command; `None`: not decided yet.
    #[serde(rename = "became")]
    pub outcome: Option<CommandOutcome>,
    /// Chain offset of the first command with the same id, where this command is a repeat.
    pub repeats: Option<u64>,
}

impl fmt::Display for LoggedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (id {}, at {} ms): ", self.chain_offset, self.line, self.id, self.timestamp_ms)?;
        match &self.outcome {
            Some(outcome) => write!(f, "{outcome}")?,
            None => f.write_str("not decided yet")?,
        }
        self.repeats.map_or(Ok(()), |first| write!(f, " (a repeat of chain offset {first})"))
    }
}

/// Lists the commands on frozen and reassigned outputs in the order of the chain log. With `all` the list has the
/// commands of every kind except `Reconsider`, which the sequencer publishes itself.
///
/// # Errors
/// The chain log or the decisions cannot be read.
pub async fn list_commands(broker: &dyn Broker, topics: &Topics, all: bool) -> Result<Vec<LoggedCommand>, BrokerError> {
    let mut entries: BTreeMap<u64, LoggedCommand> = BTreeMap::new();
    read_partition(broker, &single_partition(topics.chain.as_str()), |message| {
        if let Ok(Event::Command(command)) = Event::decode(&message.payload)
            && (all || is_alert(&command.action))
            && !matches!(command.action, CommandAction::Reconsider { .. })
        {
            entries.insert(message.offset, undecided_command(message, &command));
        }
    })
    .await?;
    // The first decision of a chain offset and step counts, and steps have no gaps.
    let mut next_steps: BTreeMap<u64, u32> = entries.keys().map(|chain_offset| (*chain_offset, 0)).collect();
    read_partition(broker, &single_partition(topics.decisions.as_str()), |message| {
        for Decision { chain_offset, step, body } in Event::decode_decisions(&message.payload, message.offset) {
            let Some(next) = next_steps.get_mut(&chain_offset).filter(|next| **next == step) else { continue };
            *next += 1;
            if let (DecisionBody::CommandDone { executed_at, result, .. }, Some(entry)) =
                (body, entries.get_mut(&chain_offset))
            {
                entry.outcome = Some(result.into());
                entry.repeats = (executed_at != chain_offset).then_some(executed_at);
            }
        }
    })
    .await?;
    Ok(entries.into_values().collect())
}

fn is_alert(action: &CommandAction<'_>) -> bool {
    matches!(
        action,
        CommandAction::Freeze { .. }
            | CommandAction::Unfreeze { .. }
            | CommandAction::FreezeUntil { .. }
            | CommandAction::Reassign { .. }
            | CommandAction::FreezeTransaction { .. }
            | CommandAction::UnfreezeTransaction { .. }
    )
}

fn undecided_command(message: &Message, command: &Command<'_>) -> LoggedCommand {
    LoggedCommand {
        chain_offset: message.offset,
        timestamp_ms: message.timestamp_ms,
        id: hex::encode(command.id),
        action: action_of(command),
        line: CommandLine(&command.action).to_string(),
        outcome: None,
        repeats: None,
    }
}

/// Returns the action of a command in the JSON form of events.
fn action_of(command: &Command<'_>) -> serde_json::Value {
    let json = serde_json::from_str::<serde_json::Value>(&to_json(&Event::Command(command.clone())));
    json.ok().and_then(|mut json| Some(json.get_mut("action")?.take())).unwrap_or_default()
}
