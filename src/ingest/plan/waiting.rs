//! Waiting transactions: for a parent in flight in this instance, or parked until their next try.

use std::collections::BTreeSet;

use super::{
    EventRef, PlanSettings, absent_parents::missing_after_final_attempt, flight_steps::FlightSteps,
    flight_table::FlightTable,
};
use crate::{
    ingest::{
        flight::{Flight, FlightId, Stage, is_decided},
        retry_queue::{RetryQueue, is_wide},
    },
    record::Reason,
    replay::Mode,
    telemetry::Completion,
};

/// Tries per second of all transactions of the backlog together while tries help
/// ([`AdaptiveRate`](super::adaptive_rate::AdaptiveRate)). A backlog that is small is retried sooner, after
/// [`BACKLOG_PAUSE_DIVISOR`].
const BACKLOG_TRIES_PER_SECOND: u64 = super::adaptive_rate::DEFAULT_PER_SECOND;

/// The shortest upper bound of a backlog pause is this part of the longest pause. With less, transactions would try
/// longer than they wait.
const BACKLOG_PAUSE_DIVISOR: u64 = 8;

/// The pause of the first class of the front is this part of the longest pause, however many transactions are parked.
/// In a chain of transactions whose links are in several instances each link takes one such pause, and a block waits
/// for the chain.
const FRONT_PAUSE_DIVISOR: u64 = 32;

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
pub(super) fn max_backlog_pause_ms(settings: &PlanSettings, parked: usize) -> u64 {
    let soon = (settings.retry_max_ms / BACKLOG_PAUSE_DIVISOR).max(settings.retry_min_ms);
    ((parked as u64).saturating_mul(1_000) / BACKLOG_TRIES_PER_SECOND).max(soon)
}

/// Returns the upper bound of the pause, in ms, of transactions that are [`is_wide`], where one try of each of them
/// takes `rows` rows together: they share [`BACKLOG_TRIES_PER_SECOND`] rows a second.
fn max_wide_pause_ms(rows: usize) -> u64 {
    ((rows as u64).saturating_mul(1_000) / BACKLOG_TRIES_PER_SECOND).min(MAX_WIDE_PAUSE_MS)
}

/// Returns the upper bound of the pause, in ms, of a class of the front.
pub(super) fn max_class_pause_ms(settings: &PlanSettings, class: u32) -> u64 {
    (settings.retry_max_ms / FRONT_PAUSE_DIVISOR).max(settings.retry_min_ms) << class
}

impl FlightTable {
    /// Returns whether any flight is halted. Children of a halted flight are not retried.
    pub fn has_halted(&self) -> bool {
        self.waiting().any(|flight| flight.stage == Stage::Halted)
    }

    /// Returns the oldest flight, by its first event, that waits for a record: since when it waits, ms, and a line that
    /// names the transaction, its event and the parent.
    pub fn oldest_wait(&self) -> Option<(u64, String)> {
        // A flight in a try is still waiting.
        let is_waiting = |flight: &&Flight| match flight.stage {
            Stage::Parked => true,
            _ => flight.parked_since_ms.is_some() && flight.has_refusal(),
        };
        let parked = self.iter().filter(is_waiting);
        let (event, flight) =
            parked.filter_map(|flight| Some((flight.first_event()?, flight))).min_by_key(|(it, _)| *it)?;
        let txid = flight.work.txid();
        let EventRef { partition, offset, .. } = event;
        let what = format!("{txid} (partition {partition}, offset {offset}) waits for {}", flight.wait_reason());
        Some((flight.parked_since_ms.unwrap_or_default(), what))
    }
}

/// The retries of parked flights.
#[derive(Debug)]
pub(super) struct Parking {
    pub(super) settings: PlanSettings,
    pub(super) retry_queue: RetryQueue,
    /// Partitions that are paused at their limit.
    pub(super) over_limit: BTreeSet<i32>,
}

impl Parking {
    pub(super) fn new(settings: PlanSettings) -> Self {
        Parking { settings, retry_queue: RetryQueue::default(), over_limit: BTreeSet::new() }
    }

    /// Forgets all flights and partitions.
    pub(super) fn clear(&mut self) {
        self.retry_queue = RetryQueue::default();
        self.over_limit.clear();
    }

    /// Parks a flight until its next try, whatever the flight waits for. `age`: the first event of the flight.
    fn park(&mut self, flights: &mut FlightTable, id: FlightId, age: EventRef, now_ms: u64) {
        let settings = self.settings;
        let backlog = max_backlog_pause_ms(&settings, self.retry_queue.count());
        let longest = self
            .retry_queue
            .front_class(age)
            .map_or(backlog, |class| max_class_pause_ms(&settings, class).min(backlog));
        let all_wide = self.retry_queue.wide_rows();
        let Some(flight) = flights.get_mut(id) else { return };
        let rows = flight.rows_per_try();
        let longest = if is_wide(rows) { longest.max(max_wide_pause_ms(all_wide + rows)) } else { longest };
        flight.parked_since_ms.get_or_insert(now_ms);
        let pause = (settings.retry_min_ms << flight.attempts.min(16)).min(longest);
        let is_fresh = flight.attempts < FRESH_ATTEMPTS;
        flight.attempts += 1;
        flights.register_waiter(id);
        self.retry_queue.insert(id, age, rows, pause_end_ms(now_ms, pause), is_fresh);
        flights.wait(id, Stage::Parked);
    }

    /// Ends the wait of a flight. Parents in flight forget the child: their completion must not start the child once
    /// more.
    pub(super) fn cancel_wait(&mut self, flights: &mut FlightTable, id: FlightId) {
        if flights.get(id).is_some_and(|flight| flight.stage == Stage::Parked) {
            self.retry_queue.remove(id);
        } else {
            for parent in flights.parents_in_flight(id, |_| true) {
                if let Some(parent) = flights.get_mut(parent) {
                    parent.children.retain(|child| *child != id);
                }
            }
        }
        flights.stop_waiting(id);
    }

    /// Ends the waits of these flights that are parked, and returns those flights.
    pub(super) fn wake_parked(
        &mut self,
        flights: &mut FlightTable,
        ids: impl IntoIterator<Item = FlightId>,
    ) -> Vec<FlightId> {
        let mut woken = Vec::from_iter(ids);
        woken.retain(|id| flights.get(*id).is_some_and(|flight| flight.stage == Stage::Parked));
        woken.iter().for_each(|id| self.cancel_wait(flights, *id));
        woken
    }

    /// Returns whether a partition of the flight is paused at its limit.
    pub(super) fn is_over_limit(&self, flight: &Flight) -> bool {
        flight.events.iter().any(|event| self.over_limit.contains(&event.partition))
    }
}

impl FlightSteps {
    /// Parks a flight, or makes the flight wait for parents in flight. A flight whose parent is proven missing, or
    /// whose parent is locked for longer than the grace, is contested instead.
    pub(super) fn park(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.flights.get(id) else { return };
        // Without events the partitions of the flight were revoked: their next owner reads the event again.
        if flight.events.is_empty() || flight.defers_to_later_event() {
            return self.finish(id, Completion::PassedOver);
        }
        let won = flight.mode.ends_live();
        let in_flight = self.flights.parents_in_flight(id, |group| match &group.refusal {
            None => false,
            Some(refusal) => won || !is_decided(refusal),
        });
        if let Some(parent) = missing_after_final_attempt(&mut self.flights, id, in_flight.is_empty()) {
            return self.store_contested(id, Reason::MissingParent { parent });
        }
        if !in_flight.is_empty() {
            return self.await_parents(id, &in_flight);
        }
        let Some(flight) = self.flights.get_mut(id) else { return };
        let (over_limit, grace_ms) = (self.parking.is_over_limit(flight), self.parking.settings.flag_grace_ms);
        let since_ms = *flight.parked_since_ms.get_or_insert(now_ms);
        if let Some(parent) = flight.locked_parent()
            && flight.mode == Mode::Normal
            && (over_limit || now_ms.saturating_sub(since_ms) >= grace_ms)
        {
            return self.store_contested(id, Reason::Locked { parent });
        }
        self.pause(id, now_ms);
    }

    /// Parks a flight until its next try, whatever the flight waits for: a flight that was answered a moment ago would
    /// be answered the same at once.
    pub(super) fn pause(&mut self, id: FlightId, now_ms: u64) {
        match self.flights.get(id).and_then(Flight::first_event) {
            Some(age) => self.parking.park(&mut self.flights, id, age, now_ms),
            // The partitions of the flight were revoked: their next owner reads the event again.
            None => self.finish(id, Completion::PassedOver),
        }
    }
}
