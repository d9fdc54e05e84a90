//! Transactions with a completed event that is not durable yet.

use std::collections::BTreeMap;

use super::EventRef;
use crate::tx::{Txid, TxidMap};

/// Transactions with completed events that are not durable yet. The planner keeps them over a store that can lose
/// writes.
#[derive(Debug, Default)]
pub(super) struct NonDurableTransactions {
    /// Partition and offset of the last of these events.
    last: TxidMap<(i32, u64)>,
    by_place: BTreeMap<(i32, u64), Txid>,
}

impl NonDurableTransactions {
    /// Adds a completed event of a transaction.
    pub fn record(&mut self, txid: Txid, event: EventRef) {
        let place = (event.partition, event.offset);
        self.by_place.insert(place, txid);
        let last = self.last.entry(txid).or_insert(place);
        *last = place.max(*last);
    }

    /// Returns whether a completed event of the transaction is not durable yet.
    pub fn contains(&self, txid: &Txid) -> bool {
        self.last.contains_key(txid)
    }

    /// Removes the events of a partition below this durable offset.
    pub fn remove_durable(&mut self, partition: i32, durable_offset: u64) {
        self.drop_below((partition, 0), (partition, durable_offset));
    }

    /// Removes all events of a partition that was revoked.
    pub fn remove_partition(&mut self, partition: i32) {
        self.drop_below((partition, 0), (partition, u64::MAX));
    }

    fn drop_below(&mut self, from: (i32, u64), to: (i32, u64)) {
        while let Some((place, txid)) = self.by_place.range(from..to).next().map(|(place, txid)| (*place, *txid)) {
            self.by_place.remove(&place);
            if self.last.get(&txid) == Some(&place) {
                self.last.remove(&txid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(partition: i32, offset: u64) -> EventRef {
        EventRef { timestamp_ms: 0, partition, offset, epoch: 1 }
    }

    #[test]
    fn a_transaction_is_listed_until_its_last_event_is_durable() {
        let (one, other, third) = (Txid([1; 32]), Txid([2; 32]), Txid([3; 32]));
        let mut transactions = NonDurableTransactions::default();
        for (txid, event) in [(one, event(0, 7)), (one, event(0, 3)), (other, event(0, 5)), (third, event(1, 0))] {
            transactions.record(txid, event);
        }
        let known =
            |transactions: &NonDurableTransactions| [one, other, third].map(|txid| transactions.contains(&txid));
        transactions.remove_durable(0, 5);
        assert_eq!(known(&transactions), [true, true, true]);
        transactions.remove_durable(0, 6);
        assert_eq!(known(&transactions), [true, false, true]);
        transactions.remove_durable(0, 8);
        assert_eq!(known(&transactions), [false, false, true]);
        transactions.remove_partition(1);
        assert_eq!(known(&transactions), [false; 3]);
        assert!(transactions.by_place.is_empty() && transactions.last.is_empty());
    }
}
