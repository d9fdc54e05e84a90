//! Transactions that wait, by when they are tried again. Pure.

use std::collections::{BTreeSet, HashMap};

use crate::ingest::flight::FlightId;

/// A queue ordered by the time of the next try.
#[derive(Debug, Default)]
pub struct Parked {
    by_due: BTreeSet<(u64, FlightId)>,
    due: HashMap<FlightId, u64, foldhash::fast::FixedState>,
}

impl Parked {
    /// Parks a flight until `due_ms`; a flight that is parked already is moved.
    pub fn insert(&mut self, id: FlightId, due_ms: u64) {
        self.remove(id);
        self.by_due.insert((due_ms, id));
        self.due.insert(id, due_ms);
    }

    /// Keeps a flight that is parked until `due_ms` at least.
    pub fn hold(&mut self, id: FlightId, due_ms: u64) {
        if self.due.get(&id).is_some_and(|due| *due < due_ms) {
            self.insert(id, due_ms);
        }
    }

    /// Takes a flight out, wherever it stands.
    pub fn remove(&mut self, id: FlightId) {
        if let Some(due_ms) = self.due.remove(&id) {
            self.by_due.remove(&(due_ms, id));
        }
    }

    /// The next flight whose time has come.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<FlightId> {
        let &(due_ms, id) = self.by_due.first()?;
        if due_ms > now_ms {
            return None;
        }
        self.remove(id);
        Some(id)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.due.len()
    }

    /// When the first one is due.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.by_due.first().map(|(due_ms, _)| *due_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> FlightId {
        FlightId { index, generation: 0 }
    }

    #[test]
    fn comes_out_in_the_order_of_its_time() {
        let mut parked = Parked::default();
        parked.insert(id(1), 30);
        parked.insert(id(2), 10);
        parked.insert(id(3), 20);
        parked.insert(id(1), 5);
        parked.remove(id(3));
        assert_eq!((parked.next_due_ms(), parked.count()), (Some(5), 2));
        parked.hold(id(1), 7);
        parked.hold(id(2), 7);
        parked.hold(id(3), 7);
        assert_eq!(parked.pop_due(6), None, "it is held");
        assert_eq!(parked.pop_due(9), Some(id(1)));
        assert_eq!(parked.pop_due(9), None);
        assert_eq!(parked.pop_due(10), Some(id(2)));
        assert_eq!(parked.next_due_ms(), None);
    }
}
