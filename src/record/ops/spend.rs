//! `Spend`: takes slots for one spender, all or nothing.

use std::sync::Arc;

use crate::record::{Page, Record, Rejection, Rules, Spend, SpendSlot, SpendingData};

use super::{
    Effect, any_page, delete_at_height,
    refusal::{self, Taker},
    slots,
    stored_output::StoredOutputs,
};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>, spend: &Spend) -> Result<Effect, Rejection> {
    refusal::contradiction(spend.slots.iter().map(|slot| (slot.offset, slot.input)))?;
    let page = any_page(record)?;
    if !check(page, spend)? {
        return Ok(Effect::already(delete_at_height::slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    for slot in &spend.slots {
        slots::take(page, slot.offset, taker(spend, slot));
    }
    let changed = delete_at_height::evaluate(rules, page);
    Ok(Effect::applied(delete_at_height::slots_reply(page, changed)))
}

/// Whether there is anything left to take, if nothing is in the way.
fn check(page: &Page, spend: &Spend) -> Result<bool, Rejection> {
    let mut open = 0;
    for slot in &spend.slots {
        open += usize::from(!refusal::is_taken_by(page, slot.offset, taker(spend, slot))?);
    }
    if open == 0 {
        return Ok(false);
    }
    let mode = Taker::Spender(spend.marks);
    refusal::by_record(page, spend.height, mode)?;
    let stored = StoredOutputs::find(page, spend.slots.iter().map(|slot| slot.offset));
    for slot in &spend.slots {
        if !refusal::is_taken_by(page, slot.offset, taker(spend, slot))? {
            refusal::by_slot(page, &stored, slot, None, spend.height, mode)?;
        }
    }
    Ok(true)
}

fn taker(spend: &Spend, slot: &SpendSlot) -> SpendingData {
    SpendingData { txid: spend.spender, input: slot.input }
}
