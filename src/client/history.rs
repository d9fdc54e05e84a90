//! History of one transaction in the log: its contests, the decisions on it, the commands that name it.

use std::{collections::BTreeMap, fmt, num::ParseIntError, str::FromStr, time::Duration};

use serde::Serialize;
use tokio::time::Instant;

use super::{
    CommandOutcome,
    command_line::CommandLine,
    partitions::single_partition,
    steps::{DecisionStatus, StepTracker},
};
use crate::{
    broker::{Broker, BrokerError, Message, TopicPartition, retry::read_or_reopen},
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

/// Wait for the next messages of a topic.
const WAIT: Duration = Duration::from_millis(100);
/// Greatest difference between the clocks of producers, ms: events about a transaction can have timestamps that are so
/// much earlier than the event of the transaction.
const CLOCK_DIFFERENCE_MS: u64 = 3_600_000;

/// Position in the history: the next offsets of the chain log and of the decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryPosition {
    chain: u64,
    /// Offset at or before the first decision on the chain offset.
    decisions: u64,
}

/// Part of the history of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPart {
    /// Entries in the order of the chain log.
    pub entries: Vec<HistoryEntry>,
    /// Position at which the history continues; `None`: the logs were read to their ends.
    pub next: Option<HistoryPosition>,
}

impl fmt::Display for HistoryPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.chain, self.decisions)
    }
}

impl FromStr for HistoryPosition {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (chain, decisions) = text.split_once(',').unwrap_or((text, ""));
        Ok(HistoryPosition { chain: chain.parse()?, decisions: decisions.parse()? })
    }
}

/// Reads the history of a transaction from the whole chain and decisions topics.
///
/// # Errors
/// A topic cannot be read.
pub async fn read_history(broker: &dyn Broker, topics: &Topics, txid: Txid) -> Result<Vec<HistoryEntry>, BrokerError> {
    let part = read_history_part(broker, topics, txid, HistoryPosition::default(), None).await?;
    Ok(part.entries)
}

/// Finds the position from which the history of a transaction is complete, by the time of the transaction's event (ms
/// since the epoch; 0: not known). Only a command that named the transaction before can be missed.
///
/// # Errors
/// A topic cannot be read.
pub async fn find_history_start(
    broker: &dyn Broker,
    topics: &Topics,
    created_at: u64,
) -> Result<HistoryPosition, BrokerError> {
    if created_at == 0 {
        return Ok(HistoryPosition::default());
    }
    let before = |differences: u64| {
        i64::try_from(created_at.saturating_sub(differences * CLOCK_DIFFERENCE_MS)).unwrap_or(i64::MAX)
    };
    // A decision is published after its event, by another clock.
    let chain = first_offset_at(broker, topics.chain.as_str(), before(1)).await?;
    let decisions = first_offset_at(broker, topics.decisions.as_str(), before(2)).await?;
    Ok(HistoryPosition { chain, decisions })
}

/// Returns the first offset of a topic of one partition whose message has this timestamp or a later one; the end offset
/// where there is none, and 0 where the cluster looks up no timestamps.
async fn first_offset_at(broker: &dyn Broker, topic: &str, timestamp_ms: i64) -> Result<u64, BrokerError> {
    let found = broker.offsets_at(topic, timestamp_ms).await?;
    if let Some(offset) = found.first().copied().flatten() {
        return Ok(offset);
    }
    // Such a cluster (librdkafka's mock is one) does not find the first message either.
    let first = broker.offsets_at(topic, 0).await?;
    match first.first().copied().flatten() {
        Some(_) => Ok(broker.watermarks(&single_partition(topic)).await?.1),
        None => Ok(0),
    }
}

/// Reads a part of the history of a transaction: from a position until the end of the logs, or until the deadline. A
/// part that reaches the deadline covers at least one chain offset.
///
/// # Errors
/// A topic cannot be read.
pub async fn read_history_part(
    broker: &dyn Broker,
    topics: &Topics,
    txid: Txid,
    from: HistoryPosition,
    deadline: Option<Instant>,
) -> Result<HistoryPart, BrokerError> {
    let now = Instant::now();
    // The chain log gets half of the time: for each of its events there are some decisions.
    let halfway = deadline.map(|deadline| now + deadline.saturating_duration_since(now) / 2);
    let is_late = |deadline: Option<Instant>| deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let mut history = History::new(txid);
    let mut chain = LogPart::open(broker, &single_partition(topics.chain.as_str()), from.chain).await?;
    while let Some(messages) = chain.next().await? {
        messages.iter().for_each(|message| history.take_event(message));
        if !messages.is_empty() && is_late(halfway) {
            break;
        }
    }
    let mut covered = CoveredDecisions { from: from.chain, below: chain.position, next: None };
    let mut decisions = LogPart::open(broker, &single_partition(topics.decisions.as_str()), from.decisions).await?;
    let mut position = decisions.position;
    'log: while let Some(messages) = decisions.next().await? {
        for message in &messages {
            if covered.take(message, &mut history) {
                break 'log;
            }
        }
        position = decisions.position;
        if is_late(deadline) && covered.shorten() {
            break;
        }
    }
    let next = HistoryPosition { chain: covered.below, decisions: covered.next.map_or(position, |(_, at)| at) };
    let is_end = covered.below >= chain.end;
    Ok(HistoryPart { entries: history.finish(covered.below), next: (!is_end).then_some(next) })
}

/// Messages of a partition from an offset to the end offset at the time of the opening.
struct LogPart<'a> {
    broker: &'a dyn Broker,
    partition: TopicPartition,
    reader: Box<dyn crate::broker::PartitionReader>,
    /// Next offset to read.
    position: u64,
    end: u64,
}

impl<'a> LogPart<'a> {
    async fn open(broker: &'a dyn Broker, partition: &TopicPartition, from: u64) -> Result<Self, BrokerError> {
        let (low, end) = broker.watermarks(partition).await?;
        let position = from.clamp(low, end.max(low));
        let reader = broker.read(partition, position).await?;
        Ok(LogPart { broker, partition: partition.clone(), reader, position, end })
    }

    /// Returns the next messages, possibly none; `None`: the end.
    async fn next(&mut self) -> Result<Option<Vec<Message>>, BrokerError> {
        if self.position >= self.end {
            return Ok(None);
        }
        let mut messages = read_or_reopen(&mut self.reader, self.broker, &self.partition, WAIT).await?;
        messages.retain(|message| message.offset < self.end);
        self.position = self.reader.position().min(self.end);
        Ok(Some(messages))
    }
}

/// Decisions on the chain offsets of a part.
struct CoveredDecisions {
    from: u64,
    /// Chain offset at which the part ends.
    below: u64,
    /// Greatest chain offset with a decision, and the offset of its first decision.
    next: Option<(u64, u64)>,
}

impl CoveredDecisions {
    /// Takes the next decision of the log, and returns whether it is beyond the part. Decisions are in the order of the
    /// chain; a late record on an earlier chain offset does not count.
    fn take(&mut self, message: &Message, history: &mut History) -> bool {
        for decision in Event::decode_decisions(&message.payload, message.offset) {
            let offset = decision.chain_offset;
            if offset < self.from {
                continue;
            }
            if self.next.is_none_or(|(greatest, _)| offset > greatest) {
                self.next = Some((offset, message.offset));
            }
            if offset >= self.below {
                return true;
            }
            history.take_decision(decision, message.timestamp_ms);
        }
        false
    }

    /// Ends the part before the chain offset whose decisions were read last. Returns whether the part covers another
    /// chain offset then.
    fn shorten(&mut self) -> bool {
        match self.next {
            Some((greatest, _)) if greatest > self.from => {
                self.below = greatest;
                true
            }
            _ => false,
        }
    }
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
    fn take_decision(&mut self, decision: Decision, timestamp_ms: i64) {
        if self.steps.classify(&decision, timestamp_ms) != DecisionStatus::Counts {
            return;
        }
        let Decision { chain_offset, step, body } = decision;
        if let Some(what) = self.describe(chain_offset, body) {
            self.add(chain_offset, Some(step), timestamp_ms, what);
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
            DecisionBody::Lifted { txid, outputs } => {
                let lifts = txid == self.txid || outputs.iter().any(|output| output.outpoint.txid == self.txid);
                lifts.then(|| format!("an operator lifts the bars on the outputs that {txid} spends"))
            }
            DecisionBody::PassedOver { .. } | DecisionBody::Conflicting { .. } | DecisionBody::Closed => None,
        }
    }

    fn add(&mut self, chain_offset: u64, step: Option<u32>, timestamp_ms: i64, what: String) {
        self.events.push(HistoryEntry { chain_offset, step, timestamp_ms, what });
    }

    /// Returns the entries of chain offsets below the end of the part.
    fn finish(mut self, below: u64) -> Vec<HistoryEntry> {
        self.events.retain(|entry| entry.chain_offset < below);
        self.events.sort();
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        broker::{OutgoingMessage, memory::MemoryBroker},
        client::create_topics,
        config::Config,
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
        let mut covered = CoveredDecisions { from: 0, below: 10, next: None };
        assert!(!log.iter().any(|message| covered.take(message, &mut history)));
        let entries: Vec<String> = history.finish(10).iter().map(HistoryEntry::to_string).collect();
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

    const TIME: i64 = 1_700_000_000_000;

    /// A chain log with a command on the transaction at every tenth offset, one an hour, and a decision on each offset,
    /// in two steps. Late records repeat earlier steps.
    async fn logs() -> (MemoryBroker, Topics) {
        let (broker, topics) = (MemoryBroker::default(), Config::default().kafka.topics);
        create_topics(&broker, &topics, 1).await.unwrap();
        let producer = broker.producer().await.unwrap();
        let publish = async |topic: &str, event: Event<'_>, timestamp_ms| {
            let payload = event.encode().into();
            let timestamp_ms = Some(timestamp_ms);
            let message = OutgoingMessage {
                topic: topic.into(),
                partition: Some(0),
                payload,
                timestamp_ms,
                ..Default::default()
            };
            producer.produce(message).await.unwrap();
        };
        for offset in 0..200 {
            let txid = if offset % 10 == 5 { ME } else { OTHER };
            let time = TIME + offset * 3_600_000;
            let command = Command { id: [offset as u8; 16], action: CommandAction::Lock { txid } };
            publish(topics.chain.as_str(), Event::Command(command), time).await;
            let chain_offset = offset as u64;
            let done =
                DecisionBody::CommandDone { id: [offset as u8; 16], executed_at: 0, result: CommandResult::Applied };
            for (step, body) in [(0, done.clone()), (1, DecisionBody::Closed), (0, done)] {
                let decision = Decision { chain_offset, step, body };
                publish(topics.decisions.as_str(), Event::Decision(decision), time + 5_000).await;
            }
        }
        (broker, topics)
    }

    #[tokio::test(start_paused = true)]
    async fn parts_of_the_history_are_the_whole_history() {
        let (broker, topics) = logs().await;
        let whole = read_history(&broker, &topics, ME).await.unwrap();
        assert_eq!(whole.len(), 40, "a command and its result, twenty times: {whole:#?}");
        // Without any time each part covers what one read returns, or one chain offset.
        let (mut entries, mut from, mut parts) = (Vec::new(), HistoryPosition::default(), 0);
        loop {
            let now = Some(Instant::now());
            let part = read_history_part(&broker, &topics, ME, from, now).await.unwrap();
            entries.extend(part.entries);
            parts += 1;
            let Some(next) = part.next else { break };
            assert!(next.chain > from.chain, "{next} after {from}");
            from = next.to_string().parse().unwrap();
        }
        assert_eq!(entries, whole);
        assert!(parts > 1, "one read returned everything");
        assert!("1".parse::<HistoryPosition>().is_err() && "1,x".parse::<HistoryPosition>().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_history_begins_at_the_creation() {
        let (broker, topics) = logs().await;
        let created_at = (TIME + 100 * 3_600_000) as u64;
        let start = find_history_start(&broker, &topics, created_at).await.unwrap();
        assert_eq!((start.chain, start.decisions), (99, 98 * 3));
        let part = read_history_part(&broker, &topics, ME, start, None).await.unwrap();
        let whole = read_history(&broker, &topics, ME).await.unwrap();
        assert_eq!((part.entries, part.next), (whole[20..].to_vec(), None));
        assert_eq!(find_history_start(&broker, &topics, 0).await.unwrap(), HistoryPosition::default());
        let later = find_history_start(&broker, &topics, created_at * 2).await.unwrap();
        assert_eq!((later.chain, later.decisions), (200, 600), "no message is so late");
    }
}
