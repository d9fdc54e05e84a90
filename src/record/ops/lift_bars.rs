//! `LiftBars`: gives a slot back what commands have taken from it, because a block spends the output.

use std::sync::Arc;

use crate::record::{Reassignment, Record, Rejection, Reply, Rules, Sequenced, Slot};

use super::{Effect, delete_at_height, require_whole_page, slots};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>, operation: &Sequenced) -> Result<Effect, Rejection> {
    let Sequenced::LiftBars { offset, owner, block_height } = operation else {
        return Err(Rejection::Unexpected);
    };
    let offset = *offset;
    let page = require_whole_page(record)?;
    let slot = slots::slot(page, offset).ok_or(Rejection::NoSuchOutput(offset))?;
    let (present, holder) = match slot {
        Slot::Nil => return Err(Rejection::NoSuchOutput(offset)),
        Slot::Unspent(hash) | Slot::Frozen(hash) => (hash, None),
        Slot::Spent(hash, holder) => (hash, Some(holder)),
    };
    let former = owner.as_ref().filter(|(hash, _)| *hash != present);
    let hash = former.map_or(present, |(hash, _)| *hash);
    let lifted = holder.map_or(Slot::Unspent(hash), |holder| Slot::Spent(hash, holder));
    let is_delayed = page.utxo_spendable_in.contains_key(&offset);
    if lifted == slot && !is_delayed && page.contested.contains(&offset) {
        return Ok(Effect::already_applied(Reply::None, false));
    }
    let page = Arc::make_mut(page);
    slots::put(page, offset, |_| Some(lifted));
    page.contested.insert(offset);
    page.utxo_spendable_in.remove(&offset);
    if let Some((new_utxo_hash, output)) = former {
        // As by a reassignment: the audit entry stays for good.
        page.record_utxos += 1;
        page.reassignments.push(Reassignment {
            offset,
            utxo_hash: present,
            new_utxo_hash: *new_utxo_hash,
            block_height: *block_height,
            output: output.clone(),
        });
    }
    let changed = delete_at_height::update(rules, page);
    Ok(Effect::applied(delete_at_height::slots_reply(page, changed)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn lift(at: u64) -> Operation {
        sequenced(at, Sequenced::LiftBars { offset: 0, owner: Some((hash(0), output(0))), block_height: 200 })
    }

    fn reassign(at: u64, spendable_at: u32) -> Operation {
        let to = Sequenced::Reassign {
            offset: 0,
            utxo_hash: hash(0),
            new_utxo_hash: hash(5),
            output: output(5),
            block_height: 100,
            spendable_at,
            decided: true,
        };
        sequenced(at, to)
    }

    fn is_spendable(record: &mut Option<Record>, at: u64) -> bool {
        let slot = SpendSlot { offset: 0, input: 0, ..claim(0) };
        let slots = vec![RespendSlot { slot, from: None }];
        let respend = Respend { to: txid(1), slots, checks: RespendChecks::Listed { height: 200 } };
        on_master(record, &sequenced(at, Sequenced::Respend(respend))).outcome.is_done()
    }

    #[test]
    fn a_block_can_spend_a_slot_whose_bars_were_lifted() {
        let bars: [(&str, Vec<Operation>); 4] = [
            ("frozen", vec![sequenced(1, Sequenced::Freeze { offset: 0 })]),
            ("delayed", vec![sequenced(1, Sequenced::FreezeUntil { offset: 0, height: 300, decided: false })]),
            ("reassigned", vec![sequenced(1, Sequenced::Freeze { offset: 0 }), reassign(2, 1_100)]),
            (
                "reassigned and frozen",
                vec![
                    sequenced(1, Sequenced::Freeze { offset: 0 }),
                    reassign(2, 1_100),
                    sequenced(3, Sequenced::Freeze { offset: 0 }),
                ],
            ),
        ];
        for (name, bars) in bars {
            let mut record = record(page_with(vec![Slot::Unspent(hash(0))]));
            for bar in &bars {
                assert!(on_master(&mut record, bar).outcome.is_done(), "{name}");
            }
            assert!(!is_spendable(&mut record.clone(), 4), "{name}");
            assert!(on_master(&mut record, &lift(4)).outcome.is_done(), "{name}");
            let once = page(&record).clone();
            assert!(on_master(&mut record, &lift(4)).outcome.is_done(), "{name}");
            assert_eq!(page(&record), &once, "{name}: a repeat changes nothing");
            // A node lost nothing, and the log is applied again in a new era.
            for bar in &bars {
                on_master(&mut record, &again(bar, 5));
            }
            assert!(on_master(&mut record, &lift(6)).outcome.is_done(), "{name}");
            assert!(is_spendable(&mut record, 7), "{name}");
            assert_eq!(page(&record).reassignments.len(), once.reassignments.len(), "{name}");
        }
    }

    fn again(operation: &Operation, at: u64) -> Operation {
        let Operation::Sequenced(_, sequenced) = operation else { panic!("{operation:?}") };
        Operation::Sequenced(stamp(at), sequenced.clone())
    }

    /// In a rebuild the slot has the spender that it gets after the lift.
    #[test]
    fn a_spender_keeps_the_slot() {
        let mut record = record(page_with(vec![Slot::Spent(hash(0), holder(1, 0))]));
        assert!(on_master(&mut record, &reassign(1, 1_100)).outcome.is_done());
        assert!(on_master(&mut record, &lift(2)).outcome.is_done());
        let page = page(&record);
        assert_eq!(page.utxos, Some(vec![Slot::Spent(hash(0), holder(1, 0))]));
        assert_eq!((page.record_utxos, page.reassignments.len()), (3, 2));
        assert!(page.utxo_spendable_in.is_empty());
    }

    #[test]
    fn a_present_owner_keeps_the_output_and_loses_the_delay() {
        let mut record = record(page_with(vec![Slot::Unspent(hash(0))]));
        on_master(&mut record, &sequenced(1, Sequenced::Freeze { offset: 0 }));
        on_master(&mut record, &reassign(2, 1_100));
        let lift = sequenced(3, Sequenced::LiftBars { offset: 0, owner: None, block_height: 200 });
        assert!(on_master(&mut record, &lift).outcome.is_done());
        assert_eq!(page(&record).utxos, Some(vec![Slot::Unspent(hash(5))]));
        assert_eq!((page(&record).reassignments.len(), page(&record).utxo_spendable_in.len()), (1, 0));
    }

    #[test]
    fn a_slot_that_does_not_exist_is_refused() {
        let mut record = record(page_with(vec![Slot::Nil]));
        assert_eq!(refused(on_master(&mut record, &lift(1))), Rejection::NoSuchOutput(0));
    }
}
