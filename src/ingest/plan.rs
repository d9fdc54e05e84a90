//! What each transaction in flight does next: `(state, event or outcome) -> (state', actions)`. Pure: no I/O, no clock,
//! no runtime; time is an argument.
//!
//! The life of a transaction (`DESIGN.md` section 6): wait for parents that are in flight here → take every input's slot,
//! all groups at once → create → done. What bars its way parks it (an absent, half-created, locked or undecided parent)
//! or has it contested (everything else). Nothing here gives back, overwrites or flags.

pub mod barred;
mod contesting;
mod ended;
mod missing;
mod pace;
mod paged;
mod riding;
mod waiting;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use barred::Barred;
use ended::Ended;
use pace::Pace;
use waiting::Trying;

use crate::{
    engine::Row,
    ingest::{
        flight::{Flight, FlightId, Group, Request, Stage, Work},
        parked::Parked,
    },
    prepare::{PreparedSeed, PreparedTx},
    record::{Key, Operation, Outcome, Page, Reason, Rejection, Reply, Rules, TxState},
    replay::Mode,
    store::create::{Paged, Starts},
    telemetry::Completion,
    tx::{Txid, TxidMap},
};

/// Where an event was read, and under which epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventRef {
    /// Milliseconds since the epoch, as the topic has it.
    pub timestamp_ms: i64,
    /// Partition of the topic of validated transactions.
    pub partition: i32,
    /// Its offset.
    pub offset: u64,
    /// Of the assignment under which it was read.
    pub epoch: u64,
}

/// Which row an outcome belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// A group of spends of a flight.
    Spend(FlightId, u32),
    /// The create of a flight.
    Create(FlightId),
    /// The contested create of a flight.
    StoreContested(FlightId),
    /// What the last slot of a page has to tell its master, for a group of spends of a flight.
    PageSpent(FlightId, u32),
}

impl Token {
    /// Whose row it is.
    pub fn flight(self) -> FlightId {
        match self {
            Token::Spend(id, _) | Token::Create(id) | Token::StoreContested(id) | Token::PageSpent(id, _) => id,
        }
    }
}

/// What the pipeline must do next.
#[derive(Debug)]
pub enum Action {
    /// Send to the engine; answer with [`Planner::outcome`].
    Apply(Token, Row),
    /// Create a transaction that takes more than one write; answer with [`Planner::outcome`].
    CreatePaged(Token, Paged),
    /// Go on no longer with what takes many writes, or waits for the blob store, for this flight: its partitions were taken away. What has
    /// begun may end all the same; answer with [`Planner::given_up`], or as if nothing had been said.
    GiveUp(FlightId),
    /// Read the transaction's own master; answer with [`Planner::own_record`].
    ReadOwn(FlightId, Txid),
    /// Read the master of the parent of a group of spends; answer with [`Planner::parent_record`].
    ReadParent(FlightId, u32, Txid),
    /// Publish a contest; once acknowledged, answer with [`Planner::contest_published`].
    PublishContest {
        /// Whose.
        flight: FlightId,
        /// The contestant.
        txid: Txid,
        /// Its first event.
        event: EventRef,
        /// Hash of its body, as that event has it.
        body: [u8; 32],
        /// Why.
        reason: Reason,
    },
    /// An event whose content contradicts what is stored; once its dead letter is acknowledged it is complete.
    Mismatched {
        /// The event.
        event: EventRef,
        /// What it claims.
        work: Work,
    },
    /// Everything that this event asks for is in the store.
    Complete(EventRef, Completion),
}

/// Bounds and pauses of the planner.
#[derive(Debug, Clone, Copy)]
pub struct PlanSettings {
    /// First pause before a parked transaction is tried again, ms; it doubles, up to what is usual of its age among those that are parked.
    pub retry_min_ms: u64,
    /// The oldest pause for a small part of this, ms; where very many are parked the younger ones do for longer.
    pub retry_max_ms: u64,
    /// How long a transaction waits on a locked parent before it is contested, ms.
    pub flag_grace_ms: u64,
    /// What operations do.
    pub rules: Rules,
}

/// Counts for metrics and backpressure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanCounts {
    /// Transactions that are moving.
    pub active: usize,
    /// Transactions that wait: for a parent, or halted.
    pub parked: usize,
    /// The most that ever waited at once.
    pub parked_max: usize,
}

/// All transactions in flight.
#[derive(Debug)]
pub struct Planner {
    settings: PlanSettings,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    generation: u32,
    by_txid: TxidMap<FlightId>,
    /// Parked flights by the absent parent they wait for: its arrival here wakes them.
    awaited: TxidMap<BTreeSet<FlightId>>,
    parked: Parked,
    next_look_at_front_ms: u64,
    trying: Vec<Trying>,
    pace_behind: Pace,
    pace_of_new: Pace,
    actions: VecDeque<Action>,
    /// Flights whose parents have all ended and that are to start: a queue, so that a chain of any length needs no stack.
    ready: VecDeque<FlightId>,
    /// Those that wait; each knows its place.
    waiting: Vec<FlightId>,
    /// The same of each partition, by its number.
    waiting_of: Vec<usize>,
    parked_max: usize,
    store_forgets: bool,
    /// Over a store that forgets only.
    ended: Ended,
    /// Partitions that are paused at their bound.
    at_bound: BTreeSet<i32>,
}

impl Planner {
    /// Nothing in flight.
    pub fn new(settings: PlanSettings) -> Self {
        Planner {
            settings,
            flights: Vec::new(),
            free: Vec::new(),
            generation: 0,
            by_txid: TxidMap::default(),
            awaited: TxidMap::default(),
            parked: Parked::default(),
            next_look_at_front_ms: 0,
            trying: Vec::new(),
            pace_behind: Pace::default(),
            pace_of_new: Pace::default(),
            actions: VecDeque::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            waiting_of: Vec::new(),
            parked_max: 0,
            store_forgets: false,
            ended: Ended::default(),
            at_bound: BTreeSet::new(),
        }
    }

    /// For a store that may forget: a transaction that is live is not done while a parent is absent, for the parent's
    /// record may have been forgotten, and the spend with it.
    pub fn over_forgetful_store(self, store_forgets: bool) -> Self {
        Planner { store_forgets, ..self }
    }

    /// What is to be done next, in order.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How much is in flight.
    pub fn counts(&self) -> PlanCounts {
        let all = self.flights.len() - self.free.len();
        PlanCounts { active: all - self.waiting.len(), parked: self.waiting.len(), parked_max: self.parked_max }
    }

    /// Transactions of a partition that wait.
    pub fn parked_of(&self, partition: i32) -> usize {
        usize::try_from(partition).ok().and_then(|number| self.waiting_of.get(number)).copied().unwrap_or(0)
    }

    /// A validated transaction arrives.
    pub fn submit(&mut self, event: EventRef, tx: Arc<PreparedTx>, mode: Mode, now_ms: u64) {
        self.begin(Request { event, work: Work::Validated(tx), mode, again: false });
        self.settle_ready(now_ms);
    }

    /// A partial transaction arrives.
    pub fn submit_seed(&mut self, event: EventRef, seed: Arc<PreparedSeed>, mode: Mode, now_ms: u64) {
        self.begin(Request { event, work: Work::Seeded(seed), mode, again: false });
        self.settle_ready(now_ms);
    }

    /// A second event for a transaction in flight joins the first where it says the same; where it does not (it claims other
    /// previous outputs, or one of them is a partial transaction) it has its own turn after the first, as it would have had
    /// if it had been read later. Either waits for as long as the first does, in memory of its own: who waits must not hold the batches
    /// that its repeats were read with.
    fn begin(&mut self, request: Request) {
        let txid = request.work.txid();
        let Some(flight) = self.by_txid.get(&txid).copied().and_then(|id| self.get(id)) else {
            let again = request.again || self.ended.knows(&txid);
            return self.start(Request { again, ..request });
        };
        if flight.work.says_the_same(&request.work) {
            flight.events.push(request.event);
            flight.joined.push((request.event, request.work.apart()));
        } else {
            flight.behind.push_back(Request { work: request.work.apart(), ..request });
        }
    }

    fn start(&mut self, request: Request) {
        let (mode, seeded) = (request.mode, matches!(request.work, Work::Seeded(_)));
        let id = self.enter(request);
        if seeded {
            self.create(id);
            return;
        }
        match mode {
            Mode::Normal => self.launch(id),
            Mode::RebuildContested => self.store_contested(id, Reason::Found),
            // Nobody could settle what it takes, should a partial transaction have come first.
            Mode::RebuildWon | Mode::RebuildAccepted => self.read_own(id, Stage::Looking),
        }
    }

    fn read_own(&mut self, id: FlightId, stage: Stage) {
        let Some(flight) = self.get(id) else { return };
        flight.stage = stage;
        let txid = flight.txid;
        self.actions.push_back(Action::ReadOwn(id, txid));
    }

    /// A new flight, which wakes those that wait for its transaction.
    fn enter(&mut self, request: Request) -> FlightId {
        let txid = request.work.txid();
        self.generation = self.generation.wrapping_add(1);
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            (self.flights.len() - 1) as u32
        });
        let id = FlightId { index, generation: self.generation };
        let mut flight = Flight::new(id, request);
        let waiters = if flight.again { None } else { self.awaited.remove(&txid) };
        for waiter in waiters.unwrap_or_default() {
            if self.unpark(waiter) {
                flight.children.push(waiter);
            }
        }
        self.flights[index as usize] = Some(flight);
        self.by_txid.insert(txid, id);
        id
    }

    fn get(&mut self, id: FlightId) -> Option<&mut Flight> {
        self.flights.get_mut(id.index as usize)?.as_mut().filter(|flight| flight.id == id)
    }

    /// Waits for the parents that are in flight here, else starts at once.
    fn launch(&mut self, id: FlightId) {
        let mut remaining = 0;
        for parent in self.parents_in_flight(id, |_| true) {
            if let Some(parent) = self.get(parent) {
                parent.children.push(id);
                remaining += 1;
            }
        }
        if remaining == 0 {
            self.ready.push_back(id);
        } else {
            self.await_parents(id, remaining);
        }
    }

    /// The distinct parents of the groups that `wanted` picks and that are in flight here.
    fn parents_in_flight(&mut self, id: FlightId, wanted: impl Fn(&Group) -> bool) -> Vec<FlightId> {
        let Some(flight) = self.get(id) else { return Vec::new() };
        let Work::Validated(tx) = &flight.work else { return Vec::new() };
        let parents: Vec<Txid> = tx
            .groups
            .iter()
            .zip(&flight.groups)
            .filter(|(_, group)| wanted(group))
            .map(|(prepared, _)| prepared.parent)
            .collect();
        let mut found: Vec<FlightId> = parents.iter().filter_map(|parent| self.first_flight(parent)).collect();
        // Several groups may be of one parent: it is one to wait for.
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Starts everything whose parents have ended.
    fn settle_ready(&mut self, now_ms: u64) {
        while let Some(id) = self.ready.pop_front() {
            self.take_slots(id, now_ms);
        }
    }

    /// Sends the spends of every group that is not held yet; with none left, creates. Who has lost by the log takes none.
    fn take_slots(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        if flight.mode == Mode::RebuildContested {
            return self.store_contested(id, Reason::Found);
        }
        let Work::Validated(tx) = &flight.work else { return self.create(id) };
        let tx = tx.clone();
        let marks = flight.marks();
        let mut rows = Vec::new();
        for (index, (group, prepared)) in flight.groups.iter_mut().zip(&tx.groups).enumerate() {
            if !group.held {
                group.refusal = None;
                let row = Row { key: prepared.key(), operation: Operation::Spend(tx.spend(prepared, marks)) };
                rows.push(Action::Apply(Token::Spend(id, index as u32), row));
            }
        }
        flight.stage = Stage::Spending { pending: rows.len() as u32 };
        let none = rows.is_empty();
        self.actions.extend(rows);
        if none {
            self.slots_answered(id, now_ms);
        }
    }

    /// The engine's answer to a row.
    pub fn outcome(&mut self, token: Token, outcome: Outcome, now_ms: u64) {
        match token {
            Token::Spend(id, group) => self.spend_answered(id, group, outcome, now_ms),
            Token::Create(id) => self.create_answered(id, outcome, now_ms),
            Token::StoreContested(id) => self.stored_contested(id, outcome, now_ms),
            Token::PageSpent(id, group) => self.master_told(id, group, &outcome, now_ms),
        }
        self.settle_ready(now_ms);
    }

    fn spend_answered(&mut self, id: FlightId, group: u32, outcome: Outcome, now_ms: u64) {
        if self.asks_master(id, group, &outcome) {
            return;
        }
        if let Outcome::Rejected(rejection) = outcome {
            if let Some(state) = self.get(id).and_then(|flight| flight.groups.get_mut(group as usize)) {
                state.refusal = Some(rejection);
            }
            self.group_answered(id, now_ms);
        } else {
            self.spends_held(id, group, now_ms);
        }
    }

    fn spends_held(&mut self, id: FlightId, group: u32, now_ms: u64) {
        if let Some(state) = self.get(id).and_then(|flight| flight.groups.get_mut(group as usize)) {
            state.held = true;
        }
        self.group_answered(id, now_ms);
    }

    fn group_answered(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        if let Stage::Spending { pending } = &mut flight.stage {
            *pending -= 1;
            if *pending == 0 {
                self.slots_answered(id, now_ms);
            }
        }
    }

    /// All groups have answered: create, wait, or contest.
    fn slots_answered(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        match flight.verdict_on_slots() {
            Barred::No => self.create(id),
            Barred::Pruned => self.finish(id, Completion::PassedOver),
            Barred::Contested(reason) => self.store_contested(id, reason),
            Barred::Waits => {
                // A transaction that is live already must not wait for parents that were pruned since. In a rebuild a
                // decision may say meanwhile that it fell: then what it waits for never comes.
                if flight.own_state_read && !flight.mode.ends_live() {
                    self.park(id, now_ms);
                } else {
                    self.read_own(id, Stage::ReadingOwn);
                }
            }
        }
    }

    /// The transaction's own master; `None`: there is none.
    pub fn own_record(&mut self, id: FlightId, own: Option<&Page>, now_ms: u64) {
        let forgets = self.store_forgets;
        let Some(flight) = self.get(id) else { return };
        let (stage, waits) = (flight.stage, flight.waits());
        if !waits && !matches!(stage, Stage::ReadingOwn | Stage::ReadingFirst { .. } | Stage::Looking) {
            // It was asked while it waited, and has moved since.
            return;
        }
        if let Some(own) = own.filter(|own| own.is_other_kind_than(flight.work.page())) {
            let contradicts = own.contradicts(flight.work.page());
            if waits {
                self.wait_no_longer(id);
            }
            self.came_second(id, contradicts);
            return self.settle_ready(now_ms);
        }
        if let Stage::ReadingFirst { contested } = stage {
            self.first_was_read(id, contested, own, now_ms);
            return self.settle_ready(now_ms);
        }
        match own.map(Page::state) {
            _ if stage == Stage::Looking => self.launch(id),
            _ if own.is_some_and(Page::is_fallen_remains) => {
                if waits {
                    self.wait_no_longer(id);
                }
                self.store_contested(id, Reason::Found);
            }
            Some(TxState::Stub(_)) if waits && (forgets || flight.mode.ends_live()) => {
                self.wait_no_longer(id);
                self.store_contested(id, Reason::Found);
            }
            Some(TxState::Creating) if waits && !forgets => {
                self.wait_no_longer(id);
                self.create(id);
            }
            Some(TxState::Live | TxState::Pruned(_)) if waits && !forgets => {
                self.wait_no_longer(id);
                self.finish(id, Completion::PassedOver);
            }
            _ if waits => {}
            Some(TxState::Pruned(_)) => self.finish(id, Completion::PassedOver),
            Some(TxState::Live) if !forgets => self.finish(id, Completion::PassedOver),
            // Committed, and left by whoever began it: what is left to do is the same for everybody. But over a store that forgets
            // the parent that is absent was forgotten, and the spend with it.
            Some(TxState::Creating) if !forgets => self.create(id),
            Some(TxState::Stub(_)) if flight.mode.ends_live() => self.store_contested(id, Reason::Found),
            Some(TxState::Conflicting(_)) if flight.mode.ends_live() => {
                self.finish(id, Completion::PassedOver);
            }
            _ => {
                flight.own_state_read = true;
                self.park(id, now_ms);
            }
        }
        self.settle_ready(now_ms);
    }

    /// The flight of a transaction that may not be stored yet. Where an earlier event of it has had its turn, nobody has to
    /// wait for a later one.
    fn first_flight(&self, txid: &Txid) -> Option<FlightId> {
        let flight = self.flights.get(self.by_txid.get(txid)?.index as usize)?.as_ref()?;
        (!flight.again).then_some(flight.id)
    }

    /// Creates the transaction, live, with the spends of the children that wait for it.
    fn create(&mut self, id: FlightId) {
        if self.writes_nothing(id) {
            return self.read_own(id, Stage::ReadingFirst { contested: None });
        }
        let Some(flight) = self.get(id) else { return };
        flight.stage = Stage::Creating;
        let (work, children) = (flight.work.clone(), flight.children.clone());
        if self.create_paged(Token::Create(id), &work, Starts::Live) {
            return;
        }
        let page = work.page().clone();
        let key = Key::Page(page.txid, page.number);
        let page = self.ride(&children, key, page, id);
        let row = Row { key, operation: Operation::Create(page) };
        self.actions.push_back(Action::Apply(Token::Create(id), row));
    }

    fn create_answered(&mut self, id: FlightId, outcome: Outcome, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        match outcome {
            // A partial transaction whose children were refused before it came. The spends that rode are not there.
            Outcome::Applied(Reply::ContestDue) | Outcome::AlreadyApplied(Reply::ContestDue) => {
                self.contest_or_end(id, Reason::Found, Completion::Live);
            }
            Outcome::Applied(_) => {
                let children = flight.children.clone();
                for child in children {
                    self.boarded(child, id);
                }
                self.finish(id, Completion::Live);
            }
            // Somebody else's create: the spends that rode on ours are not there.
            Outcome::AlreadyApplied(_) => self.finish(id, Completion::Live),
            Outcome::Rejected(Rejection::OtherContent) => self.came_second(id, true),
            Outcome::Rejected(Rejection::OtherKind) => self.came_second(id, false),
            // It had won when its first event was read, and lost since: the decision that says so was applied.
            Outcome::Rejected(Rejection::Exists(TxState::Conflicting(_))) if flight.mode.ends_live() => {
                self.finish(id, Completion::PassedOver);
            }
            Outcome::Rejected(Rejection::Exists(TxState::Stub(_) | TxState::Conflicting(_) | TxState::Pruned(_))) => {
                self.store_contested(id, Reason::Found);
            }
            // Somebody else is at it.
            Outcome::Rejected(_) => self.park(id, now_ms),
        }
    }

    /// Completes the events of a flight and lets its children go on.
    fn finish(&mut self, id: FlightId, how: Completion) {
        let Some(flight) = self.remove(id) else { return };
        if self.store_forgets {
            flight.events.iter().for_each(|event| self.ended.note(flight.txid, *event));
        }
        self.actions.extend(flight.events.iter().map(|event| Action::Complete(*event, how)));
        for child in flight.children {
            let Some(flight) = self.get(child) else { continue };
            if let Stage::AwaitingParents { remaining } = &mut flight.stage {
                *remaining -= 1;
                if *remaining == 0 {
                    self.ends_waiting(child);
                    self.ready.push_back(child);
                }
            }
        }
        for request in flight.behind {
            self.begin(Request { again: true, ..request });
        }
    }

    fn remove(&mut self, id: FlightId) -> Option<Flight> {
        self.get(id)?;
        let flight = self.flights[id.index as usize].take()?;
        debug_assert!(flight.waits_at.is_none(), "it ends while it is known to wait");
        self.free.push(id.index);
        self.by_txid.remove(&flight.txid);
        if flight.awaits_registered {
            for parent in flight.parents() {
                if let Some(waiters) = self.awaited.get_mut(&parent) {
                    waiters.remove(&id);
                    if waiters.is_empty() {
                        self.awaited.remove(&parent);
                    }
                }
            }
        }
        Some(flight)
    }

    /// Everything is read again: what is in flight is dropped, wherever it stands. Answers to it find nothing.
    pub fn abandon(&mut self) {
        self.free = (0..self.flights.len() as u32).collect();
        self.flights.iter_mut().for_each(|flight| *flight = None);
        self.by_txid.clear();
        self.awaited.clear();
        self.parked = Parked::default();
        self.trying.clear();
        self.actions.clear();
        self.ready.clear();
        self.ended = Ended::default();
        self.at_bound.clear();
        self.waiting.clear();
        self.waiting_of.clear();
    }

    /// What came of the events of a partition below this offset can no longer be forgotten.
    pub fn settle(&mut self, partition: i32, safe: u64) {
        self.ended.settle(partition, safe);
    }

    /// A partition was taken away: what only waits on its behalf is dropped (whoever has it now reads it again); what is
    /// moving ends by itself, and its completion is not counted. But a create may take long, and is given up.
    pub fn revoke(&mut self, partition: i32, now_ms: u64) {
        self.at_bound.remove(&partition);
        self.ended.revoke(partition);
        let mut dropped = Vec::new();
        for flight in self.flights.iter_mut().flatten() {
            flight.events.retain(|event| event.partition != partition);
            flight.behind.retain(|request| request.event.partition != partition);
            match flight.stage {
                _ if !flight.events.is_empty() => {}
                Stage::Parked | Stage::Halted => dropped.push(flight.id),
                Stage::Creating | Stage::StoringContested { .. } => self.actions.push_back(Action::GiveUp(flight.id)),
                _ => {}
            }
        }
        for id in dropped {
            self.wait_no_longer(id);
            self.finish(id, Completion::PassedOver);
        }
        self.settle_ready(now_ms);
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod properties;
