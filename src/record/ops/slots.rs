//! Reads and changes slots of a page, and keeps the counters equal to the slots.

use crate::record::{Page, Slot, SpendingData};

/// Returns the slot at index `offset`; `None` for a nil slot and for an index out of range.
pub(super) fn slot(page: &Page, offset: u32) -> Option<Slot> {
    let slot = *page.utxos.as_ref()?.get(offset as usize)?;
    (slot != Slot::Nil).then_some(slot)
}

/// Gives a slot to `spender`, also from another holder. The caller has checked the slot.
pub(super) fn take(page: &mut Page, offset: u32, spender: SpendingData) {
    put(page, offset, |slot| slot.hash().map(|hash| Slot::Spent(hash, spender)));
}

/// Frees a slot. The caller has checked the slot.
pub(super) fn free(page: &mut Page, offset: u32) {
    put(page, offset, |slot| slot.hash().map(Slot::Unspent));
}

/// Replaces a slot by the result of `new`, and keeps `spentUtxos` equal to the number of spent slots.
pub(super) fn put(page: &mut Page, offset: u32, new: impl FnOnce(Slot) -> Option<Slot>) {
    let Some(slot) = page.utxos.as_mut().and_then(|slots| slots.get_mut(offset as usize)) else { return };
    let Some(new) = new(*slot) else { return };
    match (slot.spender().is_some(), new.spender().is_some()) {
        (false, true) => page.spent_utxos += 1,
        (true, false) => page.spent_utxos -= 1,
        _ => {}
    }
    *slot = new;
}
