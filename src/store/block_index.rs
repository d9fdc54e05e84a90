//! [`BlockIndex`]: the blocks of a store by hash and by height, in the memory of a process.
//!
//! The key of a block record is the local id of the block, and no record has the ids by hash or by height. A process
//! that answers such questions reads all block records once. Later blocks are read by their ids, from the greatest
//! known id on, until the tip of the chain is known. Each answer reads the records themselves: a reorg changes records,
//! and changes neither hash nor height of an id.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};

use super::{
    StateStore,
    meta::MetaError,
    queries::{BlockName, into_block},
    scan::SetScan,
};
use crate::{
    engine::{EngineError, ErrorKind, Set},
    record::{BlockRecord, ChainTip, Key},
};

/// Ids that are read at a time beyond the greatest known id.
const IDS_AT_A_TIME: u32 = 64;
/// Refreshes for one question: the chain can move on while the records are read.
const REFRESHES: usize = 3;

/// Blocks of a store by hash and by height. Clones share the blocks.
#[derive(Clone, Default)]
pub struct BlockIndex(Arc<Mutex<IndexState>>);

#[derive(Default)]
struct IndexState {
    known: KnownBlocks,
    /// Refresh that runs, for every question that needs its result.
    refresh: Option<Refresh>,
}

type Refresh = Shared<BoxFuture<'static, Result<(), EngineError>>>;

/// Ids of blocks by hash and by height. Pure.
#[derive(Debug, Default)]
struct KnownBlocks {
    /// First eight bytes of the hash, internal order, and the id. Those bytes carry no proof of work.
    by_hash: BTreeSet<(u64, u32)>,
    by_height: BTreeSet<(u32, u32)>,
    greatest_id: u32,
    /// Chain offset below which every block is known; `None`: the records were not read yet.
    complete_below: Option<u64>,
}

impl KnownBlocks {
    fn add(&mut self, block: &BlockRecord) {
        self.by_hash.insert((hash_prefix(&block.hash), block.block_id));
        self.by_height.insert((block.height, block.block_id));
        self.greatest_id = self.greatest_id.max(block.block_id);
    }

    /// Returns the ids of the blocks that can have this name.
    fn find(&self, name: BlockName) -> Vec<u32> {
        match name {
            BlockName::Id(id) => vec![id],
            BlockName::Hash(hash) => {
                let prefix = hash_prefix(&hash);
                self.by_hash.range((prefix, 0)..=(prefix, u32::MAX)).map(|(_, id)| *id).collect()
            }
            BlockName::Height(height) => {
                self.by_height.range((height, 0)..=(height, u32::MAX)).map(|(_, id)| *id).collect()
            }
        }
    }

    /// Returns whether every block below this chain offset is known.
    fn is_complete(&self, chain_offset: u64) -> bool {
        self.complete_below.is_some_and(|below| below >= chain_offset)
    }
}

fn hash_prefix(hash: &[u8; 32]) -> u64 {
    let [prefix, ..] = hash.as_chunks::<8>().0 else { return 0 };
    u64::from_be_bytes(*prefix)
}

impl BlockIndex {
    /// Finds the blocks of this name, in the order of their local ids. The first question by hash or height reads all
    /// block records; a caller that does not wait for the end finds them read at the next question.
    ///
    /// # Errors
    /// The store answers with an error that no retry heals.
    pub async fn find(&self, store: &StateStore, name: BlockName) -> Result<Vec<BlockRecord>, EngineError> {
        if let BlockName::Id(_) = name {
            return self.read_known(store, name).await;
        }
        for _ in 0..REFRESHES {
            let tip = read_tip(store).await?.unwrap_or_default();
            let is_complete = self.lock().known.is_complete(tip.chain_offset);
            let found = self.read_known(store, name).await?;
            // A hash has one block; a height can get another one.
            if is_complete || matches!(name, BlockName::Hash(_)) && !found.is_empty() {
                return Ok(found);
            }
            self.refresh(store, tip).await?;
        }
        self.read_known(store, name).await
    }

    /// Reads the known blocks of this name.
    async fn read_known(&self, store: &StateStore, name: BlockName) -> Result<Vec<BlockRecord>, EngineError> {
        let keys = self.lock().known.find(name).into_iter().map(Key::Block).collect();
        let mut found: Vec<BlockRecord> = store.read(keys).await?.into_iter().filter_map(into_block).collect();
        found.retain(|block| match name {
            BlockName::Id(id) => block.block_id == id,
            BlockName::Hash(hash) => block.hash == hash,
            BlockName::Height(height) => block.height == height,
        });
        Ok(found)
    }

    /// Waits for the refresh that runs, or for one of its own. The refresh goes on when the caller is dropped.
    async fn refresh(&self, store: &StateStore, tip: ChainTip) -> Result<(), EngineError> {
        let refresh = {
            let mut state = self.lock();
            match state.refresh.as_ref().filter(|refresh| refresh.peek().is_none()) {
                Some(running) => running.clone(),
                None => {
                    let task = tokio::spawn(self.clone().read_blocks(store.clone(), tip));
                    let refresh = task.map(|ended| ended.unwrap_or_else(|error| Err(failed_task(&error))));
                    let refresh = refresh.boxed().shared();
                    state.refresh = Some(refresh.clone());
                    refresh
                }
            }
        };
        refresh.await
    }

    /// Reads the blocks that are not known yet: those of greater ids, or all where the tip is not among them.
    async fn read_blocks(self, store: StateStore, tip: ChainTip) -> Result<(), EngineError> {
        let was_read = self.lock().known.complete_below.is_some();
        if !(was_read && self.read_next_ids(&store, tip).await?) {
            let mut scan = SetScan::new(&store, Set::Blocks);
            while let Some(records) = scan.next().await? {
                let blocks = records.into_iter().filter_map(|(_, record)| into_block(Some(record)));
                let mut state = self.lock();
                blocks.for_each(|block| state.known.add(&block));
            }
        }
        let mut state = self.lock();
        state.known.complete_below = state.known.complete_below.max(Some(tip.chain_offset));
        Ok(())
    }

    /// Reads the blocks with ids around the greatest known one and above it: a side block can come after a block with a
    /// greater id. Returns whether the tip is known then.
    async fn read_next_ids(&self, store: &StateStore, tip: ChainTip) -> Result<bool, EngineError> {
        let mut first = self.lock().known.greatest_id.saturating_sub(IDS_AT_A_TIME - 1);
        loop {
            let keys = (first..first.saturating_add(IDS_AT_A_TIME)).map(Key::Block).collect();
            let blocks: Vec<BlockRecord> = store.read(keys).await?.into_iter().filter_map(into_block).collect();
            if blocks.is_empty() {
                let has_no_tip = tip.hash == [0; 32];
                return Ok(has_no_tip || !self.read_known(store, BlockName::Hash(tip.hash)).await?.is_empty());
            }
            let mut state = self.lock();
            blocks.iter().for_each(|block| state.known.add(block));
            first = state.known.greatest_id.saturating_add(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, IndexState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the tip of the longest chain; `None`: no block was handled yet.
async fn read_tip(store: &StateStore) -> Result<Option<ChainTip>, EngineError> {
    match store.meta().await {
        Ok(meta) => Ok(meta.and_then(|meta| meta.tip)),
        Err(MetaError::Engine(error)) => Err(error),
        Err(error) => Err(index_error(error.to_string())),
    }
}

fn failed_task(error: &tokio::task::JoinError) -> EngineError {
    index_error(format!("the read of the block records has ended: {error}"))
}

fn index_error(message: String) -> EngineError {
    EngineError { kind: ErrorKind::Fatal, operation: "find blocks", key: "blocks".to_owned(), message }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{
        engine::{Cursor, EngineDecorator, RecordEngine, ScanPage},
        record::{Operation, Phase, Sequenced, Stamp},
        store::{meta::StoreMeta, testing::store},
    };

    /// Counts the scans of the engine within.
    struct CountingEngine {
        inner: Arc<dyn RecordEngine>,
        scans: AtomicUsize,
    }

    impl EngineDecorator for CountingEngine {
        fn inner(&self) -> &dyn RecordEngine {
            self.inner.as_ref()
        }

        async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
            self.scans.fetch_add(usize::from(cursor.is_none()), Ordering::Relaxed);
            self.inner().scan(set, cursor, limit).await
        }
    }

    fn block(block_id: u32, height: u32) -> BlockRecord {
        let mut hash = [7; 32];
        hash[12..16].copy_from_slice(&block_id.to_le_bytes());
        BlockRecord {
            block_id,
            hash,
            previous: [0; 32],
            height,
            time: 0,
            longest_chain: true,
            progress: 0,
            chain_pos: None,
        }
    }

    async fn put(store: &StateStore, block: &BlockRecord) {
        let stamp = Stamp { offset: u64::from(block.block_id), phase: Phase::Apply };
        let operation = Operation::Sequenced(stamp, Sequenced::PutBlock(block.clone()));
        store.apply_one(crate::engine::Row { key: Key::Block(block.block_id), operation }).await.unwrap();
    }

    async fn set_tip(store: &StateStore, chain_offset: u64, block: &BlockRecord) {
        let tip = ChainTip { chain_offset, height: block.height, hash: block.hash, median_time: 0 };
        let change = |mut meta: crate::record::MetaRecord| {
            meta.tip = Some(tip);
            Ok(meta)
        };
        StoreMeta::of(store).change(change).await.unwrap();
    }

    #[tokio::test]
    async fn blocks_are_read_once_and_later_ones_by_their_ids() {
        let mut store = store(100);
        StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        let engine = Arc::new(CountingEngine { inner: store.engine.clone(), scans: AtomicUsize::new(0) });
        store.engine = engine.clone();
        let index = BlockIndex::default();
        let ids = async |name| -> Vec<u32> {
            let found = index.find(&store, name).await.unwrap();
            found.iter().map(|block| block.block_id).collect()
        };
        for (id, height) in [(1, 10), (2, 11), (3, 11), (40, 12)] {
            put(&store, &block(id, height)).await;
        }
        set_tip(&store, 7, &block(40, 12)).await;
        assert_eq!(ids(BlockName::Height(11)).await, [2, 3]);
        assert_eq!(ids(BlockName::Hash(block(3, 11).hash)).await, [3], "all hashes begin alike");
        assert_eq!(ids(BlockName::Hash([7; 32])).await, [] as [u32; 0]);
        assert_eq!(ids(BlockName::Height(13)).await, [] as [u32; 0]);
        assert_eq!(engine.scans.load(Ordering::Relaxed), 1);

        for (id, height) in [(41, 13), (60, 13), (61, 11)] {
            put(&store, &block(id, height)).await;
        }
        set_tip(&store, 12, &block(60, 13)).await;
        assert_eq!(ids(BlockName::Hash(block(60, 13).hash)).await, [60]);
        assert_eq!(ids(BlockName::Height(11)).await, [2, 3, 61]);
        assert_eq!(engine.scans.load(Ordering::Relaxed), 1, "later blocks were read by their ids");

        // A side block comes after a block with a greater id.
        for (id, height) in [(62, 14), (59, 13)] {
            put(&store, &block(id, height)).await;
        }
        set_tip(&store, 13, &block(62, 14)).await;
        assert_eq!(ids(BlockName::Hash(block(59, 13).hash)).await, [59]);
        assert_eq!(ids(BlockName::Height(13)).await, [41, 59, 60]);
        assert_eq!(engine.scans.load(Ordering::Relaxed), 1);

        // The tip is beyond a wide gap of ids.
        put(&store, &block(500, 15)).await;
        set_tip(&store, 14, &block(500, 15)).await;
        assert_eq!(ids(BlockName::Height(15)).await, [500]);
        assert_eq!(ids(BlockName::Id(500)).await, [500]);
        assert_eq!(engine.scans.load(Ordering::Relaxed), 2);
    }
}
