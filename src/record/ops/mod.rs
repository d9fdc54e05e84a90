//! What each operation does: one file an operation. The rules that several share are here and in `refusal` (what bars a
//! spend, and in which order), `stamp`, `slots` and `delete_at_height`.
//!
//! Every operation first looks and refuses, and only then changes: a refused one has touched, and copied, nothing.

mod accept;
mod add_slots;
mod block;
mod clear_creating;
mod command;
mod conflicting_children;
mod create;
mod create_coinbase;
mod create_contested;
mod delete_at_height;
mod freeze;
mod lock_record;
mod mark_conflicting;
mod mark_contested;
mod meta;
mod pages;
mod preserve;
mod prune;
mod reassign;
mod refusal;
mod replace_body;
mod respend;
mod set_locked;
mod set_mined;
mod set_spending_height;
mod settle;
mod slots;
mod spend;
mod stamp;
mod stored_output;
mod unset_mined;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod testing;

pub use respend::respend_refusal;

use std::sync::Arc;

use super::{Key, Master, Operation, Outcome, Page, Record, Rejection, Reply, Rules, Sequenced, Spend, Stamp, TxState};

/// What [`apply`] did to a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The answer to the caller.
    pub outcome: Outcome,
    /// The record differs from what it was: an engine writes it exactly then. It may also differ where the outcome is
    /// `AlreadyApplied` (marks and stamps), and never does where it is `Rejected`.
    pub changed: bool,
}

/// Does `operation` to the record under `key` (`None`: there is none, before or after).
///
/// Pure and total: the same arguments always have the same effect, and every operation meets every record. The key
/// names what an operation that finds nothing makes.
pub fn apply(rules: &Rules, key: &Key, record: &mut Option<Record>, operation: &Operation) -> Effect {
    let result = match operation {
        Operation::Create(page) => create::apply(rules, key, record, page),
        Operation::CreateContested(page) => create_contested::apply(rules, key, record, page),
        Operation::Spend(spend) => spend::apply(rules, record, spend),
        Operation::ClearCreating => clear_creating::apply(record),
        Operation::SetPageSpent { page, spent } => pages::set_page_spent(rules, record, *page, *spent),
        Operation::SetDeleteAtHeight(height) => pages::set_delete_at_height(record, *height),
        Operation::AcquireLockRecord { lock_record, now_ms } => lock_record::acquire(key, record, lock_record, *now_ms),
        Operation::ReleaseLockRecord { owner } => lock_record::release(record, *owner),
        Operation::CreateMeta(meta) => meta::create(key, record, meta),
        Operation::ReplaceMeta(replace) => meta::replace(record, &replace.expected, &replace.new),
        Operation::PutSentinel(store_id) => meta::put_sentinel(key, record, store_id),
        Operation::Sequenced(stamp, operation) => sequenced(rules, key, record, *stamp, operation),
    };
    effect_of(result)
}

/// Does spends of one page one after the other, as [`apply`] does each: for a parent with many children at once, whose
/// body is then walked once and not once a child.
pub fn spend_all(rules: &Rules, record: &mut Option<Record>, spends: &[Spend]) -> Vec<Effect> {
    spend::apply_all(rules, record, spends).into_iter().map(effect_of).collect()
}

fn effect_of(result: Result<Effect, Rejection>) -> Effect {
    result.unwrap_or_else(|rejection| Effect { outcome: Outcome::Rejected(rejection), changed: false })
}

/// The one place of the stamp rule: a later stamp refuses; otherwise this one is written, unless something else refuses.
fn sequenced(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    stamp: Stamp,
    operation: &Sequenced,
) -> Result<Effect, Rejection> {
    let seen = stamp::check(record.as_ref(), stamp)?;
    let mut effect = match operation {
        Sequenced::MarkContested => mark_contested::apply(key, record),
        Sequenced::Settle(held) => settle::apply(rules, record, held),
        Sequenced::Respend(respend) => respend::apply(rules, record, respend),
        Sequenced::Accept => accept::apply(rules, record),
        Sequenced::MarkConflicting { reason, height } => mark_conflicting::apply(rules, key, record, *reason, *height),
        Sequenced::AddConflictingChild(child) => conflicting_children::add(record, *child),
        Sequenced::RemoveConflictingChild(child) => conflicting_children::remove(record, child),
        Sequenced::SetMined { mined_in, longest_chain } => set_mined::apply(rules, record, *mined_in, *longest_chain),
        Sequenced::WasMined(mined_in) => set_mined::was(rules, record, *mined_in),
        Sequenced::UnsetMined { block_id, height } => unset_mined::apply(rules, record, *block_id, *height),
        Sequenced::SetPageSpent { page, spent } => pages::set_page_spent(rules, record, *page, *spent),
        Sequenced::AddSlots { slots, height } => add_slots::apply(rules, record, slots, *height),
        Sequenced::SetSpendingHeight(height) => set_spending_height::apply(record, *height),
        Sequenced::SetLocked(locked) => set_locked::apply(record, *locked),
        Sequenced::Freeze { offset } => freeze::freeze(record, *offset, seen),
        Sequenced::Unfreeze { offset } => freeze::unfreeze(record, *offset, seen),
        Sequenced::FreezeUntil { offset, height, decided } => freeze::freeze_until(record, *offset, *height, *decided),
        Sequenced::Reassign { .. } => reassign::apply(rules, record, operation),
        Sequenced::Preserve { until } => preserve::apply(record, *until),
        Sequenced::MarkSpenderPruned(held) => prune::mark_spender_pruned(record, held),
        Sequenced::Prune { height, keep_until } => prune::apply(record, *height, *keep_until),
        Sequenced::PostponePruning { until } => prune::postpone(record, *until),
        Sequenced::ForgetTombstone { height } => prune::forget_tombstone(record, *height),
        Sequenced::Revive => prune::revive(record),
        Sequenced::CreateCoinbase(page) => create_coinbase::apply(rules, key, record, page),
        Sequenced::ReplaceBody(claimed) => replace_body::apply(record, claimed),
        Sequenced::PutBlock(block) => block::put(key, record, block),
        Sequenced::PutCommand(command) => command::put(key, record, command),
    }?;
    effect.changed |= stamp::write(record.as_mut(), stamp);
    Ok(effect)
}

impl Effect {
    fn applied(reply: Reply) -> Self {
        Effect { outcome: Outcome::Applied(reply), changed: true }
    }

    /// The record was as asked for; `changed` says whether marks were written all the same.
    fn already(reply: Reply, changed: bool) -> Self {
        Effect { outcome: Outcome::AlreadyApplied(reply), changed }
    }
}

/// The page, should there be a record.
fn optional_page(record: &mut Option<Record>) -> Result<Option<&mut Arc<Page>>, Rejection> {
    match record {
        None => Ok(None),
        Some(Record::Page(page)) => Ok(Some(page)),
        Some(_) => Err(Rejection::Unexpected),
    }
}

/// The page, which must be there; it may be a stub or a tombstone.
fn any_page(record: &mut Option<Record>) -> Result<&mut Arc<Page>, Rejection> {
    optional_page(record)?.ok_or(Rejection::NotFound)
}

/// The page, which must have slots: a tombstone is `Pruned`, and a stub is not there yet.
fn whole_page(record: &mut Option<Record>) -> Result<&mut Arc<Page>, Rejection> {
    let page = any_page(record)?;
    match page.state() {
        TxState::Pruned(height) => Err(Rejection::Pruned(height)),
        TxState::Stub(_) => Err(Rejection::NotFound),
        TxState::Live | TxState::Creating | TxState::Conflicting(_) => Ok(page),
    }
}

/// The bins of the master; any other page is not what the operation is meant for.
fn master_of(page: &Page) -> Result<&Master, Rejection> {
    page.master.as_deref().ok_or(Rejection::Unexpected)
}

/// Whether `page` belongs under `key`.
fn belongs(key: &Key, page: &Page) -> Result<(), Rejection> {
    let is_master = page.number == 0;
    if *key == Key::Page(page.txid, page.number) && is_master == page.master.is_some() {
        Ok(())
    } else {
        Err(Rejection::Unexpected)
    }
}
