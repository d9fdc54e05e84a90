//! The records themselves. Field names follow the bins of `semantics.md`; a bin that is absent is `None`, `false` or
//! empty here.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::tx::{Transaction, Txid, UtxoHash, amount_size};

/// When the sequencer last changed a record: bin `chainPos`. A record refuses an operation with an earlier stamp; with
/// an equal one the operation's own compare-and-set decides. So a zombie or a replay can do no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Offset in `utxo.chain` of the event that is being handled; above [`Stamp::OFFSET_BITS`] bits of it the *era*: how
    /// often the chain has gone back because a node of the store had forgotten.
    pub offset: u64,
    /// The part of its handling.
    pub phase: Phase,
}

impl Stamp {
    /// Bits of the chain offset: a trillion events.
    pub const OFFSET_BITS: u32 = 40;

    /// The stamp of an event that is handled in `era`. What was stamped in an earlier era is handled again, in order, so it
    /// is in nobody's way, however late its event; and whoever still works in an earlier one is refused.
    pub fn in_era(era: u32, offset: u64, phase: Phase) -> Self {
        Stamp { offset: u64::from(era) << Self::OFFSET_BITS | offset, phase }
    }

    /// The chain offset of the event, in whatever era.
    pub fn chain_offset(&self) -> u64 {
        self.offset & ((1 << Self::OFFSET_BITS) - 1)
    }

    /// Whether both come from one phase of handling one event, in whatever era.
    pub fn is_of_same_event(&self, other: &Stamp) -> bool {
        (self.chain_offset(), self.phase) == (other.chain_offset(), other.phase)
    }
}

/// Parts of the sequencer's handling of one chain event, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Only what is harmless, before the decision is written. And whatever a reorg does while blocks leave: it is before all
    /// that is done while others come.
    Evaluate = 0,
    /// What the decision says.
    Apply = 1,
    /// Pruning, after the event.
    Prune = 2,
}

/// Who spends a slot: 36 bytes, transaction id and little-endian input index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpendingData {
    /// The spending transaction.
    pub txid: Txid,
    /// The index of its input.
    pub input: u32,
}

/// One output of a transaction as the store sees it; its place in the list is its `vout` within the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// An output that gets no slot (data), or a gap of a partial transaction.
    Nil,
    /// 32 bytes.
    Unspent(UtxoHash),
    /// 68 bytes.
    Spent(UtxoHash, SpendingData),
    /// 68 bytes, the last 36 all `0xFF`.
    Frozen(UtxoHash),
}

impl Slot {
    /// The hash that the slot commits to.
    pub fn hash(&self) -> Option<UtxoHash> {
        match self {
            Slot::Nil => None,
            Slot::Unspent(hash) | Slot::Spent(hash, _) | Slot::Frozen(hash) => Some(*hash),
        }
    }

    /// Who spends it.
    pub fn spender(&self) -> Option<SpendingData> {
        match self {
            Slot::Spent(_, spender) => Some(*spender),
            _ => None,
        }
    }
}

/// One (block id, height, subtree index) of `blockIDs`, `blockHeights`, `subtreeIdxs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MinedIn {
    /// Local sequence number of the block; 0 is the genesis or a seeded block.
    pub block_id: u32,
    /// Its height.
    pub height: u32,
    /// The subtree of the block that lists the transaction.
    pub subtree: u32,
}

/// What became of a contested transaction: bins `verdict` and `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// 0: the sequencer has yet to say.
    Pending,
    /// 1: live.
    Accepted,
    /// 2: lost, and why.
    Conflicting(Reason),
}

/// Why a transaction is conflicting, or why it was contested. Encoded in the `reason` bin, in decisions and outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Reason {
    /// An input is spent by another transaction.
    DoubleSpend {
        /// Index of the input.
        input: u32,
        /// The transaction that spends it.
        winner: Txid,
    },
    /// A parent is conflicting by verdict.
    ConflictingParent {
        /// That parent.
        parent: Txid,
    },
    /// A parent was proven never to have been produced before it.
    MissingParent {
        /// That parent.
        parent: Txid,
    },
    /// A parent was pruned before its slot was taken.
    PrunedParent {
        /// That parent.
        parent: Txid,
    },
    /// A coinbase parent was immature at the transaction's height.
    Immature {
        /// Index of the input.
        input: u32,
    },
    /// The slot's hash, script or amount differs from what the input says.
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
    /// A parent stayed locked longer than the grace.
    Locked {
        /// That parent.
        parent: Txid,
    },
    /// A slot has a history, so the sequencer must decide. Only ever why a transaction was contested, never a verdict.
    History {
        /// Index of the input.
        input: u32,
    },
    /// The transaction's own record was found contested. Only ever why it was contested, never a verdict.
    Found,
    /// An operator said so.
    Command,
    /// A coinbase whose block left the longest chain.
    Disconnected,
    /// The first event of the transaction was a partial one, so that this one may hold no slots. Only ever why it was
    /// contested, never a verdict.
    Seeded,
}

impl Reason {
    /// Whether nothing reconsiders the transaction by itself: an operator made it conflicting.
    pub fn is_for_good(self) -> bool {
        self == Reason::Command
    }

    /// Whether a later event of the transaction itself opens the verdict again: its parents may have come meanwhile, or
    /// its extended inputs may have been wrong the first time.
    pub fn reopened_by_its_event(self) -> bool {
        matches!(self, Reason::MissingParent { .. } | Reason::Mismatch { .. })
    }
}

/// The body of a transaction: bins `inputs` and `outputs`, or `external`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The transaction in extended format.
    Transaction(Bytes),
    /// A partial transaction: its outputs by index, gaps `None`.
    Outputs(Vec<Option<StoredOutput>>),
    /// In the blob store.
    External(Blob),
}

/// Which blob of its transaction a body is. An id commits to a whole transaction, but not to the previous outputs that extended
/// format claims, and to nothing that a partial one says: so there can be several, none of which ever changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blob {
    /// The one that was stored first.
    First,
    /// One that says otherwise: its BLAKE3.
    Other([u8; 32]),
}

impl Body {
    /// How large it is with its master, bytes: of a whole transaction as it is, of a partial one its outputs.
    pub fn size(&self) -> u64 {
        let size = match self {
            Body::Transaction(bytes) => bytes.len(),
            Body::Outputs(outputs) => outputs.iter().flatten().map(|output| 16 + output.script.len()).sum(),
            Body::External(_) => 0,
        };
        size as u64
    }

    /// What `amountSizes` of a master with so many slots would be: of the first outputs. Empty where the body does not tell.
    pub fn amount_sizes(&self, slots: usize) -> Bytes {
        match self {
            Body::Transaction(bytes) => Transaction::parse(bytes).map_or(Bytes::new(), |transaction| {
                transaction.outputs().take(slots).map(|output| amount_size(output.satoshis)).collect()
            }),
            Body::Outputs(outputs) => outputs.iter().take(slots).map(StoredOutput::amount_size_of).collect(),
            Body::External(_) => Bytes::new(),
        }
    }
}

/// An output of a partial transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOutput {
    /// Its amount.
    pub satoshis: u64,
    /// Its locking script.
    pub script: Bytes,
}

impl StoredOutput {
    /// The same, its script somewhere else.
    pub(crate) fn with_script(&self, moved: impl FnOnce(&Bytes) -> Bytes) -> Self {
        StoredOutput { satoshis: self.satoshis, script: moved(&self.script) }
    }

    /// 0 in a gap.
    pub(crate) fn amount_size_of(output: &Option<StoredOutput>) -> u8 {
        output.as_ref().map_or(0, |output| amount_size(output.satoshis))
    }
}

/// An audit entry of a reassignment, with what is needed to check the new owner's spend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reassignment {
    /// Slot within the page.
    pub offset: u32,
    /// Hash before.
    pub utxo_hash: UtxoHash,
    /// Hash after.
    pub new_utxo_hash: UtxoHash,
    /// Height at which it was reassigned.
    pub block_height: u32,
    /// The new owner's output: replaces the stored one where a spend is checked.
    pub output: StoredOutput,
}

/// A page of a transaction. Page 0 (the master) has `master`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// `txID`
    pub txid: Txid,
    /// Which page this is: page `n` holds the slots from `n * utxo_batch_size` on.
    pub number: u32,
    /// `version`
    pub version: u32,
    /// `locktime`
    pub lock_time: u32,
    /// `fee`, satoshis; 0 for a coinbase or partial transaction
    pub fee: u64,
    /// `sizeInBytes` of the standard serialisation; 0 for a partial transaction
    pub size_in_bytes: u64,
    /// `extendedSize`; 0 for a partial transaction
    pub extended_size: u64,
    /// `utxos`: `None` in a stub and in a tombstone
    pub utxos: Option<Vec<Slot>>,
    /// `amountSizes`: how many bytes each output's amount takes in the hash of its slot ([`amount_size`]), 0 in a gap. There, unless
    /// the reference system wrote the record, where the outputs are not: with the hash it commits to script and amount each.
    ///
    /// [`amount_size`]: crate::tx::amount_size
    pub amount_sizes: Bytes,
    /// `spentUtxos`: spent slots of this page
    pub spent_utxos: u32,
    /// `recordUtxos`: slots of this page that are not nil, plus one for each reassignment
    pub record_utxos: u32,
    /// `isCoinbase`
    pub is_coinbase: bool,
    /// `locked`: outputs not spendable yet
    pub locked: bool,
    /// `conflicting`
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
    /// `reassignments`
    pub reassignments: Vec<Reassignment>,
    /// `chainPos`
    pub chain_pos: Option<Stamp>,
    /// `deleteAtHeight`: a hint for the pruner
    pub delete_at_height: Option<u32>,
    /// `pruned`: this is a tombstone; the height at which it was pruned
    pub pruned: Option<u32>,
    /// The bins that only the master has.
    pub master: Option<Box<Master>>,
}

/// The bins that only page 0 has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Master {
    /// `totalUtxos`: all slots of all pages, nil included
    pub total_utxos: u32,
    /// `totalExtraRecs`: pages besides this one
    pub total_extra_recs: u32,
    /// `blockIDs`, `blockHeights`, `subtreeIdxs`
    pub mined: Vec<MinedIn>,
    /// `createdAt`, ms since the epoch
    pub created_at: u64,
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
    /// `preserveUntil`
    pub preserve_until: Option<u32>,
}

/// How a transaction stands, read off its master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxState {
    /// Has `utxos`, and neither `creating`, `conflicting` nor `pruned`. Locked and frozen ones are live.
    Live,
    /// Half created, not contested.
    Creating,
    /// A contested master without a body.
    Stub(Verdict),
    /// Contested, with a body, and not (yet) accepted.
    Conflicting(Verdict),
    /// A tombstone.
    Pruned(u32),
}

impl Page {
    /// A page without anything: no slots, no flags, not a master.
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
            master: None,
        }
    }

    /// A master without body or slots: what a stub starts as.
    pub fn stub(txid: Txid, verdict: Verdict) -> Self {
        let master = Master { verdict: Some(verdict), ..Master::default() };
        Page { conflicting: true, master: Some(Box::new(master)), ..Page::empty(txid) }
    }

    /// The same page as that of a transaction that waits for its verdict.
    pub fn contested(mut self) -> Self {
        self.conflicting = true;
        self.creating_at = None;
        if let Some(master) = &mut self.master {
            master.verdict = Some(Verdict::Pending);
        }
        self
    }

    /// The body of a master that has one.
    pub fn body(&self) -> Option<&Body> {
        self.master.as_ref().and_then(|master| master.body.as_ref())
    }

    /// The verdict of a contested master.
    pub fn verdict(&self) -> Option<Verdict> {
        self.master.as_ref().and_then(|master| master.verdict)
    }

    /// The master's `unminedSince`: the height of the transaction's event, or of the block that left the longest chain.
    pub fn unmined_since(&self) -> Option<u32> {
        self.master.as_ref().and_then(|master| master.unmined_since)
    }

    /// How the transaction stands, by this page's own flags (the master's are the transaction's).
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

    /// Whether an operator has barred an output of this page, or given it away. That holds for good, also where a block brings back what
    /// was conflicting: so such a page is kept.
    pub fn is_barred(&self) -> bool {
        let is_frozen = |slot: &Slot| matches!(slot, Slot::Frozen(_));
        !self.reassignments.is_empty()
            || !self.utxo_spendable_in.is_empty()
            || self.utxos.iter().flatten().any(is_frozen)
    }

    /// Whether the two pages cannot be of the same transaction: a transaction id commits to a whole transaction, but to
    /// nothing that a partial one claims. Gaps, and slots that were reassigned, claim nothing.
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

    /// Whether a master with a body, or a tombstone, is that of a partial transaction, wherever the body is: a whole one has a size.
    pub fn is_partial(&self) -> bool {
        match self.body() {
            Some(Body::Outputs(_)) => true,
            Some(Body::External(_)) => self.size_in_bytes == 0,
            Some(Body::Transaction(_)) => false,
            None => self.pruned.is_some() && self.master.is_some() && self.size_in_bytes == 0,
        }
    }

    /// Whether one of them is a partial transaction and the other a whole one: they agree on their outputs, but only the
    /// whole one takes slots. A coinbase takes none in either form.
    pub fn is_other_kind_than(&self, other: &Page) -> bool {
        let tells = |page: &Page| page.body().is_some() || page.pruned.is_some() && page.master.is_some();
        !self.is_coinbase && tells(self) && tells(other) && self.is_partial() != other.is_partial()
    }

    /// Whether it is what is left of a conflicting transaction's master: a block may still list that.
    pub fn is_fallen_remains(&self) -> bool {
        self.pruned.is_some() && self.conflicting && self.master.is_some()
    }

    /// All slots that are not nil are spent. A page of only nil slots is so from the start.
    pub fn all_spent(&self) -> bool {
        self.spent_utxos == self.record_utxos
    }
}

/// The lock record of a multi-page creation (`000_eaac0d3352205430.txt`, section 3.1). It saves work; nothing depends
/// on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRecord {
    /// `created_at`, ms since the epoch
    pub created_at: u64,
    /// When it may be taken over, ms since the epoch (the record's TTL)
    pub expires_at: u64,
    /// `process_id`
    pub process_id: u32,
    /// `hostname`
    pub hostname: String,
    /// `expected_recs`
    pub expected_recs: u32,
    /// Fences the release: only who acquired it releases it.
    pub owner: u64,
}

/// What the sequencer knows of a block: which triples are on the longest chain follows from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRecord {
    /// Local sequence number; also the key.
    pub block_id: u32,
    /// Block hash, internal order.
    pub hash: [u8; 32],
    /// Hash of the block before it.
    pub previous: [u8; 32],
    /// Height.
    pub height: u32,
    /// Header time, seconds since the epoch.
    pub time: u32,
    /// Connected to the longest chain.
    pub longest_chain: bool,
    /// Transactions of the block already set mined, in its order.
    pub progress: u64,
    /// See [`Stamp`].
    pub chain_pos: Option<Stamp>,
}

/// Who this store is; checked at every start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetaRecord {
    /// Random, from the first start.
    pub store_id: [u8; 16],
    /// Version of the record layout.
    pub layout_version: u32,
    /// `main`, `test` or `regtest`
    pub network: String,
    /// Slots a page; fixed for the life of a set.
    pub utxo_batch_size: u32,
    /// `block_height_retention`
    pub retention: u32,
    /// Everything that was due at this height was pruned; what falls later on a chain that a reorg made shorter goes with the next block.
    pub prune_horizon: u32,
    /// Identifies the chain topic: a recreated topic would start again at offset 0. `None` until its first event.
    pub chain_id: Option<[u8; 32]>,
    /// The rebuild of this set that is under way. `None`: none is.
    pub rebuilding: Option<Box<Rebuilding>>,
    /// Which attempt the last rebuild of this set was, or is: a random number. One that begins again where another was killed puts its own
    /// here, and the other, should it live, ends. `None`: it was never rebuilt.
    pub rebuilder: Option<u64>,
    /// Partitions of the topic of validated transactions: with another number the events of one transaction would lie in two.
    /// `None` until the first start.
    pub partitions: Option<u32>,
    /// It has a blob store, whose mark names `store_id`; for good.
    pub has_blobs: bool,
    /// Its sentinels are there, and no node can have forgotten them: one that is missing was lost.
    pub has_sentinels: bool,
    /// At least so much of the log has been consumed into this set; the group commits no more than that.
    pub consumed: Consumed,
    /// Nobody reads from below it into this set again: what was pruned since is recognised for a time only.
    pub replay_floor: Consumed,
    /// No block up to this height leaves the longest chain again: what it lists may have been pruned.
    pub reorg_floor: u32,
    /// Topics that it is made from, by what they are for (their default names). One that is not named has not been seen
    /// yet.
    pub topics: BTreeMap<String, BoundTopic>,
}

/// Identity of a topic that a store is made from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BoundTopic {
    /// Id that the cluster gave to the topic; `None`: the cluster gave none.
    pub id: Option<[u8; 16]>,
    /// Beginning of the id of the record at offset 0, by partition. Kept only for clusters that give no ids.
    pub first: BTreeMap<u32, [u8; 8]>,
}

/// A rebuild that has begun and not ended. Whoever goes on with it makes the same of the same log, however far the live group has come since.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rebuilding {
    /// Where it ends: chain offset, next to read.
    pub frontier: u64,
    /// What it is made from.
    pub log: LogEnds,
    /// Incarnation of the store's nodes when it began; empty for a store that forgets nothing.
    pub nodes: String,
    /// What was read up to here is in the set for good.
    pub reached: Consumed,
    /// The chain's state there, as a commit carries it; empty at its beginning.
    pub chain_state: String,
}

/// How far a group and its log had come at a moment; next to read, or to be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogEnds {
    /// What the group had committed.
    pub committed: Consumed,
    /// Where the topics ended that it reads.
    pub ends: Consumed,
    /// Where the decisions ended.
    pub decisions: u64,
}

impl LogEnds {
    /// Whether the topics go at least as far as those of `earlier` went.
    pub fn reaches(&self, earlier: &LogEnds) -> bool {
        let reaches = |(partition, end): (&u32, &u64)| self.ends.validated.get(partition).is_some_and(|now| now >= end);
        self.decisions >= earlier.decisions
            && self.ends.chain >= earlier.ends.chain
            && earlier.ends.validated.iter().all(reaches)
    }
}

/// How much of the log has been consumed: next to read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Consumed {
    /// Of the chain.
    pub chain: u64,
    /// Of the validated transactions, by partition; those without an entry have not been begun.
    pub validated: BTreeMap<u32, u64>,
}

impl Consumed {
    /// Takes over whatever `other` is further in.
    pub fn raise(&mut self, other: &Consumed) {
        self.chain = self.chain.max(other.chain);
        for (partition, offset) in &other.validated {
            let mine = self.validated.entry(*partition).or_default();
            *mine = (*mine).max(*offset);
        }
    }
}
