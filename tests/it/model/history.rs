//! How every transaction stands at one point of the chain, and what would bar a transaction there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use utxo_store::{
    event::Position,
    record::{Body, MinedIn, Reason, Reassignment, Slot, SpendingData, StoredOutput, Verdict},
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid, utxo_hash},
};

use super::{
    Expected, Rules,
    expected::{LogicalSlot, LogicalTx},
    facts::{Coin, Facts, Origin, Tx, Version},
};

/// How a transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was ever decided about it: live once its parents are.
    Uncontested,
    /// Live for certain: a decision or a block needed it so.
    Live,
    /// Contested, without a verdict.
    Pending,
    /// Conflicting by verdict.
    Lost(Reason),
    /// Forgotten at this height.
    Pruned(u32),
}

/// A transaction's fate so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Fate {
    pub standing: Standing,
    /// Its last verdict was that it is live.
    pub accepted: bool,
    /// What a command said last; else its event says.
    pub locked: Option<bool>,
    /// Blocks that list it, by id.
    pub mined: BTreeMap<u32, MinedIn>,
    /// `None`: as its event says.
    pub unmined_since: Option<Option<u32>>,
    pub preserve_until: Option<u32>,
    /// The contest that its verdict was given for; before there is one, its first contest.
    pub contest: Option<Position>,
    /// A block has proven what it spends, and its event claims otherwise.
    pub proven: Option<Version>,
    /// Block height at which it became conflicting.
    pub lost_at: u32,
    /// The chain offset of the event by which it became conflicting.
    pub lost_by: u64,
}

impl Fate {
    pub fn new(standing: Standing) -> Self {
        Fate {
            standing,
            accepted: false,
            locked: None,
            mined: BTreeMap::new(),
            unmined_since: None,
            preserve_until: None,
            contest: None,
            proven: None,
            lost_at: 0,
            lost_by: u64::MAX,
        }
    }
}

/// What commands did to outputs.
#[derive(Debug, Clone, Default)]
pub struct Bars {
    pub frozen: BTreeSet<Outpoint>,
    pub spendable_from: BTreeMap<Outpoint, u32>,
    /// Oldest first.
    pub reassigned: BTreeMap<Outpoint, Vec<Reassignment>>,
    /// Slots whose holder was pruned: its for good.
    pub spender_pruned: BTreeMap<Outpoint, SpendingData>,
}

/// Everything, at one point of the chain.
#[derive(Debug, Clone)]
pub struct History {
    pub rules: Rules,
    pub facts: Arc<Facts>,
    pub fates: BTreeMap<Txid, Fate>,
    pub bars: Bars,
    /// Blocks known, with whether they are on the longest chain.
    pub blocks: BTreeMap<u32, bool>,
    /// The last block of the longest chain.
    pub tip: Option<Tip>,
    /// Sequence of the last block or reorg that was handled.
    pub sequence: u64,
    /// The greatest height that the longest chain has had.
    pub highest: u32,
    /// Were due before, and so may have been pruned since.
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

    pub fn tx(&self, txid: &Txid) -> Option<&Tx> {
        self.facts.txs.get(txid)
    }

    pub fn inputs(&self, txid: &Txid) -> Vec<Outpoint> {
        self.tx(txid).map(|tx| tx.inputs.clone()).unwrap_or_default()
    }

    pub fn standing(&self, txid: &Txid) -> Option<Standing> {
        self.fates.get(txid).map(|fate| fate.standing)
    }

    /// Whether it is live here, as far as anybody can know: see [`Standing::Uncontested`].
    pub fn is_live(&self, txid: &Txid) -> bool {
        self.live(txid, &mut BTreeMap::new())
    }

    fn live(&self, txid: &Txid, known: &mut BTreeMap<Txid, bool>) -> bool {
        if let Some(known) = known.get(txid) {
            return *known;
        }
        let live = match self.standing(txid) {
            Some(Standing::Live) => true,
            Some(Standing::Uncontested) => self
                .tx(txid)
                .is_some_and(|tx| tx.parents().iter().all(|parent| self.is_pruned(parent) || self.live(parent, known))),
            _ => false,
        };
        known.insert(*txid, live);
        live
    }

    /// It spends nothing, so nothing can stand against it.
    pub fn is_partial(&self, txid: &Txid) -> bool {
        self.tx(txid).is_some_and(|tx| tx.seeded_at().is_some())
    }

    pub fn is_pruned(&self, txid: &Txid) -> bool {
        matches!(self.standing(txid), Some(Standing::Pruned(_)))
    }

    /// When something that is due is pruned is not in the logs.
    pub fn may_be_pruned(&self, txid: &Txid) -> bool {
        // Who was live once a node has forgotten is not asked, so neither is what was due.
        let unknown = self.rules.forgetful && self.rules.pruned_to.is_some();
        unknown || self.may_be_pruned.contains(txid) || self.is_pruned(txid)
    }

    /// From which height on the outputs of a coinbase can be spent: the last block of the longest chain that has it
    /// decides.
    pub fn spending_height(&self, txid: &Txid) -> Option<u32> {
        let tx = self.tx(txid)?;
        let first = tx.spending_height()?;
        let Some(height) = tx.brought_at() else { return Some(first) };
        let mined = self.fates.get(txid).into_iter().flat_map(|fate| fate.mined.values());
        let last = mined.filter(|mined| self.on_longest_chain(mined.block_id)).map(|mined| mined.height).max();
        Some(last.map_or(first, |last| first - height + last))
    }

    /// On the longest chain.
    pub fn is_mined(&self, txid: &Txid) -> bool {
        self.fates.get(txid).is_some_and(|fate| fate.mined.keys().any(|block| self.on_longest_chain(*block)))
    }

    pub fn on_longest_chain(&self, block: u32) -> bool {
        self.blocks.get(&block).copied().unwrap_or(true)
    }

    /// Something needs it live here: then so are all that it descends from. `false`: it cannot be.
    pub fn witness(&mut self, txid: &Txid) -> bool {
        let live = self.is_live(txid);
        if live {
            self.pin(txid);
        }
        live
    }

    /// It was live, and so was all that it descends from.
    pub fn pin(&mut self, txid: &Txid) {
        let mut open = vec![*txid];
        while let Some(txid) = open.pop() {
            if self.standing(&txid) == Some(Standing::Uncontested) {
                self.set(&txid, Standing::Live);
                open.extend(self.inputs(&txid).iter().map(|outpoint| outpoint.txid));
            }
        }
    }

    pub fn set(&mut self, txid: &Txid, standing: Standing) {
        self.fate(txid).standing = standing;
    }

    pub fn fate(&mut self, txid: &Txid) -> &mut Fate {
        self.fates.entry(*txid).or_insert_with(|| Fate::new(Standing::Pending))
    }

    /// Live transactions that spend an output, besides `but`.
    pub fn live_spenders(&self, outpoint: &Outpoint, but: &Txid) -> Vec<SpendingData> {
        let spenders = self.facts.spenders.get(outpoint).into_iter().flatten();
        spenders.filter(|spender| spender.txid != *but && self.is_live(&spender.txid)).copied().collect()
    }

    /// The one place that says which of several events for one txid counts. They differ at most in what the txid does
    /// not commit to: what they claim of the outputs that they spend, their height, whether they start locked.
    ///
    /// The event that the contest names which its verdict was given for; without one, the first: of what was live from the
    /// start it agrees with the outputs that it spends, and of what fell before its own contest was decided it was stored.
    /// Where that claims wrongly what it spends and a block lists it all the same: none of them, but what the block proves.
    pub fn version(&self, txid: &Txid) -> Option<&Version> {
        let versions = self.tx(txid)?.versions();
        let fate = self.fates.get(txid);
        if let Some(proven) = fate.and_then(|fate| fate.proven.as_ref()) {
            return Some(proven);
        }
        match fate.and_then(|fate| fate.contest.as_ref()) {
            Some(position) => versions.iter().find(|version| is_at(version, position)).or(versions.first()),
            None => versions.first(),
        }
    }

    /// A block lets it win: a txid commits to the outputs that are spent, so it spends what those hold.
    pub fn prove(&mut self, txid: &Txid) {
        let Some(version) = self.version(txid).filter(|version| !self.mismatches(txid, version).is_empty()) else {
            return;
        };
        let owed = self.inputs(txid).into_iter().zip(&version.claims);
        let claims: Vec<Coin> =
            owed.map(|(outpoint, claim)| self.owed(&outpoint).unwrap_or_else(|| claim.clone())).collect();
        let proven = Version { body: claiming(&version.body, &claims), claims, ..version.clone() };
        self.fate(txid).proven = Some(proven);
    }

    fn mismatches(&self, txid: &Txid, version: &Version) -> Vec<u32> {
        let claims = self.inputs(txid).into_iter().zip(version.claims.iter()).zip(0..);
        let differs = |outpoint: &Outpoint, claim: &Coin| self.owed(outpoint).is_some_and(|owed| owed != *claim);
        claims.filter(|((outpoint, claim), _)| differs(outpoint, claim)).map(|(_, input)| input).collect()
    }

    /// What an output holds now: a reassignment changes that.
    pub fn owed(&self, outpoint: &Outpoint) -> Option<Coin> {
        let stored = self.facts.output(outpoint, &self.rules)?;
        let last = self.bars.reassigned.get(outpoint).and_then(|all| all.last());
        Some(last.map_or(stored.clone(), |entry| Coin {
            satoshis: entry.output.satoshis,
            script: entry.output.script.clone(),
        }))
    }

    pub fn locked(&self, txid: &Txid) -> bool {
        let said = self.fates.get(txid).and_then(|fate| fate.locked);
        said.unwrap_or_else(|| self.first(txid).is_some_and(|version| version.locked))
    }

    /// The event that it was stored by: what it says of the height and the lock counts, whichever is decided on later.
    pub fn first(&self, txid: &Txid) -> Option<&Version> {
        self.tx(txid)?.versions().first()
    }

    pub fn unmined_since(&self, txid: &Txid) -> Option<u32> {
        let said = self.fates.get(txid).and_then(|fate| fate.unmined_since);
        said.unwrap_or_else(|| match self.tx(txid)?.origin {
            Origin::Validated(_) => self.first(txid).map(|version| version.height),
            Origin::Seeded { .. } | Origin::Block { .. } => None,
        })
    }

    /// Every reason that stands against a transaction being live here, input by input. `height`: of the block that it
    /// can first be in.
    pub fn against(&self, txid: &Txid, height: u32) -> Vec<Reason> {
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
            if self.locked(&parent) {
                reasons.push(Reason::Locked { parent });
            }
            if self.spending_height(&parent).is_some_and(|from| from > height) {
                reasons.push(Reason::Immature { input });
            }
            if self.owed(&outpoint).is_none() {
                reasons.push(Reason::NoSuchOutput { input });
            }
            if mismatches.contains(&input) {
                reasons.push(Reason::Mismatch { input });
            }
            if self.bars.frozen.contains(&outpoint) {
                reasons.push(Reason::Frozen { input });
            }
            if self.bars.spendable_from.get(&outpoint).is_some_and(|from| *from > height) {
                reasons.push(Reason::NotYetSpendable { input });
            }
            let holders = self.live_spenders(&outpoint, txid).into_iter();
            reasons.extend(holders.map(|holder| Reason::DoubleSpend { input, winner: holder.txid }));
        }
        reasons
    }

    /// What a store must hold at the end.
    pub fn expected(&self) -> Expected {
        let kept = self.facts.txs.keys().filter(|txid| self.fates.contains_key(txid) && !self.is_pruned(txid));
        Expected {
            txs: kept.filter_map(|txid| Some((*txid, self.logical(txid)?))).collect(),
            side_blocks: self.blocks.iter().filter(|(_, longest)| !**longest).map(|(block, _)| *block).collect(),
        }
    }

    fn logical(&self, txid: &Txid) -> Option<LogicalTx> {
        let (tx, fate) = (self.tx(txid)?, self.fates.get(txid)?);
        let body = match &tx.origin {
            Origin::Validated(_) => Body::Transaction(self.version(txid)?.body.clone()),
            Origin::Block { body, .. } => Body::Transaction(body.clone()),
            Origin::Seeded { .. } => {
                let stored = |coin: &Coin| StoredOutput { satoshis: coin.satoshis, script: coin.script.clone() };
                Body::Outputs(tx.outputs.iter().map(|coin| coin.as_ref().map(stored)).collect())
            }
        };
        let verdict = match fate.standing {
            Standing::Pending => Some(Verdict::Pending),
            Standing::Lost(reason) => Some(Verdict::Conflicting(reason)),
            _ => (fate.accepted && !tx.coinbase).then_some(Verdict::Accepted),
        };
        let slots = tx.slots(&self.rules).into_iter().zip(0..);
        let seeded = tx.seeded_at().map(|height| MinedIn { block_id: 0, height, subtree: 0 });
        let mined = fate.mined.values().filter(|mined| self.on_longest_chain(mined.block_id)).copied();
        Some(LogicalTx {
            body: Some(body),
            coinbase: tx.coinbase,
            locked: self.locked(txid),
            frozen: false,
            conflicting: matches!(fate.standing, Standing::Pending | Standing::Lost(_)),
            spending_height: self.spending_height(txid),
            unmined_since: self.unmined_since(txid),
            preserve_until: fate.preserve_until,
            verdict,
            mined: mined.chain(seeded).collect(),
            slots: slots.map(|(slot, vout)| self.slot(Outpoint { txid: *txid, vout }, slot)).collect(),
        })
    }

    fn slot(&self, outpoint: Outpoint, start: Slot) -> LogicalSlot {
        let reassignments = self.bars.reassigned.get(&outpoint).cloned().unwrap_or_default();
        let slot = start.hash().map_or(Slot::Nil, |_| {
            let owed = self.owed(&outpoint).unwrap_or_else(|| unreachable!("a slot that is not nil has an output"));
            let hash = utxo_hash(&outpoint.txid, outpoint.vout, &owed.script, owed.satoshis);
            let nobody = Txid([0; 32]);
            let holder = self.bars.spender_pruned.get(&outpoint).copied();
            match holder.or(self.live_spenders(&outpoint, &nobody).first().copied()) {
                Some(spender) => Slot::Spent(hash, spender),
                None if self.bars.frozen.contains(&outpoint) => Slot::Frozen(hash),
                None => Slot::Unspent(hash),
            }
        });
        LogicalSlot { slot, spendable_from: self.bars.spendable_from.get(&outpoint).copied(), reassignments }
    }
}

/// The same transaction, said to spend these outputs.
fn claiming(body: &[u8], claims: &[Coin]) -> Bytes {
    let tx = Transaction::parse(body).unwrap();
    let start = TransactionBuilder::default().version(tx.version()).lock_time(tx.lock_time());
    let with_inputs = tx.inputs().zip(claims).fold(start, |builder, (input, claim)| {
        let previous = Output { satoshis: claim.satoshis, script: &claim.script };
        builder.input(input.outpoint, input.script, input.sequence, Some(previous))
    });
    tx.outputs().fold(with_inputs, |builder, output| builder.output(output.satoshis, output.script)).extended().into()
}

/// Whether a position names this event.
pub fn is_at(version: &Version, position: &Position) -> bool {
    (version.place.partition, version.place.offset) == (position.partition, position.offset)
}
