//! `Reassign`: gives a frozen slot to a new owner.

use std::sync::Arc;

use crate::record::{Page, Reassignment, Record, Rejection, Reply, Sequenced, Slot};

use super::{Effect, slots, whole_page};

pub(super) fn apply(record: &mut Option<Record>, operation: &Sequenced) -> Result<Effect, Rejection> {
    let Sequenced::Reassign { offset, utxo_hash, new_utxo_hash, output, block_height, spendable_at } = operation else {
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
    let page = whole_page(record)?;
    let slot = slots::slot(page, offset).ok_or(Rejection::NoSuchOutput(offset))?;
    let frozen = matches!(slot, Slot::Frozen(_));
    if !frozen && is_latest(page, &entry) {
        return Ok(Effect::already(Reply::None, false));
    }
    if let Some(holder) = slot.spender() {
        return Err(Rejection::SpentBy(offset, holder));
    }
    if !frozen {
        return Err(Rejection::NotFrozen(offset));
    }
    if slot.hash() != Some(*utxo_hash) {
        return Err(Rejection::HashMismatch(offset));
    }
    let page = Arc::make_mut(page);
    slots::put(page, offset, |_| Some(Slot::Unspent(*new_utxo_hash)));
    page.contested.insert(offset);
    page.utxo_spendable_in.insert(offset, *spendable_at);
    // One more than there are slots: so the page is never all-spent, and the audit entry never pruned.
    page.record_utxos += 1;
    page.reassignments.push(entry);
    Ok(Effect::applied(Reply::None))
}

fn is_latest(page: &Page, entry: &Reassignment) -> bool {
    page.reassignments.iter().rev().find(|there| there.offset == entry.offset) == Some(entry)
}
