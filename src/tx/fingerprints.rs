//! A map by txid that takes a few bytes a txid.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use foldhash::fast::FixedState;

use super::Txid;

/// Parts of the map. One part grows at a time, so that the old and the new table of one part only are in memory.
const PARTS: usize = 16;

/// A map by txid. Holds the fingerprint of each txid: 12 bytes and the value, with the free places of the table 14 to
/// 27 bytes where the value has none.
///
/// The key of the fingerprints is secret, so that no sender can search for two transactions with one fingerprint. By
/// chance a txid has the fingerprint of one of 10,000,000 others once in 10^21.
#[derive(Debug, Clone)]
pub struct FingerprintMap<V> {
    keys: [RandomState; 2],
    parts: Vec<HashMap<Fingerprint, V, FixedState>>,
}

/// A set of txids that takes a few bytes a txid.
pub type FingerprintSet = FingerprintMap<()>;

/// 96 bits of a keyed hash; bytes, so that a small value needs no padding.
type Fingerprint = [u8; 12];

impl<V> Default for FingerprintMap<V> {
    fn default() -> Self {
        FingerprintMap { keys: [RandomState::new(), RandomState::new()], parts: Vec::new() }
    }
}

impl<V: Copy> FingerprintMap<V> {
    /// Sets the value of a txid.
    pub fn insert(&mut self, txid: Txid, value: V) {
        self.parts.resize_with(PARTS, HashMap::default);
        let fingerprint = self.fingerprint(&txid);
        self.parts[part_of(fingerprint)].insert(fingerprint, value);
    }

    /// Returns the value of a txid.
    pub fn get(&self, txid: &Txid) -> Option<V> {
        if self.parts.is_empty() {
            return None;
        }
        let fingerprint = self.fingerprint(txid);
        self.parts[part_of(fingerprint)].get(&fingerprint).copied()
    }

    fn fingerprint(&self, txid: &Txid) -> Fingerprint {
        let [first, second] = [0, 1].map(|key: usize| self.keys[key].hash_one(txid).to_le_bytes());
        let mut fingerprint = [0; 12];
        fingerprint[..8].copy_from_slice(&first);
        fingerprint[8..].copy_from_slice(&second[..4]);
        fingerprint
    }
}

impl FingerprintSet {
    /// Returns whether a txid was added.
    pub fn contains(&self, txid: &Txid) -> bool {
        self.get(txid).is_some()
    }
}

impl<V: Copy> Extend<(Txid, V)> for FingerprintMap<V> {
    fn extend<T: IntoIterator<Item = (Txid, V)>>(&mut self, values: T) {
        values.into_iter().for_each(|(txid, value)| self.insert(txid, value));
    }
}

impl Extend<Txid> for FingerprintSet {
    fn extend<T: IntoIterator<Item = Txid>>(&mut self, txids: T) {
        txids.into_iter().for_each(|txid| self.insert(txid, ()));
    }
}

fn part_of(fingerprint: Fingerprint) -> usize {
    usize::from(fingerprint[0]) % PARTS
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
        let mut set = FingerprintSet::default();
        assert!(!set.contains(&numbered(0)));
        set.extend((0..50_000).map(numbered));
        set.extend((40_000..60_000).map(numbered));
        assert!((0..60_000).all(|number| set.contains(&numbered(number))));
        assert!((60_000..200_000).all(|number| !set.contains(&numbered(number))));
        assert_eq!(set.parts.iter().map(HashMap::len).sum::<usize>(), 60_000);
    }

    #[test]
    fn the_last_value_of_a_txid_counts() {
        let mut map = FingerprintMap::default();
        assert_eq!(map.get(&numbered(0)), None);
        map.extend((0..1_000).map(|number| (numbered(number), 1_u8)));
        map.insert(numbered(7), 2);
        assert_eq!([7, 8, 1_000].map(|number| map.get(&numbered(number))), [Some(2), Some(1), None]);
        assert_eq!(size_of::<(Fingerprint, u8)>(), 13);
    }

    /// Protects: a descendant takes few bytes of memory.
    #[test]
    fn a_txid_takes_at_most_twenty_eight_bytes() {
        let mut set = FingerprintSet::default();
        for count in [30_000, 60_000, 100_000, 200_000_u64] {
            set.extend((0..count).map(numbered));
            // A table has a byte of its own a place, and eight places for seven entries at most.
            let places: usize = set.parts.iter().map(|part| (part.capacity() * 8 / 7).next_power_of_two()).sum();
            let bytes = places * (size_of::<Fingerprint>() + 1);
            assert!(bytes <= 30 * count as usize, "{bytes} bytes for {count}");
        }
    }
}
