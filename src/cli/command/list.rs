//! The commands in the log, each with what became of it.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::Serialize;

use super::{Became, Line, Topics};
use crate::{
    broker::{Broker, BrokerError, Message, TopicPartition, retry::next_messages},
    event::{Action, Command, Decision, DecisionBody, Event, to_json},
};

/// A command of the log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// Where it stands in the chain.
    pub chain_offset: u64,
    /// When it was published, milliseconds since the epoch.
    pub timestamp_ms: i64,
    /// Its id, hexadecimal digits.
    pub id: String,
    /// What it asks for, as events have it in JSON.
    pub action: serde_json::Value,
    /// The same, as it is asked for.
    #[serde(skip)]
    pub line: String,
    /// What became of it; none: it is not decided on yet.
    pub became: Option<Became>,
    /// The chain offset at which it was executed, where it is a repeat of that.
    pub repeats: Option<u64>,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (id {}, at {} ms): ", self.chain_offset, self.line, self.id, self.timestamp_ms)?;
        match &self.became {
            Some(became) => write!(f, "{became}")?,
            None => f.write_str("not decided on yet")?,
        }
        self.repeats.map_or(Ok(()), |first| write!(f, " (a repeat of chain offset {first})"))
    }
}

const WAIT: Duration = Duration::from_millis(100);

/// The commands about frozen and reassigned outputs, or `all` but the sequencer's own `Reconsider`, in the order of the chain.
///
/// # Errors
/// A topic cannot be read.
pub async fn audit(broker: &dyn Broker, topics: &Topics, all: bool) -> Result<Vec<Entry>, BrokerError> {
    let mut entries: BTreeMap<u64, Entry> = BTreeMap::new();
    each(broker, &only(&topics.chain), |message| {
        if let Ok(Event::Command(command)) = Event::decode(&message.payload)
            && (all || is_alert(&command.action))
            && !matches!(command.action, Action::Reconsider { .. })
        {
            entries.insert(message.offset, entry(message, &command));
        }
    })
    .await?;
    // The first record for a step counts, and steps follow one another.
    let mut next_steps: BTreeMap<u64, u32> = entries.keys().map(|chain_offset| (*chain_offset, 0)).collect();
    each(broker, &only(&topics.decisions), |message| {
        if let Ok(Event::Decision(Decision { chain_offset, step, body })) = Event::decode(&message.payload)
            && let Some(next) = next_steps.get_mut(&chain_offset).filter(|next| **next == step)
        {
            *next += 1;
            if let (DecisionBody::CommandDone { executed_at, result, .. }, Some(entry)) =
                (body, entries.get_mut(&chain_offset))
            {
                entry.became = Some(result.into());
                entry.repeats = (executed_at != chain_offset).then_some(executed_at);
            }
        }
    })
    .await?;
    Ok(entries.into_values().collect())
}

fn is_alert(action: &Action<'_>) -> bool {
    matches!(
        action,
        Action::Freeze { .. } | Action::Unfreeze { .. } | Action::FreezeUntil { .. } | Action::Reassign { .. }
    )
}

fn entry(message: &Message, command: &Command<'_>) -> Entry {
    Entry {
        chain_offset: message.offset,
        timestamp_ms: message.timestamp_ms,
        id: hex::encode(command.id),
        action: action_of(command),
        line: Line(&command.action).to_string(),
        became: None,
        repeats: None,
    }
}

/// What a command asks for, as events have it in JSON.
fn action_of(command: &Command<'_>) -> serde_json::Value {
    let json = serde_json::from_str::<serde_json::Value>(&to_json(&Event::Command(command.clone())));
    json.ok().and_then(|mut json| Some(json.get_mut("action")?.take())).unwrap_or_default()
}

/// The partition of a topic that has one.
pub fn only(topic: &str) -> TopicPartition {
    TopicPartition { topic: topic.into(), partition: 0 }
}

/// Reads a partition from its beginning to where it ends now.
///
/// # Errors
/// It cannot be read.
pub async fn each(
    broker: &dyn Broker,
    partition: &TopicPartition,
    mut take: impl FnMut(&Message),
) -> Result<(), BrokerError> {
    let (low, end) = broker.watermarks(partition).await?;
    let mut reader = broker.read(partition, low).await?;
    while reader.position() < end {
        let messages = next_messages(&mut reader, broker, partition, WAIT).await?;
        messages.iter().filter(|message| message.offset < end).for_each(&mut take);
    }
    Ok(())
}
