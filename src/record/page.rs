//! Pages of a transaction. Field names follow the bins of `semantics.md`. An absent bin is `None`, `false` or empty
//! here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::{Body, StoredOutput, Verdict};
use crate::tx::{Txid, UtxoHash};

/// Chain offset and phase of the sequencer's last change of a record: bin `chainPos`. A record refuses an operation
/// with an earlier stamp; with an equal stamp the operation's own compare-and-set decides. An earlier sequencer that
/// still runs, or a replay, can therefore undo nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Offset in `utxo.chain` of the handled event, in the lowest [`Stamp::OFFSET_BITS`] bits. The bits above are the
    /// *era*: the number of rewinds of the chain after the store lost writes.
    pub offset: u64,
    /// Part of the event's handling.
    pub phase: Phase,
}

impl Stamp {
    /// Number of bits of the chain offset, for a trillion events.
    pub const OFFSET_BITS: u32 = 40;

    /// Returns the stamp of an event that is handled in `era`. Every event of an earlier era is handled again, in
    /// order, so that a stamp of an earlier era refuses no operation, however late its event. A sequencer that still
    /// works in an earlier era is refused.
    pub fn in_era(era: u32, offset: u64, phase: Phase) -> Self {
        Stamp { offset: u64::from(era) << Self::OFFSET_BITS | offset, phase }
    }

    /// Returns the era of the stamp.
    pub fn era(&self) -> u64 {
        self.offset >> Self::OFFSET_BITS
    }

    /// Returns the chain offset of the event, without the era.
    pub fn chain_offset(&self) -> u64 {
        self.offset & ((1 << Self::OFFSET_BITS) - 1)
    }

    /// Returns whether both stamps are of the same phase of the same event, in any eras.
    pub fn is_of_same_event(&self, other: &Stamp) -> bool {
        (self.chain_offset(), self.phase) == (other.chain_offset(), other.phase)
    }
}

/// Phases of the sequencer's handling of one chain event, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Changes without consequences, before the decision is written. Also all changes of a reorg while it disconnects
    /// blocks, which come before all changes while it connects blocks.
    Evaluate = 0,
    /// Changes that the decision orders.
    Apply = 1,
    /// Pruning after the event.
    Prune = 2,
}

/// Spender of a slot: 36 bytes, transaction id and little-endian input index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpendingData {
    /// Txid of the spending transaction.
    pub txid: Txid,
    /// Index of the spending input.
    pub input: u32,
}

impl fmt::Display for SpendingData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input {} of {}", self.input, self.txid)
    }
}

/// Output of a transaction in the store. The position in the list is the output's offset within the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Slot {
    /// A data output, or a gap of a partial transaction; never spendable.
    Nil,
    /// An output that nothing spends; 32 bytes.
    Unspent(UtxoHash),
    /// An output and its spender; 68 bytes.
    Spent(UtxoHash, SpendingData),
    /// An output that an operator froze; 68 bytes, of which the last 36 are `0xFF`.
    Frozen(UtxoHash),
}

impl Slot {
    /// Returns the UTXO hash of the output; `None` for a nil slot.
    pub fn hash(&self) -> Option<UtxoHash> {
        match self {
            Slot::Nil => None,
            Slot::Unspent(hash) | Slot::Spent(hash, _) | Slot::Frozen(hash) => Some(*hash),
        }
    }

    /// Returns the spender of a spent slot.
    pub fn spender(&self) -> Option<SpendingData> {
        match self {
            Slot::Spent(_, spender) => Some(*spender),
            _ => None,
        }
    }
}

/// Triple (block id, height, subtree index) of `blockIDs`, `blockHeights`, `subtreeIdxs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct MinedIn {
    /// Local sequence number of the block; 0 stands for the genesis block and for all blocks before the store began.
    pub block_id: u32,
    /// Height of the block.
    pub height: u32,
    /// Index of the block's subtree that lists the transaction.
    pub subtree: u32,
}

/// Audit entry of a reassignment, with the output that a spend of the new owner is checked against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reassignment {
    /// Offset of the slot within the page.
    pub offset: u32,
    /// UTXO hash before the reassignment.
    pub utxo_hash: UtxoHash,
    /// UTXO hash after the reassignment.
    pub new_utxo_hash: UtxoHash,
    /// Block height of the reassignment.
    pub block_height: u32,
    /// Output of the new owner, which replaces the stored output in the check of a spend.
    pub output: StoredOutput,
}

/// Page of a transaction. Only page 0 (the master) has `master`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// `txID` of the transaction
    pub txid: Txid,
    /// Number of the page. Page `n` holds the slots from `n * utxo_batch_size` on.
    pub number: u32,
    /// `version` of the transaction
    pub version: u32,
    /// `locktime` of the transaction
    pub lock_time: u32,
    /// `fee`, satoshis; 0 for a coinbase or a partial transaction
    pub fee: u64,
    /// `sizeInBytes` of the standard serialisation; 0 for a partial transaction
    pub size_in_bytes: u64,
    /// `extendedSize`; 0 for a partial transaction
    pub extended_size: u64,
    /// `utxos`: `None` in a stub and in a tombstone
    pub utxos: Option<Vec<Slot>>,
    /// `amountSizes`: number of bytes that each output's amount takes in the hash of its slot ([`amount_size`]), 0 for
    /// a gap. Together with the hash the size commits to script and amount. Present on pages without inline outputs,
    /// unless the reference system wrote the record.
    ///
    /// [`amount_size`]: crate::tx::amount_size
    pub amount_sizes: Bytes,
    /// `spentUtxos`: spent slots of this page
    pub spent_utxos: u32,
    /// `recordUtxos`: slots of this page that are not nil, plus one for each reassignment
    pub record_utxos: u32,
    /// `isCoinbase`: the transaction is a coinbase
    pub is_coinbase: bool,
    /// `locked`: outputs not spendable yet
    pub locked: bool,
    /// `conflicting`: contested, and not accepted
    pub conflicting: bool,
    /// `frozen`: the whole transaction
    pub frozen: bool,
    /// `creatingAt`, ms since the epoch. Present exactly while `creating` is set.
    pub creating_at: Option<u64>,
    /// `spendingHeight` of a coinbase
    pub spending_height: Option<u32>,
    /// `contested`: slots with a history
    pub contested: BTreeSet<u32>,
    /// `prunedSpenders`: spent slots whose spender was pruned
    pub pruned_spenders: BTreeSet<u32>,
    /// `utxoSpendableIn`: slot → height from which it is spendable
    pub utxo_spendable_in: BTreeMap<u32, u32>,
    /// `reassignments` of slots of this page
    pub reassignments: Vec<Reassignment>,
    /// `chainPos`: stamp of the sequencer's last change
    pub chain_pos: Option<Stamp>,
    /// `deleteAtHeight`: a hint for the pruner
    pub delete_at_height: Option<u32>,
    /// `pruned`: this is a tombstone; the height at which it was pruned
    pub pruned: Option<u32>,
    /// `slotHeight` of a transaction of several pages: height whose rule the slots of this page follow
    pub slot_height: Option<u32>,
    /// Bins that only the master has.
    pub master: Option<Box<Master>>,
}

/// Bins that only page 0 has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Master {
    /// `totalUtxos`: all slots of all pages, nil included
    pub total_utxos: u32,
    /// `totalExtraRecs`: pages besides this one
    pub total_extra_recs: u32,
    /// `blockIDs`, `blockHeights`, `subtreeIdxs`: blocks that list the transaction
    pub mined: Vec<MinedIn>,
    /// `createdAt`, ms since the epoch
    pub created_at: u64,
    /// `createdBy` of a transaction of several pages: event that created this record
    pub created_by: Option<CreatingEvent>,
    /// `unminedSince`: height; `None` once mined on the longest chain
    pub unmined_since: Option<u32>,
    /// `inputs` and `outputs`, or `external`. `None` in a stub and in a tombstone.
    pub body: Option<Body>,
    /// `conflictingCs`: children that are conflicting, at most 10,000
    pub conflicting_children: BTreeSet<Txid>,
    /// `spentPages`: pages *other than this one* whose slots are all spent
    pub spent_pages: BTreeSet<u32>,
    /// `verdict` and `reason`: present once the transaction was contested
    pub verdict: Option<Verdict>,
    /// `preserveUntil`: height until which the transaction is not pruned
    pub preserve_until: Option<u32>,
}

/// Place in the log of the event that created a transaction of several pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreatingEvent {
    /// Offset in the topic of validated transactions, in the partition of the txid.
    Validated(u64),
    /// Offset in the chain log, of a block.
    Chain(u64),
}

impl CreatingEvent {
    /// Returns the place as one number: twice the offset, plus one for the chain log.
    pub fn number(self) -> u64 {
        match self {
            CreatingEvent::Validated(offset) => offset << 1,
            CreatingEvent::Chain(offset) => offset << 1 | 1,
        }
    }

    /// Returns the place of a number that [`number`](Self::number) has returned.
    pub fn from_number(number: u64) -> Self {
        match number & 1 {
            0 => CreatingEvent::Validated(number >> 1),
            _ => CreatingEvent::Chain(number >> 1),
        }
    }
}

/// State of a transaction, as its master shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum TxState {
    /// The page has `utxos`, and neither `creating`, `conflicting` nor `pruned`. A locked or frozen transaction is
    /// live.
    Live,
    /// The transaction is half created and not contested.
    Creating,
    /// A contested master without a body.
    Stub(Verdict),
    /// The transaction is contested, has a body, and is not accepted (yet).
    Conflicting(Verdict),
    /// A tombstone; holds the height of the pruning.
    Pruned(u32),
}

impl Page {
    /// Returns a page without slots and flags that is not a master.
    pub fn empty(txid: Txid) -> Self {
        Page {
            txid,
            number: 0,
            version: 0,
            lock_time: 0,
            fee: 0,
            size_in_bytes: 0,
            extended_size: 0,
            utxos: None,
            amount_sizes: Bytes::new(),
            spent_utxos: 0,
            record_utxos: 0,
            is_coinbase: false,
            locked: false,
            conflicting: false,
            frozen: false,
            creating_at: None,
            spending_height: None,
            contested: BTreeSet::new(),
            pruned_spenders: BTreeSet::new(),
            utxo_spendable_in: BTreeMap::new(),
            reassignments: Vec::new(),
            chain_pos: None,
            delete_at_height: None,
            pruned: None,
            slot_height: None,
            master: None,
        }
    }

    /// Returns a new stub: a master without body and slots.
    pub fn stub(txid: Txid, verdict: Verdict) -> Self {
        let master = Master { verdict: Some(verdict), ..Master::default() };
        Page { conflicting: true, master: Some(Box::new(master)), ..Page::empty(txid) }
    }

    /// Changes the page to that of a contested transaction without a decision.
    pub fn contested(mut self) -> Self {
        self.conflicting = true;
        self.creating_at = None;
        if let Some(master) = &mut self.master {
            master.verdict = Some(Verdict::Pending);
        }
        self
    }

    /// Returns the body of a master that has one.
    pub fn body(&self) -> Option<&Body> {
        self.master.as_ref().and_then(|master| master.body.as_ref())
    }

    /// Returns the verdict of a contested master.
    pub fn verdict(&self) -> Option<Verdict> {
        self.master.as_ref().and_then(|master| master.verdict)
    }

    /// Returns `unminedSince` of a master: the height of the transaction's event, or of the disconnected block.
    pub fn unmined_since(&self) -> Option<u32> {
        self.master.as_ref().and_then(|master| master.unmined_since)
    }

    /// Returns the height of a master in the chain: of its pruning, `unminedSince`, or the greatest height of the
    /// blocks that list the transaction; `None` for a page that has none of these, as a stub.
    pub fn height(&self) -> Option<u32> {
        let master = self.master.as_ref().filter(|_| self.pruned.is_none());
        let Some(master) = master else { return self.pruned };
        master.unmined_since.or_else(|| master.mined.iter().map(|block| block.height).max())
    }

    /// Returns the state by the flags of this page. The state of the master is that of the transaction.
    pub fn state(&self) -> TxState {
        if let Some(height) = self.pruned {
            return TxState::Pruned(height);
        }
        let verdict = self.verdict().unwrap_or(Verdict::Pending);
        if self.utxos.is_none() {
            TxState::Stub(verdict)
        } else if self.conflicting {
            TxState::Conflicting(verdict)
        } else if self.creating_at.is_some() {
            TxState::Creating
        } else {
            TxState::Live
        }
    }

    /// Returns whether an operator has frozen the transaction, or has frozen, delayed or reassigned an output of this
    /// page. Such a change also counts after a block revives a conflicting transaction, so that the page is not pruned.
    pub fn is_barred(&self) -> bool {
        let is_frozen = |slot: &Slot| matches!(slot, Slot::Frozen(_));
        self.frozen
            || !self.reassignments.is_empty()
            || !self.utxo_spendable_in.is_empty()
            || self.utxos.iter().flatten().any(is_frozen)
    }

    /// Returns whether the two pages cannot be of the same transaction. A txid commits to a whole transaction, but not
    /// to the claims of a partial one. Gaps and reassigned slots are not compared.
    pub fn contradicts(&self, other: &Page) -> bool {
        let (Some(ours), Some(theirs)) = (&self.utxos, &other.utxos) else { return false };
        let reassigned = |offset: usize| {
            let mut all = self.reassignments.iter().chain(&other.reassignments);
            all.any(|reassignment| reassignment.offset as usize == offset)
        };
        let differ = |(offset, (our, their)): (usize, (&Slot, &Slot))| match (our.hash(), their.hash()) {
            (Some(our), Some(their)) => our != their && !reassigned(offset),
            _ => false,
        };
        self.is_coinbase != other.is_coinbase || ours.iter().zip(theirs).enumerate().any(differ)
    }

    /// Returns whether a master with a body, or a tombstone, is that of a partial transaction. Where the body is not
    /// inline, the size decides: only a whole transaction has one.
    pub fn is_partial(&self) -> bool {
        match self.body() {
            Some(Body::Outputs(_)) => true,
            Some(Body::External(_)) => self.size_in_bytes == 0,
            Some(Body::Transaction(_)) => false,
            None => self.pruned.is_some() && self.master.is_some() && self.size_in_bytes == 0,
        }
    }

    /// Returns whether one page is of a partial transaction and the other of a whole one. The outputs agree, but only
    /// the whole one spends slots. The kinds of a coinbase do not differ, because a coinbase spends none.
    pub fn differs_in_kind(&self, other: &Page) -> bool {
        let has_kind = |page: &Page| page.body().is_some() || page.pruned.is_some() && page.master.is_some();
        !self.is_coinbase && has_kind(self) && has_kind(other) && self.is_partial() != other.is_partial()
    }

    /// Returns whether the page is the tombstone of a conflicting transaction's master. A block can still list the
    /// transaction.
    pub fn is_conflicting_tombstone(&self) -> bool {
        self.pruned.is_some() && self.conflicting && self.master.is_some()
    }

    /// Returns the number of pages that the transaction has beside its master; 0 where this page is no master.
    pub fn extra_pages(&self) -> u32 {
        self.master.as_ref().map_or(0, |bins| bins.total_extra_recs)
    }

    /// Returns whether all slots that are not nil are spent. A page of nil slots only is all spent from the start.
    pub fn is_all_spent(&self) -> bool {
        self.spent_utxos == self.record_utxos
    }
}
