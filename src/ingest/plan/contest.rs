//! Transactions that cannot become live here: stored contested with a published contest, or published as dead letters.
//! The next steps are pure; [`FlightSteps`] takes them.

use std::sync::Arc;

use super::{Action, Token, flight_steps::FlightSteps, multi_page::paged_create, step::Step};
use crate::{
    engine::Row,
    ingest::flight::{Flight, FlightId, Stage, SubmittedTx},
    record::{Key, Operation, Outcome, Page, Reason, Rejection, Reply, TxState, Verdict},
    replay::Mode,
    store::create::InitialState,
    telemetry::Completion,
};

/// Returns whether the flight must not write a record. Over a store that can lose writes a later event of a transaction
/// writes none: the first event has written the record. Where the record is absent, a node lost it, and the first event
/// is applied again. A record of the later event would be stored instead.
pub(super) fn must_not_write(flight: &Flight, can_lose_writes: bool) -> bool {
    can_lose_writes && flight.is_later_event && flight.mode == Mode::Normal
}

/// Returns the step after the answer of the store to a contested create.
pub(super) fn step_after_contested_create(flight: &Flight, outcome: &Outcome, can_lose_writes: bool) -> Step {
    let Stage::StoringContested { reason } = flight.stage else { return Step::Stay };
    match outcome {
        // A tombstone that keeps its body for longer stays a tombstone.
        Outcome::Applied(Reply::State(TxState::Pruned(_))) => Step::Finish(Completion::PassedOver),
        // The tombstone of a conflicting transaction would have taken the create.
        Outcome::Rejected(Rejection::Exists(TxState::Pruned(_))) => Step::Finish(Completion::AlreadyLive),
        Outcome::AlreadyApplied(Reply::State(state)) | Outcome::Rejected(Rejection::Exists(state)) => {
            step_as_stored(flight, reason, *state, can_lose_writes)
        }
        Outcome::Applied(_) | Outcome::AlreadyApplied(_) => contest_or_finish(flight, reason, Completion::PassedOver),
        Outcome::Rejected(Rejection::Held(_)) => Step::Pause,
        Outcome::Rejected(Rejection::OtherContent) => step_for_other_kind(flight, true),
        Outcome::Rejected(Rejection::OtherKind) => step_for_other_kind(flight, false),
        Outcome::Rejected(_) => Step::Finish(Completion::PassedOver),
    }
}

/// Returns the step after a read of the record of the transaction's first event; `None`: absent.
pub(super) fn step_after_first_record(
    flight: &Flight,
    contested: Option<Reason>,
    own: Option<&Page>,
    can_lose_writes: bool,
) -> Step {
    match (own.map(Page::state), contested) {
        _ if own.is_some_and(|own| own.contradicts(flight.work.page())) => step_for_other_kind(flight, true),
        (None | Some(TxState::Stub(_) | TxState::Creating), _) => Step::Pause,
        (Some(TxState::Live), None) => Step::Finish(Completion::Live),
        (Some(state), reason) => step_as_stored(flight, reason.unwrap_or(Reason::Found), state, can_lose_writes),
    }
}

/// Returns the step for a transaction that is stored in this state: a contest, unless the contest could change nothing.
fn step_as_stored(flight: &Flight, reason: Reason, state: TxState, can_lose_writes: bool) -> Step {
    let publish = match state {
        // The decision on the contest with a verdict that this contest would open is applied again, with the inputs.
        TxState::Conflicting(Verdict::Conflicting(verdict)) if flight.mode == Mode::SettlesByContest => {
            !verdict.is_reopened_by_own_event()
        }
        // The verdict stands and there is nothing to settle: the sequencer would pass over the contest, and every
        // redelivery of a loser would add one to the log. The verdict of a descendant may be older than its body. Only
        // its contest makes its parents list the descendant, and this contest may not have been published.
        TxState::Conflicting(Verdict::Conflicting(verdict))
            if !verdict.is_reopened_by_own_event()
                && !matches!(verdict, Reason::ConflictingParent { .. })
                && !flight.may_hold_slots() =>
        {
            false
        }
        TxState::Conflicting(_) | TxState::Stub(_) => true,
        // Live, although a slot does not name the transaction: a node lost a spend, and the sequencer repairs the slot.
        // A pruned or absent parent proves nothing against a live transaction, and neither do the claims of another
        // event of it, unless a node may have lost the spend before a command gave the output to a new owner.
        TxState::Live => match reason {
            Reason::PrunedParent { .. } | Reason::MissingParent { .. } | Reason::Found => false,
            Reason::Mismatch { .. } => can_lose_writes && !flight.is_later_event,
            _ => true,
        },
        TxState::Creating => return Step::Pause,
        TxState::Pruned(_) => false,
    };
    match (publish, state) {
        (true, _) => contest_or_finish(flight, reason, Completion::PassedOver),
        (false, TxState::Live) => Step::Finish(Completion::AlreadyLive),
        (false, _) => Step::Finish(Completion::PassedOver),
    }
}

/// Returns the contest of a flight, also of one whose partitions were revoked: the flight may hold slots that only a
/// contest settles. Of the events that the log decides, only a loser of a restored store is contested.
pub(super) fn contest_or_finish(flight: &Flight, reason: Reason, otherwise: Completion) -> Step {
    match flight.mode {
        Mode::Normal | Mode::SettlesByContest => Step::PublishContest { reason, contradicts: false },
        _ => Step::Finish(otherwise),
    }
}

/// Returns the step where a record of the other kind is stored: a partial transaction is stored and this event has the
/// whole one, or the reverse. The record stays as the first event wrote it. A whole transaction may hold slots: the
/// sequencer settles these and refuses spends of the previous owner of the partition. A partial transaction holds no
/// slots.
pub(super) fn step_for_other_kind(flight: &Flight, contradicts: bool) -> Step {
    if flight.mode == Mode::Normal && matches!(flight.work, SubmittedTx::Validated(_)) {
        Step::PublishContest { reason: Reason::Seeded, contradicts }
    } else if contradicts {
        Step::DeadLetter
    } else {
        Step::Finish(Completion::PassedOver)
    }
}

impl FlightSteps {
    /// Stores the transaction as contested, without a verdict.
    pub(super) fn store_contested(&mut self, id: FlightId, reason: Reason) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        if must_not_write(flight, self.history.can_lose_writes) {
            return self.read_own(id, Stage::ReadingFirstRecord { contested: Some(reason) });
        }
        flight.stage = Stage::StoringContested { reason };
        let (token, work) = (Token::StoreContested(id), &flight.work);
        let action = paged_create(token, work, InitialState::Contested).unwrap_or_else(|| {
            let page = Arc::new(Page::clone(work.page()).contested());
            let row = Row { key: Key::Page(page.txid, page.number), operation: Operation::CreateContested(page) };
            Action::Apply(token, row)
        });
        self.actions.push_back(action);
    }

    /// Publishes a contest of the flight's first event.
    pub(super) fn publish_contest(&mut self, id: FlightId, reason: Reason, contradicts: bool) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        flight.stage = Stage::PublishingContest { contradicts };
        let (txid, event, body) = (flight.txid, flight.origin, flight.work.body_hash());
        self.actions.push_back(Action::PublishContest { flight: id, txid, event, body, reason });
    }

    /// Publishes every event of the flight as a dead letter and ends the flight.
    pub(super) fn dead_letter_mismatched(&mut self, id: FlightId) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        let (first, joined) = (flight.work.clone(), std::mem::take(&mut flight.joined));
        for event in std::mem::take(&mut flight.events) {
            // Each dead letter has the content of its own event.
            let own = joined.iter().find(|(other, _)| *other == event).map_or(&first, |(_, work)| work);
            self.actions.push_back(Action::Mismatched { event, work: own.clone() });
        }
        self.finish(id, Completion::DeadLetter);
    }
}
