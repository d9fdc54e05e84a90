//! `SetSlots`: a block at another height than the event's decides which outputs can be spent.

use std::sync::Arc;

use crate::{
    record::{Record, Rejection, Rules, Slot},
    tx::UtxoHash,
};

use super::{Effect, delete_at_height, whole_page};

pub(super) fn apply(
    rules: &Rules,
    record: &mut Option<Record>,
    add: &[(u32, UtxoHash)],
    remove: &[u32],
    height: u32,
) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    let slots = page.utxos.as_deref().unwrap_or_default();
    let at = |offset: u32| slots.get(offset as usize).copied().ok_or(Rejection::NoSuchOutput(offset));
    let mut added = Vec::new();
    for (offset, hash) in add {
        if at(*offset)? == Slot::Nil {
            added.push((*offset, *hash));
        }
    }
    let mut removed = Vec::new();
    for offset in remove {
        // No block can hold a spend of such an output: a slot that is taken, frozen, or has a history stays as it is.
        let has_history = page.contested.contains(offset)
            || page.utxo_spendable_in.contains_key(offset)
            || page.reassignments.iter().any(|entry| entry.offset == *offset);
        if matches!(at(*offset)?, Slot::Unspent(_)) && !has_history {
            removed.push(*offset);
        }
    }
    let unmined_since = page.master.as_deref().and_then(|master| master.unmined_since);
    let moves = unmined_since.is_some_and(|since| since != height);
    if added.is_empty() && removed.is_empty() && !moves {
        return Ok(Effect::already(delete_at_height::slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    page.record_utxos += added.len() as u32;
    page.record_utxos -= removed.len() as u32;
    let slots = page.utxos.get_or_insert_default();
    for (offset, hash) in added {
        slots[offset as usize] = Slot::Unspent(hash);
    }
    for offset in removed {
        slots[offset as usize] = Slot::Nil;
    }
    if let Some(master) = page.master.as_deref_mut().filter(|_| moves) {
        master.unmined_since = Some(height);
    }
    let changed = delete_at_height::evaluate(rules, page);
    Ok(Effect::applied(delete_at_height::slots_reply(page, changed)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn set(add: &[u32], remove: &[u32]) -> Operation {
        let add = add.iter().map(|offset| (*offset, hash(*offset))).collect();
        sequenced(1, Sequenced::SetSlots { add, remove: remove.to_vec(), height: 700_000 })
    }

    #[test]
    fn outputs_get_slots_and_lose_them() {
        let mut record = record(page_with(vec![Slot::Nil, Slot::Unspent(hash(1)), Slot::Nil]));
        assert!(on_master(&mut record, &set(&[0, 2], &[1])).changed);
        let page = page(&record);
        let slots = [Slot::Unspent(hash(0)), Slot::Nil, Slot::Unspent(hash(2))];
        assert_eq!((page.utxos.as_deref(), page.record_utxos), (Some(&slots[..]), 2));
        assert_eq!(page.master.as_ref().unwrap().unmined_since, Some(700_000));
        let again = on_master(&mut record, &set(&[0, 2], &[1]));
        assert!(matches!(again.outcome, Outcome::AlreadyApplied(_)) && !again.changed);
    }

    #[test]
    fn slots_that_are_taken_or_frozen_stay() {
        let slots = vec![Slot::Spent(hash(0), holder(2, 0)), Slot::Frozen(hash(1))];
        let mut record = record(page_with(slots.clone()));
        on_master(&mut record, &set(&[0], &[0, 1]));
        assert_eq!(page(&record).utxos, Some(slots));
    }

    #[test]
    fn slots_that_do_not_exist_are_refused() {
        for (add, remove) in [(vec![1], vec![]), (vec![], vec![1])] {
            let told = on_master(&mut record(page_with(vec![Slot::Nil])), &set(&add, &remove));
            assert_eq!(refused(told), Rejection::NoSuchOutput(1));
        }
        assert_eq!(refused(on_master(&mut None, &set(&[], &[]))), Rejection::NotFound);
    }
}
