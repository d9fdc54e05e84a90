//! A block of a side chain: decides nothing and waits for nothing.

use std::{iter, slice, sync::Arc};

use bytes::Bytes;

use crate::{
    event::Block,
    record::{BlockRecord, Outcome, Reason, Rejection, Reply, Sequenced, TxState, Verdict},
    sequencer::{
        SequencerError,
        block::{
            coinbase::{build_coinbase_pages, cannot_be_stored, check_coinbase},
            record::{check_height, check_ids, put_block, read_block_records, read_progress},
        },
        context::HandlerContext,
        listing::{ListedTx, ListedTxReader, check_objects},
        pages::{create_contested, flag_extra_pages},
    },
    text::hex_reversed,
    tx::Txid,
};

/// Handles a block of a side chain: stores the coinbase as conflicting, and writes the triple where a listed
/// transaction exists.
pub async fn apply_side_block(
    cx: &HandlerContext<'_>,
    block: &Block<'_>,
    message: &Bytes,
) -> Result<(), SequencerError> {
    check_height(block).map_err(SequencerError::Halt)?;
    let (txid, pages) = build_coinbase_pages(cx, block, message, false)?;
    check_ids(cx, slice::from_ref(block)).await?;
    check_not_connected(cx, block).await?;
    check_coinbase(cx, block, message).await?;
    check_objects(cx, block).await?;
    let mut done = read_progress(cx, block, false).await?;
    // Before the triples: a triple counts unless the block record says that the block is on a side chain.
    cx.apply_decided(vec![put_block(cx, block, false, done + 1)]).await?;
    match create_contested(cx, pages.master.into(), pages.others.map(Arc::new)).await? {
        Outcome::Applied(Reply::State(state)) | Outcome::AlreadyApplied(Reply::State(state)) => {
            let lost = Verdict::Conflicting(Reason::Disconnected);
            if [Verdict::Pending, lost].map(TxState::Conflicting).contains(&state) {
                flag_coinbase(cx, txid, block.height).await?;
            }
        }
        // Another block has the same coinbase, which is live.
        Outcome::Rejected(Rejection::Exists(_)) => {}
        Outcome::Rejected(rejection) => return Err(cannot_be_stored(block, txid, &rejection)),
        Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {}
    }
    let mut listing = ListedTxReader::new(block).skip(done);
    let mut listed = vec![ListedTx { txid, subtree: 0 }];
    while !listed.is_empty() {
        let set_mined = |mined_in| Sequenced::SetMined { mined_in, longest_chain: false };
        cx.apply(listed.iter().map(|listed| listed.row(cx, block, set_mined)).collect()).await?;
        listed = listing.read_next(cx).await?;
        // Progress counts only the chunks before this one, which are written.
        cx.apply_decided(vec![put_block(cx, block, false, done + 1)]).await?;
        done += listed.len() as u64;
    }
    Ok(())
}

async fn flag_coinbase(cx: &HandlerContext<'_>, txid: Txid, height: u32) -> Result<(), SequencerError> {
    let lost = Sequenced::MarkConflicting { reason: Reason::Disconnected, height };
    cx.apply_to_master(txid, lost).await?;
    match cx.master(txid).await? {
        Some(master) => flag_extra_pages(cx, &master).await,
        None => Ok(()),
    }
}

/// Halts when a block of the longest chain arrives as a block of a side chain: only a reorg disconnects a block.
async fn check_not_connected(cx: &HandlerContext<'_>, block: &Block<'_>) -> Result<(), SequencerError> {
    let stored = read_block_records(cx, iter::once(block.block_id)).await?.pop().flatten();
    match stored.filter(|stored| stored.longest_chain) {
        Some(BlockRecord { chain_pos: Some(stamp), .. }) if stamp.chain_offset() < cx.offset => {
            let name = hex_reversed(&block.hash);
            let why = format!("block {name} came as a side chain block, but is on the longest chain");
            Err(SequencerError::Halt(why))
        }
        _ => Ok(()),
    }
}
