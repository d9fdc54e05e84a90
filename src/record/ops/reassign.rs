//! `Reassign`: gives a frozen slot the output of a new owner.

use std::sync::Arc;

use crate::record::{Reassignment, Record, Rejection, Reply, Rules, Sequenced, Slot};

use super::{Effect, delete_at_height, require_whole_page, slots};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>, operation: &Sequenced) -> Result<Effect, Rejection> {
    let Sequenced::Reassign { offset, utxo_hash, new_utxo_hash, output, block_height, spendable_at, decided } =
        operation
    else {
        return Err(Rejection::Unexpected);
    };
    let offset = *offset;
    let entry = Reassignment {
        offset,
        utxo_hash: *utxo_hash,
        new_utxo_hash: *new_utxo_hash,
        block_height: *block_height,
        output: output.clone(),
    };
    let page = require_whole_page(record)?;
    let slot = slots::slot(page, offset).ok_or(Rejection::NoSuchOutput(offset))?;
    if page.reassignments.contains(&entry) {
        // An earlier `Freeze` or `FreezeUntil` may have been applied once more before this repeat.
        let frozen_again = slot == Slot::Frozen(*new_utxo_hash);
        let is_last = page.reassignments.iter().rfind(|stored| stored.offset == offset) == Some(&entry);
        let other_height = is_last && page.utxo_spendable_in.get(&offset) != Some(spendable_at);
        if frozen_again {
            slots::put(Arc::make_mut(page), offset, |_| Some(Slot::Unspent(*new_utxo_hash)));
        }
        if other_height {
            Arc::make_mut(page).utxo_spendable_in.insert(offset, *spendable_at);
        }
        return Ok(Effect::already_applied(Reply::None, frozen_again || other_height));
    }
    let new = match slot {
        Slot::Frozen(_) => Slot::Unspent(*new_utxo_hash),
        Slot::Spent(_, holder) if *decided => Slot::Spent(*new_utxo_hash, holder),
        Slot::Spent(..) | Slot::Unspent(_) | Slot::Nil => return Err(Rejection::NotFrozen(offset)),
    };
    if slot.hash() != Some(*utxo_hash) {
        return Err(Rejection::HashMismatch(offset));
    }
    let page = Arc::make_mut(page);
    slots::put(page, offset, |_| Some(new));
    page.contested.insert(offset);
    page.utxo_spendable_in.insert(offset, *spendable_at);
    // One more than the number of slots: the page is never fully spent, and the audit entry is never pruned.
    page.record_utxos += 1;
    page.reassignments.push(entry);
    let changed = delete_at_height::update(rules, page);
    Ok(Effect::applied(delete_at_height::slots_reply(page, changed)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn reassign(from: u32, to: u32) -> Operation {
        sequenced(1, reassignment(from, to, false))
    }

    fn reassignment(from: u32, to: u32, decided: bool) -> Sequenced {
        Sequenced::Reassign {
            offset: 0,
            utxo_hash: hash(from),
            new_utxo_hash: hash(to),
            output: output(to),
            block_height: 100,
            spendable_at: 1_100,
            decided,
        }
    }

    /// A restart applies the chain log again from the committed offset, with all events after the reassignment.
    #[test]
    fn a_repeated_reassignment_is_applied_once() {
        let mut record = record(page_with(vec![Slot::Frozen(hash(0))]));
        on_master(&mut record, &reassign(0, 5));
        assert_eq!(on_master(&mut record, &reassign(0, 5)).outcome, already(Reply::None));
        on_master(&mut record, &sequenced(2, Sequenced::Freeze { offset: 0 }));
        on_master(&mut record, &sequenced(3, reassignment(5, 6, false)));
        let after = page(&record).clone();
        let until = Sequenced::FreezeUntil { offset: 0, height: 9, decided: true };
        for again in [until, reassignment(0, 5, true), Sequenced::Freeze { offset: 0 }, reassignment(5, 6, true)] {
            assert!(on_master(&mut record, &sequenced(4, again)).outcome.is_done());
        }
        assert_eq!(page(&record), &Page { chain_pos: Some(stamp(4)), ..after });
        assert_eq!(page(&record).utxos, Some(vec![Slot::Unspent(hash(6))]));
    }

    #[test]
    fn a_decided_reassignment_applies_to_a_spent_slot() {
        let mut record = record(page_with(vec![Slot::Spent(hash(0), holder(1, 0))]));
        let decided = sequenced(1, reassignment(0, 0, true));
        assert_eq!(on_master(&mut record, &decided).outcome, applied(slots_reply(false)));
        assert_eq!(page(&record).utxos, Some(vec![Slot::Spent(hash(0), holder(1, 0))]));
        assert_eq!((page(&record).record_utxos, page(&record).reassignments.len()), (2, 1));
        assert_eq!(on_master(&mut record, &decided).outcome, already(Reply::None));
        assert_eq!((page(&record).record_utxos, page(&record).reassignments.len()), (2, 1));
    }

    #[test]
    fn a_frozen_slot_gets_a_new_owner_who_can_spend_it_later() {
        let mut record = record(page_with(vec![Slot::Frozen(hash(0))]));
        assert_eq!(on_master(&mut record, &reassign(0, 5)).outcome, applied(slots_reply(false)));
        let page = page(&record);
        assert_eq!(page.utxos, Some(vec![Slot::Unspent(hash(5))]));
        assert_eq!((page.record_utxos, page.contested.len()), (2, 1));
        assert_eq!(page.utxo_spendable_in, [(0, 1_100)].into());
        let slot = SpendSlot { offset: 0, input: 0, ..claim(5) };
        let slots = vec![RespendSlot { slot, from: None }];
        let at = |height| Respend { to: txid(1), slots: slots.clone(), checks: RespendChecks::Spend { height } };
        let rejection = refused(on_master(&mut record, &sequenced(2, Sequenced::Respend(at(1_099)))));
        assert_eq!(rejection, Rejection::NotYetSpendable(0, 1_100));
        let outcome = on_master(&mut record, &sequenced(2, Sequenced::Respend(at(1_100)))).outcome;
        assert_eq!(outcome, applied(slots_reply(false)), "a reassigned page is never fully spent");
    }

    #[test]
    fn only_a_frozen_slot_with_the_named_hash_is_reassigned() {
        let rejection = |slot| refused(on_master(&mut record(page_with(vec![slot])), &reassign(0, 5)));
        assert_eq!(rejection(Slot::Unspent(hash(0))), Rejection::NotFrozen(0));
        assert_eq!(rejection(Slot::Spent(hash(0), holder(1, 0))), Rejection::NotFrozen(0));
        assert_eq!(rejection(Slot::Frozen(hash(1))), Rejection::HashMismatch(0));
        assert_eq!(rejection(Slot::Nil), Rejection::NoSuchOutput(0));
    }
}
