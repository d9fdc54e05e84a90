//! [`SpendStatus`]: whether an output can be spent.

use std::fmt;

use strum::IntoStaticStr;

use crate::{
    record::{SpendingData, Verdict},
    tx::UtxoHash,
};

/// Answer to the question whether an output can be spent: the first obstacle in the order in which a spend is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum SpendStatus {
    /// The transaction does not exist.
    #[strum(serialize = "TX_NOT_FOUND")]
    NotFound,
    /// The transaction was pruned at this height.
    Pruned(u32),
    /// The transaction is half created.
    Creating,
    /// The transaction is conflicting or contested.
    Conflicting(Verdict),
    /// The transaction is locked: its outputs are not spendable yet.
    Locked,
    /// The transaction is a coinbase, spendable from this height on.
    #[strum(serialize = "COINBASE_IMMATURE")]
    Immature(u32),
    /// The output does not exist or has no slot.
    #[strum(serialize = "UTXO_NOT_FOUND")]
    NoSuchOutput,
    /// The slot has this other hash.
    #[strum(serialize = "UTXO_HASH_MISMATCH")]
    HashMismatch(UtxoHash),
    /// The slot or the transaction is frozen.
    Frozen,
    /// The output is spent by this input.
    Spent(SpendingData),
    /// The output is frozen until this height.
    #[strum(serialize = "FROZEN_UNTIL")]
    NotYetSpendable(u32),
    /// The output can be spent.
    Unspent,
}

impl SpendStatus {
    /// Returns the code of the obstacle, by the name of the reference document where it has one; `UNSPENT`: none.
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for SpendStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpendStatus::NotFound => f.write_str("the store has no such transaction"),
            SpendStatus::Pruned(height) => write!(f, "the transaction was pruned at height {height}"),
            SpendStatus::Creating => f.write_str("the transaction is not completely created"),
            SpendStatus::Conflicting(Verdict::Conflicting(reason)) => {
                write!(f, "the transaction is conflicting: {}", *reason)
            }
            SpendStatus::Conflicting(_) => f.write_str("the transaction is contested and has no verdict yet"),
            SpendStatus::Locked => f.write_str("the transaction is locked"),
            SpendStatus::Immature(from) => write!(f, "a coinbase, spendable from height {from}"),
            SpendStatus::NoSuchOutput => f.write_str("the output does not exist, or can never be spent"),
            SpendStatus::HashMismatch(found) => write!(f, "the slot commits to {found}"),
            SpendStatus::Frozen => f.write_str("the output is frozen"),
            SpendStatus::Spent(spender) => write!(f, "spent by {}", spender),
            SpendStatus::NotYetSpendable(from) => write!(f, "spendable from height {from}"),
            SpendStatus::Unspent => f.write_str("the output can be spent"),
        }
    }
}
