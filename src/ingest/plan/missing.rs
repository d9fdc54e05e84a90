//! Parents that may never come. What proves it is in [`proof`](crate::group::proof); here is who asks, and what follows.

use std::collections::{BTreeMap, BTreeSet};

use super::{EventRef, Planner};
use crate::{
    group::proof::{MOST_NAMED, Name, Ties, name_of},
    ingest::flight::{Flight, FlightId, LastTry, Stage},
    replay::Mode,
    tx::Txid,
};

impl Planner {
    /// The transactions that wait for parents that may never come, by their first event, with those: what is absent, and one that is
    /// in flight here, came behind them, and waits itself.
    pub fn waiting_for_absent(&self) -> Vec<(EventRef, FlightId, Vec<Txid>)> {
        let waiting = self.those_that_wait().filter(|flight| flight.mode == Mode::Normal && flight.waits());
        let wanted = |flight: &Flight| match flight.stage {
            Stage::Parked => Vec::from_iter(flight.absent_parents()),
            _ => {
                let behind = self.parent_behind(flight);
                let others = flight.absent_parents().filter(|parent| behind.is_some_and(|behind| behind != *parent));
                behind.into_iter().chain(others).collect()
            }
        };
        waiting
            .map(|flight| (flight, wanted(flight)))
            .filter(|(_, wanted)| !wanted.is_empty())
            .filter_map(|(flight, wanted)| Some((flight.first_event()?, flight.id, wanted)))
            .collect()
    }

    /// Has these stand still until `until_ms`: an answer that comes while they try again would not find them waiting, and they may try
    /// again whenever one comes.
    pub fn hold(&mut self, waiting: &BTreeSet<FlightId>, until_ms: u64) {
        for id in waiting {
            self.parked.hold(*id, until_ms);
        }
    }

    /// Whether an event of the transaction is in flight here.
    pub fn is_in_flight(&self, txid: &Txid) -> bool {
        self.by_txid.contains_key(txid)
    }

    /// By partition, the oldest events of transactions that wait for others, [`MOST_NAMED`] at the most, each with timestamp, offset
    /// and name.
    pub fn named(&self) -> BTreeMap<i32, Vec<(i64, u64, Name)>> {
        let mut named: BTreeMap<i32, Vec<_>> = BTreeMap::new();
        for flight in self.those_that_wait().filter(|flight| flight.waits()) {
            for event in &flight.events {
                let at = (event.timestamp_ms, event.offset, name_of(&flight.txid));
                named.entry(event.partition).or_default().push(at);
            }
        }
        for named in named.values_mut() {
            // All that wait may be very many.
            if named.len() > MOST_NAMED {
                named.select_nth_unstable(MOST_NAMED);
                named.truncate(MOST_NAMED);
            }
            named.sort_unstable();
        }
        named
    }

    /// A parent in flight that waits itself, and whose own event stands behind that of its child. The child cannot wait for
    /// it: whatever the parent waits for is proven missing only after the child, which is older, has ended. `None`, too,
    /// while a parent is in flight whose event is older: that one comes to its end without the child.
    pub(super) fn parent_behind(&self, child: &Flight) -> Option<Txid> {
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

    /// For how long it has been asked whether this parent of the transaction is missing, ms.
    pub fn has_waited_ms(&mut self, id: FlightId, now_ms: u64) -> u64 {
        let flight = self.flights.get(id.index as usize).and_then(Option::as_ref).filter(|flight| flight.id == id);
        let parent = flight.and_then(|flight| flight.absent_parents().next().or_else(|| self.parent_behind(flight)));
        let (Some(parent), Some(flight)) = (parent, self.get(id)) else { return 0 };
        let asked = flight.in_question.filter(|(asked, _)| *asked == parent);
        let (_, since_ms) = *flight.in_question.insert(asked.unwrap_or((parent, now_ms)));
        now_ms.saturating_sub(since_ms)
    }

    /// What a transaction waits for is `proven` to have come already, or never: it tries once more, and is contested if
    /// a parent is still absent. (Its last try may be older than the proof, and the parent have come in between.) A parent
    /// in flight here whose event is not older counts as missing only under [`Ties::BreakKnown`].
    pub fn parents_are_missing(&mut self, id: FlightId, proven: Vec<Txid>, ties: Ties, now_ms: u64) {
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
            if behind.is_none() || ties < Ties::BreakKnown {
                return;
            }
        }
        self.wait_no_longer(id);
        if let Some(flight) = self.get(id) {
            flight.last_try = Some(LastTry { proven: BTreeSet::from_iter(proven), ties });
        }
        self.ready.push_back(id);
        self.settle_ready(now_ms);
    }

    /// The parent that is absent still, after the last try. One that is in flight may be about to come, unless it stands
    /// behind its child and waits itself; and so may one of which nothing is proven: who waited for a parent in flight may not
    /// have looked at the others since they came, or never.
    pub(super) fn missing_at_last(&mut self, id: FlightId, none_in_flight: bool) -> Option<Txid> {
        let LastTry { proven, ties } = self.get(id)?.last_try.take()?;
        let flight = self.flights.get(id.index as usize)?.as_ref()?;
        let absent = flight.absent_parents().next()?;
        if flight.absent_parents().any(|parent| !proven.contains(&parent)) {
            return None;
        }
        let is_behind = || self.parent_behind(flight).filter(|behind| flight.absent_parents().any(|it| it == *behind));
        if none_in_flight { Some(absent) } else { is_behind().filter(|_| ties == Ties::BreakKnown) }
    }
}
