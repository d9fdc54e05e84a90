//! [`OutputSource`]: the store, as the vault asks it about outputs and about the chain.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    embed::Store,
    store::{
        StateStore,
        block_index::BlockIndex,
        outputs::{OutputOptions, OutputQuery, OutputReader, OutputState},
        queries::BlockName,
    },
    tx::Outpoint,
};

/// Most outputs of one request to the store.
pub(super) const OUTPUTS_AT_A_TIME: usize = 1_000;

/// Time for which a record is read again while its node does not answer.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// The last block of the longest chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceTip {
    /// Height of the block.
    pub height: u32,
    /// Hash of the block, internal order; `None`: the longest chain has no block.
    pub hash: Option<[u8; 32]>,
}

/// The store does not answer, or answers with an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store does not answer: {0}")]
pub struct SourceError(pub String);

/// The store that a vault asks.
#[async_trait]
pub trait OutputSource: Send + Sync + 'static {
    /// Reads outputs with amount, script and the height of their blocks. `height`: height of the first block that can
    /// list a spender. `answer[i]` belongs to `outpoints[i]`.
    async fn ask(&self, outpoints: &[Outpoint], height: u32) -> Vec<Result<OutputState, SourceError>>;

    /// Reads the last block of the longest chain, all of whose transactions are marked as mined.
    async fn tip(&self) -> Result<SourceTip, SourceError>;

    /// Reads the hash of the block of the longest chain at a height; `None`: the store has no record of this block.
    async fn block_at(&self, height: u32) -> Result<Option<[u8; 32]>, SourceError>;
}

/// A store that this process has open.
pub struct OwnStore {
    store: StateStore,
    blocks: BlockIndex,
}

impl OwnStore {
    /// Makes the source of a store that this process has open.
    pub fn of(store: &Store) -> Self {
        OwnStore { store: store.state_store().clone().with_read_limit(READ_LIMIT), blocks: BlockIndex::default() }
    }
}

#[async_trait]
impl OutputSource for OwnStore {
    async fn ask(&self, outpoints: &[Outpoint], height: u32) -> Vec<Result<OutputState, SourceError>> {
        let options = OutputOptions { height: Some(height), output: true, mined: true };
        let reader = OutputReader::of(&self.store);
        let mut states = Vec::with_capacity(outpoints.len());
        for part in outpoints.chunks(OUTPUTS_AT_A_TIME) {
            let queries: Vec<OutputQuery> =
                part.iter().map(|outpoint| OutputQuery { outpoint: *outpoint, hash: None }).collect();
            states.extend(reader.read(&queries, options).await);
        }
        states.into_iter().map(|state| state.map_err(|error| SourceError(error.to_string()))).collect()
    }

    async fn tip(&self) -> Result<SourceTip, SourceError> {
        let chain = self.store.chain().await.map_err(|error| SourceError(error.to_string()))?;
        Ok(SourceTip { height: chain.height, hash: chain.hash })
    }

    async fn block_at(&self, height: u32) -> Result<Option<[u8; 32]>, SourceError> {
        let found = self.blocks.find(&self.store, BlockName::Height(height)).await;
        let found = found.map_err(|error| SourceError(error.to_string()))?;
        Ok(found.iter().find(|block| block.longest_chain).map(|block| block.hash))
    }
}
