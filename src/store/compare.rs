//! Compares two stores by the digests of their transactions, and names the first that differ.
//!
//! In bounded memory, whatever they hold. The digest of a store is a sum, and so is that of every part of it: one scan of each
//! adds up by the first two bytes of the txid. Then only what lies under prefixes whose sums differ is digested again, the least
//! txids first and so many at a time; usually one pass is enough, since every such prefix holds a difference.

use std::{cell::Cell, collections::BTreeMap, fmt};

use serde::Serialize;

use crate::{engine::Set, tx::Txid};

use super::{
    Store,
    canonical::SideBlocks,
    digest::{StateDigest, SurveyError, Surveyor},
    scan::Scan,
};

mod fields;

use fields::Seen;
pub use fields::{Field, MOST_FIELDS};

const PREFIXES: usize = 1 << 16;
/// Digests of one store held at a time: some fifty megabytes.
const HELD: usize = 500_000;

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The first.
    Store,
    /// The one that it is compared with.
    Against,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Store => "store",
            Side::Against => "against",
        })
    }
}

/// One of the two could not be read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("--{side}: {error}")]
pub struct CompareError {
    /// Which.
    pub side: Side,
    /// Why.
    pub error: SurveyError,
}

/// What one of the two holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Transactions that the digest covers.
    pub transactions: u64,
    /// The digest.
    pub digest: StateDigest,
}

/// A transaction that is not the same in both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Its id.
    pub txid: Txid,
    /// How it differs.
    #[serde(flatten)]
    pub how: How,
}

/// How a transaction differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// It is in one store only.
    OnlyIn(Side),
    /// These fields of its canonical form do, and perhaps more: at the most [`MOST_FIELDS`] are told. None at all: it has changed
    /// since it was digested.
    Fields(Vec<Field>),
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Of the first store.
    pub store: Total,
    /// Of the other one.
    pub against: Total,
    /// The first transactions that differ, ascending by the bytes of the txid (internal order, as in `dump`).
    pub first: Vec<Difference>,
    /// So many differ at the least: as many as are named where those are all.
    pub at_least: u64,
}

impl Comparison {
    /// Whether both hold the same.
    pub fn is_same(&self) -> bool {
        self.store.digest == self.against.digest
    }
}

/// Compares two stores, and names the first `limit` transactions that differ. `progress` is told how many transactions were seen
/// so far, in both and in all scans.
///
/// Where one of them changes meanwhile, what is named may not be all that differs, or no longer differ.
///
/// # Errors
/// One of them could not be read; as [`Store::survey`].
pub async fn compare(
    store: &Store,
    against: &Store,
    limit: usize,
    progress: impl Fn(u64),
) -> Result<Comparison, CompareError> {
    Comparer { store, against, held: HELD, seen: Cell::new(0), progress }.compare(limit).await
}

struct Comparer<'a, P> {
    store: &'a Store,
    against: &'a Store,
    /// Digests of one store held at a time.
    held: usize,
    seen: Cell<u64>,
    progress: P,
}

impl<P: Fn(u64)> Comparer<'_, P> {
    async fn compare(&self, limit: usize) -> Result<Comparison, CompareError> {
        let (mut sums, mut other) = (Sums::new(), Sums::new());
        tokio::try_join!(
            self.scan(Side::Store, |_| true, |txid, digest| sums.add(txid, digest)),
            self.scan(Side::Against, |_| true, |txid, digest| other.add(txid, digest)),
        )?;
        let differ: Vec<usize> = (0..PREFIXES).filter(|prefix| sums.parts[*prefix] != other.parts[*prefix]).collect();
        let found = self.first(&differ, limit).await?;
        let at_least = differ.len().max(found.len()) as u64;
        let first = self.told(found).await?;
        Ok(Comparison { store: sums.total, against: other.total, first, at_least })
    }

    /// How those differ that were found.
    async fn told(&self, found: Vec<(Txid, Option<Side>)>) -> Result<Vec<Difference>, CompareError> {
        let side = async |side: Side| match self.on(side).blocks().await {
            Ok((blocks, _)) => Ok(blocks),
            Err(error) => Err(CompareError { side, error: error.into() }),
        };
        let (blocks, other_blocks) = (side(Side::Store).await?, side(Side::Against).await?);
        let seen = async |side: Side, blocks: &SideBlocks, txid: Txid| {
            Seen::read(self.on(side), blocks, txid).await.map_err(|error| CompareError { side, error })
        };
        let mut first = Vec::with_capacity(found.len());
        for (txid, only_in) in found {
            let how = match only_in {
                Some(side) => How::OnlyIn(side),
                None => {
                    let here = seen(Side::Store, &blocks, txid).await?;
                    let there = seen(Side::Against, &other_blocks, txid).await?;
                    How::Fields(here.zip(there).map_or(Vec::new(), |(here, there)| fields::differing(&here, &there)))
                }
            };
            first.push(Difference { txid, how });
        }
        Ok(first)
    }

    /// The first transactions under these prefixes that differ, ascending; each with the side that it is on, where it is on one only.
    async fn first(&self, differ: &[usize], limit: usize) -> Result<Vec<(Txid, Option<Side>)>, CompareError> {
        let mut found = Vec::new();
        let mut from = Txid([0; 32]);
        while found.len() < limit {
            // Each prefix holds a difference, but perhaps the one that the last pass stopped in.
            let enough = limit - found.len() + 1;
            let rest = &differ[differ.partition_point(|prefix| *prefix < prefix_of(&from))..];
            let prefixes = &rest[..enough.min(rest.len())];
            let Some(last) = prefixes.last() else { break };
            let wanted = |txid: &Txid| *txid >= from && prefixes.binary_search(&prefix_of(txid)).is_ok();
            let (mut here, mut there) = (Least::new(self.held), Least::new(self.held));
            tokio::try_join!(
                self.scan(Side::Store, wanted, |txid, digest| here.add(txid, digest)),
                self.scan(Side::Against, wanted, |txid, digest| there.add(txid, digest)),
            )?;
            let end = here.end.into_iter().chain(there.end).min();
            found.extend(differences(&here.digests, &there.digests, end));
            from = match end.or_else(|| beginning_of(last + 1)) {
                Some(next) => next,
                None => break,
            };
        }
        found.truncate(limit);
        Ok(found)
    }

    fn on(&self, side: Side) -> &Store {
        match side {
            Side::Store => self.store,
            Side::Against => self.against,
        }
    }

    /// Digests whatever is wanted of one store.
    async fn scan(
        &self,
        side: Side,
        wanted: impl Fn(&Txid) -> bool,
        mut each: impl FnMut(Txid, StateDigest),
    ) -> Result<(), CompareError> {
        let failed = |error: SurveyError| CompareError { side, error };
        let mut surveyor = Surveyor::of(self.on(side)).await.map_err(|error| failed(error.into()))?;
        let mut scan = Scan::new(self.on(side), Set::Transactions);
        while let Some(masters) = scan.next_masters().await.map_err(|error| failed(error.into()))? {
            for master in masters {
                self.seen.set(self.seen.get() + 1);
                if wanted(&master.txid)
                    && let Some(digest) = surveyor.transaction(&master).await.map_err(failed)?
                {
                    each(master.txid, digest);
                }
            }
            (self.progress)(self.seen.get());
        }
        Ok(())
    }
}

/// The digests of one store, added up by prefix.
struct Sums {
    total: Total,
    parts: Vec<StateDigest>,
}

impl Sums {
    fn new() -> Self {
        Sums { total: Total::default(), parts: vec![StateDigest::default(); PREFIXES] }
    }

    fn add(&mut self, txid: Txid, digest: StateDigest) {
        self.total.transactions += 1;
        self.total.digest += digest;
        self.parts[prefix_of(&txid)] += digest;
    }
}

/// The digests of the least txids, no more than `most`.
struct Least {
    digests: BTreeMap<Txid, StateDigest>,
    most: usize,
    /// From here on there was no room.
    end: Option<Txid>,
}

impl Least {
    fn new(most: usize) -> Self {
        Least { digests: BTreeMap::new(), most, end: None }
    }

    fn add(&mut self, txid: Txid, digest: StateDigest) {
        if self.end.is_some_and(|end| txid >= end) {
            return;
        }
        self.digests.insert(txid, digest);
        if self.digests.len() > self.most {
            self.end = self.digests.pop_last().map(|(txid, _)| txid);
        }
    }
}

/// Whatever differs below `end`, ascending.
fn differences(
    here: &BTreeMap<Txid, StateDigest>,
    there: &BTreeMap<Txid, StateDigest>,
    end: Option<Txid>,
) -> Vec<(Txid, Option<Side>)> {
    let of_here = here.iter().filter_map(|(txid, digest)| match there.get(txid) {
        None => Some((*txid, Some(Side::Store))),
        Some(other) => (other != digest).then_some((*txid, None)),
    });
    let of_there = there.keys().filter(|txid| !here.contains_key(txid)).map(|txid| (*txid, Some(Side::Against)));
    let mut found: Vec<_> = of_here.chain(of_there).filter(|(txid, _)| end.is_none_or(|end| *txid < end)).collect();
    found.sort_unstable_by_key(|(txid, _)| *txid);
    found
}

fn prefix_of(txid: &Txid) -> usize {
    usize::from(u16::from_be_bytes([txid.0[0], txid.0[1]]))
}

/// The least txid of a prefix; `None` beyond the last.
fn beginning_of(prefix: usize) -> Option<Txid> {
    let [high, low] = u16::try_from(prefix).ok()?.to_be_bytes();
    let mut txid = [0; 32];
    (txid[0], txid[1]) = (high, low);
    Some(Txid(txid))
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
