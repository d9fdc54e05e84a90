//! Queries over a whole store: unmined transactions, their parents, blocks, and transactions in conflict
//! (`docs/semantics.md`, "Reads").

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    str::FromStr,
};

use serde::Serialize;

use crate::{
    engine::{EngineError, Index, Set},
    record::{BlockRecord, Key, LockRecord, Record, SpendingData},
    text::{hex_reversed, one_line, parse_decimal},
    tx::{Outpoint, Txid},
};

use super::{
    StateStore,
    body::ParsedBody,
    into_page,
    read::{ReadError, ReadFields, StoredTransaction, TxReader, inpoints_of},
    scan::SetScan,
    tx_list::find_unmined,
};

/// A transaction that no block of the longest chain lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UnminedTx {
    /// Time of the creation, ms since the epoch.
    pub created_at: u64,
    /// Txid of the transaction.
    pub txid: Txid,
    /// Height since which the transaction is unmined.
    pub unmined_since: u32,
    /// The transaction is half created.
    pub creating: bool,
}

/// A parent of a transaction that has been unmined for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PreservedParent {
    /// Txid of the parent.
    pub txid: Txid,
    /// Height of `preserveUntil`, until which the parent is not pruned. `None`: the parent is kept while a child is
    /// unmined.
    pub preserve_until: Option<u32>,
}

/// Selection of one block or of all blocks of a height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockName {
    /// Local id of the block.
    Id(u32),
    /// Hash of the block, in internal byte order.
    Hash([u8; 32]),
    /// Height, selecting all blocks of it.
    Height(u32),
}

/// Error for a text that is neither a local id nor a hash.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is neither the local id of a block nor a hash of 64 hexadecimal digits", one_line(.0))]
pub struct InvalidBlockName(String);

impl FromStr for BlockName {
    type Err = InvalidBlockName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let by_id = parse_decimal(name).map(BlockName::Id);
        let by_hash = || name.parse().ok().map(|Txid(hash)| BlockName::Hash(hash));
        by_id.or_else(by_hash).ok_or_else(|| InvalidBlockName(name.to_owned()))
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

/// Related transactions, nearest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RelatedTxs {
    /// Txids of the transactions, each once.
    pub txids: Vec<Txid>,
    /// True if more transactions exist than the limit allows.
    pub more: bool,
}

/// Queries over a whole store.
#[derive(Clone, Copy)]
pub struct StoreQueries<'a> {
    store: &'a StateStore,
}

impl<'a> StoreQueries<'a> {
    /// Creates the queries of this store.
    pub fn of(store: &'a StateStore) -> Self {
        StoreQueries { store }
    }

    /// Reads the transactions that are unmined since the height `cutoff` or before, and not conflicting, oldest first.
    /// The list is returned as a whole, about 50 bytes for each transaction, since no index has their order.
    pub async fn old_unmined(&self, cutoff: u32) -> Result<Vec<UnminedTx>, EngineError> {
        let keys = self.store.query(Index::UnminedSince, 0, cutoff.into(), usize::MAX).await?;
        let mut unmined = Vec::new();
        for keys in keys.chunks(self.store.settings.batch_size.max(1)) {
            for page in self.store.read(keys.to_vec()).await?.into_iter().filter_map(into_page) {
                unmined.extend(find_unmined(&page));
            }
        }
        unmined.sort_unstable();
        // A query may return a record twice.
        unmined.dedup_by_key(|unmined| unmined.txid);
        Ok(unmined)
    }

    /// Reads the parents of [`old_unmined`](Self::old_unmined) transactions that exist, in the order of their txids.
    /// The reference document preserves these parents by height; the pruner keeps them while a spender is unmined.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals, or a body cannot be read.
    pub async fn preserved_parents(&self, cutoff: u32) -> Result<Vec<PreservedParent>, ReadError> {
        let reader = TxReader::of(self.store);
        let mut parents = BTreeSet::new();
        for unmined in self.old_unmined(cutoff).await? {
            let Some(stored) = reader.get(unmined.txid, ReadFields { body: true, slots: false }).await? else {
                continue;
            };
            parents.extend(outpoints_of(&stored)?.into_iter().map(|outpoint| outpoint.txid));
        }
        let parents: Vec<Txid> = parents.into_iter().collect();
        let mut preserved = Vec::new();
        for chunk in parents.chunks(self.store.settings.batch_size.max(1)) {
            for page in self.store.masters(chunk).await?.into_iter().flatten().filter(|page| page.utxos.is_some()) {
                let preserve_until = page.master.as_deref().and_then(|bins| bins.preserve_until);
                preserved.push(PreservedParent { txid: page.txid, preserve_until });
            }
        }
        Ok(preserved)
    }

    /// Finds the blocks of this name, in the order of their local ids. A hash or height scans all block records.
    pub async fn find_blocks(&self, name: BlockName) -> Result<Vec<BlockRecord>, EngineError> {
        let mut found = Vec::new();
        if let BlockName::Id(id) = name {
            found.extend(self.store.read(vec![Key::Block(id)]).await?.into_iter().filter_map(into_block));
            return Ok(found);
        }
        let mut scan = SetScan::new(self.store, Set::Blocks);
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

    /// Reads all lock records, with the transactions whose pages they guard.
    pub async fn lock_records(&self, mut each: impl FnMut(Txid, LockRecord)) -> Result<(), EngineError> {
        let mut scan = SetScan::new(self.store, Set::Transactions);
        while let Some(records) = scan.next().await? {
            for (key, record) in records {
                if let (Key::LockRecord(txid), Record::LockRecord(lock_record)) = (key, record) {
                    each(txid, lock_record);
                }
            }
        }
        Ok(())
    }

    /// Reads the conflicting descendants of this transaction, at most `limit`.
    pub async fn conflicting_descendants(&self, txid: Txid, limit: usize) -> Result<RelatedTxs, EngineError> {
        let mut walk = BreadthFirstWalk::from([txid], limit);
        while let Some(next) = walk.next() {
            let master = self.store.master(next).await?;
            let children = master.iter().flat_map(|page| page.master.as_deref());
            walk.add(children.flat_map(|bins| bins.conflicting_children.iter().copied()));
        }
        Ok(walk.into_related(&txid))
    }

    /// Reads the transactions that would become conflicting if this transaction won: the other holders of the slots
    /// that it spends, and the descendants of these; at most `limit`. `None`: the transaction does not exist or has no
    /// body.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals, or a page or body cannot be read.
    pub async fn counter_conflicting(&self, txid: Txid, limit: usize) -> Result<Option<RelatedTxs>, ReadError> {
        let reader = TxReader::of(self.store);
        let Some(stored) = reader.get(txid, ReadFields { body: true, slots: false }).await? else { return Ok(None) };
        if stored.body.is_none() {
            return Ok(None);
        }
        let mut rivals = Vec::new();
        for outpoint in outpoints_of(&stored)? {
            let holder = reader.slot(outpoint).await?.and_then(|slot| slot.spender());
            rivals.extend(holder.map(|holder| holder.txid).filter(|holder| *holder != txid));
        }
        let mut walk = BreadthFirstWalk::from(rivals, limit);
        while let Some(next) = walk.next() {
            let stored = reader.get(next, ReadFields { slots: true, body: false }).await?;
            let slots = stored.iter().flat_map(|stored| &stored.slots);
            walk.add(slots.filter_map(|slot| slot.spender()).map(|SpendingData { txid, .. }| txid));
        }
        Ok(Some(walk.into_related(&txid)))
    }
}

pub(super) fn into_block(record: Option<Record>) -> Option<BlockRecord> {
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

/// A breadth-first walk over transactions, each visited once.
struct BreadthFirstWalk {
    visited: Vec<Txid>,
    known: BTreeSet<Txid>,
    pending: VecDeque<Txid>,
    limit: usize,
    more: bool,
}

impl BreadthFirstWalk {
    fn from(first: impl IntoIterator<Item = Txid>, limit: usize) -> Self {
        let (visited, known, pending) = (Vec::new(), BTreeSet::new(), VecDeque::new());
        // The start is not counted towards the limit.
        let mut walk = BreadthFirstWalk { visited, known, pending, limit: limit.saturating_add(1), more: false };
        walk.add(first);
        walk
    }

    fn next(&mut self) -> Option<Txid> {
        self.pending.pop_front()
    }

    fn add(&mut self, txids: impl IntoIterator<Item = Txid>) {
        for txid in txids {
            if self.known.contains(&txid) {
                continue;
            }
            if self.visited.len() >= self.limit {
                self.more = true;
                return;
            }
            self.known.insert(txid);
            self.visited.push(txid);
            self.pending.push_back(txid);
        }
    }

    fn into_related(mut self, txid: &Txid) -> RelatedTxs {
        self.visited.retain(|visited| visited != txid);
        self.more |= self.visited.len() >= self.limit;
        self.visited.truncate(self.limit - 1);
        RelatedTxs { txids: self.visited, more: self.more }
    }
}

#[cfg(test)]
#[path = "queries_tests.rs"]
mod tests;
