//! JSON forms of fields whose types have no form of their own, for serde's attribute `with`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    event::TxidList,
    tx::{Txid, read_text},
};

/// Bytes, as hexadecimal digits.
pub mod hex_bytes {
    use super::*;

    pub use hex::serde::serialize;

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'de [u8], D::Error> {
        Deserialize::deserialize(deserializer)
    }
}

/// Bytes of a fixed number, as hexadecimal digits, not reversed.
pub mod hex_array {
    use super::*;

    pub use hex::serde::serialize;

    pub fn deserialize<'de, const N: usize, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; N], D::Error> {
        let parse = |text: &str| {
            let mut bytes = [0; N];
            hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
        };
        read_text(deserializer, &format!("{} hexadecimal digits", 2 * N), parse)
    }
}

/// A hash, as hexadecimal digits in the reversed order that explorers show.
pub mod block_hash {
    use super::*;

    pub fn serialize<S: Serializer>(hash: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        Txid(*hash).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let parse = |text: &str| text.parse().ok().map(|Txid(hash)| hash);
        read_text(deserializer, "a block hash of 64 hexadecimal digits", parse)
    }
}

/// A concatenation of transaction ids in binary form, as a list of ids.
pub mod txid_list {
    use super::*;

    pub fn serialize<S: Serializer>(txids: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(txids.as_chunks().0.iter().map(|txid| Txid(*txid)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'de [u8], D::Error> {
        TxidList::deserialize(deserializer).map(TxidList::as_bytes)
    }
}

/// An option whose field must be there: by itself serde reads a missing field as `None`.
pub mod required {
    use super::*;

    pub fn serialize<T: Serialize, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.serialize(serializer)
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        Deserialize::deserialize(deserializer)
    }
}
