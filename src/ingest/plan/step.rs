//! The next step of a flight after an answer. Pure: the flight and the answer decide; [`contest`](super::contest) has
//! the answers that lead to a contest.

use super::{
    contest::{contest_or_finish, step_after_first_record, step_for_other_kind},
    obstacle::Obstacle,
};
use crate::{
    ingest::flight::{Flight, Stage},
    record::{Outcome, Page, Reason, Rejection, Reply, TxState, Verdict},
    replay::Mode,
    telemetry::Completion,
};

/// Next step of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The flight stays in its stage.
    Stay,
    /// Waits for parents in flight, then takes the slots.
    Launch,
    /// Reads the own record, in this stage.
    ReadOwn(Stage),
    /// Creates the live transaction.
    Create,
    /// Stores the transaction as contested, without a verdict.
    StoreContested(Reason),
    /// Publishes a contest of the first event.
    PublishContest {
        /// Reason of the contest.
        reason: Reason,
        /// The events contradict the stored record.
        contradicts: bool,
    },
    /// Publishes every event as a dead letter.
    DeadLetter,
    /// Parks the flight, or waits for parents in flight; contested instead where no wait helps.
    Park,
    /// Parks the flight, whatever it waits for.
    Pause,
    /// Completes the events of the transaction. The create of this flight has taken the attached slots of its children.
    FinishCreated,
    /// Completes the events of the transaction.
    Finish(Completion),
}

/// Returns the step once all groups have an answer: create, park or contest.
pub(super) fn step_after_spends(flight: &Flight) -> Step {
    match flight.obstacle() {
        Obstacle::None => Step::Create,
        Obstacle::SpenderPruned => Step::Finish(Completion::AlreadyLive),
        Obstacle::Final(reason) => Step::StoreContested(reason),
        Obstacle::Temporary => {
            // A transaction that is live already must not wait for parents that were pruned since. In a rebuild a
            // later decision may have made it conflicting: the parent that it waits for never comes.
            if flight.own_record_read && !flight.mode.ends_live() {
                Step::Park
            } else {
                Step::ReadOwn(Stage::ReadingOwn)
            }
        }
    }
}

/// Returns the mode of a transaction of a restored store by its own record; `None`: the plan's mode stands.
///
/// Before the event takes a slot the record can have a verdict that is older than the decisions of the plan. A stub was
/// written by the chain before the event was read again, and a contested record without a verdict by a flight that did
/// not publish its contest: only a contest makes these live. The parents of a live transaction can be pruned by now, or
/// this event has wrong claims: no event of the log changes such a refusal.
pub(super) fn mode_by_own_record(flight: &Flight, own: &Page) -> Option<Mode> {
    let state = own.state();
    let has_lost = match state {
        TxState::Conflicting(verdict) | TxState::Stub(verdict) => matches!(verdict, Verdict::Conflicting(_)),
        _ => own.is_conflicting_tombstone(),
    };
    match state {
        _ if has_lost && flight.stage == Stage::CheckingOwn => Some(Mode::SettlesByContest),
        TxState::Stub(_) | TxState::Conflicting(Verdict::Pending) => Some(Mode::Normal),
        TxState::Live if flight.stage == Stage::ReadingOwn && flight.has_lasting_refusals() => Some(Mode::Normal),
        _ => None,
    }
}

/// Returns the step after a read of the transaction's own master; `None`: absent.
pub(super) fn step_after_own_record(flight: &Flight, own: Option<&Page>, can_lose_writes: bool) -> Step {
    let (stage, is_waiting) = (flight.stage, flight.is_waiting());
    if !is_waiting && !matches!(stage, Stage::ReadingOwn | Stage::ReadingFirstRecord { .. } | Stage::CheckingOwn) {
        // The record was requested while the flight waited, and the flight has moved since.
        return Step::Stay;
    }
    if let Some(own) = own.filter(|own| own.differs_in_kind(flight.work.page())) {
        return step_for_other_kind(flight, own.contradicts(flight.work.page()));
    }
    if let Stage::ReadingFirstRecord { contested } = stage {
        return step_after_first_record(flight, contested, own, can_lose_writes);
    }
    match own.map(Page::state) {
        _ if stage == Stage::CheckingOwn && flight.mode.ends_conflicting() => Step::StoreContested(Reason::Found),
        _ if stage == Stage::CheckingOwn => Step::Launch,
        _ if own.is_some_and(Page::is_conflicting_tombstone) => Step::StoreContested(Reason::Found),
        Some(TxState::Stub(_)) if is_waiting && (can_lose_writes || flight.mode.ends_live()) => {
            Step::StoreContested(Reason::Found)
        }
        Some(TxState::Creating) if is_waiting && !can_lose_writes => Step::Create,
        Some(TxState::Live | TxState::Pruned(_)) if is_waiting && !can_lose_writes => {
            Step::Finish(Completion::AlreadyLive)
        }
        _ if is_waiting => Step::Stay,
        Some(TxState::Pruned(_)) => Step::Finish(Completion::AlreadyLive),
        Some(TxState::Live) if !can_lose_writes => Step::Finish(Completion::AlreadyLive),
        // Every page is written, and the writer is gone: any instance may clear `creating`. Over a store that can lose
        // writes the record of the absent parent may be lost, and the spend with it.
        Some(TxState::Creating) if !can_lose_writes => Step::Create,
        Some(TxState::Stub(_)) if flight.mode.ends_live() => Step::StoreContested(Reason::Found),
        Some(TxState::Conflicting(_)) if flight.mode.ends_live() => Step::Finish(Completion::PassedOver),
        _ => Step::Park,
    }
}

/// Returns the step after the answer of the store to a live create.
pub(super) fn step_after_create(flight: &Flight, outcome: &Outcome) -> Step {
    match outcome {
        // A partial transaction whose children were refused before it was stored. The attached spends are not in the
        // record.
        Outcome::Applied(Reply::ContestDue) | Outcome::AlreadyApplied(Reply::ContestDue) => {
            contest_or_finish(flight, Reason::Found, Completion::Live)
        }
        Outcome::Applied(_) => Step::FinishCreated,
        // Another create has stored the record: the attached spends of this one are not in it.
        Outcome::AlreadyApplied(_) => Step::Finish(Completion::Live),
        Outcome::Rejected(Rejection::OtherContent) => step_for_other_kind(flight, true),
        Outcome::Rejected(Rejection::OtherKind) => step_for_other_kind(flight, false),
        // The transaction had won when its first event was read and has lost since: that decision was applied.
        Outcome::Rejected(Rejection::Exists(TxState::Conflicting(_))) if flight.mode.ends_live() => {
            Step::Finish(Completion::PassedOver)
        }
        Outcome::Rejected(Rejection::Exists(TxState::Stub(_) | TxState::Conflicting(_) | TxState::Pruned(_))) => {
            Step::StoreContested(Reason::Found)
        }
        // Another instance creates the transaction at the moment.
        Outcome::Rejected(_) => Step::Park,
    }
}
