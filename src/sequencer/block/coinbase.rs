//! The coinbase of a block: its pages, and what the store may already have under its txid.

use bytes::Bytes;

use crate::{
    event::Block,
    record::{
        CreatingEvent, MinedIn, Page, Rejection,
        build::{BlockListing, NewTxState, PageParams, Pages, build_pages},
    },
    sequencer::{SequencerError, context::HandlerContext},
    text::hex_reversed,
    tx::{Transaction, Txid},
};

/// Halts when the coinbase of a block is stored with other content, as far as its master shows.
pub async fn check_coinbase(cx: &HandlerContext<'_>, block: &Block<'_>, message: &Bytes) -> Result<(), SequencerError> {
    let (txid, pages) = build_coinbase_pages(cx, block, message, true)?;
    let is_other = |stored: &Page| stored.contradicts(&pages.master) || stored.differs_in_kind(&pages.master);
    match cx.master(txid).await? {
        Some(stored) if is_other(&stored) => Err(cannot_be_stored(block, txid, &Rejection::OtherContent)),
        _ => Ok(()),
    }
}

/// Builds the pages of a block's coinbase: mined on the longest chain, or listed on a side chain.
pub fn build_coinbase_pages(
    cx: &HandlerContext<'_>,
    block: &Block<'_>,
    message: &Bytes,
    longest_chain: bool,
) -> Result<(Txid, Pages), SequencerError> {
    let tx = parse_coinbase(block)?;
    // A block of a side chain is not checked: its coinbase must not halt the chain.
    if longest_chain {
        tx.check().map_err(|error| wrong_coinbase(block, error.to_string()))?;
    }
    let txid = tx.txid();
    let params = page_params(cx, block.height, u64::from(block.time) * 1_000);
    let mined_in = MinedIn { block_id: block.block_id, height: block.height, subtree: 0 };
    let listed = match longest_chain {
        true => BlockListing::LongestChain(mined_in),
        false => BlockListing::SideChain(mined_in),
    };
    let start = NewTxState { listed, ..NewTxState::default() };
    let body = message.slice_ref(block.coinbase);
    let pages =
        build_pages(&tx, body, txid, &params, &start).map_err(|error| wrong_coinbase(block, error.to_string()))?;
    Ok((txid, pages.place_body(cx.parts.store.inline(), &params)))
}

/// Returns the parameters for the pages of a transaction of this height; `created_at` in milliseconds since the epoch.
pub fn page_params(cx: &HandlerContext<'_>, height: u32, created_at: u64) -> PageParams {
    let settings = &cx.parts.store.settings;
    let event = Some(CreatingEvent::Chain(cx.offset));
    PageParams { network: settings.network, height, batch_size: settings.utxo_batch_size, created_at, event }
}

/// Parses the coinbase of a block.
pub fn parse_coinbase<'a>(block: &Block<'a>) -> Result<Transaction<'a>, SequencerError> {
    let tx = Transaction::parse(block.coinbase).map_err(|error| wrong_coinbase(block, error.to_string()))?;
    if tx.is_coinbase() { Ok(tx) } else { Err(wrong_coinbase(block, "it is no coinbase".to_owned())) }
}

fn wrong_coinbase(block: &Block<'_>, why: String) -> SequencerError {
    SequencerError::Halt(format!("the coinbase of block {}: {why}", hex_reversed(&block.hash)))
}

/// Returns the halt for a coinbase that the store refuses.
pub fn cannot_be_stored(block: &Block<'_>, txid: Txid, rejection: &Rejection) -> SequencerError {
    wrong_coinbase(
        block,
        match rejection {
            Rejection::OtherContent => format!("{txid} is stored with other content"),
            rejection => format!("{txid} cannot be stored: {} ({rejection:?})", rejection.code()),
        },
    )
}
