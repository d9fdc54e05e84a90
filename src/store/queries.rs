//! What the seeds ask of a whole store: which transactions are unmined, and which stand against one another (`semantics.md`, "Reads").

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    str::FromStr,
};

use serde::Serialize;

use crate::{
    engine::{EngineError, Index, Set},
    record::{BlockRecord, Key, Record, SpendingData, TxState},
    text::{hex_reversed, one_line},
    tx::{Outpoint, Txid},
};

use super::{
    Store,
    body::ParsedBody,
    into_page,
    read::{Fields, ReadError, StoredTransaction, inpoints_of},
    scan::Scan,
};

/// A transaction that no block of the longest chain lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unmined {
    /// ms since the epoch.
    pub created_at: u64,
    /// Its id.
    pub txid: Txid,
    /// Height since which.
    pub unmined_since: u32,
    /// It is half created.
    pub creating: bool,
}

/// A parent of a transaction that has been unmined for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PreservedParent {
    /// Its id.
    pub txid: Txid,
    /// Height until which it is not pruned, whatever becomes of its children; `None`: as long as one of them is unmined.
    pub preserve_until: Option<u32>,
}

/// Which block, or blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockName {
    /// By its local id.
    Id(u32),
    /// By its hash, internal order.
    Hash([u8; 32]),
    /// All of this height.
    Height(u32),
}

/// Neither a local id nor a hash.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is neither the local id of a block nor a hash of 64 hexadecimal digits", one_line(.0))]
pub struct NotABlockName(String);

impl FromStr for BlockName {
    type Err = NotABlockName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let by_id = name.parse().ok().map(BlockName::Id);
        let by_hash = || name.parse().ok().map(|Txid(hash)| BlockName::Hash(hash));
        by_id.or_else(by_hash).ok_or_else(|| NotABlockName(name.to_owned()))
    }
}

impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockName::Id(id) => write!(f, "{id}"),
            BlockName::Hash(hash) => f.write_str(&hex_reversed(hash)),
            BlockName::Height(height) => write!(f, "at height {height}"),
        }
    }
}

/// Transactions that hang together, nearest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Related {
    /// Each once.
    pub txids: Vec<Txid>,
    /// There are more than were asked for.
    pub more: bool,
}

impl Store {
    /// Transactions that no block of the longest chain lists and that are not conflicting, oldest first: all of them at
    /// once, since no index has their order; some 50 bytes each.
    ///
    /// # Errors
    /// The engine failed for good.
    pub async fn unmined(&self) -> Result<Vec<Unmined>, EngineError> {
        self.unmined_until(u64::MAX).await
    }

    /// Those among them that have been unmined since `cutoff`, a height, or longer.
    ///
    /// # Errors
    /// The engine failed for good.
    pub async fn old_unmined(&self, cutoff: u32) -> Result<Vec<Unmined>, EngineError> {
        self.unmined_until(cutoff.into()).await
    }

    async fn unmined_until(&self, cutoff: u64) -> Result<Vec<Unmined>, EngineError> {
        let keys = self.query(Index::UnminedSince, 0, cutoff, usize::MAX).await?;
        let mut unmined = Vec::new();
        for keys in keys.chunks(self.settings.batch_size.max(1)) {
            for page in self.read(keys.to_vec()).await?.into_iter().filter_map(into_page) {
                let creating = match page.state() {
                    TxState::Live => false,
                    TxState::Creating => true,
                    TxState::Stub(_) | TxState::Conflicting(_) | TxState::Pruned(_) => continue,
                };
                let Some(bins) = page.master.as_deref() else { continue };
                // Mined since the index was asked.
                let Some(unmined_since) = bins.unmined_since else { continue };
                unmined.push(Unmined { created_at: bins.created_at, txid: page.txid, unmined_since, creating });
            }
        }
        unmined.sort_unstable();
        // A query may tell of a record twice.
        unmined.dedup_by_key(|unmined| unmined.txid);
        Ok(unmined)
    }

    /// The parents of [`old_unmined`](Self::old_unmined) transactions that are there, by their ids: what the seed preserves by height, and
    /// the pruner keeps as long as a spender is unmined.
    ///
    /// # Errors
    /// The engine failed for good, or a body cannot be had.
    pub async fn preserved_parents(&self, cutoff: u32) -> Result<Vec<PreservedParent>, ReadError> {
        let mut parents = BTreeSet::new();
        for unmined in self.old_unmined(cutoff).await? {
            let Some(stored) = self.get(unmined.txid, Fields { body: true, slots: false }).await? else { continue };
            parents.extend(outpoints_of(&stored)?.into_iter().map(|outpoint| outpoint.txid));
        }
        let parents: Vec<Txid> = parents.into_iter().collect();
        let mut preserved = Vec::new();
        for chunk in parents.chunks(self.settings.batch_size.max(1)) {
            for page in self.masters(chunk).await?.into_iter().flatten().filter(|page| page.utxos.is_some()) {
                let preserve_until = page.master.as_deref().and_then(|bins| bins.preserve_until);
                preserved.push(PreservedParent { txid: page.txid, preserve_until });
            }
        }
        Ok(preserved)
    }

    /// The blocks of this name, by their local ids. But for one that is named by its id all that are known are looked at.
    ///
    /// # Errors
    /// The engine failed for good.
    pub async fn find_blocks(&self, name: BlockName) -> Result<Vec<BlockRecord>, EngineError> {
        let mut found = Vec::new();
        if let BlockName::Id(id) = name {
            found.extend(self.read(vec![Key::Block(id)]).await?.into_iter().filter_map(into_block));
            return Ok(found);
        }
        let mut scan = Scan::new(self, Set::Blocks);
        while let Some(records) = scan.next().await? {
            let blocks = records.into_iter().filter_map(|(_, record)| into_block(Some(record)));
            found.extend(blocks.filter(|block| match name {
                BlockName::Id(id) => block.block_id == id,
                BlockName::Hash(hash) => block.hash == hash,
                BlockName::Height(height) => block.height == height,
            }));
        }
        found.sort_unstable_by_key(|block| block.block_id);
        found.dedup_by_key(|block| block.block_id);
        Ok(found)
    }

    /// The conflicting transactions that descend from this one, at most `limit`.
    ///
    /// # Errors
    /// The engine failed for good.
    pub async fn conflicting_descendants(&self, txid: Txid, limit: usize) -> Result<Related, EngineError> {
        let mut walk = Walk::from([txid], limit);
        while let Some(next) = walk.next() {
            let master = self.master(next).await?;
            let children = master.iter().flat_map(|page| page.master.as_deref());
            walk.found(children.flat_map(|bins| bins.conflicting_children.iter().copied()));
        }
        Ok(walk.others_than(&txid))
    }

    /// Who would become conflicting if this transaction won: whoever holds what it spends, and all that spends their outputs; at most
    /// `limit`. `None`: there is no such transaction, or only a part of it.
    ///
    /// # Errors
    /// The engine failed for good, or what should be there could not be read.
    pub async fn counter_conflicting(&self, txid: Txid, limit: usize) -> Result<Option<Related>, ReadError> {
        let Some(stored) = self.get(txid, Fields { body: true, slots: false }).await? else { return Ok(None) };
        if stored.body.is_none() {
            return Ok(None);
        }
        let mut rivals = Vec::new();
        for outpoint in outpoints_of(&stored)? {
            let holder = self.slot(outpoint).await?.and_then(|slot| slot.spender());
            rivals.extend(holder.map(|holder| holder.txid).filter(|holder| *holder != txid));
        }
        let mut walk = Walk::from(rivals, limit);
        while let Some(next) = walk.next() {
            let stored = self.get(next, Fields { slots: true, body: false }).await?;
            let slots = stored.iter().flat_map(|stored| &stored.slots);
            walk.found(slots.filter_map(|slot| slot.spender()).map(|SpendingData { txid, .. }| txid));
        }
        Ok(Some(walk.others_than(&txid)))
    }
}

fn into_block(record: Option<Record>) -> Option<BlockRecord> {
    match record {
        Some(Record::Block(block)) => Some(block),
        _ => None,
    }
}

fn outpoints_of(stored: &StoredTransaction) -> Result<Vec<Outpoint>, ReadError> {
    let Some(body) = &stored.body else { return Ok(Vec::new()) };
    let parsed = ParsedBody::parse(stored.master.txid, body)?;
    let spends = parsed.transaction().map(inpoints_of).unwrap_or_default();
    let of_parent = |(txid, indexes): (Txid, Vec<u32>)| indexes.into_iter().map(move |vout| Outpoint { txid, vout });
    Ok(spends.parent_txids.into_iter().zip(spends.indexes).flat_map(of_parent).collect())
}

/// A walk in breadth over transactions, each met once.
struct Walk {
    met: Vec<Txid>,
    known: BTreeSet<Txid>,
    open: VecDeque<Txid>,
    limit: usize,
    more: bool,
}

impl Walk {
    fn from(first: impl IntoIterator<Item = Txid>, limit: usize) -> Self {
        let (met, known, open) = (Vec::new(), BTreeSet::new(), VecDeque::new());
        // Where it begins is not counted.
        let mut walk = Walk { met, known, open, limit: limit.saturating_add(1), more: false };
        walk.found(first);
        walk
    }

    fn next(&mut self) -> Option<Txid> {
        self.open.pop_front()
    }

    fn found(&mut self, txids: impl IntoIterator<Item = Txid>) {
        for txid in txids {
            if self.known.contains(&txid) {
                continue;
            }
            if self.met.len() >= self.limit {
                self.more = true;
                return;
            }
            self.known.insert(txid);
            self.met.push(txid);
            self.open.push_back(txid);
        }
    }

    fn others_than(mut self, txid: &Txid) -> Related {
        self.met.retain(|met| met != txid);
        self.more |= self.met.len() >= self.limit;
        self.met.truncate(self.limit - 1);
        Related { txids: self.met, more: self.more }
    }
}

#[cfg(test)]
#[path = "queries_tests.rs"]
mod tests;
