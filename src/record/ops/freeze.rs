//! `Freeze`, `Unfreeze`, `FreezeUntil`: bars on one slot. Each gives it a history.

use std::sync::Arc;

use crate::record::{Page, Record, Rejection, Reply, Slot};

use super::{
    Effect,
    slots::{self, slot},
    stamp::Seen,
    whole_page,
};

pub(super) fn freeze(record: &mut Option<Record>, offset: u32, seen: Seen) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    match slot(page, offset) {
        None | Some(Slot::Nil) => Err(Rejection::NoSuchOutput(offset)),
        Some(Slot::Spent(_, holder)) => Err(Rejection::SpentBy(offset, holder)),
        Some(Slot::Frozen(_)) if seen == Seen::Perhaps => Ok(Effect::already(Reply::None, false)),
        Some(Slot::Frozen(_)) => Err(Rejection::AlreadyFrozen(offset)),
        Some(Slot::Unspent(hash)) => Ok(change(page, offset, Slot::Frozen(hash))),
    }
}

pub(super) fn unfreeze(record: &mut Option<Record>, offset: u32, seen: Seen) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    match slot(page, offset) {
        None | Some(Slot::Nil) => Err(Rejection::NoSuchOutput(offset)),
        Some(Slot::Frozen(hash)) => Ok(change(page, offset, Slot::Unspent(hash))),
        // A repeat finds the slot as it left it, with its mark; nobody but the sequencer takes a marked slot.
        Some(Slot::Unspent(_)) if seen == Seen::Perhaps && page.contested.contains(&offset) => {
            Ok(Effect::already(Reply::None, false))
        }
        Some(Slot::Unspent(_) | Slot::Spent(..)) => Err(Rejection::NotFrozen(offset)),
    }
}

pub(super) fn freeze_until(record: &mut Option<Record>, offset: u32, height: u32) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    match slot(page, offset) {
        None | Some(Slot::Nil) => return Err(Rejection::NoSuchOutput(offset)),
        Some(Slot::Spent(_, holder)) => return Err(Rejection::SpentBy(offset, holder)),
        Some(Slot::Frozen(_)) => return Err(Rejection::Frozen(offset)),
        Some(Slot::Unspent(_)) => {}
    }
    if page.utxo_spendable_in.get(&offset) == Some(&height) && page.contested.contains(&offset) {
        return Ok(Effect::already(Reply::None, false));
    }
    let page = Arc::make_mut(page);
    page.utxo_spendable_in.insert(offset, height);
    page.contested.insert(offset);
    Ok(Effect::applied(Reply::None))
}

fn change(page: &mut Arc<Page>, offset: u32, new: Slot) -> Effect {
    let page = Arc::make_mut(page);
    slots::put(page, offset, |_| Some(new));
    page.contested.insert(offset);
    Effect::applied(Reply::None)
}
