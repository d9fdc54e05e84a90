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
}

impl Taker {
    fn heeds_flags(self) -> bool {
        self != Taker::Spender(Marks::Ignore)
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

/// What the record as a whole says against a spend in the block of this height.
pub(super) fn by_record(page: &Page, height: u32, taker: Taker) -> Result<(), Rejection> {
    if let Some(height) = page.pruned {
        return Err(Rejection::Pruned(height));
    }
    if page.creating_at.is_some() {
        return Err(Rejection::Creating);
    }
    if page.conflicting || page.utxos.is_none() {
        return Err(Rejection::Conflicting(page.verdict().unwrap_or(Verdict::Pending)));
    }
    if taker.heeds_flags() {
        if page.locked {
            return Err(Rejection::Locked);
        }
        if let Some(from) = page.spending_height.filter(|from| *from > height) {
            return Err(Rejection::Immature(from));
        }
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
    if slot.hash() != Some(claim.utxo_hash) {
        return Err(Rejection::HashMismatch(offset));
    }
    if !stored.agree(page, claim) {
        return Err(Rejection::OutputMismatch(offset));
    }
    if taker.heeds_flags() && is_frozen(page, slot) {
        return Err(Rejection::Frozen(offset));
    }
    if taker.heeds_contested() && page.contested.contains(&offset) {
        return Err(Rejection::Contested(offset));
    }
    if taker == Taker::Sequencer {
        not_pruned(page, offset)?;
    }
    by_holder(slot, offset, from)?;
    match page.utxo_spendable_in.get(&offset) {
        Some(from) if taker.heeds_flags() && *from > height => Err(Rejection::NotYetSpendable(offset, *from)),
        _ => Ok(()),
    }
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
