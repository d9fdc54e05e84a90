//! `AddSlots`: adds slots to a transaction that a block lists at another height than the event's, where other outputs
//! are spendable.

use std::sync::Arc;

use crate::{
    record::{Record, Rejection, Rules, Slot},
    tx::UtxoHash,
};

use super::{Effect, delete_at_height, require_whole_page};

pub(super) fn apply(
    rules: &Rules,
    record: &mut Option<Record>,
    slots: &[(u32, UtxoHash)],
    height: u32,
) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    let stored = page.utxos.as_deref().unwrap_or_default();
    let mut added = Vec::new();
    for (offset, hash) in slots {
        match stored.get(*offset as usize) {
            Some(Slot::Nil) => added.push((*offset, *hash)),
            Some(_) => {}
            None => return Err(Rejection::NoSuchOutput(*offset)),
        }
    }
    let moves_height = page.unmined_since().is_some_and(|since| since != height)
        || page.slot_height.is_some_and(|slot_height| slot_height != height);
    if added.is_empty() && !moves_height {
        return Ok(Effect::already_applied(delete_at_height::slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    page.record_utxos += added.len() as u32;
    let stored = page.utxos.get_or_insert_default();
    for (offset, hash) in added {
        stored[offset as usize] = Slot::Unspent(hash);
    }
    page.slot_height = page.slot_height.map(|_| height);
    if let Some(master) = page.master.as_deref_mut() {
        master.unmined_since = master.unmined_since.map(|_| height);
    }
    let changed = delete_at_height::update(rules, page);
    Ok(Effect::applied(delete_at_height::slots_reply(page, changed)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn add(offsets: &[u32]) -> Operation {
        let slots = offsets.iter().map(|offset| (*offset, hash(*offset))).collect();
        sequenced(1, Sequenced::AddSlots { slots, height: 700_000 })
    }

    #[test]
    fn slots_are_added_once_and_unmined_since_is_set() {
        let mut record = record(page_with(vec![Slot::Nil, Slot::Unspent(hash(1)), Slot::Nil]));
        assert!(on_master(&mut record, &add(&[0, 2])).changed);
        let page = page(&record);
        let slots = [0, 1, 2].map(|offset| Slot::Unspent(hash(offset)));
        assert_eq!((page.utxos.as_deref(), page.record_utxos), (Some(&slots[..]), 3));
        assert_eq!(page.master.as_ref().unwrap().unmined_since, Some(700_000));
        let again = on_master(&mut record, &add(&[0, 2]));
        assert!(matches!(again.outcome, Outcome::AlreadyApplied(_)) && !again.changed);
    }

    #[test]
    fn the_height_of_the_slots_is_set_on_every_page() {
        let page_of =
            |page: Page| Page { slot_height: Some(100), utxos: Some(vec![Slot::Nil]), record_utxos: 0, ..page };
        for (key, page) in [(Key::master(TXID), live(1)), (Key::Page(TXID, 1), second_page(1))] {
            let mut record = record(page_of(page));
            assert!(on(&key, &mut record, &add(&[])).changed, "no output needs a slot");
            assert_eq!(self::page(&record).slot_height, Some(700_000));
            assert!(!on(&key, &mut record, &add(&[])).changed);
        }
    }

    #[test]
    fn existing_slots_are_not_changed() {
        let slots = vec![Slot::Spent(hash(0), holder(2, 0)), Slot::Frozen(hash(1))];
        let mut record = record(page_with(slots.clone()));
        on_master(&mut record, &add(&[0, 1]));
        assert_eq!(page(&record).utxos, Some(slots));
    }

    #[test]
    fn an_offset_out_of_range_is_refused() {
        assert_eq!(refused(on_master(&mut record(page_with(vec![Slot::Nil])), &add(&[1]))), Rejection::NoSuchOutput(1));
        assert_eq!(refused(on_master(&mut None, &add(&[]))), Rejection::NotFound);
    }
}
