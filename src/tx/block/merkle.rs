//! The merkle root of a list of transaction ids.

use crate::tx::{Txid, double_sha256};

/// Why transactions are not those of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MerkleError {
    /// There are none, so there is no root.
    #[error("a block without transactions")]
    NoTransactions,
    /// They hash up to something else. Both roots are shown reversed, as transaction ids are.
    #[error("merkle root {found} of the transactions is not {expected} of the header")]
    Mismatch {
        /// What the header says.
        expected: Txid,
        /// What the transactions hash up to.
        found: Txid,
    },
    /// Two neighbours are equal at some level. An odd end is hashed with itself, so a list whose end was doubled has
    /// the root of the original: the root would prove nothing.
    #[error("the end of the transaction list is there twice")]
    Doubled,
}

/// The merkle root, in internal order.
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
    fn a_doubled_end_is_told_from_the_original() {
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
