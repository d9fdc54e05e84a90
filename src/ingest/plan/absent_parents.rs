//! Parents that may be missing: the flights whose parents are in question, and the effect of a proof. The proof itself
//! is in [`missing_parent`](crate::group::missing_parent).

use std::collections::{BTreeMap, BTreeSet};

use super::{EventRef, flight_table::FlightTable, waiting::Parking};
use crate::{
    group::missing_parent::{MAX_WAITING_EVENTS, TieRule, TxidPrefix, txid_prefix},
    ingest::flight::{FinalAttempt, Flight, FlightId, Stage},
    replay::Mode,
    tx::Txid,
};

impl FlightTable {
    /// Returns the flights that wait for parents that may be missing, by their first event, with these parents: absent
    /// parents, and a parent in flight here whose event is later and which itself waits.
    pub fn waiting_for_absent(&self) -> Vec<(EventRef, FlightId, Vec<Txid>)> {
        let waiting = self.waiting().filter(|flight| flight.mode == Mode::Normal && flight.is_waiting());
        let wanted = |flight: &Flight| match flight.stage {
            Stage::Parked => Vec::from_iter(flight.absent_parents()),
            _ => {
                let later_parent = self.later_waiting_parent(flight);
                let others =
                    flight.absent_parents().filter(|parent| later_parent.is_some_and(|later| later != *parent));
                later_parent.into_iter().chain(others).collect()
            }
        };
        waiting
            .map(|flight| (flight, wanted(flight)))
            .filter(|(_, wanted)| !wanted.is_empty())
            .filter_map(|(flight, wanted)| Some((flight.first_event()?, flight.id, wanted)))
            .collect()
    }

    /// Returns by partition the oldest events of waiting flights, at most [`MAX_WAITING_EVENTS`], each with timestamp,
    /// offset and prefix of the txid.
    pub fn oldest_waiting_events(&self) -> BTreeMap<i32, Vec<(i64, u64, TxidPrefix)>> {
        let mut events_of: BTreeMap<i32, Vec<_>> = BTreeMap::new();
        for flight in self.waiting().filter(|flight| flight.is_waiting()) {
            for event in &flight.events {
                let at = (event.timestamp_ms, event.offset, txid_prefix(&flight.txid));
                events_of.entry(event.partition).or_default().push(at);
            }
        }
        for events in events_of.values_mut() {
            // Very many flights may wait: only the oldest are sorted.
            if events.len() > MAX_WAITING_EVENTS {
                events.select_nth_unstable(MAX_WAITING_EVENTS);
                events.truncate(MAX_WAITING_EVENTS);
            }
            events.sort_unstable();
        }
        events_of
    }

    /// Returns a parent in flight that waits itself and whose event is later than the event of the child. The child
    /// cannot wait for this parent: the parents of the parent are proven missing only after the child, which is older,
    /// has ended. Returns `None`, too, while a parent in flight has an older event: this parent ends without the child.
    pub(super) fn later_waiting_parent(&self, child: &Flight) -> Option<Txid> {
        let first = child.first_event()?;
        let mut later_parent = None;
        for parent in child.parents().filter_map(|parent| self.first_event_flight(&parent)) {
            match parent.first_event() {
                Some(event) if event < first => return None,
                _ if parent.is_waiting() => later_parent = later_parent.or(Some(parent.txid)),
                _ => {}
            }
        }
        later_parent
    }
}

impl Parking {
    /// Starts the final attempt of a flight whose parents are `proven` to be missing or to exist by now. The flight is
    /// contested if a proven parent is absent again: its last try may be older than the proof, and the parent may have
    /// been created in between. A parent in flight here whose event is not older counts as missing only under
    /// [`TieRule::BreakKnown`]. Returns `false` for a flight that has moved since the question.
    pub(super) fn begin_final_attempt(
        &mut self,
        flights: &mut FlightTable,
        id: FlightId,
        proven: Vec<Txid>,
        ties: TieRule,
    ) -> bool {
        let Some(flight) = flights.get(id) else { return false };
        if flight.stage == Stage::Parked {
            if flight.absent_parents().next().is_none()
                || flight.awaited_parents().any(|parent| flights.id_of(&parent).is_some())
            {
                return false;
            }
        } else if !flight.is_waiting() || flights.later_waiting_parent(flight).is_none() || ties < TieRule::BreakKnown {
            return false;
        }
        self.cancel_wait(flights, id);
        if let Some(flight) = flights.get_mut(id) {
            flight.final_attempt = Some(FinalAttempt { proven: BTreeSet::from_iter(proven), ties });
        }
        true
    }
}

/// Returns the parent that is absent after the final attempt. A parent in flight may still be created, unless its
/// event is later and it waits itself. An absent parent without a proof may still be created, too: a flight that
/// waited for a parent in flight may have no recent answer of its other parents.
pub(super) fn missing_after_final_attempt(
    flights: &mut FlightTable,
    id: FlightId,
    none_in_flight: bool,
) -> Option<Txid> {
    let FinalAttempt { proven, ties } = flights.get_mut(id)?.final_attempt.take()?;
    let flight = flights.get(id)?;
    let absent = flight.absent_parents().next()?;
    if flight.absent_parents().any(|parent| !proven.contains(&parent)) {
        return None;
    }
    let is_later = || {
        let later_parent = flights.later_waiting_parent(flight);
        later_parent.filter(|later_parent| flight.absent_parents().any(|it| it == *later_parent))
    };
    if none_in_flight { Some(absent) } else { is_later().filter(|_| ties == TieRule::BreakKnown) }
}
