//! Operations as data, and what they answer.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    BlockRecord, Body, CommandRecord, LockRecord, MetaRecord, MinedIn, Page, Reason, SpendingData, Stamp, TxState,
    Verdict,
};
use crate::tx::{Network, Outpoint, Output, Txid, UtxoHash, utxo_hash};

/// Settings that decide what an operation does; the same for every operation on a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// `block_height_retention`, blocks; 0 disables `deleteAtHeight`.
    pub retention: u32,
    /// Decides from which height on which outputs get a slot.
    pub network: Network,
}

impl Rules {
    /// Makes the rules of the main chain.
    pub const fn main(retention: u32) -> Self {
        Rules { retention, network: Network::Main }
    }

    /// Whether outputs that get no slot at height `made_at` get one at `mined_at`: Genesis lies between the two.
    pub fn adds_slots(&self, made_at: u32, mined_at: u32) -> bool {
        let genesis = self.network.genesis_activation_height();
        made_at < genesis && mined_at >= genesis
    }
}

/// One atomic, idempotent change of one record.
///
/// Those that carry a [`Stamp`] belong to the sequencer: they always write it, and are refused by a record that holds a
/// later one. The others are the fast path's and recovery's, and only add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Puts a page where there is none. The page may carry spends of children that were waiting for it. A page that is not the
    /// master takes the place of its stub, too.
    /// One whose outputs are others: `Rejected(OtherContent)`; a partial transaction instead of a whole one, or the other
    /// way round: `Rejected(OtherKind)`. Existing live page, or tombstone: `AlreadyApplied(State)`. Anything else:
    /// `Rejected(Exists)`.
    Create(Arc<Page>),
    /// Stores a contested transaction whole: the page must have `conflicting` and, on the master, a verdict.
    /// Absent → put. A stub → filled; its own verdict, stamp and marks stay. A contested one (not live) →
    /// `AlreadyApplied(State)`. Live, creating, a tombstone: `Rejected(Exists)`. Other outputs, and another kind, are
    /// refused as by `Create`.
    CreateContested(Arc<Page>),
    /// Takes slots for one spender, all or nothing.
    Spend(Spend),
    /// Clears `creating`. Refused where the page is conflicting; that no page is missing, and that the master of another page is not
    /// contested, the caller sees to.
    ClearCreating,
    /// Adds (or takes) a page to (from) the master's set of all-spent pages and evaluates `deleteAtHeight` again. The fast path only adds:
    /// an addition may come behind the sequencer that has freed a slot, so the set is a hint where slots have a history.
    SetPageSpent {
        /// The page, never 0.
        page: u32,
        /// All its slots are spent.
        spent: bool,
    },
    /// Copies the master's `deleteAtHeight` to another page.
    SetDeleteAtHeight(Option<u32>),
    /// Takes the lock record of a creation: absent or expired at `now_ms`, or held by the same owner.
    AcquireLockRecord {
        /// The lock record to write.
        lock_record: LockRecord,
        /// Milliseconds since the epoch.
        now_ms: u64,
    },
    /// Deletes the lock record if `owner` holds it; absent or another's: `AlreadyApplied`.
    ReleaseLockRecord {
        /// The token it was acquired with.
        owner: u64,
    },
    /// Writes the meta record where there is none.
    CreateMeta(Box<MetaRecord>),
    /// Replaces the meta record if it still is what was read. Rare, and two records large: boxed, or every row had their size.
    ReplaceMeta(Box<ReplaceMeta>),
    /// Writes a sentinel of the store with this id, also over another store's.
    PutSentinel([u8; 16]),
    /// An operation of the sequencer.
    Sequenced(Stamp, Sequenced),
}

impl Operation {
    /// The page that it puts.
    pub fn created(&self) -> Option<&Arc<Page>> {
        match self {
            Operation::Create(page)
            | Operation::CreateContested(page)
            | Operation::Sequenced(_, Sequenced::CreateCoinbase(page)) => Some(page),
            _ => None,
        }
    }

    /// The body that it brings.
    pub fn body(&self) -> Option<&Body> {
        match self {
            Operation::Sequenced(_, Sequenced::ReplaceBody(claimed)) => Some(&claimed.body),
            other => other.created()?.body(),
        }
    }
}

/// See [`Operation::ReplaceMeta`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaceMeta {
    /// What was read.
    pub expected: MetaRecord,
    /// The meta record to write.
    pub new: MetaRecord,
}

/// The sequencer's record operations (`DESIGN.md` section 7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sequenced {
    /// On a master. Absent → a stub; contested already, `creating`, live or a tombstone → `AlreadyApplied(State)`. On another
    /// page: absent → a stub, that is a place for the marks of its slots.
    MarkContested,
    /// Frees the slots that name their `holder`; either way marks them contested, so that a late spend cannot land.
    /// Frozen slots and slots whose spender was pruned are refused, all or nothing; the refusal names the slot. On a stub
    /// the marks are kept until it is filled; slots that do not exist are passed over. Absent, or a tombstone:
    /// `AlreadyApplied`.
    Settle(Vec<HeldSlot>),
    /// Moves slots to a transaction, by compare-and-set on who holds them, and marks them contested. All or nothing.
    Respend(Respend),
    /// Verdict accepted: clears `creating` and `conflicting` (and `deleteAtHeight`, re-evaluated). A stub or an absent
    /// record is refused. On pages other than the master only the flags.
    Accept,
    /// Flags the page conflicting, `creating` no longer, and, on the master, writes the verdict. Absent master → a stub.
    /// `deleteAtHeight` = `height` + retention, if not set yet.
    MarkConflicting {
        /// Why.
        reason: Reason,
        /// Block height at the decision.
        height: u32,
    },
    /// Adds a conflicting child to a master, up to [`MAX_CONFLICTING_CHILDREN`]; beyond that `AlreadyApplied`.
    AddConflictingChild(Txid),
    /// Removes a child that is live again.
    RemoveConflictingChild(Txid),
    /// On the longest chain: adds the triple once, clears `unminedSince` and `locked`, evaluates `deleteAtHeight`;
    /// refused while creating or conflicting; a stub is not there (`NotFound`). On a side chain: only the triple
    /// (conflicting is no obstacle). A master on the longest chain that lacks slots which its outputs have in this
    /// block is refused (`MISSING_SLOTS`): `AddSlots` first. On pages other than the master: clears `locked`. Answers
    /// all block ids.
    SetMined {
        /// The block.
        mined_in: MinedIn,
        /// Whether that block is on the longest chain.
        longest_chain: bool,
    },
    /// What `SetMined` on the longest chain leaves of a transaction that falls later, written where it has fallen already: the
    /// triple, no `unminedSince` and no `locked`, whatever its state. For a rebuild, where a block of a chain that was left
    /// lists what is conflicting from the start. A stub is not there (`NotFound`).
    WasMined(MinedIn),
    /// Removes the triple of a block that leaves the longest chain; `unminedSince` = the earlier of what is there and
    /// `height`; `deleteAtHeight` cleared. Where the triple is not there (any more), nothing is: `AlreadyApplied`, as for an
    /// absent record. Answers all block ids.
    UnsetMined {
        /// The block's local id.
        block_id: u32,
        /// Its height.
        height: u32,
    },
    /// As [`Operation::SetPageSpent`], for a page of which this event has moved slots.
    SetPageSpent {
        /// The page, never 0.
        page: u32,
        /// All its slots are spent.
        spent: bool,
    },
    /// Adds slots to a page whose outputs have none by the rule at the height of the event, and have them in the block
    /// of this height. Slots that are there stay. On a master that is unmined, `unminedSince` = `height`.
    AddSlots {
        /// Slots within the page, with the hash of each.
        slots: Vec<(u32, UtxoHash)>,
        /// Height of the block that lists the transaction.
        height: u32,
    },
    /// Says from which height on the outputs of a coinbase can be spent: another block has it. Anything but a coinbase
    /// is refused.
    SetSpendingHeight(u32),
    /// Sets or clears `locked`.
    SetLocked(bool),
    /// Freezes a slot; refused when spent or frozen already (not by the same stamp: that is a repeat).
    Freeze {
        /// Slot within the page.
        offset: u32,
    },
    /// Frees a frozen slot; refused when not frozen (any more, by another stamp).
    Unfreeze {
        /// Slot within the page.
        offset: u32,
    },
    /// Bars a slot until a height (`utxoSpendableIn`); refused when spent or frozen, unless `decided`.
    FreezeUntil {
        /// Slot within the page.
        offset: u32,
        /// The height from which it is spendable.
        height: u32,
        /// It could be done when it was decided on, and who took the slot behind that stays.
        decided: bool,
    },
    /// Gives a frozen slot to a new owner. The very same once more: `AlreadyApplied`, and what the slot says of it holds.
    Reassign {
        /// Slot within the page.
        offset: u32,
        /// Hash it must have.
        utxo_hash: UtxoHash,
        /// Hash of the new owner's output.
        new_utxo_hash: UtxoHash,
        /// The new owner's output.
        output: super::StoredOutput,
        /// Height of the reassignment.
        block_height: u32,
        /// Height from which the new owner can spend.
        spendable_at: u32,
        /// It could be done when it was decided on, and who took the slot behind that stays.
        decided: bool,
    },
    /// Raises `preserveUntil` (never lowers it) and clears `deleteAtHeight`.
    Preserve {
        /// Height until which the transaction is kept.
        until: u32,
    },
    /// Marks spent slots as spent by something pruned; only where they name that spender.
    MarkSpenderPruned(Vec<HeldSlot>),
    /// Makes the page a tombstone. Refused unless all spent and mined (master), or conflicting by verdict; what was reassigned is never
    /// pruned. A master keeps how many pages there are and what says where its blob is; one that was conflicting also its verdict
    /// and its body: what was done with it may have to be done again, and a block may still bring it.
    Prune {
        /// Height of the last applied block.
        height: u32,
        /// From which height on the tombstone may go, too; `None`: nobody comes back for it.
        keep_until: Option<u32>,
    },
    /// Raises the hint of a page that was looked at too early; one without a hint is `AlreadyApplied`.
    PostponePruning {
        /// When to look again.
        until: u32,
    },
    /// A tombstone has served its time: what remains are the few bytes that say who it was. Anything else is refused.
    ForgetTombstone {
        /// It is kept for longer where an event has come since.
        height: u32,
    },
    /// A tombstone of what was conflicting becomes a stub of it, with its verdict and with the body that it kept, to be filled with that: a
    /// block brings it. On another page: a place for the marks of its slots. What was live when it was pruned is refused (`PRUNED`); anything else is `AlreadyApplied(State)`.
    Revive,
    /// The coinbase of a block: as `Create`, and in the place of a stub without verdict, whose marks and children it keeps
    /// (`Applied(State)`).
    CreateCoinbase(Arc<Page>),
    /// Gives a contested master the body of the event that is decided on; what is live keeps its own
    /// (`AlreadyApplied(State)`). A stub or an absent record is refused.
    ReplaceBody(ClaimedBody),
    /// Writes a block record. Another block under the same id is refused (`OTHER_CONTENT`).
    PutBlock(BlockRecord),
    /// Writes what became of a command where nothing is under its id yet: the first result stays.
    PutCommand(CommandRecord),
}

/// A body as an event claims it, and what follows from the previous outputs in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedBody {
    /// The body.
    pub body: Body,
    /// Fee, satoshis.
    pub fee: u64,
    /// Size in extended format, bytes.
    pub extended_size: u64,
}

/// Beyond this number of conflicting children nothing is automatic.
pub const MAX_CONFLICTING_CHILDREN: usize = 10_000;

/// Takes slots of one page for one spender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spend {
    /// Who spends.
    pub spender: Txid,
    /// Height of the block that the spender can first be in.
    pub height: u32,
    /// What it takes; all or nothing.
    pub slots: Arc<Vec<SpendSlot>>,
    /// Whether marks bar the way.
    pub marks: Marks,
    /// Whether the answer says what followed from it, `ALL_SPENT`, `DAH_SET` ([`Reply::Slots`]): it costs the server and the
    /// client a read more. The pipeline asks it of pages whose master has to hear of their last spend.
    pub signals: bool,
}

/// Whether contested marks, locks and freezes refuse a spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// They do.
    Respect,
    /// They do not: a rebuild below the frontier of a transaction that is known to have won.
    Ignore,
}

/// One slot to take, and the previous output as the spender claims it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpendSlot {
    /// Slot within the page.
    pub offset: u32,
    /// Index of the spender's input.
    pub input: u32,
    /// Hash of the previous output.
    pub utxo_hash: UtxoHash,
    /// Its amount.
    pub satoshis: u64,
    /// Its locking script.
    pub script: Bytes,
}

impl SpendSlot {
    /// The slot that input number `input` takes at this place within its page. `script` holds the bytes of
    /// `previous.script`.
    pub fn claiming(outpoint: &Outpoint, offset: u32, input: u32, previous: &Output<'_>, script: Bytes) -> Self {
        let utxo_hash = utxo_hash(&outpoint.txid, outpoint.vout, previous.script, previous.satoshis);
        SpendSlot { offset, input, utxo_hash, satoshis: previous.satoshis, script }
    }
}

/// A slot and who is said to hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldSlot {
    /// Slot within the page.
    pub offset: u32,
    /// Its presumed holder.
    pub holder: SpendingData,
}

/// Moves slots of one page to `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Respend {
    /// Who gets them.
    pub to: Txid,
    /// What moves; all or nothing.
    pub slots: Vec<RespendSlot>,
    /// How much is checked beyond the holder.
    pub checks: RespendChecks,
}

/// One slot that changes hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RespendSlot {
    /// The slot and the claimed previous output.
    pub slot: SpendSlot,
    /// Who must hold it now: `None` = free. A slot that already names `to` with this input is done.
    pub from: Option<SpendingData>,
}

/// What a [`Respend`] checks beyond the compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RespendChecks {
    /// Everything a spend at this height checks, but for the contested mark: while evaluating.
    Spend {
        /// Height of the block that the spender can first be in.
        height: u32,
    },
    /// The same of what a block lists, or was live: no lock of a parent bars that.
    Listed {
        /// Height of that block, or the height of a spend.
        height: u32,
    },
    /// Only that the slot exists, is not frozen and its spender was not pruned: the decision is made.
    Decided,
}

/// What an operation did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The record changed.
    Applied(Reply),
    /// The record already was as asked for (marks and stamps may still have been written).
    AlreadyApplied(Reply),
    /// The record was not changed.
    Rejected(Rejection),
}

impl Outcome {
    /// `Applied` or `AlreadyApplied`.
    pub fn is_done(&self) -> bool {
        !matches!(self, Outcome::Rejected(_))
    }
}

/// What comes back with an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing more to say.
    None,
    /// How the transaction stands (found for `AlreadyApplied`).
    State(TxState),
    /// A partial transaction is live in the place of a stub, without the spends that came with it, and a contest is due:
    /// whoever was refused for its absence may have a second chance.
    ContestDue,
    /// After a change of slots.
    Slots {
        /// `ALL_SPENT`: every slot of this page is spent now.
        all_spent: bool,
        /// `DAH_SET` / `DAH_UNSET`: `deleteAtHeight` as it is now, if it changed.
        delete_at_height: Option<Option<u32>>,
    },
    /// All block ids of the transaction after the change, and what else has to follow.
    Mined {
        /// `blockIDs`
        block_ids: Vec<u32>,
        /// `totalExtraRecs`: how many pages it has besides the master.
        extra_pages: u32,
        /// `conflictingCs` names any: those that were refused because it was locked may have a second chance.
        conflicting_children: bool,
    },
}

/// Why an operation was refused. `code` gives the seed's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// No such record.
    NotFound,
    /// The record is a tombstone, pruned at this height.
    Pruned(u32),
    /// Half created.
    Creating,
    /// Conflicting or contested.
    Conflicting(Verdict),
    /// Outputs not spendable yet.
    Locked,
    /// A coinbase below its maturity: spendable from this height on.
    Immature(u32),
    /// The slot is nil or out of range.
    NoSuchOutput(u32),
    /// The slot's hash differs.
    HashMismatch(u32),
    /// The stored output's script or amount differs.
    OutputMismatch(u32),
    /// The slot or the whole transaction is frozen.
    Frozen(u32),
    /// The slot has a history.
    Contested(u32),
    /// The slot is spent by another.
    SpentBy(u32, SpendingData),
    /// The slot is spendable from this height on: (slot, height).
    NotYetSpendable(u32, u32),
    /// The slot names this very spender, which was pruned since.
    SpenderPruned(u32),
    /// The slot is not frozen.
    NotFrozen(u32),
    /// The slot is frozen already.
    AlreadyFrozen(u32),
    /// A record is there already, in this state.
    Exists(TxState),
    /// A record is there already whose outputs are others: a partial transaction claimed what its id does not commit to.
    OtherContent,
    /// A record is there already that is a partial transaction where a whole one was to be put, or the other way round;
    /// their outputs agree. The first event says what the record is.
    OtherKind,
    /// The slots were made by the rule of this height, before Genesis, and the block stands behind it.
    MissingSlots(u32),
    /// The record holds this later stamp.
    StaleStamp(Stamp),
    /// The lock record is held by somebody else.
    Held(LockRecord),
    /// The page may not be pruned.
    NotPrunable,
    /// The record is not of the kind that this operation changes, or (for `ReplaceMeta`) not as expected; or the operation
    /// contradicts itself: a page that does not belong under its key, one slot for two inputs.
    Unexpected,
}

impl Rejection {
    /// The seed's name for it, where it has one (`semantics.md`, "Names other systems use").
    pub fn code(&self) -> &'static str {
        match self {
            Rejection::NotFound => "TX_NOT_FOUND",
            Rejection::Pruned(_) => "PRUNED",
            Rejection::Creating => "CREATING",
            Rejection::Conflicting(_) => "CONFLICTING",
            Rejection::Locked => "LOCKED",
            Rejection::Immature(_) => "COINBASE_IMMATURE",
            Rejection::NoSuchOutput(_) => "UTXO_NOT_FOUND",
            Rejection::HashMismatch(_) => "UTXO_HASH_MISMATCH",
            Rejection::OutputMismatch(_) => "OUTPUT_MISMATCH",
            Rejection::Frozen(_) => "FROZEN",
            Rejection::Contested(_) => "CONTESTED",
            Rejection::SpentBy(..) => "SPENT",
            Rejection::NotYetSpendable(..) => "FROZEN_UNTIL",
            Rejection::SpenderPruned(_) => "SPENDER_PRUNED",
            Rejection::NotFrozen(_) => "NOT_FROZEN",
            Rejection::AlreadyFrozen(_) => "ALREADY_FROZEN",
            Rejection::Exists(_) => "TX_EXISTS",
            Rejection::OtherContent => "OTHER_CONTENT",
            Rejection::OtherKind => "OTHER_KIND",
            Rejection::MissingSlots(_) => "MISSING_SLOTS",
            Rejection::StaleStamp(_) => "STALE_STAMP",
            Rejection::Held(_) => "LOCK_RECORD_HELD",
            Rejection::NotPrunable => "NOT_PRUNABLE",
            Rejection::Unexpected => "UNEXPECTED",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are moved from queue to batch by the million.
    #[test]
    fn operations_stay_small() {
        let size = (size_of::<Operation>(), size_of::<crate::engine::Row>());
        assert!(size.0 <= 176 && size.1 <= 216, "an operation and a row have {size:?} bytes");
        println!("{size:?}");
    }
}
