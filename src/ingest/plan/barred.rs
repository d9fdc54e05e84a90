//! What stands between a transaction and its slots. Pure.

use crate::{
    record::{Marks, Reason, Rejection, SpendSlot, Verdict},
    replay::Mode,
    tx::Txid,
};

/// What stands between a transaction and its create, once every group has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barred {
    /// Nothing: every slot is held.
    No,
    /// It was created, mined and pruned long ago.
    Pruned,
    /// A parent that is absent, half created, locked or undecided.
    Waits,
    /// Everything else.
    Contested(Reason),
}

/// What one refusal means for the spender of `parent`'s slots.
pub fn barred_by(rejection: &Rejection, parent: Txid, slots: &[SpendSlot], mode: Mode) -> Barred {
    let input = |offset: u32| slots.iter().find(|slot| slot.offset == offset).map_or(0, |slot| slot.input);
    let first_input = slots.first().map_or(0, |slot| slot.input);
    if let Rejection::SpenderPruned(_) = rejection {
        return Barred::Pruned;
    }
    if mode == Mode::RebuildWon || (mode == Mode::RebuildAccepted && !is_for_good(rejection)) {
        return Barred::Waits;
    }
    match *rejection {
        Rejection::Conflicting(Verdict::Conflicting(_)) => Barred::Contested(Reason::ConflictingParent { parent }),
        Rejection::Pruned(_) => Barred::Contested(Reason::PrunedParent { parent }),
        Rejection::Immature(_) => Barred::Contested(Reason::Immature { input: first_input }),
        Rejection::NoSuchOutput(offset) => Barred::Contested(Reason::NoSuchOutput { input: input(offset) }),
        Rejection::HashMismatch(offset) | Rejection::OutputMismatch(offset) => {
            Barred::Contested(Reason::Mismatch { input: input(offset) })
        }
        Rejection::Frozen(offset) => Barred::Contested(Reason::Frozen { input: input(offset) }),
        Rejection::Contested(offset) => Barred::Contested(Reason::History { input: input(offset) }),
        Rejection::SpentBy(offset, holder) => {
            Barred::Contested(Reason::DoubleSpend { input: input(offset), winner: holder.txid })
        }
        Rejection::NotYetSpendable(offset, _) => Barred::Contested(Reason::NotYetSpendable { input: input(offset) }),
        // Absent, half created, locked, undecided; and what a spend never answers waits too, rather than guess.
        _ => Barred::Waits,
    }
}

/// What neither the end of a parent nor that of a rival changes.
fn is_for_good(rejection: &Rejection) -> bool {
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

/// Marks bar the way of everybody but those who are known to have won.
pub fn marks_for(mode: Mode) -> Marks {
    match mode {
        Mode::RebuildWon | Mode::RebuildAccepted => Marks::Ignore,
        Mode::Normal | Mode::RebuildContested => Marks::Respect,
    }
}
