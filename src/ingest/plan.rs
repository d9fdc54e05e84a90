//! The planner: the next step of each transaction in flight, `(state, event or outcome) -> (state', actions)`. Pure: no
//! I/O, no clock, no runtime; time is an argument.
//!
//! A transaction waits for parents in flight here, takes the slots of all inputs at once, is created, and completes. An
//! absent, creating, locked or undecided parent parks the transaction; any other refusal makes it contested
//! (`docs/protocols/missing-parent.md`). The planner frees no slot, overwrites no record and flags no transaction.
//!
//! ```text
//! event, answer, proof, time ─► Planner ─► step (pure) ─► FlightSteps ─► actions
//!                                 │                         │
//!                               RetryPace                 FlightTable, Parking
//! ```

mod absent_parents;
mod contest;
mod flight_steps;
mod flight_table;
mod grace_start;
mod multi_page;
mod named_transactions;
mod non_durable;
pub mod obstacle;
mod piggyback;
mod read_again;
mod retry_pace;
mod step;
mod waiting;

use std::sync::Arc;

pub use flight_table::FlightTable;
pub use grace_start::GraceStart;
pub use named_transactions::NamedTransaction;

use contest::step_after_contested_create;
use flight_steps::FlightSteps;
use non_durable::NonDurableTransactions;
use retry_pace::RetryPace;
use step::{Step, step_after_create, step_after_own_record};

use crate::{
    engine::Row,
    group::missing_parent::TieRule,
    ingest::flight::{BufferState, Flight, FlightId, Request, Stage, SubmittedTx},
    record::{Outcome, Page, Reason, Rules},
    replay::{LastVerdicts, Mode},
    store::create::PagedTx,
    telemetry::Completion,
    tx::Txid,
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
    /// Completes an event of this transaction: the store has every change that the event asks for.
    Complete(EventRef, Txid, Completion),
}

/// Settings of the planner: pauses, grace of a lock, and rules of the operations.
#[derive(Debug, Clone, Copy)]
pub struct PlanSettings {
    /// First pause of a parked transaction, ms. The pause doubles with each retry.
    pub retry_min_ms: u64,
    /// Longest pause, ms. Where very many transactions are due, a retry starts later.
    pub retry_max_ms: u64,
    /// Time for which a transaction waits for a locked parent before it is contested, ms.
    pub flag_grace_ms: u64,
    /// Rules of the record operations.
    pub rules: Rules,
}

/// History of a store, as far as the planner goes by it.
#[derive(Debug, Clone, Default)]
pub struct StoreHistory {
    /// The store can lose acknowledged writes. Over such a store a live transaction is not complete while a parent is
    /// absent: a node may have lost the parent's record, and the spend with it.
    pub can_lose_writes: bool,
    /// The last verdicts of the log, in a rebuild and while a restored store reads the log again.
    pub verdicts: Arc<LastVerdicts>,
    /// Start of the grace of locked parents; later than now while a restored store reads the log again.
    pub flag_grace_start: Arc<GraceStart>,
    /// While a restored store reads the log again: start of the grace of transactions that end live by the log. Such a
    /// transaction is treated normally after the grace. `None`: in a rebuild, which has no grace.
    pub live_grace_start: Option<Arc<GraceStart>>,
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

/// Number of waiting transactions whose own record is read in one pass. A partition limit allows far more; the next
/// pass reads the others.
const MAX_REREADS: usize = 1_024;

/// The planner of one instance: takes events, answers, proofs and the time, and requests the next steps.
#[derive(Debug)]
pub struct Planner {
    steps: FlightSteps,
    pace: RetryPace,
}

impl Planner {
    /// Creates a planner without transactions in flight.
    pub fn new(settings: PlanSettings) -> Self {
        Planner { steps: FlightSteps::new(settings), pace: RetryPace::default() }
    }

    /// Sets what the planner has to know of the store.
    pub fn with_history(mut self, history: StoreHistory) -> Self {
        self.steps.history = history;
        self
    }

    /// Takes the next request, in order.
    pub fn next_action(&mut self) -> Option<Action> {
        self.steps.actions.pop_front()
    }

    /// Returns all transactions in flight.
    pub fn flights(&self) -> &FlightTable {
        &self.steps.flights
    }

    /// Accepts an event that was read and prepared.
    pub fn submit(&mut self, event: EventRef, work: impl Into<SubmittedTx>, mode: Mode, now_ms: u64) {
        self.steps.begin(Request { event, work: work.into(), mode, is_later_event: false });
        self.steps.start_ready(now_ms);
    }

    /// Handles the answer of the engine to a row, or the outcome of a create.
    pub fn outcome(&mut self, token: Token, outcome: Outcome, now_ms: u64) {
        let can_lose_writes = self.steps.history.can_lose_writes;
        match token {
            Token::Spend(id, group) => self.steps.on_spend_answer(id, group, outcome, now_ms),
            Token::Create(id) => {
                self.steps.adopt_mode_after_create(id, &outcome);
                self.steps.decide(id, now_ms, |flight| step_after_create(flight, &outcome));
            }
            Token::StoreContested(id) => {
                let decide = |flight: &Flight| step_after_contested_create(flight, &outcome, can_lose_writes);
                self.steps.decide(id, now_ms, decide);
            }
            Token::PageSpent(id, group) => self.steps.on_page_spent_answer(id, group, &outcome, now_ms),
        }
        self.steps.start_ready(now_ms);
    }

    /// Handles the transaction's own master; `None`: absent.
    pub fn own_record(&mut self, id: FlightId, own: Option<&Page>, now_ms: u64) {
        self.steps.adopt_mode_of_own_record(id, own);
        let Some(flight) = self.steps.flights.get_mut(id) else { return };
        let step = step_after_own_record(flight, own, self.steps.history.can_lose_writes);
        flight.own_record_read |= step == Step::Park;
        if flight.is_waiting() && step != Step::Stay {
            self.steps.parking.cancel_wait(&mut self.steps.flights, id);
        }
        self.steps.take(id, step, now_ms);
        self.steps.start_ready(now_ms);
    }

    /// Handles the master of a parent whose other page has refused a spend; `None`: the master is absent.
    pub fn parent_record(&mut self, id: FlightId, group: u32, master: Option<&Page>, now_ms: u64) {
        self.steps.on_parent_record(id, group, master, now_ms);
        self.steps.start_ready(now_ms);
    }

    /// Handles the acknowledgement of a contest: the sequencer decides from now on.
    pub fn contest_published(&mut self, id: FlightId, now_ms: u64) {
        self.steps.decide(id, now_ms, |flight| match flight.stage {
            Stage::PublishingContest { contradicts: true } => Step::DeadLetter,
            _ => Step::Finish(Completion::Contested),
        });
        self.steps.start_ready(now_ms);
    }

    /// Handles a cancelled create. Events that joined since, because the partition was assigned again, start the create
    /// anew.
    pub fn on_cancelled(&mut self, token: Token, now_ms: u64) {
        self.steps.decide(token.flight(), now_ms, |flight| match flight.stage {
            _ if flight.events.is_empty() => Step::Finish(Completion::PassedOver),
            Stage::StoringContested { reason } => Step::StoreContested(reason),
            _ => Step::Create,
        });
        self.steps.start_ready(now_ms);
    }

    /// Halts a flight whose rows the store cannot take; a repeated request would not help. Children in flight wait on.
    /// Returns the transaction and its events, whose partitions are to be halted: the events never complete here.
    /// Returns `None` once all partitions of the flight are revoked.
    pub fn halt(&mut self, id: FlightId, now_ms: u64) -> Option<(Txid, Vec<EventRef>)> {
        let flight = self.steps.flights.get(id)?;
        if flight.events.is_empty() {
            // The partitions of the flight were revoked: their next owner gets the same refusal.
            self.steps.finish(id, Completion::PassedOver);
            self.steps.start_ready(now_ms);
            return None;
        }
        let halted = (flight.txid, flight.events.clone());
        self.steps.flights.wait(id, Stage::Halted);
        self.steps.drop_revoked_behind_halted();
        self.steps.start_ready(now_ms);
        Some(halted)
    }

    /// Notes that a partition is paused at its limit. Transactions of the partition that wait for a lock are contested
    /// at once: the block that lifts the lock may wait for events that are not read.
    pub fn mark_over_limit(&mut self, partition: i32, now_ms: u64) {
        let FlightSteps { flights, parking, ready, .. } = &mut self.steps;
        if !parking.over_limit.insert(partition) {
            return;
        }
        let waits_for_lock = |flight: &&Flight| {
            flight.stage == Stage::Parked && flight.locked_parent().is_some() && parking.is_over_limit(flight)
        };
        let waiting: Vec<FlightId> = flights.waiting().filter(waits_for_lock).map(|flight| flight.id).collect();
        ready.extend(parking.wake_parked(flights, waiting));
        self.steps.start_ready(now_ms);
    }

    /// Notes that a partition paused at its limit has room again.
    pub fn clear_over_limit(&mut self, partition: i32) {
        self.steps.parking.over_limit.remove(&partition);
    }

    /// Starts the retries of parked flights that are due, within their pace. Returns the number of retries.
    pub fn retry_due(&mut self, now_ms: u64) -> usize {
        let FlightSteps { flights, parking, ready, .. } = &mut self.steps;
        let due = self.pace.take_due(&mut parking.retry_queues, flights, now_ms);
        for id in &due {
            flights.forget_waiter(*id);
            flights.stop_waiting(*id);
            ready.push_back(*id);
        }
        self.steps.start_ready(now_ms);
        due.len()
    }

    /// Returns the time, ms by the clock of the caller, from which [`retry_due`](Self::retry_due) has work; `None`: not
    /// before an answer.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.pace.next_due_ms(&self.steps.parking.retry_queues, &self.steps.flights)
    }

    /// Copies the buffers of flights that have waited since the last pass: a waiting flight would keep the whole batch
    /// of its event in memory.
    pub fn detach_parked_buffers(&mut self) {
        self.steps.flights.for_each_waiting(|flight| {
            flight.buffers = match flight.buffers {
                BufferState::SharedWithBatch => BufferState::SharedAndWaiting,
                BufferState::SharedAndWaiting => {
                    flight.work = flight.work.detach_from_batch();
                    BufferState::Owned
                }
                BufferState::Owned => BufferState::Owned,
            };
        });
    }

    /// Handles outcomes that name these transactions: they became live, were decided, mined or unlocked. Tries the
    /// flights that are parked for them and for no other transaction, and returns the number of these flights.
    pub fn on_named(&mut self, named: impl IntoIterator<Item = NamedTransaction>, now_ms: u64) -> usize {
        let FlightSteps { flights, parking, ready, .. } = &mut self.steps;
        let before = ready.len();
        named.into_iter().for_each(|named| ready.extend(parking.on_named(flights, named)));
        let woken = ready.len() - before;
        self.steps.start_ready(now_ms);
        woken
    }

    /// Returns flights that have waited for `long_ms` since they began to wait or last read their own record; at most
    /// `MAX_REREADS`.
    pub fn long_waiting_flights(&mut self, long_ms: u64, now_ms: u64) -> Vec<FlightId> {
        let mut long = Vec::new();
        self.steps.flights.for_each_waiting(|flight| {
            let since_ms = *flight.waiting_since_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(since_ms) >= long_ms && long.len() < MAX_REREADS {
                long.push(flight.id);
            }
        });
        long
    }

    /// Reads the own records of flights that have waited for `long_ms`. An earlier event or the previous owner of the
    /// partition may have done the work, and others may wait for this flight. Over a store that can lose writes, and in
    /// a rebuild, the sequencer may need the transaction while the flight waits for a later verdict.
    pub fn reread_own_records(&mut self, long_ms: u64, now_ms: u64) {
        for id in self.long_waiting_flights(long_ms, now_ms) {
            if let Some(flight) = self.steps.flights.get_mut(id) {
                flight.waiting_since_ms = Some(now_ms);
                self.steps.actions.push_back(Action::ReadOwn(id, flight.txid));
            }
        }
    }

    /// Returns for how long the parent of this flight has been in question, ms.
    pub fn in_question_for_ms(&mut self, id: FlightId, now_ms: u64) -> u64 {
        let flights = &mut self.steps.flights;
        let first_absent = |flight: &Flight| flight.absent_parents().next();
        let parent =
            flights.get(id).and_then(|flight| first_absent(flight).or_else(|| flights.later_waiting_parent(flight)));
        let (Some(parent), Some(flight)) = (parent, flights.get_mut(id)) else { return 0 };
        let asked = flight.parent_in_question.filter(|(asked, _)| *asked == parent);
        let (_, since_ms) = *flight.parent_in_question.insert(asked.unwrap_or((parent, now_ms)));
        now_ms.saturating_sub(since_ms)
    }

    /// Starts the final attempt of a flight whose parents are `proven` to be missing or to exist by now.
    pub fn on_parents_proven_missing(&mut self, id: FlightId, proven: Vec<Txid>, ties: TieRule, now_ms: u64) {
        let FlightSteps { flights, parking, ready, .. } = &mut self.steps;
        if parking.begin_final_attempt(flights, id, proven, ties) {
            ready.push_back(id);
        }
        self.steps.start_ready(now_ms);
    }

    /// Drops all flights, since every partition is read again. Late answers find no flight.
    pub fn abandon(&mut self) {
        self.steps.flights.clear();
        self.steps.parking.clear();
        self.pace.clear();
        self.steps.actions.clear();
        self.steps.ready.clear();
        self.steps.non_durable = NonDurableTransactions::default();
    }

    /// Forgets the completed events of a partition below this durable offset.
    pub fn forget_durable(&mut self, partition: i32, durable_offset: u64) {
        self.steps.non_durable.remove_durable(partition, durable_offset);
    }

    /// Handles the revocation of a partition. Parked and halted flights without other partitions are dropped: the next
    /// owner reads their events again. So are flights that wait for a halted one. Flights in motion end without
    /// counting. A create may take long and is cancelled.
    pub fn revoke(&mut self, partition: i32, now_ms: u64) {
        let FlightSteps { flights, actions, parking, non_durable, .. } = &mut self.steps;
        parking.over_limit.remove(&partition);
        non_durable.remove_partition(partition);
        let mut dropped = Vec::new();
        for flight in flights.iter_mut() {
            flight.events.retain(|event| event.partition != partition);
            flight.later_requests.retain(|request| request.event.partition != partition);
            match flight.stage {
                _ if !flight.events.is_empty() => {}
                Stage::Parked | Stage::Halted => dropped.push(flight.id),
                Stage::Creating | Stage::StoringContested { .. } => actions.push_back(Action::Cancel(flight.id)),
                _ => {}
            }
        }
        for id in dropped {
            self.steps.parking.cancel_wait(&mut self.steps.flights, id);
            self.steps.finish(id, Completion::PassedOver);
        }
        self.steps.drop_revoked_behind_halted();
        self.steps.start_ready(now_ms);
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod properties;
