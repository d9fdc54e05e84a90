//! Pace of the retries: a bound on tries without an answer, and one on rows a second. Pure.

use super::flight_table::FlightTable;
use crate::ingest::{
    flight::{Flight, FlightId, Stage},
    retry_queue::RetryQueue,
};

/// Rows of the retries of a lane, a second. Outcomes wake the transactions that can complete; the retries only find
/// parents that an outcome has missed, and cost the store less than a tenth of its work.
const ROWS_PER_SECOND: u64 = 2_000;

/// Rows of retries that start together: they share a batch, and the loop wakes once for all of them. A flight with more
/// rows is wide.
pub(super) const ROWS_PER_TICK: usize = 64;

/// Bound of the retries without an answer. Without a bound a slow store would get the more retries the slower it is,
/// ahead of the work that the retries wait for.
const MAX_OPEN_TRIES: usize = 64;

/// Parked flights in two lanes. A try of a wide flight takes the pace of thousands of rows: in the lane of all other
/// flights it would make them wait for seconds.
#[derive(Debug, Default)]
pub(super) struct RetryQueues {
    narrow: RetryQueue,
    wide: RetryQueue,
}

impl RetryQueues {
    /// Parks a flight until `due_ms`.
    pub(super) fn insert(&mut self, flight: &Flight, due_ms: u64) {
        let is_wide = flight.rows_per_try() > ROWS_PER_TICK;
        if is_wide { &mut self.wide } else { &mut self.narrow }.insert(flight.id, due_ms);
    }

    /// Removes a flight, whether due or not.
    pub(super) fn remove(&mut self, id: FlightId) {
        self.narrow.remove(id);
        self.wide.remove(id);
    }
}

/// Pace of the retries of parked transactions, by lane.
#[derive(Debug, Default)]
pub(super) struct RetryPace {
    narrow: LanePace,
    wide: LanePace,
}

impl RetryPace {
    /// Takes the flights that may be tried now out of the queues.
    pub(super) fn take_due(&mut self, queues: &mut RetryQueues, flights: &FlightTable, now_ms: u64) -> Vec<FlightId> {
        let mut due_flights = self.narrow.take_due(&mut queues.narrow, flights, now_ms);
        due_flights.extend(self.wide.take_due(&mut queues.wide, flights, now_ms));
        due_flights
    }

    /// Returns the time, ms, from which [`take_due`](Self::take_due) has flights; `None`: not before an answer.
    pub(super) fn next_due_ms(&self, queues: &RetryQueues, flights: &FlightTable) -> Option<u64> {
        let narrow = self.narrow.next_due_ms(&queues.narrow, flights);
        narrow.into_iter().chain(self.wide.next_due_ms(&queues.wide, flights)).min()
    }

    /// Forgets the open tries of flights that were all dropped.
    pub(super) fn clear(&mut self) {
        self.narrow.open_tries.clear();
        self.wide.open_tries.clear();
    }
}

/// Pace of the retries of one lane.
#[derive(Debug, Default)]
struct LanePace {
    /// Flights whose retry may not have an answer yet.
    open_tries: Vec<FlightId>,
    /// Time before which no retry starts, ms.
    next_tick_ms: u64,
}

impl LanePace {
    /// Takes the flights that may be tried now out of the queue. A try of many rows takes the place of as many others.
    fn take_due(&mut self, queue: &mut RetryQueue, flights: &FlightTable, now_ms: u64) -> Vec<FlightId> {
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

    fn next_due_ms(&self, queue: &RetryQueue, flights: &FlightTable) -> Option<u64> {
        let is_blocked =
            self.open_tries.len() >= MAX_OPEN_TRIES && self.open_tries.iter().all(|id| is_unanswered(flights, *id));
        queue.first_due_ms().filter(|_| !is_blocked).map(|due_ms| due_ms.max(self.next_tick_ms))
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
