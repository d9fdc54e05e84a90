//! What each transaction in flight does next: `(state, event or outcome) -> (state', actions)`. Pure: no I/O, no clock,
//! no runtime; time is an argument.
//!
//! The life of a transaction (`DESIGN.md` section 6): wait for parents that are in flight here → take every input's slot,
//! all groups at once → create → done. What bars its way parks it (an absent, half-created, locked or undecided parent)
//! or has it contested (everything else). Nothing here gives back, overwrites or flags.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{
    engine::Row,
    ingest::{
        flight::{Flight, FlightId, Group, Request, Stage, Work},
        parked::Parked,
        prepare::{PreparedSeed, PreparedTx},
        proof::Ties,
    },
    record::{
        self, Key, Marks, Operation, Outcome, Page, Reason, Record, Rejection, Reply, Rules, Spend, SpendSlot, TxState,
        Verdict,
    },
    telemetry::Completion,
    tx::Txid,
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

/// How a transaction is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The fast path, and contests.
    Normal,
    /// Below the frontier of a rebuild, known to have been contested: stored contested at once, takes nothing, tells
    /// nobody.
    RebuildContested,
    /// Below the frontier of a rebuild, known to have won at first: ignores marks, and waits where others would contest.
    RebuildWon,
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
}

/// What the pipeline must do next.
#[derive(Debug)]
pub enum Action {
    /// Send to the engine; answer with [`Planner::outcome`].
    Apply(Token, Row),
    /// Read the transaction's own master; answer with [`Planner::own_record`].
    ReadOwn(FlightId, Txid),
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
    /// First pause before a parked transaction is tried again, ms; doubles up to `retry_max_ms`.
    pub retry_min_ms: u64,
    /// Longest pause, ms.
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
    /// Transactions that wait for a parent.
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
    awaited: TxidMap<Vec<FlightId>>,
    parked: Parked,
    actions: VecDeque<Action>,
    /// Flights whose parents have all ended and that are to start: a queue, so that a chain of any length needs no stack.
    ready: VecDeque<FlightId>,
    waiting: usize,
    parked_max: usize,
    store_forgets: bool,
    /// Partitions that are paused at their bound.
    at_bound: BTreeSet<i32>,
}

/// Keyed by transaction id, with a fixed hash: iteration order must not be random (and is never relied upon).
pub type TxidMap<V> = std::collections::HashMap<Txid, V, foldhash::fast::FixedState>;

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
            actions: VecDeque::new(),
            ready: VecDeque::new(),
            waiting: 0,
            parked_max: 0,
            store_forgets: false,
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
        PlanCounts { active: all - self.waiting, parked: self.waiting, parked_max: self.parked_max }
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
    /// if it had been read later.
    fn begin(&mut self, request: Request) {
        let Some(flight) = self.by_txid.get(&request.work.txid()).copied().and_then(|id| self.get(id)) else {
            return self.start(request);
        };
        if flight.work.says_the_same(&request.work) {
            flight.events.push(request.event);
            flight.joined.push((request.event, request.work));
        } else {
            flight.behind.push_back(request);
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
            Mode::RebuildWon => self.read_own(id, Stage::Looking),
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

    /// A parked flight waits for a parent that has just arrived instead.
    fn unpark(&mut self, id: FlightId) -> bool {
        let Some(flight) = self.get(id) else { return false };
        if let Stage::Parked = flight.stage {
            flight.stage = Stage::AwaitingParents { remaining: 1 };
            self.parked.remove(id);
            return true;
        }
        false
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

    fn await_parents(&mut self, id: FlightId, remaining: u32) {
        if let Some(flight) = self.get(id) {
            flight.stage = Stage::AwaitingParents { remaining };
            self.count_waiting(1);
        }
    }

    fn count_waiting(&mut self, by: isize) {
        self.waiting = self.waiting.saturating_add_signed(by);
        self.parked_max = self.parked_max.max(self.waiting);
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
        found.dedup();
        found
    }

    /// Starts everything whose parents have ended.
    fn settle_ready(&mut self, now_ms: u64) {
        while let Some(id) = self.ready.pop_front() {
            self.take_slots(id, now_ms);
        }
    }

    /// Sends the spends of every group that is not held yet; with none left, creates.
    fn take_slots(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
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
        }
        self.settle_ready(now_ms);
    }

    fn spend_answered(&mut self, id: FlightId, group: u32, outcome: Outcome, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        let Some(state) = flight.groups.get_mut(group as usize) else { return };
        match outcome {
            Outcome::Applied(_) | Outcome::AlreadyApplied(_) => state.held = true,
            Outcome::Rejected(rejection) => state.refusal = Some(rejection),
        }
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
                if flight.own_state_read && flight.mode != Mode::RebuildWon {
                    self.park(id, now_ms);
                } else {
                    self.read_own(id, Stage::ReadingOwn);
                }
            }
        }
    }

    /// Those that have been seen to wait for so long.
    pub fn waiting_long(&mut self, long_ms: u64, now_ms: u64) -> Vec<FlightId> {
        let waiting = self.flights.iter_mut().flatten().filter(|flight| flight.mode == Mode::Normal && flight.waits());
        let since = waiting.map(|flight| (flight.id, *flight.waits_since_ms.get_or_insert(now_ms)));
        since.filter(|(_, since_ms)| now_ms.saturating_sub(*since_ms) >= long_ms).map(|(id, _)| id).collect()
    }

    /// Those that have waited long look at their own records once more: it may all be done already, by an earlier event or by
    /// whoever had the partition before, and others wait for it here. And over a store that forgets, the sequencer may want
    /// what a node forgot, while they wait for a verdict that stands behind what it is about.
    pub fn look_at_own(&mut self, long_ms: u64, now_ms: u64) {
        for id in self.waiting_long(long_ms, now_ms) {
            if let Some(flight) = self.get(id) {
                let txid = flight.txid;
                self.actions.push_back(Action::ReadOwn(id, txid));
            }
        }
    }

    /// The transaction's own master; `None`: there is none.
    pub fn own_record(&mut self, id: FlightId, own: Option<&Page>, now_ms: u64) {
        let forgets = self.store_forgets;
        let Some(flight) = self.get(id) else { return };
        let (stage, waits) = (flight.stage, flight.waits());
        if !waits && !matches!(stage, Stage::ReadingOwn | Stage::Looking) {
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
        match own.map(Page::state) {
            _ if stage == Stage::Looking => self.launch(id),
            Some(TxState::Stub(_)) if waits && forgets => {
                self.wait_no_longer(id);
                self.store_contested(id, Reason::Found);
            }
            Some(TxState::Live | TxState::Pruned(_)) if waits && !forgets => {
                self.wait_no_longer(id);
                self.finish(id, Completion::PassedOver);
            }
            _ if waits => {}
            Some(TxState::Pruned(_)) => self.finish(id, Completion::PassedOver),
            Some(TxState::Live) if !forgets => self.finish(id, Completion::PassedOver),
            Some(TxState::Stub(_)) if flight.mode == Mode::RebuildWon => self.store_contested(id, Reason::Found),
            Some(TxState::Conflicting(_)) if flight.mode == Mode::RebuildWon => {
                self.finish(id, Completion::PassedOver);
            }
            _ => {
                flight.own_state_read = true;
                self.park(id, now_ms);
            }
        }
        self.settle_ready(now_ms);
    }

    fn park(&mut self, id: FlightId, now_ms: u64) {
        if self.get(id).is_some_and(|flight| flight.events.is_empty()) {
            // Its partitions were taken away: whoever has them now reads the event again.
            return self.finish(id, Completion::PassedOver);
        }
        if self.get(id).is_some_and(|flight| flight.gives_way()) {
            return self.finish(id, Completion::PassedOver);
        }
        // A parent with a verdict is not waited for, even where a later event of it is in flight.
        let won = self.get(id).is_some_and(|flight| flight.mode == Mode::RebuildWon);
        let in_flight = self.parents_in_flight(id, |group| match group.refusal {
            None => false,
            Some(Rejection::Conflicting(Verdict::Conflicting(_))) => won,
            Some(_) => true,
        });
        if let Some(parent) = self.missing_at_last(id, in_flight.is_empty()) {
            return self.store_contested(id, Reason::MissingParent { parent });
        }
        if !in_flight.is_empty() {
            let remaining = in_flight.len() as u32;
            for parent in in_flight {
                if let Some(parent) = self.get(parent) {
                    parent.children.push(id);
                }
            }
            return self.await_parents(id, remaining);
        }
        let settings = self.settings;
        let at_bound = self.is_at_bound(id);
        let Some(flight) = self.get(id) else { return };
        let since_ms = *flight.parked_since_ms.get_or_insert(now_ms);
        if let Some(parent) = flight.locked_parent()
            && flight.mode == Mode::Normal
            && (at_bound || now_ms.saturating_sub(since_ms) >= settings.flag_grace_ms)
        {
            return self.store_contested(id, Reason::Locked { parent });
        }
        let pause = (settings.retry_min_ms << flight.attempts.min(16)).min(settings.retry_max_ms);
        flight.attempts += 1;
        flight.stage = Stage::Parked;
        let registered = std::mem::replace(&mut flight.awaits_registered, true);
        let absent: Vec<Txid> = if registered { Vec::new() } else { flight.absent_parents().collect() };
        for parent in absent {
            self.awaited.entry(parent).or_default().push(id);
        }
        self.parked.insert(id, now_ms + pause);
        self.count_waiting(1);
    }

    fn is_at_bound(&self, id: FlightId) -> bool {
        let flight = self.flights.get(id.index as usize).and_then(Option::as_ref);
        flight.is_some_and(|flight| flight.events.iter().any(|event| self.at_bound.contains(&event.partition)))
    }

    /// A partition was read to its bound and is paused there. What waits on a flag on its behalf is contested at once: the
    /// block that lifts the flag may wait for what is not read.
    pub fn bound_reached(&mut self, partition: i32, now_ms: u64) {
        if !self.at_bound.insert(partition) {
            return;
        }
        let on_flag = |flight: &&Flight| flight.stage == Stage::Parked && flight.locked_parent().is_some();
        let waiting: Vec<FlightId> = self.flights.iter().flatten().filter(on_flag).map(|flight| flight.id).collect();
        for id in waiting {
            if self.is_at_bound(id) {
                self.wait_no_longer(id);
                self.ready.push_back(id);
            }
        }
        self.settle_ready(now_ms);
    }

    /// A partition that was paused at its bound has room again.
    pub fn bound_left(&mut self, partition: i32) {
        self.at_bound.remove(&partition);
    }

    /// Tries again what has been parked long enough.
    pub fn retry_due(&mut self, now_ms: u64) {
        while let Some(id) = self.parked.pop_due(now_ms) {
            self.count_waiting(-1);
            self.ready.push_back(id);
        }
        self.settle_ready(now_ms);
    }

    /// A transaction came that no event here brings: those that are parked until it does try again now.
    pub fn parent_came(&mut self, parent: &Txid, now_ms: u64) {
        for id in self.awaited.get(parent).cloned().unwrap_or_default() {
            if self.get(id).is_some_and(|flight| flight.stage == Stage::Parked) {
                self.wait_no_longer(id);
                self.ready.push_back(id);
            }
        }
        self.settle_ready(now_ms);
    }

    /// When [`retry_due`](Self::retry_due) has something to do, ms since the epoch.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.parked.next_due_ms()
    }

    /// The transactions that wait for a parent that may never come, by their first event: one that is absent, or one that
    /// is in flight here, came behind them, and waits itself.
    pub fn waiting_for_absent(&self) -> Vec<(EventRef, FlightId)> {
        let waiting = self.flights.iter().flatten().filter(|flight| flight.mode == Mode::Normal && flight.waits());
        waiting
            .filter(|flight| match flight.stage {
                Stage::Parked => flight.absent_parents().next().is_some(),
                _ => self.parent_behind(flight).is_some(),
            })
            .filter_map(|flight| Some((flight.first_event()?, flight.id)))
            .collect()
    }

    /// One of those that wait for a record, with what it waits for, in a line: the one whose event came first.
    pub fn one_that_waits(&self) -> Option<String> {
        let parked = self.flights.iter().flatten().filter(|flight| matches!(flight.stage, Stage::Parked));
        let (event, flight) =
            parked.filter_map(|flight| Some((flight.first_event()?, flight))).min_by_key(|(it, _)| *it)?;
        let txid = flight.work.txid();
        let EventRef { partition, offset, .. } = event;
        Some(format!("{txid} (partition {partition}, offset {offset}) waits for {}", flight.what_bars_it()))
    }

    /// The flight of a transaction that may not be stored yet. Where an earlier event of it has had its turn, nobody has to
    /// wait for a later one.
    fn first_flight(&self, txid: &Txid) -> Option<FlightId> {
        let flight = self.flights.get(self.by_txid.get(txid)?.index as usize)?.as_ref()?;
        (!flight.again).then_some(flight.id)
    }

    /// A parent in flight that waits itself, and whose own event stands behind that of its child. The child cannot wait for
    /// it: whatever the parent waits for is proven missing only after the child, which is older, has ended. `None`, too,
    /// while a parent is in flight whose event is older: that one comes to its end without the child.
    fn parent_behind(&self, child: &Flight) -> Option<Txid> {
        let first = child.first_event()?;
        let flight_of = |id: FlightId| self.flights.get(id.index as usize)?.as_ref();
        let mut behind = None;
        for parent in child.parents().filter_map(|parent| self.first_flight(&parent)).filter_map(flight_of) {
            match parent.first_event() {
                Some(event) if event < first => return None,
                _ if parent.waits() => behind = behind.or(Some(parent.txid)),
                _ => {}
            }
        }
        behind
    }

    /// For how long it has been asked whether a parent of this transaction is missing, ms.
    pub fn has_waited_ms(&mut self, id: FlightId, now_ms: u64) -> u64 {
        self.get(id).map_or(0, |flight| now_ms.saturating_sub(*flight.in_question_since_ms.get_or_insert(now_ms)))
    }

    /// What a parked transaction waits for is proven to have come already, or never: it tries once more, and is contested if
    /// a parent is still absent. (Its last try may be older than the proof, and the parent have come in between.) A parent
    /// that came behind it and waits here counts as missing, but only where ties are broken.
    pub fn parent_is_missing(&mut self, id: FlightId, ties: Ties, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        if flight.stage == Stage::Parked {
            let awaited: Vec<Txid> = flight.awaited_parents().collect();
            if flight.absent_parents().next().is_none()
                || awaited.iter().any(|parent| self.by_txid.contains_key(parent))
            {
                return;
            }
        } else {
            let flight = self.flights[id.index as usize].as_ref();
            let behind = flight.filter(|flight| flight.waits()).and_then(|flight| self.parent_behind(flight));
            if behind.is_none() || ties == Ties::Wait {
                return;
            }
        }
        self.wait_no_longer(id);
        if let Some(flight) = self.get(id) {
            flight.last_try = Some(ties);
        }
        self.ready.push_back(id);
        self.settle_ready(now_ms);
    }

    /// Whoever waited goes on, and those that it waited for must not start it when they end.
    fn wait_no_longer(&mut self, id: FlightId) {
        if self.get(id).is_some_and(|flight| flight.stage == Stage::Parked) {
            self.parked.remove(id);
        } else {
            for parent in self.parents_in_flight(id, |_| true) {
                if let Some(parent) = self.get(parent) {
                    parent.children.retain(|child| *child != id);
                }
            }
        }
        self.count_waiting(-1);
    }

    /// The parent that is absent still, after the last try. One that is in flight may be about to come, unless it stands
    /// behind its child and waits itself.
    fn missing_at_last(&mut self, id: FlightId, none_in_flight: bool) -> Option<Txid> {
        let ties = self.get(id)?.last_try.take()?;
        let flight = self.flights.get(id.index as usize)?.as_ref()?;
        let absent = flight.absent_parents().next()?;
        let is_behind = || self.parent_behind(flight).filter(|behind| flight.absent_parents().any(|it| it == *behind));
        if none_in_flight { Some(absent) } else { is_behind().filter(|_| ties == Ties::Break) }
    }

    /// Creates the transaction, live, with the spends of the children that wait for it.
    fn create(&mut self, id: FlightId) {
        let Some(flight) = self.get(id) else { return };
        let page = flight.work.page().clone();
        let children = flight.children.clone();
        flight.stage = Stage::Creating;
        let key = Key::Page(page.txid, page.number);
        let page = self.ride(&children, key, page, id);
        let row = Row { key, operation: Operation::Create(page) };
        self.actions.push_back(Action::Apply(Token::Create(id), row));
    }

    /// Lets the spends of waiting children ride on their parent's create: created and spent in one write. What the spend
    /// operation would refuse is left for the child to find out.
    fn ride(&mut self, children: &[FlightId], key: Key, page: Arc<Page>, parent: FlightId) -> Arc<Page> {
        let (places, spends): (Vec<_>, Vec<_>) =
            children.iter().filter_map(|child| self.spend_of_waiting(*child, key)).unzip();
        if spends.is_empty() {
            return page;
        }
        let mut record = Some(Record::Page(page));
        let effects = record::spend_all(&self.settings.rules, &mut record, &spends);
        for ((child, group), effect) in places.into_iter().zip(effects) {
            if let Some(flight) = self.get(child) {
                flight.groups[group].rides_on = effect.outcome.is_done().then_some(parent);
            }
        }
        match record {
            Some(Record::Page(page)) => page,
            _ => unreachable!("a spend neither removes a page nor changes what kind of record it is"),
        }
    }

    /// Which group of a waiting child takes slots of this page, and its spend.
    fn spend_of_waiting(&mut self, child: FlightId, key: Key) -> Option<((FlightId, usize), Spend)> {
        let flight = self.get(child)?;
        let (Work::Validated(tx), Stage::AwaitingParents { .. }) = (&flight.work, &flight.stage) else { return None };
        let (index, prepared) = tx.groups.iter().enumerate().find(|(_, group)| group.key() == key)?;
        Some(((child, index), tx.spend(prepared, flight.marks())))
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
            Outcome::Rejected(Rejection::Exists(TxState::Conflicting(_))) if flight.mode == Mode::RebuildWon => {
                self.finish(id, Completion::PassedOver);
            }
            Outcome::Rejected(Rejection::Exists(TxState::Stub(_) | TxState::Conflicting(_))) => {
                self.store_contested(id, Reason::Found);
            }
            // Half created by somebody who may still be at it.
            Outcome::Rejected(_) => self.park(id, now_ms),
        }
    }

    fn boarded(&mut self, child: FlightId, parent: FlightId) {
        if let Some(flight) = self.get(child) {
            for group in flight.groups.iter_mut().filter(|group| group.rides_on == Some(parent)) {
                group.held = true;
                group.refusal = None;
            }
        }
    }

    fn store_contested(&mut self, id: FlightId, reason: Reason) {
        let Some(flight) = self.get(id) else { return };
        flight.stage = Stage::StoringContested { reason };
        let page = Arc::new(Page::clone(flight.work.page()).contested());
        let row = Row { key: Key::Page(page.txid, page.number), operation: Operation::CreateContested(page) };
        self.actions.push_back(Action::Apply(Token::StoreContested(id), row));
    }

    fn stored_contested(&mut self, id: FlightId, outcome: Outcome, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        let Stage::StoringContested { reason } = flight.stage else { return };
        let publish = match outcome {
            // The verdict holds, and there is nothing to settle: a contest would be passed over. Without this every
            // redelivery of a loser would add one to the log.
            Outcome::AlreadyApplied(Reply::State(TxState::Conflicting(Verdict::Conflicting(verdict))))
                if !verdict.reopened_by_its_event() && !flight.may_hold_any() =>
            {
                false
            }
            Outcome::Applied(_) | Outcome::AlreadyApplied(_) => true,
            // Live, yet a slot does not name it: a node forgot a spend, and the sequencer mends that. But a parent that
            // was pruned, or is absent, proves nothing against a live transaction, nor does what another event of it claims.
            Outcome::Rejected(Rejection::Exists(TxState::Live)) => !matches!(
                reason,
                Reason::PrunedParent { .. } | Reason::MissingParent { .. } | Reason::Mismatch { .. } | Reason::Found
            ),
            Outcome::Rejected(Rejection::Exists(TxState::Creating)) => return self.park(id, now_ms),
            Outcome::Rejected(Rejection::OtherContent) => return self.came_second(id, true),
            Outcome::Rejected(Rejection::OtherKind) => return self.came_second(id, false),
            Outcome::Rejected(_) => false,
        };
        if publish {
            self.contest_or_end(id, reason, Completion::PassedOver)
        } else {
            self.finish(id, Completion::PassedOver)
        }
    }

    /// Contests it, also where its partitions were taken away: it may hold slots, which only a contest settles. A rebuild
    /// contests nothing.
    fn contest_or_end(&mut self, id: FlightId, reason: Reason, otherwise: Completion) {
        match self.get(id).map(|flight| flight.mode) {
            Some(Mode::Normal) => self.publish_contest(id, reason, false),
            _ => self.finish(id, otherwise),
        }
    }

    fn publish_contest(&mut self, id: FlightId, reason: Reason, contradicts: bool) {
        let Some(flight) = self.get(id) else { return };
        flight.stage = Stage::PublishingContest { contradicts };
        let (txid, event, body) = (flight.txid, flight.origin, flight.work.body_hash());
        self.actions.push_back(Action::PublishContest { flight: id, txid, event, body, reason });
    }

    /// The record is of another kind: a partial transaction came first where this is a whole one, or the other way round.
    /// It is as the first event says, so there is nothing left to do, but for what a whole one takes: the sequencer gives that
    /// back, and bars the way of who had the partition before and does not know yet. A partial one takes nothing.
    fn came_second(&mut self, id: FlightId, contradicts: bool) {
        let Some(flight) = self.get(id) else { return };
        if flight.mode == Mode::Normal && matches!(flight.work, Work::Validated(_)) {
            self.publish_contest(id, Reason::Seeded, contradicts);
        } else if contradicts {
            self.mismatched(id);
        } else {
            self.finish(id, Completion::PassedOver);
        }
    }

    /// The contest of a flight is in the log: its fate is the sequencer's now.
    pub fn contest_published(&mut self, id: FlightId, now_ms: u64) {
        match self.get(id).map(|flight| flight.stage) {
            Some(Stage::PublishingContest { contradicts: true }) => self.mismatched(id),
            _ => self.finish(id, Completion::Contested),
        }
        self.settle_ready(now_ms);
    }

    fn mismatched(&mut self, id: FlightId) {
        let Some(flight) = self.get(id) else { return };
        let (first, joined) = (flight.work.clone(), std::mem::take(&mut flight.joined));
        for event in std::mem::take(&mut flight.events) {
            // Each is buried as it was read.
            let own = joined.iter().find(|(other, _)| *other == event).map_or(&first, |(_, work)| work);
            self.actions.push_back(Action::Mismatched { event, work: own.clone() });
        }
        self.finish(id, Completion::DeadLetter);
    }

    /// Completes the events of a flight and lets its children go on.
    fn finish(&mut self, id: FlightId, how: Completion) {
        let Some(flight) = self.remove(id) else { return };
        self.actions.extend(flight.events.iter().map(|event| Action::Complete(*event, how)));
        for child in flight.children {
            let Some(flight) = self.get(child) else { continue };
            if let Stage::AwaitingParents { remaining } = &mut flight.stage {
                *remaining -= 1;
                if *remaining == 0 {
                    self.count_waiting(-1);
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
        self.free.push(id.index);
        self.by_txid.remove(&flight.txid);
        if flight.awaits_registered {
            for parent in flight.parents() {
                if let Some(waiters) = self.awaited.get_mut(&parent) {
                    waiters.retain(|waiter| *waiter != id);
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
        self.actions.clear();
        self.ready.clear();
        self.at_bound.clear();
        self.waiting = 0;
    }

    /// A partition was taken away: what only waits on its behalf is dropped (whoever has it now reads it again); what is
    /// moving ends by itself, and its completion is not counted.
    pub fn revoke(&mut self, partition: i32, now_ms: u64) {
        self.at_bound.remove(&partition);
        let mut dropped = Vec::new();
        for flight in self.flights.iter_mut().flatten() {
            flight.events.retain(|event| event.partition != partition);
            flight.behind.retain(|request| request.event.partition != partition);
            if flight.events.is_empty() && matches!(flight.stage, Stage::Parked) {
                dropped.push(flight.id);
            }
        }
        for id in dropped {
            self.wait_no_longer(id);
            self.finish(id, Completion::PassedOver);
        }
        self.settle_ready(now_ms);
    }
}

/// What stands between a transaction and its create, once every group has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barred {
    /// Nothing: every slot is held.
    No,
    /// It was created, mined and pruned long ago.
    Pruned,
    /// A parent that is absent, half created, locked or undecided.
    Waits,
    /// Everything else.
    Contested(Reason),
}

/// What one refusal means for the spender of `parent`'s slots.
pub fn barred_by(rejection: &Rejection, parent: Txid, slots: &[SpendSlot], mode: Mode) -> Barred {
    let input = |offset: u32| slots.iter().find(|slot| slot.offset == offset).map_or(0, |slot| slot.input);
    let first_input = slots.first().map_or(0, |slot| slot.input);
    if let Rejection::SpenderPruned(_) = rejection {
        return Barred::Pruned;
    }
    if mode == Mode::RebuildWon {
        return Barred::Waits;
    }
    match *rejection {
        Rejection::Conflicting(Verdict::Conflicting(_)) => Barred::Contested(Reason::ConflictingParent { parent }),
        Rejection::Pruned(_) => Barred::Contested(Reason::PrunedParent { parent }),
        Rejection::Immature(_) => Barred::Contested(Reason::Immature { input: first_input }),
        Rejection::NoSuchOutput(offset) => Barred::Contested(Reason::NoSuchOutput { input: input(offset) }),
        Rejection::HashMismatch(offset) | Rejection::OutputMismatch(offset) => {
            Barred::Contested(Reason::Mismatch { input: input(offset) })
        }
        Rejection::Frozen(offset) => Barred::Contested(Reason::Frozen { input: input(offset) }),
        Rejection::Contested(offset) => Barred::Contested(Reason::History { input: input(offset) }),
        Rejection::SpentBy(offset, holder) => {
            Barred::Contested(Reason::DoubleSpend { input: input(offset), winner: holder.txid })
        }
        Rejection::NotYetSpendable(offset, _) => Barred::Contested(Reason::NotYetSpendable { input: input(offset) }),
        // Absent, half created, locked, undecided; and what a spend never answers waits too, rather than guess.
        _ => Barred::Waits,
    }
}

/// Marks bar the way of everybody but those who are known to have won.
pub fn marks_for(mode: Mode) -> Marks {
    match mode {
        Mode::RebuildWon => Marks::Ignore,
        Mode::Normal | Mode::RebuildContested => Marks::Respect,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "plan_properties.rs"]
mod properties;
