//! What bars the taking of a slot, and in which order: `semantics.md`, "Spend: order of refusal".

use crate::record::{Marks, Page, Rejection, Slot, SpendSlot, SpendingData, Verdict};

use super::{slots::slot, stored_output::StoredOutputs};

/// Who wants to take slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taker {
    /// The fast path, or a rebuild of what it did.
    Spender(Marks),
    /// The sequencer while it evaluates: a history is no obstacle, it is there to be decided on.
    Sequencer,
    /// The same of what a block lists: nor is a lock.
    Block,
}

impl Taker {
    fn heeds_flags(self) -> bool {
        self != Taker::Spender(Marks::Ignore)
    }

    fn heeds_lock(self) -> bool {
        self.heeds_flags() && self != Taker::Block
    }

    fn heeds_contested(self) -> bool {
        self == Taker::Spender(Marks::Respect)
    }
}

/// Refuses an operation that gives one slot to two inputs, before any record is looked at.
pub(super) fn contradiction(slots: impl ExactSizeIterator<Item = (u32, u32)>) -> Result<(), Rejection> {
    if slots.len() < 2 {
        return Ok(());
    }
    let mut slots: Vec<(u32, u32)> = slots.collect();
    slots.sort_unstable();
    let twice = slots.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1);
    if twice { Err(Rejection::Unexpected) } else { Ok(()) }
}

/// Whether the slot names this very spender and input. Comes before everything else, whatever the record's flags.
pub(super) fn is_taken_by(page: &Page, offset: u32, spender: SpendingData) -> Result<bool, Rejection> {
    let named = slot(page, offset).and_then(|slot| slot.spender()) == Some(spender);
    if named && page.pruned_spenders.contains(&offset) {
        return Err(Rejection::SpenderPruned(offset));
    }
    Ok(named)
}

/// Whether the slot names this very spender, whose claims are then compared: another event of the same transaction may
/// have taken it with others.
pub(super) fn is_taken_as_claimed(
    page: &Page,
    stored: &StoredOutputs<'_>,
    claim: &SpendSlot,
    spender: SpendingData,
) -> Result<bool, Rejection> {
    let taken = is_taken_by(page, claim.offset, spender)?;
    if let (true, Some(slot)) = (taken, slot(page, claim.offset)) {
        by_claim(page, stored, slot, claim)?;
    }
    Ok(taken)
}

/// What the record as a whole says against a spend in the block of this height.
pub(super) fn by_record(page: &Page, height: u32, taker: Taker) -> Result<(), Rejection> {
    if let Some(height) = page.pruned {
        return Err(Rejection::Pruned(height));
    }
    if page.creating_at.is_some() {
        return Err(Rejection::Creating);
    }
    // A stub is not there yet, and may never come: only what is proven missing is decided on.
    if page.utxos.is_none() && (page.master.is_none() || page.verdict() == Some(Verdict::Pending)) {
        return Err(Rejection::NotFound);
    }
    if page.conflicting || page.utxos.is_none() {
        return Err(Rejection::Conflicting(page.verdict().unwrap_or(Verdict::Pending)));
    }
    if taker.heeds_lock() && page.locked {
        return Err(Rejection::Locked);
    }
    if let Some(from) = page.spending_height.filter(|from| taker.heeds_flags() && *from > height) {
        return Err(Rejection::Immature(from));
    }
    Ok(())
}

/// What one slot says against it. `from` may hold the slot: the taker is told to take it from there.
pub(super) fn by_slot(
    page: &Page,
    stored: &StoredOutputs<'_>,
    claim: &SpendSlot,
    from: Option<SpendingData>,
    height: u32,
    taker: Taker,
) -> Result<(), Rejection> {
    let offset = claim.offset;
    let slot = slot(page, offset).ok_or(Rejection::NoSuchOutput(offset))?;
    by_claim(page, stored, slot, claim)?;
    if taker.heeds_flags() && is_frozen(page, slot) {
        return Err(Rejection::Frozen(offset));
    }
    if taker.heeds_contested() && page.contested.contains(&offset) {
        return Err(Rejection::Contested(offset));
    }
    // Whose spender was pruned, that stays its own: whoever takes it is told of a spender as of any other.
    let from = if page.pruned_spenders.contains(&offset) { None } else { from };
    by_holder(slot, offset, from)?;
    match page.utxo_spendable_in.get(&offset) {
        Some(from) if taker.heeds_flags() && *from > height => Err(Rejection::NotYetSpendable(offset, *from)),
        _ => Ok(()),
    }
}

/// The output is not what it is said to be.
pub(super) fn by_claim(
    page: &Page,
    stored: &StoredOutputs<'_>,
    slot: Slot,
    claim: &SpendSlot,
) -> Result<(), Rejection> {
    if slot.hash() != Some(claim.utxo_hash) {
        return Err(Rejection::HashMismatch(claim.offset));
    }
    if !stored.agree(page, claim) {
        return Err(Rejection::OutputMismatch(claim.offset));
    }
    Ok(())
}

/// A slot is free, or held by whom it is to be taken from.
pub(super) fn by_holder(slot: Slot, offset: u32, from: Option<SpendingData>) -> Result<(), Rejection> {
    match slot.spender() {
        Some(holder) if Some(holder) != from => Err(Rejection::SpentBy(offset, holder)),
        _ => Ok(()),
    }
}

/// Refuses a slot whose spender was pruned: that was live and mined, so the slot is its for good.
pub(super) fn not_pruned(page: &Page, offset: u32) -> Result<(), Rejection> {
    if page.pruned_spenders.contains(&offset) { Err(Rejection::SpenderPruned(offset)) } else { Ok(()) }
}

/// The slot, or the whole transaction.
pub(super) fn is_frozen(page: &Page, slot: Slot) -> bool {
    page.frozen || matches!(slot, Slot::Frozen(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ops::testing::*;
    use crate::record::{Operation, Respend, RespendChecks, RespendSlot, Sequenced, Slot, Spend};

    /// Everything that can bar a spend of slot 0, in the order in which it is told; the last are those of the slot.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Bar {
        Pruned,
        Creating,
        Conflicting,
        Locked,
        Immature,
        NoSuchOutput,
        Hash,
        Output,
        FrozenSlot,
        FrozenTransaction,
        Contested,
        Spent,
        NotYetSpendable,
    }

    const ALL: [Bar; 13] = [
        Bar::Pruned,
        Bar::Creating,
        Bar::Conflicting,
        Bar::Locked,
        Bar::Immature,
        Bar::NoSuchOutput,
        Bar::Hash,
        Bar::Output,
        Bar::FrozenSlot,
        Bar::FrozenTransaction,
        Bar::Contested,
        Bar::Spent,
        Bar::NotYetSpendable,
    ];

    const HEIGHT: u32 = 200;

    const TAKERS: [Taker; 4] =
        [Taker::Spender(Marks::Respect), Taker::Spender(Marks::Ignore), Taker::Sequencer, Taker::Block];

    impl Bar {
        fn put_up(self, page: &mut Page, claim: &mut SpendSlot) {
            match self {
                Bar::Pruned => page.pruned = Some(50),
                Bar::Creating => page.creating_at = Some(1),
                Bar::Conflicting => page.conflicting = true,
                Bar::Locked => page.locked = true,
                Bar::Immature => page.spending_height = Some(HEIGHT + 1),
                Bar::NoSuchOutput => claim.offset = 1,
                Bar::Hash => claim.utxo_hash = hash(77),
                Bar::Output => claim.satoshis += 1,
                Bar::FrozenSlot => page.utxos = Some(vec![Slot::Frozen(hash(0)), Slot::Nil]),
                Bar::FrozenTransaction => page.frozen = true,
                Bar::Contested => _ = page.contested.insert(0),
                Bar::Spent => {
                    page.utxos = Some(vec![Slot::Spent(hash(0), holder(99, 0)), Slot::Nil]);
                    page.spent_utxos = 1;
                }
                Bar::NotYetSpendable => _ = page.utxo_spendable_in.insert(0, HEIGHT + 1),
            }
        }

        fn rejection(self) -> Rejection {
            match self {
                Bar::Pruned => Rejection::Pruned(50),
                Bar::Creating => Rejection::Creating,
                Bar::Conflicting => Rejection::Conflicting(Verdict::Pending),
                Bar::Locked => Rejection::Locked,
                Bar::Immature => Rejection::Immature(HEIGHT + 1),
                Bar::NoSuchOutput => Rejection::NoSuchOutput(1),
                Bar::Hash => Rejection::HashMismatch(0),
                Bar::Output => Rejection::OutputMismatch(0),
                Bar::FrozenSlot | Bar::FrozenTransaction => Rejection::Frozen(0),
                Bar::Contested => Rejection::Contested(0),
                Bar::Spent => Rejection::SpentBy(0, holder(99, 0)),
                Bar::NotYetSpendable => Rejection::NotYetSpendable(0, HEIGHT + 1),
            }
        }

        /// Marks, locks and freezes, which a rebuild of a known winner passes.
        fn is_ignored_by(self, taker: Taker) -> bool {
            let mark = matches!(
                self,
                Bar::Locked | Bar::Immature | Bar::FrozenSlot | Bar::FrozenTransaction | Bar::NotYetSpendable
            );
            match taker {
                Taker::Spender(Marks::Respect) => false,
                Taker::Spender(Marks::Ignore) => mark || self == Bar::Contested,
                Taker::Sequencer => self == Bar::Contested,
                Taker::Block => matches!(self, Bar::Contested | Bar::Locked),
            }
        }
    }

    fn operation(taker: Taker, slot: SpendSlot) -> Operation {
        match taker {
            Taker::Spender(marks) => Operation::Spend(Spend {
                spender: txid(1),
                height: HEIGHT,
                slots: vec![slot].into(),
                marks,
                signals: true,
            }),
            Taker::Sequencer | Taker::Block => {
                let slots = vec![RespendSlot { slot, from: None }];
                let checks = match taker {
                    Taker::Block => RespendChecks::Listed { height: HEIGHT },
                    _ => RespendChecks::Spend { height: HEIGHT },
                };
                sequenced(1, Sequenced::Respend(Respend { to: txid(1), slots, checks }))
            }
        }
    }

    /// Every set of bars, 8,192 of them, for each who may want the slot: the first bar in the order is what is told.
    #[test]
    fn the_first_bar_in_the_order_is_told_whatever_else_there_is() {
        for taker in TAKERS {
            for set in 0..1_u32 << ALL.len() {
                let bars: Vec<Bar> = ALL.into_iter().filter(|bar| set & (1 << *bar as u32) != 0).collect();
                if bars.contains(&Bar::FrozenSlot) && bars.contains(&Bar::Spent) {
                    continue; // A slot is one or the other.
                }
                let mut page = page_with(vec![Slot::Unspent(hash(0)), Slot::Nil]);
                let mut claim = claim(0);
                bars.iter().for_each(|bar| bar.put_up(&mut page, &mut claim));
                let mut record = record(page);
                let outcome = crate::record::apply(&RULES, &MASTER, &mut record, &operation(taker, claim)).outcome;
                match bars.iter().find(|bar| !bar.is_ignored_by(taker)) {
                    Some(bar) => {
                        assert_eq!(outcome, crate::record::Outcome::Rejected(bar.rejection()), "{taker:?}, {bars:?}");
                    }
                    None => assert_eq!(outcome, applied(slots_reply(true)), "{taker:?}, {bars:?}"),
                }
            }
        }
    }

    #[test]
    fn a_slot_that_names_the_spender_comes_before_every_bar() {
        for bar in ALL.into_iter().filter(|bar| !matches!(bar, Bar::NoSuchOutput | Bar::FrozenSlot | Bar::Spent)) {
            for taker in TAKERS {
                let mut page = page_with(vec![Slot::Spent(hash(0), holder(1, 0))]);
                let mut claim = claim(0);
                bar.put_up(&mut page, &mut claim);
                let mut record = record(page);
                let outcome = crate::record::apply(&RULES, &MASTER, &mut record, &operation(taker, claim)).outcome;
                // What counts is what this event claims, whichever event of the transaction took the slot.
                let told = if matches!(bar, Bar::Hash | Bar::Output) {
                    crate::record::Outcome::Rejected(bar.rejection())
                } else {
                    already(slots_reply(true))
                };
                assert_eq!(outcome, told, "{bar:?}");
            }
        }
    }

    #[test]
    fn a_stub_is_not_there_yet_unless_it_has_a_verdict() {
        for verdict in [Verdict::Pending, Verdict::Conflicting(crate::record::Reason::Command)] {
            let told = refused(on_master(&mut record(stub(verdict)), &spend(1, &[0])));
            let undecided = verdict == Verdict::Pending;
            assert_eq!(told, if undecided { Rejection::NotFound } else { Rejection::Conflicting(verdict) });
        }
        assert_eq!(refused(on_master(&mut None, &spend(1, &[0]))), Rejection::NotFound);
    }

    #[test]
    fn one_slot_for_two_inputs_is_a_contradiction() {
        assert_eq!(contradiction([(1, 0), (0, 1), (1, 0)].into_iter()), Ok(()));
        assert_eq!(contradiction([(1, 0), (0, 1), (1, 2)].into_iter()), Err(Rejection::Unexpected));
    }

    #[test]
    fn slots_are_told_in_the_order_given() {
        let mut page = live(3);
        page.contested.insert(2);
        let mut record = record(page);
        let mut second = claim(1);
        second.utxo_hash = hash(9);
        let spend = |slots: Vec<SpendSlot>| {
            Operation::Spend(Spend {
                spender: txid(1),
                height: HEIGHT,
                slots: slots.into(),
                marks: Marks::Respect,
                signals: true,
            })
        };
        let (first, third) = (claim(0), claim(2));
        let told = refused(on_master(&mut record, &spend(vec![first.clone(), third.clone(), second.clone()])));
        assert_eq!(told, Rejection::Contested(2));
        assert_eq!(refused(on_master(&mut record, &spend(vec![first, second, third]))), Rejection::HashMismatch(1));
    }
}
