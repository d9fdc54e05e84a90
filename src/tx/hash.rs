//! The chain's hashes: double SHA-256, and what a slot commits to.

use sha2::{Digest, Sha256};

use super::{Txid, UtxoHash, varint};

/// SHA-256 of the SHA-256 of the concatenated parts. Feeding the parts as they are was measured to be no slower than
/// gathering them in a buffer first, for parts as small as those of a payment.
#[inline]
pub fn double_sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut first = Sha256::new();
    for part in parts {
        first.update(part);
    }
    Sha256::digest(first.finalize()).into()
}

/// What the slot of output `vout` of `txid` commits to: SHA-256 of the txid in internal order, the output index as a
/// VarInt, the locking script without its length, and the satoshis as a VarInt.
///
/// A script that ends in the bytes of a larger VarInt collides with another amount: where the output itself is at hand,
/// compare script and satoshis too.
pub fn utxo_hash(txid: &Txid, vout: u32, script: &[u8], satoshis: u64) -> UtxoHash {
    let hash = Sha256::new()
        .chain_update(txid.0)
        .chain_update(varint::encode(u64::from(vout)))
        .chain_update(script)
        .chain_update(varint::encode(satoshis))
        .finalize();
    UtxoHash(hash.into())
}
