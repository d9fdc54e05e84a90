//! Outcomes of operations, and the reasons of refusals.

use strum::IntoStaticStr;

use super::{LockRecord, SpendingData, Stamp, TxState, Verdict};

/// Outcome of an operation on one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The operation changed the record.
    Applied(Reply),
    /// The record already had the requested state. Marks and stamps may still have been written.
    AlreadyApplied(Reply),
    /// The operation was refused and changed nothing.
    Rejected(Rejection),
}

impl Outcome {
    /// Returns whether the outcome is `Applied` or `AlreadyApplied`.
    pub fn is_done(&self) -> bool {
        !matches!(self, Outcome::Rejected(_))
    }
}

/// Data of an outcome that is not a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The outcome has no data.
    None,
    /// State of the transaction; for `AlreadyApplied` the state that was found.
    State(TxState),
    /// A partial transaction is live in the place of a stub, without the spends in its page. A contest is due, because
    /// transactions that were refused for its absence may get a second chance.
    ContestDue,
    /// Consequences of a change of slots.
    Slots {
        /// `ALL_SPENT`: all slots of the page are spent now.
        all_spent: bool,
        /// `DAH_SET` / `DAH_UNSET`: the new `deleteAtHeight`, if it changed.
        delete_at_height: Option<Option<u32>>,
    },
    /// All block ids of the transaction after the change, and the work that has to follow.
    Mined {
        /// `blockIDs` of the master
        block_ids: Vec<u32>,
        /// `totalExtraRecs`: number of pages besides the master
        extra_pages: u32,
        /// `conflictingCs` names a child. Children that were refused because the parent was locked may get a second
        /// chance.
        conflicting_children: bool,
    },
}

/// Reason of a refusal. [`Rejection::code`] returns the name in the reference document.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum Rejection {
    /// The record does not exist.
    #[strum(serialize = "TX_NOT_FOUND")]
    NotFound,
    /// The record is a tombstone, pruned at this height.
    Pruned(u32),
    /// The page is creating: not all pages of its transaction exist.
    Creating,
    /// The transaction is conflicting or contested.
    Conflicting(Verdict),
    /// The transaction is locked: its outputs are not spendable yet.
    Locked,
    /// The coinbase is immature; holds the height from which it is spendable.
    #[strum(serialize = "COINBASE_IMMATURE")]
    Immature(u32),
    /// The slot is nil or out of range; holds its offset.
    #[strum(serialize = "UTXO_NOT_FOUND")]
    NoSuchOutput(u32),
    /// The slot has another UTXO hash; holds its offset.
    #[strum(serialize = "UTXO_HASH_MISMATCH")]
    HashMismatch(u32),
    /// The stored output has another script or amount; holds the offset.
    OutputMismatch(u32),
    /// The slot or the whole transaction is frozen; holds the offset.
    Frozen(u32),
    /// The slot is marked contested: it has a history; holds the offset.
    Contested(u32),
    /// The slot has another spender; holds the offset and the spender.
    #[strum(serialize = "SPENT")]
    SpentBy(u32, SpendingData),
    /// The slot is spendable only from a later height on; holds the offset and the height.
    #[strum(serialize = "FROZEN_UNTIL")]
    NotYetSpendable(u32, u32),
    /// The slot names the same spender, which was pruned since; holds the offset.
    SpenderPruned(u32),
    /// The slot is not frozen; holds the offset.
    NotFrozen(u32),
    /// The slot is already frozen; holds the offset.
    AlreadyFrozen(u32),
    /// A record exists; holds its state.
    #[strum(serialize = "TX_EXISTS")]
    Exists(TxState),
    /// A record with other outputs exists: a partial transaction claims outputs to which its txid does not commit.
    OtherContent,
    /// A record of the other kind exists: a partial transaction instead of a whole one, or the reverse, with equal
    /// outputs. The first event of a transaction decides its kind.
    OtherKind,
    /// The slots follow the rule before Genesis, and the block is after Genesis; holds the height of the slots' rule.
    MissingSlots(u32),
    /// The record has a later stamp.
    StaleStamp(Stamp),
    /// The lock record belongs to another owner.
    #[strum(serialize = "LOCK_RECORD_HELD")]
    Held(LockRecord),
    /// The page does not meet the conditions of pruning.
    NotPrunable,
    /// The record is not of the kind that the operation changes, or (for `ReplaceMeta`) not the expected one. Or the
    /// operation contradicts itself: a page under the key of another, or one slot for two inputs.
    Unexpected,
}

impl Rejection {
    /// Returns the code of the refusal: the name in the reference document, if it has one (`semantics.md`, "Names other
    /// systems use").
    pub fn code(&self) -> &'static str {
        self.into()
    }
}
