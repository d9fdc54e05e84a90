//! Transactions of a restored store that the log decides: when an event leaves the mode of the plan.

use super::{flight_steps::FlightSteps, step::mode_by_own_record};
use crate::{
    ingest::flight::{Flight, FlightId},
    record::{Outcome, Page, Rejection, Reply, TxState, Verdict},
    replay::Mode,
};

impl FlightSteps {
    /// Takes the mode that the own record asks for.
    pub(super) fn adopt_mode_of_own_record(&mut self, id: FlightId, own: Option<&Page>) {
        if let Some(flight) = flight_read_again(self, id)
            && let Some(mode) = own.and_then(|own| mode_by_own_record(flight, own))
            && flight.mode.ends_live()
        {
            flight.mode = mode;
        }
    }

    /// Treats the event normally where only a contest makes the transaction live: the log has no such contest.
    pub(super) fn adopt_mode_after_create(&mut self, id: FlightId, outcome: &Outcome) {
        let awaits_contest = matches!(
            outcome,
            Outcome::Rejected(Rejection::Exists(TxState::Stub(_) | TxState::Conflicting(Verdict::Pending)))
                | Outcome::Applied(Reply::ContestDue)
                | Outcome::AlreadyApplied(Reply::ContestDue)
        );
        if let Some(flight) = flight_read_again(self, id).filter(|_| awaits_contest) {
            flight.mode = Mode::Normal;
        }
    }
}

/// Returns a flight of a restored store that reads the log again.
fn flight_read_again(steps: &mut FlightSteps, id: FlightId) -> Option<&mut Flight> {
    steps.history.live_grace_start.is_some().then(|| steps.flights.get_mut(id))?
}
