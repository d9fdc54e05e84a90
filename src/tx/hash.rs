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
/// A script that ends in the bytes of a larger VarInt collides with another amount: compare script and satoshis too, or
/// [`amount_size`].
pub fn utxo_hash(txid: &Txid, vout: u32, script: &[u8], satoshis: u64) -> UtxoHash {
    let hash = Sha256::new()
        .chain_update(txid.0)
        .chain_update(varint::encode(u64::from(vout)))
        .chain_update(script)
        .chain_update(varint::encode(satoshis))
        .finalize();
    UtxoHash(hash.into())
}

/// How many bytes an amount takes at the end of what [`utxo_hash`] hashes: 1, 3, 5 or 9. Where that is the same, too, script and
/// amount are.
pub fn amount_size(satoshis: u64) -> u8 {
    varint::encoded_len(satoshis) as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever else the same bytes can be taken for has an amount of another size.
        #[test]
        fn the_size_of_the_amount_says_where_it_parts_from_the_script(
            script in prop::collection::vec(prop_oneof![Just(0xfd), Just(0xfe), Just(0xff), any::<u8>()], 0..20),
            satoshis in prop_oneof![0_u64..300, any::<u32>().prop_map(u64::from), any::<u64>()],
        ) {
            let bytes = [&script, varint::encode(satoshis).as_ref()].concat();
            let mut sizes = vec![];
            for at in 0..bytes.len() {
                let (other_script, amount) = bytes.split_at(at);
                if let Ok((other, len)) = varint::read(amount) && len == amount.len() {
                    let txid = Txid([7; 32]);
                    prop_assert_eq!(utxo_hash(&txid, 3, other_script, other), utxo_hash(&txid, 3, &script, satoshis));
                    sizes.push(amount_size(other));
                }
            }
            let found = sizes.len();
            prop_assert!(sizes.contains(&amount_size(satoshis)));
            sizes.dedup();
            prop_assert_eq!(sizes.len(), found);
        }
    }
}
