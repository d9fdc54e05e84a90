//! Lifts the bars that commands have set on outputs, where an operator has decided that a block may spend these outputs
//! (`utxo-store command decide`).
//!
//! The chain log cannot have the command that lifts a bar before a block that halts the chain: the block is in the log
//! already. The operator's decision stands in the decisions topic, at the chain offset of the block.

use std::collections::BTreeMap;

use crate::{
    event::{Block, LiftedOutput},
    record::{Key, Rejection, Sequenced, StoredOutput},
    sequencer::{
        SequencerError,
        context::{HandlerContext, distinct},
        lost_records::{apply_to_every_page, apply_to_stored_slot, wait_for_bodies},
        second_chances::publish_chances_after_lifting,
    },
    store::{into_page, read::TxReader},
    tx::{Outpoint, Txid, UtxoHash, utxo_hash},
};

/// Lifts the bars on the outputs that an operator has named for this event, before the event's blocks begin.
pub(super) async fn lift_bars(
    cx: &HandlerContext<'_>,
    lifted: Vec<LiftedOutput>,
    blocks: &[Block<'_>],
) -> Result<(), SequencerError> {
    let block_height = blocks.last().map_or(0, |block| block.height);
    for txid in distinct(lifted.iter().map(|output| output.outpoint.txid)) {
        Box::pin(unfreeze_transaction(cx, txid)).await?;
    }
    for output in lifted {
        tracing::warn!(outpoint = %output.outpoint, "sequencer: an operator lifts the bars on an output for a block");
        // Boxed: rare, and else a part of every future here.
        Box::pin(lift(cx, &output, block_height)).await?;
    }
    Ok(())
}

async fn lift(cx: &HandlerContext<'_>, output: &LiftedOutput, block_height: u32) -> Result<(), SequencerError> {
    let outpoint = output.outpoint;
    let (key, offset) = cx.locate(outpoint);
    let Key::Page(txid, number) = key else { return Ok(()) };
    wait_for_bodies(cx, &[txid]).await?;
    let owner = match output.owner {
        Some(hash) => find_output(cx, key, outpoint, hash).await?.map(|output| (hash, output)),
        None => None,
    };
    let lifted = Sequenced::LiftBars { offset, owner, block_height };
    match apply_to_stored_slot(cx, (txid, number), lifted).await? {
        // A later chain event has changed the slot already.
        None | Some(Rejection::StaleStamp(_) | Rejection::Pruned(_)) => Ok(()),
        // The operator's decision allows and demands nothing: the block itself halts the chain.
        Some(rejection) => {
            tracing::error!(%outpoint, code = rejection.code(), "sequencer: no bars to lift on an output");
            Ok(())
        }
    }
}

/// Ends the freezing of the whole transaction, since the flag has no exception for one output. Every page is written,
/// even where the master is not frozen: a node may have lost the write of another page.
async fn unfreeze_transaction(cx: &HandlerContext<'_>, txid: Txid) -> Result<(), SequencerError> {
    apply_to_every_page(cx, txid, Sequenced::SetFrozen(false)).await?;
    publish_chances_after_lifting(cx, &[txid], None).await
}

/// Finds the output that had this UTXO hash: the output as its transaction made it, or the output of an owner between.
async fn find_output(
    cx: &HandlerContext<'_>,
    key: Key,
    outpoint: Outpoint,
    hash: UtxoHash,
) -> Result<Option<StoredOutput>, SequencerError> {
    let Outpoint { txid, vout } = outpoint;
    let wanted = BTreeMap::from([(vout, hash)]);
    let found = cx.wait_for("the store", TxReader::of(&cx.parts.store).outputs_by_hash(txid, &wanted)).await;
    let mut found = found.map_err(|error| cx.halt(format_args!("the output {outpoint} cannot be read: {error}")))?;
    let has_hash = |output: &StoredOutput| utxo_hash(&txid, vout, &output.script, output.satoshis) == hash;
    if let Some(made) = found.remove(&vout).filter(has_hash) {
        return Ok(Some(made));
    }
    let page = cx.read(vec![key]).await?.into_iter().find_map(into_page);
    let between = page.iter().flat_map(|page| &page.reassignments).find(|entry| entry.new_utxo_hash == hash);
    Ok(between.map(|entry| entry.output.clone()))
}
