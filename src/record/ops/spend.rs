//! `Spend`: takes slots for one spender, either all or none.

use std::sync::Arc;

use crate::record::{Body, Page, Record, Rejection, Reply, Rules, Spend, SpendSlot, SpendingData};

use super::{
    Effect, delete_at_height,
    refusal::{self, Taker},
    require_page, slots,
    stored_output::StoredOutputs,
};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>, spend: &Spend) -> Result<Effect, Rejection> {
    apply_with_outputs(rules, record, spend, None)
}

/// Applies spends in order, like [`apply`] for each spend. One pass over the body finds the stored outputs of all
/// spends.
pub(super) fn apply_all(
    rules: &Rules,
    record: &mut Option<Record>,
    spends: &[Spend],
) -> Vec<Result<Effect, Rejection>> {
    // A spend neither changes, adds nor removes the body.
    let body = match record.as_ref().and_then(Record::page).and_then(|page| page.master.as_ref()?.body.as_ref()) {
        Some(Body::Transaction(body)) if spends.len() > 1 => Some(body.clone()),
        _ => None,
    };
    let claims = spends.iter().flat_map(|spend| spend.slots.iter()).map(|slot| slot.offset);
    let stored = body.as_deref().map(|body| StoredOutputs::in_transaction(body, claims));
    spends.iter().map(|spend| apply_with_outputs(rules, record, spend, stored.as_ref())).collect()
}

fn apply_with_outputs(
    rules: &Rules,
    record: &mut Option<Record>,
    spend: &Spend,
    stored: Option<&StoredOutputs<'_>>,
) -> Result<Effect, Rejection> {
    refusal::check_distinct_inputs(spend.slots.iter().map(|slot| (slot.offset, slot.input)))?;
    let page = require_page(record)?;
    if !check(page, spend, stored)? {
        return Ok(Effect::already_applied(build_reply(spend, page, None), false));
    }
    let page = Arc::make_mut(page);
    for slot in spend.slots.iter() {
        slots::take(page, slot.offset, spending_data(spend, slot));
    }
    let changed = delete_at_height::update(rules, page);
    Ok(Effect::applied(build_reply(spend, page, changed)))
}

fn build_reply(spend: &Spend, page: &Page, changed: Option<Option<u32>>) -> Reply {
    if spend.signals { delete_at_height::slots_reply(page, changed) } else { Reply::None }
}

/// Checks all slots of a spend. Returns `true` if there is a slot to take, `false` if the spender has all of them.
fn check(page: &Page, spend: &Spend, stored: Option<&StoredOutputs<'_>>) -> Result<bool, Rejection> {
    let found;
    let stored = match stored {
        Some(stored) => stored,
        None => {
            found = StoredOutputs::find(page, spend.slots.iter().map(|slot| slot.offset));
            &found
        }
    };
    let mut untaken = Vec::with_capacity(spend.slots.len());
    for slot in spend.slots.iter() {
        if !refusal::is_taken_as_claimed(page, stored, slot, spending_data(spend, slot))? {
            untaken.push(slot);
        }
    }
    if untaken.is_empty() {
        return Ok(false);
    }
    let taker = Taker::Spender(spend.marks);
    refusal::check_record(page, spend.height, taker)?;
    for slot in untaken {
        refusal::check_slot(page, stored, slot, None, spend.height, taker)?;
    }
    Ok(true)
}

fn spending_data(spend: &Spend, slot: &SpendSlot) -> SpendingData {
    SpendingData { txid: spend.spender, input: slot.input }
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    #[test]
    fn a_spend_takes_all_slots_for_the_spender() {
        let mut record = record(live(3));
        assert_eq!(on_master(&mut record, &spend(1, &[0, 2])).outcome, applied(slots_reply(false)));
        let slots = page(&record).utxos.as_ref().unwrap();
        assert_eq!(slots[0], Slot::Spent(hash(0), holder(1, 0)));
        assert_eq!(slots[1], Slot::Unspent(hash(1)));
        assert_eq!(slots[2], Slot::Spent(hash(2), holder(1, 2)));
        assert_eq!(on_master(&mut record, &spend(2, &[1])).outcome, applied(slots_reply(true)));
    }

    #[test]
    fn a_reply_with_signals_is_sent_only_on_request() {
        let Operation::Spend(with_signals) = spend(1, &[0]) else { panic!() };
        let silent = Operation::Spend(Spend { signals: false, ..with_signals });
        let mut record = record(live(1));
        assert_eq!(on_master(&mut record, &silent).outcome, applied(Reply::None));
        assert_eq!(on_master(&mut record, &silent).outcome, already(Reply::None));
        assert_eq!(on_master(&mut record, &spend(1, &[0])).outcome, already(slots_reply(true)));
    }

    #[test]
    fn spends_in_one_call_equal_spends_one_by_one() {
        let spends: Vec<Spend> =
            [(1, vec![0, 2]), (2, vec![1]), (3, vec![2]), (4, vec![3]), (5, vec![9]), (6, vec![3])]
                .into_iter()
                .map(|(spender, offsets)| match spend(spender, &offsets) {
                    Operation::Spend(spend) => spend,
                    other => panic!("{other:?}"),
                })
                .collect();
        for body in [Some(Body::Transaction(transaction(4))), None] {
            let mut page = page_of(body);
            page.utxos = live(4).utxos;
            page.record_utxos = 4;
            let (mut at_once, mut one_by_one) = (record(page.clone()), record(page));
            let effects = spend_all(&RULES, &mut at_once, &spends);
            let each = spends.iter().map(|spend| on_master(&mut one_by_one, &Operation::Spend(spend.clone())));
            assert_eq!(effects, each.collect::<Vec<_>>());
            assert_eq!(at_once, one_by_one);
            let refused: Vec<bool> = effects.iter().map(|effect| !effect.outcome.is_done()).collect();
            assert_eq!(refused, [false, false, true, false, true, true]);
        }
    }

    #[test]
    fn one_refused_slot_refuses_the_whole_spend() {
        let mut record = record(live(3));
        on_master(&mut record, &spend(1, &[1]));
        let rejection = refused(on_master(&mut record, &spend(2, &[0, 1, 2])));
        assert_eq!(rejection, Rejection::SpentBy(1, holder(1, 1)));
        assert_eq!(page(&record).spent_utxos, 1);
    }

    #[test]
    fn a_spender_of_some_slots_takes_the_remaining_slots() {
        let mut record = record(live(2));
        on_master(&mut record, &spend(1, &[0]));
        assert_eq!(on_master(&mut record, &spend(1, &[0, 1])).outcome, applied(slots_reply(true)));
        assert_eq!(page(&record).spent_utxos, 2);
    }

    #[test]
    fn the_same_spender_with_another_input_is_refused() {
        let mut record = record(live(1));
        on_master(&mut record, &spend(1, &[0]));
        let mut other = claim(0);
        other.input = 5;
        let other =
            Spend { spender: txid(1), height: 200, slots: vec![other].into(), marks: Marks::Respect, signals: true };
        let rejection = refused(on_master(&mut record, &Operation::Spend(other)));
        assert_eq!(rejection, Rejection::SpentBy(0, holder(1, 0)));
    }

    #[test]
    fn two_inputs_cannot_take_one_slot() {
        let slots = vec![claim(0), SpendSlot { input: 5, ..claim(0) }];
        let twice = Spend { spender: txid(1), height: 200, slots: slots.into(), marks: Marks::Respect, signals: true };
        assert_eq!(refused(on_master(&mut record(live(1)), &Operation::Spend(twice))), Rejection::Unexpected);
        assert_eq!(on_master(&mut record(live(1)), &spend(1, &[0, 0])).outcome, applied(slots_reply(true)));
    }

    #[test]
    fn a_replayed_pruned_spender_is_refused_as_pruned() {
        let mut page = page_with(vec![Slot::Spent(hash(0), holder(1, 0)), Slot::Unspent(hash(1))]);
        page.pruned_spenders.insert(0);
        let mut record = record(page);
        assert_eq!(refused(on_master(&mut record, &spend(1, &[1, 0]))), Rejection::SpenderPruned(0));
        assert_eq!(refused(on_master(&mut record, &spend(2, &[0]))), Rejection::SpentBy(0, holder(1, 0)));
    }

    #[test]
    fn a_slot_is_spendable_from_its_height_on() {
        let mut page = live(1);
        page.spending_height = Some(150);
        page.utxo_spendable_in.insert(0, 160);
        let mut record = record(page);
        let mut at = |height| on_master(&mut record, &spend_at(1, &[0], height, Marks::Respect));
        assert_eq!(refused(at(149)), Rejection::Immature(150));
        assert_eq!(refused(at(150)), Rejection::NotYetSpendable(0, 160));
        assert_eq!(refused(at(159)), Rejection::NotYetSpendable(0, 160));
        assert_eq!(at(160).outcome, applied(slots_reply(true)));
    }

    #[test]
    fn a_spend_that_ignores_marks_takes_a_frozen_slot() {
        let mut record = record(page_with(vec![Slot::Frozen(hash(0))]));
        on_master(&mut record, &spend_at(1, &[0], 0, Marks::Ignore));
        assert_eq!(page(&record).utxos, Some(vec![Slot::Spent(hash(0), holder(1, 0))]));
    }

    #[test]
    fn a_spend_that_ignores_marks_takes_no_spent_slot() {
        let mut record = record(page_with(vec![Slot::Spent(hash(0), holder(2, 0))]));
        let rejection = refused(on_master(&mut record, &spend_at(1, &[0], 0, Marks::Ignore)));
        assert_eq!(rejection, Rejection::SpentBy(0, holder(2, 0)));
    }

    #[test]
    fn the_last_spend_of_a_mined_transaction_sets_delete_at_height() {
        let mut page = live(2);
        master(&mut page).mined = vec![mined(90), mined(120), mined(110)];
        master(&mut page).unmined_since = None;
        let mut record = record(page);
        assert_eq!(on_master(&mut record, &spend(1, &[0])).outcome, applied(slots_reply(false)));
        let reply = Reply::Slots { all_spent: true, delete_at_height: Some(Some(90 + 288)) };
        assert_eq!(on_master(&mut record, &spend(1, &[1])).outcome, applied(reply));
    }

    #[test]
    fn a_claim_on_a_reassigned_slot_is_compared_with_the_new_output() {
        let mut page = live(1);
        let entry = |satoshis| Reassignment {
            offset: 0,
            utxo_hash: hash(0),
            new_utxo_hash: hash(0),
            block_height: 1,
            output: StoredOutput { satoshis, ..output(0) },
        };
        page.reassignments = vec![entry(7), entry(8)];
        page.record_utxos += 2;
        let mut record = record(page);
        let mut claiming = |satoshis| {
            let slots = vec![SpendSlot { satoshis, ..claim(0) }];
            on_master(
                &mut record,
                &Operation::Spend(Spend {
                    spender: txid(1),
                    height: 1,
                    slots: slots.into(),
                    marks: Marks::Respect,
                    signals: true,
                }),
            )
        };
        assert_eq!(refused(claiming(100)), Rejection::OutputMismatch(0));
        assert_eq!(refused(claiming(7)), Rejection::OutputMismatch(0));
        assert_eq!(claiming(8).outcome, applied(slots_reply(false)));
    }

    #[test]
    fn a_refused_spend_copies_no_page_and_an_unshared_page_is_changed_in_place() {
        let mut record = record(live(2));
        let shared = record.clone();
        refused(on_master(&mut record, &spend(1, &[5])));
        let (Some(Record::Page(a)), Some(Record::Page(b))) = (&record, &shared) else { panic!() };
        assert!(std::sync::Arc::ptr_eq(a, b));
        drop(shared);
        let Some(Record::Page(before)) = &record else { panic!() };
        let before = std::sync::Arc::as_ptr(before);
        apply(&RULES, &MASTER, &mut record, &spend(1, &[0]));
        let Some(Record::Page(after)) = &record else { panic!() };
        assert_eq!(std::sync::Arc::as_ptr(after), before);
    }
}
