//! Waiting transactions: for a parent in flight in this instance, or parked until their next try.

use std::collections::BTreeSet;

use super::{
    EventRef, PlanSettings,
    absent_parents::missing_after_final_attempt,
    flight_steps::FlightSteps,
    flight_table::FlightTable,
    named_transactions::{NamedTransaction, NamedTransactions},
    retry_pace::RetryQueues,
};
use crate::{
    ingest::flight::{Flight, FlightId, Stage, is_decided},
    record::Reason,
    replay::Mode,
    telemetry::Completion,
};

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

/// Parked flights: what wakes them, and their retries.
#[derive(Debug)]
pub(super) struct Parking {
    pub(super) settings: PlanSettings,
    pub(super) retry_queues: RetryQueues,
    pub(super) named: NamedTransactions,
    /// Partitions that are paused at their limit.
    pub(super) over_limit: BTreeSet<i32>,
}

impl Parking {
    pub(super) fn new(settings: PlanSettings) -> Self {
        Parking {
            settings,
            retry_queues: RetryQueues::default(),
            named: NamedTransactions::default(),
            over_limit: BTreeSet::new(),
        }
    }

    /// Forgets all flights and partitions.
    pub(super) fn clear(&mut self) {
        self.retry_queues = RetryQueues::default();
        self.over_limit.clear();
    }

    /// Parks a flight until an outcome has named each transaction that the flight waits for, or until its next retry.
    /// Returns `false` where outcomes have named all of them since the last try began: the flight tries again now.
    fn park(&mut self, flights: &mut FlightTable, id: FlightId, now_ms: u64) -> bool {
        let Some(flight) = flights.get_mut(id) else { return true };
        flight.parked_since_ms.get_or_insert(now_ms);
        flight.is_woken = false;
        let began = flight.try_began;
        let mut awaited = flight.awaited_transactions();
        awaited.retain(|txid, change| !self.named.is_named_since(txid, *change, began));
        if awaited.is_empty() {
            return false;
        }
        let PlanSettings { retry_min_ms, retry_max_ms, .. } = self.settings;
        let pause = (retry_min_ms << flight.attempts.min(16)).min(retry_max_ms);
        flight.attempts += 1;
        self.retry_queues.insert(flight, now_ms.saturating_add(pause));
        flights.register_waiter(id, awaited);
        flights.wait(id, Stage::Parked);
        true
    }

    /// Records that an outcome names a transaction. Returns the parked flights that wait for no other one.
    pub(super) fn on_named(&mut self, flights: &mut FlightTable, named: NamedTransaction) -> Vec<FlightId> {
        self.named.record(named);
        let waiters = flights.take_last_waiters(named);
        let woken = self.wake_parked(flights, waiters);
        for id in &woken {
            if let Some(flight) = flights.get_mut(*id) {
                flight.is_woken = true;
            }
        }
        woken
    }

    /// Ends the wait of a flight. Parents in flight forget the child: their completion must not start the child once
    /// more.
    pub(super) fn cancel_wait(&mut self, flights: &mut FlightTable, id: FlightId) {
        if flights.get(id).is_some_and(|flight| flight.stage == Stage::Parked) {
            self.retry_queues.remove(id);
            flights.forget_waiter(id);
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
    /// Drops the flights whose partitions were revoked and which wait for a halted flight: a halt lasts until the
    /// events of the halted flight are read again.
    pub(super) fn drop_revoked_behind_halted(&mut self) {
        if !self.flights.has_halted() {
            return;
        }
        let is_dropped = |flight: &&Flight| flight.events.is_empty() && waits_for_halted(&self.flights, flight.id);
        let dropped: Vec<FlightId> = self.flights.waiting().filter(is_dropped).map(|flight| flight.id).collect();
        for id in dropped {
            self.parking.cancel_wait(&mut self.flights, id);
            self.finish(id, Completion::PassedOver);
        }
    }

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
        let waits_since_ms = *flight.parked_since_ms.get_or_insert(now_ms);
        let start = match &self.history.live_grace_start {
            Some(_) if flight.waits_for_chain() => Some(&self.history.flag_grace_start),
            start => start.as_ref(),
        };
        if let Some(start) = start
            && flight.mode.ends_live()
            && now_ms >= start.of_wait_since(waits_since_ms).saturating_add(grace_ms)
        {
            flight.mode = Mode::Normal;
            return self.ready.push_back(id);
        }
        let since_ms = self.history.flag_grace_start.of_wait_since(waits_since_ms);
        if let Some(parent) = flight.locked_parent()
            && flight.mode == Mode::Normal
            && (over_limit || now_ms >= since_ms.saturating_add(grace_ms))
        {
            return self.store_contested(id, Reason::Locked { parent });
        }
        self.pause(id, now_ms);
    }

    /// Parks a flight, whatever it waits for: a flight that was answered a moment ago would be answered the same at
    /// once, unless an outcome has named what it waits for.
    pub(super) fn pause(&mut self, id: FlightId, now_ms: u64) {
        let Some(flight) = self.flights.get(id) else { return };
        if flight.events.is_empty() {
            // The partitions of the flight were revoked: their next owner reads the event again.
            return self.finish(id, Completion::PassedOver);
        }
        if !self.parking.park(&mut self.flights, id, now_ms) {
            self.ready.push_back(id);
        }
    }
}

/// Returns whether a flight waits for a halted one, directly or through other flights.
fn waits_for_halted(flights: &FlightTable, id: FlightId) -> bool {
    let (mut open, mut seen) = (vec![id], BTreeSet::from([id]));
    while let Some(id) = open.pop() {
        match flights.get(id).map(|flight| &flight.stage) {
            Some(Stage::Halted) => return true,
            Some(Stage::AwaitingParents { .. }) => {
                let parents = flights.parents_in_flight(id, |_| true).into_iter();
                open.extend(parents.filter(|parent| seen.insert(*parent)));
            }
            _ => {}
        }
    }
    false
}
