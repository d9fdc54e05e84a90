//! Keys of records: set and user key, as the reference system has them (transaction id; page: id ‖ number; lock record:
//! id ‖ 0xFFFFFFFF), and back from what a scan returns, which is the digest.

use aerospike::{Key as ServerKey, Value};

use crate::{record::Key, tx::Txid};

/// The number that stands for the lock record: no transaction has so many pages.
const LOCK_RECORD: u32 = u32::MAX;
/// Pages of the reference system do not say their number, and a scan returns digests: so many are tried.
const MOST_PAGES: u32 = 1 << 18;
const META: &[u8] = b"meta";
const SENTINEL: &[u8] = b"sentinel";

/// The place of a store: a namespace and four sets.
#[derive(Debug, Clone)]
pub struct Place {
    pub namespace: String,
    /// Transaction pages and lock records.
    pub transactions: String,
    /// Block records.
    pub blocks: String,
    /// The meta record, and the sentinels.
    pub meta: String,
    /// Command records.
    pub commands: String,
}

impl Place {
    /// The sets of a store are named after its first.
    pub fn new(namespace: &str, set: &str) -> Self {
        Place {
            namespace: namespace.into(),
            transactions: set.into(),
            blocks: format!("{set}_blocks"),
            meta: format!("{set}_meta"),
            commands: format!("{set}_commands"),
        }
    }

    /// The server's key. Only the digest matters, so nothing else is kept with the record.
    pub fn server_key(&self, key: &Key) -> Result<ServerKey, aerospike::Error> {
        let (set, user_key) = match key {
            Key::Page(txid, 0) => (&self.transactions, txid.0.to_vec()),
            Key::Page(txid, page) => (&self.transactions, numbered(txid, *page)),
            Key::LockRecord(txid) => (&self.transactions, numbered(txid, LOCK_RECORD)),
            Key::Block(id) => (&self.blocks, id.to_be_bytes().to_vec()),
            Key::Meta => (&self.meta, META.to_vec()),
            Key::Sentinel(number) => (&self.meta, [SENTINEL, &[*number]].concat()),
            Key::Command(id) => (&self.commands, id.to_vec()),
        };
        ServerKey::new(self.namespace.as_str(), set.as_str(), Value::Blob(user_key))
    }

    /// The key of a record of `txid` whose digest a scan or a query returned, and which says that it is this page. `None`: it is
    /// none of that transaction.
    pub fn key_of(&self, txid: Txid, page: Option<u32>, digest: [u8; 20]) -> Option<Key> {
        let said = page.map(|page| Key::Page(txid, page));
        let candidates = said.into_iter().chain([Key::master(txid), Key::LockRecord(txid)]);
        let pages = (1..MOST_PAGES).map(|page| Key::Page(txid, page));
        candidates.chain(pages).find(|key| self.server_key(key).is_ok_and(|found| found.digest() == digest))
    }
}

fn numbered(txid: &Txid, number: u32) -> Vec<u8> {
    [&txid.0[..], &number.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_of_a_transaction_is_found_by_its_digest() {
        let place = Place::new("test", "txmeta");
        let txid = Txid([7; 32]);
        for key in [Key::master(txid), Key::LockRecord(txid), Key::Page(txid, 1), Key::Page(txid, 49)] {
            let digest = place.server_key(&key).unwrap().digest();
            assert_eq!(place.key_of(txid, None, digest), Some(key));
        }
        let last = Key::Page(txid, u32::MAX - 1);
        assert_eq!(place.key_of(txid, Some(u32::MAX - 1), place.server_key(&last).unwrap().digest()), Some(last));
    }

    /// A partition is 12 bits of the digest.
    #[test]
    fn sentinels_lie_in_many_partitions() {
        let place = Place::new("test", "txmeta");
        let partition = |number| {
            let digest = place.server_key(&Key::Sentinel(number)).unwrap().digest();
            u16::from_le_bytes([digest[0], digest[1]]) & 0x0FFF
        };
        let partitions: std::collections::BTreeSet<u16> = (0..=u8::MAX).map(partition).collect();
        assert!(partitions.len() > 230, "{}", partitions.len());
        // Of 64 neighbours in 4,096 hardly any is without: a range of partitions that is lost holds one.
        let without = (0..64).filter(|range| !partitions.iter().any(|partition| partition / 64 == *range)).count();
        assert!(without <= 4, "{without}");
    }

    #[test]
    fn a_key_is_what_the_reference_system_writes_under() {
        let place = Place::new("test", "txmeta");
        let user_key = |key| place.server_key(&key).unwrap().user_key().cloned();
        let txid = Txid([7; 32]);
        assert_eq!(user_key(Key::master(txid)), Some(Value::Blob(vec![7; 32])));
        assert_eq!(user_key(Key::Page(txid, 258)), Some(Value::Blob([&[7; 32][..], &[2, 1, 0, 0]].concat())));
    }
}
