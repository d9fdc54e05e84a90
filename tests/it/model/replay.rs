//! Replay of the chain topic event by event: each event asks for its decisions, and the model applies them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use utxo_store::{
    event::{
        CommandAction, DecidedEvent, DecidedInput, Decision, DecisionBody, DecisionGroup, DecisionRun, Event,
        LiftedOutput, OutcomeChange, OutcomeKind,
    },
    record::{CommandResult, Reason},
    sequencer::is_second_chance,
    tx::{Outpoint, Txid},
};

use super::{
    Complaint, Expected, LogPosition, Logged, Logs, Rules,
    commands::ExecutedCommand,
    facts::Facts,
    history::{History, OutputRestrictions, TxEntry, TxStatus},
};

/// Cause of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictTrigger {
    /// A contest for this reason.
    Contest(Reason),
    /// A `Reconsider` command.
    Reconsider,
}

/// State of the replay.
pub struct Replay<'l> {
    pub logs: &'l Logs,
    pub history: History,
    /// Decisions of each chain offset, in the order of their steps.
    pub decisions: BTreeMap<u64, Vec<DecisionBody>>,
    /// Outputs whose bars an operator has lifted, by chain offset.
    pub lifted: BTreeMap<u64, Vec<LiftedOutput>>,
    /// Chain offset of the event that is being handled.
    pub offset: u64,
    pub next_step: usize,
    /// Outputs that the sequencer has changed, with the first chain offset: their slots are marked.
    pub touched: BTreeMap<Outpoint, u64>,
    /// Transactions that were conflicting by verdict at any time.
    pub ever_conflicting: BTreeSet<Txid>,
    /// Transactions that a contest or a decision has named.
    pub mentioned: BTreeSet<Txid>,
    /// Conflicting children that each parent certainly lists: these get second chances.
    pub known_children: BTreeMap<Txid, BTreeSet<Txid>>,
    /// Transactions that are certainly stored by now, whatever their status.
    pub stored: BTreeSet<Txid>,
    /// Transactions that must be reconsidered, with the chain offset after which.
    pub due_second_chances: Vec<(Txid, u64)>,
    pub reconsidered: BTreeMap<Txid, u64>,
    /// Hashes of the bodies that contests have named.
    pub contested_bodies: BTreeMap<Txid, BTreeSet<[u8; 32]>>,
    /// Outcomes that must be published, by chain offset and transaction.
    pub expected_outcomes: BTreeMap<(u64, Txid), Vec<OutcomeKind>>,
    /// Contests that were passed over, by chain offset and transaction. Over a store that can lose writes, a live
    /// contestant has the outcome `Accepted`.
    pub passed_over: BTreeSet<(u64, Txid)>,
    /// Contests that were passed over while the contestant was conflicting, by chain offset and transaction.
    pub passed_over_conflicting: BTreeSet<(u64, Txid)>,
    /// Transactions that blocks have mined or left unmined.
    pub expected_changes: BTreeSet<(OutcomeChange, Txid)>,
    /// Events for which the sequencer must publish a dead letter.
    pub expected_dead_letters: BTreeSet<LogPosition>,
    /// Events for which the sequencer may publish a dead letter.
    pub possible_dead_letters: BTreeSet<LogPosition>,
    /// Executed commands by id.
    pub commands: BTreeMap<[u8; 16], ExecutedCommand>,
    /// Transactions that a contest or a decision names anywhere in the logs.
    pub ever_contested: BTreeSet<Txid>,
    /// Chain offsets of messages that are no event of the chain.
    pub chain_poison: BTreeSet<u64>,
    /// Time of the first block with each coinbase, ms since the epoch, by the coinbase's bytes.
    pub coinbase_first_ms: BTreeMap<Bytes, i64>,
    /// Position of the first message of each key in the validated topic.
    pub first_events: BTreeMap<Bytes, LogPosition>,
    pub complaints: Vec<Complaint>,
}

impl<'l> Replay<'l> {
    pub fn new(logs: &'l Logs, rules: &Rules) -> Self {
        let facts = Facts::of(logs, rules);
        let history = History {
            rules: *rules,
            facts: Arc::new(facts),
            tx_entries: BTreeMap::new(),
            restrictions: OutputRestrictions::default(),
            blocks: BTreeMap::new(),
            tip: None,
            sequence: 0,
            highest: 0,
            may_be_pruned: BTreeSet::new(),
        };
        Replay {
            logs,
            history,
            decisions: BTreeMap::new(),
            lifted: BTreeMap::new(),
            offset: 0,
            next_step: 0,
            touched: BTreeMap::new(),
            ever_conflicting: BTreeSet::new(),
            mentioned: BTreeSet::new(),
            known_children: BTreeMap::new(),
            stored: BTreeSet::new(),
            due_second_chances: Vec::new(),
            reconsidered: BTreeMap::new(),
            contested_bodies: BTreeMap::new(),
            expected_outcomes: BTreeMap::new(),
            passed_over: BTreeSet::new(),
            passed_over_conflicting: BTreeSet::new(),
            expected_changes: BTreeSet::new(),
            expected_dead_letters: BTreeSet::new(),
            possible_dead_letters: BTreeSet::new(),
            commands: BTreeMap::new(),
            ever_contested: BTreeSet::new(),
            chain_poison: BTreeSet::new(),
            coinbase_first_ms: first_coinbase_times(logs),
            first_events: first_positions(logs),
            complaints: Vec::new(),
        }
    }

    pub fn run(mut self) -> Result<Expected, Vec<Complaint>> {
        self.read_decisions();
        self.set_initial_statuses();
        for logged in &self.logs.chain {
            self.apply_chain_event(logged);
        }
        self.check_end();
        self.check_messages();
        if !self.complaints.is_empty() {
            return Err(self.complaints);
        }
        if let Some(height) = self.history.rules.pruned_to {
            self.history.prune_due(height);
        }
        Ok(self.history.expected())
    }

    pub fn complain(&mut self, what: impl Into<String>) {
        self.complain_of(format!("chain offset {}", self.offset), what);
    }

    pub fn complain_of(&mut self, about: impl ToString, what: impl Into<String>) {
        self.complaints.push(Complaint { about: about.to_string(), what: what.into() });
    }

    /// Reads the decisions: the first record for (chain offset, step) counts, steps are contiguous, `Closed` is the
    /// last.
    pub fn read_decisions(&mut self) {
        for logged in &self.logs.decisions {
            let offset = logged.message.offset;
            let decisions = match Event::decode(&logged.message.payload) {
                Ok(Event::Decision(decision)) => vec![decision],
                // Another record came first: the group was evaluated without that record.
                Ok(Event::DecisionGroup(group)) if group.position != offset => continue,
                Ok(Event::DecisionGroup(group)) => list_decisions(group),
                Ok(Event::DecisionRun(run)) if run.position != offset => continue,
                Ok(Event::DecisionRun(run)) => list_decisions_of_run(run),
                _ => {
                    self.complain_of(format!("decision at {offset}"), "is not a decision");
                    continue;
                }
            };
            for Decision { chain_offset, step, body } in decisions {
                self.add_decision(offset, chain_offset, step, body);
            }
        }
        self.join_decisions();
    }

    fn add_decision(&mut self, offset: u64, chain_offset: u64, step: u32, body: DecisionBody) {
        let steps = self.decisions.entry(chain_offset).or_default();
        let count = steps.len() as u32;
        let closed = steps.last() == Some(&DecisionBody::Closed);
        if step == count {
            steps.push(body);
        }
        let about = format!("decision at {offset} (chain offset {chain_offset}, step {step})");
        // A block may have to accept a lost transaction once more.
        if step == count && closed && !self.history.rules.forgetful {
            self.complain_of(about, "comes after `Closed`");
        } else if step > count {
            self.complain_of(about, format!("skips step {count}"));
        }
    }

    fn join_decisions(&mut self) {
        for (offset, steps) in &mut self.decisions {
            *steps = join_parts(std::mem::take(steps));
            steps.retain(|body| match body {
                DecisionBody::Lifted { outputs, .. } => {
                    self.lifted.entry(*offset).or_default().extend(outputs.iter().cloned());
                    false
                }
                _ => true,
            });
        }
        let handled: BTreeSet<u64> = self.logs.chain.iter().map(|logged| logged.message.offset).collect();
        for offset in self.decisions.keys().copied().collect::<Vec<_>>() {
            if !handled.contains(&offset) {
                self.complain_of(format!("chain offset {offset}"), "has decisions, but no event");
            }
        }
    }

    /// Sets the initial status: a transaction was from the start what the first decision found, contested or live.
    fn set_initial_statuses(&mut self) {
        let mut first: BTreeMap<Txid, bool> = BTreeMap::new();
        let mut record_first = |txid: Txid, live: bool| {
            first.entry(txid).or_insert(live);
        };
        for body in self.decisions.values().flatten() {
            match body {
                DecisionBody::Accepted { txid, inputs, losers, .. } => {
                    record_first(*txid, false);
                    losers.iter().for_each(|loser| record_first(*loser, true));
                    // A partial transaction that holds a slot is live and releases the slot.
                    let spends = |txid: &Txid| !self.history.facts.later_events.contains_key(txid);
                    let holders = inputs.iter().filter_map(|input| input.holder).map(|holder| holder.txid);
                    holders
                        .filter(|holder| holder == txid || spends(holder))
                        .for_each(|holder| record_first(holder, false));
                }
                DecisionBody::Conflicting { txid, reason, live, .. } => {
                    record_first(*txid, *live);
                    if let Reason::DoubleSpend { winner, .. } = reason {
                        record_first(*winner, true);
                    }
                }
                DecisionBody::Cone { members, .. } => {
                    members.iter().for_each(|member| record_first(member.txid, member.live))
                }
                DecisionBody::PassedOver { .. }
                | DecisionBody::CommandDone { .. }
                | DecisionBody::AcceptedPart { .. }
                | DecisionBody::Closed
                | DecisionBody::Lifted { .. } => {}
            }
        }
        let contests = self.logs.chain.iter().filter_map(|logged| match Event::decode(&logged.message.payload) {
            Ok(Event::Contest(contest)) => Some(contest.txid),
            _ => None,
        });
        self.ever_contested = contests.chain(first.keys().copied()).collect();
        for txid in self.history.facts.txs.keys() {
            let live = first.get(txid).copied().unwrap_or(true) || self.history.is_partial(txid);
            let status = if live { TxStatus::Uncontested } else { TxStatus::Pending };
            self.history.tx_entries.insert(*txid, TxEntry::new(status));
        }
    }

    fn apply_chain_event(&mut self, logged: &Logged) {
        (self.offset, self.next_step) = (logged.message.offset, 0);
        match Event::decode(&logged.message.payload) {
            Ok(Event::BlockMined(mined)) => self.apply_block(logged, &mined),
            Ok(Event::Reorg(reorg)) => self.apply_reorg(logged, &reorg),
            Ok(Event::Contest(contest)) => self.apply_contest(&contest),
            Ok(Event::Command(command)) => match command.action {
                CommandAction::Reconsider { txid } => {
                    self.reconsidered.insert(txid, self.offset);
                    let decided = self.decide_on(txid, VerdictTrigger::Reconsider, None);
                    self.expect_unchanged(command.id, txid, decided.as_ref());
                    self.expect_closed();
                }
                _ => self.apply_command(logged, &command),
            },
            _ => {
                self.chain_poison.insert(self.offset);
            }
        }
        self.history.record_due();
        let count = self.decisions.get(&self.offset).map_or(0, Vec::len);
        if self.next_step < count {
            let left: Vec<_> = self.decisions[&self.offset][self.next_step..].to_vec();
            self.complain(format!("has decisions that no event asks for: {left:?}"));
        }
    }

    /// Expects the outcome of a client's `Reconsider` that is passed over.
    pub fn expect_unchanged(&mut self, id: [u8; 16], txid: Txid, decided: Option<&DecisionBody>) {
        if let Some(DecisionBody::PassedOver { .. }) = decided
            && !is_second_chance(&id, &txid)
        {
            self.expect_outcome(txid, OutcomeKind::Command { id, result: CommandResult::AlreadyApplied });
        }
    }

    /// Returns the next decision on the event that is being handled.
    pub fn next_decision(&mut self) -> Option<DecisionBody> {
        let body = self.peek_decision();
        self.next_step += usize::from(body.is_some());
        body
    }

    pub fn peek_decision(&self) -> Option<DecisionBody> {
        self.decisions.get(&self.offset)?.get(self.next_step).cloned()
    }

    pub fn expect_closed(&mut self) {
        match self.next_decision() {
            Some(DecisionBody::Closed) => {}
            other => self.complain(format!("is not closed: {other:?}")),
        }
    }

    /// Expects `Closed` after the decisions of an event, if there are any.
    pub fn expect_closed_if_decided(&mut self) {
        if self.peek_decision().is_some() || self.next_step > 0 {
            self.expect_closed();
        }
    }
}

fn first_coinbase_times(logs: &Logs) -> BTreeMap<Bytes, i64> {
    let mut first: BTreeMap<Bytes, i64> = BTreeMap::new();
    for Logged { message, .. } in logs.block_mined.iter().chain(&logs.reorgs) {
        let blocks = match Event::decode(&message.payload) {
            Ok(Event::BlockMined(mined)) => vec![mined.block],
            Ok(Event::Reorg(reorg)) => reorg.disconnected.into_iter().chain(reorg.connected).collect(),
            _ => Vec::new(),
        };
        for block in blocks {
            let least = first.entry(message.payload.slice_ref(block.coinbase)).or_insert(i64::MAX);
            *least = message.timestamp_ms.min(*least);
        }
    }
    first
}

fn first_positions(logs: &Logs) -> BTreeMap<Bytes, LogPosition> {
    let mut first: BTreeMap<Bytes, LogPosition> = BTreeMap::new();
    for logged in &logs.validated {
        let least = first.entry(logged.message.key.clone()).or_insert(logged.place());
        *least = logged.place().min(*least);
    }
    first
}

/// Returns the decisions of a group, by event and step.
fn list_decisions(group: DecisionGroup) -> Vec<Decision> {
    let of_event = |event: DecidedEvent| {
        let chain_offset = event.chain_offset;
        event.bodies.into_iter().zip(0..).map(move |(body, step)| Decision { chain_offset, step, body })
    };
    group.events.into_iter().flat_map(of_event).collect()
}

/// Returns the decisions of a run, by step.
fn list_decisions_of_run(run: DecisionRun) -> Vec<Decision> {
    let chain_offset = run.chain_offset;
    run.bodies.into_iter().zip(run.step..).map(|(body, step)| Decision { chain_offset, step, body }).collect()
}

/// Joins the parts of one decision that follow each other from first to last; other parts are void.
fn join_parts(steps: Vec<DecisionBody>) -> Vec<DecisionBody> {
    let mut whole_decisions = Vec::new();
    // Decision in progress: its id, its number of parts, and the decision so far.
    type Begun = ([u8; 16], u32, Vec<DecidedInput>, Vec<Txid>);
    let mut begun: Option<Begun> = None;
    for body in steps {
        let DecisionBody::AcceptedPart { whole, part, parts, txid, height, inputs, losers, by_block } = body else {
            begun = None;
            whole_decisions.push(body);
            continue;
        };
        let (mut all_inputs, mut all_losers) = match begun.take() {
            Some((name, count, inputs, losers)) if name == whole && count == part => (inputs, losers),
            _ if part == 0 => (Vec::new(), Vec::new()),
            _ => continue,
        };
        all_inputs.extend(inputs);
        all_losers.extend(losers);
        if part + 1 == parts {
            let (inputs, losers) = (all_inputs, all_losers);
            whole_decisions.push(DecisionBody::Accepted { txid, height, inputs, losers, by_block });
        } else {
            begun = Some((whole, part + 1, all_inputs, all_losers));
        }
    }
    whole_decisions
}
