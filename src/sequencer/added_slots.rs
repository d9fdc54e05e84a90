//! Slots of a transaction that was validated before Genesis and is mined since Genesis.
//!
//! An event names the height of the first block that its transaction can be in, and the slots follow the rule of that
//! height. The block that lists the transaction decides: Bitcoin nodes judge outputs by the height of their block. In
//! the other direction (validated since Genesis, mined before, after a deep reorg) the slots stay: no block can list a
//! spend of them.

use crate::{
    record::{Key, Outcome, Page, Phase, Rejection, Reply, Sequenced, build::added_slots},
    sequencer::{
        SequencerError,
        context::HandlerContext,
        pages::{restore_page, update_masters},
    },
    store::body::ParsedBody,
    tx::{Txid, UtxoHash},
};

/// Returns whether an unmined transaction lacks slots that its outputs have in a block of this height.
pub fn needs_slots(cx: &HandlerContext<'_>, master: &Page, height: u32) -> bool {
    master.unmined_since().is_some_and(|made_at| cx.parts.store.settings.rules.crosses_genesis(made_at, height))
}

/// Reads the master and adds slots as [`add_slots`] does.
pub async fn read_and_add_slots(cx: &HandlerContext<'_>, txid: Txid, height: u32) -> Result<(), SequencerError> {
    match cx.master(txid).await? {
        Some(master) => add_slots(cx, &master, height).await,
        None => Ok(()),
    }
}

/// Gives the outputs of an unmined transaction the slots that they have in a block of this height: on the other
/// pages first, since a repeat judges by the master. Changes nothing when no output needs a slot.
pub async fn add_slots(cx: &HandlerContext<'_>, master: &Page, height: u32) -> Result<(), SequencerError> {
    if !needs_slots(cx, master, height) {
        return Ok(());
    }
    let on_master = add_slots_to_extra_pages(cx, master, height).await?;
    cx.apply_to_master(master.txid, Sequenced::AddSlots { slots: on_master, height }).await
}

/// Adds slots to every page but the master. Returns the slots of the master.
pub async fn add_slots_to_extra_pages(
    cx: &HandlerContext<'_>,
    master: &Page,
    height: u32,
) -> Result<Vec<(u32, UtxoHash)>, SequencerError> {
    let txid = master.txid;
    let settings = &cx.parts.store.settings;
    tracing::info!(%txid, height, "sequencer: slots added, transaction mined since Genesis");
    let damaged = |error| SequencerError::Halt(format!("the store is damaged: {error}"));
    // Boxed: rare, and else a part of every future here.
    let body = Box::pin(cx.wait_for("the store", cx.parts.store.body(master))).await.map_err(damaged)?;
    let parsed = ParsedBody::parse(txid, &body).map_err(damaged)?;
    let mut added = added_slots(txid, parsed.outputs(), settings.network, height).into_iter().peekable();
    let size = settings.utxo_batch_size.max(1);
    let mut slots_of = |number| {
        let mut slots = Vec::new();
        while let Some((vout, hash)) = added.next_if(|(vout, _)| vout / size == number) {
            slots.push((vout % size, hash));
        }
        slots
    };
    let on_master = slots_of(0);
    // A page without an output that needs a slot gets the height.
    for number in 1..=master.extra_pages() {
        add_slots_to_page(cx, master, number, &Sequenced::AddSlots { slots: slots_of(number), height }).await?;
    }
    Ok(on_master)
}

/// Adds slots to one page besides the master, and writes into the master whether all slots of the page are spent. A
/// page that a node lost is restored first.
async fn add_slots_to_page(
    cx: &HandlerContext<'_>,
    master: &Page,
    number: u32,
    add: &Sequenced,
) -> Result<(), SequencerError> {
    let rows = [cx.row(Phase::Apply, Key::Page(master.txid, number), add.clone())];
    let mut outcomes = cx.apply(rows.to_vec()).await?;
    if outcomes[..] == [Outcome::Rejected(Rejection::NotFound)] {
        restore_page(cx, master.txid, number).await?;
        outcomes = cx.apply(rows.to_vec()).await?;
    }
    match &outcomes[..] {
        [Outcome::Applied(Reply::Slots { .. }) | Outcome::AlreadyApplied(Reply::Slots { .. })] => {
            update_masters(cx, &rows, &outcomes).await
        }
        [Outcome::Rejected(Rejection::StaleStamp(_) | Rejection::Pruned(_))] => Ok(()),
        other => {
            let txid = master.txid;
            Err(SequencerError::Halt(format!("cannot add slots to page {number} of {txid}: {other:?}")))
        }
    }
}
