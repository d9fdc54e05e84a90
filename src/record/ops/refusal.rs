//! The reasons that bar the taking of a slot, in their order: `semantics.md`, "Spend: order of refusal".

use crate::record::{Marks, Page, Rejection, Slot, SpendSlot, SpendingData, Verdict};

use super::{slots::slot, stored_output::StoredOutputs};

/// Caller that takes slots, which decides the bars that apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taker {
    /// The fast path, or a rebuild that applies its events again.
    Spender(Marks),
    /// The sequencer during an evaluation: a contested mark does not bar, because the sequencer decides on the slot.
    Sequencer,
    /// The sequencer for a transaction that a block lists: the flag `locked` does not bar either.
    Block,
    /// The sequencer for a transaction that was live: neither flag of the whole parent bars.
    Live,
}

impl Taker {
    fn respects_flags(self) -> bool {
        !matches!(self, Taker::Spender(Marks::Ignore | Marks::IgnoreUndecided))
    }

    /// Returns whether a page bars that is half created, or contested without a verdict.
    fn respects_undecided(self) -> bool {
        self != Taker::Spender(Marks::IgnoreUndecided)
    }

    fn respects_lock(self) -> bool {
        self.respects_flags() && !matches!(self, Taker::Block | Taker::Live)
    }

    fn respects_frozen_transaction(self) -> bool {
        self.respects_flags() && self != Taker::Live
    }

    fn respects_marks(self) -> bool {
        self == Taker::Spender(Marks::Respect)
    }
}

/// Refuses an operation that gives one slot to two inputs, whatever the record holds.
pub(super) fn check_distinct_inputs(slots: impl ExactSizeIterator<Item = (u32, u32)>) -> Result<(), Rejection> {
    if slots.len() < 2 {
        return Ok(());
    }
    let mut slots: Vec<(u32, u32)> = slots.collect();
    slots.sort_unstable();
    let twice = slots.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1);
    if twice { Err(Rejection::Unexpected) } else { Ok(()) }
}

/// Returns `true` if the slot names this spender and input. This check precedes all others, whatever the record's
/// flags.
///
/// # Errors
/// `SpenderPruned`: the spender has been pruned.
pub(super) fn is_taken_by(page: &Page, offset: u32, spender: SpendingData) -> Result<bool, Rejection> {
    let is_taken = slot(page, offset).and_then(|slot| slot.spender()) == Some(spender);
    if is_taken && page.pruned_spenders.contains(&offset) {
        return Err(Rejection::SpenderPruned(offset));
    }
    Ok(is_taken)
}

/// Returns `true` if the slot names this spender and input, and compares the claims of a slot that does: another event
/// of the same transaction may have taken the slot with other claims.
pub(super) fn is_taken_as_claimed(
    page: &Page,
    stored: &StoredOutputs<'_>,
    claim: &SpendSlot,
    spender: SpendingData,
) -> Result<bool, Rejection> {
    let taken = is_taken_by(page, claim.offset, spender)?;
    if let (true, Some(slot)) = (taken, slot(page, claim.offset)) {
        check_claim(page, stored, slot, claim)?;
    }
    Ok(taken)
}

/// Checks the flags of the whole record against a spend in a block at `height`.
pub(super) fn check_record(page: &Page, height: u32, taker: Taker) -> Result<(), Rejection> {
    if let Some(height) = page.pruned {
        return Err(Rejection::Pruned(height));
    }
    if page.creating_at.is_some() && taker.respects_undecided() {
        return Err(Rejection::Creating);
    }
    // A pending stub counts as absent, because its transaction may still be stored: a child waits for it, or proves it
    // missing.
    if page.utxos.is_none() && (page.master.is_none() || page.verdict() == Some(Verdict::Pending)) {
        return Err(Rejection::NotFound);
    }
    let verdict = page.verdict().unwrap_or(Verdict::Pending);
    let is_undecided = page.master.is_some() && verdict == Verdict::Pending;
    if page.utxos.is_none() || page.conflicting && (taker.respects_undecided() || !is_undecided) {
        return Err(Rejection::Conflicting(verdict));
    }
    if taker.respects_lock() && page.locked {
        return Err(Rejection::Locked);
    }
    if let Some(from) = page.spending_height.filter(|from| taker.respects_flags() && *from > height) {
        return Err(Rejection::Immature(from));
    }
    Ok(())
}

/// Checks one slot. The holder `from` does not bar: the operation moves the slot from that holder.
pub(super) fn check_slot(
    page: &Page,
    stored: &StoredOutputs<'_>,
    claim: &SpendSlot,
    from: Option<SpendingData>,
    height: u32,
    taker: Taker,
) -> Result<(), Rejection> {
    let offset = claim.offset;
    let slot = slot(page, offset).ok_or(Rejection::NoSuchOutput(offset))?;
    check_claim(page, stored, slot, claim)?;
    let is_frozen = taker.respects_flags() && matches!(slot, Slot::Frozen(_));
    if is_frozen || taker.respects_frozen_transaction() && page.frozen {
        return Err(Rejection::Frozen(offset));
    }
    if taker.respects_marks() && page.contested.contains(&offset) {
        return Err(Rejection::Contested(offset));
    }
    // A slot of a pruned spender is never moved. Its holder bars like any other spender.
    let from = if page.pruned_spenders.contains(&offset) { None } else { from };
    check_holder(slot, offset, from)?;
    match page.utxo_spendable_in.get(&offset) {
        Some(from) if taker.respects_flags() && *from > height => Err(Rejection::NotYetSpendable(offset, *from)),
        _ => Ok(()),
    }
}

/// Checks that the stored output equals the claimed one.
///
/// # Errors
/// `HashMismatch` or `OutputMismatch`.
pub(super) fn check_claim(
    page: &Page,
    stored: &StoredOutputs<'_>,
    slot: Slot,
    claim: &SpendSlot,
) -> Result<(), Rejection> {
    if slot.hash() != Some(claim.utxo_hash) {
        return Err(Rejection::HashMismatch(claim.offset));
    }
    if !stored.agrees_with(page, claim) {
        return Err(Rejection::OutputMismatch(claim.offset));
    }
    Ok(())
}

/// Checks that a slot is free or held by `from`.
pub(super) fn check_holder(slot: Slot, offset: u32, from: Option<SpendingData>) -> Result<(), Rejection> {
    match slot.spender() {
        Some(holder) if Some(holder) != from => Err(Rejection::SpentBy(offset, holder)),
        _ => Ok(()),
    }
}

/// Refuses a slot of a pruned spender: the spender was live and mined, so that the slot is spent for good.
pub(super) fn check_spender_not_pruned(page: &Page, offset: u32) -> Result<(), Rejection> {
    if page.pruned_spenders.contains(&offset) { Err(Rejection::SpenderPruned(offset)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use strum::{EnumCount, EnumIter, IntoEnumIterator};

    use super::*;
    use crate::record::ops::testing::*;
    use crate::record::{Operation, Respend, RespendChecks, RespendSlot, Sequenced, Slot, Spend};

    /// Reasons that bar a spend of slot 0, in the order of refusal: first those of the record, then those of the slot.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumCount, EnumIter)]
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

    const HEIGHT: u32 = 200;

    const TAKERS: [Taker; 6] = [
        Taker::Spender(Marks::Respect),
        Taker::Spender(Marks::Ignore),
        Taker::Spender(Marks::IgnoreUndecided),
        Taker::Sequencer,
        Taker::Block,
        Taker::Live,
    ];

    impl Bar {
        fn set_on(self, page: &mut Page, claim: &mut SpendSlot) {
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

        /// Returns `true` for bars that do not apply to this taker.
        fn is_ignored_by(self, taker: Taker) -> bool {
            let is_flag = matches!(
                self,
                Bar::Locked | Bar::Immature | Bar::FrozenSlot | Bar::FrozenTransaction | Bar::NotYetSpendable
            );
            match taker {
                Taker::Spender(Marks::Respect) => false,
                Taker::Spender(Marks::Ignore) => is_flag || self == Bar::Contested,
                Taker::Spender(Marks::IgnoreUndecided) => {
                    is_flag || matches!(self, Bar::Contested | Bar::Creating | Bar::Conflicting)
                }
                Taker::Sequencer => self == Bar::Contested,
                Taker::Block => matches!(self, Bar::Contested | Bar::Locked),
                Taker::Live => matches!(self, Bar::Contested | Bar::Locked | Bar::FrozenTransaction),
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
            Taker::Sequencer | Taker::Block | Taker::Live => {
                let slots = vec![RespendSlot { slot, from: None }];
                let checks = match taker {
                    Taker::Block => RespendChecks::Listed { height: HEIGHT },
                    Taker::Live => RespendChecks::Live { height: HEIGHT },
                    _ => RespendChecks::Spend { height: HEIGHT },
                };
                sequenced(1, Sequenced::Respend(Respend { to: txid(1), slots, checks }))
            }
        }
    }

    /// Tries all 8,192 sets of bars with each taker.
    #[test]
    fn the_first_bar_in_the_order_decides_the_refusal() {
        for taker in TAKERS {
            for set in 0..1_u32 << Bar::COUNT {
                let bars: Vec<Bar> = Bar::iter().filter(|bar| set & (1 << *bar as u32) != 0).collect();
                if bars.contains(&Bar::FrozenSlot) && bars.contains(&Bar::Spent) {
                    continue; // A slot is either frozen or spent.
                }
                let mut page = page_with(vec![Slot::Unspent(hash(0)), Slot::Nil]);
                let mut claim = claim(0);
                bars.iter().for_each(|bar| bar.set_on(&mut page, &mut claim));
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
    fn a_slot_of_the_same_spender_is_already_applied_despite_all_bars() {
        for bar in Bar::iter().filter(|bar| !matches!(bar, Bar::NoSuchOutput | Bar::FrozenSlot | Bar::Spent)) {
            for taker in TAKERS {
                let mut page = page_with(vec![Slot::Spent(hash(0), holder(1, 0))]);
                let mut claim = claim(0);
                bar.set_on(&mut page, &mut claim);
                let mut record = record(page);
                let outcome = crate::record::apply(&RULES, &MASTER, &mut record, &operation(taker, claim)).outcome;
                // The claims of this event count, whichever event of the transaction took the slot.
                let expected = if matches!(bar, Bar::Hash | Bar::Output) {
                    crate::record::Outcome::Rejected(bar.rejection())
                } else {
                    already(slots_reply(true))
                };
                assert_eq!(outcome, expected, "{bar:?}");
            }
        }
    }

    #[test]
    fn a_pending_stub_counts_as_absent_and_a_decided_one_as_conflicting() {
        for verdict in [Verdict::Pending, Verdict::Conflicting(crate::record::Reason::Command)] {
            let rejection = refused(on_master(&mut record(stub(verdict)), &spend(1, &[0])));
            let is_pending = verdict == Verdict::Pending;
            assert_eq!(rejection, if is_pending { Rejection::NotFound } else { Rejection::Conflicting(verdict) });
        }
        assert_eq!(refused(on_master(&mut None, &spend(1, &[0]))), Rejection::NotFound);
    }

    #[test]
    fn a_conflicting_verdict_bars_a_spend_that_ignores_an_open_verdict() {
        let ignoring = |page| on_master(&mut record(page), &spend_at(1, &[0], HEIGHT, Marks::IgnoreUndecided)).outcome;
        assert_eq!(ignoring(contested(1, Verdict::Pending)), applied(slots_reply(true)));
        let lost = Verdict::Conflicting(crate::record::Reason::Command);
        let refusal = |rejection| crate::record::Outcome::Rejected(rejection);
        assert_eq!(ignoring(contested(1, lost)), refusal(Rejection::Conflicting(lost)));
        assert_eq!(ignoring(stub(Verdict::Pending)), refusal(Rejection::NotFound));
    }

    #[test]
    fn one_slot_for_two_inputs_is_refused() {
        assert_eq!(check_distinct_inputs([(1, 0), (0, 1), (1, 0)].into_iter()), Ok(()));
        assert_eq!(check_distinct_inputs([(1, 0), (0, 1), (1, 2)].into_iter()), Err(Rejection::Unexpected));
    }

    #[test]
    fn slots_are_checked_in_the_given_order() {
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
        let rejection = refused(on_master(&mut record, &spend(vec![first.clone(), third.clone(), second.clone()])));
        assert_eq!(rejection, Rejection::Contested(2));
        assert_eq!(refused(on_master(&mut record, &spend(vec![first, second, third]))), Rejection::HashMismatch(1));
    }
}
