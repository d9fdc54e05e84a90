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

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn reassign(from: u32, to: u32) -> Operation {
        sequenced(
            1,
            Sequenced::Reassign {
                offset: 0,
                utxo_hash: hash(from),
                new_utxo_hash: hash(to),
                output: output(to),
                block_height: 100,
                spendable_at: 1_100,
            },
        )
    }

    #[test]
    fn a_frozen_slot_gets_a_new_owner_who_can_spend_it_later() {
        let mut record = record(page_with(vec![Slot::Frozen(hash(0))]));
        assert_eq!(on_master(&mut record, &reassign(0, 5)).outcome, applied(Reply::None));
        let page = page(&record);
        assert_eq!(page.utxos, Some(vec![Slot::Unspent(hash(5))]));
        assert_eq!((page.record_utxos, page.contested.len()), (2, 1));
        assert_eq!(page.utxo_spendable_in, [(0, 1_100)].into());
        let slot = SpendSlot { offset: 0, input: 0, ..claim(5) };
        let slots = vec![RespendSlot { slot, from: None }];
        let at = |height| Respend { to: txid(1), slots: slots.clone(), checks: RespendChecks::Spend { height } };
        let told = refused(on_master(&mut record, &sequenced(2, Sequenced::Respend(at(1_099)))));
        assert_eq!(told, Rejection::NotYetSpendable(0, 1_100));
        let outcome = on_master(&mut record, &sequenced(2, Sequenced::Respend(at(1_100)))).outcome;
        assert_eq!(outcome, applied(slots_reply(false)), "a reassigned page is never all-spent");
    }

    #[test]
    fn only_a_frozen_slot_of_that_hash() {
        let told = |slot| refused(on_master(&mut record(page_with(vec![slot])), &reassign(0, 5)));
        assert_eq!(told(Slot::Unspent(hash(0))), Rejection::NotFrozen(0));
        assert_eq!(told(Slot::Spent(hash(0), holder(1, 0))), Rejection::SpentBy(0, holder(1, 0)));
        assert_eq!(told(Slot::Frozen(hash(1))), Rejection::HashMismatch(0));
        assert_eq!(told(Slot::Nil), Rejection::NoSuchOutput(0));
    }
}
