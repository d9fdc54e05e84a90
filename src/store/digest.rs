//! The state digest, which compares two stores or a store and its rebuild: the sum modulo 2^256 of the BLAKE3 of each
//! transaction's [canonical form](super::canonical). The same scan counts the state.
//!
//! A sum needs no order. The scan visits masters in any order, and reads the other pages of a transaction by their
//! keys, a few at a time, so that memory is bounded.

use std::{fmt, ops::AddAssign};

use serde::{Serialize, Serializer};

use crate::{
    engine::{EngineError, Set},
    record::{Body, Page, Record, TxState},
};

use super::{
    StateStore,
    body::{BodyError, ParsedBody},
    canonical::{self, BodyHash, SideBlocks},
    pages::{ExtraPages, slots_of_page},
    scan::SetScan,
    stats::{SlotCounts, StoreStats},
};

/// The digest of a state: a number below 2^256 as 32 little-endian bytes, shown in hex in that order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StateDigest(pub [u8; 32]);

/// Result of a scan of a whole store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// Digest of the logical state.
    pub digest: StateDigest,
    /// Digest without the conflicting transactions: equal for histories that differ only in refused transactions.
    pub digest_without_conflicting: StateDigest,
    /// Counts of transactions, slots and blocks.
    pub stats: StoreStats,
}

/// Reasons why a scan did not end.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SurveyError {
    /// Error of the engine that no retry heals.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Body that this store cannot read.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// Scans the store for its digest and its counts. `progress` is called with the number of transactions read so far.
///
/// Digest and counts belong to one state only if the store does not change during the scan.
///
/// # Errors
/// [`SurveyError`] for an error of the engine that no retry heals, and for a body that this store cannot read.
/// Damage is no error: damage changes the digest, and [`verify`](super::verify::verify) names the damage.
pub async fn survey(store: &StateStore, mut progress: impl FnMut(u64)) -> Result<Survey, SurveyError> {
    let mut surveyor = Surveyor::of(store).await?;
    let mut scan = SetScan::new(store, Set::Transactions);
    while let Some(masters) = scan.next_masters().await? {
        for master in masters {
            surveyor.transaction(&master).await?;
        }
        progress(surveyor.scanned);
    }
    Ok(surveyor.survey)
}

/// Reads the blocks that are not on the longest chain, and the number of the blocks that are.
pub(super) async fn read_side_blocks(store: &StateStore) -> Result<(SideBlocks, u64), EngineError> {
    let (mut side, mut longest) = (SideBlocks::default(), 0);
    let mut scan = SetScan::new(store, Set::Blocks);
    while let Some(records) = scan.next().await? {
        for (_, record) in records {
            match record {
                Record::Block(block) if block.longest_chain => longest += 1,
                Record::Block(block) => drop(side.0.insert(block.block_id)),
                _ => {}
            }
        }
    }
    Ok((side, longest))
}

/// A scan in progress: digests transactions one after the other, and counts them.
pub(super) struct Surveyor<'a> {
    store: &'a StateStore,
    side: SideBlocks,
    survey: Survey,
    scanned: u64,
}

impl<'a> Surveyor<'a> {
    /// Creates a surveyor; reads the blocks that are not on the longest chain.
    pub(super) async fn of(store: &'a StateStore) -> Result<Self, EngineError> {
        let (side, blocks) = read_side_blocks(store).await?;
        let stats = StoreStats { blocks, side_blocks: side.0.len() as u64, ..StoreStats::default() };
        Ok(Surveyor { store, side, survey: Survey { stats, ..Survey::default() }, scanned: 0 })
    }

    /// Returns the digest of one transaction; `None` for a stub and for a pruned transaction.
    pub(super) async fn transaction(&mut self, master: &Page) -> Result<Option<StateDigest>, SurveyError> {
        self.scanned += 1;
        if matches!(master.state(), TxState::Stub(_) | TxState::Pruned(_)) {
            self.survey.stats.add(master, None, SlotCounts::default());
            return Ok(None);
        }
        let body = self.store.read_intact_body(master).await?;
        self.with_body(master, body.as_deref()).await.map_err(SurveyError::from)
    }

    async fn with_body(&mut self, master: &Page, body: Option<&Body>) -> Result<Option<StateDigest>, EngineError> {
        let mut form = Vec::new();
        canonical::write_head(master, body.map_or(BodyHash::MISSING, BodyHash::of), &self.side, &mut form);
        canonical::write_slots(master, &mut form);

        let parsed = body.and_then(|body| ParsedBody::parse(master.txid, body).ok());
        let mut outputs = parsed.iter().flat_map(ParsedBody::outputs);
        let mut counts = SlotCounts::count(master, &mut outputs);

        let mut hasher = blake3::Hasher::new();
        let mut pages = ExtraPages::of(self.store, master);
        while let Some((number, page)) = pages.next().await? {
            match page {
                // The pruner has begun with this transaction; the pruner replaces the master last.
                Some(page) if page.pruned.is_some() => {
                    self.survey.stats.tombstones += 1;
                    return Ok(None);
                }
                Some(page) => {
                    counts += SlotCounts::count(&page, &mut outputs);
                    canonical::write_slots(&page, &mut form);
                }
                None => {
                    let missing = slots_of_page(master, number, self.store.settings.utxo_batch_size);
                    outputs.by_ref().take(missing as usize).for_each(drop);
                    canonical::write_missing_slots(missing, &mut form);
                }
            }
            hasher.update(&form);
            form.clear();
        }
        hasher.update(&form);
        let digest = StateDigest(*hasher.finalize().as_bytes());
        self.survey.digest += digest;
        if !master.conflicting {
            self.survey.digest_without_conflicting += digest;
        }
        self.survey.stats.add(master, parsed.as_ref(), counts);
        Ok(Some(digest))
    }
}

impl AddAssign for StateDigest {
    /// Adds modulo 2^256, least significant byte first.
    fn add_assign(&mut self, other: Self) {
        let mut carry = 0;
        for (byte, other) in self.0.iter_mut().zip(other.0) {
            let sum = u16::from(*byte) + u16::from(other) + carry;
            *byte = sum as u8;
            carry = sum >> 8;
        }
    }
}

impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for StateDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
#[path = "digest_tests.rs"]
pub(super) mod tests;
