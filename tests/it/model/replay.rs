//! Walks the chain topic event by event; each event asks for its decisions, and what the decisions say is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use utxo_store::{
    event::{Action, DecidedInput, Decision, DecisionBody, Event, OutcomeKind},
    record::Reason,
    tx::{Outpoint, Txid},
};

use super::{
    Complaint, Expected, Logged, Logs, Place, Rules,
    commands::Executed,
    facts::Facts,
    history::{Bars, Fate, History, Standing},
};

/// What opens a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// A contest, for this reason.
    ByEvent(Reason),
    /// A `Reconsider`.
    Reconsider,
}

/// The walk.
pub struct Replay<'l> {
    pub logs: &'l Logs,
    pub history: History,
    /// By chain offset, in their order.
    pub decisions: BTreeMap<u64, Vec<DecisionBody>>,
    /// Of the event that is being handled: its offset, and the decision that is next.
    pub at: u64,
    pub next: usize,
    /// Outputs that the sequencer has touched, and since when: they have a history.
    pub touched: BTreeMap<Outpoint, u64>,
    /// Transactions that were conflicting by verdict at some time.
    pub ever_lost: BTreeSet<Txid>,
    /// Transactions that a contest or a decision has named.
    pub mentioned: BTreeSet<Txid>,
    /// Transactions that became conflicting, by the parents that certainly know of them: those give second chances.
    pub noted: BTreeMap<Txid, BTreeSet<Txid>>,
    /// Certainly stored whole by now, whatever became of them.
    pub stored: BTreeSet<Txid>,
    /// Who must be reconsidered behind which offset.
    pub chances: Vec<(Txid, u64)>,
    pub reconsidered: BTreeMap<Txid, u64>,
    /// Hashes of the bodies that contests have named.
    pub contested_bodies: BTreeMap<Txid, BTreeSet<[u8; 32]>>,
    /// What validators and clients must have been told, by chain offset and transaction.
    pub told: BTreeMap<(u64, Txid), Vec<OutcomeKind>>,
    /// Events that the sequencer must have buried.
    pub buried: BTreeSet<Place>,
    /// Commands so far, by id: where each was executed, and what became of it.
    pub commands: BTreeMap<[u8; 16], Executed>,
    /// Transactions that a contest or a decision names anywhere in the logs.
    pub ever_contested: BTreeSet<Txid>,
    /// Messages of the chain that are no event that belongs there.
    pub chain_poison: BTreeSet<u64>,
    /// When a block first brings each coinbase, ms since the epoch, by its bytes.
    pub brought: BTreeMap<Bytes, i64>,
    /// The first message of each key of the validated topic.
    pub came: BTreeMap<Bytes, Place>,
    pub complaints: Vec<Complaint>,
}

impl<'l> Replay<'l> {
    pub fn new(logs: &'l Logs, rules: &Rules) -> Self {
        let facts = Facts::of(logs, rules);
        let history = History {
            rules: *rules,
            facts: Arc::new(facts),
            fates: BTreeMap::new(),
            bars: Bars::default(),
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
            at: 0,
            next: 0,
            touched: BTreeMap::new(),
            ever_lost: BTreeSet::new(),
            mentioned: BTreeSet::new(),
            noted: BTreeMap::new(),
            stored: BTreeSet::new(),
            chances: Vec::new(),
            reconsidered: BTreeMap::new(),
            contested_bodies: BTreeMap::new(),
            told: BTreeMap::new(),
            buried: BTreeSet::new(),
            commands: BTreeMap::new(),
            ever_contested: BTreeSet::new(),
            chain_poison: BTreeSet::new(),
            brought: brought(logs),
            came: came(logs),
            complaints: Vec::new(),
        }
    }

    pub fn run(mut self) -> Result<Expected, Vec<Complaint>> {
        self.read_decisions();
        self.begin();
        for logged in &self.logs.chain {
            self.chain_event(logged);
        }
        self.finish();
        self.check_messages();
        if !self.complaints.is_empty() {
            return Err(self.complaints);
        }
        if let Some(height) = self.history.rules.pruned_to {
            self.history.forget(height);
        }
        Ok(self.history.expected())
    }

    pub fn complain(&mut self, what: impl Into<String>) {
        self.complain_of(format!("chain offset {}", self.at), what);
    }

    pub fn complain_of(&mut self, about: impl ToString, what: impl Into<String>) {
        self.complaints.push(Complaint { about: about.to_string(), what: what.into() });
    }

    /// The first record for (chain offset, step) counts; steps are contiguous; `Closed` is the last.
    pub fn read_decisions(&mut self) {
        for logged in &self.logs.decisions {
            let offset = logged.message.offset;
            let Ok(Event::Decision(Decision { chain_offset, step, body })) = Event::decode(&logged.message.payload)
            else {
                self.complain_of(format!("decision at {offset}"), "is no decision");
                continue;
            };
            let steps = self.decisions.entry(chain_offset).or_default();
            let count = steps.len() as u32;
            let closed = steps.last() == Some(&DecisionBody::Closed);
            if step == count {
                steps.push(body);
            }
            let about = format!("decision at {offset} (chain offset {chain_offset}, step {step})");
            // A block whose transaction a node forgot may have to let it win once more.
            if step == count && closed && !self.history.rules.forgetful {
                self.complain_of(about, "comes behind `Closed`");
            } else if step > count {
                self.complain_of(about, format!("skips step {count}"));
            }
        }
        for steps in self.decisions.values_mut() {
            *steps = joined(std::mem::take(steps));
        }
        let handled: BTreeSet<u64> = self.logs.chain.iter().map(|logged| logged.message.offset).collect();
        for offset in self.decisions.keys().copied().collect::<Vec<_>>() {
            if !handled.contains(&offset) {
                self.complain_of(format!("chain offset {offset}"), "is decided on, and is not there");
            }
        }
    }

    /// What a transaction was when a decision first named it is what it had been from the start: contested, or live.
    fn begin(&mut self) {
        let mut first: BTreeMap<Txid, bool> = BTreeMap::new();
        let mut note = |txid: Txid, live: bool| {
            first.entry(txid).or_insert(live);
        };
        for body in self.decisions.values().flatten() {
            match body {
                DecisionBody::Accepted { txid, inputs, losers, .. } => {
                    note(*txid, false);
                    losers.iter().for_each(|loser| note(*loser, true));
                    // A partial transaction that holds a slot is live, and gives it back.
                    let spends = |txid: &Txid| !self.history.facts.second.contains_key(txid);
                    let holders = inputs.iter().filter_map(|input| input.holder).map(|holder| holder.txid);
                    holders.filter(|holder| holder == txid || spends(holder)).for_each(|holder| note(holder, false));
                }
                DecisionBody::Conflicting { txid, reason, live, .. } => {
                    note(*txid, *live);
                    if let Reason::DoubleSpend { winner, .. } = reason {
                        note(*winner, true);
                    }
                }
                DecisionBody::Cone { members, .. } => members.iter().for_each(|member| note(member.txid, member.live)),
                DecisionBody::PassedOver { .. }
                | DecisionBody::CommandDone { .. }
                | DecisionBody::AcceptedPart { .. }
                | DecisionBody::Closed => {}
            }
        }
        let contests = self.logs.chain.iter().filter_map(|logged| match Event::decode(&logged.message.payload) {
            Ok(Event::Contest(contest)) => Some(contest.txid),
            _ => None,
        });
        self.ever_contested = contests.chain(first.keys().copied()).collect();
        for txid in self.history.facts.txs.keys() {
            let live = first.get(txid).copied().unwrap_or(true) || self.history.is_partial(txid);
            let standing = if live { Standing::Uncontested } else { Standing::Pending };
            self.history.fates.insert(*txid, Fate::new(standing));
        }
    }

    fn chain_event(&mut self, logged: &Logged) {
        (self.at, self.next) = (logged.message.offset, 0);
        match Event::decode(&logged.message.payload) {
            Ok(Event::BlockMined(mined)) => self.block_mined(logged, &mined),
            Ok(Event::Reorg(reorg)) => self.reorg(logged, &reorg),
            Ok(Event::Contest(contest)) => self.contest(&contest),
            Ok(Event::Command(command)) => match command.action {
                Action::Reconsider { txid } => {
                    self.reconsidered.insert(txid, self.at);
                    self.decide_on(txid, Opened::Reconsider, None);
                    self.expect_closed();
                }
                _ => self.command(logged, &command),
            },
            _ => {
                self.chain_poison.insert(self.at);
            }
        }
        self.history.note_due();
        let count = self.decisions.get(&self.at).map_or(0, Vec::len);
        if self.next < count {
            let left: Vec<_> = self.decisions[&self.at][self.next..].to_vec();
            self.complain(format!("has decisions that nothing asks for: {left:?}"));
        }
    }

    /// The next decision on the event that is being handled.
    pub fn step(&mut self) -> Option<DecisionBody> {
        let body = self.peek();
        self.next += usize::from(body.is_some());
        body
    }

    pub fn peek(&self) -> Option<DecisionBody> {
        self.decisions.get(&self.at)?.get(self.next).cloned()
    }

    pub fn expect_closed(&mut self) {
        match self.step() {
            Some(DecisionBody::Closed) => {}
            other => self.complain(format!("is not closed: {other:?}")),
        }
    }

    /// An event on which anything was decided has a last decision.
    pub fn close_any(&mut self) {
        if self.peek().is_some() || self.next > 0 {
            self.expect_closed();
        }
    }
}

fn brought(logs: &Logs) -> BTreeMap<Bytes, i64> {
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

fn came(logs: &Logs) -> BTreeMap<Bytes, Place> {
    let mut first: BTreeMap<Bytes, Place> = BTreeMap::new();
    for logged in &logs.validated {
        let least = first.entry(logged.message.key.clone()).or_insert(logged.place());
        *least = logged.place().min(*least);
    }
    first
}

/// Parts of one decision that stand directly behind each other, from the first to the last, are that decision; others are
/// void.
fn joined(steps: Vec<DecisionBody>) -> Vec<DecisionBody> {
    let mut whole_ones = Vec::new();
    // What was begun: its name, how many parts of it there were, and what they come to.
    type Begun = ([u8; 16], u32, Vec<DecidedInput>, Vec<Txid>);
    let mut begun: Option<Begun> = None;
    for body in steps {
        let DecisionBody::AcceptedPart { whole, part, parts, txid, height, inputs, losers, by_block } = body else {
            begun = None;
            whole_ones.push(body);
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
            whole_ones.push(DecisionBody::Accepted { txid, height, inputs, losers, by_block });
        } else {
            begun = Some((whole, part + 1, all_inputs, all_losers));
        }
    }
    whole_ones
}
