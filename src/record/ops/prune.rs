//! `Prune` and `MarkSpenderPruned`: forgetting a transaction without making anything spendable again.

use std::sync::Arc;

use crate::record::{HeldSlot, Page, Record, Rejection, Reply, TxState, Verdict};

use super::{Effect, delete_at_height::fully_spent, optional_page, slots};

pub(super) fn apply(record: &mut Option<Record>, height: u32) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    if let state @ TxState::Pruned(_) = page.state() {
        return Ok(Effect::already(Reply::State(state), false));
    }
    if !may_prune(page, height) {
        return Err(Rejection::NotPrunable);
    }
    *page = Arc::new(tombstone(page, height));
    Ok(Effect::applied(Reply::State(page.state())))
}

/// Whether this page, by its own bins, may go. What other pages and the spenders say is the pruner's to check.
fn may_prune(page: &Page, height: u32) -> bool {
    let Some(master) = page.master.as_deref() else {
        return page.conflicting || (page.creating_at.is_none() && page.all_spent());
    };
    if master.preserve_until.is_some_and(|until| until > height) {
        return false;
    }
    if page.conflicting {
        return matches!(master.verdict, Some(Verdict::Conflicting(_)));
    }
    let mined = !master.mined.is_empty() && master.unmined_since.is_none();
    mined && page.creating_at.is_none() && fully_spent(page, master)
}

/// What is left: who it was, when it went, the stamp that keeps late operations out, and, so that only a conflicting
/// transaction can come back, that it was one.
fn tombstone(page: &Page, height: u32) -> Page {
    let mut tombstone = Page::stub(page.txid, Verdict::Pending);
    tombstone.number = page.number;
    tombstone.pruned = Some(height);
    tombstone.chain_pos = page.chain_pos;
    tombstone.conflicting = page.conflicting;
    match (&mut tombstone.master, &page.master) {
        (Some(master), Some(old)) => master.verdict = old.verdict,
        (master, _) => *master = None,
    }
    tombstone
}

/// Marks the slots that name a spender which is about to be pruned, so that its replay is recognised.
pub(super) fn mark_spender_pruned(record: &mut Option<Record>, held: &[HeldSlot]) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    let marks: Vec<u32> = held
        .iter()
        .filter(|held| slots::slot(page, held.offset).and_then(|slot| slot.spender()) == Some(held.holder))
        .map(|held| held.offset)
        .filter(|offset| !page.pruned_spenders.contains(offset))
        .collect();
    if marks.is_empty() {
        return Ok(Effect::already(Reply::None, false));
    }
    Arc::make_mut(page).pruned_spenders.extend(marks);
    Ok(Effect::applied(Reply::None))
}
