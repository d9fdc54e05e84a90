//! The steps of flights: each takes one flight to its next stage and requests what the stage needs.

use std::collections::VecDeque;

use super::{
    Action, PlanSettings, StoreHistory, Token,
    contest::must_not_write,
    flight_table::FlightTable,
    multi_page::paged_create,
    non_durable::NonDurableTransactions,
    obstacle::marks_on_parent,
    step::{Step, step_after_spends},
    waiting::Parking,
};
use crate::{
    engine::Row,
    ingest::flight::{Flight, FlightId, Request, Stage, SubmittedTx},
    record::{Key, Operation, Outcome, Reason},
    replay::Mode,
    store::create::InitialState,
    telemetry::Completion,
};

/// All flights, and what their steps need.
#[derive(Debug)]
pub(super) struct FlightSteps {
    pub(super) history: StoreHistory,
    pub(super) flights: FlightTable,
    pub(super) parking: Parking,
    /// Filled only over a store that can lose writes.
    pub(super) non_durable: NonDurableTransactions,
    pub(super) actions: VecDeque<Action>,
    /// Flights that are to start, since their parents have ended. A queue, so that a chain of transactions of any
    /// length needs no stack.
    pub(super) ready: VecDeque<FlightId>,
}

impl FlightSteps {
    pub(super) fn new(settings: PlanSettings) -> Self {
        FlightSteps {
            history: StoreHistory::default(),
            flights: FlightTable::default(),
            parking: Parking::new(settings),
            non_durable: NonDurableTransactions::default(),
            actions: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// Starts an event, or joins it to the flight of its transaction. A second event with the same content joins,
    /// unless the log decides the first event alone. A second event with other content (it claims other previous
    /// outputs, or one of the two is a partial transaction) starts after the first has ended, as if it had been read
    /// later. Both keep their content in memory of their own: a waiting flight must not keep the batches of its repeats
    /// in memory.
    pub(super) fn begin(&mut self, request: Request) {
        let txid = request.work.txid();
        let Some(flight) = self.flights.id_of(&txid).and_then(|id| self.flights.get_mut(id)) else {
            let is_later_event = request.is_later_event || self.non_durable.contains(&txid);
            return self.start(Request { is_later_event, ..request });
        };
        let is_same_mode = flight.mode == request.mode || flight.mode == Mode::Normal;
        if is_same_mode && flight.work.has_same_content(&request.work) {
            flight.events.push(request.event);
            flight.joined.push((request.event, request.work.detach_from_batch()));
        } else {
            flight.later_requests.push_back(Request { work: request.work.detach_from_batch(), ..request });
        }
    }

    /// Starts a flight. Flights that are parked for its transaction wait for the flight instead.
    fn start(&mut self, request: Request) {
        let (mode, is_later_event) = (request.mode, request.is_later_event);
        let (txid, is_partial) = (request.work.txid(), matches!(request.work, SubmittedTx::Seeded(_)));
        let id = self.flights.insert(request);
        let waiters = if is_later_event { Vec::new() } else { self.flights.take_waiters(&txid) };
        for waiter in self.parking.wake_parked(&mut self.flights, waiters) {
            self.await_parents(waiter, &[id]);
        }
        match mode {
            _ if is_partial => self.create(id),
            Mode::Normal => self.launch(id),
            Mode::EndsConflicting | Mode::SettlesByContest => self.store_contested(id, Reason::Found),
            // A slot that it takes could not be settled if a partial transaction came first.
            Mode::EndsLive | Mode::EndsAccepted => self.read_own(id, Stage::CheckingOwn),
        }
    }

    /// Makes a flight wait until these parents have ended.
    pub(super) fn await_parents(&mut self, id: FlightId, parents: &[FlightId]) {
        for parent in parents {
            if let Some(parent) = self.flights.get_mut(*parent) {
                parent.children.push(id);
            }
        }
        self.flights.wait(id, Stage::AwaitingParents { remaining: parents.len() as u32 });
    }

    /// Decides the next step of a flight and takes it.
    pub(super) fn decide(&mut self, id: FlightId, now_ms: u64, decide: impl FnOnce(&Flight) -> Step) {
        if let Some(step) = self.flights.get(id).map(decide) {
            self.take(id, step, now_ms);
        }
    }

    /// Takes the next step of a transaction in flight.
    pub(super) fn take(&mut self, id: FlightId, step: Step, now_ms: u64) {
        match step {
            Step::Stay => {}
            Step::Launch => self.launch(id),
            Step::ReadOwn(stage) => self.read_own(id, stage),
            Step::Create => self.create(id),
            Step::StoreContested(reason) => self.store_contested(id, reason),
            Step::PublishContest { reason, contradicts } => self.publish_contest(id, reason, contradicts),
            Step::DeadLetter => self.dead_letter_mismatched(id),
            Step::Park => self.park(id, now_ms),
            Step::Pause => self.pause(id, now_ms),
            Step::FinishCreated => {
                self.confirm_attached_spends(id);
                self.finish(id, Completion::Live);
            }
            Step::Finish(how) => self.finish(id, how),
        }
    }

    /// Waits for the parents that are in flight here, or starts at once.
    fn launch(&mut self, id: FlightId) {
        let parents = self.flights.parents_in_flight(id, |_| true);
        if parents.is_empty() {
            self.ready.push_back(id);
        } else {
            self.await_parents(id, &parents);
        }
    }

    /// Starts all flights whose parents have ended.
    pub(super) fn start_ready(&mut self, now_ms: u64) {
        while let Some(id) = self.ready.pop_front() {
            self.take_slots(id, now_ms);
        }
    }

    /// Sends the spends of every group without its slots; creates the transaction if there is none. A transaction that
    /// is conflicting at the end of the log takes no slot.
    fn take_slots(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        flight.try_began = self.parking.named.count();
        if flight.mode.ends_conflicting() {
            return self.store_contested(id, Reason::Found);
        }
        let SubmittedTx::Validated(tx) = &flight.work else { return self.create(id) };
        let (marks, verdicts) = (flight.marks(), &self.history.verdicts);
        let mut pending = 0;
        for (index, (group, prepared)) in flight.groups.iter_mut().zip(&tx.groups).enumerate() {
            if !group.has_slots {
                group.refusal = None;
                let marks = marks_on_parent(marks, verdicts.get(&prepared.parent));
                let row = Row { key: prepared.key(), operation: Operation::Spend(tx.spend(prepared, marks)) };
                self.actions.push_back(Action::Apply(Token::Spend(id, index as u32), row));
                pending += 1;
            }
        }
        flight.stage = Stage::Spending { pending };
        if pending == 0 {
            self.decide(id, now_ms, step_after_spends);
        }
    }

    /// Handles the answer of the store to the spends of a group.
    pub(super) fn on_spend_answer(&mut self, id: FlightId, group: u32, outcome: Outcome, now_ms: u64) {
        if self.needs_master_answer(id, group, &outcome) {
            return;
        }
        if let Some(state) = self.flights.get_mut(id).and_then(|flight| flight.groups.get_mut(group as usize)) {
            match outcome {
                Outcome::Rejected(rejection) => state.refusal = Some(rejection),
                _ => state.has_slots = true,
            }
        }
        self.on_group_answer(id, now_ms);
    }

    /// Counts an answer, and decides the next step once all groups have one.
    pub(super) fn on_group_answer(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        if let Stage::Spending { pending } = &mut flight.stage {
            *pending -= 1;
            if *pending == 0 {
                self.decide(id, now_ms, step_after_spends);
            }
        }
    }

    pub(super) fn read_own(&mut self, id: FlightId, stage: Stage) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        flight.stage = stage;
        self.actions.push_back(Action::ReadOwn(id, flight.txid));
    }

    /// Creates the live transaction, with the spends of waiting children.
    fn create(&mut self, id: FlightId) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        if must_not_write(flight, self.history.can_lose_writes) {
            return self.read_own(id, Stage::ReadingFirstRecord { contested: None });
        }
        flight.stage = Stage::Creating;
        let token = Token::Create(id);
        if let Some(action) = paged_create(token, &flight.work, InitialState::Live) {
            return self.actions.push_back(action);
        }
        let (page, children) = (flight.work.page().clone(), flight.children.clone());
        let key = Key::Page(page.txid, page.number);
        let page = self.attach_child_spends(&children, key, page, id);
        self.actions.push_back(Action::Apply(token, Row { key, operation: Operation::Create(page) }));
    }

    /// Completes the events of a flight and starts its children.
    pub(super) fn finish(&mut self, id: FlightId, how: Completion) {
        let Some(flight) = self.flights.remove(id) else { return };
        if self.history.can_lose_writes {
            flight.events.iter().for_each(|event| self.non_durable.record(flight.txid, *event));
        }
        self.actions.extend(flight.events.iter().map(|event| Action::Complete(*event, flight.txid, how)));
        for child in flight.children {
            let Some(flight) = self.flights.get_mut(child) else { continue };
            if let Stage::AwaitingParents { remaining } = &mut flight.stage {
                *remaining -= 1;
                if *remaining == 0 {
                    self.flights.stop_waiting(child);
                    self.ready.push_back(child);
                }
            }
        }
        for request in flight.later_requests {
            self.begin(Request { is_later_event: true, ..request });
        }
    }
}
