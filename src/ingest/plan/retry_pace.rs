//! Pace of the tries of parked transactions: bounds on tries without an answer, and rates by class. Pure.

use super::{
    PlanSettings,
    adaptive_rate::AdaptiveRate,
    flight_table::FlightTable,
    waiting::{max_backlog_pause_ms, max_class_pause_ms},
};
use crate::ingest::{
    flight::{Flight, FlightId, Stage},
    retry_queue::{DueFlight, RetryClass, RetryQueue},
};

/// Bounds of the tries without an answer, and of their rows. Without a bound a slow store would get the more tries the
/// slower it is, ahead of the work that the tries wait for.
const MAX_OPEN_TRIES: usize = 64;
const MAX_OPEN_ROWS: usize = 1_024;

/// A try of a parked transaction that the store has not answered yet.
#[derive(Debug, Clone, Copy)]
struct OpenTry {
    due: DueFlight,
    rows: usize,
}

/// Pace of the tries of parked transactions.
#[derive(Debug, Default)]
pub(super) struct RetryPace {
    next_front_refresh_ms: u64,
    open_tries: Vec<OpenTry>,
    backlog_rate: AdaptiveRate,
    fresh_rate: AdaptiveRate,
}

impl RetryPace {
    /// Takes the flights that may be tried out of the queue, within the bounds of open tries and the rates of their
    /// classes.
    pub(super) fn take_due(
        &mut self,
        settings: &PlanSettings,
        queue: &mut RetryQueue,
        flights: &FlightTable,
        now_ms: u64,
    ) -> Vec<FlightId> {
        if now_ms >= self.next_front_refresh_ms {
            let backlog = max_backlog_pause_ms(settings, queue.count());
            self.next_front_refresh_ms = now_ms.saturating_add(max_class_pause_ms(settings, 0));
            queue.refresh_front(now_ms, |class| max_class_pause_ms(settings, class).min(backlog));
        }
        self.record_answers(flights);
        let mut due_flights = Vec::new();
        while !self.is_full() {
            let (backlog, fresh) = (self.backlog_rate.may_try(now_ms), self.fresh_rate.may_try(now_ms));
            let Some(due) = queue.pop_due(now_ms, backlog, fresh) else { break };
            if let Some(rate) = self.rate_of(due.class) {
                rate.take_try();
            }
            self.open_tries.push(OpenTry { due, rows: flights.get(due.id).map_or(0, Flight::rows_per_try) });
            due_flights.push(due.id);
        }
        due_flights
    }

    /// Closes the tries that have an answer and records whether they were useful.
    fn record_answers(&mut self, flights: &FlightTable) {
        for OpenTry { due, rows } in std::mem::take(&mut self.open_tries) {
            if is_unanswered(flights, due.id) {
                self.open_tries.push(OpenTry { due, rows });
            } else if let Some(rate) = self.rate_of(due.class) {
                rate.record_result(flights.get(due.id).is_none_or(|flight| flight.stage != Stage::Parked));
            }
        }
    }

    /// Returns the time, ms, from which [`take_due`](Self::take_due) has flights; `None`: not before an answer.
    pub(super) fn next_due_ms(&self, queue: &RetryQueue, flights: &FlightTable) -> Option<u64> {
        let is_blocked = self.is_full() && self.open_tries.iter().all(|one| is_unanswered(flights, one.due.id));
        queue.next_due_ms(self.backlog_rate.next_try_ms(), self.fresh_rate.next_try_ms()).filter(|_| !is_blocked)
    }

    /// Forgets the open tries of flights that were all dropped.
    pub(super) fn clear(&mut self) {
        self.open_tries.clear();
    }

    /// Returns whether the open tries have reached their bounds, so that no further try starts before an answer.
    fn is_full(&self) -> bool {
        self.open_tries.len() >= MAX_OPEN_TRIES
            || self.open_tries.iter().map(|one| one.rows).sum::<usize>() >= MAX_OPEN_ROWS
    }

    fn rate_of(&mut self, class: RetryClass) -> Option<&mut AdaptiveRate> {
        match class {
            RetryClass::Oldest => None,
            RetryClass::Fresh => Some(&mut self.fresh_rate),
            RetryClass::Backlog => Some(&mut self.backlog_rate),
        }
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
