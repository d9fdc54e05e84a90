//! Hashes of the chain: double SHA-256 and the UTXO hash.

use sha2::{Digest, Sha256};

use super::{Txid, UtxoHash, varint};

/// Returns SHA-256 of the SHA-256 of the concatenated parts. Hashing part by part was measured to be as fast as
/// gathering the parts in a buffer first, also for parts as small as those of a payment.
#[inline]
pub fn double_sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut first = Sha256::new();
    for part in parts {
        first.update(part);
    }
    Sha256::digest(first.finalize()).into()
}

/// Returns the UTXO hash, to which the slot of output `vout` of `txid` commits: SHA-256 of the txid in internal order,
/// the output index as a VarInt, the locking script without its length, and the satoshis as a VarInt.
///
/// A script that ends in the first bytes of a larger VarInt collides with another script and amount. A comparison of
/// two outputs must therefore also compare script and satoshis, or `amount_size`.
pub fn utxo_hash(txid: &Txid, vout: u32, script: &[u8], satoshis: u64) -> UtxoHash {
    let hash = Sha256::new()
        .chain_update(txid.0)
        .chain_update(varint::encode(u64::from(vout)))
        .chain_update(script)
        .chain_update(varint::encode(satoshis))
        .finalize();
    UtxoHash(hash.into())
}

/// Returns the number of bytes that an amount takes at the end of the input of [`utxo_hash`]: 1, 3, 5 or 9. Two outputs
/// with equal UTXO hash and equal amount size have equal script and amount.
pub fn amount_size(satoshis: u64) -> u8 {
    varint::encoded_len(satoshis) as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any other split of the same bytes into script and amount has an amount of another size.
        #[test]
        fn amount_sizes_distinguish_outputs_of_equal_hash(
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
