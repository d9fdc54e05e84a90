//! Verdicts of contested transactions, and their reasons.

use serde::{Deserialize, Serialize};

use crate::tx::Txid;

/// Verdict of a contested transaction: bins `verdict` and `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// 0: the sequencer has not decided yet.
    Pending,
    /// 1: the transaction is live.
    Accepted,
    /// 2: the transaction is conflicting, for this reason.
    Conflicting(Reason),
}

impl Verdict {
    /// Returns the number of the verdict in the bin `verdict`.
    pub const fn number(self) -> u8 {
        match self {
            Verdict::Pending => 0,
            Verdict::Accepted => 1,
            Verdict::Conflicting(_) => 2,
        }
    }
}

/// Reason of a verdict or of a contest. Encoded in the `reason` bin, in contests, decisions and outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum Reason {
    /// An input is spent by another transaction.
    #[error("the output that input {input} spends is spent by {winner}")]
    DoubleSpend { input: u32, winner: Txid },
    /// A parent is conflicting by verdict.
    #[error("parent {parent} is conflicting")]
    ConflictingParent { parent: Txid },
    /// A parent is missing: no event before the transaction's own event creates the parent.
    #[error("parent {parent} is missing")]
    MissingParent { parent: Txid },
    /// A parent was pruned before its slot was taken.
    #[error("parent {parent} was pruned")]
    PrunedParent { parent: Txid },
    /// A coinbase parent was immature at the transaction's height.
    #[error("the output that input {input} spends is an immature coinbase")]
    Immature { input: u32 },
    /// The slot's hash, script or amount differs from the previous output that the input claims.
    #[error("the output that input {input} spends differs from the stored output")]
    Mismatch { input: u32 },
    /// The parent has no such output, or one without a slot.
    #[error("the output that input {input} spends does not exist or has no slot")]
    NoSuchOutput { input: u32 },
    /// The slot is spendable only from a later height on.
    #[error("the output that input {input} spends is not spendable yet")]
    NotYetSpendable { input: u32 },
    /// The slot, or its transaction, is frozen.
    #[error("the output that input {input} spends is frozen")]
    Frozen { input: u32 },
    /// A parent stayed locked longer than the grace period.
    #[error("parent {parent} is locked")]
    Locked { parent: Txid },
    /// A slot has a history, so the sequencer must decide. Reason of a contest only, never of a verdict.
    #[error("the output that input {input} spends has a history")]
    History { input: u32 },
    /// The transaction's own record was found contested. Reason of a contest only, never of a verdict.
    #[error("its record was found contested")]
    Found,
    /// A command of an operator made the transaction conflicting.
    #[error("by command")]
    Command,
    /// The block of a coinbase left the longest chain.
    #[error("a coinbase whose block left the longest chain")]
    Disconnected,
    /// The first event of the transaction was a partial one, so that the whole one possibly holds no slots. Reason of a
    /// contest only, never of a verdict.
    #[error("a partial transaction came first")]
    Seeded,
}

impl Reason {
    /// Returns the transaction that spends the output instead; `None`: the reason is another one.
    pub fn winner(self) -> Option<Txid> {
        match self {
            Reason::DoubleSpend { winner, .. } => Some(winner),
            _ => None,
        }
    }

    /// Returns whether only an operator can open the verdict again, because an operator made the transaction
    /// conflicting.
    pub fn is_permanent(self) -> bool {
        self == Reason::Command
    }

    /// Returns whether a later event of the transaction itself opens the verdict again. The parents may exist by then,
    /// or the previous outputs in the first event may have been wrong.
    pub fn is_reopened_by_own_event(self) -> bool {
        matches!(self, Reason::MissingParent { .. } | Reason::Mismatch { .. })
    }
}
