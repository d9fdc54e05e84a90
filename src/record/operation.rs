//! Operations as data.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    BlockRecord, Body, CommandRecord, LockRecord, MetaRecord, MinedIn, Page, Reason, Record, SpendingData, Stamp,
};
use crate::tx::{Network, Outpoint, Output, Txid, UtxoHash, utxo_hash};

/// Settings that determine the effect of an operation; equal for all operations on a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// `block_height_retention`, blocks; 0 disables `deleteAtHeight`.
    pub retention: u32,
    /// Network, whose Genesis height decides the outputs that get a slot.
    pub network: Network,
}

impl Rules {
    /// Returns the rules of the main chain with this retention.
    pub const fn main(retention: u32) -> Self {
        Rules { retention, network: Network::Main }
    }

    /// Returns whether outputs without a slot at height `made_at` can have one at `mined_at`: Genesis is between the
    /// two.
    pub fn crosses_genesis(&self, made_at: u32, mined_at: u32) -> bool {
        let genesis = self.network.genesis_activation_height();
        made_at < genesis && mined_at >= genesis
    }
}

/// Atomic, idempotent change of one record.
///
/// Operations with a [`Stamp`] belong to the sequencer: they always write the stamp, and a record with a later stamp
/// refuses them. All others belong to the fast path and to recovery, and only add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Creates a page. The page may contain the spends of children that waited for its transaction.
    ///
    /// | existing record | outcome |
    /// |---|---|
    /// | none, or the stub of a page other than the master | `Applied` |
    /// | page with other outputs | `Rejected(OtherContent)` |
    /// | partial transaction instead of a whole one, or the reverse | `Rejected(OtherKind)` |
    /// | stub without a decision, and the new page is partial | `Applied(ContestDue)` |
    /// | live or creating page with a pending verdict | `AlreadyApplied(ContestDue)` |
    /// | live page, or tombstone of a live transaction | `AlreadyApplied(State)` |
    /// | any other | `Rejected(Exists)` |
    Create(Arc<Page>),
    /// Creates a page of a contested transaction. The page must have `conflicting` and, on the master, a verdict.
    ///
    /// | existing record | outcome |
    /// |---|---|
    /// | none | `Applied` |
    /// | stub | `Applied`: the stub gets the content, and keeps its verdict, stamp and marks |
    /// | conflicting page, or creating page other than the master | `AlreadyApplied(State)` |
    /// | tombstone of a conflicting transaction | `Applied` if it changes, else `AlreadyApplied(State)` |
    /// | live page, creating master, or tombstone of a live transaction | `Rejected(Exists)` |
    /// | other outputs, or another kind | as by `Create` |
    CreateContested(Arc<Page>),
    /// Spends slots for one spender, all or none.
    Spend(Spend),
    /// Clears `creating`. A conflicting page refuses. The caller must know that no page is missing, and that the master
    /// of another page is not contested.
    ClearCreating,
    /// Adds a page to the master's set of all-spent pages, or removes a page, and evaluates `deleteAtHeight` again. The
    /// fast path only adds. An addition may follow the sequencer's release of a slot, so that the set is only a hint
    /// where slots have a history.
    SetPageSpent {
        /// Number of the page, never 0.
        page: u32,
        /// All slots of the page are spent: adds the page; otherwise removes the page.
        spent: bool,
    },
    /// Acquires the lock record of a creation, if it is absent, expired at `now_ms`, or already held by the same owner.
    AcquireLockRecord {
        /// The lock record to write.
        lock_record: LockRecord,
        /// Time of the acquisition, milliseconds since the epoch.
        now_ms: u64,
    },
    /// Deletes the lock record if `owner` holds it. Absent, or held by another owner: `AlreadyApplied`.
    ReleaseLockRecord {
        /// Token of the acquisition.
        owner: u64,
    },
    /// Writes the meta record of a set that has none.
    CreateMeta(Box<MetaRecord>),
    /// Replaces the meta record if it still equals the expected one. Boxed, because the operation is rare and large,
    /// and the size of every row is that of the largest operation.
    ReplaceMeta(Box<ReplaceMeta>),
    /// Writes a sentinel of the store with this id, also over a sentinel of another store.
    PutSentinel([u8; 16]),
    /// Writes a record of a snapshot as it is, into a set that is being restored. An equal record: `AlreadyApplied`.
    /// Any other record refuses (`Unexpected`), and so does a key of another record.
    Restore(Box<Record>),
    /// An operation of the sequencer with its stamp.
    Sequenced(Stamp, Sequenced),
    /// Operations of the sequencer in the order of their stamps, all or none. A record with the stamp of one of the
    /// operations has the earlier ones, which are left out. The outcome is that of the last operation, or the first
    /// refusal. No operation creates a page or writes a body: bodies are placed in the blob store before.
    SequencedAll(Vec<(Stamp, Sequenced)>),
}

impl Operation {
    /// Returns the page that the operation writes whole: of a create, or of a snapshot.
    pub fn created(&self) -> Option<&Arc<Page>> {
        match self {
            Operation::Create(page)
            | Operation::CreateContested(page)
            | Operation::Sequenced(_, Sequenced::CreateCoinbase(page)) => Some(page),
            Operation::Restore(record) => match &**record {
                Record::Page(page) => Some(page),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the spend; `None` for other operations.
    pub fn spend(&self) -> Option<&Spend> {
        match self {
            Operation::Spend(spend) => Some(spend),
            _ => None,
        }
    }

    /// Returns the body that the operation writes.
    pub fn body(&self) -> Option<&Body> {
        match self {
            Operation::Sequenced(_, Sequenced::ReplaceBody(claimed)) => Some(&claimed.body),
            other => other.created()?.body(),
        }
    }
}

/// Old and new meta record of [`Operation::ReplaceMeta`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaceMeta {
    /// Meta record that the store must still hold.
    pub expected: MetaRecord,
    /// Meta record to write.
    pub new: MetaRecord,
}

/// Record operations of the sequencer (`docs/design.md` section 7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sequenced {
    /// Creates the stub of a contested transaction. An existing master of any state: `AlreadyApplied(State)`. The stub
    /// of another page only holds the marks of the page's slots.
    MarkContested,
    /// Frees the slots that name their `holder`. All listed slots are marked contested, so that a late spend is
    /// refused. Frozen slots and slots with a pruned spender are refused, all or none; the refusal names the slot. A
    /// stub holds the marks until it gets its content. Slots that do not exist are ignored. Absent, or a tombstone:
    /// `AlreadyApplied`.
    Settle(Vec<HeldSlot>),
    /// Moves slots to a transaction, by compare-and-set on the holder, and marks the slots contested. All or none.
    Respend(Respend),
    /// Writes the verdict accepted: clears `creating` and `conflicting`, and evaluates `deleteAtHeight` again. A stub
    /// or an absent record is refused. On pages other than the master only the flags change.
    Accept,
    /// Sets `conflicting`, clears `creating`, and writes the verdict of the master. An absent master becomes a stub.
    /// `deleteAtHeight` becomes `height` + retention, if it is not set yet.
    MarkConflicting {
        /// Reason of the verdict.
        reason: Reason,
        /// Block height at the decision.
        height: u32,
    },
    /// Adds a conflicting child to a master. A master with [`MAX_CONFLICTING_CHILDREN`] children: `AlreadyApplied`.
    AddConflictingChild(Txid),
    /// Removes a child that is live again from the master's conflicting children.
    RemoveConflictingChild(Txid),
    /// Records the block that lists the transaction, as one triple. The reply has all block ids.
    ///
    /// - On the longest chain: adds the triple once, clears `unminedSince` and `locked`, and evaluates
    ///   `deleteAtHeight`. A page that is creating or conflicting refuses. A stub counts as absent (`NotFound`). A
    ///   master without slots that its outputs have in this block refuses (`MISSING_SLOTS`): `AddSlots` has to come
    ///   first.
    /// - On a side chain: adds the triple only, also to a conflicting transaction.
    /// - On pages other than the master: clears `locked`.
    SetMined {
        /// Block that lists the transaction.
        mined_in: MinedIn,
        /// The block is on the longest chain.
        longest_chain: bool,
    },
    /// Writes the triple and clears `unminedSince` and `locked`, whatever the state: the rest of `SetMined` on the
    /// longest chain in a transaction that became conflicting later. Only a rebuild needs it, where the transaction is
    /// conflicting from the start and a disconnected block lists it. A stub counts as absent (`NotFound`).
    WasMined(MinedIn),
    /// Removes the triple of a disconnected block. `unminedSince` becomes the lower of its value and `height`;
    /// `deleteAtHeight` is cleared. An absent triple or record: `AlreadyApplied`. The reply has all block ids.
    UnsetMined {
        /// Local id of the block.
        block_id: u32,
        /// Height of the block.
        height: u32,
    },
    /// Has the effect of [`Operation::SetPageSpent`], for a page whose slots this event has moved.
    SetPageSpent {
        /// Number of the page, never 0.
        page: u32,
        /// All slots of the page are spent: adds the page; otherwise removes the page.
        spent: bool,
    },
    /// Adds the slots that outputs have in a block of this height, but not at the height of the transaction's event.
    /// Existing slots stay. On an unmined master, `unminedSince` becomes `height`.
    AddSlots {
        /// Offset within the page and UTXO hash of each slot.
        slots: Vec<(u32, UtxoHash)>,
        /// Height of the block that lists the transaction.
        height: u32,
    },
    /// Sets the height from which the outputs of a coinbase can be spent, because another block contains the coinbase.
    /// Only a coinbase accepts the operation.
    SetSpendingHeight(u32),
    /// Sets or clears the flag `locked`.
    SetLocked(bool),
    /// Sets or clears the flag `frozen`, which bars every output of the transaction.
    SetFrozen(bool),
    /// Freezes a slot. A spent or frozen slot refuses, unless the same stamp froze it, which is a repeat.
    Freeze {
        /// Offset of the slot within the page.
        offset: u32,
    },
    /// Unfreezes a slot. A slot that is not frozen refuses, unless the same stamp unfroze it.
    Unfreeze {
        /// Offset of the slot within the page.
        offset: u32,
    },
    /// Makes a slot unspendable below a height (`utxoSpendableIn`). A spent or frozen slot refuses, unless `decided`.
    FreezeUntil {
        /// Offset of the slot within the page.
        offset: u32,
        /// Height from which the slot is spendable.
        height: u32,
        /// The decision found the command executable. A spender that took the slot after the decision keeps the slot.
        decided: bool,
    },
    /// Gives a frozen slot to a new owner. A repeat of the same reassignment: `AlreadyApplied`, and the slot stays as
    /// it is.
    Reassign {
        /// Offset of the slot within the page.
        offset: u32,
        /// UTXO hash that the slot must have.
        utxo_hash: UtxoHash,
        /// UTXO hash of the new owner's output.
        new_utxo_hash: UtxoHash,
        /// Output of the new owner: amount and locking script.
        output: super::StoredOutput,
        /// Block height of the reassignment.
        block_height: u32,
        /// Height from which the new owner can spend the slot.
        spendable_at: u32,
        /// The decision found the command executable. A spender that took the slot after the decision keeps the slot.
        decided: bool,
    },
    /// Lifts the bars of commands on a slot, because a block spends the output: the slot is unfrozen, can be spent at
    /// any height, and belongs to `owner` again. A spender keeps the slot. The return to a former owner is an entry of
    /// `reassignments`.
    LiftBars {
        /// Offset of the slot within the page.
        offset: u32,
        /// Former owner that gets the output back: UTXO hash and output; `None`: the present owner keeps the output.
        owner: Option<(UtxoHash, super::StoredOutput)>,
        /// Height of the block.
        block_height: u32,
    },
    /// Raises `preserveUntil`, which never falls, and clears `deleteAtHeight`.
    Preserve {
        /// Height until which the transaction is not pruned.
        until: u32,
    },
    /// Marks spent slots whose spender was pruned. Slots that name another spender are not marked.
    MarkSpenderPruned(Vec<HeldSlot>),
    /// Replaces the page with a tombstone. The page must be all spent and mined (master), or conflicting by verdict. A
    /// page with a reassignment is never pruned. The tombstone of a master keeps the number of pages and the bins that
    /// locate the blob. The tombstone of a conflicting master also keeps the verdict and the body, because its
    /// operations are possibly repeated, and because a block can still list the transaction.
    Prune {
        /// Height of the last applied block.
        height: u32,
        /// Height from which the tombstone may be stripped; `None`: no event can name the transaction again.
        keep_until: Option<u32>,
    },
    /// Raises the `deleteAtHeight` of a page that is not prunable yet. A page without `deleteAtHeight`:
    /// `AlreadyApplied`.
    PostponePruning {
        /// Height of the next attempt.
        until: u32,
    },
    /// Strips an expired tombstone to the few bytes that identify it and its pages. Every other record refuses.
    ForgetTombstone {
        /// Height at which the tombstone expired. A tombstone that is kept beyond that height refuses.
        height: u32,
    },
    /// Turns the tombstone of a conflicting transaction into a stub, because a block lists the transaction. The stub
    /// has the tombstone's verdict and body, from which its content is made. The stub of another page holds the marks
    /// of its slots. A tombstone of a live transaction refuses (`PRUNED`). Every other record: `AlreadyApplied(State)`.
    Revive,
    /// Creates the coinbase of a block as `Create` does. A stub without a verdict is replaced, too, and its marks and
    /// children stay (`Applied(State)`).
    CreateCoinbase(Arc<Page>),
    /// Gives a contested master the body of the event that is decided. A live transaction keeps its own body
    /// (`AlreadyApplied(State)`). A stub or an absent record is refused.
    ReplaceBody(ClaimedBody),
    /// Writes a block record. A record of another block with the same id refuses (`OTHER_CONTENT`).
    PutBlock(BlockRecord),
    /// Writes the result of a command, if its id has none yet: the first result stays.
    PutCommand(CommandRecord),
}

/// Body that an event claims, and the values that follow from the previous outputs in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedBody {
    /// Claimed body of the transaction.
    pub body: Body,
    /// Fee of the transaction, satoshis.
    pub fee: u64,
    /// Size in extended format, bytes.
    pub extended_size: u64,
}

/// Limit of the recorded conflicting children of a master. Further children get no automatic second chance.
pub const MAX_CONFLICTING_CHILDREN: usize = 10_000;

/// Spends slots of one page for one spender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spend {
    /// Txid of the spending transaction.
    pub spender: Txid,
    /// Height of the block that the spender can first be in.
    pub height: u32,
    /// Slots to spend, all or none.
    pub slots: Arc<Vec<SpendSlot>>,
    /// Effect of contested marks, locks and freezes.
    pub marks: Marks,
    /// Asks for a reply with the consequences `ALL_SPENT` and `DAH_SET` ([`Reply::Slots`](super::Reply::Slots)), which
    /// cost the server and the client one more read. The pipeline needs them for pages whose last spend must be
    /// recorded in the master.
    pub signals: bool,
}

/// Effect of contested marks, locks and freezes on a spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Marks refuse the spend.
    Respect,
    /// Marks are ignored: a rebuild below the frontier spends for a transaction that is live in the end.
    Ignore,
    /// Marks are ignored, and so is that the parent has no verdict yet: as `Ignore`, where a later verdict accepts the
    /// parent.
    IgnoreUndecided,
}

/// Slot to spend, and the previous output as the spender claims it. The hash always belongs to the output: a layout may
/// compare the hash alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpendSlot {
    /// Offset of the slot within the page.
    pub offset: u32,
    /// Index of the spender's input.
    pub input: u32,
    /// UTXO hash of the previous output.
    pub(crate) utxo_hash: UtxoHash,
    /// Amount of the previous output, satoshis.
    pub(crate) satoshis: u64,
    /// Locking script of the previous output.
    pub(crate) script: Bytes,
}

impl SpendSlot {
    /// Returns the claim of input number `input` on the slot at `offset` within its page. `script` holds the bytes of
    /// `previous.script`.
    pub fn claiming(outpoint: &Outpoint, offset: u32, input: u32, previous: &Output<'_>, script: Bytes) -> Self {
        let utxo_hash = utxo_hash(&outpoint.txid, outpoint.vout, previous.script, previous.satoshis);
        SpendSlot { offset, input, utxo_hash, satoshis: previous.satoshis, script }
    }

    /// Returns the UTXO hash of the previous output.
    #[cfg(feature = "testkit")]
    pub fn utxo_hash(&self) -> UtxoHash {
        self.utxo_hash
    }
}

/// Slot and its presumed holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldSlot {
    /// Offset of the slot within the page.
    pub offset: u32,
    /// Input that presumably holds the slot.
    pub holder: SpendingData,
}

/// Moves slots of one page to the transaction `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Respend {
    /// Transaction that gets the slots.
    pub to: Txid,
    /// Slots to move, all or none.
    pub slots: Vec<RespendSlot>,
    /// Checks beyond the one of the holder.
    pub checks: RespendChecks,
}

/// Slot that gets another spender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RespendSlot {
    /// Slot and claimed previous output.
    pub slot: SpendSlot,
    /// Required present holder; `None`: the slot must be free. A slot that already names `to` with this input is done.
    pub from: Option<SpendingData>,
}

/// Checks of a [`Respend`] beyond the compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RespendChecks {
    /// All checks of a spend at this height except for the contested mark; used while the sequencer evaluates.
    Spend {
        /// Height of the block that the spender can first be in.
        height: u32,
    },
    /// The same checks for a transaction that a block lists; the lock of a parent does not refuse the transaction.
    Listed {
        /// Height of the block.
        height: u32,
    },
    /// The same checks for a transaction that was live, whose spend a node has lost: neither the lock nor the freezing
    /// of a whole parent refuses the transaction, since both came later.
    Live {
        /// Height of a spend.
        height: u32,
    },
    /// The slot exists, is not frozen, and its spender is not pruned. No other check, because the decision is made.
    Decided,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are moved from queues to batches by the million, so that their size counts.
    #[test]
    fn operations_stay_small() {
        let size = (size_of::<Operation>(), size_of::<crate::engine::Row>());
        assert!(size.0 <= 176 && size.1 <= 216, "an operation and a row have {size:?} bytes");
        println!("{size:?}");
    }
}
