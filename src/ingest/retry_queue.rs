//! Queue of parked transactions, ordered by the time of the next try. Pure.

use std::collections::{BTreeSet, HashMap};

use crate::ingest::flight::FlightId;

/// Parked flights by the time of their next try. A flight that has been due for longer is tried first, so that every
/// flight is tried, however many are due.
#[derive(Debug, Default)]
pub struct RetryQueue {
    due_of: HashMap<FlightId, u64, foldhash::fast::FixedState>,
    by_due: BTreeSet<(u64, FlightId)>,
}

impl RetryQueue {
    /// Parks a flight until `due_ms`; a flight that is parked already is moved.
    pub fn insert(&mut self, id: FlightId, due_ms: u64) {
        self.remove(id);
        self.due_of.insert(id, due_ms);
        self.by_due.insert((due_ms, id));
    }

    /// Removes a flight, whether due or not; a flight that is not parked is ignored.
    pub fn remove(&mut self, id: FlightId) {
        if let Some(due_ms) = self.due_of.remove(&id) {
            self.by_due.remove(&(due_ms, id));
        }
    }

    /// Removes and returns the flight that has been due for longest.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<FlightId> {
        let (_, id) = *self.by_due.first().filter(|(due_ms, _)| *due_ms <= now_ms)?;
        self.remove(id);
        Some(id)
    }

    /// Returns the time of the first try, ms.
    pub fn first_due_ms(&self) -> Option<u64> {
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
    fn flights_are_tried_in_the_order_of_their_due_times() {
        let mut queue = RetryQueue::default();
        for (number, due_ms) in [(1, 30), (2, 10), (3, 20)] {
            queue.insert(id(number), due_ms);
        }
        queue.insert(id(1), 5);
        queue.remove(id(3));
        assert_eq!((queue.first_due_ms(), queue.pop_due(4)), (Some(5), None));
        assert_eq!([5, 9, 10].map(|now_ms| queue.pop_due(now_ms)), [Some(id(1)), None, Some(id(2))]);
        assert_eq!((queue.first_due_ms(), queue.due_of.len()), (None, 0));
    }
}
