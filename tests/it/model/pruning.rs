//! Pruning: records that are due at a height, and the state after. The logs do not say when a due record is pruned.

use std::collections::BTreeSet;

use utxo_store::tx::{Outpoint, Txid};

use super::history::{History, TxStatus};

impl History {
    /// Records that due transactions may be pruned from this chain event on.
    pub fn record_due(&mut self) {
        self.highest = self.highest.max(self.height());
        if self.rules.pruned_to.is_some() {
            let highest = self.highest;
            let due: Vec<Txid> = self.tx_entries.keys().filter(|txid| self.is_due(txid, highest)).copied().collect();
            self.may_be_pruned.extend(due);
        }
    }

    /// Prunes every transaction that is due at `height`. A pruned spender keeps its slots for good.
    pub fn prune_due(&mut self, height: u32) {
        let due: BTreeSet<Txid> = self.tx_entries.keys().filter(|txid| self.is_due(txid, height)).copied().collect();
        for txid in &due {
            if self.is_live(txid) {
                for (outpoint, input) in self.inputs(txid).into_iter().zip(0..) {
                    let holder = utxo_store::record::SpendingData { txid: *txid, input };
                    self.restrictions.spender_pruned.insert(outpoint, holder);
                }
            }
        }
        due.iter().for_each(|txid| self.set_status(txid, TxStatus::Pruned(height)));
    }

    /// Whether the transaction is due: the retention after its conflicting verdict, or after the greatest height at
    /// which it and all its spenders were mined, once every output is spent.
    fn is_due(&self, txid: &Txid, height: u32) -> bool {
        let Some(tx_entry) = self.tx_entries.get(txid).filter(|_| self.rules.retention > 0) else { return false };
        if tx_entry.preserve_until.is_some_and(|until| until > height) {
            return false;
        }
        let since = match tx_entry.status {
            TxStatus::Conflicting(_) => (!self.is_kept_for_output(txid)).then_some(tx_entry.conflicting_height),
            TxStatus::Live | TxStatus::Uncontested if self.is_locked(txid) || self.is_transaction_frozen(txid) => None,
            TxStatus::Live | TxStatus::Uncontested => self.spent_since(txid),
            TxStatus::Pending | TxStatus::Pruned(_) => None,
        };
        since.is_some_and(|since| since.saturating_add(self.rules.retention) <= height)
    }

    /// Whether the transaction is frozen, or an output is or was frozen or was reassigned: a conflicting transaction is
    /// then kept.
    pub fn is_kept_for_output(&self, txid: &Txid) -> bool {
        let reassigned = self.restrictions.reassigned.keys();
        let barred = self.restrictions.frozen.iter().chain(self.restrictions.spendable_from.keys());
        self.is_transaction_frozen(txid) || reassigned.chain(barred).any(|outpoint| outpoint.txid == *txid)
    }

    /// Returns the height from which every output is spent by mined transactions; `None` if an output is unspent (a
    /// reassigned one counts as unspent for ever), or a spender is not mined.
    fn spent_since(&self, txid: &Txid) -> Option<u32> {
        let tx = self.tx(txid)?;
        let mut since = self.mined_at(txid)?;
        for (slot, vout) in tx.slots(&self.rules).iter().zip(0..) {
            let outpoint = Outpoint { txid: *txid, vout };
            if slot.hash().is_none() {
                continue;
            }
            if self.restrictions.reassigned.contains_key(&outpoint) {
                return None;
            }
            let spender = self.live_spenders(&outpoint, txid).first().copied()?;
            since = since.max(self.mined_at(&spender.txid)?);
        }
        Some(since)
    }

    /// Returns the greatest height at which a block of the longest chain lists the transaction.
    fn mined_at(&self, txid: &Txid) -> Option<u32> {
        let mined = self.tx_entries.get(txid)?.mined.values().filter(|mined| self.is_on_longest_chain(mined.block_id));
        mined.map(|mined| mined.height).max().or_else(|| self.tx(txid)?.seeded_at())
    }
}
