//! Which of the blocks that list a transaction are on the longest chain.

use std::collections::BTreeMap;

use crate::{
    engine::EngineError,
    record::{Key, MinedIn, Record},
    store::Store,
};

/// Blocks that have been asked for. A reorg changes the answers: kept for one step only.
#[derive(Debug, Default)]
pub struct Blocks(BTreeMap<u32, bool>);

impl Blocks {
    /// Asks for the blocks of all these.
    pub async fn ask<'a>(
        &mut self,
        store: &Store,
        mined: impl Iterator<Item = &'a MinedIn>,
    ) -> Result<(), EngineError> {
        let mut unknown: Vec<u32> = mined.map(|mined| mined.block_id).filter(|id| !self.0.contains_key(id)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return Ok(());
        }
        let records = store.read(unknown.iter().map(|id| Key::Block(*id)).collect()).await?;
        for (id, record) in unknown.into_iter().zip(records) {
            // The block of what was seeded has no record, and counts.
            let longest = !matches!(record, Some(Record::Block(block)) if !block.longest_chain);
            self.0.insert(id, longest);
        }
        Ok(())
    }

    /// The greatest height among those on the longest chain; of blocks that were asked for.
    pub fn greatest(&self, mined: &[MinedIn]) -> Option<u32> {
        let longest = |mined: &&MinedIn| self.0.get(&mined.block_id).copied().unwrap_or(true);
        mined.iter().filter(longest).map(|mined| mined.height).max()
    }
}
