//! Status of every transaction at one point of the chain, and the reasons against a transaction there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use utxo_store::{
    event::EventPosition,
    record::{Body, MinedIn, Reason, Reassignment, Slot, SpendingData, StoredOutput, Verdict},
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid, utxo_hash},
};

use super::{
    Expected, Rules,
    expected::{LogicalSlot, LogicalTx},
    facts::{Coin, EventVersion, Facts, Origin, Tx},
};

/// Status of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxStatus {
    /// Without any decision: live once its parents are.
    Uncontested,
    /// Live for certain: a decision or a block required it.
    Live,
    /// Contested without a verdict.
    Pending,
    /// Conflicting by verdict, with the reason.
    Conflicting(Reason),
    /// Pruned at this height.
    Pruned(u32),
}

/// State of a transaction so far.
#[derive(Debug, Clone, PartialEq)]
pub struct TxEntry {
    pub status: TxStatus,
    /// Whether the last verdict accepted the transaction.
    pub accepted: bool,
    /// Lock set by the last command; without one, the event decides.
    pub locked: Option<bool>,
    /// Flag `frozen` as the last command set it.
    pub frozen: Option<bool>,
    /// Blocks that list the transaction, by id.
    pub mined: BTreeMap<u32, MinedIn>,
    /// Unmined height set by blocks; `None` if the event decides.
    pub unmined_since: Option<Option<u32>>,
    pub preserve_until: Option<u32>,
    /// Position in the contest of the last verdict; before a verdict, in the first contest.
    pub contest: Option<EventPosition>,
    /// Corrected event, if a block proved that the claims of the event are wrong.
    pub proven: Option<EventVersion>,
    /// Block height at which it became conflicting.
    pub conflicting_height: u32,
    /// Chain offset of the event that made the transaction conflicting.
    pub conflicting_offset: u64,
}

impl TxEntry {
    pub fn new(status: TxStatus) -> Self {
        TxEntry {
            status,
            accepted: false,
            locked: None,
            frozen: None,
            mined: BTreeMap::new(),
            unmined_since: None,
            preserve_until: None,
            contest: None,
            proven: None,
            conflicting_height: 0,
            conflicting_offset: u64::MAX,
        }
    }
}

/// Restrictions on outputs by commands and pruning.
#[derive(Debug, Clone, Default)]
pub struct OutputRestrictions {
    pub frozen: BTreeSet<Outpoint>,
    pub spendable_from: BTreeMap<Outpoint, u32>,
    /// Reassignments of each output, oldest first.
    pub reassigned: BTreeMap<Outpoint, Vec<Reassignment>>,
    /// Slots whose spender was pruned: spent for good.
    pub spender_pruned: BTreeMap<Outpoint, SpendingData>,
}

/// State of all transactions at one point of the chain.
#[derive(Debug, Clone)]
pub struct History {
    pub rules: Rules,
    pub facts: Arc<Facts>,
    pub tx_entries: BTreeMap<Txid, TxEntry>,
    pub restrictions: OutputRestrictions,
    /// Known blocks; true for those on the longest chain.
    pub blocks: BTreeMap<u32, bool>,
    /// The last block of the longest chain.
    pub tip: Option<Tip>,
    /// Sequence of the last handled block or reorg.
    pub sequence: u64,
    /// Greatest height that the longest chain has had.
    pub highest: u32,
    /// Transactions that were due before, and may have been pruned since.
    pub may_be_pruned: BTreeSet<Txid>,
}

/// The last block of the longest chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tip {
    pub hash: [u8; 32],
    pub height: u32,
}

impl History {
    pub fn height(&self) -> u32 {
        self.tip.map_or(0, |tip| tip.height)
    }

    /// Returns the height of a decision on the transaction: before the first block its record gives the height of the
    /// chain.
    pub fn decision_height(&self, txid: &Txid) -> u32 {
        let seeded_at = self.tx(txid).and_then(|tx| tx.seeded_at());
        let own = self.unmined_since(txid).or(seeded_at).unwrap_or(0);
        self.tip.map_or(own, |tip| tip.height)
    }

    pub fn tx(&self, txid: &Txid) -> Option<&Tx> {
        self.facts.txs.get(txid)
    }

    pub fn inputs(&self, txid: &Txid) -> Vec<Outpoint> {
        self.tx(txid).map(|tx| tx.inputs.clone()).unwrap_or_default()
    }

    pub fn status(&self, txid: &Txid) -> Option<TxStatus> {
        self.tx_entries.get(txid).map(|tx_entry| tx_entry.status)
    }

    /// Whether the transaction is live here, as far as the logs show: see [`TxStatus::Uncontested`].
    pub fn is_live(&self, txid: &Txid) -> bool {
        self.is_live_cached(txid, &mut BTreeMap::new())
    }

    fn is_live_cached(&self, txid: &Txid, known: &mut BTreeMap<Txid, bool>) -> bool {
        if let Some(known) = known.get(txid) {
            return *known;
        }
        let live = match self.status(txid) {
            Some(TxStatus::Live) => true,
            Some(TxStatus::Uncontested) => self.tx(txid).is_some_and(|tx| {
                tx.parents().iter().all(|parent| self.is_pruned(parent) || self.is_live_cached(parent, known))
            }),
            _ => false,
        };
        known.insert(*txid, live);
        live
    }

    /// Whether the transaction is partial: it spends nothing, so no reason can bar it.
    pub fn is_partial(&self, txid: &Txid) -> bool {
        self.tx(txid).is_some_and(|tx| tx.seeded_at().is_some())
    }

    pub fn is_pruned(&self, txid: &Txid) -> bool {
        matches!(self.status(txid), Some(TxStatus::Pruned(_)))
    }

    /// Whether the transaction may be pruned: the logs do not say when a due transaction is.
    pub fn may_be_pruned(&self, txid: &Txid) -> bool {
        // After lost writes neither live nor due transactions are certain.
        let unknown = self.rules.forgetful && self.rules.pruned_to.is_some();
        unknown || self.may_be_pruned.contains(txid) || self.is_pruned(txid)
    }

    /// Returns the height from which the outputs of a coinbase are spendable: its last block on the longest chain
    /// decides.
    pub fn spending_height(&self, txid: &Txid) -> Option<u32> {
        let tx = self.tx(txid)?;
        let first = tx.spending_height()?;
        let Some(height) = tx.first_block_height() else { return Some(first) };
        let mined = self.tx_entries.get(txid).into_iter().flat_map(|tx_entry| tx_entry.mined.values());
        let last = mined.filter(|mined| self.is_on_longest_chain(mined.block_id)).map(|mined| mined.height).max();
        Some(last.map_or(first, |last| first - height + last))
    }

    /// Whether a block of the longest chain lists the transaction.
    pub fn is_mined(&self, txid: &Txid) -> bool {
        self.tx_entries
            .get(txid)
            .is_some_and(|tx_entry| tx_entry.mined.keys().any(|block| self.is_on_longest_chain(*block)))
    }

    pub fn is_on_longest_chain(&self, block: u32) -> bool {
        self.blocks.get(&block).copied().unwrap_or(true)
    }

    /// Requires the transaction to be live here, and with it all its ancestors. Returns false if it cannot be.
    pub fn require_live(&mut self, txid: &Txid) -> bool {
        let live = self.is_live(txid);
        if live {
            self.confirm_live(txid);
        }
        live
    }

    /// Confirms the transaction and all its ancestors as live.
    pub fn confirm_live(&mut self, txid: &Txid) {
        let mut open = vec![*txid];
        while let Some(txid) = open.pop() {
            if self.status(&txid) == Some(TxStatus::Uncontested) {
                self.set_status(&txid, TxStatus::Live);
                open.extend(self.inputs(&txid).iter().map(|outpoint| outpoint.txid));
            }
        }
    }

    pub fn set_status(&mut self, txid: &Txid, status: TxStatus) {
        self.tx_entry(txid).status = status;
    }

    pub fn tx_entry(&mut self, txid: &Txid) -> &mut TxEntry {
        self.tx_entries.entry(*txid).or_insert_with(|| TxEntry::new(TxStatus::Pending))
    }

    /// Returns the live spenders of an output except `but`.
    pub fn live_spenders(&self, outpoint: &Outpoint, but: &Txid) -> Vec<SpendingData> {
        let spenders = self.facts.spenders.get(outpoint).into_iter().flatten();
        spenders.filter(|spender| spender.txid != *but && self.is_live(&spender.txid)).copied().collect()
    }

    /// Returns the event of a txid that counts. Events differ only in data to which the txid does not commit: claims
    /// about spent outputs, height, lock.
    ///
    /// The event named by the contest of the verdict counts; without one, the first event. A transaction live from the
    /// start agrees with the spent outputs by its first event, and one that became conflicting before its own contest
    /// was stored by it. If the claims are wrong and a block lists the transaction all the same, the outputs that the
    /// block proves count.
    pub fn version(&self, txid: &Txid) -> Option<&EventVersion> {
        let versions = self.tx(txid)?.versions();
        let tx_entry = self.tx_entries.get(txid);
        if let Some(proven) = tx_entry.and_then(|tx_entry| tx_entry.proven.as_ref()) {
            return Some(proven);
        }
        match tx_entry.and_then(|tx_entry| tx_entry.contest.as_ref()) {
            Some(position) => versions.iter().find(|version| is_at(version, position)).or(versions.first()),
            None => versions.first(),
        }
    }

    /// Corrects wrong claims of a transaction that a block accepts: the txid commits to the outpoints, so the real
    /// outputs count.
    pub fn correct_claims(&mut self, txid: &Txid) {
        let Some(version) = self.version(txid).filter(|version| !self.mismatches(txid, version).is_empty()) else {
            return;
        };
        let pairs = self.inputs(txid).into_iter().zip(&version.claims);
        let claims: Vec<Coin> =
            pairs.map(|(outpoint, claim)| self.current_output(&outpoint).unwrap_or_else(|| claim.clone())).collect();
        let proven = EventVersion { body: claiming(&version.body, &claims), claims, ..version.clone() };
        self.tx_entry(txid).proven = Some(proven);
    }

    fn mismatches(&self, txid: &Txid, version: &EventVersion) -> Vec<u32> {
        let claims = self.inputs(txid).into_iter().zip(version.claims.iter()).zip(0..);
        let differs = |outpoint: &Outpoint, claim: &Coin| {
            self.current_output(outpoint).is_some_and(|current_output| current_output != *claim)
        };
        claims.filter(|((outpoint, claim), _)| differs(outpoint, claim)).map(|(_, input)| input).collect()
    }

    /// Returns the present content of an output, after reassignments.
    pub fn current_output(&self, outpoint: &Outpoint) -> Option<Coin> {
        let stored = self.facts.output(outpoint, &self.rules)?;
        let last = self.restrictions.reassigned.get(outpoint).and_then(|all| all.last());
        Some(last.map_or(stored.clone(), |entry| Coin {
            satoshis: entry.output.satoshis,
            script: entry.output.script.clone(),
        }))
    }

    pub fn is_locked(&self, txid: &Txid) -> bool {
        let locked = self.tx_entries.get(txid).and_then(|tx_entry| tx_entry.locked);
        locked.unwrap_or_else(|| self.stored_version(txid).is_some_and(|version| version.locked))
    }

    /// Whether the whole transaction is frozen.
    pub fn is_transaction_frozen(&self, txid: &Txid) -> bool {
        self.tx_entries.get(txid).is_some_and(|tx_entry| tx_entry.frozen == Some(true))
    }

    /// Whether the output or its whole transaction is frozen.
    pub fn is_frozen(&self, outpoint: &Outpoint) -> bool {
        self.restrictions.frozen.contains(outpoint) || self.is_transaction_frozen(&outpoint.txid)
    }

    /// Returns the event that stored the transaction: its height and lock count, whichever event is decided on later.
    pub fn stored_version(&self, txid: &Txid) -> Option<&EventVersion> {
        self.tx(txid)?.versions().first()
    }

    pub fn unmined_since(&self, txid: &Txid) -> Option<u32> {
        let unmined_since = self.tx_entries.get(txid).and_then(|tx_entry| tx_entry.unmined_since);
        unmined_since.unwrap_or_else(|| match self.tx(txid)?.origin {
            Origin::Validated(_) => self.stored_version(txid).map(|version| version.height),
            Origin::Seeded { .. } | Origin::Block { .. } => None,
        })
    }

    /// Returns every reason that bars the transaction here, input by input; `height` is that of the first block that
    /// can list it.
    pub fn reasons_against(&self, txid: &Txid, height: u32) -> Vec<Reason> {
        let Some(version) = self.version(txid) else { return Vec::new() };
        let mismatches = self.mismatches(txid, version);
        let mut reasons = Vec::new();
        for (outpoint, input) in self.inputs(txid).into_iter().zip(0..) {
            let parent = outpoint.txid;
            if self.tx(&parent).is_none() {
                reasons.push(Reason::MissingParent { parent });
                continue;
            }
            if self.is_pruned(&parent) {
                reasons.push(Reason::PrunedParent { parent });
                continue;
            }
            if !self.is_live(&parent) {
                reasons.push(Reason::ConflictingParent { parent });
            }
            if self.is_locked(&parent) {
                reasons.push(Reason::Locked { parent });
            }
            if self.spending_height(&parent).is_some_and(|from| from > height) {
                reasons.push(Reason::Immature { input });
            }
            if self.current_output(&outpoint).is_none() {
                reasons.push(Reason::NoSuchOutput { input });
            }
            if mismatches.contains(&input) {
                reasons.push(Reason::Mismatch { input });
            }
            if self.is_frozen(&outpoint) {
                reasons.push(Reason::Frozen { input });
            }
            if self.restrictions.spendable_from.get(&outpoint).is_some_and(|from| *from > height) {
                reasons.push(Reason::NotYetSpendable { input });
            }
            let holders = self.live_spenders(&outpoint, txid).into_iter();
            reasons.extend(holders.map(|holder| Reason::DoubleSpend { input, winner: holder.txid }));
        }
        reasons
    }

    /// Returns the expected state of a store.
    pub fn expected(&self) -> Expected {
        let kept = self.facts.txs.keys().filter(|txid| self.tx_entries.contains_key(txid) && !self.is_pruned(txid));
        Expected {
            txs: kept.filter_map(|txid| Some((*txid, self.logical(txid)?))).collect(),
            side_blocks: self.blocks.iter().filter(|(_, longest)| !**longest).map(|(block, _)| *block).collect(),
        }
    }

    fn logical(&self, txid: &Txid) -> Option<LogicalTx> {
        let (tx, tx_entry) = (self.tx(txid)?, self.tx_entries.get(txid)?);
        let body = match &tx.origin {
            Origin::Validated(_) => Body::Transaction(self.version(txid)?.body.clone()),
            Origin::Block { body, .. } => Body::Transaction(body.clone()),
            Origin::Seeded { .. } => {
                let stored = |coin: &Coin| StoredOutput { satoshis: coin.satoshis, script: coin.script.clone() };
                Body::Outputs(tx.outputs.iter().map(|coin| coin.as_ref().map(stored)).collect())
            }
        };
        let verdict = match tx_entry.status {
            TxStatus::Pending => Some(Verdict::Pending),
            TxStatus::Conflicting(reason) => Some(Verdict::Conflicting(reason)),
            _ => (tx_entry.accepted && !tx.coinbase).then_some(Verdict::Accepted),
        };
        let slots = tx.slots(&self.rules).into_iter().zip(0..);
        let seeded = tx.seeded_at().map(|height| MinedIn { block_id: 0, height, subtree: 0 });
        let mined = tx_entry.mined.values().filter(|mined| self.is_on_longest_chain(mined.block_id)).copied();
        Some(LogicalTx {
            body: Some(body),
            coinbase: tx.coinbase,
            locked: self.is_locked(txid),
            frozen: tx_entry.frozen == Some(true),
            conflicting: matches!(tx_entry.status, TxStatus::Pending | TxStatus::Conflicting(_)),
            spending_height: self.spending_height(txid),
            unmined_since: self.unmined_since(txid),
            preserve_until: tx_entry.preserve_until,
            verdict,
            mined: mined.chain(seeded).collect(),
            slots: slots.map(|(slot, vout)| self.slot(Outpoint { txid: *txid, vout }, slot)).collect(),
        })
    }

    fn slot(&self, outpoint: Outpoint, start: Slot) -> LogicalSlot {
        let reassignments = self.restrictions.reassigned.get(&outpoint).cloned().unwrap_or_default();
        let slot = start.hash().map_or(Slot::Nil, |_| {
            let current_output =
                self.current_output(&outpoint).unwrap_or_else(|| unreachable!("a slot that is not nil has an output"));
            let hash = utxo_hash(&outpoint.txid, outpoint.vout, &current_output.script, current_output.satoshis);
            let no_txid = Txid([0; 32]);
            let holder = self.restrictions.spender_pruned.get(&outpoint).copied();
            match holder.or(self.live_spenders(&outpoint, &no_txid).first().copied()) {
                Some(spender) => Slot::Spent(hash, spender),
                None if self.restrictions.frozen.contains(&outpoint) => Slot::Frozen(hash),
                None => Slot::Unspent(hash),
            }
        });
        LogicalSlot { slot, spendable_from: self.restrictions.spendable_from.get(&outpoint).copied(), reassignments }
    }
}

/// Returns the same transaction with these claims about its previous outputs.
fn claiming(body: &[u8], claims: &[Coin]) -> Bytes {
    let tx = Transaction::parse(body).unwrap();
    let start = TransactionBuilder::default().version(tx.version()).lock_time(tx.lock_time());
    let with_inputs = tx.inputs().zip(claims).fold(start, |builder, (input, claim)| {
        let previous = Output { satoshis: claim.satoshis, script: &claim.script };
        builder.input(input.outpoint, input.script, input.sequence, Some(previous))
    });
    tx.outputs().fold(with_inputs, |builder, output| builder.output(output.satoshis, output.script)).extended().into()
}

/// Whether a position names the event.
pub fn is_at(version: &EventVersion, position: &EventPosition) -> bool {
    (version.place.partition, version.place.offset) == (position.partition, position.offset)
}
