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

/// Computes a merkle root from transaction ids that come one after the other. The memory does not grow with their
/// number.
#[derive(Debug, Clone, Default)]
pub struct MerkleRoot {
    /// Root of each finished subtree of 2ⁿ ids, by n, as the binary form of the count of ids has them.
    subtrees: Vec<Option<[u8; 32]>>,
    is_doubled: bool,
}

impl MerkleRoot {
    /// Adds the next id.
    pub fn push(&mut self, txid: Txid) {
        let mut hash = txid.0;
        for subtree in &mut self.subtrees {
            let Some(left) = subtree.take() else {
                *subtree = Some(hash);
                return;
            };
            hash = self::join(&left, &hash, &mut self.is_doubled);
        }
        self.subtrees.push(Some(hash));
    }

    /// Returns the root, in internal order.
    ///
    /// # Errors
    /// Fails without ids, and for a list with a repeated end.
    pub fn finish(mut self) -> Result<[u8; 32], MerkleError> {
        let last = self.subtrees.len().checked_sub(1).ok_or(MerkleError::NoTransactions)?;
        let mut right: Option<[u8; 32]> = None;
        for (level, subtree) in self.subtrees.iter().enumerate() {
            right = match (*subtree, right) {
                (Some(left), Some(right)) => Some(join(&left, &right, &mut self.is_doubled)),
                // An odd end is hashed with itself, but for the root.
                (Some(end), None) | (None, Some(end)) if level < last => Some(double_sha256([&end[..], &end])),
                (root, right) => root.or(right),
            };
        }
        match right {
            _ if self.is_doubled => Err(MerkleError::Doubled),
            Some(root) => Ok(root),
            None => Err(MerkleError::NoTransactions),
        }
    }
}

fn join(left: &[u8; 32], right: &[u8; 32], is_doubled: &mut bool) -> [u8; 32] {
    *is_doubled |= left == right;
    double_sha256([&left[..], right])
}

/// Returns the merkle root, in internal order.
pub(super) fn root(txids: &[Txid]) -> Result<[u8; 32], MerkleError> {
    let mut root = MerkleRoot::default();
    txids.iter().for_each(|txid| root.push(*txid));
    root.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule as the protocol has it: level by level.
    fn root_by_levels(txids: &[Txid]) -> Result<[u8; 32], MerkleError> {
        let mut level: Vec<[u8; 32]> = txids.iter().map(|txid| txid.0).collect();
        while level.len() > 1 {
            if level.chunks_exact(2).any(|pair| pair[0] == pair[1]) {
                return Err(MerkleError::Doubled);
            }
            level = level.chunks(2).map(|pair| double_sha256([&pair[0][..], &pair[pair.len() - 1]])).collect();
        }
        level.first().copied().ok_or(MerkleError::NoTransactions)
    }

    #[test]
    fn the_root_is_that_of_the_levels() {
        for count in 0..=130 {
            assert_eq!(root(&txids(count)), root_by_levels(&txids(count)), "{count} ids");
        }
    }

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
