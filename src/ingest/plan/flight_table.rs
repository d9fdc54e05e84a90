//! All flights of one instance: by id, by transaction, by absent parent, and the list of those that wait. Pure.

use std::collections::BTreeMap;

use super::{PlanCounts, named_transactions::NamedTransaction};
use crate::{
    ingest::flight::{AwaitedChange, Flight, FlightId, Request, SpendGroup, Stage, SubmittedTx},
    tx::{Txid, TxidMap},
};

/// All transactions in flight of one instance.
#[derive(Debug, Default)]
pub struct FlightTable {
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    generation: u32,
    by_txid: TxidMap<FlightId>,
    /// Parked flights by the transactions that they wait for: an event of the transaction here, or its outcome, wakes
    /// them, where the outcome can make the change.
    pub(super) waiters_by_txid: TxidMap<BTreeMap<FlightId, AwaitedChange>>,
    waiting: WaitingList,
}

impl FlightTable {
    /// Adds a flight that has not started.
    pub(super) fn insert(&mut self, request: Request) -> FlightId {
        self.generation = self.generation.wrapping_add(1);
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            (self.flights.len() - 1) as u32
        });
        let id = FlightId { index, generation: self.generation };
        self.by_txid.insert(request.work.txid(), id);
        self.flights[index as usize] = Some(Flight::new(id, request));
        id
    }

    /// Removes a flight that has ended, and does not wait.
    pub(super) fn remove(&mut self, id: FlightId) -> Option<Flight> {
        self.get(id)?;
        let flight = self.flights[id.index as usize].take()?;
        debug_assert!(flight.waiting_index.is_none() && flight.awaited == 0, "a flight that ends is not waiting");
        self.free.push(id.index);
        self.by_txid.remove(&flight.txid);
        Some(flight)
    }

    /// Removes all flights; their ids find no flight any more.
    pub(super) fn clear(&mut self) {
        self.free = (0..self.flights.len() as u32).collect();
        self.flights.iter_mut().for_each(|flight| *flight = None);
        self.by_txid.clear();
        self.waiters_by_txid.clear();
        self.waiting.ids.clear();
        self.waiting.per_partition.clear();
    }

    /// Returns the flight with this id, unless the flight has ended.
    pub fn get(&self, id: FlightId) -> Option<&Flight> {
        self.flights.get(id.index as usize)?.as_ref().filter(|flight| flight.id == id)
    }

    pub(super) fn get_mut(&mut self, id: FlightId) -> Option<&mut Flight> {
        self.flights.get_mut(id.index as usize)?.as_mut().filter(|flight| flight.id == id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Flight> {
        self.flights.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flight> {
        self.flights.iter_mut().flatten()
    }

    /// Returns the flight of a transaction: an event of the transaction is in flight here.
    pub fn id_of(&self, txid: &Txid) -> Option<FlightId> {
        self.by_txid.get(txid).copied()
    }

    /// Returns the flight of a transaction that may not be stored yet. The flight of a later event is left out: no
    /// child has to wait for it.
    pub(super) fn first_event_flight(&self, txid: &Txid) -> Option<&Flight> {
        self.get(self.id_of(txid)?).filter(|flight| !flight.is_later_event)
    }

    /// Returns the distinct flights of the parents of the groups that `wanted` selects.
    pub(super) fn parents_in_flight(&self, id: FlightId, wanted: impl Fn(&SpendGroup) -> bool) -> Vec<FlightId> {
        let Some(flight) = self.get(id) else { return Vec::new() };
        let SubmittedTx::Validated(tx) = &flight.work else { return Vec::new() };
        let groups = tx.groups.iter().zip(&flight.groups).filter(|(_, group)| wanted(group));
        let mut found: Vec<FlightId> =
            groups.filter_map(|(prepared, _)| Some(self.first_event_flight(&prepared.parent)?.id)).collect();
        // Several groups may have one parent.
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Makes a flight wait in this stage. All events of a transaction are in one partition.
    pub(super) fn wait(&mut self, id: FlightId, stage: Stage) {
        let index = self.waiting.ids.len() as u32;
        let Some(flight) = self.get_mut(id) else { return };
        flight.stage = stage;
        if flight.waiting_index.is_none() {
            flight.waiting_index = Some(index);
            let partition = flight.origin.partition;
            self.waiting.push(id, partition);
        }
    }

    /// Removes a flight from the waiting flights.
    pub(super) fn stop_waiting(&mut self, id: FlightId) {
        let Some(flight) = self.get_mut(id) else { return };
        let (index, partition) = (flight.waiting_index.take(), flight.origin.partition);
        let Some(index) = index else { return };
        if let Some(moved) = self.waiting.swap_remove(index, partition)
            && let Some(moved) = self.get_mut(moved)
        {
            moved.waiting_index = Some(index);
        }
    }

    /// Returns the waiting flights, whatever they wait for.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Flight> {
        self.waiting.ids.iter().filter_map(|id| self.get(*id))
    }

    /// Calls `change` with every flight that is parked or waits for parents in flight.
    pub(super) fn for_each_waiting(&mut self, mut change: impl FnMut(&mut Flight)) {
        for index in 0..self.waiting.ids.len() {
            let id = self.waiting.ids[index];
            if let Some(flight) = self.get_mut(id).filter(|flight| flight.is_waiting()) {
                change(flight);
            }
        }
    }

    /// Registers a parked flight with the transactions that it waits for.
    pub(super) fn register_waiter(&mut self, id: FlightId, awaited: BTreeMap<Txid, AwaitedChange>) {
        let Some(flight) = self.get_mut(id) else { return };
        flight.awaited = awaited.len() as u32;
        for (txid, change) in awaited {
            self.waiters_by_txid.entry(txid).or_default().insert(id, change);
        }
    }

    /// Removes a flight from the waiters of all transactions.
    pub(super) fn forget_waiter(&mut self, id: FlightId) {
        let Some(flight) = self.get_mut(id).filter(|flight| flight.awaited > 0) else { return };
        flight.awaited = 0;
        for txid in flight.awaited_transactions().into_keys() {
            if let Some(waiters) = self.waiters_by_txid.get_mut(&txid) {
                waiters.remove(&id);
                if waiters.is_empty() {
                    self.waiters_by_txid.remove(&txid);
                }
            }
        }
    }

    /// Removes and returns the parked flights that are registered with a transaction.
    pub(super) fn take_waiters(&mut self, txid: &Txid) -> Vec<FlightId> {
        self.waiters_by_txid.remove(txid).unwrap_or_default().into_keys().collect()
    }

    /// Removes the parked flights that are registered with a transaction and wait for a change that its outcome can
    /// have made. Returns those that wait for no other transaction.
    pub(super) fn take_last_waiters(&mut self, named: NamedTransaction) -> Vec<FlightId> {
        let NamedTransaction { txid, can_unlock } = named;
        let mut waiters = self.waiters_by_txid.remove(&txid).unwrap_or_default();
        if !can_unlock {
            let still_locked;
            (still_locked, waiters) = waiters.into_iter().partition(|(_, change)| *change == AwaitedChange::Unlock);
            if !still_locked.is_empty() {
                self.waiters_by_txid.insert(txid, still_locked);
            }
        }
        let mut waiters = Vec::from_iter(waiters.into_keys());
        waiters.retain(|id| {
            let Some(flight) = self.get_mut(*id) else { return false };
            flight.awaited -= 1;
            flight.awaited == 0
        });
        waiters
    }

    /// Returns the numbers of transactions in flight.
    pub fn counts(&self) -> PlanCounts {
        let (all, parked) = (self.flights.len() - self.free.len(), self.waiting.ids.len());
        PlanCounts { active: all - parked, parked, parked_max: self.waiting.greatest_len }
    }

    /// Returns the number of waiting transactions of a partition.
    pub fn parked_of(&self, partition: i32) -> usize {
        self.waiting.count_of(partition)
    }
}

/// Waiting flights. Each flight stores its index in the list.
#[derive(Debug, Default)]
struct WaitingList {
    ids: Vec<FlightId>,
    /// Number of waiting flights by partition.
    per_partition: Vec<usize>,
    /// Greatest length that the list has had.
    greatest_len: usize,
}

impl WaitingList {
    fn push(&mut self, id: FlightId, partition: i32) {
        self.ids.push(id);
        self.greatest_len = self.greatest_len.max(self.ids.len());
        if let Ok(number) = usize::try_from(partition) {
            if self.per_partition.len() <= number {
                self.per_partition.resize(number + 1, 0);
            }
            self.per_partition[number] += 1;
        }
    }

    /// Removes the flight at this index and returns the flight that has the index from now on.
    fn swap_remove(&mut self, index: u32, partition: i32) -> Option<FlightId> {
        self.ids.swap_remove(index as usize);
        let number = usize::try_from(partition).ok();
        if let Some(waiting) = number.and_then(|number| self.per_partition.get_mut(number)) {
            *waiting -= 1;
        }
        self.ids.get(index as usize).copied()
    }

    fn count_of(&self, partition: i32) -> usize {
        usize::try_from(partition).ok().and_then(|number| self.per_partition.get(number)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> FlightId {
        FlightId { index, generation: 1 }
    }

    #[test]
    fn the_last_waiting_flight_takes_the_index_of_a_removed_one() {
        let mut list = WaitingList::default();
        for (index, partition) in [(7, 0), (8, 2), (9, 2)] {
            list.push(id(index), partition);
        }
        assert_eq!([0, 1, 2, 3, -1].map(|partition| list.count_of(partition)), [1, 0, 2, 0, 0]);
        assert_eq!(list.swap_remove(0, 0), Some(id(9)));
        assert_eq!(list.swap_remove(1, 2), None, "the last flight moves no other");
        assert_eq!((list.ids.as_slice(), list.greatest_len), (&[id(9)][..], 3));
        assert_eq!([0, 2].map(|partition| list.count_of(partition)), [0, 1]);
    }
}
