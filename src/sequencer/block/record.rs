//! The record of a block, and the checks of a block against the chain and the records.

use std::iter;

use crate::{
    engine::Row,
    event::Block,
    record::{BlockRecord, Key, MetaRecord, Phase, Record, Sequenced, build::HEIGHT_LIMIT},
    sequencer::{SequencerError, context::HandlerContext, listing, state::Tip},
    store::meta::MetaError,
    text::hex_reversed,
};

/// Checks that a block can follow this tip of the longest chain.
///
/// # Errors
/// The reason why the block cannot follow.
pub fn check_follows(tip: Option<Tip>, block: &Block<'_>) -> Result<(), String> {
    let name = hex_reversed(&block.hash);
    match tip {
        Some(tip) if tip.hash != block.previous => Err(format!(
            "block {name} at height {} follows {}, but the tip is {} at height {}",
            block.height,
            hex_reversed(&block.previous),
            hex_reversed(&tip.hash),
            tip.height
        )),
        Some(tip) if tip.height.checked_add(1) != Some(block.height) => Err(format!(
            "block {name} says that it is at height {}, but it follows the tip {}, which is at height {}",
            block.height,
            hex_reversed(&tip.hash),
            tip.height
        )),
        _ => check_height(block),
    }
}

/// Checks that the first block that a store handles after the import of a UTXO-set file follows the file's block: the
/// meta record has that block as a tip at chain offset 0.
///
/// # Errors
/// The block does not follow, or the meta record cannot be read.
pub async fn check_follows_import(cx: &HandlerContext<'_>, block: &Block<'_>) -> Result<(), SequencerError> {
    if cx.state.tip.is_some() {
        return Ok(());
    }
    let tip = read_meta(cx).await?.and_then(|meta| meta.tip).filter(|tip| tip.chain_offset == 0);
    let tip = tip.map(|tip| Tip { hash: tip.hash, height: tip.height, block_id: None });
    check_follows(tip, block).map_err(SequencerError::Halt)
}

/// Reads the meta record; `None`: the store has none.
///
/// # Errors
/// The record is damaged, or the store does not answer for good.
pub async fn read_meta(cx: &HandlerContext<'_>) -> Result<Option<MetaRecord>, SequencerError> {
    let meta = cx.wait_for("the meta record", cx.parts.store.meta()).await;
    meta.map_err(|error| match error {
        MetaError::Engine(error) => error.into(),
        error => SequencerError::Damaged(error.to_string()),
    })
}

/// Checks that the height of a block is below the limit of heights.
pub fn check_height(block: &Block<'_>) -> Result<(), String> {
    if block.height < HEIGHT_LIMIT {
        return Ok(());
    }
    let (name, height) = (hex_reversed(&block.hash), block.height);
    Err(format!("block {name} says that it is at height {height}, and heights are below {HEIGHT_LIMIT}"))
}

/// Returns the row that writes the record of a block.
pub fn put_block(cx: &HandlerContext<'_>, block: &Block<'_>, longest_chain: bool, progress: u64) -> Row {
    let record = BlockRecord {
        block_id: block.block_id,
        hash: block.hash,
        previous: block.previous,
        height: block.height,
        time: block.time,
        longest_chain,
        progress,
        chain_pos: Some(cx.stamp(Phase::Apply)),
    };
    cx.row(Phase::Apply, Key::Block(block.block_id), Sequenced::PutBlock(record))
}

/// Returns the number of listed transactions that an earlier attempt at this event has finished, for a block of
/// more than one chunk; 0 for a smaller block. Progress of another connection of the block, or of an earlier era,
/// does not count.
pub async fn read_progress(
    cx: &HandlerContext<'_>,
    block: &Block<'_>,
    longest_chain: bool,
) -> Result<u64, SequencerError> {
    if listing::count_transactions(block) <= listing::CHUNK as u64 {
        return Ok(0);
    }
    let stored = read_block_records(cx, iter::once(block.block_id)).await?.pop().flatten();
    let is_of_event = |stored: &BlockRecord| {
        (stored.chain_pos, stored.longest_chain) == (Some(cx.stamp(Phase::Apply)), longest_chain)
    };
    Ok(stored.filter(is_of_event).map_or(0, |stored| stored.progress.saturating_sub(1)))
}

/// Halts when a block has the id of another block: a triple names its block by the id alone.
pub async fn check_ids(cx: &HandlerContext<'_>, blocks: &[Block<'_>]) -> Result<(), SequencerError> {
    for (block, stored) in blocks.iter().zip(read_block_records(cx, blocks.iter().map(|block| block.block_id)).await?) {
        if let Some(stored) = stored.filter(|stored| stored.hash != block.hash) {
            return Err(SequencerError::Halt(format!(
                "block {} has the id {} of block {} at height {}",
                hex_reversed(&block.hash),
                block.block_id,
                hex_reversed(&stored.hash),
                stored.height
            )));
        }
    }
    Ok(())
}

/// Reads the block records under these ids.
pub async fn read_block_records(
    cx: &HandlerContext<'_>,
    block_ids: impl Iterator<Item = u32>,
) -> Result<Vec<Option<BlockRecord>>, SequencerError> {
    let keys = block_ids.map(Key::Block).collect();
    let stored = cx.read(keys).await?;
    let block = |record| match record {
        Some(Record::Block(block)) => Some(block),
        _ => None,
    };
    Ok(stored.into_iter().map(block).collect())
}
