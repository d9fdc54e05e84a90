//! What the log says of one transaction: who contested it, what was decided on it, which commands named it.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use super::{
    super::command::{Line, each, only},
    decisions::{Standing, Steps},
};
use crate::{
    broker::{Broker, BrokerError, Message},
    cli::command::Became,
    config::Topics,
    event::{Contest, Decision, DecisionBody, Event as LogEvent},
    store::dump::InWords,
    tx::Txid,
};

/// Something that was said of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Event {
    /// Of the chain event that says it, or that it was decided on.
    pub chain_offset: u64,
    /// Of the decision; `None`: it is the chain event itself.
    pub step: Option<u32>,
    /// When it was written, ms since the epoch.
    pub timestamp_ms: i64,
    /// In words.
    pub what: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { chain_offset, step, timestamp_ms, what } = self;
        match step {
            Some(step) => write!(f, "chain offset {chain_offset} step {step}, at {timestamp_ms} ms: {what}"),
            None => write!(f, "chain offset {chain_offset}, at {timestamp_ms} ms: {what}"),
        }
    }
}

/// Reads the chain and decisions topics, from their beginnings.
///
/// # Errors
/// One of them cannot be read.
pub async fn of(broker: &dyn Broker, topics: &Topics, txid: Txid) -> Result<Vec<Event>, BrokerError> {
    let mut history = History::new(txid);
    each(broker, &only(topics.chain.as_str()), |message| history.take_event(message)).await?;
    each(broker, &only(topics.decisions.as_str()), |message| history.take_decision(message)).await?;
    Ok(history.finish())
}

/// The history as it is read. Pure.
struct History {
    txid: Txid,
    events: Vec<Event>,
    /// Commands that name it, by their chain offsets.
    commands: BTreeMap<u64, String>,
    steps: Steps,
}

impl History {
    fn new(txid: Txid) -> Self {
        History { txid, events: Vec::new(), commands: BTreeMap::new(), steps: Steps::default() }
    }

    fn take_event(&mut self, message: &Message) {
        let what = match LogEvent::decode(&message.payload) {
            Ok(LogEvent::Contest(Contest { txid, position, reason, .. })) if txid == self.txid => {
                let by = format!("partition {} offset {}", position.partition, position.offset);
                format!("contested by its event in {by}: {}", InWords(reason))
            }
            Ok(LogEvent::Command(command)) if command.action.subject() == self.txid => {
                let action = Line(&command.action).to_string();
                self.commands.insert(message.offset, action.clone());
                format!("command {action}")
            }
            _ => return,
        };
        self.add(message.offset, None, message.timestamp_ms, what);
    }

    /// Of several records for one step the first counts.
    fn take_decision(&mut self, message: &Message) {
        let Ok(LogEvent::Decision(decision)) = LogEvent::decode(&message.payload) else { return };
        if self.steps.standing(&decision, message.timestamp_ms) != Standing::Counts {
            return;
        }
        let Decision { chain_offset, step, body } = decision;
        if let Some(what) = self.in_words(chain_offset, body) {
            self.add(chain_offset, Some(step), message.timestamp_ms, what);
        }
    }

    fn in_words(&self, chain_offset: u64, body: DecisionBody) -> Option<String> {
        match body {
            DecisionBody::PassedOver { txid } if txid == self.txid => {
                Some("passed over: nothing is to be done".to_owned())
            }
            DecisionBody::Accepted { txid, height, losers, by_block, .. }
            | DecisionBody::AcceptedPart { txid, height, losers, by_block, .. } => {
                let by = if by_block { ", by a block" } else { "" };
                if txid == self.txid {
                    let over = match losers.len() {
                        0 => String::new(),
                        count => format!(", over {count} others"),
                    };
                    Some(format!("accepted at height {height}{by}{over}"))
                } else {
                    losers.contains(&self.txid).then(|| format!("loses to {txid} at height {height}{by}"))
                }
            }
            DecisionBody::Conflicting { txid, reason, height, .. } if txid == self.txid => {
                Some(format!("conflicting at height {height}: {}", InWords(reason)))
            }
            DecisionBody::Cone { members, height } => {
                let member = members.iter().find(|member| member.txid == self.txid)?;
                Some(format!("conflicting at height {height}: parent {} is conflicting", member.parent))
            }
            DecisionBody::CommandDone { result, .. } => {
                let action = self.commands.get(&chain_offset)?;
                Some(format!("{action}: {}", Became::from(result)))
            }
            DecisionBody::PassedOver { .. } | DecisionBody::Conflicting { .. } | DecisionBody::Closed => None,
        }
    }

    fn add(&mut self, chain_offset: u64, step: Option<u32>, timestamp_ms: i64, what: String) {
        self.events.push(Event { chain_offset, step, timestamp_ms, what });
    }

    fn finish(mut self) -> Vec<Event> {
        self.events.sort();
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{Action, Command, CommandResult, ConeMember, Position},
        record::Reason,
    };

    const ME: Txid = Txid([1; 32]);
    const OTHER: Txid = Txid([2; 32]);

    fn message(offset: u64, event: LogEvent<'_>) -> Message {
        let payload = event.encode().into();
        Message { offset, timestamp_ms: offset as i64, key: Default::default(), payload, headers: vec![] }
    }

    fn decision(chain_offset: u64, step: u32, body: DecisionBody) -> Message {
        message(100 + chain_offset, LogEvent::Decision(Decision { chain_offset, step, body }))
    }

    #[test]
    fn what_was_contested_decided_and_asked_of_one_transaction_in_the_order_of_the_chain() {
        let position = Position { topic: "txs".into(), partition: 2, offset: 7, timestamp_ms: 0 };
        let contest = |txid| {
            let reason = Reason::DoubleSpend { input: 0, winner: OTHER };
            LogEvent::Contest(Contest { txid, position: position.clone(), body: [0; 32], reason })
        };
        let lock = Command { id: [3; 16], action: Action::Lock { txid: ME } };
        let mut history = History::new(ME);
        for (offset, event) in [(4, contest(ME)), (5, contest(OTHER)), (9, LogEvent::Command(lock))] {
            history.take_event(&message(offset, event));
        }
        let fell = |txid| DecisionBody::Conflicting {
            txid,
            reason: Reason::DoubleSpend { input: 0, winner: OTHER },
            height: 101,
            live: false,
        };
        let members = vec![ConeMember { txid: ME, parent: OTHER, live: true }];
        let wins =
            DecisionBody::Accepted { txid: ME, height: 103, inputs: vec![], losers: vec![OTHER], by_block: true };
        let done = DecisionBody::CommandDone { id: [3; 16], executed_at: 9, result: CommandResult::Applied };
        let log = [
            decision(4, 0, fell(ME)),
            decision(4, 0, DecisionBody::PassedOver { txid: ME }),
            decision(5, 0, fell(OTHER)),
            decision(5, 1, DecisionBody::Cone { members, height: 102 }),
            decision(7, 0, wins),
            decision(9, 0, done),
        ];
        log.iter().for_each(|message| history.take_decision(message));
        let told: Vec<String> = history.finish().iter().map(Event::to_string).collect();
        let expected = [
            "chain offset 4, at 4 ms: contested by its event in partition 2 offset 7: what input 0 names is spent by",
            "chain offset 4 step 0, at 104 ms: conflicting at height 101",
            "chain offset 5 step 1, at 105 ms: conflicting at height 102: parent",
            "chain offset 7 step 0, at 107 ms: accepted at height 103, by a block, over 1 others",
            "chain offset 9, at 9 ms: command lock 0101",
            "chain offset 9 step 0, at 109 ms: lock 0101",
        ];
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        for (told, expected) in told.iter().zip(expected) {
            assert!(told.starts_with(expected), "{told}");
        }
    }
}
