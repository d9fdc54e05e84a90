//! `Respend`: moves slots to another transaction by compare-and-set on their holders, and marks the slots contested.

use std::sync::Arc;

use crate::record::{Page, Record, Rejection, Respend, RespendChecks, RespendSlot, Rules, Slot, SpendingData, Verdict};

use super::{
    Effect, delete_at_height,
    refusal::{self, Taker},
    require_page, slots,
    stored_output::StoredOutputs,
};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>, respend: &Respend) -> Result<Effect, Rejection> {
    refusal::check_distinct_inputs(respend.slots.iter().map(|moved| (moved.slot.offset, moved.slot.input)))?;
    let page = require_page(record)?;
    let has_slots_to_move = check(page, respend)?;
    let marked = respend.slots.iter().all(|moved| page.contested.contains(&moved.slot.offset));
    if !has_slots_to_move && marked {
        return Ok(Effect::already_applied(delete_at_height::slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    for moved in &respend.slots {
        slots::take(page, moved.slot.offset, spender(respend, moved));
        page.contested.insert(moved.slot.offset);
    }
    let changed = delete_at_height::update(rules, page);
    let reply = delete_at_height::slots_reply(page, changed);
    Ok(if has_slots_to_move { Effect::applied(reply) } else { Effect::already_applied(reply, true) })
}

/// Returns the reason why the record would refuse a `Respend`, stamps aside; `None`: the record would not refuse.
pub fn respend_refusal(record: Option<&Record>, respend: &Respend) -> Option<Rejection> {
    match record {
        None => Some(Rejection::NotFound),
        Some(Record::Page(page)) => check(page, respend).err(),
        Some(_) => Some(Rejection::Unexpected),
    }
}

/// Checks all slots of a respend. Returns `true` if there is a slot to move, `false` if the new holder has all of them.
fn check(page: &Page, respend: &Respend) -> Result<bool, Rejection> {
    let mut to_move = 0;
    for moved in &respend.slots {
        to_move += usize::from(!refusal::is_taken_by(page, moved.slot.offset, spender(respend, moved))?);
    }
    if to_move == 0 {
        return match respend.checks {
            RespendChecks::Spend { .. } | RespendChecks::Listed { .. } | RespendChecks::Live { .. } => {
                check_claims(page, respend).map(|()| false)
            }
            RespendChecks::Decided => Ok(false),
        };
    }
    match respend.checks {
        RespendChecks::Spend { height } => check_as_spend(page, respend, height, Taker::Sequencer)?,
        RespendChecks::Listed { height } => check_as_spend(page, respend, height, Taker::Block)?,
        RespendChecks::Live { height } => check_as_spend(page, respend, height, Taker::Live)?,
        RespendChecks::Decided => check_decided(page, respend)?,
    }
    Ok(true)
}

fn check_as_spend(page: &Page, respend: &Respend, height: u32, taker: Taker) -> Result<(), Rejection> {
    refusal::check_record(page, height, taker)?;
    check_claims(page, respend)?;
    let stored = StoredOutputs::find(page, respend.slots.iter().map(|moved| moved.slot.offset));
    for moved in &respend.slots {
        if !refusal::is_taken_by(page, moved.slot.offset, spender(respend, moved))? {
            refusal::check_slot(page, &stored, &moved.slot, moved.from, height, taker)?;
        }
    }
    Ok(())
}

/// Compares the claims of the event with the stored outputs, also for slots that the new holder has already.
fn check_claims(page: &Page, respend: &Respend) -> Result<(), Rejection> {
    let stored = StoredOutputs::find(page, respend.slots.iter().map(|moved| moved.slot.offset));
    for moved in &respend.slots {
        refusal::is_taken_as_claimed(page, &stored, &moved.slot, spender(respend, moved))?;
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
        if refusal::is_taken_by(page, offset, spender(respend, moved))? {
            continue;
        }
        // The flag `frozen` of the transaction was set after the decision, or the new holder had the slot before.
        if matches!(slot, Slot::Frozen(_)) {
            return Err(Rejection::Frozen(offset));
        }
        refusal::check_spender_not_pruned(page, offset)?;
        refusal::check_holder(slot, offset, moved.from)?;
    }
    Ok(())
}

fn spender(respend: &Respend, moved: &RespendSlot) -> SpendingData {
    SpendingData { txid: respend.to, input: moved.slot.input }
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn respend(to: u8, slots: &[(u32, Option<u8>)], checks: RespendChecks) -> Operation {
        let slots = slots
            .iter()
            .map(|(n, from)| RespendSlot { slot: claim(*n), from: from.map(|by| holder(by, *n)) })
            .collect();
        sequenced(1, Sequenced::Respend(Respend { to: txid(to), slots, checks }))
    }

    const BOTH: [RespendChecks; 2] = [RespendChecks::Spend { height: 200 }, RespendChecks::Decided];

    #[test]
    fn a_lock_does_not_bar_a_listed_transaction_and_other_bars_do() {
        let listed = RespendChecks::Listed { height: 200 };
        let outcome = |change: &dyn Fn(&mut Page), checks| {
            let mut page = held_by(2);
            change(&mut page);
            on_master(&mut record(page), &respend(1, &[(1, None)], checks)).outcome
        };
        assert_eq!(outcome(&|page| page.locked = true, BOTH[0]), Outcome::Rejected(Rejection::Locked));
        assert!(outcome(&|page| page.locked = true, listed).is_done());
        let immature = outcome(&|page| page.spending_height = Some(201), listed);
        assert_eq!(immature, Outcome::Rejected(Rejection::Immature(201)));
        assert_eq!(outcome(&|page| page.frozen = true, listed), Outcome::Rejected(Rejection::Frozen(1)));
    }

    fn held_by(by: u8) -> Page {
        page_with(vec![Slot::Spent(hash(0), holder(by, 0)), Slot::Unspent(hash(1))])
    }

    #[test]
    fn claims_on_a_slot_that_is_already_taken_are_compared_in_an_evaluation() {
        for (checks, rejection) in [(BOTH[0], Some(Rejection::HashMismatch(0))), (BOTH[1], None)] {
            let mut record = record(held_by(1));
            let mut claimed = claim(0);
            claimed.utxo_hash = hash(9);
            let slots = vec![RespendSlot { slot: claimed, from: None }];
            let operation = sequenced(1, Sequenced::Respend(Respend { to: txid(1), slots, checks }));
            let effect = on_master(&mut record, &operation);
            match rejection {
                Some(rejection) => assert_eq!(refused(effect), rejection),
                None => assert!(effect.outcome.is_done()),
            }
        }
    }

    #[test]
    fn a_slot_of_the_loser_and_a_free_slot_are_moved_and_marked() {
        for checks in BOTH {
            let mut record = record(held_by(2));
            let outcome = on_master(&mut record, &respend(1, &[(0, Some(2)), (1, None)], checks)).outcome;
            assert_eq!(outcome, applied(slots_reply(true)));
            let page = page(&record);
            assert_eq!(page.contested, [0, 1].into());
            assert!(page.utxos.iter().flatten().all(|slot| slot.spender().unwrap().txid == txid(1)));
            assert_eq!((page.spent_utxos, page.chain_pos), (2, Some(stamp(1))));
        }
    }

    #[test]
    fn a_slot_named_with_a_holder_may_be_free() {
        for checks in BOTH {
            let mut record = record(held_by(2));
            assert!(on_master(&mut record, &respend(1, &[(1, Some(2))], checks)).outcome.is_done());
        }
    }

    #[test]
    fn a_slot_of_another_holder_refuses_the_whole_respend() {
        for checks in BOTH {
            for from in [None, Some(3)] {
                let mut record = record(held_by(2));
                let rejection = refused(on_master(&mut record, &respend(1, &[(1, None), (0, from)], checks)));
                assert_eq!(rejection, Rejection::SpentBy(0, holder(2, 0)));
                assert_eq!(page(&record).chain_pos, None, "a refused operation leaves no stamp");
            }
        }
    }

    #[test]
    fn a_slot_that_the_winner_has_already_is_marked() {
        for checks in BOTH {
            let mut record = record(held_by(1));
            let effect = on_master(&mut record, &respend(1, &[(0, None)], checks));
            assert_eq!(effect.outcome, already(slots_reply(false)));
            assert!(effect.changed);
            assert_eq!(page(&record).contested, [0].into());
        }
    }

    #[test]
    fn a_slot_of_a_pruned_spender_is_not_moved() {
        for checks in BOTH {
            for (to, from) in [(1, Some(2)), (1, None), (2, None)] {
                let mut page = held_by(2);
                page.pruned_spenders.insert(0);
                let rejection = refused(on_master(&mut record(page), &respend(to, &[(0, from)], checks)));
                let is_own_or_decided = to == 2 || checks == RespendChecks::Decided;
                let expected = match is_own_or_decided {
                    true => Rejection::SpenderPruned(0),
                    // `SpenderPruned` would say that the taker itself was pruned.
                    false => Rejection::SpentBy(0, holder(2, 0)),
                };
                assert_eq!(rejection, expected);
            }
        }
    }

    #[test]
    fn two_inputs_cannot_take_one_slot() {
        for checks in BOTH {
            let slot = |input| RespendSlot { slot: SpendSlot { input, ..claim(0) }, from: None };
            let twice = Respend { to: txid(1), slots: vec![slot(0), slot(5)], checks };
            let rejection = refused(on_master(&mut record(live(1)), &sequenced(1, Sequenced::Respend(twice))));
            assert_eq!(rejection, Rejection::Unexpected);
        }
    }

    #[test]
    fn a_decided_respend_ignores_flags_and_claims() {
        let mut page = contested(1, Verdict::Conflicting(Reason::Command));
        page.creating_at = Some(1);
        page.locked = true;
        page.spending_height = Some(900);
        page.utxo_spendable_in.insert(0, 900);
        let mut record = record(page);
        let slot = SpendSlot { utxo_hash: hash(50), satoshis: 0, ..claim(0) };
        let slots = vec![RespendSlot { slot, from: None }];
        let decided = Respend { to: txid(1), slots, checks: RespendChecks::Decided };
        assert!(on_master(&mut record, &sequenced(1, Sequenced::Respend(decided))).outcome.is_done());
        assert_eq!(self::page(&record).utxos, Some(vec![Slot::Spent(hash(0), holder(1, 0))]));
    }

    #[test]
    fn a_decided_respend_of_a_missing_or_frozen_slot_is_refused() {
        let rejection = |page: Option<Record>, n| {
            let mut page = page;
            refused(on_master(&mut page, &respend(1, &[(n, None)], RespendChecks::Decided)))
        };
        assert_eq!(rejection(None, 0), Rejection::NotFound);
        assert_eq!(rejection(record(tombstone(9, None)), 0), Rejection::Pruned(9));
        assert_eq!(rejection(record(stub(Verdict::Pending)), 0), Rejection::Conflicting(Verdict::Pending));
        assert_eq!(rejection(record(live(1)), 1), Rejection::NoSuchOutput(1));
        assert_eq!(rejection(record(page_with(vec![Slot::Nil])), 0), Rejection::NoSuchOutput(0));
        assert_eq!(rejection(record(page_with(vec![Slot::Frozen(hash(0))])), 0), Rejection::Frozen(0));
    }
}
