//! What cannot become live here: stored contested, and its contest published, or a dead letter.

use std::sync::Arc;

use super::{Action, Planner, Token};
use crate::{
    engine::Row,
    ingest::flight::{FlightId, Stage, Work},
    record::{Key, Operation, Outcome, Page, Reason, Rejection, Reply, TxState, Verdict},
    replay::Mode,
    store::create::Starts,
    telemetry::Completion,
};

impl Planner {
    /// A later event of a transaction makes no record over a store that forgets: the first has made one, and where there is none,
    /// a node forgot it, and the first is done again. What is stored would be by the second.
    pub(super) fn writes_nothing(&mut self, id: FlightId) -> bool {
        let forgets = self.store_forgets;
        self.get(id).is_some_and(|flight| forgets && flight.again && flight.mode == Mode::Normal)
    }

    pub(super) fn store_contested(&mut self, id: FlightId, reason: Reason) {
        if self.writes_nothing(id) {
            return self.read_own(id, Stage::ReadingFirst { contested: Some(reason) });
        }
        let Some(flight) = self.get(id) else { return };
        flight.stage = Stage::StoringContested { reason };
        let work = flight.work.clone();
        if self.create_paged(Token::StoreContested(id), &work, Starts::Contested) {
            return;
        }
        let page = Arc::new(Page::clone(work.page()).contested());
        let row = Row { key: Key::Page(page.txid, page.number), operation: Operation::CreateContested(page) };
        self.actions.push_back(Action::Apply(Token::StoreContested(id), row));
    }

    pub(super) fn stored_contested(&mut self, id: FlightId, outcome: Outcome, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        let Stage::StoringContested { reason } = flight.stage else { return };
        match outcome {
            // A tombstone that has its body for longer stays one.
            Outcome::Applied(Reply::State(TxState::Pruned(_))) => self.finish(id, Completion::PassedOver),
            Outcome::AlreadyApplied(Reply::State(state)) | Outcome::Rejected(Rejection::Exists(state)) => {
                self.contest_as_stored(id, reason, state, now_ms);
            }
            Outcome::Applied(_) | Outcome::AlreadyApplied(_) => self.contest_or_end(id, reason, Completion::PassedOver),
            Outcome::Rejected(Rejection::Held(_)) => self.pause(id, now_ms),
            Outcome::Rejected(Rejection::OtherContent) => self.came_second(id, true),
            Outcome::Rejected(Rejection::OtherKind) => self.came_second(id, false),
            Outcome::Rejected(_) => self.finish(id, Completion::PassedOver),
        }
    }

    /// The record that the first event of the transaction made, or would have made.
    pub(super) fn first_was_read(&mut self, id: FlightId, contested: Option<Reason>, own: Option<&Page>, now_ms: u64) {
        let Some(flight) = self.get(id) else { return };
        match (own.map(Page::state), contested) {
            _ if own.is_some_and(|own| own.contradicts(flight.work.page())) => self.came_second(id, true),
            (None | Some(TxState::Stub(_) | TxState::Creating), _) => self.pause(id, now_ms),
            (Some(TxState::Live), None) => self.finish(id, Completion::Live),
            (Some(state), reason) => self.contest_as_stored(id, reason.unwrap_or(Reason::Found), state, now_ms),
        }
    }

    /// Contests a transaction that is stored, unless that would come to nothing.
    fn contest_as_stored(&mut self, id: FlightId, reason: Reason, state: TxState, now_ms: u64) {
        let forgets = self.store_forgets;
        let Some(flight) = self.get(id) else { return };
        let publish = match state {
            // The verdict holds, and there is nothing to settle: a contest would be passed over. Without this every
            // redelivery of a loser would add one to the log. The verdict of a descendant may be older than its body:
            // then only its contest makes its parents list it, and that contest may not have been published.
            TxState::Conflicting(Verdict::Conflicting(verdict))
                if !verdict.reopened_by_its_event()
                    && !matches!(verdict, Reason::ConflictingParent { .. })
                    && !flight.may_hold_any() =>
            {
                false
            }
            TxState::Conflicting(_) | TxState::Stub(_) => true,
            // Live, yet a slot does not name it: a node forgot a spend, and the sequencer mends that. But a parent that
            // was pruned, or is absent, proves nothing against a live transaction, nor does what another event of it claims: unless
            // a node may have forgotten the spend before a command gave the output to a new owner.
            TxState::Live => match reason {
                Reason::PrunedParent { .. } | Reason::MissingParent { .. } | Reason::Found => false,
                Reason::Mismatch { .. } => forgets && !flight.again,
                _ => true,
            },
            TxState::Creating => return self.pause(id, now_ms),
            TxState::Pruned(_) => false,
        };
        if publish {
            self.contest_or_end(id, reason, Completion::PassedOver)
        } else {
            self.finish(id, Completion::PassedOver)
        }
    }

    /// Contests it, also where its partitions were taken away: it may hold slots, which only a contest settles. A rebuild
    /// contests nothing.
    pub(super) fn contest_or_end(&mut self, id: FlightId, reason: Reason, otherwise: Completion) {
        match self.get(id).map(|flight| flight.mode) {
            Some(Mode::Normal) => self.publish_contest(id, reason, false),
            _ => self.finish(id, otherwise),
        }
    }

    pub(super) fn publish_contest(&mut self, id: FlightId, reason: Reason, contradicts: bool) {
        let Some(flight) = self.get(id) else { return };
        flight.stage = Stage::PublishingContest { contradicts };
        let (txid, event, body) = (flight.txid, flight.origin, flight.work.body_hash());
        self.actions.push_back(Action::PublishContest { flight: id, txid, event, body, reason });
    }

    /// The record is of another kind: a partial transaction came first where this is a whole one, or the other way round.
    /// It is as the first event says, so there is nothing left to do, but for what a whole one takes: the sequencer gives that
    /// back, and bars the way of who had the partition before and does not know yet. A partial one takes nothing.
    pub(super) fn came_second(&mut self, id: FlightId, contradicts: bool) {
        let Some(flight) = self.get(id) else { return };
        if flight.mode == Mode::Normal && matches!(flight.work, Work::Validated(_)) {
            self.publish_contest(id, Reason::Seeded, contradicts);
        } else if contradicts {
            self.mismatched(id);
        } else {
            self.finish(id, Completion::PassedOver);
        }
    }

    /// The contest of a flight is in the log: its fate is the sequencer's now.
    pub fn contest_published(&mut self, id: FlightId, now_ms: u64) {
        match self.get(id).map(|flight| flight.stage) {
            Some(Stage::PublishingContest { contradicts: true }) => self.mismatched(id),
            _ => self.finish(id, Completion::Contested),
        }
        self.settle_ready(now_ms);
    }

    pub(super) fn mismatched(&mut self, id: FlightId) {
        let Some(flight) = self.get(id) else { return };
        let (first, joined) = (flight.work.clone(), std::mem::take(&mut flight.joined));
        for event in std::mem::take(&mut flight.events) {
            // Each is buried as it was read.
            let own = joined.iter().find(|(other, _)| *other == event).map_or(&first, |(_, work)| work);
            self.actions.push_back(Action::Mismatched { event, work: own.clone() });
        }
        self.finish(id, Completion::DeadLetter);
    }
}
