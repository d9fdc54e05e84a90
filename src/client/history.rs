//! History of one transaction in the log: its contests, the decisions on it, the commands that name it.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use super::{
    CommandOutcome,
    command_line::CommandLine,
    partitions::{read_partition, single_partition},
    steps::{DecisionStatus, StepTracker},
};
use crate::{
    broker::{Broker, BrokerError, Message},
    config::Topics,
    event::{Contest, Decision, DecisionBody, Event},
    tx::Txid,
};

/// A chain event or a decision that concerns a transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct HistoryEntry {
    /// Chain offset of the event, or of the event that the decision belongs to.
    pub chain_offset: u64,
    /// Step of the decision; `None`: the entry is the chain event itself.
    pub step: Option<u32>,
    /// Time of the message, ms since the epoch.
    pub timestamp_ms: i64,
    /// Description of the event or decision.
    pub what: String,
}

impl fmt::Display for HistoryEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HistoryEntry { chain_offset, step, timestamp_ms, what } = self;
        match step {
            Some(step) => write!(f, "chain offset {chain_offset} step {step}, at {timestamp_ms} ms: {what}"),
            None => write!(f, "chain offset {chain_offset}, at {timestamp_ms} ms: {what}"),
        }
    }
}

/// Reads the history of a transaction from the whole chain and decisions topics.
///
/// # Errors
/// A topic cannot be read.
pub async fn read_history(broker: &dyn Broker, topics: &Topics, txid: Txid) -> Result<Vec<HistoryEntry>, BrokerError> {
    let mut history = History::new(txid);
    read_partition(broker, &single_partition(topics.chain.as_str()), |message| history.take_event(message)).await?;
    read_partition(broker, &single_partition(topics.decisions.as_str()), |message| history.take_decision(message))
        .await?;
    Ok(history.finish())
}

/// Collects the history of a transaction. Pure.
struct History {
    txid: Txid,
    events: Vec<HistoryEntry>,
    /// Commands that name the transaction, by chain offset.
    commands: BTreeMap<u64, String>,
    steps: StepTracker,
}

impl History {
    fn new(txid: Txid) -> Self {
        History { txid, events: Vec::new(), commands: BTreeMap::new(), steps: StepTracker::default() }
    }

    fn take_event(&mut self, message: &Message) {
        let what = match Event::decode(&message.payload) {
            Ok(Event::Contest(Contest { txid, position, reason, .. })) if txid == self.txid => {
                let by = format!("partition {} offset {}", position.partition, position.offset);
                format!("contested by its event in {by}: {}", reason)
            }
            Ok(Event::Command(command)) if command.action.subject() == self.txid => {
                let action = CommandLine(&command.action).to_string();
                self.commands.insert(message.offset, action.clone());
                format!("command {action}")
            }
            _ => return,
        };
        self.add(message.offset, None, message.timestamp_ms, what);
    }

    /// Adds a decision that counts: the first record of its step.
    fn take_decision(&mut self, message: &Message) {
        let Ok(Event::Decision(decision)) = Event::decode(&message.payload) else { return };
        if self.steps.classify(&decision, message.timestamp_ms) != DecisionStatus::Counts {
            return;
        }
        let Decision { chain_offset, step, body } = decision;
        if let Some(what) = self.describe(chain_offset, body) {
            self.add(chain_offset, Some(step), message.timestamp_ms, what);
        }
    }

    fn describe(&self, chain_offset: u64, body: DecisionBody) -> Option<String> {
        match body {
            DecisionBody::PassedOver { txid } if txid == self.txid => {
                Some("passed over: no change is needed".to_owned())
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
                Some(format!("conflicting at height {height}: {}", reason))
            }
            DecisionBody::Cone { members, height } => {
                let member = members.iter().find(|member| member.txid == self.txid)?;
                Some(format!("conflicting at height {height}: parent {} is conflicting", member.parent))
            }
            DecisionBody::CommandDone { result, .. } => {
                let action = self.commands.get(&chain_offset)?;
                Some(format!("{action}: {}", CommandOutcome::from(result)))
            }
            DecisionBody::PassedOver { .. } | DecisionBody::Conflicting { .. } | DecisionBody::Closed => None,
        }
    }

    fn add(&mut self, chain_offset: u64, step: Option<u32>, timestamp_ms: i64, what: String) {
        self.events.push(HistoryEntry { chain_offset, step, timestamp_ms, what });
    }

    fn finish(mut self) -> Vec<HistoryEntry> {
        self.events.sort();
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{Command, CommandAction, CommandResult, Descendant, EventPosition},
        record::Reason,
    };

    const ME: Txid = Txid([1; 32]);
    const OTHER: Txid = Txid([2; 32]);

    fn message(offset: u64, event: Event<'_>) -> Message {
        let payload = event.encode().into();
        Message { offset, timestamp_ms: offset as i64, key: Default::default(), payload, headers: vec![] }
    }

    fn decision(chain_offset: u64, step: u32, body: DecisionBody) -> Message {
        message(100 + chain_offset, Event::Decision(Decision { chain_offset, step, body }))
    }

    #[test]
    fn contests_decisions_and_commands_of_a_transaction_in_chain_order() {
        let position = EventPosition { topic: "txs".into(), partition: 2, offset: 7, timestamp_ms: 0 };
        let contest = |txid| {
            let reason = Reason::DoubleSpend { input: 0, winner: OTHER };
            Event::Contest(Contest { txid, position: position.clone(), body: [0; 32], reason })
        };
        let lock = Command { id: [3; 16], action: CommandAction::Lock { txid: ME } };
        let mut history = History::new(ME);
        for (offset, event) in [(4, contest(ME)), (5, contest(OTHER)), (9, Event::Command(lock))] {
            history.take_event(&message(offset, event));
        }
        let loses = |txid| DecisionBody::Conflicting {
            txid,
            reason: Reason::DoubleSpend { input: 0, winner: OTHER },
            height: 101,
            live: false,
        };
        let members = vec![Descendant { txid: ME, parent: OTHER, live: true }];
        let wins =
            DecisionBody::Accepted { txid: ME, height: 103, inputs: vec![], losers: vec![OTHER], by_block: true };
        let done = DecisionBody::CommandDone { id: [3; 16], executed_at: 9, result: CommandResult::Applied };
        let log = [
            decision(4, 0, loses(ME)),
            decision(4, 0, DecisionBody::PassedOver { txid: ME }),
            decision(5, 0, loses(OTHER)),
            decision(5, 1, DecisionBody::Cone { members, height: 102 }),
            decision(7, 0, wins),
            decision(9, 0, done),
        ];
        log.iter().for_each(|message| history.take_decision(message));
        let entries: Vec<String> = history.finish().iter().map(HistoryEntry::to_string).collect();
        let expected = [
            "chain offset 4, at 4 ms: contested by its event in partition 2 offset 7: \
             the output that input 0 spends is spent by",
            "chain offset 4 step 0, at 104 ms: conflicting at height 101",
            "chain offset 5 step 1, at 105 ms: conflicting at height 102: parent",
            "chain offset 7 step 0, at 107 ms: accepted at height 103, by a block, over 1 others",
            "chain offset 9, at 9 ms: command lock 0101",
            "chain offset 9 step 0, at 109 ms: lock 0101",
        ];
        assert_eq!(entries.len(), expected.len(), "{entries:#?}");
        for (entry, expected) in entries.iter().zip(expected) {
            assert!(entry.starts_with(expected), "{entry}");
        }
    }
}
