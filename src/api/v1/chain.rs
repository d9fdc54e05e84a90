//! `/v1/chain` and `/v1/blocks`: the chain as the store has applied it.

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    context::ApiContext,
    params::{NoParams, Params, PathParts, parse, parse_number},
};
use crate::{
    api::problem::Problem,
    record::BlockRecord,
    store::{chain::ChainInfo, queries::BlockName},
    text::hex_reversed,
};

/// The chain as the store has applied it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChainData {
    /// Height of the tip. Before the first block: the greatest height of a consumed event.
    height: u32,
    /// Hash of the tip; `null`: the store has applied no block.
    hash: Option<String>,
    /// Median of the header times of the last eleven blocks, seconds since the epoch; `null`: no block.
    median_time: Option<u32>,
    /// Blocks after which a transaction that is spent or conflicting may be pruned.
    retention: u32,
    /// Height up to which due records are pruned; 0: none was.
    prune_horizon: u32,
}

/// A block that the store has applied, or is applying.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockData {
    /// Local id of the block, as in `blockIDs`.
    block_id: u32,
    /// Hash of the block.
    hash: String,
    /// Hash of the block below.
    previous: String,
    /// Height of the block.
    height: u32,
    /// Time of the header, seconds since the epoch.
    time: u32,
    /// The block is on the longest chain.
    longest_chain: bool,
}

/// Blocks of a hash, of a local id, or of a height.
#[derive(Debug, Serialize, ToSchema)]
pub struct BlocksView {
    /// Blocks in the order of their local ids; several at one height after a reorg.
    blocks: Vec<BlockData>,
}

impl From<&BlockRecord> for BlockData {
    fn from(block: &BlockRecord) -> Self {
        BlockData {
            block_id: block.block_id,
            hash: hex_reversed(&block.hash),
            previous: hex_reversed(&block.previous),
            height: block.height,
            time: block.time,
            longest_chain: block.longest_chain,
        }
    }
}

/// Read the chain as the store has applied it.
#[utoipa::path(
    get,
    path = "/v1/chain",
    tag = "chain",
    responses(
        (status = 200, description = "The chain", body = ChainData),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn get_chain(
    State(context): State<ApiContext>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<ChainData>, Problem> {
    let store = context.store()?;
    let ChainInfo { height, hash, median_time, retention, prune_horizon } = context.chain(&store).await?;
    let hash = hash.map(|hash| hex_reversed(&hash));
    Ok(Json(ChainData { height, hash, median_time, retention, prune_horizon }))
}

/// Read the blocks of a hash, a local id or a height (`height:800000`).
#[utoipa::path(
    get,
    path = "/v1/blocks/{block}",
    tag = "chain",
    params(("block" = String, Path, description = "Hash (64 hexadecimal digits), local id, or `height:` and a height")),
    responses(
        (status = 200, description = "The blocks", body = BlocksView),
        (status = 400, description = "Malformed name of a block", body = Problem),
        (status = 404, description = "The store has no such block", body = Problem),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn get_block(
    State(context): State<ApiContext>,
    PathParts(name): PathParts<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<BlocksView>, Problem> {
    let name = match name.strip_prefix("height:") {
        Some(height) => BlockName::Height(parse_number("height", height)?),
        None => parse(&name)?,
    };
    let store = context.store()?;
    let blocks = context.find_blocks(&store, name).await?;
    if blocks.is_empty() {
        return Err(Problem::not_found(format!("the store has no block {name}")));
    }
    Ok(Json(BlocksView { blocks: blocks.iter().map(BlockData::from).collect() }))
}
