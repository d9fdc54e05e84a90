//! `Respend`: moves slots to another transaction by compare-and-set on their holders, and marks them contested.

use std::sync::Arc;

use crate::record::{Page, Record, Rejection, Respend, RespendChecks, RespendSlot, Rules, SpendingData, Verdict};

use super::{
    Effect, any_page, delete_at_height,
    refusal::{self, Taker},
    slots,
    stored_output::StoredOutputs,
};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>, respend: &Respend) -> Result<Effect, Rejection> {
    refusal::contradiction(respend.slots.iter().map(|moved| (moved.slot.offset, moved.slot.input)))?;
    let page = any_page(record)?;
    let moves = check(page, respend)?;
    let marked = respend.slots.iter().all(|moved| page.contested.contains(&moved.slot.offset));
    if !moves && marked {
        return Ok(Effect::already(delete_at_height::slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    for moved in &respend.slots {
        slots::take(page, moved.slot.offset, taker(respend, moved));
        page.contested.insert(moved.slot.offset);
    }
    let changed = delete_at_height::evaluate(rules, page);
    let reply = delete_at_height::slots_reply(page, changed);
    Ok(if moves { Effect::applied(reply) } else { Effect::already(reply, true) })
}

/// Whether there is anything left to move, if nothing is in the way.
fn check(page: &Page, respend: &Respend) -> Result<bool, Rejection> {
    let mut open = 0;
    for moved in &respend.slots {
        open += usize::from(!refusal::is_taken_by(page, moved.slot.offset, taker(respend, moved))?);
    }
    if open == 0 {
        return Ok(false);
    }
    match respend.checks {
        RespendChecks::Spend { height } => check_as_spend(page, respend, height)?,
        RespendChecks::Decided => check_decided(page, respend)?,
    }
    Ok(true)
}

fn check_as_spend(page: &Page, respend: &Respend, height: u32) -> Result<(), Rejection> {
    refusal::by_record(page, height, Taker::Sequencer)?;
    let stored = StoredOutputs::find(page, respend.slots.iter().map(|moved| moved.slot.offset));
    for moved in &respend.slots {
        if !refusal::is_taken_by(page, moved.slot.offset, taker(respend, moved))? {
            refusal::by_slot(page, &stored, &moved.slot, moved.from, height, Taker::Sequencer)?;
        }
    }
    Ok(())
}

fn check_decided(page: &Page, respend: &Respend) -> Result<(), Rejection> {
    if let Some(height) = page.pruned {
        return Err(Rejection::Pruned(height));
    }
    if page.utxos.is_none() {
        return Err(Rejection::Conflicting(page.verdict().unwrap_or(Verdict::Pending)));
    }
    for moved in &respend.slots {
        let offset = moved.slot.offset;
        let slot = slots::slot(page, offset).ok_or(Rejection::NoSuchOutput(offset))?;
        if refusal::is_taken_by(page, offset, taker(respend, moved))? {
            continue;
        }
        if refusal::is_frozen(page, slot) {
            return Err(Rejection::Frozen(offset));
        }
        refusal::not_pruned(page, offset)?;
        refusal::by_holder(slot, offset, moved.from)?;
    }
    Ok(())
}

fn taker(respend: &Respend, moved: &RespendSlot) -> SpendingData {
    SpendingData { txid: respend.to, input: moved.slot.input }
}
