//! Lookup of the blocks that list a transaction: which of them are on the longest chain.

use std::collections::BTreeMap;

use crate::{
    engine::EngineError,
    record::{Key, MinedIn, Record},
    store::StateStore,
};

/// Loaded blocks by local id; `true`: the block is on the longest chain. A reorg changes the answers, so that one value
/// serves one step only.
#[derive(Debug, Default)]
pub struct LongestChainBlocks(BTreeMap<u32, bool>);

impl LongestChainBlocks {
    /// Loads the blocks of these entries that are not loaded yet.
    pub async fn load<'a>(
        &mut self,
        store: &StateStore,
        mined: impl Iterator<Item = &'a MinedIn>,
    ) -> Result<(), EngineError> {
        let mut missing: Vec<u32> = mined.map(|mined| mined.block_id).filter(|id| !self.0.contains_key(id)).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            return Ok(());
        }
        let records = store.read(missing.iter().map(|id| Key::Block(*id)).collect()).await?;
        for (id, record) in missing.into_iter().zip(records) {
            // The block of a partial transaction has no record and counts as one of the longest chain.
            let longest = !matches!(record, Some(Record::Block(block)) if !block.longest_chain);
            self.0.insert(id, longest);
        }
        Ok(())
    }

    /// The greatest height of the entries whose blocks are on the longest chain. The blocks must have been loaded.
    pub fn greatest_height(&self, mined: &[MinedIn]) -> Option<u32> {
        let longest = |mined: &&MinedIn| self.0.get(&mined.block_id).copied().unwrap_or(true);
        mined.iter().filter(longest).map(|mined| mined.height).max()
    }
}
