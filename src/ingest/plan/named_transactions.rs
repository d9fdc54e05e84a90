//! Transactions that an outcome has named lately. Pure.

use std::collections::HashMap;

use crate::{
    group::missing_parent::{TxidPrefix, txid_prefix},
    tx::Txid,
};

/// Number of transactions after which the older half is forgotten.
const GENERATION: usize = if cfg!(test) { 8 } else { 32_768 };

/// The last transactions that an outcome has named: at least `GENERATION`, at most twice as many, in 2 MiB. A parent
/// can be created, and its outcome be read, between the failed try of its child and the parking of the child. The child
/// finds the parent here and is tried again at once.
#[derive(Debug, Default)]
pub(super) struct NamedTransactions {
    /// Number of the outcome that has named a transaction last.
    recent: HashMap<TxidPrefix, u64, foldhash::fast::FixedState>,
    older: HashMap<TxidPrefix, u64, foldhash::fast::FixedState>,
    count: u64,
    /// Numbers at which the recent and the older half begin.
    recent_from: u64,
    older_from: u64,
}

impl NamedTransactions {
    /// Records a transaction that an outcome names.
    pub fn record(&mut self, txid: &Txid) {
        if self.recent.len() >= GENERATION {
            std::mem::swap(&mut self.recent, &mut self.older);
            self.recent.clear();
            self.older_from = std::mem::replace(&mut self.recent_from, self.count);
        }
        self.recent.insert(txid_prefix(txid), self.count);
        self.count += 1;
    }

    /// Returns the number of transactions that outcomes have named so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether an outcome may have named this transaction since the count was `count`: one outcome did, or some
    /// of the outcomes since then are forgotten.
    pub fn is_named_since(&self, txid: &Txid, count: u64) -> bool {
        if count < self.older_from {
            return true;
        }
        let prefix = txid_prefix(txid);
        self.recent.get(&prefix).or_else(|| self.older.get(&prefix)).is_some_and(|number| *number >= count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_named_transactions_are_known_with_their_order() {
        let mut named = NamedTransactions::default();
        let txid = |byte| Txid([byte; 32]);
        named.record(&txid(1));
        let since = named.count();
        assert!(named.is_named_since(&txid(1), 0) && !named.is_named_since(&txid(1), since));
        named.record(&txid(2));
        named.record(&txid(1));
        assert!(named.is_named_since(&txid(1), since), "named again");
        assert!(named.is_named_since(&txid(2), since) && !named.is_named_since(&txid(3), 0));
        for byte in 3..=200 {
            named.record(&txid(byte));
            let last = byte.saturating_sub(GENERATION as u8 - 1).max(1);
            assert!((last..=byte).all(|byte| named.is_named_since(&txid(byte), named.older_from)), "{byte}");
            assert!(named.recent.len() + named.older.len() <= 2 * GENERATION);
        }
        assert!(!named.is_named_since(&txid(1), named.older_from), "forgotten");
        assert!(named.is_named_since(&txid(1), named.older_from - 1), "a forgotten outcome may have named it");
    }
}
