//! Transactions that cannot become live here: stored contested with a published contest, or published as dead letters.

use std::sync::Arc;

use super::{Action, Planner, Token};
use crate::{
    engine::Row,
    ingest::flight::{FlightId, Stage, SubmittedTx},
    record::{Key, Operation, Outcome, Page, Reason, Rejection, Reply, TxState, Verdict},
    replay::Mode,
    store::create::InitialState,
    telemetry::Completion,
};

impl Planner {
    /// Returns whether the flight must not write a record. Over a store that can lose writes a later event of a
    /// transaction writes none: the first event has written the record. Where the record is absent, a node lost it, and
    /// the first event is applied again. A record of the later event would be stored instead.
    pub(super) fn must_not_write(&mut self, id: FlightId) -> bool {
        let can_lose_writes = self.store_can_lose_writes;
        self.get(id).is_some_and(|flight| can_lose_writes && flight.is_later_event && flight.mode == Mode::Normal)
    }

    /// Stores the transaction as contested, without a verdict.
    pub(super) fn store_contested(&mut self, id: FlightId, reason: Reason) {
        if self.must_not_write(id) {
            return self.read_own(id, Stage::ReadingFirstRecord { contested: Some(reason) });
        }
        let Some(flight) = self.get(id) else { return };
        flight.stage = Stage::StoringContested { reason };
        let work = flight.work.clone();
        if self.create_paged(Token::StoreContested(id), &work, InitialState::Contested) {
            return;
        }
        let page = Arc::new(Page::clone(work.page()).contested());
        let row = Row { key: Key::Page(page.txid, page.number), operation: Operation::CreateContested(page) };
        self.actions.push_back(Action::Apply(Token::StoreContested(id), row));
    }

    /// Handles the answer of the store to a contested create.
    pub(super) fn on_contested_stored(&mut self, id: FlightId, outcome: Outcome, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        let Stage::StoringContested { reason } = flight.stage else { return };
        match outcome {
            // A tombstone that keeps its body for longer stays a tombstone.
            Outcome::Applied(Reply::State(TxState::Pruned(_))) => self.finish(id, Completion::PassedOver),
            Outcome::AlreadyApplied(Reply::State(state)) | Outcome::Rejected(Rejection::Exists(state)) => {
                self.contest_as_stored(id, reason, state, now_ms);
            }
            Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {
                self.contest_or_finish(id, reason, Completion::PassedOver)
            }
            Outcome::Rejected(Rejection::Held(_)) => self.pause(id, now_ms),
            Outcome::Rejected(Rejection::OtherContent) => self.on_other_kind_stored(id, true),
            Outcome::Rejected(Rejection::OtherKind) => self.on_other_kind_stored(id, false),
            Outcome::Rejected(_) => self.finish(id, Completion::PassedOver),
        }
    }

    /// Handles the record of the first event of the transaction; `None`: absent.
    pub(super) fn on_first_record_read(
        &mut self,
        id: FlightId,
        contested: Option<Reason>,
        own: Option<&Page>,
        now_ms: u64,
    ) {
        let Some(flight) = self.get(id) else { return };
        match (own.map(Page::state), contested) {
            _ if own.is_some_and(|own| own.contradicts(flight.work.page())) => self.on_other_kind_stored(id, true),
            (None | Some(TxState::Stub(_) | TxState::Creating), _) => self.pause(id, now_ms),
            (Some(TxState::Live), None) => self.finish(id, Completion::Live),
            (Some(state), reason) => self.contest_as_stored(id, reason.unwrap_or(Reason::Found), state, now_ms),
        }
    }

    /// Contests a stored transaction, unless the contest could change nothing.
    fn contest_as_stored(&mut self, id: FlightId, reason: Reason, state: TxState, now_ms: u64) {
        let can_lose_writes = self.store_can_lose_writes;
        let Some(flight) = self.get(id) else { return };
        let publish = match state {
            // The verdict stands and there is nothing to settle: the sequencer would pass over the contest, and every
            // redelivery of a loser would add one to the log. The verdict of a descendant may be older than its body.
            // Only its contest makes its parents list the descendant, and this contest may not have been published.
            TxState::Conflicting(Verdict::Conflicting(verdict))
                if !verdict.is_reopened_by_own_event()
                    && !matches!(verdict, Reason::ConflictingParent { .. })
                    && !flight.may_hold_slots() =>
            {
                false
            }
            TxState::Conflicting(_) | TxState::Stub(_) => true,
            // Live, although a slot does not name the transaction: a node lost a spend, and the sequencer repairs the
            // slot. A pruned or absent parent proves nothing against a live transaction, and neither do the claims of
            // another event of it, unless a node may have lost the spend before a command gave the output to a new
            // owner.
            TxState::Live => match reason {
                Reason::PrunedParent { .. } | Reason::MissingParent { .. } | Reason::Found => false,
                Reason::Mismatch { .. } => can_lose_writes && !flight.is_later_event,
                _ => true,
            },
            TxState::Creating => return self.pause(id, now_ms),
            TxState::Pruned(_) => false,
        };
        if publish {
            self.contest_or_finish(id, reason, Completion::PassedOver)
        } else {
            self.finish(id, Completion::PassedOver)
        }
    }

    /// Contests a flight, also one whose partitions were revoked: it may hold slots that only a contest settles. A
    /// rebuild contests nothing.
    pub(super) fn contest_or_finish(&mut self, id: FlightId, reason: Reason, otherwise: Completion) {
        match self.get(id).map(|flight| flight.mode) {
            Some(Mode::Normal) => self.publish_contest(id, reason, false),
            _ => self.finish(id, otherwise),
        }
    }

    /// Publishes a contest of the flight's first event.
    pub(super) fn publish_contest(&mut self, id: FlightId, reason: Reason, contradicts: bool) {
        let Some(flight) = self.get(id) else { return };
        flight.stage = Stage::PublishingContest { contradicts };
        let (txid, event, body) = (flight.txid, flight.origin, flight.work.body_hash());
        self.actions.push_back(Action::PublishContest { flight: id, txid, event, body, reason });
    }

    /// Handles a record of the other kind: a partial transaction is stored and this event has the whole one, or the
    /// reverse. The record stays as the first event wrote it. A whole transaction may hold slots: the sequencer settles
    /// these and refuses spends of the previous owner of the partition. A partial transaction holds no slots.
    pub(super) fn on_other_kind_stored(&mut self, id: FlightId, contradicts: bool) {
        let Some(flight) = self.get(id) else { return };
        if flight.mode == Mode::Normal && matches!(flight.work, SubmittedTx::Validated(_)) {
            self.publish_contest(id, Reason::Seeded, contradicts);
        } else if contradicts {
            self.dead_letter_mismatched(id);
        } else {
            self.finish(id, Completion::PassedOver);
        }
    }

    /// Handles the acknowledgement of a contest: the sequencer decides from now on.
    pub fn contest_published(&mut self, id: FlightId, now_ms: u64) {
        match self.get(id).map(|flight| flight.stage) {
            Some(Stage::PublishingContest { contradicts: true }) => self.dead_letter_mismatched(id),
            _ => self.finish(id, Completion::Contested),
        }
        self.start_ready(now_ms);
    }

    /// Publishes every event of the flight as a dead letter and ends the flight.
    pub(super) fn dead_letter_mismatched(&mut self, id: FlightId) {
        let Some(flight) = self.get(id) else { return };
        let (first, joined) = (flight.work.clone(), std::mem::take(&mut flight.joined));
        for event in std::mem::take(&mut flight.events) {
            // Each dead letter has the content of its own event.
            let own = joined.iter().find(|(other, _)| *other == event).map_or(&first, |(_, work)| work);
            self.actions.push_back(Action::Mismatched { event, work: own.clone() });
        }
        self.finish(id, Completion::DeadLetter);
    }
}
