//! Comparison of two stores by the digests of their transactions; names the first transactions that differ.
//!
//! Memory is bounded. The digest of a store is a sum, and so is the digest of every part of a store:
//!
//! 1. One scan of each store adds the digests up by the first two bytes of the txid (the prefix).
//! 2. Only transactions under prefixes with different sums are digested again, a bounded number at a time, in the order
//!    of the txids. Every such prefix has a difference, so that one pass is usually enough.

use std::{cell::Cell, collections::BTreeMap};

use serde::Serialize;

use crate::{engine::Set, tx::Txid};

use super::{
    StateStore,
    canonical::SideBlocks,
    digest::{StateDigest, SurveyError, Surveyor, read_side_blocks},
    scan::SetScan,
};

mod fields;

use fields::ComparedTx;
pub use fields::FieldDifference;

const PREFIXES: usize = 1 << 16;
/// Largest number of digests of one store in memory, about 50 MB.
const MAX_DIGESTS: usize = 500_000;

/// Sides of a comparison: its two stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Side {
    /// The first store, `--store`.
    Store,
    /// The second store, `--against`.
    Against,
}

/// Failure to read one of the two stores.
#[derive(Debug, Clone, thiserror::Error)]
#[error("--{side}: {error}")]
pub struct CompareError {
    /// Store that could not be read.
    pub side: Side,
    /// Error of the scan.
    pub error: SurveyError,
}

/// Size and digest of one store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Number of transactions that the digest covers.
    pub transactions: u64,
    /// State digest of the store.
    pub digest: StateDigest,
}

/// A transaction that is not equal in both stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Id of the transaction.
    pub txid: Txid,
    /// Difference between the two stores.
    #[serde(flatten)]
    pub kind: DifferenceKind,
}

/// Kinds of differences of one transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// Only one store has the transaction.
    OnlyIn(Side),
    /// Fields of the canonical form that differ, at most `MAX_FIELDS`. The list is empty when the transaction has
    /// changed since it was digested.
    Fields(Vec<FieldDifference>),
}

/// Result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Size and digest of the first store.
    pub store: Total,
    /// Size and digest of the second store.
    pub against: Total,
    /// First transactions that differ, ascending by the bytes of the txid (internal order, as in `dump`).
    pub first: Vec<Difference>,
    /// Lower bound of the number of differing transactions; the exact number where all of them are named.
    pub at_least: u64,
}

impl Comparison {
    /// Returns whether both stores have the same state.
    pub fn is_same(&self) -> bool {
        self.store.digest == self.against.digest
    }
}

/// Compares two stores and names the first `limit` transactions that differ.
///
/// `progress` is called with the number of transactions read so far, over both stores and all scans. While a store
/// changes, the result may miss a difference, or name a transaction that no longer differs.
///
/// # Errors
/// [`CompareError`] with the error of [`survey`](super::digest::survey) for the store that could not be read.
pub async fn compare(
    store: &StateStore,
    against: &StateStore,
    limit: usize,
    progress: impl Fn(u64),
) -> Result<Comparison, CompareError> {
    Comparer { store, against, max_digests: MAX_DIGESTS, scanned: Cell::new(0), progress }.compare(limit).await
}

struct Comparer<'a, P> {
    store: &'a StateStore,
    against: &'a StateStore,
    /// Largest number of digests of one store in memory.
    max_digests: usize,
    /// Number of transactions read so far.
    scanned: Cell<u64>,
    progress: P,
}

impl<P: Fn(u64)> Comparer<'_, P> {
    async fn compare(&self, limit: usize) -> Result<Comparison, CompareError> {
        let (mut sums, mut other) = (PrefixSums::new(), PrefixSums::new());
        tokio::try_join!(
            self.scan(Side::Store, |_| true, |txid, digest| sums.add(txid, digest)),
            self.scan(Side::Against, |_| true, |txid, digest| other.add(txid, digest)),
        )?;
        let differing: Vec<usize> =
            (0..PREFIXES).filter(|prefix| sums.by_prefix[*prefix] != other.by_prefix[*prefix]).collect();
        let found = self.find_first(&differing, limit).await?;
        let at_least = differing.len().max(found.len()) as u64;
        let first = self.describe(found).await?;
        Ok(Comparison { store: sums.total, against: other.total, first, at_least })
    }

    /// Reads the transactions that were found, and names their differences.
    async fn describe(&self, found: Vec<(Txid, Option<Side>)>) -> Result<Vec<Difference>, CompareError> {
        let read_blocks = async |side: Side| match read_side_blocks(self.store_on(side)).await {
            Ok((blocks, _)) => Ok(blocks),
            Err(error) => Err(CompareError { side, error: error.into() }),
        };
        let (blocks, other_blocks) = (read_blocks(Side::Store).await?, read_blocks(Side::Against).await?);
        let read = async |side: Side, blocks: &SideBlocks, txid: Txid| {
            ComparedTx::read(self.store_on(side), blocks, txid).await.map_err(|error| CompareError { side, error })
        };
        let mut first = Vec::with_capacity(found.len());
        for (txid, only_in) in found {
            let kind = match only_in {
                Some(side) => DifferenceKind::OnlyIn(side),
                None => {
                    let here = read(Side::Store, &blocks, txid).await?;
                    let there = read(Side::Against, &other_blocks, txid).await?;
                    DifferenceKind::Fields(
                        here.zip(there).map_or(Vec::new(), |(here, there)| fields::find_differing(&here, &there)),
                    )
                }
            };
            first.push(Difference { txid, kind });
        }
        Ok(first)
    }

    /// Returns the first differing transactions under these prefixes, ascending; with a side where only that store has
    /// the transaction.
    async fn find_first(&self, differing: &[usize], limit: usize) -> Result<Vec<(Txid, Option<Side>)>, CompareError> {
        let mut found = Vec::new();
        let mut from = Txid([0; 32]);
        while found.len() < limit {
            // One prefix more than the missing differences: the prefix in which the last pass stopped may have none
            // left.
            let enough = limit - found.len() + 1;
            let rest = &differing[differing.partition_point(|prefix| *prefix < prefix_of(&from))..];
            let prefixes = &rest[..enough.min(rest.len())];
            let Some(last) = prefixes.last() else { break };
            let wanted = |txid: &Txid| *txid >= from && prefixes.binary_search(&prefix_of(txid)).is_ok();
            let (mut here, mut there) = (SmallestTxids::new(self.max_digests), SmallestTxids::new(self.max_digests));
            tokio::try_join!(
                self.scan(Side::Store, wanted, |txid, digest| here.add(txid, digest)),
                self.scan(Side::Against, wanted, |txid, digest| there.add(txid, digest)),
            )?;
            let end = here.end.into_iter().chain(there.end).min();
            found.extend(find_differences(&here.digests, &there.digests, end));
            from = match end.or_else(|| first_txid_of(last + 1)) {
                Some(next) => next,
                None => break,
            };
        }
        found.truncate(limit);
        Ok(found)
    }

    fn store_on(&self, side: Side) -> &StateStore {
        match side {
            Side::Store => self.store,
            Side::Against => self.against,
        }
    }

    /// Scans one store, and calls `each` with the digests of the transactions that are `wanted`.
    async fn scan(
        &self,
        side: Side,
        wanted: impl Fn(&Txid) -> bool,
        mut each: impl FnMut(Txid, StateDigest),
    ) -> Result<(), CompareError> {
        let failed = |error: SurveyError| CompareError { side, error };
        let mut surveyor = Surveyor::of(self.store_on(side)).await.map_err(|error| failed(error.into()))?;
        let mut scan = SetScan::new(self.store_on(side), Set::Transactions);
        while let Some(masters) = scan.next_masters().await.map_err(|error| failed(error.into()))? {
            for master in masters {
                self.scanned.set(self.scanned.get() + 1);
                if wanted(&master.txid)
                    && let Some(digest) = surveyor.transaction(&master).await.map_err(failed)?
                {
                    each(master.txid, digest);
                }
            }
            (self.progress)(self.scanned.get());
        }
        Ok(())
    }
}

/// The digests of one store, added up by prefix and in all.
struct PrefixSums {
    total: Total,
    by_prefix: Vec<StateDigest>,
}

impl PrefixSums {
    fn new() -> Self {
        PrefixSums { total: Total::default(), by_prefix: vec![StateDigest::default(); PREFIXES] }
    }

    fn add(&mut self, txid: Txid, digest: StateDigest) {
        self.total.transactions += 1;
        self.total.digest += digest;
        self.by_prefix[prefix_of(&txid)] += digest;
    }
}

/// The digests of the smallest txids, at most `capacity` of them.
struct SmallestTxids {
    digests: BTreeMap<Txid, StateDigest>,
    capacity: usize,
    /// The smallest txid that did not fit; `None`: every txid fitted.
    end: Option<Txid>,
}

impl SmallestTxids {
    fn new(capacity: usize) -> Self {
        SmallestTxids { digests: BTreeMap::new(), capacity, end: None }
    }

    fn add(&mut self, txid: Txid, digest: StateDigest) {
        if self.end.is_some_and(|end| txid >= end) {
            return;
        }
        self.digests.insert(txid, digest);
        if self.digests.len() > self.capacity {
            self.end = self.digests.pop_last().map(|(txid, _)| txid);
        }
    }
}

/// Returns the txids below `end` that differ, ascending.
fn find_differences(
    here: &BTreeMap<Txid, StateDigest>,
    there: &BTreeMap<Txid, StateDigest>,
    end: Option<Txid>,
) -> Vec<(Txid, Option<Side>)> {
    let from_here = here.iter().filter_map(|(txid, digest)| match there.get(txid) {
        None => Some((*txid, Some(Side::Store))),
        Some(other) => (other != digest).then_some((*txid, None)),
    });
    let from_there = there.keys().filter(|txid| !here.contains_key(txid)).map(|txid| (*txid, Some(Side::Against)));
    let mut found: Vec<_> = from_here.chain(from_there).filter(|(txid, _)| end.is_none_or(|end| *txid < end)).collect();
    found.sort_unstable_by_key(|(txid, _)| *txid);
    found
}

fn prefix_of(txid: &Txid) -> usize {
    usize::from(u16::from_be_bytes([txid.0[0], txid.0[1]]))
}

/// Returns the smallest txid of a prefix; `None` beyond the last prefix.
fn first_txid_of(prefix: usize) -> Option<Txid> {
    let [high, low] = u16::try_from(prefix).ok()?.to_be_bytes();
    let mut txid = [0; 32];
    (txid[0], txid[1]) = (high, low);
    Some(Txid(txid))
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
