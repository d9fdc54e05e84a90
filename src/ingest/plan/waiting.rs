//! Waiting transactions: for a parent in flight in this instance, or parked until their next try.

use super::{Action, EventRef, PlanSettings, Planner, adaptive_rate::AdaptiveRate};
use crate::{
    ingest::{
        flight::{BufferState, Flight, FlightId, Stage, is_decided},
        retry_queue::{DueFlight, RetryClass, is_wide},
    },
    record::Reason,
    replay::Mode,
    telemetry::Completion,
    tx::Txid,
};

/// Number of waiting transactions whose own record is read in one pass. A partition limit allows far more; the next
/// pass reads the others.
const MAX_REREADS: usize = 1_024;

/// Tries per second of all transactions of the backlog together while tries help ([`AdaptiveRate`]). A backlog that is
/// small is retried sooner, after [`BACKLOG_PAUSE_DIVISOR`].
const BACKLOG_TRIES_PER_SECOND: u64 = super::adaptive_rate::DEFAULT_PER_SECOND;

/// The shortest upper bound of a backlog pause is this part of the longest pause. With less, transactions would try
/// longer than they wait.
const BACKLOG_PAUSE_DIVISOR: u64 = 8;

/// The pause of the first class of the front is this part of the longest pause, however many transactions are parked.
/// In a chain of transactions whose links are in several instances each link takes one such pause, and a block waits
/// for the chain.
const FRONT_PAUSE_DIVISOR: u64 = 32;

/// Bounds of the tries without an answer, and of their rows. Without a bound a slow store would get the more tries the
/// slower it is, ahead of the work that the tries wait for.
const MAX_OPEN_TRIES: usize = 64;
const MAX_OPEN_ROWS: usize = 1_024;

/// Upper bound of the pause of transactions with many rows per try, ms, however many of them there are.
const MAX_WIDE_PAUSE_MS: u64 = 60_000;

/// After this many attempts a parked transaction loses new-arrival priority: a parent in flight would have arrived.
const FRESH_ATTEMPTS: u32 = 5;

/// Pauses of 8 ticks and more end at a multiple of the tick, ms: transactions of one tick share a batch, and the loop
/// wakes once.
const TRY_TICK_MS: u64 = super::adaptive_rate::TRY_TICK_MS;

/// Returns the end of a pause that begins now, ms.
fn pause_end_ms(now_ms: u64, pause: u64) -> u64 {
    let end_ms = now_ms.saturating_add(pause);
    if pause < 8 * TRY_TICK_MS { end_ms } else { end_ms.checked_next_multiple_of(TRY_TICK_MS).unwrap_or(end_ms) }
}

/// Returns the upper bound of the pause of the backlog, in ms, for this number of parked transactions.
fn max_backlog_pause_ms(settings: &PlanSettings, parked: usize) -> u64 {
    let soon = (settings.retry_max_ms / BACKLOG_PAUSE_DIVISOR).max(settings.retry_min_ms);
    ((parked as u64).saturating_mul(1_000) / BACKLOG_TRIES_PER_SECOND).max(soon)
}

/// Returns the upper bound of the pause, in ms, of transactions that are [`is_wide`], where one try of each of them
/// takes `rows` rows together: they share [`BACKLOG_TRIES_PER_SECOND`] rows a second.
fn max_wide_pause_ms(rows: usize) -> u64 {
    ((rows as u64).saturating_mul(1_000) / BACKLOG_TRIES_PER_SECOND).min(MAX_WIDE_PAUSE_MS)
}

/// Returns the upper bound of the pause, in ms, of a class of the front.
fn max_class_pause_ms(settings: &PlanSettings, class: u32) -> u64 {
    (settings.retry_max_ms / FRONT_PAUSE_DIVISOR).max(settings.retry_min_ms) << class
}

/// A try of a parked transaction that the store has not answered yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenTry {
    due: DueFlight,
    rows: usize,
}

/// Returns whether the open tries have reached their bounds, so that no further try starts before an answer.
fn is_full(open_tries: &[OpenTry]) -> bool {
    open_tries.len() >= MAX_OPEN_TRIES || open_tries.iter().map(|one| one.rows).sum::<usize>() >= MAX_OPEN_ROWS
}

impl Planner {
    pub(super) fn await_parents(&mut self, id: FlightId, remaining: u32) {
        if let Some(flight) = self.get(id) {
            flight.stage = Stage::AwaitingParents { remaining };
            self.start_waiting(id);
        }
    }

    /// Makes a parked flight wait for a parent that is now in flight. Returns `false` for a flight that is not parked.
    pub(super) fn unpark(&mut self, id: FlightId) -> bool {
        let Some(flight) = self.get(id) else { return false };
        if let Stage::Parked = flight.stage {
            flight.stage = Stage::AwaitingParents { remaining: 1 };
            self.retry_queue.remove(id);
            return true;
        }
        false
    }

    /// Ends the wait of a flight. Parents in flight forget the child: their completion must not start the child once
    /// more.
    pub(super) fn cancel_wait(&mut self, id: FlightId) {
        if self.get(id).is_some_and(|flight| flight.stage == Stage::Parked) {
            self.retry_queue.remove(id);
        } else {
            for parent in self.parents_in_flight(id, |_| true) {
                if let Some(parent) = self.get(parent) {
                    parent.children.retain(|child| *child != id);
                }
            }
        }
        self.stop_waiting(id);
    }

    /// Adds a flight to the waiting flights. All events of a transaction are in one partition.
    pub(super) fn start_waiting(&mut self, id: FlightId) {
        let place = self.waiting.len() as u32;
        let Some(flight) = self.get(id).filter(|flight| flight.waiting_index.is_none()) else { return };
        flight.waiting_index = Some(place);
        let partition = flight.origin.partition;
        self.waiting.push(id);
        self.parked_max = self.parked_max.max(self.waiting.len());
        if let Ok(number) = usize::try_from(partition) {
            if self.waiting_per_partition.len() <= number {
                self.waiting_per_partition.resize(number + 1, 0);
            }
            self.waiting_per_partition[number] += 1;
        }
    }

    /// Removes a flight from the waiting flights.
    pub(super) fn stop_waiting(&mut self, id: FlightId) {
        let Some(flight) = self.get(id) else { return };
        let (place, partition) = (flight.waiting_index.take(), flight.origin.partition);
        let Some(place) = place else { return };
        self.waiting.swap_remove(place as usize);
        if let Some(moved) = self.waiting.get(place as usize).copied()
            && let Some(moved) = self.get(moved)
        {
            moved.waiting_index = Some(place);
        }
        let number = usize::try_from(partition).ok();
        if let Some(waiting) = number.and_then(|number| self.waiting_per_partition.get_mut(number)) {
            *waiting -= 1;
        }
    }

    /// Returns the waiting flights, whatever they wait for.
    pub(super) fn waiting_flights(&self) -> impl Iterator<Item = &Flight> {
        self.waiting
            .iter()
            .filter_map(|id| self.flights.get(id.index as usize)?.as_ref().filter(|flight| flight.id == *id))
    }

    pub(super) fn park(&mut self, id: FlightId, now_ms: u64) {
        if self.get(id).is_some_and(|flight| flight.events.is_empty()) {
            // The partitions of the flight were revoked: their next owner reads the event again.
            return self.finish(id, Completion::PassedOver);
        }
        if self.get(id).is_some_and(|flight| flight.defers_to_later_event()) {
            return self.finish(id, Completion::PassedOver);
        }
        let won = self.get(id).is_some_and(|flight| flight.mode.ends_live());
        let in_flight = self.parents_in_flight(id, |group| match &group.refusal {
            None => false,
            Some(refusal) => won || !is_decided(refusal),
        });
        if let Some(parent) = self.missing_after_final_attempt(id, in_flight.is_empty()) {
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
        let over_limit = self.is_over_limit(id);
        let Some(flight) = self.get(id) else { return };
        let since_ms = *flight.parked_since_ms.get_or_insert(now_ms);
        if let Some(parent) = flight.locked_parent()
            && flight.mode == Mode::Normal
            && (over_limit || now_ms.saturating_sub(since_ms) >= settings.flag_grace_ms)
        {
            return self.store_contested(id, Reason::Locked { parent });
        }
        self.pause(id, now_ms);
    }

    /// Parks a flight until its next try, whatever the flight waits for: a flight that was answered a moment ago would
    /// be answered the same at once.
    pub(super) fn pause(&mut self, id: FlightId, now_ms: u64) {
        let settings = self.settings;
        let Some(age) = self.get(id).and_then(|flight| flight.first_event()) else {
            // The partitions of the flight were revoked: their next owner reads the event again.
            return self.finish(id, Completion::PassedOver);
        };
        let backlog = max_backlog_pause_ms(&settings, self.retry_queue.count());
        let longest = self
            .retry_queue
            .front_class(age)
            .map_or(backlog, |class| max_class_pause_ms(&settings, class).min(backlog));
        let all_wide = self.retry_queue.wide_rows();
        let Some(flight) = self.get(id) else { return };
        let rows = flight.rows_per_try();
        let longest = if is_wide(rows) { longest.max(max_wide_pause_ms(all_wide + rows)) } else { longest };
        flight.parked_since_ms.get_or_insert(now_ms);
        let pause = (settings.retry_min_ms << flight.attempts.min(16)).min(longest);
        let is_fresh = flight.attempts < FRESH_ATTEMPTS;
        flight.attempts += 1;
        flight.stage = Stage::Parked;
        let registered = std::mem::replace(&mut flight.is_registered_as_waiter, true);
        let absent: Vec<Txid> = if registered { Vec::new() } else { flight.absent_parents().collect() };
        for parent in absent {
            self.waiters_by_parent.entry(parent).or_default().insert(id);
        }
        self.retry_queue.insert(id, age, rows, pause_end_ms(now_ms, pause), is_fresh);
        self.start_waiting(id);
    }

    /// Halts a flight whose rows the store cannot take; a repeated request would not help. Children in flight wait on.
    /// Returns the transaction and its events, whose partitions are to be halted: the events never complete here.
    /// Returns `None` once all partitions of the flight are revoked.
    pub fn halt(&mut self, id: FlightId, now_ms: u64) -> Option<(Txid, Vec<EventRef>)> {
        let flight = self.get(id)?;
        if flight.events.is_empty() {
            // The partitions of the flight were revoked: their next owner gets the same refusal.
            self.finish(id, Completion::PassedOver);
            self.start_ready(now_ms);
            return None;
        }
        let was = std::mem::replace(&mut flight.stage, Stage::Halted);
        let halted = (flight.txid, flight.events.clone());
        if was != Stage::Halted {
            self.start_waiting(id);
        }
        Some(halted)
    }

    /// Returns whether any flight is halted. Children of a halted flight are not retried.
    pub fn has_halted(&self) -> bool {
        self.waiting_flights().any(|flight| flight.stage == Stage::Halted)
    }

    /// Returns whether a partition of the flight is paused at its limit.
    pub(super) fn is_over_limit(&self, id: FlightId) -> bool {
        let flight = self.flights.get(id.index as usize).and_then(Option::as_ref);
        flight.is_some_and(|flight| flight.events.iter().any(|event| self.over_limit.contains(&event.partition)))
    }

    /// Notes that a partition is paused at its limit. Transactions of the partition that wait for a lock are contested
    /// at once: the block that lifts the lock may wait for events that are not read.
    pub fn mark_over_limit(&mut self, partition: i32, now_ms: u64) {
        if !self.over_limit.insert(partition) {
            return;
        }
        let on_flag = |flight: &&Flight| flight.stage == Stage::Parked && flight.locked_parent().is_some();
        let waiting: Vec<FlightId> = self.waiting_flights().filter(on_flag).map(|flight| flight.id).collect();
        for id in waiting {
            if self.is_over_limit(id) {
                self.cancel_wait(id);
                self.ready.push_back(id);
            }
        }
        self.start_ready(now_ms);
    }

    /// Notes that a partition paused at its limit has room again.
    pub fn clear_over_limit(&mut self, partition: i32) {
        self.over_limit.remove(&partition);
    }

    /// Starts the tries of parked flights that are due, within the bounds of open tries and the rates of their classes.
    pub fn retry_due(&mut self, now_ms: u64) {
        if now_ms >= self.next_front_refresh_ms {
            let settings = self.settings;
            let backlog = max_backlog_pause_ms(&settings, self.retry_queue.count());
            self.next_front_refresh_ms = now_ms.saturating_add(max_class_pause_ms(&settings, 0));
            self.retry_queue.refresh_front(now_ms, |class| max_class_pause_ms(&settings, class).min(backlog));
        }
        let mut open_tries = std::mem::take(&mut self.open_tries);
        open_tries.retain(|one| {
            let is_unanswered = self.is_unanswered(one.due.id);
            if !is_unanswered {
                let is_parked = self.get(one.due.id).is_some_and(|flight| flight.stage == Stage::Parked);
                if let Some(rate) = self.rate_of(one.due.class) {
                    rate.record_result(!is_parked);
                }
            }
            is_unanswered
        });
        while !is_full(&open_tries) {
            let (backlog, fresh) = (self.backlog_rate.may_try(now_ms), self.fresh_rate.may_try(now_ms));
            let Some(due) = self.retry_queue.pop_due(now_ms, backlog, fresh) else { break };
            if let Some(rate) = self.rate_of(due.class) {
                rate.take_try();
            }
            self.stop_waiting(due.id);
            self.ready.push_back(due.id);
            open_tries.push(OpenTry { due, rows: self.get(due.id).map_or(0, |flight| flight.rows_per_try()) });
        }
        self.open_tries = open_tries;
        self.start_ready(now_ms);
    }

    fn rate_of(&mut self, class: RetryClass) -> Option<&mut AdaptiveRate> {
        match class {
            RetryClass::Oldest => None,
            RetryClass::Fresh => Some(&mut self.fresh_rate),
            RetryClass::Backlog => Some(&mut self.backlog_rate),
        }
    }

    /// Returns whether a try still waits for its first answer. A flight that is being created has its answer: the
    /// create may wait for the blob store, and other flights need not.
    fn is_unanswered(&self, id: FlightId) -> bool {
        let flight = self.flights.get(id.index as usize).and_then(Option::as_ref).filter(|flight| flight.id == id);
        flight.is_some_and(|flight| match flight.stage {
            Stage::Spending { .. } | Stage::CheckingOwn | Stage::ReadingOwn | Stage::ReadingFirstRecord { .. } => true,
            Stage::AwaitingParents { .. } | Stage::Parked | Stage::Halted => false,
            Stage::Creating | Stage::StoringContested { .. } | Stage::PublishingContest { .. } => false,
        })
    }

    /// Copies the buffers of flights that have waited since the last pass: a waiting flight would keep the whole batch
    /// of its event in memory.
    pub fn detach_parked_buffers(&mut self) {
        for index in 0..self.waiting.len() {
            let id = self.waiting[index];
            let Some(flight) = self.get(id).filter(|flight| flight.is_waiting()) else { continue };
            flight.buffers = match flight.buffers {
                BufferState::SharedWithBatch => BufferState::SharedAndWaiting,
                BufferState::SharedAndWaiting => {
                    flight.work = flight.work.detach_from_batch();
                    BufferState::Owned
                }
                BufferState::Owned => BufferState::Owned,
            };
        }
    }

    /// Retries the flights that are parked for a parent that the sequencer has created without an event in flight here.
    pub fn on_parent_created(&mut self, parent: &Txid, now_ms: u64) {
        for id in self.waiters_by_parent.get(parent).cloned().unwrap_or_default() {
            if self.get(id).is_some_and(|flight| flight.stage == Stage::Parked) {
                self.cancel_wait(id);
                self.ready.push_back(id);
            }
        }
        self.start_ready(now_ms);
    }

    /// Returns the time, ms by the clock of the caller, from which [`retry_due`](Self::retry_due) has work; `None`: not
    /// before an answer.
    pub fn next_due_ms(&self) -> Option<u64> {
        let is_full = is_full(&self.open_tries) && self.open_tries.iter().all(|one| self.is_unanswered(one.due.id));
        self.retry_queue
            .next_due_ms(self.backlog_rate.next_try_ms(), self.fresh_rate.next_try_ms())
            .filter(|_| !is_full)
    }

    /// Returns flights that have waited for `long_ms` since they began to wait or last read their own record; at most
    /// [`MAX_REREADS`].
    pub fn long_waiting_flights(&mut self, long_ms: u64, now_ms: u64) -> Vec<FlightId> {
        let mut long = Vec::new();
        for index in 0..self.waiting.len() {
            let id = self.waiting[index];
            let Some(flight) = self.get(id).filter(|flight| flight.is_waiting()) else { continue };
            let since_ms = *flight.waiting_since_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(since_ms) >= long_ms && long.len() < MAX_REREADS {
                long.push(id);
            }
        }
        long
    }

    /// Reads the own records of flights that have waited for `long_ms`. An earlier event or the previous owner of the
    /// partition may have done the work, and others may wait for this flight. Over a store that can lose writes, and in
    /// a rebuild, the sequencer may need the transaction while the flight waits for a later verdict.
    pub fn reread_own_records(&mut self, long_ms: u64, now_ms: u64) {
        for id in self.long_waiting_flights(long_ms, now_ms) {
            if let Some(flight) = self.get(id) {
                let txid = flight.txid;
                flight.waiting_since_ms = Some(now_ms);
                self.actions.push_back(Action::ReadOwn(id, txid));
            }
        }
    }

    /// Returns the oldest flight, by its first event, that waits for a record: since when it waits, ms, and a line that
    /// names the transaction, its event and the parent.
    pub fn oldest_wait(&self) -> Option<(u64, String)> {
        // A flight in a try is still waiting.
        let is_waiting = |flight: &&Flight| match flight.stage {
            Stage::Parked => true,
            _ => flight.parked_since_ms.is_some() && flight.has_refusal(),
        };
        let parked = self.flights.iter().flatten().filter(is_waiting);
        let (event, flight) =
            parked.filter_map(|flight| Some((flight.first_event()?, flight))).min_by_key(|(it, _)| *it)?;
        let txid = flight.work.txid();
        let EventRef { partition, offset, .. } = event;
        let what = format!("{txid} (partition {partition}, offset {offset}) waits for {}", flight.wait_reason());
        Some((flight.parked_since_ms.unwrap_or_default(), what))
    }
}
