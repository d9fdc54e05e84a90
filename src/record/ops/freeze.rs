//! `Freeze`, `Unfreeze`, `FreezeUntil`: set and lift bars on one slot. Each marks the slot contested.

use std::sync::Arc;

use crate::record::{Page, Record, Rejection, Reply, Slot};

use super::{
    Effect, require_whole_page,
    slots::{self, slot},
    stamp::StampMatch,
};

pub(super) fn freeze(record: &mut Option<Record>, offset: u32, stamp_match: StampMatch) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    match slot(page, offset) {
        None | Some(Slot::Nil) => Err(Rejection::NoSuchOutput(offset)),
        Some(Slot::Spent(_, holder)) => Err(Rejection::SpentBy(offset, holder)),
        Some(Slot::Frozen(_)) if stamp_match == StampMatch::SameEvent => {
            Ok(Effect::already_applied(Reply::None, false))
        }
        Some(Slot::Frozen(_)) => Err(Rejection::AlreadyFrozen(offset)),
        Some(Slot::Unspent(hash)) => Ok(replace_slot(page, offset, Slot::Frozen(hash))),
    }
}

pub(super) fn unfreeze(record: &mut Option<Record>, offset: u32, stamp_match: StampMatch) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    match slot(page, offset) {
        None | Some(Slot::Nil) => Err(Rejection::NoSuchOutput(offset)),
        Some(Slot::Frozen(hash)) => Ok(replace_slot(page, offset, Slot::Unspent(hash))),
        // A repeat finds a free slot with its mark: only the sequencer takes a marked slot.
        Some(Slot::Unspent(_)) if stamp_match == StampMatch::SameEvent && page.contested.contains(&offset) => {
            Ok(Effect::already_applied(Reply::None, false))
        }
        Some(Slot::Unspent(_) | Slot::Spent(..)) => Err(Rejection::NotFrozen(offset)),
    }
}

pub(super) fn freeze_until(
    record: &mut Option<Record>,
    offset: u32,
    height: u32,
    decided: bool,
) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    match slot(page, offset) {
        None | Some(Slot::Nil) => return Err(Rejection::NoSuchOutput(offset)),
        Some(Slot::Spent(_, holder)) if !decided => return Err(Rejection::SpentBy(offset, holder)),
        Some(Slot::Frozen(_)) if !decided => return Err(Rejection::Frozen(offset)),
        Some(Slot::Unspent(_) | Slot::Spent(..) | Slot::Frozen(_)) => {}
    }
    if page.utxo_spendable_in.get(&offset) == Some(&height) && page.contested.contains(&offset) {
        return Ok(Effect::already_applied(Reply::None, false));
    }
    let page = Arc::make_mut(page);
    page.utxo_spendable_in.insert(offset, height);
    page.contested.insert(offset);
    Ok(Effect::applied(Reply::None))
}

fn replace_slot(page: &mut Arc<Page>, offset: u32, new: Slot) -> Effect {
    let page = Arc::make_mut(page);
    slots::put(page, offset, |_| Some(new));
    page.contested.insert(offset);
    Effect::applied(Reply::None)
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn freeze(at: u64, offset: u32) -> Operation {
        sequenced(at, Sequenced::Freeze { offset })
    }

    fn unfreeze(at: u64, offset: u32) -> Operation {
        sequenced(at, Sequenced::Unfreeze { offset })
    }

    fn until(at: u64, offset: u32, height: u32) -> Operation {
        sequenced(at, Sequenced::FreezeUntil { offset, height, decided: false })
    }

    fn one_slot_of_each_kind() -> Option<Record> {
        record(page_with(vec![
            Slot::Unspent(hash(0)),
            Slot::Spent(hash(1), holder(1, 1)),
            Slot::Frozen(hash(2)),
            Slot::Nil,
        ]))
    }

    #[test]
    fn only_a_free_slot_can_be_frozen() {
        let mut record = one_slot_of_each_kind();
        assert_eq!(refused(on_master(&mut record, &freeze(1, 1))), Rejection::SpentBy(1, holder(1, 1)));
        assert_eq!(refused(on_master(&mut record, &freeze(1, 2))), Rejection::AlreadyFrozen(2));
        assert_eq!(refused(on_master(&mut record, &freeze(1, 3))), Rejection::NoSuchOutput(3));
        assert_eq!(refused(on_master(&mut record, &freeze(1, 4))), Rejection::NoSuchOutput(4));
        assert_eq!(on_master(&mut record, &freeze(1, 0)).outcome, applied(Reply::None));
        assert_eq!(refused(on_master(&mut record, &spend(1, &[0]))), Rejection::Frozen(0));
        assert_eq!(refused(on_master(&mut record, &freeze(2, 0))), Rejection::AlreadyFrozen(0));
    }

    #[test]
    fn only_a_frozen_slot_can_be_unfrozen_and_it_stays_marked() {
        let mut record = one_slot_of_each_kind();
        assert_eq!(refused(on_master(&mut record, &unfreeze(1, 0))), Rejection::NotFrozen(0));
        assert_eq!(refused(on_master(&mut record, &unfreeze(1, 1))), Rejection::NotFrozen(1));
        assert_eq!(refused(on_master(&mut record, &unfreeze(1, 3))), Rejection::NoSuchOutput(3));
        assert_eq!(on_master(&mut record, &unfreeze(1, 2)).outcome, applied(Reply::None));
        assert_eq!(refused(on_master(&mut record, &spend(1, &[2]))), Rejection::Contested(2));
        assert_eq!(refused(on_master(&mut record, &unfreeze(2, 2))), Rejection::NotFrozen(2));
    }

    #[test]
    fn a_free_slot_is_barred_until_a_height() {
        let mut record = one_slot_of_each_kind();
        assert_eq!(refused(on_master(&mut record, &until(1, 1, 9))), Rejection::SpentBy(1, holder(1, 1)));
        assert_eq!(refused(on_master(&mut record, &until(1, 2, 9))), Rejection::Frozen(2));
        assert_eq!(refused(on_master(&mut record, &until(1, 3, 9))), Rejection::NoSuchOutput(3));
        assert_eq!(on_master(&mut record, &until(1, 0, 300)).outcome, applied(Reply::None));
        assert_eq!(on_master(&mut record, &until(2, 0, 300)).outcome, already(Reply::None));
        assert_eq!(page(&record).utxo_spendable_in, [(0, 300)].into());
        assert_eq!(page(&record).contested, [0].into());
    }

    #[test]
    fn a_decided_freeze_until_applies_to_a_spent_or_frozen_slot() {
        let mut record = one_slot_of_each_kind();
        for offset in [1, 2] {
            let before = page(&record).utxos.clone();
            let decided = sequenced(1, Sequenced::FreezeUntil { offset, height: 9, decided: true });
            assert_eq!(on_master(&mut record, &decided).outcome, applied(Reply::None));
            assert_eq!(page(&record).utxos, before);
        }
        assert_eq!(page(&record).utxo_spendable_in, [(1, 9), (2, 9)].into());
        let none = sequenced(1, Sequenced::FreezeUntil { offset: 3, height: 9, decided: true });
        assert_eq!(refused(on_master(&mut record, &none)), Rejection::NoSuchOutput(3));
    }
}
