//! [`ChainInfo`]: the state of the chain, as the meta record has it.

use crate::record::MetaRecord;

use super::{StateStore, meta::MetaError};

/// State of the chain in a store. The sequencer records the tip with each block and each reorg, before the event is
/// completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInfo {
    /// Height of the last block of the longest chain. Before the first block: the greatest height that a consumed event
    /// names, 0 without an event.
    pub height: u32,
    /// Hash of that block, internal order; `None`: the longest chain has no block.
    pub hash: Option<[u8; 32]>,
    /// Median of the header times of the last eleven blocks, seconds since the epoch; `None`: the longest chain has no
    /// block, or none was handled since the store was imported.
    pub median_time: Option<u32>,
    /// Retention of the pruner, blocks; 0: every record is kept.
    pub retention: u32,
    /// Height up to which every record that was due is pruned.
    pub prune_horizon: u32,
}

impl ChainInfo {
    /// Returns the state of the chain in a meta record.
    pub fn of(meta: &MetaRecord) -> Self {
        let tip = meta.tip.filter(|tip| tip.hash != [0; 32]);
        ChainInfo {
            height: tip.map_or(meta.consumed.height, |tip| tip.height),
            hash: tip.map(|tip| tip.hash),
            median_time: tip.map(|tip| tip.median_time).filter(|time| *time > 0),
            retention: meta.retention,
            prune_horizon: meta.prune_horizon,
        }
    }
}

impl StateStore {
    /// Reads the state of the chain.
    ///
    /// # Errors
    /// The store does not answer for good, or has no meta record.
    pub async fn chain(&self) -> Result<ChainInfo, MetaError> {
        self.meta().await?.map(|meta| ChainInfo::of(&meta)).ok_or(MetaError::NoMetaRecord)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ChainTip, ConsumedOffsets};

    #[test]
    fn the_height_of_the_events_counts_until_the_first_block() {
        let consumed = ConsumedOffsets { height: 800_001, ..ConsumedOffsets::default() };
        let seeded = MetaRecord { retention: 288, prune_horizon: 7, consumed, ..MetaRecord::default() };
        let without = ChainInfo { height: 800_001, hash: None, median_time: None, retention: 288, prune_horizon: 7 };
        assert_eq!(ChainInfo::of(&seeded), without);
        let tip = |hash| Some(ChainTip { chain_offset: 3, height: 5, hash: [hash; 32], median_time: 9 });
        let with = ChainInfo { height: 5, hash: Some([1; 32]), median_time: Some(9), ..without.clone() };
        assert_eq!(ChainInfo::of(&MetaRecord { tip: tip(1), ..seeded.clone() }), with);
        assert_eq!(ChainInfo::of(&MetaRecord { tip: tip(0), ..seeded }), without, "every block has left");
    }
}
