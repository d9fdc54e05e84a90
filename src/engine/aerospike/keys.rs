//! Keys of records: the set and the user key of the reference system (master: transaction id; page: id ‖ number; lock
//! record: id ‖ 0xFFFFFFFF). A scan returns only digests; [`StoreLocation::key_of`] finds the key of a digest.

use aerospike::{Key as ServerKey, Value};

use crate::{record::Key, tx::Txid};

/// The page number that stands for the lock record: no transaction has so many pages.
const LOCK_RECORD: u32 = u32::MAX;
/// Page numbers tried for one digest: pages of the reference system do not contain their number, and a scan returns
/// only digests.
const MAX_PAGES: u32 = 1 << 18;
const META: &[u8] = b"meta";
const SENTINEL: &[u8] = b"sentinel";

/// The namespace and the four sets of a store.
#[derive(Debug, Clone)]
pub struct StoreLocation {
    pub namespace: String,
    /// Set of transaction pages and lock records.
    pub transactions: String,
    /// Set of block records.
    pub blocks: String,
    /// Set of the meta record and the sentinels.
    pub meta: String,
    /// Set of command records.
    pub commands: String,
}

impl StoreLocation {
    /// Names the other sets after the set of transactions.
    pub fn new(namespace: &str, set: &str) -> Self {
        StoreLocation {
            namespace: namespace.into(),
            transactions: set.into(),
            blocks: format!("{set}_blocks"),
            meta: format!("{set}_meta"),
            commands: format!("{set}_commands"),
        }
    }

    /// Returns the server's key. Only the digest matters, so the server stores nothing else with the record.
    pub fn server_key(&self, key: &Key) -> Result<ServerKey, aerospike::Error> {
        let (set, user_key) = match key {
            Key::Page(txid, 0) => (&self.transactions, txid.0.to_vec()),
            Key::Page(txid, page) => (&self.transactions, numbered_key(txid, *page)),
            Key::LockRecord(txid) => (&self.transactions, numbered_key(txid, LOCK_RECORD)),
            Key::Block(id) => (&self.blocks, id.to_be_bytes().to_vec()),
            Key::Meta => (&self.meta, META.to_vec()),
            Key::Sentinel(number) => (&self.meta, [SENTINEL, &[*number]].concat()),
            Key::Command(id) => (&self.commands, id.to_vec()),
        };
        ServerKey::new(self.namespace.as_str(), set.as_str(), Value::Blob(user_key))
    }

    /// Finds the key of a record of `txid` by the digest that a scan or a query returned. `page` is the page number
    /// that the record contains. `None`: the digest belongs to no record of the transaction.
    pub fn key_of(&self, txid: Txid, page: Option<u32>, digest: [u8; 20]) -> Option<Key> {
        let numbered = page.map(|page| Key::Page(txid, page));
        let candidates = numbered.into_iter().chain([Key::master(txid), Key::LockRecord(txid)]);
        let pages = (1..MAX_PAGES).map(|page| Key::Page(txid, page));
        candidates.chain(pages).find(|key| self.server_key(key).is_ok_and(|found| found.digest() == digest))
    }
}

fn numbered_key(txid: &Txid, number: u32) -> Vec<u8> {
    [&txid.0[..], &number.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_of_a_transaction_is_found_by_digest() {
        let location = StoreLocation::new("test", "txmeta");
        let txid = Txid([7; 32]);
        for key in [Key::master(txid), Key::LockRecord(txid), Key::Page(txid, 1), Key::Page(txid, 49)] {
            let digest = location.server_key(&key).unwrap().digest();
            assert_eq!(location.key_of(txid, None, digest), Some(key));
        }
        let last = Key::Page(txid, u32::MAX - 1);
        assert_eq!(location.key_of(txid, Some(u32::MAX - 1), location.server_key(&last).unwrap().digest()), Some(last));
    }

    /// A partition number is 12 bits of the digest.
    #[test]
    fn sentinels_are_in_many_partitions() {
        let location = StoreLocation::new("test", "txmeta");
        let partition = |number| {
            let digest = location.server_key(&Key::Sentinel(number)).unwrap().digest();
            u16::from_le_bytes([digest[0], digest[1]]) & 0x0FFF
        };
        let partitions: std::collections::BTreeSet<u16> = (0..=u8::MAX).map(partition).collect();
        assert!(partitions.len() > 230, "{}", partitions.len());
        // Of the 64 ranges of 64 partitions hardly any is without a sentinel, so that the loss of a range is detected.
        let empty_ranges = (0..64).filter(|range| !partitions.iter().any(|partition| partition / 64 == *range)).count();
        assert!(empty_ranges <= 4, "{empty_ranges}");
    }

    #[test]
    fn keys_equal_those_of_the_reference_system() {
        let location = StoreLocation::new("test", "txmeta");
        let user_key = |key| location.server_key(&key).unwrap().user_key().cloned();
        let txid = Txid([7; 32]);
        assert_eq!(user_key(Key::master(txid)), Some(Value::Blob(vec![7; 32])));
        assert_eq!(user_key(Key::Page(txid, 258)), Some(Value::Blob([&[7; 32][..], &[2, 1, 0, 0]].concat())));
    }
}
