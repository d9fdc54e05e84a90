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

/// Reason of a verdict or of a contest. Encoded in the `reason` bin, in contests, decisions and outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reason {
    /// An input is spent by another transaction.
    DoubleSpend {
        /// Index of the input.
        input: u32,
        /// Transaction that spends the same output.
        winner: Txid,
    },
    /// A parent is conflicting by verdict.
    ConflictingParent {
        /// Txid of the parent.
        parent: Txid,
    },
    /// A parent is missing: no event before the transaction's own event creates the parent.
    MissingParent {
        /// Txid of the parent.
        parent: Txid,
    },
    /// A parent was pruned before its slot was taken.
    PrunedParent {
        /// Txid of the parent.
        parent: Txid,
    },
    /// A coinbase parent was immature at the transaction's height.
    Immature {
        /// Index of the input.
        input: u32,
    },
    /// The slot's hash, script or amount differs from the previous output that the input claims.
    Mismatch {
        /// Index of the input.
        input: u32,
    },
    /// The parent has no such output, or one without a slot.
    NoSuchOutput {
        /// Index of the input.
        input: u32,
    },
    /// The slot is spendable only from a later height on.
    NotYetSpendable {
        /// Index of the input.
        input: u32,
    },
    /// The slot, or its transaction, is frozen.
    Frozen {
        /// Index of the input.
        input: u32,
    },
    /// A parent stayed locked longer than the grace period.
    Locked {
        /// Txid of the parent.
        parent: Txid,
    },
    /// A slot has a history, so the sequencer must decide. Reason of a contest only, never of a verdict.
    History {
        /// Index of the input.
        input: u32,
    },
    /// The transaction's own record was found contested. Reason of a contest only, never of a verdict.
    Found,
    /// A command of an operator made the transaction conflicting.
    Command,
    /// The block of a coinbase left the longest chain.
    Disconnected,
    /// The first event of the transaction was a partial one, so that the whole one possibly holds no slots. Reason of a
    /// contest only, never of a verdict.
    Seeded,
}

impl Reason {
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
