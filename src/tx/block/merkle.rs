//! Merkle root of a list of transaction ids.

use crate::tx::{Txid, double_sha256};

/// Error of transactions that do not match a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum MerkleError {
    /// The block has no transactions, and therefore no root.
    #[error("a block without transactions")]
    NoTransactions,
    /// The transactions have another root than the header. The text shows both roots reversed, as transaction ids.
    #[error("merkle root {found} of the transactions is not {expected} of the header")]
    Mismatch { expected: Txid, found: Txid },
    /// Two neighbours at some level are equal. An odd end is hashed with itself, so that a list with a repeated end has
    /// the root of the original list: the root would prove nothing.
    #[error("the end of the transaction list is repeated")]
    Doubled,
}

/// Returns the merkle root, in internal order.
pub(super) fn root(txids: &[Txid]) -> Result<[u8; 32], MerkleError> {
    if txids.is_empty() {
        return Err(MerkleError::NoTransactions);
    }
    let mut level: Vec<[u8; 32]> = txids.iter().map(|txid| txid.0).collect();
    while level.len() > 1 {
        if level.chunks_exact(2).any(|pair| pair[0] == pair[1]) {
            return Err(MerkleError::Doubled);
        }
        level = level.chunks(2).map(|pair| double_sha256([&pair[0][..], &pair[pair.len() - 1]])).collect();
    }
    Ok(level[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txids(count: u8) -> Vec<Txid> {
        (0..count).map(|byte| Txid([byte; 32])).collect()
    }

    #[test]
    fn a_doubled_end_is_detected() {
        let three = txids(3);
        let mut four = three.clone();
        four.push(three[2]);
        assert!(root(&three).is_ok());
        assert_eq!(root(&four), Err(MerkleError::Doubled));
        let six = txids(6);
        let mut eight = six.clone();
        eight.extend_from_slice(&six[4..]);
        assert!(root(&six).is_ok());
        assert_eq!(root(&eight), Err(MerkleError::Doubled));
    }

    #[test]
    fn one_transaction_is_its_own_root_and_none_has_no_root() {
        assert_eq!(root(&txids(1)), Ok([0; 32]));
        assert_eq!(root(&[]), Err(MerkleError::NoTransactions));
    }
}
