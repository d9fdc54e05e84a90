//! Pruning: what is due at a height, and what is left of it. When it is pruned is not in the logs: from when it is due on it may be.

use std::collections::BTreeSet;

use utxo_store::tx::{Outpoint, Txid};

use super::history::{History, Standing};

impl History {
    /// An event of the chain is handled: what is due by now may be pruned from now on.
    pub fn note_due(&mut self) {
        self.highest = self.highest.max(self.height());
        if self.rules.pruned_to.is_some() {
            let highest = self.highest;
            let due: Vec<Txid> = self.fates.keys().filter(|txid| self.is_due(txid, highest)).copied().collect();
            self.may_be_pruned.extend(due);
        }
    }

    /// Forgets everything that is due at `height`. Whoever spends it keeps its slots for good.
    pub fn forget(&mut self, height: u32) {
        let due: BTreeSet<Txid> = self.fates.keys().filter(|txid| self.is_due(txid, height)).copied().collect();
        for txid in &due {
            if self.is_live(txid) {
                for (outpoint, input) in self.inputs(txid).into_iter().zip(0..) {
                    let holder = utxo_store::record::SpendingData { txid: *txid, input };
                    self.bars.spender_pruned.insert(outpoint, holder);
                }
            }
        }
        due.iter().for_each(|txid| self.set(txid, Standing::Pruned(height)));
    }

    /// Retention behind the verdict that it lost; or behind the greatest height at which it and all its spenders were
    /// mined, once every output is spent.
    fn is_due(&self, txid: &Txid, height: u32) -> bool {
        let Some(fate) = self.fates.get(txid).filter(|_| self.rules.retention > 0) else { return false };
        if fate.preserve_until.is_some_and(|until| until > height) {
            return false;
        }
        let since = match fate.standing {
            Standing::Lost(_) => (!self.stays(txid)).then_some(fate.lost_at),
            Standing::Live | Standing::Uncontested if self.locked(txid) => None,
            Standing::Live | Standing::Uncontested => self.spent_since(txid),
            Standing::Pending | Standing::Pruned(_) => None,
        };
        since.is_some_and(|since| since.saturating_add(self.rules.retention) <= height)
    }

    /// An output of it was given to a new owner, or is frozen, or was until a height: what has lost stays for that.
    pub fn stays(&self, txid: &Txid) -> bool {
        let reassigned = self.bars.reassigned.keys();
        let barred = self.bars.frozen.iter().chain(self.bars.spendable_from.keys());
        reassigned.chain(barred).any(|outpoint| outpoint.txid == *txid)
    }

    /// `None`: an output is unspent (one that was reassigned counts as such for ever), or something is not mined.
    fn spent_since(&self, txid: &Txid) -> Option<u32> {
        let tx = self.tx(txid)?;
        let mut since = self.mined_at(txid)?;
        for (slot, vout) in tx.slots(&self.rules).iter().zip(0..) {
            let outpoint = Outpoint { txid: *txid, vout };
            if slot.hash().is_none() {
                continue;
            }
            if self.bars.reassigned.contains_key(&outpoint) {
                return None;
            }
            let spender = self.live_spenders(&outpoint, txid).first().copied()?;
            since = since.max(self.mined_at(&spender.txid)?);
        }
        Some(since)
    }

    /// The greatest height at which it was mined on the longest chain.
    fn mined_at(&self, txid: &Txid) -> Option<u32> {
        let mined = self.fates.get(txid)?.mined.values().filter(|mined| self.on_longest_chain(mined.block_id));
        mined.map(|mined| mined.height).max().or_else(|| self.tx(txid)?.seeded_at())
    }
}
