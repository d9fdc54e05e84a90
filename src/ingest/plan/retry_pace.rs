//! Pace of the retries: a bound on tries without an answer, and one on rows a second. Pure.

use super::flight_table::FlightTable;
use crate::ingest::{
    flight::{Flight, FlightId, Stage},
    retry_queue::RetryQueue,
};

/// Rows of all retries together, a second. Outcomes wake the transactions that can complete; the retries only find what
/// an outcome has missed, and cost the store less than a twentieth of its work.
const ROWS_PER_SECOND: u64 = 2_000;

/// Rows of retries that start together: they share a batch, and the loop wakes once for all of them.
const ROWS_PER_TICK: usize = 64;

/// Bound of the retries without an answer. Without a bound a slow store would get the more retries the slower it is,
/// ahead of the work that the retries wait for.
const MAX_OPEN_TRIES: usize = 64;

/// Pace of the retries of parked transactions.
#[derive(Debug, Default)]
pub(super) struct RetryPace {
    /// Flights whose retry may not have an answer yet.
    open_tries: Vec<FlightId>,
    /// Time before which no retry starts, ms.
    next_tick_ms: u64,
}

impl RetryPace {
    /// Takes the flights that may be tried now out of the queue. A try of many rows takes the place of as many others.
    pub(super) fn take_due(&mut self, queue: &mut RetryQueue, flights: &FlightTable, now_ms: u64) -> Vec<FlightId> {
        self.open_tries.retain(|id| is_unanswered(flights, *id));
        let (mut due_flights, mut rows) = (Vec::new(), 0);
        while now_ms >= self.next_tick_ms && rows < ROWS_PER_TICK && self.open_tries.len() < MAX_OPEN_TRIES {
            let Some(id) = queue.pop_due(now_ms) else { break };
            rows += flights.get(id).map_or(0, Flight::rows_per_try).max(1);
            self.open_tries.push(id);
            due_flights.push(id);
        }
        if rows > 0 {
            self.next_tick_ms = now_ms.saturating_add((rows as u64 * 1_000).div_ceil(ROWS_PER_SECOND));
        }
        due_flights
    }

    /// Returns the time, ms, from which [`take_due`](Self::take_due) has flights; `None`: not before an answer.
    pub(super) fn next_due_ms(&self, queue: &RetryQueue, flights: &FlightTable) -> Option<u64> {
        let is_blocked =
            self.open_tries.len() >= MAX_OPEN_TRIES && self.open_tries.iter().all(|id| is_unanswered(flights, *id));
        queue.first_due_ms().filter(|_| !is_blocked).map(|due_ms| due_ms.max(self.next_tick_ms))
    }

    /// Forgets the open tries of flights that were all dropped.
    pub(super) fn clear(&mut self) {
        self.open_tries.clear();
    }
}

/// Returns whether a try still waits for its first answer. A flight that is being created has its answer: the create
/// may wait for the blob store, and other flights need not.
fn is_unanswered(flights: &FlightTable, id: FlightId) -> bool {
    flights.get(id).is_some_and(|flight| match flight.stage {
        Stage::Spending { .. } | Stage::CheckingOwn | Stage::ReadingOwn | Stage::ReadingFirstRecord { .. } => true,
        Stage::AwaitingParents { .. } | Stage::Parked | Stage::Halted => false,
        Stage::Creating | Stage::StoringContested { .. } | Stage::PublishingContest { .. } => false,
    })
}
