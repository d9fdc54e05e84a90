//! The state of the chain. The metadata of the committed chain offset contains it, so that it is always the state of
//! that very offset.

use serde::{Deserialize, Serialize};

use crate::{engine::Incarnation, event::Block, record::ChainTip, text::one_line};

/// The state of the chain at a committed offset: the tip, and the positions in the source topics and in the decisions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainState {
    /// Sequence of the last block or reorg that was handled; 0 before the first.
    #[serde(rename = "seq")]
    pub sequence: u64,
    /// Tip of the longest chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tip: Option<Tip>,
    /// Offset in `utxo.block-mined` to feed from. Every message below is in the chain log, or handled, or refused.
    #[serde(rename = "mined")]
    pub block_mined_next: u64,
    /// Offset in `utxo.reorgs` to feed from. Every message below is in the chain log, or handled, or refused.
    #[serde(rename = "reorgs")]
    pub reorgs_next: u64,
    /// Offsets in `utxo.block-mined` and `utxo.reorgs` of the first message that is not handled, if these are below the
    /// offsets to feed from. The messages in between are in the chain log, which is not in the order of their times.
    #[serde(default, rename = "open", skip_serializing_if = "Option::is_none")]
    pub unhandled: Option<(u64, u64)>,
    /// Offset in `utxo.decisions` from which the decisions on events that are not handled must be read.
    #[serde(rename = "decisions")]
    pub decisions_from: u64,
    /// The beginning of the id of the decisions topic ([`read_topic_id`](crate::store::meta::read_topic_id)); empty
    /// before its first message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub decisions_id: String,
    /// The greatest height that the longest chain has had, if above the height of the tip; 0 else. Pruning goes by it.
    #[serde(default, rename = "top", skip_serializing_if = "is_zero")]
    pub highest: u32,
    /// The number of times that the nodes of the store have changed their incarnation; part of every stamp.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub era: u32,
    /// A short hash of the nodes' incarnation in that era; empty for a store that cannot lose writes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nodes: String,
    /// Header times of the last blocks of the longest chain, oldest first, in seconds since the epoch: 11 for the
    /// median time, and 64 more that a reorg can disconnect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<u32>,
    /// Chain offset from which events publish second chances. Every event below was handled whole before a restore set
    /// the committed offset back, and its second chances are in the log. 0: no event was handled before a restore.
    #[serde(default, rename = "chances", skip_serializing_if = "is_zero")]
    pub chances_from: u64,
}

/// Blocks whose median header time is the median time of the chain.
const MEDIAN_OF: usize = 11;
/// Header times kept: some 800 bytes in a commit.
const MAX_TIMES: usize = MEDIAN_OF + 64;

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// The last block of the longest chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tip {
    /// Block hash, internal order.
    #[serde(with = "hex::serde")]
    pub hash: [u8; 32],
    /// Height of the block.
    pub height: u32,
    /// Local id of the block; unknown after a reorg that connected no block.
    #[serde(default, rename = "id", skip_serializing_if = "Option::is_none")]
    pub block_id: Option<u32>,
}

impl Tip {
    /// Returns the tip after this block was connected.
    pub fn of(block: &Block<'_>) -> Self {
        Tip { hash: block.hash, height: block.height, block_id: Some(block.block_id) }
    }

    /// Returns the tip after this block was disconnected; `None` at height 0.
    pub fn below(block: &Block<'_>) -> Option<Self> {
        Some(Tip { hash: block.previous, height: block.height.checked_sub(1)?, block_id: None })
    }
}

/// The error of metadata of a committed chain offset that is not the chain's state.
#[derive(Debug, thiserror::Error)]
#[error("the metadata of the committed chain offset is not the chain's state: {}", one_line(&.0.to_string()))]
pub struct BadState(#[from] serde_json::Error);

impl ChainState {
    /// Reads the metadata of a commit. Empty metadata is the state before the first event.
    pub fn from_metadata(metadata: &str) -> Result<Self, BadState> {
        if metadata.is_empty() { Ok(ChainState::default()) } else { Ok(serde_json::from_str(metadata)?) }
    }

    /// Returns offsets in `utxo.block-mined` and `utxo.reorgs`: every message below is handled, or never will be.
    pub fn handled_offsets(&self) -> (u64, u64) {
        self.unhandled.unwrap_or((self.block_mined_next, self.reorgs_next))
    }

    /// Records the offsets up to which the two topics are fed, and up to which they are handled.
    pub fn record_sources(&mut self, fed: (u64, u64), handled: (u64, u64)) {
        self.block_mined_next = self.block_mined_next.max(fed.0).max(handled.0);
        self.reorgs_next = self.reorgs_next.max(fed.1).max(handled.1);
        self.unhandled = Some(handled).filter(|handled| *handled != (self.block_mined_next, self.reorgs_next));
    }

    /// Moves the tip after `disconnected` blocks have left the longest chain and the blocks `connected`, oldest first,
    /// have joined.
    pub fn move_tip(&mut self, tip: Option<Tip>, disconnected: usize, connected: &[Block<'_>]) {
        let highest = self.highest();
        self.tip = tip;
        self.highest = if highest > self.height() { highest } else { 0 };
        self.times.truncate(self.times.len().saturating_sub(disconnected));
        self.times.extend(connected.iter().map(|block| block.time));
        self.times.drain(..self.times.len().saturating_sub(MAX_TIMES));
    }

    /// Returns the height of the tip; 0 before the first block.
    pub fn height(&self) -> u32 {
        self.tip.map_or(0, |tip| tip.height)
    }

    /// Returns the greatest height that the longest chain has had.
    pub fn highest(&self) -> u32 {
        self.highest.max(self.height())
    }

    /// Returns the median of the header times of the last eleven blocks, in seconds since the epoch; of fewer if fewer
    /// are known. `None` before the first block.
    pub fn median_time(&self) -> Option<u32> {
        let mut last = self.times[self.times.len().saturating_sub(MEDIAN_OF)..].to_vec();
        last.sort_unstable();
        last.get(last.len() / 2).copied()
    }

    /// Returns the tip for the meta record, where every event below `chain_offset` is handled; `None`: no block or
    /// reorg was handled yet.
    pub fn recorded_tip(&self, chain_offset: u64) -> Option<ChainTip> {
        let (height, hash) = self.tip.map_or((0, [0; 32]), |tip| (tip.height, tip.hash));
        let median_time = self.median_time().unwrap_or(0);
        (self.sequence > 0).then_some(ChainTip { chain_offset, height, hash, median_time })
    }

    /// Refuses a state whose counters have their greatest value. No event could follow such a state, which only damage
    /// or a hostile producer can make.
    ///
    /// # Errors
    /// The name of the counter, and the state.
    pub fn checked(self) -> Result<Self, String> {
        for (counter, ended) in [("sequence", self.sequence == u64::MAX), ("era", self.era == u32::MAX)] {
            if ended {
                return Err(format!("the committed chain offset says that the {counter} is at its end: {self:?}"));
            }
        }
        Ok(self)
    }

    /// Returns the state in a new era for nodes of this incarnation, or `None` when the incarnation is that of the
    /// state.
    pub fn in_new_era(&self, incarnation: &Incarnation) -> Option<Self> {
        let mut nodes = incarnation.0.clone();
        if !nodes.is_empty() {
            nodes = blake3::hash(nodes.as_bytes()).to_hex()[..16].to_owned();
        }
        (nodes != self.nodes).then(|| ChainState { era: self.era + 1, nodes, ..self.clone() })
    }

    /// Returns the metadata for a commit: well below Kafka's limit of 4,096 bytes.
    pub fn to_metadata(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| unreachable!("numbers and hexadecimal text always serialise"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_round_trips_and_bad_metadata_is_refused() {
        let state = ChainState {
            sequence: u64::MAX,
            tip: Some(Tip { hash: [0xab; 32], height: u32::MAX, block_id: Some(7) }),
            block_mined_next: u64::MAX,
            reorgs_next: 2,
            unhandled: Some((u64::MAX - 1, 1)),
            decisions_from: 3,
            decisions_id: "fedcba9876543210".into(),
            highest: u32::MAX,
            era: u32::MAX,
            nodes: "0123456789abcdef".into(),
            times: vec![u32::MAX; MAX_TIMES],
            chances_from: u64::MAX,
        };
        let metadata = state.to_metadata();
        assert!(metadata.len() < 1_500, "{metadata}");
        assert_eq!(ChainState::from_metadata(&metadata).unwrap(), state);
        assert_eq!(ChainState::from_metadata("").unwrap(), ChainState::default());
        for bad in ["{", "{\"seq\":1}", "[]", "{\"seq\":1,\"mined\":0,\"reorgs\":0,\"decisions\":0,\"x\":1}"] {
            assert!(ChainState::from_metadata(bad).is_err(), "{bad}");
        }
        assert!(state.clone().checked().unwrap_err().contains("the sequence is at its end"));
        assert!(ChainState { sequence: 1, ..state.clone() }.checked().unwrap_err().contains("the era is at its end"));
        let last = ChainState { sequence: u64::MAX - 1, era: u32::MAX - 1, ..state.clone() };
        assert_eq!(last.clone().checked(), Ok(last));
        let error = ChainState::from_metadata("{\"a\\nb\":1}").unwrap_err().to_string();
        assert!(error.contains("`a\\nb`") && !error.contains('\n'), "{error}");
    }

    fn block(time: u32) -> Block<'static> {
        let (hash, previous) = ([1; 32], [0; 32]);
        Block { block_id: 1, hash, previous, height: 1, time, longest_chain: true, coinbase: &[], subtrees: vec![] }
    }

    #[test]
    fn the_greatest_height_stays_when_the_chain_becomes_shorter() {
        let mut state = ChainState::default();
        let tip = |height| Some(Tip { hash: [1; 32], height, block_id: None });
        for (height, highest) in [(5, 5), (6, 6), (4, 6), (5, 6), (7, 7)] {
            state.move_tip(tip(height), 0, &[]);
            assert_eq!(state.highest(), highest);
        }
        assert!(!state.to_metadata().contains("top"), "it says nothing that the tip does not");
    }

    /// Bitcoin's rule: of an even number of times the later of the two in the middle.
    #[test]
    fn the_median_time_is_of_the_last_eleven_blocks_and_follows_a_reorg() {
        let mut state = ChainState::default();
        assert_eq!(state.median_time(), None);
        let times = [50, 10, 40, 30, 20, 60, 70, 80, 90, 100, 110, 15];
        let mut medians = Vec::new();
        for time in times {
            state.move_tip(None, 0, &[block(time)]);
            medians.push(state.median_time().unwrap());
        }
        assert_eq!(medians, [50, 50, 40, 40, 30, 40, 40, 50, 50, 60, 60, 60]);
        state.move_tip(None, 3, &[block(1_000)]);
        assert_eq!(state.median_time(), Some(60), "of 50 10 40 30 20 60 70 80 90 1000");
        state.move_tip(None, 100, &[block(7)]);
        assert_eq!((state.median_time(), state.times.len()), (Some(7), 1));
        (0..200).for_each(|time| state.move_tip(None, 0, &[block(time)]));
        assert_eq!((state.median_time(), state.times.len()), (Some(194), MAX_TIMES));
        state.move_tip(None, MAX_TIMES - MEDIAN_OF, &[]);
        assert_eq!(state.median_time(), Some(130));
    }
}
