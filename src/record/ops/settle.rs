//! `Settle`: frees the slots that a transaction holds, and bars those that it may still be about to take.

use std::sync::Arc;

use crate::record::{HeldSlot, Record, Rejection, Reply, Rules, TxState};

use super::{Effect, delete_at_height, optional_page, refusal, slots};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>, held: &[HeldSlot]) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    if let state @ (TxState::Pruned(_) | TxState::Stub(_)) = page.state() {
        return Ok(Effect::already(Reply::State(state), false));
    }
    // A slot that does not exist cannot be taken, so there is nothing to free or to bar.
    let existing = || held.iter().filter_map(|held| Some((held, slots::slot(page, held.offset)?)));
    for (held, slot) in existing() {
        if refusal::is_frozen(page, slot) {
            return Err(Rejection::Frozen(held.offset));
        }
        refusal::not_pruned(page, held.offset)?;
    }
    let marks: Vec<u32> = existing().map(|(held, _)| held.offset).collect();
    let freed: Vec<u32> =
        existing().filter(|(held, slot)| slot.spender() == Some(held.holder)).map(|(held, _)| held.offset).collect();
    if freed.is_empty() && marks.iter().all(|offset| page.contested.contains(offset)) {
        return Ok(Effect::already(delete_at_height::slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    for offset in &freed {
        slots::free(page, *offset);
    }
    page.contested.extend(marks);
    let changed = delete_at_height::evaluate(rules, page);
    let reply = delete_at_height::slots_reply(page, changed);
    Ok(if freed.is_empty() { Effect::already(reply, true) } else { Effect::applied(reply) })
}
