//! A set of txids that takes a few bytes a txid.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

use foldhash::fast::FixedState;

use crate::tx::Txid;

/// Parts of the set. One part grows at a time, so that the old and the new table of one part only are in memory.
const PARTS: usize = 16;

/// A set of txids. Holds the fingerprint of each: 12 bytes, and 14 to 27 bytes with the free places of the table.
///
/// The key of the fingerprints is secret, so that no sender can search for two transactions with one fingerprint. By
/// chance a txid has the fingerprint of one of 10,000,000 others once in 10^21.
#[derive(Debug)]
pub struct TxidSet {
    keys: [RandomState; 2],
    parts: Vec<HashSet<Fingerprint, FixedState>>,
}

/// 96 bits of a keyed hash.
type Fingerprint = [u32; 3];

impl Default for TxidSet {
    fn default() -> Self {
        TxidSet { keys: [RandomState::new(), RandomState::new()], parts: Vec::new() }
    }
}

impl TxidSet {
    /// Adds txids; a txid that was added before changes nothing.
    pub fn extend(&mut self, txids: impl IntoIterator<Item = Txid>) {
        self.parts.resize_with(PARTS, HashSet::default);
        for txid in txids {
            let fingerprint = self.fingerprint(&txid);
            self.parts[part_of(fingerprint)].insert(fingerprint);
        }
    }

    /// Returns whether a txid was added.
    pub fn contains(&self, txid: &Txid) -> bool {
        if self.parts.is_empty() {
            return false;
        }
        let fingerprint = self.fingerprint(txid);
        self.parts[part_of(fingerprint)].contains(&fingerprint)
    }

    fn fingerprint(&self, txid: &Txid) -> Fingerprint {
        let [first, second] = [0, 1].map(|key: usize| self.keys[key].hash_one(txid));
        [first as u32, (first >> 32) as u32, second as u32]
    }
}

fn part_of(fingerprint: Fingerprint) -> usize {
    fingerprint[0] as usize % PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u64) -> Txid {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Txid(bytes)
    }

    #[test]
    fn a_set_has_what_was_added_and_nothing_else() {
        let mut set = TxidSet::default();
        assert!(!set.contains(&numbered(0)));
        set.extend((0..50_000).map(numbered));
        set.extend((40_000..60_000).map(numbered));
        assert!((0..60_000).all(|number| set.contains(&numbered(number))));
        assert!((60_000..200_000).all(|number| !set.contains(&numbered(number))));
        assert_eq!(set.parts.iter().map(HashSet::len).sum::<usize>(), 60_000);
    }

    /// Protects: a descendant takes few bytes of memory.
    #[test]
    fn a_txid_takes_at_most_twenty_eight_bytes() {
        let mut set = TxidSet::default();
        for count in [30_000, 60_000, 100_000, 200_000_u64] {
            set.extend((0..count).map(numbered));
            // A table has a byte of its own a place, and eight places for seven entries at most.
            let places: usize = set.parts.iter().map(|part| (part.capacity() * 8 / 7).next_power_of_two()).sum();
            let bytes = places * (size_of::<Fingerprint>() + 1);
            assert!(bytes <= 30 * count as usize, "{bytes} bytes for {count}");
        }
    }
}
