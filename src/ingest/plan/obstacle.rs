//! Obstacles between a transaction and the slots that it spends. Pure.

use crate::{
    record::{Marks, Reason, Rejection, SpendSlot, Verdict},
    replay::{FinalState, Mode},
    tx::Txid,
};

/// Obstacle between a transaction and its create, once every group has an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// No obstacle: every slot names the transaction.
    None,
    /// The transaction was created, mined and pruned long ago.
    SpenderPruned,
    /// A parent that is absent, creating, locked or undecided: the transaction waits.
    Temporary,
    /// Any other refusal: the transaction is contested, with this reason.
    Final(Reason),
}

/// Returns the obstacle that one refusal is for the spender of these slots of `parent`.
pub fn obstacle_of(rejection: &Rejection, parent: Txid, slots: &[SpendSlot], mode: Mode) -> Obstacle {
    let input = |offset: u32| slots.iter().find(|slot| slot.offset == offset).map_or(0, |slot| slot.input);
    let first_input = slots.first().map_or(0, |slot| slot.input);
    if let Rejection::SpenderPruned(_) = rejection {
        return Obstacle::SpenderPruned;
    }
    if mode == Mode::EndsLive || (mode == Mode::EndsAccepted && !is_final(rejection)) {
        return Obstacle::Temporary;
    }
    match *rejection {
        Rejection::Conflicting(Verdict::Conflicting(_)) => Obstacle::Final(Reason::ConflictingParent { parent }),
        Rejection::Pruned(_) => Obstacle::Final(Reason::PrunedParent { parent }),
        Rejection::Immature(_) => Obstacle::Final(Reason::Immature { input: first_input }),
        Rejection::NoSuchOutput(offset) => Obstacle::Final(Reason::NoSuchOutput { input: input(offset) }),
        Rejection::HashMismatch(offset) | Rejection::OutputMismatch(offset) => {
            Obstacle::Final(Reason::Mismatch { input: input(offset) })
        }
        Rejection::Frozen(offset) => Obstacle::Final(Reason::Frozen { input: input(offset) }),
        Rejection::Contested(offset) => Obstacle::Final(Reason::History { input: input(offset) }),
        Rejection::SpentBy(offset, holder) => {
            Obstacle::Final(Reason::DoubleSpend { input: input(offset), winner: holder.txid })
        }
        Rejection::NotYetSpendable(offset, _) => Obstacle::Final(Reason::NotYetSpendable { input: input(offset) }),
        // Absent, creating, locked, undecided. A refusal that no spend gives waits, too: no reason is guessed.
        _ => Obstacle::Temporary,
    }
}

/// Returns whether a refusal stays, whatever becomes of the parent or of a rival.
fn is_final(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::HashMismatch(_)
            | Rejection::OutputMismatch(_)
            | Rejection::NoSuchOutput(_)
            | Rejection::Immature(_)
            | Rejection::Frozen(_)
            | Rejection::NotYetSpendable(..)
    )
}

/// Returns whether spends respect marks: transactions that are known to have won ignore marks.
pub fn marks_for(mode: Mode) -> Marks {
    match mode {
        Mode::EndsLive | Mode::EndsAccepted => Marks::Ignore,
        Mode::Normal | Mode::EndsConflicting | Mode::SettlesByContest => Marks::Respect,
    }
}

/// Returns the marks of a spend whose parent ends in this state by the log. A child that ends live takes
/// the slot of a parent that a later verdict accepts: the verdict may wait for a descendant of the child.
pub fn marks_on_parent(marks: Marks, parent: Option<FinalState>) -> Marks {
    match (marks, parent) {
        (Marks::Ignore, Some(FinalState::Accepted)) => Marks::IgnoreUndecided,
        _ => marks,
    }
}
