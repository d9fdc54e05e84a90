//! Keys of records: the set and the user key of the reference system (master: transaction id; page: id ‖ number; lock
//! record: id ‖ 0xFFFFFFFF). A scan returns only digests; [`StoreLocation::key_of`] finds the key of a digest.

use aerospike::Key as ServerKey;
use ripemd::{Digest, Ripemd160};

use crate::{record::Key, tx::Txid};

/// The page number that stands for the lock record: no transaction has so many pages.
const LOCK_RECORD: u32 = u32::MAX;
/// Page numbers tried for one digest: pages of the reference system do not contain their number, and a scan returns
/// only digests.
const MAX_PAGES: u32 = 1 << 18;
/// The server's number of the type of a user key: a blob. The number is a part of the digest.
const BLOB: u8 = 4;
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

    /// Returns the server's key, without the user key: the server stores only the digest with the record, and the
    /// client copies a key with each request.
    pub fn server_key(&self, key: &Key) -> ServerKey {
        let (set, digest) = self.set_and_digest(key);
        ServerKey::with_digest(self.namespace.as_str(), set, None, digest)
    }

    fn set_and_digest(&self, key: &Key) -> (&str, [u8; 20]) {
        let transactions = &self.transactions;
        let (set, digest) = match key {
            Key::Page(txid, 0) => (transactions, digest(transactions, &[&txid.0])),
            Key::Page(txid, page) => (transactions, digest(transactions, &[&txid.0, &page.to_le_bytes()])),
            Key::LockRecord(txid) => (transactions, digest(transactions, &[&txid.0, &LOCK_RECORD.to_le_bytes()])),
            Key::Block(id) => (&self.blocks, digest(&self.blocks, &[&id.to_be_bytes()])),
            Key::Meta => (&self.meta, digest(&self.meta, &[META])),
            Key::Sentinel(number) => (&self.meta, digest(&self.meta, &[SENTINEL, &[*number]])),
            Key::Command(id) => (&self.commands, digest(&self.commands, &[id])),
        };
        (set, digest)
    }

    /// Finds the key of a record of `txid` by the digest that a scan or a query returned. `page` is the page number
    /// that the record contains. `None`: the digest belongs to no record of the transaction.
    pub fn key_of(&self, txid: Txid, page: Option<u32>, digest: [u8; 20]) -> Option<Key> {
        let numbered = page.map(|page| Key::Page(txid, page));
        let candidates = numbered.into_iter().chain([Key::master(txid), Key::LockRecord(txid)]);
        let pages = (1..MAX_PAGES).map(|page| Key::Page(txid, page));
        candidates.chain(pages).find(|key| self.set_and_digest(key).1 == digest)
    }
}

/// Returns the digest of a user key in a set, as every client computes it. `user_key`: the pieces of the key.
fn digest(set: &str, user_key: &[&[u8]]) -> [u8; 20] {
    let mut hash = Ripemd160::new();
    hash.update(set.as_bytes());
    hash.update([BLOB]);
    user_key.iter().for_each(|piece| hash.update(piece));
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_of_a_transaction_is_found_by_digest() {
        let location = StoreLocation::new("test", "txmeta");
        let txid = Txid([7; 32]);
        for key in [Key::master(txid), Key::LockRecord(txid), Key::Page(txid, 1), Key::Page(txid, 49)] {
            let digest = location.server_key(&key).digest();
            assert_eq!(location.key_of(txid, None, digest), Some(key));
        }
        let last = Key::Page(txid, u32::MAX - 1);
        assert_eq!(location.key_of(txid, Some(u32::MAX - 1), location.server_key(&last).digest()), Some(last));
    }

    /// A partition number is 12 bits of the digest.
    #[test]
    fn sentinels_are_in_many_partitions() {
        let location = StoreLocation::new("test", "txmeta");
        let partition = |number| {
            let digest = location.server_key(&Key::Sentinel(number)).digest();
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
        let txid = Txid([7; 32]);
        let expected = |set: &str, user_key: Vec<u8>| {
            aerospike::Key::new("test", set, aerospike::Value::Blob(user_key)).unwrap().digest()
        };
        let lock_record = [&[7; 32][..], &[0xFF; 4]].concat();
        for (key, set, user_key) in [
            (Key::master(txid), "txmeta", vec![7; 32]),
            (Key::Page(txid, 258), "txmeta", [&[7; 32][..], &[2, 1, 0, 0]].concat()),
            (Key::LockRecord(txid), "txmeta", lock_record),
            (Key::Block(258), "txmeta_blocks", vec![0, 0, 1, 2]),
            (Key::Meta, "txmeta_meta", b"meta".to_vec()),
            (Key::Sentinel(9), "txmeta_meta", b"sentinel\x09".to_vec()),
            (Key::Command([5; 16]), "txmeta_commands", vec![5; 16]),
        ] {
            let made = location.server_key(&key);
            assert_eq!((made.set_name(), made.digest()), (set, expected(set, user_key)), "{key:?}");
        }
    }
}
