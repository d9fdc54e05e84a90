//! A coinbase that comes twice: in several blocks of one chain (blocks 91,722 and 91,880 of the main chain have the
//! same coinbase), or again at another height after a reorg.
//!
//! Bitcoin nodes replace the outputs of the earlier block by those of the later block, so that the outputs mature from
//! the later block. After the later block is disconnected the earlier block counts again.

use std::collections::BTreeMap;

use crate::{
    event::{Block, DecisionBody},
    record::{
        BlockRecord, HeldSlot, Key, MinedIn, Outcome, Page, Phase, Reason, Rejection, Sequenced, Slot, SpendingData,
        build::COINBASE_MATURITY,
    },
    sequencer::{
        SequencerError,
        block::record::read_block_records,
        context::{BODIES_AT_ONCE, HandlerContext},
        holders::{HolderState, contest_holder, contest_holders},
        pages::{apply_to_every_extra_page, for_each_page},
        second_chances::publish_chances_after_lifting,
        settle::settle_slots,
        steps::Steps,
        verdict::apply_verdict,
    },
    tx::{Outpoint, Txid},
};

/// Sets the maturity of a coinbase that existed before its block by the last connected block that has the coinbase.
/// Live spenders that are not mined and too young become conflicting; other holders of its slots are decided by
/// their own contests.
pub async fn update_maturity(
    cx: &HandlerContext<'_>,
    steps: &mut Steps<'_>,
    block: &Block<'_>,
    coinbase: Txid,
) -> Result<(), SequencerError> {
    let Some(master) = cx.master(coinbase).await?.filter(|page| page.pruned.is_none()) else { return Ok(()) };
    let here = MinedIn { block_id: block.block_id, height: block.height, subtree: 0 };
    let mined = read_other_connected_blocks(cx, &master, block).await?;
    let from = mined.iter().chain([&here]).map(|mined| mined.height).max().unwrap_or(block.height);
    let from = from.saturating_add(COINBASE_MATURITY);
    // The usual case: the block is connected again, or its event is handled again. A holder that waits for another
    // parent has no record, and must not be contested here. A holder with a record can be too young: the process died
    // between the new height and the check of the holders.
    let is_set = mined.is_empty() && master.spending_height == Some(from);
    let is_superseded = !is_set && set_spending_height(cx, &master, from).await?;
    if is_superseded || cx.is_replay() {
        return Ok(());
    }
    let young = read_immature_holders(cx, &master, from, is_set).await?;
    let holders: Vec<Txid> = young.keys().map(|holder| holder.txid).collect();
    let holder_states = contest_holders(cx, Phase::Apply, holders).await?;
    let is = |holder: &SpendingData, what| holder_states.get(&holder.txid) == Some(&what);
    let undecided: Vec<(Outpoint, HeldSlot)> =
        young.iter().filter(|(holder, _)| is(holder, HolderState::NotLive)).map(|(_, held)| *held).collect();
    // These holders took their slots by the earlier block: the contest of each takes its freed slot again.
    settle_slots(cx, &undecided, |_| false).await?;
    for holder in young.keys().filter(|holder| is(holder, HolderState::Live)) {
        // A holder can have become conflicting as a descendant of an earlier one.
        let txid = holder.txid;
        if contest_holder(cx, Phase::Apply, txid).await? != HolderState::Live {
            continue;
        }
        let reason = Reason::Immature { input: holder.input };
        let verdict = DecisionBody::Conflicting { txid, reason, height: block.height, live: true };
        steps.skip_closed();
        let body = steps.decide(async { Ok(verdict) }).await?;
        if body != DecisionBody::Closed {
            apply_verdict(cx, steps, body).await?;
        }
    }
    Ok(())
}

/// Lets the coinbase of a disconnected block count by an earlier block again. Returns `false` when no other
/// connected block has the coinbase.
pub async fn fall_back_to_earlier_block(
    cx: &HandlerContext<'_>,
    block: &Block<'_>,
    coinbase: Txid,
) -> Result<bool, SequencerError> {
    let Some(master) = cx.master(coinbase).await?.filter(|page| page.pruned.is_none()) else { return Ok(false) };
    let mined = read_other_connected_blocks(cx, &master, block).await?;
    let Some(last) = mined.into_iter().max_by_key(|mined| mined.height) else { return Ok(false) };
    tracing::info!(%coinbase, height = last.height, "sequencer: coinbase counts by an earlier block again");
    set_spending_height(cx, &master, last.height.saturating_add(COINBASE_MATURITY)).await?;
    let set_mined = match cx.is_conflicting_at_frontier(&coinbase) {
        true => Sequenced::WasMined(last),
        false => Sequenced::SetMined { mined_in: last, longest_chain: true },
    };
    cx.apply_to_master(coinbase, set_mined).await?;
    publish_chances_after_lifting(cx, &[coinbase], None).await?;
    Ok(true)
}

/// Reads the other blocks of the longest chain that have the coinbase.
async fn read_other_connected_blocks(
    cx: &HandlerContext<'_>,
    master: &Page,
    block: &Block<'_>,
) -> Result<Vec<MinedIn>, SequencerError> {
    let mined = master.master.iter().flat_map(|bins| &bins.mined).copied();
    let others: Vec<MinedIn> = mined.filter(|mined| mined.block_id != block.block_id).collect();
    if others.is_empty() {
        return Ok(others);
    }
    let records = read_block_records(cx, others.iter().map(|mined| mined.block_id)).await?;
    let is_on_chain = |record: &Option<BlockRecord>| record.as_ref().is_some_and(|record| record.longest_chain);
    let others = others.into_iter().zip(records).filter(|(_, record)| is_on_chain(record));
    Ok(others.map(|(mined, _)| mined).collect())
}

/// Writes the spending height on every page. Returns whether a later event has written the master before: this
/// sequencer is late then.
async fn set_spending_height(cx: &HandlerContext<'_>, master: &Page, from: u32) -> Result<bool, SequencerError> {
    let set = Sequenced::SetSpendingHeight(from);
    apply_to_every_extra_page(cx, master, &set).await?;
    let row = cx.row(Phase::Apply, Key::master(master.txid), set);
    match cx.apply(vec![row]).await?.pop() {
        Some(Outcome::Applied(_) | Outcome::AlreadyApplied(_)) => Ok(false),
        Some(Outcome::Rejected(Rejection::StaleStamp(_))) => Ok(true),
        other => Err(SequencerError::Halt(format!("coinbase {} refuses its spending height: {other:?}", master.txid))),
    }
}

/// Reads the holders of the coinbase's slots that are not mined and whose height is below `from`, each with one slot. A
/// holder without a body has no height: it counts as too young unless only `recorded` holders are wanted.
async fn read_immature_holders(
    cx: &HandlerContext<'_>,
    master: &Page,
    from: u32,
    recorded: bool,
) -> Result<BTreeMap<SpendingData, (Outpoint, HeldSlot)>, SequencerError> {
    let size = cx.parts.store.settings.utxo_batch_size;
    let mut holders = BTreeMap::new();
    let note = |page: &Page| {
        for (slot, offset) in page.utxos.iter().flatten().zip(0..) {
            let vout = page.number.saturating_mul(size).saturating_add(offset);
            if let Some(holder) = Slot::spender(slot).filter(|_| !page.pruned_spenders.contains(&offset)) {
                holders.insert(holder, (Outpoint { txid: page.txid, vout }, HeldSlot { offset, holder }));
            }
        }
    };
    let master = cx.master(master.txid).await?;
    if let Some(master) = &master {
        for_each_page(cx, master, note).await?;
    }
    let txids: Vec<Txid> = holders.keys().map(|holder| holder.txid).collect();
    let mut masters = Vec::with_capacity(txids.len());
    for txids in txids.chunks(BODIES_AT_ONCE) {
        masters.extend(cx.masters(txids).await?);
    }
    let mut old = masters.into_iter().map(|page| {
        let bins = page.as_ref().and_then(|page| page.master.as_deref());
        let is_whole = page.as_ref().is_some_and(|page| page.utxos.is_some());
        let is_old = bins.is_some_and(|bins| bins.unmined_since.is_none_or(|since| since >= from));
        if is_whole { is_old } else { recorded }
    });
    holders.retain(|_, _| old.next() == Some(false));
    Ok(holders)
}
