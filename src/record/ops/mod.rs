//! The effect of each operation on a record, one file an operation.
//!
//! Rules that several operations share are here and in `refusal` (reasons that bar a spend, and their order), `stamp`,
//! `slots` and `delete_at_height`. Every operation checks first and changes afterwards: a refused operation has neither
//! changed nor copied the record.

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
mod lift_bars;
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
mod restore;
mod set_flag;
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

/// Effect of one operation on a record: outcome and change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// Answer to the caller of the operation.
    pub outcome: Outcome,
    /// `true`: the operation has changed the record, and the engine writes the record. With the outcome
    /// `AlreadyApplied` the record may have got marks or a stamp; with `Rejected` the record is never changed.
    pub changed: bool,
}

/// Applies `operation` to the record under `key`. The value `None` is an absent record, before or after.
///
/// The function is pure and total: equal arguments have equal effects, and every operation has an outcome on every
/// record. `key` decides the record that an operation creates.
pub fn apply(rules: &Rules, key: &Key, record: &mut Option<Record>, operation: &Operation) -> Effect {
    let result = match operation {
        Operation::Create(page) => create::apply(rules, key, record, page),
        Operation::CreateContested(page) => create_contested::apply(rules, key, record, page),
        Operation::Spend(spend) => spend::apply(rules, record, spend),
        Operation::ClearCreating => clear_creating::apply(record),
        Operation::SetPageSpent { page, spent } => pages::set_page_spent(rules, record, *page, *spent),
        Operation::AcquireLockRecord { lock_record, now_ms } => lock_record::acquire(key, record, lock_record, *now_ms),
        Operation::ReleaseLockRecord { owner } => lock_record::release(record, *owner),
        Operation::CreateMeta(meta) => meta::create(key, record, meta),
        Operation::ReplaceMeta(replace) => meta::replace(record, &replace.expected, &replace.new),
        Operation::PutSentinel(store_id) => meta::put_sentinel(key, record, store_id),
        Operation::Restore(restored) => restore::apply(key, record, restored),
        Operation::Sequenced(stamp, operation) => apply_sequenced(rules, key, record, *stamp, operation),
        Operation::SequencedAll(operations) => apply_all_sequenced(rules, key, record, operations),
    };
    to_effect(result)
}

/// Applies spends of one page in order, like [`apply`] for each spend. The body of the page is read once for all
/// spends, not once a spend: a parent may have many children in one batch.
pub fn spend_all(rules: &Rules, record: &mut Option<Record>, spends: &[Spend]) -> Vec<Effect> {
    spend::apply_all(rules, record, spends).into_iter().map(to_effect).collect()
}

fn to_effect(result: Result<Effect, Rejection>) -> Effect {
    result.unwrap_or_else(|rejection| Effect { outcome: Outcome::Rejected(rejection), changed: false })
}

/// Applies an operation of the sequencer under the stamp rule: a record with a later stamp refuses the operation; every
/// other record that does not refuse gets the operation's stamp. The rule is in this one place.
fn apply_sequenced(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    stamp: Stamp,
    operation: &Sequenced,
) -> Result<Effect, Rejection> {
    let stamp_match = stamp::check(record.as_ref(), stamp)?;
    let mut effect = match operation {
        Sequenced::MarkContested => mark_contested::apply(key, record),
        Sequenced::Settle(held) => settle::apply(rules, record, held),
        Sequenced::Respend(respend) => respend::apply(rules, record, respend),
        Sequenced::Accept => accept::apply(rules, record),
        Sequenced::MarkConflicting { reason, height } => mark_conflicting::apply(rules, key, record, *reason, *height),
        Sequenced::AddConflictingChild(child) => conflicting_children::add(record, *child),
        Sequenced::RemoveConflictingChild(child) => conflicting_children::remove(record, child),
        Sequenced::SetMined { mined_in, longest_chain } => set_mined::apply(rules, record, *mined_in, *longest_chain),
        Sequenced::WasMined(mined_in) => set_mined::apply_was_mined(rules, record, *mined_in),
        Sequenced::UnsetMined { block_id, height } => unset_mined::apply(rules, record, *block_id, *height),
        Sequenced::SetPageSpent { page, spent } => pages::set_page_spent(rules, record, *page, *spent),
        Sequenced::AddSlots { slots, height } => add_slots::apply(rules, record, slots, *height),
        Sequenced::SetSpendingHeight(height) => set_spending_height::apply(record, *height),
        Sequenced::SetLocked(locked) => set_flag::set_locked(record, *locked),
        Sequenced::SetFrozen(frozen) => set_flag::set_frozen(record, *frozen),
        Sequenced::Freeze { offset } => freeze::freeze(record, *offset, stamp_match),
        Sequenced::Unfreeze { offset } => freeze::unfreeze(record, *offset, stamp_match),
        Sequenced::FreezeUntil { offset, height, decided } => freeze::freeze_until(record, *offset, *height, *decided),
        Sequenced::Reassign { .. } => reassign::apply(rules, record, operation),
        Sequenced::LiftBars { .. } => lift_bars::apply(rules, record, operation),
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

/// Applies operations of the sequencer in their order. A refusal of one leaves the record as it was before all.
///
/// A record with the stamp of one of the operations has the earlier ones: a repeat applies the last ones again, and is
/// not refused for the stamp that the first time wrote.
fn apply_all_sequenced(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    operations: &[(Stamp, Sequenced)],
) -> Result<Effect, Rejection> {
    let before = record.clone();
    let stored = before.as_ref().and_then(stamp::stamp_of);
    let known = stored.filter(|stored| operations.iter().any(|(stamp, _)| stamp == stored));
    let mut last = Effect::already_applied(Reply::None, false);
    for (stamp, operation) in operations.iter().filter(|(stamp, _)| known.is_none_or(|known| *stamp >= known)) {
        match apply_sequenced(rules, key, record, *stamp, operation) {
            Ok(effect) => last = Effect { changed: last.changed || effect.changed, ..effect },
            Err(rejection) => {
                *record = before;
                return Err(rejection);
            }
        }
    }
    Ok(last)
}

impl Effect {
    fn applied(reply: Reply) -> Self {
        Effect { outcome: Outcome::Applied(reply), changed: true }
    }

    /// Returns the effect on a record that already has the requested state; `changed`: marks were written nevertheless.
    fn already_applied(reply: Reply, changed: bool) -> Self {
        Effect { outcome: Outcome::AlreadyApplied(reply), changed }
    }
}

/// Returns the page; `None`: the record is absent.
///
/// # Errors
/// `Unexpected`: the record is no page.
fn find_page(record: &mut Option<Record>) -> Result<Option<&mut Arc<Page>>, Rejection> {
    match record {
        None => Ok(None),
        Some(Record::Page(page)) => Ok(Some(page)),
        Some(_) => Err(Rejection::Unexpected),
    }
}

/// Returns the page, which may be a stub or a tombstone.
///
/// # Errors
/// `NotFound`: the record is absent.
fn require_page(record: &mut Option<Record>) -> Result<&mut Arc<Page>, Rejection> {
    find_page(record)?.ok_or(Rejection::NotFound)
}

/// Returns a page that has its slots.
///
/// # Errors
/// `Pruned` for a tombstone; `NotFound` for a stub and an absent record.
fn require_whole_page(record: &mut Option<Record>) -> Result<&mut Arc<Page>, Rejection> {
    let page = require_page(record)?;
    match page.state() {
        TxState::Pruned(height) => Err(Rejection::Pruned(height)),
        TxState::Stub(_) => Err(Rejection::NotFound),
        TxState::Live | TxState::Creating | TxState::Conflicting(_) => Ok(page),
    }
}

/// Returns the bins of the master.
///
/// # Errors
/// `Unexpected`: the page is not the master.
fn require_master(page: &Page) -> Result<&Master, Rejection> {
    page.master.as_deref().ok_or(Rejection::Unexpected)
}

/// Checks that `key` is the key of `page`.
fn check_key(key: &Key, page: &Page) -> Result<(), Rejection> {
    let is_master = page.number == 0;
    if *key == Key::Page(page.txid, page.number) && is_master == page.master.is_some() {
        Ok(())
    } else {
        Err(Rejection::Unexpected)
    }
}
