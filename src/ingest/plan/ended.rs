//! Which transactions have had their first event, while a node may still forget what that has made.

use std::collections::BTreeMap;

use super::EventRef;
use crate::tx::{Txid, TxidMap};

/// Transactions whose events have ended here, and are not safe yet.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// With the partition and offset of the last of those events.
    last: TxidMap<(i32, u64)>,
    by_place: BTreeMap<(i32, u64), Txid>,
}

impl Ended {
    /// An event of the transaction has ended.
    pub fn note(&mut self, txid: Txid, event: EventRef) {
        let place = (event.partition, event.offset);
        self.by_place.insert(place, txid);
        let last = self.last.entry(txid).or_insert(place);
        *last = place.max(*last);
    }

    /// Whether an event of the transaction has ended that is not safe.
    pub fn knows(&self, txid: &Txid) -> bool {
        self.last.contains_key(txid)
    }

    /// What came of the events below this offset can no longer be forgotten.
    pub fn settle(&mut self, partition: i32, safe: u64) {
        self.drop_below((partition, 0), (partition, safe));
    }

    /// The events of a partition are somebody else's.
    pub fn revoke(&mut self, partition: i32) {
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
    fn a_transaction_is_known_until_the_last_of_its_events_is_safe() {
        let (one, other, third) = (Txid([1; 32]), Txid([2; 32]), Txid([3; 32]));
        let mut ended = Ended::default();
        for (txid, event) in [(one, event(0, 7)), (one, event(0, 3)), (other, event(0, 5)), (third, event(1, 0))] {
            ended.note(txid, event);
        }
        let known = |ended: &Ended| [one, other, third].map(|txid| ended.knows(&txid));
        ended.settle(0, 5);
        assert_eq!(known(&ended), [true, true, true]);
        ended.settle(0, 6);
        assert_eq!(known(&ended), [true, false, true]);
        ended.settle(0, 8);
        assert_eq!(known(&ended), [false, false, true]);
        ended.revoke(1);
        assert_eq!(known(&ended), [false; 3]);
        assert!(ended.by_place.is_empty() && ended.last.is_empty());
    }
}
