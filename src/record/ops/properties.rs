//! Properties of every operation on every record that operations can produce. For each operation [`on`] checks that a
//! repeat changes nothing, that a refusal changes nothing, and that the counters equal the slots.

use std::sync::Arc;

use proptest::{collection::vec, option, prelude::*, strategy::ValueTree};

use super::testing::*;
use crate::record::*;

const SLOTS: u32 = 4;
const NIL: u32 = 2;

fn spender() -> impl Strategy<Value = u8> {
    1..4_u8
}

fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![30 => 0..SLOTS, 1 => Just(SLOTS), 1 => Just(u32::MAX)]
}

fn height() -> impl Strategy<Value = u32> {
    95..105_u32
}

fn held_slot() -> impl Strategy<Value = HeldSlot> {
    (offset(), spender(), prop::bool::weighted(0.9)).prop_map(|(offset, by, same_input)| HeldSlot {
        offset,
        holder: holder(by, if same_input { offset } else { 9 }),
    })
}

fn spend_slot() -> impl Strategy<Value = SpendSlot> {
    (offset(), prop::bool::weighted(0.95), prop::bool::weighted(0.95)).prop_map(|(offset, same_input, same_hash)| {
        let mut slot = claim(offset);
        if !same_input {
            slot.input = 9;
        }
        if !same_hash {
            slot.utxo_hash = hash(offset.wrapping_add(20));
        }
        slot
    })
}

fn reason() -> impl Strategy<Value = Reason> {
    prop_oneof![Just(Reason::Command), Just(Reason::Disconnected), Just(Reason::Mismatch { input: 0 })]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![Just(Verdict::Pending), reason().prop_map(Verdict::Conflicting)]
}

/// Generates a page as a create sends the page, perhaps with attached spends of waiting children.
fn new_page(number: u32) -> impl Strategy<Value = Page> {
    let flags = (prop::bool::weighted(0.3), prop::bool::weighted(0.1), prop::bool::weighted(0.1), any::<bool>());
    (vec(option::weighted(0.3, spender()), SLOTS as usize), flags, 0..3_u32).prop_map(
        move |(spenders, (creating, locked, immature, is_mined), extra_pages)| {
            let slot = |n: u32| match spenders[n as usize] {
                _ if n == NIL => Slot::Nil,
                Some(by) => Slot::Spent(hash(n), holder(by, n)),
                None => Slot::Unspent(hash(n)),
            };
            let mut page = page_with((0..SLOTS).map(slot).collect());
            page.creating_at = creating.then_some(1);
            page.locked = locked;
            page.spending_height = immature.then_some(100);
            page.number = number;
            master(&mut page).total_extra_recs = extra_pages;
            if is_mined {
                master(&mut page).mined = vec![mined(90)];
                master(&mut page).unmined_since = None;
            }
            if number > 0 {
                page.master = None;
            }
            page
        },
    )
}

fn contested_page(number: u32) -> impl Strategy<Value = Page> {
    (new_page(number), verdict()).prop_map(move |(mut page, verdict)| {
        // A page other than the master starts `creating`, or is flagged.
        page.conflicting = number == 0 || verdict != Verdict::Pending;
        page.creating_at = (!page.conflicting).then_some(1);
        if let Some(master) = &mut page.master {
            master.verdict = Some(verdict);
        }
        page
    })
}

fn fast_path(number: u32) -> impl Strategy<Value = Operation> {
    let marks = prop_oneof![3 => Just(Marks::Respect), 1 => Just(Marks::Ignore)];
    let spend = (spender(), height(), vec(spend_slot(), 1..3), marks).prop_map(|(by, height, slots, marks)| {
        Operation::Spend(Spend { spender: txid(by), height, slots: slots.into(), marks, signals: true })
    });
    prop_oneof![
        2 => new_page(number).prop_map(|page| Operation::Create(Arc::new(page))),
        1 => contested_page(number).prop_map(|page| Operation::CreateContested(Arc::new(page))),
        6 => spend,
        1 => Just(Operation::ClearCreating),
        1 => (0..3_u32, any::<bool>()).prop_map(|(page, spent)| Operation::SetPageSpent { page, spent }),
    ]
}

fn respend() -> impl Strategy<Value = Sequenced> {
    let from = option::of(spender());
    let slot = (spend_slot(), from)
        .prop_map(|(slot, from)| RespendSlot { from: from.map(|by| holder(by, slot.offset)), slot });
    let checks = prop_oneof![Just(RespendChecks::Decided), height().prop_map(|height| RespendChecks::Spend { height })];
    (spender(), vec(slot, 1..3), checks)
        .prop_map(|(to, slots, checks)| Sequenced::Respend(Respend { to: txid(to), slots, checks }))
}

fn reassign() -> impl Strategy<Value = Sequenced> {
    // The new owner's output equals the old one, so that later claims can agree.
    (offset(), height(), any::<bool>()).prop_map(|(offset, height, decided)| Sequenced::Reassign {
        offset,
        utxo_hash: hash(offset),
        new_utxo_hash: hash(offset),
        output: output(offset),
        block_height: height,
        spendable_at: height,
        decided,
    })
}

fn sequencer() -> impl Strategy<Value = Sequenced> {
    prop_oneof![
        2 => Just(Sequenced::MarkContested),
        4 => vec(held_slot(), 1..3).prop_map(Sequenced::Settle),
        4 => respend(),
        2 => Just(Sequenced::Accept),
        2 => (reason(), height()).prop_map(|(reason, height)| Sequenced::MarkConflicting { reason, height }),
        1 => spender().prop_map(|child| Sequenced::AddConflictingChild(txid(child))),
        1 => spender().prop_map(|child| Sequenced::RemoveConflictingChild(txid(child))),
        3 => (height(), any::<bool>())
            .prop_map(|(height, longest_chain)| Sequenced::SetMined { mined_in: mined(height), longest_chain }),
        1 => height().prop_map(|height| Sequenced::WasMined(mined(height))),
        2 => height().prop_map(|height| Sequenced::UnsetMined { block_id: height, height }),
        1 => any::<bool>().prop_map(Sequenced::SetLocked),
        1 => any::<bool>().prop_map(Sequenced::SetFrozen),
        1 => height().prop_map(Sequenced::SetSpendingHeight),
        1 => (offset(), height())
            .prop_map(|(offset, height)| Sequenced::AddSlots { slots: vec![(offset, hash(offset))], height }),
        1 => (0..3_u32, any::<bool>()).prop_map(|(page, spent)| Sequenced::SetPageSpent { page, spent }),
        2 => offset().prop_map(|offset| Sequenced::Freeze { offset }),
        1 => offset().prop_map(|offset| Sequenced::Unfreeze { offset }),
        1 => (offset(), height(), any::<bool>())
            .prop_map(|(offset, height, decided)| Sequenced::FreezeUntil { offset, height, decided }),
        1 => reassign(),
        1 => (offset(), height(), any::<bool>()).prop_map(|(offset, block_height, returns)| Sequenced::LiftBars {
            offset,
            owner: returns.then(|| (hash(offset), output(offset))),
            block_height,
        }),
        1 => height().prop_map(|until| Sequenced::Preserve { until }),
        2 => vec(held_slot(), 1..3).prop_map(Sequenced::MarkSpenderPruned),
        1 => height().prop_map(|height| Sequenced::Prune { height, keep_until: Some(height + 1) }),
        1 => (0..500_u32).prop_map(|until| Sequenced::PostponePruning { until }),
        1 => (0..600_u32).prop_map(|height| Sequenced::ForgetTombstone { height }),
        1 => Just(Sequenced::Revive),
    ]
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![Just(Phase::Evaluate), Just(Phase::Apply), Just(Phase::Prune)]
}

/// Generates operations in the order in which they reach page `number`. Most histories begin with the create. Most
/// stamps rise; some are late.
fn history(number: u32) -> impl Strategy<Value = Vec<Operation>> {
    let first =
        option::weighted(0.8, new_page(number)).prop_map(|page| page.map(|page| Operation::Create(Arc::new(page))));
    let late = prop_oneof![8 => Just(0_u64), 1 => 1..4_u64];
    let step = prop_oneof![
        1 => fast_path(number).prop_map(|operation| (operation, 0)),
        1 => (sequencer(), phase(), late).prop_map(|(operation, phase, late)| {
            (Operation::Sequenced(Stamp { offset: 0, phase }, operation), late)
        }),
    ];
    (first, vec(step, 1..40)).prop_map(|(first, steps)| {
        let stamped = |(at, (mut operation, late)): (usize, (Operation, u64))| {
            if let Operation::Sequenced(stamp, _) = &mut operation {
                stamp.offset = (at as u64 / 2).saturating_sub(late);
            }
            operation
        };
        first.into_iter().chain(steps.into_iter().enumerate().map(stamped)).collect()
    })
}

/// Generates the key of a master or another page, and a history of that page.
fn page_and_history() -> impl Strategy<Value = (Key, Vec<Operation>)> {
    (0..2_u32).prop_flat_map(|number| (Just(Key::Page(TXID, number)), history(number)))
}

/// Page before and after one operation.
struct Step<'a> {
    before: Option<Page>,
    after: Option<Page>,
    operation: &'a Operation,
    outcome: Outcome,
}

impl Step<'_> {
    fn sequenced(&self) -> Option<(Stamp, &Sequenced)> {
        match self.operation {
            Operation::Sequenced(stamp, operation) => Some((*stamp, operation)),
            _ => None,
        }
    }

    fn is_prune(&self) -> bool {
        matches!(self.sequenced(), Some((_, Sequenced::Prune { .. })))
    }

    /// A spent slot changes only by a respend or settle that names its holder.
    fn check_slot_changes(&self) {
        let (Some(before), Some(after)) = (&self.before, &self.after) else { return };
        if self.is_prune() {
            return;
        }
        for (offset, slot) in before.utxos.iter().flatten().enumerate() {
            let (offset, Some(was)) = (offset as u32, slot.spender()) else { continue };
            let now = super::slots::slot(after, offset).and_then(|slot| slot.spender());
            if now == Some(was) {
                continue;
            }
            assert!(!before.pruned_spenders.contains(&offset), "a pruned spender lost a slot");
            match self.sequenced() {
                Some((_, Sequenced::Settle(held))) => {
                    assert!(now.is_none() && held.contains(&HeldSlot { offset, holder: was }));
                }
                Some((_, Sequenced::Respend(respend))) => {
                    let moved =
                        respend.slots.iter().find(|moved| moved.slot.offset == offset && moved.from == Some(was));
                    let to = moved.map(|moved| SpendingData { txid: respend.to, input: moved.slot.input });
                    assert!(now.is_some() && now == to);
                }
                _ => panic!("slot {offset} of {was:?} is {now:?} after {:?}", self.operation),
            }
        }
    }

    /// Marks are only added, and only by operations of the sequencer.
    fn check_marks_only_grow(&self) {
        let (Some(before), Some(after)) = (&self.before, &self.after) else { return };
        if !self.is_prune() {
            let lost = before.contested.difference(&after.contested);
            let is_filled = before.utxos.is_none() && after.utxos.is_some();
            assert_eq!(lost.filter(|offset| !is_filled || super::slots::slot(after, **offset).is_some()).count(), 0);
            assert!(before.pruned_spenders.is_subset(&after.pruned_spenders));
            assert!(after.reassignments.starts_with(&before.reassignments));
        }
        if self.sequenced().is_none() && before.utxos.is_some() {
            assert_eq!(before.contested, after.contested, "the fast path adds no marks");
            assert_eq!((before.conflicting, before.locked), (after.conflicting, after.locked));
            assert_eq!(before.verdict(), after.verdict());
        }
    }

    fn check_all_slots_are_changed(&self) {
        let Some(after) = &self.after else { return };
        if !self.outcome.is_done() {
            return;
        }
        let spender = |offset| super::slots::slot(after, offset).and_then(|slot| slot.spender());
        match self.operation {
            Operation::Spend(spend) => {
                for slot in spend.slots.iter() {
                    assert_eq!(spender(slot.offset), Some(SpendingData { txid: spend.spender, input: slot.input }));
                }
            }
            Operation::Sequenced(_, Sequenced::Respend(respend)) => {
                for RespendSlot { slot, .. } in &respend.slots {
                    assert_eq!(spender(slot.offset), Some(SpendingData { txid: respend.to, input: slot.input }));
                    assert!(after.contested.contains(&slot.offset));
                }
            }
            Operation::Sequenced(_, Sequenced::Settle(held)) => {
                for HeldSlot { offset, holder } in held {
                    assert_ne!(spender(*offset), Some(*holder));
                    if after.pruned.is_some() {
                        continue;
                    }
                    let stored = super::slots::slot(after, *offset).is_some();
                    let marked = stored || after.state() == TxState::Stub(after.verdict().unwrap_or(Verdict::Pending));
                    assert_eq!(after.contested.contains(offset), marked);
                }
            }
            _ => {}
        }
    }

    fn check_stamps_only_rise(&self) {
        let stored = self.before.as_ref().and_then(|page| page.chain_pos);
        let then = self.after.as_ref().and_then(|page| page.chain_pos);
        match self.sequenced() {
            Some((stamp, _)) if stored > Some(stamp) => {
                assert_eq!(self.outcome, Outcome::Rejected(Rejection::StaleStamp(stored.unwrap())));
            }
            Some((stamp, _)) if self.outcome.is_done() && self.after.is_some() => assert_eq!(then, Some(stamp)),
            _ => assert_eq!(stored, then),
        }
    }

    fn check_flags_agree(&self) {
        let Some(page) = &self.after else { return };
        if page.master.is_some() && page.pruned.is_none() {
            let undecided = matches!(page.verdict(), Some(Verdict::Pending | Verdict::Conflicting(_)));
            assert_eq!(page.conflicting, undecided);
        }
        let Some(before) = &self.before else { return };
        if before.creating_at.is_some() && page.creating_at.is_none() {
            let is_allowed = matches!(self.operation, Operation::ClearCreating)
                || matches!(
                    self.sequenced(),
                    Some((_, Sequenced::Accept | Sequenced::Prune { .. } | Sequenced::MarkConflicting { .. }))
                );
            assert!(is_allowed, "`creating` cleared by {:?}", self.operation);
        }
    }

    /// `deleteAtHeight` is set exactly if the rule sets it.
    fn check_delete_at_height(&self) {
        let Some(page) = &self.after else { return };
        let Some(master) = &page.master else { return };
        if page.conflicting || page.utxos.is_none() || master.preserve_until.is_some() {
            return;
        }
        let spent = page.is_all_spent() && master.spent_pages.len() == master.total_extra_recs as usize;
        let due = spent && master.unmined_since.is_none() && !master.mined.is_empty();
        assert_eq!(page.delete_at_height.is_some(), due, "{page:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_096, ..ProptestConfig::default() })]

    #[test]
    fn histories_keep_every_property((key, operations) in page_and_history()) {
        let mut record = None;
        for operation in &operations {
            let before = record.as_ref().and_then(Record::page).cloned();
            let outcome = on(&key, &mut record, operation).outcome;
            let after = record.as_ref().and_then(Record::page).cloned();
            let step = Step { before, after, operation, outcome };
            step.check_slot_changes();
            step.check_marks_only_grow();
            step.check_all_slots_are_changed();
            step.check_stamps_only_rise();
            step.check_flags_agree();
            step.check_delete_at_height();
        }
    }

    /// Operations of several events in one have the effect of the single ones, also on a record that has the first of
    /// them. A refusal of one leaves the record as it was.
    #[test]
    fn operations_of_several_events_equal_the_single_ones(
        (key, operations) in page_and_history(),
        several in vec((sequencer(), phase()), 1..6),
        known in 0..6_usize,
    ) {
        let mut stored = None;
        for operation in &operations {
            on(&key, &mut stored, operation);
        }
        let several: Vec<_> =
            (100..).zip(several).map(|(offset, (operation, phase))| (Stamp { offset, phase }, operation)).collect();
        let mut single = vec![stored.clone()];
        let mut refusal = None;
        for (stamp, operation) in several.iter().cloned() {
            let mut record = single[single.len() - 1].clone();
            let operation = Operation::Sequenced(stamp, operation);
            if let Outcome::Rejected(rejection) = on(&key, &mut record, &operation).outcome {
                refusal = Some(rejection);
                break;
            }
            single.push(record);
        }
        let all = Operation::SequencedAll(several);
        let mut record = single[known.min(single.len() - 1)].clone();
        match refusal {
            None => {
                prop_assert!(on(&key, &mut record, &all).outcome.is_done());
                prop_assert_eq!(&record, &single[single.len() - 1]);
            }
            Some(refusal) => {
                prop_assert_eq!(refused(on(&key, &mut stored, &all)), refusal);
            }
        }
    }

    /// Uncontested spends commute: the order of two spends of different slots does not change the result.
    #[test]
    fn spends_of_different_slots_commute(page in new_page(0), a in vec(0..2_u32, 0..2), b in vec(3..5_u32, 0..2)) {
        let (mut first, mut second) = (record(page.clone()), record(page));
        let (a, b) = (spend(1, &a), spend(2, &b));
        let (a1, b1) = (on_master(&mut first, &a).outcome, on_master(&mut first, &b).outcome);
        let (b2, a2) = (on_master(&mut second, &b).outcome, on_master(&mut second, &a).outcome);
        prop_assert_eq!(first, second);
        prop_assert_eq!((a1.is_done(), b1.is_done()), (a2.is_done(), b2.is_done()));
    }
}

/// Every operation has an outcome on every kind of record.
#[test]
fn no_operation_panics_on_a_record_of_another_kind() {
    let lock_record =
        LockRecord { created_at: 0, expires_at: 9, process_id: 0, hostname: String::new(), expected_recs: 0, owner: 1 };
    let mut others =
        [(Key::LockRecord(TXID), Some(Record::LockRecord(lock_record))), (Key::Meta, None), (Key::Block(3), None)];
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..2_000 {
        let operation = prop_oneof![
            fast_path(0),
            (sequencer(), phase())
                .prop_map(|(operation, phase)| { Operation::Sequenced(Stamp { offset: 3, phase }, operation) })
        ];
        let operation = operation.new_tree(&mut runner).unwrap().current();
        for (key, record) in &mut others {
            let before = record.clone();
            on(key, record, &operation);
            assert_eq!(*record, before, "{operation:?} is for pages");
        }
    }
}
