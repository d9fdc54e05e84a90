//! The planner: the next step of each transaction in flight, `(state, event or outcome) -> (state', actions)`. Pure: no
//! I/O, no clock, no runtime; time is an argument.
//!
//! A transaction waits for parents in flight here, takes the slots of all inputs at once, is created, and completes. An
//! absent, creating, locked or undecided parent parks the transaction; any other refusal makes it contested
//! (`docs/protocols/missing-parent.md`). The planner frees no slot, overwrites no record and flags no transaction.

mod absent_parents;
mod adaptive_rate;
mod contest;
mod multi_page;
mod non_durable;
pub mod obstacle;
mod piggyback;
mod waiting;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use adaptive_rate::AdaptiveRate;
use non_durable::NonDurableTransactions;
use obstacle::Obstacle;
use waiting::OpenTry;

use crate::{
    engine::Row,
    ingest::{
        flight::{Flight, FlightId, Request, SpendGroup, Stage, SubmittedTx},
        retry_queue::RetryQueue,
    },
    prepare::{PreparedPartialTx, PreparedTx},
    record::{Key, Operation, Outcome, Page, Reason, Rejection, Reply, Rules, TxState},
    replay::Mode,
    store::create::{InitialState, PagedTx},
    telemetry::Completion,
    tx::{Txid, TxidMap},
};

/// Place of an event, and the assignment under which it was read. Events are ordered by timestamp, partition, offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventRef {
    /// Timestamp of the message in the topic, ms since the Unix epoch.
    pub timestamp_ms: i64,
    /// Partition of the topic of validated transactions.
    pub partition: i32,
    /// Offset of the event in its partition.
    pub offset: u64,
    /// Epoch of the assignment under which the event was read.
    pub epoch: u64,
}

/// Identifies the row that an outcome answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The spends of one group of a flight.
    Spend(FlightId, u32),
    /// The live create of a flight.
    Create(FlightId),
    /// The contested create of a flight.
    StoreContested(FlightId),
    /// The report to a master that every slot of its page is spent, for a group of spends of a flight.
    PageSpent(FlightId, u32),
}

impl Token {
    /// Returns the flight that asked for the row.
    pub fn flight(self) -> FlightId {
        match self {
            Token::Spend(id, _) | Token::Create(id) | Token::StoreContested(id) | Token::PageSpent(id, _) => id,
        }
    }
}

/// A request of the planner to the pipeline.
#[derive(Debug)]
pub enum Action {
    /// Sends a row to the engine; answered with [`Planner::outcome`].
    Apply(Token, Row),
    /// Creates a transaction that takes more than one write; answered with [`Planner::outcome`].
    CreatePaged(Token, PagedTx),
    /// Cancels work of this flight that takes many writes, or waits for the blob store: its partitions were revoked.
    /// Work that has begun may end all the same. Answered with [`Planner::on_cancelled`], or as if it had not been
    /// cancelled.
    Cancel(FlightId),
    /// Reads the transaction's own master; answered with [`Planner::own_record`].
    ReadOwn(FlightId, Txid),
    /// Reads the master of the parent of a group of spends; answered with [`Planner::parent_record`].
    ReadParent(FlightId, u32, Txid),
    /// Publishes a contest; its acknowledgement is reported with [`Planner::contest_published`].
    PublishContest {
        /// Flight of the contestant.
        flight: FlightId,
        /// Transaction that is contested.
        txid: Txid,
        /// First event of the flight.
        event: EventRef,
        /// Hash of the body that the event has.
        body: [u8; 32],
        /// Reason of the contest.
        reason: Reason,
    },
    /// An event that contradicts the stored record; the event completes once its dead letter is acknowledged.
    Mismatched {
        /// Place of the event.
        event: EventRef,
        /// Content of the event.
        work: SubmittedTx,
    },
    /// Completes an event: the store has every change that the event asks for.
    Complete(EventRef, Completion),
}

/// Settings of the planner: pauses, grace of a lock, and rules of the operations.
#[derive(Debug, Clone, Copy)]
pub struct PlanSettings {
    /// First pause of a parked transaction, ms. The pause doubles up to the upper bound of the transaction's age class.
    pub retry_min_ms: u64,
    /// Longest pause, ms. The oldest parked transactions pause for a small part of it; where very many are parked,
    /// younger ones pause for longer.
    pub retry_max_ms: u64,
    /// Time for which a transaction waits for a locked parent before it is contested, ms.
    pub flag_grace_ms: u64,
    /// Rules of the record operations.
    pub rules: Rules,
}

/// Numbers of transactions in flight, for metrics and backpressure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanCounts {
    /// Number of transactions in motion: neither waiting nor halted.
    pub active: usize,
    /// Number of transactions that wait for a parent, are parked or halted.
    pub parked: usize,
    /// Greatest value that `parked` has had.
    pub parked_max: usize,
}

/// All transactions in flight of one instance.
#[derive(Debug)]
pub struct Planner {
    settings: PlanSettings,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    generation: u32,
    by_txid: TxidMap<FlightId>,
    /// Parked flights by absent parent: the arrival of the parent here wakes them.
    waiters_by_parent: TxidMap<BTreeSet<FlightId>>,
    retry_queue: RetryQueue,
    next_front_refresh_ms: u64,
    open_tries: Vec<OpenTry>,
    backlog_rate: AdaptiveRate,
    fresh_rate: AdaptiveRate,
    actions: VecDeque<Action>,
    /// Flights that are to start, since their parents have ended. A queue, so that a chain of transactions of any
    /// length needs no stack.
    ready: VecDeque<FlightId>,
    /// Waiting flights; each flight stores its index in this list.
    waiting: Vec<FlightId>,
    /// Number of waiting flights by partition.
    waiting_per_partition: Vec<usize>,
    parked_max: usize,
    store_can_lose_writes: bool,
    /// Filled only over a store that can lose writes.
    non_durable: NonDurableTransactions,
    /// Partitions that are paused at their limit.
    over_limit: BTreeSet<i32>,
}

impl Planner {
    /// Creates a planner without transactions in flight.
    pub fn new(settings: PlanSettings) -> Self {
        Planner {
            settings,
            flights: Vec::new(),
            free: Vec::new(),
            generation: 0,
            by_txid: TxidMap::default(),
            waiters_by_parent: TxidMap::default(),
            retry_queue: RetryQueue::default(),
            next_front_refresh_ms: 0,
            open_tries: Vec::new(),
            backlog_rate: AdaptiveRate::default(),
            fresh_rate: AdaptiveRate::default(),
            actions: VecDeque::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            waiting_per_partition: Vec::new(),
            parked_max: 0,
            store_can_lose_writes: false,
            non_durable: NonDurableTransactions::default(),
            over_limit: BTreeSet::new(),
        }
    }

    /// Sets whether the store can lose acknowledged writes. Over such a store a live transaction is not complete while
    /// a parent is absent: a node may have lost the parent's record, and the spend with it.
    pub fn with_forgetful_store(self, store_can_lose_writes: bool) -> Self {
        Planner { store_can_lose_writes, ..self }
    }

    /// Takes the next request, in order.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the numbers of transactions in flight.
    pub fn counts(&self) -> PlanCounts {
        let all = self.flights.len() - self.free.len();
        PlanCounts { active: all - self.waiting.len(), parked: self.waiting.len(), parked_max: self.parked_max }
    }

    /// Returns the number of waiting transactions of a partition.
    pub fn parked_of(&self, partition: i32) -> usize {
        usize::try_from(partition).ok().and_then(|number| self.waiting_per_partition.get(number)).copied().unwrap_or(0)
    }

    /// Accepts the event of a validated transaction.
    pub fn submit(&mut self, event: EventRef, tx: Arc<PreparedTx>, mode: Mode, now_ms: u64) {
        self.begin(Request { event, work: SubmittedTx::Validated(tx), mode, is_later_event: false });
        self.start_ready(now_ms);
    }

    /// Accepts the event of a partial transaction.
    pub fn submit_seed(&mut self, event: EventRef, seed: Arc<PreparedPartialTx>, mode: Mode, now_ms: u64) {
        self.begin(Request { event, work: SubmittedTx::Seeded(seed), mode, is_later_event: false });
        self.start_ready(now_ms);
    }

    /// Starts an event, or joins it to the flight of its transaction. A second event with the same content joins. A
    /// second event with other content (it claims other previous outputs, or one of the two is a partial transaction)
    /// starts after the first has ended, as if it had been read later. Both keep their content in memory of their own:
    /// a waiting flight must not keep the batches of its repeats in memory.
    fn begin(&mut self, request: Request) {
        let txid = request.work.txid();
        let Some(flight) = self.by_txid.get(&txid).copied().and_then(|id| self.get(id)) else {
            let is_later_event = request.is_later_event || self.non_durable.contains(&txid);
            return self.start(Request { is_later_event, ..request });
        };
        if flight.work.has_same_content(&request.work) {
            flight.events.push(request.event);
            flight.joined.push((request.event, request.work.detach_from_batch()));
        } else {
            flight.later_requests.push_back(Request { work: request.work.detach_from_batch(), ..request });
        }
    }

    fn start(&mut self, request: Request) {
        let (mode, seeded) = (request.mode, matches!(request.work, SubmittedTx::Seeded(_)));
        let id = self.enter(request);
        if seeded {
            self.create(id);
            return;
        }
        match mode {
            Mode::Normal => self.launch(id),
            Mode::RebuildContested => self.store_contested(id, Reason::Found),
            // A slot that it takes could not be settled if a partial transaction came first.
            Mode::RebuildWon | Mode::RebuildAccepted => self.read_own(id, Stage::CheckingOwn),
        }
    }

    fn read_own(&mut self, id: FlightId, stage: Stage) {
        let Some(flight) = self.get(id) else { return };
        flight.stage = stage;
        let txid = flight.txid;
        self.actions.push_back(Action::ReadOwn(id, txid));
    }

    /// Enters a flight and wakes the flights that wait for its transaction.
    fn enter(&mut self, request: Request) -> FlightId {
        let txid = request.work.txid();
        self.generation = self.generation.wrapping_add(1);
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            (self.flights.len() - 1) as u32
        });
        let id = FlightId { index, generation: self.generation };
        let mut flight = Flight::new(id, request);
        let waiters = if flight.is_later_event { None } else { self.waiters_by_parent.remove(&txid) };
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

    /// Waits for the parents that are in flight here, or starts at once.
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

    /// Returns the distinct flights of the parents of the groups that `wanted` selects.
    fn parents_in_flight(&mut self, id: FlightId, wanted: impl Fn(&SpendGroup) -> bool) -> Vec<FlightId> {
        let Some(flight) = self.get(id) else { return Vec::new() };
        let SubmittedTx::Validated(tx) = &flight.work else { return Vec::new() };
        let parents: Vec<Txid> = tx
            .groups
            .iter()
            .zip(&flight.groups)
            .filter(|(_, group)| wanted(group))
            .map(|(prepared, _)| prepared.parent)
            .collect();
        let mut found: Vec<FlightId> = parents.iter().filter_map(|parent| self.first_event_flight(parent)).collect();
        // Several groups may have one parent.
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Starts all flights whose parents have ended.
    fn start_ready(&mut self, now_ms: u64) {
        while let Some(id) = self.ready.pop_front() {
            self.take_slots(id, now_ms);
        }
    }

    /// Sends the spends of every group without its slots; creates the transaction if there is none. A transaction that
    /// is conflicting at the end of the log takes no slot.
    fn take_slots(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        if flight.mode == Mode::RebuildContested {
            return self.store_contested(id, Reason::Found);
        }
        let SubmittedTx::Validated(tx) = &flight.work else { return self.create(id) };
        let tx = tx.clone();
        let marks = flight.marks();
        let mut rows = Vec::new();
        for (index, (group, prepared)) in flight.groups.iter_mut().zip(&tx.groups).enumerate() {
            if !group.has_slots {
                group.refusal = None;
                let row = Row { key: prepared.key(), operation: Operation::Spend(tx.spend(prepared, marks)) };
                rows.push(Action::Apply(Token::Spend(id, index as u32), row));
            }
        }
        flight.stage = Stage::Spending { pending: rows.len() as u32 };
        let none = rows.is_empty();
        self.actions.extend(rows);
        if none {
            self.on_all_groups_answered(id, now_ms);
        }
    }

    /// Handles the answer of the engine to a row.
    pub fn outcome(&mut self, token: Token, outcome: Outcome, now_ms: u64) {
        match token {
            Token::Spend(id, group) => self.on_spend_answer(id, group, outcome, now_ms),
            Token::Create(id) => self.on_create_answer(id, outcome, now_ms),
            Token::StoreContested(id) => self.on_contested_stored(id, outcome, now_ms),
            Token::PageSpent(id, group) => self.on_page_spent_answer(id, group, &outcome, now_ms),
        }
        self.start_ready(now_ms);
    }

    fn on_spend_answer(&mut self, id: FlightId, group: u32, outcome: Outcome, now_ms: u64) {
        if self.needs_master_answer(id, group, &outcome) {
            return;
        }
        if let Outcome::Rejected(rejection) = outcome {
            if let Some(state) = self.get(id).and_then(|flight| flight.groups.get_mut(group as usize)) {
                state.refusal = Some(rejection);
            }
            self.on_group_answer(id, now_ms);
        } else {
            self.on_slots_taken(id, group, now_ms);
        }
    }

    fn on_slots_taken(&mut self, id: FlightId, group: u32, now_ms: u64) {
        if let Some(state) = self.get(id).and_then(|flight| flight.groups.get_mut(group as usize)) {
            state.has_slots = true;
        }
        self.on_group_answer(id, now_ms);
    }

    fn on_group_answer(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        if let Stage::Spending { pending } = &mut flight.stage {
            *pending -= 1;
            if *pending == 0 {
                self.on_all_groups_answered(id, now_ms);
            }
        }
    }

    /// Creates, parks or contests a flight once all its groups have an answer.
    fn on_all_groups_answered(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        match flight.obstacle() {
            Obstacle::None => self.create(id),
            Obstacle::SpenderPruned => self.finish(id, Completion::PassedOver),
            Obstacle::Final(reason) => self.store_contested(id, reason),
            Obstacle::Temporary => {
                // A transaction that is live already must not wait for parents that were pruned since. In a rebuild a
                // later decision may have made it conflicting: the parent that it waits for never comes.
                if flight.own_record_read && !flight.mode.ends_live() {
                    self.park(id, now_ms);
                } else {
                    self.read_own(id, Stage::ReadingOwn);
                }
            }
        }
    }

    /// Handles the transaction's own master; `None`: absent.
    pub fn own_record(&mut self, id: FlightId, own: Option<&Page>, now_ms: u64) {
        let can_lose_writes = self.store_can_lose_writes;
        let Some(flight) = self.get(id) else { return };
        let (stage, is_waiting) = (flight.stage, flight.is_waiting());
        if !is_waiting && !matches!(stage, Stage::ReadingOwn | Stage::ReadingFirstRecord { .. } | Stage::CheckingOwn) {
            // The record was requested while the flight waited, and the flight has moved since.
            return;
        }
        if let Some(own) = own.filter(|own| own.differs_in_kind(flight.work.page())) {
            let contradicts = own.contradicts(flight.work.page());
            if is_waiting {
                self.cancel_wait(id);
            }
            self.on_other_kind_stored(id, contradicts);
            return self.start_ready(now_ms);
        }
        if let Stage::ReadingFirstRecord { contested } = stage {
            self.on_first_record_read(id, contested, own, now_ms);
            return self.start_ready(now_ms);
        }
        match own.map(Page::state) {
            _ if stage == Stage::CheckingOwn => self.launch(id),
            _ if own.is_some_and(Page::is_conflicting_tombstone) => {
                if is_waiting {
                    self.cancel_wait(id);
                }
                self.store_contested(id, Reason::Found);
            }
            Some(TxState::Stub(_)) if is_waiting && (can_lose_writes || flight.mode.ends_live()) => {
                self.cancel_wait(id);
                self.store_contested(id, Reason::Found);
            }
            Some(TxState::Creating) if is_waiting && !can_lose_writes => {
                self.cancel_wait(id);
                self.create(id);
            }
            Some(TxState::Live | TxState::Pruned(_)) if is_waiting && !can_lose_writes => {
                self.cancel_wait(id);
                self.finish(id, Completion::PassedOver);
            }
            _ if is_waiting => {}
            Some(TxState::Pruned(_)) => self.finish(id, Completion::PassedOver),
            Some(TxState::Live) if !can_lose_writes => self.finish(id, Completion::PassedOver),
            // Every page is written, and the writer is gone: any instance may clear `creating`. Over a store that can
            // lose writes the record of the absent parent may be lost, and the spend with it.
            Some(TxState::Creating) if !can_lose_writes => self.create(id),
            Some(TxState::Stub(_)) if flight.mode.ends_live() => self.store_contested(id, Reason::Found),
            Some(TxState::Conflicting(_)) if flight.mode.ends_live() => {
                self.finish(id, Completion::PassedOver);
            }
            _ => {
                flight.own_record_read = true;
                self.park(id, now_ms);
            }
        }
        self.start_ready(now_ms);
    }

    /// Returns the flight of a transaction that may not be stored yet. The flight of a later event is left out: no
    /// child has to wait for it.
    fn first_event_flight(&self, txid: &Txid) -> Option<FlightId> {
        let flight = self.flights.get(self.by_txid.get(txid)?.index as usize)?.as_ref()?;
        (!flight.is_later_event).then_some(flight.id)
    }

    /// Creates the live transaction, with the spends of waiting children.
    fn create(&mut self, id: FlightId) {
        if self.must_not_write(id) {
            return self.read_own(id, Stage::ReadingFirstRecord { contested: None });
        }
        let Some(flight) = self.get(id) else { return };
        flight.stage = Stage::Creating;
        let (work, children) = (flight.work.clone(), flight.children.clone());
        if self.create_paged(Token::Create(id), &work, InitialState::Live) {
            return;
        }
        let page = work.page().clone();
        let key = Key::Page(page.txid, page.number);
        let page = self.attach_child_spends(&children, key, page, id);
        let row = Row { key, operation: Operation::Create(page) };
        self.actions.push_back(Action::Apply(Token::Create(id), row));
    }

    fn on_create_answer(&mut self, id: FlightId, outcome: Outcome, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        match outcome {
            // A partial transaction whose children were refused before it was stored. The attached spends are not in
            // the record.
            Outcome::Applied(Reply::ContestDue) | Outcome::AlreadyApplied(Reply::ContestDue) => {
                self.contest_or_finish(id, Reason::Found, Completion::Live);
            }
            Outcome::Applied(_) => {
                let children = flight.children.clone();
                for child in children {
                    self.confirm_attached_spends(child, id);
                }
                self.finish(id, Completion::Live);
            }
            // Another create has stored the record: the attached spends of this one are not in it.
            Outcome::AlreadyApplied(_) => self.finish(id, Completion::Live),
            Outcome::Rejected(Rejection::OtherContent) => self.on_other_kind_stored(id, true),
            Outcome::Rejected(Rejection::OtherKind) => self.on_other_kind_stored(id, false),
            // The transaction had won when its first event was read and has lost since: that decision was applied.
            Outcome::Rejected(Rejection::Exists(TxState::Conflicting(_))) if flight.mode.ends_live() => {
                self.finish(id, Completion::PassedOver);
            }
            Outcome::Rejected(Rejection::Exists(TxState::Stub(_) | TxState::Conflicting(_) | TxState::Pruned(_))) => {
                self.store_contested(id, Reason::Found);
            }
            // Another instance creates the transaction at the moment.
            Outcome::Rejected(_) => self.park(id, now_ms),
        }
    }

    /// Completes the events of a flight and starts its children.
    fn finish(&mut self, id: FlightId, how: Completion) {
        let Some(flight) = self.remove(id) else { return };
        if self.store_can_lose_writes {
            flight.events.iter().for_each(|event| self.non_durable.record(flight.txid, *event));
        }
        self.actions.extend(flight.events.iter().map(|event| Action::Complete(*event, how)));
        for child in flight.children {
            let Some(flight) = self.get(child) else { continue };
            if let Stage::AwaitingParents { remaining } = &mut flight.stage {
                *remaining -= 1;
                if *remaining == 0 {
                    self.stop_waiting(child);
                    self.ready.push_back(child);
                }
            }
        }
        for request in flight.later_requests {
            self.begin(Request { is_later_event: true, ..request });
        }
    }

    fn remove(&mut self, id: FlightId) -> Option<Flight> {
        self.get(id)?;
        let flight = self.flights[id.index as usize].take()?;
        debug_assert!(flight.waiting_index.is_none(), "a flight that ends is not waiting");
        self.free.push(id.index);
        self.by_txid.remove(&flight.txid);
        if flight.is_registered_as_waiter {
            for parent in flight.parents() {
                if let Some(waiters) = self.waiters_by_parent.get_mut(&parent) {
                    waiters.remove(&id);
                    if waiters.is_empty() {
                        self.waiters_by_parent.remove(&parent);
                    }
                }
            }
        }
        Some(flight)
    }

    /// Drops all flights, since every partition is read again. Late answers find no flight.
    pub fn abandon(&mut self) {
        self.free = (0..self.flights.len() as u32).collect();
        self.flights.iter_mut().for_each(|flight| *flight = None);
        self.by_txid.clear();
        self.waiters_by_parent.clear();
        self.retry_queue = RetryQueue::default();
        self.open_tries.clear();
        self.actions.clear();
        self.ready.clear();
        self.non_durable = NonDurableTransactions::default();
        self.over_limit.clear();
        self.waiting.clear();
        self.waiting_per_partition.clear();
    }

    /// Forgets the completed events of a partition below this durable offset.
    pub fn forget_durable(&mut self, partition: i32, durable_offset: u64) {
        self.non_durable.remove_durable(partition, durable_offset);
    }

    /// Handles the revocation of a partition. Parked and halted flights without other partitions are dropped: the next
    /// owner reads their events again. Flights in motion end without counting. A create may take long and is cancelled.
    pub fn revoke(&mut self, partition: i32, now_ms: u64) {
        self.over_limit.remove(&partition);
        self.non_durable.remove_partition(partition);
        let mut dropped = Vec::new();
        for flight in self.flights.iter_mut().flatten() {
            flight.events.retain(|event| event.partition != partition);
            flight.later_requests.retain(|request| request.event.partition != partition);
            match flight.stage {
                _ if !flight.events.is_empty() => {}
                Stage::Parked | Stage::Halted => dropped.push(flight.id),
                Stage::Creating | Stage::StoringContested { .. } => self.actions.push_back(Action::Cancel(flight.id)),
                _ => {}
            }
        }
        for id in dropped {
            self.cancel_wait(id);
            self.finish(id, Completion::PassedOver);
        }
        self.start_ready(now_ms);
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod properties;
