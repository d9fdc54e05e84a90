//! Transactions that an outcome has named lately. Pure.

use std::collections::HashMap;

use crate::{
    group::missing_parent::{TxidPrefix, txid_prefix},
    ingest::flight::AwaitedChange,
    tx::Txid,
};

/// Number of transactions after which the older half is forgotten.
const GENERATION: usize = if cfg!(test) { 8 } else { 32_768 };

/// A transaction that an outcome names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedTransaction {
    /// Txid of the transaction.
    pub txid: Txid,
    /// The outcome may follow from an unlock. An outcome `live` cannot: the event of a transaction unlocks nothing.
    pub can_unlock: bool,
}

/// Numbers of the outcomes that have named a transaction last; 0: none.
#[derive(Debug, Clone, Copy, Default)]
struct LastNamed {
    any: u64,
    unlocking: u64,
}

/// The last transactions that an outcome has named: at least `GENERATION`, at most twice as many, in 3 MiB. A parent
/// can be created, and its outcome be read, between the failed try of its child and the parking of the child. The child
/// finds the parent here and is tried again at once.
#[derive(Debug, Default)]
pub(super) struct NamedTransactions {
    recent: HashMap<TxidPrefix, LastNamed, foldhash::fast::FixedState>,
    older: HashMap<TxidPrefix, LastNamed, foldhash::fast::FixedState>,
    count: u64,
    /// Counts before the first number of the recent and of the older half.
    recent_from: u64,
    older_from: u64,
}

impl NamedTransactions {
    /// Records a transaction that an outcome names.
    pub fn record(&mut self, NamedTransaction { txid, can_unlock }: NamedTransaction) {
        if self.recent.len() >= GENERATION {
            std::mem::swap(&mut self.recent, &mut self.older);
            self.recent.clear();
            self.older_from = std::mem::replace(&mut self.recent_from, self.count);
        }
        self.count += 1;
        let prefix = txid_prefix(&txid);
        let last = self.recent.entry(prefix).or_insert_with(|| self.older.get(&prefix).copied().unwrap_or_default());
        last.any = self.count;
        if can_unlock {
            last.unlocking = self.count;
        }
    }

    /// Returns the number of transactions that outcomes have named so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether an outcome that ends this wait for a transaction may have come since the count was `count`: one
    /// did, or some of the outcomes since then are forgotten.
    pub fn is_named_since(&self, txid: &Txid, wait: AwaitedChange, count: u64) -> bool {
        if count < self.older_from {
            return true;
        }
        let prefix = txid_prefix(txid);
        let last = self.recent.get(&prefix).or_else(|| self.older.get(&prefix)).copied().unwrap_or_default();
        let number = match wait {
            AwaitedChange::Creation => last.any,
            AwaitedChange::Unlock => last.unlocking,
        };
        number > count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_named_transactions_are_known_with_their_order() {
        let mut named = NamedTransactions::default();
        let txid = |byte| Txid([byte; 32]);
        let record = |named: &mut NamedTransactions, byte| {
            named.record(NamedTransaction { txid: txid(byte), can_unlock: true });
            named.count()
        };
        let is_named =
            |named: &NamedTransactions, byte, count| named.is_named_since(&txid(byte), AwaitedChange::Creation, count);
        let since = record(&mut named, 1);
        assert!(is_named(&named, 1, 0) && !is_named(&named, 1, since));
        record(&mut named, 2);
        record(&mut named, 1);
        assert!(is_named(&named, 1, since), "named again");
        assert!(is_named(&named, 2, since) && !is_named(&named, 3, 0));
        for byte in 3..=200 {
            record(&mut named, byte);
            let last = byte.saturating_sub(GENERATION as u8 - 1).max(1);
            assert!((last..=byte).all(|byte| is_named(&named, byte, named.older_from)), "{byte}");
            assert!(named.recent.len() + named.older.len() <= 2 * GENERATION);
        }
        assert!(!is_named(&named, 1, named.older_from), "forgotten");
        assert!(is_named(&named, 1, named.older_from - 1), "a forgotten outcome may have named it");
    }

    #[test]
    fn an_outcome_live_ends_no_wait_for_an_unlock_and_hides_no_unlock() {
        let mut named = NamedTransactions::default();
        let (parent, other) = (Txid([1; 32]), Txid([2; 32]));
        let is_unlocked =
            |named: &NamedTransactions, count| named.is_named_since(&parent, AwaitedChange::Unlock, count);
        named.record(NamedTransaction { txid: parent, can_unlock: false });
        assert!(!is_unlocked(&named, 0) && named.is_named_since(&parent, AwaitedChange::Creation, 0));
        named.record(NamedTransaction { txid: parent, can_unlock: true });
        // The unlock is in the older half when the transaction is named again.
        for _ in 0..GENERATION {
            let before = named.older_from;
            named.record(NamedTransaction { txid: other, can_unlock: true });
            assert_eq!(named.older_from, before, "one transaction takes one place");
        }
        for byte in 10..10 + GENERATION as u8 - 1 {
            named.record(NamedTransaction { txid: Txid([byte; 32]), can_unlock: false });
        }
        named.record(NamedTransaction { txid: parent, can_unlock: false });
        assert!(is_unlocked(&named, 1) && !is_unlocked(&named, 2));
    }
}
