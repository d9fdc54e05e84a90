//! `Settle`: frees the slots that a transaction holds, and marks slots that a late spend of the transaction may take.

use std::sync::Arc;

use crate::record::{HeldSlot, Page, Record, Rejection, Reply, Rules, Slot, TxState};

use super::{Effect, delete_at_height, find_page, refusal, slots};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>, held: &[HeldSlot]) -> Result<Effect, Rejection> {
    let Some(page) = find_page(record)? else {
        return Ok(Effect::already_applied(Reply::None, false));
    };
    match page.state() {
        state @ TxState::Pruned(_) => return Ok(Effect::already_applied(Reply::State(state), false)),
        state @ TxState::Stub(_) => {
            let changed = mark_stub(page, held);
            return Ok(Effect::already_applied(Reply::State(state), changed));
        }
        TxState::Live | TxState::Creating | TxState::Conflicting(_) => {}
    }
    // A slot that does not exist cannot be taken: it is neither freed nor marked.
    let existing = || held.iter().filter_map(|held| Some((held, slots::slot(page, held.offset)?)));
    for (held, slot) in existing() {
        // A slot that was frozen alone has no holder. The flag `frozen` of the transaction keeps no holder's slot.
        if matches!(slot, Slot::Frozen(_)) {
            return Err(Rejection::Frozen(held.offset));
        }
        refusal::check_spender_not_pruned(page, held.offset)?;
    }
    let marks: Vec<u32> = existing().map(|(held, _)| held.offset).collect();
    let freed: Vec<u32> =
        existing().filter(|(held, slot)| slot.spender() == Some(held.holder)).map(|(held, _)| held.offset).collect();
    if freed.is_empty() && marks.iter().all(|offset| page.contested.contains(offset)) {
        return Ok(Effect::already_applied(delete_at_height::slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    for offset in &freed {
        slots::free(page, *offset);
    }
    page.contested.extend(marks);
    let changed = delete_at_height::update(rules, page);
    let reply = delete_at_height::slots_reply(page, changed);
    Ok(if freed.is_empty() { Effect::already_applied(reply, true) } else { Effect::applied(reply) })
}

/// Marks the slots of a stub: the marks stay when the stub is filled. Returns `true` if the stub has changed.
fn mark_stub(page: &mut Arc<Page>, held: &[HeldSlot]) -> bool {
    if held.iter().all(|held| page.contested.contains(&held.offset)) {
        return false;
    }
    Arc::make_mut(page).contested.extend(held.iter().map(|held| held.offset));
    true
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn settle(held: Vec<HeldSlot>) -> Operation {
        sequenced(1, Sequenced::Settle(held))
    }

    #[test]
    fn only_slots_of_the_holder_are_freed_and_all_slots_are_marked() {
        let spent_by = |n, by| Slot::Spent(hash(n), holder(by, n));
        let mut record = record(page_with(vec![spent_by(0, 1), spent_by(1, 2), Slot::Unspent(hash(2))]));
        let outcome = on_master(&mut record, &settle(vec![held(0, 1), held(1, 1), held(2, 1)])).outcome;
        assert_eq!(outcome, applied(slots_reply(false)));
        let page = page(&record);
        assert_eq!(page.utxos, Some(vec![Slot::Unspent(hash(0)), spent_by(1, 2), Slot::Unspent(hash(2))]));
        assert_eq!(page.contested, [0, 1, 2].into());
    }

    #[test]
    fn a_late_spend_of_a_settled_slot_is_refused() {
        let mut record = record(live(1));
        let effect = on_master(&mut record, &settle(vec![held(0, 1)]));
        assert_eq!((effect.outcome, effect.changed), (already(slots_reply(false)), true));
        assert_eq!(refused(on_master(&mut record, &spend(1, &[0]))), Rejection::Contested(0));
    }

    #[test]
    fn the_same_holder_with_another_input_is_another_spender() {
        let mut record = record(page_with(vec![Slot::Spent(hash(0), holder(1, 5))]));
        assert_eq!(on_master(&mut record, &settle(vec![held(0, 1)])).outcome, already(slots_reply(true)));
        assert_eq!(page(&record).spent_utxos, 1);
    }

    #[test]
    fn a_frozen_slot_and_a_pruned_spender_refuse_the_operation() {
        let slots = vec![Slot::Spent(hash(0), holder(1, 0)), Slot::Frozen(hash(1)), Slot::Spent(hash(2), holder(3, 2))];
        let mut page = page_with(slots);
        page.pruned_spenders.insert(2);
        let mut record = record(page);
        assert_eq!(refused(on_master(&mut record, &settle(vec![held(0, 1), held(1, 1)]))), Rejection::Frozen(1));
        assert_eq!(refused(on_master(&mut record, &settle(vec![held(0, 1), held(2, 3)]))), Rejection::SpenderPruned(2));
    }

    #[test]
    fn an_absent_record_is_not_created_and_missing_slots_are_ignored() {
        let mut absent = None;
        assert_eq!(on_master(&mut absent, &settle(vec![held(0, 1)])).outcome, already(Reply::None));
        assert_eq!(absent, None);
        for page in [tombstone(9, None), stub(Verdict::Pending)] {
            let state = page.state();
            let mut record = record(page);
            assert_eq!(on_master(&mut record, &settle(vec![held(0, 1)])).outcome, already(Reply::State(state)));
        }
        let mut page = record(page_with(vec![Slot::Nil]));
        assert!(on_master(&mut page, &settle(vec![held(0, 1), held(9, 1)])).outcome.is_done());
    }

    #[test]
    fn a_late_spend_of_a_settled_stub_is_refused_after_the_fill() {
        let mut record = record(stub(Verdict::Pending));
        assert!(on_master(&mut record, &settle(vec![held(0, 1)])).changed);
        let page = contested(2, Verdict::Pending);
        on_master(&mut record, &Operation::CreateContested(std::sync::Arc::new(page)));
        on_master(&mut record, &sequenced(2, Sequenced::Accept));
        assert_eq!(refused(on_master(&mut record, &spend(1, &[0]))), Rejection::Contested(0));
        assert!(on_master(&mut record, &spend(1, &[1])).outcome.is_done());
    }

    #[test]
    fn a_freed_slot_clears_delete_at_height() {
        let mut page = page_with(vec![Slot::Spent(hash(0), holder(1, 0))]);
        page.delete_at_height = Some(400);
        master(&mut page).mined = vec![mined(112)];
        master(&mut page).unmined_since = None;
        let reply = Reply::Slots { all_spent: false, delete_at_height: Some(None) };
        assert_eq!(on_master(&mut record(page), &settle(vec![held(0, 1)])).outcome, applied(reply));
    }

    #[test]
    fn a_conflicting_parent_keeps_its_delete_at_height() {
        let mut page = contested(1, Verdict::Conflicting(Reason::Command));
        page.utxos = Some(vec![Slot::Spent(hash(0), holder(1, 0))]);
        page.spent_utxos = 1;
        page.delete_at_height = Some(400);
        assert_eq!(on_master(&mut record(page), &settle(vec![held(0, 1)])).outcome, applied(slots_reply(false)));
    }
}
