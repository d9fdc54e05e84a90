//! Binary form of keys, for cursors and for engines that store bytes. The order is that of the transaction ids, and
//! within a transaction master, pages, lock record. The length gives the kind of the key.

use std::fmt;

use crate::{record::Key, tx::Txid};

const MASTER: usize = 32;
const LOCK_RECORD: usize = 33;
const PAGE: usize = 36;
const COMMAND: usize = 16;
const BLOCK: usize = 4;
const META: usize = 1;
const SENTINEL: usize = 2;

/// A key as bytes, without an allocation.
#[derive(Clone, Copy)]
pub(crate) struct KeyBytes {
    bytes: [u8; PAGE],
    length: usize,
}

impl KeyBytes {
    /// Length of the longest key in bytes.
    pub(crate) const MAX: usize = PAGE;

    pub(crate) fn of(key: &Key) -> Self {
        let mut bytes = [0; PAGE];
        let length = match key {
            Key::Page(txid, 0) => {
                bytes[..32].copy_from_slice(&txid.0);
                MASTER
            }
            Key::Page(txid, page) => {
                bytes[..32].copy_from_slice(&txid.0);
                bytes[32..].copy_from_slice(&page.to_be_bytes());
                PAGE
            }
            Key::LockRecord(txid) => {
                bytes[..32].copy_from_slice(&txid.0);
                bytes[32] = 0xFF;
                LOCK_RECORD
            }
            Key::Block(id) => {
                bytes[..4].copy_from_slice(&id.to_be_bytes());
                BLOCK
            }
            Key::Meta => {
                bytes[0] = b'm';
                META
            }
            Key::Sentinel(number) => {
                bytes[..2].copy_from_slice(&[b's', *number]);
                SENTINEL
            }
            Key::Command(id) => {
                bytes[..COMMAND].copy_from_slice(id);
                COMMAND
            }
        };
        KeyBytes { bytes, length }
    }
}

/// Returns the first eight bytes of a key as a number with the order of the bytes, for quick comparisons. Keys of
/// different transactions rarely have equal numbers.
pub(crate) fn first_bytes(key: &Key) -> u64 {
    match key {
        Key::Page(txid, _) | Key::LockRecord(txid) => {
            txid.0.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
        }
        Key::Block(id) => u64::from(*id) << 32,
        Key::Meta => u64::from(b'm') << 56,
        Key::Command(id) => id.first_chunk().map_or(0, |first| u64::from_be_bytes(*first)),
        Key::Sentinel(number) => u64::from(u16::from_be_bytes([b's', *number])) << 48,
    }
}

impl AsRef<[u8]> for KeyBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Decodes a key; `None`: the bytes are no key.
pub(crate) fn decode(bytes: &[u8]) -> Option<Key> {
    let key = match bytes.len() {
        MASTER => Key::master(txid(bytes)?),
        LOCK_RECORD => Key::LockRecord(txid(bytes)?),
        PAGE => Key::Page(txid(bytes)?, u32::from_be_bytes(bytes.get(32..)?.try_into().ok()?)),
        BLOCK => Key::Block(u32::from_be_bytes(bytes.try_into().ok()?)),
        META => Key::Meta,
        SENTINEL => Key::Sentinel(bytes[1]),
        COMMAND => Key::Command(bytes.try_into().ok()?),
        _ => return None,
    };
    (KeyBytes::of(&key).as_ref() == bytes).then_some(key)
}

fn txid(bytes: &[u8]) -> Option<Txid> {
    Some(Txid(bytes.get(..32)?.try_into().ok()?))
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Page(txid, 0) => write!(f, "{txid}"),
            Key::Page(txid, page) => write!(f, "{txid} page {page}"),
            Key::LockRecord(txid) => write!(f, "lock record of {txid}"),
            Key::Block(id) => write!(f, "block {id}"),
            Key::Meta => f.write_str("meta record"),
            Key::Command(id) => write!(f, "command {}", hex::encode(id)),
            Key::Sentinel(number) => write!(f, "sentinel {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_key_round_trips_in_order() {
        let (low, high) = (Txid([1; 32]), Txid([2; 32]));
        let keys = [Key::master(low), Key::Page(low, 1), Key::Page(low, 256), Key::LockRecord(low), Key::master(high)];
        let bytes: Vec<Vec<u8>> = keys.iter().map(|key| KeyBytes::of(key).as_ref().to_vec()).collect();
        assert!(bytes.is_sorted());
        let others = [Key::Block(0), Key::Block(u32::MAX), Key::Meta, Key::Command([9; 16]), Key::Sentinel(255)];
        for key in keys.into_iter().chain(others) {
            assert_eq!(decode(KeyBytes::of(&key).as_ref()), Some(key));
        }
    }

    #[test]
    fn the_first_bytes_ascend_as_the_keys_do() {
        let txids = [[0; 32], [1; 32], [0xFE; 32], [0xFF; 32]].map(Txid);
        let keys = txids.iter().flat_map(|txid| [Key::master(*txid), Key::Page(*txid, 7), Key::LockRecord(*txid)]);
        for keys in [keys.collect::<Vec<_>>(), [0, 1, 0xFF00, u32::MAX].map(Key::Block).to_vec()] {
            assert!(keys.iter().map(first_bytes).is_sorted(), "{keys:?}");
            assert_ne!(keys.first().map(first_bytes), keys.last().map(first_bytes));
        }
    }

    #[test]
    fn bytes_that_no_key_encodes_to_are_refused() {
        let mut page_zero = [7; 36];
        page_zero[32..].fill(0);
        for bytes in [&[][..], &[0], &[0; 5], b"m7", &[7; 33], &[7; 31], &page_zero] {
            assert_eq!(decode(bytes), None, "{bytes:?}");
        }
    }
}
